"""The contract between the training loop and what it fits: a robot, a network, a class of the user's."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from torchdismech import InputError, Model, Status
from training.data import Recordings, Window, gather

__all__ = ["GROUPS", "Prediction", "System", "refuse_another_kind", "refuse_unlike", "whole_windows"]

GROUPS = ("constants", "learned")


@dataclass(frozen=True)
class Prediction:
    """What follows the given frames of a window.

    Attributes
    ----------
    positions : (B, steps, M, 3) of the markers [m].
    status : (B,) values of `Status`: CONVERGED, or how the first step that failed did.
    iterations : Newton iterations a step, mean over the batch; zero where there is no Newton's method.
    nodes : (B, steps, N, 3) of all nodes in the markers' frame, to be drawn [m]; None where the markers are the nodes.
    """

    positions: Tensor
    status: Tensor
    iterations: float
    nodes: Tensor | None = None

    @property
    def good(self) -> Tensor:
        """Whether all steps of each window converged, (B,) bool."""
        return self.status == Status.CONVERGED


class System(nn.Module, ABC):
    """What makes predictions and has parameters in the groups "constants" and "learned".

    A class of the user's ("system" in a config) derives from this, is made by `Name(config, recordings, **options)`
    with the recordings that are trained on, and has to define `predict` and `group`. It is called with float64 on the
    device of its first parameter or buffer, so it needs one.

    Attributes
    ----------
    dt : time between two frames [s]: that of the recordings.
    given : frames at the start of a window that it starts from; it predicts those after.
    measured : it starts from measured places: windows begin only where all markers were seen in the given frames.
    anywhere : windows may begin anywhere in a recording, not only at its first frame.
    warm_up : frames after the given ones that do not count in the loss.
    gripped : markers whose later motion it reads, too; noise on starts leaves them alone.
    start_size : how many numbers are fitted of the start of each recording, in units of what is likely before anything
        is measured (the standard deviation of their prior). They come as `Window.start`.
    start_frames, start_rounds : see `training.config.scene.Start`.
    substeps, n_nodes : steps between two frames, and nodes that are stepped, by which memory is estimated.
    edges, triangles : (E, 2), (F, 3) what is drawn between the nodes of its predictions; by default a chain.
    """

    dt: float
    given: int = 2
    measured: bool = True
    anywhere: bool = True
    warm_up: int = 0
    gripped: list[int] = []
    start_size: int = 0
    start_frames: int = 0
    start_rounds: int = 0
    substeps: int = 1
    n_nodes: int = 0
    edges: Tensor | None = None
    triangles: Tensor | None = None
    _found_not_frozen: frozenset[str] | None = None

    @property
    def device(self) -> torch.device:
        """Where windows have to be for `predict`."""
        return next(chain(self.parameters(), self.buffers())).device

    @abstractmethod
    def predict(self, window: Window, checkpoint_every: int | None = None) -> Prediction:
        """Return what follows the `given` frames of a window: as many frames as it has more.

        Of the later frames only inputs and the gripped markers may be read.
        """

    @abstractmethod
    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name; those that are frozen (`requires_grad=False`) are not trained."""

    def learned_modules(self) -> dict[str, nn.Module]:
        """Return by name what has the parameters of the group "learned"; by default the system itself."""
        return {"system": self}

    def train(self, mode: bool = True) -> Self:
        """Let modules know whether they are trained; those of a robot stay as they were when it was built.

        What a robot is stepped by was looked at in the mode it had then.
        """
        modes = [(part, part.training) for robot in _robots(self) for part in robot.modules()]
        super().train(mode)
        for part, training in modes:
            part.training = training
        return self

    def history(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return what has to be known of the motion before a window, at all frames (K, T, ...) by name.

        A window gets that of its first frame.
        """
        return {}

    def refuse(self, recordings: Recordings) -> None:
        """Refuse recordings that cannot be predicted, by name: those held out, too; by default none is."""

    def references(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return predictions (K, T - given, M, 3) without a model, by name: lines to beat.

        Here one, in which all but the gripped markers stay.
        """
        x = recordings.positions
        stay = x[:, self.given - 1 : self.given].expand(-1, recordings.frames - self.given, -1, -1).clone()
        stay[:, :, self.gripped] = x[:, self.given :, self.gripped]
        return {"stay": stay}

    def penalty(self) -> Tensor | None:
        """Return what priors say about the parameters, half a sum of squares in standard deviations; None without."""
        return None

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Return the parameters of all groups, as checkpoints name them."""
        return {f"{group}.{name}": p for group in GROUPS for name, p in self.group(group).items()}

    def buffers_by_name(self) -> dict[str, Tensor]:
        """Return the persistent buffers of the learned modules, as checkpoints name them.

        Those of a robot are not among them, nor of its body, which learned forces share: they follow from the config.
        """
        parts: list[nn.Module] = [robot.body for robot in _robots(self)]
        parts += [robot for module in self.learned_modules().values() for robot in _robots(module)]
        of_robots = {id(buffer) for part in parts for buffer in part.buffers()}
        return {name: buffer for name, buffer in self._learned_buffers().items() if id(buffer) not in of_robots}

    def _learned_buffers(self) -> dict[str, Tensor]:
        """Return the persistent buffers of the learned modules, those of robots among them."""
        found: dict[str, Tensor] = {}
        for of, module in self.learned_modules().items():
            persistent = module.state_dict().keys()
            found |= {f"buffer/{of}.{name}": b for name, b in module.named_buffers() if name in persistent}
        return found

    @torch.no_grad()
    def take(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Set the parameters and the buffers of learned modules from those of a checkpoint in a folder."""
        parameters, buffers = self.parameters_by_name(), self.buffers_by_name()
        missing = [name for name in [*parameters, *buffers] if name not in tensors]
        if missing:
            older = ", or was written by an earlier version, without buffers" if missing[0] in buffers else ""
            raise InputError(f"{folder}: its checkpoint has no {missing[0]!r}: it belongs to another config{older}")
        # earlier versions wrote buffers of the robot, too
        known, beside = parameters.keys() | self._learned_buffers().keys(), ("optimizer/", "random/", "starts.")
        unknown = [name for name in tensors if name not in known and not name.startswith(beside)]
        if unknown:
            raise InputError(f"{folder}: its checkpoint has {unknown[0]!r:.80}, too: it belongs to another config")
        for name, parameter in parameters.items():
            refuse_unlike(tensors[name], parameter, f"{folder}: {name} in its checkpoint")
        for name, buffer in buffers.items():
            refuse_another_kind(tensors[name], buffer, f"{folder}: {name} in its checkpoint")
        for name, own in (parameters | buffers).items():
            own.copy_(tensors[name])

    def values(self) -> dict[str, Tensor]:
        """Return the present values of the trained constants, of the first tensor of each."""
        return {}

    def learned_share(self, window: Window) -> float | None:
        """Return the size of the learned forces over that of the elastic ones at a window's frames; None without."""
        return None

    def evaluations(self) -> list[list]:
        """Return what was evaluated, which decides when to compile (see `torchdismech.compilation`)."""
        return []

    def take_evaluations(self, counts: list[list]) -> None:
        """Go on from what `evaluations` returned."""

    def train_only(self, groups) -> None:
        """Let the parameters of these groups be trained and no others; those that were frozen stay so."""
        free = self._not_frozen
        for name in GROUPS:
            for key, parameter in self.group(name).items():
                parameter.requires_grad_(name in groups and f"{name}.{key}" in free)

    def is_frozen(self, group: str) -> bool:
        """Return whether a group has parameters, all of which were frozen when the system was made."""
        names = self.group(group)
        return bool(names) and not any(f"{group}.{name}" in self._not_frozen for name in names)

    @property
    def _not_frozen(self) -> frozenset[str]:
        """Parameters that are not frozen, by the names of checkpoints: as they were before anything was switched."""
        if self._found_not_frozen is None:
            self._found_not_frozen = frozenset(n for n, p in self.parameters_by_name().items() if p.requires_grad)
        return self._found_not_frozen


def whole_windows(
    system: System, recordings: Recordings, rows: slice = slice(None), frames: int | None = None
) -> Window:
    """Return recordings as windows from their first frame on, on the device of a system.

    Parameters
    ----------
    rows : which of the recordings.
    frames : how many of their frames; None: all.
    """
    which = torch.arange(len(recordings), device="cpu")[rows]
    first = torch.zeros_like(which)
    window = gather(recordings, which, first, frames or recordings.frames)
    history = {name: value[which, first] for name, value in system.history(recordings).items()}
    return window.replace(history=history).to(system.device)


def _robots(module: nn.Module) -> list[Model]:
    """Return the robots in a module."""
    return [part for part in module.modules() if isinstance(part, Model)]


def refuse_another_kind(tensor: Tensor, own: Tensor, what: str) -> None:
    """Refuse what cannot be put in a tensor's place: another shape or dtype."""
    if tensor.shape != own.shape or tensor.dtype != own.dtype:
        raise InputError(
            f"{what}: expected {own.dtype} {tuple(own.shape)}, got {tensor.dtype} {tuple(tensor.shape)}: "
            "it belongs to another config"
        )


def refuse_unlike(tensor: Tensor, parameter: Tensor, what: str) -> None:
    """Refuse what cannot be put in a parameter's place: another kind of tensor, numbers that are not finite."""
    refuse_another_kind(tensor, parameter, what)
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{what}: expected finite numbers: go on from another checkpoint")
