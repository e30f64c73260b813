"""Eager or compiled: a count of what a model has evaluated eagerly, and kernels once that is worth their compiling.

Kernels are compiled for one number of robots, one device and one dtype (a *kind* of evaluation), so each kind has its
own count. Counts are of evaluations, in seconds as a core that was measured takes for them, never of time that passed:
the same calls compile at the same step on every machine.
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
# Where work ends just beyond the threshold, eager steps and compiling together cost twice what eager steps alone would
# have; where it goes on, compiled steps get that back. With several threads less time has passed by then.
THRESHOLD = 60.0

# What an eager evaluation takes, with its share of the rest of the step (factorisation, frames): for calls, by the
# number of elastic terms, and for each robot by its second derivatives, of springs and of forces. Against CPU time on
# one shared core of an EPYC, torch 2.13 (2026-11-25; steps that are not recorded, two runs, medians of ten steps; in
# brackets what this gives): rods of 101 nodes 1.7 and 2.1 ms alone (1.4), 3.5 and 4.3 for 32 (4.5); plates of 441 nodes
# with hinges 2.7 and 3.2 ms alone (2.7), 11 and 10 for 8 (13), with mid-edge normals 4.0 and 3.8 (2.6), 14 and 13 (11).
CALLS = 0.65e-3  # s, a term
DERIVATIVE = 24e-9  # s
GPU_SHARE = 0.0025  # of a robot's time on a core that it takes on a GPU (H100), where calls are what steps cost

# besides what can be called: what the dictionary of a class holds that is no data
CODE = (property, staticmethod, classmethod, dict)
COMPILATIONS = 256  # kernels that a process may compile before torch.compile refuses


def check_setting(value: object) -> Setting:
    """Return the setting; refuse what is neither True, False nor "auto"."""
    if value is True or value is False or (isinstance(value, str) and value == "auto"):
        return value  # type: ignore[return-value]
    raise InputError(f'compile: expected "auto", True or False, got {value!r}')


@dataclass(frozen=True)
class Cost:
    """What an eager evaluation takes [s]: a call, and in it each robot."""

    call: float
    robot: float

    @classmethod
    def estimated(cls, terms: int, derivatives: int) -> Cost:
        """Return the cost for a number of elastic terms; each robot has so many second derivatives."""
        return cls(CALLS * terms, DERIVATIVE * derivatives)

    def of(self, robots: int, device: torch.device) -> float:
        """Return what an evaluation of so many robots takes [s]."""
        return self.call + robots * (self.robot if device.type == "cpu" else GPU_SHARE * self.robot)


class Compilation:
    """Which of a model's functions run compiled.

    A copy, also by pickle, begins anew: it has done nothing yet and has no kernels.

    Parameters
    ----------
    setting : True: everything runs compiled. False: nothing. "auto": the kinds of evaluations that are worth it.
    cost : of an eager evaluation.

    Attributes
    ----------
    refusal : why "auto" has decided to stay eager; None while it has not.
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
        """Whether something runs compiled."""
        return not in_plain_torch() and (self.setting is True or bool(self._compiled))

    def runs_compiled(self, rows: int, like: Tensor) -> bool:
        """Return whether evaluations of so many robots run compiled, with tensors like this one."""
        if in_plain_torch():
            return False
        if self.setting == "auto":
            return bool(self._compiled) and (rows, like.device, like.dtype) in self._compiled
        return self.setting

    def compiled(self, function: F, rows: int, like: Tensor) -> F:
        """Return the function as it is to run for so many robots: as it is, or compiled as a whole."""
        # what is being traced is compiled with what called it
        if torch.compiler.is_compiling() or self._paused or not self.runs_compiled(rows, like):
            return function
        if function not in self._kernels:
            # one compilation per number of robots: the default limit of 8 is for code that should not vary
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
        """Let everything run eagerly meanwhile: what is evaluated once is not worth compiling."""
        before, self._paused = self._paused, True
        try:
            yield
        finally:
            self._paused = before

    # ---- "auto" ------------------------------------------------------------------------------------------------

    def count(self, rows: int, like: Tensor) -> None:
        """Count an evaluation of so many robots, if it is eager."""
        if self.setting == "auto":
            kind = (rows, like.device, like.dtype)
            if kind not in self._compiled:
                self._evaluations[kind] += 1

    def work(self, rows: int, like: Tensor) -> float:
        """Return what the evaluations of so many robots take eagerly [s]."""
        return self._evaluations.get((rows, like.device, like.dtype), 0) * self.cost.of(rows, like.device)

    def consider(
        self,
        rows: int,
        like: Tensor,
        why_not: Callable[[], str | None],
        ahead: float = 0.0,
        unless: Callable[[], bool] = lambda: False,
    ) -> None:
        """Compile from now on if the work done and `ahead` [s] is worth it, and say so; or say once why not.

        Parameters
        ----------
        why_not : finds why nothing can be compiled, or None.
        unless : says whether such work is done in another way, which is faster.
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
        """Return what the function returns; under "auto" it is called again, eagerly, where torch.compile fails in it.

        The function must not change anything.
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
        """Return what was evaluated and what is compiled, by kind, in numbers and names that JSON can hold."""
        kinds = [*self._evaluations, *(self._compiled - self._evaluations.keys())]
        return [
            [k[0], str(k[1]), str(k[2]).removeprefix("torch."), self._evaluations.get(k, 0), k in self._compiled]
            for k in kinds
        ]

    def take_counts(self, counts: list[list]) -> None:
        """Go on from what `counts` returned, so that the same steps run compiled as if there had been no other process.

        Nothing is taken where nothing is counted.
        """
        if self.setting != "auto":
            return
        for rows, device, dtype, number, compiled in counts:
            kind = (rows, torch.device(device), getattr(torch, dtype))
            self._evaluations[kind] = number
            if compiled and not in_plain_torch():
                self._begin(kind)


def _apart_from_default_device(kernel: Callable[..., T], *given: Any, **named: Any) -> T:
    """Return what a kernel does of what it is given, without torch's default device in place.

    The library does not need it, and torch.compile (2.13) cannot follow some methods of tensors through it.
    """
    with torch._C.DisableTorchFunction():
        return kernel(*given, **named)


def _may_change(guards: Sequence) -> list[bool]:
    """Return which of torch's guards are to be looked at in every call: not those on code of this library and torch.

    They are half of 600 guards, which take a tenth of a step of one robot. What users write (energies with numbers in
    their module, their class or an object) may change, and all of it is looked at.
    """
    return [not _of_library(guard) for guard in guards]


def _of_library(guard: Any) -> bool:
    """Return whether a guard is on what stays as it is: code and constants of this library and of torch."""
    if guard.name.startswith("G["):
        # globals of the function, which is one of the library's, or of modules by their names
        scope = guard.name.removeprefix("G['")
        return not scope.startswith("_") or scope.startswith(("__import_torch", "__builtins_dict"))
    if not guard.has_value:
        return False
    if guard.guard_type == "NOT_PRESENT_IN_GENERIC_DICT":  # nothing of an object hides what its class has
        return not is_of_user(guard.value)
    return guard.name.startswith("dict(type(") and (callable(guard.value) or isinstance(guard.value, CODE))


def _is_of_compiler(error: RuntimeError) -> bool:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return isinstance(error, TorchDynamoException | CppCompileError | InvalidCxxCompiler)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
