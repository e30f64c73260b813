"""Lower bounds of the time and memory of a run, and the refusal of scenes that would never end or not fit."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch

from torchdismech.io.dismech import Geometry
from torchdismech.io.scene.refusals import SceneError
from torchdismech.io.schema.scene import Document
from torchdismech.system.memory import available_bytes, size_of

__all__ = ["refuse_endless", "refuse_too_large"]

# A step calls some hundred operations of torch, a replay of its recording some tens: neither is faster than this.
FASTEST_STEP = 1e-4  # s
FASTEST_NODE = 1e-9  # s for each node of each robot, the rate that a large GPU is hoped to reach
LONGEST_RUN = timedelta(days=30)
STATES = 3  # states in memory at once: before a step, after it, and the one that is stored


def refuse_too_large(path: Path, document: Document, geometry: Geometry) -> None:
    """Refuse a batch whose states and drawn numbers alone do not fit into memory."""
    size, free = document.batch.size, available_bytes(torch.device("cpu"))
    needed = size * _bytes_of_robot(document, geometry)
    if needed > free:
        most = max(1, int(free / needed * size))
        problem = (
            f"{size} robots of {len(geometry.nodes)} nodes take at least {size_of(needed)}, and {size_of(free)} are "
            f"free: expected at most {most}; --insist tries all the same"
        )
        raise SceneError(path, "batch.size", problem)


def refuse_endless(path: Path, document: Document, geometry: Geometry, steps: int) -> None:
    """Refuse steps that would take more than a month on any machine."""
    if document.simulation.integrator == "static":
        return  # the number of load steps has a limit of its own
    step = max(FASTEST_STEP, FASTEST_NODE * document.batch.size * len(geometry.nodes))
    if steps * step > LONGEST_RUN.total_seconds():
        frames = 1 + -(-steps // document.output.every)
        stored = 8 * frames * document.batch.size * 6 * len(geometry.nodes)
        problem = (
            f"{steps} steps take at least {steps * step / 86400:,.0f} days at {1e3 * step:.3g} ms each, which no "
            f"machine comes below, and {size_of(stored)} of disk: expected at most "
            f"{LONGEST_RUN.total_seconds() / step:.0f} steps; --insist tries all the same"
        )
        raise SceneError(path, "simulation.duration", problem)


def _bytes_of_robot(document: Document, geometry: Geometry) -> int:
    """Return the least memory of a robot [bytes]: of its states and drawn numbers."""
    edges = len(geometry.rod_edges)
    dofs = 3 * len(geometry.nodes) + edges
    state = 3 * dofs + 6 * edges  # q, velocity and acceleration; directors and tangents
    return 8 * (STATES * state + len(document.batch.randomize))
