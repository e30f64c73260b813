"""LocalForce: a base class for users' forces, e.g. learned ones, on nodes from what is near these."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.errors import InputError, shape_or_kind, whole_number
from torchdismech.forces.base import Force
from torchdismech.forces.dependence import Dependence
from torchdismech.geometry.frames import rotated, transported, unit
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State

__all__ = ["LocalForce"]


class LocalForce(Force):
    """A force on nodes that depends on nodes and edges at most `reach` edges away; a subclass defines `nodal_force`.

    Newton's method takes into account its derivatives by positions, twist angles and velocities within reach, see
    `Dependence`. A force that depends on more is refused when the model is built, if trial states show it;
    `torchdismech.testing.check_force` checks it at a given state.

    Parameters
    ----------
    reach : 0 for a force that depends on its own node only, 1 for neighbours and adjacent edges, and so on.
    explicit : evaluate the force once at the start of a step and hold it; then there are no derivatives.
    """

    _edges: Tensor

    def __init__(self, reach: int = 1, explicit: bool = False):
        super().__init__(explicit)
        self.reach = whole_number(reach, f"{type(self).__name__}.reach", least=0)

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force on the nodes (B, N, 3) [N].

        `state.director` and `state.tangent` are anchors; `frames` gives the present tangents and directors.
        """
        raise TypeError(f"{type(self).__name__} has to define nodal_force(state, control)")

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        force = self.nodal_force(state, control)
        expected = tuple(state.positions.shape)
        if not isinstance(force, Tensor) or tuple(force.shape) != expected:
            raise InputError(
                f"{type(self).__name__}.nodal_force: expected the forces on nodes, of shape (B, N, 3) = {expected}, "
                f"got {shape_or_kind(force)}"
            )
        return self.body.on_nodes(force)

    def frames(self, state: State) -> tuple[Tensor, Tensor, Tensor]:
        """Return tangents and material directors m1, m2 of the rod edges (B, E, 3) at the state's q."""
        x, edges = state.positions, self._edges
        count = len(edges)
        tangent = unit(x[:, edges[:, 1]] - x[:, edges[:, 0]])
        director = transported(state.director[:, :count], state.tangent[:, :count], tangent)
        m1 = rotated(director, tangent, state.twist[:, :count])
        return tangent, m1, torch.linalg.cross(tangent, m1)

    def bind(self, body: Body) -> None:
        """Store the body and find the dofs within reach of each node."""
        super().bind(body)
        self.register_buffer("_edges", torch.as_tensor(body.rod_edges, device="cpu"), persistent=False)
        self.dependence = Dependence(body, self.reach)
