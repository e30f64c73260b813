"""What a recorded step is given anew each time, and what makes it one of another kind, with a recording of its own."""

import torch

from tests.integrate.recordings import BATCH, assert_same, compare, rods, rods_on_cpu, steps
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    straight,
    trainable,
)
from torchdismech.integrate.gradients.gradient import differentiable_step
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.search.attempts import Attempt, Search, Start


def test_dt_is_given(graphs):
    """Take steps of other lengths by the same graphs, also where damping knows them."""

    def run(model):
        found = steps(model, ImplicitEuler(1e-2), 2)
        return found + steps(model, ImplicitEuler(3e-3), 2) + steps(model, ImplicitEuler(1e-2), 1)

    assert_same(*compare(graphs, run, rods()))
    assert len(graphs.made) == 4


def test_options_are_known(graphs):
    """Record anew for another tolerance, number of iterations or method."""
    options = [{}, {"relative_tolerance": 1e-3}, {"max_iterations": 2}, {"line_search": False}]

    def run(model):
        return [x for given in options for x in steps(model, ImplicitEuler(1e-2, **given), 2)]

    assert_same(*compare(graphs, run, rods()))
    # with two iterations the second attempt is made, and its beginning recorded
    assert len(graphs.made) == 4 * len(options) + 1


def test_controls_are_given(graphs):
    """Follow controls that change, and know which of their fields are set."""
    base = rods()
    own = base.natural_strains(BATCH)
    rest = base.initial_state().q

    def run(model):
        found, state, integrator = [], model.initial_state(), ImplicitEuler(1e-2)
        for k in range(5):
            control = Control(
                natural_curvature=own.natural_curvature + 0.01 * k,
                rest_length=own.rest_length * (1 + 1e-3 * k),
                clamped_q=rest + 1e-4 * k,
                force=1e-3 * k * torch.ones_like(rest) * (torch.arange(rest.shape[1]) < 15),
            )
            control = control if k < 4 else Control(natural_twist=own.natural_twist + 0.1)
            state, info = integrator.step(model, state, control)
            found += [state.q, state.velocity, info.iterations]
        return found

    assert_same(*compare(graphs, run, base))
    assert len(graphs.made) == 8


def test_fields_of_a_control_are_told_apart(graphs):
    """Know the natural twists of a star from its rest lengths: there are as many."""
    builder = RobotBuilder()
    for end in ((0.1, 0, 0), (0, 0.1, 0), (-0.1, -0.1, 0)):
        builder.add_rod(straight((0, 0, 0), end, 2), Circle(2e-3), Material(1e6, 1000.0))
    star = builder.finalize(solver="dense")
    own = star.natural_strains(BATCH)
    assert own.natural_twist.shape == own.rest_length.shape

    def run(model):
        twisted = steps(model, ImplicitEuler(1e-3), 1, Control(natural_twist=own.natural_twist + 0.1))
        return twisted + steps(model, ImplicitEuler(1e-3), 1, Control(rest_length=1.01 * own.rest_length))

    assert_same(*compare(graphs, run, star))


def test_constants_may_change(graphs):
    """Read a model's tensors as they are: written in place, exchanged, or made anew by training."""

    def changes(model):
        yield
        model.term("stretch").energy.EA.data *= 0.5  # an optimiser's step
        yield
        model.term("bend_twist").energy.EI1.data = 2 * model.term("bend_twist").energy.EI1.data
        yield
        model.term("bend_twist").natural_kappa1 = model.term("bend_twist").natural_kappa1 + 0.02
        yield
        model.body.mass = 1.5 * model.body.mass
        yield
        model.term("bend_twist").stencil.alignment = model.term("bend_twist").stencil.alignment + 0.1  # settled
        yield
        model.forces[0].acceleration.data *= 0.5
        yield
        factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
        yield
        with torch.no_grad():
            factor.log_factor += 0.3
        yield

    def run(model):
        found, state = [], model.initial_state()
        for _ in changes(model):
            state, info = ImplicitEuler(1e-2).step(model, state)
            found += [state.q, info.iterations, info.force_scale]
        return found

    assert_same(*compare(graphs, run, rods()))


def test_numbers_of_modules_are_known(graphs):
    """Record anew where a plain number in a module changes."""

    class Stiffer(type(rods().term("stretch").energy)):
        factor = 1.0

        def derivatives(self, strain):
            first, second = super().derivatives(strain)
            scaled = [[None if k is None else self.factor * k for k in row] for row in second]
            return [self.factor * s for s in first], scaled

    def run(model):
        energy, found, state = model.term("stretch").energy, [], model.initial_state()
        energy.__class__ = Stiffer
        for factor in (1.0, 0.1, 1.0):
            energy.factor = factor
            state, info = ImplicitEuler(1e-2).step(model, state)
            found += [state.q, info.force_scale]
        return found

    assert_same(*compare(graphs, run, rods()))
    assert len(graphs.made) == 4 * 2


def test_values_in_other_places_are_known(graphs):
    """Read the numbers of a control's values anew in each step, and tell by their places what may serve."""
    base = rods()
    full = {"dtype": base.dtype}
    some = [
        {"stretch.EA": torch.full((BATCH, 1), 90.0, **full)},
        {"stretch.EA": torch.full((BATCH, 1), 60.0, **full)},
        {"stretch.EA": torch.full((BATCH, 1), 60.0, **full), "bend_twist.GJ": torch.full((BATCH, 1), 1e-4, **full)},
        {"bend_twist.GJ": torch.full((BATCH, 1), 2e-4, **full)},
        {"stretch.EA": torch.tensor(75.0, **full)},
        {},
    ]

    def run(model):
        found, state, integrator = [], model.initial_state(), ImplicitEuler(1e-2)
        for values in [*some, *some[::-1], *some]:
            state, info = integrator.step(model, state, Control(values=values))
            found += [state.q, state.velocity, info.iterations]
        return found

    assert_same(*compare(graphs, run, base))


@torch.no_grad()
def test_how_much_of_the_loads_acts_is_a_kind_of_its_own():
    """Take a step under all of its loads after steps under half of them, which were recorded."""
    integrator, running = ImplicitEuler(2e-3), torch.ones(1, dtype=torch.bool)

    def stepped(model, factor, count):
        state = model.initial_state()
        for _ in range(count):
            problem = StepProblem(model, integrator, state, Control(), 2e-3, running, load_factor=factor)
            state, _ = differentiable_step(problem)
        return state

    model = rods_on_cpu(1)
    stepped(model, 0.5, 20)
    assert torch.equal(stepped(model, 1.0, 1).velocity, stepped(rods_on_cpu(1), 1.0, 1).velocity)


def test_ways_to_search_of_a_users_own_are_not_recorded():
    """Begin each step as a subclass says, also after as many as are taken before one is recorded."""

    class FromWhereItIs(ImplicitEuler):
        def attempts(self, equations, divisible=False):
            yield Attempt(Start.HERE, Search.LINE_SEARCH)

    model, integrator, iterations = rods_on_cpu(1), FromWhereItIs(2e-3), []
    for _ in range(15):
        _, info = integrator.step(model, model.initial_state())
        iterations.append(int(info.iterations))
    assert len({*iterations}) == 1
    assert not model.recordings
