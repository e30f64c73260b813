"""The kernels for GPUs: interpreted on a CPU against the solvers there, compiled for a GPU, and on a GPU."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.solve import banded_factors
from tests.solve.banded_factors import RELATIVE
from tests.solve.linear_contract import right_sides
from tests.solve.topologies import band, chain, cliques, grid, hinges, random_values
from torchdismech.errors import InputError
from torchdismech.native import Unavailable, gpu
from torchdismech.solve import linear
from torchdismech.solve.linear import choice
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.triton_band import TritonBand
from torchdismech.sparse import Pattern, Scatter

KINDS = ["definite", "indefinite", "unsymmetric"]
BATCH = gpu.LANES + 5  # a full program and one with lanes that hold no robot

needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


@pytest.fixture
def interpreted():
    """Kernels that Triton interprets, so that they run on CPU tensors; other tests get them as they were."""
    module = "torchdismech.native.triton_kernels"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRITON_INTERPRET", "1")
        patch.setattr(gpu.kernels, "outcome", None)
        patch.delitem(sys.modules, module, raising=False)
        yield gpu.kernels()
        sys.modules.pop(module, None)


def on_interpreter(test):
    """Run a test with interpreted kernels; lanes without a robot, and bad robots, divide by zero there."""
    for mark in (
        needs_triton,
        pytest.mark.usefixtures("interpreted"),
        pytest.mark.filterwarnings("ignore::RuntimeWarning"),
    ):
        test = mark(test)
    return test


def assert_solves(pattern, values, device="cpu", **options):
    """Compare the kernels with numpy, also transposed."""
    for transpose in (False, True):
        banded_factors.assert_solves(pattern, values, transpose, "triton", device, **options)


@on_interpreter
class TestBands:
    """What the kernels for bands compute."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("kind", KINDS)
    def test_rods(self, kind, dtype):
        """Solve for more robots than a program has lanes, to the accuracy of the type."""
        pattern = chain(5, symmetric=kind != "unsymmetric")
        assert_solves(pattern, random_values(pattern, kind, BATCH).to(dtype), indefinite=kind == "indefinite")

    @pytest.mark.parametrize(("lower", "upper"), [(0, 0), (0, 2), (1, 1), (5, 2), (2, 6)])
    @pytest.mark.parametrize("n", [1, 9])
    def test_any_bandwidths(self, n, lower, upper):
        """Solve diagonal, triangular and unequally wide bands, also where a band is wider than the matrix."""
        pattern = band(n, lower, upper)
        assert_solves(pattern, random_values(pattern, "unsymmetric", 3))

    def test_wide_band(self):
        """Solve with more numbers than a lane's registers hold, one line at a time."""
        pattern = grid(4)
        assert BandedSolver(pattern).order.lower == 17
        assert_solves(pattern, random_values(pattern, "definite", 3))

    def test_no_robots(self):
        """Factor and solve an empty batch."""
        pattern = chain(5)
        factor = linear.make("banded", pattern, method="triton").factor(
            torch.zeros(pattern.nnz, 0, dtype=torch.float64)
        )
        assert factor.solve(torch.zeros(0, pattern.n, dtype=torch.float64)).shape == (0, pattern.n)

    def test_values_and_right_sides_with_gaps(self):
        """Take tensors in other layouts, and give the same numbers."""
        pattern = chain(4)
        values = random_values(pattern, "definite", 8)
        rhs = right_sides(pattern, 8)
        solver = linear.make("banded", pattern, method="triton")
        x = solver.factor(values[:, ::2]).solve(rhs[::2])
        batch_last = rhs[::2].t().contiguous().t()
        other = solver.factor(values[:, ::2].contiguous()).solve(batch_last)
        assert other.stride() == batch_last.stride()
        assert torch.equal(x, other)

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf, 0.0, -1e3])
    def test_bad_rows_beside_good_ones(self, kind, fault):
        """Flag the robots with a bad pivot, give them zeros, and change no bit of the others."""
        pattern = chain(4, symmetric=kind == "definite")
        values = random_values(pattern, kind, 7)
        rhs = right_sides(pattern, 7)
        solver = linear.make("banded", pattern, method="triton")
        healthy = solver.factor(values).solve(rhs)
        bad = torch.arange(7) % 3 == 0
        if fault == 0.0:  # nothing holds the unknown: a zero pivot for LU, too
            alone = torch.from_numpy((pattern.rows == pattern.n // 2) | (pattern.cols == pattern.n // 2))
            values[alone[:, None] & bad] = fault
        else:
            values[pattern.diagonal[pattern.n // 2], bad] = fault
        good = torch.ones_like(bad) if kind == "unsymmetric" and fault == -1e3 else ~bad
        factor = solver.factor(values)
        x = factor.solve(rhs)
        assert torch.equal(factor.ok, good)
        assert torch.equal(x[~bad], healthy[~bad])
        assert torch.equal(x[~good], torch.zeros_like(x[~good]))

    def test_a_nan_that_no_pivot_meets(self):
        """Report a NaN above the diagonal where there is nothing below to eliminate."""
        pattern = Pattern.union(4, [0, 1, 2], [1, 2, 3], False, np.arange(4))
        values = random_values(pattern, "unsymmetric", pattern.nnz + 1)
        values[range(pattern.nnz), range(pattern.nnz)] = torch.nan
        factor = linear.make("banded", pattern, method="triton").factor(values)
        assert torch.equal(factor.ok, torch.arange(pattern.nnz + 1) == pattern.nnz)

    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("n", [7, 8])
    def test_a_loose_unknown_is_found_wherever_it_is(self, n, symmetric):
        """Report a zero pivot up to the last one, after which there is nothing to eliminate."""
        pattern = cliques([(k, k + 1) for k in range(n - 1)], n, symmetric, np.arange(n))
        values = random_values(pattern, "definite", n + 1)
        for k in range(n):
            values[torch.from_numpy((pattern.rows == k) | (pattern.cols == k)), k] = 0
        factor = linear.make("banded", pattern, method="triton").factor(values)
        assert torch.equal(factor.ok, torch.arange(n + 1) == n)

    @pytest.mark.parametrize("symmetric", [True, False])
    def test_rows_that_grow_are_not_ok(self, symmetric):
        """Report the robots whose tiny pivots row exchanges would have avoided, and solve the rest."""
        n = 16
        pattern = cliques([(k, k + 1) for k in range(n - 1)], n, symmetric, np.arange(n))
        values = torch.zeros(pattern.nnz, 4, dtype=torch.float64)
        values[pattern.diagonal] = torch.tensor([4.0, 1e-10, 0.0, 1e-3], dtype=torch.float64)
        walk = np.arange(1, n)
        values[pattern.position(walk, walk - 1)] = 1.0
        if not symmetric:
            values[pattern.position(walk - 1, walk)] = -1.0
        factor = linear.make("banded", pattern, method="triton").factor(values, indefinite=symmetric)
        assert factor.ok.tolist() == [True, False, False, True]
        residual = torch.einsum("bij,bj->bi", pattern.to_dense(values), factor.solve(torch.ones(4, n).double())) - 1
        assert residual[factor.ok].abs().max() < 1e-9  # terms of 1e3 to 1e6 times machine epsilon

    def test_any_sign(self):
        """Solve definite and indefinite matrices by one kernel, and know which is which."""
        pattern = chain(4)
        definite = torch.arange(BATCH) % 2 == 1
        values = torch.where(definite, *(random_values(pattern, kind, BATCH) for kind in ("definite", "indefinite")))
        rhs = right_sides(pattern, BATCH)
        solver = linear.make("banded", pattern, method="triton")
        factor, indefinite = solver.factor_any_sign(values)
        assert factor.ok.all() and torch.equal(indefinite, ~definite)
        expected = torch.linalg.solve(pattern.to_dense(values), rhs)
        x = factor.solve(rhs)
        assert torch.allclose(x, expected, rtol=0, atol=RELATIVE[torch.float64] * float(expected.abs().max()))
        assert torch.equal(x[definite], solver.factor(values).solve(rhs)[definite])

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    def test_rows_not_wanted(self, kind):
        """Leave out robots without a look at their values: some of a program's, and all of another's."""
        pattern = chain(4, symmetric=kind == "definite")
        solver = linear.make("banded", pattern, method="triton")
        tables = solver._lower_tables if kind == "definite" else solver._full_tables
        values, rhs = random_values(pattern, kind, BATCH), right_sides(pattern, BATCH)
        options = {"symmetric": True} if kind == "definite" else {"symmetric": False, "growth": 1e8}
        whole = TritonBand(tables, values, None, **options).solve(rhs, False)
        wanted = torch.arange(BATCH) % 3 == 0
        wanted[gpu.LANES :] = False
        values[:, ~wanted] = torch.nan
        some = TritonBand(tables, values, wanted, **options)
        assert torch.equal(some.ok, wanted)
        assert torch.equal(some.solve(rhs, False)[wanted], whole[wanted])

    def test_memory_counts_what_is_held(self):
        """Count the numbers of whole programs, and the scratch of a solve."""
        for symmetric in (True, False):
            pattern = chain(4, symmetric=symmetric)
            solver = linear.make("banded", pattern, method="triton")
            parts = solver.factor(random_values(pattern, "definite", 3)).parts
            held = parts._lower.nbytes + (0 if symmetric else parts._upper.nbytes)
            assert held < solver.memory(3) < 1.2 * held
            assert solver.memory(3) == BandedSolver(pattern).memory(3, "cuda")
            assert solver.memory(gpu.LANES + 1) == 2 * solver.memory(3)

    def test_describes_itself(self):
        """Say which version of Triton compiles the kernels, also where a GPU takes them by itself."""
        for method in ("triton", "auto"):
            assert f"triton {gpu.kernels().version}" in BandedSolver(chain(4), method=method).describe("cuda")


@on_interpreter
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("robots", [1, gpu.SUM_LANES + 3])
def test_sums_of_rows(robots, dtype):
    """Agree with the sums on a CPU, empty rows included."""
    rng = np.random.default_rng(robots)
    sums = Scatter((9, 11), rng.integers(0, 8, 40), rng.integers(0, 11, 40), rng.normal(size=40), dtype)
    x = torch.from_numpy(rng.normal(size=(11, robots))).to(dtype)
    x[0, -1] = torch.nan  # reaches the rows that it is a term of, and no other
    found = gpu.kernels().sum_rows(*sums._stored("matrix"), x)
    # sums of five products or so of numbers about 1
    torch.testing.assert_close(found, sums(x), rtol=0, atol=100 * torch.finfo(dtype).eps, equal_nan=True)


class TestChoice:
    """Where the kernels are taken, and what is said where they cannot be."""

    @needs_triton
    def test_narrow_bands_on_a_gpu(self, monkeypatch):
        """Take the kernel for all that it fits, be it tiny; fronts for a few robots that are very long."""
        assert linear.choose(chain(801), 1, "cuda").name == "banded"  # 3,203 unknowns are not many
        monkeypatch.setattr(choice, "LONG_BAND", 3000)
        for pattern in (chain(4), chain(101), chain(101, symmetric=False)):
            chosen = linear.choose(pattern, 256, "cuda")
            assert isinstance(chosen, BandedSolver)
            assert chosen.takes_triton()
        assert linear.choose(chain(801), 1, "cuda").name == "multifrontal"  # one lane would walk all along it
        assert linear.choose(chain(801), 1000, "cuda").name == "banded"
        assert not BandedSolver(hinges(20)).takes_triton()

    @needs_triton
    def test_wide_bands_are_refused(self):
        """Name the widest; say why a GPU takes blocks."""
        with pytest.raises(InputError, match="half-bandwidths up to 24, got 119; use 'blocks' or the multifrontal"):
            BandedSolver(hinges(20), method="triton")
        assert "blocks, as triton is not to be had: banded: method 'triton' takes" in BandedSolver(hinges(20)).describe(
            "cuda"
        )

    @needs_triton
    def test_a_cpu_is_refused(self):
        """Say how to try the kernels out on a CPU."""
        solver = BandedSolver(chain(4), method="triton")
        with pytest.raises(
            InputError, match="runs on a GPU, got values on the CPU; use 'auto', or set TRITON_INTERPRET"
        ):
            solver.factor(random_values(solver.pattern, "definite", 3))

    @pytest.mark.parametrize(
        ("triton", "reason"),
        [
            (None, "Triton cannot be imported .*; install torch for CUDA on Linux"),
            (SimpleNamespace(__version__="2.1.0"), "Triton 2.1.0 is too old; install a torch that brings"),
        ],
    )
    def test_no_triton(self, triton, reason, monkeypatch):
        """Take blocks or fronts on a GPU, and tell the reason whenever it is asked for."""
        monkeypatch.setitem(sys.modules, "triton", triton)
        monkeypatch.setattr(gpu.kernels, "outcome", None)
        for _ in range(2):
            with pytest.raises(Unavailable, match=reason):
                gpu.kernels()
        with pytest.raises(InputError, match=reason):
            BandedSolver(chain(4), method="triton")
        assert re.search(f"blocks, as triton is not to be had: {reason}", BandedSolver(chain(4)).describe("cuda"))
        assert "riton" not in BandedSolver(chain(4)).describe()  # nor is it of interest to who has no GPU
        assert linear.choose(chain(101), 256, "cuda").name == "multifrontal"


# --- Compiled for a GPU, without one ----------------------------------------------------------------------------------


def launches(monkeypatch, pattern, dtype, symmetric, growth):
    """Return the launches (kernel, arguments, constants) of a factorisation and a solve, none of them run."""
    made = []
    monkeypatch.setattr(
        TritonBand, "_launch", lambda self, kernel, *args, **constants: made.append((kernel, args, constants))
    )
    solver = BandedSolver(pattern)
    tables = solver._lower_tables if symmetric else solver._full_tables
    parts = TritonBand(tables, torch.zeros(pattern.nnz, 40, dtype=dtype), None, symmetric, growth)
    parts.solve(torch.zeros(40, pattern.n, dtype=dtype), False)
    return made


def compiled_for_h200(kernel, arguments, constants, folder):
    """Return the registers and the bytes of the stack (spilled registers) of a lane."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    types = {
        torch.float64: "*fp64",
        torch.float32: "*fp32",
        torch.int64: "*i64",
        torch.bool: "*i1",
        int: "i32",
        float: "fp32",
    }
    given = [types[a.dtype if isinstance(a, torch.Tensor) else type(a)] for a in arguments]
    wanted = {name: constants[name] for name in ("maxnreg", "num_warps") if name in constants}
    options = {"num_warps": 1} | wanted
    constants = {"LANES": gpu.LANES} | {name: value for name, value in constants.items() if name not in wanted}
    given += ["constexpr"] * (len(kernel.arg_names) - len(given))
    signature = dict(zip(kernel.arg_names, given, strict=True))
    made = triton.compile(ASTSource(kernel, signature, constants), target=GPUTarget("cuda", 90, 32), options=options)
    dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    code = folder / "kernel.cubin"
    code.write_bytes(made.asm["cubin"])
    shown = subprocess.run([dump, "-res-usage", code], capture_output=True, text=True, check=True).stdout
    return tuple(int(re.search(rf"{what}:(\d+)", shown).group(1)) for what in ("REG", "STACK"))


@needs_triton
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("kind", [(True, 0.0), (True, 1e8), (False, 1e8)], ids=["definite", "any sign", "unsymmetric"])
def test_compiles_for_a_gpu(kind, dtype, monkeypatch, tmp_path):
    """Compile factor and solve of a rod for an H200, with all that pivots leave for later lines in registers."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    symmetric, growth = kind
    for kernel, arguments, constants in launches(monkeypatch, chain(101, symmetric), dtype, symmetric, growth):
        registers, stack = compiled_for_h200(kernel, arguments, constants, tmp_path)
        assert registers <= 255
        # LU holds twice as much, so that a few numbers go to the cache; the limit of terms takes the last registers (by
        # Triton 3.7.1 three numbers go there)
        assert stack <= (64 if not symmetric else 24 if growth else 0)


@needs_triton
@pytest.mark.parametrize("robots", [1, 37, 64])  # one robot, and numbers that 16 divides, have kernels of their own
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_sums_compile_for_a_gpu(dtype, robots, monkeypatch, tmp_path):
    """Compile the sums of rows for an H200, in registers alone."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    made = []

    class Kernel:
        def __getitem__(self, grid):
            return lambda *given, **constants: made.append((given, constants))

    code = gpu.kernels().code
    sums = Scatter((3, 4), [0, 0, 1], [0, 3, 2], [1.0, -2.0, 0.5], dtype)
    stand_in = gpu.Kernels(SimpleNamespace(sum_rows=Kernel()), "3.7", interpreted=False)
    stand_in.sum_rows(*sums._stored("matrix"), torch.zeros(4, robots, dtype=dtype))
    ((given, constants),) = made
    _, stack = compiled_for_h200(code.sum_rows, given, constants, tmp_path)
    assert stack == 0


# --- On a GPU ---------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
class TestOnGPU:
    """The same, compiled and run."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("kind", KINDS)
    def test_rods(self, kind, dtype):
        """Solve for rods of 101 nodes, and for a batch that no warp divides."""
        pattern = chain(101, symmetric=kind != "unsymmetric")
        assert_solves(pattern, random_values(pattern, kind, 301).to(dtype), "cuda", indefinite=kind == "indefinite")

    @pytest.mark.parametrize(("lower", "upper"), [(0, 0), (0, 2), (1, 1), (5, 2), (2, 6), (24, 24)])
    def test_any_bandwidths(self, lower, upper):
        """Solve any bands up to the widest."""
        pattern = band(61, lower, upper)
        assert_solves(pattern, random_values(pattern, "unsymmetric", 70), "cuda")

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    def test_bad_rows_beside_good_ones(self, kind):
        """Flag robots that hold a NaN; change no bit of the others; leave out those not wanted."""
        pattern = chain(31, symmetric=kind == "definite")
        values, rhs = random_values(pattern, kind, 301).cuda(), right_sides(pattern, 301).cuda()
        solver = linear.make("banded", pattern, method="triton")
        healthy = solver.factor(values).solve(rhs)
        bad = torch.arange(301, device="cuda") % 7 == 0
        values[pattern.nnz // 2, bad] = torch.nan
        rows = torch.arange(301, device="cuda") % 5 != 0
        factor = solver.factor(values, rows)
        assert torch.equal(factor.ok, rows & ~bad)
        assert torch.equal(factor.solve(rhs), torch.where((rows & ~bad)[:, None], healthy, 0.0))

    @pytest.mark.parametrize("robots", [1, 40, 1000])
    def test_sums_of_rows(self, robots):
        """Agree with the sums on a CPU, and in the gradient."""
        rng = np.random.default_rng(robots)
        sums = Scatter(
            (90, 110), rng.integers(0, 80, 400), rng.integers(0, 110, 400), rng.normal(size=400), torch.float64
        )
        x = torch.from_numpy(rng.normal(size=(110, robots)))
        on_gpu = x.cuda().requires_grad_()
        expected = sums(x)
        found = sums.cuda()(on_gpu)
        torch.testing.assert_close(
            found.cpu(), expected, rtol=0, atol=1e-13
        )  # sums of five products of numbers about 1
        (gradient,) = torch.autograd.grad(found.sum(), on_gpu)
        columns = torch.zeros(110, dtype=torch.float64).index_add_(0, sums.matrix_cols.cpu(), sums.matrix_values.cpu())
        torch.testing.assert_close(gradient.cpu(), columns[:, None].expand_as(x), rtol=0, atol=1e-13)
