"""What is seen of robots: functions of (model, state, goal) that return (B, k), which can be pickled."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

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
    return partial(_positions, nodes)


def node_velocities(nodes: Indices | None = None) -> Observation:
    """Observe the velocities of some nodes, or of all [m/s]."""
    return partial(_velocities, nodes)


def strains(*names: str) -> Observation:
    """Observe strains by their names in `Model.strains`, such as "kappa1", one after the other."""
    _refuse_no_names("strains", "kappa1", names)
    return partial(_strains, names)


def contact(*names: str) -> Observation:
    """Observe numbers of the contact report of a state by their names, such as "penetration" (B,) [m]."""
    _refuse_no_names("contact", "penetration", names)
    return partial(_contact, names)


def _positions(nodes: Indices | None, model: Model, state: State, goal: Goal) -> Tensor:
    return _of_nodes("node_positions", nodes, state.positions)


def _velocities(nodes: Indices | None, model: Model, state: State, goal: Goal) -> Tensor:
    return _of_nodes("node_velocities", nodes, state.node_velocities)


def _strains(names: Sequence[str], model: Model, state: State, goal: Goal) -> Tensor:
    return torch.cat(_named("strains", model.strains(state), names), 1)


def _contact(names: Sequence[str], model: Model, state: State, goal: Goal) -> Tensor:
    report = _named("contact", model.contact_report(state), names)
    return torch.cat([value.to(state.q).reshape(state.batch, -1) for value in report], 1)


def _of_nodes(what: str, nodes: Indices | None, vectors: Tensor) -> Tensor:
    """Return the components (B, 3 k) of vectors (B, N, 3) at some nodes, or at all."""
    if nodes is None:
        return vectors.flatten(1)
    index = checked_indices(nodes, vectors.shape[1], f"observations.{what}: nodes")
    return vectors[:, torch.as_tensor(index, device=vectors.device)].flatten(1)


def _refuse_no_names(what: str, such: str, names: Sequence[object]) -> None:
    """Refuse an observation of nothing."""
    if not names:
        raise InputError(f"observations.{what}: expected names, such as {what}({such!r}), got none")


def _named(what: str, found: Mapping[str, Tensor], names: Sequence[str]) -> list[Tensor]:
    """Return the tensors of these names; refuse a name that no tensor has, with those that there are."""
    for name in names:
        if not isinstance(name, str) or name not in found:
            raise InputError(f"observations.{what}: no {name!r} in this robot; there are: {', '.join(found) or 'none'}")
    return [found[name] for name in names]
