"""How much memory a step takes, and how much there is."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = [
    "available_bytes",
    "block_entries",
    "derivatives",
    "evaluation_bytes",
    "robots_at_a_time",
    "size_of",
    "step_bytes",
]

# Numbers that are alive at the peak of a step, for each second derivative of each stencil. Measured, with their share
# of the matrices, by the growth of the process: 305 to 339 KB for the rod of 101 nodes (the estimate says 360), 4.9 MB
# for a plate of 441 nodes with hinges (5.4), 6.9 to 9 MB with mid-edge normals (6.0). Loops and
# compiled kernels need less, half to three quarters of the estimate; a backward pass up to 1.4 times as much.
NUMBERS_A_DERIVATIVE = 8
NUMBERS_A_BLOCK_ENTRY = 4  # likewise for the blocks of derivatives of forces
NUMBERS_A_DOF = 12  # vectors of a step: positions, residuals, steps, what they are merged into
MATRICES = 2  # the values at an iterate and at the next one

# A CPU's core is fastest with about so many bytes of evaluation at a time: below, calls cost more than they do, above,
# memory is far away. Measured on one core, the best of B = 8 .. 2048 and what is within 5 % of it: rods of 101 nodes
# 128 (64 .. 256), with a backward pass 64 (64 .. 256), of 25 nodes 512 (256 .. 1024), eager and compiled; plates of
# 441 nodes with hinges 32 (16 .. 64), with mid-edge normals 16.
BYTES_AT_A_TIME = 40e6
# Of steps that are recorded as a whole calls take little, and what a part needs may stay in the second cache. Least
# times of rods of 101 nodes, 256 in all: 134, 127, 131, 155 us a robot-step with 16, 32, 64 and 128 at a time; of 25
# nodes, 1024 in all, 41 to 45 with 64 to 512. Threads do not help there: each operation is too short to be divided.
RECORDED_BYTES_AT_A_TIME = 12e6
FEWEST = 16  # robots at a time on a core: two vectors of the compiled band solver
# Loops take robots by vectors: of the widest processors this many, and a vector that is not full takes as long.
VECTOR = 8
WITHIN = 1.25  # of the number that is best, how far a number may be that fills vectors


class Robot(Protocol):
    """What has to be known of a model."""

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
        """Where things stand in the matrix, its pattern among them."""
        ...

    @property
    def solvers(self) -> Any:
        """Its linear solvers."""
        ...

    @property
    def device(self) -> torch.device:
        """Where it is."""
        ...


def derivatives(terms: Sequence[Any]) -> int:
    """Return how many second derivatives the springs of elastic terms have."""
    return sum(len(term.stencil.pairs) * term.stencil.count for term in terms)


def block_entries(forces: Sequence[Any]) -> int:
    """Return how many derivatives by position, and as many by velocity, external forces have beside elastic terms."""
    apart = (force for force in forces if force.varies and not force.by_stencils)
    return sum(force.derivative_count() for force in apart)


def evaluation_bytes(model: Robot) -> int:
    """Return an estimate of the bytes that forces and matrix of one robot take while they are made.

    What touches each other and what networks keep inside is not counted: nobody knows before.
    """
    terms = [*model.terms, *(force.term for force in model.forces if force.varies and force.by_stencils)]
    numbers = NUMBERS_A_DERIVATIVE * derivatives(terms) + NUMBERS_A_BLOCK_ENTRY * block_entries(model.forces)
    return model.nodes.element_size() * (numbers + NUMBERS_A_DOF * model.n_dofs + MATRICES * model.layout.pattern.nnz)


def robots_at_a_time(model: Robot, batch: int, recorded: bool = False) -> int:
    """Return how many of a batch of robots are best evaluated at a time: on a GPU all.

    More for more threads, which divide each operation among them if it is large enough.

    Parameters
    ----------
    recorded : whether their steps are recorded as a whole.
    """
    if model.device.type != "cpu":
        return batch
    threads = 1 if recorded else torch.get_num_threads()
    at_a_time = RECORDED_BYTES_AT_A_TIME if recorded else BYTES_AT_A_TIME
    best = threads * max(FEWEST, at_a_time / evaluation_bytes(model))
    if round(batch / best) <= 1:
        return batch
    # in chunks of whole vectors, as few robots twice as possible (see `chunks.chunks_of`)
    sizes = range(VECTOR * round(best / WITHIN / VECTOR), int(best * WITHIN) + 1, VECTOR)
    return min(sizes, key=lambda size: (-(-batch // size) * size, abs(size - best)))


def step_bytes(model: Robot, batch: int) -> int:
    """Return an estimate of the bytes that a step of so many robots takes at its peak: evaluation and factor."""
    share = model.nodes.element_size() / 8  # solvers count numbers of 8 bytes
    return batch * evaluation_bytes(model) + int(share * model.solvers.of(batch).memory(batch, model.device))


def available_bytes(device: torch.device) -> int:
    """Return the bytes that are free on a device; on a CPU as the system says, or what the process's group may take."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + kept
    return min([_free_in_system(), *_free_in_groups()])


def size_of(size: float) -> str:
    """Return a number of bytes for a person to read."""
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if size < 1000 or unit == "GiB":
            break
    return f"{size:.3g} {unit}"


def _free_in_system() -> int:
    """Return the bytes that the system could give; half of its memory where it does not say."""
    table = Path("/proc/meminfo")
    if table.exists():
        for line in table.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _free_in_groups(root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Return what control groups leave to the process: a container's limit, minus what counts against it."""
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
    """Return the bytes of files that a group keeps in memory and would give up."""
    lines = table.read_text(encoding="ascii").splitlines() if table.exists() else []
    return sum(int(line.split()[1]) for line in lines if line.split()[0] in ("inactive_file", "active_file"))
