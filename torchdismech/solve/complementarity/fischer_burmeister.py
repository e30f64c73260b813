"""Semismooth Newton's method on the Fischer-Burmeister function, with Levenberg-Marquardt damping, for many LCPs."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["fischer_burmeister"]

DAMPING = 1e-3  # first multiple of the identity in the normal equations
SMALLEST_DAMPING, LARGEST_DAMPING = 1e-14, 1e8
TINY = 1e-300  # least denominator, so that the branch which `torch.where` discards does not divide by zero
EASED, STIFFENED = 0.2, 4.0  # factors of the damping after a step that reduced the merit, and after one that did not


def fischer_burmeister(
    matrix: Tensor, q: Tensor, z: Tensor, present: Tensor, tolerance: float, max_iterations: int
) -> tuple[Tensor, Tensor]:
    """Find the root of phi_i = z_i + w_i - sqrt(z_i^2 + w_i^2), w = A z + q, which solves the LCP.

    Parameters
    ----------
    matrix : (B, m, m) A, scaled; q : (B, m).
    z : (B, m) first iterate.
    present : (B, m) bool; the other unknowns are padding.
    tolerance : of the largest |phi_i|.

    Returns
    -------
    z (B, m) and the iterations (B,) used.
    """
    found = z.clone()
    iterations = torch.zeros_like(z[:, 0], dtype=torch.long)
    index = torch.arange(len(z), device=z.device)  # the rows that still run
    function = _Function(matrix, q, present)
    phi = function.value(z)
    damping = torch.full_like(z[:, 0], DAMPING)
    for _ in range(max_iterations):
        going = ((phi.abs().amax(1) > tolerance) & (damping < LARGEST_DAMPING)).nonzero().flatten()  # not where NaN
        if not len(going):
            break
        if len(going) < len(index):
            z, phi, damping, index = z[going], phi[going], damping[going], index[going]
            function = function.rows(going)
        trial = z + function.step(z, phi, damping)
        trial_phi = function.value(trial)
        good = trial_phi.square().sum(1) < phi.square().sum(1)  # False where it is NaN
        z, phi = torch.where(good[:, None], trial, z), torch.where(good[:, None], trial_phi, phi)
        damping = torch.where(good, (EASED * damping).clamp(min=SMALLEST_DAMPING), STIFFENED * damping)
        found[index] = z
        iterations[index] += 1
    return found, iterations


class _Function:
    """The Fischer-Burmeister function phi(z) (B, m) and its generalised Jacobian."""

    def __init__(self, matrix: Tensor, q: Tensor, present: Tensor):
        self.matrix, self.q, self.present = matrix, q, present

    def rows(self, index: Tensor) -> _Function:
        """Return the function of the rows with indices (R,)."""
        return _Function(self.matrix[index], self.q[index], self.present[index])

    def step(self, z: Tensor, phi: Tensor, damping: Tensor) -> Tensor:
        """Return the Levenberg-Marquardt step (B, m), by the normal equations with `damping` (B,) on their diagonal."""
        jacobian = self.jacobian(z)
        normal = jacobian.mT @ jacobian
        normal.diagonal(dim1=1, dim2=2).add_(damping[:, None])
        factor, _ = torch.linalg.cholesky_ex(normal)
        return torch.cholesky_solve(-(jacobian.mT @ phi[..., None]), factor)[..., 0]

    def value(self, z: Tensor) -> Tensor:
        """Return phi (B, m), by a formula without cancellation where z_i + w_i > 0."""
        w = (self.matrix @ z[..., None])[..., 0] + self.q
        length = torch.hypot(z, w)
        total = z + w
        positive = 2 * z * w / (total + length).clamp(min=TINY)
        phi = torch.where(total > 0, positive, total - length)
        return torch.where(self.present, phi, 0.0)

    def jacobian(self, z: Tensor) -> Tensor:
        """Return dphi/dz (B, m, m); at the kink z_i = w_i = 0 its limit from the direction (1, 1)."""
        w = (self.matrix @ z[..., None])[..., 0] + self.q
        length = torch.hypot(z, w)
        corner = length == 0
        safe = torch.where(corner, 1.0, length)
        by_z = torch.where(corner, 1 - 0.5**0.5, 1 - z / safe)
        by_w = torch.where(corner, 1 - 0.5**0.5, 1 - w / safe)
        by_z, by_w = torch.where(self.present, by_z, 1.0), torch.where(self.present, by_w, 0.0)
        return by_w[..., None] * self.matrix + torch.diag_embed(by_z)
