"""Pneumatic arms of constant-curvature sections: kinematics, dynamics, contact of their plates with obstacles."""

from torchdismech.constant_curvature.arm import PneumaticArm
from torchdismech.constant_curvature.equilibrium import equilibrium
from torchdismech.constant_curvature.info import ArmStepInfo, PlateReport
from torchdismech.constant_curvature.integrate import ArmIntegrator
from torchdismech.constant_curvature.state import ArmState

__all__ = ["ArmIntegrator", "ArmState", "ArmStepInfo", "PlateReport", "PneumaticArm", "equilibrium"]
