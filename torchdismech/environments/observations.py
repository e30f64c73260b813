"""Observations of robots: functions of (model, state, goal) that return (B, k), and that can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.geometry.checks import Indices, checked_indices
from torchdismech.model import Model
from torchdismech.robot.state import State

__all__ = ["Observation", "contact", "node_positions", "node_velocities", "strains"]

Goal = Mapping[str, Tensor]
Observation = Callable[[Model, State, Goal], Tensor]


def node_positions(nodes: Indices | None = None) -> Observation:
    """Observe the positions of some nodes, or of all: x, y, z of the first, of the second, ... [m]."""
    return _AtNodes("node_positions", "positions", nodes)


def node_velocities(nodes: Indices | None = None) -> Observation:
    """Observe the velocities of some nodes, or of all [m/s]."""
    return _AtNodes("node_velocities", "node_velocities", nodes)


def strains(*names: str) -> Observation:
    """Observe strains by their names in `Model.strains`, such as "kappa1", one after the other."""
    _refuse_no_names("strains", "kappa1", names)
    return partial(_strains, names)


def contact(*names: str) -> Observation:
    """Observe numbers of the contact report of a state by their names, such as "penetration" (B,) [m]."""
    _refuse_no_names("contact", "penetration", names)
    return partial(_contact, names)


class _AtNodes:
    """Observation of the vectors (B, N, 3) of a state at some nodes, or at all, as (B, 3 k)."""

    def __init__(self, name: str, vectors: str, nodes: Indices | None):
        self._name, self._vectors, self._nodes = name, vectors, nodes
        self._among: dict[int, np.ndarray] = {}  # checked indices, by the number of nodes of a robot

    def __call__(self, model: Model, state: State, goal: Goal) -> Tensor:
        vectors: Tensor = getattr(state, self._vectors)
        if self._nodes is None:
            return vectors.flatten(1)
        count = vectors.shape[1]
        if count not in self._among:
            self._among[count] = checked_indices(self._nodes, count, f"observations.{self._name}: nodes")
        return vectors.index_select(1, torch.as_tensor(self._among[count], device=vectors.device)).flatten(1)


def _strains(names: Sequence[str], model: Model, state: State, goal: Goal) -> Tensor:
    return torch.cat(_named("strains", model.strains(state), names), 1)


def _contact(names: Sequence[str], model: Model, state: State, goal: Goal) -> Tensor:
    report = _named("contact", model.contact_report(state), names)
    return torch.cat([value.to(state.q).reshape(state.batch, -1) for value in report], 1)


def _refuse_no_names(what: str, such: str, names: Sequence[object]) -> None:
    """Refuse an observation without names."""
    if not names:
        raise InputError(f"observations.{what}: expected names, such as {what}({such!r}), got none")


def _named(what: str, values: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    """Return the tensors with these names; refuse an unknown name, listing the known ones."""
    for name in names:
        if not isinstance(name, str) or name not in values:
            raise InputError(
                f"observations.{what}: no {name!r} in this robot; there are: {', '.join(values) or 'none'}"
            )
    return [values[name] for name in names]
