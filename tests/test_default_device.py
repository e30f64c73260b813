"""torch's default device, which scripts set to a GPU: it has no say in where a model is. "meta" stands in for one.

A tensor on "meta" has no numbers, so whatever the library left there would show.
"""

import ast
import copy
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._device import _device_constructors

from tests import scenes
from tests.rods import rod_through
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    Rectangle,
    RobotBuilder,
    Static,
    Trajectory,
    follow,
    forces,
    magnetics,
    meshes,
    modes,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.actuation import AtNodes, Chambers, Tendons
from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
from torchdismech.contact import (
    Barrier,
    Box,
    Capsule,
    Complementarity,
    Cylinder,
    Friction,
    HalfSpace,
    Mesh,
    Obstacle,
    Penalty,
    SelfContact,
    Sphere,
)
from torchdismech.contact import Path as Way
from torchdismech.control import PI, Fixed, Strains
from torchdismech.elastic import Dahl, LinearElastic
from torchdismech.environments import Constant, Environment, Force, Task, node_positions
from torchdismech.io.scene import load_scene
from torchdismech.native.compiled import address
from torchdismech.rigid import Radau, RigidChain
from torchdismech.testing import check_force, check_rigid_motion

REPOSITORY, ROOMS = Path(__file__).parents[1], ("torchdismech", "training", "models")
STEPS = 14  # more than are taken before steps are recorded
GRAVITY = (0.0, 0.0, -9.81)
RUBBER = Material(1e6, 1000.0, relaxation_time=0.01)


@contextmanager
def default_device(device: str | None) -> Iterator[None]:
    """Let torch make tensors on this device where it is not told on which."""
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)


def held_rod(*loads, points=None, section=None, **options) -> RobotBuilder:
    """Return a rod of 6 nodes along x, held at its first node in its direction, under its weight and loads."""
    points = straight((0, 0, 0), (0.2, 0, 0), 6) if points is None else points
    section = Circle(4e-3) if section is None else section
    return rod_through(points, section, RUBBER, [forces.Gravity(GRAVITY), *loads], "end", **options)


def ends_of(model, *integrators, batch=1, **options):
    """Return the frames of a run by each of some integrators, and the state after it."""
    found = []
    for integrator in integrators or [ImplicitEuler(0.01)]:
        run = rollout(model, model.initial_state(batch), integrator, STEPS, **options)
        assert not run.failed.any()
        found += [run.positions, run.time, *run.state.fields()]
    return found


def rods():
    """Run rods by each integrator."""
    loads = forces.Resistive(0.1, 0.5), forces.PointForce([5], (0.01, 0.01, 0.0), 0.02, 0.06)
    model = held_rod(*loads, section=Rectangle(4e-3, 3e-3)).finalize()
    return ends_of(model, ImplicitEuler(0.01), ImplicitMidpoint(5e-3), Newmark(5e-3), BDF2(0.01), batch=2)


def planar():
    """Run a planar robot with masses and a viscous fluid."""
    builder = held_rod(forces.Viscous(0.01), builder=RobotBuilder(planar=True))
    builder.add_mass([5], 1e-3)
    return ends_of(builder.finalize())


def branches():
    """Run rods that branch, whose joints are stiff, with materials that remember."""
    builder = held_rod(name="stem")
    builder.add_rod([(0.2, 0, 0), (0.24, 0.03, 0), (0.28, 0.06, 0.01)], Circle(3e-3), RUBBER)
    builder.add_inelastic("stretch", Dahl({"stretch": 10.0}, 0.01))
    builder.add_dissipation("bend_twist", LinearElastic({f"viscous_{s}": 1e-6 for s in ("kappa1", "kappa2", "tau")}))
    return ends_of(builder.finalize())


def sheets(bending):
    """Return a case of a sheet with a rod at its corner, in a fluid and under pressure."""

    def run():
        builder, sheet = RobotBuilder(), meshes.rectangle(0.06, 0.04, 0.02)
        index = builder.add_shell(sheet.nodes, sheet.triangles, 2e-3, Material(1e6, 1000.0, 0.3), bending)
        end = sheet.nodes[index[-1]]
        builder.add_rod(straight(end, end + [0.06, 0.0, 0.02], 4), Circle(2e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[0, 1])
        for load in (forces.Gravity(GRAVITY), forces.Drag(10.0, 1.0), forces.Pressure(2.0)):
            builder.add_force(load)
        return ends_of(builder.finalize())

    return run


def touching(response, friction):
    """Return a case of crossed rods that fall onto each other and onto a floor."""

    def run():
        builder = RobotBuilder()
        for k, (x, y) in enumerate([(0.05, 0.0), (0.0, 0.05)]):
            z = 4e-3 + 6e-3 * k
            builder.add_rod(straight((5e-3 * k - x, -y, z), (5e-3 * k + x, y, z), 4), Circle(2e-3), RUBBER)
        builder.add_force(forces.Gravity((0.3, 0, -9.81)))
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), response(), friction(), name="floor"))
        builder.add_contact(SelfContact(response(), friction()))
        return ends_of(builder.finalize(), ImplicitEuler(5e-3, max_substeps=16))

    return run


SHAPES = {
    "sphere": lambda: Sphere((0.1, 0, -0.02), 0.015),
    "capsule": lambda: Capsule((0.1, -0.02, -0.02), (0.1, 0.02, -0.02), 0.014),
    "cylinder": lambda: Cylinder((0.1, -0.02, -0.02), (0.1, 0.02, -0.02), 0.014),
    "box": lambda: Box((0.1, 0.0, -0.02), (0.02, 0.02, 0.03)),
    "mesh": lambda: Mesh(
        [[0.08, -0.02, -0.01], [0.12, -0.02, -0.01], [0.08, 0.02, -0.01], [0.1, 0.0, -0.03]],
        [[0, 1, 2], [0, 3, 1], [1, 3, 2], [2, 3, 0]],
    ),
}


def obstacle(shape):
    """Return a case of a rod that comes onto a shape that moves, at points between its nodes, too."""

    def run():
        builder, way = held_rod(), Way([0.0, 1.0], [[0, 0, 0], [0, 0, 0.01]])
        builder.add_contact(
            Obstacle(shape(), Penalty(50.0, 1e-3), Friction(0.3, 1e-2), name="it", path=way, spacing=0.02)
        )
        return ends_of(builder.finalize())

    return run


def magnets():
    """Run a magnetised rod in a field that turns, and one in that of a dipole."""
    fields = (
        magnetics.Rotating(0.02, 1.5, (0.0, 1.0, 0.0), (1.0, 0.0, 1.0)),
        magnetics.Dipole((2.0, 3.0, -1.0), (0.15, -0.05, 0.2)),
    )
    return [x for field in fields for x in ends_of(held_rod(magnetics.Magnetic((3e4, 1e4, -2e4), field)).finalize())]


def actuated():
    """Run a rod with tendons, with friction, and chambers."""
    tendons = Tendons([AtNodes(range(6), (0, 0, 3e-3))], pull=2e-3, stiffness=100.0, friction=0.2)
    chambers = Chambers([AtNodes(range(1, 5), (0, 2e-3, 0))], 1e-6, 1e3)
    return ends_of(held_rod(tendons, chambers).finalize())


def gradients():
    """Differentiate courses, recorded ones too, by constants and by where they begin."""
    model = held_rod(forces.Resistive(0.1, 0.5)).finalize()
    factor = trainable.scaled(model, ["bend_twist.EI1", "Gravity.acceleration"])
    found = []
    for _ in range(3):
        start = model.initial_state()
        start = start.replace(velocity=start.velocity.requires_grad_())
        course = unroll(model, start, ImplicitEuler(0.01), STEPS)
        found += torch.autograd.grad(course.positions[-1].square().sum(), [start.velocity, *factor.parameters()])
    return found


def equilibria():
    """Find an equilibrium, a path of equilibria and vibrations."""
    model = held_rod().finalize()
    state, _ = Static().step(model, model.initial_state(), throw=True)
    path, small = follow(model, model.initial_state()), modes(model, state, 3)
    return [*state.fields(), path.load_factor, small.eigenvalue, small.shape]


def chains():
    """Run chains of rigid elements, in the plane and in space, and differentiate them."""
    found = []
    for space in (False, True):
        shear = 1e5 if space else None
        chain = RigidChain.cylinder(3, 0.3, 6e-3, 1000.0, 1e6, viscosity=1e4, shear=shear, space=space)
        start = chain.initial_state(q=torch.full((1, chain.n_dofs), 0.1, dtype=torch.float64, device="cpu"))
        velocity = start.velocity.requires_grad_()
        course = unroll(chain, start, Radau(0.01), STEPS)
        found += [course.q, *torch.autograd.grad(course.q.square().sum(), [velocity])]
    return found


def arms():
    """Run a pneumatic arm onto a face."""
    face = Obstacle(HalfSpace((0.0, 0.0, -0.43), (0.0, 0.0, 1.0)), Complementarity(), Friction(0.5), name="face")
    arm = PneumaticArm(
        [0.15] * 3, [1.17, 0.54, 0.265], 0.04, 265.0, 125.0, orientation=(0.0, np.pi, 0.0), obstacles=[face]
    )
    state = arm.initial_state()
    for _ in range(STEPS):
        state, _ = ArmIntegrator(4e-3).step(arm, state, throw=True)
    return state.fields()


def controlled():
    """Run a rod whose natural strains a PI law feeds back, with noise and delay."""
    model = held_rod().finalize()
    strains = Strains(model)
    goal = Fixed(
        strains.of_shape(model, np.array(model.nodes.tolist()) + np.array([[0, 0, 1e-3 * k] for k in range(6)]))
    )
    controller = PI(model, strains, goal, 0.01, Kp=0.2, Ki=1.0, noise=0.01, delay=1)
    return ends_of(model, controller=controller)


def learned():
    """Take steps in an environment whose robots begin anew."""
    model = held_rod().finalize()
    task = Task(
        actions=[Force([17], -0.01, 0.01), Constant("Gravity.acceleration", -9.81, 0.0, count=3)],
        observations=[node_positions([5])],
        reward=lambda model, step: -step.after.positions[:, -1].norm(dim=1),
        start=lambda model, draws: {"velocity": 0.1 * draws.uniform(-1.0, 1.0, model.n_dofs) * model.free},
    )
    environment = Environment(model, ImplicitEuler(0.01), task, 3, horizon=2, seed=3)
    found = [environment.reset()]
    for _ in range(3):
        action = torch.full((3, len(environment.low)), -0.5, dtype=torch.float64, device="cpu")
        outcome = environment.step(action)
        found += [outcome.observation, outcome.reward]
        environment.reset(outcome.terminated | outcome.truncated)
    return found


def kept(tmp_path):
    """Return a case of what is saved and loaded: runs, models, states and numbers."""

    def run():
        model = held_rod().finalize()
        trajectory = rollout(model, model.initial_state(), ImplicitEuler(0.01), STEPS)
        trajectory.save(tmp_path / f"{torch.get_default_device()}.h5")
        again = Trajectory.load(tmp_path / f"{torch.get_default_device()}.h5")
        twin = pickle.loads(pickle.dumps(model))
        twin.load_state_dict(copy.deepcopy(model).state_dict())
        return [again.positions, *again.state.fields(), *ends_of(twin)]

    return run


SCENE = (
    scenes.falling(4, 0.2)
    + """\
[floor]
height = -0.02
stiffness = 100.0
friction = 0.3
[output]
reactions = true
[batch]
size = 3
[batch.randomize]
"rod.youngs" = {uniform = [1e6, 3e6]}
"""
)


def scene(folder):
    """Return a case of a scene whose robots differ, above a floor that friction belongs to."""

    def run():
        path = folder / "scene.toml"
        path.write_text(SCENE)
        setup = load_scene(path).build()
        run = rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule)
        return [run.positions, *run.contact.values(), *setup.model.energies(run.state).values()]

    return run


def checked():
    """Check forces and energies as authors of their own do."""
    model = held_rod(forces.Resistive(0.1, 0.5)).finalize()
    check_force(model.forces[1], model, model.initial_state()).raise_if_failed()
    check_rigid_motion(model, model.initial_state()).raise_if_failed()
    return []


CASES = {
    "rods": rods,
    "planar": planar,
    "branches": branches,
    "magnets": magnets,
    "actuated": actuated,
    "gradients": gradients,
    "equilibria": equilibria,
    "chains": chains,
    "arms": arms,
    "controlled": controlled,
    "learned": learned,
    "checked": checked,
    **{f"sheet, {bending}": sheets(bending) for bending in ("hinge", "midedge")},
    **{name: obstacle(shape) for name, shape in SHAPES.items()},
    "penalty": touching(lambda: Penalty(100.0, 1e-3), lambda: Friction(0.3, 1e-2)),
    "barrier": touching(lambda: Barrier(100.0, 1e-3), lambda: Friction(0.3, 1e-2)),
    "complementarity": touching(lambda: Complementarity(), lambda: Friction(0.3)),
}


def assert_no_say(case):
    """Refuse a case that goes otherwise where torch makes tensors on meta."""
    expected = case()
    with default_device("meta"):
        found = case()
    assert len(found) == len(expected)
    for there, here in zip(found, expected, strict=True):
        assert there.device.type == "cpu" and torch.equal(there, here)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_everything_goes_as_on_the_cpu(case):
    """Build and run robots to the same bits, whatever the default device is."""
    assert_no_say(case)


@pytest.mark.parametrize("case", [scene, kept])
def test_files_go_as_on_the_cpu(case, tmp_path):
    """Read scenes, save and load runs and models, to the same bits."""
    assert_no_say(case(tmp_path))


def test_a_model_goes_on_where_the_default_device_changes():
    """Take steps of a model that was made before, recorded ones too: such a step ended the process."""
    model, twin = held_rod().finalize(), held_rod().finalize()
    expected = ends_of(model)
    with default_device("meta"):
        found = ends_of(twin)
    assert all(torch.equal(there, here) for there, here in zip(found, expected, strict=True))


def test_compiled_code_refuses_tensors_of_other_devices():
    """Say so, in place of reading numbers that are elsewhere, which ends the process."""
    with pytest.raises(InputError, match="expected tensors on cpu, got one on meta"):
        address(torch.zeros(3, device="meta"))


def test_makers_of_tensors_say_where():
    """Find no maker without a device, and none that is handed on: torch's default device would decide there."""
    makers = {function.__name__ for function in _device_constructors()}
    silent = []
    for path in sorted(path for room in ROOMS for path in (REPOSITORY / room).rglob("*.py")):
        nodes = [*ast.walk(ast.parse(path.read_text()))]
        told = {
            call.func for call in nodes if isinstance(call, ast.Call) and "device" in {k.arg for k in call.keywords}
        }
        named = [node for node in nodes if isinstance(node, ast.Attribute) and node.attr in makers]
        of_torch = [node for node in named if isinstance(node.value, ast.Name) and node.value.id == "torch"]
        silent += [f"{path}:{node.lineno}: torch.{node.attr}" for node in of_torch if node not in told]
    assert not silent
