"""Pictures of trajectories: what they show, not how they look."""

import dataclasses

import numpy as np
import pytest
import torch

from torchdismech import InputError, State, Status
from torchdismech.trajectory import Frame, Recorder, Trajectory
from torchdismech.view import draw_curves, draw_trajectory, pictured, save_picture
from torchdismech.view.export import save_export
from torchdismech.view.movie import save_movie
from torchdismech.view.scenery import Scenery

pytest.importorskip("matplotlib")


def swinging(batch: int = 2, planar: bool = False, size: float = 1.0, still: bool = False) -> Trajectory:
    """Return a made-up run: two rods that meet at node 1, turning about the y (and z) axis."""
    edges = np.array([[0, 1], [1, 2], [1, 3]])
    nodes = size * np.array([[0.0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.1, 0.0, 0.1]])
    recorder = Recorder()
    recorder.start(5, edges, np.zeros((0, 3), dtype=np.int64))
    zero = torch.zeros(batch, dtype=torch.long)
    for step in range(5):
        x = []
        for robot in range(batch):
            a, b = 0.1 * step * (robot + 1), 0.0 if planar else 0.05 * step
            about_y = np.array([[np.cos(a), 0, np.sin(a)], [0, 1, 0], [-np.sin(a), 0, np.cos(a)]])
            about_z = np.array([[np.cos(b), -np.sin(b), 0], [np.sin(b), np.cos(b), 0], [0, 0, 1]])
            x.append((nodes @ about_y.T @ about_z.T).ravel())
        q = torch.cat([torch.tensor(np.array(x)), torch.zeros(batch, 3, dtype=torch.float64)], dim=1)
        other = torch.zeros(batch, 3, 3, dtype=torch.float64)
        time = torch.full((batch,), 0.0 if still else 0.5 * step, dtype=torch.float64)
        state = State(q, q, q, other, other, other[:, :, 0], time)
        recorder.append(Frame(step, time[0], state, zero, zero, time, zero, {}))
    return recorder.trajectory()


def lines_with(axes, length: int) -> list:
    """Return the drawn lines of so many points."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) == length]


def test_planar_motion_is_drawn_in_its_plane():
    """Draw a robot that stays in the x-z plane in two dimensions, equally scaled, with units and the right points."""
    trajectory = swinging(planar=True)
    figure = draw_trajectory(trajectory, robot=1, node=2, snapshots=3)
    shapes = figure.axes[0]
    displacement = next(axes for axes in figure.axes if axes.get_ylabel().startswith("displacement"))
    assert shapes.name == "rectilinear" and shapes.get_aspect() == 1
    assert (shapes.get_xlabel(), shapes.get_ylabel()) == ("x [mm]", "z [mm]")
    path = next(line for line in shapes.get_lines() if line.get_label() == "path of node 2")
    expected = 1e3 * trajectory.positions[:, 1, 2].numpy()
    np.testing.assert_allclose(np.column_stack(path.get_data()), expected[:, [0, 2]])
    drawn = lines_with(shapes, 9)  # three edges, each with two ends and a lifted pen
    assert len(drawn) == 3  # the first, the middle and the last frame
    (single,) = lines_with(draw_trajectory(trajectory, robot=1, snapshots=1).axes[0], 9)
    np.testing.assert_array_equal(single.get_xdata(), drawn[-1].get_xdata())  # the last
    with pytest.raises(InputError, match="snapshots: expected a whole number from 1 up, got 0"):
        draw_trajectory(trajectory, snapshots=0)
    assert (displacement.get_xlabel(), displacement.get_ylabel()) == ("time [s]", "displacement [mm]")
    assert displacement.get_xlim() == (0, 2)
    assert any(axes.get_ylabel() == "time [s]" for axes in figure.axes), "no colour bar of time"


def test_motion_in_space_is_drawn_in_space():
    """Draw three axes with units where the robot leaves every plane."""
    shapes = draw_trajectory(swinging()).axes[0]
    assert shapes.name == "3d"
    assert (shapes.get_xlabel(), shapes.get_zlabel()) == ("x [mm]", "z [mm]")


@pytest.mark.parametrize(("size", "unit"), [(10.0, "m"), (1.0, "mm"), (1e-4, "µm")])
def test_unit_suits_the_size(size, unit):
    """Choose metres, millimetres or micrometres."""
    assert draw_trajectory(swinging(batch=1, size=size)).axes[0].get_xlabel() == f"x [{unit}]"


def test_all_robots_are_shown_behind_the_one():
    """Show the last shapes of all robots and the range of their displacements, for a batch only."""
    for batch, words in ((2, {"all 2 robots at the end", "all 2 robots"}), (1, set())):
        figure = draw_trajectory(swinging(batch=batch))
        labels = {label for axes in figure.axes for label in axes.get_legend_handles_labels()[1]}
        assert {label for label in labels if label.startswith("all")} == words


def test_static_run_is_drawn_over_steps():
    """Draw a run without time over its steps."""
    assert draw_trajectory(swinging(still=True)).axes[1].get_xlabel() == "step"


@pytest.mark.parametrize(("still", "when"), [(False, "0.5 s"), (True, "step 1")])
def test_a_failed_robot_is_said_to_have_failed(still, when):
    """Say in the title when a robot failed, and why, as it stands still since; the others' titles are as before."""
    made = swinging(still=still)
    status = made.status.clone()
    status[2:, 1] = int(Status.MAX_ITERATIONS)
    failed = dataclasses.replace(made, status=status)
    title = draw_trajectory(failed, robot=1).axes[0].get_title()
    assert title == f"robot 1 of 0 to 1, failed after {when}: max_iterations"
    assert draw_trajectory(failed, robot=0).axes[0].get_title() == "robot 0 of 0 to 1"
    scenery = Scenery(failed, every=3)
    assert [scenery.failed(shown.row) for shown in scenery] == [[], [1], [1]]


@pytest.mark.parametrize("ending", ["png", "pdf", "svg", "PNG"])
def test_formats_follow_the_name(tmp_path, ending):
    """Write each format under its ending, in small letters or large ones."""
    save_picture(swinging(), tmp_path / f"run.{ending}")
    start = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}[ending.lower()]
    assert (tmp_path / f"run.{ending}").read_bytes().startswith(start)


def test_what_cannot_be_drawn_is_refused(tmp_path):
    """Name robots and nodes that are not there, folders that are missing and endings that are unknown."""
    trajectory = swinging()
    with pytest.raises(InputError, match="robot: expected a number 0 to 1 .*, got 2"):
        draw_trajectory(trajectory, robot=2)
    with pytest.raises(InputError, match="node: expected a number 0 to 3 .*, got -5"):
        draw_trajectory(trajectory, node=-5)
    with pytest.raises(InputError, match="no folder"):
        save_picture(trajectory, tmp_path / "none" / "run.png")
    with pytest.raises(InputError, match="ends in .png"):
        save_picture(trajectory, tmp_path / "run.xyz")


def billowing(rods: bool, batch: int = 2) -> Trajectory:
    """Return a made-up run of two triangles, whose outer corners sink; with a rod on one of these or without."""
    nodes = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 1, -1]])[: 5 if rods else 4]
    recorder = Recorder()
    recorder.start(
        6, np.array([[2, 4]] if rods else [], dtype=np.int64).reshape(-1, 2), np.array([[0, 1, 3], [1, 2, 3]])
    )
    zero = torch.zeros(batch, dtype=torch.long)
    for step in range(6):
        sunk = nodes - 0.1 * step * np.outer(np.arange(len(nodes)) == 2, (0, 0, 1))
        q = torch.cat([torch.tensor(sunk).flatten(), torch.zeros(int(rods), dtype=torch.float64)]).repeat(batch, 1)
        other = torch.zeros(batch, int(rods), 3, dtype=torch.float64)
        time = torch.full((batch,), 0.5 * step, dtype=torch.float64)
        state = State(q, q, q, other, other, other[:, :, 0], time)
        recorder.append(Frame(step, time[0], state, zero, zero, time, zero, {}))
    return recorder.trajectory()


@pytest.mark.parametrize("rods", [False, True])
def test_shells_are_surfaces(rods):
    """Draw each of a few shapes as a translucent surface of all triangles, inside the axes, beside its rods."""
    trajectory = billowing(rods)
    shapes = draw_trajectory(trajectory, node=2).axes[0]
    assert shapes.name == "3d"
    assert len(shapes.collections) == 4
    for surface in shapes.collections:
        assert len(surface.get_facecolor()) == 2 and (surface.get_facecolor()[:, 3] < 1).all()
    assert len(draw_trajectory(trajectory, snapshots=2).axes[0].collections) == 2
    # an edge that is drawn is two points and a lifted pen
    assert len(lines_with(shapes, 3)) == (4 if rods else 0)
    # all robots at the end: the four border edges of the surface, and the rod
    outlines = next(line for line in shapes.get_lines() if "at the end" in str(line.get_label()))
    assert len(outlines.get_data_3d()[0]) == 2 * 3 * (5 if rods else 4)
    lowest = trajectory.positions[..., 2].min().item()
    assert shapes.get_zlim()[0] <= lowest and shapes.get_zlim()[1] >= 0


def test_flat_shell_is_drawn_in_space():
    """Draw three axes also of a shell that stays in a plane."""
    trajectory = billowing(rods=False).frames(slice(1))
    assert draw_trajectory(trajectory).axes[0].name == "3d"


def test_where_there_is_no_matplotlib_it_is_said(tmp_path, monkeypatch, capsys):
    """Draw a run and say so; without matplotlib say why there is no picture, and go on."""
    run = swinging()
    pictured(run, tmp_path / "rod.png")
    assert (tmp_path / "rod.png").is_file() and "wrote" in capsys.readouterr().out
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    pictured(run, tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists() and "pip install" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: draw_trajectory("run.h5"), "trajectory: expected a trajectory, such as .* got str"),
        (lambda run: draw_curves(run.frames(slice(0, 0))), "trajectory: this trajectory has no frames"),
        (lambda run: draw_trajectory(run, robot=0.5), "robot: expected a number 0 to 1 .* got 0.5"),
        (lambda run: draw_trajectory(run, robot=True), "robot: expected a number 0 to 1 .* got True"),
        (lambda run: save_export(Scenery(run), "run.glb", progress="no"), "progress: expected True or False, got 'no'"),
        (lambda run: save_movie(Scenery(run), "run.gif", progress="no"), "progress: expected True or False, got 'no'"),
        (lambda run: draw_trajectory(run, node=None), "node: expected a number 0 to 3 .* got None"),
        (lambda run: draw_curves(run, energies=False), "expected at least one of energies, contact and strains"),
        (lambda run: Scenery(run, every=2.5), "every: expected a whole number from 1 up, got 2.5"),
        (lambda run: Scenery(run, radius="1"), "radius: expected a positive number of metres, got '1'"),
        (lambda run: Scenery(run, robots=1), "robots: expected a list of robots, also of one alone, got int"),
        (lambda run: Scenery(run, colour=["speed"]), "colour: expected 'robot' or one of stretch"),
    ],
)
def test_what_cannot_be_shown_is_named(call, message):
    """Say what was expected and what came, also in calls from Python."""
    with pytest.raises(InputError, match=message):
        call(swinging())
