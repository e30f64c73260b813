"""Formulas of closed contacts: the laws of contact and friction, what is not finite, and loads in balance."""

import math

import pytest
import torch

from torchdismech.contact import constraint_loops as loops
from torchdismech.integrate.search import contact_formulas as formulas

F64 = torch.float64


def rows(*values):
    """Return a tensor of numbers, or of rows of numbers."""
    return torch.tensor(values, dtype=F64)


def test_friction_obeys_its_law():
    """Leave friction within its cone where contacts stick, and put the rest on the cone, against the slide."""
    load = rows([2.0, 0.3, 0.4], [2.0, 3.0, 4.0], [2.0, 0.3, 0.4], [2.0, 0.3, 0.4], [-2.0, 0.3, 0.4])
    slide = rows([0.0, 0.0], [0.0, 0.0], [0.0, -0.2], [0.0, -0.2], [1.0, 0.0])
    sticks = torch.tensor([True, True, False, False, False])
    friction = rows(0.5, 0.5, 0.5, 0.0, 0.5)  # the fourth has none
    expected = rows([2.0, 0.3, 0.4], [2.0, 0.6, 0.8], [2.0, 0.0, 1.0], [2.0, 0.0, 0.0], [-2.0, 0.0, 0.0])
    assert torch.allclose(formulas.BY_LAW(load, slide, sticks, friction).t(), expected, atol=1e-15)


def test_whole_friction_of_what_slid():
    """Scale the friction of contacts that slid to their cone, and leave that of the others."""
    load, slid = rows([2.0, 0.3, 0.4], [2.0, 0.3, 0.4], [2.0, 0.0, 0.0]), torch.tensor([True, False, True])
    found = formulas.WHOLE_FRICTION(load, slid, rows(0.5, 0.5, 0.5)).t()
    assert torch.allclose(found, rows([2.0, 0.6, 0.8], [2.0, 0.3, 0.4], [2.0, 0.0, 0.0]), atol=1e-15)


@pytest.mark.parametrize("plainly", [False, True])
def test_violation(plainly, monkeypatch):
    """Count overlaps, gaps under load and slides within the cone; infinity for what is not finite, held or not."""
    monkeypatch.setattr(formulas.VIOLATION._fused, "compiles", not plainly)
    gap = rows(-0.1, 0.2, 0.2, 0.0, 0.0, math.nan, 0.0, math.nan)
    load = torch.zeros(8, 3, dtype=F64)
    load[2:5, 0] = load[6, 0] = 1.0  # these bear a load; contact 3 has all friction against its slide, 4 has less
    load[3, 1], load[4, 1] = -0.5, -0.1
    slide = torch.zeros(8, 2, dtype=F64)
    slide[3:5, 0], slide[6, 0] = 0.3, math.nan
    counts = torch.tensor([True] * 7 + [False])
    found = formulas.VIOLATION(gap, load, slide, torch.full_like(gap, 0.5), counts)[0]
    assert found.tolist() == pytest.approx([0.1, 0.0, 0.2, 0.0, 0.3, math.inf, math.inf, 0.0], abs=1e-15)


def test_what_moves_a_contact():
    """Tell contacts that unknowns move in all directions from those that clamps hold in some, and in all."""
    jacobian = torch.eye(3, dtype=F64).expand(4, 3, 3)
    dofs = torch.arange(12).view(4, 3)
    free = rows(1, 1, 1, 1, 0, 1, 0, 0, 0, 1, 0, 1).to(F64)
    slide = rows([0.1, 0.1], [0.1, 0.0], [0.1, 0.0], [0.0, 0.1])  # the second slides where it is held, the last not
    moves, partly, stiffness = formulas.MOVABLE(jacobian, slide, rows(0.5, 0.5, 0.5, 0.5), free, 2 * free, dofs)
    assert moves.tolist() == [1, 0, 0, 1]
    assert partly.tolist() == [0, 1, 0, 0]
    assert stiffness.tolist() == [2.0, 1.0, 0.0, 1.0]  # the mean over both directions of sliding
    without_friction = formulas.MOVABLE(jacobian, slide, rows(0.0, 0.0, 0.0, 0.0), free, free, dofs)
    assert without_friction[0].tolist() == [1, 1, 0, 1]


@pytest.mark.parametrize("nodes", [1, 3, 4])
def test_loads_balance(nodes):
    """Reach gaps and slides of zero with loads in balance, by the augmented system of a mass on each dof."""
    generator = torch.Generator().manual_seed(nodes)
    count, size = 5, 3 * nodes

    def noise(*shape):
        return torch.randn(*shape, dtype=F64, generator=generator)

    jacobian = torch.eye(3, dtype=F64).repeat(1, nodes) + 0.2 * noise(count, 3, size)
    offset, dofs = noise(count, 3), torch.arange(count * size).view(count, size)
    closed = torch.tensor([True, True, True, False, True])
    load = noise(count, 3).abs() + rows(2.0, 0.0, 0.0)
    load[2, 1], slide = 50.0, 0.1 * noise(count, 2)  # the third pushes far beyond its cone, so it slips
    friction, stiffness, mass = torch.full((count,), 3.0, dtype=F64), torch.full((count,), 1e6, dtype=F64), 2.0
    found = formulas.FIRST_FRICTION(load, slide, offset, closed, friction, stiffness, stiffness * 1e-6, jacobian)
    state, (friction_size,), loads, forces, blocks = found.split([formulas.STATE, 1, 3, size, size * size])
    assert state[0].tolist() == closed.tolist() and state[2].tolist() == [0, 0, 1, 0, 0]
    matrices = blocks.t().view(count, size, size) + mass * torch.eye(size, dtype=F64)
    assert torch.equal(matrices, matrices.mT)
    for _ in range(4):
        step = torch.linalg.solve(matrices, forces.t())
        at = loads, torch.zeros_like(friction), step.flatten(), dofs
        found = formulas.LOADS(jacobian, offset, friction, stiffness, state, friction_size, *at)
        loads, after, whole, (missing,), _ = found.split([3, 3, 3, 1, 2])
        forces = formulas.NEXT_FORCES(jacobian, offset, stiffness, state, loads, friction_size)[1:]
    sticks = state[1] > 0
    expected = offset + loops.MOTIONS(jacobian, step.flatten(), dofs).t()
    assert torch.allclose(after.t(), expected, atol=1e-12)
    # each of four solves leaves mass / stiffness of gaps and slides, and rounding times stiffness of loads
    assert torch.allclose(after[0][closed], torch.zeros(4, dtype=F64), atol=1e-12)
    assert torch.allclose(after[1:, sticks], torch.zeros(2, int(sticks.sum()), dtype=F64), atol=1e-12)
    balance = loops.NODAL_FORCES(whole.t(), jacobian).t() - mass * step
    assert torch.allclose(balance, torch.zeros_like(balance), atol=1e-6)
    assert torch.equal(whole[:, 3], torch.zeros(3, dtype=F64))
    slips = state[2] > 0
    assert torch.allclose(missing[slips], ((friction * whole[0]).clamp_min(0) - friction_size)[slips], atol=1e-9)
    assert torch.equal(missing[~slips], torch.zeros(4, dtype=F64))


def test_friction_that_changes_the_load_that_presses_it():
    """Find by a secant step where friction f is 8 - 3 f, which repetition does not: the next sizes are 5, then 2."""
    state = torch.zeros(formulas.STATE, 2, dtype=F64)
    state[0] = state[2] = 1.0
    robot, offset, load = torch.tensor([0, 1]), torch.zeros(2, 3, dtype=F64), torch.zeros(3, 2, dtype=F64)
    at = torch.eye(3, dtype=F64).expand(2, 3, 3), offset, torch.ones(2, dtype=F64), state, load
    size, before, missing_before = rows(1.0, 1.0), rows(0.0, 0.0), rows(0.0, 0.0)
    sums = torch.zeros(2, 2, dtype=F64)
    for expected in (5.0, 2.0, 2.0):
        missing = 8 - 3 * size - size
        next_size = formulas.NEXT_FORCES(*at, size, missing, before, missing_before, sums, robot)[0]
        assert torch.allclose(next_size, rows(expected, expected), atol=1e-14)
        before, missing_before, size = size, missing, next_size
        change = 8 - 4 * size - missing_before
        sums = torch.stack([(8 - 4 * size) * change, change**2])
