"""Stages of Gauss-Newton steps: where they lead, how they stop and go on, what they are refused for."""

from unittest.mock import MagicMock

import pytest
import torch
from pydantic import ValidationError

from tests.training import simulated
from tests.training.faulty import Sinking
from tests.training.swinging import recordings
from tests.training.test_fit import tables
from torchdismech import InputError
from torchdismech.system.processes import ALONE, Processes
from training.config import Config, Stage
from training.loss import WindowLosses, window_losses
from training.optimization import gauss_newton, refusals
from training.optimization.adam import mean_gradient
from training.optimization.batches import Batch, windows_of
from training.optimization.gauss_newton import gauss_newton_step
from training.optimization.loop import Trainer
from training.optimization.residuals import Residual, fitted_numbers, stays_in_bounds
from training.robots.physics import PhysicsSystem
from training.robots.systems import build
from training.splits import prepared_recordings
from training.system import whole_windows

STAGE = {
    "name": "sharp",
    "train": ["constants"],
    "method": "gauss_newton",
    "iterations": 6,
    "horizon": [20],
    "batch": 4,
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return a file of simulated recordings."""
    return simulated.written(tmp_path_factory.mktemp("data") / "rod.npz", count=5, frames=24)


def trainer_of(data, folder, processes=ALONE, **changes) -> Trainer:
    """Return the trainer of a fit of bending, damping and drag from guesses that are two to five times off."""
    guess = {"gripped": simulated.GRIPPED, "drag": 0.02, "bending": 6e-3, "relaxation_time": 0.004}
    constants = {
        "bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]},
        "damping": {"tensors": ["bend_twist.damping1", "bend_twist.damping2"]},
        "drag": {"tensors": ["Viscous.viscosity"]},
    }
    fixed = {"robot": guess, "constants": constants, "loss": {"scale": 1e-4}, "stages": [STAGE]}
    config = Config.model_validate(tables(data, **fixed) | changes)
    whole_ones, _ = prepared_recordings(config, config.data.train)
    trained_on, held_out = whole_ones.split(config.data.held_out, config.seed)
    return Trainer(config, build(config, trained_on), trained_on, held_out, folder, processes)


def test_few_steps_lead_to_the_truth(data, tmp_path):
    """Find three hidden constants from rough guesses; then stop, before all iterations are done."""
    stages = [STAGE | {"iterations": 20, "check_every": 20}]
    trainer = trainer_of(data, tmp_path, noise={"position": 1e-3}, stages=stages)  # noise that is left alone
    trainer.run()
    found = {name: float(value.mean()) for name, value in trainer.system.values().items()}
    # first velocities are means of two frames, so the optimum of 20 frames stands beside the truth: by 2 %, and drag,
    # of which so short a time tells little, by 8 %
    assert found["bending"] == pytest.approx(3e-3, rel=0.04) and found["damping"] == pytest.approx(3e-5, rel=0.04)
    assert found["drag"] == pytest.approx(0.1, rel=0.12)  # it was 0.02
    assert 4 < trainer.progress.total == trainer.progress.best_at < 12 and trainer.progress.stage == 1
    assert trainer.progress.best < 5e-5  # m, a tenth of what it is with the guess


def test_settled_steps_go_on_with_the_next_horizon(data, tmp_path, monkeypatch):
    """Let each third step bring nothing: every horizon has its turn, and the stage ends with the last one."""
    trainer, seen = trainer_of(data, tmp_path, stages=[STAGE | {"horizon": [4, 6, 9], "iterations": 20}]), []

    def third_settled(stage, horizon):
        seen.append(horizon)
        return Batch(1.0, 4, 0, settled=len(seen) % 3 == 0)

    monkeypatch.setattr(trainer, "_by_gauss_newton", third_settled)
    trainer.run()
    assert seen == [4, 4, 4, 6, 6, 6, 9, 9, 9] and trainer.progress.stage == 1


def test_resumed_stage_goes_on_with_the_same_windows(data, tmp_path):
    """Stop after a step; go on to the bits of a run that nothing stopped."""
    short = [STAGE | {"horizon": [6], "batch": 2}]
    run = trainer_of(data, tmp_path / "whole", stages=short)
    run.run(until=2)
    trainer_of(data, tmp_path / "run", stages=short).run(until=1)
    again = trainer_of(data, tmp_path / "run", stages=short)
    assert again.resume() == []
    again.run(until=2)
    for name, parameter in run.parameters.items():
        assert torch.equal(parameter, again.parameters[name]), name


def test_frames_that_do_not_count_have_no_share(data, tmp_path):
    """Weigh priors by the coordinates that count in the loss: those after the first frames of a warm-up."""
    trainer = trainer_of(data, tmp_path)
    system, trained_on = trainer.system, trainer.trained_on
    for system.warm_up in (0, 5):
        again = Trainer(trainer.config, system, trained_on, trainer.held_out, tmp_path / str(system.warm_up))
        frames = trained_on.frames - system.given - system.warm_up
        assert again._measured_count == 3 * len(trained_on) * frames * trained_on.positions.shape[2]


def test_prior_counts_as_its_share_of_what_was_measured(data, tmp_path):
    """Stand where the gradients of data and priors cancel in the loss that Adam would see."""
    constants = {"drag": {"tensors": ["Viscous.viscosity"], "mean": 0.05, "spread": 0.3}}
    trainer = trainer_of(data, tmp_path, constants=constants, loss={"scale": 2e-3})
    system, every = trainer.system, windows_of(trainer.trained_on, trainer.system, 20)
    assert isinstance(system, PhysicsSystem)
    drag = system.entries["drag"].parameter
    for _ in range(4):
        trainer._by_gauss_newton(trainer.config.stages[0], 20)
    window = trainer._window(every.recording, every.first, 20)  # all of them: the stage's batch is as large
    losses = window_losses(system.predict(window), window, system, trainer.config.loss.scale, trainer._measured_count)
    loss = losses.loss.mean()
    penalty = system.penalty()
    assert len(every) == 4 and penalty is not None
    (slope,) = torch.autograd.grad(loss, [drag])
    (of_prior,) = torch.autograd.grad(2e-3 / trainer._measured_count * penalty, [drag])
    # steps and their derivatives are right to 1e-4; what the data pull is what the prior pulls back
    assert abs(float(slope)) < 1e-2 * abs(float(of_prior))


def test_step_stays_within_bounds(data, tmp_path):
    """Begin with a drag of nearly nothing that may be shifted: neither derivatives nor steps take it below zero."""
    constants = {"drag": {"tensors": ["Viscous.viscosity"], "kind": "shift", "unit": 0.5}}
    guess = {"gripped": simulated.GRIPPED, "drag": 1e-4, "bending": 1.5e-3, "relaxation_time": 0.02}
    trainer = trainer_of(data, tmp_path, constants=constants, robot=guess)
    drag = trainer.system.entries["drag"]
    losses = [trainer._by_gauss_newton(trainer.config.stages[0], 20).loss for _ in range(3)]
    assert losses[0] >= losses[1] >= losses[2] and float(drag.value) >= 0
    residual = Residual(trainer.system, whole_windows(trainer.system, trainer.trained_on, frames=10))
    assert not stays_in_bounds(trainer.system, fitted_numbers(trainer.system), [-2.0])
    assert bool(residual.linearized(fitted_numbers(trainer.system)).good.all())


def test_adams_steps_stay_within_bounds(data, tmp_path):
    """Step far down from a drag that may be shifted: it stays above zero, and the fit goes on; bending moves freely."""
    constants = {
        "drag": {"tensors": ["Viscous.viscosity"], "kind": "shift", "unit": 0.5},
        "bending": {"tensors": ["bend_twist.EI1", "bend_twist.EI2"]},
    }
    guess = {"gripped": simulated.GRIPPED, "drag": 0.3, "bending": 3e-3, "relaxation_time": 0.01}
    stage = {"name": "far", "train": ["constants"], "iterations": 2, "horizon": [4], "batch": 2}
    stages = [stage | {"rates": {"constants": 1.0}, "decay": 1.0}]
    trainer = trainer_of(data, tmp_path, constants=constants, robot=guess, stages=stages)
    trainer._bar = MagicMock()
    trainer._begin(trainer.config.stages[0])
    trainer._iterate(trainer.config.stages[0])
    entries = trainer.system.entries
    assert 0 <= float(entries["drag"].value) < 0.3
    assert abs(float(entries["bending"].parameter.detach())) == pytest.approx(1.0, rel=1e-3)  # as far as its rate says
    trainer._iterate(trainer.config.stages[0])  # it was refused, as the drag was below zero
    assert float(entries["drag"].value) >= 0


def test_step_that_would_lead_up_is_damped_until_it_leads_down(data, tmp_path, monkeypatch):
    """Begin where the linear model leads astray: no step goes farther than allowed, or raises the loss."""
    trainer = trainer_of(data, tmp_path)
    system = trainer.system
    with torch.no_grad():
        system.entries["bending"].parameter.fill_(4.0)  # 55 times as stiff
    residual = Residual(system, whole_windows(system, trainer.trained_on, frames=10))
    numbers, before = fitted_numbers(system), system.entries["bending"].parameter.item()
    descent = gauss_newton_step(residual, numbers, 1e-4, 1.0)
    assert descent.after < descent.before
    assert 0 < before - system.entries["bending"].parameter.item() <= gauss_newton.FARTHEST
    monkeypatch.setattr(gauss_newton, "TRIES", 0)
    stays = [entry.parameter.item() for entry in system.entries.values()]
    assert gauss_newton_step(residual, fitted_numbers(system), 1e-4, 1.0).settled
    assert stays == [entry.parameter.item() for entry in system.entries.values()]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"train": ["learned"]}, 'method: "gauss_newton" is for constants, and starts beside them: got learned'),
        ({"train": ["constants", "learned"]}, "got constants, learned"),
        ({"rates": {"constants": 0.1}}, 'rates: "gauss_newton" has none: leave it out'),
        ({"decay": 0.5}, "decay: "),
        ({"clip": 2.0}, "clip: "),
        ({"checkpoint_every": 5}, "checkpoint_every: "),
    ],
)
def test_what_only_adam_has_is_refused(changes, message):
    """Take no option that would be ignored, and no weights of networks; a config that was written is read again."""
    with pytest.raises(ValidationError, match=message):
        Stage.model_validate(STAGE | changes)
    assert Stage.model_validate(Stage.model_validate(STAGE).model_dump()).method == "gauss_newton"


def test_stages_that_do_not_fit_are_refused(data, tmp_path, monkeypatch):
    """Say so where there are no constants, several processes, or more derivatives than memory holds."""
    with pytest.raises(InputError, match="stage 'sharp': \"gauss_newton\" runs in one process, not in 2"):
        trainer_of(data, tmp_path, Processes(0, 2))
    monkeypatch.setattr(refusals, "available_bytes", lambda device: 1e5)
    with pytest.raises(InputError, match="the derivatives of 4 windows by 3 numbers take about 158 KiB, and 97.7 KiB"):
        trainer_of(data, tmp_path, stages=[STAGE | {"batch": 100}])
    monkeypatch.undo()
    trained_on = recordings(4)
    config = trainer_of(data, tmp_path).config.model_copy(update={"stages": [Stage.model_validate(STAGE)]})
    with pytest.raises(InputError, match="for the constants of a simulated robot, and there are none"):
        Trainer(config, Sinking(trained_on.dt, set()), trained_on, trained_on, tmp_path)


def test_adam_weighs_windows_by_what_is_seen_of_them(data, tmp_path):
    """Count a window of three numbers a tenth as much as one of thirty, as the sum of squares does."""
    (first, *_) = trained = [*trainer_of(data, tmp_path).parameters.values()]
    rows = 0.1 * torch.stack([first.sum(), 3 * first.sum(), torch.zeros(())])
    seen, good = torch.tensor([30.0, 3.0, 0.0]), torch.tensor([True, True, False])
    loss, count = mean_gradient(WindowLosses(rows, seen), good, trained, ALONE)
    assert loss == pytest.approx(float((30 * rows[0] + 3 * rows[1]).detach() / 33)) and count == 2
    torch.testing.assert_close(first.grad, torch.full_like(first, 0.1 * (30 + 3 * 3) / 33))
