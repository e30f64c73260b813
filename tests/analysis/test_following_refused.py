"""Robots and loads that have no path, paths that cannot go on, and what is refused."""

import math

import numpy as np
import pytest
import torch

from tests.analysis.structures import column, truss
from torchdismech import (
    Circle,
    Control,
    InputError,
    Material,
    RobotBuilder,
    Status,
    follow,
    forces,
    straight,
)
from torchdismech.analysis.arclength import Arclength
from torchdismech.errors import FailureWarning
from torchdismech.integrate.static import ramped


def test_a_path_that_cannot_go_on_ends(monkeypatch):
    """Halve steps before what has no numbers, and say why the path ends there; the other robot goes on."""

    def breaking(problem, share):
        control = ramped(problem, share)
        broken = (share > 0.5) & torch.tensor([True, False])
        return control.replace(rest_length=torch.where(broken[:, None], torch.nan, control.rest_length))

    monkeypatch.setattr("torchdismech.analysis.arclength.ramped", breaking)
    model = column((0.1, 0, 0.1))
    control = Control(rest_length=torch.full((2, 20), 0.051).double())
    with pytest.warns(
        FailureWarning, match=r"^follow: robot 0: its path ends at the load factor 0\.\d+: not_finite \("
    ):
        path = follow(model, model.initial_state(2), control, length=0.2)
    assert path.status.tolist() == [Status.NOT_FINITE, Status.CONVERGED]
    assert path.reached.tolist() == [False, True]
    assert 0.49 < path.load_factor[-1, 0].item() <= 0.5
    assert path.points[0] == int((path.load_factor[:, 0].diff() > 0).sum()) + 1


def test_a_control_that_is_not_finite_is_named():
    """Warn of the robot whose force is NaN, and where it stands; the other one arrives."""
    model = column((0.1, 0, 0.1))
    force = torch.zeros(2, model.n_dofs).double()
    force[1, 3 * 10 + 2] = math.nan
    with pytest.warns(FailureWarning, match=r"robot 1: its path has no start.*; Control.force of robot 1 .* holds NaN"):
        path = follow(model, model.initial_state(2), Control(force=force), length=0.2)
    assert path.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE] and path.reached.tolist() == [True, False]
    assert path.points[0] > 1 and path.points[1] == 0


def test_a_first_point_without_a_tangent_is_no_success(monkeypatch):
    """Say that the matrix is singular where a robot is at rest but free to move, as a hinged rod that may spin is."""
    point = Arclength._point

    def free(self, *given):
        there, found = point(self, *given)
        return there, found & torch.tensor([False, True])

    monkeypatch.setattr(Arclength, "_point", free)
    model = column((0.1, 0, 0.1))
    path = follow(model, model.initial_state(2), length=0.2)
    assert path.status.tolist() == [Status.SINGULAR, Status.CONVERGED]
    assert path.reached.tolist() == [False, True]


def test_a_path_without_a_start_asks_for_a_nearer_one():
    """Say where to begin if the state is far from the equilibrium without loads: a ring that wants to be straight."""
    angle, builder = np.linspace(0, 6, 25), RobotBuilder()
    ring = np.stack([np.cos(angle), np.sin(angle), 0.1 * angle], axis=1)
    builder.add_rod(0.1 * ring, Circle(2e-3), Material(1e6, 1000.0), natural="straight")
    builder.clamp(nodes=[0, 1])
    model = builder.finalize(compile=False)
    with pytest.warns(FailureWarning, match="has no start: .* begin at a state nearer to the equilibrium without"):
        follow(model, model.initial_state())


def turned(nodes, degrees):
    """Turn nodes about z, and a third as far about x, so that no axis of theirs is one of the world's."""
    about_z, about_x = np.radians(degrees), np.radians(degrees / 3)
    c, s = np.cos(about_z), np.sin(about_z)
    nodes = nodes @ np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    c, s = np.cos(about_x), np.sin(about_x)
    return nodes @ np.array([[1, 0, 0], [0, c, s], [0, -s, c]])


def between_hinges(degrees, nodes, rise=0.0, direction=None, radius=2e-3, solver="auto", dtype=torch.float64):
    """A rod of .3 m whose ends are held, with a force down at its middle; straight, or an arch of some rise."""
    s = np.linspace(0, 1, nodes)
    builder = RobotBuilder()
    places = turned(np.stack([0.3 * s, 0 * s, rise * np.sin(np.pi * s)], axis=1), degrees)
    builder.add_rod(places, Circle(radius), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction=direction)
    builder.clamp(nodes=[nodes - 1])
    # of the stiffness in bending: it moves by about a tenth of the length
    builder.add_force(forces.PointForce([nodes // 2], (0, 0, -4e7 * radius**4)))
    return builder.finalize(solver=solver, compile=False, dtype=dtype)


@pytest.mark.parametrize("solver", ["dense", "banded", "multifrontal"])
@pytest.mark.parametrize("rise", [0.0, 0.03])
@pytest.mark.parametrize("degrees", [0, 17, 45, 133])
@pytest.mark.parametrize("nodes", [5, 11, 41])
def test_what_is_free_to_move_has_no_path(nodes, degrees, rise, solver):
    """Have no point, whatever rounding makes of the pivot of a rod that spins, or an arch that swings."""
    model = between_hinges(degrees, nodes, rise, solver=solver)
    with pytest.warns(FailureWarning, match=r"^follow: robot 0: its path has no start: singular \(the Newton matrix"):
        path = follow(model, model.initial_state(), steps=5, length=0.1)
    assert path.status.tolist() == [Status.SINGULAR]
    assert "0 of them unstable, to load factors 0; 1 failed: singular)" in repr(path)
    assert not len(path.limits()) and not len(path.branches())
    assert path.points.tolist() == [0] and not path.reached.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("degrees", [0, 17, 45, 133])
@pytest.mark.parametrize("nodes", [5, 41])
def test_a_rod_that_a_clamp_keeps_from_turning_has_a_path(nodes, degrees, dtype):
    """Follow the same rod, if one of its clamps holds a direction."""
    model = between_hinges(degrees, nodes, direction="rest", dtype=dtype)
    path = follow(model, model.initial_state(), steps=5, length=0.1)
    assert path.status.tolist() == [Status.CONVERGED] and path.points.tolist() == [6]
    assert path.stable is not None and path.stable.all()


@pytest.mark.parametrize("degrees", [0, 45])
def test_a_fibre_is_soft_but_not_free(degrees):
    """Follow a rod of 300 edges that is 15,000 times as long as thick."""
    model = between_hinges(degrees, 301, direction="rest", radius=1e-5)
    path = follow(model, model.initial_state(), steps=3, length=0.1, force_tolerance=1e-16)
    assert path.status.tolist() == [Status.CONVERGED] and path.points.tolist() == [4]


def test_numbers_of_numpy_are_numbers():
    """Take a last load factor and a length of numpy, as loops over arrays give them."""
    path = follow(truss(), truss().initial_state(), last=np.float32(0.25), length=np.float32(0.125))
    assert path.load_factor[-1].tolist() == [0.25, 0.25]


REFUSED = {
    "last": ({"last": 0.0}, "follow.last: expected a number other than 0"),
    "no number": ({"last": float("nan")}, "follow.last"),
    "nothing": ({"last": None}, "follow.last: expected a number other than 0, got None"),
    "a text": ({"length": "short"}, "follow.length"),
    "steps": ({"steps": 0}, "follow.steps: expected a whole number from 1 up, got 0"),
    "length": ({"length": 2.0}, "follow.length: expected a number above 0 and up to 1, got 2.0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_out_of_range_are_refused(name):
    """Name the argument."""
    given, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        follow(truss(), truss().initial_state(), **given)


def test_what_cannot_be_followed_is_refused():
    """Refuse iterative solvers and what nothing holds."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 1), (1, 0, 1), 4), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    for solver in ("pcg", "bicgstab"):
        iterative = builder.finalize(solver=solver, compile=False)
        with pytest.raises(InputError, match=f"'{solver}' is iterative and cannot tell"):
            follow(iterative, iterative.initial_state())
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 1), (1, 0, 1), 4), Circle(0.01), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0, 0, -1)))
    loose = builder.finalize(compile=False)
    with pytest.raises(InputError, match="nothing holds the robot along z"):
        follow(loose, loose.initial_state())
