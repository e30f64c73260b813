"""Fits of robots from scenes: what they store, how they go on, and how certain they are."""

import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.training.beams import DT, SCENE, tables
from torchdismech import InputError, rollout, trainable, unroll
from torchdismech.environments import Environment, Force, Task, node_positions
from torchdismech.io.scene import load_scene
from torchdismech.system.processes import Processes
from training.config import Config
from training.data import Recordings
from training.fitting import fit
from training.optimization import certainty, checkpoint
from training.optimization.certainty import certainty_of
from training.optimization.loop import Trainer
from training.reports.evaluation import fitted_system, trained_system
from training.reports.predictions import errors_of, predict_all
from training.robots.scenes import SceneSystem
from training.robots.systems import build
from training.splits import prepared_recordings


@pytest.mark.slow
def test_fitted_start_and_prior_go_into_the_checkpoint_and_on(folder):
    """Fit velocities that nobody measured; resume to the bits of a run that nothing stopped."""
    changed = tables(folder, start={"velocity": "fitted", "frames": 2, "rounds": 1}, markers={"nodes": [2, 3]})
    positions = np.load(folder / "beam.npz")["train"][:, :, 2:]
    positions[0, 2, 0] = np.nan
    np.savez(folder / "beam.npz", train=positions, dt=DT)
    changed["constants"]["bending"] |= {"spread": 0.3}
    changed["stages"][0] |= {"train": ["constants", "starts"]}
    config = Config.model_validate(changed)
    whole = fit(config, folder / "whole")
    fit(config, folder / "run", until=1)
    assert fit(config, folder / "run", resume=True).mean == whole.mean
    tensors = checkpoint.load(folder / "run", "last")[0]
    assert tensors["starts.fitted"].shape == (2, 6)
    assert bool((tensors["starts.fitted"] != 0).any())
    assert bool((tensors["starts.held_out"] != 0).any())
    facts = json.loads((folder / "run" / "certainty.json").read_text())
    assert set(facts["constants"]) == {"bending"}


def test_how_large_fitted_starts_are_is_shown(folder):
    """Fit velocities, then the constants alone: TensorBoard shows the size of starts while they are fitted."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    changed = tables(folder, start={"velocity": "fitted", "frames": 2, "rounds": 1})
    stage = changed["stages"][0] | {"iterations": 2}
    changed["stages"] = [stage | {"name": "starts", "train": ["starts"]}, stage | {"name": "constants"}]
    fit(Config.model_validate(changed), folder / "run")
    shown = EventAccumulator(str(next((folder / "run").glob("events*")))).Reload().Scalars("starts/size")
    fitted = checkpoint.load(folder / "run", "after-starts")[0]["starts.fitted"]
    assert [event.step for event in shown] == [1, 2]
    assert shown[-1].value == pytest.approx(float(fitted.square().mean().sqrt()), rel=1e-6)


def test_fitted_robots_are_used_elsewhere(folder):
    """Fit without an evaluation split: the robot of the run moves as one that is built with the fitted constants."""
    run = str(folder / "run")  # folders may be given as text, too
    fit(Config.model_validate(tables(folder)), run)
    system = fitted_system(run, weights="after-one")
    own = load_scene(folder / "beam.toml").build().model
    guess = trainable.value(own, "bend_twist.EI1")
    for name in ("bend_twist.EI1", "bend_twist.EI2"):
        module, attribute = trainable.constants(own)[name]
        getattr(module, attribute).copy_(trainable.value(system.model, name))
    assert not torch.allclose(trainable.value(own, "bend_twist.EI1"), guess, rtol=1e-3)
    runs = [rollout(model, model.initial_state(), system.integrator, 5) for model in (system.model, own)]
    # the same steps, but for the rounding of what is a product in one and a number in the other
    assert torch.allclose(runs[0].positions, runs[1].positions, rtol=0, atol=1e-12)
    task = Task([Force([11], -0.01, 0.01)], [node_positions([3])], lambda model, step: step.after.positions[:, 3, 2])
    environment = Environment(system.model, system.integrator, task, batch=2)
    environment.reset()
    assert environment.step(torch.zeros(2, 1)).status.tolist() == [0, 0]
    with pytest.raises(InputError, match="no evaluation split.* What was fitted can be used without: fitted_system"):
        trained_system(run)


def test_systems_of_users_are_named_in_the_config(folder):
    """Fit a class of the user's that knows no robot, without tables for one."""
    (folder / "mine.py").write_text(
        "import torch\n"
        "from training.system import Prediction, System\n"
        "class Sinking(System):\n"
        "    given, measured, anywhere = 1, False, False\n"
        "    def __init__(self, config, recordings, speed: float = 0.0):\n"
        "        super().__init__()\n"
        "        self.dt = recordings.dt\n"
        "        self.speed = torch.nn.Parameter(torch.tensor(speed, dtype=torch.float64))\n"
        "    def group(self, name):\n"
        "        return {'speed': self.speed} if name == 'constants' else {}\n"
        "    def predict(self, window, checkpoint_every=None):\n"
        "        time = self.dt * torch.arange(1, window.frames, dtype=torch.float64)\n"
        "        down = torch.tensor([0.0, 0.0, -1.0], dtype=torch.float64)\n"
        "        positions = window.positions[:, :1] + self.speed * time[:, None, None] * down\n"
        "        return Prediction(positions, torch.zeros(len(positions), dtype=torch.long), 0.0)\n"
    )
    mine = tables(folder, system=f"{folder}/mine.py:Sinking", options={"speed": 0.1})
    del mine["robot"], mine["constants"]
    config = Config.model_validate(mine)
    with pytest.raises(InputError, match="pass --allow-code"):
        fit(config, folder / "run")
    assert np.isfinite(fit(config, folder / "run", allow_code=True).mean)
    other = Config.model_validate(mine | {"system": f"{folder}/mine.py:Prediction"})
    with pytest.raises(InputError, match="expected a class derived from training.system.System"):
        fit(other, folder / "run2", allow_code=True)


def test_another_scene_is_told_where_a_run_goes_on(folder):
    """Refuse to resume with a scene that was changed meanwhile."""
    config = Config.model_validate(tables(folder))
    fit(config, folder / "run", until=0)
    (folder / "beam.toml").write_text(SCENE.replace("1000.0", "900.0"))
    with pytest.raises(InputError, match=r"another one: the file of robot.scene is another one; .*--force-resume"):
        fit(config, folder / "run", resume=True)


def test_one_table_is_fitted(folder, capsys):
    """Fit a constant to a single .csv, which has no splits and of which nothing is held out; say what that means."""
    positions = np.load(folder / "beam.npz")["train"][1]
    header = "time," + ",".join(f"{axis}{k}" for k in range(positions.shape[1]) for axis in "xyz")
    rows = np.column_stack([DT * np.arange(len(positions)), positions.reshape(len(positions), -1)])
    np.savetxt(folder / "beam.csv", rows, fmt="%.17g", delimiter=",", header=header, comments="")
    data = {"path": str(folder / "beam.csv"), "held_out": 0.0}
    config = Config.model_validate(tables(folder, data=data))
    assert config.data.train is None and config.data.eval is None
    fit(config, folder / "run")
    said = capsys.readouterr().out
    assert "no recording is held out" in said and "1 training recordings" in said
    with pytest.raises(ValidationError, match=r"beam\.csv has no splits: leave train and eval out"):
        Config.model_validate(tables(folder, data={**data, "train": "train"}))


def test_more_processes_than_recordings_predict_them(folder):
    """Share one recording between two processes: the one without any sums with the other, and has all results."""
    config = Config.model_validate(tables(folder))
    recordings = prepared_recordings(config, "train")[0].subset(1)
    system, given = build(config, recordings), []

    class First(Processes):
        def summed(self, tensor):
            given.append(tensor.clone())
            return tensor

    class Second(Processes):
        def summed(self, tensor):
            other = given.pop(0)
            assert tensor.shape == other.shape and tensor.dtype == other.dtype
            return tensor + other

    predict_all(system, recordings, First(1, 2))  # process 1 of 2 has the recording, process 0 has none
    found, alone = predict_all(system, recordings, Second(0, 2)), predict_all(system, recordings)
    assert not given and torch.equal(found.positions, alone.positions) and bool(found.good.all())
    assert found.nodes is not None and torch.equal(found.nodes, alone.nodes)


def test_tables_of_unequal_length_are_fitted(folder):
    """Fit to a folder of tables, without splits; what comes after the end of a short one moves nothing."""
    positions = np.load(folder / "beam.npz")["train"]
    header = "time," + ",".join(f"{axis}{k}" for k in range(positions.shape[2]) for axis in "xyz")
    (folder / "tables").mkdir()
    for k, frames in enumerate((6, 4, 6)):
        rows = np.column_stack([DT * np.arange(frames), positions[k, :frames].reshape(frames, -1)])
        name = folder / "tables" / f"{k}.csv"
        np.savetxt(name, rows, fmt="%.17g", delimiter=",", header=header, comments="")
    data = {"path": str(folder / "tables"), "held_out": 0.0, "options": {"pad": True}}
    config = Config.model_validate(tables(folder, data=data))
    assert config.data.train is None and config.data.eval is None
    recordings, told = prepared_recordings(config, config.data.train)
    assert "1.csv: 8 positions (marker 0, 1, 2, 3) not seen" in " ".join(told)
    with pytest.raises(InputError, match="6 frames, but 1.csv has 4"):
        prepared_recordings(config.model_copy(update={"data": config.data.model_copy(update={"options": {}})}), None)
    system = build(config, recordings)
    errors = errors_of(system, recordings, predict_all(system, recordings))
    positions[1, 4:] = 1e3
    shorter = Recordings(torch.from_numpy(positions), DT, ("a", "b", "c"), recordings.valid)
    assert torch.equal(errors.recordings, errors_of(system, shorter, predict_all(system, shorter)).recordings)
    (folder / "tables" / "eval").mkdir()
    named = Config.model_validate(tables(folder, data={**data, "eval": "eval"}))
    assert (named.data.train, named.data.eval) == ("train", "eval")  # somebody has splits in mind


def test_the_config_on_the_page_is_valid():
    """Accept the config of docs/training.md."""
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text(encoding="utf-8")
    for block in re.findall(r"```toml\n(.*?)```", text, flags=re.DOTALL):
        if "[[stages]]" in block:
            assert Config.model_validate(tomllib.loads(block)).stages


def test_error_bars_of_too_many_numbers_are_not_left_out_in_silence(folder, monkeypatch, capsys):
    """Say that there are none, and why."""
    monkeypatch.setattr(certainty, "MOST_CONSTANTS", 1)
    per_spring = {"bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"], "per": "element"}}
    config = Config.model_validate(tables(folder, constants=per_spring))
    recordings, _ = prepared_recordings(config, "train")
    assert certainty_of(Trainer(config, build(config, recordings), recordings, recordings, folder)) is None
    assert "no error bars: 2 numbers are trained, they are for at most 1" in capsys.readouterr().out


def test_a_step_to_the_optimum_leads_nearer_to_it(folder, capsys):
    """Find how far the stiffness of a falling beam is from the truth; go there, and hardly anything is left to go."""
    setup = load_scene(folder / "beam.toml").build()
    run = unroll(setup.model, setup.model.initial_state(2), setup.integrator, 2 * 11)
    positions = run.positions[::2].transpose(0, 1).detach()
    positions += 1e-6 * torch.randn(positions.shape, generator=torch.Generator().manual_seed(0), dtype=positions.dtype)
    np.savez(folder / "beam.npz", train=positions.numpy(), dt=DT)
    softer = {"robot": {"scene": str(folder / "beam.toml"), "overrides": {"rod.youngs": 3.6e6}}}
    config = Config.model_validate(tables(folder, **softer, loss={"scale": 1e-4}))
    recordings, _ = prepared_recordings(config, "train")
    system = build(config, recordings)
    assert isinstance(system, SceneSystem)
    trainer = Trainer(config, system, recordings, recordings, folder)
    before = certainty_of(trainer)
    assert "error bars:   0%" in capsys.readouterr().err  # a progress bar, as they may take longer than the fit
    assert before is not None and "it has not converged" in before.as_text()
    # a tenth too soft: the step is right to first order, in the logarithm
    assert before.steps[0] * before.spreads[0] / before.values[0] == pytest.approx(-np.log(0.9), rel=0.1)
    system.entries["bending"].parameter.data += before.steps[0] * before.spreads[0] / before.values[0]
    after = certainty_of(trainer)
    assert after is not None and after.distance < 0.1 * before.distance
