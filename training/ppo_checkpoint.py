"""Checkpoints of `ppo.py`: networks and optimiser, the robots' states in their episodes, torch's random state."""

from __future__ import annotations

import dataclasses
import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdismech.environments import Environment, Episodes
from torchdismech.errors import InputError, path_of, refuse_other_kind
from torchdismech.robot.state import tensor_fields
from training.files import write
from training.optimization.resuming import random_state, take_random_state

__all__ = ["file_of", "load", "save"]

# keys of a checkpoint beside those of `_Learner.parts`
BESIDE_PARTS = ("settings", "done", "random", "seed", "episode", "state", "actions", "ended")


def file_of(checkpoint: Path | str | None, resume: bool) -> Path | None:
    """Return the path of the checkpoint, or None; refuse to overwrite a file, or to resume without one."""
    path = None if checkpoint is None else path_of(checkpoint, "trained_policy: checkpoint")
    if resume and (path is None or not path.is_file()):
        raise InputError(f"trained_policy: resume: expected a checkpoint to go on from, got {path}")
    if not resume and path is not None and path.exists():
        raise InputError(f"trained_policy: checkpoint: {path} is there already: go on by resume=True, or name another")
    if path is not None and not path.parent.is_dir():
        raise InputError(f"trained_policy: checkpoint: expected a file in a folder that is there, got {path}: make it")
    return path


def save(path: Path, parts: Mapping[str, Any], environment: Environment, settings: dict[str, Any], done: int) -> None:
    """Write the checkpoint of a training after `done` updates, atomically: a kill leaves the old file or the new one.

    Parameters
    ----------
    parts : objects with a `state_dict`, by name: see `_Learner.parts`.
    settings : arguments and sizes of the training, which a resumed one has to share.
    """
    at, device = environment.current, environment.model.device
    content = {name: part.state_dict() for name, part in parts.items()}
    content |= {
        "settings": settings,
        "done": done,
        "random": random_state(device),
        "seed": at.seed,
        "episode": at.episode,
    }
    content |= {"state": _tensors(at), "actions": at.actions, "ended": environment.ended}
    file = io.BytesIO()
    torch.save(content, file)
    write(path, file.getvalue())


def load(path: Path, parts: Mapping[str, Any], environment: Environment, settings: dict[str, Any]) -> int:
    """Restore learner, environment and random state from a checkpoint, and return the number of updates done.

    Raises
    ------
    InputError
        The file is damaged, or was written with other settings or other robots.
    """
    content = _read(path, [*parts, *BESIDE_PARTS], list(settings))
    for name, own in settings.items():
        theirs = content["settings"][name]
        if theirs != own:
            raise InputError(f"trained_policy: {name}: {path} was trained with {theirs}, got {own}")
    for name, part in parts.items():
        part.load_state_dict(content[name])
    device = environment.model.device
    environment.resume(_episodes(path, content, environment), content["ended"].to(device))
    take_random_state(content["random"], device, path)
    return content["done"]


def _episodes(path: Path, content: Mapping[str, Any], environment: Environment) -> Episodes:
    """Return the robots' episodes as a checkpoint holds them; refuse states of other shapes than the environment's."""
    device = environment.model.device
    fresh = environment.began(content["seed"].to(device), content["episode"].to(device))
    state = {name: tensor.to(device) for name, tensor in content["state"].items()}
    own = _tensors(fresh)
    if _shapes(state) != _shapes(own):
        raise InputError(
            f"trained_policy: resume: {path} was trained with other robots or another integrator: expected states "
            f"of {_shapes(own)}, got {_shapes(state)}"
        )
    return dataclasses.replace(fresh, state=fresh.state.replace(**state), actions=content["actions"].to(device))


def _tensors(episodes: Episodes) -> dict[str, Tensor]:
    """Return the tensors of the robots' state by name."""
    return dict(zip(tensor_fields(episodes.state), episodes.state.fields(), strict=True))


def _read(path: Path, names: list[str], settings: list[str]) -> dict[str, Any]:
    """Return the content of a checkpoint; refuse a file that lacks one of these names, or of these settings."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError) as error:
        raise InputError(f"trained_policy: resume: {path} holds no training: it is damaged, or another file") from error
    refuse_other_kind(f"trained_policy: resume: {path}", content, dict, "a training that trained_policy wrote")
    missing = [name for name in names if name not in content]
    missing += [f"settings: {name}" for name in settings if name not in content.get("settings", {})]
    if missing:
        raise InputError(
            f"trained_policy: resume: {path} lacks {', '.join(missing)}: it is damaged, another file, or of an earlier "
            "version; begin anew with another checkpoint"
        )
    return content


def _shapes(tensors: dict[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}
