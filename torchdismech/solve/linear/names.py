"""Linear solvers by their names, with the options that each takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

from torchdismech.errors import InputError, check_choice
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.base import Solver
from torchdismech.solve.linear.dense import DenseSolver
from torchdismech.solve.linear.krylov import BiCGStabSolver, PCGSolver
from torchdismech.solve.linear.multifrontal import MultifrontalSolver
from torchdismech.sparse import Pattern

__all__ = ["SOLVERS", "Setting", "make", "named"]

Setting = str | Mapping[str, Any]  # the name of a solver, or {"name": .., and its options}

SOLVERS: dict[str, type[Solver]] = {
    solver.name: solver for solver in (DenseSolver, BandedSolver, MultifrontalSolver, PCGSolver, BiCGStabSolver)
}

KINDS = {float: "a number", int: "a whole number", str: "a text"}


def named(setting: Setting) -> tuple[str, dict[str, Any]]:
    """Return the name of a solver, or "auto", and its options; refuse names and options that do not exist.

    Parameters
    ----------
    setting : the name, or a mapping like {"name": "pcg", "tolerance": 1e-10, "product": "torch-sparse"}.
    """
    if not isinstance(setting, str | Mapping):
        raise InputError(f'solver: expected a name or a mapping such as {{"name": "pcg"}}, got {setting!r}')
    given: dict[str, Any] = {"name": setting} if isinstance(setting, str) else dict(setting)
    name = given.pop("name", None)
    check_choice("solver", name, ("auto", *SOLVERS))
    taken = {} if name == "auto" else _options(SOLVERS[name])
    for option, value in given.items():
        if option not in taken:
            raise InputError(f"solver: {name} has no option {option!r}; it takes {', '.join(taken) or 'none'}")
        kind = type(taken[option])
        if not (type(value) is kind or (kind is float and type(value) is int)):
            raise InputError(f"solver: {name}: {option} is {KINDS[kind]}, got {value!r}")
    return name, given


def _options(solver: type[Solver]) -> dict[str, Any]:
    """Return the options that a solver takes, its base classes' included, by name with their defaults."""
    makers = [vars(c)["__init__"] for c in reversed(solver.__mro__) if "__init__" in vars(c)]
    every = (p for maker in makers for p in inspect.signature(maker).parameters.values())
    return {p.name: p.default for p in every if type(p.default) in KINDS}


def make(name: str, pattern: Pattern, **options) -> Solver:
    """Return the solver of that name for the pattern; options go to its constructor."""
    check_choice("solver", name, SOLVERS)
    return SOLVERS[name](pattern, **options)
