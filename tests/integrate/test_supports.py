"""Static equilibria of robots that nothing holds."""

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    InputError,
    Material,
    RobotBuilder,
    Static,
    Status,
    forces,
    magnetics,
    straight,
)
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.elastic import ElasticTerm, LinearElastic, Stencil

GRAVITY = (0.0, 0.0, -9.81)


def rods(clamp=None, gravity=GRAVITY, second=False, term=None, obstacle=False, load=None):
    """Return a rod, held or not, and a second one beside it."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 7), Circle(2e-3), Material(1e6, 1000.0))
    if second:
        builder.add_rod(straight((0, 1, 0), (0.3, 1, 0), 7), Circle(2e-3), Material(1e6, 1000.0))
    if clamp is not None:
        builder.clamp(**clamp)
    if term is not None:
        builder.add_term(term)
    if obstacle:
        builder.add_contact(Obstacle(HalfSpace((0.0, 0.0, -3e-3), (0.0, 0.0, 1.0)), Penalty(100.0, 2e-3)))
    builder.add_force(forces.Gravity(gravity))
    if load is not None:
        builder.add_force(load)
    return builder.finalize()


class ToGround(Stencil):
    """Height of nodes: reads where they are."""

    def __init__(self, nodes):
        super().__init__([[(3 * nodes + 2, np.ones(len(nodes)))]], ["height"])

    def strain(self, local, *constants):
        """Return the height."""
        return (local[0],)


UNHELD = {
    "robot": (lambda: rods(), r"nothing holds the robot along z, where its loads pull with -0.037 N: clamp a node"),
    "along x": (lambda: rods(gravity=(1.0, 0, 0)), "nothing holds the robot along x"),
    "clamp of another axis": (lambda: rods(clamp={"nodes": [0], "axes": "xy"}), "nothing holds the robot along z"),
    "a line": (
        lambda: rods(clamp={"nodes": [0], "along": (3, 0, 4)}),
        r"nothing holds the robot along \(-?0.6, 0, -?0.8\), where its loads pull with -?0.0296 N",
    ),
    "a plane": (lambda: rods(clamp={"nodes": [0, 1], "normal": (1, 1, 0)}), "nothing holds the robot along"),
    "part": (
        lambda: rods(clamp={"nodes": [0, 1]}, second=True),
        "nothing holds the part of the robot that node 7 belongs to along z",
    ),
    "springs between nodes": (
        lambda: rods(term=ElasticTerm("ties", Tie(), LinearElastic({"k": 1.0}), torch.ones(1))),
        "nothing holds the robot along z",
    ),
}


class Tie(Stencil):
    """Height of the middle of an edge above a node: no part is held by it."""

    def __init__(self):
        half = np.array([0.5])
        super().__init__([[(np.array([5]), half), (np.array([8]), half), (np.array([20]), -2 * half)]], ["height"])

    def strain(self, local, *constants):
        """Return the height."""
        return (local[0],)


@pytest.mark.parametrize("name", UNHELD)
def test_what_nothing_holds_is_refused(name):
    """Say what is wrong and what to do before the search, which would end after hundreds of iterations."""
    call, message = UNHELD[name]
    model = call()
    with pytest.raises(InputError, match=message):
        Static().step(model, model.initial_state())


def test_a_force_of_a_control_counts():
    """Refuse what a control pushes away, and only if that robot is stepped."""
    model = rods(gravity=(0.0, 0.0, 0.0))
    state = model.initial_state(batch=2)
    force = torch.zeros_like(state.q)
    force[1, 0] = 1e-3
    with pytest.raises(InputError, match="nothing holds the robot along x, where its loads pull with 0.001 N"):
        Static().step(model, state, Control(force=force))
    _, info = Static().step(model, state, Control(force=force), running=torch.tensor([True, False]))
    assert info.status[0] == Status.CONVERGED


def test_loads_that_cancel_out_but_for_rounding_hold():
    """Stretch a free rod by forces at its nodes whose sum is 1.4e-12 N, of 1.6 N."""
    model = rods(gravity=(0.0, 0.0, 0.0))
    force = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    along = 0.1 * torch.linspace(-3.7, 3.1, 7, dtype=torch.float64)
    force[0, 0:21:3] = along - along.flip(0) + 2e-13
    assert 1e-12 < force.sum() < 2e-12
    _, info = Static().step(model, model.initial_state(), Control(force=force))
    assert info.status.item() == Status.CONVERGED


@pytest.mark.parametrize(
    "model",
    [
        lambda: rods(clamp={"nodes": [0]}),
        lambda: rods(gravity=(0.0, 0.0, 0.0)),
        lambda: rods(term=ElasticTerm("ground", ToGround(np.arange(7)), LinearElastic({"k": 10.0}), torch.ones(7))),
    ],
    ids=["one clamp", "no load", "springs to the ground"],
)
def test_what_has_an_equilibrium_is_solved(model):
    """Leave alone what hangs from one node, what no load pulls, and what springs hold."""
    model = model()
    _, info = Static(load_steps=2).step(model, model.initial_state())
    assert info.status.item() == Status.CONVERGED


@pytest.mark.parametrize("options", [{"obstacle": True}, {"load": forces.Viscous(0.1)}], ids=["floor", "drag"])
def test_what_may_hold_is_not_judged(options):
    """Let the search say how it went where a floor or a force that changes may hold the robot."""
    model = rods(**options)
    _, info = Static(max_iterations=3).step(model, model.initial_state())
    assert info.status.item() in list(Status)


def magnet_on_a_guide(field):
    """Return a stiff, magnetised rod of 4 mm that may move along z alone, its middle 52 mm above the origin."""
    builder = RobotBuilder()
    nodes = builder.add_rod(straight((0, 0, 0.05), (0, 0, 0.054), 3), Circle(2e-3), Material(1e8, 7000.0))
    builder.clamp(nodes=nodes, axes="xy")
    builder.add_force(forces.Gravity(GRAVITY))
    builder.add_force(magnetics.Magnetic((0.0, 0.0, 1e5), field))
    return builder.finalize()


def test_a_magnet_may_float_over_another():
    """Find where a repelling magnet bears the weight, 3 mu0 m M V / (2 pi z^4); it was refused as held by nothing."""
    model = magnet_on_a_guide(magnetics.Dipole((0.0, 0.0, -1.0), (0.0, 0.0, 0.0)))
    found, info = Static().step(model, model.initial_state(), throw=True)
    height = (6e-7 * 1e5 / (7000.0 * 9.81)) ** 0.25  # the volume cancels
    # the edges are 1 mm off the middle, (1 / 31)^2 times some ten of the force, a quarter of that in z
    assert found.q[0, 5].item() == pytest.approx(height, rel=5e-3)
    assert info.stable.item()


def test_a_uniform_field_holds_nothing():
    """Refuse a magnet that falls in a field without a gradient."""
    model = magnet_on_a_guide((0.0, 0.0, 1.0))
    with pytest.raises(InputError, match="nothing holds the robot along z"):
        Static().step(model, model.initial_state())
