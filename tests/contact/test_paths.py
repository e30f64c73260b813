"""Paths of obstacles: which velocity they have at the times where it begins, jumps and ends."""

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, Static, forces, rollout
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle, Path, Penalty, Sphere

SPEED = (0.0, 0.1, 0.0)  # m/s


def on_belt(response, path):
    """Return a rod that is held by an end and lies on a belt."""
    points = np.linspace((0, 0, 2.1e-3), (0.2, 0, 2.1e-3), 6)
    builder = rod_through(points, Circle(2e-3), Material(2e5, 1100.0), [forces.Gravity((0, 0, -9.81))], held="end")
    plane = HalfSpace((0, 0, 0), (0, 0, 1))
    builder.add_contact(Obstacle(plane, response, Friction(0.5, 1e-3), path=path, name="belt"))
    return builder.finalize()


@pytest.mark.parametrize("response", [Penalty(100.0, 5e-4), Barrier(100.0, 5e-4)])
def test_a_belt_drags_from_time_0_on(response):
    """Drag a robot along in equilibrium at the time 0, where states begin, as later; so do first accelerations."""
    model = on_belt(response, Path.uniform(SPEED))
    start = model.initial_state()
    later = start.replace(time=start.time + 1.0)
    assert torch.equal(model.accelerated(start).acceleration, model.accelerated(later).acceleration)
    found, info = Static().step(model, start, throw=True)
    expected, _ = Static().step(model, later, throw=True)
    assert torch.equal(found.q, expected.q)
    assert info.contact["force/belt"][0, 1] > 0.01  # N: half of what the rod weighs on it


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_velocity_at_the_beginning_and_the_end(dtype):
    """Have a velocity at 0 if the first time is 0, else after it; before it and after the last there is none."""
    time = torch.tensor([-1.0, -0.5, 0.0, 1e-3, 0.5, 0.6, 1.0], dtype=dtype)
    for first, moves in ((-0.5, range(2, 6)), (0.0, range(2, 6)), (1e-3, range(4, 6)), (0.5, range(5, 6))):
        path = Path([first, 0.6], [[0, 0, 0], [0, 0.1 * (0.6 - first), 0]]).to(dtype)
        velocity = path.velocity(time)
        assert velocity[:, 1].nonzero().flatten().tolist() == list(moves), first
        assert velocity[moves.start, 1].item() == pytest.approx(0.1)


@pytest.mark.parametrize("unit", [1.0, 1e-9])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("dt", [1e-3, 2e-3, 5e-3, 1e-2])
def test_each_velocity_is_seen_by_its_own_steps(dtype, dt, unit):
    """See each velocity in the steps that end within its piece or at the end of it: time is a sum of rounded steps."""
    steps = torch.full((1100,), dt * unit, dtype=dtype).numpy()
    time = torch.from_numpy(np.add.accumulate(steps, dtype=steps.dtype))
    ends = np.array([0, 1, 10, 60, 100, 500, 1000])  # in steps
    speeds = np.array([0.5, 0.0, 0.2, -0.1, 0.4, 0.3])
    places = np.concatenate([[0], np.cumsum(speeds * np.diff(ends) * dt)])[:, None] * [0, 0, 1.0]
    path = Path(ends * dt * unit, places).to(dtype)
    expected = np.concatenate([np.repeat(speeds, np.diff(ends)), np.zeros(100)])
    assert (path.velocity(time)[:, 2] * unit).numpy() == pytest.approx(expected, rel=1e-3)


def test_displacement_goes_from_place_to_place():
    """Interpolate between the places of each robot, and hold the first and the last; velocities are the slopes."""
    places = np.array([[[0, 0, 0], [0, 0, 1.0]], [[1.0, 0, 0], [0, 2.0, 1]], [[1, 1, 0], [0, 0, 0]]])
    path = Path([1.0, 2.0, 4.0], places)
    time = torch.tensor([0.0, 3.0], dtype=torch.float64)
    assert path.displacement(time).tolist() == [[0, 0, 0], [0, 1, 0.5]]
    assert path.velocity(time).tolist() == [[0, 0, 0], [0, -1, -0.5]]
    assert path.displacement(time.flip(0) + 2).tolist() == [[1, 1, 0], [0, 2, 1]]
    assert path.velocity(time.flip(0) + 2).tolist() == [[0, 0, 0], [0, 2, 0]]


@pytest.mark.parametrize(
    ("clamp", "normal", "spacing"),
    [
        ({"along": (1, 0, 1)}, (0, 0, 1), None),
        ({"along": [(1, 0, 1), (1, 1, 1)]}, (0, 0, 1), 4e-3),
        ({"normal": (1, 0, 1)}, (0, 0, 1), None),
        ({"axes": "xy"}, (1, 0, 1), None),
    ],
)
def test_nodes_that_clamps_hold_in_part_are_pushed_along_their_lines(clamp, normal, spacing):
    """Push a rod's end that slides, by more in each step than the gap that a barrier leaves, in few iterations."""
    towards = np.array(normal) / np.linalg.norm(normal)
    points, material = np.linspace((0, 0, 0), (0.2, 0, 0), 9), Material(2e6, 1100.0)
    builder = rod_through(points, Circle(3e-3), material, [forces.Gravity((0, 0, -9.81))], held="end")
    builder.clamp(nodes=[8], **clamp)
    below, between = points[8] - 4.2e-3 * towards, spacing is not None
    shape = Sphere(below - 0.1 * towards, 0.1) if between else HalfSpace(below, towards)
    options = {"nodes": range(6 if between else 8, 9), "spacing": spacing, "path": Path.uniform(0.2 * towards)}
    builder.add_contact(Obstacle(shape, Barrier(0.5, 5e-4), **options))
    model = builder.finalize()
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), 30)
    assert not run.failed.any() and run.iterations.max() < 30
    assert 0 < model.obstacles[0].gap(run.state.q, run.state.time).min() < 5e-4
    assert (run.positions[-1, :, 8] - run.positions[0, :, 8]).norm(dim=1).min() > 0.02


def test_a_planar_robot_is_pushed_by_what_comes_from_its_side():
    """Push a planar rod up by a ball that moves aslant to its plane, by more in each step than a barrier's gap."""
    towards = np.array((0, 1, 1)) / np.sqrt(2)
    points, material = np.linspace((0, 0, 0), (0.2, 0, 0), 9), Material(2e6, 1100.0)
    loads = [forces.Gravity((0, 0, -9.81))]
    builder = rod_through(points, Circle(3e-3), material, loads, held="end", builder=RobotBuilder(planar=True))
    ball, way = Sphere(points[8] - 2.4e-2 * towards, 2e-2), Path.uniform(0.2 * towards)
    builder.add_contact(Obstacle(ball, Barrier(0.5, 5e-4), path=way, nodes=[8]))
    model = builder.finalize()
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), 16)
    assert not run.failed.any() and run.iterations.max() < 30
    assert 0 < model.obstacles[0].gap(run.state.q, run.state.time)[0, 8] < 5e-4 and run.positions[-1, 0, 8, 2] > 0.005


def test_times_that_are_loaded():
    """Move at the times of a path that another one's were loaded from."""
    early, late = (Path([start, start + 1.0], [[0.0, 0, 0], [1.0, 0, 0]]) for start in (0.0, 5.0))
    early.load_state_dict(late.state_dict())
    time = torch.tensor([0.0, 0.5, 5.5], dtype=torch.float64)
    assert early.velocity(time)[:, 0].tolist() == late.velocity(time)[:, 0].tolist() == [0.0, 0.0, 1.0]
