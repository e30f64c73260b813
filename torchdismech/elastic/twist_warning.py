"""A warning where springs are twisted so far that they do not bend as their rods would."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from torchdismech.elastic.energy import Energy
from torchdismech.elastic.rod_stencils import BendTwistStencil
from torchdismech.elastic.term import ElasticTerm
from torchdismech.errors import warn
from torchdismech.robot.state import State

__all__ = ["warn_of_twist"]

MOST_TWIST = 1.0  # rad per spring


def warn_of_twist(terms: Sequence[ElasticTerm], state: State) -> None:
    """Say once for each term that its springs are twisted too far; in round rods twist does no harm."""
    for term in terms:
        stencil = term.stencil
        if not isinstance(stencil, BendTwistStencil) or stencil.warned or not stencil.count:
            continue
        if not (stencil.averaged or _bends_unlike(term.energy)):
            continue
        most = float(stencil.twist(state).detach().abs().max())
        if most > MOST_TWIST:
            stencil.warned = True
            warn(
                f"a spring is twisted by {most:.2g} rad. Beyond {MOST_TWIST:g} rad the difference of the two bending "
                "stiffnesses counts more than a sixth too much, and on averaged frames all bending is softer by more "
                "than a fifth: take shorter edges (docs/rods.md)"
            )


def _bends_unlike(energy: Energy) -> bool:
    """Return whether some rod bends more easily about one axis than about the other, as far as its energy says."""
    first, second = (getattr(energy, name, None) for name in ("EI1", "EI2"))
    return first is not None and second is not None and not torch.equal(first.detach(), second.detach())
