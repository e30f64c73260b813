"""Functions recorded as tapes of operations on a CPU."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.solve.topologies import chain, cliques, random_values
from torchdismech.errors import InputError
from torchdismech.fused import Fused
from torchdismech.native import Unavailable, library, taped, taping, unless_all
from torchdismech.native.calls import compiled_call
from torchdismech.native.graphs import recorded
from torchdismech.rows import weighted_norms
from torchdismech.solve import linear

CPU = torch.device("cpu")


def replays(code, *given):
    """Return what a tape of code(*tensors) gives for other numbers in the same tensors, and what the code gives."""
    tensors = [torch.rand(shape, dtype=torch.float64) for shape in given]
    tape = recorded(lambda: code(*tensors), CPU, None)
    for tensor in tensors:
        tensor.uniform_(-2, 2)
    found = tape.replay()
    return found, code(*tensors)


@pytest.mark.parametrize(
    "code",
    [
        lambda x, y: x @ y + 2 * x,
        lambda x, y: torch.where(x > y, x.clone(), y[0]).to(torch.float32),
        lambda x, y: x.t().unflatten(1, (1, 3)).sum(2),
        lambda x, y: torch.cat([x, y]).split([2, 4])[1],
        lambda x, y: x.new_zeros(3, 3).index_add(0, torch.tensor([2, 0, 1]), y),
        lambda x, y: torch.zeros_like(x).add_(y).mul_(x),
        lambda x, y: torch.linalg.cholesky_ex(x @ x.t() + torch.eye(3, dtype=x.dtype)).L,
        lambda x, y: x.index_put((torch.tensor([0, 2]),), y[0]),
        lambda x, y: torch.full_like(x, 3.0).expand(2, 3, 3).contiguous().sum(0) * x.amax(1),
        lambda x, y: (x.flatten()[::2] - y.reshape(-1)[1::2].sum()).abs(),
    ],
)
def test_new_numbers(code):
    """Give what the code gives, to the last bit: products, choices, views, sums, operations in place, constants."""
    found, expected = replays(code, (3, 3), (3, 3))
    assert torch.equal(found, expected)


X = torch.tensor([[-1.5, 0.0, torch.nan], [2.0, -0.0, torch.inf]], dtype=torch.float64)
OTHER = torch.tensor([[2.0, -3.0, 1.0], [2.0, 5.0, torch.nan]], dtype=torch.float64)
WHOLE = torch.tensor([[3, -2, 1], [0, 5, 2]])
TRUE = torch.tensor([[True, False, True], [False, True, True]])
PLACES, ORDER = torch.tensor([2, 0, -1]), torch.tensor([2, 0, 1])

TABLED = {
    **{
        f"{name} of {kind}": (lambda a, b, name=name: getattr(torch, name)(a, b), a, b)
        for name in ("add", "sub", "mul", "div", "maximum", "minimum", "eq", "ne", "lt", "le", "gt", "ge")
        for kind, a, b in (
            ("numbers", X, OTHER),
            ("short numbers", X.float(), OTHER.float()),
            ("columns", X.t(), OTHER[0, :, None]),
            ("integers", WHOLE, WHOLE.flip(0)),
            ("both", X, WHOLE),
        )
        if (name, kind) != ("div", "integers")
    },
    "neg": (torch.neg, X),
    "abs": (torch.abs, X),
    "reciprocal": (torch.reciprocal, X),
    "not": (torch.logical_not, TRUE),
    "scaled": (lambda x: 2 * x - 1, X),
    "compared with a number": (lambda x: (x > 0) | (x == -1.5), X),
    "squared": (lambda x: x**2, X),
    "clamped": (lambda x: x.clamp_min(0.5), X),
    "and, or": (lambda a, b: a & (b | ~a), TRUE, TRUE.flip(1)),
    "chosen": (lambda c, a, b: torch.where(c, a, b), TRUE, X, OTHER[:1]),
    "chosen or a number": (lambda c, a: torch.where(c, a, 0.0), TRUE, X),
    "rows": (lambda x: x.index_select(1, ORDER), X),
    "indexed": (lambda x: x[:, PLACES], X),
    "indexed from the end": (lambda x: x.t()[PLACES], X),
    "put": (lambda x, y: x.t().index_put((ORDER,), y[:, 0]), X, OTHER),
    "copied to": (lambda x, y: x.index_copy(1, ORDER, y), X, OTHER),
    "added to": (lambda x, y: x.index_add(1, ORDER, y), X, OTHER),
    "added to rows, some of them twice": (
        lambda x, y: x.index_add(0, torch.tensor([1, 1, 0]), y.t()[:, :3]),
        X[:, :2],
        OTHER,
    ),
    "one number added to each row": (
        lambda x, y: x.index_add(0, torch.tensor([1, 1, 0]), y.t()[:3, :1].expand(3, 3)),
        X[:, :3],
        OTHER,
    ),
    "columns added to rows": (
        lambda x, y: x.index_add(0, torch.tensor([1, 0, 1]), y[:, :3].t().expand(3, 2)),
        X[:, :2],
        OTHER,
    ),
    "added to one after the other": (lambda x, y: x[0].index_add(0, torch.tensor([1, 1, 0]), y[0]), X, OTHER),
    "added to whole numbers": (lambda x, y: x.clone().index_add_(1, ORDER, y), WHOLE, WHOLE.flip(0)),
    "filled at places": (lambda x: x.index_fill(1, ORDER[:2], 3.0), X),
    "of a slice": (lambda x: torch.ops.aten.slice_backward(x[:, :2], [2, 5], 1, 1, 5, 2), X),
    "of a part": (lambda x: torch.ops.aten.select_backward(x[0], [2, 3], 0, 1), X),
    "joined": (lambda x, y: torch.cat([x, y[:, :1]], 1), X, OTHER),
    "stacked": (lambda x, y: torch.stack([x, y], 2), X, OTHER),
    "largest": (lambda x: x.amax(1), X),
    "largest of all": (lambda x: x[:, :2].amax((0, 1), keepdim=True), X),
    "sum of few": (lambda x: x.sum(1, keepdim=True) + x[:, :2].sum(1, keepdim=True), X),
    "sum of few columns": (lambda x: x.t().sum(0), X),
    "sum of zeros": (lambda x: 1 / x.sum(1), torch.tensor([[-0.0, -0.0], [0.0, -0.0]])),
    "sum of whole numbers": (lambda x: x.sum(1) + x.sum(), WHOLE),
    "counted": (lambda c: c.sum(1) + c.sum(), TRUE),
    "smallest": (lambda x: x.amin(0), X),
    "any, all": (lambda c: torch.stack([c.any(1), c.all(1)]), TRUE),
    "as other numbers": (lambda x: x.to(torch.float32), X),
    "as truths": (lambda x: x.to(torch.bool), WHOLE),
    "of truths": (lambda c: c.to(torch.float64) + c.long(), TRUE),
    "in place": (lambda x, y: x.clone().add_(y).mul_(2).copy_(x + y).t(), X, OTHER),
    "filled": (lambda x: torch.cat([x.clone().fill_(3.0), x.clone().zero_()]), X),
    "put in place": (lambda x, y: torch.where(y > 0, x, y, out=torch.empty_like(x)), X, OTHER),
    "in five dimensions": (lambda x: x[:, None, :, None, None].expand(2, 2, 3, 2, 2).permute(4, 2, 0, 3, 1) * 2.0, X),
}


@pytest.mark.parametrize("name", TABLED)
def test_operations_in_the_table(name):
    """Give what torch gives, to the last bit, and call no operation of torch for it."""
    code, *given = TABLED[name]
    tensors = [torch.zeros_like(x) for x in given]
    tape = recorded(lambda: code(*tensors), CPU, None)
    for own, x in zip(tensors, given, strict=True):
        own.copy_(x)
    torch.testing.assert_close(tape.replay(), code(*given), rtol=0, atol=0, equal_nan=True)
    assert len(tape.operations) == 1


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 37), (3, 37), (5, 37, 3), (3, 1, 37), (37, 3, 41)])
def test_sums_of_few_numbers_round_as_torchs(shape, dtype):
    """Add three numbers of very different size in the order in which torch does, however they lie in memory."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, dtype=dtype, generator=generator)
    x *= 10 ** (6 * torch.rand(shape, dtype=dtype, generator=generator))
    few = [dim for dim, size in enumerate(shape) if size <= 3]
    layouts = [x, x.transpose(0, -1).contiguous().transpose(0, -1), x.new_zeros(*shape, 2)[..., 0].copy_(x)]
    for given in layouts:
        tape = recorded(lambda given=given: [given.sum(dim) for dim in few], CPU, None)
        assert len(tape.operations) == 1
        given.mul_(1.7)
        assert all(torch.equal(a, given.sum(dim)) for a, dim in zip(tape.replay(), few, strict=True))


def test_what_nobody_reads_is_not_done_again():
    """Leave out what is written and not read, keep what is read, held elsewhere, or written outside of the tape."""
    x, outside, held = torch.rand(4), torch.zeros(4), []

    def code():
        lost = (x * 2).add_(1)  # not read by anyone: two operations
        held.append(x * 3)
        outside.copy_(x)
        return x + lost.new_ones(4)

    tape = recorded(code, CPU, None)
    x.fill_(7.0)
    assert tape.replay().tolist() == [8.0] * 4
    assert held[-1].tolist() == [21.0] * 4 and outside.tolist() == [7.0] * 4
    kept = recorded(lambda: (x * 2).add_(1) + x, CPU, None)
    x.fill_(3.0)
    assert kept.replay().tolist() == [10.0] * 4


def test_loops_that_nobody_reads_are_not_run_again():
    """Leave out compiled work that also has an empty list to write to, and say which tensors are read."""
    x, y = torch.rand(3, 8, dtype=torch.float64), torch.rand(3, 8, dtype=torch.float64)
    doubled = Fused(lambda of: [of + of], "doubled")

    def code():
        doubled(3, y)
        return 3 * doubled(3, x)

    tape = recorded(code, CPU, None)
    assert torch.equal(tape.replay(), (6 * x)[None])
    assert x.data_ptr() in tape.reads
    assert y.data_ptr() not in tape.reads


def test_places_that_are_not_there():
    """Refuse an index that has come to be out of range, as torch does."""
    x, places = torch.arange(3.0), torch.tensor([0, 2])
    tape = recorded(lambda: (x + 1)[places], CPU, None)
    places.copy_(torch.tensor([1, -3]))
    assert tape.replay().tolist() == [2, 1]
    for wrong in (3, -4):
        places[0] = wrong
        with pytest.raises(IndexError, match="gather: an index is out of range"):
            tape.replay()


def test_without_a_compiler_torch_is_called(monkeypatch):
    """Replay the operations one by one where no table can be had."""

    def missing():
        raise Unavailable("no compiler")

    monkeypatch.setattr("torchdismech.native.tape.library", missing)
    x = torch.ones(3)
    tape = recorded(lambda: (x + 1) * 2, CPU, None)
    x.fill_(2.0)
    assert tape.replay().tolist() == [6, 6, 6] and len(tape.operations) == 2


def test_memory_stays():
    """Write the same tensors each time, also constants that somebody else writes to, and run no Python."""
    runs = []
    x = torch.ones(3)

    def code():
        runs.append(1)
        kept = torch.zeros(3)  # what is handed out is written anew
        passing = torch.zeros(3)
        passing += x
        return kept, passing, torch.ones(2) * 2 + x[:2]

    tape = recorded(code, CPU, None)
    assert len(runs) == 2  # one to warm up
    for number in (5.0, 7.0):
        x.fill_(number)
        found = tape.replay()
        assert found is tape.outputs
        assert [tensor.tolist() for tensor in found] == [[0] * 3, [number] * 3, [2 + number] * 2]
        found[0].fill_(3.0)
    assert len(runs) == 2


def test_what_is_the_same_each_time_is_done_once():
    """Leave out what depends on no number that may change."""
    x = torch.ones(3)
    tape = recorded(lambda: torch.zeros(3).add(1).mul(2) + torch.full_like(x, 2.0).sqrt() + x, CPU, None)
    assert len(tape.operations) == 1  # the last sum


def test_work_that_torch_does_not_see():
    """Do it in each replay: compiled code, and what is said to be such work."""
    add = Fused(lambda a, b: [a + b, a * b], "a test")
    a, b, total = torch.ones(4, 2), torch.full((4, 2), 3.0), np.zeros(1)

    def work(values):
        total[0] += values.numpy().sum()

    def code():
        values = add(4, a, b)
        taped(lambda: work(values))
        assert taping() == (len(calls) > 0)
        calls.append(1)
        return values

    calls = []
    tape = recorded(code, CPU, None)
    assert not taping()
    before = total[0]
    a.fill_(2.0)
    assert torch.equal(tape.replay(), torch.stack([a + b, a * b]))
    assert total[0] - before == 2 * 4 * (5 + 6)


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x * x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x if x.sum() > 0 else -x,
        lambda x: torch.from_numpy(x.numpy() * 2),
        lambda x: torch.tensor(x.tolist()),
        lambda x: torch.tensor(np.asarray(x)),
    ],
)
def test_code_that_reads_numbers_is_refused(code):
    """Name the code, and record again afterwards."""
    x = torch.ones(3)
    with pytest.raises(InputError, match=r"<lambda>: cannot be recorded \(.* reads numbers\); call the"):
        recorded(lambda: code(x), CPU, None)
    assert not taping()
    assert recorded(lambda: x + 1, CPU, None).replay().tolist() == [2, 2, 2]


@pytest.mark.parametrize("robots", [1, 9])
@pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
@pytest.mark.parametrize(
    "options",
    [
        {"name": "banded"},
        {"name": "banded", "method": "lapack"},
        {"name": "banded", "method": "blocks"},
        {"name": "multifrontal"},
        {"name": "dense"},
    ],
)
def test_solvers(options, kind, robots):
    """Factor and solve other matrices than the recorded ones, among them some that are singular or not wanted."""
    pattern = chain(31, symmetric=kind == "definite")
    solver = linear.make(pattern=pattern, **options)
    values = random_values(pattern, kind, robots, 0)
    rhs = torch.ones(robots, pattern.n, dtype=torch.float64)
    rows = torch.ones(robots, dtype=torch.bool)

    def solution():
        factor = solver.factor(values, rows)
        return factor.solve(rhs), factor.ok

    tape = recorded(solution, CPU, None)
    for seed in range(3):
        values.copy_(random_values(pattern, kind, robots, seed))
        values[:, : seed // 2] = 0
        rhs.fill_(1.0 + seed)
        rows.copy_(torch.arange(robots) % (seed + 2) == 0)
        x, ok = tape.replay()
        expected, expected_ok = solution()
        assert torch.equal(ok, expected_ok)
        assert torch.equal(x, expected)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("robots", [1, 9])
def test_rows_that_grow_are_solved_in_replays(compiled, robots, transpose):
    """Exchange rows in the replays whose matrices need it, for these alone, and go on with what follows in one call."""
    n = 64
    pattern = cliques([(k, k + 1) for k in range(n - 1)], n, False, np.arange(n))
    solver = linear.make("banded", pattern, method="native")
    values = torch.from_numpy(np.sign(pattern.rows - pattern.cols))[:, None].repeat(1, robots).double()
    rhs = torch.ones(robots, n, dtype=torch.float64)

    def solution():
        values[pattern.diagonal] = pivots
        factor = solver.factor(values)
        return 2 * factor.solve(2 * rhs, transpose), factor.ok

    pivots = torch.full((robots,), 4.0, dtype=torch.float64)
    tape = recorded(solution, CPU, None)
    assert len(tape.operations) == 1 and not tape.calls_torch
    for round in range(4):
        pivots.fill_(3.0 + round)
        pivots[torch.arange(robots) % 3 == round - 1] = 1e-10  # none, then others each time
        rhs.uniform_(-1, 1)
        x, ok = (found.clone() for found in tape.replay())
        expected, _ = solution()
        assert ok.all() and torch.equal(x, expected)
        dense = pattern.to_dense(values)
        exact = 4 * torch.linalg.solve(dense.mT if transpose else dense, rhs)
        # condition numbers below 200 times machine epsilon; without exchanges pivots of 1e-10 take 10 of 16 digits
        assert ((x - exact).abs().amax(1) <= 1e-12 * exact.abs().amax(1)).all()


def test_work_where_flags_fail(compiled):
    """Do work where not all flags hold, in replays as in the recording, and go on with what comes behind it."""
    x, flags = torch.ones(3), torch.tensor([True, True])

    def code():
        doubled = x * 2
        unless_all(flags, lambda made, given: made.copy_(given), [doubled], [x])
        return doubled + 1

    tape = recorded(code, CPU, None)
    assert len(tape.operations) == 1
    for number, held in enumerate((False, True, False)):
        x.fill_(number)
        flags[1] = held
        assert tape.replay().tolist() == code().tolist() == [(2 if held else 1) * number + 1.0] * 3


@pytest.fixture
def compiled():
    """Skip where compiled code cannot be had."""
    try:
        return library().code
    except Unavailable as missing:
        pytest.skip(str(missing))


def test_compiled_calls_in_a_row_are_one(compiled):
    """Make compiled calls that follow one another in one call, with Python between those that do not."""
    x, weight = torch.rand(3, 40, dtype=torch.float64), torch.rand(40, dtype=torch.float64)

    def plain():
        return weighted_norms(2 * x * weighted_norms(x, weight)[:, None], weight)

    def mixed():
        return weighted_norms(x * torch.linalg.vector_norm(x, dim=1, keepdim=True), weight)

    for code, one in ((plain, True), (mixed, False)):
        tape = recorded(code, CPU, None)
        assert (len(tape.operations) == 1) == one and tape.calls_torch != one
        x.uniform_(-1, 1)
        assert torch.equal(tape.replay(), code())


def test_an_index_out_of_range_is_named_among_calls(compiled):
    """Name the operation whose index is out of range, whatever comes before and after it in one call."""
    x, index, weight = torch.rand(5), torch.tensor([0, 4]), torch.ones(2)
    tape = recorded(lambda: weighted_norms((x * weighted_norms(x[None], x))[index][None], weight), CPU, None)
    assert len(tape.operations) == 1
    index[1] = 5
    with pytest.raises(IndexError, match="gather: an index is out of range"):
        tape.replay()


def test_only_whole_numbers_go_to_compiled_calls(compiled):
    """Leave work to Python that is no compiled function, or has other arguments than whole numbers and addresses."""
    function = compiled.most_arguments
    call = compiled_call(partial(function, 1, None))
    assert call is not None and call.arguments == (1, 0)
    for work in (partial(function, 0.5), partial(function, *range(100)), partial(int, 3), lambda: None):
        assert compiled_call(work) is None
