"""Which modules contain users' code, and what messages call them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm, Energy, Sum
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.origin import class_name, is_of_user
from torchdismech.values import every_module

__all__ = [
    "another_dtype",
    "by_autograd",
    "force_label",
    "energies_of",
    "holds_users_code",
    "term_label",
    "not_deterministic",
    "parts_of_users",
    "runs_users_code",
    "summed",
]


def holds_users_code(module: nn.Module) -> bool:
    """Return whether a module or a submodule is of a user's class, or calls a user's function."""
    return any(runs_users_code(part) for part in every_module(module))


def parts_of_users(forces: Iterable[Force], terms: Iterable[ElasticTerm]) -> list[Force | ElasticTerm]:
    """Return the forces, then the elastic terms, that hold users' code."""
    parts: list[Force | ElasticTerm] = [*forces, *terms]
    return [part for part in parts if holds_users_code(part)]


def runs_users_code(module: nn.Module) -> bool:
    """Return whether a module itself is of a user's class, or calls a user's function; submodules do not matter."""
    return is_of_user(module) or getattr(module, "runs_users_code", False)


def force_label(force: Force) -> str:
    """Return the name of a force in messages: its class, or for an obstacle its name."""
    return getattr(force, "name_in_messages", class_name(force))


def term_label(term: ElasticTerm) -> str:
    """Return the name of a term in messages: the classes in it that users wrote, else that of its energy."""
    own = [class_name(part) for part in (*energies_of(term), *term.laws, term.stencil) if holds_users_code(part)]
    return f"{', '.join(own) or class_name(term.energy)} ({term.name})"


def energies_of(term: ElasticTerm) -> list[Energy]:
    """Return the energies and dissipations whose densities a term adds up."""
    return [*summed(term.energy), *summed(term.dissipation)]


def summed(energy: Energy | None) -> list[Energy]:
    """Return the energies that a `Sum` adds up, at any depth; of another energy itself, of None nothing."""
    if isinstance(energy, Sum):
        return [one for part in energy.energies.values() for one in summed(cast(Energy, part))]
    return [] if energy is None else [energy]


@contextmanager
def by_autograd(name: str) -> Iterator[None]:
    """Refuse, by a name, users' code that can be evaluated, but raises something where its derivatives are asked for.

    Tensors require gradients then, which NumPy does not take.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # users' code may raise anything
        raise InputError(
            f"{name}: its derivatives cannot be evaluated, at a trial state: {str(error).rstrip('.')}; they come "
            "from autograd, so write forward() and density() in operations of torch, without numpy, item() and "
            "detach(), or write the derivatives, too"
        ) from error


def another_dtype(name: str, values: Tensor, expected: Tensor) -> str:
    """Return the sentence of a message that a module gives numbers in another dtype than the model's."""
    return (
        f"{name}: expected numbers in {expected.dtype}, as the model's, got {values.dtype}; make its tensors and "
        f"modules so, as by .to({expected.dtype})"
    )


def not_deterministic(name: str) -> str:
    """Return the sentence of a message that a module gives other numbers when it is evaluated a second time."""
    return (
        f"{name}: two evaluations at the same state differ (dropout, random numbers): a step needs a function of the "
        "state; call eval() on it, or draw the numbers before the step"
    )
