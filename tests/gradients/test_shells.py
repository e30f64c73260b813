"""Gradients through steps of shells, alone and with a rod, with learned energies of hinges and mid-edge normals."""

from tests import shells
from tests.gradients.cases import EXACT, GradientCase, SmallEnergy
from torchdismech import ImplicitEuler, ImplicitMidpoint, Static, forces


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
