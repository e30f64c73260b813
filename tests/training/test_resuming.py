"""Runs that go on: from their first checkpoint on, with the same config and the same recordings."""

import errno

import numpy as np
import pytest
import torch

from tests.training.faulty import trainer
from tests.training.swinging import DT, swinging_chain
from torchdismech import InputError
from torchdismech.system.processes import ALONE
from training.config import Config, Constant
from training.files import only_writer
from training.fitting import fit
from training.optimization import checkpoint
from training.optimization.loop import Trainer
from training.reports.board import Board
from training.robots.systems import build
from training.splits import prepared_recordings


class Killed(Exception):
    """What ends a fit at once."""


def config(folder, **changes) -> Config:
    """Return a quick fit of a network without a rod to a few frames, which are written into the folder."""
    positions = swinging_chain(4, 12)
    np.savez(folder / "chain.npz", train=positions, dt=DT)
    stage = {"name": "one", "train": ["learned"], "iterations": 6, "horizon": [2, 3], "batch": 2, "check_every": 2}
    tables = {
        "name": "quick",
        "physics": False,
        "data": {"path": str(folder / "chain.npz"), "held_out": 0.3, "eval": None},
        "robot": {"gripped": [0]},
        "baseline": {"rounds": 1, "width": 4},
        "noise": {"velocity": 0.01},
        "stages": [stage],
        "logging": {"save_every": 4},
    }
    return Config.model_validate(tables | changes)


def weights(folder) -> dict[str, torch.Tensor]:
    """Return what the last checkpoint holds."""
    return checkpoint.load(folder, "last")[0]


@pytest.mark.parametrize("method", ["_validate", "_iterate"])
def test_fit_killed_before_its_first_batch_is_done_goes_on(tmp_path, monkeypatch, method):
    """Find a checkpoint before the first look and the first batch; end with the bits of a run that nothing stopped."""
    whole = fit(config(tmp_path), tmp_path / "whole")

    def killed(*_):
        raise Killed

    monkeypatch.setattr(Trainer, method, killed)
    with pytest.raises(Killed):
        fit(config(tmp_path), tmp_path / "killed")
    monkeypatch.undo()
    assert checkpoint.load(tmp_path / "killed", "last")[1]["progress"]["total"] == 0
    resumed = fit(config(tmp_path), tmp_path / "killed", resume=True)
    assert resumed.mean == whole.mean
    found = weights(tmp_path / "killed")
    assert all(torch.equal(found[name], value) for name, value in weights(tmp_path / "whole").items())


def steps(folder, tag: str) -> list[int]:
    """Return the steps at which TensorBoard shows a number of a run."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [event.step for event in EventAccumulator(str(folder)).Reload().Scalars(tag)]


def stopped(folder, batches: int) -> None:
    """Stop a fit after some batches without what comes at its end, as Ctrl-C does."""
    quick = config(folder)
    recordings, _ = prepared_recordings(quick, "train")
    trained_on, held_out = recordings.split(quick.data.held_out, quick.seed)
    board = Board(folder / "run")
    trainer = Trainer(quick, build(quick, trained_on), trained_on, held_out, folder / "run", board=board)
    try:
        trainer.run(batches)
    finally:
        board.close()


@pytest.mark.parametrize("batches", [0, 4])
def test_board_of_a_run_that_goes_on_has_each_look_once(tmp_path, monkeypatch, batches):
    """Keep what was written up to the checkpoint, and write nothing twice."""
    monkeypatch.setattr(Board, "pictures", lambda *_: None)  # they take their time, and so do figures
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_figure", lambda *_: None)
    (tmp_path / "run").mkdir()
    stopped(tmp_path, batches)
    fit(config(tmp_path), tmp_path / "run", resume=True)
    assert steps(tmp_path / "run", "held_out/error") == [0, 2, 4, 6]
    assert steps(tmp_path / "run" / "trained on", "held_out/error") == [0, 2, 4, 6]
    assert steps(tmp_path / "run", "train/loss") == [1, 2, 3, 4, 5, 6]


def test_finished_run_is_left_as_it_is(tmp_path, monkeypatch, capsys):
    """Say that nothing is left to be done, and write nothing twice; one whose end was not reported ends again."""
    monkeypatch.setattr(Board, "pictures", lambda *_: None)  # they take their time, and so do figures
    monkeypatch.setattr("torch.utils.tensorboard.SummaryWriter.add_figure", lambda *_: None)
    begun = fit(config(tmp_path), tmp_path / "run")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again = fit(config(tmp_path), tmp_path / "run", resume=True)
    assert "this run is finished" in capsys.readouterr().out and again.mean == begun.mean
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    assert steps(tmp_path / "run", "held_out_final/error") == [6]
    (tmp_path / "cut").mkdir()

    def killed(_):
        raise Killed

    monkeypatch.setattr("training.fitting.certainty_of", killed)
    with pytest.raises(Killed):
        fit(config(tmp_path), tmp_path / "cut")
    monkeypatch.undo()
    fit(config(tmp_path), tmp_path / "cut", resume=True)
    assert (tmp_path / "cut" / "metrics.json").exists()
    assert steps(tmp_path / "cut", "held_out_final/error") == [6]


def test_another_config_is_refused_by_its_fields(tmp_path):
    """Name fields, then and now; take what moves no number; go on where somebody insists, and say so."""
    fit(config(tmp_path), tmp_path / "run", until=3)
    other = config(tmp_path, loss={"scale": 0.5}, seed=1)
    with pytest.raises(InputError, match=r"loss\.scale was 0\.001 and is 0\.5; seed was 0 and is 1; .*--force-resume"):
        fit(other, tmp_path / "run", resume=True)
    fit(config(tmp_path, logging={"save_every": 1}, name="else"), tmp_path / "run", resume=True, until=4)
    fit(other, tmp_path / "run", resume=True, force=True)
    facts = checkpoint.load(tmp_path / "run", "last")[1]
    assert (facts["progress"]["total"], facts["config"]["seed"]) == (6, 1)


def test_other_recordings_are_refused_by_name(tmp_path):
    """Name the recording of which a number changed, whatever the file is called; one that moved is the same."""
    fit(config(tmp_path), tmp_path / "run", until=3)
    (tmp_path / "moved").mkdir()
    moved = config(tmp_path / "moved")
    fit(moved, tmp_path / "run", resume=True, until=4)
    positions = swinging_chain(4, 12)
    positions[2, 5, 3, 1] += 1e-12
    np.savez(tmp_path / "moved" / "chain.npz", train=positions, dt=DT)
    with pytest.raises(InputError, match=r"another one: the recording 'chain\.npz:train/2' has other numbers"):
        fit(moved, tmp_path / "run", resume=True)


def test_renamed_recordings_are_the_same(tmp_path):
    """Go on with a file of another name."""
    begun = config(tmp_path)
    fit(begun, tmp_path / "run", until=2)
    (tmp_path / "chain.npz").rename(tmp_path / "cable.npz")
    renamed = begun.model_copy(update={"data": begun.data.model_copy(update={"path": str(tmp_path / "cable.npz")})})
    fit(renamed, tmp_path / "run", resume=True, until=3)
    assert checkpoint.load(tmp_path / "run", "last")[1]["progress"]["total"] == 3


def test_two_fits_do_not_share_a_folder(tmp_path):
    """Refuse the second one, resumed or new."""
    fit(config(tmp_path), tmp_path / "run", until=1)
    with only_writer(tmp_path / "run"), pytest.raises(InputError, match="another fit writes there"):
        fit(config(tmp_path), tmp_path / "run", resume=True)
    (tmp_path / "new").mkdir()
    with only_writer(tmp_path / "new"), pytest.raises(InputError, match="another fit writes there"):
        fit(config(tmp_path), tmp_path / "new")


def test_a_config_that_is_there_is_not_replaced(tmp_path):
    """Refuse a folder that holds a config.json, or is a file."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"holds a config\.json"):
        fit(config(tmp_path), tmp_path)
    assert (tmp_path / "config.json").read_text() == "{}"
    with pytest.raises(InputError, match="is a file"):
        fit(config(tmp_path), tmp_path / "chain.npz")


def test_refused_constants_are_told_with_stage_and_batch(tmp_path, monkeypatch):
    """Add to the library's sentence where in the fit it came up, and what to change."""
    sinking = trainer(tmp_path, set(), ALONE)
    constants = {"bending": Constant(tensors=["bend_twist.EI1"])}
    sinking.config = sinking.config.model_copy(update={"constants": constants})
    predict = sinking.system.predict

    def refusing(window, *given):
        if sinking.progress.total == 3:
            raise InputError("bend_twist.EI1: expected positive numbers, got -0.1")
        return predict(window, *given)

    monkeypatch.setattr(sinking.system, "predict", refusing)
    with pytest.raises(InputError, match="stage 'one', batch 4: bend_twist.EI1: .*, got -0.1; .*smaller rate"):
        sinking.run()


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_disk_that_fills_below_tensorboard_is_told_once(tmp_path, monkeypatch):
    """Raise one sentence from the call after the one that TensorBoard's thread could not write; no traceback of it."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    write, written = RecordWriter.write, []

    def full(writer, data):
        written.append(len(data))
        if len(written) > 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        write(writer, data)

    monkeypatch.setattr(RecordWriter, "write", full)
    with pytest.raises(InputError, match=r"events\.out\.tfevents: cannot be written: No space left on device"):
        fit(config(tmp_path), tmp_path / "run")


def test_batch_larger_than_memory_is_refused(tmp_path):
    """Say what it would take and what would help, before anything is begun."""
    large = config(tmp_path).stages[0].model_copy(update={"batch": 10**9})
    with pytest.raises(InputError, match="batch of 1000000000 windows of 3 steps keeps about .* are free"):
        fit(config(tmp_path, stages=[large]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
