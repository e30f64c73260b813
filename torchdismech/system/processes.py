"""One process or several: who this one is, sums and gathering, and how all of them end together."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from torchdismech.errors import InputError, SimulationError
from torchdismech.system.interrupts import held_back

__all__ = ["ALONE", "ProcessError", "Processes", "device_of_process", "joined", "started"]

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)  # for a process that waits for one that neither comes nor dies
LAST_WORDS = timedelta(seconds=20)  # to close files and to print
KINDS = (KeyboardInterrupt, InputError, SimulationError, BaseException)


class ProcessError(RuntimeError):
    """Another process failed, and this one cannot go on without it."""


@dataclass(frozen=True)
class Processes:
    """Where this process stands among those that work on one thing."""

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

    def of_first(self, tensor: Tensor) -> Tensor:
        """Return the tensor that the first process has."""
        if self.world > 1:
            dist.broadcast(tensor := tensor.contiguous(), 0)
        return tensor

    def own(self, count: int) -> slice:
        """Return this process's share of `count` items, as equal as can be."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    # ---- in step; these need the backend gloo --------------------------------------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let all processes leave the block or none: what ends it in one ends it in all.

        Every process gets the interrupt, `InputError` or `SimulationError` that came up in some; of any other error
        the rest get a `ProcessError` that names it. They learn of it at their next `gathered`, or at the block's end.
        """
        if self.world == 1:
            yield
            return
        problem: BaseException | None = None
        try:
            yield
        except _Agreed as agreed:
            raise agreed.error from agreed.__cause__
        except BaseException as error:  # raised again below, once the others know
            problem = error
        try:
            with held_back():
                self._agree(problem)
        except _Agreed as agreed:
            if problem is not None and isinstance(agreed.error, ProcessError):
                raise problem from None
            raise agreed.error from problem or agreed.__cause__

    def gathered(self, item: T) -> list[T] | None:
        """Return the items of all processes in the first one, None in the others. To be called inside `together`.

        Tensors have to be on the CPU.
        """
        if self.world == 1:
            return [item]
        items: list | None = [None] * self.world if self.writes else None
        with held_back():  # whoever left a collective call would keep the others waiting
            self._agree(None)
            with _noticing_deaths():
                dist.gather_object(item, items)
        return items

    def wait_to_end(self) -> None:
        """Return when the others are here too, or gone: when one process ends badly, torchrun ends all at once."""
        if self.world > 1:
            with suppress(RuntimeError):  # one is gone: nothing to wait for
                dist.monitored_barrier(timeout=LAST_WORDS)

    def _agree(self, problem: BaseException | None) -> None:
        """Raise `_Agreed` in every process where one has a problem."""
        problems: list[_Problem | None] = [None] * self.world
        with _noticing_deaths():
            dist.all_gather_object(problems, None if problem is None else _Problem.of(problem, self.rank))
        found = [p for p in problems if p is not None]
        if found:
            raise _Agreed(_joined_error(found))


ALONE = Processes()


def device_of_process(name: str, what: str = "device") -> str:
    """Return the device for "auto", "cpu" or "cuda" in this process: under torchrun each has a GPU of its own.

    `what` is the setting's name in messages.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise InputError(f"{what}: expected auto, cpu or cuda, got {name!r}")
    if name == "cuda" and not torch.cuda.is_available():
        raise InputError(f"{what} cuda: PyTorch finds no CUDA device here; take cpu or auto")
    if name == "cpu" or not torch.cuda.is_available():
        return "cpu"
    if "LOCAL_RANK" not in os.environ:
        return "cuda"
    index, count = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if index >= count:
        raise InputError(f"process {index} has no CUDA device of its own, there are {count}: start at most {count}")
    return f"cuda:{index}"


def started() -> int | None:
    """Return how many processes torchrun started; None without it."""
    return int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else None


@contextmanager
def joined(backend: str | None = None, timeout: timedelta = TIMEOUT) -> Iterator[Processes]:
    """Join the processes that torchrun started; alone without it.

    Parameters
    ----------
    backend : "gloo" for tensors on the CPU, "nccl" for those on GPUs; by default nccl where there are GPUs.
    timeout : how long one process may wait for another; one that died is noticed at once.
    """
    world = started() or 1
    if world == 1:
        yield ALONE
        return
    # Functions of this package have the group of the moment of its import as a default, which would keep the group, and
    # its threads, alive beyond `destroy_process_group`, to abort the interpreter as it ends. Optimisers import it.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"), timeout=timeout)
    try:
        yield Processes(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()


# ---- problems ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """An exception as the other processes get to know it."""

    kind: type[BaseException]
    text: str
    status: Tensor | None  # of a `SimulationError`
    interrupt: KeyboardInterrupt | None  # itself: it knows the signal

    @classmethod
    def of(cls, error: BaseException, rank: int) -> _Problem:
        kind = next(kind for kind in KINDS if isinstance(error, kind))
        text = f"process {rank}: {type(error).__name__}: {error}" if kind is BaseException else str(error)
        status = error.status if isinstance(error, SimulationError) else None
        return cls(kind, text, status, error if isinstance(error, KeyboardInterrupt) else None)


class _Agreed(Exception):
    """All processes know of the error."""

    def __init__(self, error: BaseException):
        super().__init__(str(error))
        self.error = error


def _joined_error(problems: list[_Problem]) -> BaseException:
    """Return one error for all problems; rows of a `SimulationError` have to be those of the whole batch."""
    kinds = {p.kind for p in problems}
    text = "; ".join(dict.fromkeys(p.text for p in problems))
    for problem in problems:
        if problem.interrupt is not None:
            return problem.interrupt
    if kinds == {InputError}:
        return InputError(text)
    if kinds == {SimulationError}:
        return SimulationError(text, torch.stack([p.status for p in problems if p.status is not None]).amax(0))
    return ProcessError(text)


@contextmanager
def _noticing_deaths() -> Iterator[None]:
    """Turn the failure of a collective call into `_Agreed`: there is nobody left to agree with."""
    try:
        yield
    except RuntimeError as error:
        raise _Agreed(ProcessError("another process died, or did not answer")) from error
