"""TORCHDISMECH_PLAIN: steps as plain Python and torch."""

import pytest
import torch

from tests.integrate.recordings import Wind, rods_on_cpu, rough
from torchdismech import ImplicitEuler, InputError, contact, rollout, unroll
from torchdismech.native import Unavailable, gpu, library
from torchdismech.native.compiled import function_of
from torchdismech.system.plain import PLAIN, in_plain_torch


@pytest.fixture
def asked(monkeypatch):
    """Return what sets the variable, as if the process began then."""

    def to(value):
        monkeypatch.setenv(PLAIN, value)
        monkeypatch.setattr(library, "outcome", None)
        monkeypatch.setattr(gpu.kernels, "outcome", None)
        in_plain_torch.cache_clear()

    yield to
    in_plain_torch.cache_clear()


def run():
    """Return where a run of robots in contact leads, and a gradient through one; and the model."""
    model = rods_on_cpu(3, rough(contact.Capsule((0.15, -0.1, 0.01), (0.15, 0.1, 0.01), 0.01)))
    positions = rollout(model, model.initial_state(3), ImplicitEuler(5e-3), steps=20).positions
    state = model.initial_state(3)
    velocity = torch.zeros_like(state.velocity).requires_grad_()
    last = unroll(model, state.replace(velocity=velocity), ImplicitEuler(5e-3), steps=14).positions[-1]
    return positions, torch.autograd.grad(last.square().sum(), velocity)[0], model


@pytest.mark.filterwarnings("error::RuntimeWarning")
def test_the_same_to_rounding(asked):
    """Take the same steps without recordings and without compiled code, and warn of nothing."""
    fast = run()
    asked("1")
    plain = run()
    assert fast[-1].recordings and not plain[-1].recordings and function_of("calls_in_turn") is None
    for found, expected in zip(plain[:2], fast[:2], strict=True):
        assert torch.allclose(found, expected, rtol=1e-9, atol=1e-12)  # sums in another order, over 20 steps


def test_all_python_runs_in_each_step(asked):
    """Call what users wrote in each step, also where it says `records`."""
    asked("1")
    model = rods_on_cpu(3, Wind())
    wind = model.forces[1]
    calls = []
    wind.shape = lambda values: calls.append(1) or torch.tanh(values)
    rollout(model, model.initial_state(3), ImplicitEuler(5e-3), steps=20, every=20)
    before = len(calls)
    rollout(model, model.initial_state(3), ImplicitEuler(5e-3), steps=5, every=5)
    assert len(calls) >= before + 5


def test_models_that_are_to_be_compiled_are_not(asked, monkeypatch):
    """Step eagerly whatever the model, or a run that it goes on from, asks for."""
    asked("1")
    monkeypatch.setattr(torch, "compile", None)
    model = rods_on_cpu(3, compile=True)
    ImplicitEuler(5e-3).step(model, model.initial_state(3))
    other = rods_on_cpu(3, compile="auto")
    other.compilation.take_counts([[3, "cpu", "float64", 10**9, True]])
    ImplicitEuler(5e-3).step(other, other.initial_state(3))
    assert not (model.compilation.active or other.compilation.active)


@pytest.mark.parametrize("look", [library, gpu.kernels])
def test_nothing_compiled_is_to_be_had(asked, look):
    """Say who asked for it."""
    asked("1")
    with pytest.raises(Unavailable, match="TORCHDISMECH_PLAIN asks for plain torch"):
        look()


def test_other_values_are_refused(asked):
    """Name the variable and what it may be."""
    asked("yes")
    with pytest.raises(InputError, match="TORCHDISMECH_PLAIN: expected 0 or 1 in the environment, got 'yes'"):
        in_plain_torch()


@pytest.mark.parametrize("value", ["", "0"])
def test_zero_is_as_without(asked, value):
    """Step as ever."""
    asked(value)
    assert not in_plain_torch()
