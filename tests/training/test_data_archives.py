"""Readers of archives: what each must hold, and what happens when it does not."""

import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.readings import FAULTLESS, archive
from tests.training.swinging import DT
from torchdismech.errors import InputError
from training.data import Rules, prepared, read

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "dlo"


def test_archive_is_read_by_split(tmp_path):
    """Read a split with its names and time step; single precision is widened."""
    path = archive(tmp_path / "cable.npz", eval=FAULTLESS[2:].astype(np.float32))
    train = read(path, "train")
    assert np.array_equal(train.positions.numpy(), FAULTLESS[:2])
    assert train.names == ("cable.npz:train/7", "cable.npz:train/9")
    assert train.dt == DT
    assert bool(train.valid.all())
    found = read(str(path), split="eval")
    assert found.positions.dtype == torch.float64
    assert np.array_equal(found.positions.numpy(), FAULTLESS[2:].astype(np.float32))
    assert found.names == ("cable.npz:eval/0",)


def test_archive_of_one_split_needs_no_name(tmp_path):
    """Take the only split there is; not seen is not valid."""
    positions = FAULTLESS.copy()
    positions[1, 5, 2, 0] = np.nan
    found = read(archive(tmp_path / "a.npz", train=None, eval=positions, train_id=None))
    assert found.valid.shape == (3, 60, 6)
    assert (~found.valid).nonzero().tolist() == [[1, 5, 2]]


ARCHIVE_FAULTS = {
    "no split named": ({}, None, "got train, eval; name a split"),
    "no such split": ({}, "test", "no split 'test'; it has train, eval"),
    "no dt": ({"dt": None}, "train", "expected a key dt"),
    "two dts": ({"dt": np.array([DT, DT])}, "train", "expected one number"),
    "three axes": ({"train": FAULTLESS[0]}, "train", r"expected \(recordings, frames, nodes, 3\), got \(60, 6, 3\)"),
    "planar": ({"train": FAULTLESS[:2, ..., :2]}, "train", r"got \(2, 60, 6, 2\)"),
    "objects": ({"train": np.array([{"a": 1}, None], dtype=object)}, "train", "not an archive of plain numbers"),
    "texts": ({"train": np.full((1, 3, 2, 3), "x")}, "train", "expected real numbers, got dtype <U1"),
    "complex": ({"train": FAULTLESS[:2] * 1j}, "train", "expected real numbers, got dtype complex"),
    "empty split": ({"train": FAULTLESS[:0], "train_id": None}, "train", "no recordings in it"),
    "ids of another count": ({"train_id": np.arange(3)}, "train", "train_id: expected one for each of 2"),
    "an id twice": ({"train_id": np.array([7, 7])}, "train", "same name: .*train/7"),
    "infinite": ({"train": np.where(FAULTLESS > 0.1, np.inf, FAULTLESS)[:2]}, "train", "is infinite"),
    "two frames": ({"train": FAULTLESS[:2, :2]}, "train", "2 frames; expected at least 3"),
}


@pytest.mark.parametrize(("changes", "split", "complaint"), ARCHIVE_FAULTS.values(), ids=ARCHIVE_FAULTS.keys())
def test_archive_faults_are_refused(tmp_path, changes, split, complaint):
    """Name what is wrong with an archive."""
    with pytest.raises(InputError, match=complaint):
        read(archive(tmp_path / "cable.npz", **changes), split)


def test_single_arrays_are_refused(tmp_path):
    """Refuse an array without names, which has no room for dt."""
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, FAULTLESS)
    with pytest.raises(InputError, match=r"a\.npz: not an archive of plain numbers: File is not a zip file"):
        read(tmp_path / "a.npz")


def test_archives_are_read_to_the_end(tmp_path):
    """Refuse an array whose header says less than there is, whose checksum a reader would not get to."""
    path = archive(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["train.npy"] = members["train.npy"].replace(b"(2, 60, 6, 3)", b"(1, 60, 6, 3)")
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(InputError, match=r"a\.npz: .*'train\.npy' is not as long as it says"):
        read(path, "train")


@pytest.mark.parametrize(("cable", "nodes"), [("dlo1", 13), ("dlo3", 12)])
def test_real_cables_are_read_and_prepared(cable, nodes):
    """Read motion capture of real cables; repair a few fast node-frames and nothing else."""
    path = REAL / f"{cable}.npz"
    if not path.exists():
        pytest.skip(f"motion capture of real cables is not in this repository: ../shared/data/dlo/{path.name}")
    for split, count in (("train", 56), ("eval", 14)):
        raw = read(path, split)
        assert raw.positions.shape == (count, 500, nodes, 3)
        found, messages = prepared(raw, Rules(nodes=nodes))
        invalid = ~found.valid
        assert invalid.sum() <= 50  # node-frames, of hundreds of thousands: about 35 are faster than 5 m/s
        assert all("faster than 5 m/s" in message for message in messages)
        assert torch.equal(found.positions[~invalid], raw.positions[~invalid])
        # the fastest step, 11 m/s, is 0.11 m; a repair moves a node by less
        assert (found.positions - raw.positions).abs().max() < 0.11
