"""Error bars: what data tell, what they do not, how priors weigh in, and how far the optimum is."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.training import simulated
from training.config import Config, Constant
from training.optimization.certainty import (
    Certainty,
    _certainty,
    _longest_by_chance,
    _most_recordings,
    _sampling_deviation,
    _shown,
    certainty_of,
)
from training.optimization.evidence import Evidence
from training.optimization.loop import Trainer
from training.optimization.residuals import FittedNumber
from training.robots.constants import Named, Trained
from training.robots.systems import build
from training.splits import prepared_recordings

UNIT = {"entry": "a", "index": 0, "unit": 1.0}


def numbers(*priors: float) -> list[FittedNumber]:
    """Return two numbers of value 2 and 3, whose units change them by 0.5 each."""
    return [
        FittedNumber(name=name, precision=prior, offset=0.0, value=value, value_per_unit=0.5, **UNIT)
        for name, prior, value in zip("ab", priors, (2.0, 3.0), strict=True)
    ]


def independent(matrix: torch.Tensor, step: tuple[float, float] = (0.0, 0.0)) -> Evidence:
    """Return the evidence of residuals that are independent and as large as the loss's scale says."""
    return Evidence(torch.tensor(step, dtype=torch.float64), matrix, matrix)


def test_error_bars_are_the_inverse_of_the_curvature():
    """Give spreads and the correlation of a matrix that is known, without and with priors."""
    matrix = torch.tensor([[400.0, 300.0], [300.0, 400.0]], dtype=torch.float64)
    found = _certainty(numbers(0.0, 0.0), independent(matrix), 1e-3)
    inverse = torch.linalg.inv(matrix)
    # rounding, and a floor of 1e-12 of the matrix
    assert found.spreads == pytest.approx((0.5 * inverse.diagonal().sqrt()).tolist(), rel=1e-9)
    assert found.pairs() == [("b", "a", pytest.approx(-0.75, rel=1e-9))]
    assert found.warnings() == []
    known = _certainty(numbers(1.0, 1.0), independent(matrix), 1e-3)
    assert known.covariance[0, 0] == pytest.approx(float(torch.linalg.inv(matrix + torch.eye(2))[0, 0]), rel=1e-9)


def test_what_nothing_determines_is_told_with_its_direction():
    """Name the sum of two numbers of which only the difference is seen."""
    matrix = 1e4 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    found = _certainty(numbers(0.0, 0.0), independent(matrix), 1e-3)
    (sentence,) = found.warnings()
    assert "do not determine" in sentence and "one that has no prior a mean and a spread" in sentence
    direction = found.undetermined[0] * found.undetermined[0, 0].sign()
    assert torch.allclose(direction, torch.full((2,), 0.5**0.5, dtype=torch.float64))
    assert max(found.spreads) > 10  # nothing holds the sum
    held = _certainty(numbers(1.0, 1.0), independent(matrix), 1e-3)
    assert held.spreads[0] == pytest.approx(0.5 * 0.5**0.5, rel=1e-3)  # the prior does, half a unit's square each
    assert "b and a correlate" in held.as_text() or "a  2.000 +-" in held.as_text()


def test_values_have_the_digits_of_their_error_bars():
    """Show zeros that are known, and no fewer than four digits where little is known."""
    assert [_shown(7.9e-4, 5.3e-7), _shown(7.853982e-4, 1.2e-9)] == ["0.00079000", "0.0007853982"]
    assert [_shown(1.5e6, 5e4), _shown(-2.0, 30.0), _shown(0.0, 1.0)] == ["1.500e+06", "-2.000", "0"]
    assert [_shown(2.0, math.inf), _shown(2.0, math.nan)] == ["2", "2"]


def test_many_directions_are_counted():
    """Tell of five directions that nothing determines, and how many more there are."""
    found = _certainty(numbers(0.0, 0.0), independent(1e4 * torch.eye(2, dtype=torch.float64)), 1e-3)
    told = dataclasses.replace(found, undetermined=torch.tensor([[1.0, 0.0]] * 7)).warnings()
    assert len(told) == 6 and all("do not determine" in sentence for sentence in told[:5])
    assert told[5] == "warning: nor do they determine 2 directions more, which are in certainty.json"


def test_fit_that_stands_beside_its_optimum_is_told_by_how_much():
    """Step to the optimum of a bowl that is known, in standard deviations; warn from one on, with the names."""
    matrix = torch.tensor([[400.0, 300.0], [300.0, 400.0]], dtype=torch.float64)
    found = _certainty(numbers(0.0, 0.0), independent(matrix, (-0.3, 0.0)), 1e-3)
    bar = float(torch.linalg.inv(matrix)[0, 0].sqrt())
    assert found.steps == pytest.approx([-0.3 / bar, 0.0], abs=1e-6)  # the floor of the inverse
    # principal directions are (1, +-1) / sqrt 2: half of the square along each
    assert found.distance == pytest.approx(max(0.3 / bar, (0.5 * 0.3**2 * 700) ** 0.5))
    (sentence,) = found.warnings()
    assert "(a -3.97)" in sentence and "5.61 standard deviations" in sentence
    assert "-4.0" in found.as_text() and found.facts()["steps_to_optimum"]["a"] == found.steps[0]
    assert _certainty(numbers(0.0, 0.0), independent(matrix), 1e-3).warnings() == []


def test_part_of_the_recordings_leaves_the_optimum_in_doubt():
    """Warn of a longer step only, where a part of the recordings was looked at; say how much that part knows."""
    matrix = torch.tensor([[4.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    # two numbers, and two principal directions: the longest of four is below 2.5 standard deviations in 95 of 100
    for step, warned in ((5.8, False), (6.2, True)):  # 1 + 2.5 x 2
        found = _certainty(numbers(0.0, 0.0), independent(matrix, (0.5 * step, 0.0)), 1e-3, sampling=2.0)
        assert bool(found.warnings()) == warned
    assert "looked at knows to 2:" in found.warnings()[0]


@pytest.mark.parametrize("count", [1, 4, 200])
def test_longest_step_by_chance_knows_how_many_there_are(count):
    """Exceed the bound in 5 % of all cases, where that many independent steps are looked at."""
    draws = torch.randn(4000, count, generator=torch.Generator().manual_seed(1)).abs().amax(1)
    # 4000 cases know 5 % to 0.35 %; three times that
    assert float((draws > _longest_by_chance(count)).double().mean()) == pytest.approx(0.05, abs=0.0105)


def test_doubt_is_how_the_optima_of_parts_differ():
    """Compare with how the mean of a part of some numbers differs from that of all, in error bars of either."""
    x = torch.randn(20_000, 40, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    apart = float((x[:, :8].mean(1) - x.mean(1)).std())
    # 20,000 differences know their standard deviation to 0.5 %; five times that
    assert _sampling_deviation(5.0, 8, 40) == pytest.approx(
        apart / 40**-0.5, rel=0.025
    )  # other recordings count as if they were like these
    assert _sampling_deviation(1.0, 8, 40) == pytest.approx(apart / 8**-0.5, rel=0.025)  # later frames do not count
    assert _sampling_deviation(1.0, 40, 40) == 0


def test_more_short_recordings_are_looked_at():
    """Sixteen of a hundred frames or more; as many frames in all of shorter ones, as far as 64 go."""
    assert [_most_recordings(frames) for frames in (3, 40, 100, 500)] == [64, 40, 16, 16]


def trained(**changes) -> Trained:
    """Return what trains three numbers of value 2."""
    module = torch.nn.Module()
    module.register_buffer("size", torch.full((3,), 2.0, dtype=torch.float64))
    named = Named({"size": (module, "size")}, torch.float64, torch.device("cpu"))
    return Trained(named, "size", Constant.model_validate({"tensors": ["size"], "per": "element", **changes}), {})


def test_priors_of_factors_are_shares_and_means_are_values():
    """Take the mean where it is likely, and half a standard deviation squared beside it."""
    entry = trained(mean=4.0, spread=[0.1, 0.2, 0.4])
    log_two = 0.6931471805599453
    expected = 0.5 * sum((log_two / s) ** 2 for s in (0.1, 0.2, 0.4))
    assert float(entry.penalty().detach()) == pytest.approx(expected)
    with torch.no_grad():
        entry.parameter.fill_(log_two)
    assert float(entry.penalty().detach()) == pytest.approx(0)
    assert entry.value.tolist() == pytest.approx([4.0] * 3)


def test_priors_of_shifts_are_in_the_unit_of_the_constant():
    """Divide by the spread, whatever the unit of the shift."""
    entry = trained(kind="shift", unit=0.5, spread=0.1)
    with torch.no_grad():
        entry.parameter[1] = 0.4  # 0.2 of the constant: two standard deviations
    assert float(entry.penalty().detach()) == pytest.approx(2.0)


def test_only_the_chosen_elements_are_trained():
    """Leave the others where they are, whatever the gradient."""
    entry = trained(kind="shift", unit=1.0, elements=[2])
    module, name = entry.place
    getattr(module, name).sum().backward()
    assert entry.parameter.grad.tolist() == [0, 0, 1]
    with torch.no_grad():
        entry.parameter[2] = 1.0
    assert entry.value.tolist() == [2, 2, 3] and entry.value_of_trained.tolist() == [3]
    assert trained().value_of_trained.tolist() == [2, 2, 2]


def at_the_optimum(folder, clean: torch.Tensor, seed: int) -> Certainty:
    """Return what noisy recordings tell of a rod at their own optimum, which Gauss-Newton steps lead to."""
    noise = 2e-5 * torch.randn(clean.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    noise[:, :, simulated.GRIPPED] = 0
    np.savez(folder / "rod.npz", train=(clean + noise).numpy(), dt=simulated.DT)
    tables = {
        "name": "rod",
        "data": {"path": str(folder / "rod.npz"), "held_out": 0.0, "eval": None},
        "robot": simulated.TRUTH.model_dump(),
        "simulation": simulated.TIGHT.model_dump(),
        "constants": {
            "bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]},
            "drag": {"tensors": ["Viscous.viscosity"]},
        },
        "loss": {"scale": 6e-5},
        "stages": [{"name": "one", "train": ["constants"], "iterations": 1, "horizon": [5], "batch": 2}],
    }
    config = Config.model_validate(tables)
    recordings, _ = prepared_recordings(config, config.data.train)
    system = build(config, recordings)
    trainer = Trainer(config, system, recordings, recordings, folder)
    for _ in range(3):
        found = certainty_of(trainer)
        assert found is not None
        if found.distance < 0.3:  # the rest hardly shows beside the spread of the fits, more than half an error bar
            return found
        for name, value, spread, step in zip(found.names, found.values, found.spreads, found.steps, strict=True):
            system.entries[name].parameter.data += step * spread / value  # of logarithms
    raise AssertionError(f"{found.distance} standard deviations from the optimum after three steps")


@pytest.mark.slow
def test_error_bars_are_as_wide_as_fits_of_other_noise_differ(tmp_path):
    """Fit a rod whose first two frames, from which it starts, are noisy: their error lasts over the whole recording."""
    clean = simulated.simulated_positions(count=8, frames=42)
    fits = [at_the_optimum(tmp_path, clean, seed) for seed in range(4)]
    for k in range(2):
        values, bars = np.array([f.values[k] for f in fits]), np.array([f.spreads[k] for f in fits])
        # of 16 fits 0.57 and 0.79, which four know to 40 %; 4.0 and 5.6 with bars for independent frames
        assert 0.1 < values.std(ddof=1) / bars.mean() < 1.6
