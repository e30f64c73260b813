"""One step in time: implicit Euler, implicit midpoint, Newmark-beta, BDF2; and static equilibrium."""

from torchdismech.integrate.bdf2 import BDF2
from torchdismech.integrate.info import SeveralSteps, StepInfo
from torchdismech.integrate.integrator import Integrator, SteppingMethod
from torchdismech.integrate.schemes import ImplicitEuler, ImplicitMidpoint, Newmark
from torchdismech.integrate.static import Static

__all__ = [
    "BDF2",
    "ImplicitEuler",
    "ImplicitMidpoint",
    "Integrator",
    "Newmark",
    "SeveralSteps",
    "Static",
    "StepInfo",
    "SteppingMethod",
]
