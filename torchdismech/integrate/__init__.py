"""One step in time: implicit Euler, implicit midpoint, Newmark-beta; and static equilibrium."""

from torchdismech.integrate.integrator import Integrator, Solver, StepInfo
from torchdismech.integrate.schemes import ImplicitEuler, ImplicitMidpoint, Newmark
from torchdismech.integrate.static import Static

__all__ = ["ImplicitEuler", "ImplicitMidpoint", "Integrator", "Newmark", "Solver", "Static", "StepInfo"]
