"""Gradients through steps of shells, alone and with a rod, with learned energies of hinges and mid-edge normals."""

import pytest
import torch

from tests import shells
from tests.gradients.cases import EXACT, GradientCase, SmallEnergy
from torchdismech import (
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    RobotBuilder,
    Static,
    forces,
    trainable,
    unroll,
)


def loads() -> list[forces.Force]:
    """Return forces that act on shells, in a fluid and without."""
    return [
        forces.Gravity((0.3, 0, -9.81)),
        forces.Buoyancy((0, 0, -9.81), 300.0),
        forces.Viscous(0.2),
    ]


class TestHingesInEuler(GradientCase):
    """A patch of hinges with a learned hinge energy."""

    integrator = ImplicitEuler(0.005, **EXACT)

    def model(self):
        """Return the patch."""
        energy = SmallEnergy(strains=1, size=1.0, density=1e-4)
        return shells.robot("hinge", loads(), relaxation_time=2e-3, hinge=energy)


class TestMidEdgeInEuler(GradientCase):
    """A patch of mid-edge normals with a learned energy of its curvatures."""

    integrator = ImplicitEuler(0.005, **EXACT)

    def model(self):
        """Return the patch."""
        energy = SmallEnergy(density=1e-2)
        return shells.robot("midedge", loads(), relaxation_time=2e-3, midedge=energy)


class TestContinuumInMidpoint(GradientCase):
    """A patch that stretches as a continuum and grows, with mid-edge normals."""

    integrator = ImplicitMidpoint(0.005, **EXACT)

    def model(self):
        """Return the patch."""
        return shells.robot("midedge", loads(), relaxation_time=2e-3, membrane="continuum")


class TestMidEdgeWithRodInMidpoint(GradientCase):
    """A patch of mid-edge normals with a rod: two kinds of angles without inertia."""

    integrator = ImplicitMidpoint(0.002, **EXACT)

    def model(self):
        """Return the patch with its rod."""
        return shells.robot("midedge_rod", loads())


class TestHingesWithRodAtRest(GradientCase):
    """The equilibrium of a patch of hinges with a rod, its loads in two shares."""

    integrator = Static(load_steps=2, **EXACT)
    steps = 1
    has_inertia = False

    def model(self):
        """Return the patch with its rod."""
        return shells.robot("hinge_rod", loads()[:2])


class TestMidEdgeAtRest(TestHingesWithRodAtRest):
    """The same with mid-edge normals."""

    def model(self):
        """Return the patch."""
        return shells.robot("midedge", loads()[:2])


@pytest.mark.parametrize("bending", ["hinge", "midedge"])
def test_by_thickness_and_fluid(bending):
    """Differentiate a rollout by the thickness, Young's modulus and the fluid of a shell built anew for each value."""
    nodes, triangles = shells.patch()
    steps = 5

    def end(thickness: float, youngs: float, density: float, trained: bool = False):
        builder = RobotBuilder()
        builder.add_shell(nodes, triangles, thickness, Material(youngs, 1000.0, 0.3), bending, membrane="springs")
        builder.clamp(nodes=triangles[-1].tolist())
        for force in (forces.Gravity((0, 0, -9.81)), forces.Drag(density, 1.2), forces.Pressure(3.0)):
            builder.add_force(force)
        model = builder.finalize()
        stiffness = ["membrane.membrane", f"{bending}.{'hinge' if bending == 'hinge' else 'stiffness'}"]
        factors = []
        if trained:
            factors = [
                trainable.scaled(model, {stiffness[0]: 1, stiffness[1]: 3, "mass": 1}),
                trainable.scaled(model, ["Drag.density"]),
            ]
        run = unroll(model, model.initial_state().detach(), ImplicitEuler(0.01, **EXACT), steps)
        assert (run.status == 0).all()
        return (run.positions[-1, 0] ** 2).sum(), factors

    found, (thickness, density) = end(2e-3, 1e6, 50.0, trained=True)
    gradients = torch.autograd.grad(found, [thickness.log_factor, density.log_factor])
    with torch.no_grad():
        for gradient, number in zip(gradients, (0, 2), strict=True):
            ends = []
            for sign in (1, -1):
                at = [2e-3, 1e6, 50.0]
                at[number] *= 1 + sign * 1e-5
                ends.append(end(*at)[0].item())
            # differences of 1e-5: truncation 1e-10, rounding of solves 1e-14 / 1e-5 of a value of 0.01
            assert gradient.item() == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-4, abs=1e-9)
            assert abs(gradient.item()) > 1e-8
