"""Batched Newton on small equations with known roots."""

import numpy as np
import pytest
import torch

from torchdismech import Status
from torchdismech.solve import linear
from torchdismech.solve.newton import newton
from torchdismech.solve.relaxed import relaxed_newton
from torchdismech.solve.search import NewtonOptions
from torchdismech.sparse import Pattern

PATTERN = Pattern.union(2, np.array([1]), np.array([0]), symmetric=True)  # values: (0,0), (1,0), (1,1)


class Equations:
    """r(x) and its symmetric matrix, given as functions; counts evaluations."""

    def __init__(self, residual, matrix, potential=None):
        self._residual, self._matrix, self._potential = residual, matrix, potential
        self.evaluations, self.residuals, self.records = 0, 0, False
        self.descending = potential is not None

    def residual(self, x):
        """Return r."""
        self.residuals += 1
        return self._residual(x)

    def residual_and_matrix(self, x):
        """Return r and the values of its matrix."""
        self.evaluations += 1
        return self.residual(x), torch.stack(self._matrix(x))

    def advanced(self, x, step):
        """Return x + step."""
        return x + step

    def recording(self, function):
        """Return the function as it is, in place of a recording."""
        return function if self.records else None

    def compiled(self, function):
        """Return the function as it is."""
        return function

    def potential(self, x):
        """Return the potential, if there is one."""
        return None if self._potential is None else self._potential(x)

    def trust_radius(self):
        """Return how far steps may go."""
        return 10.0


def cubic():
    """x^3 + x = b componentwise: b from the root; convex, one root."""
    root = torch.tensor([[0.5, 2.0], [-1.0, 3.0], [0.1, 0.0]], dtype=torch.float64)
    b = root**3 + root
    one = torch.zeros(3, dtype=torch.float64)
    equations = Equations(lambda x: x**3 + x - b, lambda x: [3 * x[:, 0] ** 2 + 1, one, 3 * x[:, 1] ** 2 + 1])
    return equations, root


def solved(equations, x, **options):
    """Return the root found from x."""
    settings = {"max_iterations": 50, **options}
    weight = torch.ones(2, dtype=torch.float64)
    tolerance = torch.full((len(x),), settings.pop("tolerance", 1e-12), dtype=torch.float64)
    running = settings.pop("running", None)
    options = NewtonOptions(linear.make("dense", PATTERN), weight, tolerance, **settings)
    return newton(equations, x, options, running)


def test_finds_the_roots():
    """Find each row's root, with a residual at the tolerance."""
    equations, root = cubic()
    result = solved(equations, torch.zeros_like(root))
    assert result.status.tolist() == [Status.CONVERGED] * 3
    assert (result.x - root).abs().max() < 1e-12
    assert (result.residual <= result.tolerance).all()


CASES = {
    "the last step is expected too early": (
        lambda: softened(cubic()[0]),
        [[0.6, 2.1], [-1.2, 3.5], [0.1, 0.0]],
        {"tolerance": 1e-6},
    ),
    "too few steps": (lambda: cubic()[0], [[3.0, 5.0], [0.5, 2.0], [-3.0, 0.1]], {"max_iterations": 3}),
    "not a number": (lambda: cubic()[0], [[torch.nan, 0.0], [1.0, 2.0], [0.0, 0.0]], {}),
    "some rows are done": (lambda: cubic()[0], [[0.5, 2.0], [9.0, 9.0], [0.0, 0.0]], {}),
    "indefinite": (lambda: saddle(potential=False), [[0.3, 0.2]], {}),
    "down a potential": (lambda: saddle(potential=True), [[0.3, 0.2]], {}),
}


def softened(equations):
    """Return equations whose matrix is 2 % too small, so that Newton's method converges by 50 a step."""
    exact = equations._matrix
    equations._matrix = lambda x: [0.98 * values for values in exact(x)]
    return equations


@pytest.mark.parametrize("case", CASES)
def test_recorded_rounds_find_the_same(case):
    """Find every bit of what is found without recordings, wherever these leave a search to what there is without."""
    make, start, options = CASES[case]
    found = []
    for records in (False, True):
        equations = make()
        equations.records = records
        found.append(solved(equations, torch.tensor(start, dtype=torch.float64), **options))
    for name in ("x", "status", "iterations", "residual", "tolerance"):
        torch.testing.assert_close(*(getattr(root, name) for root in found), rtol=0, atol=0, equal_nan=True)


def test_full_steps_are_not_cut():
    """Evaluate one matrix per iteration where whole steps reduce the residual, and none at the root."""
    equations, root = cubic()
    result = solved(equations, root + 0.1)
    assert equations.evaluations == result.iterations.max()


def test_rows_that_are_done_stay():
    """Leave rows that have converged, and rows that are not to run, bitwise as they are."""
    equations, root = cubic()
    start = root.clone()
    start[1] += 5.0
    start[2] += 1.0
    result = solved(equations, start, running=torch.tensor([True, True, False]))
    assert torch.equal(result.x[0], root[0]) and result.iterations[0] == 0
    assert torch.equal(result.x[2], start[2]) and result.status[2] == Status.CONVERGED


def test_max_iterations():
    """Report rows that need more iterations."""
    equations, root = cubic()
    result = solved(equations, root + 3.0, max_iterations=2)
    assert (result.status == Status.MAX_ITERATIONS).all() and (result.iterations == 2).all()
    assert equations.residuals == 3  # of the start and of two steps: a row without steps left is not tried once more


def test_nan_is_not_converged():
    """Report a row that is NaN, whatever its tolerance, and solve the others."""
    equations, root = cubic()
    start = torch.zeros_like(root)
    start[1, 0] = torch.nan
    result = solved(equations, start)
    assert result.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]


def test_singular():
    """Report a row whose matrix is singular."""
    zero = torch.zeros(1, dtype=torch.float64)
    equations = Equations(lambda x: torch.ones_like(x), lambda x: [zero, zero, zero])
    assert solved(equations, torch.zeros(1, 2, dtype=torch.float64)).status.tolist() == [Status.SINGULAR]


def test_no_root():
    """Report a row whose residual has a minimum above zero."""
    one, zero = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
    equations = Equations(lambda x: x**2 + 1, lambda x: [2 * x[:, 0], zero, 2 * x[:, 1] + 0 * one])
    status = solved(equations, torch.full((1, 2), 0.3, dtype=torch.float64)).status
    assert status[0] in (Status.LINE_SEARCH_FAILED, Status.SINGULAR, Status.MAX_ITERATIONS)


def saddle(potential: bool):
    """x0^4/4 - x0^2/2 + x1^2/2: a maximum along x0 at 0, minima at -1 and 1."""
    zero, one = torch.zeros(1, dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    return Equations(
        lambda x: torch.stack([x[:, 0] ** 3 - x[:, 0], x[:, 1]], 1),
        lambda x: [3 * x[:, 0] ** 2 - 1, zero, one],
        (lambda x: x[:, 0] ** 4 / 4 - x[:, 0] ** 2 / 2 + x[:, 1] ** 2 / 2) if potential else None,
    )


def test_indefinite_matrix():
    """Go to the nearest root with the exact matrix, and to a minimum where there is a potential to descend."""
    start = torch.tensor([[0.3, 0.2]], dtype=torch.float64)
    nearest = solved(saddle(False), start)
    assert nearest.status[0] == Status.CONVERGED and nearest.x.abs().max() < 1e-6
    lowest = solved(saddle(True), start)
    assert lowest.status[0] == Status.CONVERGED and abs(lowest.x[0, 0].item() - 1.0) < 1e-9


def test_overshooting_steps_are_halved():
    """Solve arctan(x) = 0 from far away, where whole steps diverge."""
    zero = torch.zeros(1, dtype=torch.float64)
    equations = Equations(torch.arctan, lambda x: [1 / (1 + x[:, 0] ** 2), zero, 1 / (1 + x[:, 1] ** 2)])
    result = solved(equations, torch.tensor([[10.0, -3.0]], dtype=torch.float64))
    assert result.status[0] == Status.CONVERGED


def test_relaxed_steps_pass_minima_of_the_residual_that_are_no_roots():
    """Find the root of x^3 - 2 x + 2 from the wrong side of a minimum of its norm, where Newton's method ends.

    Rows: the one root at -1.7693 from 0; from beyond both turning points; NaN; a row that does not run.
    """
    zero = torch.zeros(4, dtype=torch.float64)
    equations = Equations(
        lambda x: torch.stack([x[:, 0] ** 3 - 2 * x[:, 0] + 2, x[:, 1]], 1),
        lambda x: [3 * x[:, 0] ** 2 - 2, zero, zero + 1],
    )
    start = torch.tensor([[0.0, 0.1], [2.0, 0.1], [torch.nan, 0.0], [0.0, 0.1]], dtype=torch.float64)
    running = torch.tensor([True, True, True, False])
    plain = solved(equations, start, running=running)
    assert Status.CONVERGED not in plain.status[:3].tolist()
    inertia = torch.full((2, 1), 4.0, dtype=torch.float64)
    ones, tolerance = torch.ones(2, dtype=torch.float64), torch.full((4,), 1e-12, dtype=torch.float64)
    found = relaxed_newton(
        equations, start, NewtonOptions(linear.make("dense", PATTERN), ones, tolerance, 60), inertia, running
    )
    assert found.status.tolist() == [Status.CONVERGED, Status.CONVERGED, Status.NOT_FINITE, Status.CONVERGED]
    # the derivative at the root is 7.4: a residual of 1e-12 leaves 2e-13
    assert torch.allclose(found.x[:2, 0], torch.full((2,), -1.769292354238631, dtype=torch.float64), rtol=0, atol=1e-12)
    assert torch.equal(found.x[3], start[3]) and found.iterations[3] == 0
    assert (found.residual[:2] <= 1e-12).all()


def test_noise_excuses_no_row_that_did_not_move():
    """Go on from a first iterate below the rounding noise, also where the matrix is indefinite."""
    scale = torch.tensor([1e6, -1.0], dtype=torch.float64)
    one = torch.zeros(1, dtype=torch.float64)
    centre = torch.tensor([[1e3, 0.0]], dtype=torch.float64)
    equations = Equations(lambda x: scale * (x - centre), lambda x: [scale[:1], one, scale[1:]])
    result = solved(equations, centre + torch.tensor([[0.0, 1e-7]], dtype=torch.float64))
    assert result.tolerance[0] > 1e-7  # of the noise, which is larger than the first residual
    assert result.status[0] == Status.CONVERGED and result.x[0, 1] == 0.0


def test_noise_of_a_barrier_is_that_at_the_root():
    """Do not hold a root to the noise of a first iterate at which the matrix is far larger; excuse the noise there is.

    Rows: a force 1/d against one of 1, at x = 1000 + d, which begins at d = 1e-9: the noise there is 2 x 2.2e-16 x 1000
    x 1e18, 4e5 times the forces at the root; and one whose other unknown is rounded to 6e-14, so that 1e7 times that,
    6e-7, is all that its residual can be told by.
    """
    off, zero = torch.tensor([0.0, 1e-8], dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    equations = Equations(
        lambda x: torch.stack([1 - 1 / (x[:, 0] - 1000), 1e7 * (x[:, 1] - 1000 / 3) + off], 1),
        lambda x: [(x[:, 0] - 1000) ** -2, zero, zero + 1e7],
    )
    start = torch.tensor([[1000 + 1e-9, 300.0], [1000.5, 300.0]], dtype=torch.float64)
    plain = solved(equations, start, max_iterations=100)  # goes on for its steps are not short
    assert plain.status[0] == Status.CONVERGED and plain.residual[0] < 1e-6 < 1e4 < plain.tolerance[0]
    inertia, running = torch.full((2, 1), 1e-3, dtype=torch.float64), torch.ones(2, dtype=torch.bool)
    ones, asked = torch.ones(2, dtype=torch.float64), torch.full((2,), 1e-12, dtype=torch.float64)
    options = NewtonOptions(linear.make("dense", PATTERN), ones, asked, 100, noise_at_each_iterate=True)
    for result in (newton(equations, start, options), relaxed_newton(equations, start, options, inertia, running)):
        assert result.status.tolist() == [Status.CONVERGED] * 2
        assert (result.residual <= result.tolerance).all()
        # noise there: 2 x 2.2e-16 x 1000 x 1 beside 2 x 2.2e-16 x 333 x 1e7
        assert (result.tolerance <= 1.6e-6).all() and result.residual[1] > 1e-12
        assert (result.x - torch.tensor([[1001.0, 1000 / 3]], dtype=torch.float64)).abs().max() < 2e-6


def test_halving_does_not_factor_again():
    """Factor once for each new iterate, however often its step is halved."""
    solver, counts = linear.make("dense", PATTERN), []
    plain = solver.factor
    solver.factor = lambda *args, **options: counts.append(1) or plain(*args, **options)
    one = torch.zeros(1, dtype=torch.float64)
    equations = Equations(torch.atan, lambda x: [1 / (1 + x[:, 0] ** 2), one.expand(len(x)), 1 / (1 + x[:, 1] ** 2)])
    weight, tolerance = torch.ones(2, dtype=torch.float64), torch.full((1,), 1e-12, dtype=torch.float64)
    result = newton(
        equations, torch.full((1, 2), 20.0, dtype=torch.float64), NewtonOptions(solver, weight, tolerance, 50)
    )
    assert result.status[0] == Status.CONVERGED
    assert equations.evaluations > len(counts) + 3  # steps were halved
    assert len(counts) == result.iterations[0]
