"""Derivatives of contact problems' solutions."""

import pytest
import torch

from tests.solve.contact_problems import block, every, normal_numbers, random_contacts
from torchdismech.errors import InputError, Status
from torchdismech.solve.complementarity import (
    differentiable_impulses,
    solve_contact,
)


class TestDerivatives:
    """Derivatives of impulses by W, b and mu, against central differences of the solver."""

    STEP = 1e-6

    def differences(self, inputs, direction, weights):
        """Return the central difference (B,) of the weighted impulses, and where no contact changed its mode."""
        ends = []
        for sign in (1.0, -1.0):
            moved = [x + sign * self.STEP * d for x, d in zip(inputs, direction, strict=True)]
            ends.append(solve_contact(*moved, every(inputs[2]), tolerance=1e-12))
        values = [(end.impulses * weights).sum(1) for end in ends]
        same = (ends[0].sticking == ends[1].sticking) & (ends[0].sliding == ends[1].sliding)
        solved = (ends[0].status == Status.CONVERGED) & (ends[1].status == Status.CONVERGED)
        return (values[0] - values[1]) / (2 * self.STEP), same.all(1) & solved

    @pytest.mark.parametrize("contacts", [1, 4])
    def test_match_central_differences(self, contacts):
        """Follow W, b and mu through sticking, sliding and open contacts."""
        inputs = random_contacts(16, contacts, 3 * contacts + 2, 0.0, seed=contacts)
        weights = normal_numbers(16, 3 * contacts, seed=7)
        solution = solve_contact(*inputs, every(inputs[2]), tolerance=1e-12)
        assert (solution.status == Status.CONVERGED).all()
        assert solution.sticking.any()
        assert solution.sliding.any()
        leaves = [x.clone().requires_grad_() for x in inputs]
        impulses = differentiable_impulses(solution, *leaves)
        # a root to 1e-12 is a root: the step changes it by 1e-12 |b| over the smallest eigenvalue of W (1e-2)
        torch.testing.assert_close(impulses.detach(), solution.impulses, rtol=0, atol=1e-9)
        gradients = torch.autograd.grad((impulses * weights).sum(), leaves)
        for k in range(3):
            direction = [torch.zeros_like(x) for x in inputs]
            direction[k] = 0.1 * normal_numbers(*inputs[k].shape, seed=k)
            if k == 0:
                direction[k] = direction[k] + direction[k].mT
            expected, smooth = self.differences(inputs, direction, weights)
            exact = (gradients[k] * direction[k]).flatten(1).sum(1)
            assert smooth.sum() >= 12
            # differences of a solution to 1e-12 over steps of 1e-6
            torch.testing.assert_close(exact[smooth], expected[smooth], rtol=1e-5, atol=1e-5)

    @pytest.mark.parametrize(("velocity", "friction"), [([-1.0, 0.2, 0.1], 0.5), ([-1.0, 3.0, 4.0], 0.25)])
    def test_of_redundant_contacts(self, velocity, friction):
        """Get the derivative of the total impulse of a box right, sticking and sliding."""
        delassus, free, total = block(velocity)
        mu = torch.full((1, 4), friction, dtype=torch.float64)
        solution = solve_contact(delassus, free, mu, every(mu), tolerance=1e-12)
        free.requires_grad_()
        impulses = differentiable_impulses(solution, delassus, free, mu)
        for k in range(3):
            (gradient,) = torch.autograd.grad((total @ impulses[0])[k], free, retain_graph=True)
            for axis in range(3):  # the box as a whole moves faster
                change = torch.zeros(3, dtype=torch.float64)
                change[axis] = 1.0
                exact = (gradient[0] * change.repeat(4)).sum().item()
                ends = []
                for sign in (1.0, -1.0):
                    moved = [x + sign * 1e-4 * c for x, c in zip(velocity, change.tolist(), strict=True)]
                    other = solve_contact(*block(moved)[:2], mu, every(mu), tolerance=1e-12)
                    ends.append((total @ other.impulses[0])[k].item())
                # second order in the step of 1e-4 over speeds of 1
                assert exact == pytest.approx((ends[0] - ends[1]) / 2e-4, abs=1e-6)

    def test_padding_and_failed_rows_have_none(self):
        """Give zero derivatives, not NaN, to padding that holds NaN and to rows that did not converge."""
        delassus, free, mu = random_contacts(3, 2, 8, 0.0)
        active = every(mu)
        active[0, 1] = False
        delassus[0, 3:], delassus[0, :, 3:], free[0, 3:], mu[0, 1] = (torch.nan,) * 4
        free[2, 0] = torch.nan
        solution = solve_contact(delassus, free, mu, active)
        leaves = [x.requires_grad_() for x in (delassus, free, mu)]
        impulses = differentiable_impulses(solution, *leaves)
        gradients = torch.autograd.grad(impulses.sum(), leaves)
        assert all(torch.isfinite(g).all() for g in gradients)
        assert all((g[2] == 0).all() for g in gradients)
        assert (gradients[1][0, 3:] == 0).all()

    def test_refuses_the_pyramid(self):
        """Refuse a solution on the pyramid, whose impulses obey other equations."""
        delassus, free, mu = random_contacts(1, 1, 3, 0.0)
        solution = solve_contact(delassus, free, mu, every(mu), cone="pyramid")
        with pytest.raises(InputError, match="second-order cone"):
            differentiable_impulses(solution, delassus, free, mu)
