"""What residuals say of the numbers that a fit has found: how sharp its optimum is, and how far away it still is.

A fit minimises L = sum rho(r) plus half the squares in its priors, over residuals r (B, T, C) of B recordings, T
frames and C coordinates of markers; rho is the loss in units of its scale c: r^2 / (2 c^2) near zero, and linear far
away. J are the derivatives of the residuals by P numbers. Where the fit stands, there are

    gradient  g = J^T rho'(r)
    weighted  W = J^T (rho'(r) / r) J    (least squares with the weights that make their gradient this one)

and with the priors' parts added -W^-1 g is the Gauss-Newton step to the optimum. It is exact for residuals that the
numbers alone make, however large these are beside c. At the end of the step, where residuals are r + J step, there are

    curvature  A = J^T rho''(r) J
    scatter    S = the covariance of g over repetitions of the noise

and A^-1 S A^-1, with the priors' parts, is the covariance of the numbers that noise leaves at the optimum (the sandwich
of Huber, 1967). If residuals were independent and as large as c says, S would be A, and the covariance A^-1. But
residuals of motions go together: from frame to frame, and from marker to marker. Their covariance is taken to be a
product, the same at all times:

    Cov(rho'_{t,c}, rho'_{s,d}) = time[|t - s|] * between[c, d].

Recordings also differ from each other in ways that are no such noise: markers slip, a hand holds on in another way, and
what a model cannot do is another thing in each. So the optimum is found without one recording at a time, too (the
jackknife, Tukey 1958). Where that says that something is known less well, and there are enough recordings to tell, it
is believed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = ["Evidence", "Normal", "Prior", "StartSlopes", "evidence_of", "noise_covariance", "normal_equations"]


FEWEST = 8  # recordings that tell how they differ
LEAST_NOISE = 1e-3  # noise that is there in any case, over the scale of the loss, independent from number to number
SINGULAR = 1e-12  # eigenvalues, over the largest, that count as zero


@dataclass(frozen=True)
class Prior:
    """What is known of P numbers before anything is measured.

    Attributes
    ----------
    known : (P,) one over the variance; 0 where nothing is known.
    pull : (P,) how far the numbers are above the mean, over the variance.
    """

    known: Tensor
    pull: Tensor


@dataclass(frozen=True)
class Evidence:
    """What recordings say of P numbers; see the top of this file.

    Attributes
    ----------
    step : (P,) to the optimum of data and priors.
    curvature, scatter : (P, P), of the data alone.
    """

    step: Tensor
    curvature: Tensor
    scatter: Tensor


@dataclass(frozen=True)
class StartSlopes:
    """Starts (B, S) that are fitted as well, in standard deviations of their priors, and the residuals' derivatives.

    Attributes
    ----------
    now : (B, S); slopes : (B, T, C, S).
    """

    now: Tensor
    slopes: Tensor


def evidence_of(
    residual: Tensor, measured: Tensor, columns: Tensor, scale: float, prior: Prior, starts: StartSlopes | None
) -> Evidence:
    """Return the evidence of residuals (B, T, C) [m].

    Parameters
    ----------
    measured : (B, T, C) bool: which count; residuals and slopes are zero elsewhere.
    columns : (B, T, C, P) derivatives of the residuals by the numbers.
    scale : of the robust loss [m].
    starts : what was fitted of each recording's start; it is eliminated.
    """
    step, residual = _stepped(residual, columns, scale, prior, starts)
    size = _size(residual, scale)
    curvatures, follow = _reduced(columns, size**3 / scale**2, starts)  # rho''
    curvature = curvatures.sum(0)
    led = columns if starts is None else columns - torch.einsum("btcs,bsp->btcp", starts.slopes, follow)
    force = residual * size / scale**2  # rho'
    time, between = noise_covariance(force, measured)
    correlated = torch.einsum("ts,bscq->btcq", time, torch.einsum("cd,bsdq->bscq", between, led))
    # the start's own prior has the variance one
    scatter = torch.einsum("btcp,btcq->pq", led, correlated) + torch.einsum("bsp,bsq->pq", follow, follow)
    scatter = scatter + LEAST_NOISE**2 * curvature
    seen = measured.flatten(1).any(1)
    gradients = torch.einsum("btcp,btc->bp", led, force)
    return Evidence(step, curvature, _widened(scatter, curvatures[seen], gradients[seen], prior))


def _widened(scatter: Tensor, curvatures: Tensor, gradients: Tensor, prior: Prior) -> Tensor:
    """Return the scatter (P, P) by which nothing is known better than the optima without one recording say.

    Parameters
    ----------
    curvatures, gradients : (B, P, P), (B, P), of each recording where all of them together have their optimum.
    """
    count, whole = len(gradients), curvatures.sum(0)
    if count < FEWEST:
        return scatter
    floor = SINGULAR * float((whole.diagonal() + prior.known).max())
    whole = whole + torch.diag(prior.known + floor)
    without = torch.linalg.solve(whole - curvatures, gradients)
    inverse = torch.linalg.inv(whole)
    # along each principal direction by itself: of how these go together a few recordings know nothing
    by_noise, directions = torch.linalg.eigh(inverse @ scatter @ inverse)
    by_recordings = ((without - without.mean(0)) @ directions).square().sum(0) * (count - 1) / count
    led = whole @ directions
    return (led * torch.maximum(by_noise, by_recordings)) @ led.T


def _size(residual: Tensor, scale: float) -> Tensor:
    """Return rho'(r) / r in units of 1 / c^2."""
    return (1 + (residual / scale).square()).rsqrt()


def _stepped(
    residual: Tensor, columns: Tensor, scale: float, prior: Prior, starts: StartSlopes | None
) -> tuple[Tensor, Tensor]:
    """Return the step (P,) to the optimum, and the residuals (B, T, C) there, as far as they are linear."""
    step, moved = normal_equations(residual, columns, scale, prior, starts).step()
    residual = residual + columns @ step
    return step, residual if starts is None else residual + torch.einsum("btcs,bs->btc", starts.slopes, moved)


@dataclass(frozen=True)
class Normal:
    """The equations of a Gauss-Newton step of P numbers, the starts (B, S) eliminated.

    Attributes
    ----------
    matrix, gradient : (P, P), (P,), with the priors' parts.
    follow : (B, S, P): if the numbers move by p, the best starts move by -follow p ...
    own : ... and by own (B, S) in any case.
    """

    matrix: Tensor
    gradient: Tensor
    follow: Tensor
    own: Tensor

    def step(self, damping: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the steps of the numbers (P,) and of the starts (B, S).

        The numbers do not move in directions that neither data nor priors determine. `damping` is added to the matrix:
        one says that a move of one unit is as unlikely as a prior of that standard deviation makes it.
        """
        matrix = 0.5 * (self.matrix + self.matrix.T) + damping * torch.eye(len(self.matrix)).to(self.matrix)
        step = -torch.linalg.pinv(matrix, rtol=SINGULAR, hermitian=True) @ self.gradient
        return step, self.own - self.follow @ step


def normal_equations(
    residual: Tensor, columns: Tensor, scale: float, prior: Prior, starts: StartSlopes | None
) -> Normal:
    """Return the equations of the step to the optimum, for what `evidence_of` is given."""
    weight = _size(residual, scale) / scale**2
    force = weight * residual  # rho'
    matrix, follow = _reduced(columns, weight, starts)
    matrix = matrix.sum(0) + torch.diag(prior.known)
    gradient = torch.einsum("btcp,btc->p", columns, force) + prior.pull
    if starts is None:
        return Normal(matrix, gradient, follow, follow.new_zeros(follow.shape[:2]))
    of_starts = torch.einsum("btcs,btc->bs", starts.slopes, force) + starts.now
    gradient = gradient - torch.einsum("bsp,bs->p", follow, of_starts)
    return Normal(matrix, gradient, follow, -torch.linalg.solve(_square(starts, weight), of_starts))


def _square(starts: StartSlopes, weight: Tensor) -> Tensor:
    """Return the matrices (B, S, S) of the starts alone; the prior's variance is one."""
    square = torch.einsum("btcs,btcz->bsz", starts.slopes, weight[..., None] * starts.slopes)
    return square + torch.eye(square.shape[-1]).to(square)


def _reduced(columns: Tensor, weight: Tensor, starts: StartSlopes | None) -> tuple[Tensor, Tensor]:
    """Return J^T weight J of each recording (B, P, P), its start eliminated, and how the best starts follow, (B, S, P).

    If the numbers move by p, the best starts move by -follow p.
    """
    heavy = weight[..., None] * columns
    matrix = torch.einsum("btcp,btcq->bpq", columns, heavy)
    if starts is None:
        return matrix, columns.new_zeros(len(columns), 0, columns.shape[-1])
    mixed = torch.einsum("btcs,btcp->bsp", starts.slopes, heavy)
    follow = torch.linalg.solve(_square(starts, weight), mixed)
    return matrix - torch.einsum("bsp,bsq->bpq", mixed, follow), follow


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
