"""Checkpoints: written whole or not at all, refused where they are not what was written."""

import errno
import os

import pytest
import torch

from torchdismech import InputError
from training import files
from training.optimization import checkpoint


def saved(folder, value: float = 1.0) -> None:
    """Write a checkpoint."""
    checkpoint.save(folder, "last", {"a": torch.full((3,), value), "b": torch.tensor(2.0)}, {"n": value})


def test_checkpoint_is_read_back(tmp_path):
    """Return what was saved last, and leave one file."""
    for value in (1.0, 2.0, 3.0):
        saved(tmp_path, value)
    tensors, facts = checkpoint.load(tmp_path, "last")
    assert torch.equal(tensors["a"], torch.full((3,), 3.0)) and facts == {"n": 3.0}
    assert os.listdir(tmp_path) == ["last.safetensors"]


def test_every_flipped_bit_is_noticed(tmp_path):
    """Refuse a file in which a bit of any byte is another, by one sentence that names it."""
    saved(tmp_path)
    path = tmp_path / "last.safetensors"
    good = path.read_bytes()
    unnoticed = []
    for place in range(len(good)):
        path.write_bytes(good[:place] + bytes([good[place] ^ 1]) + good[place + 1 :])
        try:
            checkpoint.load(tmp_path, "last")
            unnoticed.append(place)
        except InputError as error:
            assert "last.safetensors" in str(error) and "\n" not in str(error)
    assert not unnoticed


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 100, b"{}", (2**62).to_bytes(8, "little") + b"{}"])
def test_what_is_no_checkpoint_is_refused(tmp_path, content):
    """Name the file and what to do."""
    (tmp_path / "last.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"last\.safetensors: damaged.*begin anew"):
        checkpoint.load(tmp_path, "last")


def test_other_formats_are_refused(tmp_path):
    """Say so of tensors of others, and of what an earlier version wrote; nothing that it names is read."""
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(3)}, tmp_path / "last.safetensors")
    with pytest.raises(InputError, match="expected a checkpoint of format 1, got 'none'"):
        checkpoint.load(tmp_path, "last")
    (tmp_path / "best.json").write_text('{"tensors": "../.."}')
    with pytest.raises(InputError, match="written by an earlier version"):
        checkpoint.load(tmp_path, "best")


@pytest.mark.parametrize("place", ["open", "fsync", "replace"])
def test_full_disk_leaves_the_checkpoint_before(tmp_path, monkeypatch, place):
    """Fail at each step of a write: one sentence, nothing half written, the one before is whole."""
    saved(tmp_path, 1.0)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, place, full)
    with pytest.raises(InputError, match=r"last\.safetensors: cannot be written: No space left on device"):
        saved(tmp_path, 2.0)
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["last.safetensors"]
    assert checkpoint.load(tmp_path, "last")[1] == {"n": 1.0}


def test_writing_goes_through_no_link(tmp_path):
    """Replace a link that somebody planted; what it points to stays."""
    other = tmp_path / "other"
    other.write_text("precious")
    (tmp_path / "last.safetensors").symlink_to(other)
    saved(tmp_path)
    assert other.read_text() == "precious" and not (tmp_path / "last.safetensors").is_symlink()
