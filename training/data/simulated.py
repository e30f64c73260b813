"""Recordings of simulated robots, from trajectory files: one for each robot of the batch."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from torchdismech.errors import InputError, listed
from torchdismech.trajectory import Trajectory
from training.data.recordings import Recordings
from training.data.stacking import recordings_of, time_step

__all__ = ["read_trajectory"]


def read_trajectory(path: Path, drop_failed: bool = False) -> Recordings:
    """Return a recording of each robot in a trajectory file, with its nodes as markers.

    Parameters
    ----------
    path : of an HDF5 file.
    drop_failed : leave out robots of which a step failed, with a warning that names them; else they are refused.
    """
    trajectory = Trajectory.load(path)
    failed = trajectory.failed
    rows = failed.nonzero().flatten().tolist()
    if rows:
        named = listed(rows)
        if not drop_failed:
            raise InputError(f"{path}: steps of robot {named} failed; pass drop_failed=True to leave these robots out")
        if bool(failed.all()):
            raise InputError(f"{path}: steps of all {len(failed)} robots failed: nothing is left to learn from")
        warnings.warn(f"{path}: robot {named} left out: steps failed", stacklevel=2)
    kept = (~failed).nonzero().flatten()
    positions = trajectory.positions[:, kept].transpose(0, 1).to(torch.float64).numpy()
    time = trajectory.time.numpy().astype(np.float64)
    names, begins = [f"{path.name}:robot {row}" for row in kept.tolist()], [float(time[0])] * len(kept)
    return recordings_of(positions, time_step(time, str(path)), names, begins=begins)
