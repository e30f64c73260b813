"""Windows are all there, drawn evenly, and drawn again exactly."""

import dataclasses

import pytest
import torch

from tests.training.swinging import recordings
from torchdismech.errors import InputError
from training.data import WindowSampler, gather, windows


def drawn(sampler: WindowSampler, batches: int) -> list[tuple[int, int]]:
    """Return (recording, first frame) of the next batches."""
    pairs = []
    for _ in range(batches):
        recording, first = next(sampler)
        pairs += list(zip(recording.tolist(), first.tolist(), strict=True))
    return pairs


def pairs_of(cut) -> list[tuple[int, int]]:
    """Return (recording, first frame) of windows."""
    return list(zip(cut.recording.tolist(), cut.first.tolist(), strict=True))


@pytest.mark.parametrize(("stride", "starts"), [(None, range(51)), (4, range(0, 51, 4)), (60, [0])])
def test_windows_start_wherever_they_fit(stride, starts):
    """Cut 60 frames into windows of 2 + 8, the last one ending with the last frame."""
    cut = windows(recordings(count=2), steps=8, stride=stride)
    assert pairs_of(cut) == [(k, first) for k in range(2) for first in starts]
    assert len(cut) == 2 * len(starts)
    assert cut.steps == 8


def test_a_window_may_be_a_whole_recording():
    """Take recordings as they are: 58 steps need all 60 frames."""
    assert pairs_of(windows(recordings(count=2), steps=58)) == [(0, 0), (1, 0)]


def test_windows_start_from_valid_frames():
    """Leave out starts of which one of the two first frames has an invalid node; later ones do not matter."""
    whole = recordings(count=1)
    whole.valid[0, 20, 3] = False
    starts = [first for _, first in pairs_of(windows(whole, steps=8))]
    assert starts == [first for first in range(51) if first not in (19, 20)]


def test_windows_without_anything_to_predict_are_left_out():
    """Leave out those after the end of a shorter recording; of ones that start with a recording, a recording."""
    ended = recordings(count=2)
    ended.valid[1, 30:] = False
    starts = [first for k, first in pairs_of(windows(ended, steps=8, given=1, measured=False)) if k == 1]
    assert starts == list(range(29))  # frame 29 is the last that is seen
    ended.valid[1, 1:] = False
    assert pairs_of(windows(ended, steps=8, given=1, measured=False, anywhere=False)) == [(0, 0)]
    ended.valid[:, 1:] = False
    with pytest.raises(InputError, match="there is no marker that is seen in the 8 frames after it"):
        windows(ended, steps=8, given=1, measured=False, anywhere=False)


def test_windows_that_do_not_exist_are_refused():
    """Name the frames there are; refuse to return none."""
    whole = recordings(count=1)
    with pytest.raises(InputError, match="59 steps need 61 frames and the recordings have 60"):
        windows(whole, steps=59)
    with pytest.raises(InputError, match="at least 1"):
        windows(whole, steps=0)
    with pytest.raises(InputError, match="at least 1"):
        windows(whole, steps=5, stride=0)
    whole.valid[:] = False
    with pytest.raises(InputError, match="no two neighbouring frames"):
        windows(whole, steps=5)


def test_an_epoch_draws_each_window_once():
    """Draw every window once before any comes again, in another order each time."""
    cut = windows(recordings(count=2), steps=8, stride=5)  # 22 windows
    sampler = WindowSampler(cut, batch=11, seed=3)
    first, second = drawn(sampler, 2), drawn(sampler, 2)
    assert sorted(first) == sorted(second) == pairs_of(cut)
    assert first != second


def test_batches_reach_into_the_next_epoch():
    """Keep every batch full, also one larger than an epoch, and every window equally often."""
    cut = windows(recordings(count=1), steps=8, stride=10)  # 6 windows
    pairs = drawn(WindowSampler(cut, batch=8, seed=0), 3)
    assert len(pairs) == 24
    assert sorted(pairs) == sorted(4 * pairs_of(cut))


def test_the_seed_decides_the_sequence():
    """Draw the same for the same seed, whatever else was drawn; another for another seed."""
    cut = windows(recordings(), steps=8)
    first = drawn(WindowSampler(cut, batch=10, seed=5), 3)
    torch.rand(5)
    assert drawn(WindowSampler(cut, batch=10, seed=5), 3) == first
    assert drawn(WindowSampler(cut, batch=10, seed=6), 3) != first


def test_epochs_of_one_seed_are_not_those_of_the_next():
    """Mix seed and epoch: the second epoch of seed 0 is not the first of seed 1."""
    cut = windows(recordings(count=1), steps=8)  # 51 windows
    second = drawn(WindowSampler(cut, batch=51, seed=0), 2)[51:]
    assert second != drawn(WindowSampler(cut, batch=51, seed=1), 1)


@pytest.mark.parametrize("before", [0, 3, 17])
def test_a_resumed_sampler_goes_on_exactly(before):
    """Draw what the interrupted sampler would have drawn, across epochs."""
    cut = windows(recordings(), steps=8, stride=3)  # 51 windows
    sampler = WindowSampler(cut, batch=10, seed=5)
    drawn(sampler, before)
    state = sampler.state_dict()
    resumed = WindowSampler(cut, batch=10, seed=5)
    drawn(resumed, 2)
    resumed.load_state_dict(state)
    assert drawn(resumed, 20) == drawn(sampler, 20)


def test_the_state_of_another_sequence_is_refused():
    """Name what differs between the saved sampler and this one."""
    cut = windows(recordings(), steps=8)
    state = WindowSampler(cut, batch=10, seed=5).state_dict()
    with pytest.raises(InputError, match="saved state has seed 5, this one 6"):
        WindowSampler(cut, batch=10, seed=6).load_state_dict(state)
    with pytest.raises(InputError, match="saved state has batch 10, this one 20"):
        WindowSampler(cut, batch=20, seed=5).load_state_dict(state)
    with pytest.raises(InputError, match="saved state has steps 8, this one 9"):
        WindowSampler(windows(recordings(), steps=9), batch=10, seed=5).load_state_dict(state)


@pytest.mark.parametrize("world", [2, 3, 6])
def test_ranks_share_what_one_would_draw(world):
    """Put the parts of all ranks together and get the batch of one, across epochs and after a change of world."""
    cut = windows(recordings(), steps=8, stride=7)  # 24 windows
    alone = WindowSampler(cut, batch=18, seed=2)
    next(alone)
    ranks = [WindowSampler(cut, batch=18, seed=2, rank=rank, world=world) for rank in range(world)]
    for sampler in ranks:
        sampler.load_state_dict(alone.state_dict())
    for _ in range(6):
        parts = [next(sampler) for sampler in ranks]
        assert all(len(first) == 18 // world for _, first in parts)
        recording, first = next(alone)
        assert torch.equal(torch.cat([part[0] for part in parts]), recording)
        assert torch.equal(torch.cat([part[1] for part in parts]), first)


def test_samplers_that_cannot_be_are_refused():
    """Refuse batches that do not divide, and ranks outside the world."""
    cut = windows(recordings(), steps=8)
    with pytest.raises(InputError, match="global batch 10 does not divide among 3 ranks"):
        WindowSampler(cut, batch=10, seed=0, world=3)
    with pytest.raises(InputError, match="rank 2 of 2"):
        WindowSampler(cut, batch=10, seed=0, rank=2, world=2)
    with pytest.raises(InputError, match="batch >= 1"):
        WindowSampler(cut, batch=0, seed=0)


def test_gather_returns_the_frames_of_each_window():
    """Gather positions and marks of windows of different recordings."""
    whole = recordings()
    whole.valid[2, 33, 1] = False
    recording, first = torch.tensor([0, 2, 2]), torch.tensor([0, 30, 50])
    window = gather(whole, recording, first, 10)
    positions, valid = window.positions, window.valid
    assert positions.shape == (3, 10, 6, 3)
    assert valid.shape == (3, 10, 6)
    for k in range(3):
        frames = slice(int(first[k]), int(first[k]) + 10)
        assert torch.equal(positions[k], whole.positions[recording[k], frames])
        assert torch.equal(valid[k], whole.valid[recording[k], frames])
    assert (~valid).nonzero().tolist() == [[1, 3, 1]]


@pytest.mark.parametrize(("first", "frames"), [(51, 10), (-1, 10), (0, 61), (0, 0)])
def test_gather_refuses_frames_that_are_not_there(first, frames):
    """Refuse windows past the end, and before the start: a negative index would count from the end."""
    with pytest.raises(InputError, match="do not fit into recordings of 60 frames"):
        gather(recordings(), torch.tensor([0]), torch.tensor([first]), frames)


def test_windows_of_starts_that_nobody_measured_need_no_valid_frames():
    """Begin anywhere with one given frame, or with the recordings only, whatever was seen."""
    whole = recordings(count=2)
    whole.valid[:, :3] = False
    anywhere = windows(whole, steps=8, stride=10, given=1, measured=False)
    assert pairs_of(anywhere) == [(k, first) for k in range(2) for first in range(0, 52, 10)]
    assert pairs_of(windows(whole, steps=8, given=1, measured=False, anywhere=False)) == [(0, 0), (1, 0)]


def test_windows_know_their_time():
    """Count from when the recording began."""
    whole = dataclasses.replace(recordings(count=2), begins=torch.tensor([1.0, 2.0], dtype=torch.float64))
    window = gather(whole, torch.tensor([0, 1]), torch.tensor([5, 7]), 4)
    assert window.time.tolist() == pytest.approx([1.05, 2.07])
