"""The baseline without physics: nodes of a chain moved by a network alone."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

import models
from torchdismech import InputError, Status
from training.config import Config, Robot
from training.data import Recordings, Window
from training.options import checked
from training.robots.references import followed_grips
from training.robots.rod_models import gripped_nodes
from training.robots.trees import Tree
from training.system import Prediction, System

__all__ = ["FreeSystem"]


class FreeSystem(System):
    """Nodes of a chain moved by a network alone, without a rod; `held` (N,) bool are the gripped ones."""

    held: Tensor

    def __init__(self, config: Config, recordings: Recordings):
        super().__init__()
        assert isinstance(config.robot, Robot)
        self.dt = recordings.dt
        self.gripped = gripped_nodes(config.robot, recordings.nodes)
        held = torch.zeros(recordings.nodes, dtype=torch.bool, device="cpu")
        held[self.gripped] = True
        self.register_buffer("held", held, persistent=False)
        if recordings.branched:
            raise InputError("physics: the network without physics is for chains, and the recordings have branches")
        lengths = Tree.measured(recordings).length
        own = checked(models.FreeNodes, config.baseline, "baseline", ("rest_length",))
        self.network = models.FreeNodes(lengths, **own)

    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the parameters of a group by name: all are in "learned"."""
        return dict(self.network.named_parameters()) if name == "learned" else {}

    def learned_modules(self) -> dict[str, nn.Module]:
        """Return the network."""
        return {"network": self.network}

    def predict(self, window: Window, checkpoint_every: int | None = None) -> Prediction:
        """Return the motion that the network predicts after the first two frames of a window."""
        if checkpoint_every is not None:
            raise InputError("checkpoint_every: the network without physics keeps all steps; leave it out")
        measured = window.positions
        x, u = measured[:, 1], (measured[:, 1] - measured[:, 0]) / self.dt
        frames = []
        for k in range(2, window.frames):
            x, u = self.network.step(x, u, measured[:, k], self.held, self.dt)
            frames.append(x)
        positions = torch.stack(frames, dim=1)
        finite = positions.detach().flatten(1).isfinite().all(1)
        return Prediction(positions, torch.where(finite, int(Status.CONVERGED), int(Status.NOT_FINITE)), 0.0)

    def references(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return predictions without a model: free nodes stay, or follow the gripped ones."""
        return {**super().references(recordings), "follow": followed_grips(recordings, self.gripped)}
