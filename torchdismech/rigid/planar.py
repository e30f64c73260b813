"""Chains of rigid bodies in the x-z plane, by recursions over the bodies; batch last.

Vectors and inertias are stored along the world's axes: positions and velocities of bodies are then running sums over
the joints, and only the elimination of joints needs a loop. Variables are (K, S, B): joints, states of a robot (the
stages of a step, say), robots. A positive angle turns the x axis towards z.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from torchdismech.rigid.bodies import Bodies
from torchdismech.rigid.compiled import CompiledFactor, CompiledPosture, serves

__all__ = ["Planar", "PlanarFactor", "PlanarPosture"]


class Planar(Bodies):
    """Constants of chains in the x-z plane, and their postures."""

    def at(self, q: Tensor) -> PlanarPosture:
        """Return the posture at joint angles q (K, S, B)."""
        angle = self.upto(q)
        cos, sin = angle.cos(), angle.sin()
        return PlanarPosture(self, torch.stack((cos, sin), 1), torch.stack((-sin, cos), 1))

    def motion(self, q: Tensor, velocity: Tensor, acceleration: Tensor) -> PlanarMotion:
        """Return the torques that a motion takes, as an object that also multiplies vectors with their derivatives."""
        return PlanarMotion(self.at(q), velocity, acceleration)


class PlanarPosture:
    """Chains at given joint angles, in S states of each of B robots.

    Attributes
    ----------
    along, across : (K, 2, S, B) unit vectors along and across the bodies.
    """

    def __init__(self, chain: Planar, along: Tensor, across: Tensor):
        self.chain, self.along, self.across = chain, along, across

    def torque(self, velocity: Tensor, acceleration: Tensor) -> Tensor:
        """Return the torques (K, S, B) that the motion takes, without springs and dampers [N m]."""
        if serves(self.across) and not torch.is_grad_enabled():
            return self.compiled.torque(velocity, acceleration)
        return PlanarMotion(self, velocity, acceleration).torque

    def factor(self, diagonal: Tensor | None = None) -> PlanarFactor | CompiledFactor:
        """Return the factored mass matrix of a posture (S = 1) plus m diagonals (K, m, B), which may be complex."""
        return CompiledFactor(self.compiled, diagonal) if serves(self.across) else PlanarFactor(self, diagonal)

    @cached_property
    def compiled(self) -> CompiledPosture:
        """The posture as compiled code takes it."""
        return CompiledPosture("plane", (self.along, self.across), self.chain)

    def places(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return positions and velocities of joints and tip, each (3, K + 1, S, B) [m, m/s]."""
        chain = self.chain
        steps = torch.stack((self.along, chain.upto(velocity)[:, None] * self.across), 1)
        sums = chain.upto(chain.length[:, None, None] * steps)
        start = torch.stack(torch.broadcast_tensors(chain.base, torch.zeros_like(chain.base)))
        x, z = torch.cat([start.expand(1, *sums.shape[1:]), start + sums]).unbind(2)
        positions, velocities = torch.stack((x, torch.zeros_like(x), z)).unbind(2)
        return positions, velocities

    def tip_spin(self, velocity: Tensor) -> Tensor:
        """Return the angular velocity (3, S, B) of the last body [rad/s]; the y axis turns z towards x."""
        spin = velocity.sum(0)
        return torch.stack((torch.zeros_like(spin), -spin, torch.zeros_like(spin)))

    def energies(self, velocity: Tensor) -> tuple[Tensor, Tensor]:
        """Return kinetic energy and potential energy of gravity, each (S, B) [J]."""
        chain = self.chain
        length, short = chain.length[:, None], (chain.centre - chain.length)[:, None]
        turning = chain.upto(velocity)
        velocity_of_along = turning[:, None] * self.across
        speed = (chain.upto(length * velocity_of_along) + short * velocity_of_along).square().sum(1)
        kinetic = 0.5 * (chain.mass * speed + chain.inertia * turning.square()).sum(0)
        centres = chain.base[None] + chain.upto(length * self.along) + short * self.along
        return kinetic, -(chain.mass[:, None] * chain.gravity[None] * centres).sum((0, 1))


class PlanarMotion:
    """Torques that a motion takes, and products of their derivatives with a vector.

    With absolute angles t, unit vectors e along and n across the bodies, lengths l, centres c: a point k is at the sum
    of l_j e_j, e'' = t'' n - t'^2 e, and the torque about a joint is the sum of I t'' + n . (c f + l F) over its body
    and all beyond, f the force on a body and F that on all beyond that. With a virtual motion (turns L, steps L n of
    the unit vectors, w of the centres) the vector's product with the torques is the virtual work
    sum I L t'' + sum m w . (c'' - g), whence its derivatives.

    Attributes
    ----------
    torque : (K, S, B) [N m].
    """

    def __init__(self, posture: PlanarPosture, velocity: Tensor, acceleration: Tensor):
        chain = self.chain = posture.chain
        self.along, self.across = posture.along, posture.across
        self.turning, self.turned = chain.upto(torch.stack((velocity, acceleration), 1)).unbind(1)
        self.spin = self.turning.square()
        bend = torch.addcmul(self.turned[:, None] * self.across, self.spin[:, None], self.along, value=-1)
        self.length, self.short = chain.length[:, None], (chain.centre - chain.length)[:, None]
        self.bend = bend
        self.pulled = self._of_centres(bend) - chain.gravity
        self.load = self._outward(self.pulled)
        self.torque = chain.beyond(torch.addcmul((self.across * self.load).sum(1), chain.inertia, self.turned))

    def pulled_back(self, multiplier: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the products (K, S, B) of a vector with the torque's derivatives by q, velocity, acceleration."""
        turn = self.chain.upto(multiplier)
        load = self._outward(self._of_centres(turn[:, None] * self.across))
        across, along = (self.across * load).sum(1), (self.along * load).sum(1)
        by_angle = self.turned * along + self.spin * across + turn * (self.along * self.load).sum(1)
        by_turning = -2 * self.turning * along
        by_turned = torch.addcmul(across, self.chain.inertia, turn)
        by_q, by_velocity, by_acceleration = self.chain.beyond(
            torch.stack((-by_angle, by_turning, by_turned), 1)
        ).unbind(1)
        return by_q, by_velocity, by_acceleration

    def by_constants(self, multiplier: Tensor, wanted: Sequence[bool]) -> list[Tensor | None]:
        """Return the products of a vector with the torque's derivatives by the chain's constants, where wanted."""
        chain = self.chain
        turn = chain.upto(multiplier)
        step = turn[:, None] * self.across
        shift = self._of_centres(step)
        mass = chain.mass[:, None]
        shift_beyond, pull_beyond = chain.beyond(mass * shift), chain.beyond(mass * self.pulled)
        by_mass = (self.pulled * shift).sum(1)
        by_centre = mass[:, 0] * (self.bend * shift + self.pulled * step).sum(1)
        by_length = (self.bend * (shift_beyond - mass * shift) + step * (pull_beyond - mass * self.pulled)).sum(1)
        products = (by_length, by_mass, by_centre, turn * self.turned, -shift_beyond[0])
        constants = (chain.length, chain.mass, chain.centre, chain.inertia, chain.gravity)
        gradients: list[Tensor | None] = [p.sum_to_size(c.shape) for p, c in zip(products, constants, strict=True)]
        gradients += [torch.zeros_like(chain.base), None]
        return [g if needed else None for g, needed in zip(gradients, wanted, strict=True)]

    def _of_centres(self, steps: Tensor) -> Tensor:
        """Return the changes (K, 2, S, B) of the centres of mass for changes `steps` of the unit vectors `along`."""
        return torch.addcmul(self.chain.upto(self.length * steps), self.short, steps)

    def _outward(self, acceleration: Tensor) -> Tensor:
        """Return c f + l F (K, 2, S, B) for accelerations (K, 2, S, B) of the centres of mass."""
        force = self.chain.mass[:, None] * acceleration
        return torch.addcmul(self.length * self.chain.beyond(force), self.short, force)


class PlanarFactor:
    """H = M(q) + diagonal, factored by articulated bodies: `solve` gives x with H x = b in O(K).

    From the tip to the base, each joint is eliminated from the articulated-body inertia of its body with all beyond it:
    J about the joint, h the coupling of rotation with translation of the joint along x and z, M the apparent mass.
    """

    def __init__(self, posture: PlanarPosture, diagonal: Tensor | None):
        chain, across = posture.chain, posture.across
        self.arms = (chain.length[:, None] * across).expand_as(across)
        own_h = ((chain.mass * chain.centre)[:, None] * across).expand_as(across)
        own_j, mass = chain.inertia + chain.mass * chain.centre.square(), chain.mass
        diagonals: Sequence[Tensor | None] = [None] * len(mass) if diagonal is None else diagonal.unbind(0)
        carried = [torch.zeros_like(across[0, 0]) for _ in range(6)]
        self.joints: list[tuple[Tensor, ...]] = []
        for k in range(len(mass) - 1, 0, -1):
            joint, carried = _joint_eliminated(carried, own_j[k], own_h[k], mass[k], diagonals[k], self.arms[k - 1])
            self.joints.append(joint)
        j = carried[0] + own_j[0]
        self.base = (j if diagonals[0] is None else j + diagonals[0]).reciprocal()
        self.joints.reverse()

    def solve(self, torque: Tensor) -> Tensor:
        """Return x (K, S, B) with H x = torque."""
        motions_alone = []
        passed_on = [torch.zeros_like(torque[0]) for _ in range(3)]
        for k in range(len(torque) - 1, 0, -1):
            motion_alone, passed_on = _swept_back(passed_on, torque[k], self.joints[k - 1], self.arms[k - 1])
            motions_alone.append(motion_alone)
        angle = (torque[0] - passed_on[0]) * self.base
        solution = [angle]
        motion = [angle, torch.zeros_like(angle), torch.zeros_like(angle)]
        for k in range(1, len(torque)):
            x, motion = _swept_out(motion, motions_alone[-k], self.joints[k - 1], self.arms[k - 1])
            solution.append(x)
        return torch.stack(solution)


def _joint_eliminated(
    carried: list[Tensor], own_j: Tensor, own_h: Tensor, mass: Tensor, diagonal: Tensor | None, arm: Tensor
) -> tuple[tuple[Tensor, ...], list[Tensor]]:
    """Return the coefficients of an eliminated joint, and the inertia that the body before carries, about its joint."""
    j, hx, hz, mxx, mxz, mzz = carried
    j, hx, hz, mxx, mzz = j + own_j, hx + own_h[0], hz + own_h[1], mxx + mass, mzz + mass
    inverse = (j if diagonal is None else j + diagonal).reciprocal()
    uj, ux, uz = j * inverse, hx * inverse, hz * inverse
    joint = (inverse, uj, ux, uz)
    mxx = torch.addcmul(mxx, ux, hx, value=-1)
    mxz = torch.addcmul(mxz, ux, hz, value=-1)
    mzz = torch.addcmul(mzz, uz, hz, value=-1)
    px, pz = arm[0], arm[1]
    ax, az = _product(mxx, mxz, px, pz), _product(mxz, mzz, px, pz)
    j = _product(ax, az, px, pz)
    if diagonal is not None:  # a joint with resistance passes on part of its rotational inertia and coupling
        uj, ux, uz = uj * diagonal, ux * diagonal, uz * diagonal
        ax, az = ax + ux, az + uz
        j = uj + j + 2 * _product(ux, uz, px, pz)
    return joint, [j, ax, az, mxx, mxz, mzz]


def _swept_back(
    passed_on: list[Tensor], torque: Tensor, joint: tuple[Tensor, ...], arm: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return a joint's motion if the body before stays still, and moment and force passed on to that body."""
    moment, fx, fz = passed_on
    inverse, uj, ux, uz = joint
    remaining = torque - moment
    fx, fz = torch.addcmul(fx, ux, remaining), torch.addcmul(fz, uz, remaining)
    moment = torch.addcmul(moment, uj, remaining)
    moment = torch.addcmul(torch.addcmul(moment, fx, arm[0]), fz, arm[1])
    return remaining * inverse, [moment, fx, fz]


def _swept_out(
    motion: list[Tensor], motion_alone: Tensor, joint: tuple[Tensor, ...], arm: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Return a joint's motion for a motion of the body before, and the motion of its own body."""
    angle, ax, az = motion
    _, uj, ux, uz = joint
    ax, az = torch.addcmul(ax, angle, arm[0]), torch.addcmul(az, angle, arm[1])
    x = torch.addcmul(motion_alone, uj, angle, value=-1)
    x = torch.addcmul(torch.addcmul(x, ux, ax, value=-1), uz, az, value=-1)
    return x, [angle + x, ax, az]


def _product(a: Tensor, b: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return a x + b y."""
    return torch.addcmul(a * x, b, y)
