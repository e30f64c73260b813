"""One process or several: who this one is, sums over all of them, and what the first one gathers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

__all__ = ["ALONE", "Processes", "joined", "started"]

T = TypeVar("T")

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

    def gathered(self, item: T) -> list[T] | None:
        """Return the items of all processes in the first one, None in the others. Tensors have to be on the CPU."""
        if self.world == 1:
            return [item]
        items: list | None = [None] * self.world if self.writes else None
        dist.gather_object(item, items)
        return items

    def own(self, count: int) -> slice:
        """Return this process's share of `count` items, as equal as can be."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)


ALONE = Processes()


def started() -> int:
    """Return how many processes torchrun started; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))


@contextmanager
def joined(backend: str | None = None) -> Iterator[Processes]:
    """Join the processes that torchrun started; alone without it.

    `backend` : "gloo" for tensors on the CPU, "nccl" for those on GPUs; by default nccl where there are GPUs.
    """
    world = started()
    if world == 1:
        yield ALONE
        return
    dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"), timeout=TIMEOUT)
    try:
        yield Processes(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()
