"""One process or several (under torchrun): ranks, sums and gathering, and how all of them end together."""

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

from torchdismech.errors import InputError, SimulationError, check_choice
from torchdismech.system.interrupts import held_back

__all__ = ["ALONE", "ProcessError", "Processes", "device_of_process", "joined", "started"]

T = TypeVar("T")

TIMEOUT = timedelta(minutes=10)  # how long a process waits for another that neither answers nor dies
LAST_WORDS = timedelta(seconds=20)  # how long a process waits at its end for others to close files and to print
KINDS = (KeyboardInterrupt, InputError, SimulationError, BaseException)  # the kinds of errors that processes tell apart


class ProcessError(RuntimeError):
    """Another process failed, and this one cannot go on without it."""


@dataclass(frozen=True)
class Processes:
    """The rank of this process, and the number of processes that work together."""

    rank: int = 0
    world: int = 1

    @property
    def writes(self) -> bool:
        """Whether this process is the one that writes files and prints, of rank 0."""
        return self.rank == 0

    def summed(self, tensor: Tensor) -> Tensor:
        """Return the sum of the tensor over all processes, the same bits in each; the tensor may be overwritten."""
        if self.world > 1:
            dist.all_reduce(tensor)
        return tensor

    def of_first(self, tensor: Tensor) -> Tensor:
        """Return the first process's tensor, in every process."""
        if self.world > 1:
            dist.broadcast(tensor := tensor.contiguous(), 0)
        return tensor

    def own(self, count: int) -> slice:
        """Return this process's share of `count` items as a slice; shares differ by one item at most."""
        return slice(count * self.rank // self.world, count * (self.rank + 1) // self.world)

    # ---- calls that all processes make together; they need the backend gloo ---------------------------------------

    @contextmanager
    def together(self) -> Iterator[None]:
        """Let all processes leave the block together: an exception in one of them ends the block in all.

        Every process raises the interrupt, `InputError` or `SimulationError` that came up in one of them. For any other
        error the other processes raise a `ProcessError` that names it. They learn of it at their next `gathered`, or at
        the block's end.
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

        Tensors in the items have to be on the CPU.
        """
        if self.world == 1:
            return [item]
        items: list | None = [None] * self.world if self.writes else None
        with held_back():  # a process that left a collective call would keep the others waiting
            self._agree(None)
            with _noticing_deaths():
                dist.gather_object(item, items)
        return items

    def wait_to_end(self) -> None:
        """Wait, `LAST_WORDS` at most, until the other processes get here or are gone.

        When one process ends with an error, torchrun ends all others at once, which could cut their output off.
        """
        if self.world > 1:
            with suppress(RuntimeError):  # another process is gone, so there is nothing to wait for
                dist.monitored_barrier(timeout=LAST_WORDS)

    def _agree(self, problem: BaseException | None) -> None:
        """Exchange problems with all processes; raise `_Agreed` in every process if at least one has a problem."""
        problems: list[_Problem | None] = [None] * self.world
        with _noticing_deaths():
            dist.all_gather_object(problems, None if problem is None else _Problem.of(problem, self.rank))
        found = [p for p in problems if p is not None]
        if found:
            raise _Agreed(_joined_error(found))


ALONE = Processes()


def device_of_process(name: str, what: str = "device") -> str:
    """Return the device of this process for "auto", "cpu" or "cuda": under torchrun, each process has its own GPU.

    `what` is the setting's name in messages.
    """
    check_choice(what, name, ("auto", "cpu", "cuda"))
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
    """Return the number of processes that torchrun started; None without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "WORLD_SIZE" in os.environ else None


@contextmanager
def joined(backend: str | None = None, timeout: timedelta = TIMEOUT) -> Iterator[Processes]:
    """Join the processes that torchrun started, for the block; without torchrun yield `ALONE`.

    Parameters
    ----------
    backend : "gloo" for tensors on the CPU, "nccl" for those on GPUs; by default nccl where there are GPUs.
    timeout : how long one process may wait for another; the death of one is noticed at once.
    """
    world = started() or 1
    if world == 1:
        yield ALONE
        return
    # Functions of this package take the process group at the time of its import as a default argument, and optimisers
    # import it. Imported later, it would keep our group and its threads alive beyond `destroy_process_group`, and they
    # would abort the interpreter as it ends.
    importlib.import_module("torch.distributed.nn")
    dist.init_process_group(backend or ("nccl" if torch.cuda.is_available() else "gloo"), timeout=timeout)
    try:
        yield Processes(dist.get_rank(), world)
    finally:
        dist.destroy_process_group()


# ---- problems ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Problem:
    """An exception in the form in which it is sent to the other processes."""

    kind: type[BaseException]
    text: str
    status: Tensor | None  # of a `SimulationError`
    interrupt: KeyboardInterrupt | None  # the exception itself, as it knows the signal

    @classmethod
    def of(cls, error: BaseException, rank: int) -> _Problem:
        kind = next(kind for kind in KINDS if isinstance(error, kind))
        text = f"process {rank}: {type(error).__name__}: {error}" if kind is BaseException else str(error)
        status = error.status if isinstance(error, SimulationError) else None
        return cls(kind, text, status, error if isinstance(error, KeyboardInterrupt) else None)


class _Agreed(Exception):
    """Carries the error that every process is to raise; all processes know of it."""

    def __init__(self, error: BaseException):
        super().__init__(str(error))
        self.error = error


def _joined_error(problems: list[_Problem]) -> BaseException:
    """Return one error for the problems of all processes; a `SimulationError` must hold the whole batch's status."""
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
    """Turn the failure of a collective call into `_Agreed`, with a `ProcessError`: another process is gone."""
    try:
        yield
    except RuntimeError as error:
        raise _Agreed(ProcessError("another process died, or did not answer")) from error
