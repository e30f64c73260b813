"""Chains of rigid bodies in space, by recursions over the joints; batch last.

The first joint turns about one axis. Between bodies there are three joints at the same point, one after the other,
without bodies between them. As in the plane, vectors and inertias are stored along the world's axes: joints at one
point then need no transformation, and between points only a shift. Variables are (J, S, B): joints, states of a robot,
robots.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchdismech.autograd import AutogradOn
from torchdismech.rigid.bodies import Bodies
from torchdismech.rigid.compiled import CompiledFactor, CompiledPosture, axes_in_space, serves

__all__ = ["Spatial", "SpatialFactor", "SpatialPosture"]

# axes x, y and z of the base in the world; its y axis points up, so that the first joint turns x towards the world's z
BASE = ((1.0, 0.0, 0.0), (0.0, 0.0, 1.0), (0.0, -1.0, 0.0))
ACTIVE, PASSIVE = (2,), (2, 1, 0)  # axes of the joints at the base and between bodies
XYZ = range(3)
Block = list[list[Tensor]]


class Spatial(Bodies):
    """Constants of chains in space, and their postures."""

    def at(self, q: Tensor) -> SpatialPosture:
        """Return the posture at joint angles q (J, S, B)."""
        if serves(q):
            return SpatialPosture(self, *axes_in_space(q, len(self.mass)))
        cos, sin = q.cos(), q.sin()
        frame = torch.stack([q.new_tensor(axis)[:, None, None].expand(3, *q.shape[1:]) for axis in BASE])
        axes: list[Tensor] = []
        bodies: list[Tensor] = []
        for body in range(len(self.mass)):
            joints = _joints(body)
            by_joints, frame = _turned_frame(frame, cos[joints], sin[joints])
            axes.append(by_joints)
            bodies.append(frame)
        return SpatialPosture(self, torch.cat(axes), torch.stack(bodies))

    def motion(self, q: Tensor, velocity: Tensor, acceleration: Tensor) -> SpatialMotion:
        """Return the torques that a motion takes, as an object that also multiplies vectors with their derivatives."""
        return SpatialMotion(self, q, velocity, acceleration)


class SpatialPosture:
    """Chains at given joint angles, in S states of each of B robots.

    Attributes
    ----------
    axes : (J, 3, S, B) unit vectors of the joints' axes.
    bodies : (K, 3, 3, S, B) the x, y and z axis of each body; the third dimension has their components.
    """

    def __init__(self, chain: Spatial, axes: Tensor, bodies: Tensor):
        self.chain, self.axes, self.bodies = chain, axes, bodies

    def torque(self, velocity: Tensor, acceleration: Tensor) -> Tensor:
        """Return the torques (J, S, B) that the motion takes, without springs and dampers [N m]."""
        chain, bodies = self.chain, self.bodies
        if serves(self.axes) and not torch.is_grad_enabled():
            return self.compiled.torque(velocity, acceleration)
        e = bodies[:, 0]
        rate = self.axes * velocity[:, None]
        turning = chain.upto(rate)
        turned = chain.upto(torch.addcmul(_cross(turning, rate), self.axes, acceleration[:, None]))
        turning, turned = turning[:: len(PASSIVE)], turned[:: len(PASSIVE)]  # after the last joint of each body
        bend = _cross(turned, e) + _cross(turning, _cross(turning, e))
        length, short, mass = chain.length[:, None], (chain.centre - chain.length)[:, None], chain.mass[:, None]
        force = mass * (torch.addcmul(chain.upto(length * bend), short, bend) - chain.gravity)
        load = torch.addcmul(length * chain.beyond(force), short, force)
        local, local_turned = ((bodies * x[:, None]).sum(2) for x in (turning, turned))
        local_moment = torch.addcmul(_cross(local, chain.inertia * local), chain.inertia, local_turned)
        moment = chain.beyond(_cross(e, load) + (bodies * local_moment[:, :, None]).sum(1))
        return (self.axes * self._of_joints(moment)).sum(1)

    def factor(self, diagonal: Tensor | None = None) -> SpatialFactor | CompiledFactor:
        """Return the factored mass matrix of a posture (S = 1) plus m diagonals (J, m, B), which may be complex."""
        return CompiledFactor(self.compiled, diagonal) if serves(self.axes) else SpatialFactor(self, diagonal)

    @cached_property
    def compiled(self) -> CompiledPosture:
        """The posture as compiled code takes it."""
        return CompiledPosture("space", (self.axes, self.bodies), self.chain)

    def places(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions and velocities of joints and tip, each (3, K + 1, S, B) [m, m/s]."""
        chain, e = self.chain, self.bodies[:, 0]
        steps = torch.stack((e, _cross(self.turning(velocity), e)), 1)
        sums = chain.upto(chain.length[:, None, None] * steps)
        start = torch.stack(torch.broadcast_tensors(chain.base, torch.zeros_like(chain.base)))
        joined = torch.cat([start.expand(1, *sums.shape[1:]), start + sums]).transpose(0, 2)
        return joined[:, 0], joined[:, 1]

    def turning(self, velocity: Tensor) -> Tensor:
        """Return the angular velocities (K, 3, S, B) of the bodies [rad/s]."""
        return self.chain.upto(self.axes * velocity[:, None])[:: len(PASSIVE)]

    def tip_spin(self, velocity: Tensor) -> Tensor:
        """Return the angular velocity (3, S, B) of the last body [rad/s]."""
        return self.turning(velocity)[-1]

    def energies(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return kinetic energy and potential energy of gravity, each (S, B) [J]."""
        chain, e, turning = self.chain, self.bodies[:, 0], self.turning(velocity)
        length, short = chain.length[:, None], (chain.centre - chain.length)[:, None]
        velocity_of_e = _cross(turning, e)
        speed = (chain.upto(length * velocity_of_e) + short * velocity_of_e).square().sum(1)
        local = (self.bodies * turning[:, None]).sum(2)
        kinetic = 0.5 * (chain.mass * speed + (chain.inertia * local.square()).sum(1)).sum(0)
        centres = chain.base[None] + chain.upto(length * e) + short * e
        return kinetic, -(chain.mass[:, None] * chain.gravity[None] * centres).sum((0, 1))

    def _of_joints(self, x: Tensor) -> Tensor:
        """Return values of bodies (K, ..), repeated for each of their joints (J, ..)."""
        passive = x[1:, None].expand(-1, len(PASSIVE), *x.shape[1:])
        return torch.cat((x[:1], passive.reshape(-1, *x.shape[1:])))


class SpatialMotion:
    """Torques that a motion takes, and products of their derivatives with a vector, by autograd.

    Attributes
    ----------
    torque : (J, S, B) [N m].
    """

    def __init__(self, chain: Spatial, q: Tensor, velocity: Tensor, acceleration: Tensor):
        self.chain = chain
        with AutogradOn():
            self._inputs = tuple(x.detach().requires_grad_() for x in (q, velocity, acceleration))
            self._recorded = chain.at(self._inputs[0]).torque(*self._inputs[1:])
        self.torque = self._recorded.detach()

    def pulled_back(self, multiplier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the products (J, S, B) of a vector with the torque's derivatives by q, velocity, acceleration."""
        by_q, by_velocity, by_acceleration = torch.autograd.grad(
            self._recorded, self._inputs, multiplier, retain_graph=True
        )
        return by_q, by_velocity, by_acceleration

    def by_constants(self, multiplier: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Return the products of a vector with the torque's derivatives by the chain's constants, where wanted."""
        leaves = [c.detach().requires_grad_(need) for c, need in zip(self.chain.tensors(), wanted, strict=True)]
        q, velocity, acceleration = (x.detach() for x in self._inputs)
        with AutogradOn():
            torque = self.chain.with_tensors(tuple(leaves)).at(q).torque(velocity, acceleration)
        inputs = [leaf for leaf in leaves if leaf.requires_grad]
        gradients = iter(torch.autograd.grad(torque, inputs, multiplier, allow_unused=True, materialize_grads=True))
        return [next(gradients) if need else None for need in wanted]


class SpatialFactor:
    """H = M(q) + diagonal, factored by articulated bodies: `solve` gives x with H x = b in O(J).

    From the tip to the base, each joint is eliminated from the articulated-body inertia of its body with all beyond it.
    The blocks of that inertia are J (rotation), C (moment by translation) and M (translation), stored as lists of
    single entries, each (S, B).
    """

    def __init__(self, posture: SpatialPosture, diagonal: Tensor | None):
        chain = posture.chain
        turning, coupling = _inertias(posture)
        self.axes = posture.axes
        self.arms = chain.length[:, None] * posture.bodies[:, 0]
        zero = torch.zeros_like(self.axes[0, 0])
        carried: tuple[Block, ...] = tuple(_upper(lambda i, n: zero) for _ in range(3))
        self.shares: list[list[Share]] = []
        for body in range(len(turning) - 1, -1, -1):
            of_body = None if diagonal is None else diagonal[_joints(body)]
            arm = self.arms[body - 1] if body else None
            axes = self.axes[_joints(body)]
            shares, carried = _joints_eliminated(
                carried, turning[body], coupling[body], chain.mass[body], axes, of_body, arm
            )
            self.shares.append(shares)
        self.shares.reverse()

    def solve(self, torque: Tensor) -> Tensor:
        """Return x (J, S, B) with H x = torque."""
        motions_alone: list[list[Tensor]] = []
        passed_on = [torch.zeros_like(torque[0]) for _ in range(6)]
        for body in range(len(self.shares) - 1, -1, -1):
            joints, arm = _joints(body), self.arms[body - 1] if body else None
            motions, passed_on = _swept_back(passed_on, torque[joints], self.axes[joints], self.shares[body], arm)
            motions_alone.append(motions)
        motions_alone.reverse()
        solution: list[Tensor] = []
        motion = [torch.zeros_like(torque[0]) for _ in range(6)]
        for body in range(len(self.shares)):
            arm = self.arms[body - 1] if body else None
            motions, motion = _swept_out(motion, motions_alone[body], self.axes[_joints(body)], self.shares[body], arm)
            solution += motions
        return torch.stack(solution)


# of an eliminated joint about an axis a: 1 / (a . J a + its diagonal), and J a and C^T a times that
Share = tuple[Tensor, tuple[Tensor, ...], tuple[Tensor, ...]]


def _turned_frame(frame: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """Return the axes (N, 3, S, B) of joints that turn a frame (3, 3, S, B) in succession, and the turned frame."""
    x, axes = list(frame.unbind(0)), []
    for k, axis in enumerate(ACTIVE if len(cos) == len(ACTIVE) else PASSIVE):
        u, w = (axis + 1) % 3, (axis + 2) % 3
        axes.append(x[axis])
        x[u], x[w] = (
            torch.addcmul(x[u] * cos[k], x[w], sin[k]),
            torch.addcmul(x[w] * cos[k], x[u], sin[k], value=-1),
        )
    return torch.stack(axes), torch.stack(x)


def _joints_eliminated(
    carried: tuple[Block, ...],
    turning: Tensor,
    coupling: Tensor,
    mass: Tensor,
    axes: Tensor,
    diagonal: Tensor | None,
    arm: Tensor | None,
) -> tuple[list[Share], tuple[Block, ...]]:
    """Return the coefficients of a body's eliminated joints, and the inertia that the body before carries.

    That inertia is about the first joint of the body before, from which this body's joints are `arm` away.
    """
    j, c, m = carried
    j = _matrix_sum(j, [row.unbind(0) for row in turning.unbind(0)])
    c = _with_coupling(c, coupling.unbind(0))
    m = [[m[i][n] + mass if i == n else m[i][n] for n in XYZ] for i in XYZ]
    shares: list[Share] = []
    for k in range(len(axes) - 1, -1, -1):
        a = axes[k].unbind(0)
        ja, ca = [_dot(j[i], a) for i in XYZ], [_dot([c[i][n] for i in XYZ], a) for n in XYZ]
        inertia = _dot(ja, a)
        inverse = (inertia if diagonal is None else inertia + diagonal[k]).reciprocal()
        turns, moves = tuple(x * inverse for x in ja), tuple(x * inverse for x in ca)
        shares.append((inverse, turns, moves))
        j = _lowered(j, turns, ja)
        c = [[torch.addcmul(c[i][n], turns[i], ca[n], value=-1) for n in XYZ] for i in XYZ]
        m = _lowered(m, moves, ca)
    shares.reverse()
    if arm is not None:
        j, c = _shifted(j, c, m, arm.unbind(0))
    return shares, (j, c, m)


def _swept_back(
    passed_on: list[Tensor], torque: Tensor, axes: Tensor, shares: list[Share], arm: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the motion of a body's joints if the body before stays still, and moment and force passed on to it."""
    moment, force = passed_on[:3], passed_on[3:]
    motions_alone: list[Tensor] = []
    for k in range(len(axes) - 1, -1, -1):
        inverse, turns, moves = shares[k]
        remaining = torque[k] - _dot(moment, axes[k].unbind(0))
        motions_alone.append(remaining * inverse)
        moment = [torch.addcmul(x, share, remaining) for x, share in zip(moment, turns, strict=True)]
        force = [torch.addcmul(x, share, remaining) for x, share in zip(force, moves, strict=True)]
    motions_alone.reverse()
    if arm is not None:
        moment = _plus_cross(moment, arm.unbind(0), force)
    return motions_alone, [*moment, *force]


def _swept_out(
    motion: list[Tensor], motions_alone: list[Tensor], axes: Tensor, shares: list[Share], arm: Tensor | None
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the motion of a body's joints for a motion of the body before, and the motion of the body itself."""
    rotation, translation = motion[:3], motion[3:]
    if arm is not None:
        translation = _plus_cross(translation, rotation, arm.unbind(0))
    motions: list[Tensor] = []
    for k in range(len(axes)):
        _, turns, moves = shares[k]
        x = motions_alone[k] - _dot(turns, rotation) - _dot(moves, translation)
        motions.append(x)
        rotation = [torch.addcmul(t, a, x) for t, a in zip(rotation, axes[k].unbind(0), strict=True)]
    return motions, [*rotation, *translation]


def _joints(body: int) -> slice:
    """Return the slice of a body's joints among all joints."""
    return slice(0, 1) if body == 0 else slice(len(PASSIVE) * (body - 1) + 1, len(PASSIVE) * body + 1)


def _inertias(posture: SpatialPosture) -> tuple[Tensor, Tensor]:
    """Return the bodies' inertias about their joints (K, 3, 3, S, B), and mass times joint-to-centre (K, 3, S, B)."""
    chain, bodies = posture.chain, posture.bodies
    weighted = chain.inertia[:, :, None] * bodies
    pairs = [(weighted[:, axis, :, None], bodies[:, axis, None]) for axis in XYZ]
    turning = torch.addcmul(torch.addcmul(pairs[0][0] * pairs[0][1], *pairs[1]), *pairs[2])
    arm = chain.centre[:, None] * bodies[:, 0]
    offset = chain.mass[:, None] * arm
    turning = torch.addcmul(turning, offset[:, :, None], arm[:, None], value=-1)
    turning.diagonal(dim1=1, dim2=2).add_((chain.mass * chain.centre.square())[..., None])
    return turning, offset


def _upper(entry) -> Block:
    """Return the symmetric matrix with the entries `entry(i, n)` for i <= n."""
    entries = {(i, n): entry(i, n) for i in XYZ for n in XYZ if i <= n}
    return [[entries[min(i, n), max(i, n)] for n in XYZ] for i in XYZ]


def _lowered(matrix: Block, a: Sequence[Tensor], b: Sequence[Tensor]) -> Block:
    """Return a symmetric matrix less a b^T, which is symmetric, too."""
    return _upper(lambda i, n: torch.addcmul(matrix[i][n], a[i], b[n], value=-1))


def _matrix_sum(matrix: Block, other: Sequence[Sequence[Tensor]]) -> Block:
    """Return the sum of two symmetric matrices."""
    return _upper(lambda i, n: matrix[i][n] + other[i][n])


def _with_coupling(c: Block, offset: Sequence[Tensor]) -> Block:
    """Return C plus the cross product matrix of `offset`, a body's mass times the vector from joint to centre."""
    x, y, z = offset
    return [
        [c[0][0], c[0][1] - z, c[0][2] + y],
        [c[1][0] + z, c[1][1], c[1][2] - x],
        [c[2][0] - y, c[2][1] + x, c[2][2]],
    ]


def _shifted(j: Block, c: Block, m: Block, arm: Sequence[Tensor]) -> tuple[Block, Block]:
    """Return J and C about a point from which the present one is p = `arm` away.

    They are J + p x C^T + (p x C'^T)^T and C' = C + p x M, where p x acts on columns.
    """
    shifted_c = _columns(lambda n: _plus_cross([c[i][n] for i in XYZ], arm, [m[i][n] for i in XYZ]))
    across = _columns(lambda n: _plus_cross(j[n], arm, c[n]))  # J + p x C^T, by columns

    def entry(i: int, n: int) -> Tensor:
        """Return the entry (i, n) of J + p x C^T plus component n of p x (row i of the shifted C)."""
        u, w = (n + 1) % 3, (n + 2) % 3
        part = torch.addcmul(across[i][n], arm[u], shifted_c[i][w])
        return torch.addcmul(part, arm[w], shifted_c[i][u], value=-1)

    return _upper(entry), shifted_c


def _columns(column) -> Block:
    """Return the matrix with the columns `column(n)`."""
    columns = [column(n) for n in XYZ]
    return [[columns[n][i] for n in XYZ] for i in XYZ]


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return torch.addcmul(torch.addcmul(a[0] * b[0], a[1], b[1]), a[2], b[2])


def _plus_cross(x: Sequence[Tensor], a: Sequence[Tensor], b: Sequence[Tensor]) -> list[Tensor]:
    """Return x + a x b."""
    entries = []
    for i in XYZ:
        u, w = (i + 1) % 3, (i + 2) % 3
        entries.append(torch.addcmul(torch.addcmul(x[i], a[u], b[w]), a[w], b[u], value=-1))
    return entries


def _cross(a: Tensor, b: Tensor) -> Tensor:
    """Return cross products of vectors (N, 3, S, B)."""
    return torch.stack(_plus_cross([torch.zeros_like(a[:, 0])] * 3, a.unbind(1), b.unbind(1)), 1)
