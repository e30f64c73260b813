"""Malformed scenes: the floor, contact with itself, contact radii, obstacles, contact in statics."""

import pytest
from typer.testing import CliRunner

from tests.io.refusals import assert_refused
from tests.io.scene_texts import ball, constraint, floor, obstacle, obstacles, rod, scene_text
from torchdismech.cli import app

MALFORMED = {
    # contact: [floor], [self_contact], contact_radius
    "floor of a kind": (scene_text(floor=floor(hight="0.0")), "floor.hight: unknown key; did you mean 'height'"),
    "floor at infinity": (scene_text(floor=floor(height="-inf")), "floor.height: expected a finite number"),
    "two floors": (f"{scene_text()}\n[[floor]]\n{floor()}\n", "floor: expected", "table [floor]"),
    "start in the floor": (
        scene_text(floor=floor(response='"barrier"', height="0.0")),
        "robot 0, node 0: the gap to obstacle 'floor' is -0.001 m",
    ),
    "one robot in the floor": (
        scene_text(floor=floor(response='"barrier"'))
        + "[batch]\nsize = 2\n[batch.randomize]\n"
        + '"floor.height" = {values = [-0.1, 0.1]}\n',
        "robot 1, node 0: the gap to obstacle 'floor' is -0.101 m",
    ),
    "clamped in a constraint": (
        scene_text(floor=constraint(height="0.0")),
        "floor: clamped node 0 of robot 0 starts at a gap of -0.001 m",
        "expects the gaps of clamped nodes, which it cannot push out, above 0",
    ),
    "sliding in a constraint": (
        scene_text(clamp="nodes = [2]\nnormal = [0, 0, -2]", floor=constraint(height="0.0")),
        "floor: clamped node 2 of robot 0 starts at a gap of -0.001 m",
    ),
    "height held in a constraint": (
        scene_text(clamp='nodes = [2]\naxes = "z"', floor=constraint(height="0.0")),
        "floor: clamped node 2 of robot 0 starts at a gap of -0.001 m",
    ),
    "parts in each other": (
        scene_text(
            robot="nodes = [[0, 0, 0], [0.1, 0, 0], [0.05, -0.1, 0.001], [0.05, 0.1, 0.001]]\n"
            "rod_edges = [[0, 1], [2, 3]]",
            self_contact='stiffness = 1.0\nresponse = "barrier"',
        ),
        "robot 0, node 0: the gap to a part of its own (self_contact) is -0.001 m",
    ),
    "negative ring": (
        scene_text(self_contact="stiffness = 1.0\nring = -1"),
        "self_contact.ring: expected greater than or equal to 0",
    ),
    "ring without end": (
        scene_text(self_contact="stiffness = 1.0\nring = 1000000000000000000"),
        "self_contact.ring: expected less than or equal to 2147483647",
    ),
    "ring beyond the robot": (
        scene_text(self_contact="stiffness = 1.0\nring = 4"),
        "self_contact.ring: expected less than 4, the number of nodes, or nothing ever touches; got 4",
    ),
    "self-contact with a height": (
        scene_text(self_contact="stiffness = 1.0\nheight = 0.0"),
        "self_contact.height: unknown key",
    ),
    "contact radius of zero": (
        scene_text(rod=rod(contact_radius="0.0"), floor=floor()),
        "rod.contact_radius: expected greater than 0",
    ),
    "contact radius for nothing": (
        scene_text(rod=rod(contact_radius="1e-3")),
        "rod.contact_radius: nothing touches the robot",
    ),
    # contact: [[obstacle]]
    "obstacle alone": (
        scene_text() + f"[obstacle]\n{ball()}\n",
        "obstacle: expected a list of tables: write [[obstacle]] in place of [obstacle]",
    ),
    "obstacle without a shape": (
        scene_text(obstacle=ball(shape=None)),
        "obstacle.0.shape: missing; expected 'plane', 'sphere', 'box', 'capsule', 'cylinder' or 'mesh'",
    ),
    "unknown shape": (
        scene_text(obstacle=ball(shape='"cone"')),
        "obstacle.0.shape: expected 'plane', 'sphere', 'box', 'capsule', 'cylinder' or 'mesh', got 'cone'",
    ),
    "key of another shape": (
        scene_text(obstacle=ball(size="[1, 1, 1]")),
        "obstacle.0.size: unknown key; expected one of response",
    ),
    "ball without a radius": (scene_text(obstacle=ball(radius=None)), "obstacle.0.radius: missing (radius [m])"),
    "ball of negative radius": (scene_text(obstacle=ball(radius="-1")), "obstacle.0.radius: expected greater than 0"),
    "flat center": (scene_text(obstacle=ball(center="[0, 0]")), "obstacle.0.center:", "3 items"),
    "plane without a normal": (
        obstacle("plane", point="[0, 0, -1]", normal="[0, 0, 0]"),
        "obstacle.0.normal: expected a direction that is not zero",
    ),
    "box without a side": (
        obstacle("box", center="[0, 0, 1]", size="[1, 0, 1]"),
        "obstacle.0.size.1: expected greater than 0",
    ),
    "rotation matrix": (
        obstacle("box", center="[0, 0, 1]", size="[1, 1, 1]", rotation="[[1, 0, 0], [0, 1, 0], [0, 0, 1]]"),
        "obstacle.0.rotation.0: expected a number (rotation vector",
    ),
    "quaternion": (
        obstacle("box", center="[0, 0, 1]", size="[1, 1, 1]", rotation="[1, 0, 0, 0]"),
        "obstacle.0.rotation:",
        "(rotation vector",
    ),
    "capsule without length": (
        obstacle("capsule", start="[0, 0, 1]", end="[0, 0, 1]", radius="0.1"),
        "obstacle.0: Capsule.end: expected another point than Capsule.start (or take a Sphere)",
    ),
    "obstacle's mesh missing": (obstacle("mesh", file='"rock.obj"'), "obstacle.0.file: no such file", "rock.obj"),
    "obstacle's mesh open": (
        obstacle("mesh", file='"open.obj"'),
        "obstacle.0:",
        "open.obj: expected a closed surface (watertight)",
    ),
    "obstacle's mesh inside out": (
        obstacle("mesh", file='"inwards.obj"'),
        "obstacle.0:",
        "inwards.obj: expected triangles wound outwards",
    ),
    "obstacle's mesh of words": (obstacle("mesh", file='"words.ply"'), "obstacle.0:", "words.ply"),
    "obstacle's mesh broken": (obstacle("mesh", file='"broken.obj"'), "obstacle.0:", "broken.obj"),
    "two motions": (
        scene_text(obstacle=ball(velocity="[1, 0, 0]", path='"path.csv"')),
        "obstacle.0: expected velocity or path, got both",
    ),
    "no spacing": (scene_text(obstacle=ball(spacing="0.0")), "obstacle.0.spacing: expected greater than 0"),
    "too many points": (scene_text(obstacle=ball(spacing="1e-9")), "Obstacle.spacing: 1e-09 m makes"),
    "spacing of a plane": (
        obstacle("plane", point="[0, 0, -1]", normal="[0, 0, 1]", spacing="0.01"),
        "obstacle.0.spacing: unknown key",
    ),
    "obstacle's path missing": (scene_text(obstacle=ball(path='"p.csv"')), "obstacle.0.path: no such file"),
    "obstacle's path backwards": (
        scene_text(obstacle=ball(path='"early.csv"')),
        "early.csv:3: expected a time after 1.0",
    ),
    "obstacle's path of two columns": (
        scene_text(obstacle=ball(path='"kappa.csv"')),
        "kappa.csv:2: expected 4 (time, displacement x y z) columns, got 3",
    ),
    "obstacle's path with nan": (scene_text(obstacle=ball(path='"holes.csv"')), "holes.csv:2: expected finite numbers"),
    "obstacle's path of one row": (
        scene_text(obstacle=ball(path='"once.csv"')),
        "obstacle.0.path: once.csv: expected two rows or more, got 1",
    ),
    "two of one name": (
        obstacles(ball(name='"rock"'), ball(name='"rock"')),
        "obstacle.1: add_contact: 'rock' is the name of something else",
    ),
    "name of a number": (
        obstacles(ball(name='"obstacle1"'), ball()),
        "obstacle.1: add_contact: 'obstacle1' is the name of something else",
    ),
    "name with a slash": (scene_text(obstacle=ball(name='"a/b"')), "obstacle.0.name: expected a letter", "'a/b'"),
    "name that is taken": (scene_text(obstacle=ball(name='"bend"')), "two energies of this robot are called 'bend'"),
    "name of a part": (
        scene_text(obstacle=ball(name='"part0"')),
        "obstacle.0: add_contact: 'part0' is the name of something else",
    ),
    "start in an obstacle": (
        scene_text(obstacle=ball(center="[0.3, 0, 0]", response='"barrier"')),
        "robot 0, node 3: the gap to obstacle 'obstacle0' is -0.101 m",
    ),
    # contact: statics
    "friction in statics": (
        scene_text(floor=floor(friction="0.1"), simulation='integrator = "static"'),
        "floor.friction needs velocities",
    ),
    "motion in statics": (
        scene_text(obstacle=ball(velocity="[0, 0, 1]"), simulation='integrator = "static"'),
        "obstacle.0 moves over time",
    ),
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)


def test_constraint_pushes_out_what_can_move(folder):
    """Accept nodes in a floor by complementarity if they can leave it, and clamped ones that just touch it."""
    path = folder / "scene.toml"
    for clamp, height in (('nodes = [0, 1]\naxes = "xy"', 0.0), ("nodes = [0, 1]", -1e-3)):
        path.write_text(scene_text(clamp=clamp, floor=constraint(height=str(height))))
        result = CliRunner().invoke(app, ["check", str(path)])
        assert result.exit_code == 0, result.output
