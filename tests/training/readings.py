"""Positions, and the files of each kind that the tests of readers write them into."""

import csv
import pickle
from pathlib import Path

import numpy as np
import torch

from tests.training.swinging import DT, swinging_chain
from torchdismech.errors import Status
from torchdismech.robot.state import State
from torchdismech.trajectory import Frame, Recorder

FAULTLESS = swinging_chain()


# ---- pickles


def nested(positions: np.ndarray) -> list:
    """Return (T, N, 3) as a list of T frames (3, N) of plain floats."""
    return positions.transpose(0, 2, 1).tolist()


def pickled(path: Path, content, protocol: int = pickle.DEFAULT_PROTOCOL) -> Path:
    """Write a pickle."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pickle.dumps(content, protocol))
    return path


# ---- archives


def archive(path: Path, **changes) -> Path:
    """Return an archive of two splits with some arrays changed; None leaves one out."""
    arrays = {"train": FAULTLESS[:2], "eval": FAULTLESS[2:], "dt": DT, "train_id": np.array([7, 9])}
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


# ---- tables


CLASSIC = [f"{axis}{node}" for node in range(6) for axis in "xyz"]


def table(path: Path, positions: np.ndarray = FAULTLESS[0], header=CLASSIC, time=None, order=None) -> Path:
    """Write a table; NaN as an empty cell; `order` of the columns, `time` in the first if not given."""
    time = DT * np.arange(len(positions)) if time is None else time
    rows = [["time", *header]]
    for at, frame in zip(time, positions.reshape(len(positions), -1), strict=True):
        rows.append([repr(float(at)), *("" if np.isnan(x) else repr(float(x)) for x in frame)])
    if order is not None:
        rows = [[row[c] for c in order] for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


# ---- trajectories


CLOCK = DT * np.arange(60)


def jumped(times: np.ndarray) -> np.ndarray:
    """Return times with two frames left out after frame 9."""
    return np.where(np.arange(len(times)) > 9, times + 2 * DT, times)


def simulated(path: Path, failed=(), times=None) -> Path:
    """Write a run of three robots that move as the chain does; `failed` ones fail a step."""
    times = CLOCK if times is None else times
    recorder = Recorder()
    recorder.start(len(times), np.array([[k, k + 1] for k in range(5)]), np.zeros((0, 3), dtype=np.int64))
    zeros = torch.zeros(3, dtype=torch.float64)
    status = torch.tensor([Status.NOT_FINITE if k in failed else Status.CONVERGED for k in range(3)])
    for step, time in enumerate(times.tolist()):
        q = torch.zeros(3, 18 + 5, dtype=torch.float64)
        q[:, :18] = torch.from_numpy(FAULTLESS[:, step].reshape(3, -1))
        edges = torch.zeros(3, 5, 3, dtype=torch.float64)
        twist = torch.zeros(3, 4, dtype=torch.float64)
        state = State(q, torch.zeros_like(q), torch.zeros_like(q), edges, edges, twist, zeros + time)
        counts = torch.zeros(3, dtype=torch.long)
        recorder.append(
            Frame(step, state.time[0], state, counts, counts, zeros, status if step else counts, {"kinetic": zeros})
        )
    recorder.trajectory().save(path)
    return path
