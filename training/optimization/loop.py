"""The training loop: stages of batches of windows, looks at held-out recordings, checkpoints."""

from __future__ import annotations

import math
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn
from tqdm import tqdm

from torchdismech import InputError
from torchdismech.system.interrupts import say_at_the_end
from torchdismech.system.processes import ALONE, Processes
from training.config import Config, Stage
from training.data import Recordings, Window, WindowSampler, gather
from training.loss import coordinates, window_losses
from training.optimization import checkpoint
from training.optimization.adam import kept_in_bounds, new_optimizer, set_rates, step_by_adam
from training.optimization.batches import Batch, horizon_at, noisy_window, settled_at, windows_of
from training.optimization.fingerprints import fingerprints
from training.optimization.gauss_newton import gauss_newton_step
from training.optimization.refusals import refuse_hopeless, refuse_unfitting, refuse_without_gradient
from training.optimization.residuals import Residual, fitted_numbers
from training.optimization.resuming import (
    Progress,
    differences,
    random_state,
    read_facts,
    state_of_adam,
    take_random_state,
)
from training.optimization.validation import Validation, failure_warning, is_better
from training.reports.board import Board
from training.robots.physics import PhysicsSystem
from training.robots.starts import Starts
from training.system import System, predicted, refuse_unlike

__all__ = ["Trainer"]


class Trainer:
    """Fits a system to recordings.

    Parameters
    ----------
    config : config of the run; processes : the processes that share its work.
    system : what is fitted.
    trained_on, held_out : recordings to train on, and those that decide which weights are best.
    folder : the run's folder, for checkpoints.
    board : TensorBoard, in the process that writes; None in others.
    """

    def __init__(
        self,
        config: Config,
        system: System,
        trained_on: Recordings,
        held_out: Recordings,
        folder: Path,
        processes: Processes = ALONE,
        board: Board | None = None,
    ):
        self.config, self.system, self.folder = config, system.eval(), folder
        self.trained_on, self.held_out = trained_on, held_out
        self.processes, self.board = processes, board
        self.progress = Progress()
        sizes = system.start_size, len(trained_on), len(held_out)
        self.starts = Starts(*sizes, system.device) if system.start_size else None
        self.validation = Validation(system, config.loss.scale, trained_on, held_out, processes, self.starts)
        self.parameters = system.parameters_by_name() | self._parameters_of_starts()
        refuse_unfitting(config, system, trained_on, processes)
        self._history = system.history(trained_on)
        counted = system.counted(trained_on.valid[:, system.given + system.warm_up :])
        self._measured_count = int(coordinates(counted).sum())
        self._file_digests = fingerprints(config)
        self._recording_digests = {**trained_on.digests(), **held_out.digests()}
        self._validates_first = True  # `_run` begins with a checkpoint and a look at the held-out recordings
        self._optimizer: torch.optim.Optimizer | None = None
        self._sampler: WindowSampler | None = None

    # ---- the loop ----------------------------------------------------------------------------------------------

    def run(self, until: int | None = None, progress: bool = False) -> None:
        """Train all stages that are left.

        Parameters
        ----------
        until : stop after so many iterations in total, as an interruption would.
        progress : show a progress bar.
        """
        total = sum(stage.iterations for stage in self.config.stages)
        with tqdm(total=total, initial=self.progress.total, unit="batch", disable=not progress) as bar:
            self._bar = bar
            self._run(until)

    @property
    def next_step(self) -> int:
        """TensorBoard's step of the next entry: the batches done, if a look comes first, else those plus one."""
        return self.progress.total if self._validates_first else self.progress.total + 1

    def _run(self, until: int | None) -> None:
        if self._validates_first:
            self.save()
            with self._shown_as_validation():
                self._validate()
        while self.progress.stage < len(self.config.stages):
            stage = self.config.stages[self.progress.stage]
            self._begin(stage)
            while self.progress.iteration < stage.iterations and self.progress.looks_since < stage.patience:
                if until is not None and self.progress.total >= until:
                    self.save()
                    return
                self._iterate(stage)
            self._end()

    def _begin(self, stage: Stage) -> None:
        """Select the parameters that a stage trains, and make its optimiser unless a checkpoint has brought one."""
        self._train_only(stage)
        if self._optimizer is None and stage.method == "adam":
            self._optimizer = self._new_optimizer(stage)

    def _end(self) -> None:
        """End a stage: take the best weights so far, save them under its name, and go on to the next stage."""
        self._load_best()
        if self.processes.writes:
            name = self.config.stages[self.progress.stage].name
            self._save_weights(f"after-{name}")
        self.progress.stage += 1
        self.progress.iteration = self.progress.looks_since = 0
        self._optimizer, self._sampler = None, None
        self.save()

    def _iterate(self, stage: Stage) -> None:
        """Train on a batch; then look at the held-out recordings, and write a checkpoint, whenever it is time to."""
        begun = time.perf_counter()
        progress, horizon = self.progress, horizon_at(stage, self.progress.iteration)
        with self._training_learned_modules(stage):
            batch = self._by_adam(stage, horizon) if stage.method == "adam" else self._by_gauss_newton(stage, horizon)
        progress.unconverged += batch.failed
        progress.skipped += batch.skipped
        progress.iteration = settled_at(stage, progress.iteration) if batch.settled else progress.iteration + 1
        progress.total += 1
        seconds = time.perf_counter() - begun
        progress.seconds += seconds
        self._show(batch, stage, horizon, seconds)
        if progress.iteration % stage.check_every == 0 or progress.iteration == stage.iterations:
            if batch.status is not None:
                refuse_hopeless(progress, batch.status)
            with self._shown_as_validation(), self._naming_the_stage(stage):
                self._validate()
        if progress.total % self.config.logging.save_every == 0:
            self.save()

    def _show(self, batch: Batch, stage: Stage, horizon: int, seconds: float) -> None:
        """Show how a batch went, on the progress bar and in TensorBoard."""
        progress = self.progress
        self._bar.update(1)
        self._bar.set_postfix(
            stage=stage.name, loss=f"{1e3 * batch.loss:.2f}mm", best=f"{1e3 * progress.best:.2f}mm", refresh=False
        )
        if self.board is not None and progress.total % self.config.logging.every == 0:
            speed = batch.windows * horizon * self.system.substeps / seconds
            self.board.batch(progress, batch, horizon, speed)
            self.board.constants("physics", self.system.values(), progress.total)
            if self.starts is not None and "starts" in stage.train:
                size = self.starts.fitted.detach().square().mean().sqrt()
                self.board.constants("starts", {"size": size}, progress.total)

    def _by_adam(self, stage: Stage, horizon: int) -> Batch:
        """Take a step of Adam on the next windows of the sampler."""
        recording, first = next(self._sampler_for(stage, horizon))
        window = self._window(recording, first, horizon)
        assert self._optimizer is not None
        set_rates(self._optimizer, stage, self.progress.iteration)
        self._optimizer.zero_grad()
        with self._naming_the_stage(stage, ahead=1):
            prediction = predicted(self.system, self._with_noise(window, stage), stage.checkpoint_every)
        refuse_without_gradient(prediction, stage)
        losses = window_losses(prediction, window, self.system, self.config.loss.scale, self._measured_count)
        trained = [p for p in self.parameters.values() if p.requires_grad]
        with kept_in_bounds(self.system):
            return step_by_adam(self._optimizer, stage, prediction, losses, trained, self.processes)

    def _by_gauss_newton(self, stage: Stage, horizon: int) -> Batch:
        """Take a Gauss-Newton step of the constants and starts, on windows that are the same at each equal horizon."""
        assert isinstance(self.system, PhysicsSystem)  # else the stage was refused
        every = windows_of(self.trained_on, self.system, horizon)
        generator = torch.Generator().manual_seed(self._seed)
        chosen = torch.randperm(len(every), generator=generator, device="cpu")[: stage.batch].sort().values
        window = self._window(every.recording[chosen], every.first[chosen], horizon)
        residual = Residual(self.system, window.replace(start=None if window.start is None else window.start.detach()))
        share = int(residual.measured.sum()) / self._measured_count
        with self._naming_the_stage(stage, ahead=1):
            step = gauss_newton_step(residual, fitted_numbers(self.system), self.config.loss.scale, share)
        if not bool(step.good.any()):
            raise InputError(
                f"stage {stage.name!r}: none of its windows is predicted to its end with each constant a little higher "
                "and lower: look at [robot] and [simulation] in the config, or let a stage by Adam go before"
            )
        if self.starts is not None and step.start is not None:
            self.starts.fitted.data[every.recording[chosen].to(self.system.device)] = step.start
        failed = int((~step.good).sum())
        return Batch(step.before, len(chosen), failed, settled=step.settled)

    def _window(self, recording: Tensor, first: Tensor, horizon: int) -> Window:
        """Return windows of the recordings that are trained on, on the system's device."""
        window = gather(self.trained_on, recording, first, horizon + self.system.given)
        history = {name: value[recording, first] for name, value in self._history.items()}
        start = None if self.starts is None else self.starts.fitted[recording.to(self.system.device)]
        return window.replace(history=history).to(self.system.device).replace(start=start)

    def _with_noise(self, window: Window, stage: Stage) -> Window:
        """Return the window of a batch with the noise of the present iteration."""
        seed, own = self.config.seed * 1_000_003 + self.progress.total, self.processes.own(stage.batch)
        return noisy_window(window, self.config.noise, self.system, seed, stage.batch, own)

    # ---- parts of an iteration ---------------------------------------------------------------------------------

    @property
    def _seed(self) -> int:
        """The seed from which the windows of the present stage are drawn."""
        return self.config.seed + 1000 * (self.progress.stage + 1)

    def _sampler_for(self, stage: Stage, horizon: int) -> WindowSampler:
        if self._sampler is None or self._sampler.windows.steps != horizon:
            place = (self.processes.rank, self.processes.world)
            self._sampler = WindowSampler(
                windows_of(self.trained_on, self.system, horizon), stage.batch, self._seed, *place
            )
        return self._sampler

    @contextmanager
    def _training_learned_modules(self, stage: Stage) -> Iterator[None]:
        """Put the system into train mode during a batch if the stage trains learned modules; else eval mode stays.

        Afterwards all processes take the buffers of the first one, as train mode may change these.
        """
        self.system.train("learned" in stage.train)
        try:
            yield
        finally:
            self.system.eval()
        if self.processes.world > 1:
            with torch.no_grad():
                for buffer in self.system.buffers_by_name().values():
                    buffer.copy_(self.processes.of_first(buffer))

    @contextmanager
    def _naming_the_stage(self, stage: Stage, ahead: int = 0) -> Iterator[None]:
        """Add stage and batch to the message where a system refuses something; advise on constants that it refuses."""
        try:
            yield
        except InputError as error:
            trained = [tensor for constant in self.config.constants.values() for tensor in constant.tensors]
            advice = '; a constant of kind "factor" keeps its sign, a smaller rate takes smaller steps'
            of_constants = any(str(error).startswith(tensor) for tensor in trained)
            raise InputError(
                f"stage {stage.name!r}, batch {self.progress.total + ahead}: {error}{advice if of_constants else ''}"
            ) from error

    def _group(self, name: str) -> Mapping[str, nn.Parameter]:
        """Return the parameters of a group of the config by name: of the system, or the fitted starts."""
        if name != "starts":
            return self.system.group(name)
        assert self.starts is not None  # else the stage was refused
        return {"fitted": self.starts.fitted}

    def _parameters_of_starts(self) -> dict[str, nn.Parameter]:
        return {} if self.starts is None else {f"starts.{name}": p for name, p in self.starts.named_parameters()}

    def _train_only(self, stage: Stage) -> None:
        """Require gradients of the parameters in a stage's groups and of no others."""
        self.system.train_only(stage.train)
        if self.starts is not None:
            self.starts.fitted.requires_grad_("starts" in stage.train)

    def _take(self, tensors: dict[str, Tensor]) -> None:
        """Set all parameters, and the buffers of learned modules, from the tensors of a checkpoint."""
        self.system.take(tensors, self.folder)
        with torch.no_grad():
            for name, parameter in self._parameters_of_starts().items():
                if name not in tensors:
                    raise InputError(f"{self.folder}: its checkpoint has no {name!r}: it belongs to another config")
                refuse_unlike(tensors[name], parameter, f"{self.folder}: {name} in its checkpoint")
                parameter.copy_(tensors[name])

    def _new_optimizer(self, stage: Stage) -> torch.optim.Optimizer:
        return new_optimizer(stage, {name: self._group(name).values() for name in stage.train})

    # ---- held-out recordings -----------------------------------------------------------------------------------

    def _validate(self) -> None:
        """Predict the held-out recordings, save the weights if they are the best so far, and fill TensorBoard."""
        validated = self.validation.run()
        errors, total = validated.errors, self.progress.total
        if not total and errors.failed and self.processes.writes:
            tqdm.write(failure_warning(errors, self.held_out.names))
        if is_better(errors, self.progress):
            self.progress.best_failed, self.progress.best = errors.rank
            self.progress.best_at, self.progress.looks_since = total, 0
            if self.processes.writes:
                self._save_weights("best", error=self.progress.best)
        elif total:
            self.progress.looks_since += 1
        if self.board is not None:
            share = self.validation.learned_share(validated.predicted)
            self.board.held_out(self.progress, errors, validated.errors_trained_on, share)
            self.board.hparams(self.config, "held_out", errors, total)
            self.board.pictures("held_out", self.config, self.held_out, validated.predicted, self.system, total)

    @contextmanager
    def _shown_as_validation(self) -> Iterator[None]:
        """Show on the progress bar that whole recordings are predicted, and keep that time out of its batch rate."""
        self._bar.set_description("looking at whole recordings")
        try:
            yield
        finally:
            self._bar.set_description(refresh=False)
            self._bar.unpause()

    def _load_best(self) -> None:
        if self.processes.world > 1:
            torch.distributed.barrier()
        if math.isfinite(self.progress.best):
            tensors, _ = checkpoint.load(self.folder, "best")
            self._take(tensors)
        elif self.processes.writes:
            tqdm.write("warning: no look had a finite error: there are no best weights to go on from")

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def _save_weights(self, name: str, **more: float) -> None:
        """Write a checkpoint of the weights alone, which is all that an evaluation needs."""
        facts = {"total": self.progress.total, "recordings": self._recording_digests, **more}
        checkpoint.save(self.folder, name, self.parameters | self.system.buffers_by_name(), facts)

    def save(self) -> None:
        """Write the checkpoint "last", from which a run goes on as if it had not stopped, but for rounding."""
        if not self.processes.writes:
            return
        tensors = self.parameters | self.system.buffers_by_name() | random_state(self.system.device)
        if self._optimizer is not None:
            for name, parameter in self.parameters.items():
                for key, value in self._optimizer.state.get(parameter, {}).items():
                    tensors[f"optimizer/{key}/{name}"] = value
        facts = {
            "progress": self.progress.model_dump(),
            "sampler": None if self._sampler is None else self._sampler.state_dict(),
            "running": self._optimizer is not None,
            "evaluations": self.system.evaluations(),
            "config": self.config.model_dump(mode="json"),
            "recordings": self._recording_digests,
            "files": self._file_digests,
        }
        checkpoint.save(self.folder, "last", tensors, facts)
        if self.board is not None:
            self.board.flush()
        code = " --allow-code" if self.config.code else ""
        say_at_the_end(
            f"{self.folder} keeps {self.progress.total} batches; go on with python -m training.fit --out "
            f"{shlex.quote(str(self.folder))} --resume{code}"
        )

    def resume(self, force: bool = False) -> list[str]:
        """Restore the checkpoint that `save` wrote; return what differs from the run before, which needs `force`.

        Parameters
        ----------
        force : go on with another config or other recordings, too: then weights and the place in the stages are taken,
            and the optimiser, random numbers, the order of the windows and what counts as best begin anew.

        Raises
        ------
        InputError
            The checkpoint is damaged or belongs to another run, or something differs without `force`.
        """
        tensors, facts = checkpoint.load(self.folder, "last")
        before = read_facts(facts, self.folder)
        found = differences(before, self.config, self._recording_digests, self._file_digests)
        if found and not force:
            raise InputError(
                f"{self.folder}: the run before was another one: {'; '.join(found)}; leave the config out to take "
                "the run's own, or insist with --force-resume"
            )
        if before.progress.stage > len(self.config.stages):
            raise InputError(
                f"{self.folder}: its checkpoint is in stage {before.progress.stage}, the config has "
                f"{len(self.config.stages)} stages, counted from 0: it belongs to another config"
            )
        self._take(tensors)
        self.progress = before.progress
        if found:
            self.progress.best, self.progress.looks_since, self.progress.reported = math.inf, 0, False
            return found
        take_random_state(tensors, self.system.device, self.folder)
        self._validates_first = self.progress.total == 0
        self.system.take_evaluations([list(row) for row in before.evaluations])
        if before.running:
            self._take_optimizer(tensors, self.config.stages[self.progress.stage])
        if before.running and before.sampler is not None:
            stage = self.config.stages[self.progress.stage]
            self._sampler_for(stage, before.sampler.steps).load_state_dict(before.sampler.model_dump())
        return []

    def _take_optimizer(self, tensors: dict[str, Tensor], stage: Stage) -> None:
        """Make the optimiser of a stage with the state that a checkpoint holds."""
        self._train_only(stage)
        self._optimizer = self._new_optimizer(stage)
        for name, parameter in self.parameters.items():
            state = state_of_adam(tensors, name, parameter, self.folder)
            if state:
                self._optimizer.state[parameter] = state
