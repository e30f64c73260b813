"""What is of users, and what messages call it."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm, Energy, Sum
from torchdismech.forces import Force
from torchdismech.origin import class_name, is_of_user
from torchdismech.values import every_module

__all__ = [
    "another_dtype",
    "called",
    "energies_of",
    "holds_users_code",
    "name_of",
    "not_deterministic",
    "runs_users_code",
    "summed",
]


def holds_users_code(module: nn.Module) -> bool:
    """Return whether a module, or one in it, is of a user's class, or calls a user's function."""
    return any(runs_users_code(part) for part in every_module(module))


def runs_users_code(module: nn.Module) -> bool:
    """Return whether a module, apart from those in it, is of a user's class, or calls a user's function."""
    return is_of_user(module) or getattr(module, "runs_users_code", False)


def called(force: Force) -> str:
    """Return what messages call a force: an obstacle by its name."""
    return getattr(force, "name_in_messages", class_name(force))


def name_of(term: ElasticTerm) -> str:
    """Return what messages call a term: what users wrote of it, if they did."""
    own = [class_name(part) for part in (*energies_of(term), *term.laws, term.stencil) if holds_users_code(part)]
    return f"{', '.join(own) or class_name(term.energy)} ({term.name})"


def energies_of(term: ElasticTerm) -> list[Energy]:
    """Return the energies and dissipations whose densities a term adds up."""
    return [*summed(term.energy), *summed(term.dissipation)]


def summed(energy: Energy | None) -> list[Energy]:
    """Return the energies that a sum adds up, also those of sums in it; or the one energy, or none."""
    if isinstance(energy, Sum):
        return [one for part in energy.energies.values() for one in summed(cast(Energy, part))]
    return [] if energy is None else [energy]


def another_dtype(name: str, found: Tensor, expected: Tensor) -> str:
    """Return a sentence on what gives numbers in another dtype than the model's."""
    return (
        f"{name}: expected numbers in {expected.dtype}, as the model's, got {found.dtype}; make its tensors and "
        f"modules so, as by .to({expected.dtype})"
    )


def not_deterministic(name: str) -> str:
    """Return a sentence on what gives other numbers when it is evaluated twice."""
    return (
        f"{name}: two evaluations at the same state differ (dropout, random numbers): a step needs a function of the "
        "state; call eval() on it, or draw the numbers before the step"
    )
