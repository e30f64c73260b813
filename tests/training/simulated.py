"""Recordings that are simulated: a short rod shaken at its gripped ends, so what a fit should find is known."""

from pathlib import Path

import numpy as np
import torch

from torchdismech import unroll
from training.config import Robot, Simulation
from training.robots.rod_models import integrator_of, rod_builder
from training.robots.rod_motion import HeldMotion, held_edges, held_twist, rod_state
from training.robots.trees import Tree

DT = 0.01
LENGTHS = torch.tensor([0.03, 0.08, 0.08, 0.08, 0.08, 0.03], dtype=torch.float64)
TREE = Tree.chain(LENGTHS)
GRIPPED = [0, 1, -2, -1]
SETTLING = 40  # frames before the recordings begin
TRUTH = Robot(gripped=GRIPPED, bending=3e-3, drag=0.1)
TIGHT = Simulation(force_tolerance=1e-10, relative_tolerance=1e-10)


def gripped_motion(count: int, frames: int) -> torch.Tensor:
    """Return (count, frames, N, 3) positions of a sagging chain: its ends rest, then move differently each time."""
    time = DT * (torch.arange(frames, dtype=torch.float64) - SETTLING)[None, :]
    which = torch.arange(count, dtype=torch.float64)[:, None]
    place = torch.cat([torch.zeros(1, dtype=torch.float64), LENGTHS.cumsum(0)])
    x = torch.zeros(count, frames, len(place), 3, dtype=torch.float64)
    x[..., 0] = 0.9 * place
    x[:, :, 1, 0], x[:, :, -2, 0] = LENGTHS[0], 0.9 * place[-1] - LENGTHS[-1]  # gripped edges keep their lengths
    # inner nodes (read at the start only) sag such that the chain keeps about its length
    x[..., 2] = -0.19 * place[-1] * torch.sin(torch.pi * place / place[-1])
    x[:, :, :2, 2], x[:, :, -2:, 2] = 0.0, 0.0
    ramp = (time / 0.05).clamp(0, 1) ** 2
    for nodes, phase in ((slice(0, 2), 0.0), (slice(-2, None), 1.3)):
        shake = 0.05 * ramp * torch.sin((9.0 + which) * time + phase * which)
        x[:, :, nodes, 2] += shake[..., None]
        x[:, :, nodes, 1] += 0.6 * shake.roll(1, dims=0)[..., None]
    return x


@torch.no_grad()
def simulated_positions(robot: Robot = TRUTH, count: int = 5, frames: int = 42) -> torch.Tensor:
    """Return (count, frames, N, 3) positions [m] of the rod, and of its gripped nodes as prescribed."""
    motion = gripped_motion(count, SETTLING + frames)
    model = rod_builder(robot, TREE).finalize()
    first = torch.arange(count)
    turned = held_twist(motion, held_edges(model), TREE).at(first, torch.zeros_like(first))
    state = rod_state(model, motion[:, 0], motion[:, 0], DT, turned, TREE)
    motion = HeldMotion(model, motion, state.twist, DT)
    run = unroll(model, state, integrator_of(TIGHT, DT), SETTLING + frames - 1, motion)
    assert (run.status == 0).all()
    return run.positions.transpose(0, 1)[:, SETTLING:]


def written(path: Path, noise: float = 0.0, **options) -> Path:
    """Write simulated recordings, the last two as evaluation set, and return the path."""
    positions = simulated_positions(**options)
    positions = positions + noise * torch.randn(positions.shape, generator=torch.Generator().manual_seed(1))
    x = positions.numpy().astype(np.float64)
    np.savez(path, train=x[:-2], eval=x[-2:], dt=DT)
    return path
