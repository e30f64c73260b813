"""Pairs of boxes that overlap, by compiled code and by operations of torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torchdismech.contact.pairs import broad_phase, columns
from torchdismech.contact.pairs.broad_phase import overlapping
from torchdismech.errors import InputError
from torchdismech.native import function_of

# Pairs come out of comparisons of the given numbers: every test asks for exact equality.


@pytest.fixture(params=["compiled", "torch"], scope="module", autouse=True)
def way(request):
    """Find pairs by compiled code, and by operations of torch."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "torch":
            patch.setattr(broad_phase, "function_of", lambda name: None)
        elif function_of("overlapping_boxes") is None:
            pytest.skip("nothing can be compiled here")
        yield request.param


@pytest.fixture
def by_torch(way):
    """Skip what looks into the search by operations of torch, where compiled code takes its place."""
    if way != "torch":
        pytest.skip("of the search by operations of torch")


def compared_all(low, high, other_low=None, other_high=None, excluded=None):
    """Return the overlapping pairs by comparing every box with every other; of a robot that is not finite, none."""
    within = other_low is None
    if within:
        other_low, other_high = low, high
    touch = (low[:, :, None] <= other_high[:, None]) & (other_low[:, None] <= high[:, :, None])
    touch = touch.all(-1)
    finite = torch.stack([c.isfinite().flatten(1).all(1) for c in (low, high, other_low, other_high)]).all(0)
    touch &= finite[:, None, None]
    if within:
        touch &= torch.ones_like(touch).triu(1)
    if excluded is not None:
        touch.view(len(low), -1)[:, excluded] = False
    return touch.nonzero().unbind(1)


def assert_same(found, expected):
    """Compare lists of pairs, order included."""
    for one, another in zip(found, expected, strict=True):
        assert one.dtype == torch.int64
        assert torch.equal(one, another)


def cloud(seed, batch, count, spacing=1.0, mixed=0.0, flat=False, lattice=False, place=0.0):
    """Return boxes around random places: sizes over `mixed` decades, on integers where they often just touch."""
    rng = np.random.default_rng(seed)
    side = spacing * max(count, 1) ** (1 / 3)
    centre = rng.uniform(0, side, (batch, count, 3)) * rng.uniform(0.1, 10, (batch, 1, 1))
    half = rng.uniform(0, 1, (batch, count, 3)) * 10 ** (mixed * rng.uniform(-1, 0, (batch, count, 1)))
    if flat:
        centre[..., rng.integers(3)] = 0.0
        half[..., rng.integers(3)] = 0.0
    if lattice:
        centre, half = np.round(centre), np.round(half)
    centre += place * rng.normal(size=(batch, 1, 3))
    return torch.from_numpy(centre - half), torch.from_numpy(centre + half)


CASES = {
    "spread": {"spacing": 2.0},
    "crowded": {"spacing": 0.3},
    "flat": {"flat": True},
    "touching": {"lattice": True},
    "two decades of sizes": {"mixed": 2.0},
    "eight decades of sizes": {"mixed": 8.0, "spacing": 0.1},
    "far away": {"place": 1e6},
    "far away, touching": {"place": 0.0, "lattice": True, "spacing": 1e5},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("batch", "count"), [(1, 1), (1, 2), (1, 150), (5, 60), (3, 17)])
def test_pairs_within_a_set_are_those_of_all_comparisons(case, batch, count):
    """Find what comparing all boxes finds, for many kinds of sets."""
    for seed in range(4):
        boxes = cloud(seed, batch, count, **case)
        assert_same(overlapping(*boxes), compared_all(*boxes))


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize(("count", "others"), [(1, 1), (1, 90), (70, 4), (60, 60)])
def test_pairs_between_sets_are_those_of_all_comparisons(case, count, others):
    """Find what comparing each box of one set with each of the other finds."""
    for seed in range(4):
        low, high = cloud(seed, 3, count + others, **case)
        split = (low[:, :count], high[:, :count], low[:, count:], high[:, count:])
        assert_same(overlapping(*split), compared_all(*split))


@pytest.mark.parametrize("scale", [1e-3, 30.0])
def test_sets_of_different_sizes_meet(scale):
    """Find pairs between sets of very different sizes: large obstacles and small primitives, and the reverse."""
    low, high = cloud(0, 2, 140, spacing=0.3)
    centre, half = (low + high)[:, 100:] / 2, scale * (high - low)[:, 100:] / 2
    split = (low[:, :100], high[:, :100], centre - half, centre + half)
    expected = compared_all(*split)
    assert len(expected[0]) > 0
    assert_same(overlapping(*split), expected)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    batch=st.integers(1, 3),
    count=st.integers(1, 12),
    others=st.integers(0, 6),
)
def test_any_boxes(data, batch, count, others):
    """Search for boxes, finite or not, where columns and sweep and plain comparison disagree."""
    number = st.one_of(
        st.integers(-3, 3).map(float),
        st.floats(-1e9, 1e9),
        st.sampled_from([0.0, -0.0, 1e-300, 5e-324, 1e6 + 1e-9, 1e300, float("nan"), float("inf")]),
    )
    total = count + others
    numbers = data.draw(st.lists(number, min_size=6 * batch * total, max_size=6 * batch * total))
    ends = torch.tensor(numbers, dtype=torch.float64).view(2, batch, total, 3)
    low, high = torch.minimum(*ends), torch.maximum(*ends)
    assert_same(overlapping(low, high), compared_all(low, high))
    split = (low[:, :count], high[:, :count], low[:, count:], high[:, count:])
    assert_same(overlapping(*split), compared_all(*split))


def test_closed_intervals():
    """Count boxes that share a corner only, and not those that a rounding error parts."""
    low = torch.tensor([[[0.0, 0, 0], [1, 1, 1], [2, 2, np.nextafter(2, 3)]]], dtype=torch.float64)
    high = torch.tensor([[[1.0, 1, 1], [2, 2, 2], [3, 3, 3]]], dtype=torch.float64)
    assert [p.tolist() for p in overlapping(low, high)] == [[0], [0], [1]]


def test_comparisons_are_made_with_the_given_numbers():
    """Keep apart boxes whose distance is lost when the robot is shifted to its corner."""
    low = torch.tensor([[[-1e9, 0, 0], [-1.0, 0, 0], [1e-12, 0, 0]]], dtype=torch.float64)
    high = torch.tensor([[[-1e9, 0, 0], [0.0, 1, 1], [1.0, 1, 1]]], dtype=torch.float64)
    assert len(overlapping(low, high)[0]) == 0


@pytest.mark.parametrize("extent", [0.0, 1.0])
def test_identical_boxes_all_overlap(extent):
    """Pair all of many equal boxes, with and without extent, in all robots."""
    low = torch.full((3, 40, 3), 7.0, dtype=torch.float64)
    found = overlapping(low, low + extent)
    assert len(found[0]) == 3 * 40 * 39 // 2
    assert_same(found, compared_all(low, low + extent))


@pytest.mark.parametrize(("batch", "count", "others"), [(0, 5, 5), (2, 0, 5), (2, 5, 0), (2, 0, 0), (0, 0, 0)])
def test_nothing_to_compare(batch, count, others):
    """Return no pairs, of the right type, for empty sets and empty batches."""
    low, other = torch.zeros(batch, count, 3), torch.zeros(batch, others, 3)
    for part in overlapping(low, low, other, other):
        assert part.shape == (0,) and part.dtype == torch.int64
    if count == 0 or batch == 0:
        assert all(part.shape == (0,) for part in overlapping(low, low))


def test_each_row_of_a_batch_is_as_alone():
    """Get for robot i in a batch what robot i gives alone: robots of all sizes and places, some at the same place."""
    low, high = cloud(0, 6, 80, spacing=0.2, mixed=1.0)
    scale = torch.tensor([1e-6, 1.0, 1.0, 1e3, 1.0, 1e6], dtype=torch.float64)[:, None, None]
    low, high = low * scale, high * scale
    low[2], high[2] = low[1], high[1]
    low[4] += 1e6
    high[4] += 1e6
    robot, first, second = overlapping(low, high)
    for i in range(6):
        alone = overlapping(low[i : i + 1], high[i : i + 1])
        assert len(alone[0]) > 0
        assert torch.equal(alone[1], first[robot == i])
        assert torch.equal(alone[2], second[robot == i])
    assert torch.equal(first[robot == 1], first[robot == 2])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_robots_that_are_not_finite_have_no_pairs(value):
    """Leave out the robots with one bad coordinate, whichever; the others are as before."""
    low, high = cloud(3, 6, 50)
    expected = overlapping(low, high)
    bad_low, bad_high = low.clone(), high.clone()
    bad_low[1, 7, 0] = bad_high[1, 7, 0] = value
    bad_low[4, :, 1] = bad_high[4, :, 1] = value
    found = overlapping(bad_low, bad_high)
    kept = (expected[0] != 1) & (expected[0] != 4)
    assert_same(found, [part[kept] for part in expected])
    # in the second set of boxes only
    split = (low[:, :20], high[:, :20], bad_low[:, 20:], bad_high[:, 20:])
    assert_same(overlapping(*split), compared_all(*split))
    # all robots
    everywhere = torch.full_like(low, value)
    assert len(overlapping(everywhere, everywhere)[0]) == 0


def test_a_stray_primitive_does_not_hide_the_others():
    """Find the pairs of a robot of which one box is 10^9 robots away."""
    low, high = cloud(5, 1, 100)
    low[0, 3] += 1e9
    high[0, 3] += 1e9
    assert_same(overlapping(low, high), compared_all(low, high))


@pytest.mark.usefixtures("by_torch")
def test_chunks_change_nothing(monkeypatch):
    """Give the same pairs when candidates are compared a few at a time, fewer even than one box has."""
    low, high = cloud(1, 3, 80, spacing=0.4, mixed=1.5)
    expected = overlapping(low, high)
    between = overlapping(low[:, :30], high[:, :30], low[:, 30:], high[:, 30:])
    for chunk in (1, 7, 1000):
        monkeypatch.setattr(columns, "CHUNK", chunk)
        assert_same(overlapping(low, high), expected)
        assert_same(overlapping(low[:, :30], high[:, :30], low[:, 30:], high[:, 30:]), between)


@pytest.mark.usefixtures("by_torch")
def test_candidates_of_a_few_large_boxes_stay_few(monkeypatch):
    """Compare about as many candidates with one edge 100 times longer than the others as without it."""
    tested = []
    plain = columns._expanded

    def counted(begin, count):
        tested.append(int(count.sum()))
        return plain(begin, count)

    monkeypatch.setattr(columns, "_expanded", counted)
    low, high = cloud(0, 1, 3000, spacing=2.0)
    overlapping(low, high)
    without = sum(tested)
    tested.clear()
    high[0, 0, 0] = low[0, 0, 0] + 100.0
    overlapping(low, high)
    # all 3000 are compared with the long one at most twice a column, of which it has up to four
    assert sum(tested) < without + 8 * 3000
    assert without < 30 * 3000  # and far from all 4.5 million


def test_excluded_pairs_never_count():
    """Leave out the excluded keys, in all robots, within a set and between two; ties with none left are fine."""
    low, high = cloud(2, 3, 60, spacing=0.6)
    rng = np.random.default_rng(0)
    keys = torch.from_numpy(np.unique(rng.integers(0, 3600, 1500)))
    assert_same(overlapping(low, high, excluded=keys), compared_all(low, high, excluded=keys))
    split = (low[:, :24], high[:, :24], low[:, 24:], high[:, 24:])
    keys = keys[keys < 24 * 36]
    assert_same(overlapping(*split, excluded=keys), compared_all(*split, excluded=keys))
    assert_same(overlapping(low, high, excluded=keys[:0]), overlapping(low, high))
    assert len(overlapping(low, high, excluded=torch.arange(3600))[0]) == 0


def test_more_pairs_than_there_is_room_for_at_first(way, monkeypatch):
    """Find all pairs, too, where they are more than what is made ready for them: then compiled code is asked again."""
    low, high = cloud(0, 3, 60, spacing=0.1)
    expected = compared_all(low, high)
    calls: list[tuple] = []

    def counted(name):
        function = function_of(name)
        return lambda *given: calls.append(given) or function(*given)

    if way == "compiled":
        monkeypatch.setattr(broad_phase, "function_of", counted)
    monkeypatch.setattr(broad_phase, "ROOM", 1)
    assert len(expected[0]) > 3 * 60
    assert_same(overlapping(low, high), expected)
    assert len(calls) == (2 if way == "compiled" else 0)


def test_large_sets_are_those_of_all_comparisons():
    """Find what comparing all boxes finds in a folded sheet, and in a rope that lies far from where it began."""
    grid = torch.stack(torch.meshgrid(*2 * [torch.linspace(0, 1, 30, dtype=torch.float64)], indexing="ij"), -1)
    x, y = grid.flatten(0, 1).unbind(1)
    sheet = torch.stack([torch.where(x < 0.5, x, 1 - x), y, 0.01 * (x > 0.5)], 1)
    along = torch.linspace(0, 60, 500, dtype=torch.float64)
    rope = torch.stack([1e3 + along.cos(), 0.01 * along, along.sin()], 1)
    for centre, half in ((sheet, 0.02), (rope, 0.1)):
        low, high = (centre - half)[None], (centre + half)[None]
        assert_same(overlapping(low, high), compared_all(low, high))
        split = (low[:, :200], high[:, :200], low[:, 200:], high[:, 200:])
        assert_same(overlapping(*split), compared_all(*split))


def test_runs_repeat_exactly():
    """Give the same lists again, also for float32 corners, whose comparison is exact too."""
    low, high = (corner.float() for corner in cloud(4, 4, 100, spacing=0.7))
    assert_same(overlapping(low, high), overlapping(low.clone(), high.clone()))
    assert_same(overlapping(low, high), compared_all(low, high))


def test_boxes_inside_out_are_refused():
    """Refuse boxes with low > high, which a tolerance that was set below zero in place would make."""
    low, high = cloud(0, 2, 5)
    with pytest.raises(InputError, match="robot 0: box 0 about its parts"):
        overlapping(low, low - 1.0)
    other_high = high.clone()
    other_high[1, 3] = low[1, 3] - 1.0
    with pytest.raises(InputError, match="robot 1: box 8 about its parts"):
        overlapping(low, high, low, other_high)


@pytest.mark.gpu
def test_a_gpu_finds_the_same_pairs():
    """Give on a GPU, number for number, what the CPU gives."""
    low, high = cloud(0, 4, 200, spacing=0.8, mixed=1.0)
    keys = torch.arange(0, 40000, 7)
    here = overlapping(low, high, excluded=keys)
    there = overlapping(low.cuda(), high.cuda(), excluded=keys.cuda())
    assert_same([part.cpu() for part in there], here)
    split = (low[:, :80], high[:, :80], low[:, 80:], high[:, 80:])
    assert_same([part.cpu() for part in overlapping(*(corner.cuda() for corner in split))], overlapping(*split))
