"""Gradients through steps of every integrator, on a rod and on a network, with every force."""

from tests.gradients.cases import EXACT, GradientCase, every_load, robot
from torchdismech import ImplicitEuler, ImplicitMidpoint, Newmark, Static, forces


class OnRod(GradientCase):
    """A helix with every load."""

    def model(self):
        """Return the helix."""
        return robot("rod", every_load())


class OnNetwork(GradientCase):
    """A star with edges stored both ways, with every load."""

    def model(self):
        """Return the star."""
        return robot("network", every_load())


class TestEulerOnRod(OnRod):
    """Implicit Euler."""

    integrator = ImplicitEuler(0.005, **EXACT)


class TestEulerOnNetwork(OnNetwork):
    """Implicit Euler."""

    integrator = ImplicitEuler(0.005, **EXACT)


class TestMidpointOnRod(OnRod):
    """Implicit midpoint."""

    integrator = ImplicitMidpoint(0.002, **EXACT)


class TestMidpointOnNetwork(OnNetwork):
    """Implicit midpoint."""

    integrator = ImplicitMidpoint(0.002, **EXACT)


class TestNewmarkOnRod(OnRod):
    """Newmark's method, damped."""

    integrator = Newmark(0.002, beta=0.3025, gamma=0.6, **EXACT)


class TestNewmarkOnNetwork(OnNetwork):
    """Newmark's method, damped."""

    integrator = Newmark(0.002, beta=0.3025, gamma=0.6, **EXACT)


class Equilibrium(GradientCase):
    """Static solves; loads that need a velocity have no say."""

    steps = 1
    has_inertia = False
    known = 4e-13  # m: rounding leaves 2e-14 N of a residual, which move the soft helix by some 17 m/N

    def loads(self):
        """Return loads that act at rest."""
        return [
            forces.Gravity((0.3, 0, -9.81)),
            forces.Buoyancy((0, 0, -9.81), 300.0),
            forces.PointForce([3], (1e-3, 2e-3, 3e-3)),
        ]


class TestStaticOnRod(Equilibrium):
    """One solve."""

    integrator = Static(**EXACT)

    def model(self):
        """Return the helix under its weight."""
        return robot("rod", self.loads())


class TestStaticOnNetworkInTwoSteps(Equilibrium):
    """Loads in two shares: natural strains and clamps move along."""

    known = 8e-13  # m: of two solves; by EA a difference of fourth order over 1e-3 agrees to 1e-7

    integrator = Static(load_steps=2, **EXACT)

    def model(self):
        """Return the star under its weight."""
        return robot("network", self.loads())
