"""One process or several: who this one is, and sums over all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ALONE", "Processes", "joined"]

TIMEOUT = timedelta(minutes=10)  # for a process that waits for one that died


@dataclass(frozen=True)
class Processes:
    """Where this process stands among those of one fit."""

    rank: int = 0
    world: int = 1

    @property
    def writes(self) -> bool:
        """Whether this is the one that writes files and prints."""
        return self.rank == 0

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensor over all processes, the same bits in each."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def own(self, count: int) -> slice:
        """Return this process's share of `count` items, as equal as can be."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)


ALONE = Processes()


@contextmanager
def joined() -> Iterator[Processes]:
    """Join the processes that torchrun started; alone without it."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if world == 1:
        yield ALONE
        return
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo", timeout=TIMEOUT)
    try:
        yield Processes(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()
