"""What residuals say of the numbers that a fit has found: how sharp its optimum is, and how far away it still is.

A fit minimises L = sum rho(r) plus half the squares in its priors, over residuals r (B, T, C) of B recordings, T
frames and C coordinates of markers; rho is the loss in units of its scale c: r^2 / (2 c^2) near zero, and linear far
away. With the derivatives J of the residuals by P numbers, an evidence holds

    gradient   g = J^T rho'(r)
    curvature  A = J^T rho''(r) J         (Gauss-Newton: without second derivatives of the residuals)
    scatter    S = Cov(g), over repetitions of the noise.

With the priors' parts added, -A^-1 g is the step to the optimum, and A^-1 S A^-1 is the covariance of the numbers that
noise leaves there (the sandwich of Huber, 1967). If residuals were independent and as large as c says, S would be A,
and the covariance A^-1. But residuals of motions go together: from frame to frame, and from marker to marker. Their
covariance is taken to be a product, the same at all times:

    Cov(rho'_{t,c}, rho'_{s,d}) = time[|t - s|] * between[c, d].
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Evidence", "evidence_of", "noise_covariance"]


@dataclass(frozen=True)
class Evidence:
    """What the recordings that were looked at say of P numbers, without the priors of these.

    Attributes
    ----------
    gradient : (P,) of the loss.
    curvature, scatter : (P, P); see the top of this file.
    """

    gradient: Tensor
    curvature: Tensor
    scatter: Tensor

    def times(self, share: float) -> Evidence:
        """Return what `share` times as many recordings say that are like these."""
        return Evidence(share * self.gradient, share * self.curvature, share * self.scatter)


@dataclass(frozen=True)
class Starts:
    """Starts (B, S) that are fitted as well, in standard deviations of their priors, and the residuals' derivatives.

    Attributes
    ----------
    now : (B, S); slopes : (B, T, C, S).
    """

    now: Tensor
    slopes: Tensor


def evidence_of(residual: Tensor, measured: Tensor, columns: Tensor, scale: float, starts: Starts | None) -> Evidence:
    """Return the evidence of residuals (B, T, C) [m].

    Parameters
    ----------
    measured : (B, T, C) bool: which count; residuals and slopes are zero elsewhere.
    columns : (B, T, C, P) derivatives of the residuals by the numbers.
    scale : of the robust loss [m].
    starts : what was fitted of each recording's start; it is eliminated.
    """
    size = (1 + (residual / scale).square()).rsqrt()
    force, stiffness = residual * size / scale**2, size**3 / scale**2  # rho' and rho''
    stiff = stiffness[..., None] * columns
    curvature = torch.einsum("btcp,btcq->pq", columns, stiff)
    prior = torch.zeros_like(curvature)
    pull = torch.zeros_like(curvature[0])
    if starts is not None:
        slopes = starts.slopes
        square = torch.einsum("btcs,btcz->bsz", slopes, stiffness[..., None] * slopes)
        square = square + torch.eye(square.shape[-1]).to(square)  # the prior's variance is one
        mixed = torch.einsum("btcs,btcp->bsp", slopes, stiff)
        follow = torch.linalg.solve(square, mixed)  # (B, S, P): the best start moves by minus this
        curvature = curvature - torch.einsum("bsp,bsq->pq", mixed, follow)
        columns = columns - torch.einsum("btcs,bsp->btcp", slopes, follow)
        pull = -torch.einsum("bsp,bs->p", follow, starts.now)
        prior = torch.einsum("bsp,bsq->pq", follow, follow)
    time, between = noise_covariance(force, measured)
    correlated = torch.einsum("ts,bscq->btcq", time, torch.einsum("cd,bsdq->bscq", between, columns))
    scatter = torch.einsum("btcp,btcq->pq", columns, correlated) + prior
    return Evidence(torch.einsum("btcp,btc->p", columns, force) + pull, curvature, scatter)


def noise_covariance(force: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Return the correlation (T, T) in time and the covariance (C, C) between coordinates of noise (B, T, C).

    Both are means over all pairs of numbers that were measured. A lag of k frames counts with 1 - k / T, as it is seen
    in so much fewer pairs; what makes either matrix indefinite, which only missing numbers can, is left out.
    """
    frames = force.shape[1]
    seen = measured.to(force)
    lags = torch.arange(frames, device=force.device)
    pairs = [(force[:, : frames - k] * force[:, k:]).sum() for k in range(frames)]
    counts = [(seen[:, : frames - k] * seen[:, k:]).sum().clamp_min(1) for k in range(frames)]
    along = torch.stack(pairs) / torch.stack(counts) * (1 - lags / frames)
    correlation = along / along[0].clamp_min(torch.finfo(force.dtype).tiny)
    together = torch.einsum("btc,btd->cd", seen, seen).clamp_min(1)
    between = torch.einsum("btc,btd->cd", force, force) / together
    return _definite(correlation[(lags[:, None] - lags).abs()]), _definite(between)


def _definite(matrix: Tensor) -> Tensor:
    """Return a symmetric matrix without the parts whose eigenvalues are negative."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0)) @ vectors.T
