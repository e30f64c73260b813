"""Which evaluations are counted, and for which models."""

import pytest
import torch

from tests.compilation.rods import after_evaluations, rod, stepped
from torchdismech import ImplicitEuler, InputError, Static, trainable, unroll
from torchdismech.compilation import Compilation, Cost
from torchdismech.integrate.equations import StepEquations


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


def test_static_solves_are_expected_to_take_more():
    """Expect more evaluations of each load step than of a step in time."""
    model = rod()
    assert Static(3).step_work(model, 2) > 3 * ImplicitEuler(1e-2).step_work(model, 2)


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


def test_each_number_of_robots_has_its_own_count(monkeypatch, compiled):
    """Leave other batches eager: their kernels would be compiled anew."""
    model = rod()
    after_evaluations(monkeypatch, model, 6)
    stepped(model, 4, batch=2)
    ran = len(compiled)
    stepped(model, 1, batch=1)
    assert len(compiled) == ran > 0
    assert [row[0] for row in model.compilation.counts() if row[4]] == [2]
