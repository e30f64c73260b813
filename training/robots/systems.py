"""`build`, which makes the system that a config describes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import nn

from torchdismech import InputError
from torchdismech.io.scene.users_code import named_in_code, naming_line
from training.config import Config, Robot
from training.data import Recordings
from training.options import checked
from training.robots.free import FreeSystem
from training.robots.physics import naming_terms
from training.robots.rods import RodSystem
from training.robots.scenes import SceneSystem
from training.system import GROUPS, System

__all__ = ["build"]


def build(
    config: Config, recordings: Recordings, device: torch.device | str = "cpu", allow_code: bool = False
) -> System:
    """Return the system that a config describes, in float64 and eval mode.

    Parameters
    ----------
    recordings : those that are trained on, from which a system may measure the robot, such as its rest lengths.
    allow_code : run the Python files that the config, or its scene, names.
    """
    if config.code and not allow_code:
        raise InputError(f"the config runs code from {config.code[0]}: pass --allow-code to let it")
    with naming_terms(config):
        system = _made(config, recordings, allow_code)
    if config.loss.markers is not None:
        system.judged = _judged(config.loss.markers, recordings)
    return system.double().to(device).eval()


def _judged(markers: list[int], recordings: Recordings) -> list[int]:
    """Return the markers that count; refuse those that recordings do not have."""
    there = recordings.positions.shape[2]
    wrong = [k for k in markers if k >= there]
    if wrong:
        raise InputError(f"loss.markers: the recordings have {there} markers, counted from 0; got {wrong[0]}")
    return markers


def _made(config: Config, recordings: Recordings, allow_code: bool) -> System:
    if config.system is not None:
        return _of_user(config, config.system, recordings)
    if isinstance(config.robot, Robot):
        return (RodSystem if config.physics else FreeSystem)(config, recordings)
    return SceneSystem(config, recordings, allow_code)


def _of_user(config: Config, name: str, recordings: Recordings) -> System:
    """Return a system of the class that the config names in a file of the user's."""
    path, kind = named_in_code(Path(config.file), "system", name, folder=Path())
    if not (isinstance(kind, type) and issubclass(kind, System)):
        raise InputError(f"system: {name}: expected a class derived from training.system.System, got {kind!r:.80}")
    options = checked(kind, config.options, "options", ("config", "recordings"))
    make: Callable[..., System] = kind
    with naming_line(path, f"system: {name}"):
        system = make(config, recordings, **options)
        _refuse_other_groups(system, name)
    if system.given < 1:
        raise InputError(f"system: {name}: given: expected one frame or more to start from, got {system.given}")
    if next(system.parameters(), None) is None:
        raise InputError(f"system: {name} has no parameters: there is nothing to train")
    for stage in config.stages:
        missing = [group for group in stage.train if group != "starts" and not system.group(group)]
        if missing:
            raise InputError(f"stage {stage.name!r} trains {missing[0]}, of which {name} has none")
    return system


def _refuse_other_groups(system: System, name: str) -> None:
    """Refuse a user's system whose `group` returns anything else than parameters by name."""
    for group in GROUPS:
        found = system.group(group)
        if not isinstance(found, Mapping) or not all(isinstance(p, nn.Parameter) for p in found.values()):
            raise InputError(
                f"system: {name}: group({group!r}): expected a dict of nn.Parameter by name, empty where there are "
                f"none, such as dict(self.network.named_parameters()), got {found!r:.80}"
            )
