"""What residuals say of the numbers that a fit has found: how sharp the optimum is, and how far away.

A fit minimises L = sum rho(r) plus half the squares in its priors, over residuals r (B, T, C) of B recordings, T
frames and C coordinates of markers; rho is the loss in units of its scale c: r^2 / (2 c^2) near zero, and linear far
away. J are the derivatives of the residuals by P numbers. Where the fit stands, there are

    gradient  g = J^T rho'(r)
    weighted  W = J^T (rho'(r) / r) J    (least squares, reweighted: its gradient is this one)

and with the priors' parts added -W^-1 g is the Gauss-Newton step to the optimum. It is exact for residuals that come
from wrong numbers alone, however large they are beside c. At the end of the step, where residuals are r + J step, are

    curvature  A = J^T rho''(r) J
    scatter    S = the covariance of g over repetitions of the noise

and A^-1 S A^-1, with the priors' parts, is the covariance of the numbers that noise leaves at the optimum (the sandwich
of Huber, 1967). If residuals were independent and as large as c says, S would be A, and the covariance A^-1. But
residuals of motions correlate, from frame to frame and from marker to marker. Their covariance is taken to be a
product, the same at all times:

    Cov(rho'_{t,c}, rho'_{s,d}) = time[|t - s|] * between[c, d].

Recordings also differ from each other in ways that are no such noise: markers slip, a hand holds on in another way, and
the model errs differently in each. So the optimum is also found without one recording at a time (the jackknife, Tukey
1958). Where the jackknife gives a larger variance, and there are enough recordings for it, that variance is taken.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "Evidence",
    "NormalEquations",
    "Prior",
    "StartJacobian",
    "evidence_of",
    "noise_covariance",
    "normal_equations",
]


FEWEST = 8  # recordings that the jackknife needs
LEAST_NOISE = 1e-3  # over the scale of the loss: independent noise that residuals are taken to have at least
SINGULAR = 1e-12  # eigenvalues, over the largest, that count as zero


@dataclass(frozen=True)
class Prior:
    """Normal priors of P numbers.

    Attributes
    ----------
    precision : (P,) one over the variance; 0 where there is no prior.
    gradient : (P,) gradient of the negative logarithm: how far the numbers are above the mean, over the variance.
    """

    precision: Tensor
    gradient: Tensor


@dataclass(frozen=True)
class Evidence:
    """Gauss-Newton step, curvature A and scatter S of P numbers, as the module's docstring defines them.

    Attributes
    ----------
    step : (P,) to the optimum of data and priors.
    curvature, scatter : (P, P), without the priors' parts.
    """

    step: Tensor
    curvature: Tensor
    scatter: Tensor


@dataclass(frozen=True)
class StartJacobian:
    """Starts that are fitted as well, in standard deviations of their priors, and the residuals' derivatives by them.

    Attributes
    ----------
    start : (B, S).
    jacobian : (B, T, C, S).
    """

    start: Tensor
    jacobian: Tensor


def evidence_of(
    residual: Tensor, measured: Tensor, jacobian: Tensor, scale: float, prior: Prior, starts: StartJacobian | None
) -> Evidence:
    """Return step, curvature and scatter for residuals (B, T, C) [m].

    Parameters
    ----------
    measured : (B, T, C) bool: which residuals count; elsewhere they and their derivatives are zero.
    jacobian : (B, T, C, P) derivatives of the residuals by the numbers.
    scale : c of the robust loss [m].
    starts : fitted starts of the recordings, which are eliminated (Schur complement); None without.
    """
    step, residual = _step_and_residual_there(residual, jacobian, scale, prior, starts)
    weight = _weight(residual, scale)
    curvatures, response = _reduced(jacobian, weight**3 / scale**2, starts)  # rho''
    curvature = curvatures.sum(0)
    total = jacobian if starts is None else jacobian - torch.einsum("btcs,bsp->btcp", starts.jacobian, response)
    score = residual * weight / scale**2  # rho'
    time, between = noise_covariance(score, measured)
    correlated = torch.einsum("ts,bscq->btcq", time, torch.einsum("cd,bsdq->bscq", between, total))
    # the priors of starts have the variance one
    scatter = torch.einsum("btcp,btcq->pq", total, correlated) + torch.einsum("bsp,bsq->pq", response, response)
    scatter = scatter + LEAST_NOISE**2 * curvature
    seen = measured.flatten(1).any(1)
    gradients = torch.einsum("btcp,btc->bp", total, score)
    return Evidence(step, curvature, _at_least_jackknife(scatter, curvatures[seen], gradients[seen], prior))


def _at_least_jackknife(scatter: Tensor, curvatures: Tensor, gradients: Tensor, prior: Prior) -> Tensor:
    """Return the scatter (P, P), enlarged where the jackknife over recordings gives larger variances.

    Parameters
    ----------
    curvatures, gradients : (B, P, P), (B, P), of each recording at the optimum of all of them.
    """
    count, whole = len(gradients), curvatures.sum(0)
    if count < FEWEST:
        return scatter
    floor = SINGULAR * float((whole.diagonal() + prior.precision).max())
    whole = whole + torch.diag(prior.precision + floor)
    without = torch.linalg.solve(whole - curvatures, gradients)
    inverse = torch.linalg.inv(whole)
    # each principal direction by itself: a few recordings cannot tell how these correlate
    by_noise, directions = torch.linalg.eigh(inverse @ scatter @ inverse)
    by_recordings = ((without - without.mean(0)) @ directions).square().sum(0) * (count - 1) / count
    factor = whole @ directions
    return (factor * torch.maximum(by_noise, by_recordings)) @ factor.T


def _weight(residual: Tensor, scale: float) -> Tensor:
    """Return the weights of the reweighted least squares, rho'(r) / r, in units of 1 / c^2."""
    return (1 + (residual / scale).square()).rsqrt()


def _step_and_residual_there(
    residual: Tensor, jacobian: Tensor, scale: float, prior: Prior, starts: StartJacobian | None
) -> tuple[Tensor, Tensor]:
    """Return the Gauss-Newton step (P,) to the optimum, and the linearised residuals (B, T, C) at its end."""
    step, start_step = normal_equations(residual, jacobian, scale, prior, starts).step()
    residual = residual + jacobian @ step
    return step, residual if starts is None else residual + torch.einsum("btcs,bs->btc", starts.jacobian, start_step)


@dataclass(frozen=True)
class NormalEquations:
    """The equations of a Gauss-Newton step of P numbers, from which the starts (B, S) are eliminated.

    Attributes
    ----------
    matrix, gradient : (P, P), (P,), W and g with the priors' parts.
    start_response, start_step : (B, S, P), (B, S): if the numbers move by p, the best starts move by
        start_step - start_response p.
    """

    matrix: Tensor
    gradient: Tensor
    start_response: Tensor
    start_step: Tensor

    def step(self, damping: float = 0.0) -> tuple[Tensor, Tensor]:
        """Return the steps of the numbers (P,) and of the starts (B, S).

        The numbers do not move in directions that neither data nor priors determine. `damping` is added to the diagonal
        of the matrix: 1 acts as a prior about the present values, with a standard deviation of one unit.
        """
        one = torch.eye(len(self.matrix), device="cpu").to(self.matrix)
        matrix = 0.5 * (self.matrix + self.matrix.T) + damping * one
        step = -torch.linalg.pinv(matrix, rtol=SINGULAR, hermitian=True) @ self.gradient
        return step, self.start_step - self.start_response @ step


def normal_equations(
    residual: Tensor, jacobian: Tensor, scale: float, prior: Prior, starts: StartJacobian | None
) -> NormalEquations:
    """Return the equations of the Gauss-Newton step to the optimum; arguments are those of `evidence_of`."""
    weight = _weight(residual, scale) / scale**2
    score = weight * residual  # rho'
    matrix, response = _reduced(jacobian, weight, starts)
    matrix = matrix.sum(0) + torch.diag(prior.precision)
    gradient = torch.einsum("btcp,btc->p", jacobian, score) + prior.gradient
    if starts is None:
        return NormalEquations(matrix, gradient, response, response.new_zeros(response.shape[:2]))
    by_starts = torch.einsum("btcs,btc->bs", starts.jacobian, score) + starts.start
    gradient = gradient - torch.einsum("bsp,bs->p", response, by_starts)
    return NormalEquations(matrix, gradient, response, -torch.linalg.solve(_start_matrix(starts, weight), by_starts))


def _start_matrix(starts: StartJacobian, weight: Tensor) -> Tensor:
    """Return the matrices W (B, S, S) of the starts alone, with their priors of variance one."""
    square = torch.einsum("btcs,btcz->bsz", starts.jacobian, weight[..., None] * starts.jacobian)
    return square + torch.eye(square.shape[-1], device="cpu").to(square)


def _reduced(jacobian: Tensor, weight: Tensor, starts: StartJacobian | None) -> tuple[Tensor, Tensor]:
    """Return J^T weight J (B, P, P) of each recording with its start eliminated, and the starts' response (B, S, P).

    If the numbers move by p, the optimal starts move by -response p.
    """
    weighted = weight[..., None] * jacobian
    matrix = torch.einsum("btcp,btcq->bpq", jacobian, weighted)
    if starts is None:
        return matrix, jacobian.new_zeros(len(jacobian), 0, jacobian.shape[-1])
    mixed = torch.einsum("btcs,btcp->bsp", starts.jacobian, weighted)
    response = torch.linalg.solve(_start_matrix(starts, weight), mixed)
    return matrix - torch.einsum("bsp,bsq->bpq", mixed, response), response


def noise_covariance(score: Tensor, measured: Tensor) -> tuple[Tensor, Tensor]:
    """Return the correlation (T, T) in time and the covariance (C, C) between coordinates of rho' (B, T, C).

    Both are means over all pairs of measured numbers. A lag of k frames is weighted by 1 - k / T, as there are so much
    fewer pairs of it. Missing numbers can make either matrix indefinite: negative eigenvalues are set to zero.
    """
    frames = score.shape[1]
    seen = measured.to(score)
    lags = torch.arange(frames, device=score.device)
    pairs = [(score[:, : frames - k] * score[:, k:]).sum() for k in range(frames)]
    counts = [(seen[:, : frames - k] * seen[:, k:]).sum().clamp_min(1) for k in range(frames)]
    along = torch.stack(pairs) / torch.stack(counts) * (1 - lags / frames)
    correlation = along / along[0].clamp_min(torch.finfo(score.dtype).tiny)
    together = torch.einsum("btc,btd->cd", seen, seen).clamp_min(1)
    between = torch.einsum("btc,btd->cd", score, score) / together
    return _definite(correlation[(lags[:, None] - lags).abs()]), _definite(between)


def _definite(matrix: Tensor) -> Tensor:
    """Return a symmetric matrix with its negative eigenvalues set to zero."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp_min(0)) @ vectors.T
