"""Functions recorded as tapes of operations on a CPU: what is done again, and what cannot be recorded."""

import numpy as np
import pytest
import torch

from torchdismech.errors import InputError
from torchdismech.fused import Fused
from torchdismech.native import Unavailable, taped, taping
from torchdismech.native.graphs import recorded
from torchdismech.sparse.scatter import Scatter

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


def test_what_is_handed_through_is_read():
    """Count a tensor as read that no operation does, but that is an output as it came."""
    x, y, z = (torch.ones(3, dtype=torch.float64) for _ in range(3))
    tape = recorded(lambda: (2 * x, [y]), torch.device("cpu"), None)
    assert tape.reads is not None
    assert {x.data_ptr(), y.data_ptr()} <= tape.reads and z.data_ptr() not in tape.reads


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


def test_sums_that_nobody_reads_are_not_made_again():
    """Leave out sums by compiled code, although these are told of tensors that no tape made."""
    sums = Scatter((3, 4), np.array([0, 1, 1, 2]), np.arange(4), np.ones(4), torch.float64)
    x, y = torch.rand(4, 8, dtype=torch.float64), torch.rand(4, 8, dtype=torch.float64)

    def code():
        sums(y)
        return 3 * sums(x)

    tape = recorded(code, CPU, None)
    x.uniform_()
    assert torch.equal(tape.replay(), 3 * sums(x))
    assert x.data_ptr() in tape.reads
    assert y.data_ptr() not in tape.reads


def test_without_a_compiler_torch_is_called(monkeypatch):
    """Replay the operations one by one where no table can be had."""

    def missing():
        raise Unavailable("no compiler")

    monkeypatch.setattr("torchdismech.native.recorder.library", missing)
    x = torch.ones(3)
    tape = recorded(lambda: (x + 1) * 2, CPU, None)
    x.fill_(2.0)
    assert tape.replay().tolist() == [6, 6, 6] and len(tape.work) == 2


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
    assert len(tape.work) == 1  # the last sum


def test_random_numbers_are_new_each_time():
    """Draw anew in each replay, also numbers that depend on no tensor: those of the recording were taken each time."""
    tape = recorded(lambda: torch.randn(3) + torch.rand(3), CPU, None)
    first = tape.replay().clone()
    assert not torch.equal(tape.replay(), first)


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
