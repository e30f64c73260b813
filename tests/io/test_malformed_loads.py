"""Malformed scenes: the environment, forces and actuation."""

import pytest

from tests.io.refusals import assert_refused
from tests.io.scene_texts import scene_text

MALFORMED = {
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
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)
