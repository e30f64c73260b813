"""The names that `import torchdismech` offers; the package imports this module, and so torch, at their first use."""

from torchdismech import actuation, contact, control, elastic, forces, magnetics, rigid, trainable
from torchdismech.analysis.following import EquilibriumPath, follow
from torchdismech.analysis.vibration import Modes, modes
from torchdismech.builder import RobotBuilder
from torchdismech.errors import InputError, SimulationError, Status
from torchdismech.geometry import meshes
from torchdismech.geometry.curves import arc, helix, straight
from torchdismech.integrate import BDF2, ImplicitEuler, ImplicitMidpoint, Newmark, SeveralSteps, Static, StepInfo
from torchdismech.io.dismech import Geometry, read_dismech, write_dismech
from torchdismech.io.meshes import read_mesh
from torchdismech.model import Model
from torchdismech.robot.materials import Circle, Material, Rectangle
from torchdismech.robot.state import Control, State
from torchdismech.runs.rollout import rollout
from torchdismech.runs.unroll import unroll
from torchdismech.trajectory import Trajectory, TrajectoryWriter

__all__ = [
    "BDF2",
    "Circle",
    "Control",
    "EquilibriumPath",
    "Geometry",
    "ImplicitEuler",
    "ImplicitMidpoint",
    "InputError",
    "Material",
    "Model",
    "Modes",
    "Newmark",
    "Rectangle",
    "RobotBuilder",
    "SeveralSteps",
    "SimulationError",
    "State",
    "Static",
    "Status",
    "StepInfo",
    "Trajectory",
    "TrajectoryWriter",
    "actuation",
    "arc",
    "contact",
    "control",
    "elastic",
    "follow",
    "forces",
    "helix",
    "magnetics",
    "meshes",
    "modes",
    "read_dismech",
    "read_mesh",
    "rigid",
    "rollout",
    "straight",
    "trainable",
    "unroll",
    "write_dismech",
]
