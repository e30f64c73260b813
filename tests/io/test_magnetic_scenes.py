"""Scenes with magnetised rods: what a file says is the field and the magnetisation, and what is refused."""

import math
import re

import pytest
import torch
from typer.testing import CliRunner

from tests import scenes
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, forces, magnetics, rollout, straight
from torchdismech.cli import app
from torchdismech.cli.runs import check
from torchdismech.contact import HalfSpace, Obstacle, Penalty

ROBOT = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [0.4, 0, 0]]
rod_edges = [[0, 1], [1, 2], [2, 3], [3, 4]]
[[clamp]]
nodes = [0, 1]
[simulation]
dt = 0.01
duration = 0.05
"""
ROD = '[rod]\nsection = {shape = "circle", radius = 5e-3}\nyoungs = 1e6\ndensity = 1000.0\n'
MAGNET = "magnetisation = [1e4, 0, 2e3]\n"
UP = "[magnetic]\nconstant = [0, 0, 0.02]\n"
TURNING = '[magnetic]\nrotating = {amplitude = 0.02, frequency = 2.0, plane = "xz", phase = 0.5}\n'


def run(scene, **options):
    """Return the positions (frames, B, N, 3) of a scene."""
    return scenes.run(scene, **options).positions


def by_hand(magnetisation, field, *loads, build=lambda builder: None):
    """Return the positions of the robot above, built in Python."""
    builder = RobotBuilder()
    builder.add_rod(straight([0, 0, 0], [0.4, 0, 0], 5), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    for force in loads:
        builder.add_force(force)
    if field is not None:
        builder.add_force(magnetics.Magnetic(magnetisation, field))
    build(builder)
    model = builder.finalize()
    return rollout(model, model.initial_state(), ImplicitEuler(0.01, max_substeps=16), 5).positions


def agree(found, expected):
    """Compare positions: linspace and a file differ in last digits, Newton leaves 1e-8 of the force."""
    assert float((expected[-1] - expected[0]).abs().max()) > 1e-4  # it moves
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def turning(time):
    """Return the field of the rotating one above."""
    angle = 2 * math.pi * 2.0 * time + 0.5
    return 0.02 * torch.stack([torch.cos(angle), 0 * time, torch.sin(angle)], dim=-1)


CODE = """
import math, torch
from torchdismech import magnetics

def turning(time):
    angle = 2 * math.pi * 2.0 * time + 0.5
    return 0.02 * torch.stack([torch.cos(angle), 0 * time, torch.sin(angle)], dim=-1)

dipole = magnetics.Dipole((0, 0, 2e3), (0.4, 0, -0.2))
"""


@pytest.mark.parametrize(
    ("table", "field"),
    [
        (UP, (0.0, 0.0, 0.02)),
        (TURNING, turning),
        ('[magnetic]\npython = "field.py:turning"\n', turning),
        ('[magnetic]\npython = "field.py:dipole"\n', magnetics.Dipole((0, 0, 2e3), (0.4, 0, -0.2))),
        (
            '[magnetic]\ndipole = {file = "m.csv"}\n',
            magnetics.MovingDipole([0.0, 0.04], [[0, 0, 2e3], [1e3, 0, 0]], [[0.4, 0, -0.2], [0.5, 0.1, -0.3]]),
        ),
        ('[magnetic]\nfile = "b.csv"\nscale = 2.0\n', magnetics.Table([0.0, 0.04], [[0, 0, 0.01], [0.02, 0, 0.04]])),
    ],
    ids=["constant", "rotating", "function", "module", "moving dipole", "table"],
)
def test_fields(load, table, field):
    """Get the numbers of the same robot in Python, in every kind of field."""
    files = {"field__py": CODE, "b__csv": "t, Bx, By, Bz\n0, 0, 0, 0.005\n0.04, 0.01, 0, 0.02\n"}
    files["m__csv"] = "0, 0.4, 0, -0.2, 0, 0, 2e3\n0.04, 0.5, 0.1, -0.3, 1e3, 0, 0\n"
    found = run(load(ROBOT + ROD + MAGNET + table, **files), allow_code=True)
    agree(found, by_hand((1e4, 0.0, 2e3), field))


@pytest.mark.parametrize(
    ("table", "said"),
    [
        (TURNING, "rotating magnetic field"),
        ('[magnetic]\nfile = "t.csv"\n', "magnetic.file from t.csv"),
        ('[magnetic]\ndipole = {file = "t.csv"}\n', "magnetic.dipole.file from t.csv"),
        (UP, "nothing"),
    ],
)
def test_checks_say_which_fields_change(load, capsys, table, said):
    """Name the field that turns, or the file that says how field or magnet change."""
    numbers = "0, 0.4, 0, -0.2, 0, 0, 2e3\n" if "dipole" in table else "0, 0, 0, 0.005\n"
    check(load(ROBOT + ROD + MAGNET + table, t__csv=numbers).path)
    assert re.search(rf"^over time +{said}$", capsys.readouterr().out, re.MULTILINE)


def test_magnetisation_by_edge(load):
    """Give edges rows of a file, tables their own, and those without any none."""
    rows = [[1e4, 0, 0], [0, 0, 5e3], [0, 0, 0], [2e4, 0, -1e3]]
    agree(
        run(load(ROBOT + ROD + 'magnetisation_file = "m.csv"\n' + UP, m__csv=csv(rows))),
        by_hand(rows, (0.0, 0.0, 0.02)),
    )
    first = ROD.replace("[rod]", "[[rod]]") + 'nodes = [0, 1, 2]\nmagnetisation_file = "m.csv"\n'
    middle = ROD.replace("[rod]", "[[rod]]") + "nodes = [2, 3]\n"
    last = ROD.replace("[rod]", "[[rod]]") + "nodes = [3, 4]\nmagnetisation = [2e4, 0, -1e3]\n"
    found = run(load(ROBOT + last + middle + first + UP, m__csv=csv(rows[:2])))
    agree(found, by_hand(rows, (0.0, 0.0, 0.02)))


def csv(rows):
    """Return the text of a file of rows."""
    return "x, y, z\n" + "".join(", ".join(map(str, row)) + "\n" for row in rows)


@pytest.mark.parametrize(
    ("table", "name", "field"),
    [
        (UP, "magnetic.constant.2", lambda v: (0.0, 0.0, v)),
        (TURNING, "magnetic.rotating.amplitude", lambda v: lambda t: v / 0.02 * turning(t)),
        ('[magnetic]\nfile = "b.csv"\n', "magnetic.scale", lambda v: (0.0, 0.0, v * 0.5)),
        (UP, "rod.magnetisation.0", None),
    ],
    ids=["constant", "rotating", "file", "magnetisation"],
)
def test_numbers_may_be_drawn(load, table, name, field):
    """Give each robot its own field or magnetisation; a part of the batch keeps them."""
    drawn = [0.01, 0.03] if field is not None else [1e4, -2e4]
    batch = f'[batch]\nsize = 2\n[batch.randomize]\n"{name}" = {{values = {drawn}}}\n'
    scene = load(ROBOT + ROD + MAGNET + table + batch, b__csv="0, 0, 0, 0.5\n")
    found = run(scene)
    for k, value in enumerate(drawn):
        if field is None:
            expected = by_hand((value, 0.0, 2e3), (0.0, 0.0, 0.02))
        else:
            expected = by_hand((1e4, 0.0, 2e3), field(value))
        agree(found[:, k : k + 1], expected)
        agree(run(scene.part(slice(k, k + 1))), expected)


def test_springs_floor_and_drag(load):
    """Take the stiffness of single springs, a floor for some nodes, and drag with present lengths."""
    tables = "[[spring]]\nnodes = [[1, 2, 3], [4, 3, 2]]\nstiffness = {EI1 = 5e-3, EI2 = 4e-3}\n"
    tables += "[floor]\nheight = -0.01\nstiffness = 50.0\nnodes = [3]\n"
    drag = 'resistive = {tangential = 0.1, normal = 1.0, law = "quadratic", density = 1e3, length = "current"}\n'
    tables += "[environment]\ngravity = [0, 0, -9.81]\n" + drag

    def build(builder):
        builder.set_spring_stiffness([[1, 2, 3], [2, 3, 4]], EI1=5e-3, EI2=4e-3)
        floor = HalfSpace((0, 0, -0.01), (0, 0, 1))
        builder.add_contact(Obstacle(floor, Penalty(50.0, 2.5e-3), name="floor", nodes=[3]))

    loads = (forces.Gravity((0, 0, -9.81)), forces.QuadraticResistive(0.1, 1.0, 1e3, length="current"))
    scene = load(ROBOT + ROD + tables)
    agree(run(scene), by_hand(None, None, *loads, build=build))
    (floor,) = scene.build().model.obstacles
    assert floor.nodes == [3]


def test_stiffness_of_single_springs_may_be_drawn(load):
    """Set each robot's own."""
    tables = "[[spring]]\nnodes = [[1, 2, 3]]\nstiffness = {EI1 = 1e-3}\n"
    tables += '[batch]\nsize = 2\n[batch.randomize]\n"spring.stiffness.EI1" = {values = [1e-3, 2e-3]}\n'
    model = load(ROBOT + ROD + tables).build().model
    spring = [tuple(nodes) for nodes in model.springs.tolist()].index((1, 2, 3))
    assert model.term("bend_twist").energy.EI1[:, spring].tolist() == [1e-3, 2e-3]


# ---- what is refused ---------------------------------------------------------------------------------------------

STATIC = '[simulation]\nintegrator = "static"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ROD + MAGNET, r"rod\.magnetisation: there is no magnetic field: add \[magnetic\]"),
        (ROD + 'magnetisation_file = "m.csv"\n', r"rod\.magnetisation_file: there is no magnetic field"),
        (ROD + UP, r"magnetic: nothing is magnetised"),
        (
            ROD + MAGNET + 'magnetisation_file = "m.csv"\n' + UP,
            "expected magnetisation or magnetisation_file, got both",
        ),
        (ROD + "magnetisation = [nan, 0, 0]\n" + UP, r"rod\.magnetisation\.0: expected a finite number"),
        (ROD + "magnetisation = [1.0, 0]\n" + UP, r"rod\.magnetisation: .* exactly 3 items"),
        (ROD + 'magnetisation_file = "m.csv"\n' + UP, r"m\.csv: expected 4 rows, one for each rod edge .*, got 2"),
        (ROD + 'magnetisation_file = "b.csv"\n' + UP, r"b\.csv:1: expected 3 \(x, y, z\) columns, got 4"),
        (ROD + 'magnetisation_file = "nan.csv"\n' + UP, r"nan\.csv:1: expected finite numbers"),
        (ROD + 'magnetisation_file = "none.csv"\n' + UP, r"rod\.0\.magnetisation_file: no such file"),
        (
            ROD + MAGNET + "[magnetic]\n",
            "expected exactly one of constant or rotating or gradient or dipole or file or python, got none",
        ),
        (ROD + MAGNET + UP + 'file = "b.csv"\n', "got constant and file"),
        (
            ROD + MAGNET + "[magnetic]\ndipole = {moment = [0, 0, 1]}\n",
            "expected moment and center, or a file .*; got moment",
        ),
        (
            ROD + MAGNET + '[magnetic]\ndipole = {file = "b.csv"}\n',
            r"b\.csv:.* expected 7 \(time, x, y, z, moment x, y, z\)",
        ),
        (ROD + MAGNET + UP + "scale = 2.0\n", "magnetic: scale is a factor of the field in a file"),
        (ROD + MAGNET + "[magnetic]\nconstant = [0, inf, 0]\n", r"magnetic\.constant\.1: expected a finite number"),
        (ROD + MAGNET + TURNING.replace('"xz"', '"xx"'), r"magnetic\.rotating\.plane: expected 'xy', "),
        (ROD + MAGNET + '[magnetic]\nfile = "m.csv"\n', r"m\.csv:1: expected 4 \(time, Bx, By, Bz\) columns, got 3"),
        (ROD + MAGNET + '[magnetic]\npython = "field.py"\n', r"magnetic\.python: expected \"file.py:function\""),
        (
            ROD + "[[spring]]\nnodes = [[0, 1, 9]]\nstiffness = {EI1 = 1.0}\n",
            r"spring\.0\.nodes: expected nodes 0 to 4",
        ),
        (
            ROD + "[[spring]]\nnodes = [[0, 1, 3]]\nstiffness = {EI1 = 1.0}\n",
            r"there is no spring of nodes \[0, 1, 3\]",
        ),
        (ROD + "[[spring]]\nnodes = [[0, 1, 2]]\nstiffness = {}\n", "expected at least one of EI1, EI2, GJ"),
        (ROD + "[floor]\nstiffness = 1.0\nnodes = [5]\n", r"floor\.nodes: expected nodes 0 to 4, got 5"),
        (ROD + "[floor]\nstiffness = 1.0\nnodes = [2, 2]\n", r"floor\.nodes: expected each of the nodes once, got 2"),
        (
            ROD + '[environment]\nresistive = {tangential = 1.0, normal = 1.0, length = "current"}\n',
            'length belongs to law = "quadratic"',
        ),
    ],
)
def test_faults_are_refused(load, text, message):
    """Name the key or the line, what was expected and what came."""
    with pytest.raises(InputError, match=message):
        load(ROBOT + text, **FAULTY).build()


FAULTY = {"m__csv": "1, 0, 0\n2, 0, 0\n", "b__csv": "0, 0, 0, 1\n1, 0, 0, 2\n", "nan__csv": "nan, 0, 0\n"}


@pytest.mark.parametrize("table", [TURNING, '[magnetic]\nfile = "b.csv"\n'])
def test_statics_have_no_time(load, table):
    """Refuse fields that change."""
    robot = ROBOT.partition("[simulation]")[0] + STATIC
    with pytest.raises(InputError, match="has no time"):
        load(robot + ROD + MAGNET + table, **FAULTY).build()
    load(robot + ROD + MAGNET + '[magnetic]\nfile = "c.csv"\n', c__csv="0, 0, 0, 1\n").build()


SHELL = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0.1, 0.1, 0.01]]
triangles = [[0, 1, 2], [1, 3, 2]]
[[clamp]]
nodes = [0, 1]
[simulation]
dt = 0.01
duration = 0.05
[shell]
thickness = 1e-3
youngs = 1e6
density = 1000.0
"""


@pytest.mark.parametrize(
    ("keys", "magnetisation"),
    [
        ("magnetisation = [1e4, 0, 2e3]", [[1e4, 0, 2e3]] * 2),
        ('magnetisation_file = "m.csv"', [[1e4, 0, 0], [0, 5e3, 1e3]]),
    ],
)
def test_magnetised_shells(load, keys, magnetisation):
    """Get all bits of the same shell in Python."""
    found = run(load(SHELL + keys + "\n" + TURNING, m__csv=csv(magnetisation)))

    def expected(*added):
        builder = RobotBuilder()
        nodes = [[0, 0, 0], [0.1, 0, 0], [0, 0.1, 0], [0.1, 0.1, 0.01]]
        builder.add_shell(nodes, [[0, 1, 2], [1, 3, 2]], 1e-3, Material(1e6, 1000.0))
        builder.clamp(nodes=[0, 1])
        for force in added:
            builder.add_force(force)
        model = builder.finalize()
        return rollout(model, model.initial_state(), ImplicitEuler(0.01), 5).positions

    field = magnetics.Rotating(0.02, 2.0, (1.0, 0.0, 0.0), (0.0, 0.0, 1.0), 0.5)
    assert torch.equal(found, expected(magnetics.MagneticShells(magnetisation, field)))
    assert not torch.equal(found, expected())


def test_magnetised_shells_and_rods_share_a_field(load):
    """Magnetise both in one scene, each robot of its own; a shell that is not magnetised needs no field."""
    both = SHELL.replace("[0.1, 0.1, 0.01]]", "[0.1, 0.1, 0.01], [0.2, 0, 0]]").replace(
        "triangles", "rod_edges = [[1, 4]]\ntriangles"
    )
    drawn = '[batch]\nsize = 2\n[batch.randomize]\n"shell.magnetisation.0" = {values = [0.0, 1e4]}\n'
    model = load(both + MAGNET + ROD + MAGNET + UP + drawn).build().model
    assert [type(force).__name__ for force in model.forces] == ["Magnetic", "MagneticShells"]
    assert model.forces[1].magnetisation[:, 0, 0].tolist() == [0.0, 1e4]
    with pytest.raises(InputError, match="shell.magnetisation: there is no magnetic field"):
        load(SHELL + MAGNET)
    with pytest.raises(InputError, match="magnetic: nothing is magnetised"):
        load(SHELL + UP)
    with pytest.raises(InputError, match="expected magnetisation or magnetisation_file, got both"):
        load(SHELL + MAGNET + 'magnetisation_file = "m.csv"\n' + UP)
    with pytest.raises(InputError, match="m.csv: expected 2 rows, one for each triangle of the table, got 1"):
        load(SHELL + 'magnetisation_file = "m.csv"\n' + UP, m__csv="1,2,3\n").build()


def test_fields_across_the_plane_are_refused(load):
    """Refuse a field along y for a planar robot, which would do nothing."""
    planar = ROBOT.replace("[[clamp]]", "planar = true\n[[clamp]]")
    with pytest.raises(InputError, match=r"planar: Magnetic\.field is along y"):
        load(planar + ROD + MAGNET + "[magnetic]\nconstant = [0, 1.0, 0]\n").build()
    with pytest.raises(InputError, match=r"planar: Magnetic\.field\.second is along y"):
        turning = '[magnetic]\nrotating = {amplitude = 1.0, frequency = 1.0, plane = "xy"}\n'
        load(planar + ROD + MAGNET + turning).build()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("def field(time):\n    return 1 / 0\n", "field of .* raised ZeroDivisionError in line 2: division by zero"),
        ("def field(time):\n    return (1.0, 2.0)\n", r"function of time has to return \(3,\)"),
        ("def field(time):\n    return None\n", r"field of .*has to return \(3,\) .* got None"),
        ("def field(time):\n    return (0.0, float('nan'), 0.0)\n", "has to give finite numbers at time 0"),
        ("field = 3\n", "has no 'field' that can be called"),
        ("1 / 0\n", "does not run: ZeroDivisionError in line 1: division by zero"),
    ],
)
def test_faults_of_code_are_named(load, code, message):
    """Refuse functions that give no field, before anything runs."""
    scene = load(ROBOT + ROD + MAGNET + '[magnetic]\npython = "field.py:field"\n', field__py=code)
    with pytest.raises(InputError, match=r"magnetic\.python: .*" + message):
        scene.build(allow_code=True)


def test_code_asks_first(load, tmp_path):
    """Run a file only with --allow-code; `check` never does, and says so."""
    code = "raise RuntimeError('was run')\n"
    scene = load(ROBOT + ROD + MAGNET + '[magnetic]\npython = "field.py:field"\n', field__py=code)
    with pytest.raises(InputError, match=r"magnetic\.python: runs code from field.py:field: pass --allow-code"):
        scene.build()
    result = CliRunner().invoke(app, ["check", str(tmp_path / "scene.toml")])
    assert result.exit_code == 0 and "field.py:field (not run)" in result.output and "Magnetic" in result.output
