"""Errors over the horizon, and predictions without a model."""

import dataclasses

import pytest
import torch

from tests.training.beams import system_of, window_of
from tests.training.swinging import recordings
from torchdismech import InputError
from training.data import read
from training.loss import window_losses
from training.reports.metrics import Errors, baselines
from training.robots.references import followed_grips


def test_free_nodes_follow_the_gripped_ones():
    """Move gripped nodes as recorded, and those beyond the last one as it moves."""
    whole = recordings(2)
    x, found = whole.positions, followed_grips(whole, [0, 3])
    torch.testing.assert_close(found[:, :, [0, 3]], x[:, 2:, [0, 3]])
    torch.testing.assert_close(
        found[:, :, 4:] - x[:, 1:2, 4:], (x[:, 2:, 3] - x[:, 1:2, 3])[:, :, None].expand_as(found[:, :, 4:])
    )


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


def test_markers_that_do_not_count_are_in_no_loss_and_no_error(folder):
    """Move a marker that does not count, far from where it was predicted: loss and errors stay; others change them."""
    system = system_of(folder, loss={"markers": [0, 2]})
    beams, window = read(folder / "beam.npz", "train"), window_of(folder)
    prediction, found = system.predict(window), []
    for moved, shift in ((0, 0.0), (1, 1.0), (2, 1.0)):
        of_window, whole = window.positions.clone(), beams.positions.clone()
        of_window[:, system.given :, moved] += shift
        whole[:, system.given :, moved] += shift
        losses = window_losses(prediction, window.replace(positions=of_window), system, 1e-3, 100)
        assert losses.count.tolist() == [3.0 * 2 * (window.frames - system.given)] * len(losses.count)
        errors = baselines(dataclasses.replace(beams, positions=whole), system)["stay"]
        found.append((losses.loss.sum().item(), errors.mean))
    assert found[0] == found[1] and found[2][0] > found[0][0] and found[2][1] > found[0][1]
    with pytest.raises(InputError, match=r"loss.markers: the recordings have \d+ markers, counted from 0; got 99"):
        system_of(folder, loss={"markers": [99]})


def test_markers_that_count_have_to_be_seen(folder):
    """Refuse recordings in which the one marker that counts was seen in the first frame alone, and take others."""
    system, beams = system_of(folder, loss={"markers": [2]}), read(folder / "beam.npz", "train")
    system.refuse_unseen(beams)
    beams.valid[:, system.given :, 2] = False
    system_of(folder).refuse_unseen(beams)
    with pytest.raises(InputError, match=r"loss.markers: none of the markers \[2\] was seen in a predicted frame"):
        system.refuse_unseen(beams)
