"""A rod between gripped nodes, perhaps with branches, whose nodes all are markers."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from torchdismech import State
from training.config import Config, Robot, Simulation
from training.data import Recordings, Window
from training.robots.physics import PhysicsSystem, Schedule, add_terms
from training.robots.references import followed_grips
from training.robots.rod_models import gripped_nodes, integrator_of, rod_builder
from training.robots.rod_motion import HeldMotion, HeldTwist, held_edges, held_twist, rod_state
from training.robots.trees import Tree

__all__ = ["RodSystem"]


class RodSystem(PhysicsSystem):
    """A rod whose nodes are the markers, some of them gripped, as [robot] in `training.config.rod` describes it."""

    def __init__(self, config: Config, recordings: Recordings):
        assert isinstance(config.robot, Robot)
        simulation = config.simulation or Simulation()
        tree = Tree.measured(recordings)
        builder = rod_builder(config.robot, tree)
        learned = add_terms(builder, config)
        model = builder.finalize(compile=simulation.compile)
        integrator = integrator_of(simulation, recordings.dt / simulation.substeps)
        super().__init__(config, model, integrator, recordings.dt, simulation.substeps, learned)
        self.tree, self.edges = tree, tree.edges
        self.gripped = gripped_nodes(config.robot, tree.trunk + 1)

    def history(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return the rotations of held edges at all frames, as the fields of `HeldTwist`."""
        found = held_twist(recordings.positions, held_edges(self.model), self.tree)
        return {"director": found.director, "angle": found.angle}

    def start_state(self, window: Window) -> tuple[State, Tensor | None]:
        """Return the state at the second frame, at the mean velocity from the first."""
        twist = HeldTwist(window.history["director"], window.history["angle"])
        return rod_state(self.model, window.positions[:, 0], window.positions[:, 1], self.dt, twist, self.tree), None

    def schedule(self, window: Window, state: State) -> Schedule:
        """Return the schedule that moves the gripped nodes as in the window."""
        return HeldMotion(self.model, window.positions[:, 1:], state.twist, self.dt)

    def references(self, recordings: Recordings) -> Mapping[str, Tensor]:
        """Return predictions without a model: free nodes stay, or follow the gripped ones."""
        return {**super().references(recordings), "follow": followed_grips(recordings, self.gripped)}
