"""A fit of one number whose predictions are NaN in some batches of some processes; run by itself or with torchrun."""

from __future__ import annotations

import json
import sys
import weakref
from pathlib import Path

import torch
from torch import Tensor, nn

from tests.training.swinging import recordings
from torchdismech import InputError
from torchdismech.system.processes import joined
from training.config import Config
from training.data import Window
from training.optimization.loop import Trainer
from training.system import Prediction, System


class Sinking(System):
    """All nodes move down at a speed to be found; the recordings' mean is the best."""

    height: Tensor

    def __init__(self, dt: float, broken: set[int]):
        super().__init__()
        self.dt, self.gripped = dt, [0]
        self.speed = nn.Parameter(torch.tensor(0.0, dtype=torch.float64))
        self.register_buffer("height", torch.tensor(0.0, dtype=torch.float64))  # of the last windows trained on
        self.broken = broken  # numbers of the training batches that come out as NaN
        self.batches = 0

    def group(self, name: str) -> dict[str, nn.Parameter]:
        """Return the speed as learned."""
        return {"speed": self.speed} if name == "learned" else {}

    def predict(self, window: Window, checkpoint_every: int | None = None) -> Prediction:
        """Return the second frame, sinking."""
        x = window.positions
        if self.training:
            self.height.copy_(x[..., 2].mean())
        steps = torch.arange(1, window.frames - 1, dtype=x.dtype)
        down = torch.tensor([0.0, 0.0, -1.0], dtype=x.dtype)
        positions = x[:, 1:2] + self.speed * self.dt * steps[:, None, None] * down
        if torch.is_grad_enabled():
            self.batches += 1
            if self.batches in self.broken:
                positions = positions * torch.nan
        return Prediction(positions, torch.zeros(len(x), dtype=torch.long), 0.0)


def trainer(folder: Path, broken: set[int], processes, held_out: float = 0.25, **stage) -> Trainer:
    """Return a trainer of the sinking chain that holds out a share of four recordings."""
    stages = [{"name": "one", "train": ["learned"], "iterations": 8, "horizon": [4], "batch": 4, **stage}]
    config = Config.model_validate(
        {"name": "sinking", "physics": False, "data": {"path": "-"}, "robot": {"gripped": [0]}, "stages": stages}
    )
    trained_on, others = recordings(4).split(held_out, 0)
    return Trainer(config, Sinking(trained_on.dt, broken), trained_on, others, folder, processes)


def main(folder: str, crash: str = "") -> None:
    """Fit with NaN in the third batch of the last process; write what each ended with."""
    with joined() as processes:
        group = weakref.ref(torch.distributed.group.WORLD)
        last = processes.rank == processes.world - 1
        if crash and last:
            raise InputError("this process is meant to fail")
        fit = trainer(Path(folder), {3} if last else set(), processes)
        fit.run()
        facts = {"speed": fit.system.speed.item(), "height": fit.system.height.item(), "skipped": fit.progress.skipped}
        del fit
    facts["group is gone"] = group() is None
    (Path(folder) / f"rank{processes.rank}.json").write_text(json.dumps(facts))


if __name__ == "__main__":
    main(*sys.argv[1:])
