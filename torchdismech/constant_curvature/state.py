"""The state of arms of constant-curvature sections."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdismech.robot.state import BatchState

__all__ = ["ArmState"]


@dataclass(frozen=True, repr=False, eq=False)
class ArmState(BatchState):
    """Everything of B arms that changes in a step; a step is a pure function of it.

    Attributes
    ----------
    q, velocity : (B, n) elongations of the chambers and their rates [m, m/s], section by section.
    impulses : (B, C, 3) of the contacts in the last step (normal, tangent 1, tangent 2) [N s]. The next step's contact
        solver starts there, and depends on them in no other way.
    positions, node_velocities : (B, N, 3) of the base, then of the middles of all disks and end plates in their order
        [m, m/s], which follow from q and velocity.
    time : (B,) [s].
    """

    q: Tensor
    velocity: Tensor
    impulses: Tensor
    positions: Tensor
    node_velocities: Tensor
    time: Tensor

    @property
    def twist(self) -> Tensor:
        """Coordinates that trajectories keep beside positions: the elongations of the chambers (B, n) [m]."""
        return self.q
