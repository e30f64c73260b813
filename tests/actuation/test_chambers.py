"""Pressure chambers in rods."""

import math
import warnings

import pytest
import torch

from tests.actuation.robots import EA, EI, LENGTH, OFFSET, rod, settled
from tests.actuation.test_tendons import bending, moved_from_rest
from torchdismech import InputError
from torchdismech.actuation import AtNodes, Chambers, Fixed, Tendons
from torchdismech.testing import check_force

AREA, PRESSURE = 5e-5, 1e4


def test_derivatives():
    """Match differences over all dofs, and the potential."""
    model = rod(Chambers([AtNodes(range(3, 9), (0, OFFSET, 0.002))], AREA, [[PRESSURE], [-PRESSURE]]))
    check_force(model.forces[0], model, moved_from_rest(model, 2)).raise_if_failed()


def test_it_bends_and_stretches_its_part_of_the_rod():
    """Bend by p A d / EI away from the chamber and stretch by p A / EA between its ends, nothing elsewhere."""
    edges = 12
    model = rod(Chambers([AtNodes(range(3, 10), (0, 0, OFFSET))], AREA, PRESSURE), edges=edges)
    state = settled(model)
    curvature = bending(model, state).diff() * edges / LENGTH
    expected = torch.zeros_like(curvature)  # of springs at nodes 1, 2, ..
    expected[3:8] = -PRESSURE * AREA * OFFSET / EI
    expected[[2, 8]] = expected[3] / 2
    # half a bend is .042 rad, and the force is along the chords of the chamber: .2 per cent of second order
    torch.testing.assert_close(curvature, expected, rtol=1e-2, atol=1e-9)
    stretch = state.positions[0].diff(dim=0).norm(dim=-1) * edges / LENGTH - 1
    torch.testing.assert_close(stretch[3:9], torch.full_like(stretch[3:9], PRESSURE * AREA / EA), rtol=1e-2, atol=0)
    torch.testing.assert_close(stretch[:3], torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-9)


def test_three_chambers_bend_a_bellow_anywhere():
    """Bend towards the mean of three chambers' offsets, weighted by pressure, away from where it is high."""
    angle = [2 * math.pi * k / 3 for k in range(3)]
    pressure = [2e3, 5e3, 3e3]
    routes = [AtNodes(range(11), (0, OFFSET * math.cos(a), OFFSET * math.sin(a))) for a in angle]
    state = settled(rod(Chambers(routes, AREA, pressure)))
    side = state.positions[0, -1, 1:]
    away = -sum(
        p * torch.tensor([math.cos(a), math.sin(a)], dtype=torch.float64) for a, p in zip(angle, pressure, strict=True)
    )
    # chambers inside the bend are shorter by 2e-3 of their length, where sections shrink to 1e-4 of it: second order
    torch.testing.assert_close(side / side.norm(), away / away.norm(), rtol=0, atol=1e-6)


def test_refusals():
    """Name what is wrong."""
    with pytest.raises(InputError, match="area: expected more than 0"):
        Chambers([AtNodes([0, 1])], 0.0, 1.0)
    with pytest.raises(InputError, match="AtNodes.nodes: expected indices 0 to 10"):
        rod(Chambers([AtNodes([0, 12])], 1e-4, 1.0))


def test_sizes_in_millimetres_are_warned_of():
    """Warn of sections and offsets that are larger than the robot, of chambers and tendons; of no other ones."""
    with pytest.warns(UserWarning, match=r"Chambers.area: 50 m\^2 is more than .*: give it in m\^2"):
        rod(Chambers([AtNodes([0, 1])], [[AREA], [50.0]], PRESSURE))
    with pytest.warns(UserWarning, match=r"Tendons: an offset of 10 m is more than the robot is large, .*in m"):
        rod(Tendons([[Fixed((20.0, 0, 0)), AtNodes([0, 1], (0, 0, 10.0))]], 1.0))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rod(Tendons([[Fixed((20.0, 0, 0)), AtNodes([0, 1], (0, 0, OFFSET))]], 1.0))
