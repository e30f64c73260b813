"""Malformed scenes: shells, their geometry, forces and actuation."""

import pytest

from tests.io.refusals import assert_refused
from tests.io.scene_texts import GOOD, SQUARE, rod, scene_text, shell, shell_scene, square

MALFORMED = {
    # shells: tables
    "no thickness": (shell_scene(shell=shell(thickness=None)), "shell.thickness: missing (thickness [m])"),
    "negative thickness": (shell_scene(shell=shell(thickness="-1e-3")), "shell.thickness: expected greater than 0"),
    "shell without youngs": (shell_scene(shell=shell(youngs=None)), "shell: youngs is missing"),
    "shell's youngs and both stiffnesses": (
        shell_scene(shell=shell(stiffness="{membrane = 1.0, bending = 1.0}")),
        "shell: youngs does nothing beside both membrane and bending",
    ),
    "weightless shell": (shell_scene(shell=shell(density="0.0")), "shell.density: expected greater than 0"),
    "unknown bending": (shell_scene(shell=shell(bending='"hinges"')), "shell.bending: expected 'hinge' or 'midedge'"),
    "natural of a rod": (shell_scene(shell=shell(natural='"straight"')), "shell.natural: expected 'initial' or 'flat'"),
    "section of a shell": (shell_scene(shell=shell(section="1.0")), "shell.section: unknown key"),
    "stiffness of a rod": (shell_scene(shell=shell(stiffness="{EA = 1.0}")), "shell.stiffness.EA: unknown key"),
    "shell with poisson 0.6": (shell_scene(shell=shell(poisson="0.6")), "shell.poisson:", "0.5"),
    "nodes and box of a shell": (
        shell_scene(shell=shell(nodes="[0, 1, 2]", box="{min = [0, 0, 0], max = [1, 1, 1]}")),
        "shell: expected nodes or box, got both",
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
    "planar shell": (shell_scene(robot=SQUARE + "\nplanar = true"), "planar: a robot with shells moves in space"),
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
    "shell with a lonely node": (
        shell_scene(robot=square("[[0, 1, 2]]")),
        "robot.triangles: 1 of 4 nodes belong to no edge or triangle: node 3",
    ),
    "file and triangles": (
        shell_scene(robot='file = "shell.txt"\ntriangles = [[0, 1, 2]]'),
        "robot: triangles join nodes, and nodes are not given",
    ),
    "coincident nodes": (
        shell_scene(
            robot="nodes = [[0,0,0], [1,0,0], [1,1,0], [0,0,0], [-1,0,0], [0,1,1]]\ntriangles = [[0, 1, 2], [3, 4, 5]]"
        ),
        "robot: nodes: nodes 0 and 3 are in one place",
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
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)
