"""Contract checks where derivatives are zero: in a straight rod, where differences of them are rounding alone."""

import numpy as np
import pytest
import torch

from tests.rods import rod_through
from torchdismech import Circle, Material, forces, straight
from torchdismech.elastic import Stencil
from torchdismech.testing import check_force, check_rigid_motion, check_stencil, check_symmetry

NODES = 8


class Cosine(Stencil):
    """Cosine of the angle between an edge and the one after the next."""

    def __init__(self, off=0.0):
        first, one = np.arange(NODES - 3), np.ones(NODES - 3)
        edges = [[(3 * (first + 1 + far) + k, one), (3 * (first + far) + k, -one)] for far in (0, 2) for k in range(3)]
        super().__init__(edges, ["cosine"])
        self.off = off

    def strain(self, local, *constants):
        """Return the cosine."""
        u, v = torch.stack(local[:3]), torch.stack(local[3:])
        return ((u * v).sum(0) / (u.norm(dim=0) * v.norm(dim=0)),)

    def derivatives(self, local, *constants):
        """Return it with its derivatives, the first of which is off."""
        strains, ((first, *others),), second = super().derivatives(local, *constants)
        return strains, [[first + self.off, *others]], second


class Restoring(forces.LocalForce):
    """Pushes nodes by the cube of how far they are off the middle of their neighbours; its slope is off by a number."""

    def __init__(self, cube=1.0, off=0.0):
        super().__init__(reach=1)
        self.cube, self.off = cube, off

    def nodal_force(self, state, control):
        """Return the forces (B, N, 3)."""
        x = state.positions
        away = x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2]
        inner = self.cube * away * (away * away).sum(-1, keepdim=True)
        end = torch.zeros_like(x[:, :1])
        return torch.cat([end, inner, end], dim=1) + self.off * (x - x.detach())  # zero, but not its slope


class Even(Restoring):
    """Pushes them by how far they are off: no force on a straight rod but for rounding."""

    def nodal_force(self, state, control):
        """Return the forces (B, N, 3)."""
        x = state.positions
        end = torch.zeros_like(x[:, :1])
        return 1e3 * torch.cat([end, x[:, 2:] - 2 * x[:, 1:-1] + x[:, :-2], end], dim=1)


def straight_rod(*loads):
    """Return a straight rod that is in line with no axis, and its state."""
    points = straight((0.1, 0, 0), (0.3, 0.03, 0.01), NODES)
    model = rod_through(points, Circle(2e-3), Material(1e6, 1e3), loads).finalize(compile=False)
    return model, model.initial_state()


def failed(report):
    """Return the names of the checks that failed."""
    return [check.name for check in report.checks if not check.ok]


def test_a_stencil_at_an_extremum():
    """Pass a cosine at 1; find a first derivative that is off by a billionth of a strain over its variables' size."""
    _, state = straight_rod()
    check_stencil(Cosine(), state).raise_if_failed()
    length = 0.2 / NODES
    assert "first derivatives" in failed(check_stencil(Cosine(off=1e-9 / length), state))


def test_a_force_without_a_slope():
    """Pass the cube of what is zero; find a derivative that is off by the billionth of what the force has at 1 m."""
    force = Restoring()
    check_force(force, *straight_rod(force)).raise_if_failed()
    force = Restoring(off=1e-9)
    assert failed(check_force(force, *straight_rod(force))) == ["derivative by position"]


def test_symmetries_of_a_force_that_is_none():
    """Pass what is rounding alone, and find what goes by the numbers of nodes."""
    force = Even()
    model, state = straight_rod(force)
    report = check_symmetry(force, model, state, rotation="any")
    assert failed(report) == ["other numbers", "edges the other way round"]


def test_energies_that_are_none():
    """Pass a rod at rest."""
    model, state = straight_rod()
    check_rigid_motion(model, state).raise_if_failed()


@pytest.mark.parametrize("factor", [1.0, 1e-6, 1e6])
def test_whatever_the_unit(factor):
    """Tell right from wrong likewise for forces of another size, where they are not zero."""
    force = Restoring(cube=factor)
    model, state = straight_rod(force)
    noise = torch.randn(state.q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    bent = model.initial_state(q=state.q + 5e-3 * noise)
    check_force(force, model, bent).raise_if_failed()
    force = Restoring(cube=factor, off=1e-8 * factor)
    model, _ = straight_rod(force)
    assert failed(check_force(force, model, model.initial_state(q=bent.q))) == ["derivative by position"]
