"""Coulomb's law on the exact friction cone: its residual, and Newton's method on it from a good first guess."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech.solve.complementarity.problem import block_of, entries_of, first_places, rows_of

__all__ = ["ConeLaw", "polished"]

PROXIMAL = 1e-9  # added to the diagonal of Newton's matrix, which redundant contacts may leave singular
SMALLEST_STEP = 2.0**-8  # smallest fraction of the Newton step in its line search
GAIN = 0.5  # a row within `acceptable` goes on while each step leaves at most this fraction of the residual
DECREASE = 1e-4  # least decrease that a line search asks for, relative to that predicted to first order


@dataclass(frozen=True)
class ConeLaw:
    """Coulomb's law for v = W p + b, as the root of the natural map F of the impulses p (Alart and Curnier).

    F_n = p_n - max(0, p_n - v_n / w_n), F_t = p_t - projection of (p_t - v_t / w_t) onto the disk of radius
    mu max(0, p_n - v_n / w_n), with w_n and w_t the contact's diagonal entries of W. On a pyramid the disk is a regular
    polygon.
    """

    delassus: Tensor  # (B, 3C, 3C) W
    free: Tensor  # (B, 3C) b
    mu: Tensor  # (B, C)
    active: Tensor  # (B, C) bool
    # (B, C, 2) factors that bring the residual's normal and tangential part to the units of the user's b
    residual_scale: Tensor
    polygon: tuple[Tensor, int] | None = None  # angle (B, C) of the first vertex and number of vertices; None: a disk

    def rows(self, index: Tensor) -> ConeLaw:
        """Return the law of the rows with indices (R,)."""
        return ConeLaw(
            delassus=self.delassus[index],
            free=self.free[index],
            mu=self.mu[index],
            active=self.active[index],
            residual_scale=self.residual_scale[index],
            polygon=None if self.polygon is None else (self.polygon[0][index], self.polygon[1]),
        )

    def at(self, places: Tensor) -> ConeLaw:
        """Return the law of the contacts with indices `places` (B, K) of each row; the others have no impulses."""
        entries = entries_of(places)
        return ConeLaw(
            delassus=block_of(self.delassus, entries),
            free=self.free.gather(1, entries),
            mu=self.mu.gather(1, places),
            active=self.active.gather(1, places),
            residual_scale=self.residual_scale.gather(1, places.unsqueeze(2).expand(-1, -1, 2)),
            polygon=None if self.polygon is None else (self.polygon[0].gather(1, places), self.polygon[1]),
        )

    def diagonal(self) -> tuple[Tensor, Tensor]:
        """Return w_n and w_t (B, C), the larger of the two tangential entries; 1 for inactive contacts and zeros."""
        diagonal = self.delassus.diagonal(dim1=1, dim2=2).unflatten(1, (-1, 3))
        normal, tangential = diagonal[..., 0], diagonal[..., 1:].amax(2)
        normal = torch.where(self.active & (normal > 0), normal, 1.0)
        return normal, torch.where(self.active & (tangential > 0), tangential, 1.0)

    def velocity(self, impulse: Tensor) -> Tensor:
        """Return the velocities v = W p + b (B, C, 3) after impulses (B, 3C)."""
        return ((self.delassus @ impulse[..., None])[..., 0] + self.free).unflatten(1, (-1, 3))

    def unprojected(self, impulse: Tensor) -> tuple[Tensor, Tensor]:
        """Return p_n - v_n / w_n (B, C) and p_t - v_t / w_t (B, C, 2), of which F takes the projections."""
        p, v, (normal, tangential) = impulse.unflatten(1, (-1, 3)), self.velocity(impulse), self.diagonal()
        return p[..., 0] - v[..., 0] / normal, p[..., 1:] - v[..., 1:] / tangential[..., None]

    def natural_map(self, impulse: Tensor) -> Tensor:
        """Return the natural map F (B, C, 3), in units of impulse; zero where a contact is not active."""
        normal, tangential = self.unprojected(impulse)
        normal = normal.clamp(min=0.0)
        admitted = torch.cat([normal[..., None], self.projected(tangential, self.mu * normal)], 2)
        return torch.where(self.active[..., None], impulse.unflatten(1, (-1, 3)) - admitted, 0.0)

    def projected(self, x: Tensor, radius: Tensor) -> Tensor:
        """Return the projection (B, C, 2) of x onto the disk, or polygon, of this circumradius (B, C)."""
        return _on_disk(x, radius) if self.polygon is None else _on_polygon(x, radius, *self.polygon)

    def residual(self, impulse: Tensor) -> Tensor:
        """Return the largest violation of the law (B,), a velocity: |F_n| w_n and |F_t| w_t, times `residual_scale`."""
        normal, tangential = self.diagonal()
        f = self.natural_map(impulse)
        parts = torch.stack([f[..., 0].abs() * normal, torch.linalg.vector_norm(f[..., 1:], dim=2) * tangential], 2)
        return (parts * self.residual_scale).flatten(1).amax(1)

    def closed(self, impulse: Tensor) -> Tensor:
        """Return the contacts (B, C) that the natural map takes to be closed: p_n - v_n / w_n > 0."""
        return self.active & (self.unprojected(impulse)[0] > 0)

    def modes(self, impulse: Tensor) -> tuple[Tensor, Tensor]:
        """Return the contacts that stick and those that slide, (B, C) bool each. Closed ones without friction slide."""
        normal, tangential = self.unprojected(impulse)
        touching = self.active & (normal > 0)
        inside = (self.projected(tangential, self.mu * normal.clamp(min=0.0)) == tangential).all(2)
        sticks = inside & (self.mu > 0)
        return touching & sticks, touching & ~sticks

    def matrix(self, impulse: Tensor, places: Tensor) -> Tensor:
        """Return the rows (B, 3K, 3C) of the generalised Jacobian dF/dp for the contacts with indices `places` (B, K).

        It is that on the exact cone, whatever `polygon` is. For contacts that are not active the rows are those of the
        identity.
        """
        entries, (normal_impulse, tangential_impulse) = entries_of(places), self.unprojected(impulse)
        normal_impulse = normal_impulse.gather(1, places)
        tangential_impulse = tangential_impulse.gather(1, places.unsqueeze(2).expand(-1, -1, 2))
        normal, tangential = (entry.gather(1, places) for entry in self.diagonal())
        mu, active = self.mu.gather(1, places), self.active.gather(1, places)
        velocity_rows = rows_of(self.delassus, entries)
        unit = torch.zeros_like(velocity_rows).scatter_(2, entries.unsqueeze(2), 1.0).unflatten(1, (-1, 3))
        velocity_rows = velocity_rows.unflatten(1, (-1, 3))
        d_normal = unit[:, :, 0] - velocity_rows[:, :, 0] / normal[..., None]  # (B, K, 3C)
        d_tangential = unit[:, :, 1:] - velocity_rows[:, :, 1:] / tangential[..., None, None]
        length = torch.linalg.vector_norm(tangential_impulse, dim=2)
        touching = active & (normal_impulse > 0)
        slides = touching & (length > mu * normal_impulse)
        d_normal = torch.where(touching[..., None], d_normal, 0.0)
        safe_length = torch.where(slides, length, 1.0)
        direction = tangential_impulse / safe_length[..., None]
        turned = d_tangential - direction[..., None] * (direction[..., None, :] @ d_tangential)
        grown = (mu[..., None] * d_normal)[:, :, None]
        sliding = (mu * normal_impulse / safe_length)[..., None, None] * turned + direction[..., None] * grown
        projected = torch.where(
            slides[..., None, None], sliding, torch.where(touching[..., None, None], d_tangential, 0.0)
        )
        return (unit - torch.cat([d_normal[:, :, None], projected], 2)).flatten(1, 2)


def _on_disk(x: Tensor, radius: Tensor) -> Tensor:
    """Return the projection of x (..., 2) onto the disk of this radius (...)."""
    length = torch.linalg.vector_norm(x, dim=-1)
    return torch.where((length > radius)[..., None], x * (radius / length.clamp(min=1e-300))[..., None], x)


def _on_polygon(x: Tensor, radius: Tensor, angle: Tensor, directions: int) -> Tensor:
    """Return the projection of x (..., 2) onto a regular polygon.

    Parameters
    ----------
    radius : (...) circumradius.
    angle : (...) of the first vertex.
    directions : number of vertices.
    """
    sector = 2 * math.pi / directions
    face = (torch.floor((torch.atan2(x[..., 1], x[..., 0]) - angle) / sector) + 0.5) * sector + angle
    out, along = torch.stack([face.cos(), face.sin()], -1), torch.stack([-face.sin(), face.cos()], -1)
    depth, offset = radius * math.cos(sector / 2), (x * along).sum(-1)
    half = radius * math.sin(sector / 2)
    offset = torch.maximum(torch.minimum(offset, half), -half)
    on_face = depth[..., None] * out + offset[..., None] * along
    return torch.where(((x * out).sum(-1) > depth)[..., None], on_face, x)


def polished(
    law: ConeLaw, impulse: Tensor, tolerance: Tensor, acceptable: Tensor, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """Return impulses (B, 3C) on the exact cone by damped Newton steps on the natural map, and the iterations (B,).

    The best iterate is returned: a row that does not converge is not worse than its first guess.

    Parameters
    ----------
    law : the problem, scaled.
    impulse : (B, 3C) first guess.
    tolerance : (B,) of `law.residual`.
    acceptable : (B,) residual, not below the tolerance, within which a row goes on only while each step halves it.
    """
    best, least_residual = impulse.clone(), law.residual(impulse)
    iterations = torch.zeros_like(least_residual, dtype=torch.long)
    running = torch.arange(len(least_residual), device=least_residual.device)  # the rows that still run
    residual, last = least_residual, torch.full_like(least_residual, torch.inf)
    for _ in range(max_iterations):
        worth = (least_residual[running] > acceptable[running]) | (residual <= GAIN * last)
        going = (
            ((least_residual[running] > tolerance[running]) & worth & torch.isfinite(impulse).all(1))
            .nonzero()
            .flatten()
        )
        if not len(going):
            break
        if len(going) < len(running):
            law, impulse, running, residual = law.rows(going), impulse[going], running[going], residual[going]
        impulse = _line_search(law, impulse, _newton_step(law, impulse))
        iterations[running] += 1
        last, residual = residual, law.residual(impulse)
        better = residual < least_residual[running]  # False where it is NaN
        best[running] = torch.where(better[:, None], impulse, best[running])
        least_residual[running] = torch.where(better, residual, least_residual[running])
    return best, iterations


def _newton_step(law: ConeLaw, impulse: Tensor) -> Tensor:
    """Return a Newton step (B, 3C) that takes the whole impulse from contacts that are open (not `closed`).

    The linear system is that of the closed contacts alone, as hundreds of contacts may be near that bear no load.
    """
    closed = law.closed(impulse)
    places = first_places(closed)
    entries = entries_of(places)
    opening_step = torch.where(closed.repeat_interleave(3, 1), 0.0, -impulse)
    rows = law.matrix(impulse, places)
    right = -law.natural_map(impulse).flatten(1).gather(1, entries) - (rows @ opening_step[..., None])[..., 0]
    matrix = rows.gather(2, entries.unsqueeze(1).expand(-1, entries.shape[1], -1))
    matrix.diagonal(dim1=1, dim2=2).add_(PROXIMAL)
    step = torch.linalg.solve_ex(matrix, right[..., None])[0][..., 0]
    return opening_step.scatter_add(1, entries, step)


def _line_search(law: ConeLaw, impulse: Tensor, step: Tensor) -> Tensor:
    """Return the impulses (B, 3C) after a line search: each row's step is halved until it reduces |F|, the natural map.

    A row where no fraction does takes the smallest one: F is not smooth, and beyond the kink the next step may be
    better.
    """
    merit = _length(law.natural_map(impulse))
    fraction, searching = torch.ones_like(merit), torch.ones_like(merit, dtype=torch.bool)
    impulses = impulse
    while bool(searching.any()):
        trial = impulse + fraction[:, None] * step
        good = (_length(law.natural_map(trial)) <= (1 - DECREASE * fraction) * merit) | (fraction <= SMALLEST_STEP)
        impulses = torch.where((searching & good)[:, None], trial, impulses)
        searching = searching & ~good
        fraction = 0.5 * fraction
    return impulses


def _length(f: Tensor) -> Tensor:
    return torch.linalg.vector_norm(f.flatten(1), dim=1)
