"""Searches that recordings go through: indefinite matrices, steps that raise the norm, parts of steps, new attempts."""

from collections import Counter
from functools import partial

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Status,
    forces,
    helix,
    meshes,
    straight,
)
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty
from torchdismech.integrate.recorded import recording, round_tapes
from torchdismech.integrate.recorded.rounds import RecordedRounds
from torchdismech.integrate.recorded.step import RecordedStep
from torchdismech.integrate.search.primal_dual import _PrimalDual

STEPS = 60
NEVER = 10**6  # steps before a recording
SEARCHES = (
    (RecordedRounds, "_accept_or_shorten"),
    (RecordedRounds, "_take_shortened"),
    (RecordedRounds, "_begin_second_attempt"),
    (RecordedStep, "finish_without_rounds"),
)


def coils(robots=8):
    """Return stiff wires, wound to coils and let go, which in long steps take hard searches."""
    points = helix((0, 0, 0), (0.04, 0, 0), (0, 0, -1), 8 * np.pi, 0.2, 40)
    material = Material(torch.linspace(0.9e9, 1.1e9, robots, dtype=torch.float64)[:, None], 1000.0, poisson=0.5)
    load = forces.Gravity((0, 0, -9.81))
    return rod_through(points, Circle(1e-3), material, [load], "edge").finalize(compile=False)


def sheets(robots):
    """Return sheets that fall to the side of their clamp, and fold."""
    builder, sheet = RobotBuilder(), meshes.rectangle(0.12, 0.06, 0.02)
    material = Material(torch.linspace(0.9e6, 1.1e6, robots, dtype=torch.float64)[:, None], 1000.0, 0.3)
    builder.add_shell(sheet.nodes, sheet.triangles, 1e-3, material, "midedge")
    builder.clamp(nodes=[0, 1, 2])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    return builder.finalize(compile=False)


def run(integrator, at_once, steps=STEPS, make=coils, robots=8):
    """Return where steps of robots lead, how they went, and how often searches did what."""
    counts = Counter()

    def counted(kind, name):
        own = kind.__dict__[name]

        def called(self, *given):
            counts[name] += 1
            return own(self, *given)

        return called

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in SEARCHES:
            patch.setattr(kind, name, counted(kind, name))
        model = make(robots)
        state, found = model.initial_state(), []
        for _ in range(steps // at_once):
            state, info = integrator.steps(model, state, at_once)
            found += [*state.fields(), info.iterations, info.residual, info.status]
    assert (found[-1] == Status.CONVERGED).all()
    return found, counts


@pytest.mark.parametrize("at_once", [1, 20])
@pytest.mark.parametrize("integrator", [Newmark(1.2e-2), ImplicitMidpoint(9e-3)], ids=["newmark", "midpoint"])
def test_hard_searches_stay_recorded(integrator, at_once, monkeypatch):
    """Give the bits of searches without recordings, and never leave the recording."""
    found, counts = run(integrator, at_once)
    assert counts["_accept_or_shorten"] and counts["_begin_second_attempt"] and not counts["finish_without_rounds"]
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", NEVER)
    expected, without = run(integrator, at_once)
    assert not without
    assert all(map(torch.equal, found, expected))


@pytest.mark.parametrize("at_once", [1, 10])
def test_parts_of_steps(at_once, monkeypatch):
    """Shorten steps of some robots beside whole ones of others, to the same bits as without recordings."""
    folding = partial(run, ImplicitEuler(1e-2), at_once, 20, sheets, 3)
    found, counts = folding()
    assert counts["_take_shortened"]
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", NEVER)
    expected, without = folding()
    assert not without
    assert all(map(torch.equal, found, expected))


def test_a_robot_that_no_recording_solves(monkeypatch):
    """Search on without recordings for one alone, and count the iterations of all attempts."""
    of_two = partial(run, ImplicitMidpoint(1e-2), 15, 30, sheets, 2)
    found, counts = of_two()
    assert counts["finish_without_rounds"]
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", NEVER)
    assert all(map(torch.equal, found, of_two()[0]))


def test_robots_that_spend_their_iterations(monkeypatch):
    """Leave the others alone, also where that happens in a round that was expected to be the last."""

    def led():
        stiffness = torch.tensor([1e5, 1e6, 1e7, 3e7, 1e8], dtype=torch.float64)[:, None]
        points, load = straight((0, 0, 0), (0.3, 0, 0.02), 11), forces.Gravity((0, 0, -9.81))
        model = rod_through(points, Circle(2e-3), Material(stiffness, 1000.0), [load]).finalize(compile=False)
        state, found, failed = model.initial_state(), [], False
        for _ in range(20):
            state, info = ImplicitEuler(2e-2, max_iterations=3).step(model, state)
            found += [*state.fields(), info.status, info.iterations]
            failed |= bool((info.status == Status.MAX_ITERATIONS).any())
        return found, failed

    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    found, failed = led()
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", NEVER)
    expected, _ = led()
    assert failed and all(map(torch.equal, found, expected))


def test_many_robots_that_rub_stay_recorded_and_together(monkeypatch):
    """Bend many worms on a rough floor: recorded searches take rounds of all, to the bits of searches that divide."""
    robots, divided, rounds = 300, Counter(), Counter()
    of_rows, called = _PrimalDual.of_rows, round_tapes._Rounds.called

    def led():
        builder = RobotBuilder(planar=True)
        builder.add_rod(straight((0, 0, 4e-3), (0.1, 0, 4e-3), 9), Circle(4e-3), Material(1e6, 1100.0, 0.5, 5e-3))
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(200.0, 1e-3), Friction(0.6, 5e-3)))
        model = builder.finalize(compile=False)
        bends = torch.rand(6, robots, 1, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        state, found = model.initial_state(robots), []
        for bend in bends:
            natural = torch.cat([0.6 * bend - 0.3, torch.zeros_like(bend)], 2).expand(-1, 7, -1)
            state, info = ImplicitEuler(1e-2, chunk=None).step(model, state, Control(natural_curvature=natural))
            found += [*state.fields(), info.iterations, info.residual, info.status]
        return found

    def part(search, rows, system):
        divided["searches"] += 1
        return of_rows(search, rows, system)

    def replayed(self, function, kind, given):
        rounds[kind[0].__name__] += 1
        return called(self, function, kind, given)

    monkeypatch.setattr(_PrimalDual, "of_rows", part)
    monkeypatch.setattr(round_tapes._Rounds, "called", replayed)
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    found = led()
    assert rounds["next_iterates"] > 20 and not divided
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", NEVER)
    expected = led()
    assert divided and all(map(torch.equal, found, expected))
