"""Steps in which nothing that is searched for touches: they are taken without these contacts."""

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    RobotBuilder,
    Status,
    forces,
    straight,
)
from torchdismech.contact import Barrier, Complementarity, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.integrate import step as steps
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.evaluations import RecordedEvaluations

LAWS = {"penalty": lambda: Penalty(200.0, 1e-3), "barrier": lambda: Barrier(0.1, 1e-3), "constraint": Complementarity}


def two_rods(contact=None, height=0.05, still=False, load=None):
    """Return a rod that is held, at both ends or everywhere (`still`), and one that falls onto it from a height [m].

    Parameters
    ----------
    load : a force on both of them, beside their weight.
    """
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    low = builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 11), Circle(4e-3), material)
    builder.add_rod(straight((0.01, -0.08, height), (0.01, 0.1, height), 10), Circle(4e-3), material)
    builder.clamp(nodes=low.tolist() if still else [int(low[0]), int(low[-1])])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    if load is not None:
        builder.add_force(load)
    if contact is not None:
        builder.add_contact(contact)
    return builder.finalize(compile=False)


def course(model, integrator, count, batch=1, velocity=None):
    """Return states and reports of steps from rest, or from a velocity."""
    state, found = model.initial_state(batch, velocity=velocity), []
    for _ in range(count):
        state, info = integrator.step(model, state)
        found.append((state, info))
    return found


@pytest.mark.parametrize(
    ("law", "rule"),
    [*((law, ImplicitEuler) for law in LAWS), ("penalty", ImplicitMidpoint), ("barrier", ImplicitMidpoint)],
)
def test_robots_apart_are_stepped_as_without_contact(law, rule):
    """Find the same bits as without self-contact, before steps are recorded and after, and report no contact."""
    with_contact = course(two_rods(SelfContact(LAWS[law]())), rule(2e-3), 30)
    without = course(two_rods(), rule(2e-3), 30)
    for (state, info), (expected, _) in zip(with_contact, without, strict=True):
        assert torch.equal(state.q, expected.q) and torch.equal(state.velocity, expected.velocity)
        assert not any(bool(value.any()) for value in info.contact.values())


def test_points_apart_from_a_constraint_are_stepped_as_without_it():
    """Find the same bits above a floor as without it, and the contact once the rod gets there."""

    def falling(law):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0.02), (0.1, 0, 0.03), 6), Circle(2e-3), Material(1e6, 1000.0))
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        if law is not None:
            builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), law))
        return builder.finalize(compile=False)

    found, free = (course(falling(law), ImplicitEuler(2e-3), 40) for law in (Complementarity(), None))
    lands = next(k for k, (_, info) in enumerate(found) if bool(info.contact["active"].any()))
    assert 25 < lands < 32  # 18 mm take 61 ms
    assert all(torch.equal(found[k][0].q, free[k][0].q) for k in range(lands))
    assert float(found[-1][0].positions[0, :, 2].min()) > 2e-3 - 1e-6


@pytest.mark.parametrize("law", LAWS)
def test_contact_that_begins_is_found(law, monkeypatch):
    """Step as without this shortcut, within the tolerance of steps, from the fall to the impact and beyond."""
    found = course(two_rods(SelfContact(LAWS[law]()), height=0.02), ImplicitEuler(2e-3), 45)
    monkeypatch.setattr(steps, "_step_apart", lambda *_: None)
    expected = course(two_rods(SelfContact(LAWS[law]()), height=0.02), ImplicitEuler(2e-3), 45)
    assert any(bool(info.contact["active"].any()) for _, info in found)
    for (state, info), (as_before, info_before) in zip(found, expected, strict=True):
        assert bool(info.converged.all())
        assert torch.equal(info.contact["active"], info_before.contact["active"])
        assert float((state.q - as_before.q).abs().max()) < 1e-8  # 1e-8 of the forces of each step


@pytest.mark.parametrize(("law", "gap"), [("penalty", 1.3e-3), ("barrier", 1.3e-3), ("constraint", 0.3e-3)])
def test_contact_that_only_the_end_of_a_step_shows_is_found(law, gap, monkeypatch):
    """Let a rod go that falls by 1 mm in a step, from so near that it touches at the end, and find the loads."""
    found = []
    for shortcut in (steps._step_apart, lambda *_: None):
        monkeypatch.setattr(steps, "_step_apart", shortcut)
        model = two_rods(SelfContact(LAWS[law]()), height=8e-3 + gap, still=True)
        found += course(model, ImplicitEuler(1e-2), 1)
    (state, info), (expected, _) = found
    assert bool(info.contact["active"].any()) and bool(info.converged.all())
    assert torch.equal(state.q, expected.q)


def test_one_robot_that_touches_does_not_change_the_others(monkeypatch):
    """Match robots alone in a batch of which one begins with its rods on each other."""
    model = two_rods(SelfContact(LAWS["penalty"]()))
    velocity = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    velocity[1, 33:63].unflatten(0, (-1, 3))[:, 2] = -2.0  # m/s: the second one lands in 21 ms
    together = course(model, ImplicitEuler(2e-3), 25, 2, velocity)
    assert [bool(info.contact["active"][1]) for _, info in together].index(True) in (9, 10, 11)
    for k in range(2):
        alone = course(two_rods(SelfContact(LAWS["penalty"]())), ImplicitEuler(2e-3), 25, 1, velocity[[k]])
        for (state, _), (own, _) in zip(together, alone, strict=True):
            assert float((state.q[k] - own.q[0]).abs().max()) < 1e-8  # as above


def test_a_rod_that_would_fly_through_another_in_a_step_is_caught():
    """See what lies in the way although nothing touches where the step begins and where it would end."""
    model = two_rods(SelfContact(LAWS["penalty"]()), height=0.012)
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[0, 33:63].unflatten(0, (-1, 3))[:, 2] = -30.0  # m/s: 60 mm in a step
    ((state, info),) = course(model, ImplicitEuler(2e-3), 1, 1, velocity)
    above = bool((state.positions[0, 11:, 2] > 0).all())
    assert info.status.item() == Status.PASSED_THROUGH or (info.status.item() == Status.CONVERGED and above)


def test_whole_steps_are_recorded(monkeypatch):
    """Take steps of robots that are apart by a recording of the whole step, with the same bits."""
    taken = []
    whole = RecordedEvaluations.step_apart
    monkeypatch.setattr(RecordedEvaluations, "step_apart", lambda *given: taken.append(whole(*given)) or taken[-1])
    found = course(two_rods(SelfContact(Complementarity())), ImplicitEuler(2e-3), 30)
    assert len(taken) == 18 and all(end is not None for end in taken)  # 12 steps come before the recording
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
    plain = course(two_rods(SelfContact(Complementarity())), ImplicitEuler(2e-3), 30)
    assert all(torch.equal(a.q, b.q) for (a, _), (b, _) in zip(found, plain, strict=True))


@pytest.mark.parametrize("law", LAWS)
def test_numbers_that_change_between_steps(law, monkeypatch):
    """Read each step's own dt, force and gravity in recorded steps of robots that touch in some of them."""
    found, taken = [], []
    whole = RecordedEvaluations.step_apart
    monkeypatch.setattr(RecordedEvaluations, "step_apart", lambda *given: taken.append(whole(*given)) or taken[-1])
    for seen in (2, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
        model = two_rods(SelfContact(LAWS[law]()), height=0.03)
        state, rules = model.initial_state(), [ImplicitEuler(dt) for dt in (1e-3, 2e-3, 5e-4)]
        for k in range(70):
            model.forces[0].acceleration.data[..., 2] = -9.81 - k % 4
            force = torch.zeros_like(state.q)
            force[:, 46] = 1e-3 * (k % 5)
            state, info = rules[k % 3].step(model, state, Control(force=force))
            found.append((state.q, info.contact["active"]))
    assert len(taken) > 50  # 61 found, of which some turn out to touch
    assert any(bool(active.any()) for _, active in found)
    for one, two in zip(found[:70], found[70:], strict=True):
        assert torch.equal(one[0], two[0]) and torch.equal(one[1], two[1])
