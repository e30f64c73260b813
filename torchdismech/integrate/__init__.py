"""One step in time: implicit Euler, implicit midpoint, Newmark-beta; and static equilibrium."""

from torchdismech.integrate.base import Integrator, StepInfo
from torchdismech.integrate.dynamic import ImplicitEuler, ImplicitMidpoint, Newmark
from torchdismech.integrate.static import Static

__all__ = ["ImplicitEuler", "ImplicitMidpoint", "Integrator", "Newmark", "Static", "StepInfo"]
