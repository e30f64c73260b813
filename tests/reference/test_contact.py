"""Contact against an independent implementation: single pairs, a floor, and motions with both."""

import json

import numpy as np
import pytest
import torch

from tests.contact.pairs_alone import full_table, touching_pairs, whole
from tests.reference.loading import load, reference_model, tensor
from tests.reference.test_trajectories import gravity_of, relative_error
from torchdismech import Control, ImplicitEuler, forces
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.contact.law import ContactLaw
from torchdismech.geometry.distances import closest_segments


def pair_oracle():
    """Return the file of single pairs, and those that touch under its laws without and with friction."""
    data = load("oracle_contact")
    penalty = Penalty(data["k_c"] * data["scale"] ** 2, data["delta"])
    laws = ContactLaw(penalty), ContactLaw(penalty, Friction(data["mu"], data["velTol"]))
    count = len(data["q"])
    reach = tensor(data["contact_len"]).expand(count, 1)
    table = full_table(closest_segments, torch.arange(4).expand(count, 1, 4), reach)
    q, velocity = tensor(data["q"]), tensor((data["q"] - data["q0"]) / data["dt"])
    return data, [touching_pairs(table, law, q, velocity) for law in laws]


def relative(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """Return the largest difference of each pair over the largest entry it should have."""
    return (found - expected).abs().flatten(1).amax(1) / expected.abs().flatten(1).amax(1)


def test_forces_of_pairs():
    """Match normal force and friction: point-point, point-edge and edge-edge, sticking and sliding."""
    data, (normal, both) = pair_oracle()
    force, friction = tensor(data["Fc"]), tensor(data["Ffr"])
    found = normal.force().t()
    rubbing = both.force().t() - found
    # Deep pairs (zone 0) follow a parabola in the file, where the smooth law still has exp(-K1 overlap) left: both
    # its logarithm and its slope. The law is kept in one piece, so that its derivative has no jump.
    x = -normal.gap * 15 / float(data["delta"])
    left = torch.where(tensor(data["zone"][:, 0]) == 0, torch.exp(-x) * (1 + 1 / x), 0.0)
    assert bool((relative(found, force) < 1e-8 + 1.01 * left).all())
    assert bool((relative(rubbing, friction) < 1e-8 + 1.01 * left).all())
    assert float(left.max()) < 1e-7


def test_matrices_of_pairs():
    """Match the file's difference quotients of both forces."""
    data, (normal, both) = pair_oracle()
    dt = float(data["dt"])
    own = whole(normal.force_and_blocks(1.0, 0.0)[1])
    all_of_it = whole(both.force_and_blocks(1.0, 1 / dt)[1])
    # 1e-5: the quotients in the file are good to 4e-6
    assert float(relative(-own, tensor(data["Jc_fd"])).max()) < 1e-5
    assert float(relative(own - all_of_it, tensor(data["Jfr_fd"])).max()) < 1e-5


def test_floor():
    """Match force and matrix of forty nodes above, on and in a rough floor."""
    data = load("oracle_floor")
    law = ContactLaw(Penalty(data["k_c"], data["delta"]), Friction(data["mu"], data["velTol"]))
    q, dt = tensor(data["q"]).view(1, -1, 3), float(data["dt"])
    velocity = (q - tensor(data["q0"]).view_as(q)) / dt
    up = tensor([0.0, 0.0, 1.0]).expand_as(q)
    gap, flat = q[..., 2] - float(data["floor_z"]) - float(data["h"]), q.new_zeros(*q.shape, 3)
    force, by_x, by_velocity = law.forces_and_derivatives(gap, up, flat, velocity)
    expected = tensor(data["Fc"] + data["Ffr"]).view_as(q)
    assert float((force - expected).abs().max() / expected.abs().max()) < 1e-12
    matrix = tensor(data["Jc"] + data["Jfr"]).view(40, 3, 40, 3)
    blocks = torch.stack([matrix[i, :, i] for i in range(40)])
    moving = torch.linalg.vector_norm(velocity[0, :, :2], dim=-1) > 0  # at rest the file has 0 for the derivative
    difference = (by_x + by_velocity / dt)[0] - blocks
    assert float(difference[moving].abs().max() / blocks.abs().max()) < 1e-10
    resting = (~moving & (gap[0] < float(data["delta"]))).nonzero().flatten()
    slope = -15 / float(data["velTol"]) * float(data["mu"]) * force[0, resting, 2] / (2 * dt)
    for axis in range(2):
        assert torch.allclose((by_velocity / dt)[0, resting, axis, axis], slope, rtol=1e-12)


def dropped(name: str, steps: int | None = None, residual: float = 1e-13):
    """Return the file and the errors at its times [m] of a rod that falls on the file's floor."""
    data = load(name)
    params = json.loads(str(data["meta_json"]))["params"]
    imc, simulation = params["imc"], params["sim_params"]
    friction = Friction(imc["mu_floor"], imc["velTol"]) if imc["floor_has_friction"] else None
    penalty = Penalty(imc["k_c_floor"], imc["delta_floor"])
    floor = Obstacle(HalfSpace((0.0, 0.0, imc["floor_z"]), (0.0, 0.0, 1.0)), penalty, friction)
    model = reference_model(data, forces=[gravity_of(data), floor], planar=bool(simulation["TwoDsim"]))
    state = model.initial_state(velocity=tensor(data["u_init"]))
    integrator = ImplicitEuler(simulation["dt"], force_tolerance=residual, relative_tolerance=1e-12)
    errors, iterations = [], []
    for step in range(1, (steps or len(data["newton_iters"])) + 1):
        control = None
        if "actuation_log" in data:
            control = Control(rest_length=tensor(data["actuation_log"][step - 1, 1:])[None])
        state, info = integrator.step(model, state, control, throw=True)
        iterations.append(int(info.iterations))
        frame = np.flatnonzero(np.abs(data["t"] - simulation["dt"] * step) < 1e-9)
        if len(frame):
            errors.append(relative_error(state.positions[0], data, frame[0]))
    assert errors
    return data, max(errors) * np.abs(data["X"] - data["nodes0"]).max(), iterations


def test_rod_dropped_on_a_rough_floor():
    """Match a soft rod that hits the floor, rubs and bends."""
    data, error, iterations = dropped("x_rod_drop_floor_friction")
    assert error < 1e-6 * np.abs(data["X"] - data["nodes0"]).max()
    # with the true Jacobian also at rest, sticking takes a few iterations; the file's own took up to 144
    assert max(iterations) <= 12


@pytest.mark.slow
def test_caterpillar():
    """Match a planar crawler of two rods that change their lengths on a smooth floor."""
    data, error, _ = dropped("caterpillar")
    assert error < 1e-6 * np.abs(data["X"] - data["nodes0"]).max()


@pytest.mark.slow  # 1788 steps, 20 s
def test_stiff_rod_dropped():
    """Stay near the drop of a stiff rod whose file was computed to a loose tolerance."""
    _, error, _ = dropped("rodContact_2e9_shipped")
    assert error < 2e-5  # the file's own error after the impact


def test_knot():
    """Match three steps of a knot of 301 nodes that touches and rubs itself."""
    data = load("knot_tight_3steps")
    params = json.loads(str(data["meta_json"]))["params"]
    imc = params["imc"]
    law = Penalty(imc["k_c"] * imc["scale"] ** 2, imc["delta"]), Friction(imc["mu_k"], imc["velTol"])
    contact = SelfContact(*law, rounding=0)
    model = reference_model(
        data,
        forces=[forces.Viscous(params["env"]["eta"])],
        clamped=data["fixedDOF"],
        contacts=[contact],
        radius=imc["contact_len"] / 2,
    )
    state = model.initial_state()
    integrator = ImplicitEuler(params["sim_params"]["dt"], force_tolerance=1e-13, relative_tolerance=1e-12)
    for step in range(3):
        state, info = integrator.step(model, state, throw=True)
        assert relative_error(state.positions[0], data, step) < 1e-6
        assert int(info.iterations) <= 16
