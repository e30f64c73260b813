"""Values that a control sets in place of the model's own, and models evaluated with other tensors."""

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    straight,
    trainable,
    unroll,
)
from torchdismech.values import Values, evaluated, every_module, per_robot, problem_of_bounds

BATCH = 5
RATES = torch.linspace(1.0, 3.0, BATCH, dtype=torch.float64)[:, None]
PULLS = torch.linspace(-12.0, -6.0, BATCH, dtype=torch.float64)[:, None] * torch.tensor([[0.0, 0.0, 1.0]]).double()
RULES = {
    "euler": lambda **options: ImplicitEuler(5e-3, **options),
    "midpoint": lambda **options: ImplicitMidpoint(5e-3, **options),
    "newmark": lambda **options: Newmark(5e-3, **options),
    "static": lambda **options: Static(**options),
}
TIGHT = {"force_tolerance": 1e-11, "relative_tolerance": 0.0}


def rod(rate=2.0, gravity=(0.0, 0.0, -9.81)):
    """Return a clamped rod under gravity in something that damps it."""
    loads = [forces.Gravity(gravity), forces.MassDamping(rate)]
    return rod_through(straight((0, 0, 0), (0.2, 0, 0), 6), Circle(3e-3), Material(1e6, 1000.0), loads).finalize()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("chunk", [None, 2])
def test_values_of_a_control_are_those_of_a_model(rule, chunk):
    """Step as models that were built with these numbers do, some robots at a time as well."""
    integrator = RULES[rule](chunk=chunk, **TIGHT)
    given, built = rod(), rod(RATES, PULLS)
    control = Control(values={"MassDamping.rate": RATES, "Gravity.acceleration": PULLS})
    first, second = given.initial_state(BATCH, control=control), built.initial_state(BATCH)
    for _ in range(3):
        first, info = integrator.step(given, first, control, throw=True)
        second, expected = integrator.step(built, second, throw=True)
        # the same operations on the same numbers
        assert torch.equal(first.q, second.q) and torch.equal(info.residual, expected.residual)
    assert given.energies(first, control).keys() == built.energies(second).keys()
    assert float(dict(given.mechanics.forces[1].named_parameters())["rate"]) == 2.0  # left as it was


@pytest.mark.parametrize("rule", ["euler", "newmark"])
@pytest.mark.parametrize("chunk", [None, 2])
def test_values_are_differentiated(rule, chunk):
    """Differentiate the end of a rollout by values that change from step to step, against central differences."""
    model, integrator = rod(), RULES[rule](chunk=chunk, **TIGHT)

    def tip(rates):
        """Return the mean height of the tips after three steps, each with rates of its own."""
        state = model.initial_state(BATCH)
        for k in range(3):
            control = Control(values={"MassDamping.rate": rates[k], "Gravity.acceleration": PULLS})
            state, _ = integrator.step(model, state, control, throw=True)
        return state.positions[:, -1, 2].sum()

    rates = (torch.ones(3, 1, 1) * RATES).requires_grad_()
    (found,) = torch.autograd.grad(tip(rates), rates)
    step, direction = 1e-4, torch.linspace(-1, 1, rates.numel(), dtype=torch.float64).view_as(rates)
    ahead, behind = (tip((rates + s * step * direction).detach()) for s in (1, -1))
    # differences of numbers of 1e-3 that are solved to 1e-11 N, by a step of 1e-4
    assert (found * direction).sum().item() == pytest.approx(float(ahead - behind) / (2 * step), rel=1e-5)


def test_a_number_for_all_robots():
    """Take one number for all robots."""
    model, integrator = rod(), RULES["euler"]()
    control = Control(values={"MassDamping.rate": torch.tensor(7.0, dtype=torch.float64)})
    found, _ = integrator.step(model, model.initial_state(2), control)
    expected, _ = integrator.step(rod(7.0), rod(7.0).initial_state(2))
    assert torch.equal(found.q, expected.q)


def test_one_number_stands_in_for_one_of_each_robot():
    """Take one number where the model has one of each robot."""
    model, integrator = rod(RATES), RULES["euler"]()
    control = Control(values={"MassDamping.rate": torch.tensor(7.0, dtype=torch.float64)})
    found, _ = integrator.step(model, model.initial_state(), control)
    expected, _ = integrator.step(rod(7.0), rod(7.0).initial_state(BATCH))
    assert torch.equal(found.q, expected.q)


def test_initial_states_have_the_mass_that_a_control_sets():
    """Find the acceleration of gravity whatever the mass is."""
    model = rod(0.0)
    mass = model.body.mass * torch.linspace(1.0, 3.0, BATCH, dtype=torch.float64)[:, None]
    state = model.initial_state(BATCH, control=Control(values={"mass": mass}))
    fall = state.acceleration[:, 2 : 3 * len(model.nodes) : 3][:, 2:]
    # Gravity pulls with the mass that its nodes have
    assert torch.allclose(fall, torch.full_like(fall, -9.81), rtol=1e-12)


def test_a_value_that_is_nan_spoils_no_gradient_of_another_robot():
    """Fail the robot whose value is NaN, and differentiate the others as without it."""
    model, integrator = rod(), RULES["euler"](**TIGHT)
    moving = model.initial_state(BATCH, velocity=0.1 * model.free.double())

    def gradient(rates, running=None):
        """Return the gradient of the ends by the values."""
        rates = rates.clone().requires_grad_()
        control = Control(values={"MassDamping.rate": rates})
        state, info = integrator.step(model, moving, control, running)
        return torch.autograd.grad(state.q.sum(), rates)[0], info

    expected, _ = gradient(RATES)
    spoilt = RATES.clone()
    spoilt[3] = torch.nan
    found, info = gradient(spoilt)
    others = torch.arange(BATCH) != 3
    assert info.converged.tolist() == others.tolist()
    # sums of other rows: rounding
    assert torch.allclose(found[others], expected[others], rtol=1e-10, atol=0)


def test_values_stand_in_for_trained_constants():
    """Set a constant that is trained otherwise, and leave its training as it was."""
    model, integrator = rod(), RULES["euler"](**TIGHT)
    factor = trainable.scaled(model, ["MassDamping.rate"])
    control = Control(values={"MassDamping.rate": RATES})
    found, _ = integrator.step(model, model.initial_state(BATCH), control, throw=True)
    expected, _ = integrator.step(rod(RATES), rod(RATES).initial_state(BATCH), throw=True)
    assert torch.equal(found.q, expected.q.detach())
    moving = model.initial_state(1, velocity=0.1 * model.free.double())
    loss = unroll(model, moving, integrator, 2).q[-1].sum()
    assert torch.autograd.grad(loss, factor.log_factor)[0].abs() > 0


REFUSED = {
    "unknown": (
        {"MassDamping.speed": torch.ones(2, 1)},
        r"no constant 'MassDamping.speed'; there are: .*MassDamping.rate",
    ),
    "shape": ({"MassDamping.rate": torch.ones(2)}, r"rate'\]: expected shape \(\) or \(2, 1\), got \(2,\)"),
    "robots": ({"Gravity.acceleration": torch.ones(3, 3)}, r"expected shape \(2, 3\), got \(3, 3\)"),
    "vector": ({"Gravity.acceleration": torch.tensor(-9.81)}, r"expected shape \(2, 3\), got \(\)"),
    "dtype": (
        {"MassDamping.rate": torch.ones(2, 1)},
        r"expected torch.float64 on cpu, got torch.float32 on cpu; take value.to\(torch.float64\)",
    ),
    "sign": ({"bend_twist.EI1": -torch.ones(2, 1, dtype=torch.float64)}, "expected 0 or more, got -1"),
    "number": ({"MassDamping.rate": 2.0}, r"expected a tensor, got float; torch.as_tensor\(.., dtype=torch.float64, "),
    "array": ({"Gravity.acceleration": np.zeros((2, 3))}, "expected a tensor, got ndarray; torch.as_tensor"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    """Refuse by name, with what was expected."""
    values, message = REFUSED[case]
    model = rod()
    with pytest.raises(InputError, match=message):
        ImplicitEuler(1e-3).step(model, model.initial_state(2), Control(values=values))


def test_functional_call_around_a_step():
    """Differentiate by tensors that stand in the model for the time of a call, as hypernetworks give them."""
    model, integrator = rod(), RULES["euler"](**TIGHT)
    state = model.initial_state(1, velocity=0.1 * model.free.double())

    class Step(torch.nn.Module):
        """A step as a module."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, state):
            """Return where the step leads."""
            return integrator.step(self.model, state, throw=True)[0].q

    def end(rate):
        """Return a number of the state after the step."""
        name = next(n for n, _ in model.named_parameters() if n.endswith("rate"))
        return torch.func.functional_call(Step(), {f"model.{name}": rate}, (state,))[0, -5:].sum()

    rate = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad(end(3 * rate), rate)  # the call is over when the backward pass begins
    expected = (end(3 * rate.detach() + 3e-4) - end(3 * rate.detach() - 3e-4)) / 2e-4
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)


def test_an_exchanged_tensor_does_not_spoil_gradients():
    """Differentiate by what stood in the model when the step was taken."""
    model, integrator = rod(), RULES["euler"](**TIGHT)
    damping = model.forces[1]
    state = model.initial_state(1, velocity=0.1 * model.free.double())
    damping.rate = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64))
    first = damping.rate
    end = integrator.step(model, state)[0].q[0, -5:].sum()
    (expected,) = torch.autograd.grad(end, first, retain_graph=True)
    damping.rate = torch.nn.Parameter(torch.tensor(50.0, dtype=torch.float64))
    assert torch.equal(torch.autograd.grad(end, first)[0], expected)
    assert damping.rate.item() == 50.0


def test_values_are_put_back_after_an_error():
    """Leave the model as it was, whatever happens while other tensors stand in it."""
    model = rod(RATES)
    before = dict(model.named_parameters())
    with pytest.raises(ZeroDivisionError), per_robot(model).rows(0, 2).in_place():
        assert model.batch == 2
        raise ZeroDivisionError
    assert model.batch == BATCH
    assert all(tensor is before[name] for name, tensor in model.named_parameters())
    assert len(Values()) == 0


def test_a_force_may_become_explicit_later():
    """Count a force once, whenever it is held over steps."""
    model, integrator = rod(5.0), RULES["euler"](**TIGHT)
    moving = model.initial_state(1, velocity=0.1 * model.free.double())
    model.forces[1].explicit = True
    found, _ = integrator.step(model, moving, throw=True)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 6), Circle(3e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    held = builder.finalize()
    force = model.forces[1](moving, Control())
    start = held.initial_state(1, velocity=0.1 * held.free.double()).replace(acceleration=moving.acceleration)
    expected, _ = integrator.step(held, start, Control(force=force), throw=True)
    # the same equations on another pattern of the matrix
    assert torch.allclose(found.q, expected.q, rtol=0, atol=1e-12)


def test_trained_tensors_that_are_given_are_not_made_again(monkeypatch):
    """Take a trained tensor as it is given, and make those beside it of what stands in their parametrizations."""
    energy = rod().term("bend_twist").energy
    factor = trainable.Factor()
    for name in ("EI1", "EI2"):
        torch.nn.utils.parametrize.register_parametrization(energy, name, factor, unsafe=True)
    made, forward = [], trainable.Factor.forward

    def counted(self, base):
        made.append(base)
        return forward(self, base)

    monkeypatch.setattr(trainable.Factor, "forward", counted)
    values = evaluated(every_module(energy))
    assert len(made) == 2
    with values.in_place():
        assert all(getattr(energy, name) is tensor for (_, name), tensor in values)
    assert len(made) == 2
    one = Values({(energy, "EI1"): 3 * energy.EI1.detach()})
    with torch.no_grad():
        factor.log_factor += 1.0
    made.clear()
    with one.in_place():
        assert len(made) == 1
        assert torch.equal(energy.EI1, one.tensors[energy, "EI1"])
        assert torch.equal(energy.EI2, made[0] * factor.log_factor.exp())


def test_values_without_bounds_are_not_looked_at():
    """Ask for bounds of gravity, which has none: no operation of torch is called, as steps ask each time."""

    class Refused(TorchFunctionMode):
        def __torch_function__(self, called, *_):
            raise AssertionError(f"{called} was called")

    place = rod().places["Gravity.acceleration"]
    with Refused():
        assert problem_of_bounds(place, PULLS, {}) is None
