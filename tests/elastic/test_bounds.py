"""Bounds of Poisson's ratio of sheets, in a built model: by a control, trained, as an action; and of energies."""

import pytest
import torch

from torchdismech import Control, ImplicitEuler, InputError, Material, RobotBuilder, meshes, trainable
from torchdismech.elastic import StVenantKirchhoff
from torchdismech.environments import Constant, Environment, Task, node_positions

NAMES = ["membrane.poisson", "midedge.poisson", "membrane.viscous_poisson"]
SAID = "expected a number between -1 and 1, got"


def sheet():
    """Return a small damped sheet."""
    builder, mesh = RobotBuilder(), meshes.rectangle(0.04, 0.02, 0.01)
    material = Material(1e6, 1000.0, 0.3, relaxation_time=1e-3)
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, material)
    return builder.finalize()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("ratio", [1.0, 1.5, -1.0, -1.2])
def test_controls(name, ratio):
    """Refuse ratios with which some deformation has no energy or a negative one."""
    model = sheet()

    def step(number):
        value = torch.full((1, 1), number, dtype=torch.float64)
        return ImplicitEuler(1e-3).step(model, model.initial_state(), Control(values={name: value}))[1]

    assert bool(step(0.45).converged.all())
    with pytest.raises(InputError, match=rf"^Control.values\['{name}'\]: {SAID} {ratio:g}$"):
        step(ratio)


def test_trained():
    """Refuse a step once an optimiser has driven it too far."""
    model = sheet()
    shift = trainable.shifted(model, ["membrane.poisson", "midedge.poisson"], unit=1.0)
    ImplicitEuler(1e-3).step(model, model.initial_state())
    shift.shift.data.fill_(0.9)
    with pytest.raises(InputError, match=rf"^m\w+.poisson: {SAID} 1.2; an optimiser may have driven it there"):
        ImplicitEuler(1e-3).step(model, model.initial_state())


def test_actions():
    """Refuse bounds that no step takes, when the environment is made."""
    model = sheet()
    task = Task(
        actions=[Constant("membrane.poisson", 0.2, 2.0)],
        observations=[node_positions([0])],
        reward=lambda model, step: step.after.time,
    )
    with pytest.raises(InputError, match=rf"^Constant\(membrane.poisson\): high: {SAID} 2"):
        Environment(model, ImplicitEuler(1e-3), task)


def test_energies():
    """Refuse it when an energy is made."""
    with pytest.raises(InputError, match=rf"^StVenantKirchhoff.poisson: {SAID} 1.5"):
        StVenantKirchhoff(torch.tensor(10.0), torch.tensor(1.5))
