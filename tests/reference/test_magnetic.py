"""Magnetised rods against an independent implementation: forces, matrices and motions.

The files are of the x-y plane; the plane is x-z here. Their field is that of the start of each step: here it is that of
its end, and a field that is late by a step is the same.
"""

import numpy as np
import pytest
import torch

from tests.reference.loading import load, tensor
from torchdismech import Circle, Control, ImplicitEuler, Material, RobotBuilder, forces, magnetics, rollout

DT = 1e-2
EXACT = {"force_tolerance": 1e-12, "relative_tolerance": 0.0}


def in_space(plane: np.ndarray) -> np.ndarray:
    """Return vectors (.., 3) for vectors (.., 2) of the plane."""
    return np.stack([plane[..., 0], np.zeros(plane.shape[:-1]), plane[..., 1]], axis=-1)


def robot(data, radius, youngs, density, field, loads=()):
    """Return a builder of the file's rod, and its magnetic force."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(in_space(data["node"]), Circle(radius), Material(youngs, density))
    force = magnetics.Magnetic(in_space(data["Br"]), field)
    for added in (force, *loads):
        builder.add_force(added)
    return builder, force


def beam(data, field):
    """Return the builder of the beam, clamped, and its magnetic force."""
    builder, force = robot(data, 1e-2, 1e8, 10.0, field, [forces.MassDamping(0.1)])
    builder.clamp(nodes=[0, 1])
    return builder, force


def swimmer(data, field, length="current"):
    """Return the builder of the swimmer, whose last node keeps its height, its magnetic force and its drag."""
    drag = forces.QuadraticResistive(0.01, 1.0, 1000.0, length=length)
    builder, force = robot(data, 1e-3, 1e5, 1e3, field, [drag])
    builder.clamp(nodes=[39], axes="z")
    return builder, force, drag


def q_of(model, plane: np.ndarray) -> torch.Tensor:
    """Return q (n,) for positions (2 N,) of the plane."""
    nodes = tensor(in_space(plane.reshape(-1, 2))).flatten()
    return torch.cat([nodes, nodes.new_zeros(model.body.n_angles)])


IN_PLANE = np.array([3 * node + axis for node in range(40) for axis in (0, 2)])


@pytest.mark.parametrize(("name", "make"), [("soft_robot_1", beam), ("soft_robot_2", swimmer)])
def test_force_and_matrix(name, make):
    """Match force and matrix at three states, to 1e-9."""
    data = load(name)
    for k in range(3):
        builder, force, *_ = make(data, tuple(in_space(data["orc/B"][k])))
        model = builder.finalize()
        state = model.initial_state(q=q_of(model, data["orc/x"][k]))
        found, expected = force(state, Control())[0, IN_PLANE].numpy(), data["orc/Fm_phys"][k]
        assert np.abs(found - expected).max() < 1e-9 * np.abs(expected).max()
        matrix = np.zeros((model.n_dofs,) * 2)
        ((blocks, _),) = force.derivatives(state, Control())
        for dofs, block in zip(force.blocks()[0].rows, blocks[0], strict=True):
            matrix[np.ix_(dofs, dofs)] += block.numpy()
        found, expected = matrix[np.ix_(IN_PLANE, IN_PLANE)], data["orc/Km_phys"][k]
        assert np.abs(found - expected).max() < 1e-9 * np.abs(expected).max()


def test_drag():
    """Match the swimmer's drag by present lengths, to 1e-12; by rest lengths it is another."""
    data = load("soft_robot_2")
    for length, same in (("current", True), ("rest", False)):
        builder, _, drag = swimmer(data, (0.0, 0.0, 0.0), length)
        model = builder.finalize()
        for k in range(3):
            x, before = (q_of(model, data[key][k]) for key in ("orc/x", "orc/x0"))
            state = model.initial_state(q=x, velocity=(x - before) / DT)
            found, expected = drag(state, Control())[0, IN_PLANE].numpy(), data["orc/Fd_doc"][k]
            error = np.abs(found - expected).max() / np.abs(expected).max()
            assert error < 1e-12 if same else error > 1e-6


def late(field):
    """Return the field of the start of a step that ends at a time."""
    return lambda time: field(time - DT)


def turning(time):
    """Return the beam's field."""
    return 3 * torch.stack([torch.cos(time), 0 * time, torch.sin(time)], dim=-1)


def shaking(time):
    """Return the swimmer's field."""
    return torch.stack([torch.sin(20 * time), 0 * time, torch.cos(20 * time)], dim=-1)


def check_beam(duration: float) -> None:
    """Hold all that is stored of the tip against a run."""
    data = load("soft_robot_1")
    model = beam(data, late(turning))[0].finalize(compile=False)
    run = rollout(model, model.initial_state(), ImplicitEuler(DT, **EXACT), round(duration / DT), every=1, throw=True)
    stored = np.flatnonzero(data["phys/t_all"] < duration + 0.5 * DT)
    steps = np.round(data["phys/t_all"][stored] / DT).astype(int)
    tip = run.positions[steps, 0, -1][:, [0, 2]].numpy()
    assert np.abs(tip - data["phys/probe_all"][stored, -1]).max() < 1e-7
    known = {1: (0.464067, 0.241309), 2: (0.413364, 0.367007), 5: (0.444392, -0.298016)}
    known |= {10: (0.441937, -0.302187), 20: (0.454370, 0.270966)}
    for time, place in known.items():
        if time <= duration:
            assert np.abs(run.positions[round(time / DT), 0, -1, [0, 2]].numpy() - place).max() < 1e-6


def check_swimmer(duration: float) -> None:
    """Hold all that is stored of the middle of mass against a run."""
    data = load("soft_robot_2")
    model = swimmer(data, late(shaking))[0].finalize(compile=False)
    run = rollout(model, model.initial_state(), ImplicitEuler(DT, **EXACT), round(duration / DT), every=1, throw=True)
    mass = tensor(data["mass"])
    middle = (run.positions[:, 0][..., [0, 2]] * mass[:, None]).sum(1) / mass.sum()
    stored = np.flatnonzero(data["phys/t_all"] < duration + 0.5 * DT)
    steps = np.round(data["phys/t_all"][stored] / DT).astype(int)
    assert np.abs(middle[steps].numpy() - data["phys/com_all"][stored]).max() < 1e-6
    known = {0.5: 0.029057, 1: 0.101885, 2: 0.276483, 3: 0.451310, 4: 0.624410, 5: 0.798926}
    for time, way in known.items():
        if time <= duration:
            assert float((middle[round(time / DT)] - middle[0])[0]) == pytest.approx(way, abs=1.5e-6)


def test_beam_begins():
    """Follow the beam for half a second."""
    check_beam(0.5)


def test_swimmer_begins():
    """Follow the swimmer for half a second."""
    check_swimmer(0.5)


@pytest.mark.slow
def test_beam():
    """Follow the beam for 20 s, to 1e-7 m at every time."""
    check_beam(20.0)


@pytest.mark.slow
def test_swimmer():
    """Follow the swimmer for 5 s, to 1e-6 m at every time."""
    check_swimmer(5.0)
