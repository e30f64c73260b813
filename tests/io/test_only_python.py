"""What docs/scene.md says that scenes cannot: they refuse it, or have no key for it, and Python does it."""

import pytest
import torch

from tests.io.robots_by_hand import EDGES, FACES, HEAD, NODES, SIMULATION, SQUARE
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    actuation,
    contact,
    elastic,
    forces,
    magnetics,
)

ROD, SHELL = HEAD["rod"] + SIMULATION, HEAD["shell"] + SIMULATION
MAGNET = HEAD["rod"] + "magnetisation = [1e3, 0, 0]\n" + SIMULATION
TENDON = "[[tendon]]\ntension = 1.0\n"
ROTATING = "[magnetic]\nrotating = {amplitude = 1.0, frequency = 1.0, "
REFUSED = {
    "pressure on some triangles": (SHELL, "environment", "pressure = {pressure = 1.0, triangles = [0]}", "pressure"),
    "a pressure that starts": (SHELL, "environment", "pressure_start = 0.1", "unknown key"),
    "thrust of some triangles": (
        SHELL,
        "environment",
        "thrust = {coefficient = 1.0, smoothing = 1.0, triangles = [0]}",
        "triangles: unknown key",
    ),
    "explicit drag": (
        SHELL,
        "environment",
        "drag = {density = 1.0, coefficient = 1.0, explicit = true}",
        "explicit: unknown key",
    ),
    "tendons at nodes and edges": (
        ROD + TENDON + "nodes = [1]\nedges = [2]\n",
        "",
        "",
        "exactly one of nodes or edges",
    ),
    "tendons that end in space": (ROD + TENDON + "nodes = [1, 2]\nend = [1, 0, 0]\n", "", "", "unknown key"),
    "chambers at edges": (
        ROD + "[[chamber]]\nedges = [1, 2]\noffset = [0, 0, 0]\narea = 1.0\npressure = 1.0\n",
        "",
        "",
        "chamber.0.edges: unknown key",
    ),
    "two fields": (
        MAGNET + "[magnetic]\nconstant = [0, 0, 1]\ndipole = {moment = [0, 0, 1], center = [0, 0, 1]}\n",
        "",
        "",
        "exactly one of",
    ),
    "fields that turn aslant": (MAGNET + ROTATING + "plane = [[1, 0, 1], [0, 1, 0]]}\n", "", "", "plane: expected"),
    "a law of some rods": (
        ROD + '[[inelastic]]\nlaw = "dahl"\nlimit = 1.0\nEA = 1.0\nedges = [1]\n',
        "",
        "",
        "edges: unknown key",
    ),
    "a dissipation of some rods": (ROD + "[dissipation]\nEA = 1.0\nedges = [1]\n", "", "", "edges: unknown key"),
    "angles to begin with": (ROD + "[initial]\nangles = [0.1]\n", "", "", "angles: unknown key"),
    "forces of each node": (
        ROD + "[[point_force]]\nnodes = [1, 2]\nforce = [[0, 0, 1], [0, 0, 2]]\n",
        "",
        "",
        "point_force.0.force.0: expected a number",
    ),
    "single precision": (ROD, "simulation", 'dtype = "float32"', "dtype: unknown key"),
    "belts in statics": (
        HEAD["rod"]
        + '[simulation]\nintegrator = "static"\n[[obstacle]]\nshape = "plane"\npoint = [0, 0, -1]\n'
        + "normal = [0, 0, 1]\nstiffness = 1.0\nvelocity = [0.1, 0, 0]\n",
        "",
        "",
        "static",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_scenes_do_not_say_it(load, name):
    """Refuse what a scene might say, were there a key."""
    text, table, line, problem = REFUSED[name]
    if table:
        text = text.replace(f"[{table}]\n", f"[{table}]\n{line}\n")
    with pytest.raises(InputError, match=problem):
        load(text)


def stepped(builder: RobotBuilder, **start):
    """Return the state after a step of 1 ms."""
    builder.clamp(nodes=[0, 1])
    model = builder.finalize()
    integrator, state = ImplicitEuler(1e-3), model.initial_state(**start)
    return integrator.step(model, state, throw=True)[0]


def rod() -> RobotBuilder:
    """Return the robot of the scene with a rod."""
    builder = RobotBuilder()
    builder.add_rods(NODES, EDGES, Circle(5e-3), Material(1e6, 1000.0))
    return builder


def shell() -> RobotBuilder:
    """Return the robot of the scene with a shell."""
    builder = RobotBuilder()
    builder.add_shell(SQUARE, FACES, 1e-3, Material(1e6, 1000.0))
    return builder


def magnetised(*fields) -> RobotBuilder:
    """Return a rod that is magnetised along itself, in fields that add up."""
    builder = rod()
    for field in fields:
        builder.add_force(magnetics.Magnetic([1e5, 0.0, 0.0], field))
    return builder


def with_force(builder: RobotBuilder, force: forces.Force) -> RobotBuilder:
    """Return the builder with a force more."""
    builder.add_force(force)
    return builder


AT_NODES, ON_EDGES = actuation.AtNodes([1, 2], (0, 0, 0.01)), actuation.OnEdges([2, 3], (0, 0, 0.01))
BY_PYTHON = {
    "pressure on some triangles": lambda: with_force(shell(), forces.Pressure(10.0, triangles=[1], start=0.0)),
    "tendons of several parts": lambda: with_force(
        rod(), actuation.Tendons([[AT_NODES, ON_EDGES, actuation.Fixed((0.5, 0, 0.1))]], tension=[1.0])
    ),
    "chambers at edges": lambda: with_force(rod(), actuation.Chambers([[ON_EDGES]], area=1e-4, pressure=1e4)),
    "two fields": lambda: magnetised(magnetics.Constant([0, 0, 0.1]), magnetics.Dipole([0, 0, 1.0], [0, 0, 0.2])),
    "fields that turn aslant": lambda: magnetised(magnetics.Rotating(0.1, 1.0, (1, 0, 1), (0, 1, 0))),
    "forces of each node": lambda: with_force(rod(), forces.PointForce([2, 3], [[[0, 0, 1.0], [0, 0.1, 0]]])),
}


@pytest.mark.parametrize("name", BY_PYTHON)
def test_python_does_it(name):
    """Move a robot by what a scene cannot say."""
    moved = stepped(BY_PYTHON[name]())
    assert float(moved.node_velocities.abs().max()) > 1e-4, "what is of no account for the motion shows nothing"


def test_python_adds_to_the_robot_of_a_scene(load):
    """Give the shell of a scene a pressure on one of its triangles."""
    setup = load(SHELL).build(add=lambda builder: builder.add_force(forces.Pressure(10.0, triangles=[1])))
    assert setup.model.forces[-1].pressure == 10.0


ADDED = {
    "an obstacle": lambda robot: robot.add_contact(
        contact.Obstacle(contact.HalfSpace((0, 0, -1.0), (0, 0, 1.0)), contact.Penalty(100.0, 1e-3))
    ),
    "parts that begin at no gap": lambda robot: robot.add_contact(
        contact.SelfContact(contact.Barrier(100.0, 1e-3), ring=1)
    ),
    "a tendon": lambda robot: robot.add_force(actuation.Tendons([[actuation.AtNodes([1, 2, 3])]], tension=[1.0])),
}


@pytest.mark.parametrize("added", ADDED)
@pytest.mark.parametrize("tables", ["", TENDON + "nodes = [1, 2]\n[floor]\nheight = -1.0\nstiffness = 10.0\n"])
def test_python_adds_beside_what_a_scene_has_of_a_kind(load, added, tables):
    """Take contacts and tendons from Python beside those of the scene, of which it may have none."""
    model = load(ROD + tables).build(add=ADDED[added]).model
    before = load(ROD + tables).build().model
    assert len(model.forces) + len(model.self_contacts) == len(before.forces) + len(before.self_contacts) + 1


def test_python_adds_nodes_to_a_scene_that_turns_edges(load):
    """Turn the clamped edge of a scene to which Python adds a rod."""
    scene = load(ROD + "[[move]]\nedges = [0]\ntwist_rate = 1.0\n")
    setup = scene.build(add=lambda robot: robot.add_rod([(0, 1, 0), (0.1, 1, 0)], Circle(5e-3), Material(1e6, 1000.0)))
    control = setup.schedule(torch.tensor([2.0], dtype=torch.float64), setup.model)
    assert float(control.clamped_q[0, 3 * setup.model.body.n_nodes]) == 2.0


def test_python_gives_laws_to_some_rods():
    """Let single springs remember and dissipate, by numbers that are zero elsewhere."""
    builder = rod()
    some = torch.tensor([0.0, 0.0, 10.0, 0.0], dtype=torch.float64)
    builder.add_inelastic("stretch", elastic.Dahl({"EA": some}, 0.1))
    builder.add_dissipation("stretch", elastic.LinearElastic({"viscous_EA": some}))
    builder.add_force(forces.PointForce([4], [1.0, 0.0, 0.0]))
    assert bool(torch.isfinite(stepped(builder).positions).all())


def test_python_begins_with_angles_and_single_precision():
    """Begin with a turned edge, in float32."""
    builder = rod()
    builder.clamp(nodes=[0, 1])
    model = builder.finalize(dtype=torch.float32, compile=False)
    q = model.posture(model.nodes[None]).clone()
    q[..., 3 * len(NODES) + 3] = 0.1  # rad, of the last edge
    state = model.initial_state(q=q)
    assert state.q.dtype == torch.float32
    after, _ = ImplicitEuler(1e-3).step(model, state, Control(), throw=True)
    assert float(after.velocity[..., 3 * len(NODES) + 3].abs().max()) > 0, "the edge turns back"


def test_python_finds_rest_on_a_belt():
    """Find the equilibrium of a rod that a moving floor drags along."""
    builder = rod()
    builder.clamp(nodes=[0])
    floor = contact.HalfSpace((0, 0, -6e-3), (0, 0, 1))
    belt = contact.Path.uniform((0.1, 0.0, 0.0), 10.0)
    builder.add_contact(contact.Obstacle(floor, contact.Penalty(50.0, 5e-4), contact.Friction(0.5, 1e-3), belt))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    rest, _ = Static().step(model, model.initial_state(), throw=True)
    assert float(rest.positions[0, -1, 0]) > NODES[-1][0], "the belt pulls it away from the clamp"
