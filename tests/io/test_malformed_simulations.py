"""Malformed scenes: integrators, steps, solvers, batches and what is drawn, output."""

import pytest

from tests.io.refusals import assert_refused
from tests.io.scene_texts import DRAW, GOOD, scene_text

MALFORMED = {
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
    "gamma below 1/2": (
        scene_text(simulation=GOOD["simulation"] + '\nintegrator = "newmark"\ngamma = 0.4'),
        "simulation: Newmark: expected 1/2 <= gamma <= 1 and gamma <= 2 beta, got beta=0.25, gamma=0.4",
    ),
    "beta below gamma / 2": (
        scene_text(simulation=GOOD["simulation"] + '\nintegrator = "newmark"\nbeta = 0.2'),
        "simulation: Newmark: expected 1/2 <= gamma <= 1 and gamma <= 2 beta, got beta=0.2, gamma=0.5",
    ),
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
        'simulation.compile: expected true, false or "auto"',
        "got 'yes'",
    ),
    "compile as a number": (
        scene_text(simulation=GOOD["simulation"] + "\ncompile = 1"),
        'simulation.compile: expected true, false or "auto"',
        "got 1",
    ),
    "compile as a table": (
        scene_text(simulation=GOOD["simulation"] + "\ncompile = {}"),
        'scene.toml: simulation.compile: expected true, false or "auto"',
        "got {}",
    ),
    "option of a solver as a truth": (
        scene_text(simulation=GOOD["simulation"] + "\nsolver = {name = true}"),
        'scene.toml: simulation.solver: expected "auto", the name of a linear solver',
    ),
    "unknown solver": (
        scene_text(simulation=GOOD["simulation"] + '\nsolver = "magic"'),
        "simulation.solver: expected one of 'auto', 'dense', 'banded'",
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
        'batch.randomize."rod.youngs".uniform: numbers near -2 may be drawn: expected greater than 0',
    ),
    "normal draws below zero": (
        scene_text() + DRAW.format("rod.youngs", "{normal = [-2, 0.1]}"),
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
}


@pytest.mark.parametrize("case", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_scene_is_refused(folder, case):
    """Name file and key and say what was expected."""
    assert_refused(folder, *case)
