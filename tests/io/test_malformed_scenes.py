"""Malformed scenes: each is refused by file and key, with exit status 2 and without a traceback."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from torchdismech import InputError
from torchdismech.cli import app
from torchdismech.io.scene import load_scene

# A good scene in parts, which the cases below replace or add to.
GOOD = {
    "robot": "nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0]]\nrod_edges = [[0, 1], [1, 2], [2, 3]]",
    "rod": 'section = {shape = "circle", radius = 1e-3}\nyoungs = 1e6\ndensity = 1000.0',
    "clamp": "nodes = [0, 1]",
    "simulation": "dt = 0.01\nduration = 0.1",
}
ARRAYS = {"clamp", "move", "mass", "point_force", "obstacle"}
FILES = {
    "arm.txt": "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,0\n*Edges\n1,2\n2,3\n",
    "bad.txt": "*Nodes\n0,0,0\n0.1,0,0\n*Edges\n1,2\n2,2\n",
    "lonely.txt": "*Nodes\n0,0,0\n0.1,0,0\n0.2,0,0\n*Edges\n1,2\n",
    "shell.txt": "*Nodes\n0,0,0\n1,0,0\n0,1,0\n*Triangles\n1,2,3\n",
    "mixed.txt": "*Nodes\n0,0,0\n1,0,0\n0,1,0\n*Edges\n1,2\n*Triangles\n1,2,3\n",
    "broken.obj": "v 0 0 0\nv 1 0 0\nv 0 1 0\nf 1 2 7\n",
    "words.ply": "these are words",
    "kappa.csv": "time,a,b\n0,0,0\n1,0.1,0.2\n",
    "short.csv": "0,0\n1,0.1\n",
    "backwards.csv": "0,0,0\n1,0,0\n0.5,0,0\n",
    "words.csv": "0,0,0\n1,0,much\n",
    "nan.csv": "0,0,nan\n",
    "ragged.csv": "0,0,0,0,0\n1,0,0\n",
    "empty.csv": "time,a,b\n",
    "negative.csv": "0,0.1,0.1,-0.1\n",
    "path.csv": "time,x,y,z\n0,0,0,0\n1,0,0,0.1\n",
    "early.csv": "0,0,0,0\n1,0,0,0\n0.5,0,0,0\n",
    "holes.csv": "0,0,0,0\n1,0,nan,0\n",
    "once.csv": "0,0,0,0\n",
    "tetrahedron.obj": "v 0 0 1\nv 1 0 1\nv 0 1 1\nv 0 0 2\nf 1 3 2\nf 1 2 4\nf 2 3 4\nf 1 4 3\n",
    "inwards.obj": "v 0 0 1\nv 1 0 1\nv 0 1 1\nv 0 0 2\nf 1 2 3\nf 1 4 2\nf 2 4 3\nf 1 3 4\n",
    "open.obj": "v 0 0 1\nv 1 0 1\nv 0 1 1\nv 0 0 2\nf 1 3 2\nf 1 2 4\nf 2 3 4\n",
    "index.txt": "*Nodes\n0,0,0\n0.1,0,0\n*Edges\n1,99999999999999999999\n",
    "far.txt": "*Nodes\n0,0,0\n1e200,0,0\n*Edges\n1,2\n",
    "underscore.csv": "0,0.1,0.1,0.1\n1,1_0,0.1,0.1\n",
    "infinite.csv": "0,0.1,0.1,inf\n",
    "wide.csv": "0," + "1" * 200_000 + "\n",
    "raises.py": "raise RuntimeError('no')",
    "nothing.py": "x = 1",
}


def scene_text(**tables: str | None) -> str:
    """Return the good scene with some tables replaced, added or (None) left out."""
    parts = []
    for name, body in (GOOD | tables).items():
        if body is not None:
            table = name.replace("__", ".")
            parts.append(f"[[{table}]]\n{body}" if name in ARRAYS else f"[{table}]\n{body}")
    return "\n\n".join(parts) + "\n"


def rod(**changes: str | None) -> str:
    """Return the table [rod] with some keys replaced, added or left out."""
    keys = {"section": '{shape = "circle", radius = 1e-3}', "youngs": "1e6", "density": "1000.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def shell(**changes: str | None) -> str:
    """Return the table [shell] with some keys replaced, added or left out."""
    keys = {"thickness": "1e-3", "youngs": "1e6", "density": "1000.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def square(triangles: str) -> str:
    """Return the table [robot] of a square with these triangles."""
    return f"nodes = [[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0]]\ntriangles = {triangles}"


SQUARE = square("[[0, 1, 2], [0, 2, 3]]")


def shell_scene(**tables: str | None) -> str:
    """Return a good scene of a square shell with some tables replaced, added or left out."""
    return scene_text(**({"robot": SQUARE, "rod": None, "shell": shell()} | tables))


def floor(**changes: str | None) -> str:
    """Return the table [floor] with some keys replaced, added or left out."""
    keys = {"height": "-0.1", "stiffness": "10.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def constraint(**changes: str | None) -> str:
    """Return the table [floor] of a floor that is a constraint, with some keys replaced or added."""
    return floor(**({"stiffness": None, "response": '"complementarity"'} | changes))


def ball(**changes: str | None) -> str:
    """Return a table [[obstacle]] of a ball far off, with some keys replaced, added or left out."""
    keys = {"shape": '"sphere"', "center": "[0, 0, 1]", "radius": "0.1", "stiffness": "10.0"} | changes
    return "\n".join(f"{name} = {value}" for name, value in keys.items() if value is not None)


def obstacles(*tables: str) -> str:
    """Return a scene with several obstacles."""
    return scene_text() + "".join(f"[[obstacle]]\n{table}\n" for table in tables)


def obstacle(shape: str, **keys: str) -> str:
    """Return a scene with an obstacle of a shape."""
    return scene_text(obstacle=ball(shape=f'"{shape}"', **({"center": None, "radius": None} | keys)))


SOLID = 'section = {shape = "circle", radius = 1e-3}\nyoungs = 1e6\ndensity = 1000.0\n'
DRAW = '[batch]\nsize = 4\n[batch.randomize]\n"{}" = {}\n'

# name: (text of the scene, words of the message in order: the key and what is wrong)
MALFORMED = {
    # the file itself
    "not toml": ("[robot\nfile = 1", "not TOML", "line 1"),
    "not text": (b"\xff\xfe\x00", "not a text file"),
    "empty": ("", "robot: missing"),
    "table twice": ("[robot]\n[robot]\n", "not TOML"),
    "integer of 5000 digits": (f"a = {'9' * 5000}", "an integer has too many digits; expected numbers within 64 bits"),
    "integer of 4000 digits": (scene_text(batch=f"seed = {'9' * 4000}"), "batch.seed: expected less than"),
    "float of 4000 digits": (scene_text(rod=rod(youngs="9" * 4000)), "rod.youngs: expected a", "got 9999", "..."),
    "deep lists": ("a = " + "[" * 5000 + "]" * 5000, "tables or lists are nested more than 20 deep"),
    "deep tables": ("robot" + ".a" * 1000 + " = 1", "tables or lists are nested more than 20 deep"),
    "key without end": ("a" * 100_000 + " = 1", "aaa ... aaa", "unknown key"),
    "key that steers a terminal": ('"\\u001b[2J" = 1', "\\x1b[2J: unknown key"),
    "text without end": (scene_text(robot=f'file = "{"a" * 100_000}"'), "robot.file: expected text of at most 1000"),
    "name that no disk takes": (scene_text(robot=f'file = "{"a" * 900}"'), "robot.file: cannot be read: ", "too long"),
    # tables and keys
    "no simulation": (scene_text(simulation=None), "simulation: missing"),
    "no rod": (scene_text(rod=None), "rod: rod edge 0 (nodes [0, 1]) belongs to no [[rod]] table"),
    "unknown table": (scene_text(enviroment="viscosity = 0.1"), "enviroment: unknown key", "'environment'"),
    "misspelt key": (scene_text(rod=rod(youngs=None, yougns="1e6")), "rod.yougns: unknown key", "'youngs'"),
    "unknown key in a section": (
        scene_text(rod=rod(section='{shape = "circle", radius = 1e-3, width = 1e-3}')),
        "rod.section.width: unknown key; expected one of shape, radius",
    ),
    "table instead of a number": (scene_text(simulation="dt = {}\nduration = 0.1"), "simulation.dt", "got {}"),
    "number instead of a table": ("robot = 1\n", "robot:", "got 1"),
    "one table for several": (scene_text(clamp=None) + "[clamp]\nnodes = [0]\n", "clamp:", "list"),
    # [robot]
    "no geometry": (scene_text(robot="planar = true"), "robot: expected exactly one of file or nodes"),
    "two geometries": (scene_text(robot=GOOD["robot"] + '\nfile = "arm.txt"'), "robot: expected exactly one of file"),
    "nodes without edges": (scene_text(robot="nodes = [[0, 0, 0], [1, 0, 0]]"), "robot:", "without rod_edges"),
    "missing file": (scene_text(robot='file = "leg.txt"'), "robot.file: no such file", "leg.txt"),
    "fault in the file": (scene_text(robot='file = "bad.txt"'), "bad.txt:6: edge 2", "itself"),
    "node without edges": (scene_text(robot='file = "lonely.txt"'), "lonely.txt: node 2", "no edge"),
    "flat node": (scene_text(robot="nodes = [[0, 0], [1, 0, 0]]\nrod_edges = [[0, 1]]"), "robot.nodes.0:", "3 items"),
    "node of text": (
        scene_text(robot='nodes = [[0, 0, "0"], [1, 0, 0]]\nrod_edges = [[0, 1]]'),
        "robot.nodes.0.2: expected a number",
    ),
    "node at infinity": (
        scene_text(robot="nodes = [[0, 0, inf], [1, 0, 0]]\nrod_edges = [[0, 1]]"),
        "robot.nodes.0.2: expected a finite number",
    ),
    "node far away": (
        scene_text(robot="nodes = [[0, 0, 0], [1e200, 0, 0]]\nrod_edges = [[0, 1]]"),
        "robot.rod_edges: node 1 is farther than 1e+09 m from the origin",
    ),
    "node of a file far away": (scene_text(robot='file = "far.txt"'), "far.txt: node 1 is farther than 1e+09 m"),
    "index beyond 64 bits": (
        scene_text(robot="nodes = [[0, 0, 0], [1, 0, 0]]\nrod_edges = [[0, 99999999999999999999]]"),
        "robot.rod_edges.0.1: expected less than or equal to 2147483647",
    ),
    "index of a file beyond 64 bits": (
        scene_text(robot='file = "index.txt"'),
        "index.txt:5: expected a node index, a whole number from 1, got '99999999999999999999'",
    ),
    "edge out of range": (
        scene_text(robot="nodes = [[0, 0, 0], [1, 0, 0]]\nrod_edges = [[0, 2]]"),
        "robot.rod_edges: edge 0",
        "no node 2",
    ),
    "negative index": (
        scene_text(robot="nodes = [[0, 0, 0], [1, 0, 0]]\nrod_edges = [[0, -1]]"),
        "robot.rod_edges.0.1: expected greater than or equal to 0",
    ),
    "folded rod": (
        scene_text(robot="nodes = [[0, 0, 0], [1, 0, 0], [0.5, 0, 0]]\nrod_edges = [[0, 1], [1, 2]]"),
        "fold back onto each other at node 1",
    ),
    "planar robot in space": (
        scene_text(robot="planar = true\nnodes = [[0, 0, 0], [1, 1, 0]]\nrod_edges = [[0, 1]]"),
        "robot.planar: the robot is not planar",
    ),
    # [rod]
    "no section": (scene_text(rod="youngs = 1e6\ndensity = 1000.0"), "rod.section: missing"),
    "unknown section": (scene_text(rod=rod(section='{shape = "star", radius = 1.0}')), "rod.section:", "'star'"),
    "section without shape": (scene_text(rod=rod(section="{radius = 1.0}")), "rod.section:", "circle"),
    "section without radius": (scene_text(rod=rod(section='{shape = "circle"}')), "rod.section.radius: missing"),
    "negative radius": (
        scene_text(rod=rod(section='{shape = "circle", radius = -1e-3}')),
        "rod.section.radius: expected greater than 0",
        "got -0.001",
    ),
    "no stiffness": (scene_text(rod=rod(youngs=None)), "rod: youngs is missing"),
    "youngs of text": (scene_text(rod=rod(youngs='"soft"')), "rod.youngs: expected a number", "got 'soft'"),
    "youngs true": (scene_text(rod=rod(youngs="true")), "rod.youngs: expected a number", "got True"),
    "youngs nan": (scene_text(rod=rod(youngs="nan")), "rod.youngs: expected", "got nan"),
    "massless": (scene_text(rod=rod(density="0.0")), "rod.density: expected greater than 0"),
    "auxetic beyond -1": (scene_text(rod=rod(poisson="-1.0")), "rod.poisson: expected greater than -1"),
    "compressible beyond 0.5": (scene_text(rod=rod(poisson="0.51")), "rod.poisson:", "0.5"),
    "unknown stiffness": (scene_text(rod=rod(stiffness="{EI = 1.0}")), "rod.stiffness.EI: unknown key; did you mean"),
    "unknown natural": (scene_text(rod=rod(natural='"flat"')), "rod.natural: expected 'initial' or 'straight'"),
    "edges without a rod": (scene_text(rod=rod(nodes="[0, 1, 2]")), "rod: rod edge 2", "belongs to no [[rod]] table"),
    "rod without edges": (scene_text(rod=rod(nodes="[0, 2]")), "rod.0: no rod edge"),
    "edge in two rods": (
        scene_text(rod=None) + f"[[rod]]\n{SOLID}nodes = [0, 1, 2]\n[[rod]]\n{SOLID}nodes = [1, 2, 3]\n",
        "rod.1: rod edge 1 belongs to rod.0 already",
    ),
    "fault in a second rod": (
        scene_text(rod=None) + f"[[rod]]\n{SOLID}nodes = [0, 1]\n[[rod]]\n{rod(youngs='0')}\nnodes = [1, 2, 3]\n",
        "rod.1.youngs: expected greater than 0",
    ),
    # [[mass]], [[clamp]]
    "mass on no node": (scene_text(mass="nodes = [4]\nadd = 1.0"), "mass.0.nodes: expected nodes 0 to 3, got 4"),
    "negative mass": (scene_text(mass="nodes = [3]\nadd = -1.0"), "mass.0.add: expected greater than 0"),
    "clamp out of range": (scene_text(clamp="nodes = [0, 99]"), "clamp.0.nodes: expected nodes 0 to 3, got 99"),
    "clamp twice the same": (scene_text(clamp="nodes = [0, 0]"), "clamp.0.nodes: expected each of the nodes once"),
    "clamp without nodes": (scene_text(clamp="nodes = []"), "clamp.0.nodes:", "at least 1"),
    "clamp of fractions": (scene_text(clamp="nodes = [0.5]"), "clamp.0.nodes.0: expected a whole number", "got 0.5"),
    "clamp along a line and axes": (
        scene_text(clamp='nodes = [0]\nalong = [1, 0, 1]\naxes = "z"'),
        "clamp.0: clamp: expected one of axes, along and normal, got axes and along",
    ),
    "clamp along no line": (scene_text(clamp="nodes = [0]\nalong = [0, 0, 0]"), "clamp.along: expected a vector (3,)"),
    "clamp across two numbers": (scene_text(clamp="nodes = [0]\nnormal = [0, 1]"), "clamp.0.normal: expected"),
    "clamp of nothing": (scene_text(clamp='axes = "xyz"'), "clamp.0: expected exactly one of nodes or box"),
    "clamp along w": (scene_text(clamp='nodes = [0]\naxes = "xw"'), "clamp.0.axes: expected a subset of"),
    "clamp that holds nothing": (scene_text(clamp='nodes = [0]\naxes = ""\ntwist = false'), "clamp.0:", "nothing"),
    "box inside out": (
        scene_text(clamp="box = {min = [1, 0, 0], max = [0, 0, 0]}"),
        "clamp.0.box: expected min <= max",
    ),
    "box in the void": (
        scene_text(clamp="box = {min = [5, 5, 5], max = [6, 6, 6]}"),
        "clamp.0.box: no node is inside; the robot spans",
    ),
    "all clamped": (scene_text(clamp="nodes = [0, 1, 2, 3]"), "every dof of the robot is clamped"),
    # [[move]]
    "move of nothing": (scene_text(move="start = 0.0"), "move.0: expected nodes or edges"),
    "move without motion": (scene_text(move="nodes = [0]"), "move.0: expected exactly one of velocity or rotation or"),
    "motion of what": (scene_text(move="edges = [0]\nvelocity = [1, 0, 0]"), "move.0:", "expected nodes"),
    "twist without a rate": (scene_text(move="edges = [0]"), "move.0: expected edges and twist_rate together"),
    "move of a free node": (
        scene_text(move="nodes = [3]\nvelocity = [1, 0, 0]"),
        "move.0.nodes: node 3 is moved in x but not clamped there",
    ),
    "twist of a free edge": (
        scene_text(move="edges = [2]\ntwist_rate = 1.0"),
        "move.0.edges: edge 2 is turned but its twist is not clamped",
    ),
    "move that ends before": (
        scene_text(move="nodes = [0]\nvelocity = [1, 0, 0]\nstart = 2.0\nstop = 1.0"),
        "move.0: expected start < stop",
    ),
    "two moves at once": (
        scene_text() + 2 * "[[move]]\nnodes = [0]\nvelocity = [1, 0, 0]\n",
        "move.1.nodes: a node is moved by move.0 at the same time",
    ),
    "rotation about nothing": (
        scene_text(move="nodes = [0]\nrotation = {axis = [0, 0, 0], center = [0, 0, 0], rate = 1.0}"),
        "move.0.rotation.axis: expected a direction that is not zero",
    ),
    "path of another size": (
        scene_text(move='nodes = [0]\nfile = "kappa.csv"'),
        "kappa.csv:2: expected 4 (time, x y z of 1 nodes) columns, got 3",
    ),
    "path that is not there": (scene_text(move='nodes = [0]\nfile = "p.csv"'), "move.0.file: no such file"),
    # [environment], [[point_force]]
    "gravity of two numbers": (
        scene_text(environment="gravity = [0, -9.81]"),
        "environment.gravity: expected a list of exactly 3 items (acceleration [x, y, z] in m/s^2), got [0, -9.81]",
    ),
    "direction of another kind": (
        scene_text(clamp='nodes = [0]\ndirection = "up"'),
        "clamp.0.direction: expected \"rest\" or [x, y, z]: hold rods at the nodes in this direction, got 'up'\n",
    ),
    "direction of two numbers": (
        scene_text(clamp="nodes = [0]\ndirection = [0, 1]"),
        'clamp.0.direction: expected "rest" or [x, y, z]',
        "got [0, 1]",
    ),
    "distribution that is a list": (
        scene_text(batch='size = 2\n[batch.randomize]\n"rod.youngs" = [1e6, 2e6]'),
        "batch.randomize.rod.youngs: expected a table (by dotted name a table of one of uniform = [low, high]",
        "got [1000000.0, 2000000.0]",
    ),
    "gravity of one number": (scene_text(environment="gravity = -9.81"), "environment.gravity: expected a list"),
    "gravity in the plane": (scene_text(environment="gravity = [0, -9.81]"), "environment.gravity:", "3 items"),
    "buoyancy without gravity": (scene_text(environment="fluid_density = 1e3"), "environment: fluid_density"),
    "negative viscosity": (scene_text(environment="viscosity = -0.1"), "environment.viscosity: expected", "-0.1"),
    "quadratic without density": (
        scene_text(environment='resistive = {tangential = 0.1, normal = 1.0, law = "quadratic"}'),
        'environment.resistive: law = "quadratic" needs the density',
    ),
    "linear with density": (
        scene_text(environment="resistive = {tangential = 0.1, normal = 1.0, density = 1e3}"),
        "environment.resistive: density belongs to",
    ),
    "force on no node": (
        scene_text(point_force="nodes = [4]\nforce = [1, 0, 0]"),
        "point_force.0.nodes: expected nodes",
    ),
    "force without end": (
        scene_text(point_force="nodes = [3]\nforce = [1, 0, 0]\nstart = 1.0\nstop = 1.0"),
        "point_force.0: expected start < stop",
    ),
    # [actuation]
    "actuation of nothing": (scene_text(actuation=""), "actuation: expected at least one of"),
    "actuation file not there": (
        scene_text(actuation='natural_curvature = "k.csv"'),
        "actuation.natural_curvature: no such file",
    ),
    "columns that do not fit": (
        scene_text(actuation='natural_curvature = "short.csv"'),
        "short.csv:1: expected 3 (time, kappa1 of 2 springs) or 5 (time, kappa1 and kappa2 of 2 springs) columns",
    ),
    "length columns that do not fit": (
        scene_text(actuation='rest_length = "kappa.csv"'),
        "kappa.csv:2: expected 4 (time, rest length of 3 rod edges) columns, got 3",
    ),
    "rows of two widths": (
        scene_text(actuation='natural_curvature = "ragged.csv"'),
        "ragged.csv:2: expected 5 columns as in the rows before, got 3",
    ),
    "time backwards": (
        scene_text(actuation='natural_twist = "backwards.csv"'),
        "backwards.csv:3: expected a time after",
    ),
    "word in a table": (
        scene_text(actuation='natural_twist = "words.csv"'),
        "words.csv:2: expected a number, got 'much'",
    ),
    "nan in a table": (scene_text(actuation='natural_twist = "nan.csv"'), "nan.csv:1: expected finite numbers"),
    "underscore in a table": (
        scene_text(actuation='rest_length = "underscore.csv"'),
        "underscore.csv:2: expected a number, got '1_0'",
    ),
    "infinity in a table": (
        scene_text(actuation='rest_length = "infinite.csv"'),
        "infinite.csv:1: expected finite numbers",
    ),
    "number without end": (scene_text(actuation='rest_length = "wide.csv"'), "wide.csv:1: not a row of numbers"),
    "table without rows": (scene_text(actuation='natural_twist = "empty.csv"'), "empty.csv: no rows"),
    "negative length": (scene_text(actuation='rest_length = "negative.csv"'), "actuation.rest_length", "above 0"),
    "python without a function": (scene_text(actuation='python = "act.py"'), "actuation.python: expected", "function"),
    # [simulation]
    "unknown integrator": (
        scene_text(simulation='integrator = "rk4"\ndt = 0.01\nduration = 0.1'),
        "simulation.integrator: expected 'implicit_euler'",
        "got 'rk4'",
    ),
    "no dt": (scene_text(simulation="duration = 0.1"), "simulation: dt is missing"),
    "dt of zero": (scene_text(simulation="dt = 0\nduration = 0.1"), "simulation.dt: expected greater than 0"),
    "duration between steps": (
        scene_text(simulation="dt = 0.03\nduration = 0.1"),
        "simulation:",
        "whole number of steps",
    ),
    "eternal": (scene_text(simulation="dt = 1e-300\nduration = 1e300"), "simulation:", "expected at most"),
    "steps of a century": (
        scene_text(simulation="dt = 1e-3\nduration = 1e9"),
        "simulation.duration: 1000000000000 steps take at least 1,157 days at 0.1 ms each",
        "expected at most 25920000000 steps; --insist",
    ),
    "endless load steps": (
        scene_text(simulation='integrator = "static"\nload_steps = 1000000000'),
        "simulation.load_steps: expected less than or equal to 100000",
    ),
    "endless iterations": (
        scene_text(simulation=GOOD["simulation"] + "\nmax_iterations = 1000000000000"),
        "simulation.max_iterations: expected less than or equal to 100000",
    ),
    "endless substeps": (
        scene_text(simulation=GOOD["simulation"] + "\nmax_substeps = 1000000000000"),
        "simulation.max_substeps: expected less than or equal to 1000000",
    ),
    "static with dt": (scene_text(simulation='integrator = "static"\ndt = 0.1'), "simulation: dt does not apply"),
    "static with a table over time": (
        scene_text(simulation='integrator = "static"', actuation='natural_twist = "kappa.csv"'),
        "actuation.natural_twist: kappa.csv has 2 rows",
        "expected one row",
    ),
    "static with motion": (
        scene_text(simulation='integrator = "static"', move="nodes = [0]\nvelocity = [1, 0, 0]"),
        "[[move]] prescribes motion over time",
    ),
    "load steps in time": (
        scene_text(simulation="dt = 0.01\nduration = 0.1\nload_steps = 5"),
        'simulation: load_steps belongs to integrator = "static"',
    ),
    "unstable in Euler": (
        scene_text(simulation='dt = 0.01\nduration = 0.1\nunstable = "leave"'),
        'simulation: unstable belongs to integrator = "static"',
    ),
    "unstable": (
        scene_text(simulation='integrator = "static"\nunstable = "ignore"'),
        "simulation.unstable: expected 'leave', 'report' or 'fail'",
    ),
    "beta in Euler": (scene_text(simulation="dt = 0.01\nduration = 0.1\nbeta = 0.25"), "simulation: beta belongs to"),
    "no iteration": (scene_text(simulation=GOOD["simulation"] + "\nmax_iterations = 0"), "simulation.max_iterations:"),
    "tolerance above 1": (
        scene_text(simulation=GOOD["simulation"] + "\nrelative_tolerance = 1.0"),
        "simulation.relative_tolerance: expected less than 1",
    ),
    "line search perhaps": (
        scene_text(simulation=GOOD["simulation"] + '\nline_search = "yes"'),
        "simulation.line_search: expected true or false",
    ),
    "compile perhaps": (
        scene_text(simulation=GOOD["simulation"] + '\ncompile = "yes"'),
        "simulation.compile: expected true, false or \"auto\", got 'yes'",
    ),
    "compile as a number": (
        scene_text(simulation=GOOD["simulation"] + "\ncompile = 1"),
        'simulation.compile: expected true, false or "auto", got 1',
    ),
    "unknown solver": (
        scene_text(simulation=GOOD["simulation"] + '\nsolver = "magic"'),
        "simulation.solver: expected one of auto, dense, banded",
        "got 'magic'",
    ),
    "option of a solver": (
        scene_text(simulation=GOOD["simulation"] + '\nsolver = {name = "pcg", tolerence = 1e-9}'),
        "simulation.solver: pcg has no option 'tolerence'; it takes tolerance",
    ),
    # [batch], [output]
    "batch of none": (scene_text(batch="size = 0"), "batch.size: expected greater than or equal to 1"),
    "batch of a billion": (
        scene_text(batch="size = 1000000000"),
        "batch.size: 1000000000 robots of 4 nodes take at least",
        "--insist",
    ),
    "batch of fractions": (scene_text(batch="size = 1.5"), "batch.size: expected a whole number"),
    "negative seed": (scene_text(batch="seed = -1"), "batch.seed: expected"),
    "every none": (scene_text(output="every = 0"), "output.every: expected greater than or equal to 1"),
    "unknown distribution": (
        scene_text() + DRAW.format("rod.youngs", "{gauss = [1, 2]}"),
        "batch.randomize.rod.youngs.gauss: unknown key",
    ),
    "two distributions": (
        scene_text() + DRAW.format("rod.youngs", "{uniform = [1, 2], normal = [1, 2]}"),
        "batch.randomize.rod.youngs: expected exactly one of uniform",
    ),
    "empty interval": (scene_text() + DRAW.format("rod.youngs", "{uniform = [2, 1]}"), "low <= high"),
    "values for another batch": (
        scene_text() + DRAW.format("rod.youngs", "{values = [1e6, 2e6]}"),
        'batch.randomize."rod.youngs".values: expected 4 numbers (batch.size), got 2',
    ),
    "draws below zero": (
        scene_text() + DRAW.format("rod.youngs", "{uniform = [-2, -1]}"),
        'batch.randomize."rod.youngs": robot',
        "expected greater than 0",
    ),
    "drawing dt": (
        scene_text() + DRAW.format("simulation.dt", "{uniform = [0.01, 0.02]}"),
        'batch.randomize."simulation.dt": this number cannot differ from robot to robot',
        "same steps",
    ),
    "drawing an index": (
        scene_text() + DRAW.format("clamp.0.nodes.0", "{uniform = [0, 1]}"),
        "cannot differ from robot to robot",
    ),
    "drawing a name that is not there": (
        scene_text() + DRAW.format("rod.yungs", "{uniform = [1, 2]}"),
        "batch.randomize.\"rod.yungs\": there is no 'yungs'",
    ),
    "drawing what is not set": (
        scene_text() + DRAW.format("environment.viscosity", "{uniform = [1, 2]}"),
        "there is no 'viscosity' in the scene",
    ),
    "drawing a table": (
        scene_text() + DRAW.format("rod.section", "{uniform = [1, 2]}"),
        "expected the name of one number",
    ),
    "drawing a vector": (
        scene_text(environment="gravity = [0, 0, -9.81]") + DRAW.format("environment.gravity", "{uniform = [1, 2]}"),
        "add an index",
    ),
    "drawing twice": (
        scene_text() + DRAW.format("rod.youngs", "{uniform = [1, 2]}") + '"rod.0.youngs" = {uniform = [1, 2]}\n',
        "drawn under another name",
    ),
    # shells: tables
    "no thickness": (shell_scene(shell=shell(thickness=None)), "shell.thickness: missing (thickness [m])"),
    "negative thickness": (shell_scene(shell=shell(thickness="-1e-3")), "shell.thickness: expected greater than 0"),
    "shell without youngs": (shell_scene(shell=shell(youngs=None)), "shell.youngs: missing"),
    "weightless shell": (shell_scene(shell=shell(density="0.0")), "shell.density: expected greater than 0"),
    "unknown bending": (shell_scene(shell=shell(bending='"hinges"')), "shell.bending: expected 'hinge' or 'midedge'"),
    "natural of a rod": (shell_scene(shell=shell(natural='"straight"')), "shell.natural: expected 'initial' or 'flat'"),
    "section of a shell": (shell_scene(shell=shell(section="1.0")), "shell.section: unknown key"),
    "stiffness of a rod": (shell_scene(shell=shell(stiffness="{EA = 1.0}")), "shell.stiffness.EA: unknown key"),
    "shell with poisson 0.6": (shell_scene(shell=shell(poisson="0.6")), "shell.poisson:", "0.5"),
    "nodes and box of a shell": (
        shell_scene(shell=shell(nodes="[0, 1, 2]", box="{min = [0, 0, 0], max = [1, 1, 1]}")),
        "shell: expected exactly one of nodes or box",
    ),
    "shell without triangles": (shell_scene(shell=shell(nodes="[0, 1]")), "shell.0: no triangle"),
    "triangles without a shell": (
        shell_scene(shell=shell(nodes="[0, 1, 2]")),
        "shell: triangle 1",
        "no [[shell]] table",
    ),
    "no shell table": (shell_scene(shell=None), "shell: triangle 0 (nodes [0, 1, 2]) belongs to no [[shell]]"),
    "triangle in two shells": (
        shell_scene(shell=None) + 2 * f"[[shell]]\n{shell()}\n",
        "shell.1: triangle 0 belongs to shell.0 already",
    ),
    "node of a shell out of range": (
        shell_scene(shell=shell(nodes="[0, 1, 9]")),
        "shell.0.nodes: expected nodes 0 to 3",
    ),
    "shell table for rods": (scene_text(shell=shell()), "shell.0: there is no triangle"),
    "rod table for shells": (shell_scene(rod=rod()), "rod.0: there is no rod edge"),
    "unlike bending at an edge": (
        shell_scene(shell=None)
        + "[[shell]]\n"
        + shell(nodes="[0, 1, 2]", bending='"hinge"')
        + "\n[[shell]]\n"
        + shell(nodes="[0, 2, 3]"),
        "bending is 'hinge' on one side of the edge (2, 0)",
    ),
    # shells: geometry
    "planar shell": (shell_scene(robot=SQUARE + "\nplanar = true"), "robot: planar = true is for rods"),
    "triangle out of range": (shell_scene(robot=square("[[0, 1, 4]]")), "robot.triangles: triangle 0", "no node 4"),
    "triangle of two nodes": (shell_scene(robot=square("[[0, 1, 1]]")), "robot.triangles: triangle 0", "twice"),
    "triangle of two numbers": (shell_scene(robot=square("[[0, 1]]")), "robot.triangles.0:", "3 items"),
    "triangle given twice": (
        shell_scene(robot=square("[[0, 1, 2], [0, 2, 3], [2, 1, 0]]")),
        "robot.triangles: triangle 2",
        "given before as triangle 0",
    ),
    "triangle on a line": (
        shell_scene(robot="nodes = [[0, 0, 0], [1, 0, 0], [2, 0, 0]]\ntriangles = [[0, 1, 2]]"),
        "robot.triangles: triangle 0",
        "has no area",
    ),
    "three triangles at an edge": (
        shell_scene(
            robot="nodes = [[0,0,0], [1,0,0], [0,1,0], [0,-1,0], [0,0,1]]\n"
            "triangles = [[0, 1, 2], [1, 0, 3], [0, 1, 4]]"
        ),
        "robot.triangles: expected at most two triangles at an edge",
        "edge (0, 1)",
    ),
    "triangles that touch in a node": (
        shell_scene(
            robot="nodes = [[0,0,0], [1,0,0], [1,1,0], [-1,0,0], [-1,-1,0]]\ntriangles = [[0, 1, 2], [0, 3, 4]]"
        ),
        "robot.triangles: parts of the surface touch in a single node",
    ),
    "shell with a lonely node": (shell_scene(robot=square("[[0, 1, 2]]")), "robot.triangles: node 3"),
    "file and triangles": (
        shell_scene(robot='file = "shell.txt"\ntriangles = [[0, 1, 2]]'),
        "robot: expected either file or nodes and triangles",
    ),
    "coincident nodes": (
        shell_scene(
            robot="nodes = [[0,0,0], [1,0,0], [1,1,0], [0,0,0], [-1,0,0], [0,1,1]]\ntriangles = [[0, 1, 2], [3, 4, 5]]"
        ),
        "robot: nodes 0 and 3 are at the same place",
    ),  # fmt: skip
    "missing mesh": (shell_scene(robot='file = "body.stl"'), "robot.file: no such file", "body.stl"),
    "broken mesh": (shell_scene(robot='file = "broken.obj"'), "broken.obj"),
    "mesh that is text": (shell_scene(robot='file = "words.ply"'), "words.ply"),
    "unknown joints": (
        scene_text(robot=GOOD["robot"] + '\njoints = "loose"'),
        "robot.joints: expected 'stiff' or 'pinned'",
    ),
    # shells: forces and actuation
    "drag without density": (
        shell_scene(environment="drag = {coefficient = 1.0}"),
        "environment.drag.density: missing",
    ),
    "negative drag": (
        shell_scene(environment="drag = {density = 1.0, coefficient = -1.0}"),
        "environment.drag.coefficient: expected greater than or equal to 0",
    ),
    "drag on rods": (scene_text(environment="drag = {density = 1.0, coefficient = 1.0}"), "environment.drag: acts on"),
    "pressure on rods": (scene_text(environment="pressure = 1.0"), "environment.pressure: acts on triangles"),
    "resistive drag on shells": (
        shell_scene(environment="resistive = {tangential = 0.1, normal = 0.1}"),
        "environment.resistive: acts on rods, and the robot has none",
    ),
    "quadratic drag on shells": (
        shell_scene(environment='resistive = {tangential = 1.0, normal = 1.0, density = 1e3, law = "quadratic"}'),
        "environment.resistive: acts on rods, and the robot has none",
    ),
    "line load on edges of shells": (
        shell_scene() + "\n[[line_load]]\nload = [0, 0, -1]\nedges = [0]\n",
        "line_load.0.edges: names edges of rods, and the robot has none",
    ),
    "moment on shells": (
        shell_scene() + "\n[[moment]]\nmoment = [0, 0, 1]\nnodes = [0]\n",
        "moment.0: acts on rods, and the robot has none",
    ),
    "thrust on rods": (
        scene_text(environment="thrust = {coefficient = 1.0, smoothing = 1e-3}"),
        "environment.thrust: acts",
    ),
    "thrust without smoothing": (
        shell_scene(environment="thrust = {coefficient = 1.0}"),
        "environment.thrust.smoothing",
    ),
    "thrust along nothing": (
        shell_scene(environment="thrust = {coefficient = 1.0, smoothing = 1e-3, axis = [0, 0, 0]}"),
        "environment.thrust.axis: expected a direction that is not zero",
    ),
    "pressure of text": (shell_scene(environment='pressure = "high"'), "environment.pressure: expected a number"),
    "twist of a planar robot": (
        scene_text(robot=GOOD["robot"] + "\nplanar = true", actuation='natural_twist = "kappa.csv"'),
        "actuation.natural_twist: a planar robot does not twist",
    ),
    "hinges of rods": (
        scene_text(actuation='natural_hinge_angle = "kappa.csv"'),
        "actuation.natural_hinge_angle: the robot has no such elements",
    ),
    "angles of too many hinges": (
        shell_scene(actuation='natural_hinge_angle = "kappa.csv"'),
        "kappa.csv",
        "angle of 1 hinges",
    ),
    # contact: the law
    "floor without stiffness": (scene_text(floor="height = -0.1"), "floor.stiffness: missing (of each contact [N/m]"),
    "soft as nothing": (scene_text(floor=floor(stiffness="0.0")), "floor.stiffness: expected greater than 0", "0.0"),
    "negative stiffness": (scene_text(self_contact="stiffness = -1.0"), "self_contact.stiffness: expected", "-1.0"),
    "negative friction": (
        scene_text(floor=floor(friction="-0.1")),
        "floor.friction: expected greater than or equal to 0",
        "got -0.1",
    ),
    "friction of nan": (scene_text(floor=floor(friction="nan")), "floor.friction: expected", "got nan"),
    "slip without friction": (
        scene_text(floor=floor(slip_velocity="1e-3")),
        "floor: slip_velocity belongs to friction, which is not given",
    ),
    "no slip velocity": (
        scene_text(floor=floor(friction="0.1", slip_velocity="0.0")),
        "floor.slip_velocity: expected greater than 0",
    ),
    "tolerance of zero": (
        scene_text(obstacle=ball(tolerance="0")),
        "obstacle.0.tolerance: expected greater than 0",
        "got 0",
    ),
    "unknown response": (
        scene_text(floor=floor(response='"spring"')),
        "floor.response: expected 'penalty', 'barrier' or 'complementarity'",
        "got 'spring'",
    ),
    "obstacle without stiffness": (
        scene_text(obstacle=ball(stiffness=None, response='"barrier"')),
        "obstacle.0.stiffness: missing (of each contact [N/m]",
    ),
    "self-contact without stiffness": (scene_text(self_contact="friction = 0.1"), "self_contact.stiffness: missing"),
    "stiffness of a constraint": (
        scene_text(floor=constraint(stiffness="1.0")),
        'floor.stiffness: response = "complementarity" has no stiffness',
        "remove the key",
    ),
    "stiffness of an obstacle's constraint": (
        scene_text(obstacle=ball(response='"complementarity"')),
        "obstacle.0.stiffness: response",
    ),
    "stiffness of a constraint with itself": (
        scene_text(self_contact='stiffness = 1.0\nresponse = "complementarity"'),
        "self_contact.stiffness: response",
    ),
    "slip velocity of a constraint": (
        scene_text(floor=constraint(friction="0.1", slip_velocity="1e-3")),
        'floor.slip_velocity: response = "complementarity" does not smooth friction',
        "remove the key",
    ),
    "constraint of no tolerance": (
        scene_text(floor=constraint(tolerance="0.0")),
        "floor.tolerance: expected greater than 0",
    ),
    "negative friction of a constraint": (
        scene_text(floor=constraint(friction="-0.1")),
        "floor.friction: expected greater than or equal to 0",
    ),
    "constraint in newmark": (
        scene_text(floor=constraint(), simulation=GOOD["simulation"] + '\nintegrator = "newmark"'),
        'floor.response: expected "penalty" or "barrier" with integrator = "newmark", got "complementarity"',
        '"implicit_euler"',
    ),
    "constraint in the midpoint rule": (
        scene_text(
            obstacle=ball(stiffness=None, response='"complementarity"'),
            simulation=GOOD["simulation"] + '\nintegrator = "implicit_midpoint"',
        ),
        'obstacle.0.response: expected "penalty" or "barrier" with integrator = "implicit_midpoint"',
    ),
    "constraint without line search": (
        scene_text(floor=constraint(), simulation=GOOD["simulation"] + "\nline_search = false"),
        "simulation.line_search: expected true, got false",
        "floor.response",
    ),
    "drawing the stiffness of a constraint": (
        scene_text(floor=constraint()) + DRAW.format("floor.stiffness", "{uniform = [1, 2]}"),
        "batch.randomize.\"floor.stiffness\": there is no 'stiffness' in the scene",
    ),
    "drawing the slip velocity of a constraint": (
        scene_text(floor=constraint(friction="0.1")) + DRAW.format("floor.slip_velocity", "{uniform = [1, 2]}"),
        'batch.randomize."floor.slip_velocity": robot',
        "does not smooth friction",
    ),
    "barrier without line search": (
        scene_text(floor=floor(response='"barrier"'), simulation=GOOD["simulation"] + "\nline_search = false"),
        "simulation.line_search: expected true, got false",
        "floor.response",
    ),
    "drawn friction below zero": (
        scene_text(floor=floor(friction="0.1")) + DRAW.format("floor.friction", "{uniform = [-2, -1]}"),
        'batch.randomize."floor.friction": robot',
        "expected greater than or equal to 0",
    ),
    "drawing a friction that is not set": (
        scene_text(floor=floor()) + DRAW.format("floor.friction", "{uniform = [0, 1]}"),
        "batch.randomize.\"floor.friction\": there is no 'friction' in the scene",
    ),
    "drawing the ring": (
        scene_text(self_contact="stiffness = 1.0\nring = 1") + DRAW.format("self_contact.ring", "{uniform = [0, 1]}"),
        'batch.randomize."self_contact.ring": this number cannot differ',
    ),
    # contact: [floor], [self_contact], contact_radius
    "floor of a kind": (scene_text(floor=floor(hight="0.0")), "floor.hight: unknown key; did you mean 'height'"),
    "floor at infinity": (scene_text(floor=floor(height="-inf")), "floor.height: expected a finite number"),
    "two floors": (f"{scene_text()}\n[[floor]]\n{floor()}\n", "floor: expected", "table [floor]"),
    "start in the floor": (
        scene_text(floor=floor(response='"barrier"', height="0.0")),
        "floor: node 0 of robot 0 starts at a gap of -0.001 m",
        "above 0",
    ),
    "one robot in the floor": (
        scene_text(floor=floor(response='"barrier"'))
        + "[batch]\nsize = 2\n[batch.randomize]\n"
        + '"floor.height" = {values = [-0.1, 0.1]}\n',
        "floor: node 0 of robot 1 starts at a gap of -0.101 m",
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
        "self_contact: what joins nodes [0, 1, 2, 3] of robot 0 starts at a gap of -0.001 m",
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
        "obstacle: expected a list",
        "tables [[obstacle]]",
    ),
    "obstacle without a shape": (scene_text(obstacle=ball(shape=None)), "obstacle.0: expected tables [[obstacle]]"),
    "unknown shape": (scene_text(obstacle=ball(shape='"cone"')), "obstacle.0: expected tables", "'cone'"),
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
        "obstacle.0: expected an end apart from start",
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
        "obstacle.1.name: expected another name than that of obstacle.0, got 'rock'",
    ),
    "name of a number": (
        obstacles(ball(name='"obstacle1"'), ball()),
        "obstacle.1.name: expected another name than that of obstacle.0, got 'obstacle1'",
    ),
    "name with a slash": (scene_text(obstacle=ball(name='"a/b"')), "obstacle.0.name: expected a letter", "'a/b'"),
    "name that is taken": (scene_text(obstacle=ball(name='"bend"')), "obstacle.0.name: 'bend' is what reports call"),
    "name of a part": (scene_text(obstacle=ball(name='"part0"')), "obstacle.0.name: 'part0' is what reports call"),
    "start in an obstacle": (
        scene_text(obstacle=ball(center="[0.3, 0, 0]", response='"barrier"')),
        "obstacle.0: node 3 of robot 0 starts at a gap of -0.101 m",
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


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with the files that the scenes name."""
    path = tmp_path_factory.mktemp("scenes")
    for name, content in FILES.items():
        (path / name).write_text(content)
    return path


def refused(path) -> str:
    """Return what `check` says about a scene that it refuses, on one line."""
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 2, result.output
    assert isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output and result.stderr.startswith("error: ")
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    text, *words = case
    path = folder / "scene.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    message = refused(path)
    assert str(folder) in message
    position = 0
    for word in words:
        assert word in message[position:], message
        position = message.index(word, position)


def test_good_scene_is_accepted(folder):
    """Accept the scene that all cases start from, so that each is refused for its own fault."""
    path = folder / "scene.toml"
    path.write_text(scene_text())
    result = CliRunner().invoke(app, ["check", str(path)])
    assert result.exit_code == 0, result.output


def test_constraint_pushes_out_what_can_move(folder):
    """Accept nodes in a floor by complementarity if they can leave it, and clamped ones that just touch it."""
    path = folder / "scene.toml"
    for clamp, height in (('nodes = [0, 1]\naxes = "xy"', 0.0), ("nodes = [0, 1]", -1e-3)):
        path.write_text(scene_text(clamp=clamp, floor=constraint(height=str(height))))
        result = CliRunner().invoke(app, ["check", str(path)])
        assert result.exit_code == 0, result.output


def test_there_are_enough_cases():
    """Keep at least forty malformed scenes."""
    assert len(MALFORMED) >= 40


def test_missing_scene_is_refused(tmp_path):
    """Name a scene file that is not there."""
    assert "nowhere.toml: cannot be read" in refused(tmp_path / "nowhere.toml")


def test_all_faults_are_named_at_once(folder):
    """Name two faults in two lines."""
    path = folder / "scene.toml"
    path.write_text(scene_text(rod=rod(youngs="-1.0", density="0.0")))
    lines = refused(path).strip().splitlines()
    assert len(lines) == 2 and "rod.youngs" in lines[0] and "rod.density" in lines[1]


def test_code_runs_only_when_allowed(folder):
    """Refuse a Python file without --allow-code, and with it name what is wrong in it."""
    path = folder / "scene.toml"
    for name, words in {
        "raises.py:act": "actuation.python: {}raises.py does not run: RuntimeError: no",
        "nothing.py:act": "actuation.python: {}nothing.py has no function 'act'",
        "absent.py:act": "actuation.python: no such file: {}absent.py",
    }.items():
        path.write_text(scene_text(actuation=f'python = "{name}"'))
        command = ["simulate", str(path), "--out", str(folder / "run.h5"), "--no-progress"]
        result = CliRunner().invoke(app, command)
        there = (folder / name.partition(":")[0]).exists()
        assert result.exit_code == 2 and ("pass --allow-code" in result.stderr) == there
        result = CliRunner().invoke(app, [*command, "--allow-code"])
        assert result.exit_code == 2 and words.format(f"{folder}/") in result.stderr, result.output


FUNCTIONS = {
    "None": ("act of {}act.py has to return a Control, such as control.replace(...), got NoneType",),
    "time": ("act of {}act.py has to return a Control, such as control.replace(...), got Tensor",),
    "control.replace(natural_twist=0.0)": ("act of {}act.py has to give natural_twist as a tensor, got float",),
    "control.replace(natural_twist=time)": ("act of {}act.py returned what does not fit the robot", "shape (1, 2)"),
    "1 / 0": ("act of {}act.py raised ZeroDivisionError in line 2: division by zero",),
}


@pytest.mark.parametrize("expression", FUNCTIONS)
def test_what_a_function_may_not_return_is_refused(folder, tmp_path, expression):
    """Name file and function, and what came, in one sentence."""
    path = folder / "scene.toml"
    (folder / "act.py").write_text(f"def act(time, model, control):\n    return {expression}\n")
    path.write_text(scene_text(actuation='python = "act.py:act"'))
    command = ["simulate", str(path), "--out", str(tmp_path / "run.h5"), "--no-progress", "--allow-code"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2 and result.stderr.startswith(f"error: {path}: actuation.python: "), result.output
    assert len(result.stderr.splitlines()) == 1
    for words in FUNCTIONS[expression]:
        assert words.format(f"{folder}/") in result.stderr


def test_byte_order_mark_is_accepted(folder):
    """Read a scene as editors on Windows write it."""
    path = folder / "scene.toml"
    path.write_bytes(b"\xef\xbb\xbf" + scene_text().encode())
    assert load_scene(path).text == scene_text()


@pytest.mark.parametrize("link", [False, True], ids=["named", "by a link"])
def test_files_outside_of_the_folder_are_not_shown(tmp_path, link):
    """Read a file from elsewhere, but quote nothing of it where it is not what was expected."""
    (tmp_path / "secret.txt").write_text("*Nodes\n0,0,0\npassword\n")
    inside = tmp_path / "scenes"
    inside.mkdir()
    name = "secret.txt" if link else "../secret.txt"
    if link:
        (inside / name).symlink_to(tmp_path / "secret.txt")
    path = inside / "scene.toml"
    path.write_text(scene_text(robot=f'file = "{name}"'))
    said = refused(path)
    assert f"robot.file: line 3 of {inside}/{name} is not what was expected there; it lies outside" in said
    path.write_text(scene_text(actuation=f'natural_twist = "{name}"'))
    assert "password" not in said + refused(path)
    (tmp_path / "secret.txt").write_text(FILES["arm.txt"])
    path.write_text(scene_text(robot=f'file = "{name}"'))
    assert len(load_scene(path).geometry.nodes) == 3


values = st.one_of(
    st.none().map(lambda _: '""'),
    st.booleans().map(lambda b: str(b).lower()),
    st.integers(-3, 3).map(str),
    st.floats(allow_nan=True, allow_infinity=True).map(repr),
    st.sampled_from(["[]", "{}", "[[]]", '"x"', "[1, 2, 3]", "{shape = 3}", "1979-05-27", "[{}]"]),
)
keys = st.sampled_from(
    [
        "robot.file",
        "robot.nodes",
        "robot.rod_edges",
        "robot.planar",
        "rod.section",
        "rod.youngs",
        "rod.stiffness",
        "rod.natural",
        "rod.box",
        "mass",
        "clamp",
        "move",
        "environment.gravity",
        "environment.resistive",
        "point_force",
        "floor",
        "floor.stiffness",
        "obstacle",
        "obstacle.shape",
        "obstacle.velocity",
        "obstacle.file",
        "self_contact.response",
        "self_contact.ring",
        "actuation.natural_curvature",
        "actuation.python",
        "simulation.integrator",
        "simulation.dt",
        "simulation.duration",
        "simulation.load_steps",
        "simulation.solver",
        "batch.size",
        "batch.seed",
        "batch.randomize",
        "output.every",
        "output",
        "robot",
        "rod",
        "simulation",
        "nonsense",
    ]
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=keys, value=values)
def test_any_value_anywhere_is_accepted_or_refused(folder, key, value):
    """Put odd values under keys of the good scene: it is read, or refused by an InputError, never anything else."""
    table, _, name = key.partition(".")
    good = GOOD.get(table, "")
    lines = [line for line in good.splitlines() if not line.startswith(f"{name} =")]
    text = "".join(f"[[{t}]]\n{b}\n" if t in ARRAYS else f"[{t}]\n{b}\n" for t, b in GOOD.items() if t != table)
    if name:
        text += f"[{table}]\n" + "\n".join([*lines, f"{name} = {value}"])
    else:
        text = f"{table} = {value}\n{text}"
    path = folder / "any.toml"
    path.write_text(text)
    try:
        load_scene(path)
    except InputError as error:
        assert str(error).startswith(str(folder))
