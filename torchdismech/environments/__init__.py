"""Robots as environments for reinforcement learning: batches whose robots begin their episodes independently.

`Environment` is the core, on tensors; `gym` and `torchrl` wrap it for Gymnasium and TorchRL (extra [rl]).
"""

from torchdismech.environments.actions import Action, Actuator, Constant, Force, Held
from torchdismech.environments.draws import Draws
from torchdismech.environments.environment import Environment
from torchdismech.environments.episodes import Episodes, Outcome
from torchdismech.environments.observations import contact, node_positions, node_velocities, strains
from torchdismech.environments.task import Step, Task

__all__ = [
    "Action",
    "Actuator",
    "Constant",
    "Draws",
    "Environment",
    "Episodes",
    "Force",
    "Held",
    "Outcome",
    "Step",
    "Task",
    "contact",
    "node_positions",
    "node_velocities",
    "strains",
]
