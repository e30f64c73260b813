"""What goes to TensorBoard is what the page says."""

import torch

from tests.training import board_tags, simulated
from tests.training.test_fit import tables
from training.config import Config
from training.optimization.batches import Batch
from training.optimization.resuming import Progress
from training.reports.board import Board, _flat
from training.reports.metrics import Errors
from training.reports.predictions import OpenLoop
from training.robots.systems import build
from training.splits import prepared_recordings


def test_tags_are_those_of_the_page(tmp_path):
    """Call all that writes, as a fit and an evaluation do: no tag is missing in the table, and none is too many."""
    config = Config.model_validate(tables(simulated.written(tmp_path / "rod.npz", count=4, frames=4)))
    recordings, _ = prepared_recordings(config, "train")
    good = torch.ones(len(recordings), dtype=torch.bool)
    # as long as the longest horizon of which errors are told
    errors = Errors(torch.ones(500), torch.ones(len(recordings)), good, dt=0.01, first=0.01)
    baselines = {"stay": errors, "follow": errors}
    predicted = OpenLoop(recordings.positions[:, 1:], good, None)
    system = build(config, recordings)
    board = Board(tmp_path / "run")
    board.begin(config, [], baselines)
    batch = Batch(1.0, 2, 0, iterations=2.0, norms={"constants": 1.0}, rates={"constants": 0.1})
    board.batch(Progress(), batch, 5, 100.0)
    for group in ("physics", "final/physics"):
        board.constants(group, {"bending": torch.ones(2)}, 0)
    board.constants("starts", {"size": torch.ones(())}, 0)
    board.held_out(Progress(), errors, errors, 0.1)
    for split in ("held_out", "held_out_final", "eval"):
        board.hparams(config, split, errors, 0)
        board.pictures(split, config, recordings, predicted, system, 0)
    for split in ("held_out_final", "eval"):
        board.evaluated(split, {"model": errors, **baselines}, 0)
    for tag in ("certainty", "doubts"):
        board.text(tag, "", 0)
    board.close()
    unsaid, unused = board_tags.unlike(board_tags.written(tmp_path / "run"))
    assert not unsaid and not unused


def test_hyperparameters_tell_runs_with_other_markers_apart():
    """Give each marker a key of its own, stages theirs by name; leave out what a method does not have."""
    tables = {"name": "arm", "data": {"path": "-"}, "robot": {"scene": "arm.toml"}}
    stage = {"train": ["constants"], "iterations": 5, "horizon": [5], "batch": 2}
    tables["stages"] = [{"name": "a", **stage}, {"name": "b", "method": "gauss_newton", **stage}]
    tables["constants"] = {"bending": {"tensors": ["bend_twist.EI1"]}}
    tables["markers"] = {"points": [{"node": 3}, {"edge": 7, "at": 0.25}]}
    found = _flat(Config.model_validate(tables))
    assert found["markers.points.0.node"] == 3 and found["markers.points.1.at"] == 0.25
    assert found["stages.a.clip"] == 1.0 and found["stages.b.batch"] == 2
    assert not [key for key in found if key.startswith(("stages.b.rates", "stages.b.decay", "stages.b.clip"))]
