"""Recordings hold what they say, and are split by whole recordings."""

import math

import pytest
import torch

from tests.training.swinging import recordings, swinging_chain
from torchdismech.errors import InputError
from training.data import Recordings


def made(**changes) -> Recordings:
    """Return two recordings with some fields changed."""
    positions = torch.from_numpy(swinging_chain(count=2))
    fields = {
        "positions": positions,
        "dt": 0.01,
        "names": ("a", "b"),
        "valid": torch.ones(positions.shape[:3], dtype=torch.bool),
    }
    return Recordings(**(fields | changes))


def infinite() -> torch.Tensor:
    """Return positions with one infinite value."""
    positions = torch.from_numpy(swinging_chain(count=2))
    positions[1, 7, 3, 2] = math.inf
    return positions


def short(frames: int) -> dict:
    """Return fields of recordings with few frames."""
    positions = torch.from_numpy(swinging_chain(count=2))[:, :frames]
    return {"positions": positions, "valid": torch.ones(positions.shape[:3], dtype=torch.bool)}


FAULTS = {
    "three axes": ({"positions": torch.zeros(2, 60, 18, dtype=torch.float64)}, r"\(recordings, frames, nodes, 3\)"),
    "planar": ({"positions": torch.zeros(2, 60, 6, 2, dtype=torch.float64)}, r"\(recordings, frames, nodes, 3\)"),
    "single precision": ({"positions": torch.zeros(2, 60, 6, 3)}, "expected float64"),
    "valid of another shape": ({"valid": torch.ones(2, 60, dtype=torch.bool)}, "valid: expected bool"),
    "valid of numbers": ({"valid": torch.ones(2, 60, 6)}, "valid: expected bool"),
    "a name too few": ({"names": ("a",)}, "expected one for each of 2"),
    "a name twice": ({"names": ("a", "a")}, "same name: a"),
    "no time step": ({"dt": 0.0}, "dt: expected a positive"),
    "time step not a number": ({"dt": math.nan}, "dt: expected a positive"),
    "infinite": ({"positions": infinite()}, "b: node 3 in frame 7 is infinite"),
    "two frames": (short(2), "2 frames; expected at least 3"),
}


@pytest.mark.parametrize(("changes", "complaint"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_are_refused(changes, complaint):
    """Name the field, and what was expected of it."""
    with pytest.raises(InputError, match=complaint):
        made(**changes)


def test_no_recordings_are_refused():
    """Refuse an empty set: a loss over nothing would be NaN."""
    with pytest.raises(InputError, match="no recordings"):
        made().subset([])


@pytest.mark.parametrize(
    "index", [[2, 0], torch.tensor([2, 0]), slice(0, 3, 2), torch.tensor([True, False, True]), 1], ids=str
)
def test_subset_takes_what_tensors_take(index):
    """Pick recordings with all that belongs to them."""
    whole = recordings(count=3)
    expected = torch.arange(3)[index].reshape(-1).tolist()
    part = whole.subset(index)
    assert part.names == tuple(whole.names[k] for k in expected)
    for k, original in enumerate(expected):
        assert torch.equal(part.positions[k], whole.positions[original])
        assert torch.equal(part.valid[k], whole.valid[original])


def test_subset_out_of_range_is_refused():
    """Name how many there are."""
    with pytest.raises(InputError, match="there are 3 recordings, got 5"):
        recordings(count=3).subset(5)


@pytest.mark.parametrize(("fraction", "held"), [(0.2, 2), (0.001, 1), (0.999, 9)])
def test_split_holds_out_whole_recordings(fraction, held):
    """Hold each recording out or keep it, at least one each."""
    whole = recordings(count=10)
    kept, out = whole.split(fraction, seed=1)
    assert len(out) == held
    assert len(kept) == 10 - held
    assert set(kept.names) | set(out.names) == set(whole.names)


def test_split_is_decided_by_the_seed():
    """Draw the same for the same seed, whatever was drawn before; another for another seed."""
    whole = recordings(count=10)
    first = whole.split(0.3, seed=4)[1].names
    torch.rand(3)
    assert whole.split(0.3, seed=4)[1].names == first
    assert any(whole.split(0.3, seed=seed)[1].names != first for seed in range(5, 10))


def test_split_may_hold_out_none():
    """Keep all, and take the same ones in place of those held out: also where there is only one."""
    kept, out = recordings(count=1).split(0.0, seed=0)
    assert kept.names == out.names and len(kept) == 1


@pytest.mark.parametrize("fraction", [1.0, -0.1, math.nan])
def test_split_refuses_fractions_that_leave_nothing(fraction):
    """Ask for a share between none and all."""
    with pytest.raises(InputError, match="from 0 and less than 1"):
        recordings(count=3).split(fraction, seed=0)


def test_split_refuses_a_single_recording():
    """Refuse to hold out a share of one, and say what else there is."""
    with pytest.raises(InputError, match=r"data\.pieces.*data\.held_out = 0"):
        recordings(count=1).split(0.5, seed=0)


def test_pieces_keep_their_time_and_inputs():
    """Cut into equal pieces; drop what is left; name each by when it began."""
    inputs = torch.arange(120, dtype=torch.float64).view(2, 60, 1)
    pieces = made(inputs=inputs, columns=("angle",), begins=torch.tensor([0.0, 5.0], dtype=torch.float64)).pieces(0.25)
    assert (len(pieces), pieces.frames) == (4, 25)
    assert pieces.names == ("a from 0 s", "a from 0.25 s", "b from 0 s", "b from 0.25 s")
    assert pieces.begins.tolist() == pytest.approx([0.0, 0.25, 5.0, 5.25])
    assert pieces.inputs[:, 0, 0].tolist() == [0, 25, 60, 85]
    assert torch.equal(pieces.positions[3], made().positions[1, 25:50])
    with pytest.raises(InputError, match="pieces: expected 0.03 s to 0.6 s, as a has, got 1 s"):
        made().pieces(1.0)


def test_inputs_count_in_digests():
    """Tell recordings apart whose inputs differ, or that began at another time."""
    inputs = torch.zeros(2, 60, 1, dtype=torch.float64)
    digests = [
        made(inputs=inputs, columns=("angle",)).digests()["a"],
        made(inputs=inputs + 1, columns=("angle",)).digests()["a"],
        made(begins=torch.ones(2, dtype=torch.float64)).digests()["a"],
        made().digests()["a"],
    ]
    assert len(set(digests)) == 4
