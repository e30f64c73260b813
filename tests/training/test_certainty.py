"""Error bars: what data tell, what they do not, and how priors weigh in."""

import pytest
import torch

from training.certainty import _certainty, _most_recordings, _Number
from training.config import Constant
from training.constants import Named, Trained

UNIT = {"parameter": torch.zeros(1), "index": 0, "unit": 1.0}


def numbers(*priors: float) -> list[_Number]:
    """Return two numbers of value 2 and 3, whose units change them by 0.5 each."""
    return [
        _Number(name=name, prior=prior, value=value, spread_of_one=0.5, **UNIT)
        for name, prior, value in zip("ab", priors, (2.0, 3.0), strict=True)
    ]


def test_error_bars_are_the_inverse_of_the_curvature():
    """Give spreads and the correlation of a matrix that is known, without and with priors."""
    matrix = torch.tensor([[400.0, 300.0], [300.0, 400.0]], dtype=torch.float64)
    found = _certainty(numbers(0.0, 0.0), matrix, 1e-3)
    inverse = torch.linalg.inv(matrix)
    # rounding, and a floor of 1e-12 of the matrix
    assert found.spreads == pytest.approx((0.5 * inverse.diagonal().sqrt()).tolist(), rel=1e-9)
    assert found.pairs() == [("b", "a", pytest.approx(-0.75, rel=1e-9))]
    assert found.warnings() == []
    known = _certainty(numbers(1.0, 1.0), matrix, 1e-3)
    assert known.covariance[0, 0] == pytest.approx(float(torch.linalg.inv(matrix + torch.eye(2))[0, 0]), rel=1e-9)


def test_what_nothing_determines_is_told_with_its_direction():
    """Name the sum of two numbers of which only the difference is seen."""
    matrix = 1e4 * torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    found = _certainty(numbers(0.0, 0.0), matrix, 1e-3)
    (sentence,) = found.warnings()
    assert "do not determine" in sentence
    direction = found.loose[0] * found.loose[0, 0].sign()
    assert torch.allclose(direction, torch.full((2,), 0.5**0.5, dtype=torch.float64))
    assert max(found.spreads) > 10  # nothing holds the sum
    held = _certainty(numbers(1.0, 1.0), matrix, 1e-3)
    assert held.spreads[0] == pytest.approx(0.5 * 0.5**0.5, rel=1e-3)  # the prior does, half a unit's square each
    assert "b and a correlate" in held.told() or "a  2 +-" in held.told()


def test_more_short_recordings_are_looked_at():
    """Eight of a hundred frames or more; as many frames in all of shorter ones, as far as 64 go."""
    assert [_most_recordings(frames) for frames in (3, 20, 100, 500)] == [64, 40, 8, 8]


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
