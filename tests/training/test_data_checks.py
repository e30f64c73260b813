"""Each fault of a recording is refused or repaired, and named."""

import numpy as np
import pytest
import torch

from tests.training.swinging import EDGES, recordings, recordings_from, swinging_chain
from torchdismech.errors import InputError
from training.data import Rules, prepared

FAULTLESS = swinging_chain()
SHUFFLE = np.array([3, 0, 5, 1, 4, 2])


def assert_repaired(found, repaired: np.ndarray, tolerance: float) -> None:
    """Compare with the faultless chain; invalid are exactly the node-frames that were repaired."""
    error = np.abs(found.positions.numpy() - FAULTLESS)
    assert error.max() < tolerance
    assert np.array_equal(~found.valid.numpy(), repaired)
    assert error[~repaired].max() == 0


def unmarked() -> np.ndarray:
    """Return (K, T, N) False, to mark node-frames in."""
    return np.zeros(FAULTLESS.shape[:3], dtype=bool)


def test_faultless_recordings_are_left_alone():
    """Change nothing, say nothing, and share no memory that a later change could reach."""
    whole = recordings()
    found, messages = prepared(whole, Rules(nodes=6))
    assert messages == []
    assert torch.equal(found.positions, whole.positions)
    assert bool(found.valid.all())
    assert found.names == whole.names
    assert found.positions.data_ptr() != whole.positions.data_ptr()


def test_preparing_twice_changes_nothing_more():
    """Find nothing to repair in what was repaired, and keep its marks."""
    positions = FAULTLESS.copy()
    positions[0, 20:23, 2] = np.nan
    positions[1, 30, 4] += 0.4
    once, _ = prepared(recordings_from(positions), Rules())
    twice, messages = prepared(once, Rules())
    assert messages == []
    assert torch.equal(twice.positions, once.positions)
    assert torch.equal(twice.valid, once.valid)


def test_wrong_node_count_is_refused():
    """Name the file, the number that came and the one expected."""
    with pytest.raises(InputError, match=r"0\.pkl: 6 nodes; expected 13"):
        prepared(recordings(), Rules(nodes=13))


# ---- gaps and spikes


def test_short_gaps_are_filled():
    """Fill a gap on the line between its ends; a marker counts as not seen when one coordinate is missing."""
    positions = FAULTLESS.copy()
    positions[1, 20:24, 2] = np.nan
    positions[1, 40, 5, 1] = np.nan
    marks = unmarked()
    marks[1, 20:24, 2] = marks[1, 40, 5] = True
    found, messages = prepared(recordings_from(positions), Rules())
    # accelerations here are below 20 m/s^2: a line over 5 steps of 10 ms is off by at most a t^2 / 8 = 6 mm
    assert_repaired(found, marks, 0.006)
    assert messages == ["1.pkl: 5 positions (node 2, 5) not seen, filled along the line between neighbours in time"]


def test_gaps_at_an_end_are_held_and_said():
    """Hold the nearest place where there is no line, and say so."""
    positions = FAULTLESS.copy()
    positions[0, :2, 1] = np.nan
    positions[0, -1, 3] = np.nan
    found, messages = prepared(recordings_from(positions), Rules())
    assert torch.equal(found.positions[0, :2, 1], torch.from_numpy(FAULTLESS[0, [2, 2], 1]))
    assert torch.equal(found.positions[0, -1, 3], torch.from_numpy(FAULTLESS[0, -2, 3]))
    assert len(messages) == 1
    assert "3 of all repaired, at the start or the end, hold the nearest place" in messages[0]


def test_whole_frames_may_be_missing():
    """Fill a frame in which no marker was seen."""
    positions = FAULTLESS.copy()
    positions[2, 10] = np.nan
    marks = unmarked()
    marks[2, 10] = True
    found, _ = prepared(recordings_from(positions), Rules())
    assert_repaired(found, marks, 0.001)  # two steps of 10 ms: a t^2 / 8 = 1 mm


@pytest.mark.parametrize(("length", "rules"), [(11, Rules()), (3, Rules(max_gap=2)), (1, Rules(max_gap=0))])
def test_long_gaps_are_refused(length, rules):
    """Name recording, node, frame and length."""
    positions = FAULTLESS.copy()
    positions[1, 20 : 20 + length, 4] = np.nan
    with pytest.raises(InputError, match=rf"1\.pkl: node 4 is not seen for {length} frames from frame 20"):
        prepared(recordings_from(positions), rules)


@pytest.mark.parametrize("frames", [[30], [30, 31, 32], [0], [59], [10, 12, 40]], ids=str)
def test_spikes_are_replaced(frames):
    """Replace exactly the frames in which a marker was elsewhere, at the ends too."""
    positions = FAULTLESS.copy()
    positions[2, frames, 3] += [0.0, 0.8, 0.0]
    marks = unmarked()
    marks[2, frames, 3] = True
    found, messages = prepared(recordings_from(positions), Rules())
    assert_repaired(found, marks, 0.03)  # at an end the place is held: at most a step of 10 ms at 3 m/s
    assert len(messages) == 1
    assert f"2.pkl: {len(frames)} positions (node 3) faster than 5 m/s" in messages[0]


def test_a_jump_that_stays_loses_few_frames():
    """Leave out what a slow way to the new place needs, no more: after it markers are right again."""
    positions = FAULTLESS.copy()
    positions[0, 30:, :] += [0.12, 0.0, 0.0]  # 12 m/s in one step; 5 m/s needs three
    found, _ = prepared(recordings_from(positions), Rules())
    invalid = ~found.valid.numpy()
    assert not invalid[1:].any()
    assert set(np.flatnonzero(invalid[0].any(1))) <= set(range(25, 35))
    assert 2 <= invalid[0].sum(0).max() <= 5  # two at least; more where the chain's own motion goes that way


def test_jumps_too_far_to_bridge_are_refused():
    """Name node and frame where no choice of frames is slow enough."""
    positions = FAULTLESS.copy()
    positions[0, 30:, 2] += [3.0, 0.0, 0.0]
    with pytest.raises(InputError, match=r"0\.pkl: node 2 jumps near frame 30"):
        prepared(recordings_from(positions), Rules(order="trust"))


def test_spikes_stay_where_every_speed_is_believed():
    """Leave spikes without despike_speed."""
    positions = FAULTLESS.copy()
    positions[0, 30, 5] += [0.0, 0.2, 0.0]
    found, messages = prepared(recordings_from(positions), Rules(despike_speed=None))
    assert messages == []
    assert torch.equal(found.positions, torch.from_numpy(positions))


def test_marks_from_before_are_kept():
    """Keep invalid what the reader already called so."""
    whole = recordings()
    whole.valid[1, 5, 2] = False
    found, _ = prepared(whole, Rules())
    assert not found.valid[1, 5, 2]
    assert int((~found.valid).sum()) == 1


# ---- units


def test_millimetres_are_refused():
    """Say what they look like and what to set."""
    with pytest.raises(InputError, match=r"0\.pkl: .*or centimetres; expected metres.*by 100 .*='repair'"):
        prepared(recordings_from(1000 * FAULTLESS), Rules())


def test_millimetres_are_repaired_where_allowed():
    """Divide by 1000 the recordings that need it, also with gaps and spikes in them, and say so."""
    positions = FAULTLESS.copy()
    positions[1] *= 1000
    positions[1, 20, 2] = np.nan
    positions[1, 30, 3] += 900.0
    found, messages = prepared(recordings_from(positions), Rules(unit_scale="repair"))
    marks = unmarked()
    marks[1, 20, 2] = marks[1, 30, 3] = True
    error = np.abs(found.positions.numpy() - FAULTLESS)
    assert error[~marks].max() < 1e-15  # rounding of 1000 x / 1000
    assert error.max() < 0.001  # a t^2 / 8 over two steps
    assert np.array_equal(~found.valid.numpy(), marks)
    assert "1.pkl" in messages[0]
    assert "divided by 1000" in messages[0]


def test_what_no_scale_explains_is_refused():
    """Refuse what is too large as millimetres too."""
    with pytest.raises(InputError, match="still above 10 m"):
        prepared(recordings_from(1e6 * FAULTLESS), Rules(unit_scale="repair"))


def test_large_robots_are_taken_when_said():
    """Take a robot of 50 m when max_extent allows it."""
    found, messages = prepared(recordings_from(120 * FAULTLESS), Rules(max_extent=100.0, despike_speed=None))
    assert messages == []
    assert bool(found.valid.all())


# ---- order


def turned_to_first_end(positions: np.ndarray, shuffle: np.ndarray) -> np.ndarray:
    """Return the chain from that end which has the lower number among shuffled nodes."""
    ends = [int(np.flatnonzero(shuffle == node)[0]) for node in (0, len(shuffle) - 1)]
    return positions if ends[0] < ends[1] else positions[:, :, ::-1]


@pytest.mark.parametrize("shuffle", [SHUFFLE, np.array([0, 1, 3, 2, 4, 5]), np.array([0, 1, 2, 3, 5, 4])], ids=str)
def test_shuffled_nodes_are_refused(shuffle):
    """Find nodes in another order, also when only two neighbours changed places."""
    with pytest.raises(InputError, match=r"0\.pkl: the nodes do not stand in the order of the chain"):
        prepared(recordings_from(FAULTLESS[:, :, shuffle]), Rules())


@pytest.mark.parametrize("shuffle", [SHUFFLE, np.array([0, 1, 3, 2, 4, 5]), np.array([0, 1, 2, 3, 5, 4])], ids=str)
def test_nodes_shuffled_alike_are_put_in_order(shuffle):
    """Find the order again, the same end first in all recordings."""
    found, messages = prepared(recordings_from(FAULTLESS[:, :, shuffle]), Rules(order="repair"))
    assert np.array_equal(found.positions.numpy(), turned_to_first_end(FAULTLESS, shuffle))
    assert len(messages) == len(FAULTLESS)
    assert all("put into the order of the chain" in message for message in messages)


def test_order_is_found_in_spite_of_gaps_and_spikes():
    """Put nodes in order first; gaps and spikes follow their nodes."""
    positions = FAULTLESS.copy()
    positions[0, 20:23, 2] = np.nan
    positions[1, 30, 4] += 0.5
    marks = unmarked()
    marks[0, 20:23, 2] = marks[1, 30, 4] = True
    shuffle = np.array([0, 3, 1, 4, 2, 5])
    found, _ = prepared(recordings_from(positions[:, :, shuffle]), Rules(order="repair"))
    assert_repaired(found, marks, 0.006)  # as for gaps in order


@pytest.mark.parametrize("shuffle", [np.arange(6), np.array([0, 3, 1, 4, 2, 5])], ids=str)
def test_a_folded_recording_is_told_from_the_others(shuffle):
    """Order a chain whose first edge always stays folded in one recording as it is in all others."""
    positions = FAULTLESS.copy()
    back = positions[1, :, 2] - positions[1, :, 1]
    # node 0 then is closer to node 2 than node 1 is: alone, this looks like the order 1, 0, 2
    positions[1, :, 0] = positions[1, :, 1] + back * EDGES[0] / EDGES[1]
    found, messages = prepared(recordings_from(positions[:, :, shuffle]), Rules(order="repair"))
    assert np.array_equal(found.positions.numpy(), positions)
    assert len(messages) == (0 if shuffle[1] == 1 else 3)


def test_one_shuffled_recording_follows_the_others():
    """Turn a shuffled recording such that its ends are those of the recordings in order."""
    positions = FAULTLESS.copy()
    positions[1] = positions[1][:, SHUFFLE]
    found, messages = prepared(recordings_from(positions), Rules(order="repair"))
    assert np.array_equal(found.positions.numpy(), FAULTLESS)
    assert len(messages) == 1
    assert messages[0].startswith("1.pkl: nodes put into the order of the chain: 1-3-5-0-4-2")


def test_an_end_that_cannot_be_told_is_refused():
    """Refuse to guess which end comes first when all edges are alike."""
    positions = swinging_chain(edges=np.full(5, 0.1))
    positions[1] = positions[1][:, SHUFFLE]
    with pytest.raises(InputError, match=r"1\.pkl: which end of the chain comes first cannot be told"):
        prepared(recordings_from(positions), Rules(order="repair"))


def shuffled_anew(positions: np.ndarray, seed: int) -> np.ndarray:
    """Return (T, N, 3) with the nodes of each frame in an order of its own."""
    draw = np.random.default_rng(seed)
    return np.stack([frame[draw.permutation(len(frame))] for frame in positions])


def test_nodes_shuffled_in_each_frame_are_refused():
    """Find edges that do not keep their length."""
    positions = FAULTLESS.copy()
    positions[2] = shuffled_anew(positions[2], seed=0)
    with pytest.raises(InputError, match=r"2\.pkl: .*edges do not keep their length"):
        prepared(recordings_from(positions), Rules())


def test_nodes_shuffled_in_each_frame_are_put_in_order():
    """Follow the nodes from frame to frame, and turn the chain as in the recordings that came in order."""
    positions = FAULTLESS.copy()
    positions[2] = shuffled_anew(positions[2], seed=0)
    found, messages = prepared(recordings_from(positions), Rules(order="repair"))
    assert np.array_equal(found.positions.numpy(), FAULTLESS)
    assert len(messages) == 1
    assert "followed from frame to frame" in messages[0]


def test_noise_has_no_order():
    """Refuse what no order makes a chain."""
    positions = FAULTLESS.copy()
    positions[0] = np.random.default_rng(0).uniform(-0.3, 0.3, positions[0].shape)
    with pytest.raises(InputError, match=r"0\.pkl: .*cannot be decided"):
        prepared(recordings_from(positions), Rules(order="repair"))


def test_shuffled_frames_with_gaps_are_refused():
    """Refuse to follow nodes of which some are missing."""
    positions = FAULTLESS.copy()
    positions[0] = shuffled_anew(positions[0], seed=0)
    positions[0, 20, 3] = np.nan
    with pytest.raises(InputError, match="there are gaps"):
        prepared(recordings_from(positions), Rules(order="repair"))


def test_order_is_not_looked_at_where_trusted():
    """Leave nodes in their order when told to, if their distances stay within what is allowed."""
    shuffled = recordings_from(FAULTLESS[:, :, [0, 1, 3, 2, 4, 5]])
    found, messages = prepared(shuffled, Rules(order="trust", edge_wander=10.0))
    assert messages == []
    assert torch.equal(found.positions, shuffled.positions)


def test_edges_that_change_their_length_are_refused():
    """Name the edge and by how much it changes."""
    positions = FAULTLESS.copy()
    stretch = 1 + 0.6 * np.sin(0.3 * np.arange(60))  # standard deviation 0.6 / sqrt(2) = 42 %
    tail = positions[1, :, 3:] - positions[1, :, 2:3]
    link = tail[:, :1] * stretch[:, None, None]
    positions[1, :, 3:] = positions[1, :, 2:3] + link + tail - tail[:, :1]
    with pytest.raises(InputError, match=r"1\.pkl: the edge from node 2 to 3 changes its length by 4\d%"):
        prepared(recordings_from(positions), Rules())
    prepared(recordings_from(positions), Rules(edge_wander=0.6))


def test_slipping_markers_are_no_fault():
    """Take edges that wander by a few per cent, as markers on a real cable do."""
    draw = np.random.default_rng(0)
    positions = FAULTLESS + draw.normal(0, 0.03 * EDGES.min(), FAULTLESS.shape)
    _, messages = prepared(recordings_from(positions), Rules())
    assert messages == []


# ---- rules

NO_RULES = {
    "unit_scale": ({"unit_scale": "guess"}, "unit_scale: expected one of 'refuse', 'repair'"),
    "order": ({"order": True}, "order: expected one of 'refuse', 'repair', 'trust'"),
    "speed": ({"despike_speed": 0.0}, "despike_speed: expected a positive"),
    "wander": ({"edge_wander": float("nan")}, "edge_wander: expected a positive"),
    "extent": ({"max_extent": -1.0}, "max_extent: expected a positive"),
    "nodes": ({"nodes": 1}, "nodes: expected a whole number from 2 up"),
    "gap": ({"max_gap": -1}, "max_gap: expected a whole number from 0 up"),
    "long gap": ({"max_gap": 10**7}, "max_gap: expected a number of frames"),
    "text": ({"max_extent": "10"}, "max_extent: expected a positive number, got '10'"),
}


@pytest.mark.parametrize(("fields", "complaint"), NO_RULES.values(), ids=NO_RULES.keys())
def test_rules_that_say_nothing_are_refused(fields, complaint):
    """Refuse at construction what no check could follow."""
    with pytest.raises(InputError, match=complaint):
        Rules(**fields)


def test_swapped_labels_are_said():
    """Name two markers that go on where the other one was, and when; warn of nobody else, and change nothing."""
    rules = Rules(despike_speed=None)
    assert prepared(recordings(), rules, of_chain=False)[1] == []
    swapped = FAULTLESS.copy()
    swapped[1, 20:, [1, 4]] = FAULTLESS[1, 20:, [4, 1]]
    swapped[1, 40:42, 3] = np.nan
    arranged, messages = prepared(recordings_from(swapped), rules, of_chain=False)
    (warning,) = [message for message in messages if message.startswith("warning")]
    assert "from frame 20 on markers 1 and 4 go on where the other one was: their labels seem to be swapped" in warning
    assert np.array_equal(arranged.positions[1, 25, 1].numpy(), FAULTLESS[1, 25, 4])
    swapped[1, 30:] = FAULTLESS[1, 30:]
    assert "(and 1 more such places)" in prepared(recordings_from(swapped), rules, of_chain=False)[1][0]
