"""Refusals for planar robots: inputs out of the x-z plane, and twist, which would have no effect."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.robot.body import Body
from torchdismech.robot.plane import IN_PLANE, curvatures_in_plane
from torchdismech.robot.state import Control

__all__ = ["CURVATURES", "PlanarRobot"]

CURVATURES = ("kappa1", "kappa2")
STIFFNESSES = {"kappa1": "EI1", "kappa2": "EI2", "tau": "GJ"}
BENT = 1e-6  # largest natural curvature out of the plane that counts as rounding
# How far a robot may be out of its plane by rounding: relative to its nodes' distance from the origin, and in rad.
BESIDE_PLANE = {torch.float64: 1e-9, torch.float32: 1e-5}
ELSE_IN_SPACE = "or build the robot with planar=False"
NO_EFFECT = "the robot is planar, and its rods bend in the x-z plane alone and do not twist"


class PlanarRobot(nn.Module):
    """Refuses inputs that have no effect on a robot whose nodes do not move along y and whose edges do not turn.

    Parameters
    ----------
    body : of the robot.
    across : (K,) the dofs out of the plane x-z (see `Unknowns.out_of_plane`).
    tangents : (A, 3) of the framed edges at rest.
    """

    across: Tensor
    lost: Tensor  # (S, 2), 1 where kappa1, kappa2 of a spring (also of a held tangent) bends out of the plane

    def __init__(self, body: Body, across: Tensor, tangents: Tensor):
        super().__init__()
        self._body = (body,)  # in a tuple, as the model has registered this module already
        self.register_buffer("across", across, persistent=False)
        self.register_buffer("lost", (~curvatures_in_plane(body, tangents)).to(tangents), persistent=False)

    @property
    def curvatures(self) -> Tensor:
        """Whether kappa1, kappa2 of each spring bends in the plane, (S, 2); springs at held tangents included."""
        return self.lost == 0

    # ---- states ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def refuse_shape(self, where: str, q: Tensor, beside: float | None = None) -> None:
        """Refuse q (B, n) whose nodes are not in one plane along x and z, or whose edges are turned about themselves.

        Parameters
        ----------
        beside : how far nodes may be out of the plane, over their largest distance from the origin, and edges may be
            turned [rad]; None: by rounding only.
        """
        (body,) = self._body
        plane = body.rest_q.repeat(len(q), 1)
        plane[:, 1 : 3 * body.n_nodes : 3] += q[:, 1:2] - body.nodes[0, 1]
        excess = self._excess(q, plane, beside)
        if excess is None or not bool((excess > 1).any()):
            return
        robot, k = divmod(int(excess.argmax()), len(self.across))
        dof = int(self.across[k])
        away = abs(float((q - plane)[robot, dof]))
        what, unit = _name_and_unit(dof, body)
        raise InputError(
            f"{where}: the robot is planar: its nodes keep the y that they have at rest, all moved along y alike, and "
            f"its edges are not turned about themselves, but {what} of robot {robot} is {away:.3g}{unit} out of that; "
            f"give a shape in x and z (up is usually z), {ELSE_IN_SPACE}"
        )

    @torch.no_grad()
    def refuse_velocity(self, where: str, velocity: Tensor) -> None:
        """Refuse velocities (.., n) of nodes along y, beyond rounding, and of edges about themselves."""
        (body,) = self._body
        nodes, angles = velocity[..., : body.first_held].tensor_split([3 * body.n_nodes], dim=-1)
        along_y = nodes[..., 1::3].abs().amax(-1) > IN_PLANE * nodes.abs().amax(-1)
        if bool((along_y | (angles != 0).any(-1)).any()):
            raise InputError(
                f"{where}: the robot is planar: it keeps to the x-z plane, and a velocity along y or of an edge about "
                f"itself moves nothing; leave it out, {ELSE_IN_SPACE}"
            )

    # ---- controls ----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def refuse_loads(self, control: Control) -> None:
        """Refuse forces along y, moments about edges, and natural curvatures out of the plane in a control."""
        (body,) = self._body
        if control.force is not None:
            self._refuse_force(control.force)
        if (curvature := control.natural_curvature) is not None:
            _refuse_curvature("Control.natural_curvature", curvature, self.lost[: body.n_springs])

    @torch.no_grad()
    def refuse_motion(self, control: Control, q: Tensor) -> None:
        """Refuse a control that moves clamps out of the plane in which robots are at q (B, n), beyond rounding."""
        target, pose = control.clamped_q, control.pose
        excess = None if target is None else self._excess(target, q)
        if excess is not None and bool((excess > 1).any()):
            raise InputError(
                "Control.clamped_q: the robot is planar: it keeps to the x-z plane, and the y of its nodes and the "
                "angles of its edges, which are all clamped, stay as the state has them; leave out what differs, "
                f"{ELSE_IN_SPACE}"
            )
        if pose is not None and self._turns_away(pose, q):
            raise InputError(
                "Control.pose: the robot is planar: it keeps to the x-z plane, so its clamps neither move along y nor "
                f"turn about other axes, with quaternions (w, 0, y, 0); leave that out, {ELSE_IN_SPACE}"
            )

    def _refuse_force(self, force: Tensor) -> None:
        (body,) = self._body
        nodes, angles = force[:, : body.first_held].tensor_split([3 * body.n_nodes], dim=1)
        x, y, z = nodes.unflatten(1, (-1, 3)).unbind(-1)
        along_y = (x.abs() + z.abs() < IN_PLANE * y.abs()).any()
        if bool(along_y | (angles.abs() > 0).any()):
            raise InputError(
                "Control.force: the robot is planar: it keeps to the x-z plane, and a force along y or a moment about "
                f"an edge does nothing; leave it out, {ELSE_IN_SPACE}"
            )

    # ---- natural strains ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def refuse_curvatures(self, where: str, natural: Mapping[str, Tensor | None]) -> None:
        """Refuse natural curvatures (.., S) by name, of all springs, that are out of the plane."""
        for name, lost in zip(CURVATURES, self.lost.unbind(-1), strict=True):
            if (value := natural[name]) is not None:
                _refuse_curvature(f"{where}bend_twist.natural_{name}", value, lost)

    @torch.no_grad()
    def refuse_twist(self, where: str, twist: Tensor, own: Tensor | None) -> None:
        """Refuse a natural twist other than the robot's own, as it does not twist."""
        if own is None or not torch.equal(twist.to(own), own):
            raise InputError(f"{where}: the robot is planar, and its rods do not twist; leave it out, {ELSE_IN_SPACE}")

    def refuse_trained(self, names: Collection[str]) -> None:
        """Refuse to train constants, by their names, without effect; see `idle_constants`."""
        if idle := self.idle_constants(names):
            raise InputError(
                f"{', '.join(idle)}: {NO_EFFECT}, so nothing would be trained; leave it out, {ELSE_IN_SPACE}"
            )

    def idle_constants(self, names: Collection[str]) -> list[str]:
        """Return those of the constants, by their names, that change nothing: of twist, and of curvatures out of plane.

        A curvature counts if it is in the plane for at least one spring, and a stiffness beside a constant that has an
        effect, as both may follow one modulus.
        """
        lost = [strain for strain, own in zip(CURVATURES, self.lost.T, strict=True) if own.all()] + ["tau"]
        if {f"bend_twist.{of}{STIFFNESSES[strain]}" for strain in lost for of in ("", "viscous_")}.issuperset(names):
            return [*names]
        return [name for name in names if name in {f"bend_twist.natural_{strain}" for strain in lost}]

    # ---- geometry ----------------------------------------------------------------------------------------------

    def _excess(self, q: Tensor, plane: Tensor, beside: float | None = None) -> Tensor | None:
        """Return the distance (B, K) of q from `plane`, both (B, n), in dofs out of the plane, over that allowed.

        None where they are equal; `beside` is as for `refuse_shape`.
        """
        (body,) = self._body
        at, expected = q.index_select(1, self.across), plane.index_select(1, self.across)
        if torch.equal(at, expected):  # so in most steps
            return None
        share = BESIDE_PLANE[q.dtype] if beside is None else beside
        return (at - expected).abs() / (share * torch.where(self.across < 3 * body.n_nodes, _reach(q, body), 1.0))

    def _turns_away(self, pose: Tensor, q: Tensor) -> bool:
        """Return whether poses (B, C, 7) move clamps along y, or turn them about axes other than y, from q (B, n)."""
        (body,) = self._body
        along_y = pose[..., 1] - body.clamp_points[:, 1] - q[:, 1:2] + body.nodes[0, 1]
        turned = pose[..., 4::2]
        if not bool(along_y.any() | turned.any()):  # so in most steps
            return False
        limit = BESIDE_PLANE[q.dtype]
        return bool((along_y.abs() > limit * _reach(q, body)).any() | (turned.abs() > limit).any())


def _refuse_curvature(where: str, curvature: Tensor, lost: Tensor) -> None:
    """Refuse natural curvatures out of the plane; `lost`, (.., S, 2) or (.., S), is 1 where one is so, else 0."""
    if curvature.numel() and float((curvature * lost).abs().max()) > BENT:
        raise InputError(
            f"{where}: the robot is planar, and its rods bend in the x-z plane alone, by kappa1 unless they have "
            f"directors of your own; leave the other curvature as it is, 0, {ELSE_IN_SPACE}"
        )


def _reach(q: Tensor, body: Body) -> Tensor:
    """Return the largest coordinate of any node at q (B, n) [m]."""
    return q[:, : 3 * body.n_nodes].abs().amax()


def _name_and_unit(dof: int, body: Body) -> tuple[str, str]:
    """Return what messages call the node, edge or clamp that has a dof out of the plane, and the unit after a space."""
    if dof < 3 * body.n_nodes:
        return f"node {dof // 3}", " m"
    return (f"edge {dof - 3 * body.n_nodes}", " rad") if dof < body.first_held else ("what a clamp holds", "")
