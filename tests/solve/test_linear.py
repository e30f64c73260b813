"""One contract that every linear solver meets, and what is particular to each."""

import importlib.util

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solve.topologies import (
    TOPOLOGIES,
    chain,
    cliques,
    grid,
    hinges,
    mid_edges,
    random_graph,
    random_values,
    star,
)
from torchdismech.errors import InputError
from torchdismech.native import Unavailable, compiled, gpu, library
from torchdismech.solve import linear
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.solve.linear.product import TorchProduct, make_product
from torchdismech.sparse import Pattern

BATCH = 5
BAD = 2  # the robot that tests spoil


def right_sides(pattern, batch=BATCH):
    """Return (batch, n) random right-hand sides."""
    return torch.from_numpy(np.random.default_rng(1).normal(size=(batch, pattern.n)))


def reference(pattern, values, rhs, transpose=False):
    """Return numpy's solutions (batch, n)."""
    dense = pattern.to_dense(values.double()).numpy()
    dense = dense.transpose(0, 2, 1) if transpose else dense
    return torch.from_numpy(np.linalg.solve(dense, rhs.double().numpy()[:, :, None])[:, :, 0])


def assert_close(x, expected, relative):
    """Compare row by row in the largest norm."""
    error = (x.double() - expected).abs().amax(1) / expected.abs().amax(1)
    assert error.max() <= relative, f"relative error {error.max():.2e}"


@pytest.fixture(params=TOPOLOGIES)
def topology(request):
    """A function that makes the pattern of one topology."""
    return TOPOLOGIES[request.param]


def require_compiler():
    """Skip where the compiled code cannot be had, and say why."""
    try:
        library()
    except Unavailable as missing:
        pytest.skip(str(missing))


class LinearSolverContract:
    """What a solver promises; a subclass says how to make it."""

    relative = 1e-11  # direct: condition numbers here are below 1e3, so about 1e-13 is expected
    relative_float32 = 1e-4  # the same with a machine epsilon of 1.2e-7

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        raise NotImplementedError

    def kinds(self):
        """Return the kinds of matrices that it solves."""
        return ["definite", "indefinite", "unsymmetric"]

    def problem(self, topology, kind, batch=BATCH):
        """Return pattern, values and options of `factor` for a kind of matrices."""
        pattern = topology(symmetric=kind != "unsymmetric")
        options = {"indefinite": True} if kind == "indefinite" else {}
        return pattern, random_values(pattern, kind, batch), options

    @pytest.mark.parametrize("transpose", [False, True])
    def test_agrees_with_numpy(self, topology, transpose):
        """Solve with A and with A^T as numpy does, for every kind of matrix."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind)
            rhs = right_sides(pattern)
            factor = self.solver(pattern).factor(values, **options)
            assert factor.ok.all()
            x = factor.solve(rhs, transpose=transpose)
            assert factor.ok.all()
            assert_close(x, reference(pattern, values, rhs, transpose), self.relative)

    def test_float32(self, topology):
        """Solve in float32 to its accuracy, and return float32."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind)
            values, rhs = values.float(), right_sides(pattern).float()
            factor = self.solver(pattern, torch.float32).factor(values, **options)
            x = factor.solve(rhs)
            assert factor.ok.all()
            assert x.dtype == torch.float32
            assert_close(x, reference(pattern, values, rhs), self.relative_float32)

    def test_one_robot(self, topology):
        """Solve a batch of one."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind, batch=1)
            rhs = right_sides(pattern, 1)
            x = self.solver(pattern).factor(values, **options).solve(rhs)
            assert_close(x, reference(pattern, values, rhs), self.relative)

    def test_each_robot_as_if_alone(self, topology):
        """Give each robot of a batch what it gets in a batch of one."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind)
            rhs = right_sides(pattern)
            solver = self.solver(pattern)
            together = solver.factor(values, **options).solve(rhs)
            for row in range(BATCH):
                alone = solver.factor(values[:, row : row + 1], **options).solve(rhs[row : row + 1])
                assert_close(together[row : row + 1], alone, self.relative)

    def test_only_the_rows_asked_for(self, topology):
        """Solve the rows that are asked for; the others are zero and not ok."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind)
            rows = torch.tensor([True, False, False, True, False])
            values[:, ~rows] = torch.nan  # what is not asked for is not looked at
            rhs = right_sides(pattern)
            factor = self.solver(pattern).factor(values, rows, **options)
            x = factor.solve(rhs)
            assert torch.equal(factor.ok, rows)
            assert torch.equal(x[~rows], torch.zeros_like(x[~rows]))
            assert_close(x[rows], reference(pattern, values[:, rows], rhs[rows]), self.relative)

    def test_no_rows_at_all(self, topology):
        """Return zeros when no row is asked for."""
        pattern, values, _ = self.problem(topology, "definite")
        factor = self.solver(pattern).factor(values, torch.zeros(BATCH, dtype=torch.bool))
        assert not factor.ok.any()
        assert torch.equal(factor.solve(right_sides(pattern)), torch.zeros(BATCH, pattern.n, dtype=torch.float64))

    def spoilt(self, pattern, values, fault):
        """Return the values with one robot's matrix made unsolvable."""
        values = values.clone()
        if fault in ("nan", "inf"):
            values[pattern.nnz // 2, BAD] = float(fault)
        elif fault == "inf on the diagonal":
            values[pattern.diagonal[pattern.n // 2], BAD] = torch.inf
        elif fault == "indefinite":
            values[pattern.diagonal[pattern.n // 2], BAD] *= -1
        else:  # singular: an unknown that nothing holds
            loose = pattern.n // 2
            values[torch.from_numpy((pattern.rows == loose) | (pattern.cols == loose)), BAD] = 0
        return values

    @pytest.mark.parametrize("fault", ["nan", "inf", "inf on the diagonal", "indefinite", "singular"])
    def test_a_failed_row_leaves_the_others_alone(self, topology, fault):
        """Flag the spoilt robot, give it zeros, and change no bit of the others."""
        for kind in self.kinds():
            if fault == "indefinite" and (kind != "definite" or "indefinite" in self.kinds_that_need_no_definiteness()):
                continue
            pattern, values, options = self.problem(topology, kind)
            rhs, solver = right_sides(pattern), self.solver(pattern)
            healthy = solver.factor(values, **options).solve(rhs)
            factor = solver.factor(self.spoilt(pattern, values, fault), **options)
            x = factor.solve(rhs)
            others = torch.arange(BATCH) != BAD
            assert torch.equal(factor.ok, others), f"{kind}, {fault}: ok = {factor.ok.tolist()}"
            assert torch.equal(x[~others], torch.zeros_like(x[~others]))
            assert torch.equal(x[others], healthy[others])

    def kinds_that_need_no_definiteness(self):
        """Return "indefinite" for a solver that does not notice whether a symmetric matrix is definite."""
        return []

    def test_a_bad_right_side_stays_in_its_row(self, topology):
        """Keep a NaN right-hand side out of the other rows."""
        pattern, values, _ = self.problem(topology, "definite")
        rhs = right_sides(pattern)
        factor = self.solver(pattern).factor(values)
        healthy = factor.solve(rhs)
        rhs[BAD, 0] = torch.nan
        others = torch.arange(BATCH) != BAD
        assert torch.equal(factor.solve(rhs)[others], healthy[others])

    def test_inputs_are_left_as_they_were(self, topology):
        """Write neither into the values nor into the right-hand side, and solve twice alike."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind)
            rhs = right_sides(pattern)
            kept = values.clone(), rhs.clone()
            factor = self.solver(pattern).factor(values, **options)
            assert torch.equal(factor.solve(rhs), factor.solve(rhs))
            assert torch.equal(values, kept[0])
            assert torch.equal(rhs, kept[1])

    def test_symbolic_part_serves_many_values(self):
        """Hold several factors of one solver at the same time."""
        pattern, first, _ = self.problem(chain, "definite")
        second = random_values(pattern, "definite", BATCH, seed=7)
        rhs, solver = right_sides(pattern), self.solver(pattern)
        factors = [solver.factor(values) for values in (first, second)]
        for factor, values in zip(factors, (first, second), strict=True):
            assert_close(factor.solve(rhs), reference(pattern, values, rhs), self.relative)

    def test_tiny_patterns(self):
        """Solve with one unknown, with a diagonal matrix, and with a full one."""
        full = cliques([range(4)], 4)
        for pattern in (Pattern.union(1, [], [], True), Pattern.union(5, [], [], True), full):
            values = random_values(pattern, "definite", BATCH)
            rhs = right_sides(pattern)
            x = self.solver(pattern).factor(values).solve(rhs)
            assert_close(x, reference(pattern, values, rhs), self.relative)

    def test_wrong_shapes_are_refused(self):
        """Name what was expected and what came."""
        pattern, values, _ = self.problem(chain, "definite")
        solver = self.solver(pattern)
        with pytest.raises(InputError, match="values must be"):
            solver.factor(values[:-1])
        with pytest.raises(InputError, match="float32 or float64"):
            solver.factor(values.half())
        with pytest.raises(InputError, match="rows must be"):
            solver.factor(values, torch.ones(BATCH))
        factor = solver.factor(values)
        with pytest.raises(InputError, match="rhs must be"):
            factor.solve(right_sides(pattern)[:, :-1])
        with pytest.raises(InputError, match="rhs must be"):
            factor.solve(right_sides(pattern).float())

    def test_describes_itself(self):
        """Say the size in words, and estimate memory that grows with the batch."""
        pattern = chain()
        solver = self.solver(pattern)
        assert str(pattern.n) in solver.describe()
        assert 0 < solver.memory(1) < solver.memory(10)


class DirectSolverContract(LinearSolverContract):
    """What only a direct method knows: before the solve, and of every pivot."""

    def test_rows_that_fail_among_those_asked_for(self, topology):
        """Flag the row that was asked for and failed; it is zero like those not asked for."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind)
            rows = torch.arange(BATCH) >= BAD
            factor = self.solver(pattern).factor(self.spoilt(pattern, values, "nan"), rows, **options)
            x = factor.solve(right_sides(pattern))
            assert torch.equal(factor.ok, torch.arange(BATCH) > BAD)
            assert torch.equal(x[~factor.ok], torch.zeros_like(x[~factor.ok]))

    def test_a_loose_unknown_is_found_wherever_it_is(self, topology):
        """Report a zero pivot at the start, in the middle and at the end of the elimination."""
        for kind in self.kinds():
            pattern, values, options = self.problem(topology, kind, batch=1)
            values = values.repeat(1, pattern.n)  # robot k has unknown k loose
            for k in range(pattern.n):
                values[torch.from_numpy((pattern.rows == k) | (pattern.cols == k)), k] = 0
            assert not self.solver(pattern).factor(values, **options).ok.any()

    def test_a_nan_that_no_pivot_meets(self):
        """Report a NaN above the diagonal where there is nothing below to eliminate."""
        pattern = Pattern.union(4, [0, 1, 2], [1, 2, 3], False, np.arange(4))
        values = random_values(pattern, "unsymmetric", BATCH)
        for entry in range(pattern.nnz):
            spoilt = values.clone()
            spoilt[entry, BAD] = torch.nan
            assert torch.equal(self.solver(pattern).factor(spoilt).ok, torch.arange(BATCH) != BAD)


class TestDense(DirectSolverContract):
    """Dense Cholesky and LU."""

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        return linear.make("dense", pattern)


class TestBandedLapack(DirectSolverContract):
    """Banded, robot by robot."""

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        return linear.make("banded", pattern, method="lapack")


class TestBandedNative(DirectSolverContract):
    """Banded, by compiled code."""

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        require_compiler()
        return linear.make("banded", pattern, method="native")


class TestBandedBlocks(DirectSolverContract):
    """Banded, block by block."""

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        return linear.make("banded", pattern, method="blocks")


class TestMultifrontal(DirectSolverContract):
    """Along a tree of fronts."""

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        return linear.make("multifrontal", pattern)


class TestPCG(LinearSolverContract):
    """Conjugate gradients with block Jacobi."""

    relative = 1e-9  # residuals of 1e-12 |b| times condition numbers below 1e3
    relative_float32 = 1e-2  # residuals of 1e-5 |b|, likewise

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        return linear.make("pcg", pattern, tolerance=1e-12 if dtype == torch.float64 else 1e-5)

    def kinds(self):
        """Return the kinds of matrices that it solves."""
        return ["definite"]

    def test_negative_curvature_is_reported(self):
        """Flag an indefinite matrix that the iteration would happen to solve."""
        pattern = cliques([(0, 1)], 2)
        values = torch.tensor([[1.0, 1.0], [2.0, 0.5], [1.0, 1.0]], dtype=torch.float64)
        factor = linear.make("pcg", pattern, block_size=1).factor(values)
        factor.solve(right_sides(pattern, 2))
        assert factor.ok.tolist() == [False, True]

    def test_refuses_what_it_cannot_solve(self):
        """Name the solver that can."""
        with pytest.raises(InputError, match="bicgstab"):
            self.solver(chain(symmetric=False))
        solver = self.solver(chain())
        assert not solver.solves_indefinite
        with pytest.raises(InputError, match="bicgstab"):
            solver.factor(random_values(solver.pattern, "indefinite", BATCH), indefinite=True)


class TestBiCGStab(LinearSolverContract):
    """BiCGStab with block Jacobi."""

    relative = 1e-9  # as for PCG
    relative_float32 = 1e-2

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
        return linear.make("bicgstab", pattern, tolerance=1e-12 if dtype == torch.float64 else 1e-5)

    def test_goes_on_after_a_breakdown(self):
        """Start again from the last good iterate where a scalar product of the recurrence vanishes."""
        pattern = cliques([range(3)], 3, symmetric=False)
        values = torch.tensor([[-2, -1, 0, 0, 0, -2, -2, -2, -2]], dtype=torch.float64).t()  # divides 0 by 0 on its way
        identity = torch.zeros_like(values)
        identity[pattern.diagonal] = 1
        rhs = torch.tensor([[1, 0, 0]], dtype=torch.float64)
        plain = linear.make("dense", pattern).factor(identity)
        factor = linear.make("bicgstab", pattern).factor(values, preconditioner=plain)
        assert_close(factor.solve(rhs), reference(pattern, values, rhs), 1e-6)

    def test_transposed_solve_transposes_the_preconditioner(self):
        """Converge at once, transposed too, when preconditioned by the matrix itself."""
        pattern = grid(symmetric=False)
        values, rhs = random_values(pattern, "unsymmetric", BATCH), right_sides(pattern)
        exact = linear.make("multifrontal", pattern).factor(values)
        factor = linear.make("bicgstab", pattern).factor(values, preconditioner=exact)
        factor.solve(rhs, transpose=True)
        assert factor.ok.all()
        assert factor.iterations.max() == 1

    def kinds_that_need_no_definiteness(self):
        """Return "indefinite": the method itself needs no definite matrix, only its preconditioner may."""
        return ["indefinite"]


# --- Direct methods on harder matrices ------------------------------------------------------------------------------


class TestMultifrontalOnAnyGraph:
    """Symbolic elimination of whatever comes."""

    @given(seed=st.integers(0, 10_000), n=st.integers(1, 70), symmetric=st.booleans())
    @settings(max_examples=40, deadline=None)
    def test_random_graphs(self, seed, n, symmetric):
        """Solve on random graphs: disconnected ones, single vertices, dense spots."""
        pattern = random_graph(n, np.random.default_rng(seed), symmetric)
        values = random_values(pattern, "definite" if symmetric else "unsymmetric", 2, seed)
        rhs = right_sides(pattern, 2)
        solver = linear.make("multifrontal", pattern)
        assert_close(solver.factor(values).solve(rhs), reference(pattern, values, rhs), 1e-11)

    def test_stats_count_the_fill(self):
        """Report at least the entries of the matrix, and a level for each step up the tree."""
        solver = linear.make("multifrontal", grid(12))
        stats = solver.stats
        assert solver.pattern.nnz <= stats.fill <= stats.padded_fill
        assert 1 < stats.levels <= stats.buckets <= stats.fronts
        assert stats.largest <= solver.pattern.n

    def test_one_dense_front_counts_exactly(self):
        """Count n (n + 1) / 2 numbers for a full matrix."""
        stats = linear.make("multifrontal", cliques([range(20)], 20)).stats
        assert (stats.fronts, stats.levels, stats.fill, stats.largest) == (1, 1, 210, 20)

    def test_multiplications_are_counted_pivot_by_pivot(self):
        """Count as many multiplications as a loop over the columns of Cholesky, and say twice that for LU."""
        stats = linear.make("multifrontal", cliques([range(20)], 20)).stats
        assert stats.multiplications == sum(rows + rows * (rows + 1) // 2 for rows in range(20))
        described = linear.make("multifrontal", cliques([range(20)], 20, symmetric=False)).describe()
        assert f"{2 * stats.multiplications / 1e6:.2g} million multiplications" in described


def wild_values(pattern, batch):
    """Return values of symmetric matrices far from dominance: nothing but pivoting keeps their LU in bounds."""
    return torch.from_numpy(np.random.default_rng(3).normal(size=(pattern.nnz, batch)))


@pytest.mark.parametrize("name", ["dense", "banded"])
def test_indefinite_without_dominance(name, topology):
    """Solve wild indefinite matrices with full partial pivoting."""
    pattern = topology()
    values, rhs = wild_values(pattern, 20), right_sides(pattern, 20)
    factor = linear.make(name, pattern).factor(values, indefinite=True)
    x = factor.solve(rhs)
    assert factor.ok.all()
    residual = torch.einsum("bij,bj->bi", pattern.to_dense(values), x) - rhs
    # Backward stable: machine epsilon times the size of A and x, with room for the growth of partial pivoting.
    assert (residual.abs().amax(1) <= 1e-13 * pattern.n * x.abs().amax(1) + 1e-13).all()


@pytest.mark.parametrize("options", [{"name": "multifrontal"}, {"name": "banded", "method": "blocks"}])
def test_pivoting_within_blocks_is_good_or_reported(options, topology):
    """Solve most wild matrices though rows are exchanged within blocks only, and report those that grow too much."""
    pattern = topology()
    values, rhs = wild_values(pattern, 200), right_sides(pattern, 200)
    factor = linear.make(pattern=pattern, **options).factor(values, indefinite=True)
    x = factor.solve(rhs)
    residual = torch.einsum("bij,bj->bi", pattern.to_dense(values), x) - rhs
    assert factor.ok.float().mean() > 0.95
    # The growth that passes, 7e7, times machine epsilon and n.
    assert (residual.abs().amax(1)[factor.ok] <= 1e-6 * (1 + x.abs().amax(1)[factor.ok])).all()


@pytest.mark.parametrize("options", [{"name": "multifrontal"}, {"name": "banded", "method": "blocks"}])
def test_growth_is_reported(options):
    """Flag a robot whose pivot blocks are tiny beside the rest, though its matrix is well-conditioned."""
    n = 64
    pattern = cliques([(k, k + 1) for k in range(n - 1)], n, hint=np.arange(n))
    values = torch.zeros(pattern.nnz, 2, dtype=torch.float64)
    values[pattern.diagonal, 0] = 4.0
    values[pattern.diagonal, 1] = 1e-10
    values[pattern.position(np.arange(1, n), np.arange(n - 1))] = 1.0
    assert np.linalg.cond(pattern.to_dense(values)[1].numpy()) < 100
    factor = linear.make(pattern=pattern, **options).factor(values, indefinite=True)
    assert factor.ok.tolist() == [True, False]
    assert not factor.solve(right_sides(pattern, 2))[1].any()


class TestBandedLayout:
    """What keeps LAPACK fast."""

    @pytest.mark.parametrize("indefinite", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_bands_are_fortran_ordered(self, indefinite, dtype):
        """Hand LAPACK arrays that it overwrites, so that nothing is copied."""
        pattern = chain()
        values = random_values(pattern, "definite", 3).to(dtype)
        factor = BandedSolver(pattern, method="lapack").factor(values, indefinite=indefinite)
        assert all(band.flags.f_contiguous for band in factor.parts.parts.bands)
        assert factor.parts.parts.bands.dtype == (np.float32 if dtype == torch.float32 else np.float64)

    def test_band_of_a_shell_with_unknowns_on_its_edges(self):
        """Walk along a strip, not across: a row of nodes and the edges to the next one lie side by side."""
        # 15 nodes a row with 3 unknowns and 3 edges each, and one triangle's reach; from a middle of the border 232.
        assert BandedSolver(mid_edges(15, 30)).order.lower <= 15 * 6 + 12

    def test_bands_of_several_parts(self):
        """Number each part of a pattern that falls apart on its own."""
        parts = cliques([range(3 * k, 3 * k + 6) for k in (0, 1, 2, 4, 5)] + [[21, 22]], 24)
        assert sorted(BandedSolver(parts).order.order) == list(range(24))
        assert BandedSolver(parts).order.lower == 5

    def test_unknown_method_is_refused(self):
        """Name the methods."""
        with pytest.raises(InputError, match="lapack"):
            linear.make("banded", chain(), method="magic")


# --- Iterative methods ------------------------------------------------------------------------------------------------


def stiff_chain_values(pattern, batch, contrast=1e6):
    """Return values of a rod-like matrix: mass plus springs along the chain, `contrast` times stiffer.

    Its condition number is about the contrast: too much for a float32 factor alone.
    """
    rng = np.random.default_rng(5)
    dense = np.zeros((batch, pattern.n, pattern.n))
    dense[:, range(pattern.n), range(pattern.n)] = rng.uniform(1, 2, size=(batch, pattern.n))
    place = {int(u): k for k, u in enumerate(pattern.order_hint)}
    walk = sorted(place, key=place.__getitem__)
    for a, b in zip(walk[:-1], walk[1:], strict=True):
        k = contrast * rng.uniform(0.5, 1, size=batch)
        for i, j, sign in ((a, a, 1), (b, b, 1), (a, b, -1), (b, a, -1)):
            dense[:, i, j] += sign * k
    return torch.from_numpy(dense[:, pattern.rows, pattern.cols].T.copy())


@pytest.mark.parametrize("name", ["pcg", "bicgstab"])
class TestPreconditioners:
    """A factor of another matrix in place of block Jacobi."""

    def test_float32_factor_inside_float64(self, name):
        """Reach float64 accuracy in a few iterations, which the float32 factor alone does not."""
        pattern = chain(51)
        values, rhs = stiff_chain_values(pattern, 4), right_sides(pattern, 4)
        coarse = linear.make("banded", pattern).factor(values.float())
        factor = linear.make(name, pattern, tolerance=1e-10).factor(values, preconditioner=coarse)
        x = factor.solve(rhs)
        assert factor.ok.all()
        assert factor.iterations.max() <= 5  # 3 measured
        dense = pattern.to_dense(values)
        residual = torch.einsum("bij,bj->bi", dense, x) - rhs
        assert (residual.norm(dim=1) <= 1.1e-10 * rhs.norm(dim=1)).all()  # summed in another order here
        single = coarse.solve(rhs.float()).double()
        residual = torch.einsum("bij,bj->bi", dense, single) - rhs
        assert (residual.norm(dim=1) > 1e-4 * rhs.norm(dim=1)).all()

    def test_factor_of_a_nearby_matrix(self, name):
        """Need few iterations for a matrix that differs in a few entries, as contact makes it."""
        pattern = chain(51)
        values, rhs = stiff_chain_values(pattern, 4), right_sides(pattern, 4)
        factor = linear.make("banded", pattern).factor(values)
        touched = values.clone()
        touched[pattern.diagonal[:6]] += 1e5
        iterated = linear.make(name, pattern, tolerance=1e-10).factor(touched, preconditioner=factor)
        x = iterated.solve(rhs)
        assert iterated.ok.all()
        assert iterated.iterations.max() <= 20  # six changed entries: about seven distinct eigenvalues
        assert_close(x, reference(pattern, touched, rhs), 1e-6)

    def test_row_without_a_preconditioner_is_not_ok(self, name):
        """Leave out the rows whose preconditioner failed."""
        pattern = chain()
        values = random_values(pattern, "definite", 3)
        spoilt = values.clone()
        spoilt[0, 1] = torch.nan
        coarse = linear.make("banded", pattern).factor(spoilt)
        factor = linear.make(name, pattern).factor(values, preconditioner=coarse)
        assert torch.equal(factor.ok, torch.tensor([True, False, True]))
        factor.solve(right_sides(pattern, 3))
        assert torch.equal(factor.ok, torch.tensor([True, False, True]))

    def test_a_nan_is_known_before_the_solve(self, name):
        """Flag values that are not finite at once, though the preconditioner is sound."""
        pattern = chain()
        values = random_values(pattern, "definite", 3)
        coarse = linear.make("banded", pattern).factor(values)
        spoilt = values.clone()
        spoilt[0, 1] = torch.nan
        factor = linear.make(name, pattern).factor(spoilt, preconditioner=coarse)
        assert torch.equal(factor.ok, torch.tensor([True, False, True]))

    def test_true_residual_decides_and_is_worked_on(self, name):
        """Go on from the true residual where rounding has driven the recurred one away from it."""
        pattern = chain(51)
        values, rhs = stiff_chain_values(pattern, 4, contrast=1e8), right_sides(pattern, 4)
        coarse = linear.make("banded", pattern).factor(values.float())
        factor = linear.make(name, pattern, tolerance=3e-9).factor(values, preconditioner=coarse)
        factor.solve(rhs)
        assert factor.ok.all()

    def test_preconditioner_of_another_batch_is_refused(self, name):
        """Name both shapes."""
        pattern = chain()
        coarse = linear.make("banded", pattern).factor(random_values(pattern, "definite", 2))
        with pytest.raises(InputError, match="preconditioner"):
            linear.make(name, pattern).factor(random_values(pattern, "definite", 3), preconditioner=coarse)


@pytest.mark.parametrize("name", ["pcg", "bicgstab"])
class TestIteration:
    """Convergence per row."""

    def test_unreachable_tolerance_is_not_ok(self, name):
        """Judge by the true residual: a tolerance below rounding is never met."""
        pattern = chain()
        factor = linear.make(name, pattern, tolerance=1e-30).factor(stiff_chain_values(pattern, 3))
        x = factor.solve(right_sides(pattern, 3))
        assert not factor.ok.any()
        assert torch.equal(x, torch.zeros_like(x))

    def test_too_few_iterations_are_not_ok(self, name):
        """Stop at max_iterations, and say so for the rows concerned only."""
        pattern = chain(51)
        values = stiff_chain_values(pattern, 3)
        values[:, 1] = 0
        values[pattern.diagonal, 1] = 2.0  # solved by the block Jacobi preconditioner at once
        factor = linear.make(name, pattern, max_iterations=3).factor(values)
        factor.solve(right_sides(pattern, 3))
        assert torch.equal(factor.ok, torch.tensor([False, True, False]))
        assert factor.iterations.tolist() == [3, 1, 3]

    def test_zero_right_side_costs_nothing(self, name):
        """Return zero without iterating."""
        pattern = chain()
        factor = linear.make(name, pattern).factor(random_values(pattern, "definite", 3))
        x = factor.solve(torch.zeros(3, pattern.n, dtype=torch.float64))
        assert factor.ok.all()
        assert not x.any()
        assert not factor.iterations.any()

    def test_tiny_right_side(self, name):
        """Solve to the same relative accuracy whatever the size of the right-hand side."""
        pattern = chain()
        values, rhs = random_values(pattern, "definite", 3), 1e-200 * right_sides(pattern, 3)
        coarse = linear.make("banded", pattern).factor(values.float())
        factor = linear.make(name, pattern).factor(values, preconditioner=coarse)
        x = factor.solve(rhs)
        assert factor.ok.all()
        assert_close(x, reference(pattern, values, rhs), 1e-6)  # tolerance 1e-8 times a condition number below 100

    @pytest.mark.parametrize(
        "options", [{"tolerance": 0.0}, {"max_iterations": 0}, {"block_size": 0}, {"product": "abacus"}]
    )
    def test_bad_options_are_refused(self, name, options):
        """Refuse at construction."""
        with pytest.raises(InputError):
            linear.make(name, chain(), **options)


class TestProduct:
    """Sparse matrix times vector, by both backends."""

    @pytest.mark.parametrize("name", ["torch", "torch-sparse"])
    @pytest.mark.parametrize("transpose", [False, True])
    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_agrees_with_dense(self, name, transpose, dtype):
        """Multiply with every matrix of a batch, transposed or not."""
        if name == "torch-sparse" and importlib.util.find_spec("torch_sparse") is None:
            pytest.skip("the optional package torch-sparse is not installed")
        pattern = star(symmetric=False)
        values = random_values(pattern, "unsymmetric", BATCH).to(dtype)
        x = right_sides(pattern).t().contiguous().to(dtype)
        dense = pattern.to_dense(values)
        expected = torch.einsum("bji,jb->ib" if transpose else "bij,jb->ib", dense, x)
        product = make_product(name, pattern).bind(values, transpose)
        torch.testing.assert_close(product(x), expected)

    @pytest.mark.skipif(importlib.util.find_spec("torch_sparse") is not None, reason="torch-sparse is installed")
    def test_missing_package_is_named(self):
        """Say what to install when torch-sparse is asked for and missing."""
        with pytest.raises(ImportError, match=r"pip install torchdismech\[sparse\]"):
            linear.make("pcg", chain(), product="torch-sparse")

    def test_solver_uses_the_backend_asked_for(self):
        """Multiply by the named backend."""
        assert isinstance(linear.make("pcg", chain(), product="torch").product, TorchProduct)


# --- Choice ---------------------------------------------------------------------------------------------------------


class TestChoice:
    """The solver that fits the pattern."""

    @pytest.mark.parametrize(
        ("pattern", "batch", "expected"),
        [
            (chain(4), 1, "banded"),
            (chain(4), 256, "banded"),
            (Pattern.union(0, [], [], True), 4, "dense"),
            (chain(101), 1, "banded"),
            (chain(101), 256, "banded"),
            (chain(101, symmetric=False), 256, "banded"),
            (star(24, 20), 256, "multifrontal"),
            (star(24, 20, symmetric=False), 256, "multifrontal"),
            (hinges(20), 1, "banded"),
            (hinges(20), 64, "banded"),
            (hinges(20, symmetric=False), 64, "banded"),
            (mid_edges(20, 20), 64, "banded"),
            (mid_edges(20, 20, symmetric=False), 1, "banded"),
            (hinges(40), 16, "banded"),
            (hinges(40), 64, "multifrontal"),  # the bands of all robots are too large
        ],
    )
    def test_choose(self, pattern, batch, expected):
        """Take dense for no matrix at all, banded for chains and hinges, multifrontal for the rest."""
        require_compiler()
        assert linear.choose(pattern, batch).name == expected

    @pytest.mark.parametrize(
        ("pattern", "batch", "expected"),
        [
            (chain(4), 256, "dense"),
            (chain(101), 256, "banded"),
            (hinges(20), 64, "banded"),
            (hinges(40, symmetric=False), 64, "multifrontal"),
        ],
    )
    def test_choose_without_compiled_code(self, pattern, batch, expected, monkeypatch):
        """Take dense for tiny matrices where LAPACK is all there is for bands."""
        monkeypatch.setattr(compiled, "_found", Unavailable("no compiler"))
        assert linear.choose(pattern, batch).name == expected

    def test_choice_for_a_pattern_that_serves_for_a_while(self):
        """Skip the costly analysis of fronts where the pattern will have changed before it pays."""
        pattern = star(24, 20)
        assert linear.choose(pattern, 16, factorisations=1).name == "banded"
        assert linear.choose(pattern, 16, factorisations=1000).name == "multifrontal"

    def test_choice_away_from_the_cpu_counts_calls(self, monkeypatch):
        """Without Triton, take fronts for a long chain, for fewer calls in a row, and blocks for a short one."""
        monkeypatch.setattr(gpu, "_found", Unavailable("no Triton"))
        assert linear.choose(chain(101), 256, "cuda").name == "multifrontal"
        assert linear.choose(chain(9), 256, "cuda").name == "banded"

    def test_unknown_name_is_refused_with_the_list(self):
        """Name all solvers."""
        with pytest.raises(InputError, match="dense, banded, multifrontal, pcg, bicgstab"):
            linear.make("magic", chain())

    def test_robot_without_unknowns(self):
        """Factor and solve nothing, for a robot that is clamped all over."""
        factor = linear.choose(Pattern.union(0, [], [], True), 4).factor(torch.zeros(0, 4, dtype=torch.float64))
        assert factor.ok.all()
        assert factor.solve(torch.zeros(4, 0, dtype=torch.float64)).shape == (4, 0)
