"""A warning where springs are twisted so far that their bending stiffness is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

import torch

from torchdismech.elastic.energy import Energy
from torchdismech.elastic.rod_stencils import BendTwistStencil
from torchdismech.elastic.term import ElasticTerm
from torchdismech.errors import warn
from torchdismech.robot.state import State

__all__ = ["warn_of_twist"]

MOST_TWIST = 1.0  # rad per spring

# Stencils that were warned of. They are kept here, as a backward pass refuses models whose attributes have changed.
_warned: WeakSet[BendTwistStencil] = WeakSet()


def warn_of_twist(terms: Sequence[ElasticTerm], state: State) -> None:
    """Warn, once for each term, of springs that are twisted too far for an accurate bending stiffness.

    Terms with equal EI1 and EI2 are accurate at any twist (unless curvature is `averaged`) and are not checked.
    """
    for term in terms:
        stencil = term.stencil
        if not isinstance(stencil, BendTwistStencil) or stencil in _warned or not stencil.count:
            continue
        if not (stencil.averaged or _bends_unlike(term.energy)):
            continue
        most = float(stencil.twist(state).detach().abs().max())
        if most > MOST_TWIST:
            _warned.add(stencil)
            warn(
                f"a spring is twisted by {most:.2g} rad. Beyond {MOST_TWIST:g} rad the difference of the two bending "
                "stiffnesses counts more than a sixth too much, and on averaged frames all bending is softer by more "
                "than a fifth: take shorter edges (docs/rods.md)"
            )


def _bends_unlike(energy: Energy) -> bool:
    """Return whether some rod bends more easily about one axis than about the other, as far as its energies say."""
    energies = [part for part in energy.modules() if isinstance(part, Energy)]
    of_energies = [(getattr(part, "EI1", None), getattr(part, "EI2", None)) for part in energies]
    return any(
        first is not None and second is not None and not torch.equal(first.detach(), second.detach())
        for first, second in of_energies
    )
