"""Surfaces that are shown: tubes, shells, colours, and what a file tells of sections and obstacles."""

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from tests.view.runs import made_up, run_of, twisting
from torchdismech import InputError, Trajectory
from torchdismech.cli import app
from torchdismech.geometry.frames import rotated, transported
from torchdismech.view.colours import Scale, node_values
from torchdismech.view.directors import material_directors
from torchdismech.view.export import save_export
from torchdismech.view.scenery import Scenery, chosen_robots
from torchdismech.view.tubes import Profile, Tubes

ARC = np.linspace(0, 1.2, 6)
BENT = np.stack([np.sin(ARC), np.zeros(6), 1 - np.cos(ARC)], axis=1)  # m, on a circle of radius 1
CHAIN = np.stack([np.arange(5), np.arange(1, 6)], axis=1)


def volume(vertices: np.ndarray, faces: np.ndarray) -> float:
    """Return what faces enclose, positive if they are wound counter-clockwise seen from outside."""
    a, b, c = (vertices[faces[:, k]] for k in range(3))
    return float((np.cross(a, b) * c).sum() / 6)


def area(profile: Profile) -> float:
    """Return the area inside a profile."""
    a, b = (profile.points[profile.sides[:, k]] for k in range(2))
    return 0.5 * float((a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]).sum())


@pytest.mark.parametrize("profile", [Profile.round(), Profile.rectangle()], ids=["round", "rectangle"])
@pytest.mark.parametrize("flip", [False, True], ids=["in line", "one edge turned round"])
def test_tube_is_closed_and_as_large_as_its_section_times_its_length(profile, flip):
    """Enclose area times length, also where the rod bends: a mitre takes as much as it gives."""
    edges = CHAIN.copy()
    if flip:
        edges[2] = edges[2, ::-1]
    run = made_up(BENT[None], edges)
    directors = material_directors(run, np.array([0]), np.array([0]))[0, 0]
    tubes = Tubes(edges, np.arange(5), profile)
    vertices, normals = tubes.vertices(BENT, directors, np.full((5, 2), 0.02))
    length = np.linalg.norm(np.diff(BENT, axis=0), axis=1).sum()
    assert volume(vertices, tubes.faces) == pytest.approx(area(profile) * 0.02**2 * length, rel=1e-12)  # rounding
    outwards = (normals * (vertices - BENT[tubes.node])).sum(-1)
    assert (outwards > -1e-12).all() and np.allclose(np.linalg.norm(normals, axis=-1), 1)


def test_tube_is_continuous_where_it_twists():
    """Give both edges at a node the same ring, turned half-way; a stripe makes no steps."""
    run = made_up(BENT[None], CHAIN, twist=0.4)
    directors = material_directors(run, np.array([0]), np.array([0]))[0, 0]
    profile = Profile.round()
    tubes = Tubes(CHAIN, np.arange(5), profile)
    vertices, _ = tubes.vertices(BENT, directors, np.full((5, 2), 0.02))
    rings = vertices[: 10 * len(profile.points)].reshape(5, 2, -1, 3)
    assert np.allclose(rings[:-1, 1], rings[1:, 0], atol=1e-14)  # rounding, of lengths of 1 m
    turned = rings[-1, 1, 1] - BENT[-1]  # the middle of the stripe at the end: the last edge's own director
    assert np.allclose(turned / 0.02, directors[-1])


def test_rectangle_lies_along_its_directors():
    """Be as high along the first director and as wide along the second as the section says."""
    tubes = Tubes(np.array([[0, 1]]), np.array([0]), Profile.rectangle())
    x, d = np.array([[0.0, 0, 0], [1, 0, 0]]), np.array([[0.0, 0, 1]])
    vertices, _ = tubes.vertices(x, d, np.array([[0.03, 0.01]]))
    assert np.ptp(vertices[:, 2]) == pytest.approx(0.06) and np.ptp(vertices[:, 1]) == pytest.approx(0.02)


def test_directors_are_those_of_the_run():
    """Go back from the last state through all stored steps, and find the directors of each; forwards, too."""
    run, states = twisting()
    robots = np.array([1, 0])
    found = material_directors(run, np.arange(9), robots)
    for k, state in enumerate(states):
        expected = rotated(state.director, state.tangent, state.twist)[robots, :6]
        assert np.allclose(found[k], expected, atol=1e-12)  # nine transports, each exact to rounding
    early = twisting()[0]
    early.state, early.state_step = states[3], 3
    assert np.allclose(material_directors(early, np.array([0, 8]), robots), found[[0, 8]], atol=1e-12)


def test_robot_of_a_batch_is_the_robot_alone():
    """Make the same surface of a robot beside others and by itself, in several frames at once and in one."""
    run, _ = twisting()
    both, alone = Scenery(run, [0, 1]), Scenery(run, [1])
    for a, b in zip(both, alone, strict=True):
        assert np.array_equal(a.vertices[1], b.vertices[0]) and np.array_equal(a.normals[1], b.normals[0])
    assert np.array_equal(both.shown(3).vertices, list(both)[3].vertices)


def test_curvature_and_twist_of_an_arc():
    """Find 2 tan(angle/2) over the edge length, and the twist from edge to edge over it; nothing at the ends."""
    run = made_up(BENT[None], CHAIN, twist=0.3)
    robots, rows = np.array([0]), np.array([0])
    directors = material_directors(run, rows, robots)
    edge = 2 * np.sin(0.12)  # of a chord of 0.24 rad
    inside = slice(1, 5)
    for name, expected in (("curvature", 2 * np.tan(0.12) / edge), ("twist", 0.3 / edge)):
        values = node_values(name, run, rows, robots, directors)[0, 0]
        assert np.allclose(values[inside], expected) and np.isnan(values[[0, 5]]).all()


def test_stretch_is_that_of_edges_and_of_areas():
    """Find 10 % in a rod and in a sheet that grow by a tenth."""
    sheet = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]])
    for edges, triangles in (([[0, 1], [1, 2]], ()), ((), [[0, 1, 2], [0, 2, 3]])):
        run = made_up(np.stack([sheet, 1.1 * sheet]), edges, triangles)
        values = node_values("stretch", run, np.array([1]), np.array([0]), np.zeros((1, 1, len(edges), 3)))
        assert np.allclose(values[np.isfinite(values)], 0.1) and np.isfinite(values).sum() >= 3


def test_colours_follow_the_scale():
    """Show white at zero of signed values, the ends beyond them, and grey where there is no value."""
    scale = Scale.of("twist", np.array([-1.0, 3.0, np.nan]))
    assert (scale.low, scale.high) == (-3.0, 3.0)
    colours = scale.colours(np.array([0.0, np.nan, 3.0, 9.0]))
    assert colours[0].tolist() == [247] * 3 and colours[1].tolist() == [170] * 3
    assert colours[2].tolist() == colours[3].tolist()


def test_file_tells_sections_and_obstacles(tmp_path):
    """Read sections, drawn radii, the floor and the ball from the file of a scene; put robots side by side."""
    run = Trajectory.load(run_of(tmp_path))
    scenery = Scenery(run, [0, 2], apart=True)
    assert not scenery.remarks and [p.surface.name for p in scenery.obstacles] == ["floor"] * 2 + ["obstacle0"] * 2
    ball = scenery.obstacles[2].surface
    assert ball.moves and np.allclose(ball.displacements(np.array([0.05]))[0], [0.005, 0, 0])
    first = scenery.shown(0)
    x = run.positions[0, [0, 2]].numpy()[:, 5]
    for k, radius in enumerate((5e-3, 7e-3)):
        end = first.vertices[k][scenery.surface.node == 5]
        away = np.linalg.norm(end - (x[k] + scenery.offsets[k]), axis=-1)
        assert away.max() == pytest.approx(radius, rel=1e-5)  # vertices are float32
    assert np.ptp(first.vertices[0][scenery.surface.node == 0][:, 2]) == pytest.approx(0.02, rel=1e-4)
    assert scenery.offsets[1, 0] > 0.3 and scenery.surface.shell.sum() == 2


def test_radius_that_a_run_does_not_keep_is_said():
    """Take a quarter of the median edge and say so; take what is asked for; refuse what is none."""
    run = made_up(BENT[None], CHAIN)
    scenery = Scenery(run, [0])
    # chords of 0.24 rad on a circle of 1 m
    assert "0.0599 m, a quarter of an edge" in scenery.remarks[0]
    assert not Scenery(run, [0], radius=1e-3).remarks
    with pytest.raises(InputError, match="radius: expected a positive number of metres, got nan"):
        Scenery(run, [0], radius=float("nan"))


def test_robots_are_chosen_by_a_text():
    """Read numbers and ranges; refuse others by name."""
    assert chosen_robots("all", 3) == [0, 1, 2] and chosen_robots("5, 0-2,1", 6) == [5, 0, 1, 2]
    for text in ("x", "", "1-", "-1", "3-2", "6", "0-6"):
        with pytest.raises(InputError, match="--robots: expected"):
            chosen_robots(text, 6)


@pytest.mark.parametrize(("robots", "got"), [([], "none"), ([1], "1"), ([0, -1], "-1"), ([0.5], "0.5")])
def test_robots_that_a_run_does_not_have_are_refused(robots, got):
    """Name the robot that there is not, where Python chooses the robots."""
    run = made_up(BENT[None], CHAIN)
    with pytest.raises(InputError, match=f"Scenery: robots: expected .*, got {got}"):
        Scenery(run, robots)


def test_what_cannot_be_coloured_is_refused():
    """Name colours that there are, and what a robot without rods does not have."""
    sheet = np.array([[0.0, 0, 0], [1, 0, 0], [1, 1, 0]])
    run = made_up(sheet[None], (), [[0, 1, 2]])
    with pytest.raises(InputError, match="twist is one of rods"):
        Scenery(run, [0], colour="twist")
    with pytest.raises(InputError, match="colour: expected 'robot' or one of stretch, .*, got 'stress'"):
        Scenery(run, [0], colour="stress")
    assert Scenery(run, [0], colour="speed").scale.unit == "m/s"
    with pytest.raises(InputError, match="every: expected a whole number from 1 up, got 0"):
        Scenery(run, [0], every=0)


def test_chains_of_rigid_elements_are_tubes():
    """Show a chain, which has no directors, as a tube about its elements."""
    from torchdismech.rigid import Radau, RigidChain
    from torchdismech.runs.rollout import rollout

    chain = RigidChain.cylinder(3, 0.5, 0.02, 1000.0, 1e6)
    run = rollout(chain, chain.initial_state(q=torch.full((1, 4), 0.1, dtype=torch.float64)), Radau(1e-3), 2)
    shown = Scenery(run, [0], radius=0.01).shown(2)
    assert np.isfinite(shown.vertices).all() and shown.vertices.shape[1] > 4 * 2 * 16
    own = Scenery(run, [0])  # of its own diameter
    assert not own.remarks and np.allclose(own.shown(2).vertices, shown.vertices, atol=1e-12)


def test_chains_of_rigid_elements_are_shown_without_twist(tmp_path):
    """Carry directors along a chain that bends in space, so that its stripe does not wind; refuse its twist."""
    from torchdismech.rigid import Radau, RigidChain
    from torchdismech.runs.rollout import rollout

    chain = RigidChain.cylinder(3, 0.5, 0.02, 1000.0, 1e6, shear=4e5, space=True)
    bent = [0.2, 0.3, 0.2, 0.0, 0.3, -0.2, 0.0, -0.3, 0.2, 0.0]  # rad: about y; then about z, y and x of each joint
    run = rollout(chain, chain.initial_state(q=torch.tensor([bent], dtype=torch.float64)), Radau(1e-3), 2)
    directors = material_directors(run, np.arange(3), np.arange(1))
    edges = np.diff(run.positions.numpy(), axis=2)
    t = torch.as_tensor(edges / np.linalg.norm(edges, axis=-1, keepdims=True))
    carried = transported(torch.as_tensor(directors[..., :-1, :]), t[..., :-1, :], t[..., 1:, :])
    assert np.allclose(directors[..., 1:, :], carried, rtol=0, atol=1e-12)
    assert np.allclose((directors * t.numpy()).sum(-1), 0, atol=1e-12)
    with pytest.raises(InputError, match="twist is one of rods.*: choose one of stretch, curvature, speed"):
        Scenery(run, colour="twist")
    save_export(Scenery(run), tmp_path / "chain.pvd")
    frame = next((tmp_path / "chain_frames").iterdir()).read_text()
    assert 'Name="curvature"' in frame and 'Name="twist"' not in frame


@pytest.mark.parametrize("command", ["plot", "movie", "export"])
def test_pneumatic_arms_are_shown_from_their_files(tmp_path, command):
    """Draw an arm's run by each command; its axis is a tube without twist."""
    from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
    from torchdismech.runs.rollout import rollout

    arm = PneumaticArm([0.15] * 2, [1.0, 0.5], 0.04, 265.0, 125.0, orientation=(0.0, np.pi, 0.0))
    rollout(arm, arm.initial_state(), ArmIntegrator(dt=2e-3), 1).save(tmp_path / "arm.h5")
    ending, options = {
        "plot": ("png", ["--energies"]),
        "movie": ("gif", ["--size", "64x48", "--radius", "0.04", "--colour", "curvature"]),
        "export": ("glb", ["--radius", "0.04"]),
    }[command]
    out = tmp_path / f"arm.{ending}"
    result = CliRunner().invoke(app, [command, str(tmp_path / "arm.h5"), "--out", str(out), *options])
    assert result.exit_code == 0, (result.output, result.exception)
    assert out.stat().st_size > 1000 and "note" not in result.stderr


def test_chains_in_a_batch_are_as_thick_as_each_is():
    """Show two cylinders of different diameters, tapered ones, and guess where a chain is of parts that have none."""
    from torchdismech.rigid import Radau, RigidChain
    from torchdismech.runs.rollout import rollout

    def seen(diameter, space=False):
        chain = RigidChain.cylinder(3, 0.5, diameter, 1000.0, 1e6, shear=1e6 if space else None, space=space)
        run = rollout(chain, chain.initial_state(), Radau(1e-3), 1)
        scenery = Scenery(run)
        assert scenery.robots.tolist() == list(range(run.batch))
        return run.appearance().sections.height, np.ptp(scenery.shown(0).vertices[..., 1], axis=-1), scenery.remarks

    height, thick, remarks = seen(torch.tensor([[0.02], [0.03]], dtype=torch.float64))
    assert height.shape == (2, 4) and np.allclose(thick, [0.02, 0.03], rtol=0.01) and not remarks
    height, thick, _ = seen([0.02, 0.018, 0.016, 0.014], space=True)
    assert np.allclose(height, [0.02, 0.018, 0.016, 0.014]) and np.allclose(thick, 0.02, rtol=0.01)
    chain = RigidChain([0.1, 0.1], [1.0, 1.0], [0.05, 0.05], [1e-3, 1e-3], [1.0])
    run = rollout(chain, chain.initial_state(), Radau(1e-3), 1)
    assert "the run does not say theirs" in Scenery(run, [0]).remarks[0]
