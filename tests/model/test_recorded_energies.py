"""Energies that come from recordings: the same numbers, and none of what changed since."""

import copy

import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Control, ImplicitEuler, InputError, Material, RobotBuilder, forces, rollout, straight
from torchdismech.contact import HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.model.replays import EVALUATIONS_BEFORE_RECORDING


def rod(on_floor=False):
    """Return a clamped rod that hangs, over a floor if asked for."""
    loads = [forces.Gravity((0, 0, -9.81))]
    if on_floor:
        loads.append(Obstacle(HalfSpace((0, 0, -0.02), (0, 0, 1)), Penalty(500.0, 1e-3)))
    points, material = straight((0, 0, 0), (0.5, 0, 0), 9), Material(1e6, 1000.0)
    return rod_through(points, Circle(5e-3), material, loads).finalize()


def recorded(model, state, *control):
    """Return energies after so many questions that they are recorded."""
    for _ in range(EVALUATIONS_BEFORE_RECORDING):
        found = model.energies(state, *control)
    return found


def anew(model, state, *control):
    """Return the energies of a copy, of which nothing is recorded."""
    return copy.deepcopy(model).energies(state, *control)


def assert_same(found, expected):
    """Compare every bit: a recording rounds as torch does."""
    assert [*found] == [*expected]
    for name, energy in expected.items():
        assert torch.equal(found[name], energy), name


def moving(model, batch=2, steps=3):
    """Return robots that swing."""
    steps_of = ImplicitEuler(5e-3)
    state = model.initial_state(batch)
    for _ in range(steps):
        state, info = steps_of.step(model, state)
    assert info.converged.all()
    return state


@pytest.mark.parametrize("on_floor", [False, True])
def test_recorded_energies_are_those_that_torch_finds(on_floor):
    """A replay gives every bit, of states that it was not recorded with, too."""
    model = rod(on_floor)
    first, later = moving(model), moving(model, steps=9)
    assert_same(recorded(model, first), anew(model, first))
    assert any(tape is not None for tape in model._recorded_energies._replays._tapes.values())
    assert_same(model.energies(later), anew(model, later))
    kept = model.energies(first)
    model.energies(later)
    assert_same(kept, anew(model, first))  # what was found stays


def test_recorded_energies_follow_the_model():
    """Numbers that are written in place, and tensors that are exchanged, count at once."""
    model = rod()
    state = moving(model)
    recorded(model, state)
    with torch.no_grad():
        model.term("stretch").energy.EA.mul_(2.0)
    assert_same(model.energies(state), anew(model, state))
    model.body.mass = torch.nn.Parameter(3.0 * model.body.mass, requires_grad=False)
    assert_same(model.energies(state), anew(model, state))


def test_recorded_energies_read_the_control():
    """Natural strains are an input; values of a control stand in the model for one question alone."""
    model = rod()
    state = moving(model)
    bent = [Control(natural_curvature=torch.full((2, len(model.springs), 2), k, dtype=model.dtype)) for k in (0.1, 0.3)]
    recorded(model, state, bent[0])
    for control in bent:
        assert_same(model.energies(state, control), anew(model, state, control))
    plain = recorded(model, state)
    stiff = Control(values={"stretch.EA": torch.full((2, 1), 99.0, dtype=model.dtype)})
    assert_same(model.energies(state, stiff), anew(model, state, stiff))
    assert_same(model.energies(state), plain)


def test_energies_with_gradients_are_not_replayed():
    """Autograd follows them after a recording was made."""
    model = rod()
    state = moving(model)
    recorded(model, state)
    q = state.q.clone().requires_grad_()
    total = sum(model.energies(state.replace(q=q)).values()).sum()
    (slope,) = torch.autograd.grad(total, q)
    assert slope.abs().max() > 0
    model.term("stretch").energy.EA.requires_grad_()
    total = sum(model.energies(state).values()).sum()
    assert total.requires_grad


def test_energies_of_pairs_stand_beside_recorded_ones():
    """What touches is looked for in each question."""
    builder = RobotBuilder()
    for height in (0.0, 0.0099):
        points = straight((-0.1, 0, height), (0.1, 0, height), 5)
        builder.add_rod(points if height == 0 else points[:, [1, 0, 2]], Circle(5e-3), Material(1e6, 1000.0))
    builder.add_contact(SelfContact(Penalty(500.0, 1e-3)))
    model = builder.finalize()
    touching = model.initial_state(1)
    apart = touching.replace(q=touching.q.clone())
    apart.q[:, 15:30].view(1, 5, 3)[..., 2] += 0.1
    recorded(model, touching)
    assert_same(model.energies(touching), anew(model, touching))
    assert_same(model.energies(apart), anew(model, apart))


def test_states_that_do_not_fit_are_refused_after_a_recording():
    """A state of another model is refused, whatever is recorded."""
    model = rod()
    recorded(model, moving(model))
    other = rod_through(straight((0, 0, 0), (0.5, 0, 0), 12), Circle(5e-3), Material(1e6, 1000.0)).finalize()
    with pytest.raises(InputError, match="dofs"):
        model.energies(other.initial_state(2))


def test_frames_of_a_run_hold_the_energies_of_their_states():
    """Each frame of a rollout has its own energies."""
    model = rod()
    run = rollout(model, model.initial_state(1), ImplicitEuler(5e-3), steps=2 * EVALUATIONS_BEFORE_RECORDING)
    for k in (1, EVALUATIONS_BEFORE_RECORDING, 2 * EVALUATIONS_BEFORE_RECORDING):
        expected = anew(model, moving(model, batch=1, steps=k))
        for name, energy in expected.items():
            assert torch.equal(run.energies[name][k], energy), (name, k)
