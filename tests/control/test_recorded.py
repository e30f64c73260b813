"""Controllers whose answers come from recordings: every bit is the same, and nothing is kept of what has changed."""

import copy
import pickle

import pytest
import torch

from tests.control.robots import rod, wave
from torchdismech import Control, ImplicitEuler, rollout, unroll
from torchdismech.control import PI, Fixed, Strains, Table
from torchdismech.control.protocol import answered, begun
from torchdismech.model.replays import EVALUATIONS_BEFORE_RECORDING, Replays

DT, STEPS = 0.01, 3 * EVALUATIONS_BEFORE_RECORDING
INTEGRATOR = ImplicitEuler(DT)
YOUNGS = torch.tensor([[5e5], [1e6], [4e6]], dtype=torch.float64)


def controlled(model, kind="fixed", gain=0.5, **options):
    """Return a controller of the rod's curvature: to a wave that stays, or to one that grows."""
    strains = Strains(model, ["curvature"])
    shape = strains.of_shape(model, wave(model.body.n_nodes, 0.004))
    times = torch.linspace(0, 10, 21, dtype=torch.float64)
    growing = Table(times, times[:, None] / 10 * shape)
    return PI(model, strains, Fixed(shape) if kind == "fixed" else growing, DT, gain, 5.0, True, **options)


def run(model, controller, **options):
    """Return a run in a closed loop."""
    return rollout(model, model.initial_state(), INTEGRATOR, STEPS, controller=controller, **options)


def bare(monkeypatch, *arguments, **options):
    """Return the same run, without recordings of what the controller answers."""
    with monkeypatch.context() as unrecorded:
        unrecorded.setattr(Replays, "replayed", lambda *_: None)
        return run(*arguments, **options)


def replayed(controller):
    """Return whether some answers came from a recording."""
    return any(tape is not None for tape in controller._recorded._replays._tapes.values())


def assert_same(found, expected):
    """Compare every bit of two runs."""
    assert torch.equal(found.positions, expected.positions)
    assert all(torch.equal(found.memory[name], expected.memory[name]) for name in expected.memory)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("fixed", {}),
        ("growing", {}),
        ("growing", {"every": 3 * DT, "delay": 2}),
        ("growing", {"noise": 0.3, "seed": 4}),
    ],
)
def test_answers_from_recordings_are_those_of_the_controller(kind, options, monkeypatch):
    """Run a batch with sampling, delay and noise to the same bits."""
    model = rod(7, YOUNGS)
    controller = controlled(model, kind, **options)
    assert_same(run(model, controller), bare(monkeypatch, model, controlled(model, kind, **options)))
    assert replayed(controller)


def test_numbers_that_change_are_read(monkeypatch):
    """Follow gains, references and the robot's constants that change in place, or for others, between two runs."""
    model = rod(7, YOUNGS)
    controller = controlled(model)
    run(model, controller)
    controller.Kp.fill_(0.1)
    controller.reference.values *= 0.5
    model.term("bend_twist").natural_kappa1.add_(0.01)
    assert_same(run(model, controller), bare(monkeypatch, model, controller))
    controller.smoothing = 1
    controller.reference = controlled(model, "growing").reference
    assert_same(run(model, controller), bare(monkeypatch, model, controller))
    assert replayed(controller)


def test_another_robot_begins_anew(monkeypatch):
    """Serve another model, and another number of robots, by what they are."""
    model, other = rod(7), rod(7, 2e6, density=900.0)
    controller = controlled(model)
    run(model, controller)
    assert_same(run(other, controller), bare(monkeypatch, other, controller))
    batch = rod(7, YOUNGS)
    assert_same(run(batch, controller), bare(monkeypatch, batch, controller))


def test_what_a_schedule_sets_goes_on(monkeypatch):
    """Keep the fields that a schedule sets beside those of the controller."""
    model = rod(7, YOUNGS)

    def pushed(time, _):
        force = torch.zeros(len(time), model.n_dofs, dtype=torch.float64)
        force[:, 9 + 2] = 1e-4 * time
        return Control(force=force)

    controller = controlled(model)
    assert_same(run(model, controller, schedule=pushed), bare(monkeypatch, model, controller, schedule=pushed))
    assert replayed(controller)


def test_controllers_of_users_are_asked():
    """Call the Python of a subclass in every step."""
    asked = []

    class Counting(PI):
        def response(self, measured, time, action, memory):
            asked.append(1)
            return super().response(measured, time, action, memory)

    model = rod(7)
    strains = Strains(model, ["curvature"])
    shape = strains.of_shape(model, wave(model.body.n_nodes, 0.004))
    run(model, Counting(model, strains, Fixed(shape), DT, 0.5, 5.0, True))
    assert len(asked) == STEPS


def test_copies_begin_anew_and_gradients_pass():
    """Copy and pickle a controller that has recordings; train one after it was recorded."""
    model = rod(7)
    controller = controlled(model)
    expected = run(model, controller)
    for other in (copy.deepcopy(controller), pickle.loads(pickle.dumps(controller))):
        assert not replayed(other)
        assert_same(run(model, other), expected)
    controller.Kp.requires_grad_()
    driven = unroll(model, model.initial_state(), INTEGRATOR, STEPS, controller=controller)
    (gradient,) = torch.autograd.grad(driven.state.q.square().sum(), [controller.Kp])
    assert float(gradient.abs().max()) > 0


def test_an_answer_keeps_its_numbers():
    """Hand out tensors of their own: the next answer does not write to them."""
    model = rod(7, YOUNGS)
    controller, state = controlled(model), model.initial_state()
    memory = begun(controller, model, state, INTEGRATOR, STEPS)
    for _ in range(EVALUATIONS_BEFORE_RECORDING + 1):
        control, after = answered(controller, state, memory, Control(), model)
    kept = {name: value.clone() for name, value in (*control.tensors().items(), *after.items())}
    moved = state.replace(q=state.q + 1e-3, time=state.time + 1)
    answered(controller, moved, after, Control(), model)
    assert replayed(controller)
    for name, value in (*control.tensors().items(), *after.items()):
        assert torch.equal(value, kept[name])
