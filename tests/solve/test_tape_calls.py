"""Solvers and other compiled code on tapes: calls that follow one another are one."""

from functools import partial

import numpy as np
import pytest
import torch

from tests.solve.topologies import chain, cliques, random_values
from torchdismech.native import unless_all
from torchdismech.native.calls import compiled_call
from torchdismech.native.graphs import recorded
from torchdismech.rows import weighted_norms
from torchdismech.solve import linear

CPU = torch.device("cpu")


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
def test_rows_that_grow_are_solved_in_replays(compiler, robots, transpose):
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
    assert len(tape.work) == 1 and not tape.calls_torch
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


def test_work_where_flags_fail(compiler):
    """Do work where not all flags hold, in replays as in the recording, and go on with what comes behind it."""
    x, flags = torch.ones(3), torch.tensor([True, True])

    def code():
        doubled = x * 2
        unless_all(flags, lambda made, given: made.copy_(given), [doubled], [x])
        return doubled + 1

    tape = recorded(code, CPU, None)
    assert len(tape.work) == 1
    for number, held in enumerate((False, True, False)):
        x.fill_(number)
        flags[1] = held
        assert tape.replay().tolist() == code().tolist() == [(2 if held else 1) * number + 1.0] * 3


def test_compiled_calls_in_a_row_are_one(compiler):
    """Make compiled calls that follow one another in one call, with Python between those that do not."""
    x, weight = torch.rand(3, 40, dtype=torch.float64), torch.rand(40, dtype=torch.float64)

    def plain():
        return weighted_norms(2 * x * weighted_norms(x, weight)[:, None], weight)

    def mixed():
        return weighted_norms(x * torch.linalg.vector_norm(x, dim=1, keepdim=True), weight)

    for code, one in ((plain, True), (mixed, False)):
        tape = recorded(code, CPU, None)
        assert (len(tape.work) == 1) == one and tape.calls_torch != one
        x.uniform_(-1, 1)
        assert torch.equal(tape.replay(), code())


def test_an_index_out_of_range_is_named_among_calls(compiler):
    """Name the operation whose index is out of range, whatever comes before and after it in one call."""
    x, index, weight = torch.rand(5), torch.tensor([0, 4]), torch.ones(2)
    tape = recorded(lambda: weighted_norms((x * weighted_norms(x[None], x))[index][None], weight), CPU, None)
    assert len(tape.work) == 1
    index[1] = 5
    with pytest.raises(IndexError, match="gather: an index is out of range"):
        tape.replay()


def test_only_whole_numbers_go_to_compiled_calls(compiler):
    """Leave work to Python that is no compiled function, or has other arguments than whole numbers and addresses."""
    function = compiler.code.most_arguments
    call = compiled_call(partial(function, 1, None))
    assert call is not None and call.arguments == (1, 0)
    for work in (partial(function, 0.5), partial(function, *range(100)), partial(int, 3), lambda: None):
        assert compiled_call(work) is None
