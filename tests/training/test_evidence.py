"""Covariances of fits under noise that goes together, and steps to an optimum, where both are known."""

import pytest
import torch

from training.optimization.certainty import _certainty
from training.optimization.evidence import FEWEST, Prior, StartJacobian, evidence_of, noise_covariance
from training.optimization.residuals import FittedNumber

RECORDINGS, FRAMES, COORDINATES, NUMBERS = 6, 60, 12, 2
NOISE = 2e-3


def uniform(*shape: int, seed: int) -> torch.Tensor:
    """Return numbers between -1 and 1."""
    return 2 * torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def slopes() -> torch.Tensor:
    """Return derivatives (B, T, C, P) as those of motions are: swings that grow, of other phase at each marker."""
    time = torch.linspace(0, 1, FRAMES, dtype=torch.float64)[None, :, None, None]
    rate, phase = (uniform(RECORDINGS, 1, COORDINATES, NUMBERS, seed=k) for k in (1, 2))
    return time * torch.sin((8 + 3 * rate) * time + 3 * phase)


def noise(seed: int, correlation: float, shared: float) -> torch.Tensor:
    """Return noise (B, T, C), correlated from frame to frame, a share of its variance the same for all markers."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(RECORDINGS, FRAMES, COORDINATES, generator=generator, dtype=torch.float64)
    common = torch.randn(RECORDINGS, FRAMES, 1, generator=generator, dtype=torch.float64)
    fresh = (1 - shared) ** 0.5 * own + shared**0.5 * common
    found = fresh.clone()
    for k in range(1, FRAMES):
        found[:, k] = correlation * found[:, k - 1] + (1 - correlation**2) ** 0.5 * fresh[:, k]
    return NOISE * found


def best(columns: torch.Tensor, measured: torch.Tensor) -> torch.Tensor:
    """Return the numbers (P,) that make measured - columns x number least."""
    return torch.linalg.lstsq(columns.flatten(0, 2), measured.flatten()[:, None]).solution[:, 0]


def numbers(count: int = NUMBERS) -> list[FittedNumber]:
    """Return numbers without priors, in units of one."""
    return [FittedNumber(f"{k}", f"{k}", 0, 1.0, 0.0, 0.0, 1.0, 1.0) for k in range(count)]


NOTHING_KNOWN = Prior(torch.zeros(NUMBERS).double(), torch.zeros(NUMBERS).double())


@pytest.mark.parametrize(("correlation", "shared"), [(0.0, 0.0), (0.6, 0.0), (0.9, 0.0), (0.9, 0.5), (0.97, 0.5)])
def test_error_bars_cover_the_truth_under_correlated_noise(correlation, shared):
    """Hold the truth within two error bars in 19 of 20 fits, where bars of independent noise hold it in far fewer."""
    columns = slopes()
    everywhere = torch.ones(columns.shape[:3], dtype=torch.bool)
    fits, held, held_if_independent = 80, 0, 0
    for seed in range(fits):
        measured = noise(seed, correlation, shared)
        found = best(columns, measured)
        residual = columns @ found - measured
        # a loss that is quadratic as far as these residuals go, so that its optimum is the one of least squares
        evidence = evidence_of(residual, everywhere, columns, 1e3 * NOISE, NOTHING_KNOWN, None)
        certainty = _certainty(numbers(), evidence, NOISE)
        assert certainty.distance < 1e-3  # found is the optimum, to (residual / scale)^2
        held += int((found.abs() < 2 * torch.tensor(certainty.spreads)).sum())
        # independent noise of the same size
        variance = float(residual.square().mean())
        inverse = torch.linalg.inv(torch.einsum("btcp,btcq->pq", columns, columns))
        single = (variance * inverse.diagonal()).sqrt()
        held_if_independent += int((found.abs() < 2 * single).sum())
    trials = fits * NUMBERS
    # 0.95 is right; of 160 trials, which are not quite independent, three of their own standard deviations are left
    assert held / trials > 0.95 - 3 * (0.95 * 0.05 / trials) ** 0.5
    if correlation >= 0.6:
        assert held_if_independent / trials < 0.75


def test_recordings_that_differ_make_error_bars_wide():
    """Hold the truth where each recording has numbers of its own around it, which noise within recordings hides."""
    generator, spread, count = torch.Generator().manual_seed(5), 5e-3, 12
    columns = torch.cat([slopes(), slopes().flip(3)])
    everywhere = torch.ones(columns.shape[:3], dtype=torch.bool)
    fits, held, held_by_noise = 60, 0, 0
    for seed in range(fits):
        own = spread * torch.randn(count, NUMBERS, generator=generator, dtype=torch.float64)
        residual = torch.einsum("btcp,bp->btc", columns, own)
        residual = residual + torch.cat([noise(2 * seed, 0.6, 0.0), noise(2 * seed + 1, 0.6, 0.0)])
        found = best(columns, residual)
        residual = columns @ found - residual
        bars = []
        for part in (slice(None), slice(FEWEST - 1)):  # of fewer, scaled to as many, only the noise is read
            evidence = evidence_of(residual[part], everywhere[part], columns[part], 1.0, NOTHING_KNOWN, None)
            bars.append(torch.tensor(_certainty(numbers(), evidence, NOISE, count / len(residual[part])).spreads))
        held += int((found.abs() < 2 * bars[0]).sum())
        held_by_noise += int((found.abs() < 2 * bars[1]).sum())
    # 12 recordings know their scatter to a fifth, so that 0.93 is right; of 120 trials three standard deviations less
    assert held / (fits * NUMBERS) > 0.86
    assert held_by_noise / (fits * NUMBERS) < 0.8


def test_noise_is_read_from_residuals_of_which_some_are_missing():
    """Find correlation in time and covariance between coordinates, with a quarter of the markers not seen."""
    force = noise(0, 0.8, 0.5) / NOISE
    seen = (uniform(RECORDINGS, FRAMES, COORDINATES // 3, seed=4) < 0.5).repeat_interleave(3, dim=2)
    time, between = noise_covariance(torch.where(seen, force, 0.0), seen)
    # 360 frames with a correlation time of 9 are some 40 independent ones: 0.16 of a variance; less of means over pairs
    assert time[0, 1] == pytest.approx(0.8, abs=0.05) and time[0, 4] == pytest.approx(0.8**4, abs=0.1)
    assert float(between.diagonal().mean()) == pytest.approx(1.0, abs=0.3)
    off = between - torch.diag(between.diagonal())
    assert float(off.sum() / off.count_nonzero()) == pytest.approx(0.5, abs=0.3)
    for matrix in (time, between):
        assert float(torch.linalg.eigvalsh(matrix).min()) > -1e-12  # rounding


def test_starts_are_eliminated_as_if_all_numbers_were_fitted_together():
    """Compare step, curvature and covariance with those of one system of equations for the numbers and all starts."""
    columns, size = slopes(), 2
    own = uniform(RECORDINGS, FRAMES, COORDINATES, size, seed=5)
    now, residual = uniform(RECORDINGS, size, seed=6), noise(3, 0.5, 0.0)
    everywhere = torch.ones(residual.shape, dtype=torch.bool)
    scale = 0.7 * NOISE  # well into what is robust
    prior = Prior(torch.tensor([1e3, 2e3]).double(), torch.tensor([-5.0, 10.0]).double())
    evidence = evidence_of(residual, everywhere, columns, scale, prior, StartJacobian(now, own))
    # all numbers in one row: P of the constants, then S for each recording
    together = torch.zeros(RECORDINGS, FRAMES, COORDINATES, NUMBERS + RECORDINGS * size, dtype=torch.float64)
    together[..., :NUMBERS] = columns
    for b in range(RECORDINGS):
        together[b, ..., NUMBERS + b * size : NUMBERS + (b + 1) * size] = own[b]
    known = torch.cat([prior.precision, torch.ones(RECORDINGS * size).double()])
    of_all = Prior(known, torch.cat([prior.gradient, now.flatten()]))
    whole = evidence_of(residual, everywhere, together, scale, of_all, None)
    # rounding
    assert torch.allclose(evidence.step, whole.step[:NUMBERS], rtol=1e-9, atol=0)
    of_starts = torch.cat([torch.zeros(NUMBERS), torch.ones(RECORDINGS * size)]).double()
    inverse = torch.linalg.inv(whole.curvature + torch.diag(of_starts))
    mine = torch.linalg.inv(evidence.curvature)
    assert torch.allclose(mine, inverse[:NUMBERS, :NUMBERS], rtol=1e-9, atol=0)
    sandwich = inverse @ (whole.scatter + torch.diag(of_starts)) @ inverse
    assert torch.allclose(mine @ evidence.scatter @ mine, sandwich[:NUMBERS, :NUMBERS], rtol=1e-9, atol=0)


def test_step_leads_to_the_optimum_of_data_and_priors():
    """Solve for the optimum of a quadratic loss with priors; be there after the step, and take none from there."""
    columns, everywhere = slopes(), torch.ones(RECORDINGS, FRAMES, COORDINATES, dtype=torch.bool)
    residual, scale = noise(2, 0.3, 0.0), 1e3 * NOISE
    prior = Prior(torch.tensor([50.0, 0.0]).double(), torch.tensor([-3.0, 0.0]).double())

    def step(at: torch.Tensor) -> torch.Tensor:
        pulled = Prior(prior.precision, prior.gradient + prior.precision * at)
        return evidence_of(residual + columns @ at, everywhere, columns, scale, pulled, None).step

    first = step(torch.zeros(NUMBERS).double())
    matrix = torch.einsum("btcp,btcq->pq", columns, columns) / scale**2 + torch.diag(prior.precision)
    gradient = torch.einsum("btcp,btc->p", columns, residual) / scale**2 + prior.gradient
    # the loss is quadratic up to (residual / scale)^2
    assert torch.allclose(first, -torch.linalg.solve(matrix, gradient), rtol=1e-4)
    assert float(step(first).norm()) < 1e-4 * float(first.norm())


def test_step_is_exact_where_the_numbers_alone_make_the_residuals():
    """Lead to the optimum at once, however large residuals are beside the loss's scale; tell the error bars there."""
    columns, off = slopes(), torch.tensor([3.0, -2.0], dtype=torch.float64)
    everywhere = torch.ones(columns.shape[:3], dtype=torch.bool)
    noisy = noise(1, 0.5, 0.0)
    away, there = (
        evidence_of(columns @ x + noisy, everywhere, columns, 2 * NOISE, NOTHING_KNOWN, None) for x in (off, 0 * off)
    )
    # the noise moves both optima, by weights that differ: some thousandths of the way
    assert torch.allclose(away.step, -off, rtol=0.01)
    bars = [torch.linalg.inv(e.curvature) @ e.scatter @ torch.linalg.inv(e.curvature) for e in (away, there)]
    assert torch.allclose(bars[0], bars[1], rtol=0.1)
    exact = evidence_of(columns @ off, everywhere, columns, 1e-2, NOTHING_KNOWN, None)
    assert torch.allclose(exact.step, -off, rtol=1e-9)  # rounding


def test_recordings_without_noise_have_some_error_bar():
    """Take a thousandth of the loss's scale for noise where residuals are zero."""
    columns, scale = slopes(), 2e-3
    nothing = torch.zeros(columns.shape[:3], dtype=torch.float64)
    evidence = evidence_of(nothing, nothing == 0, columns, scale, NOTHING_KNOWN, None)
    covariance = torch.linalg.inv(evidence.curvature) @ evidence.scatter @ torch.linalg.inv(evidence.curvature)
    expected = (1e-3 * scale) ** 2 * torch.linalg.inv(torch.einsum("btcp,btcq->pq", columns, columns))
    assert torch.allclose(covariance, expected, rtol=1e-9, atol=0)  # rounding


def test_what_nothing_determines_takes_no_step():
    """Leave a number alone that no residual depends on."""
    columns = slopes()
    columns[..., 1] = 0
    everywhere = torch.ones(columns.shape[:3], dtype=torch.bool)
    step = evidence_of(noise(0, 0.0, 0.0), everywhere, columns, NOISE, NOTHING_KNOWN, None).step
    assert step[0] != 0 and step[1] == 0


def test_gradient_and_curvature_are_those_of_the_robust_loss():
    """Compare with autograd: no gradient is left where no step is, and the curvature is exact for linear residuals."""
    columns, scale = slopes(), 0.5 * NOISE
    residual = noise(1, 0.0, 0.0)
    everywhere = torch.ones(residual.shape, dtype=torch.bool)

    def loss(change: torch.Tensor) -> torch.Tensor:
        return (torch.sqrt(((residual + columns @ change) / scale).square() + 1) - 1).sum()

    at = torch.zeros(NUMBERS, dtype=torch.float64)
    first = torch.func.grad(loss)(at).norm()
    for _ in range(30):  # reweighted least squares converges linearly
        evidence = evidence_of(residual + columns @ at, everywhere, columns, scale, NOTHING_KNOWN, None)
        at = at + evidence.step
    assert float(torch.func.grad(loss)(at).norm()) < 1e-6 * float(first)
    # rounding of sums of 4320 numbers, and the last step
    assert torch.allclose(evidence.curvature, torch.func.hessian(loss)(at), rtol=1e-6)
