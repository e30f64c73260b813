"""What `Live` puts into its page while a run goes on; a stand-in takes the place of the page's server."""

from unittest.mock import MagicMock

import numpy as np
import pytest

from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, rollout, straight
from torchdismech.contact import HalfSpace, Obstacle, Path, Penalty, Sphere
from torchdismech.view import page
from torchdismech.view.arrows import VERTICES
from torchdismech.view.page import Live, Wanted


@pytest.fixture
def meshes(monkeypatch):
    """Return the meshes in the page: by name their vertices, faces and position; no page is served."""
    there = {}

    def added(name, vertices, faces, position=(0.0, 0.0, 0.0), **_):
        there[name] = MagicMock(vertices=vertices, faces=faces, position=position)
        there[name].remove.side_effect = lambda: there.pop(name)
        return there[name]

    server = MagicMock()
    server.scene.add_mesh_simple = added
    monkeypatch.setattr(page, "_server", lambda host, port: server)
    return there


def falling(**wanted):
    """Return the live page after a run in which two rods fall onto a floor and slide along it."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.01), (0.1, 0, 0.01), 5), Circle(2e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(50.0, 2e-4), name="floor"))
    ball = Sphere((0, 0.5, 0), 0.02)
    builder.add_contact(Obstacle(ball, Penalty(50.0, 2e-4), path=Path.uniform((0.1, 0, 0)), name="ball"))
    model = builder.finalize()
    live = Live(Wanted(**wanted))
    throw = model.thrown(model.initial_state(2), velocity=(10.0, 0.0, 0.0))
    run = rollout(model, throw, ImplicitEuler(2e-3), 60, every=20, writer=live)
    assert not run.failed.any() and float(run.contact["node_force"][-1].norm(dim=-1).max()) > 0
    return live, run


def test_arrows_come_as_soon_as_something_touches(meshes):
    """Show an arrow for each node that is pushed in the last frame, though nothing touched in the first."""
    _, run = falling(contact=True)
    pushed = int((run.contact["node_force"][-1].norm(dim=-1) > 0).any(0).sum())
    arrows = meshes["/contact"]
    assert len(arrows.vertices) == 2 * pushed * VERTICES and arrows.faces.max() == len(arrows.vertices) - 1
    assert np.ptp(arrows.vertices[:, 2]) > 0.01


def test_a_floor_reaches_as_far_as_robots_do(meshes):
    """Show the floor below the robots where they are, and obstacles that move where they are."""
    _, run = falling()
    floor = meshes["/obstacles/0"].vertices
    assert floor[:, 0].min() <= 0 and floor[:, 0].max() >= float(run.positions[-1, ..., 0].max())
    assert meshes["/obstacles/1"].position[0] == pytest.approx(0.1 * float(run.time[-1]))


def test_robots_side_by_side_keep_their_obstacles(meshes):
    """Put the floor of each robot under it in every frame."""
    live, run = falling(apart=True)
    for k, offset in enumerate(live._stage._scenery.offsets):
        floor = meshes[f"/obstacles/{k}"]
        x = run.positions[-1, k, :, 0].numpy() + offset[0]
        low, high = np.array(floor.vertices)[:, 0].min(), np.array(floor.vertices)[:, 0].max()
        assert low + floor.position[0] <= x.min() and x.max() <= high + floor.position[0]


def test_stretch_is_measured_from_the_first_frame(meshes):
    """Colour rods that were stretched since the run began by how much that is."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0, 0, -0.1), 5), Circle(2e-3), Material(1e4, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    live = Live(Wanted(colour="stretch"))
    run = rollout(model, model.initial_state(), ImplicitEuler(1e-2), 5, writer=live)
    edges = run.positions[-1, 0].diff(dim=0).norm(dim=-1) / 0.025 - 1
    assert live._stage._scenery.scale.high == pytest.approx(float(edges.max()), rel=1e-6)


def test_another_run_begins_anew(meshes):
    """Show the obstacles of the last run alone."""
    live, _ = falling()
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 3), Circle(2e-3), Material(1e6, 1000.0))
    model = builder.finalize()
    rollout(model, model.initial_state(), ImplicitEuler(1e-2), 2, writer=live)
    assert not meshes
