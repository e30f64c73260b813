"""Robots from scenes: where markers are, what drives them, how they start, and what is refused."""

import dataclasses
import json
import re
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests import scenes
from torchdismech import InputError, unroll
from torchdismech.io.scene import load_scene
from training import certainty, checkpoint
from training.certainty import certainty_of
from training.config import Config
from training.config_scene import Markers
from training.data import gather, read
from training.fitting import fit, recordings_of
from training.loop import Trainer
from training.markers import MarkerTable
from training.scenes import SceneSystem
from training.systems import build, unsettled

DT = 0.01
SCENE = (
    scenes.rod(3, radius=4e-3, youngs=4e6)
    + scenes.CLAMP
    + """
[environment]
gravity = [0.0, 0.0, -9.81]
viscosity = 0.05
[simulation]
dt = 5e-3
duration = 0.5
"""
)


def tables(folder: Path, **changes) -> dict:
    """Return the tables of a short fit of a beam to recordings in a folder."""
    return {
        "name": "beam",
        "data": {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None},
        "robot": {"scene": str(folder / "beam.toml")},
        "constants": {"bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]}},
        "stages": [{"name": "one", "train": ["constants"], "iterations": 2, "horizon": [3], "batch": 2}],
        "logging": {"shapes_at": [0.02]},
        **changes,
    }


@pytest.fixture
def folder(tmp_path) -> Path:
    """Return a folder with a scene of a beam and three recordings of it that hold still, bend up and bend down."""
    (tmp_path / "beam.toml").write_text(SCENE)
    rest = load_scene(tmp_path / "beam.toml").build().model.nodes.numpy()
    positions = np.tile(rest, (3, 6, 1, 1))
    positions[1:, :, 3, 2] += np.array([[[0.02]], [[-0.02]]])[..., 0] * np.arange(6) / 5
    pull = np.stack([np.zeros(6), np.ones(6), -np.ones(6)])
    np.savez(tmp_path / "beam.npz", train=positions, train_pull=pull, dt=DT)
    return tmp_path


def system_of(folder: Path, **changes) -> SceneSystem:
    """Return the system of a config, and check that it is one of a scene."""
    config = Config.model_validate(tables(folder, **changes))
    system = build(config, recordings_of(config, "train")[0])
    assert isinstance(system, SceneSystem)
    return system


def window_of(folder: Path, frames: int = 3, **options):
    """Return all recordings from their start on, some frames of them."""
    recordings = read(folder / "beam.npz", "train", **options)
    which = torch.arange(len(recordings))
    return gather(recordings, which, torch.zeros_like(which), frames)


def test_markers_sit_where_they_are_said_to(folder):
    """Place markers at a node, on an edge beside it, at a clamp; turn and shift the frame of the recordings."""
    model = load_scene(folder / "beam.toml").build().model
    points = [
        {"node": 2},
        {"edge": 2, "at": 0.25},
        {"edge": 2, "at": 1.0, "offset": [0.01, 0.02, 0.0]},
        {"clamp": 0, "offset": [0, 0, 0.05]},
    ]
    quarter = {"position": [1.0, 0.0, 0.0], "rotation": [0.0, 0.0, np.pi / 2]}
    table = MarkerTable(Markers.model_validate({"points": points, **quarter}), model)
    state = model.initial_state(1)
    from torchdismech import Control

    found = table.places(state.positions, table.offsets(state, Control())["offset"])[0]
    d1 = model.directors[2]
    expected = torch.tensor([[0.2, 0, 0], [0.225, 0, 0], [0.31, 0, 0], [0.05, 0, 0.05]], dtype=torch.float64)
    expected[2] += 0.02 * d1
    turned = torch.stack([1 - expected[:, 1], expected[:, 0], expected[:, 2]], dim=1)
    assert torch.allclose(found, turned, atol=1e-12)  # rounding
    assert torch.allclose(table.in_scene(found), expected, atol=1e-12)


def test_marker_above_a_triangle_follows_its_normal():
    """Stand off a triangle by the height, on the side that it is wound to."""
    model = load_scene("studies/seen_in_part/scene.toml").build().model
    point = {"triangle": 0, "weights": [0.5, 0.5, 0.0], "offset": [0, 0, 0.01]}
    table = MarkerTable(Markers.model_validate({"points": [point]}), model)
    from torchdismech import Control

    state = model.initial_state(1)
    found = table.places(state.positions, table.offsets(state, Control())["offset"])[0, 0]
    assert torch.allclose(found, torch.tensor([0.025, 0.0, 0.01], dtype=torch.float64), atol=1e-12)  # rounding


def test_inputs_drive_the_robot_by_a_linear_map(folder):
    """Pull the tip up and down by a force that a column tells, and pass gradients to the gain."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    drives = {"tip": {"sets": "force", "elements": [11], "gain": 2e-4}}
    constants = {"gain": {"tensors": ["tip.gain"], "kind": "shift", "unit": 0.01}}
    start = {"state": "settled"}
    system = system_of(folder, data=data, drives=drives, constants=constants, start=start)
    tip = system.predict(window_of(folder, inputs=("pull",))).positions[:, -1, 3, 2]
    assert tip[1] > tip[0] > tip[2]
    up, down = float((tip[1] - tip[0]).detach()), float((tip[0] - tip[2]).detach())
    assert up == pytest.approx(down, rel=0.02)  # 0.2 mN bend it by less than a hundredth of its length
    (slope,) = torch.autograd.grad(tip[1], list(system.group("constants").values()))
    (parameter,) = system.group("constants").values()
    step = 1e-4
    with torch.no_grad():
        ends = []
        for sign in (1, -1):
            parameter.fill_(sign * step)
            ends.append(system.predict(window_of(folder, inputs=("pull",))).positions[1, -1, 3, 2])
    # central differences: their error is that of Newton's method over the step
    assert float(slope) == pytest.approx(float(ends[0] - ends[1]) / (2 * step), rel=1e-3)


def test_time_is_known_to_the_robot(folder):
    """Let the scene's motion begin when the recording's clock says so."""
    moves = "[[move]]\nnodes = [0, 1]\nvelocity = [0.0, 0.0, 1.0]\nstart = 0.03\n"
    (folder / "beam.toml").write_text(SCENE + moves)
    system = system_of(folder)
    window = window_of(folder, frames=3)
    early = system.predict(window).positions[0, -1, 0, 2]
    late = system.predict(window.replace(time=window.time + 0.05)).positions[0, -1, 0, 2]
    assert float(early.detach()) == 0
    assert float(late.detach()) == pytest.approx(0.02 + 0.02, abs=1e-9)  # moved since 0.03 s, at 0.07 s


def test_settled_start_is_the_equilibrium(folder):
    """Stay where the beam hangs, where it starts there; fall where it starts straight."""
    hanging = system_of(folder, start={"state": "settled"}).predict(window_of(folder)).positions
    falling = system_of(folder).predict(window_of(folder)).positions
    moved = (hanging[0, -1] - hanging[0, 0]).detach().abs().max(), (falling[0, -1] - falling[0, 0]).detach().abs().max()
    assert float(moved[0]) < 1e-6  # the step's tolerance [m]
    assert float(moved[1]) > 1e-4


def test_windows_that_begin_settled_while_the_robot_is_driven_are_warned_of(folder):
    """Say so where inputs change and nothing is left out; not of whole recordings, warm-ups and inputs that stay."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}

    def warning(recordings, **start):
        stages = [{"name": "one", "train": ["constants"], "iterations": 1, "horizon": [start.pop("horizon", 3)]}]
        config = Config.model_validate(tables(folder, data=data, start={"state": "settled", **start}, stages=stages))
        return unsettled(config, recordings)

    still = read(folder / "beam.npz", "train", inputs=("pull",))
    moving = dataclasses.replace(still, inputs=still.inputs + torch.arange(6.0, dtype=torch.float64)[:, None])
    said = warning(moving)
    assert said is not None and "begin anywhere" in said and "horizon = [5]" in said
    assert warning(still) is None and warning(moving, warm_up=2) is None and warning(moving, horizon=5) is None
    assert warning(moving, state="rest") is None


def test_measured_start_has_the_velocity_of_two_frames(folder):
    """Begin at the second frame, at the velocity since the first."""
    system = system_of(folder, start={"state": "measured"}, markers={"nodes": [0, 1, 2, 3]})
    state, _ = system.start(window_of(folder))
    assert float(state.positions[1, 3, 2]) == pytest.approx(0.004)
    assert float(state.node_velocities[1, 3, 2]) == pytest.approx(0.4)
    assert float(state.time[0]) == pytest.approx(DT)


def test_clamps_and_frames_can_be_trained(folder):
    """Move the robot with its clamp, and the markers with their frame, with gradients."""
    constants = {
        "base": {"tensors": ["clamp0.position"], "kind": "shift", "unit": 0.01, "per": "element"},
        "frame": {"tensors": ["markers.rotation"], "kind": "shift", "unit": 0.1, "per": "element"},
        "payload": {"tensors": ["added_mass"], "kind": "shift", "unit": 1e-3, "per": "element", "elements": [3]},
    }
    system = system_of(folder, constants=constants, start={"state": "settled"})
    parameters = system.group("constants")
    before = system.predict(window_of(folder)).positions
    gradients = torch.autograd.grad(before[0, -1, 3].sum(), list(parameters.values()), allow_unused=True)
    assert all(bool((g != 0).any()) for g in gradients)
    assert [float(g) for g in gradients[2]][:3] == [0, 0, 0]  # of the masses, only that of the tip is trained
    with torch.no_grad():
        parameters["base.shift"][2] = 1.0
    after = system.predict(window_of(folder)).positions
    assert torch.allclose(after[..., 2], before[..., 2] + 0.01, atol=1e-6)  # the step's tolerance [m]


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


REFUSED = {
    "marker outside": ({"markers": {"nodes": [0, 1, 2, 9]}}, r"markers.nodes.3.node: a marker outside.*0 to 3, got 9"),
    "edge outside": ({"markers": {"points": [{"edge": 3}]}}, r"markers.points.0.edge: .*expected 0 to 2, got 3"),
    "no triangles": (
        {"markers": {"points": [{"triangle": 0, "weights": [1, 0, 0]}]}},
        "triangle: .*the robot has none, got 0",
    ),
    "another number of markers": ({"markers": {"nodes": [2, 3]}}, "4 markers, and 2 are placed"),
    "no such column": ({"drives": {"a": {"sets": "force", "columns": ["p"]}}}, "drives.a.columns: .*'p'.*data.inputs"),
    "nothing of that name": ({"drives": {"a": {"sets": "Tendon.tension"}}}, "drives.a.sets: no 'Tendon.tension'"),
    "no such element": ({"drives": {"a": {"sets": "force", "elements": [99]}}}, "drives.a.elements: .*got 99"),
    "a prior too long": (
        {"constants": {"b": {"tensors": ["bend_twist.EI1"], "per": "element", "spread": [0.1] * 5}}},
        "constants.b.spread: expected one number or 2, .*got 5",
    ),
    "a mean of another sign": (
        {"constants": {"b": {"tensors": ["Viscous.viscosity"], "mean": -1.0, "spread": 0.1}}},
        "constants.b.mean: .*keeps it",
    ),
    "a static scene": (
        {"robot": {"scene": "SCENE", "overrides": {"simulation": {"integrator": "static"}}}},
        "simulation",
    ),
    "clamps that leave the robot": (
        {"constants": {"b": {"tensors": ["clamp0.position"], "kind": "shift", "unit": 1.0}}},
        'expected "settled"',
    ),
    "a step that is no part of a frame": (
        {"robot": {"scene": "SCENE", "overrides": {"simulation.dt": 4e-3, "simulation.duration": 0.4}}},
        "frames are 0.01 s apart, expected a whole part of that, got 0.004",
    ),
    "a start that is not seen": (
        {"start": {"state": "measured"}, "markers": {"points": [{"node": 0}, {"node": 1}, {"node": 2}, {"edge": 2}]}},
        "a marker at every node",
    ),
    "code": ({"drives": {"a": {"sets": "force", "module": "x.py:Net"}}}, "runs code from x.py:Net: pass --allow-code"),
}


@pytest.mark.parametrize(("changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_what_does_not_fit_the_robot_is_refused(folder, changes, message):
    """Name the field, what was expected and what came."""
    if changes.get("robot", {}).get("scene") == "SCENE":
        changes = {**changes, "robot": {**changes["robot"], "scene": str(folder / "beam.toml")}}
    with pytest.raises(InputError, match=message):
        system_of(folder, **changes)


def test_static_scene_is_refused(folder):
    """Say that recordings take time."""
    static = SCENE.replace("dt = 5e-3\nduration = 0.5", 'integrator = "static"')
    (folder / "beam.toml").write_text(static)
    with pytest.raises(InputError, match='"static" has no time, recordings have'):
        system_of(folder)


def test_scenes_that_say_how_robots_begin_are_refused(folder):
    """Say that the config does."""
    (folder / "beam.toml").write_text(SCENE + "\n[initial]\nvelocity = [0, 0, 1]\n")
    with pytest.raises(InputError, match=r"beam.toml: initial: the config says how robots begin \(start\)"):
        system_of(folder)


def test_columns_that_a_recording_lacks_are_named(folder):
    """Name the key that is not there, and inputs that end before the recording does."""
    with pytest.raises(
        InputError, match="no input 'push'; expected a key train_push or push; it has: train, train_pull"
    ):
        read(folder / "beam.npz", "train", inputs=("push",))
    data = dict(np.load(folder / "beam.npz"))
    np.savez(folder / "short.npz", **(data | {"train_pull": data["train_pull"][:, :4]}))
    with pytest.raises(InputError, match="train_pull: .*6 frames: inputs have to cover the recording; got the shape"):
        read(folder / "short.npz", "train", inputs=("pull",))
    rows = ["time,x0,y0,z0,p", "0,0,0,0,1", "0.1,0,0,0,", "0.2,0,0,0,3"]
    (folder / "a.csv").write_text("\n".join(rows))
    with pytest.raises(InputError, match="column 'p' has no number in frame 1; inputs have to cover"):
        read(folder / "a.csv", inputs=("p",))
    with pytest.raises(InputError, match="no column 'q'.*there are: time, x0, y0, z0, p"):
        read(folder / "a.csv", inputs=("q",))


def test_users_module_drives_and_is_trained(folder):
    """Call a module of the user's with inputs and time, and train its parameters as learned ones."""
    (folder / "net.py").write_text(
        "import torch\n"
        "class Net(torch.nn.Module):\n"
        "    def __init__(self, columns: int, elements: int, size: float = 1.0):\n"
        "        super().__init__()\n"
        "        self.layer = torch.nn.Linear(columns, elements, dtype=torch.float64)\n"
        "    def forward(self, inputs, time):\n"
        "        return self.layer(inputs) * time[..., None]\n"
    )
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    module = {"sets": "force", "elements": [10, 11], "module": f"{folder}/net.py:Net", "options": {"size": 2.0}}
    config = Config.model_validate(tables(folder, data=data, drives={"tip": module}))
    system = build(config, recordings_of(config, "train")[0], allow_code=True)
    positions = system.predict(window_of(folder, inputs=("pull",))).positions
    learned = system.group("learned")
    assert set(learned) == {"tip.layer.weight", "tip.layer.bias"}
    assert all(
        g.abs().max() > 0 for g in torch.autograd.grad(positions[:, -1, 3, 2].square().sum(), list(learned.values()))
    )


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


def test_gripped_nodes_move_as_recorded(folder):
    """Follow the markers at clamped nodes, and nobody else's; let them count in what does not move."""
    data = dict(np.load(folder / "beam.npz"))
    data["train"][:, :, :2, 1] += 0.01 * np.arange(6)[None, :, None]
    np.savez(folder / "beam.npz", **data)
    robot = {"scene": str(folder / "beam.toml"), "gripped": [0, 1]}
    system = system_of(folder, robot=robot, start={"state": "measured"})
    window = window_of(folder, frames=5)
    positions = system.predict(window).positions
    assert torch.allclose(positions[:, :, :2], window.positions[:, 2:, :2], atol=1e-12)  # rounding
    moved = window.positions.clone()
    moved[:, 2:, 2:] = 7.0
    assert torch.equal(system.predict(window.replace(positions=moved)).positions, positions)
    with pytest.raises(InputError, match="expected clamped nodes, got 2"):
        system_of(folder, robot=robot | {"gripped": [2]})


def test_another_scene_is_told_where_a_run_goes_on(folder):
    """Refuse to resume with a scene that was changed meanwhile."""
    config = Config.model_validate(tables(folder))
    fit(config, folder / "run", until=0)
    (folder / "beam.toml").write_text(SCENE.replace("1000.0", "900.0"))
    with pytest.raises(InputError, match=r"another one: the file of robot.scene is another one; .*--force-resume"):
        fit(config, folder / "run", resume=True)


def test_columns_drive_constants_of_the_model(folder):
    """Let a column thicken the fluid; gradients reach the map's constants."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    drives = {"fluid": {"sets": "Viscous.viscosity", "columns": ["pull"], "gain": 0.05}}
    constants = {"fluid": {"tensors": ["fluid.gain", "fluid.offset"], "kind": "shift", "unit": 0.01}}
    system = system_of(folder, data=data, drives=drives, constants=constants)
    window = window_of(folder, inputs=("pull",))  # inputs 0, 1, -1: viscosities 0.05, 0.1, 0
    fallen = -system.predict(window).positions[:, -1, 3, 2]
    assert fallen[2] > fallen[0] > fallen[1]
    (gradient,) = torch.autograd.grad(fallen.sum(), list(system.group("constants").values()))
    assert float(gradient) < 0  # in a thicker fluid all fall less far


def test_columns_drive_tendons_and_chambers(folder):
    """Pull a tendon above the beam, and blow up a chamber above it: one bends it up, the other down."""
    tendon = "[[tendon]]\nnodes = [1, 2, 3]\noffset = [0.0, 0.0, 0.01]\ntension = 0.1\n"
    chamber = "[[chamber]]\nnodes = [1, 2, 3]\noffset = [0.0, 0.0, 0.01]\narea = 1e-4\npressure = 10.0\n"
    (folder / "beam.toml").write_text(SCENE + tendon + chamber)
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    for sets, gain, sign in (("Tendons.tension", 0.1, 1), ("Chambers.pressure", 1e3, -1)):
        drives = {"air": {"sets": sets, "gain": gain}}
        constants = {"air": {"tensors": ["air.gain"], "kind": "shift", "unit": gain}}
        system = system_of(folder, data=data, drives=drives, constants=constants)
        tip = system.predict(window_of(folder, inputs=("pull",))).positions[:, -1, 3, 2]  # inputs 0, 1, -1
        assert float(sign * (tip[1] - tip[0]).detach()) > 1e-5
        (gradient,) = torch.autograd.grad(tip[1], list(system.group("constants").values()))
        assert sign * float(gradient) > 0


def test_offsets_of_tendons_are_trained_one_by_one(folder):
    """With per = "element" each coordinate of each point of a route has a number of its own."""
    scene = folder / "beam.toml"
    scene.write_text(SCENE + "[[tendon]]\nnodes = [1, 2, 3]\noffset = [0, 0, 0.01]\ntension = 0.1\n")
    constants = {"channels": {"tensors": ["Tendons.offset"], "kind": "shift", "unit": 1e-3, "per": "element"}}
    system = system_of(folder, constants=constants)
    (shift,) = system.group("constants").values()
    assert shift.shape == (3, 3)
    before = system.entries["channels"].value.clone()
    with torch.no_grad():
        shift[1, 2] = 2.0
    moved = (system.entries["channels"].value - before)[0]
    assert moved[1, 2] == pytest.approx(2e-3, rel=1e-12) and moved.abs().sum() == pytest.approx(2e-3, rel=1e-12)


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
    recordings, _ = recordings_of(config, "train")
    assert certainty_of(Trainer(config, build(config, recordings), recordings, recordings, folder)) is None
    assert "no error bars: 2 numbers are trained, they are for at most 1" in capsys.readouterr().out


def test_a_step_to_the_optimum_leads_nearer_to_it(folder):
    """Find how far the stiffness of a falling beam is from the truth; go there, and hardly anything is left to go."""
    setup = load_scene(folder / "beam.toml").build()
    run = unroll(setup.model, setup.model.initial_state(2), setup.integrator, 2 * 11)
    positions = run.positions[::2].transpose(0, 1).detach()
    positions += 1e-6 * torch.randn(positions.shape, generator=torch.Generator().manual_seed(0), dtype=positions.dtype)
    np.savez(folder / "beam.npz", train=positions.numpy(), dt=DT)
    softer = {"robot": {"scene": str(folder / "beam.toml"), "overrides": {"rod.youngs": 3.6e6}}}
    config = Config.model_validate(tables(folder, **softer, loss={"scale": 1e-4}))
    recordings, _ = recordings_of(config, "train")
    system = build(config, recordings)
    assert isinstance(system, SceneSystem)
    trainer = Trainer(config, system, recordings, recordings, folder)
    before = certainty_of(trainer)
    assert before is not None and "it has not converged" in before.told()
    # a tenth too soft: the step is right to first order, in the logarithm
    assert before.steps[0] * before.spreads[0] / before.values[0] == pytest.approx(-np.log(0.9), rel=0.1)
    system.entries["bending"].parameter.data += before.steps[0] * before.spreads[0] / before.values[0]
    after = certainty_of(trainer)
    assert after is not None and after.distance < 0.1 * before.distance
