"""A rod between gripped nodes, perhaps with branches, whose nodes all are markers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torchdismech import State
from training.config import Config, Robot, Simulation
from training.data import Recordings, Window
from training.robots.physics import PhysicsSystem, Schedule, add_terms
from training.robots.robot import (
    Turns,
    builder_of,
    followed,
    gripped_nodes,
    held_edges,
    held_motion,
    integrator_of,
    start,
    turns,
)
from training.robots.trees import Tree

__all__ = ["RodSystem"]


class RodSystem(PhysicsSystem):
    """A rod between the gripped nodes; see `training.config` for what can be trained."""

    def __init__(self, config: Config, recordings: Recordings):
        assert isinstance(config.robot, Robot)
        simulation = config.simulation or Simulation()
        tree = Tree.measured(recordings)
        builder = builder_of(config.robot, tree)
        learned = add_terms(builder, config.terms)
        model = builder.finalize(compile=simulation.compile)
        integrator = integrator_of(simulation, recordings.dt / simulation.substeps)
        super().__init__(config, model, integrator, recordings.dt, simulation.substeps, learned)
        self.tree, self.edges = tree, tree.edges
        self.gripped = gripped_nodes(config.robot, tree.trunk + 1)

    def history(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return how the rod is turned about itself at all frames."""
        found = turns(recordings.positions, held_edges(self.model), self.tree)
        return {"director": found.director, "angle": found.angle}

    def start(self, window: Window) -> tuple[State, Tensor | None]:
        """Return the state at the second frame, at the mean velocity from the first."""
        turned = Turns(window.history["director"], window.history["angle"])
        return start(self.model, window.positions[:, 0], window.positions[:, 1], self.dt, turned, self.tree), None

    def schedule(self, window: Window, state: State) -> Schedule:
        """Return what moves the gripped nodes as in the window."""
        return held_motion(self.model, window.positions[:, 1:], state.twist, self.dt)

    def references(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return predictions without a model: free nodes stay, or follow the gripped ones."""
        return followed(recordings, self.gripped)
