"""Several steps at once on obstacles that are constraints: to the bit what single steps do."""

import functools

import pytest
import torch

from tests.integrate.test_semismooth import CASES, rods, thrown
from tests.integrate.test_several_steps import assert_same, one_by_one
from torchdismech import Control, ImplicitEuler, Status, rollout
from torchdismech.contact import Complementarity, Obstacle, Path, Sphere
from torchdismech.integrate import integrator as integrator_module
from torchdismech.integrate.recorded import recording, series
from torchdismech.integrate.recorded.series import UnaidedSeries
from torchdismech.integrate.search import attempts

BEFORE = 3  # steps before a recording
STEPS = 24
EULER = functools.partial(ImplicitEuler, 4e-3)


@pytest.fixture(autouse=True)
def recorded_early(monkeypatch):
    """Record steps from the fourth on."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", BEFORE)


@pytest.fixture
def counts(monkeypatch):
    """How many steps each series was to take, and how many it took."""
    found, original = [], UnaidedSeries.take_remaining

    def counting(self, controls, *given):
        after, info = original(self, controls, *given)
        found.append((len(controls), info.count))
        return after, info

    monkeypatch.setattr(UnaidedSeries, "take_remaining", counting)
    return found


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("case", CASES)
def test_robots_go_the_same_way(case, compiled, counts, monkeypatch):
    """Fly, land and slide as by single steps, by the compiled loop and without it."""
    if not compiled:
        monkeypatch.setattr(series.UnaidedSeries, "_loop", lambda *_: None)
    model = CASES[case]()
    state = thrown(model, 3)
    expected = one_by_one(EULER(), model, state, steps=STEPS)
    assert int(expected[1][-1][0].contact["active"].sum()) > 0
    model.recordings.clear()
    assert_same(EULER().steps(model, state, STEPS), expected)
    assert sum(taken for _, taken in counts) > STEPS // 2


def test_a_step_that_rounds_do_not_solve_ends_a_series(counts, monkeypatch):
    """Leave a step to Python that few rounds do not solve, and go on with the next ones at once."""
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", 3)
    model = rods()
    state = thrown(model, 2)
    expected = one_by_one(ImplicitEuler(1e-2), model, state, steps=40)
    model.recordings.clear()
    assert_same(ImplicitEuler(1e-2).steps(model, state, 40), expected)
    assert any(1 < taken < asked for asked, taken in counts)


def test_each_step_has_its_control(counts):
    """Push robots otherwise in each step, of which one does not run."""
    model = rods()
    state = thrown(model, 3)
    pushes = 1e-3 * torch.randn(STEPS, 3, model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    controls, running = [Control(force=push) for push in pushes], torch.tensor([True, False, True])
    expected = one_by_one(EULER(), model, state, controls, running)
    model.recordings.clear()
    found = EULER().steps(model, state, STEPS, controls, running)
    assert_same(found, expected)
    assert torch.equal(found[0].q[1], state.q[1])
    assert max(taken for _, taken in counts) > STEPS // 2


def test_a_robot_that_fails_stays(counts):
    """Keep a robot in its state whose push is infinite from some step on, while the others go on."""
    model = rods()
    state = thrown(model, 2)
    pushes = torch.zeros(STEPS, 2, model.n_dofs, dtype=torch.float64)
    pushes[14:, 1, 5] = torch.inf
    controls = [Control(force=push) for push in pushes]
    with pytest.warns(RuntimeWarning):
        expected = one_by_one(EULER(), model, state, controls)
    model.recordings.clear()
    with pytest.warns(RuntimeWarning):
        found = EULER().steps(model, state, STEPS, controls)
    assert_same(found, expected)
    assert found[1].status.tolist() == [int(Status.CONVERGED), int(Status.NOT_FINITE)]


def test_an_obstacle_that_moves_and_divided_steps(counts):
    """Take steps with an obstacle on a path, by a method that divides steps that fail."""
    from torchdismech import Circle, Material, RobotBuilder, forces, straight

    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.05), (0.2, 0, 0.05), 9), Circle(5e-3), Material(1e6, 1000.0, 0.5))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    path = Path([0.0, 0.2], [(0.0, 0.0, 0.0), (0.02, 0.0, 0.01)])
    builder.add_contact(Obstacle(Sphere((0.1, 0.002, 0.0), 0.03), Complementarity(), path=path))
    model = builder.finalize(compile=False)
    state, method = thrown(model, 2), ImplicitEuler(4e-3, max_substeps=4)
    expected = one_by_one(method, model, state, steps=STEPS)
    model.recordings.clear()
    assert_same(method.steps(model, state, STEPS), expected)
    assert sum(taken for _, taken in counts) > STEPS // 2


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("every", [1, 10])
def test_runs_take_steps_at_once(every, compiled, counts, monkeypatch):
    """Have the frames of single steps, also where each step is one, and ask the model for few of them."""
    if not compiled:
        monkeypatch.setattr(series.UnaidedSeries, "_loop", lambda *_: None)
    asked, original = [], integrator_module.SteppingMethod._checked_problem
    monkeypatch.setattr(
        integrator_module.SteppingMethod,
        "_checked_problem",
        lambda *given, **named: asked.append(1) or original(*given, **named),
    )
    model = rods()
    state = thrown(model, 2)
    alone = rollout(model, state, EULER(), 60, schedule=lambda time, model: Control(), every=every, progress=False)
    assert not counts
    model.recordings.clear()
    asked.clear()
    at_once = rollout(model, state, EULER(), 60, every=every, progress=False)
    assert len(asked) < 30 and sum(taken for _, taken in counts) >= 40
    for name in ("positions", "velocities", "iterations", "iterations_max", "residual", "status", "step"):
        assert torch.equal(getattr(at_once, name), getattr(alone, name)), name
    assert all(torch.equal(at_once.contact[name], alone.contact[name]) for name in alone.contact)


def test_a_run_with_frames_goes_on_after_a_hard_step(counts, monkeypatch):
    """Leave steps to Python that few rounds do not solve, in the middle of a run with a frame of each step."""
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", 3)
    model = rods()
    state = thrown(model, 2)
    alone = rollout(model, state, ImplicitEuler(1e-2), 40, schedule=lambda time, model: Control(), progress=False)
    model.recordings.clear()
    at_once = rollout(model, state, ImplicitEuler(1e-2), 40, progress=False)
    assert len(counts) > 1
    assert torch.equal(at_once.positions, alone.positions) and torch.equal(at_once.iterations, alone.iterations)
    assert not bool(at_once.failed.any())
