"""Coulomb friction on a pyramid as a linear complementarity problem (Stewart and Trinkle, Anitescu and Potra)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["PyramidSystem", "pyramid_directions", "pyramid_matrix"]


def pyramid_directions(angle: Tensor, directions: int) -> Tensor:
    """Return the unit vectors (B, C, 2, d) of each contact's pyramid, the first at `angle` (B, C) from tangent 1."""
    turn = torch.arange(directions, dtype=angle.dtype, device=angle.device) * (2 * math.pi / directions)
    every = angle[..., None] + turn
    return torch.stack([every.cos(), every.sin()], 2)


def split(z: Tensor, contacts: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the normal impulses (B, C), pyramid weights (B, C, d) and slacks (B, C) in z (B, C (d + 2))."""
    normal, weights, slack = z[:, :contacts], z[:, contacts:-contacts], z[:, -contacts:]
    return normal, weights.reshape(len(z), contacts, -1), slack


def joined(normal: Tensor, weights: Tensor, slack: Tensor) -> Tensor:
    """Return z (B, C (d + 2)) put together from its parts, as `split` returns them."""
    return torch.cat([normal, weights.flatten(1), slack], 1)


class PyramidSystem:
    """The map w = A z + q of the friction problem, solved through a 3C x 3C matrix instead of A itself.

    z = (normal impulse p_n, pyramid weights beta, slack gamma), w = (v_n, D^T v_t + gamma, mu p_n - sum of beta). The
    weights of a contact give its tangential impulse D beta, with its d pyramid directions as the columns of D.
    """

    def __init__(self, delassus: Tensor, free: Tensor, mu: Tensor, directions: Tensor):
        self.delassus = delassus  # (B, 3C, 3C) W
        self.free = free  # (B, 3C) b
        self.mu = mu  # (B, C)
        self.directions = directions  # (B, C, 2, d) D
        velocity = free.unflatten(1, (-1, 3))
        self.q = joined(velocity[..., 0], self.along(velocity[..., 1:]), torch.zeros_like(mu))

    def along(self, tangential: Tensor) -> Tensor:
        """Return the components (B, C, d) of tangential vectors (B, C, 2) along the directions."""
        return torch.einsum("bctd,bct->bcd", self.directions, tangential)

    def impulse(self, z: Tensor) -> Tensor:
        """Return the impulses (B, C, 3) that z (B, m) stands for."""
        normal, weights, _ = split(z, self.mu.shape[1])
        return torch.cat([normal[..., None], torch.einsum("bctd,bcd->bct", self.directions, weights)], 2)

    def product(self, z: Tensor) -> Tensor:
        """Return A z (B, m)."""
        normal, weights, slack = split(z, self.mu.shape[1])
        velocity = (self.delassus @ self.impulse(z).flatten(1)[..., None]).reshape(len(z), -1, 3)
        return joined(
            velocity[..., 0], self.along(velocity[..., 1:]) + slack[..., None], self.mu * normal - weights.sum(2)
        )

    def rows(self, index: Tensor) -> PyramidSystem:
        """Return the system of the rows with indices (R,)."""
        return PyramidSystem(self.delassus[index], self.free[index], self.mu[index], self.directions[index])

    def factor(self, diagonal: Tensor) -> _PyramidFactors:
        """Return a factorization of A + diag(diagonal), diagonal (B, m) positive."""
        return _PyramidFactors(self, diagonal)


class _PyramidFactors:
    """Factorization of A + diag(d): weights and slacks are eliminated contact by contact, which leaves a 3C x 3C LU.

    Let B be the diagonal matrix of 1/d of a contact's weights, S the sum of its entries, g the d of the slack,
    a = S + g and e = (1, ..., 1). Where the tangential velocity changes by y, the tangential impulse changes by
    start + push mu dp_n - H y, with push = D B e / a and H = D B D^T - a push push^T. H is infinite for a sticking
    contact, zero for a sliding or open one, and has one eigenvalue of each kind on a face of the pyramid. So the
    tangential rows are multiplied by (1 + H)^-1, which keeps all entries bounded.
    """

    def __init__(self, system: PyramidSystem, diagonal: Tensor):
        self.system = system
        self.diagonal = diagonal
        contacts = system.mu.shape[1]
        normal, weights, slack = split(diagonal, contacts)
        self.inverse = 1 / weights
        self.slack = slack
        self.total = self.inverse.sum(2)
        self.below = self.total + slack
        self.frame = _principal_axes(system.directions, self.inverse)
        self.directions = self.frame @ system.directions  # in that frame
        mean = torch.einsum("bctd,bcd->bct", self.directions, self.inverse) / self.total[..., None]
        apart = (self.directions - mean[..., None]) * self.inverse.sqrt()[:, :, None]
        rest = mean * (self.total * slack / self.below).sqrt()[..., None]
        self.yielding, self.damped = _shares(torch.cat([apart, rest[..., None]], 3))  # (1 + H)^-1 H and (1 + H)^-1
        self.push = mean * (self.total / self.below)[..., None]
        self.row = 1 / (1 + normal)
        rows = system.delassus.unflatten(1, (contacts, 3))  # (B, C, 3, 3C)
        tangential = self.yielding @ (self.frame @ rows[:, :, 1:])
        matrix = torch.cat([self.row[..., None, None] * rows[:, :, :1], tangential], 2)
        blocks = matrix.view(len(matrix), contacts, 3, contacts, 3).diagonal(dim1=1, dim2=3)  # (B, 3, 3, C), a view
        blocks[:, 0, 0] += self.row * normal
        blocks[:, 1:, 1:] += (self.damped @ self.frame).permute(0, 2, 3, 1)
        pull = (self.damped @ (self.push * system.mu[..., None])[..., None])[..., 0]
        blocks[:, 1:, 0] -= pull.transpose(1, 2)
        self.factors, self.pivots, _ = torch.linalg.lu_factor_ex(matrix.flatten(1, 2))

    def solve(self, right: Tensor) -> Tensor:
        """Return x (B, m) with (A + diag(d)) x = right.

        The solution is refined once, because d spans many orders of magnitude near a solution of the LCP.
        """
        x = self._eliminated(right)
        return x + self._eliminated(right - self.system.product(x) - self.diagonal * x)

    def _eliminated(self, right: Tensor) -> Tensor:
        system = self.system
        normal, weights, slack = split(right, system.mu.shape[1])
        scaled = self.inverse * weights
        gamma0 = (scaled.sum(2) + slack) / self.below
        start = (self.directions @ (scaled - self.inverse * gamma0[..., None])[..., None])[..., 0]
        reduced = torch.cat([(self.row * normal)[..., None], (self.damped @ start[..., None])[..., 0]], 2)
        impulse = torch.linalg.lu_solve(self.factors, self.pivots, reduced.flatten(1)[..., None])
        velocity = (system.delassus @ impulse).reshape(len(right), -1, 3)[..., 1:]
        impulse = impulse.reshape(len(right), -1, 3)
        outward = self.frame @ (velocity - impulse[..., 1:])[..., None]
        left = start + self.push * (system.mu * impulse[..., 0])[..., None]
        velocity = self.damped @ (outward + left[..., None])
        q = weights - (self.directions.mT @ velocity)[..., 0]
        # the steps of the weights are B (q - gamma); with q relative to that of the largest B nothing cancels
        largest = self.inverse.argmax(2, keepdim=True)
        reference = q.gather(2, largest)
        q = q - reference
        excess = (self.inverse * q).sum(2) + slack - system.mu * impulse[..., 0] - self.slack * reference[..., 0]
        above = excess / self.below
        return joined(impulse[..., 0], self.inverse * (q - above[..., None]), reference[..., 0] + above)


def _principal_axes(directions: Tensor, weights: Tensor) -> Tensor:
    """Return the rotations (B, C, 2, 2) into the axes in which the weighted directions spread most and least."""
    mean = (directions * weights[:, :, None]).sum(3) / weights.sum(2)[..., None]
    apart = directions - mean[..., None]
    square = (apart * weights[:, :, None]) @ apart.mT
    angle = 0.5 * torch.atan2(2 * square[..., 0, 1], square[..., 0, 0] - square[..., 1, 1])
    c, s = angle.cos(), angle.sin()
    return torch.stack([torch.stack([c, s], -1), torch.stack([-s, c], -1)], -2)


def _shares(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return (1 + H)^-1 H and (1 + H)^-1, (..., 2, 2) each, of H = X X^T with X (..., 2, k).

    The determinant of H is summed as squares of 2 x 2 minors: where one eigenvalue of H is huge and the other tiny, the
    usual formula would cancel.
    """
    square = x @ x.mT
    cross = x[..., 0, :, None] * x[..., 1, None, :]
    minor = 0.5 * (cross - cross.mT).square().sum((-2, -1))
    a, b, d = square[..., 0, 0], square[..., 0, 1], square[..., 1, 1]
    determinant = (minor + a + d + 1)[..., None, None]
    damped = torch.stack([torch.stack([d + 1, -b], -1), torch.stack([-b, a + 1], -1)], -2) / determinant
    yielding = torch.stack([torch.stack([minor + a, b], -1), torch.stack([b, minor + d], -1)], -2) / determinant
    return yielding, damped


def pyramid_matrix(system: PyramidSystem) -> Tensor:
    """Return the matrix A (B, m, m) of a `PyramidSystem`, m = C (d + 2)."""
    rows, contacts, _, count = system.directions.shape
    dtype, device = system.q.dtype, system.q.device
    normal = torch.arange(contacts, device=device)
    weights = contacts + torch.arange(contacts * count, device=device).reshape(contacts, count)
    slack = contacts * (count + 1) + normal
    impulses = torch.zeros(rows, contacts, 3, contacts * (count + 2), dtype=dtype, device=device)  # d impulse / d z
    impulses[:, normal, 0, normal] = 1.0
    impulses[:, normal[:, None], 1:, weights] = system.directions.permute(1, 3, 0, 2)
    impulses = impulses.flatten(1, 2)
    matrix = impulses.mT @ system.delassus @ impulses
    matrix[:, weights, slack[:, None]] += 1.0
    matrix[:, slack[:, None], weights] -= 1.0
    matrix[:, slack, normal] += system.mu
    return matrix
