"""Scenes with contact: what a file says is what touches, with these numbers, for each robot."""

import math
import re

import pytest
import torch
import trimesh
from typer.testing import CliRunner

from tests.io.contact_scenes import (
    BALL,
    CONSTRAINT,
    FLOOR,
    GRAVITY,
    LENGTH,
    NODES,
    RADIUS,
    RUBBER,
    WEIGHT,
    randomized,
    rod,
    time,
)
from tests.scenes import run
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    RobotBuilder,
    Status,
    forces,
    rollout,
    straight,
)
from torchdismech.cli import app
from torchdismech.contact import (
    Barrier,
    Box,
    Capsule,
    Complementarity,
    Friction,
    HalfSpace,
    Obstacle,
    Path,
    Penalty,
    SelfContact,
    Sphere,
)
from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.io.report import what_will_run

# ---- the tables --------------------------------------------------------------------------------------------------


def test_scene_gives_the_numbers_of_the_same_robot_in_python(load):
    """Run a scene with a rough floor, a moving barrier and self-contact, and the same robot from Python."""
    text = rod(0.006) + "contact_radius = 6e-3\n" + GRAVITY.format(1.0) + time(0.05)
    text += FLOOR + "friction = 0.3\nslip_velocity = 0.01\ntolerance = 2e-3\n"
    text += BALL.replace("[0.1, 0, -0.1]", "[0.1, 0.12, 0.0]") + 'response = "barrier"\nvelocity = [0, -0.5, 0]\n'
    text += "[self_contact]\nstiffness = 20.0\nfriction = 0.1\ntolerance = 1e-3\nring = 2\n"
    robot = RobotBuilder()
    nodes = straight([0, 0, 0.006], [LENGTH, 0, 0.006], NODES)
    robot.add_rod(nodes, Circle(RADIUS), RUBBER, contact_radius=6e-3)
    robot.add_force(forces.Gravity([1.0, 0, -9.81]))
    robot.add_contact(
        Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(100.0, 2e-3), Friction(0.3, 0.01), name="floor")
    )
    path = Path([0.0, 1.0], [[0.0, 0.0, 0.0], [0.0, -0.5, 0.0]])
    ball = Sphere((0.1, 0.12, 0), 0.1)
    robot.add_contact(Obstacle(ball, Barrier(100.0, 3e-3), path=path, name="obstacle0"))  # half of the contact radius
    robot.add_contact(SelfContact(Penalty(20.0, 1e-3), Friction(0.1, 1e-3), ring=2))
    model = robot.finalize()
    by_hand = rollout(model, model.initial_state(), ImplicitEuler(2e-3, max_substeps=16), 25)
    ours = run(load(text))
    # 1e-10 m: linspace and the file differ in the last digit of some coordinates, Newton leaves 1e-8 of the force
    torch.testing.assert_close(ours.positions, by_hand.positions, rtol=0, atol=1e-10)
    assert set(ours.energies) == set(by_hand.energies) and {"floor", "obstacle0", "self_contact"} <= set(ours.energies)
    # the ball came 0.025 m nearer to a rod 4 mm off
    assert (ours.positions[-1, 0, 2, 1] - ours.positions[0, 0, 2, 1]).abs() > 0.01


def test_scene_with_constraints_gives_the_numbers_of_the_same_robot_in_python(load):
    """Run a scene with a rough floor, a moving ball and self-contact by constraints, and the same from Python."""
    text = rod(RADIUS + 1e-3) + GRAVITY.format(1.0) + time(0.04)
    text += CONSTRAINT + "friction = 0.3\ntolerance = 2e-8\n"
    text += BALL.replace("[0.1, 0, -0.1]", "[0.1, 0.11, 0.02]").replace("stiffness = 100.0\n", "")
    text += 'response = "complementarity"\nvelocity = [0, -0.5, 0]\n'
    text += '[self_contact]\nresponse = "complementarity"\nfriction = 0.1\nring = 2\n'
    robot = RobotBuilder()
    robot.add_rod(straight([0, 0, RADIUS + 1e-3], [LENGTH, 0, RADIUS + 1e-3], NODES), Circle(RADIUS), RUBBER)
    robot.add_force(forces.Gravity([1.0, 0, -9.81]))
    floor = HalfSpace((0, 0, 0), (0, 0, 1))
    robot.add_contact(Obstacle(floor, Complementarity(2e-8), Friction(0.3), name="floor"))
    ball = Sphere((0.1, 0.11, 0.02), 0.1)
    robot.add_contact(Obstacle(ball, Complementarity(), path=Path.uniform((0, -0.5, 0)), name="obstacle0"))
    robot.add_contact(SelfContact(Complementarity(), Friction(0.1), ring=2))
    model = robot.finalize()
    by_hand = rollout(model, model.initial_state(), ImplicitEuler(2e-3, max_substeps=16), 20)
    ours = run(load(text))
    # 1e-10 m: linspace and the file differ in the last digit of some coordinates, Newton leaves 1e-8 of the force
    torch.testing.assert_close(ours.positions, by_hand.positions, rtol=0, atol=1e-10)
    assert (ours.positions[-1, 0, 2, 1] - ours.positions[0, 0, 2, 1]).abs() > 5e-3  # the ball pushed the rod
    assert ours.positions[-1, 0, :, 2].min() < RADIUS + 1e-7  # and the floor holds it
    tolerances = [o.law.response.tolerance.item() for o in load(text).build().model.obstacles]
    assert tolerances == [2e-8, 1e-8]


BUNDLE = (
    "[robot]\nnodes = [[-0.05, 0, 0.02], [0, 0, 0.02], [0.05, 0, 0.02], [0, -0.05, 0], [0, 0, 0], [0, 0.05, 0], "
    "[-0.02, -0.05, 0], [-0.02, 0, 0], [-0.02, 0.05, 0]]\n"
    "rod_edges = [[0, 1], [1, 2], [3, 4], [4, 5], [6, 7], [7, 8]]\n"
    + "".join(
        f'[[rod]]\nname = "{name}"\nnodes = {nodes}\nsection = {{shape = "circle", radius = {RADIUS}}}\n'
        "youngs = 1e6\ndensity = 1000.0\n"
        for name, nodes in (("finger", [0, 1, 2]), ("rope", [3, 4, 5]), ("rope", [6, 7, 8]))
    )
    + "[[clamp]]\nnodes = [3, 4, 5, 6, 7, 8]\n"
)


def test_named_parts_touch_as_the_same_robot_in_python(load):
    """Drop a rod on two that are held, by a contact of named parts and one of the rest: as from Python."""
    text = BUNDLE + GRAVITY.format(0.5) + time(0.08, dt=4e-3)
    named = '[[contact]]\nbetween = ["finger", "rope"]\nstiffness = 500.0\nfriction = 0.3\ntolerance = 1e-3\n'
    rest = "[self_contact]\nstiffness = 50.0\ntolerance = 1e-3\nthemselves = false\n"
    robot = RobotBuilder()
    nodes = torch.tensor([[-0.05, 0, 0.02], [0, 0, 0.02], [0.05, 0, 0.02]], dtype=torch.float64)
    robot.add_rod(nodes, Circle(RADIUS), RUBBER, name="finger")
    for x in (0.0, -0.02):
        robot.add_rod([[x, -0.05, 0], [x, 0, 0], [x, 0.05, 0]], Circle(RADIUS), RUBBER, name="rope")
    robot.clamp(nodes=[3, 4, 5, 6, 7, 8])
    robot.add_force(forces.Gravity([0.5, 0, -9.81]))
    robot.add_contact(SelfContact(Penalty(500.0, 1e-3), Friction(0.3, 1e-3), between=("finger", "rope")))
    robot.add_contact(SelfContact(Penalty(50.0, 1e-3), themselves=False))
    model = robot.finalize()
    by_hand = rollout(model, model.initial_state(), ImplicitEuler(4e-3, max_substeps=16), 20)
    ours = run(load(text + named + rest))
    # 1e-10 m: as above
    torch.testing.assert_close(ours.positions, by_hand.positions, rtol=0, atol=1e-10)
    assert {"finger-rope", "self_contact"} <= set(ours.energies) and float(ours.energies["finger-rope"].max()) > 0
    assert float(ours.positions[-1, 0, 1, 2]) > 8e-3
    alone = run(load(text + named + 'name = "grip"\nring = 1\nrounding = 0.02\n'))
    assert "grip" in alone.energies and "self_contact" not in alone.energies
    through = run(load(text + named.replace('"finger", "rope"', '"rope", "rope"')))
    assert float(through.positions[-1, 0, 1, 2]) < -4e-3


def test_rods_that_roll(load):
    """Give a floor and an obstacle on which rods roll, as in Python; refuse it where there is no friction."""
    text = rod(0.1) + time(0.01) + FLOOR + "friction = 0.3\n"
    assert [load(text + key).build().model.obstacles[0].rolling for key in ("", "rolling = true\n")] == [False, True]
    ball = '[[obstacle]]\nshape = "sphere"\ncenter = [0, 0, -1]\nradius = 0.5\nstiffness = 1.0\n'
    assert load(text + ball + "friction = 0.3\nrolling = true\n").build().model.obstacles[1].rolling
    with pytest.raises(InputError, match="floor: rolling belongs to friction"):
        load(rod(0.1) + time(0.01) + FLOOR + "rolling = true\n")
    with pytest.raises(InputError, match="floor: rolling: response"):
        load(rod(0.1) + time(0.01) + CONSTRAINT + "friction = 0.3\nrolling = true\n")


def test_friction_along_rods(load):
    """Give the floor, and robots of a batch, coefficients along rods; refuse them where they cannot be."""
    text = rod(0.1) + time(0.01) + FLOOR + "friction = 0.3\nforward_friction = 0.1\n"
    law = load(text + "backward_friction = 0.2\n").build().model.obstacles[0].law
    assert [float(x) for x in law.friction.given()[-2:]] == [0.1, 0.2]
    drawn = load(text + "backward_friction = 0.2\n" + randomized("floor.backward_friction", [0.5, 0.6]))
    drawn = drawn.build().model.obstacles[0].law.friction
    assert drawn.backward_coefficient.flatten().tolist() == [0.5, 0.6] and float(drawn.forward_coefficient) == 0.1
    with pytest.raises(InputError, match="floor: forward_friction belongs to friction"):
        load(rod(0.1) + time(0.01) + FLOOR + "forward_friction = 0.1\n")
    with pytest.raises(InputError, match="floor: backward_friction: response"):
        load(rod(0.1) + time(0.01) + CONSTRAINT + "friction = 0.3\nbackward_friction = 0.4\n")
    with pytest.raises(InputError, match=r"self_contact"):
        load(rod(0.1) + time(0.01) + "[self_contact]\nstiffness = 1.0\nfriction = 0.3\nforward_friction = 0.4\n")


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("friction = 0.3\nstatic_friction = 0.2\n", "floor: Friction.static: expected the coefficient or more"),
        ("static_friction = 0.2\n", "floor: static_friction belongs to friction"),
        ("friction = 0.3\nrelease = 3.0\n", "floor: release belongs to static_friction"),
        ("friction = 0.3\nstatic_friction = 0.4\nrelease = 1.0\n", "floor.release: expected greater than 1"),
    ],
)
def test_static_friction_is_refused_by_key(load, keys, problem):
    """Name file, key and what was expected where friction at rest cannot be."""
    with pytest.raises(InputError, match=re.escape(problem)):
        load(rod(0.1) + time(0.01) + FLOOR + keys).build()
    with pytest.raises(InputError, match="floor: static_friction: response"):
        load(rod(0.1) + time(0.01) + CONSTRAINT + "friction = 0.3\nstatic_friction = 0.4\n")


@pytest.mark.parametrize(
    ("tables", "problem"),
    [
        (
            'between = ["finger", "net"]\n',
            "SelfContact 'finger-net'.between: the robot has no part named 'net'; it has 'finger', 'rope'",
        ),
        ('between = ["finger"]\n', "contact.0.between"),
        ("", "contact.0.between: missing"),
        ('between = ["finger", "finger"]\nthemselves = false\n', "there is nothing that may touch by it"),
        ('between = ["finger", "rope"]\nthemselves = false\n', "contact.0: SelfContact.themselves"),
        ('between = ["finger", "rope"]\nname = "stretch"\n', "two energies of this robot are called 'stretch'"),
        ('between = ["finger", "rope"]\nring = 9\n', "contact.0.ring: expected less than 9"),
        (
            'between = ["finger", "rope"]\n[[contact]]\nstiffness = 1.0\nbetween = ["rope", "finger"]\n',
            "rules how these parts touch already",
        ),
    ],
)
def test_contacts_of_parts_are_refused_by_key(load, tables, problem):
    """Name file, key and what was expected where a contact of named parts cannot be."""
    with pytest.raises(InputError, match=re.escape(problem)):
        load(BUNDLE + time(0.01) + "[[contact]]\nstiffness = 1.0\n" + tables).build()
    with pytest.raises(InputError, match="rod.0.name: expected a letter"):
        load(BUNDLE.replace('"finger"', '"fin ger"') + time(0.01))


def test_every_shape_reaches_the_model(load, tmp_path):
    """Find shape, sizes, name and motion of each kind of obstacle."""
    trimesh.creation.box((1.0, 2.0, 3.0)).apply_translation([0, 0, -5]).export(tmp_path / "rock.stl")
    law = "stiffness = 3.0\n"
    text = rod(0.1) + time(0.01)
    text += f'[[obstacle]]\nshape = "plane"\npoint = [0, 0, -1]\nnormal = [0, 1, 2]\n{law}name = "slope"\n'
    text += f'[[obstacle]]\nshape = "box"\ncenter = [0, 0, -2]\nsize = [1, 2, 3]\nrotation = [0, 0, 0.5]\n{law}'
    text += "spacing = 0.001\n"
    text += f'[[obstacle]]\nshape = "capsule"\nstart = [0, 0, -2]\nend = [1, 0, -2]\nradius = 0.5\n{law}'
    text += f'[[obstacle]]\nshape = "mesh"\nfile = "rock.stl"\n{law}path = "way.csv"\n'
    plane, box, capsule, mesh = load(text, way__csv="time,x,y,z\n0,0,0,0\n2,0,1,4\n").build().model.obstacles
    assert [o.name for o in (plane, box, capsule, mesh)] == ["slope", "obstacle1", "obstacle2", "obstacle3"]
    assert isinstance(plane.shape, HalfSpace) and plane.shape.normal.tolist() == [0, 1, 2]
    assert plane.shape.point.tolist() == [0, 0, -1]
    assert box.spacing == 0.001 and capsule.spacing is None
    assert isinstance(box.shape, Box) and box.shape.rotation.tolist() == [0, 0, 0.5]
    assert box.shape.center.tolist() == [0, 0, -2] and box.shape.size.tolist() == [1, 2, 3]
    assert isinstance(capsule.shape, Capsule) and capsule.shape.radius.item() == 0.5
    assert capsule.shape.start.tolist() == [0, 0, -2] and capsule.shape.end.tolist() == [1, 0, -2]
    assert isinstance(mesh.shape, Mesh) and mesh.shape.size.tolist() == [1, 2, 3]
    middle = torch.tensor([1.0], dtype=torch.float64)
    displacement, velocity = mesh.path.displacement(middle), mesh.path.velocity(middle)
    assert displacement.tolist() == [[0, 0.5, 2]] and velocity.tolist() == [[0, 0.5, 2]]


def test_an_obstacle_in_millimetres_is_scaled_and_its_size_is_shown(load, tmp_path):
    """Read a mesh in millimetres as one in metres, and say how large it is; it could only be 40 m large before."""
    trimesh.creation.box((40.0, 20.0, 30.0)).apply_translation([0, 0, -50]).export(tmp_path / "rock.stl")
    table = '[[obstacle]]\nshape = "mesh"\nfile = "rock.stl"\nstiffness = 3.0\nspacing = 4e-3\n'
    scene = load(rod(0.1) + time(0.01) + table + "scale = 1e-3\n")
    setup = scene.build()
    (rock,) = setup.model.obstacles
    in_metres = torch.tensor([[-0.02, -0.01, -0.065], [0.02, 0.01, -0.035]], dtype=torch.float64)
    found = torch.stack([rock.shape.vertices.amin(0), rock.shape.vertices.amax(0)])
    torch.testing.assert_close(found, in_metres, rtol=1e-7, atol=0)  # the file has single precision
    assert (
        "obstacle0 (mesh of 0.04 x 0.02 x 0.03 m, penalty, points 0.004 m apart)"
        in what_will_run(scene, setup)["contact"]
    )
    for scale in ("0.0", "-1e-3", "nan"):
        with pytest.raises(InputError, match=r"obstacle\.0\.scale: expected"):
            load(rod(0.1) + time(0.01) + table + f"scale = {scale}\n")
        with pytest.raises(InputError, match=r"rock\.stl: scale: expected"):
            Mesh.from_file(tmp_path / "rock.stl", scale=float(scale))


def test_a_mesh_is_turned_about_its_origin_and_put_in_its_place(load, tmp_path):
    """Turn a box in millimetres by 90 degrees about z, so that x becomes y, then move it."""
    trimesh.creation.box(bounds=[[10.0, 0.0, 0.0], [40.0, 20.0, 5.0]]).export(tmp_path / "step.stl")
    table = '[[obstacle]]\nshape = "mesh"\nfile = "step.stl"\nscale = 1e-3\nstiffness = 3.0\n'
    scene = load(rod(0.1) + time(0.01) + table + f"rotation = [0, 0, {math.pi / 2}]\nposition = [0, 0, -0.05]\n")
    shape = scene.build().model.obstacles[0].shape
    expected = torch.tensor([[-0.02, 0.01, -0.05], [0.0, 0.04, -0.045]], dtype=torch.float64)
    found = torch.stack([shape.vertices.amin(0), shape.vertices.amax(0)])
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-9)  # the file has single precision
    above = shape.distance(torch.tensor([[[-0.01, 0.02, 0.0]]], dtype=torch.float64))
    torch.testing.assert_close(above, torch.tensor([[0.045]], dtype=torch.float64), rtol=0, atol=1e-9)
    for key, wrong in (("rotation", [0, 0, 90]), ("position", [[0, 0, 0]] * 2), ("position", [0, math.nan, 0])):
        with pytest.raises(InputError, match=rf"step\.stl: {key}: expected"):
            Mesh.from_file(tmp_path / "step.stl", **{key: wrong})
    with pytest.raises(InputError, match=r"obstacle\.0\.position: expected"):
        load(rod(0.1) + time(0.01) + table + "position = [0, 0]\n")


def test_defaults_are_those_of_the_documentation(load):
    """Find a smooth penalty from half the smallest contact radius on, a floor at 0, and 16 substeps."""
    setup = load(rod(0.1) + time(0.01) + "[floor]\nstiffness = 1.0\n").build()
    (floor,) = setup.model.obstacles
    assert isinstance(floor.law.response, Penalty) and floor.law.friction is None and floor.path is None
    assert floor.law.response.tolerance.item() == 0.5 * RADIUS and floor.shape.point.tolist() == [0, 0, 0]
    assert setup.integrator.max_substeps == 16
    rough = load(rod(0.1) + time(0.01) + "max_substeps = 0\n" + FLOOR + "friction = 0.2\n").build()
    assert rough.model.obstacles[0].law.friction.slip_velocity.item() == 1e-3 and rough.integrator.max_substeps == 0
    holding = load(rod(0.1) + time(0.01) + FLOOR + "friction = 0.2\nstatic_friction = 0.5\n").build().model
    law = holding.obstacles[0].law.friction
    assert (law.coefficient.item(), law.static.item(), law.release.item()) == (0.2, 0.5, 10.0)
    drawn = FLOOR + "friction = 0.2\nstatic_friction = 0.5\n" + randomized("floor.release", [3.0, 4.0])
    law = load(rod(0.1) + time(0.01) + drawn).build().model.obstacles[0].law.friction
    assert law.release.tolist() == [[3.0], [4.0]]
    smooth = load(rod(0.1) + time(0.01) + FLOOR + "friction = 0.0\n").build().model
    assert smooth.obstacles[0].law.friction is None


def test_default_tolerance_is_of_each_robots_smallest_radius(load):
    """Draw radii of robots with two kinds of rod and a shell: half of the smallest counts."""
    text = (
        "[robot]\nnodes = [[0, 0, 1], [1, 0, 1], [2, 0, 1], [2, 1, 1]]\nrod_edges = [[0, 1]]\ntriangles = [[1, 2, 3]]\n"
        + '[rod]\nsection = {shape = "rectangle", width = 4e-3, height = 6e-3}\nyoungs = 1e6\ndensity = 1e3\n'
        + "[shell]\nthickness = 3e-3\nyoungs = 1e6\ndensity = 1e3\n"
        + time(0.01)
        + FLOOR
    )
    assert load(text).build().model.obstacles[0].law.response.tolerance.item() == 0.75e-3
    text += randomized("rod.section.width", [4e-3, 1e-3])
    tolerance = load(text).build().model.obstacles[0].law.response.tolerance
    assert tolerance.flatten().tolist() == pytest.approx([0.75e-3, 0.25e-3], rel=1e-15)


def test_check_prints_what_touches(load, tmp_path):
    """Find obstacles by name and shape, self-contact and radii in one line."""

    def line(text: str) -> str:
        load(text)
        printed = CliRunner().invoke(app, ["check", str(tmp_path / "scene.toml"), "--device", "cpu"])
        assert printed.exit_code == 0, printed.output
        return next(line for line in printed.stdout.splitlines() if line.startswith("contact"))

    good = rod(0.1) + time(0.01)
    assert line(good).split() == ["contact", "none"]
    text = (
        good + FLOOR + BALL + 'name = "ball"\nvelocity = [0, 0, 1]\n' + BALL + 'response = "barrier"\nspacing = 2e-3\n'
    )
    expected = (
        "floor (penalty), ball (sphere, penalty, moving), obstacle1 (sphere, barrier, points 0.002 m apart); "
        "self-contact: no; radii 0.005"
    )
    assert expected in line(text)
    rubbing = good + FLOOR + "friction = 0.3\nbackward_friction = 0.5\nrolling = true\n"
    assert "floor (penalty, friction along rods, rods roll); self" in line(rubbing)
    assert "no obstacles; self-contact: penalty" in line(good + "[self_contact]\nstiffness = 1.0\n")
    named = BUNDLE + time(0.01) + '[[contact]]\nresponse = "barrier"\nstiffness = 1.0\nbetween = ["rope", "finger"]\n'
    assert "no obstacles; rope-finger: barrier, self-contact: penalty" in line(
        named + "[self_contact]\nstiffness = 1.0\n"
    )


# ---- what happens ------------------------------------------------------------------------------------------------


def test_rests_on_a_floor_that_is_a_constraint(load):
    """Find the equilibrium of a rod that is held above the floor."""
    floor = '[floor]\nresponse = "complementarity"\n'
    held = '[[clamp]]\nnodes = [0]\ndirection = "rest"\n'
    trajectory = run(load(rod(2 * RADIUS) + floor + held + GRAVITY.format(0) + '[simulation]\nintegrator = "static"\n'))
    assert trajectory.positions[-1, 0, -1, 2].item() == pytest.approx(RADIUS, abs=1e-8)
    # .59 for a beam that leaves the floor at .12 m; the rod has four edges
    assert trajectory.contact["force/floor"][-1, 0, 2].item() / WEIGHT == pytest.approx(0.59, abs=0.1)


def test_constraint_holds_below_the_angle_of_friction_and_lets_slide_above(load):
    """Tilt gravity by 0.2 on floors of friction 0.3 and 0.1: one rod does not move at all, the other as it should."""
    text = rod(RADIUS) + GRAVITY.format(0.2 * 9.81) + time(0.2) + CONSTRAINT + "friction = 0.3\n"
    trajectory = run(load(text + randomized("floor.friction", [0.3, 0.1])))
    moved = trajectory.positions[-1, 0] - trajectory.positions[0, 0]
    # 100 steps, each with its laws broken by 1e-8 m at most
    assert moved.abs().max() < 1e-6
    # a = (0.2 - 0.1) g from the start, as the rod touches from the start; implicit Euler is exact for velocities
    speed = trajectory.velocities[-1, 1, :, 0].mean().item()
    assert speed == pytest.approx(0.1 * 9.81 * 0.2, rel=1e-4)
    assert (trajectory.positions[:, :, :, 2] > RADIUS - 2e-8).all()
    contact = trajectory.contact
    assert (contact["sticking"][1:, 0] == NODES).all() and (contact["sliding"][1:, 0] == 0).all()
    assert (contact["sliding"][1:, 1] == NODES).all() and (contact["penetration"] < 2e-8).all()
    # the floor carries the weight, and a tangential force of what pulls, or of what friction gives
    force = contact["force/floor"][-1] / WEIGHT
    expected = torch.tensor([[-0.2, 0, 1], [-0.1, 0, 1]], dtype=torch.float64)
    torch.testing.assert_close(force, expected, rtol=0, atol=1e-4)


def test_responses_may_be_mixed(load):
    """Drape a rod over a ball that is a constraint, on a penalty floor, against a wall with a barrier: all hold it."""
    text = rod(RADIUS + 1e-3) + GRAVITY.format(3.0) + time(0.12, dt=4e-3) + FLOOR
    text += '[[obstacle]]\nshape = "sphere"\ncenter = [0.1, 0, -0.05]\nradius = 0.053\nresponse = "complementarity"\n'
    text += '[[obstacle]]\nshape = "plane"\npoint = [0.206, 0, 0]\nnormal = [-1, 0, 0]\nstiffness = 100.0\n'
    text += 'response = "barrier"\n'
    trajectory = run(load(text))
    end = trajectory.positions[-1, 0]
    assert (torch.linalg.vector_norm(end - torch.tensor([0.1, 0, -0.05]), dim=1) > 0.053 + RADIUS - 2e-8).all()
    assert end[0, 2] < RADIUS and end[:, 0].max() < 0.206 - RADIUS
    for name in ("floor", "obstacle0", "obstacle1"):
        assert trajectory.contact[f"force/{name}"][-5:, 0].norm() > 0.01 * WEIGHT


def test_rod_rests_on_a_mesh_like_on_the_sphere_that_it_stands_for(load, tmp_path):
    """Drape a rod over a ball of triangles and over a sphere: they end in the same shape, as closely as balls agree."""
    trimesh.creation.icosphere(4, radius=0.1).apply_translation([0.1, 0, -0.1]).export(tmp_path / "ball.stl")
    mesh = BALL.replace('shape = "sphere"', 'shape = "mesh"\nfile = "ball.stl"')
    mesh = mesh.replace("center = [0.1, 0, -0.1]\nradius = 0.1\n", "")
    shared = rod(RADIUS) + GRAVITY.format(0.0) + time(0.3, dt=0.01) + '[[clamp]]\nnodes = [2]\naxes = "xy"\n'
    on_sphere, on_mesh = (run(load(shared + obstacle)).positions[-1, 0] for obstacle in (BALL, mesh))
    # a ball of 2560 triangles is at most 0.1 mm smaller
    torch.testing.assert_close(on_mesh, on_sphere, rtol=0, atol=5e-4)
    assert on_sphere[0, 2] < 0 and on_sphere[2, 2] > 0.8 * RADIUS


def test_plate_is_not_jumped_over(load):
    """Shoot a rod at a plate that it would jump over in one step: the step is taken in parts unless that is off."""
    plate = '[[obstacle]]\nshape = "box"\ncenter = [0.1, 0, -0.12]\nsize = [1, 1, 0.05]\nstiffness = 1e4\n'
    text = rod(0.0) + "[environment]\ngravity = [0, 0, -400.0]\n" + plate + time(0.03, dt=0.03)
    setup = load(text + "max_substeps = 0\n").build()
    _, info = setup.integrator.step(setup.model, setup.state)
    assert info.status.tolist() == [Status.PASSED_THROUGH]
    assert (run(load(text)).positions[-1, 0, :, 2] > -0.12).all()
