"""Estimates of the memory that a step takes, and how many robots are best stepped at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from torchdismech.forces.base import Force

if TYPE_CHECKING:
    from torchdismech.model.model import Model

__all__ = ["BYTES_A_THREAD", "block_entries", "derivatives", "evaluation_bytes", "robots_at_a_time", "step_bytes"]

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


def derivatives(terms: Sequence[Any]) -> int:
    """Return the number of second derivatives of one robot's elastic terms."""
    return sum(len(term.stencil.pairs) * term.stencil.count for term in terms)


def block_entries(forces: Sequence[Force]) -> int:
    """Return how many derivatives by position (and as many by velocity) a robot's forces without stencils have."""
    apart = (force for force in forces if force.varies and not force.by_stencils)
    return sum(force.derivative_count() for force in apart)


def evaluation_bytes(model: Model) -> int:
    """Return an estimate of the bytes that the forces of one robot and their matrix take while they are evaluated.

    Contacts and the activations of networks are not counted, as their number is not known in advance.
    """
    of_terms = NUMBERS_A_DERIVATIVE * derivatives(model.layout.elastic.terms)
    numbers = of_terms + NUMBERS_A_BLOCK_ENTRY * model.block_entries
    return model.nodes.element_size() * (numbers + NUMBERS_A_DOF * model.n_dofs + MATRICES * model.layout.pattern.nnz)


def robots_at_a_time(model: Model, batch: int, recorded: bool = False) -> int:
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


def step_bytes(model: Model, batch: int) -> int:
    """Return an estimate of the peak memory [bytes] of a step of so many robots: evaluation and factorization."""
    share = model.nodes.element_size() / 8  # solvers estimate for float64
    return batch * evaluation_bytes(model) + int(share * model.solvers.of(batch).memory(batch, model.device))
