"""Robots from scenes: where markers are, how robots start, which constants are trained, what is refused."""

import dataclasses

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from tests.training.beams import DT, SCENE, system_of, tables, window_of
from torchdismech import InputError
from torchdismech.io.scene import load_scene
from training.config import Config
from training.config.scene import Markers
from training.data import read
from training.fitting import fit
from training.optimization.fingerprints import fingerprints
from training.reports.warnings_before import warning_of_unsettled_starts
from training.robots.markers import MarkerTable
from training.splits import prepared_recordings


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
        return warning_of_unsettled_starts(config, recordings)

    still = read(folder / "beam.npz", "train", inputs=("pull",))
    moving = dataclasses.replace(still, inputs=still.inputs + torch.arange(6.0, dtype=torch.float64)[:, None])
    said = warning(moving)
    assert said is not None and "begin anywhere" in said and "horizon = [5]" in said
    assert warning(still) is None and warning(moving, warm_up=2) is None and warning(moving, horizon=5) is None
    assert warning(moving, state="rest") is None


def test_horizons_within_the_warm_up_are_refused(folder):
    """Say that no frame of a window would count, which would train nothing."""
    config = Config.model_validate(tables(folder, start={"state": "settled", "warm_up": 3}))
    with pytest.raises(InputError, match="stage 'one': of the 3 frames of a horizon none counts, as the first 3 are a"):
        fit(config, folder / "run")


def test_measured_start_has_the_velocity_of_two_frames(folder):
    """Begin at the second frame, at the velocity since the first."""
    system = system_of(folder, start={"state": "measured"}, markers={"nodes": [0, 1, 2, 3]})
    state, _ = system.start_state(window_of(folder))
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


def test_gripped_markers_have_to_be_seen(folder):
    """Refuse gaps that nobody allowed, in recordings trained on and in others; what ended before is no gap."""
    robot = {"scene": str(folder / "beam.toml"), "gripped": [0, 1]}
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "rules": {"max_gap": 2}}
    whole = np.load(folder / "beam.npz")["train"]

    def write(*gone):
        positions = whole.copy()
        for place in gone:
            positions[place] = np.nan
        np.savez(folder / "beam.npz", train=positions, dt=DT)

    write((1, slice(1, 3), 0), (2, slice(3, None)))
    system = system_of(folder, robot=robot, data=data)
    write((1, slice(1, 4), 0))
    with pytest.raises(InputError, match=r"train/1: the marker at gripped node 0 is not seen.* 3 frames from frame 1"):
        system_of(folder, robot=robot, data=data)
    write((2, slice(None), 1))
    config = Config.model_validate(tables(folder, robot=robot, data=data))
    recordings, messages = prepared_recordings(config, "train")
    assert messages == ["beam.npz:train/2: marker 1 not seen in any frame: it does not count"]
    with pytest.raises(InputError, match=r"train/2: .* node 1 is not seen.* 6 frames from frame 0: .*at most 2"):
        system.refuse(recordings)
    seed = next(s for s in range(99) if recordings.split(0.4, s)[1].names == ("beam.npz:train/2",))
    with pytest.raises(InputError, match="train/2: the marker at gripped node 1"):
        fit(config.model_copy(update={"seed": seed}), folder / "run")
    system_of(folder, robot=robot | {"gripped": [0]}, data=data)


@pytest.mark.filterwarnings("ignore::torchdismech.errors.FailureWarning")
def test_robot_that_fails_leaves_drives_and_grips_of_others_alone(folder):
    """Tear the first of two beams apart: inputs and grips of the second one go on as recorded, as they do alone."""
    data = {"path": str(folder / "beam.npz"), "held_out": 0.4, "eval": None, "inputs": ["pull"]}
    robot = {"scene": str(folder / "beam.toml"), "gripped": [0]}
    system = system_of(folder, data=data, robot=robot, drives={"tip": {"sets": "force", "elements": [11], "gain": 1.0}})
    window = window_of(folder, frames=6, inputs=("pull",))
    positions, inputs = window.positions.clone(), 1e-4 * torch.arange(6.0, dtype=torch.float64).expand(3, 6)[..., None]
    positions[:, :, 0, 1] += 1e-3 * torch.arange(6)
    inputs = inputs.clone()
    inputs[0, 2:] = 1e12
    window = window.replace(positions=positions, inputs=inputs)
    rows = slice(1, 2)
    parts = {name: getattr(window, name)[rows] for name in ("positions", "valid", "inputs", "time")}
    both, alone = system.predict(window), system.predict(window.replace(**parts))
    assert not bool(both.good[0]) and bool(both.good[1:].all() & alone.good.all())
    assert torch.allclose(both.positions[1, :, 0], positions[1, 1:, 0], atol=1e-12)  # rounding
    # Newton's method ends at its tolerance, whose steps another row may change in the last bits
    assert torch.allclose(both.positions[1], alone.positions[0], atol=1e-9)


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
    "an element twice": (
        {"drives": {"a": {"sets": "force", "elements": [2, 3, 2]}}},
        "drives.a.elements: expected each number once, got 2 twice",
    ),
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
    "grips beside a clamp that is placed": (
        {
            "robot": {"scene": "SCENE", "gripped": [0, 1]},
            "constants": {"b": {"tensors": ["clamp0.position"], "kind": "shift", "unit": 1.0}},
            "start": {"state": "settled"},
        },
        "robot.gripped: poses of clamps, which .* hold all clamped nodes, so none could move as recorded",
    ),
    "grips beside poses that are driven": (
        {"robot": {"scene": "SCENE", "gripped": [0]}, "drives": {"a": {"sets": "pose"}}},
        "robot.gripped: poses of clamps",
    ),
    "a drive that is replaced": (
        {"drives": {"a": {"sets": "force"}, "b": {"sets": "force", "relative": False}}},
        "drives.b: relative = false would replace what drives.a sets",
    ),
    "a step that is no part of a frame": (
        {"robot": {"scene": "SCENE", "overrides": {"simulation.dt": 3e-3}}},
        'frames are 0.01 s apart, expected a whole part of that, got 0.003 s: .* {"simulation.dt" = 0.00333333}',
    ),
    "a start that is not seen": (
        {"start": {"state": "measured"}, "markers": {"points": [{"node": 0}, {"node": 1}, {"node": 2}, {"edge": 2}]}},
        "a marker at every node",
    ),
    "a start that is seen at a distance": (
        {
            "start": {"state": "measured"},
            "markers": {
                "points": [{"node": 0}, {"node": 1}, {"node": 2}, {"edge": 2, "at": 1.0, "offset": [0, 0.02, 0]}]
            },
        },
        "a marker at every node",
    ),
    "a grip that is seen at a distance": (
        {
            "robot": {"scene": "SCENE", "gripped": [1]},
            "markers": {
                "points": [{"node": 0}, {"edge": 0, "at": 1.0, "offset": [0, 0.02, 0]}, {"node": 2}, {"node": 3}]
            },
        },
        "robot.gripped: node 1 has no marker",
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"start": {"state": "settled", "frames": 5}}, 'frames: belongs to fitted velocities: set velocity = "fitted"'),
        ({"start": {"load_steps": 2}}, "load_steps: belongs to the search for an equilibrium"),
        ({"markers": {"points": [{"node": 0, "at": 0.1}]}}, "at: is a place along an edge"),
        ({"drives": {"a": {"sets": "force", "module": "x.py:Net", "offset": 1.0}}}, "offset belongs to a linear map"),
        ({"data": {"path": "beam.npz", "rules": {"order": "repair"}}}, "data.rules.order: only nodes of a chain"),
        (
            {"data": {"path": "beam.npz", "rules": {"edge_wander": 0.3}}},
            "data.rules.edge_wander: only edges of a chain",
        ),
        ({"data": {"path": "beam.npz", "rules": {"max_gap": 3}}}, "data.rules.max_gap: is of a chain, or of gripped"),
        ({"robot": {"gripped": [0], "hysteresis_limit": 2.0}}, "hysteresis_limit: is of strands"),
    ],
)
def test_fields_that_would_do_nothing_are_refused(folder, changes, message):
    """Name the field, and what it belongs to; a config that was written with its defaults is read again."""
    with pytest.raises(ValidationError, match=message):
        Config.model_validate(tables(folder, **changes))
    config = Config.model_validate(tables(folder, start={"state": "settled", "load_steps": 2}))
    assert Config.model_validate(config.model_dump()) == config


def test_drives_of_tables_over_time_are_refused(folder):
    """Name the drive that would set the displacements of an obstacle, for any number of recordings."""
    (folder / "way.csv").write_text("time,x,y,z\n0,0,0,0\n1,0,0,0.01\n")
    ball = '[[obstacle]]\nname = "ball"\nshape = "sphere"\ncenter = [0, 0, 1]\nradius = 0.1\nstiffness = 50.0\n'
    (folder / "beam.toml").write_text(SCENE + ball + 'path = "way.csv"\n')
    with pytest.raises(
        InputError, match="drives.a.sets: ball.displacements: a table over time cannot be set in a step"
    ):
        system_of(folder, drives={"a": {"sets": "ball.displacements"}})


def test_steps_are_made_an_exact_part_of_a_frame(folder):
    """Take three steps a frame of a rounded dt, of which the duration of the scene is no multiple."""
    rounded = {"scene": str(folder / "beam.toml"), "overrides": {"simulation.dt": 3.333e-3}}
    assert system_of(folder, robot=rounded).integrator.dt == pytest.approx(DT / 3, rel=1e-12)  # rounding
    assert "robot.scene" in fingerprints(Config.model_validate(tables(folder, robot=rounded)))


def test_static_scene_is_refused(folder):
    """Say that recordings take time."""
    static = SCENE.replace("dt = 5e-3\nduration = 0.5", 'integrator = "static"')
    (folder / "beam.toml").write_text(static)
    with pytest.raises(InputError, match='"static" takes no steps in time'):
        system_of(folder)


def test_scenes_that_say_how_robots_begin_are_refused(folder):
    """Say that the config does."""
    (folder / "beam.toml").write_text(SCENE + "\n[initial]\nvelocity = [0, 0, 1]\n")
    with pytest.raises(InputError, match=r"beam.toml: initial: the config says how robots begin \(start\)"):
        system_of(folder)
