"""`System`, the interface between the training loop and what it fits: a robot, a network or a class of the user's."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Self

import torch
from torch import Tensor, nn

from torchdismech import InputError, Model, Status
from torchdismech.errors import refuse_other_kind, shape_or_kind
from torchdismech.io.scene.users_code import naming_line
from training.data import Recordings, Window, gather

__all__ = ["GROUPS", "Prediction", "System", "predicted", "refuse_another_kind", "refuse_unlike", "whole_windows"]

GROUPS = ("constants", "learned")


@dataclass(frozen=True)
class Prediction:
    """The predicted motion of B windows in the frames after those that they start from.

    Attributes
    ----------
    positions : (B, steps, M, 3) of the markers [m].
    status : (B,) values of `Status`: CONVERGED, or why the first failed step failed.
    iterations : Newton iterations a step, mean over the batch; zero where there is no Newton's method.
    nodes : (B, steps, N, 3) all nodes in the markers' frame [m], for pictures; None where the markers are the nodes.
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
    """A model that predicts the motion in windows of recordings, with parameters to be fitted.

    The parameters are in the groups "constants" (numbers of the model that mean something) and "learned" (weights of
    networks). A class of the user's ("system" in a config) derives from this, is made by
    `Name(config, recordings, **options)` with the recordings that are trained on, and has to define `predict` and
    `group`. Windows come in float64 on the device of its first parameter or buffer, so it needs one.

    Attributes
    ----------
    dt : time between two frames of the recordings [s].
    given : number of frames, at the beginning of a window, that a prediction starts from; those after are predicted.
    measured : whether predictions start from measured positions; if so, windows begin only where all markers were seen
        in the given frames.
    anywhere : whether windows may begin anywhere in a recording, not only at its first frame.
    warm_up : number of frames after the given ones that do not count in the loss.
    gripped : markers whose motion is read in the predicted frames, too; noise on starts leaves them alone.
    judged : markers that count in the loss and in errors, from `[loss]` of the config; None: all.
    start_size : how many numbers S are fitted of the start of each recording, in standard deviations of their priors;
        a prediction gets them as `Window.start`.
    start_frames, start_rounds : `frames` and `rounds` of `training.config.scene.Start`.
    substeps, n_nodes : steps between two frames, and nodes of the model, by which memory is estimated.
    edges, triangles : (E, 2), (F, 3) nodes of the edges and triangles that pictures show; by default a chain.
    """

    dt: float
    given: int = 2
    measured: bool = True
    anywhere: bool = True
    warm_up: int = 0
    gripped: list[int] = []
    judged: list[int] | None = None
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
        """The device on which `predict` takes windows."""
        return next(chain(self.parameters(), self.buffers())).device

    @abstractmethod
    def predict(self, window: Window, checkpoint_every: int | None = None) -> Prediction:
        """Return the predicted motion in all frames of a window after its `given` ones.

        Of the predicted frames only inputs and the gripped markers may be read.
        """

    @abstractmethod
    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name; those that are frozen (`requires_grad=False`) are not trained."""

    def learned_modules(self) -> dict[str, nn.Module]:
        """Return the modules that hold the parameters of the group "learned", by name; by default the system itself."""
        return {"system": self}

    def train(self, mode: bool = True) -> Self:
        """Switch modules to train or eval mode, but for those of a robot, which stay in the mode it was built in.

        A robot's forces and hooks were tried in that mode when it was built, and steps rely on what was found then.
        """
        modes = [(part, part.training) for robot in _robots(self) for part in robot.modules()]
        super().train(mode)
        for part, training in modes:
            part.training = training
        return self

    def counted(self, valid: Tensor) -> Tensor:
        """Return which of the markers that were seen, (..., M) bool, count in the loss and in errors."""
        if self.judged is None:
            return valid
        judged = torch.zeros(valid.shape[-1], dtype=torch.bool, device=valid.device)
        judged[self.judged] = True
        return valid & judged

    def refuse_unseen(self, recordings: Recordings) -> None:
        """Refuse recordings where no marker that `judged` names was seen in any frame that is predicted."""
        if self.judged is not None and not bool(self.counted(recordings.valid[:, self.given :]).any()):
            more = ", ..." if len(recordings) > 1 else ""
            raise InputError(
                f"loss.markers: none of the markers {self.judged} was seen in a predicted frame of "
                f"{recordings.names[0]}{more}: name others, or leave these recordings out"
            )

    def history(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return what predictions have to know of the motion before a window, for all frames: (K, T, ...) by name.

        A window gets the entries of its first frame as `Window.history`. By default nothing is needed.
        """
        return {}

    def refuse(self, recordings: Recordings) -> None:
        """Refuse recordings that cannot be predicted, trained on or held out, by name; by default none is refused."""

    def references(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return baselines by name: predictions (K, T - given, M, 3) without a model, which a fit should beat.

        By default there is one, "stay": all but the gripped markers stay where they are in the last given frame.
        """
        x = recordings.positions
        stay = x[:, self.given - 1 : self.given].expand(-1, recordings.frames - self.given, -1, -1).clone()
        stay[:, :, self.gripped] = x[:, self.given :, self.gripped]
        return {"stay": stay}

    def penalty(self) -> Tensor | None:
        """Return half the sum of squared deviations from the priors' means, in standard deviations; None without."""
        return None

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """Return the parameters of all groups by their names in checkpoints, GROUP.NAME."""
        return {f"{group}.{name}": p for group in GROUPS for name, p in self.group(group).items()}

    def buffers_by_name(self) -> dict[str, Tensor]:
        """Return the persistent buffers of the learned modules by their names in checkpoints.

        Buffers of a robot are left out: they follow from the config.
        """
        robots = [robot for module in self.learned_modules().values() for robot in _robots(module)]
        of_robots = {id(buffer) for robot in robots for buffer in robot.buffers()}
        return {name: buffer for name, buffer in self._learned_buffers().items() if id(buffer) not in of_robots}

    def _learned_buffers(self) -> dict[str, Tensor]:
        """Return the persistent buffers of the learned modules by name, those of robots included."""
        found: dict[str, Tensor] = {}
        for of, module in self.learned_modules().items():
            persistent = module.state_dict().keys()
            found |= {f"buffer/{of}.{name}": b for name, b in module.named_buffers() if name in persistent}
        return found

    @torch.no_grad()
    def take(self, tensors: dict[str, Tensor], folder: Path) -> None:
        """Set the parameters, and the buffers of learned modules, from the tensors of a checkpoint.

        A checkpoint of another config is refused in a message that names its folder.
        """
        parameters, buffers = self.parameters_by_name(), self.buffers_by_name()
        missing = [name for name in [*parameters, *buffers] if name not in tensors]
        if missing:
            older = ", or was written by an earlier version, without buffers" if missing[0] in buffers else ""
            raise InputError(f"{folder}: its checkpoint has no {missing[0]!r}: it belongs to another config{older}")
        # earlier versions wrote buffers of the robot, too: they are known, and not read
        known = parameters.keys() | self._learned_buffers().keys()
        beside = ("optimizer/", "random/", "starts.", *(f"buffer/{of}.body." for of in self.learned_modules()))
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
        """Return the present values of the trained constants by name; of several tensors, those of the first."""
        return {}

    def learned_share(self, window: Window) -> float | None:
        """Return the size of the learned forces over that of the elastic ones at a window's start; None without."""
        return None

    def evaluations(self) -> list[list]:
        """Return counts of evaluations, by which a model decides when to compile (see `torchdismech.compilation`)."""
        return []

    def take_evaluations(self, counts: list[list]) -> None:
        """Restore the counts that `evaluations` returned before a checkpoint."""

    def train_only(self, groups) -> None:
        """Require gradients of the parameters of these groups and of no others; frozen ones stay frozen."""
        free = self._not_frozen
        for name in GROUPS:
            for key, parameter in self.group(name).items():
                parameter.requires_grad_(name in groups and f"{name}.{key}" in free)

    def is_frozen(self, group: str) -> bool:
        """Return whether a group has parameters and all of them were frozen when the system was made."""
        names = self.group(group)
        return bool(names) and not any(f"{group}.{name}" in self._not_frozen for name in names)

    @property
    def _not_frozen(self) -> frozenset[str]:
        """Names in checkpoints of the parameters that required gradients before `train_only` switched any."""
        if self._found_not_frozen is None:
            self._found_not_frozen = frozenset(n for n, p in self.parameters_by_name().items() if p.requires_grad)
        return self._found_not_frozen


def predicted(system: System, window: Window, checkpoint_every: int | None = None) -> Prediction:
    """Return a system's prediction of a window; refuse what is none, and shapes that would broadcast in the loss."""
    name, module = f"{type(system).__name__}.predict", type(system).__module__
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    with nullcontext() if module.startswith("training.") else naming_line(Path(file), name):
        prediction = system.predict(window, checkpoint_every)
    refuse_other_kind(name, prediction, Prediction, "a training.system.Prediction")
    batch, _, markers, _ = window.positions.shape
    positions = (batch, window.frames - system.given, markers, 3)
    expected = {"positions": ("(B, frames - given, M, 3)", positions), "status": ("(B,)", (batch,))}
    for field, (letters, shape) in expected.items():
        found = getattr(prediction, field)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape:
            wanted = f"a tensor of shape {letters} = {shape}"
            raise InputError(f"{name}: {field}: expected {wanted}, got {shape_or_kind(found)}")
    if prediction.status.is_floating_point() or prediction.status.dtype == torch.bool:
        raise InputError(
            f"{name}: status: expected whole numbers, Status.CONVERGED where all steps of a window did, got "
            f"{prediction.status.dtype}"
        )
    return prediction


def whole_windows(
    system: System, recordings: Recordings, rows: slice = slice(None), frames: int | None = None
) -> Window:
    """Return recordings as windows from their first frame on, on the device of a system.

    Parameters
    ----------
    rows : which of the recordings.
    frames : number of frames of each window; None: all.
    """
    which = torch.arange(len(recordings), device="cpu")[rows]
    first = torch.zeros_like(which)
    window = gather(recordings, which, first, frames or recordings.frames)
    history = {name: value[which, first] for name, value in system.history(recordings).items()}
    return window.replace(history=history).to(system.device)


def _robots(module: nn.Module) -> list[Model]:
    """Return the models of robots among a module and its submodules."""
    return [part for part in module.modules() if isinstance(part, Model)]


def refuse_another_kind(tensor: Tensor, own: Tensor, what: str) -> None:
    """Refuse a tensor of another shape or dtype than the one whose place it is to take."""
    if tensor.shape != own.shape or tensor.dtype != own.dtype:
        raise InputError(
            f"{what}: expected {own.dtype} {tuple(own.shape)}, got {tensor.dtype} {tuple(tensor.shape)}: "
            "it belongs to another config"
        )


def refuse_unlike(tensor: Tensor, parameter: Tensor, what: str) -> None:
    """Refuse a tensor in a parameter's place if its shape or dtype differs or a number is not finite."""
    refuse_another_kind(tensor, parameter, what)
    if not bool(tensor.isfinite().all()):
        raise InputError(f"{what}: expected finite numbers: go on from another checkpoint")
