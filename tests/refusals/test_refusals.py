"""What would be simulated wrongly without a word, refused where it is given."""

import copy
import dataclasses
import functools
import importlib
import math
import sys

import numpy as np
import pytest
import torch

from tests.refusals.robots import MATERIAL, rod, shell
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Rectangle,
    RobotBuilder,
    State,
    forces,
    magnetics,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.elastic import LinearElastic, Maxwell

TAPERED = torch.tensor([1e-3, 1e-3, 1e-200, 1e-3], dtype=torch.float64)


def column(robots, value):
    """Return a number of each robot (B, 1)."""
    return torch.full((robots, 1), value, dtype=torch.float64)


def directors(vector, count=4):
    """Return a rod with the same director at each edge."""
    return rod(directors=np.tile(np.asarray(vector, dtype=float), (count, 1)))


def in_plane():
    """Return the builder of a planar rod."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 5), Circle(2e-3), MATERIAL)
    return builder


def pushed_in_plane(node, axis):
    """Step a planar rod that a control pushes at one dof; the angles of edges come after the last node, 4."""
    model = rod(planar=True)
    force = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    force[0, 3 * node + axis] = 1e-3
    return ImplicitEuler(0.01).step(model, model.initial_state(), Control(force=force))


def curved_out_of_plane(control=None, own=0.0):
    """Step a planar rod with curvatures at rest about z, (B, 3) of the springs between edges, or its own."""
    model = rod(planar=True)
    term = model.term("bend_twist")
    term.natural_kappa2 = term.natural_kappa2 + own
    curvature = None if control is None else torch.tensor([[[0.1, k] for k in control]]).double()
    return ImplicitEuler(0.01).step(model, model.initial_state(), Control(natural_curvature=curvature))


def valued_in_plane(name, value):
    """Step a planar rod with another number for a natural strain of all springs."""
    model = rod(planar=True)
    values = {f"bend_twist.{name}": torch.full((1, model.term("bend_twist").stencil.count), value).double()}
    return ImplicitEuler(0.01).step(model, model.initial_state(), Control(values=values))


def planar_along(end, direction=None):
    """Return a planar rod from the origin to an end."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), end, 5), Circle(2e-3), MATERIAL)
    builder.clamp([0], direction=direction)
    return builder.finalize()


def begun_in_plane(axis, node=2, speed=1.0):
    """Return a planar rod's first state, one dof of which has a velocity, beside a node that moves along x."""
    model = rod(planar=True)
    velocity = torch.zeros(model.n_dofs, dtype=torch.float64)
    velocity[3 * 3], velocity[3 * node + axis] = 1.0, speed
    return model.initial_state(velocity=velocity)


def held_in_plane(place, by=1e-3, held=True):
    """Step a planar rod whose clamped end a control moves in a place of q, or begin with that place moved."""
    builder = in_plane()
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize()
    q = model.initial_state(2).q.clone()
    q[1, place] += by
    if not held:
        return model.initial_state(q=q)
    return ImplicitEuler(0.01).step(model, model.initial_state(2), Control(clamped_q=q), throw=True)


def posed_in_plane(*pose):
    """Step a planar rod whose clamp a control puts somewhere."""
    model = rod(planar=True)
    control = Control(pose=torch.tensor([[pose]], dtype=torch.float64))
    return ImplicitEuler(0.01).step(model, model.initial_state(), control, throw=True)


def thrown_in_plane(*velocities):
    """Return a planar rod that is thrown."""
    model = rod(planar=True)
    return model.thrown(model.initial_state(), *velocities)


def test_planar_robots_take_what_they_feel():
    """Push, turn and stiffen a planar rod within its plane, by EI2 where its directors are turned: no refusal."""
    sideways = np.tile([0.0, 1, 0], (4, 1))
    rod(planar=True, directors=sideways, stiffness={"EI2": 1.0})
    for moment, frame in (((0, 1.0, 0), "world"), ((1.0, 1e-3, 2.0), "world"), ((0, 1.0, 0), "material")):
        rod(planar=True, loads=[forces.PointMoment(moment, nodes=[4], frame=frame)])
    rod(planar=True, directors=sideways, loads=[forces.PointMoment((1.0, 0, 0), edges=[2], frame="material")])
    rod(planar=True, loads=[forces.LineLoad((1.0, 1.0, 0), edges=[1])])
    one_across = [[0, 1e4, 0], [1e4, 0, 0], [0, 0, 0], [0, 0, 0]]
    rod(planar=True, loads=[magnetics.Magnetic(one_across, magnetics.Table([0, 1], [[0, 1, 0], [0, 0, 1]]))])
    pulled = magnetics.Gradient((0, 0, 0), [[0, 1, 0], [1, 0, 0], [0, 0, 0]])  # M along y is pulled along x
    rod(planar=True, loads=[magnetics.Magnetic((0, 1e4, 0), pulled)])
    pushed_in_plane(node=2, axis=2)
    begun_in_plane(axis=2)
    begun_in_plane(axis=1, speed=1e-16)  # what rounding leaves
    assert thrown_in_plane((1, 0, 2), (0, 3, 0)).velocity.any()


def stepped(**control):
    """Return a rod after a step under a control."""
    model = rod()
    return ImplicitEuler(0.01).step(model, model.initial_state(), Control(**control))


def velocity_elsewhere(model):
    """Step a state whose velocities alone are on another device, after one that is all on the model's."""
    state = model.initial_state()
    ImplicitEuler(0.01).step(model, state)
    return ImplicitEuler(0.01).step(model, state.replace(velocity=state.velocity.to("meta")))


REFUSED = {
    "tolerance": (
        lambda: ImplicitEuler(0.01, force_tolerance=1e300),
        r"force_tolerance.* 1000 N .*got 1e\+300",
    ),
    "sign of an exponent": (lambda: ImplicitEuler(0.01, force_tolerance=1e8), "force_tolerance"),
    "no tolerance": (lambda: ImplicitEuler(0.01, force_tolerance=math.nan), "force_tolerance"),
    "thin": (lambda: rod(Circle(1e-300)), r"Circle\(radius=1e-300\): area becomes 0"),
    "rather thin": (lambda: rod(Circle(1e-80)), "I1 becomes 7.8"),
    "thick": (lambda: rod(Circle(1e200)), "area becomes inf"),
    "thin in one direction": (lambda: rod(Rectangle(1e-2, 1e-120)), "Rectangle.*: I1 becomes 0"),
    "one thin edge": (
        lambda: rod(Circle(TAPERED)),
        "Circle: area becomes 0",
    ),
    "stiff": (lambda: rod(Circle(1e10), material=Material(1e300, 1.0)), "EA becomes inf"),
    "single precision": (lambda: rod(Circle(1e-12), dtype=torch.float32), "becomes .*, beyond what float32 holds"),
    "light": (lambda: rod(material=Material(1e6, 1e-304)), "the mass of a node becomes"),
    "thin shell": (lambda: shell(thickness=1e-120), "shell: stiffness.bending becomes 0"),
    "thick shell": (lambda: shell(thickness=1e120), "shell: stiffness.bending becomes inf"),
    "far": (lambda: rod(length=1e200), "rod: node 1 is farther than 1e.09 m from the origin"),
    "far shell": (lambda: shell(size=1e200), "shell: node 1 is farther than 1e.09 m from the origin"),
    "far nodes": (lambda: RobotBuilder().add_nodes([[0, 0, 0], [0, -1e10, 0]]), "nodes: node 1 is farther"),
    "zero director": (lambda: directors((0, 0, 0)), r"directors: .*got \[0.0, 0.0, 0.0\] at rod edge 0, of length 0"),
    "long director": (lambda: directors((0, 0, 2)), "directors: .* at rod edge 0, of length 2"),
    "director along its edge": (lambda: directors((1, 0, 0)), "with 1 along the edge"),
    "too few directors": (lambda: directors((0, 0, 1), count=3), r"directors: .*\(4, 3\), got \(3, 3\)"),
    "gravity out of plane": (
        lambda: rod(planar=True, loads=[forces.Gravity((1e-16, -9.81, 0))]),
        "planar: Gravity.acceleration is along y",
    ),
    "push out of plane": (
        lambda: rod(planar=True, loads=[forces.PointForce([2], [[1.0, 0, 0], [0, 1, 0]])]),
        "planar: PointForce.force is along y",
    ),
    "load out of plane": (
        lambda: rod(planar=True, loads=[forces.LineLoad((0, 1.0, 0), edges=[1])]),
        "planar: LineLoad.load is along y",
    ),
    "wall along the plane": (
        lambda: rod(planar=True, loads=[Obstacle(HalfSpace((0, -1, 0), (0, 2, 1e-15)), Penalty(10.0, 1e-3))]),
        "planar: Obstacle.shape.normal is along y",
    ),
    "magnetisation out of plane": (
        lambda: rod(planar=True, loads=[magnetics.Magnetic((0, 1e4, 0), magnetics.Rotating(0.01, 1.0))]),
        "planar: Magnetic.magnetisation is along y",
    ),
    "field that turns out of plane": (
        lambda: rod(
            planar=True, loads=[magnetics.Magnetic((1e4, 0, 0), magnetics.Rotating(1.0, 2.0, second=(0, 1, 0)))]
        ),
        "planar: Magnetic.field.second is along y",
    ),
    "function out of plane": (
        lambda: rod(planar=True, loads=[magnetics.Magnetic((1e4, 0, 0), lambda time: (0.0, 0.01, 0.0))]),
        r"planar: Magnetic.field \(Timed\) is along y wherever the robot is at rest",
    ),
    "magnet out of plane": (
        lambda: rod(planar=True, loads=[magnetics.Magnetic((1e4, 0, 0), magnetics.Dipole((0, 1, 0), (0.1, 0, 0.9)))]),
        r"planar: Magnetic.field \(Dipole\) is along y",
    ),
    "gradient out of plane": (
        lambda: rod(
            planar=True,
            loads=[magnetics.Magnetic((1e4, 0, 0), magnetics.Gradient((0, 1, 0), [[0, 1, 0], [1, 0, 0], [0, 0, 0]]))],
        ),
        r"planar: Magnetic.field \(Gradient\) is along y",
    ),
    "field out of plane at all times": (
        lambda: rod(planar=True, loads=[magnetics.Magnetic((1e4, 0, 0), magnetics.Table([0, 1], [[0, 1, 0]] * 2))]),
        "planar: Magnetic.field is along y",
    ),
    "moment out of plane": (
        lambda: rod(planar=True, loads=[forces.PointMoment((1.0, 0, 2.0), nodes=[4])]),
        r"planar: PointMoment.moment has no part about y, .* got \[1.0, 0.0, 2.0\] in world axes",
    ),
    "twisting moment in a plane": (
        lambda: rod(planar=True, loads=[forces.PointMoment((1.0, 0, 2.0), nodes=[4], frame="material")]),
        "PointMoment.moment has no part about y, .* in material axes",
    ),
    "GJ in a plane": (
        lambda: rod(planar=True, stiffness={"EI1": 1.0, "GJ": 1.0}),
        "stiffness.GJ: the robot is planar, and its rods do not twist; leave it out",
    ),
    "EI2 in a plane": (
        lambda: rod(planar=True, stiffness={"EI2": 1.0}),
        "stiffness.EI2: the robot is planar, and its rods bend with EI1 there; leave it out",
    ),
    "a spring's EI2 in a plane": (
        lambda: in_plane().set_spring_stiffness([[0, 1, 2]], EI2=1.0),
        "set_spring_stiffness.EI2: the robot is planar",
    ),
    "viscous twist in a plane": (
        lambda: in_plane().add_dissipation(
            "bend_twist", LinearElastic({"viscous_EI1": 1.0, "viscous_EI2": 0.0, "viscous_GJ": 1.0})
        ),
        "add_dissipation: GJ: the robot is planar",
    ),
    "relaxing twist in a plane": (
        lambda: in_plane().add_inelastic("bend_twist", Maxwell({"EI1": 1.0, "EI2": 1.0, "GJ": 0}, 0.1)),
        "add_inelastic: EI2: the robot is planar",
    ),
    "radii and moduli of other robots": (
        lambda: rod(Circle(column(3, 1e-3)), material=Material(column(4, 1e6), 1e3)),
        r"Circle.radius \(3, 1\), Material.youngs \(4, 1\): these shapes do not go together",
    ),
    "width and height of other robots": (
        lambda: rod(Rectangle(column(3, 1e-3), column(4, 1e-3))),
        r"Rectangle.width \(3, 1\), Rectangle.height \(4, 1\): these shapes",
    ),
    "thicknesses and moduli of other robots": (
        lambda: shell(column(3, 1e-3), material=Material(column(4, 1e6), 1e3)),
        r"thickness \(3, 1\), Material.youngs \(4, 1\): these shapes do not go together",
    ),
    "text for q": (lambda: rod().initial_state(q="bent"), "initial_state: q: expected numbers, got 'bent'"),
    "few velocities": (
        lambda: rod().initial_state(velocity=[0.0] * 3),
        r"initial_state: velocity has to be \(19,\) or \(B, 19\), got \(3,\)",
    ),
    "posture of one robot": (
        lambda: rod().posture(np.zeros((5, 3))),
        r"posture: positions have to be \(B, 5, 3\), got \(5, 3\)",
    ),
    "text of a constant": (
        lambda: trainable.scaled(rod(), "bend_twist.EI1"),
        r"expected a list of names, one or more, got the text 'bend_twist.EI1'; write \['bend_twist.EI1'\]",
    ),
    "no constants": (lambda: trainable.shifted(rod(), [], 0.1), r"a list of names, one or more, got \[\]"),
    "no robots": (lambda: rod().initial_state(batch=0), "batch: expected a whole number from 1 up, got 0"),
    "complex positions": (
        lambda: rod().initial_state(q=torch.zeros(19, dtype=torch.complex128)),
        "initial_state: q: expected numbers, got",
    ),
    "a throw of no speed": (
        lambda: rod().thrown(rod().initial_state(), velocity=(math.nan, 0.0, 0.0)),
        "thrown: velocity holds numbers that are not finite",
    ),
    "one state to join": (lambda: State.joined(rod().initial_state()), "joined: expected a list of states"),
    "numbers to join": (lambda: State.joined([3]), "joined: expected a state, such as .*, got int"),
    "a truth for a number of robots": (lambda: rod().initial_state(batch=True), "initial_state: batch: .* got True"),
    "half a robot at rest": (lambda: rod().rest_state(2.5), "rest_state: batch: expected a whole number from 0 up"),
    "strains of robots in words": (lambda: rod().natural_strains("two"), "natural_strains: batch: .* got 'two'"),
    "values without names": (lambda: Control(values=[1.0]), "Control.values: expected tensors by the names of .* list"),
    "values without names later": (lambda: Control().replace(values=1.0), "Control.values: expected .* got float"),
    "fewer than no robots": (lambda: rod().initial_state(batch=-1), "from 1 up, got -1"),
    "a mask that chooses no robot": (
        lambda: ImplicitEuler(0.01).step(rod(), rod().initial_state().rows(torch.tensor([False]))),
        "State: expected one robot at least, got none",
    ),
    "a step with its report for a state": (
        lambda: ImplicitEuler(0.01).reactions(rod(), rod().initial_state(), (rod().initial_state(), None)),
        "reactions: after: expected a state, such as .*, got tuple",
    ),
    "states of other robots": (
        lambda: ImplicitEuler(0.01).minima(rod(), rod().initial_state(), rod().initial_state(2)),
        r"minima: expected states of the same robots, got q \(1, 19\) before and \(2, 19\) after the step",
    ),
    "equations of no model": (
        lambda: ImplicitEuler(0.01).equations(rod().initial_state(), rod()),
        "ImplicitEuler.* State",
    ),
    "steps in words": (
        lambda: ImplicitEuler(0.01).prepare(rod(), rod().initial_state(), "many"),
        "prepare: steps: expected a whole number from 0 up, got 'many'",
    ),
    "half a robot": (lambda: rod().initial_state(batch=2.5), "from 1 up, got 2.5"),
    "other robots": (lambda: rod().initial_state(batch=2, q=torch.zeros(3, 19)), "given for 3 robots, asked for are 2"),
    "twist in a plane": (
        lambda: ImplicitEuler(0.01).step(
            rod(planar=True), rod(planar=True).initial_state(), Control(natural_twist=torch.full((1, 3), 0.1))
        ),
        "Control.natural_twist: the robot is planar, and its rods do not twist; leave it out",
    ),
    "rod out of plane": (
        lambda: planar_along((0, 0.3, 0)),
        r"planar: the edge between nodes 0 and 1 leaves the x-z plane, .* their y are 0 and 0.075 m",
    ),
    "slanted rod": (lambda: planar_along((0.16, 0.25, 0)), "planar: the edge between nodes 0 and 1 leaves the x-z"),
    "clamp out of plane": (lambda: planar_along((1, 0, 0), (1, 0.1, 0)), "clamp.direction: a planar robot keeps to"),
    "curvature out of plane": (
        lambda: curved_out_of_plane([0, 0, 0.2]),
        "Control.natural_curvature: the robot is planar, and its rods bend in the x-z plane alone",
    ),
    "own curvature out of plane": (
        lambda: curved_out_of_plane(own=0.2),
        "Model: bend_twist.natural_kappa2: the robot is planar",
    ),
    "value of curvature out of plane": (
        lambda: valued_in_plane("natural_kappa2", 0.2),
        "Control.values: bend_twist.natural_kappa2: the robot is planar",
    ),
    "value of twist in a plane": (
        lambda: valued_in_plane("natural_tau", 0.2),
        r"Control.values\['bend_twist.natural_tau'\]: the robot is planar, and its rods do not twist",
    ),
    "trained curvature out of plane": (
        lambda: trainable.shifted(rod(planar=True), ["bend_twist.natural_kappa2"], 0.1),
        "bend_twist.natural_kappa2: the robot is planar, .* so nothing would be trained",
    ),
    "trained stiffness of twist in a plane": (
        lambda: trainable.scaled(rod(planar=True), ["bend_twist.GJ", "bend_twist.EI2"]),
        "bend_twist.GJ, bend_twist.EI2: the robot is planar, .* so nothing would be trained",
    ),
    "force out of plane": (lambda: pushed_in_plane(node=2, axis=1), "Control.force: the robot is planar: it keeps to"),
    "moment about an edge in a plane": (lambda: pushed_in_plane(node=5, axis=1), "Control.force: the robot is planar"),
    "velocity out of plane": (lambda: begun_in_plane(axis=1), "initial_state: velocity: the robot is planar: it keeps"),
    "spin about an edge in a plane": (lambda: begun_in_plane(node=5, axis=1), "velocity: the robot is planar"),
    "node held out of plane": (lambda: held_in_plane(1), "Control.clamped_q: the robot is planar: it keeps to the x-z"),
    "edge turned in a plane": (lambda: held_in_plane(15), "Control.clamped_q: the robot is planar"),
    "direction out of plane": (lambda: held_in_plane(21), "Control.clamped_q: the robot is planar"),
    "pose out of plane": (
        lambda: posed_in_plane(0, 1e-3, 0, 1, 0, 0, 0),
        "Control.pose: the robot is planar: it keeps",
    ),
    "pose turned about x": (lambda: posed_in_plane(0, 0, 0, 0.8, 0.6, 0, 0), "Control.pose: the robot is planar"),
    "node out of plane": (lambda: held_in_plane(10, held=False), "initial_state: q: the robot is planar: its nodes"),
    "edge turned at first": (lambda: held_in_plane(15, held=False), "initial_state: q: the robot is planar"),
    "thrown out of plane": (lambda: thrown_in_plane((1.0, 1e-3, 0)), "thrown: the robot is planar: it keeps to"),
    "thrown to turn out of its plane": (lambda: thrown_in_plane((0, 0, 0), (0, 0, 1)), "thrown: the robot is planar"),
    "no control": (
        lambda: ImplicitEuler(0.01).step(rod(), rod().initial_state(), {"force": 0}),
        "control: expected a Control, got dict",
    ),
    "state in single precision": (
        lambda: ImplicitEuler(0.01).step(rod(), rod().initial_state().to(torch.float32)),
        r"State.q: expected torch.float64, as the model is, got torch.float32; take state.to\(torch.float64\)",
    ),
    "state in double precision": (
        lambda: ImplicitEuler(0.01).step(rod(dtype=torch.float32), rod().initial_state()),
        r"State.q: expected torch.float32, as the model is, got torch.float64; take state.to\(torch.float32\)",
    ),
    "state elsewhere": (
        lambda: ImplicitEuler(0.01).step(rod(), rod().initial_state().to("meta")),
        r"State.q: expected it on cpu, as the model is, got meta; take state.to\('cpu'\)",
    ),
    "velocity elsewhere": (
        lambda: velocity_elsewhere(rod()),
        r"State.velocity: expected it on cpu, as the model is, got meta; take state.to\('cpu'\)",
    ),
    "control elsewhere": (
        lambda: stepped(force=torch.zeros(1, 19, dtype=torch.float64, device="meta")),
        r"Control.force: expected it on cpu, as the model is, got meta; take force.to\('cpu'\)",
    ),
    "robots to step elsewhere": (
        lambda: ImplicitEuler(0.01).step(rod(), rod().initial_state(), None, torch.ones(1).bool().to("meta")),
        "running: expected it on cpu, as the state is, got meta",
    ),
    "control in single precision": (
        lambda: stepped(force=torch.zeros(1, 19)),
        r"Control.force: expected torch.float64, as the model is, got torch.float32; take force.to\(torch.float64\)",
    ),
    "no rest length": (
        lambda: stepped(rest_length=torch.tensor([[0.1, 0.1, 0.0, 0.1]], dtype=torch.float64)),
        "Control.rest_length: expected more than 0, got 0",
    ),
    "no rest length among values": (
        lambda: stepped(values={"stretch.rest_length": torch.zeros(1, 4, dtype=torch.float64)}),
        "Control.values.'stretch.rest_length'.: expected more than 0, got 0",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    """Name the thing, what was expected and what came."""
    call, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("field", [f.name for f in dataclasses.fields(State) if f.name not in ("n_held", "internal")])
def test_each_tensor_of_a_state_has_the_dtype_of_the_model(field):
    """Refuse a single tensor in single precision, after steps with states that fit, too."""
    model, integrator = rod(), ImplicitEuler(0.01)
    state, _ = integrator.step(model, model.initial_state())
    odd = state.replace(**{field: getattr(state, field).float()})
    with pytest.raises(InputError, match=f"State.{field}: expected torch.float64"):
        integrator.step(model, odd)


def test_what_is_not_refused():
    """Take what is near: small fibres, gravity with a part in the plane, numbers of numpy for a batch."""
    rod(Circle(1e-7))
    rod(planar=True, loads=[forces.Gravity((0.0, 5.0, -9.81)), forces.Gravity((0.0, 0.0, 0.0))])
    pulled = magnetics.Gradient((0, 1, 0), [[0, 1, 0], [1, 0, 0], [0, 0, 0]])  # along x, by what is magnetised along y
    turning = magnetics.Rotating(torch.ones(2, 1), 1.0)
    partly = lambda time: (0.0, 0.01, 1e-3)  # noqa: E731
    for magnetisation, field in (((1e4, 1e4, 0), pulled), ((1e4, 0, 0), partly), ((1e4, 0, 0), turning)):
        rod(planar=True, loads=[magnetics.Magnetic(magnetisation, field)])
    assert rod().initial_state(batch=np.int64(2)).batch == 2
    assert rod().initial_state(batch=3, q=rod().initial_state().q).batch == 3
    shell(thickness=1e-7)


def test_states_from_arrays_and_lists():
    """Take NumPy's arrays and lists for positions and velocities, as `thrown` does."""
    model = rod()
    expected = model.initial_state(2).q
    positions = np.broadcast_to(straight((0, 0, 0), (0.3, 0, 0), 5), (2, 5, 3))
    assert torch.equal(model.posture(positions.tolist()), model.posture(torch.tensor(np.array(positions))))
    assert torch.allclose(model.posture(np.array(positions)), expected)
    state = model.initial_state(q=expected.numpy(), velocity=[0.0] * model.n_dofs)
    thrown = model.thrown(state, velocity=(0.0, 0.1, 0.0))
    assert float(thrown.velocity[0, 7]) == 0.1  # as float64 has it
    assert torch.equal(state.q, expected) and state.velocity.dtype == torch.float64


@pytest.mark.parametrize("module", ["gym", "torchrl"])
def test_environments_say_which_extra_they_need(module, monkeypatch):
    """Say how to install what is missing."""
    name = f"torchdismech.environments.{module}"
    monkeypatch.delitem(sys.modules, name, raising=False)
    for package in ("gymnasium", "tensordict"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(InputError, match=rf"environments.{module}: needs .* pip install 'torchdismech\[rl\]'"):
        importlib.import_module(name)


def test_planar_robots_are_held_within_their_plane():
    """Move and turn a clamp in the plane, also of a robot that begins beside where it is at rest, but for rounding."""
    model = rod(planar=True)
    held_in_plane(0)
    held_in_plane(1, 1e-14)
    posed_in_plane(1e-3, 0, 1e-3, math.cos(0.1), 1e-14, math.sin(0.1), 0)
    beside = model.initial_state().q.clone()
    beside[:, 1 : 3 * 5 : 3] += 0.2
    state, rest = model.initial_state(q=beside), model.rest_poses[None].clone()
    for control in (Control(clamped_q=beside), Control(pose=rest + 0.2 * torch.eye(7, dtype=torch.float64)[1])):
        ImplicitEuler(0.01).step(model, state, control, throw=True)
    with pytest.raises(InputError, match="Control.pose: the robot is planar"):
        ImplicitEuler(0.01).step(model, state, Control(pose=rest))


def test_the_own_twist_of_a_planar_robot_is_taken():
    """Take a control that sets the natural strains that a planar robot has anyway."""
    model = rod(planar=True)
    ImplicitEuler(0.01).step(model, model.initial_state(2), model.natural_strains(2), throw=True)


def test_planar_robots_take_curvature_in_their_plane():
    """Bend a planar rod by kappa1, or by kappa2 where its directors are turned by a quarter: both bend it alike."""
    ends = []
    for directors, which in ((None, 0), (np.tile([0.0, 1, 0], (4, 1)), 1)):
        model = rod(planar=True, **({} if directors is None else {"directors": directors}))
        curvature = torch.zeros(1, 3, 2).double()
        curvature[..., which] = 0.2
        state, _ = ImplicitEuler(0.01).step(model, model.initial_state(), Control(natural_curvature=curvature))
        ends.append(state.positions[0, -1, 2].abs())
    assert ends[0] > 1e-5 and abs(ends[0] / ends[1] - 1) < 1e-9  # the same rod, described twice


def test_planar_rods_lie_beside_each_other():
    """Take rods each of which has a y of its own."""
    builder = in_plane()
    builder.add_rod(straight((0, 0.1, 0), (0.3, 0.1, 0.1), 5), Circle(2e-3), MATERIAL)
    builder.finalize()


def without_gravity(model):
    """Remove a force from a model."""
    del model.forces[1]


def with_drag(model):
    """Add a force to a model."""
    model.forces.append(forces.Viscous(0.1))


def with_other_gravity(model):
    """Put another force in place of one."""
    model.forces[1] = forces.Gravity((0, 0, -1.6))


@pytest.mark.parametrize("change", [without_gravity, with_drag, with_other_gravity])
def test_models_that_are_taken_apart_are_refused(change):
    """Say that a model has to be built anew for other forces: in a step, at the beginning of a run, for a state."""
    model = rod(loads=[forces.Viscous(0.2), forces.Gravity((0, 0, -9.81))])
    state, integrator = model.initial_state(), ImplicitEuler(0.01)
    state, _ = integrator.step(model, state)
    change(model)
    for call in (
        lambda: integrator.step(model, state),
        lambda: rollout(model, state, integrator, 1),
        lambda: model.initial_state(),
    ):
        with pytest.raises(InputError, match="Model.forces, Model.terms: one was added, .* build the model anew"):
            call()
    copied = copy.deepcopy(rod(loads=[forces.Viscous(0.2)]))  # has forces of its own, which it was made with
    integrator.step(copied, copied.initial_state(), throw=True)


def nothing(time, model):
    """Return no control."""


class Actuator:
    """A schedule and a controller that returns what is no control."""

    def __call__(self, *arguments):
        """Return a number."""
        return 3.0


@pytest.mark.parametrize("run", [rollout, unroll])
@pytest.mark.parametrize("integrator", [ImplicitEuler(0.01), ImplicitMidpoint(0.01)])
def test_schedules_and_controllers_return_controls(run, integrator):
    """Name the schedule or controller that returns something else; `None` was taken for Control()."""
    model = rod()
    run = functools.partial(run, model, model.initial_state(), integrator, 1)
    with pytest.raises(InputError, match="the schedule nothing has to return a Control for each step, got None"):
        run(schedule=nothing)
    with pytest.raises(InputError, match="the schedule Actuator has to return a Control for each step, got float"):
        run(schedule=Actuator())
    with pytest.raises(InputError, match="the controller Actuator has to .* got float"):
        run(schedule=lambda time, model: Control(), controller=Actuator())
