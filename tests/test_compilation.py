"""Eager first, compiled where work is long: what is counted, when it switches, what cannot be compiled."""

import copy
import functools
import pickle

import numpy as np
import pytest
import torch

from tests.elastic.test_user_terms import with_angle_springs
from tests.rods import rod_through
from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    compilation,
    forces,
    magnetics,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.compilation import Compilation, Cost
from torchdismech.elastic import Energy
from torchdismech.integrate import recording
from torchdismech.integrate.equations import StepEquations

# Kernels contract and reorder products: rounding, amplified by the stiffness of the rod.
ROUNDING = 1e-9


def rod(**options):
    """Return a clamped rod of five nodes."""
    loads = [forces.Gravity((0, 0, -9.81)), *options.pop("loads", ())]
    builder = rod_through(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(1e6, 1000.0), loads)
    if energy := options.pop("energy", None):
        builder.add_energy("stretch", energy)
    return builder.finalize(**options)


def stepped(model, count=4, batch=2, chunk=None):
    """Return q (B, n) after some steps."""
    state, integrator = model.initial_state(batch=batch), ImplicitEuler(1e-2, chunk=chunk)
    for _ in range(count):
        state, _ = integrator.step(model, state, throw=True)
    return state.q


@pytest.fixture(autouse=True)
def untaped(monkeypatch):
    """Let no step be recorded: those that are are not compiled."""
    monkeypatch.setattr(recording, "LARGEST", 0)


@pytest.fixture
def compiled(monkeypatch):
    """Let torch.compile return its function; return the names of those that then run, as often as they do."""
    ran = []

    def compile(function, **options):
        @functools.wraps(function)
        def kernel(*arguments):
            ran.append(function.__name__)
            return function(*arguments)

        return kernel

    monkeypatch.setattr(torch, "compile", compile)
    return ran


@pytest.fixture
def traced(monkeypatch):
    """Let torch.compile trace, and run what it traced without a compiler."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()


def after_evaluations(monkeypatch, model, number: int, batch=2) -> None:
    """Set the threshold to what so many evaluations of a batch take."""
    work = (number - 0.5) * model.compilation.cost.of(batch, model.device)
    monkeypatch.setattr(compilation, "THRESHOLD", work)


# ---- counting ----------------------------------------------------------------------------------------------------


def test_every_evaluation_is_counted(monkeypatch):
    """Count what a run evaluates: the beginning of each step and each iteration, in the whole and in parts."""
    called = []
    for name in ("residual", "residual_and_matrix"):
        function = getattr(StepEquations, name)
        monkeypatch.setattr(StepEquations, name, lambda self, x, f=function: (called.append(len(x)), f(self, x))[1])
    model = rod()
    state, integrator = model.initial_state(batch=6), ImplicitEuler(1e-2, chunk=None)
    least = 0
    for _ in range(3):
        state, info = integrator.step(model, state)
        least += 1 + int(info.iterations.max())  # one more where the last iterate's matrix was left out in vain
    expected = len(called)
    assert called == [6] * expected and least <= expected <= least + 3
    assert model.compilation.counts() == [[6, "cpu", "float64", expected, False]]
    assert model.compilation.work(6, state.q) == expected * model.compilation.cost.of(6, model.device)
    ImplicitEuler(1e-2, chunk=3).step(model, state)
    assert model.compilation.counts()[1] == [3, "cpu", "float64", called.count(3), False]


def test_backward_passes_are_counted():
    """Count the evaluations of a step's backward pass."""
    model = rod()
    trainable.scaled(model, ["stretch.EA"])
    run = unroll(model, model.initial_state(batch=2), ImplicitEuler(1e-2), 1)
    forward = model.compilation.counts()[0][3]
    run.q.sum().backward()
    assert model.compilation.counts()[0][3] == forward + 1  # the matrix at the root and what autograd records, at once


def test_costs_follow_the_robot():
    """Expect more of more springs and robots; on a GPU little of robots."""
    small, large = Cost.estimated(2, 1000), Cost.estimated(2, 2000)
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert small.of(1, cpu) < large.of(1, cpu) < large.of(10, cpu)
    assert large.of(10, cpu) - large.of(1, cpu) == pytest.approx(9 * large.robot)
    assert large.of(10, gpu) - large.of(1, gpu) < 0.1 * large.robot


@pytest.mark.parametrize("setting", [True, False])
def test_nothing_is_counted_where_nothing_is_decided(setting, compiled):
    """Count nothing for models that are told what to do."""
    model = rod(compile=setting)
    stepped(model, count=1)
    assert model.compilation.counts() == [] and bool(compiled) == setting


@pytest.mark.parametrize("setting", ["yes", 1, None, 0.0, "True"])
def test_other_settings_are_refused(setting):
    """Refuse what is none of the three, and name them."""
    with pytest.raises(InputError, match='compile: expected "auto", True or False, got'):
        rod(compile=setting)


# ---- switching ---------------------------------------------------------------------------------------------------


def test_a_short_run_is_eager(compiled):
    """Take the steps that a model told not to compile takes, to the bit."""
    assert torch.equal(stepped(rod()), stepped(rod(compile=False)))
    assert compiled == []


def test_long_work_is_compiled_at_the_same_step(monkeypatch, compiled, capsys):
    """Compile once the evaluations are there, in the same step of every run, and say so once."""
    runs = []
    for _ in range(2):
        model = rod()
        after_evaluations(monkeypatch, model, 8)
        integrator, state, active = ImplicitEuler(1e-2), model.initial_state(batch=2), []
        for _ in range(5):
            state, _ = integrator.step(model, state)
            active.append(model.compilation.active)
        runs.append(active)
        counts = model.compilation.counts()
    assert runs[0] == runs[1] and runs[0][0] is False and runs[0][-1] is True
    assert counts[0][3] >= 8 and counts[0][4] and compiled
    assert (state.q - stepped(rod(compile=False), 5)).abs().max() < ROUNDING
    said = capsys.readouterr().err
    assert said.count("torchdismech: compiling what a step of 2 robots at a time evaluates") == 2  # once a model
    assert "compile=False (--no-compile) turns it off" in said


def test_each_number_of_robots_has_its_own_count(monkeypatch, compiled):
    """Leave other batches eager: their kernels would be compiled anew."""
    model = rod()
    after_evaluations(monkeypatch, model, 6)
    stepped(model, 4, batch=2)
    ran = len(compiled)
    stepped(model, 1, batch=1)
    assert len(compiled) == ran > 0
    assert [row[0] for row in model.compilation.counts() if row[4]] == [2]


def test_parts_count_together_and_share_kernels(monkeypatch, compiled):
    """Count the parts of a batch as one, and compile for their number of robots."""
    builder = RobotBuilder()
    youngs = torch.linspace(1e6, 2e6, 4, dtype=torch.float64)[:, None]
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(2e-3), Material(youngs, 1000.0))
    builder.clamp(nodes=[0, 1])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    model = builder.finalize()
    before = stepped(model, 4, batch=4, chunk=2)
    after_evaluations(monkeypatch, model, model.compilation.counts()[0][3])
    assert (stepped(model, 4, batch=4, chunk=2) - before).abs().max() < ROUNDING
    assert [row[0] for row in model.compilation.counts() if row[4]] == [2] and compiled


@pytest.mark.parametrize("run", [rollout, unroll])
def test_a_run_that_will_be_long_is_compiled_before_its_first_step(run, monkeypatch, compiled):
    """Decide by the number of steps: none is eager in a long run, all are in a short one."""
    model = rod()
    integrator = ImplicitEuler(1e-2)
    after_evaluations(monkeypatch, model, 4 * 6)
    run(model, model.initial_state(batch=2), integrator, 2)
    eager = model.compilation.counts()[0][3]
    assert eager > 0 and not model.compilation.active
    run(model, model.initial_state(batch=2), integrator, 6)
    assert model.compilation.active
    again = rod()
    run(again, again.initial_state(batch=2), integrator, 6)
    assert again.compilation.counts() == [[2, "cpu", "float64", 0, True]]


def test_static_solves_are_expected_to_take_more():
    """Expect more evaluations of each load step than of a step in time."""
    model = rod()
    assert Static(3).step_work(model, 2) > 3 * ImplicitEuler(1e-2).step_work(model, 2)


def test_gradients_across_the_switch(monkeypatch, compiled):
    """Differentiate eager steps once the model has switched."""
    found = []
    for switch in (False, True):
        model = rod()
        factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
        state, integrator = model.initial_state(batch=2).detach(), ImplicitEuler(1e-2, force_tolerance=1e-13)
        loss = unroll(model, state, integrator, 2).q[-1].square().sum()
        if switch:
            after_evaluations(monkeypatch, model, 1)
            integrator.step(model, state)
            assert model.compilation.active
        found.append(torch.autograd.grad(loss, factor.log_factor)[0].item())
    assert found[1] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_copies_begin_anew(copied, monkeypatch, compiled):
    """Give a copy the setting, and neither counts nor kernels."""
    model = rod()
    after_evaluations(monkeypatch, model, 1)
    expected = stepped(model)
    twin = copied(model)
    assert twin.compilation.setting == "auto" and twin.compilation.cost == model.compilation.cost
    assert twin.compilation.counts() == [] and not twin.compilation.active
    assert twin.layout.elastic.compilation is twin.compilation
    assert not any("compilation" in name for name in model.state_dict())
    assert (stepped(twin) - expected).abs().max() < ROUNDING
    assert twin.compilation.active


def test_another_dtype_has_its_own_count(monkeypatch, compiled):
    """Leave a model eager that was compiled in another dtype."""
    model = rod()
    after_evaluations(monkeypatch, model, 4)
    stepped(model)
    assert model.compilation.active
    model = model.to(torch.float32)
    q = model.initial_state(batch=2).q
    assert not model.compilation.runs_compiled(2, q) and model.compilation.work(2, q) == 0


def test_counts_go_on_in_another_process(monkeypatch, compiled):
    """Take up counts where another process left them, and compile at once what it had compiled."""
    model, other = rod(), rod()
    stepped(model, 2)
    other.compilation.take_counts(model.compilation.counts())
    assert other.compilation.counts() == model.compilation.counts()
    after_evaluations(monkeypatch, model, 1)
    stepped(model, 1)
    third = rod()
    third.compilation.take_counts(model.compilation.counts())
    assert third.compilation.runs_compiled(2, third.nodes)
    told = Compilation(False, Cost(1.0, 1.0))
    told.take_counts(model.compilation.counts())
    assert told.counts() == [] and not told.active


# ---- what cannot be compiled -------------------------------------------------------------------------------------


class Branching(Energy):
    """A quadratic energy with derivatives in closed form that torch.compile cannot trace: it looks at numbers."""

    closed_form = True

    def density(self, strain):
        """Return strain^2."""
        return strain[0] ** 2

    def derivatives(self, strain):
        """Return slopes and curvatures."""
        scale = 2.0 if float(strain[0].detach().sum()) < 1e9 else 1.0
        return [scale * strain[0]], [[torch.full_like(strain[0], scale)]]


def test_terms_without_closed_forms_stay_eager(monkeypatch, compiled, capsys):
    """Say once which terms keep a robot eager."""
    model = with_angle_springs(compile="auto")
    monkeypatch.setattr(compilation, "THRESHOLD", 0.0)
    stepped(model)
    said = capsys.readouterr().err
    assert said.count("torchdismech:") == 1 and "not compiled: derivatives of hinges come from autograd" in said
    assert compiled == [] and not model.compilation.active


def test_without_a_compiler_steps_stay_eager(monkeypatch, compiled, capsys):
    """Say once that there is no compiler."""
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr(compilation, "THRESHOLD", 0.0)
    model = rod()
    assert torch.equal(stepped(model), stepped(rod(compile=False)))
    assert capsys.readouterr().err.count("$CXX = 'no-such-compiler' is not found") == 1
    assert compiled == [] and "no-such-compiler" in model.mechanics.why_eager()


def test_what_torch_cannot_compile_stays_eager(monkeypatch, traced, capsys):
    """Go on eagerly where torch.compile fails, in steps and in backward passes; raise where compiling is asked for."""
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        stepped(rod(energy=Branching(), compile=True))
    expected = stepped(rod(energy=Branching(), compile=False))
    model = rod(energy=Branching())
    after_evaluations(monkeypatch, model, 5)
    assert torch.equal(stepped(model), expected)
    said = capsys.readouterr().err
    assert said.count("torch.compile fails: ") == 1 and not model.compilation.active
    stepped(model)
    assert capsys.readouterr().err == ""


def test_backward_passes_fall_back(monkeypatch, traced):
    """Differentiate eagerly what torch.compile first fails with in the backward pass."""
    found = []
    for switch in (False, True):
        model = rod(energy=Branching())
        factor = trainable.scaled(model, ["bend_twist.EI1"])
        loss = unroll(model, model.initial_state(batch=2).detach(), ImplicitEuler(1e-2), 2).q[-1].square().sum()
        if switch:
            after_evaluations(monkeypatch, model, 1)
            model.compilation.consider(2, model.initial_state(batch=2).q, model.mechanics.why_eager)
            assert model.compilation.active
        found.append(torch.autograd.grad(loss, factor.log_factor)[0].item())
    assert found[1] == found[0] and "torch.compile fails" in model.compilation.refusal


def test_other_errors_are_raised(monkeypatch, compiled):
    """Hand on what a force of one's own raises, whatever runs compiled."""
    model = rod()
    after_evaluations(monkeypatch, model, 1)
    stepped(model)

    def broken(*_):
        raise RuntimeError("no such luck")

    monkeypatch.setattr(forces.Gravity, "forward", broken)
    with pytest.raises(RuntimeError, match="no such luck"):
        ImplicitEuler(1e-2).step(model, model.initial_state(batch=2))


def graphs() -> int:
    """Return how many graphs torch has traced since the last reset."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


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
}


SOME = [name if name == "magnetic" else pytest.param(name, marks=pytest.mark.slow) for name in VARYING]


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


class Breeze(forces.MassDamping):
    """A damping of one's own that looks at numbers, which compiled code cannot."""

    compiles = False

    def forward(self, state, control):
        """Return the damping."""
        return super().forward(state, control) * (1.0 if float(state.time.sum()) < 1e9 else 2.0)


def test_loads_that_do_not_compile_run_eagerly_around_compiled_kernels(traced):
    """Take steps with a force that says so as eager ones."""
    found = [stepped(rod(compile=compile, loads=[Breeze(0.3)])) for compile in (False, True)]
    assert torch.equal(*found) and graphs() > 0


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


@pytest.mark.slow
def test_steps_and_gradients_agree_across_a_real_switch(monkeypatch):
    """Compile in the middle of a run, by inductor, and differentiate it: its first steps were eager."""
    found = []
    for setting in (False, "auto"):
        model = rod(compile=setting)
        factor = trainable.scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])
        state, integrator = model.initial_state(batch=2).detach(), ImplicitEuler(1e-2, force_tolerance=1e-13)
        after_evaluations(monkeypatch, model, 6)
        for _ in range(6):
            state, _ = integrator.step(model, state, throw=True)
        (gradient,) = torch.autograd.grad(state.q.square().sum(), factor.log_factor)
        found.append((state.q.detach(), gradient))
    assert model.compilation.active
    assert (found[1][0] - found[0][0]).abs().max() < ROUNDING
    assert (found[1][1] - found[0][1]).abs() < ROUNDING * found[0][1].abs()


def test_robots_are_recorded_instead(monkeypatch, compiled):
    """Compile nothing where eager steps are recorded, which is faster."""
    monkeypatch.setattr(recording, "LARGEST", 60_000)
    monkeypatch.setattr(compilation, "THRESHOLD", 0.0)
    model = rod()
    rollout(model, model.initial_state(batch=2), ImplicitEuler(1e-2), 20, progress=False)
    assert not compiled and not model.compilation.active and model.recordings
