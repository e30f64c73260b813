"""Errors over the horizon, and predictions without a model."""

import dataclasses

import pytest
import torch

from tests.training.swinging import recordings
from training.reports.metrics import Errors
from training.robots.references import reference_predictions


def test_nobody_follows_where_nothing_is_gripped():
    """Give one prediction, in which all nodes stay, of a robot without grips."""
    whole = recordings(2)
    found = reference_predictions(whole, [])
    assert list(found) == ["stay"]
    assert torch.equal(found["stay"], whole.positions[:, 1:2].expand(-1, whole.frames - 2, -1, -1))
    assert list(reference_predictions(whole, [0, 5])) == ["stay", "follow"]


def test_errors_are_told_as_far_as_recordings_reach():
    """Leave out horizons beyond the end, and those before frames count."""
    whole = recordings(2, frames=120)
    predicted = whole.positions[:, 2:] + 0.001
    assert Errors.of(predicted, whole).horizons == (0.1, 1.0)
    skipped = Errors.of(predicted, whole, skipped=20)
    assert skipped.horizons == (1.0,)
    assert skipped.at(1.0) == pytest.approx(0.001)
    assert (len(skipped.curve), float(skipped.time[0])) == (98, pytest.approx(0.21))


def test_markers_that_were_not_seen_have_no_weight():
    """Count what was seen, whatever stands in the other places."""
    whole = recordings(1)
    valid = whole.valid.clone()
    valid[0, :, 2] = False
    positions = whole.positions.clone()
    predicted = positions[:, 2:].clone()
    predicted[0, :, 2] += 5.0
    predicted[0, :, 1] += 0.01
    errors = Errors.of(predicted, dataclasses.replace(whole, positions=positions, valid=valid))
    assert errors.mean == pytest.approx(0.01 / (whole.nodes - 1))


def test_recordings_without_anything_that_counts_have_no_error():
    """Leave out of the mean what ends before the frames that count; it was an error of zero."""
    whole = recordings(2)
    whole.valid[1, 10:] = False
    predicted = whole.positions[:, 2:] + 0.01
    errors = Errors.of(predicted, whole, skipped=20)
    assert errors.mean == pytest.approx(0.01) and errors.recordings[1].isnan()
    assert Errors.of(predicted, whole).mean == pytest.approx(0.01)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_predictions_that_are_not_finite_make_the_mean_infinite(value):
    """Count a prediction that is none; it was left out, so that the mean was better than without it."""
    whole = recordings(2)
    predicted = whole.positions[:, 2:] + 0.01
    predicted[1, 30, 2, 0] = value
    errors = Errors.of(predicted, whole)
    assert errors.mean == torch.inf and errors.recordings.isinf().tolist() == [False, True]
    assert errors.curve.isinf().nonzero().flatten().tolist() == [30]
    whole.valid[1, 32, 2] = False  # two frames are given
    assert Errors.of(predicted, whole).mean == pytest.approx(0.01)
