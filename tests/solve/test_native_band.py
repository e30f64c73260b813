"""Banded factors by compiled code: groups of robots, growth, threads, and how far pivots reach."""

import itertools

import numpy as np
import pytest
import torch

from tests.solve.banded_factors import RELATIVE, assert_solves
from tests.solve.topologies import band, chain, cliques, random_values
from torchdismech.solve import linear
from torchdismech.solve.linear import native_band
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.sparse.ordering import BandedOrder


@pytest.mark.usefixtures("compiler")
class TestAnySign:
    """Factors of symmetric matrices whose pivots may be negative, in the same memory and by the same work."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("batch", [1, 3, 19])
    def test_indefinite_beside_definite(self, batch, dtype):
        """Solve both, know which is which, and give definite ones the bits that they have alone."""
        pattern = chain()
        definite = torch.arange(batch) % 2 == 1
        kinds = [random_values(pattern, kind, batch).to(dtype) for kind in ("indefinite", "definite")]
        values = torch.where(definite, kinds[1], kinds[0])
        rhs = torch.ones(batch, pattern.n, dtype=dtype)
        solver = linear.make("banded", pattern, method="native")
        factor, indefinite = solver.factor_any_sign(values)
        assert factor.ok.all() and torch.equal(indefinite, ~definite)
        x = factor.solve(rhs)
        expected = torch.linalg.solve(pattern.to_dense(values.double()), rhs.double())
        assert torch.allclose(x.double(), expected, rtol=0, atol=RELATIVE[dtype] * float(expected.abs().max()))
        assert torch.equal(x[definite], solver.factor(values).solve(rhs)[definite])
        assert torch.equal(x, solver.factor(values, indefinite=True).solve(rhs))

    @pytest.mark.parametrize("batch", [1, 3, 19])
    @pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf, 0.0])
    def test_what_needs_row_exchanges(self, batch, fault):
        """Flag pivots that are zero or not finite, and large terms; change no bit of the other robots."""
        pattern = chain()
        values, rhs = random_values(pattern, "indefinite", batch), torch.ones(batch, pattern.n, dtype=torch.float64)
        solver = linear.make("banded", pattern, method="native")
        healthy = solver.factor_any_sign(values)[0].solve(rhs)
        bad = torch.arange(batch) % 3 == 0
        first = pattern.diagonal[solver.order.order[0]]  # no pivot before changes it
        values[first, bad] = fault
        factor, indefinite = solver.factor_any_sign(values)
        assert torch.equal(factor.ok, ~bad) and not (indefinite & bad).any()
        assert torch.equal(factor.solve(rhs)[~bad], healthy[~bad])
        if fault == 0.0:  # there is nothing wrong with the matrix
            assert solver.factor(values, indefinite=True).ok.all()

    def test_rows_that_are_not_wanted(self):
        """Say nothing of them."""
        pattern = chain()
        wanted = torch.arange(64) < 9
        factor, indefinite = linear.make("banded", pattern).factor_any_sign(
            random_values(pattern, "indefinite", 64), wanted
        )
        assert torch.equal(factor.ok, wanted) and torch.equal(indefinite, wanted)

    @pytest.mark.parametrize("solver", ["dense", "multifrontal"])
    def test_solvers_that_would_take_more_work(self, solver):
        """Leave indefinite matrices to those who ask for them."""
        pattern = chain()
        factor, indefinite = linear.make(solver, pattern).factor_any_sign(random_values(pattern, "indefinite", 3))
        assert not factor.ok.any() and not indefinite.any()


@pytest.mark.usefixtures("compiler")
class TestGroups:
    """Robots that share vectors."""

    @pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
    @pytest.mark.parametrize("batch", [1, 7, 8, 9, 15, 16, 17, 33, 71])
    @pytest.mark.parametrize("kind", ["definite", "indefinite", "unsymmetric"])
    def test_any_number_of_robots(self, kind, batch, dtype):
        """Solve full groups, groups with empty lanes, and more groups than are filled at once."""
        pattern = chain(symmetric=kind != "unsymmetric")
        values = random_values(pattern, kind, batch).to(dtype)
        for transpose in (False, True):
            assert_solves(pattern, values, transpose, indefinite=kind == "indefinite")

    @pytest.mark.parametrize("lower", [0, 1, 3, 4, 5, 8, 9, 10, 11])
    @pytest.mark.parametrize("upper", [0, 1, 4, 6, 10])
    def test_any_bandwidths(self, lower, upper):
        """Solve bands that reach less far than the columns that are reduced together, and unequally far; also alone."""
        for n in (1, 4, 11, 22):
            pattern = band(n, lower, upper)
            for transpose, batch in itertools.product((False, True), (1, 3)):
                assert_solves(pattern, random_values(pattern, "unsymmetric", batch), transpose)

    @pytest.mark.parametrize("kind", ["definite", "indefinite", "unsymmetric"])
    @pytest.mark.parametrize("batch", [1, 3, 19])
    def test_bands_that_are_wide_in_places(self, kind, batch):
        """Solve where pivots reach unequally far, in the first lines, within and in the last; also alone."""
        for joined in ((0, 20), (23, 52), (40, 61), (3, 9)):
            pattern = cliques([range(k, k + 5) for k in range(0, 60, 3)] + [joined], 62, kind != "unsymmetric")
            for transpose in (False, True):
                assert_solves(pattern, random_values(pattern, kind, batch), transpose, indefinite=kind == "indefinite")

    def test_values_and_right_sides_with_gaps(self):
        """Take tensors whose numbers do not lie side by side."""
        pattern = chain()
        values = random_values(pattern, "definite", 24)
        rhs = torch.from_numpy(np.random.default_rng(1).normal(size=(12, 2 * pattern.n)))
        solver = linear.make("banded", pattern, method="native")
        apart = solver.factor(values[:, ::2]).solve(rhs[:, ::2])
        assert torch.equal(apart, solver.factor(values[:, ::2].contiguous()).solve(rhs[:, ::2].contiguous()))

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize("fault", [torch.nan, torch.inf, -torch.inf, 0.0, -1e3])
    def test_bad_rows_beside_good_ones(self, kind, fault):
        """Flag the robots with a bad entry, whichever lane they are in, and change no bit of the others."""
        pattern = chain(symmetric=kind == "definite")
        values = random_values(pattern, kind, 19)
        rhs = torch.ones(19, pattern.n, dtype=torch.float64)
        solver = linear.make("banded", pattern, method="native")
        healthy = solver.factor(values).solve(rhs)
        bad = torch.arange(19) % 3 == 0
        entry = pattern.diagonal[pattern.n // 2]
        values[entry, bad] = fault
        solved = ~bad if kind == "definite" or not np.isfinite(fault) else torch.ones_like(bad)  # LU exchanges rows
        factor = solver.factor(values)
        x = factor.solve(rhs)
        assert torch.equal(factor.ok, solved)
        assert torch.equal(x[~bad], healthy[~bad])
        assert torch.equal(x[~solved], torch.zeros_like(x[~solved]))

    @pytest.mark.parametrize("kind", ["definite", "unsymmetric"])
    @pytest.mark.parametrize("fault", [None, torch.nan, torch.inf, -torch.inf, 0.0, -1e3])
    def test_a_robot_alone_is_flagged_as_in_a_batch(self, kind, fault):
        """Say of a single matrix, whose lines are vectors, what is said of it among others, and solve it alike."""
        pattern = chain(symmetric=kind == "definite")
        values = random_values(pattern, kind, 5)
        if fault is not None:
            values[pattern.diagonal[pattern.n // 2], 2] = fault
        rhs = torch.ones(5, pattern.n, dtype=torch.float64)
        solver = linear.make("banded", pattern, method="native")
        many, one = solver.factor(values), solver.factor(values[:, 2:3])
        assert torch.equal(one.ok, many.ok[2:3])
        # both lose as many digits as the condition number, below 1e3
        assert (one.solve(rhs[:1]) - many.solve(rhs)[2]).abs().max() <= 1e-12 * rhs.abs().max()

    def test_threads_change_no_bit(self, monkeypatch):
        """Give the same numbers however many threads share the groups."""
        pattern = chain()
        values, rhs = random_values(pattern, "definite", 71), torch.ones(71, pattern.n, dtype=torch.float64)
        solver, threads = linear.make("banded", pattern, method="native"), torch.get_num_threads()
        alone = solver.factor(values).solve(rhs)
        monkeypatch.setattr(native_band, "NUMBERS_A_THREAD", 1)
        try:
            torch.set_num_threads(3)
            shared = solver.factor(values).solve(rhs)
        finally:
            torch.set_num_threads(threads)
        assert torch.equal(alone, shared)

    def test_memory_counts_whole_vectors(self):
        """Count the numbers that a factor holds, with the empty lanes of its last group."""
        for pattern in (chain(), chain(symmetric=False)):
            solver = linear.make("banded", pattern, method="native")
            parts = solver.factor(random_values(pattern, "definite", 9)).parts
            held = parts if pattern.symmetric else parts.native
            assert held._bands.nbytes <= solver.memory(9) <= 2 * held._bands.nbytes  # of vectors of 64 bytes or less


@pytest.mark.usefixtures("compiler")
class TestGrowth:
    """LU without row exchanges, where it is not good enough."""

    def values_that_grow(self, pattern, small):
        """Return a well-conditioned chain matrix per size of its diagonal."""
        values = torch.zeros(pattern.nnz, len(small), dtype=torch.float64)
        values[pattern.diagonal] = torch.tensor(small, dtype=torch.float64)
        walk = np.arange(1, pattern.n)
        values[pattern.position(walk, walk - 1)] = 1.0
        if not pattern.symmetric:
            values[pattern.position(walk - 1, walk)] = -1.0
        return values

    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("transpose", [False, True])
    def test_rows_that_grow_are_solved_with_row_exchanges(self, symmetric, transpose):
        """Solve to full accuracy where pivots are tiny or zero though the matrix is sound, beside tame rows."""
        n = 64
        pattern = cliques([(k, k + 1) for k in range(n - 1)], n, symmetric, np.arange(n))
        values = self.values_that_grow(pattern, [4.0, 1e-10, 0.0, 3.0, 1e-14, 5.0, 4.0, 4.0, 1e-6, 4.0])
        assert np.linalg.cond(pattern.to_dense(values).numpy()).max() < 200
        factor = linear.make("banded", pattern, method="native").factor(values, indefinite=symmetric)
        assert factor.parts.grown.tolist() == [1, 2, 4, 8]
        assert_solves(pattern, values, transpose, indefinite=symmetric)

    @pytest.mark.parametrize("scale", [1e-12, 1.0, 1e12])
    @pytest.mark.parametrize("n", [61, 62, 63, 64])
    def test_units_do_not_matter(self, n, scale):
        """Find the same rows that grow in a batch and alone, whatever the units and the number of unknowns."""
        pattern = cliques([(k, k + 1) for k in range(n - 1)], n, False, np.arange(n))
        values = scale * self.values_that_grow(pattern, [4.0, 1e-10, 3.0, 1e-14, 5.0])
        solver = linear.make("banded", pattern, method="native")
        assert solver.factor(values).parts.grown.tolist() == [1, 3]
        for row in range(5):
            alone = solver.factor(values[:, row : row + 1]).parts
            assert bool(alone.native.ok) == (row not in (1, 3))

    def test_growth_that_cancels_again_is_seen(self):
        """Judge by all terms of the elimination, not by what is left of them in the factor."""
        # Both terms of entry (2, 2) are 1e10 and cancel: the factor itself shows none of it but a lost 1.
        dense = np.array([[1e-10, 0, 1.0], [0, -1e-10, 1.0], [1.0, 1.0, 1.0]])
        pattern = cliques([range(3)], 3, False, np.arange(3))
        values = torch.from_numpy(dense[pattern.rows, pattern.cols][:, None])
        factor = linear.make("banded", pattern, method="native").factor(values)
        assert factor.parts.grown.tolist() == [0]

    def test_singular_rows_are_not_ok(self):
        """Flag a matrix that row exchanges do not save either."""
        pattern = chain(symmetric=False)
        values = random_values(pattern, "unsymmetric", 9)
        values[torch.from_numpy(pattern.cols == 5), 4] = 0
        factor = linear.make("banded", pattern, method="native").factor(values)
        assert torch.equal(factor.ok, torch.arange(9) != 4)

    @pytest.mark.parametrize("symmetric", [True, False])
    @pytest.mark.parametrize("batch", [1, 3, 19])
    def test_a_last_pivot_of_zero_is_not_ok(self, batch, symmetric):
        """Flag a chain of springs that nothing holds, of which the elimination tells with its last pivot alone."""
        for n in range(1, 10):
            pattern = cliques([(k, k + 1) for k in range(n - 1)], n, symmetric, np.arange(n))
            springs = 2 * np.eye(n) - np.eye(n, k=1) - np.eye(n, k=-1)
            springs[0, 0] -= 1
            springs[-1, -1] -= 1
            values = torch.from_numpy(springs[pattern.rows, pattern.cols])[:, None].repeat(1, batch)
            solver = linear.make("banded", pattern, method="native")
            for factor in (solver.factor(values), solver.factor(values, indefinite=True)):
                assert not factor.ok.any()
                assert not factor.solve(torch.ones(batch, n, dtype=torch.float64)).any()
            assert not solver.factor_any_sign(values)[0].ok.any()


class TestFronts:
    """How far pivots reach."""

    def test_pivots_reach_as_far_as_those_before_them(self):
        """Tell of a short chain of which two distant places are joined how far elimination gets."""
        pattern = cliques([(k, k + 1) for k in range(5)] + [(1, 4)], 6)
        order = BandedOrder(np.arange(6), np.arange(6), 3, 3)
        begin, last = native_band.band_profile(pattern.rows, pattern.cols, order)
        assert last.tolist() == [1, 4, 4, 4, 5, 5]
        assert begin.tolist() == [0, 0, 1, 1, 1, 4]
        assert BandedSolver(pattern).reach < BandedSolver(pattern).order.lower
