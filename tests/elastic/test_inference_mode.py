"""Derivatives by autograd under torch.inference_mode, where nothing is recorded: refused, not zeros."""

import numpy as np
import pytest
import torch

from torchdismech import (
    Circle,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    elastic,
    forces,
    magnetics,
    straight,
)


class Cosh(elastic.Energy):
    """An energy whose derivatives come from autograd."""

    def density(self, strain):
        """Return it."""
        return sum(1e-5 * torch.cosh(0.05 * x) for x in strain)


class Strings(elastic.Stencil):
    """A stencil whose derivatives come from autograd."""

    def __init__(self):
        one = np.ones(1)
        super().__init__([[([18 + axis], one), ([axis], -one)] for axis in range(3)], ["longer"])

    def strain(self, local):
        """Return by how much the nodes are farther apart than a string is long."""
        x, y, z = local
        return (torch.sqrt(x * x + y * y + z * z) - 0.1,)


class Drag(forces.LocalForce):
    """A force whose derivatives come from autograd."""

    def __init__(self):
        super().__init__(reach=0)

    def nodal_force(self, state, control):
        """Return it."""
        return -0.05 * state.node_velocities


class Neighbours(forces.PairForce):
    """A force between neighbours whose derivatives come from autograd."""

    def pair_force(self, position, velocity):
        """Return it."""
        return 0.05 * (velocity[..., 0, :] - velocity[..., 1, :])


class Coil(magnetics.Field):
    """A field whose derivatives come from autograd."""

    def forward(self, position, time):
        """Return it."""
        return 1e-3 * torch.sin(position)


def strung(builder):
    """Add strings."""
    law = elastic.LinearElastic({"k": torch.tensor(5.0)})
    builder.add_term(elastic.ElasticTerm("strings", Strings(), law, measure=torch.ones(1)))


ADD = {
    "energy": lambda builder: builder.add_energy("bend_twist", Cosh()),
    "dissipation": lambda builder: builder.add_dissipation("bend_twist", Cosh()),
    "stencil": strung,
    "force": lambda builder: builder.add_force(Drag()),
    "neighbours": lambda builder: builder.add_force(Neighbours()),
    "field": lambda builder: builder.add_force(magnetics.Magnetic((3e4, 0.0, 0.0), Coil())),
}


def rod(add):
    """Return a rod with what a function adds."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0.05), 9), Circle(2e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    add(builder)
    return builder.finalize(compile=False)


@pytest.mark.parametrize("what", ADD)
def test_refused_where_autograd_records_nothing(what):
    """Say what to take in its place: derivatives would be zeros, and an energy's force with them."""
    model = rod(ADD[what])
    state = model.initial_state()
    with (
        torch.inference_mode(),
        pytest.raises(InputError, match="zeros under torch.inference_mode: take torch.no_grad"),
    ):
        ImplicitEuler(5e-3).step(model, state)


def test_building_is_refused_too():
    """Do not find that a force depends on nothing."""
    with (
        torch.inference_mode(),
        pytest.raises(InputError, match="zeros under torch.inference_mode: take torch.no_grad"),
    ):
        rod(ADD["force"])


@pytest.mark.parametrize("method", [ImplicitEuler(5e-3), Static()])
def test_closed_forms_go_on(method):
    """Step the library's own robots there, to the same bits."""
    model = rod(lambda builder: None)
    state = model.initial_state()
    expected, _ = method.step(model, state)
    with torch.inference_mode():
        found, _ = method.step(model, state)
    assert torch.equal(found.q, expected.q)
