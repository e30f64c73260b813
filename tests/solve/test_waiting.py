"""What a GPU does from a factorisation to its solves, without the host waiting for any of it."""

from types import SimpleNamespace

import pytest
import torch

from tests.solve.topologies import chain, mid_edges, random_values
from tests.solve.waiting import DEVICE, nothing_to_wait_for
from torchdismech.native import gpu
from torchdismech.solve import linear
from torchdismech.solve.linear.triton_band import TritonBand
from torchdismech.sparse import Scatter
from torchdismech.sparse.scatter import WIDE, _row_sums

BATCH = 5
KINDS = ["definite", "indefinite", "unsymmetric"]


@pytest.mark.parametrize(
    "code",
    [
        lambda x: x.sum().item(),
        lambda x: bool((x > 0).any()),
        lambda x: x[0].tolist(),
        lambda x: x[x > 0],
        lambda x: (x > 0).nonzero(),
        lambda x: x.cpu(),
        lambda x: x + torch.ones(3).to(DEVICE),
        lambda x: x + torch.tensor([1.0], device=DEVICE),
        lambda x: x[:, [0, 2]],
        lambda x: x.__setitem__([0], 1.0),
    ],
)
def test_waiting_is_seen(code):
    """Notice code that reads a number, has shapes that depend on numbers, or copies between host and device."""
    with pytest.raises((AssertionError, RuntimeError, NotImplementedError)), nothing_to_wait_for():
        code(torch.zeros(2, 3, device=DEVICE))


def factor_and_solve(solver, kind, device):
    """Return a function that factors some rows on the device and solves, also transposed."""
    values = random_values(solver.pattern, "definite", BATCH).to(device)
    rows = (torch.arange(BATCH) % 2 == 0).to(device)
    rhs = torch.ones(BATCH, solver.pattern.n, dtype=torch.float64).to(device)

    def run():
        factor = solver.factor(values, rows, indefinite=kind == "indefinite")
        return factor.ok, factor.solve(rhs), factor.solve(rhs, transpose=True)

    return run


SOLVERS = [{"name": "banded"}, {"name": "banded", "method": "blocks"}, {"name": "multifrontal"}, {"name": "dense"}]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", SOLVERS)
def test_solvers(options, kind, monkeypatch):
    """Wait for nothing once the tables are on the device, and give results of the same shapes as on a CPU."""
    monkeypatch.setattr(TritonBand, "_launch", lambda self, kernel, *arguments, **constants: None)
    for topology in (chain, mid_edges):
        solver = linear.make(pattern=topology(symmetric=kind != "unsymmetric"), **options)
        expected = factor_and_solve(solver, kind, "cpu")()
        run = factor_and_solve(solver, kind, DEVICE)
        run()
        with nothing_to_wait_for():
            found = run()
        for there, here in zip(found, expected, strict=True):
            assert there.device == DEVICE
            assert (there.shape, there.dtype) == (here.shape, here.dtype)


class Recorded:
    """Stands for a kernel that is not run."""

    def __init__(self):
        self.grids = []

    def __getitem__(self, grid):
        self.grids.append(grid)
        return lambda *arguments, **constants: None


@pytest.mark.parametrize("robots", [2, WIDE])
def test_sums_of_rows(robots):
    """Wait for nothing in the sums, by Triton and without."""
    sums = Scatter((3, 4), [0, 0, 1], [0, 3, 2], [1.0, -2.0, 0.5], torch.float64).to(DEVICE)
    x = torch.zeros(4, robots, dtype=torch.float64, device=DEVICE)
    kernels = gpu.Kernels(SimpleNamespace(sum_rows=Recorded()), "3.7", interpreted=False)
    with nothing_to_wait_for():
        plain = _row_sums(*sums._stored("matrix"), *sums._stored("transposed"), x)
        by_triton = kernels.sum_rows(*sums._stored("matrix"), x)
    assert plain.shape == by_triton.shape == (3, robots)
    assert kernels.code.sum_rows.grids == [(3, 1)]


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("options", SOLVERS)
def test_solvers_on_a_gpu(options, kind):
    """Wait for nothing on a real one, where torch watches."""
    solver = linear.make(pattern=chain(31, symmetric=kind != "unsymmetric"), **options)
    expected = factor_and_solve(solver, kind, "cpu")()
    run = factor_and_solve(solver, kind, "cuda")
    run()
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = run()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for there, here in zip(found, expected, strict=True):
        # condition numbers below 1e3
        torch.testing.assert_close(there.cpu(), here, rtol=1e-11, atol=1e-13)
