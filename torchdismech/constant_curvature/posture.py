"""Postures of arms: chains of arcs in space, the twists by which they move, and their mass matrix; batch last.

Coordinates are the sections' shapes (s, ux, uy). All that lies beyond a section moves with each of its coordinates as a
rigid body does, by a twist: an angular velocity, and the velocity of the body's point at the world's origin. A point
inside a section moves with that section's arc, too. So the mass matrix needs sums over points once per section only, in
the section's own frame; the rest are products of twists with the inertia of all that lies beyond (Featherstone's
composite bodies).
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech.constant_curvature.arcs import Arcs, cross, rotated

__all__ = ["Posture"]


class Posture:
    """B arms of S sections at given shapes, with the same G points on each section, of which the last is its end.

    G' below is the number of points that are plates: the last ones of each section.

    Parameters
    ----------
    shape : (3, S, B) s [m], ux and uy [rad] of each section.
    share : (G,) positions of the points on a section, from 0 to 1; the last is 1.
    base, orientation : (3, B or 1) origin [m] and (3, 3, B or 1) rotation of the first frame.
    plates : index of the first point of each section that is a plate; plates have frames.

    Attributes
    ----------
    local : (3, S, G, B) the points in their section's first frame [m].
    starts, turns : (3, S, B) origins [m] and (3, 3, S, B) rotations of the sections' first frames.
    rotation : (3, 3, S, G', B) rotations of plates relative to their section's first frame.
    points, frames : (3, S, G, B) the points [m] and (3, 3, S, G', B) the rotations of plates in the world.
    by_shape : (3, 3, S, G, B) derivatives of the points by the shape of their own section, in its first frame.
    turning : (3, 3, S, G', B) angular velocities of plates per rate of their own section's shape, in its first frame.
    twists : of sections' ends per rate of their own section's shape: angular velocity, and velocity at the world's
        origin, each (3, 3, S, B) along the world's axes.
    """

    def __init__(self, shape: Tensor, share: Tensor, base: Tensor, orientation: Tensor, plates: int = 0):
        self.arcs = Arcs.at(shape, share)
        self.first = plates
        self.local = self.arcs.points()
        self.rotation, rate = self.arcs.solid(plates)
        batch = shape.shape[2]
        origin, turn = base.expand(-1, batch), orientation.expand(-1, -1, batch)
        starts, frames = [origin], [turn]
        for end, end_rotation in zip(_inner(self.local[:, :, -1]), _inner(self.rotation[:, :, :, -1]), strict=True):
            origin = origin + rotated(turn, end)
            turn = rotated(turn[:, :, None], end_rotation)
            starts.append(origin)
            frames.append(turn)
        self.starts, self.turns = torch.stack(starts, 1), torch.stack(frames, 2)
        turns = self.turns[:, :, :, None]
        self.points = self.starts[:, :, None] + rotated(turns, self.local)
        self.frames = rotated(turns[:, :, None], self.rotation)
        self.by_shape = self.arcs.by_shape()
        self.turning = torch.cat([torch.zeros_like(rate[:, :1]), rate], 1)
        self.twists = _twists(self.turns, self.turning[..., -1, :], self.by_shape[..., -1, :], self.points[..., -1, :])

    def twists_of(self, plates: Tensor) -> tuple[Tensor, Tensor]:
        """Return the twists of plates (B, K) by their own section's shape, laid out as `twists`: each (3, 3, K, B)."""
        turns = _at_indices(self.turns, plates // self.turning.shape[3])
        local = (self.turning, self.by_shape[..., self.first :, :], self.points[..., self.first :, :])
        return _twists(turns, *(_at_indices(x.flatten(-3, -2), plates) for x in local))

    def motion(self, rate: Tensor) -> tuple[Tensor, Tensor]:
        """Return velocities and angular velocities (3, S, G', B) of plates for rates (3, S, B) of the shapes."""
        own_motion = (rotated(x, rate[:, :, None]) for x in (self.by_shape[..., self.first :, :], self.turning))
        velocity, spin = (rotated(self.turns[:, :, :, None], x) for x in own_motion)
        ends = (rotated(x, rate) for x in self.twists)
        carried, origin = ((x.cumsum(1) - x)[:, :, None] for x in ends)
        return velocity + origin + cross(carried, self.points[:, :, self.first :]), spin + carried

    def felt_acceleration(self, rate: Tensor, gravity: Tensor, count: int) -> Tensor:
        """Return the accelerations minus gravity (3, S, count, B) of the first `count` points of sections [m/s^2].

        They are those at constant rates (3, S, B) of the shapes, along the axes of each section's first frame;
        `gravity` is (3, B or 1).
        """
        v_rel, a_rel = self.arcs.first_and_last(count).velocity_and_acceleration(rate)
        turning, twisting = self.arcs.spin(rate)
        w = torch.zeros_like(turning[:, 0])
        dw = w
        a = rotated(self.turns[:, :, 0].transpose(0, 1), -gravity.expand_as(w))
        spins, bends, pulls = [w], [dw], [a]
        ends = (self.rotation[:, :, :, -1].transpose(0, 1), *(x[:, :, -1] for x in (self.local, v_rel, a_rel)))
        for backward, end, v_end, a_end, w_end, dw_end in zip(*map(_inner, (*ends, turning, twisting)), strict=True):
            a = a + cross(dw, end) + cross(w, cross(w, end) + 2 * v_end) + a_end
            dw = dw + cross(w, w_end) + dw_end
            w, dw, a = rotated(backward[:, :, None], torch.stack((w + w_end, dw, a), 1)).unbind(1)
            spins.append(w)
            bends.append(dw)
            pulls.append(a)
        w, dw, a = (torch.stack(x, 1)[:, :, None] for x in (spins, bends, pulls))
        local, v_rel, a_rel = (x[:, :, :count] for x in (self.local, v_rel, a_rel))
        return a + a_rel + cross(dw, local) + cross(w, cross(w, local) + 2 * v_rel)

    def inertia(self, masses: Tensor, felt: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mass matrix (B, 3 S, 3 S) of the shapes, and the generalised forces (B, 3 S) that `felt` takes.

        Parameters
        ----------
        masses : (S, g, B or 1) of the first g points of each section, which are the only ones with a mass [kg].
        felt : (3, S, g, B) accelerations of these points, in their section's first frame [m/s^2].
        """
        count = masses.shape[1]
        local = self.local[:, :, :count]
        unit_and_felt = torch.cat([self.by_shape[:, :, :, :count], felt[:, None]], 1)  # (3, 4, S, G, B)
        heavy = masses * unit_and_felt
        own_products = (unit_and_felt[:, :3, None] * heavy[:, None]).sum((0, 4))  # (3, 4, S, B)
        force, moment = heavy.sum(3), cross(local[:, None], heavy).sum(3)  # (3, 4, S, B), about the section's start
        mass = masses.sum(1).expand(local.shape[1], local.shape[3])
        first = (masses * local).sum(2)
        second = (local[:, None] * (masses * local)).sum(3)
        # in the world's frame, about its origin
        turns, start = self.turns, self.starts
        force, moment = (rotated(turns[:, :, None], x) for x in (force, moment))
        first = rotated(turns, first)
        moment = moment + cross(start[:, None], force)
        second = rotated(turns[:, :, None], rotated(turns[:, :, None], second).transpose(0, 1))
        mixed = start[:, None] * (first + 0.5 * mass * start)
        second = second + mixed + mixed.transpose(0, 1)
        first = first + mass * start
        mass, first, second, felt_force, felt_moment = (
            _beyond(x) for x in (mass, first, second, force[:, 3], moment[:, 3])
        )
        spin, origin = self.twists
        carried = mass * origin + cross(spin, first[:, None])
        trace = second[0, 0] + second[1, 1] + second[2, 2]
        swung = cross(first[:, None], origin) + trace * spin - (second[:, :, None] * spin[None]).sum(1)
        bias = own_products[:, 3] + (spin * felt_moment[:, None]).sum(0) + (origin * felt_force[:, None]).sum(0)
        twist = _rows(torch.cat([spin, origin]))  # (B, 3 S, 6)
        rigid = twist @ _rows(torch.cat([swung, carried])).mT
        flexible = twist @ _rows(torch.cat([moment[:, :3], force[:, :3]])).mT
        upper = flexible + rigid
        sections = self.turns.shape[2]
        later = torch.ones(sections, sections, dtype=twist.dtype, device=twist.device).triu(1)
        later = later.repeat_interleave(3, 0).repeat_interleave(3, 1)
        above = upper * later
        unit = torch.eye(sections, dtype=twist.dtype, device=twist.device)
        blocks = (
            (own_products[:, :3].permute(3, 2, 0, 1)[:, :, :, None] * unit[:, None, :, None]).flatten(1, 2).flatten(2)
        )
        same_section = unit.repeat_interleave(3, 0).repeat_interleave(3, 1)
        return above + above.mT + blocks + rigid * same_section, _rows(bias[None])[..., 0]


def _twists(turns: Tensor, turning: Tensor, by_shape: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return twists in the world, each part (3, 3, K, B), from angular and linear rates in the frames of sections."""
    spin, velocity = (rotated(turns[:, :, None], x) for x in (turning, by_shape))
    return spin, velocity - cross(spin, points[:, None])


def _at_indices(x: Tensor, numbers: Tensor) -> Tensor:
    """Return the entries (..., K, B) of x (..., P, B) at each robot's indices (B, K)."""
    return x.gather(-2, numbers.t().expand(*x.shape[:-2], -1, -1))


def _inner(x: Tensor) -> tuple[Tensor, ...]:
    """Return the values (..., B) of all sections but the last: of those whose end carries another section."""
    return x.unbind(-2)[:-1]


def _beyond(x: Tensor) -> Tensor:
    """Return for each section the sum over all later ones (..., S, B)."""
    return x.flip(-2).cumsum(-2).flip(-2) - x


def _rows(x: Tensor) -> Tensor:
    """Return x (c, 3, S, B) laid out as (B, 3 S, c), a row for each coordinate of the shapes."""
    return x.permute(3, 2, 1, 0).flatten(1, 2)
