"""The state of chains of rigid elements."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdismech.robot.state import BatchState

__all__ = ["ChainState"]


@dataclass(frozen=True, repr=False, eq=False)
class ChainState(BatchState):
    """Everything of B chains that changes in a step; a step is a pure function of it.

    Attributes
    ----------
    q, velocity, acceleration : (B, J) of the joints [rad, rad/s, rad/s^2]; the active joint first. The next step's
        Newton iteration starts at the acceleration, and depends on it in no other way.
    positions, node_velocities : (B, K + 1, 3) of the joints and the tip [m, m/s], which follow from q and velocity.
    time : (B,) [s].
    """

    q: Tensor
    velocity: Tensor
    acceleration: Tensor
    positions: Tensor
    node_velocities: Tensor
    time: Tensor

    @property
    def twist(self) -> Tensor:
        """Angles that trajectories keep beside positions: those of the joints (B, J) [rad]."""
        return self.q
