"""Eager first, compiled where work is long: when models switch, and what stays the same."""

import copy
import pickle

import pytest
import torch

from tests.compilation.rods import ROUNDING, after_evaluations, rod, stepped
from torchdismech import (
    Circle,
    ImplicitEuler,
    Material,
    RobotBuilder,
    compilation,
    forces,
    rollout,
    straight,
    trainable,
    unroll,
)
from torchdismech.integrate.recorded import recording


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
    monkeypatch.setattr(recording, "MAX_NUMBERS", 60_000)
    monkeypatch.setattr(compilation, "THRESHOLD", 0.0)
    model = rod()
    rollout(model, model.initial_state(batch=2), ImplicitEuler(1e-2), 20, progress=False)
    assert not compiled and not model.compilation.active and model.recordings
