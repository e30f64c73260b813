"""Modules that keep more than their parameters, and that do something else while they are trained."""

import dataclasses
import json

import pytest
import torch

from tests.training.beams import tables
from tests.training.faulty import Sinking
from tests.training.swinging import recordings
from torchdismech import Circle, InputError, Material, RobotBuilder, straight
from training.config import Config
from training.fitting import fit
from training.optimization import checkpoint
from training.optimization.loop import Trainer
from training.reports.evaluation import evaluate, trained_system
from training.reports.predictions import errors_of, predict_all
from training.splits import prepared_recordings

MODULE = """
import torch
class Running(torch.nn.Module):
    "Inputs over a running scale, of which some are dropped while it is trained."
    def __init__(self, columns: int, elements: int):
        super().__init__()
        self.register_buffer("scale", torch.full((columns,), 0.1))
        self.register_buffer("table", torch.ones(columns), persistent=False)
        self.layer = torch.nn.Linear(columns, elements)
        self.dropout = torch.nn.Dropout(0.5)
    def forward(self, inputs, time):
        if self.training:
            self.scale.lerp_(inputs.abs().mean((0, 1)), 0.5)
        return 1e-3 * self.dropout(self.layer(inputs / self.scale) * self.table)
"""


@pytest.fixture
def config(folder) -> Config:
    """Return a fit of a module that drives a beam, of two short stages."""
    (folder / "running.py").write_text(MODULE)
    stage = {"train": ["learned"], "iterations": 4, "horizon": [3], "batch": 2, "check_every": 4}
    stages = [{"name": name, "rates": {"learned": 0.1}, **stage} for name in ("one", "two")]
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": "train", "inputs": ["pull"]}
    drives = {"tip": {"sets": "force", "elements": [10, 11], "module": f"{folder}/running.py:Running"}}
    logging = {"shapes_at": [0.02], "save_every": 1}
    changed = tables(folder, data=data, drives=drives, stages=stages, logging=logging)
    return Config.model_validate({**changed, "constants": {}})


def test_run_that_goes_on_has_buffers_and_random_numbers_of_the_one_before(config, tmp_path):
    """Stop within the first stage and in the second; end with the bits of a run that nothing stopped."""
    whole = fit(config, tmp_path / "whole", allow_code=True)
    expected, _ = checkpoint.load(tmp_path / "whole", "last")
    assert "buffer/tip.scale" in expected
    assert "buffer/tip.table" not in expected
    fit(config, tmp_path / "cut", until=2, allow_code=True)
    for until in (6, None):
        torch.rand(3)  # another process would stand elsewhere, too
        resumed = fit(config, tmp_path / "cut", resume=True, until=until, allow_code=True)
    found, _ = checkpoint.load(tmp_path / "cut", "last")
    assert resumed.mean == whole.mean
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_best_weights_predict_as_they_did_when_they_were_found(config, tmp_path):
    """Load them in place of the last ones, with their buffers, and predict without chance."""
    fit(config, tmp_path / "run", allow_code=True)
    best = checkpoint.load(tmp_path / "run", "best")[1]["error"]
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["held_out"] == best
    system, _, _ = trained_system(tmp_path / "run", allow_code=True)
    held_out = prepared_recordings(config, "train")[0].split(config.data.held_out, config.seed)[1]
    assert errors_of(system, held_out, predict_all(system, held_out)).mean == best
    found = [evaluate(tmp_path / "run", allow_code=True)["model"].mean for _ in range(2)]
    assert found[0] == found[1]


class Mode(Sinking):
    """What writes down in which mode it predicts, and has a robot beside it."""

    def __init__(self, dt: float):
        super().__init__(dt, set())
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(5e-3), Material(1e6, 1000.0))
        self.robot = builder.finalize(compile=False)
        self.modes: set[tuple[bool, bool, bool]] = set()

    def predict(self, window, checkpoint_every=None):
        """Return what the class above does."""
        self.modes.add((torch.is_grad_enabled(), self.training, self.robot.training))
        return super().predict(window)


def test_systems_are_in_train_mode_in_batches_alone(tmp_path):
    """Leave the robot in a system in the mode that it was built in, and its buffers out of checkpoints."""
    stages = [{"name": "one", "train": ["learned"], "iterations": 2, "horizon": [4], "batch": 4}]
    tables = {"name": "mode", "physics": False, "data": {"path": "-"}, "robot": {"gripped": [0]}, "stages": stages}
    trained_on, held_out = recordings(4).split(0.25, 0)
    system = Mode(trained_on.dt)
    Trainer(Config.model_validate(tables), system, trained_on, held_out, tmp_path).run()
    assert system.modes == {(True, True, True), (False, False, True)}
    assert not system.training
    tensors, _ = checkpoint.load(tmp_path, "best")
    assert tensors.keys() == {"learned.speed", "buffer/system.height"}


class PartlyFrozen(Sinking):
    """What sinks by a speed that is known and one that is found."""

    def __init__(self, dt: float):
        super().__init__(dt, set())
        self.known = torch.nn.Parameter(torch.tensor(0.1, dtype=torch.float64), requires_grad=False)

    def group(self, name):
        """Return both as learned."""
        return {"speed": self.speed, "known": self.known} if name == "learned" else {}

    def predict(self, window, checkpoint_every=None):
        """Return what the class above does, and what the known speed adds."""
        found = super().predict(window)
        sunk = self.known * self.dt * torch.arange(1, window.frames - 1)[:, None, None]
        return dataclasses.replace(found, positions=found.positions - sunk)


def sinking(folder, system) -> Trainer:
    """Return a fit of two stages by Adam of what sinks."""
    stage = {"train": ["learned"], "iterations": 2, "horizon": [4], "batch": 4}
    stages = [{"name": name, **stage} for name in ("one", "two")]
    tables = {"name": "frozen", "physics": False, "data": {"path": "-"}, "robot": {"gripped": [0]}, "stages": stages}
    return Trainer(Config.model_validate(tables), system, *recordings(4).split(0.25, 0), folder)


def test_frozen_parameters_stay_as_they_are(tmp_path):
    """Train the others, in each stage and in a run that goes on; keep frozen ones in checkpoints."""
    system = PartlyFrozen(recordings(4).dt)
    sinking(tmp_path, system).run(until=3)
    assert system.speed.item() != 0 and system.known.item() == 0.1
    again = PartlyFrozen(system.dt)
    resumed = sinking(tmp_path, again)
    resumed.resume()
    resumed.run()
    assert resumed.progress.total == 4
    assert again.known.item() == float(checkpoint.load(tmp_path, "last")[0]["learned.known"]) == 0.1
    assert [p.requires_grad for p in again.group("learned").values()] == [True, False]


def test_stages_of_frozen_parameters_alone_are_refused(tmp_path):
    """Say that there is nothing to train, and what would be."""
    system = PartlyFrozen(recordings(4).dt)
    system.speed.requires_grad_(False)
    with pytest.raises(InputError, match="stage 'one' trains learned, whose parameters all are frozen: expected one"):
        sinking(tmp_path, system)
