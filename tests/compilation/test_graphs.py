"""How many graphs torch traces, and that what it traced has the numbers of eager steps."""

import numpy as np
import pytest
import torch

from tests.compilation.rods import ROUNDING, graphs, rod, stepped
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, magnetics, straight, trainable, unroll
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.elastic import Energy


def test_all_steps_share_four_graphs(traced):
    """Trace opening, round with a matrix, round without and end once, whatever the step, its length and its state."""
    model = rod(compile=True)
    state = model.initial_state(batch=2)
    assert graphs() == 0  # what is evaluated once is not compiled
    for dt in (1e-2, 5e-3, 2e-2):
        for _ in range(3):
            state, _ = ImplicitEuler(dt).step(model, state, throw=True)
        ImplicitEuler(dt).step(model, model.initial_state(batch=2), throw=True)
    assert graphs() == 4


def test_backward_passes_share_graphs_with_steps(traced):
    """Trace two more graphs for all backward passes: frames and elastic forces, as autograd records them."""
    model = rod(compile=True)
    trainable.scaled(model, ["bend_twist.EI1"])
    for steps in (1, 3):
        start = model.initial_state(batch=2)
        unroll(model, start, ImplicitEuler(1e-2), steps).positions.square().sum().backward()
        unroll(model, start.detach(), ImplicitEuler(1e-2), steps)
    assert graphs() == 6


VARYING = {
    "damping": lambda: [forces.Viscous(0.1), forces.MassDamping(0.3)],
    "resistive": lambda: [forces.Resistive(0.1, 0.3)],
    "quadratic": lambda: [forces.QuadraticResistive(0.1, 1.0, 100.0, length="current")],
    "magnetic": lambda: [
        magnetics.Magnetic((1e4, 0, 0), lambda time: 0.02 * torch.stack([0 * time, 0 * time, time.cos()], -1))
    ],
    "dipole": lambda: [magnetics.Magnetic((1e4, 0, 0), magnetics.Dipole((0, 1, 3), (0.1, 0.1, 0.1)))],
    "tendon": lambda: [Tendons([AtNodes(range(3), (0, 0, 0.01))], tension=0.1, friction=0.2)],
}
SOME = [name if name in ("magnetic", "tendon") else pytest.param(name, marks=pytest.mark.slow) for name in VARYING]


@pytest.mark.parametrize("name", SOME)
def test_steps_with_loads_of_the_library_are_compiled_as_a_whole(name, traced):
    """Trace what a robot without them traces, once for all steps, and get the numbers of eager steps."""
    found = []
    for compile in (False, True):
        model = rod(compile=compile, loads=VARYING[name]())
        state = model.initial_state(batch=2)
        for dt in (1e-2, 1e-2, 5e-3):
            state, _ = ImplicitEuler(dt).step(model, state, throw=True)
        found.append(state.q)
    assert graphs() == 4
    # traced code runs the operations of torch, eager code some of them as loops of its own, which round differently
    assert (found[1] - found[0]).abs().max() < ROUNDING and (
        found[0] - stepped(rod(compile=False), 3)
    ).abs().max() > 1e-6


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.slow) for name in ("quadratic", "magnetic")])
def test_gradients_of_compiled_steps_with_varying_loads(name, traced):
    """Differentiate compiled steps by constants of loads, and get what eager steps give."""
    constant = {"quadratic": "QuadraticResistive.normal", "magnetic": "Magnetic.magnetisation"}[name]
    found = []
    for compile in (False, True):
        model = rod(compile=compile, loads=VARYING[name]())
        change = trainable.shifted(model, [constant], 1.0)
        run = unroll(model, model.initial_state(batch=2), ImplicitEuler(1e-2, force_tolerance=1e-13), 2)
        found.append(torch.autograd.grad(run.positions[-1].square().sum(), change.shift)[0].item())
    assert found[0] != 0 and found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("name", VARYING)
def test_kernels_with_varying_loads_agree_with_eager_steps(name):
    """Compile by inductor."""
    found = [stepped(rod(compile=compile, loads=VARYING[name]())) for compile in (False, True)]
    assert (found[0] - found[1]).abs().max() < ROUNDING


FACTOR = 1.0  # a number of this module, which the energy below reads


class Spring(Energy):
    """A stretch energy in closed form whose stiffness is a number, of the object, of its class or of the module."""

    closed_form = True
    stiffness = 10.0  # N

    def density(self, strain):
        """Return the energy."""
        return 0.5 * FACTOR * self.stiffness * strain[0] ** 2

    def derivatives(self, strain):
        """Return its derivatives."""
        stiffness = FACTOR * self.stiffness
        return [stiffness * strain[0]], [[stiffness * torch.ones_like(strain[0])]]


@pytest.mark.parametrize(
    "owner", ["object", *(pytest.param(owner, marks=pytest.mark.slow) for owner in ("next model", "class", "module"))]
)
def test_numbers_of_an_energy_of_ones_own_may_change(owner, monkeypatch, traced):
    """Step compiled with the present numbers of an energy, wherever they stand."""
    found = []
    for compile in (False, True):
        with monkeypatch.context() as patch:
            energy = Spring()
            model = rod(compile=compile, energy=energy)
            before = stepped(model)
            if owner == "next model":
                energy = Spring()
                model = rod(compile=compile, energy=energy)
            if owner == "class":
                patch.setattr(Spring, "stiffness", 1000.0)
            elif owner == "module":
                patch.setitem(globals(), "FACTOR", 100.0)
            else:
                energy.stiffness = 1000.0
            found.append((before, stepped(model)))
    (eager, stiffer), (compiled, stiffer_compiled) = found
    assert (stiffer - eager).abs().max() > 1e-6
    assert (compiled - eager).abs().max() < ROUNDING
    assert (stiffer_compiled - stiffer).abs().max() < ROUNDING


class Wind(forces.Force):
    """A force on the last node that finds the time by NumPy."""

    constant = True

    def forward(self, state, control):
        """Return the force."""
        force = torch.zeros_like(state.q)
        force[:, 12] = torch.as_tensor(1e-3 * np.sin(state.time.numpy()), dtype=force.dtype)
        return force


@pytest.mark.slow
def test_time_needs_no_gradients(traced):
    """Differentiate compiled steps with a force that reads the time as a number."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(Wind())
    model = builder.finalize(compile=True)
    factor = trainable.scaled(model, ["bend_twist.EI1"])
    unroll(model, model.initial_state(batch=2), ImplicitEuler(1e-2), 3).positions.square().sum().backward()
    assert torch.isfinite(factor.log_factor.grad).all()


def test_kernels_are_traced_whatever_the_default_device_is(traced):
    """Compile and take steps where torch's default device is another one: torch cannot follow `unflatten` there."""
    torch.set_default_device("meta")
    try:
        found = stepped(rod(compile=True), 1)
    finally:
        torch.set_default_device(None)
    assert graphs() and (found - stepped(rod(compile=False), 1)).abs().max() < ROUNDING
