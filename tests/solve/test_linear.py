"""One contract that every linear solver meets, and what is particular to each."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.solve.linear_contract import (
    BATCH,
    DirectSolverContract,
    LinearSolverContract,
    assert_close,
    reference,
    right_sides,
)
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
from torchdismech.native import Unavailable, library
from torchdismech.native.gpu import kernels
from torchdismech.solve import linear
from torchdismech.solve.linear.banded import BandedSolver
from torchdismech.sparse import Pattern


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


@pytest.mark.usefixtures("compiler")
class TestBandedNative(DirectSolverContract):
    """Banded, by compiled code."""

    def solver(self, pattern, dtype=torch.float64):
        """Return the solver under test."""
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
        values = torch.tensor([[1, 1, 2, 2, 1, 0, -1, -1, 1]], dtype=torch.float64).t()  # divides 0 by 0 on its way
        rhs = torch.tensor([[1, 0, 0]], dtype=torch.float64)
        factor = linear.make("bicgstab", pattern, block_size=1).factor(values)
        assert_close(factor.solve(rhs), reference(pattern, values, rhs), 1e-6)
        assert factor.iterations > 3  # of which no method for three unknowns needs more without a breakdown

    def test_transposed_solve_transposes_the_preconditioner(self):
        """Converge at once, transposed too, where a single block holds the whole matrix."""
        pattern = grid(symmetric=False)
        values, rhs = random_values(pattern, "unsymmetric", BATCH), right_sides(pattern)
        factor = linear.make("bicgstab", pattern, block_size=pattern.n).factor(values)
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
        assert solver.pattern.nnz <= stats.fill
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


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
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


@pytest.mark.parametrize("topology", TOPOLOGIES.values(), ids=TOPOLOGIES)
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
            (hinges(40), 64, "banded"),  # 8.7 ms a robot, by fronts 25
        ],
    )
    @pytest.mark.usefixtures("compiler")
    def test_choose(self, pattern, batch, expected):
        """Take dense for no matrix at all, banded for chains and hinges, multifrontal for the rest."""
        assert linear.choose(pattern, batch).name == expected

    @pytest.mark.parametrize(
        ("pattern", "batch", "expected"),
        [
            (chain(4), 256, "dense"),
            (chain(101), 256, "banded"),
            (hinges(20), 64, "banded"),
            (star(24, 20), 64, "multifrontal"),
        ],
    )
    def test_choose_without_compiled_code(self, pattern, batch, expected, monkeypatch):
        """Take dense for tiny matrices where LAPACK is all there is for bands."""
        monkeypatch.setattr(library, "outcome", Unavailable("no compiler"))
        assert linear.choose(pattern, batch).name == expected

    def test_choice_for_a_pattern_that_serves_for_a_while(self):
        """Skip the costly analysis of fronts where the pattern will have changed before it pays."""
        pattern = star(24, 20)
        assert linear.choose(pattern, 16, factorisations=1).name == "banded"
        assert linear.choose(pattern, 16, factorisations=1000).name == "multifrontal"

    def test_choice_away_from_the_cpu_counts_calls(self, monkeypatch):
        """Without Triton, take fronts for a chain, for fewer calls in a row, and blocks for few nets, not for many."""
        monkeypatch.setattr(kernels, "outcome", Unavailable("no Triton"))
        assert linear.choose(chain(101), 256, "cuda").name == "multifrontal"
        net = grid(16)
        assert linear.choose(net, 1, "cuda").name == "banded"
        assert linear.choose(net, 4096, "cuda").name == "multifrontal"
        few = linear.choose(net, 1, "cuda")
        assert linear.choose(net, 4096, "cuda", like=few).name == "multifrontal"  # whatever was stepped before

    def test_unknown_name_is_refused_with_the_list(self):
        """Name all solvers."""
        with pytest.raises(InputError, match="'dense', 'banded', 'multifrontal', 'pcg', 'bicgstab'"):
            linear.make("magic", chain())

    @pytest.mark.parametrize("setting", [5, None, ["pcg"], {"name": ["pcg"]}])
    def test_what_is_no_setting_is_refused(self, setting):
        """Say what is expected, and what came."""
        with pytest.raises(InputError, match="^solver: expected .* got "):
            linear.named(setting)

    @pytest.mark.parametrize("value", [5, None])
    def test_what_is_no_option_is_refused(self, value):
        """Name the options that there are; a solver whose memory another takes over is none of them."""
        with pytest.raises(InputError, match="banded has no option 'before'; it takes method$"):
            linear.named({"name": "banded", "before": value})

    def test_robot_without_unknowns(self):
        """Factor and solve nothing, for a robot that is clamped all over."""
        factor = linear.choose(Pattern.union(0, [], [], True), 4).factor(torch.zeros(0, 4, dtype=torch.float64))
        assert factor.ok.all()
        assert factor.solve(torch.zeros(4, 0, dtype=torch.float64)).shape == (4, 0)
