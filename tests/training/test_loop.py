"""The training loop: batches that are not finite, early stops, several processes."""

import json
import math
from itertools import count
from unittest.mock import MagicMock

import pytest
import torch

from tests.training.faulty import trainer
from tests.training.test_fit import launch
from torchdismech import InputError, Status
from torchdismech.system.processes import ALONE, Processes
from training.optimization import checkpoint
from training.optimization.batches import horizon_at
from training.optimization.resuming import Progress
from training.optimization.validation import is_better
from training.reports.board import Board
from training.reports.evaluation import refuse_without_best
from training.reports.metrics import Errors
from training.reports.predictions import errors_of, predict_all


def test_batch_that_is_not_finite_is_skipped_and_counted(tmp_path):
    """Leave the parameter where it was, count the batch, go on."""
    fit = trainer(tmp_path / "a", {2, 3}, ALONE, iterations=3)
    fit.run()
    assert (fit.progress.total, fit.progress.skipped) == (3, 2)
    _, facts = checkpoint.load(tmp_path / "a", "last")
    assert facts["progress"]["skipped"] == 2


def test_fit_that_cannot_learn_stops_at_its_first_look(tmp_path):
    """Say so, instead of skipping thousands of batches."""
    fit = trainer(tmp_path, {1, 2, 3}, ALONE, iterations=9, check_every=3)
    with pytest.raises(InputError, match="none of the 3 batches so far could be learnt from: its gradient"):
        fit.run()
    assert fit.system.speed.item() == 0.0


def test_patience_ends_a_stage_and_the_best_weights_stay(tmp_path):
    """Stop when the held-out recordings are not predicted better any more, and keep the best weights, not the last."""
    fit = trainer(tmp_path, set(), ALONE, iterations=200, check_every=2, patience=3, rates={"learned": 0.5}, decay=1.0)
    fit.run()
    assert fit.progress.total < 200
    best, facts = checkpoint.load(tmp_path, "best")
    assert fit.system.speed.item() == float(best["learned.speed"])
    assert facts["error"] == fit.progress.best
    assert facts["total"] == fit.progress.best_at == 0 < fit.progress.total  # the rate is far too large


def failing(fit, monkeypatch, number: int, how: float = 1.0) -> None:
    """Let the prediction of the first `number` held-out recordings fail, and make it `how` times as large."""
    predict = fit.system.predict

    def predicted(window, *given):
        found = predict(window, *given)
        whole = window.frames == fit.held_out.frames  # batches are shorter
        found.status[: number * whole] = int(Status.NOT_FINITE)
        found.positions[: number * whole] *= how
        return found

    monkeypatch.setattr(fit.system, "predict", predicted)


def test_held_out_recording_that_always_fails_leaves_a_best(tmp_path, monkeypatch, capsys):
    """Choose by the other one, and name the one that fails at the first look alone."""
    fit = trainer(tmp_path, set(), ALONE, held_out=0.5, check_every=2)
    failing(fit, monkeypatch, 1)
    fit.run()
    said = f"1 of 2 held-out recordings are not predicted to their end: {fit.held_out.names[0]};"
    assert capsys.readouterr().out.count(said) == 1
    errors = fit.validation.run().errors  # of the best weights, which the stage ended with
    assert fit.progress.best_failed == 1
    assert checkpoint.load(tmp_path, "best")[1]["error"] == fit.progress.best == float(errors.recordings[1])


@pytest.mark.parametrize("held_out", [0.25, 0.0])
def test_looks_are_of_whole_recordings_at_once(tmp_path, monkeypatch, held_out):
    """Predict those held out and as many trained on together, each as alone; say so on the bar, which counts batches.

    Where none is held out, they are the same ones.
    """
    fit = trainer(tmp_path, set(), ALONE, held_out=held_out, iterations=1)
    looked_at, said, predict = [], [], fit.system.predict

    def predicted(window, *given):
        if window.frames == fit.held_out.frames:
            looked_at.append(len(window.positions))
            said.append(str(fit._bar))
        return predict(window, *given)

    monkeypatch.setattr(fit.system, "predict", predicted)
    fit.run(progress=True)
    count = len(fit.held_out)
    assert looked_at == [count if held_out == 0.0 else 2 * count] * 2  # before the first batch, and after the last
    assert all("looking at whole recordings" in line for line in said)
    assert "looking" not in str(fit._bar)
    found = fit.validation.run()
    alone = predict_all(fit.system, fit.held_out)
    assert torch.equal(found.predicted.positions, alone.positions)
    assert torch.equal(found.errors.recordings, errors_of(fit.system, fit.held_out, alone).recordings)
    some = fit.trained_on.subset(slice(0, 1) if held_out else slice(None))
    expected = errors_of(fit.system, some, predict_all(fit.system, some))
    assert torch.equal(found.errors_trained_on.recordings, expected.recordings)


def test_fewer_failed_recordings_are_better_than_a_smaller_error():
    """Compare numbers of failures first; take nothing that is not finite."""

    def errors(*recordings: float, failed: int = 0) -> Errors:
        good = torch.arange(len(recordings)) >= failed
        return Errors(torch.tensor(recordings), torch.tensor(recordings, dtype=torch.float64), good, 0.01, 0.01)

    before = Progress(best=0.25, best_failed=1)
    assert is_better(errors(1.0, 0.5), before) and is_better(errors(9.0, 0.125, failed=1), before)
    assert not is_better(errors(0.0, 0.5, failed=1), before) and not is_better(errors(0.0, 0.0, 0.0, failed=2), before)
    assert is_better(errors(0.1, 0.1, failed=2), Progress()) and not is_better(errors(0.1, 0.1, failed=2), before)
    for none in (errors(0.1, math.inf, failed=2), errors(0.1, math.inf, failed=1)):
        assert not is_better(none, before) and not is_better(none, Progress())
    assert is_better(errors(9.0, 0.5, failed=1), Progress())


def test_run_without_best_weights_says_why(tmp_path, monkeypatch, capsys):
    """Say at the end of a stage that there are none; refuse to evaluate them and name what there is."""
    fit = trainer(tmp_path, set(), ALONE, iterations=2, check_every=2)
    failing(fit, monkeypatch, 1, math.nan)
    fit.run()
    assert not checkpoint.exists(tmp_path, "best")
    assert "there are no best weights to go on from" in capsys.readouterr().out
    with pytest.raises(InputError, match="it has no best weights, as no look at .* finite error, .*--stage one"):
        refuse_without_best(tmp_path, fit.config)


def test_speed_counts_the_steps_between_frames(tmp_path, monkeypatch):
    """Tell four windows of four frames of three steps each, in a batch of two seconds."""
    clock = count(0.0, 2.0)
    monkeypatch.setattr("training.optimization.loop.time.perf_counter", lambda: next(clock))
    fit = trainer(tmp_path, set(), ALONE, iterations=1)
    fit.system.substeps, fit.board = 3, MagicMock(spec=Board)
    fit.run()
    assert fit.board.batch.call_args.args[-1] == 4 * 4 * 3 / 2


def test_horizons_take_equal_shares(tmp_path):
    """Go through the horizons in turn."""
    (stage,) = trainer(tmp_path, set(), ALONE, iterations=6, horizon=[2, 3, 4]).config.stages
    assert [horizon_at(stage, iteration) for iteration in range(6)] == [2, 2, 3, 3, 4, 4]


@pytest.mark.parametrize(("count", "world"), [(5, 2), (3, 4), (8, 3)])
def test_processes_share_all_items(count, world):
    """Give every item to exactly one process."""
    items = [i for rank in range(world) for i in list(range(count))[Processes(rank, world).own(count)]]
    assert items == list(range(count))


@pytest.mark.slow
def test_nan_in_one_process_does_not_hang_or_split_the_others(tmp_path):
    """End both processes with one skipped batch, the same parameter and the same buffer."""
    launch(2, "-m", "tests.training.faulty", str(tmp_path))
    facts = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert facts[0] == facts[1]
    assert facts[0]["skipped"] == 1
    assert facts[0]["group is gone"]  # its threads abort an interpreter that ends before them


@pytest.mark.slow
def test_process_that_fails_ends_the_others(tmp_path):
    """Stop with an error instead of waiting for ever."""
    with pytest.raises(AssertionError, match="meant to fail"):
        launch(2, "-m", "tests.training.faulty", str(tmp_path), "crash")
