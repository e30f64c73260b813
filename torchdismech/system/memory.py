"""Estimates of the memory that a step takes, and the memory that is available."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = [
    "BYTES_A_THREAD",
    "available_bytes",
    "block_entries",
    "derivatives",
    "evaluation_bytes",
    "robots_at_a_time",
    "size_of",
    "step_bytes",
]

# Numbers in memory at the peak of a step, for each second derivative of each stencil. Measured, with their share
# of the matrices, by the growth of the process: 305 to 339 KB for the rod of 101 nodes (the estimate says 360), 4.9 MB
# for a plate of 441 nodes with hinges (5.4), 6.9 to 9 MB with mid-edge normals (6.0). Loops and
# compiled kernels need less, half to three quarters of the estimate; a backward pass up to 1.4 times as much.
NUMBERS_A_DERIVATIVE = 8
NUMBERS_A_BLOCK_ENTRY = 4  # likewise for the blocks of derivatives of forces
NUMBERS_A_DOF = 12  # vectors of a step: positions, residuals, Newton steps, and their merged results
MATRICES = 2  # the values of the matrix at an iterate and at the next one

# A core of a CPU is fastest with about so many bytes of evaluation at a time: with fewer, calls cost more than the
# arithmetic, with more, the data leave the cache. Measured on one core, the best of B = 8 .. 2048, and in brackets the
# range within 5 % of it: rods of 101 nodes 128 (64 .. 256), with a backward pass 64 (64 .. 256), of 25 nodes 512
# (256 .. 1024), eager and compiled; plates of 441 nodes with hinges 32 (16 .. 64), with mid-edge normals 16.
BYTES_AT_A_TIME = 40e6
# In steps that are recorded as a whole calls take little time, and fewer robots let the data stay in the second-level
# cache. Least times of rods of 101 nodes, 256 in all: 134, 127, 131, 155 us a robot-step with 16, 32, 64 and 128 at a
# time; of 25 nodes, 1024 in all, 41 to 45 with 64 to 512. Operations are too short for several threads, which take
# parts of the batch in place of parts of operations: so there have to be as many parts as threads, or more.
RECORDED_BYTES_AT_A_TIME = 12e6
# Threads that take chunks side by side gain where a step of a chunk is 1 ms of compiled code and more, as one at a time
# runs Python: two threads take 64 rods of 9 nodes in three times the time of one, 256 in the same, of 25 in two thirds.
BYTES_A_THREAD = 5e6
FEWEST = 16  # robots at a time on a core: two vectors of the compiled band solver
# Robots in a vector of the widest processors; compiled loops take as long for a vector that is not full.
VECTOR = 8
WITHIN = 1.25  # ratio by which a number of robots that fills vectors may differ from the best number


class Robot(Protocol):
    """The attributes of a model that these estimates read."""

    @property
    def terms(self) -> Sequence[Any]:
        """Elastic terms."""
        ...

    @property
    def forces(self) -> Sequence[Any]:
        """External forces."""
        ...

    @property
    def nodes(self) -> Tensor:
        """Rest positions."""
        ...

    @property
    def n_dofs(self) -> int:
        """Number of dofs."""
        ...

    @property
    def layout(self) -> Any:
        """Layout of the Newton matrix, with its sparsity pattern."""
        ...

    @property
    def solvers(self) -> Any:
        """Its linear solvers."""
        ...

    @property
    def contact(self) -> Any:
        """Its contact."""
        ...

    @property
    def device(self) -> torch.device:
        """Device of the model's tensors."""
        ...


def derivatives(terms: Sequence[Any]) -> int:
    """Return the number of second derivatives of one robot's elastic terms."""
    return sum(len(term.stencil.pairs) * term.stencil.count for term in terms)


def block_entries(forces: Sequence[Any]) -> int:
    """Return how many derivatives by position (and as many by velocity) a robot's forces without stencils have."""
    apart = (force for force in forces if force.varies and not force.by_stencils)
    return sum(force.derivative_count() for force in apart)


def evaluation_bytes(model: Robot) -> int:
    """Return an estimate of the bytes that the forces of one robot and their matrix take while they are evaluated.

    Contacts and the activations of networks are not counted, as their number is not known in advance.
    """
    terms = [*model.terms, *(force.term for force in model.forces if force.varies and force.by_stencils)]
    numbers = NUMBERS_A_DERIVATIVE * derivatives(terms) + NUMBERS_A_BLOCK_ENTRY * block_entries(model.forces)
    return model.nodes.element_size() * (numbers + NUMBERS_A_DOF * model.n_dofs + MATRICES * model.layout.pattern.nnz)


def robots_at_a_time(model: Robot, batch: int, recorded: bool = False) -> int:
    """Return how many robots of a batch are best evaluated at a time on a CPU; on a GPU, the whole batch.

    With more of torch's threads it grows, as they share each operation that is large enough; in recorded steps without
    contact it falls, as each thread takes other robots, down to where these are enough for a thread.

    Parameters
    ----------
    recorded : whether steps are recorded as a whole.
    """
    if model.device.type != "cpu":
        return batch
    threads, of_a_robot = torch.get_num_threads(), evaluation_bytes(model)
    if recorded:
        takers, best = threads, max(FEWEST, RECORDED_BYTES_AT_A_TIME / of_a_robot)
        if model.contact.none:  # with contact steps may leave their recordings, and small parts cost more Python
            best = min(best, max(FEWEST, batch / threads, BYTES_A_THREAD / of_a_robot))
    else:
        takers, best = 1, threads * max(FEWEST, BYTES_AT_A_TIME / of_a_robot)
    if round(batch / best) <= 1:
        return batch
    # chunks fill vectors, overlap as little as possible (see `chunks.chunks_of`), and keep all threads busy to the end
    sizes = range(VECTOR * round(best / WITHIN / VECTOR), int(best * WITHIN) + 1, VECTOR)
    return min(sizes, key=lambda size: (-(-batch // (size * takers)) * size, abs(size - best)))


def step_bytes(model: Robot, batch: int) -> int:
    """Return an estimate of the peak memory [bytes] of a step of so many robots: evaluation and factorization."""
    share = model.nodes.element_size() / 8  # solvers estimate for float64
    return batch * evaluation_bytes(model) + int(share * model.solvers.of(batch).memory(batch, model.device))


def available_bytes(device: torch.device) -> int:
    """Return the free memory of a device [bytes]; for a CPU that of the system, within the limits of its cgroups."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min([_free_in_system(), *_free_in_groups()])


def size_of(size: float) -> str:
    """Return a number of bytes as text such as "1.5 GiB"."""
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000 or unit == "GiB":
            break
    return f"{size:.3g} {unit}"


def _free_in_system() -> int:
    """Return the bytes that the system has available; half of its memory where /proc/meminfo does not say."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_groups(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return for each memory limit of the process's control groups (a container's) the bytes that are left below it."""
    versions = (("memory.max", "memory.current"), ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes"))
    free = []
    for limit, used in versions:
        if (root / limit).exists() and (root / used).exists():
            most = (root / limit).read_text(encoding="ascii").strip()
            if most != "max":
                taken = int((root / used).read_text(encoding="ascii"))
                free.append(max(0, int(most) - taken + _reclaimable((root / limit).with_name("memory.stat"))))
    return free


def _reclaimable(table: Path) -> int:
    """Return the bytes of file cache that count against a control group, but that it would give up."""
    lines = table.read_text(encoding="ascii").splitlines() if table.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("inactive_file", "active_file"))
