"""Fits: what they find, how they stop and go on, what they write."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.training import board_tags, simulated
from torchdismech import InputError, compilation
from torchdismech.integrate.recorded import recording
from training.config import Config, load
from training.fitting import fit
from training.optimization import checkpoint
from training.reports.evaluation import evaluate
from training.reports.warnings_before import warning_of_undetermined_constants
from training.robots.systems import build
from training.splits import prepared_recordings

ROOT = Path(__file__).parents[2]


def tables(path, **changes) -> dict:
    """Return the tables of a short fit of two constants."""
    return {
        "name": "short",
        "data": {"path": str(path), "held_out": 0.3},
        "robot": {"gripped": simulated.GRIPPED},
        "simulation": {"force_tolerance": 1e-10, "relative_tolerance": 1e-10},
        "constants": {
            "bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]},
            "drag": {"tensors": ["Viscous.viscosity"]},
        },
        "stages": [
            {
                "name": "constants",
                "train": ["constants"],
                "iterations": 6,
                "horizon": [5, 8],
                "batch": 4,
                "rates": {"constants": 0.1},
                "check_every": 3,
            }
        ],
        "logging": {"save_every": 2, "shapes_at": [0.1, 0.3]},
        **changes,
    }


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """Return a file of simulated recordings."""
    return simulated.written(tmp_path_factory.mktemp("data") / "rod.npz")


def weights(folder: Path, name: str = "last") -> dict[str, torch.Tensor]:
    """Return the parameters in a checkpoint."""
    tensors, _ = checkpoint.load(folder, name)
    return {key: value for key, value in tensors.items() if not key.startswith("optimizer/")}


@pytest.mark.slow
def test_fit_recovers_hidden_constants(data, tmp_path):
    """Find bending stiffness and drag from rough guesses (5e-3 for 3e-3, 0.02 for 0.1)."""
    # 6 ms on 5e-3 N m^2 damp as the true 10 ms on 3e-3 do
    guess = {"gripped": simulated.GRIPPED, "drag": 0.02, "bending": 5e-3, "relaxation_time": 0.006}
    changed = tables(data, robot=guess, loss={"scale": 1e-4})
    changed["stages"][0] |= {"iterations": 25, "horizon": [15], "check_every": 5, "decay": 0.05}
    changed["stages"][0]["rates"] = {"constants": 0.2}
    errors = fit(Config.model_validate(changed), tmp_path / "run")
    found = weights(tmp_path / "run", "best")
    bending = 5e-3 * math.exp(found["constants.bending.log_factor"])
    drag = 0.02 * math.exp(found["constants.drag.log_factor"])
    # without noise the minimum is exact; what is left is how far 25 steps of Adam get
    assert bending == pytest.approx(3e-3, rel=0.02)
    assert drag == pytest.approx(0.1, rel=0.25)
    assert errors.mean < 1e-4


@pytest.mark.slow
def test_resumed_run_has_the_numbers_of_one_without_interruption(data, tmp_path):
    """Stop after batches that fall within, between and on checkpoints; end with the same numbers to rounding.

    The first steps after a stop are not recorded yet, and recorded ones add their gradients in another order
    (docs/training.md): the last bits differ, by 4e-15 of the error here, and grow a little with each batch of Adam.
    Another order of batches would show in the first digits.
    """
    config = Config.model_validate(tables(data))
    whole = fit(config, tmp_path / "whole")
    for until in (1, 3, 4):
        folder = tmp_path / f"until{until}"
        fit(config, folder, until=until)
        resumed = fit(load(folder / "config.json"), folder, resume=True)
        assert resumed.mean == pytest.approx(whole.mean, rel=1e-9)
        for name, value in weights(tmp_path / "whole").items():
            torch.testing.assert_close(weights(folder)[name], value, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.slow
def test_resumed_run_is_compiled_at_the_same_batch(data, tmp_path, monkeypatch):
    """Keep in checkpoints what was evaluated and what is compiled."""
    config = Config.model_validate(tables(data))
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)
    monkeypatch.setattr(recording, "MAX_NUMBERS", 0)  # steps that are recorded are not compiled
    fit(config, tmp_path / "eager")
    counts = {row[0]: row[3] for row in checkpoint.load(tmp_path / "eager", "last")[1]["evaluations"]}
    cost = build(config, prepared_recordings(config, config.data.train)[0], "cpu").model.compilation.cost
    monkeypatch.setattr(compilation, "THRESHOLD", 0.6 * counts[4] * cost.of(4, torch.device("cpu")))
    fit(config, tmp_path / "whole")
    evaluated = checkpoint.load(tmp_path / "whole", "last")[1]["evaluations"]
    assert [row[4] for row in evaluated if row[0] == 4] == [True]
    for until in (1, 5):
        fit(config, tmp_path / f"until{until}", until=until)
        fit(config, tmp_path / f"until{until}", resume=True)
        assert checkpoint.load(tmp_path / f"until{until}", "last")[1]["evaluations"] == evaluated


@pytest.mark.slow
def test_event_file_has_what_a_run_is_judged_by(data, tmp_path):
    """Find the named tags, with finite values, and figures, a mesh, hparams and the config."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    changed = tables(data, terms={"extra": {"kind": "force", "network": "MessagePassingForce"}})
    both = {"train": ["constants", "learned"], "iterations": 2, "horizon": [5], "batch": 2}
    changed["stages"].append({"name": "all", **both})
    folder = tmp_path / "run"
    fit(Config.model_validate(changed), folder)
    evaluate(folder)
    scalars, others, lines = {}, set(), set()
    for file in folder.rglob("events.out.tfevents.*"):
        events = EventAccumulator(str(file), size_guidance={"scalars": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            scalars.setdefault(tag, []).extend(e.value for e in events.Scalars(tag))
            lines |= {file.parent.name} if tag == "held_out/error" else set()
        if file.parent == folder and "held_out/shapes" in events.Tags()["images"]:
            assert events.Images("held_out/shapes")[0].step == 0  # from the first look on
            assert events.Images("held_out/movie")[0].encoded_image_string.startswith(b"GIF8")
        others |= {*events.Tags()["images"], *events.Tags()["tensors"]}
    wanted = {
        "train/loss", "train/horizon", "train/stage", "train/skipped_batches", "newton/iterations",
        "newton/unconverged_rows", "speed/robot_steps_per_second", "gradient/constants", "gradient/learned",
        "rate/constants", "rate/learned", "physics/bending", "physics/drag", "held_out/error", "held_out/error_at_0.1s",
        "held_out/failed", "train/error", "learned/force_over_elastic", "eval/error", "eval/error_at_0.1s",
        "eval/curve", "final/eval/error", "final/held_out/error",
    }  # fmt: skip
    assert wanted <= scalars.keys(), wanted - scalars.keys()
    assert not board_tags.unlike(board_tags.written(folder))[0]
    assert {"run", "trained on", "baseline stay", "baseline follow"} == lines  # in one chart
    assert not any(tag.endswith(("_at_1s", "_at_5s")) for tag in scalars)  # recordings are shorter than that
    assert all(math.isfinite(v) for values in scalars.values() for v in values)
    assert {"held_out/error_over_horizon", "held_out/shapes", "held_out/movie"} <= others
    assert {"eval/error_over_horizon", "eval/shapes", "certainty/text_summary"} <= others
    assert {"config/text_summary", "data/text_summary"} <= others
    assert any(tag.startswith("eval/trajectory") for tag in others)
    assert any(tag.startswith("held_out/trajectory") for tag in others)
    for name in ("eval.json", "eval.csv", "eval.png", "metrics.json", "config.json"):
        assert (folder / name).stat().st_size > 0
    assert json.loads((folder / "eval.json").read_text())["model"]["failed"] == 0


@pytest.mark.slow
def test_two_processes_fit_as_one_does(data, tmp_path):
    """Compare weights and held-out error of one and of two processes."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps(tables(data, noise={"position": 1e-3, "velocity": 0.01})))
    found = {}
    for count in (1, 2):
        folder = tmp_path / f"run{count}"
        launch(count, "-m", "training.fit", str(config), "--out", str(folder))
        found[count] = (weights(folder), json.loads((folder / "metrics.json").read_text())["held_out"])
    for name, value in found[1][0].items():
        # sums in another order, carried through six steps of Adam and Newton solves to 1e-10
        assert torch.allclose(found[2][0][name], value, rtol=0, atol=1e-8), name
    assert found[1][1] == pytest.approx(found[2][1], abs=1e-9)


@pytest.mark.gpu
def test_fit_on_a_gpu(data, tmp_path):
    """Give the weights of a fit on the CPU."""
    pytest.importorskip("tensorboard")  # what a machine with a GPU may lack: fits write to it
    found = []
    for device in ("cpu", "cuda"):
        fit(Config.model_validate(tables(data, device=device)), tmp_path / device)
        found.append(weights(tmp_path / device))
    for name, value in found[0].items():
        # other sums in other orders, through six steps of Adam and Newton solves to 1e-10
        assert torch.allclose(found[1][name], value, rtol=0, atol=1e-7), name


def test_missing_device_is_refused(data, tmp_path):
    """Say so where a config asks for CUDA and there is none."""
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(InputError, match="CUDA"):
        fit(Config.model_validate(tables(data, device="cuda")), tmp_path / "run")


def launch(count: int, *command: str) -> str:
    """Run a command with torchrun and return what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count)]
    done = subprocess.run([*torchrun, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-30000:]
    return done.stdout


def test_existing_run_is_not_overwritten(data, tmp_path):
    """Refuse a folder that holds a run."""
    config = Config.model_validate(tables(data))
    fit(config, tmp_path, until=0)
    with pytest.raises(InputError, match="--resume"):
        fit(config, tmp_path)


def test_undetermined_constants_are_warned_of(data):
    """Say so when mass and stiffness are trained together, and only then."""
    both = {"mass": {"tensors": ["mass"]}, "bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]}}
    assert "ratio" in str(warning_of_undetermined_constants(Config.model_validate(tables(data, constants=both))))
    assert warning_of_undetermined_constants(Config.model_validate(tables(data))) is None


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("robot.bendign=1", "robot.bendign"),
        ("robot.bending=-1", "robot.bending"),
        ("stages.0.train=['learned']", "learned"),
        ("stages.other.batch=3", "'other' is not in the list"),
        ("constants.bending.kind='shift'", "constants.bending"),
        ("physics=false", "leave them out"),
        ("name", "KEY=VALUE"),
        ("robot.bending=inf", "robot.bending: expected a finite number, got inf"),
        ("robot.bending=1e300", "robot.bending"),
        ("simulation.force_tolerance=1e300", "simulation.force_tolerance"),
        ("seed=99999999999999999999", "seed"),
        ("stages.0.iterations=1000000000000000000", "stages.0.iterations"),
        ("stages.0.batch=true", "stages.0.batch: expected a whole number, got True"),
        ("stages.0.name=../../x", "names files"),
        ("name=/tmp/x", "names files"),
        ("data.eval=config", "a file of the run itself"),
        ("data.rules={spikes=1}", "data.rules: Rules has no 'spikes'; it takes: nodes"),
        ("data.options={path='x'}", "data.options"),
        ("simulation.integrator='euler'", "simulation.integrator: expected 'implicit_euler'"),
    ],
)
def test_wrong_settings_are_named(data, tmp_path, setting, message):
    """Refuse a wrong field by its name."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(tables(data)))
    with pytest.raises(InputError, match=message):
        load(path, [setting])


def test_settings_reach_tables_that_a_run_left_out(data, tmp_path):
    """Set fields of tables for which the config of a run says null; a scene's are refused by name."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**tables(data), "simulation": None}))
    assert load(path, ["simulation.compile=false"]).simulation.compile is False
    path.write_text(json.dumps({**tables(data), "robot": {"scene": "arm.toml"}, "simulation": None}))
    with pytest.raises(InputError, match=r"change that by robot\.overrides"):
        load(path, ["simulation.compile=false"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"robot": {"gripped": [0, 9]}}, "gripped"),
        ({"robot": {"gripped": list(range(7))}}, "nothing to predict"),
        ({"constants": {"a": {"tensors": ["bend_twist.EI9"]}}}, "EI9"),
        ({"terms": {"a": {"kind": "force", "network": "Nothing"}}}, "terms.a.network"),
        ({"terms": {"a": {"kind": "force", "network": "DragLaw", "options": {"sped": 1}}}}, "terms.a.options.*'sped'"),
        ({"terms": {"a": {"kind": "force", "network": "DragLaw", "options": {"speed": "1"}}}}, "speed: .*number"),
        (
            {"terms": {"a": {"kind": "force", "network": "DragLaw", "options": {"hidden": [0]}}}},
            "hidden.0: .*equal to 1",
        ),
        ({"terms": {"a": {"kind": "force", "network": "DragLaw", "strain": "stretch"}}}, "terms.a.strain"),
        ({"terms": {"a": {"kind": "energy", "network": "ConvexEnergy", "strain": "stretch"}}}, "stretch has 1, got 3"),
        (
            {"terms": {"a": {"kind": "energy", "network": "ConvexEnergy", "options": {"size": [1, 2]}}}},
            "size: expected",
        ),
        ({"constants": {"a": {"tensors": ["Viscous.viscosity"], "per": "element"}}}, "one number for all elements"),
    ],
)
def test_configs_that_do_not_fit_the_data_are_named(data, tmp_path, changes, message):
    """Refuse what only shows with the data."""
    with pytest.raises(InputError, match=message):
        fit(Config.model_validate(tables(data, **changes)), tmp_path / "run")
