"""RubbingForce: what forces with smoothed friction give to searches that take its tractions as unknowns."""

from __future__ import annotations

from torch import Tensor

from torchdismech.forces.base import Force
from torchdismech.robot.state import State

__all__ = ["RubbingForce"]


class RubbingForce(Force):
    """A force whose friction may be smoothed over a slip velocity.

    `integrate.search.primal_dual` treats the tractions of friction as unknowns beside the motion. The *friction* at an
    iterate is a tensor (B, P, k) of P places: the tractions in its first columns (up to three), then what they are
    linearised by.

    Attributes
    ----------
    traction : those columns for the matrix of the next step, set by `SmoothedFriction.with_tractions`; else None.
    slip_velocity : over which friction is smoothed [m/s]; that of obstacles is their law's.
    """

    traction: Tensor | None
    slip_velocity: Tensor

    @property
    def rubs(self) -> bool:
        """Whether it has smoothed friction."""
        raise TypeError(f"{type(self).__name__} has to define rubs")

    def first_friction(self, state: State) -> Tensor:
        """Return the friction (B, P, k) with which a search begins at a state, with the tractions of its velocities."""
        raise TypeError(f"{type(self).__name__} has to define first_friction(state)")

    def expected_friction(self, state: State, before: Tensor) -> Tensor:
        """Return the friction (B, P, k) at the next iterate, with linearised tractions, from that at the one before."""
        raise TypeError(f"{type(self).__name__} has to define expected_friction(state, before)")
