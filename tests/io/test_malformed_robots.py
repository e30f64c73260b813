"""Malformed scenes: nodes, rods, masses, clamps and their motion."""

import pytest

from tests.io.refusals import assert_refused
from tests.io.scene_texts import GOOD, rod, scene_text

SOLID = 'section = {shape = "circle", radius = 1e-3}\nyoungs = 1e6\ndensity = 1000.0\n'
MALFORMED = {
    # [robot]
    "no geometry": (scene_text(robot="planar = true"), "robot: expected file, nodes or lines, got none of them"),
    "two geometries": (
        scene_text(robot=GOOD["robot"] + '\nfile = "arm.txt"'),
        "robot: expected either file or nodes, got both",
    ),
    "lines and edges": (
        scene_text(robot="rod_edges = [[0, 1]]\nlines = [{start = [0, 0, 0], end = [1, 0, 0], nodes = 3}]"),
        "robot: rod_edges join nodes, and nodes are not given",
    ),
    "line of no length": (
        scene_text(robot="lines = [{start = [1, 0, 0], end = [1, 0, 0], nodes = 3}]"),
        "robot.lines.0: expected two ends in different places",
    ),
    "line of one node": (
        scene_text(robot="lines = [{start = [0, 0, 0], end = [1, 0, 0], nodes = 1}]"),
        "robot.lines.0.nodes: expected greater than or equal to 2",
    ),
    "line without an end": (scene_text(robot="lines = [{start = [0, 0, 0], nodes = 3}]"), "robot.lines.0.end: missing"),
    "line twice": (
        scene_text(robot="lines = [" + 2 * "{start = [0, 0, 0], end = [1, 0, 0], nodes = 3}," + "]"),
        "robot.lines: edge 2 (nodes 0, 1) was given before",
    ),
    "nodes without edges": (scene_text(robot="nodes = [[0, 0, 0], [1, 0, 0]]"), "robot:", "without rod_edges"),
    "missing file": (scene_text(robot='file = "leg.txt"'), "robot.file: no such file", "leg.txt"),
    "fault in the file": (scene_text(robot='file = "bad.txt"'), "bad.txt:6: edge 2", "itself"),
    "node without edges": (
        scene_text(robot='file = "lonely.txt"'),
        "lonely.txt: 1 of 3 nodes",
        "no edge or triangle: node 2",
    ),
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
        "planar: the edge between nodes 0 and 1 leaves the x-z plane",
    ),
    # [rod]
    "no section": (scene_text(rod="youngs = 1e6\ndensity = 1000.0"), "rod.section: missing"),
    "unknown section": (
        scene_text(rod=rod(section='{shape = "star", radius = 1.0}')),
        "rod.section.shape: expected 'circle' or 'rectangle', got 'star'",
    ),
    "section without shape": (
        scene_text(rod=rod(section="{radius = 1.0}")),
        "rod.section.shape: missing; expected 'circle' or 'rectangle'",
    ),
    "misspelt shape": (
        scene_text(rod=rod(section='{shaqe = "circle", radius = 1.0}')),
        "rod.section.shape: missing ('shaqe' is no key); expected 'circle' or 'rectangle'",
    ),
    "material of the robot": (
        scene_text(robot=GOOD["robot"] + "\ndensity = 1000.0"),
        "robot.density: unknown key; did you mean rod.density or shell.density?",
    ),
    "radius of the robot": (
        scene_text(robot=GOOD["robot"] + "\nradius = 1e-3"),
        "robot.radius: unknown key; did you mean rod.section.radius?",
    ),
    "radius beside the section": (
        scene_text(rod=rod(radius="1e-3")),
        "rod.radius: unknown key; did you mean rod.section.radius?",
    ),
    "one youngs for each robot": (
        scene_text(rod=rod(youngs="[1e6, 2e6]")),
        "rod.youngs: expected a number",
        'numbers of each robot stand in [batch.randomize]: "rod.youngs" = {values = [..]}',
    ),
    "section without radius": (scene_text(rod=rod(section='{shape = "circle"}')), "rod.section.radius: missing"),
    "negative radius": (
        scene_text(rod=rod(section='{shape = "circle", radius = -1e-3}')),
        "rod.section.radius: expected greater than 0",
        "got -0.001",
    ),
    "no stiffness": (scene_text(rod=rod(youngs=None)), "rod: youngs is missing"),
    "name of a draw without quotes": (
        scene_text() + "[batch]\nsize = 2\n[batch.randomize]\nrod.youngs = {uniform = [1e6, 2e6]}\n",
        "batch.randomize.rod.youngs: unknown key",
        'a name with dots stands in quotes: "rod.youngs" = {..}',
    ),
    "youngs and every stiffness": (
        scene_text(rod=rod(stiffness="{EA = 1.0, EI1 = 1.0, EI2 = 1.0, GJ = 1.0}")),
        "rod: youngs does nothing beside all of EA, EI1, EI2, GJ",
    ),
    "poisson and GJ": (
        scene_text(rod=rod(stiffness="{GJ = 1.0}", poisson="0.3")),
        "rod: poisson does nothing beside GJ in stiffness",
    ),
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
    # [[mass]], [[inertia]], [[clamp]]
    "mass on no node": (scene_text(mass="nodes = [4]\nadd = 1.0"), "mass.0.nodes: expected nodes 0 to 3, got 4"),
    "negative mass": (scene_text(mass="nodes = [3]\nadd = -1.0"), "mass.0.add: expected greater than 0"),
    "inertia of no edge": (scene_text(inertia="edges = [3]\nacross = 1e-5"), "inertia.0.edges: expected edges 0 to 2"),
    "inertia of nothing": (scene_text(inertia="edges = [2]\nacross = 0.0"), "inertia.0.across: expected greater than"),
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
    "clamp along w": (scene_text(clamp='nodes = [0]\naxes = "xw"'), "clamp.axes: expected a subset of"),
    "clamp of a twist that there is not": (
        scene_text(clamp='nodes = [0]\naxes = ""'),
        "clamp: number 0, of the nodes 0, holds nothing",
        "give both nodes of an edge",
    ),
    "clamp that holds nothing": (
        scene_text(clamp='nodes = [0]\naxes = ""\ntwist = false'),
        "clamp: number 0,",
        "nothing",
    ),
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
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)
