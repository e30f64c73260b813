"""What every linear solver has to do, and the direct ones beside it."""

import numpy as np
import pytest
import torch

from tests.solve.topologies import (
    TOPOLOGIES,
    chain,
    cliques,
    random_values,
)
from torchdismech.errors import InputError
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


class LinearSolverContract:
    """What a solver promises; a subclass says how to make it."""

    relative = 1e-11  # direct: condition numbers here are below 1e3, so about 1e-13 is expected
    relative_float32 = 1e-4  # the same with a machine epsilon of 1.2e-7

    @pytest.fixture(params=TOPOLOGIES)
    def topology(self, request):
        """A function that makes the pattern of one topology."""
        return TOPOLOGIES[request.param]

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
