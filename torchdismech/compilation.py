"""Which functions of a model run compiled by torch.compile: all, none, or ("auto") those whose eager work is long.

Kernels are compiled for one number of robots, one device and one dtype (a *kind* of evaluation), so each kind has its
own count of eager evaluations. The work [s] is that count times an estimated cost of an evaluation, never time that was
measured: the same calls compile at the same step on every machine.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.origin import is_of_user
from torchdismech.system.plain import in_plain_torch
from torchdismech.system.telling import tell

__all__ = ["THRESHOLD", "Compilation", "Cost", "Setting"]

T = TypeVar("T")
F = TypeVar("F", bound=Callable)

Setting = bool | Literal["auto"]
Kind = tuple[int, torch.device, torch.dtype]

# Eager work [s] after which kernels are compiled. Compiling takes 30 to 70 s (rods, plates, a parachute, empty caches).
# Where a run ends just beyond the threshold, eager steps and compiling together cost twice what eager steps alone would
# have; where it goes on, faster compiled steps make up for it. With several threads less time has passed by then.
THRESHOLD = 60.0

# The estimated time of an eager evaluation, with its share of the rest of the step (factorisation, frames): one part
# for calls of torch, by the number of elastic terms, and one for each robot, by the second derivatives of its springs
# and forces. Measured CPU time on one shared core of an EPYC, torch 2.13 (2026-11-25; steps that are not recorded, two
# runs, medians of ten steps; in brackets the estimate): rods of 101 nodes 1.7 and 2.1 ms for one robot (1.4), 3.5 and
# 4.3 for 32 (4.5); plates of 441 nodes with hinges 2.7 and 3.2 ms for one (2.7), 11 and 10 for 8 (13), with mid-edge
# normals 4.0 and 3.8 (2.6), 14 and 13 (11).
CALLS = 0.65e-3  # s, for each elastic term
DERIVATIVE = 24e-9  # s, for each second derivative of each robot
# Time of a robot on a GPU (H100) over its time on a core of a CPU. On a GPU it is the calls that take time.
GPU_SHARE = 0.0025

# objects in the dictionary of a class that are code rather than data, beside those that can be called
CODE = (property, staticmethod, classmethod, dict)
COMPILATIONS = 256  # kernels that a process may compile before torch.compile refuses


def check_setting(value: object) -> Setting:
    """Return the setting; refuse what is neither True, False nor "auto"."""
    if value is True or value is False or (isinstance(value, str) and value == "auto"):
        return value  # type: ignore[return-value]
    raise InputError(f'compile: expected "auto", True or False, got {value!r}')


@dataclass(frozen=True)
class Cost:
    """Estimated time of an eager evaluation [s]: `call` for the evaluation itself, and `robot` more for each robot."""

    call: float
    robot: float

    @classmethod
    def estimated(cls, terms: int, derivatives: int) -> Cost:
        """Return the cost for a number of elastic terms and of second derivatives of each robot."""
        return cls(CALLS * terms, DERIVATIVE * derivatives)

    def of(self, robots: int, device: torch.device) -> float:
        """Return the estimated time [s] of an evaluation of so many robots on a device."""
        return self.call + robots * (self.robot if device.type == "cpu" else GPU_SHARE * self.robot)


class Compilation:
    """Decides which of a model's functions run compiled, and holds their kernels.

    A copy, also by pickle, begins anew: without counts of evaluations and without kernels.

    Parameters
    ----------
    setting : True: everything runs compiled. False: nothing. "auto": kinds of evaluations whose work is long.
    cost : estimated cost of an eager evaluation.

    Attributes
    ----------
    refusal : the reason why "auto" has decided to stay eager; None while it has not.
    """

    def __init__(self, setting: Setting, cost: Cost):
        self.setting = check_setting(setting)
        self.cost = cost
        self.refusal: str | None = None
        self._evaluations: defaultdict[Kind, int] = defaultdict(int)
        self._compiled: set[Kind] = set()
        self._kernels: dict[Callable, Callable] = {}
        self._paused = False

    def __reduce__(self) -> tuple:
        return Compilation, (self.setting, self.cost)

    @property
    def active(self) -> bool:
        """Whether evaluations of at least one kind run compiled."""
        return not in_plain_torch() and (self.setting is True or bool(self._compiled))

    def runs_compiled(self, rows: int, like: Tensor) -> bool:
        """Return whether evaluations of `rows` robots, with tensors of the device and dtype of `like`, run compiled."""
        if in_plain_torch():
            return False
        if self.setting == "auto":
            return bool(self._compiled) and (rows, like.device, like.dtype) in self._compiled
        return self.setting

    def compiled(self, function: F, rows: int, like: Tensor) -> F:
        """Return the function to call in place of `function` for so many robots: itself, or its compiled kernel."""
        # a function that torch.compile is tracing becomes part of its caller's kernel
        if torch.compiler.is_compiling() or self._paused or not self.runs_compiled(rows, like):
            return function
        if function not in self._kernels:
            # there is one compilation for each number of robots; torch's default limit is 8
            config = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, COMPILATIONS)
            options: dict[str, Any] = {"guard_filter_fn": _may_change}
            self._kernels[function] = torch.compile(function, dynamic=False, fullgraph=True, options=options)
        kernel = self._kernels[function]
        if torch._C._len_torch_function_stack():
            return partial(_apart_from_default_device, kernel)  # type: ignore[return-value]
        return kernel  # type: ignore[return-value]

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Let everything run eagerly in the block, for evaluations that happen once and are not worth compiling."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    # ---- "auto" ------------------------------------------------------------------------------------------------

    def count(self, rows: int, like: Tensor) -> None:
        """Count an evaluation of so many robots, unless its kind runs compiled."""
        if self.setting == "auto":
            kind = (rows, like.device, like.dtype)
            if kind not in self._compiled:
                self._evaluations[kind] += 1

    def work(self, rows: int, like: Tensor) -> float:
        """Return the estimated time [s] of all eager evaluations of this kind so far."""
        return self._evaluations.get((rows, like.device, like.dtype), 0) * self.cost.of(rows, like.device)

    def consider(
        self,
        rows: int,
        like: Tensor,
        why_not: Callable[[], str | None],
        ahead: float = 0.0,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Under "auto", begin to compile this kind of evaluation if its work so far and `ahead` [s] exceed `THRESHOLD`.

        The user is told that it begins, or, once, why nothing can be compiled.

        Parameters
        ----------
        why_not : returns the reason why the model cannot be compiled, or None.
        ahead : estimated eager work that the caller is about to do [s].
        unless : returns whether this work is done faster in another way, such as by a recording; then nothing is
            compiled.
        """
        if (
            self.setting != "auto"
            or in_plain_torch()
            or self.refusal is not None
            or self.work(rows, like) + ahead < THRESHOLD
        ):
            return
        if self.runs_compiled(rows, like) or unless():
            return
        reason = why_not()
        if reason is None:
            self._begin((rows, like.device, like.dtype))
        else:
            self._refuse(reason)

    def guarded(self, function: Callable[[], T]) -> T:
        """Return function(); under "auto", call it a second time, eagerly, where torch.compile fails in it.

        The function must not change anything, as its first call may have got half through.
        """
        try:
            return function()
        except RuntimeError as error:
            if not (self.setting == "auto" and self._compiled and _is_of_compiler(error)):
                raise
            self._compiled.clear()
            self._refuse(f"torch.compile fails: {_first_line(error)}")
        return function()

    def _begin(self, kind: Kind) -> None:
        self._compiled.add(kind)
        robots = "one robot" if kind[0] == 1 else f"{kind[0]} robots at a time"
        tell(
            f"compiling what a step of {robots} evaluates, as the work is long: about a minute, once, then from "
            "the cache on disk; compile=False (--no-compile) turns it off"
        )

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        tell(f"the work is long, but what steps evaluate is not compiled: {reason}")

    # ---- for runs that go on in another process ------------------------------------------------------------------

    def counts(self) -> list[list]:
        """Return for each kind [robots, device, dtype, evaluations, whether it is compiled], as JSON can hold it."""
        kinds = [*self._evaluations, *(self._compiled - self._evaluations.keys())]
        return [
            [k[0], str(k[1]), str(k[2]).removeprefix("torch."), self._evaluations.get(k, 0), k in self._compiled]
            for k in kinds
        ]

    def take_counts(self, counts: list[list]) -> None:
        """Go on from `counts` of another process, so that the same steps run compiled as in one process.

        Does nothing unless the setting is "auto".
        """
        if self.setting != "auto":
            return
        for rows, device, dtype, number, compiled in counts:
            kind = (rows, torch.device(device), getattr(torch, dtype))
            self._evaluations[kind] = number
            if compiled and not in_plain_torch():
                self._begin(kind)


def _apart_from_default_device(kernel: Callable[..., T], *given: Any, **named: Any) -> T:
    """Return kernel(*given, **named), called with torch's default device (a torch function mode) out of the way.

    The library does not need the mode, and torch.compile (2.13) cannot follow some methods of tensors through it.
    """
    with torch._C.DisableTorchFunction():
        return kernel(*given, **named)


def _may_change(guards: Sequence) -> list[bool]:
    """Return which of torch's guards have to be checked in every call: those not on code of this library and torch.

    Guards on code of the library and torch are half of 600, and checking them takes a tenth of a step of one robot.
    What users write (energies with numbers in their module, their class or an object) may change, so all guards on it
    are kept.
    """
    return [not _of_library(guard) for guard in guards]


def _of_library(guard: Any) -> bool:
    """Return whether a guard is on something that never changes: code and constants of this library and of torch."""
    if guard.name.startswith("G["):
        # a global of the compiled function's file, which is the library's, or another module as torch calls it there
        scope = guard.name.removeprefix("G['")
        return not scope.startswith("_") or scope.startswith(("__import_torch", "__builtins_dict"))
    if not guard.has_value:
        return False
    if guard.guard_type == "NOT_PRESENT_IN_GENERIC_DICT":  # no attribute of an object hides one of its class
        return not is_of_user(guard.value)
    return guard.name.startswith("dict(type(") and (callable(guard.value) or isinstance(guard.value, CODE))


def _is_of_compiler(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return isinstance(error, TorchDynamoException | CppCompileError | InvalidCxxCompiler)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
