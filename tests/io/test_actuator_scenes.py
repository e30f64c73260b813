"""Scenes with tendons and chambers: what a file says is what Python builds, and what is refused."""

import re
from pathlib import Path

import pytest
import torch

from tests import scenes
from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, RobotBuilder, rollout, straight
from torchdismech.actuation import AtNodes, Chambers, Fixed, OnEdges, Tendons
from torchdismech.actuation.tendons import SLIP_VELOCITY
from torchdismech.io.report import what_will_run
from torchdismech.io.scene import load_scene
from torchdismech.io.schema.actuators import Chamber, Tendon
from torchdismech.io.schema.base import PER_ROBOT, is_marked

ROBOT = (
    scenes.rod(3, youngs=1e7)
    + """
[[clamp]]
nodes = [0]
direction = "rest"
[simulation]
dt = 0.01
duration = 0.03
"""
)
BY_LENGTH = """
[[tendon]]
nodes = [0, 1, 2, 3]
offset = [0, 0, 0.01]
motor = [-0.1, 0, 0.02]
pull_file = "pull.csv"
stiffness = 500.0
pretension = 0.2
friction = 0.1
slip_velocity = 0.01
"""
BY_TENSION = """
[[tendon]]
edges = [0, 1, 2]
at = 0.25
offsets = [[0, 0.01, 0], [0, 0.01, 0.001], [0, 0.01, 0.002]]
tension = 0.3
"""
CHAMBER = """
[[chamber]]
nodes = [1, 2, 3]
offset = [0, -0.01, 0]
area = 1e-5
pressure_file = "p.csv"
"""
DRAWN_FOR_TWO = '[batch]\nsize = 2\nrandomize = {{"{}" = {{values = [0.0, 0.1]}}}}'
TABLES = {"pull.csv": "time, pull\n0, 0\n0.02, 0.002\n", "p.csv": "0, 0\n0.03, 6e3\n"}


def load(folder, text):
    """Return a scene with its tables beside it."""
    for name, content in TABLES.items():
        (folder / name).write_text(content)
    path = folder / "scene.toml"
    path.write_text(ROBOT + text)
    return load_scene(path)


def test_files_drive_what_python_drives(tmp_path):
    """Make the steps of the same robot built in Python, the tables by hand."""
    setup = load(tmp_path, BY_LENGTH + BY_TENSION + CHAMBER).build()
    found = rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule, every=1)
    builder = RobotBuilder()
    builder.add_rod(straight([0, 0, 0], [0.3, 0, 0], 4), Circle(5e-3), Material(1e7, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    route = [Fixed((-0.1, 0, 0.02)), AtNodes(range(4), (0, 0, 0.01))]
    builder.add_force(Tendons([route], pull=[0.0], stiffness=500.0, pretension=0.2, friction=0.1, slip_velocity=0.01))
    offsets = [[0, 0.01, 0], [0, 0.01, 0.001], [0, 0.01, 0.002]]
    builder.add_force(Tendons([OnEdges(range(3), offsets, at=0.25)], tension=0.3))
    builder.add_force(Chambers([AtNodes([1, 2, 3], (0, -0.01, 0))], 1e-5, [0.0]))
    model = builder.finalize()

    def schedule(time, model):
        pull, pressure = (0.1 * time).clamp(max=0.002), 2e5 * time
        return Control(values={"Tendons.pull": pull[:, None], "Chambers.pressure": pressure[:, None]})

    expected = rollout(model, model.initial_state(), ImplicitEuler(dt=0.01), 3, schedule=schedule, every=1)
    assert not expected.failed.any()
    # both are solved to a residual of 1e-8 N
    torch.testing.assert_close(found.positions, expected.positions, rtol=0, atol=1e-8)


def test_tables_that_are_driven_alike_are_one_force(tmp_path):
    """Put tendons by tension, with a file or not, into one force, with friction into another; list them."""
    by_file = BY_TENSION.replace("tension = 0.3", 'tension_file = "p.csv"')
    text = BY_TENSION + BY_LENGTH + by_file + BY_TENSION.replace("0.3", "0.5\nfriction = 0.1")
    scene = load(tmp_path, text)
    setup = scene.build()
    smooth, by_length, rough = setup.model.forces
    assert smooth.tension.tolist() == [0.3, 0.0]
    assert by_length.pull.tolist() == [0.0]
    assert rough.friction.tolist() == [0.1]
    values = setup.schedule(torch.tensor([0.03, 0.015], dtype=torch.float64), setup.model).values
    assert values["Tendons.tension"].tolist() == [[0.3, 6e3], [0.3, 3e3]]
    assert set(values) == {"Tendons.tension", "Tendons2.pull"}
    assert what_will_run(scene, setup)["forces"] == "Tendons, Tendons2, Tendons3"


def test_what_a_table_leaves_out_is_the_default(tmp_path):
    """Have the defaults of `Tendons` where another table of the same force gives a number."""
    rough = BY_LENGTH.replace("slip_velocity = 0.01\n", "").replace("pretension = 0.2\n", "")
    (force,) = load(tmp_path, BY_LENGTH + rough).build().model.forces
    assert force.slip_velocity.tolist() == [0.01, SLIP_VELOCITY]
    assert force.pretension.tolist() == [0.2, 0.0]


def test_robots_of_a_batch_differ(tmp_path):
    """Draw tension, friction and area for each robot."""
    batch = """
[batch]
size = 3
randomize = {"tendon.0.tension" = {values = [0.0, 0.1, 0.2]}, "chamber.0.area" = {uniform = [1e-5, 2e-5]}}
"""
    scene = load(tmp_path, BY_TENSION + CHAMBER.replace('pressure_file = "p.csv"', "pressure = 1e3") + batch)
    tendon, chamber = scene.build().model.forces
    assert tendon.tension.tolist() == [[0.0], [0.1], [0.2]]
    assert chamber.area.shape == (3, 1)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (BY_TENSION + "pull = 0.1", "exactly one of tension or tension_file or pull or pull_file"),
        (BY_TENSION + "stiffness = 1.0", "stiffness is of tendons driven by length"),
        (BY_TENSION + "slip_velocity = 1.0", "slip_velocity belongs to friction"),
        (BY_TENSION + "friction = -0.1", "friction"),
        ("[[tendon]]\nnodes = [0, 3]\ntension = 1.0\nfriction = 0.1\n", "friction: a tendon of two points has no"),
        (
            BY_TENSION + "friction = 0.1\n[[tendon]]\nnodes = [3]\nmotor = [0, 0, 1]\ntension = 1.0\nfriction = 0.1\n",
            "tendon.1: friction: a tendon of two points has no point between them to rub at",
        ),
        (BY_TENSION + "offset = [0, 0, 0]", "offset or offsets, got both"),
        (BY_TENSION.replace("edges = [0, 1, 2]", "edges = [0, 1]"), "one of each of the 2 edges, got 3"),
        (BY_TENSION.replace("edges = [0, 1, 2]", "edges = [0, 1, 3]"), "expected edges 0 to 2, got 3"),
        (BY_LENGTH.replace("stiffness = 500.0\n", ""), "stiffness is missing"),
        (BY_LENGTH.replace("nodes = [0,", "at = 0.1\nnodes = [0,"), "at is a place along edges"),
        (BY_LENGTH.replace("2, 3]", "2, 4]"), "expected nodes 0 to 3, got 4"),
        (BY_LENGTH.replace("[0, 1, 2, 3]", "[1, 1]"), "points 1 and 2 are one point"),
        (BY_LENGTH.replace("pull.csv", "none.csv"), "no such file"),
        (
            '[batch]\nsize = 2\nrandomize = {"tendon.0.tension" = {values = [0.0, 0.1]}}',
            "there is no 'tendon' in the scene to be drawn",
        ),
        (
            BY_LENGTH + DRAWN_FOR_TWO.format("tendon.0.offset.2"),
            "share it; of this table these may differ: stiffness, pretension, friction, slip_velocity",
        ),
        (CHAMBER + DRAWN_FOR_TWO.format("chamber.0.offset.1"), "share it; of this table these may differ: area"),
        (CHAMBER + DRAWN_FOR_TWO.format("robot.nodes.0.0"), "all robots of a batch share their geometry"),
        ("[[tendon]]\nnodes = [1]\ntension = 1.0\n", "two points or more"),
        (CHAMBER + "pressure = 1.0", "exactly one of pressure or pressure_file"),
        (CHAMBER.replace("1e-5", "0.0"), "greater than 0|above 0|more than 0"),
    ],
)
def test_refusals(tmp_path, text, problem):
    """Name the key and what is wrong with it."""
    with pytest.raises(InputError, match=problem):
        load(tmp_path, text).build()


def test_tables_of_files_are_checked(tmp_path):
    """Refuse tensions below zero, and tables over time where there is none."""
    by_file = BY_TENSION.replace("tension = 0.3", 'tension_file = "t.csv"')
    (tmp_path / "t.csv").write_text("0, 0.1\n1, -0.1\n")
    with pytest.raises(InputError, match="tendon.*tension_file.*0 or more"):
        load(tmp_path, by_file).build()
    (tmp_path / "mm.csv").write_text("0, 0\n1, 2.0\n")
    with pytest.raises(
        InputError, match=r"tendon.*1.*pull_file: mm.csv: tendon 1 is to be pulled in by 2 m, and is 0.4"
    ):
        load(tmp_path, BY_LENGTH + BY_LENGTH.replace("pull.csv", "mm.csv")).build()
    still = ROBOT.replace("dt = 0.01\nduration = 0.03", 'integrator = "static"')
    path = tmp_path / "still.toml"
    path.write_text(still + BY_LENGTH)
    with pytest.raises(InputError, match="2 rows"):
        load_scene(path).build()


DRAWN = {
    "tendon": ("tension", "pull", "stiffness", "pretension", "friction", "slip_velocity"),
    "chamber": ("area", "pressure"),
}


def test_what_the_page_says_is_drawn(tmp_path):
    """Draw each number of tendons and chambers that docs/scene.md says may be drawn; there are no others."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "scene.md").read_text(encoding="utf-8")
    for name, table in (("tendon", Tendon), ("chamber", Chamber)):
        said = re.search(rf"`\[\[{name}\]\]` \(([\w, ]+)[:)]", page)
        assert said is not None and tuple(said[1].split(", ")) == DRAWN[name]
        assert {key for key, field in table.model_fields.items() if is_marked(field, PER_ROBOT)} == set(DRAWN[name])
    by_length = BY_LENGTH.replace('pull_file = "pull.csv"', "pull = 1e-3")
    chamber = CHAMBER.replace('pressure_file = "p.csv"', "pressure = 1e3")
    names = ["tendon.0.tension", *(f"tendon.1.{name}" for name in DRAWN["tendon"][1:])]
    names += [f"chamber.0.{name}" for name in DRAWN["chamber"]]
    drawn = "".join(f'"{name}" = {{uniform = [1e-3, 2e-3]}}\n' for name in names)
    scene = load(tmp_path, BY_TENSION + by_length + chamber + f"[batch]\nsize = 2\n[batch.randomize]\n{drawn}")
    forces = scene.build().model.forces
    for force, attributes in zip(forces, (DRAWN["tendon"][:1], DRAWN["tendon"][1:], DRAWN["chamber"]), strict=True):
        for attribute in attributes:
            first, second = getattr(force, attribute)
            assert first != second, attribute
