"""A robot whose state holds NaN fails as such, and alone."""

import math

import pytest
import torch

from tests import shells
from tests.contact.robots import ROBOTS
from tests.gradients.cases import robot
from torchdismech import Control, ImplicitEuler, ImplicitMidpoint, Newmark, Static, Status, forces

FIELDS = ("q", "velocity", "acceleration", "director", "tangent", "reference_twist", "time")
LOADS = [forces.Gravity((0.3, 0, -9.81)), forces.Viscous(0.2)]
MODELS = {
    "rod": lambda: robot("rod", [forces.Gravity((0.3, 0, -9.81))], learned=False),
    "shell": lambda: shells.robot("midedge_rod", LOADS),
    "touching": lambda: ROBOTS["rods"]("penalty", True),
}
CASES = [
    *(("rod", integrator) for integrator in (ImplicitMidpoint(0.002), Newmark(0.002), Static())),
    *((name, ImplicitEuler(0.002)) for name in MODELS),
]


@pytest.mark.parametrize(("name", "integrator"), CASES)
def test_nan_in_a_state(name, integrator):
    """Say NOT_FINITE, not that an edge folded; the other robot steps as it does beside a sound one."""
    model = MODELS[name]()
    state = model.initial_state(batch=2).detach()
    sound, info = integrator.step(model, state, throw=True)
    for field in FIELDS:
        value = getattr(state, field).clone()
        if not value.numel():
            continue
        value[1].view(-1)[-1] = math.nan
        after, found = integrator.step(model, state.replace(**{field: value}))
        assert found.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE], field
        # robots do not know each other: rounding, where rows are factored otherwise
        assert (after.q[0] - sound.q[0]).abs().max() < 1e-12, field
        kept = getattr(after, field)[1]
        assert torch.equal(torch.isnan(kept), torch.isnan(value[1])), field
    assert bool(info.converged.all())


def test_nan_where_a_control_holds_what_is_clamped():
    """Say NOT_FINITE of the robot whose clamp is led to NaN, as of one that is pushed by NaN."""
    model = MODELS["rod"]()
    state = model.initial_state(batch=2).detach()
    led = state.q.clone()
    led[1] = math.nan
    for control in (Control(clamped_q=led), Control(force=led - state.q)):
        _, info = ImplicitEuler(0.002).step(model, state, control)
        assert info.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE]
