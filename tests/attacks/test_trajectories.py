"""Damaged trajectory files are refused in one sentence, or loaded with the numbers that were written."""

import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from tests.attacks.trajectories import ATTACKS, damaged
from torchdismech import InputError, State, Trajectory
from torchdismech.robot.state import tensor_fields
from torchdismech.trajectory import Frame, TrajectoryWriter

BATCH, NODES, ROWS = 3, 5, 6


def frame(step: int, numbers: torch.Generator) -> Frame:
    """Return a frame of chance."""

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(BATCH, *shape, dtype=torch.float64, generator=numbers)

    n, time = 4 * NODES - 1, torch.full((BATCH,), 0.1 * step, dtype=torch.float64)
    state = State(some(n), some(n), some(n), some(NODES - 1, 3), some(NODES - 1, 3), some(NODES - 2), time)
    count = torch.full((BATCH,), step)
    energies = {"kinetic": some(), "bend": some()}
    contact = {"active": count, "penetration": some(), "force/floor": some(3), "load/floor": some()}
    contact["node_force"] = some(NODES, 3)
    return Frame(step, time[0], state, count, count, some(), torch.zeros_like(count), energies, contact)


@pytest.fixture
def good(tmp_path) -> Path:
    """Return a good file."""
    numbers = torch.Generator().manual_seed(13)
    edges = np.array([[k, k + 1] for k in range(NODES - 1)])
    texts = {"scene": "[robot]\n" * 20, "tables": "{}"}
    path = tmp_path / "good.h5"
    with TrajectoryWriter(path, {"rod.youngs": torch.rand(BATCH, generator=numbers).double()}, texts) as writer:
        writer.start(ROWS, edges, np.zeros((0, 3), dtype=np.int64))
        for step in range(0, 10 * ROWS, 10):
            writer.append(frame(step, numbers))
    return path


def contents(trajectory: Trajectory) -> dict[str, object]:
    """Return the bytes of everything in a trajectory, and its texts."""
    state = {f"state/{name}": getattr(trajectory.state, name) for name in tensor_fields(State)}
    tensors = trajectory.datasets() | state | {f"drawn/{k}": v for k, v in trajectory.randomized.items()}
    arrays = {name: values.numpy().tobytes() for name, values in tensors.items()}
    edges = {"edges": trajectory.rod_edges.tobytes(), "triangles": trajectory.triangles.tobytes()}
    return arrays | edges | {"texts": trajectory.attributes, "step": trajectory.state_step}


def outcome(path: Path, expected: dict[str, object]) -> str:
    """Return what loading a file came to."""
    try:
        loaded = contents(Trajectory.load(path))
    except InputError as error:
        said = str(error)
        assert said.startswith(f"{path}: ") and "\n" not in said and 30 < len(said) < 600, said
        return "refused"
    except Exception as error:
        return f"traceback of {type(error).__name__}"
    return "as written" if loaded == expected else "accepted without a word"


def outcomes(good: Path, seed: int, count: int, attacks: Sequence[Callable] = ATTACKS) -> Counter[str]:
    """Return how often what happened; name what should not have."""
    expected, found = contents(Trajectory.load(good)), Counter[str]()
    folder = good.parent / "damaged"
    folder.mkdir()
    for name, path in damaged(good, folder, seed, count, attacks):
        happened = outcome(path, expected)
        found[happened] += 1
        if happened not in ("refused", "as written"):
            print(f"{name}: {happened}")
    shutil.rmtree(folder)
    return found


def test_each_kind_of_damage_is_refused_or_harmless(good):
    """Load a file of each kind of damage."""
    found = outcomes(good, seed=1, count=len(ATTACKS))
    print(dict(found))
    assert set(found) <= {"refused", "as written"} and found["refused"] >= 0.9 * len(ATTACKS)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_hundred_damaged_files_are_refused_or_harmless(good, seed):
    """Load a hundred files, and for the sake of rare ones nine hundred more."""
    found = outcomes(good, seed, count=100)
    print(dict(found))
    assert set(found) <= {"refused", "as written"} and found["refused"] >= 85


def first_format(good: Path, path: Path) -> None:
    """Write a file as it was before there were checksums."""
    with h5py.File(good) as new, h5py.File(path, "w", libver="earliest") as old:
        names: list[str] = []
        new.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            if not name.startswith(("checksums", "texts")) and "checksum" not in name:
                old[name] = new[name][()]
        for name, text in new.attrs.items():
            old.attrs[name] = text


def test_files_without_checksums_load(good, tmp_path):
    """Read a file of the first format as it was written."""
    old = tmp_path / "old.h5"
    first_format(good, old)
    assert contents(Trajectory.load(old)) == contents(Trajectory.load(good))


def test_files_without_checksums_are_checked_for_sense(good, tmp_path):
    """Find in a file of the first format what cannot be, though nothing says what was written."""
    old = tmp_path / "old.h5"
    first_format(good, old)
    sensible = {"flip", "flip_several", "flip_in_numbers", "blank", "other_name", "other_state", "hole_in_time"}
    sensible |= {"not_a_number", "other_number"}  # may leave numbers that could have been written
    attacks = [attack for attack in ATTACKS if attack.__name__ not in sensible]
    assert set(outcomes(old, seed=2, count=2 * len(attacks), attacks=attacks)) == {"refused"}
