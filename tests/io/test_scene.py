"""Scenes: what a file says is what the model, the integrator and the schedule do."""

import math

import numpy as np
import pytest
import torch

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
from torchdismech.io.randomize import Numbers

ROBOT = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0], [0.4, 0, 0]]
rod_edges = [[0, 1], [1, 2], [2, 3], [3, 4]]
"""
ROD = """
[rod]
section = {shape = "circle", radius = 5e-3}
youngs = 1e6
density = 1000.0
"""
CLAMP = """
[[clamp]]
nodes = [0, 1]
"""
SIMULATION = """
[simulation]
dt = 0.01
duration = 0.05
"""
GRAVITY = """
[environment]
gravity = [0, 0, -9.81]
"""
GOOD = ROBOT + ROD + CLAMP + SIMULATION + GRAVITY


def run(scene, **options):
    """Return the trajectory of a scene with every step stored."""
    setup = scene.build(**options)
    return rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule)


def python_robot() -> RobotBuilder:
    """Return the robot of the scene above, built by hand."""
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
    assert (integrator.dt, integrator.force_tolerance, integrator.relative_tolerance) == (0.01, 1e-8, 1e-8)
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
    for key in ("mass.2.add", "mass.first.add", "mass.-1"):
        with pytest.raises(InputError, match=f"{key}: expected the number of a table, 0 to 1"):
            load(masses, overrides={key: 0.3})
    with pytest.raises(InputError, match="does not apply to static"):
        load(ROBOT + ROD + CLAMP + '[simulation]\nintegrator = "static"', steps=7)


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
    body = "density = 1000.0\npoisson = 0.5\n"
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


def test_every_key_of_a_rod_reaches_the_model(load):
    """Compare section, material, natural shape and stiffness with the same robot built by hand."""
    text = GOOD.replace(
        ROD,
        '[rod]\nsection = {shape = "rectangle", width = 4e-3, height = 2e-3}\nyoungs = 3e6\npoisson = 0.3\n'
        'density = 900.0\nnatural = "straight"\nstiffness = {GJ = 1e-4}\n',
    )
    ours = load(text).build().model
    robot = RobotBuilder()
    robot.add_rod(
        ours.nodes.numpy(), Rectangle(4e-3, 2e-3), Material(3e6, 900.0, 0.3), natural="straight", stiffness={"GJ": 1e-4}
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


# ---- randomise ---------------------------------------------------------------------------------------------------


def drawn(load, size: int, draws: str, seed: int = 0):
    """Return what is drawn for a batch."""
    return load(GOOD + f"[batch]\nsize = {size}\nseed = {seed}\n[batch.randomize]\n{draws}").randomized


def test_a_robot_draws_the_same_in_any_batch(load):
    """Draw for batches of 3 and 50, with and without another number, under both names: robot i gets the same."""
    few = drawn(load, 3, '"rod.youngs" = {uniform = [1e6, 3e6]}')["rod.youngs"]
    other = '"environment.gravity.2" = {normal = [-9.81, 0.1]}\n'
    many = drawn(load, 50, other + '"rod.0.youngs" = {uniform = [1e6, 3e6]}')["rod.0.youngs"]
    assert torch.equal(few, many[:3]) and len(many.unique()) == 50
    assert not torch.equal(few, drawn(load, 3, '"rod.youngs" = {uniform = [1e6, 3e6]}', seed=1)["rod.youngs"])
    normal = [drawn(load, size, other)["environment.gravity.2"][:3] for size in (3, 50)]
    assert torch.equal(*normal)


def test_distributions_are_those_asked_for(load):
    """Check ranges and moments of 4000 draws, and that values are taken as they are."""
    size = 4000
    uniform = drawn(load, size, '"rod.youngs" = {uniform = [1e6, 3e6]}')["rod.youngs"]
    assert 1e6 <= uniform.min() < 1.01e6 and 2.99e6 < uniform.max() <= 3e6
    # the mean of 4000 is within 5 standard errors: 5 * 2e6 / sqrt(12 * 4000)
    assert abs(uniform.mean() - 2e6) < 5e4
    log = drawn(load, size, '"rod.youngs" = {loguniform = [1e4, 1e8]}')["rod.youngs"].log10()
    assert log.min() >= 4 and log.max() <= 8 and abs(log.mean() - 6) < 0.1
    normal = drawn(load, size, '"environment.gravity.2" = {normal = [-9.81, 0.5]}')["environment.gravity.2"]
    assert abs(normal.mean() + 9.81) < 0.04 and abs(normal.std() - 0.5) < 0.03
    values = drawn(load, 2, '"rod.density" = {values = [900.0, 1100.0]}')["rod.density"]
    assert values.tolist() == [900, 1100]


DRAWS = {
    "rod.youngs": (1e6, 2e6),
    "rod.poisson": (0.2, 0.4),
    "rod.density": (900.0, 1100.0),
    "rod.section.radius": (4e-3, 5e-3),
    "rod.stiffness.EA": (60.0, 90.0),
    "mass.0.add": (0.01, 0.02),
    "environment.gravity.0": (1.0, 2.0),
    "environment.fluid_density": (100.0, 200.0),
    "environment.viscosity": (0.1, 0.2),
    "environment.mass_damping": (0.1, 0.2),
    "environment.resistive.tangential": (0.01, 0.02),
    "environment.resistive.normal": (0.1, 0.2),
    "point_force.0.force.1": (0.01, 0.02),
    "move.0.velocity.0": (0.1, 0.2),
    "move.1.rotation.rate": (1.0, 2.0),
    "move.0.twist_rate": (1.0, 2.0),
}
ALL_NUMBERS = (
    ROBOT
    + ROD
    + 'stiffness = {EA = 70.0}\nnatural = "straight"\npoisson = 0.3\n'
    + CLAMP
    + SIMULATION
    + "[environment]\ngravity = [0, 0, -9.81]\nfluid_density = 100.0\nviscosity = 0.1\nmass_damping = 0.1\n"
    + "resistive = {tangential = 0.01, normal = 0.1}\n[[mass]]\nnodes = [4]\nadd = 0.01\n"
    + "[[point_force]]\nnodes = [4]\nforce = [0, 0.01, 0]\n"
    + "[[move]]\nnodes = [0, 1]\nvelocity = [0.1, 0, 0]\nedges = [0]\ntwist_rate = 1.0\nstop = 0.02\n"
    + "[[move]]\nnodes = [0, 1]\nstart = 0.02\nrotation = {axis = [0, 1, 0], center = [0, 0, 0], rate = 1.0}\n"
)


@pytest.mark.parametrize("name", DRAWS)
def test_each_number_reaches_its_robot(load, name):
    """Give two robots different numbers: each moves as it does alone with its number, not as the other."""
    both = run(load(ALL_NUMBERS + f'[batch]\nsize = 2\n[batch.randomize]\n"{name}" = {{values = {list(DRAWS[name])}}}'))
    for robot, value in enumerate(DRAWS[name]):
        alone = run(load(ALL_NUMBERS + f'[batch]\nsize = 1\n[batch.randomize]\n"{name}" = {{values = [{value}]}}'))
        # 1e-10 of the motion's size (0.1 m): a row of a batch differs from itself alone by rounding only
        torch.testing.assert_close(both.positions[:, robot], alone.positions[:, 0], rtol=0, atol=1e-11)
        torch.testing.assert_close(both.twist[:, robot], alone.twist[:, 0], rtol=0, atol=1e-9)
    difference = (both.positions[-1, 0] - both.positions[-1, 1]).abs().max()
    twisting = (both.twist[-1, 0] - both.twist[-1, 1]).abs().max()
    assert max(difference, twisting) > 1e-7


def test_numbers_broadcast():
    """Return drawn numbers as (B, 1) and (B, 3), others as they are."""
    numbers = Numbers(
        {("rod", 0, "youngs"): np.array([1.0, 2.0]), ("environment", "gravity", 2): np.array([-1.0, -2.0])}
    )
    assert numbers.scalar(("rod", 0, "youngs"), 5.0).tolist() == [[1], [2]]
    assert numbers.scalar(("rod", 1, "youngs"), 5.0) == 5.0
    assert numbers.vector(("environment", "gravity"), [1.0, 0.0, -9.0]).tolist() == [[1, 0, -1], [1, 0, -2]]
    assert numbers.vector(("point_force", 0, "force"), [1.0, 0.0, -9.0]).tolist() == [1, 0, -9]


# ---- over time ---------------------------------------------------------------------------------------------------


def control_at(scene, *times: float):
    """Return the control of the scene at one time for each robot."""
    setup = scene.build()
    return setup.schedule(torch.tensor(times, dtype=torch.float64), setup.model), setup.model


def test_translation_is_straight_within_its_times(load):
    """Move nodes from start to stop at the velocity, and twist an edge."""
    move = "[[move]]\nnodes = [0, 1]\nvelocity = [0, 0.5, 0]\nstart = 1.0\nstop = 3.0\nedges = [0]\ntwist_rate = 2.0\n"
    scene = load(GOOD + move + "[batch]\nsize = 4\n")
    control, _ = control_at(scene, 0.5, 1.0, 2.0, 7.0)
    x = control.clamped_q[:, :15].unflatten(1, (5, 3))
    assert x[:, 1, 1].tolist() == [0, 0, 0.5, 1.0] and (x[:, 1, 0] == 0.1).all() and (x[:, 2:, 1] == 0).all()
    assert control.clamped_q[:, 15].tolist() == [0, 0, 2, 4]


def test_rotation_is_exact_and_moves_follow_each_other(load):
    """Lift by 0.1 m, then turn by 90 degrees about the vertical axis through node 0: radius and height stay exact."""
    moves = (
        "[[move]]\nnodes = [0, 1]\nvelocity = [0, 0, 0.1]\nstop = 1.0\n"
        f"[[move]]\nnodes = [0, 1]\nrotation = {{axis = [0, 0, 3], center = [0, 0, 0], rate = {math.pi / 4}}}\n"
        "start = 1.0\nstop = 3.0\n"
    )
    control, _ = control_at(load(GOOD + moves + "[batch]\nsize = 3\n"), 1.0, 2.0, 9.0)
    x = control.clamped_q[:, :15].unflatten(1, (5, 3))
    half = 0.1 * math.sqrt(0.5)
    expected = torch.tensor([[0.1, 0, 0.1], [half, half, 0.1], [0, 0.1, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(x[:, 1], expected, rtol=0, atol=1e-16)


def test_path_from_a_file_is_followed(load):
    """Read positions of two nodes from a table, linear in time and held at its ends."""
    path = "time,x0,y0,z0,x1,y1,z1\n0, 0,0,0, 0.1,0,0\n2, 0,0,1, 0.1,0,1\n"
    scene = load(GOOD + '[[move]]\nnodes = [0, 1]\nfile = "path.csv"\n[batch]\nsize = 3\n', path__csv=path)
    control, _ = control_at(scene, 0.0, 0.5, 9.0)
    x = control.clamped_q[:, :15].unflatten(1, (5, 3))
    assert x[:, 0, 2].tolist() == [0, 0.25, 1] and x[:, 1, 0].tolist() == [0.1, 0.1, 0.1]


def test_moved_clamp_carries_its_velocity(load):
    """Move both clamped nodes at 0.2 m/s: the trajectory has them there, at that speed."""
    trajectory = run(load(GOOD + "[[move]]\nnodes = [0, 1]\nvelocity = [0, 0.2, 0]\n"))
    assert not trajectory.failed.any()
    torch.testing.assert_close(trajectory.positions[:, 0, 0, 1], 0.2 * trajectory.time, rtol=1e-12, atol=1e-15)
    # (q - q_n)/dt of implicit Euler
    torch.testing.assert_close(
        trajectory.velocities[1:, 0, 0, 1], torch.full((5,), 0.2, dtype=torch.float64), rtol=1e-9, atol=0
    )


def test_natural_strains_come_from_tables(load):
    """Read natural curvature, twist and rest length; kappa2 stays the model's own unless the file has it."""
    text = (
        GOOD
        + "[batch]\nsize = 3\n[actuation]\n"
        + 'natural_curvature = "kappa.csv"\nnatural_twist = "twist.csv"\nrest_length = "length.csv"\n'
    )
    files = {
        "kappa__csv": "# time and three springs\n0,0,0,0\n1,0.1,0.2,0.3\n",
        "twist__csv": "0,1,2,3\n",
        "length__csv": "t,a,b,c,d\n1,0.1,0.1,0.1,0.1\n3,0.2,0.1,0.1,0.1\n",
    }
    control, model = control_at(load(text, **files), -1.0, 0.5, 2.0)
    torch.testing.assert_close(
        control.natural_curvature[:, :, 0],
        torch.tensor([[0, 0, 0], [0.05, 0.1, 0.15], [0.1, 0.2, 0.3]], dtype=torch.float64),
        rtol=0,
        atol=1e-16,
    )
    assert torch.equal(control.natural_curvature[..., 1], model.natural_strains(3).natural_curvature[..., 1])
    assert control.natural_twist.tolist() == [[1, 2, 3]] * 3
    torch.testing.assert_close(control.rest_length[:, 0], torch.tensor([0.1, 0.1, 0.15], dtype=torch.float64))
    both = load(text, **(files | {"kappa__csv": "0,0,0,0,0.4,0.5,0.6\n"}))
    assert control_at(both, 0.0)[0].natural_curvature[0].tolist() == [[0, 0.4], [0, 0.5], [0, 0.6]]


def test_rod_curls_to_its_natural_curvature(load):
    """Actuate a rod without weight: in static equilibrium kappa1 is the natural one, curling towards +z."""
    text = ROBOT + ROD + CLAMP + '[simulation]\nintegrator = "static"\nforce_tolerance = 1e-11\n'
    text += '[actuation]\nnatural_curvature = "kappa.csv"\n'
    trajectory = run(load(text, kappa__csv="0,0.2,0.2,0.2\n"))
    assert not trajectory.failed.any() and trajectory.positions[-1, 0, -1, 2] > 0.05
    # kappa = 2 tan(angle/2) between edges: the tip's edge has turned by three of these angles. A residual of 1e-11 N
    # at 0.3 m on EI = 4.9e-4 N m^2 leaves about 2e-9 rad.
    x = trajectory.positions[-1, 0]
    turned = math.atan2(x[4, 2] - x[3, 2], x[4, 0] - x[3, 0])
    assert turned == pytest.approx(3 * 2 * math.atan(0.1), abs=1e-8)


def test_python_actuation_tells_robots_apart(load):
    """Run a function from a file beside the scene, given time, model and what the tables say."""
    code = (
        "import torch\n"
        "def act(time, model, control):\n"
        "    robots = torch.arange(len(time), dtype=time.dtype)[:, None]\n"
        "    return control.replace(natural_twist=control.natural_twist + robots + time[:, None])\n"
    )
    text = GOOD + '[batch]\nsize = 2\n[actuation]\nnatural_twist = "twist.csv"\npython = "act.py:act"\n'
    scene = load(text, act__py=code, twist__csv="0,1,2,3\n")
    with pytest.raises(InputError, match="--allow-code"):
        scene.build()
    setup = scene.build(allow_code=True)
    control = setup.schedule(torch.tensor([0.5, 0.5], dtype=torch.float64), setup.model)
    assert control.natural_twist.tolist() == [[1.5, 2.5, 3.5], [2.5, 3.5, 4.5]]
    wrong = load(text, act__py="def act(time, model, control):\n    return None\n", twist__csv="0,1,2,3\n")
    setup = wrong.build(allow_code=True)
    with pytest.raises(InputError, match="act.py has to return a Control"):
        setup.schedule(torch.zeros(2, dtype=torch.float64), setup.model)


def test_point_force_acts_between_its_times(load):
    """Push a free rod for two of four steps: its momentum is that of two steps."""
    text = ROBOT + ROD + SIMULATION + "[[point_force]]\nnodes = [2]\nforce = [0.5, 0, 0]\nstart = 0.01\nstop = 0.03\n"
    setup = load(text).build()
    trajectory = rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule)
    momentum = (setup.model.body.node_mass() * trajectory.velocities[:, 0, :, 0]).sum(1)
    # 0.5 N for 0.01 s each step; Newton leaves at most its tolerance, 1e-8 N for 0.01 s a step
    expected = torch.tensor([0, 0, 0.005, 0.01, 0.01, 0.01], dtype=torch.float64)
    torch.testing.assert_close(momentum, expected, rtol=0, atol=1e-9)
