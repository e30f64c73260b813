"""Scenes: what a file says is what the robot and the integrator do."""

import json
import math

import numpy as np
import pytest
import torch

from tests.io.rod_scenes import CLAMP, GOOD, GRAVITY, ROBOT, ROD, SIMULATION, run
from torchdismech import (
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    Static,
    forces,
    rollout,
    straight,
)
from torchdismech.io.meshes import write_mesh


def python_robot() -> RobotBuilder:
    """Return the robot of the good scene, built by hand."""
    robot = RobotBuilder()
    robot.add_rod(straight([0, 0, 0], [0.4, 0, 0], 5), Circle(5e-3), Material(1e6, 1000.0))
    robot.clamp(nodes=[0, 1])
    robot.add_force(forces.Gravity([0, 0, -9.81]))
    return robot


def test_scene_gives_the_numbers_of_the_same_robot_in_python(load):
    """Run a scene and the same robot from Python: the trajectories agree bitwise."""
    model = python_robot().finalize()
    by_hand = rollout(model, model.initial_state(), ImplicitEuler(0.01), 5)
    # 1e-12 m: linspace and the file differ in the last digit of some coordinates
    torch.testing.assert_close(run(load(GOOD)).positions, by_hand.positions, rtol=0, atol=1e-12)


def test_defaults_are_those_of_the_documentation(load):
    """Find a batch of one, every 10th step, and the documented tolerances."""
    scene = load(GOOD)
    assert scene.batch == 1 and scene.steps == 5 and scene.document.output.every == 10
    integrator = scene.build().integrator
    assert isinstance(integrator, ImplicitEuler)
    assert (integrator.dt, integrator.force_tolerance, integrator.relative_tolerance) == (0.01, 1e-12, 1e-8)
    of_classes = [ImplicitEuler(0.01), Static()]
    assert {(method.force_tolerance, method.relative_tolerance) for method in of_classes} == {(1e-12, 1e-8)}
    assert (integrator.max_iterations, integrator.line_search, integrator.max_substeps) == (50, True, 0)


@pytest.mark.parametrize(("line", "setting"), [("", "auto"), ("compile = true", True), ("compile = false", False)])
def test_kernels_are_compiled_as_the_scene_says(load, line, setting):
    """Take the setting from the file; by default long runs are compiled."""
    scene = load(GOOD.replace("[simulation]\n", f"[simulation]\n{line}\n"))
    assert scene.build().model.compilation.setting == setting


def test_each_integrator_can_be_named(load):
    """Get each integrator with its own keys."""

    def built(keys: str):
        return load(ROBOT + ROD + CLAMP + f"[simulation]\n{keys}").build().integrator

    step = "dt = 0.01\nduration = 0.05\n"
    assert isinstance(built(step + 'integrator = "implicit_midpoint"'), ImplicitMidpoint)
    newmark = built(step + 'integrator = "newmark"\nbeta = 0.3\ngamma = 0.6')
    assert isinstance(newmark, Newmark) and (newmark.beta, newmark.gamma) == (0.3, 0.6)
    static = built('integrator = "static"\nload_steps = 4')
    assert isinstance(static, Static) and (static.load_steps, static.unstable) == (4, "leave")
    static = built('integrator = "static"\nunstable = "fail"')
    assert isinstance(static, Static) and (static.load_steps, static.unstable) == (1, "fail")
    changed = built(
        step
        + "force_tolerance = 1e-6\nrelative_tolerance = 0.0\nmax_iterations = 7\nline_search = false\nmax_substeps = 8"
    )
    assert (changed.force_tolerance, changed.relative_tolerance, changed.max_iterations) == (1e-6, 0.0, 7)
    assert (changed.line_search, changed.max_substeps) == (False, 8)


def test_overrides_take_the_place_of_the_file(load):
    """Set batch, seed and steps from outside."""
    scene = load(GOOD, overrides={"batch.size": 3, "simulation.max_substeps": 2}, steps=7)
    assert scene.batch == 3 and scene.steps == 7 and scene.build().integrator.max_substeps == 2
    assert scene.build().state.batch == 3
    masses = GOOD + "[[mass]]\nnodes = [1]\nadd = 0.1\n[[mass]]\nnodes = [2]\nadd = 0.1\n"
    heavier = load(masses, overrides={"mass.1.add": 0.3, "rod.stiffness.EA": 7.0}).document
    assert [table.add for table in heavier.mass] == [0.1, 0.3] and heavier.rod[0].stiffness.EA == 7.0
    with pytest.raises(InputError, match='"static" takes no steps in time'):
        load(ROBOT + ROD + CLAMP + '[simulation]\nintegrator = "static"', steps=7)


@pytest.mark.parametrize("table", ["[rod]", "[[rod]]"])
def test_a_table_that_stands_alone_needs_no_number(load, table):
    """Reach the key of a lone [rod] and of a single [[rod]] with and without its number, and of other single tables."""
    text = GOOD.replace("[rod]", table) + "[[mass]]\nnodes = [1]\nadd = 0.1\n"
    for key in ("rod.section.radius", "rod.0.section.radius"):
        assert load(text, overrides={key: 7e-3}).document.rod[0].section.radius == 7e-3
    for key in ("mass.add", "mass.0.add"):
        assert load(text, overrides={key: 0.3}).document.mass[0].add == 0.3
    for key in ("rod.radius", "rod.0.radius"):
        with pytest.raises(InputError, match=r"radius: unknown key; did you mean rod.section.radius\?"):
            load(text, overrides={key: 7e-3})


MASSES = GOOD + "[[mass]]\nnodes = [1]\nadd = 0.1\n[[mass]]\nnodes = [2]\nadd = 0.1\n"
ODD = ("1", "-1", "²", "٣", "", "0x0", "9" * 5000)  # what is no number of a table that stands alone


@pytest.mark.parametrize("part", ODD)
@pytest.mark.parametrize("table", ["[rod]", "[[rod]]"])
def test_odd_numbers_of_tables_are_refused(load, table, part):
    """Refuse what is no number of a table in overrides and in [batch.randomize], also where Python calls it a digit."""
    text, name = GOOD.replace("[rod]", table), f"rod.{part}.youngs"
    expected = "9 ... 9" if len(part) > 9 else r"youngs\"?: expected the number 0, as there is one table, or none, got"
    with pytest.raises(InputError, match=expected):
        load(text, overrides={name: 1e6})
    with pytest.raises(InputError, match=expected):
        load(text + f'[batch]\nsize = 2\n[batch.randomize]\n"{name}" = {{values = [1e6, 2e6]}}\n')


@pytest.mark.parametrize(
    ("key", "problem"),
    [
        ("mass.2.add", r"expected the number of one of the 2 tables, 0 to 1, as in mass.0, got '2'"),
        ("mass.add", r"expected the number of one of the 2 tables, 0 to 1, as in mass.0, got 'add'"),
        ("mass.-1", r"expected the number of one of the 2 tables, 0 to 1, as in mass.0, got '-1'"),
        ("inertia.across", r"there is no \[\[inertia\]\] in the scene to be changed"),
        ("environment.gravity.-1", r"environment.gravity: expected an index 0 to 2, got '-1'"),
        ("simulation.dt.x", r"simulation.dt is 0.01: there is no 'x' in it to be changed"),
        ("rod.section.radius.0", r"rod.section.radius is 0.005: there is no '0' in it to be changed"),
    ],
)
def test_overrides_of_what_is_not_there_are_refused(load, key, problem):
    """Name the key of an override that reaches nothing, and what there is."""
    with pytest.raises(InputError, match=rf"scene.toml: {key}: {problem}$"):
        load(MASSES, overrides={key: 0.3})


def test_overrides_of_none_leave_a_key_out(load):
    """Take friction at rest away from a scene, which constraints do not have."""
    floor = "[floor]\nstiffness = 10.0\nheight = -1.0\nfriction = 0.3\nstatic_friction = 0.5\n"
    changed = {"floor.static_friction": None, "floor.stiffness": None, "floor.response": "complementarity"}
    document = load(ROBOT + ROD + CLAMP + GRAVITY + SIMULATION + floor, overrides=changed).document
    assert document.floor.static_friction is None and document.floor.friction == 0.3


def test_overrides_stay_what_the_caller_gave(load):
    """Change a number of a table that is itself an override: the caller's table is as it was."""
    tables = [{"nodes": [1], "add": 0.1}]
    scene = load(GOOD, {"mass": tables, "mass.0.add": 0.2})
    assert scene.document.mass[0].add == 0.2 and tables == [{"nodes": [1], "add": 0.1}]


def test_overrides_are_numbers_and_lists_of_any_kind(load):
    """Take numbers and arrays of NumPy and torch as those of TOML; refuse what is none, and lost gradients."""
    values = {"rod.youngs": np.float32(2e6), "batch.size": np.int64(3), "environment.gravity": torch.ones(3)}
    scene = load(ROBOT + ROD + CLAMP + GRAVITY + SIMULATION, overrides=values)
    assert json.dumps(scene.tables["rod"]) and scene.document.rod[0].youngs == 2e6 and scene.batch == 3
    assert scene.document.environment.gravity == [1.0, 1.0, 1.0]
    for overrides, message in (
        ({"rod.youngs": torch.ones((), requires_grad=True)}, "overrides: rod.youngs: got a tensor that requires grad"),
        ({1: 2}, "overrides: expected dotted keys"),
        ([("batch.size", 8)], "overrides: expected values by dotted key, .* got list"),
    ):
        with pytest.raises(InputError, match=message):
            load(GOOD, overrides=overrides)
    for steps in (2.5, "7", True, 0):
        with pytest.raises(InputError, match="steps: expected a whole number from 1 up"):
            load(GOOD, steps=steps)


def test_static_scene_ends_in_equilibrium(load):
    """Run a static scene: one stored frame after the initial one, the equilibrium of the same robot in Python."""
    text = ROBOT + ROD + CLAMP + GRAVITY + '[simulation]\nintegrator = "static"\nload_steps = 2\n'
    trajectory = run(load(text))
    assert trajectory.step.tolist() == [0, 1] and not trajectory.failed.any()
    model = python_robot().finalize()
    state, _ = Static(load_steps=2).step(model, model.initial_state())
    torch.testing.assert_close(trajectory.positions[-1], state.positions, rtol=0, atol=1e-12)


# ---- what the robot is made of -----------------------------------------------------------------------------------


def test_several_rods_keep_the_order_of_nodes_and_edges(load):
    """Give three tables to edges in mixed order: numbering is the file's, and each edge has its own stiffness."""
    body = "density = 1000.0\n"
    circle = 'section = {shape = "circle", radius = 2e-3}\n'
    rectangle = 'section = {shape = "rectangle", width = 4e-3, height = 1e-3}\n'
    text = (
        ROBOT.replace("[[0, 1], [1, 2], [2, 3], [3, 4]]", "[[3, 4], [0, 1], [2, 1], [2, 3]]")
        + f"[[rod]]\n{circle}youngs = 1e6\n{body}nodes = [0, 1]\n"
        + f'[[rod]]\n{rectangle}youngs = 2e6\n{body}nodes = [1, 2, 3]\nnatural = "straight"\n'
        + f"[[rod]]\n{circle}{body}stiffness = {{EA = 7.0, EI1 = 8.0, EI2 = 9.0, GJ = 10.0}}\n"
        + "box = {min = [0.25, -1, -1], max = [0.45, 1, 1]}\n"
        + CLAMP
        + SIMULATION
    )
    model = load(text).build().model
    assert model.nodes[:, 0].tolist() == [0, 0.1, 0.2, 0.3, 0.4]
    assert model.rod_edges.tolist() == [[3, 4], [0, 1], [2, 1], [2, 3]]
    area = math.pi * 4e-6
    expected = torch.tensor([7.0, 1e6 * area, 2e6 * 4e-6, 2e6 * 4e-6], dtype=torch.float64)
    torch.testing.assert_close(model.term("stretch").energy.EA.flatten(), expected, rtol=1e-14, atol=0)


def test_straight_rods_are_given_by_their_ends(load):
    """Build rods from ends and numbers of nodes, in millimetres: a line is one rod, lines that meet share the node."""
    lines = "{start = [0, 0, 0], end = [400, 0, 0], nodes = 5}"
    text = GOOD.replace(ROBOT, f"[robot]\nscale = 1e-3\nlines = [{lines}]\n")
    by_hand = python_robot().finalize()
    trajectory = rollout(by_hand, by_hand.initial_state(), ImplicitEuler(0.01), 5)
    torch.testing.assert_close(run(load(text)).positions, trajectory.positions, rtol=0, atol=1e-12)  # 0.4 by rounding
    lines += (
        ", {start = [400, 0, 0], end = [400, 0, 100], nodes = 3}, {start = [-100, 0, 0], end = [0, 0, 0], nodes = 2}"
    )
    model = load(GOOD.replace(ROBOT, f"[robot]\nscale = 1e-3\nlines = [{lines}]\n")).build().model
    assert model.rod_edges.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6], [7, 0]]
    assert model.nodes[5:].tolist() == [[0.4, 0.0, 0.05], [0.4, 0.0, 0.1], [-0.1, 0.0, 0.0]]


def test_straight_rods_are_put_beside_a_mesh(load, tmp_path):
    """Build a robot of a shell from a file and of rods, one of which begins at a node of the shell."""
    write_mesh(tmp_path / "sheet.obj", np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]]), np.array([[0, 1, 2]]))
    lines = "{start = [1, 0, 0], end = [3, 0, 0], nodes = 3}, {start = [0, 0, 2], end = [1, 0, 2], nodes = 2}"
    shell = "[shell]\nthickness = 1e-3\nyoungs = 1e6\ndensity = 1000.0\n"
    model = load(f'[robot]\nfile = "sheet.obj"\nlines = [{lines}]\n{ROD}{shell}{SIMULATION}').build().model
    assert model.triangles.tolist() == [[0, 1, 2]] and model.rod_edges.tolist() == [[1, 3], [3, 4], [5, 6]]
    assert model.nodes[3:].tolist() == [[2.0, 0.0, 0.0], [3.0, 0.0, 0.0], [0.0, 0.0, 2.0], [1.0, 0.0, 2.0]]


def test_every_key_of_a_rod_reaches_the_model(load):
    """Compare section, material, natural shape and stiffness with the same robot built by hand."""
    text = GOOD.replace(
        ROD,
        '[rod]\nsection = {shape = "rectangle", width = 4e-3, height = 2e-3}\nyoungs = 3e6\npoisson = 0.3\n'
        'density = 900.0\nnatural = "straight"\nstiffness = {EI1 = 1e-4}\n',
    )
    ours = load(text).build().model
    robot = RobotBuilder()
    robot.add_rod(
        ours.nodes.numpy(),
        Rectangle(4e-3, 2e-3),
        Material(3e6, 900.0, 0.3),
        natural="straight",
        stiffness={"EI1": 1e-4},
    )
    robot.clamp(nodes=[0, 1])
    theirs = robot.finalize()
    assert torch.equal(ours.body.mass, theirs.body.mass)
    for name in ("EI1", "EI2", "GJ"):
        assert torch.equal(
            getattr(ours.term("bend_twist").energy, name), getattr(theirs.term("bend_twist").energy, name)
        )


def test_lines_and_planes_of_clamps_reach_the_model(load):
    """Let nodes slide along the lines and in the planes of a scene."""
    clamps = "[[clamp]]\nnodes = [2]\nalong = [1, 0, 1]\n[[clamp]]\nnodes = [4]\nnormal = [0, 1, 1]\n"
    slides = load(ROBOT + ROD + clamps + SIMULATION).build().model.unknowns.slides
    assert slides.nodes.tolist() == [2, 4]
    line, plane = (
        torch.tensor(matrix).double() / 2
        for matrix in (
            [[1, 0, 1], [0, 0, 0], [1, 0, 1]],
            [[2, 0, 0], [0, 1, -1], [0, -1, 1]],
        )
    )
    torch.testing.assert_close(
        slides.allowed.unflatten(0, (2, 3, 3)), torch.stack([line, plane]), rtol=0, atol=1e-15
    )  # rounding


def test_clamps_masses_and_planar_reach_the_model(load):
    """Fix axes, boxes and twists, add masses, stay in the plane."""
    clamps = (
        '[[clamp]]\nnodes = [2]\naxes = "xz"\ntwist = false\n[[clamp]]\nbox = {min = [0.3, 0, 0], max = [1, 0, 0]}\n'
    )
    model = load(ROBOT + ROD + clamps + SIMULATION + "[[mass]]\nnodes = [0, 4]\nadd = 0.5\n").build().model
    free = model.free.tolist()
    assert free[6:9] == [False, True, False] and free[9:15] == [False] * 6 and free[:6] == [True] * 6
    assert free[15:] == [True, True, True, False]
    plain = load(ROBOT + ROD + clamps + SIMULATION).build().model
    extra = (model.body.node_mass() - plain.body.node_mass()).flatten().tolist()
    assert extra == pytest.approx([0.5, 0, 0, 0, 0.5], abs=1e-15)
    planar = load(GOOD.replace("[robot]", "[robot]\nplanar = true")).build().model
    assert not planar.free[1:15:3].any() and not planar.free[15:].any()


def test_boxes_have_the_nodes_on_their_faces_where_lengths_are_scaled(load):
    """Clamp the node at 9 mm by a box up to 0.009 m, and end two rods there: 1e-3 * 9 is 0.009000000000000001."""
    section = 'section = {shape = "circle", radius = 5e-4}\nyoungs = 1e6\ndensity = 1000.0\n'
    text = (
        "[robot]\nscale = 1e-3\nnodes = [[0, 0, 0], [3, 0, 0], [6, 0, 0], [9, 0, 0], [12, 0, 0]]\n"
        "rod_edges = [[0, 1], [1, 2], [2, 3], [3, 4]]\n"
        f"[[rod]]\n{section}box = {{min = [0, 0, 0], max = [0.009, 0, 0]}}\n"
        f"[[rod]]\n{section}box = {{min = [0.009, 0, 0], max = [1, 0, 0]}}\n"
        "[[clamp]]\nbox = {min = [0, 0, 0], max = [0.009, 0, 0]}\n"
    )
    assert load(text + SIMULATION).build().model.body.clamps[0].nodes.tolist() == [0, 1, 2, 3]


def test_every_force_reaches_the_model(load):
    """Find a force for each key of [environment] and [[point_force]], with its numbers."""
    text = ROBOT + ROD + CLAMP + SIMULATION
    text += (
        "[environment]\ngravity = [0, 0, -9.81]\nfluid_density = 500.0\nviscosity = 0.1\nmass_damping = 0.2\n"
        "resistive = {tangential = 0.01, normal = 0.1}\n"
        "[[point_force]]\nnodes = [4]\nforce = [1, 2, 3]\nstart = 0.01\nstop = 0.02\n"
    )
    found = {type(force).__name__: force for force in load(text).build().model.forces}
    assert set(found) == {"Gravity", "Buoyancy", "Viscous", "MassDamping", "Resistive", "PointForce"}
    assert found["Buoyancy"].fluid_density.item() == 500 and found["Viscous"].viscosity.item() == 0.1
    assert found["Resistive"].normal.item() == 0.1 and found["MassDamping"].rate.item() == 0.2
    assert (found["PointForce"].start, found["PointForce"].stop) == (0.01, 0.02)
    quadratic = 'resistive = {tangential = 0.01, normal = 0.1, law = "quadratic", density = 1e3}'
    text = text.replace("resistive = {tangential = 0.01, normal = 0.1}", quadratic)
    force = next(f for f in load(text).build().model.forces if type(f).__name__ == "QuadraticResistive")
    assert force.density.item() == 1e3


def test_planar_robots_lie_in_several_planes(load):
    """Put the rod of a planar scene a second time beside the first: both move as the first alone."""
    alone = run(load(GOOD.replace("[robot]", "[robot]\nplanar = true")))
    nodes = [[k / 10, y, 0] for y in (0, 1) for k in range(5)]
    edges = [[k, k + 1] for k in range(9) if k != 4]
    robot = f"[robot]\nplanar = true\nnodes = {nodes}\nrod_edges = {edges}\n"
    both = run(load(robot + ROD + CLAMP.replace("0, 1", "0, 1, 5, 6") + SIMULATION + GRAVITY)).positions
    torch.testing.assert_close(both[:, :, :5], alone.positions, rtol=0, atol=1e-12)
    torch.testing.assert_close(both[:, :, 5:] - torch.tensor([0.0, 1.0, 0.0]), alone.positions, rtol=0, atol=1e-12)


def test_nodes_that_rounding_keeps_apart_are_refused_by_the_file(load):
    """Name the file and [robot], as for nodes at exactly the same place."""
    text = GOOD.replace("[0.4, 0, 0]]", "[0.2, 1e-15, 0]]")
    with pytest.raises(InputError, match=r"scene.toml: robot: nodes: nodes 2 and 4 are in one place"):
        load(text).build()
