"""Errors and failures by name: input that is refused (`InputError`), and why a row of a batch stopped (`Status`)."""

from __future__ import annotations

import contextlib
import enum
import math
import os
import sys
import warnings
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from numbers import Integral
from pathlib import Path

import numpy as np
import torch
from torch.nn.utils.parametrize import type_before_parametrizations

__all__ = [
    "InputError",
    "SimulationError",
    "Status",
    "any_of",
    "check_choice",
    "ends_in_words",
    "finite_number",
    "listed",
    "name_in_files",
    "path_of",
    "positive_number",
    "real_number",
    "refuse_one_alone",
    "refuse_other_dtype",
    "refuse_other_kind",
    "refuse_other_model",
    "refuse_trained",
    "refuse_unstepped",
    "requires_gradients",
    "shape_or_kind",
    "shown",
    "truth",
    "warn",
    "whole_number",
]

# Code that may lie between the user's line and a warning in the call stack: this library, torch and contextlib, which
# call the library back, and the constructors that dataclasses generate.
OWN_CODE = (
    *[f"{Path(module).parent}{os.sep}" for module in (__file__, torch.__file__)],
    contextlib.__file__,
    "<string>",
)


def warn(message: str, category: type[Warning] = UserWarning, once: bool = False) -> None:
    """Warn users, at the line of their code that called the library.

    Parameters
    ----------
    once : warn at the calling line of the library instead, which is the same for all users' lines: Python shows a
        message once for each line.
    """
    frame, level = sys._getframe(1), 2
    if once:
        warnings.warn(message, category, stacklevel=level)
        return
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_CODE):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def shown(value: object) -> str:
    """Return the repr of a value for a message, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def listed(things: Sequence[object]) -> str:
    """Return numbers or names separated by commas for a message: the first ten, and dots for the others."""
    return ", ".join(map(str, things[:10])) + ", ..." * (len(things) > 10)


class InputError(ValueError):
    """Input that cannot be used: the message names the thing, what was expected and what came."""


def any_of(*shapes: str) -> str:
    """Return the shapes that would be right as words, "a, b or c", each once (some coincide for a count of 1)."""
    *others, last = dict.fromkeys(shapes)
    return f"{', '.join(others)} or {last}" if others else last


def whole_number(given: object, where: str, least: int = 1) -> int:
    """Return `given` as an int; refuse what is no whole number of at least `least`, rather than cut fractions off."""
    if isinstance(given, bool) or not isinstance(given, Integral) or given < least:
        raise InputError(f"{where}: expected a whole number from {least} up, got {given!r}")
    return int(given)


def real_number(given: object, where: str, what: str = "a number") -> float:
    """Return `given` as a float; refuse text and truths, which `float` takes, and tensors that require gradients."""
    refuse_trained(given, where)
    refusal = f"{where}: expected {what}, got {given!r:.80}"
    if isinstance(given, str | bytes | bool):
        raise InputError(refusal)
    try:
        return float(given)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise InputError(refusal) from error


def finite_number(given: object, where: str, what: str = "a finite number") -> float:
    """Return `given` as a float; refuse infinities and NaN, too."""
    number = real_number(given, where, what)
    if not math.isfinite(number):
        raise InputError(f"{where}: expected {what}, got {given!r:.80}")
    return number


def positive_number(given: object, where: str, what: str = "", or_zero: bool = False) -> float:
    """Return `given` as a float; refuse what is not finite and above 0, or from 0 up with `or_zero`."""
    what = what or f"a finite number {'from 0 up' if or_zero else 'above 0'}"
    number = finite_number(given, where, what)
    if number < 0 or (number == 0 and not or_zero):
        raise InputError(f"{where}: expected {what}, got {given!r:.80}")
    return number


def path_of(given: object, where: str, of: str = "file") -> Path:
    """Return the path of a file or folder, given as text or as a path; refuse anything else, such as None."""
    if not isinstance(given, str | os.PathLike):
        raise InputError(f"{where}: expected the path of a {of}, got {shown(given)}")
    return Path(given)


def truth(given: object, where: str) -> bool:
    """Return True or False; refuse everything else, such as the text "no", which Python would take for True."""
    if isinstance(given, bool | np.bool_):
        return bool(given)
    raise InputError(f"{where}: expected True or False, got {given!r:.80}")


def name_in_files(given: object, where: str) -> str:
    """Return a name, given as `where`, that files can have for a dataset; refuse anything else."""
    if not isinstance(given, str) or "/" in given or not given.strip(".") or not given.isprintable():
        raise InputError(f"{where}: expected a name without '/', got {given!r}")
    return given


def check_choice(where: str, given: object, choices: Collection[str]) -> None:
    """Refuse what is none of the words to choose from."""
    if not isinstance(given, str) or given not in choices:
        raise InputError(f"{where}: expected one of {', '.join(map(repr, choices))}, got {given!r:.80}")


def refuse_other_kind(where: str, given: object, kind: type | tuple[type, ...], expected: str) -> None:
    """Refuse an object that is no instance of `kind`; the message says so where the class itself came."""
    if not isinstance(given, kind):
        got = f"the class {given.__name__} itself" if isinstance(given, type) else type(given).__name__
        raise InputError(f"{where}: expected {expected}, got {got}")


def shape_or_kind(given: object) -> str:
    """Return the shape of a tensor for a message, or the name of the class of anything else."""
    return str(tuple(given.shape)) if isinstance(given, torch.Tensor) else type(given).__name__


def refuse_one_alone(where: str, given: object, of: str) -> None:
    """Refuse a single object where a list of such objects is expected."""
    if not isinstance(given, Iterable):
        raise InputError(f"{where}: expected a list of {of}, also of one alone, got {type(given).__name__}")


def refuse_other_dtype(where: str, dtype: object) -> None:
    """Refuse a dtype that robots are not stepped in: anything but float32 and float64."""
    if dtype not in (torch.float32, torch.float64):
        raise InputError(f"{where}: expected torch.float32 or torch.float64, got {dtype!r}")


def requires_gradients(value: object) -> bool:
    """Return whether a value is a tensor that requires gradients, or lists and tuples that hold one."""
    if isinstance(value, torch.Tensor):
        return value.requires_grad
    return isinstance(value, list | tuple) and any(map(requires_gradients, value))


def refuse_trained(
    value: object, what: str, instead: str = "set it in a step by Control(values=...); see docs/gradients.md"
) -> None:
    """Refuse a tensor that requires gradients where only its numbers are kept, or where it goes into several constants.

    `instead`: the last advice of the message, for models whose steps take no `Control(values=...)`.
    """
    if requires_gradients(value):
        raise InputError(
            f"{what}: got a tensor that requires gradients; only its numbers are kept, so gradients by it would be "
            "wrong or missing. Give it detached, and train what the model holds: trainable.scaled(model, names) or "
            f"shifted(...), or {instead}"
        )


def refuse_other_model(caller: str, model: object, kind: type, instead: str = "") -> None:
    """Refuse a model that is no instance of the `kind` that a caller is for; messages call these `kind.called`."""
    if not isinstance(model, kind):
        called = kind.called  # type: ignore[attr-defined]
        got = type_before_parametrizations(model).__name__  # type: ignore[arg-type]  # the name without torch's prefix
        raise InputError(f"{caller} is for {called} ({kind.__name__}), got {got}{instead}")


def refuse_unstepped(integrator: object, model: object, kind: type) -> None:
    """Refuse a model that an integrator cannot step; the message names those that can (`model.stepped_by`)."""
    if not isinstance(model, kind):
        stepped_by = getattr(model, "stepped_by", None)
        instead = "" if stepped_by is None else f"; that takes {stepped_by}"
        refuse_other_model(type(integrator).__name__, model, kind, instead)


class FailureWarning(RuntimeWarning):
    """Some robots of a run failed; `Trajectory.status`, `Unrolled.status`, `EquilibriumPath.status` say why."""


class Status(enum.IntEnum):
    """Why the solve of one robot stopped. Only `CONVERGED` is a success."""

    CONVERGED = 0
    MAX_ITERATIONS = 1
    LINE_SEARCH_FAILED = 2
    NOT_FINITE = 3
    FOLDED_EDGE = 4
    SINGULAR = 5
    STOPPED = 6
    PASSED_THROUGH = 7
    CONTACT_UNSOLVED = 8
    COLLAPSED = 9
    UNSTABLE = 10
    GIMBAL_LOCK = 11

    @property
    def explanation(self) -> str:
        """One sentence on what happened and what to try."""
        return self.explained(SMALLER)

    def explained(self, smaller: str) -> str:
        """Return one sentence on what happened and what to try; `smaller` says which steps to make smaller."""
        return _EXPLANATIONS[self].format(smaller=smaller)


def ends_in_words(status: torch.Tensor, iterations: torch.Tensor) -> str:
    """Return how many robots ended with which status (B,), and how many iterations (B,) that took."""
    robots = len(status)
    if not robots:
        return "0 robots"
    ended = ", ".join(f"{count} {Status(code).name}" for code, count in Counter(status.tolist()).items())
    took = f"{float(iterations.double().mean()):.3g} iterations on average, at most {int(iterations.max())}"
    return f"{robots} robot{'s' * (robots != 1)}: {ended}; {took}"


SMALLER = "take a smaller dt, or more max_substeps where the integrator has them (Static: more load_steps)"
MORE_LOAD_STEPS = "take more load_steps"  # the advice for equilibria, which have no dt
_EXPLANATIONS = {
    Status.CONVERGED: "the residual reached the tolerance",
    Status.MAX_ITERATIONS: (
        "the residual was above the tolerance after max_iterations Newton iterations: allow more "
        "iterations, or {smaller}"
    ),
    Status.LINE_SEARCH_FAILED: (
        "no step along the Newton direction reduced the residual: {smaller}; "
        "if the residual is tiny already, the tolerance is below what rounding allows"
    ),
    Status.NOT_FINITE: "a position, force or stiffness became infinite or NaN: check the inputs, {smaller}",
    Status.FOLDED_EDGE: (
        "an edge turned by 180 degrees within the step, or two edges of a spring folded back onto each other: "
        "the frames are undefined there; {smaller}"
    ),
    Status.PASSED_THROUGH: (
        "bodies passed through each other within the step, or may have: {smaller}; where that is set, take a stiffer "
        "Penalty, or Barrier"
    ),
    Status.CONTACT_UNSOLVED: (
        "the complementarity problem of the contacts was not solved: {smaller}; where obstacles close on a rigid plate "
        "that friction holds between them, no impulses solve it"
    ),
    Status.COLLAPSED: "a section of an arm was shortened to no length: push less, or take a smaller dt",
    Status.UNSTABLE: (
        "the equilibrium found is no minimum of the potential energy: it is a saddle, which the smallest push ends, or "
        'a part is free to move; let Static leave saddles (unstable="leave"), or clamp what is free'
    ),
    Status.GIMBAL_LOCK: (
        "a step failed from where the angle about y of a joint of a chain in space is near 90 degrees: there the axes "
        "of its other two angles coincide; take more segments, or let it bend about z, in the plane x-z"
    ),
    Status.STOPPED: "the robot failed in an earlier run and was not stepped in this one",
    Status.SINGULAR: (
        "the Newton matrix could not be factored: a part of the robot may be free to move without any resistance "
        '(add a clamp; a rod whose clamps hold nodes alone may turn about its own axis: give one direction="rest")'
    ),
}


class SimulationError(RuntimeError):
    """A step failed for at least one robot of the batch and the caller asked for an exception.

    Attributes
    ----------
    status : (B,) long tensor of `Status` values.
    where : what failed, such as "step 7"; empty where the message names several.
    """

    def __init__(self, message: str, status: torch.Tensor, where: str = ""):
        super().__init__(message)
        self.status = status
        self.where = where

    @classmethod
    def from_status(
        cls, status: torch.Tensor, where: str, cause: str | None = None, at_rest: bool = False
    ) -> SimulationError:
        """Make the error that names the failed rows and their reasons, followed by the cause where it is known.

        `at_rest`: an equilibrium was looked for, so the advice is more load steps rather than a smaller dt.
        """
        lines = []
        for code in Status:
            rows = (status == int(code)).nonzero().flatten().tolist()
            if code is Status.CONVERGED or not rows:
                continue
            explanation = code.explained(MORE_LOAD_STEPS if at_rest else SMALLER)
            lines.append(f"robot {listed(rows)}: {code.name.lower()} ({explanation})")
        return cls(f"{where}: " + "; ".join([*lines, *([cause] if cause else [])]), status, where)
