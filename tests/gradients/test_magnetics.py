"""Gradients through steps of magnetised rods: by the field, the magnetisation and all else, in every integrator."""

import numpy as np
import pytest
import torch

from studies.magnetic_swimmer import magnetic_swimmer as swimmer
from tests.gradients.cases import EXACT, GradientCase, robot
from torchdismech import (
    BDF2,
    Circle,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    magnetics,
    unroll,
)
from torchdismech.contact import Barrier, Friction, HalfSpace, Obstacle

EDGES = {"rod": 5, "network": 5}


def magnetised(shape: str, field) -> magnetics.Magnetic:
    """Return the force on edges that are magnetised unlike each other, and in two robots."""
    generator = torch.Generator().manual_seed(7)
    return magnetics.Magnetic(5e3 * torch.randn(2, EDGES[shape], 3, dtype=torch.float64, generator=generator), field)


class InATurningField(GradientCase):
    """A helix in fields that turn, of another strength for each robot."""

    def model(self):
        """Return the helix."""
        amplitude = torch.tensor([[0.03], [0.05]], dtype=torch.float64)
        field = magnetics.Rotating(amplitude, 5.0, phase=0.4)
        return robot("rod", [forces.Gravity((0.3, 0, -9.81)), magnetised("rod", field)])


class InATabulatedField(GradientCase):
    """A helix in a field that a table gives."""

    def model(self):
        """Return the helix."""
        return robot("rod", [magnetised("rod", magnetics.Table([0, 0.003, 0.02], 0.05 * np.eye(3)))], learned=False)


class BesideAMagnet(GradientCase):
    """A star that a magnet pulls and turns."""

    known = 4e-13  # m: rounding leaves 2e-14 N of a residual, which move the soft star by some 17 m/N

    def model(self):
        """Return the star."""
        field = magnetics.Dipole((1.0, 20.0, -1.0), (0.2, -0.1, 0.3))
        loads = [forces.Gravity((0.3, 0, -9.81)), magnetised("network", field)]
        return robot("network", loads, learned=False)


class AtRestBesideAMagnet(BesideAMagnet):
    """Its equilibrium."""

    steps = 1
    has_inertia = False


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        (InATurningField, ImplicitEuler(0.005, **EXACT)),
        (InATabulatedField, ImplicitMidpoint(0.002, **EXACT)),
        (BesideAMagnet, Newmark(0.002, beta=0.3025, gamma=0.6, **EXACT)),
        # equilibria of soft stars take many iterations: a minute on a busy machine
        pytest.param(AtRestBesideAMagnet, Static(**EXACT), marks=pytest.mark.slow),
    ],
    ids=["euler", "midpoint", "newmark", "static"],
)
def test_steps(case, rule):
    """Differentiate steps by state, and by the field, the magnetisation and every other constant."""
    own = case()
    own.integrator = rule
    own.test_by_constants_masses_and_weights(each=False)
    own.test_by_state_and_control(each=False, count="rollout")


def constants_of(swimmers):
    """Return tensors of the swimmers that have a row for each robot."""
    drag, magnetic = swimmers.forces
    field = magnetic.field
    return {
        "strength of B": [(field, "amplitude")],
        "phase of B": [(field, "phase")],
        "magnetisation": [(magnetic, "magnetisation")],
        "normal drag": [(drag, "normal")],
        "Young's modulus": [(swimmers.term("stretch").energy, "EA"), (swimmers.term("bend_twist").energy, "EI1")],
    }


def test_fifty_steps_of_the_swimmer():
    """Differentiate the swimmer's way by B(t), M, E and drag, against swimmers with each a little more and less."""
    names = ["strength of B", "phase of B", "magnetisation", "normal drag", "Young's modulus"]
    step, count = 1e-4, 1 + 2 * len(names)
    model = swimmer.build([swimmer.OMEGA] * count, [1.0] * count)
    generator, directions, leaves = torch.Generator().manual_seed(8), {}, {}
    for k, (name, places) in enumerate(constants_of(model).items()):
        for module, attribute in places:
            value = getattr(module, attribute).detach()
            rows = value.reshape(-1, *value.shape[-2:]) if name == "magnetisation" else value.reshape(-1, 1)
            rows = rows[:1].expand(count, *rows.shape[1:]).clone()
            size = float(rows.abs().max()) or 1.0
            direction = size * torch.randn(rows.shape[1:], dtype=torch.float64, generator=generator)
            if name == "Young's modulus":
                direction = rows[0]  # of stretching and bending alike
            rows[1 + 2 * k] += step * direction
            rows[2 + 2 * k] -= step * direction
            leaf = torch.nn.Parameter(rows)
            setattr(module, attribute, leaf)
            leaves.setdefault(name, []).append(leaf)
            directions.setdefault(name, []).append(direction)
    # 1e-13 N: what rounding leaves is some 1e-15
    integrator = ImplicitEuler(swimmer.STEP, force_tolerance=1e-13, relative_tolerance=0)
    run = unroll(model, model.initial_state(batch=count), integrator, 50)
    assert (run.status == 0).all()
    mass = model.body.node_mass()
    x = run.q[-1][:, : 3 * swimmer.NODES].unflatten(1, (-1, 3))
    ways = (x[..., 0] * mass).sum(1) / mass.sum() + x[:, 0, 2]
    ways[0].backward()
    for k, name in enumerate(names):
        difference = float((ways[1 + 2 * k] - ways[2 + 2 * k]).detach()) / (2 * step)
        pairs = zip(leaves[name], directions[name], strict=True)
        found = sum(float((leaf.grad[0] * direction).sum()) for leaf, direction in pairs)
        assert abs(difference) > 1e-4, name  # m, of a way of 27 mm
        # truncation is some 1e-8 of the third derivative; the curvature of the drag |v| v jumps where v changes sign
        assert found == pytest.approx(difference, rel=1e-5), name


def legs(frictions, amplitudes):
    """Return magnetised legs that hang from a weight and rub their feet on a floor."""
    builder = RobotBuilder(planar=True)
    points = torch.stack([torch.zeros(5), torch.zeros(5), torch.linspace(0.02, 1e-3, 5)], dim=1).double().numpy()
    builder.add_rod(points, Circle(1e-3), Material(1e6, 1000.0))
    builder.add_mass([0], 2e-4)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(magnetics.Magnetic((0.0, 0.0, 1e3), magnetics.Rotating(amplitudes, 5.0, phase=0.2)))
    floor = HalfSpace((0, 0, -1e-3), (0, 0, 1))
    builder.add_contact(Obstacle(floor, Barrier(1e3, 1e-3), Friction(frictions, 1e-2), name="floor", nodes=[4]))
    return builder.finalize()


def test_steps_on_a_rough_floor():
    """Differentiate the way of a leg by its friction coefficient and by the field, against legs with more and less."""
    step = 1e-5
    off = step * torch.tensor([[0.0], [1], [-1], [0], [0]], dtype=torch.float64)
    model = legs(0.3 + off, 0.5 + off.roll(2, 0))
    integrator = ImplicitEuler(1e-3, force_tolerance=1e-13, relative_tolerance=0)
    constants = model.obstacles[0].law.friction.coefficient, model.forces[1].field.amplitude
    for tensor in constants:
        tensor.requires_grad_()
    run = unroll(model, model.initial_state(batch=5), integrator, 40)
    assert (run.status == 0).all()
    ways = run.q[-1][:, :15:3].sum(1)
    ways[0].backward()
    for k, tensor in enumerate(constants):
        difference = float((ways[1 + 2 * k] - ways[2 + 2 * k]).detach()) / (2 * step)
        assert abs(difference) > 1e-4
        # ways are known to 1e-12 m or so, over 2e-5
        assert float(tensor.grad[0]) == pytest.approx(difference, rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("step", [ImplicitEuler, ImplicitMidpoint, BDF2, Newmark, Static], ids=lambda own: own.__name__)
def test_what_functions_of_time_use_has_gradients(step):
    """Reach a tensor that a field's function closes over, as differences do."""
    strength = torch.tensor(0.05, dtype=torch.float64, requires_grad=True)

    def field(time):
        return torch.stack([0 * time, 0 * time, strength * torch.cos(50 * time)], 1)

    model = robot("rod", [magnetised("rod", field)], learned=False)

    def height():
        if step is Static:
            state, _ = Static().step(model, model.initial_state(batch=2))
            return state.positions[0, -1, 2]
        return unroll(model, model.initial_state(batch=2), step(1e-3), 4).positions[-1, 0, -1, 2]

    (found,) = torch.autograd.grad(height(), strength)
    by = 1e-4
    with torch.no_grad():
        strength += by
        ahead = height()
        strength -= 2 * by
        expected = (ahead - height()) / (2 * by)
    assert abs(float(expected)) > 1e-4
    assert abs(float(found / expected) - 1) < 1e-4  # what differences leave
