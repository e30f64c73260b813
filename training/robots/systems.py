"""Which system a config asks for, and what it cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch

from torchdismech import InputError
from torchdismech.io.scene.users_code import named_in_code
from training.config import Config, Robot
from training.data import Recordings
from training.options import checked
from training.robots.free import FreeSystem
from training.robots.physics import PhysicsSystem, naming_terms
from training.robots.rods import RodSystem
from training.robots.scenes import SceneSystem
from training.system import System

__all__ = ["build", "coarse", "undetermined", "unsettled"]

MOST_UNIT = 10.0  # that a shift's unit is of its constant: steps of a few hundredths of it are steps of tenths of this


def build(
    config: Config, recordings: Recordings, device: torch.device | str = "cpu", allow_code: bool = False
) -> System:
    """Return the system of a config, in eval mode; what recordings say of the robot (rest lengths) is from those given.

    Parameters
    ----------
    allow_code : run the Python files that the config, or its scene, names.
    """
    if config.code and not allow_code:
        raise InputError(f"the config runs code from {config.code[0]}: pass --allow-code to let it")
    with naming_terms(config):
        system = _made(config, recordings, allow_code)
    return system.double().to(device).eval()


def _made(config: Config, recordings: Recordings, allow_code: bool) -> System:
    if config.system is not None:
        return _of_user(config, config.system, recordings)
    if isinstance(config.robot, Robot):
        return (RodSystem if config.physics else FreeSystem)(config, recordings)
    return SceneSystem(config, recordings, allow_code)


def _of_user(config: Config, name: str, recordings: Recordings) -> System:
    """Return the system that a file of the user's defines."""
    path, kind = named_in_code(Path("config"), "system", name)
    if not (isinstance(kind, type) and issubclass(kind, System)):
        raise InputError(f"system: {name}: expected a class derived from training.system.System, got {kind!r:.80}")
    options = checked(kind, config.options, "options", ("config", "recordings"))
    make: Callable[..., System] = kind
    system = make(config, recordings, **options)
    if next(system.parameters(), None) is None:
        raise InputError(f"system: {name} has no parameters: there is nothing to train")
    for stage in config.stages:
        missing = [group for group in stage.train if group != "starts" and not system.group(group)]
        if missing:
            raise InputError(f"stage {stage.name!r} trains {missing[0]}, of which {name} has none")
    return system


def undetermined(config: Config) -> str | None:
    """Return a warning where positions alone cannot tell the trained constants, else None.

    Stiffness, damping, drag and mass multiplied by one number move alike, so one of them has to be known.
    """
    factors = {t for c in config.constants.values() if c.kind == "factor" and c.spread is None for t in c.tensors}
    stiff = any(t.startswith(("bend_twist.EI", "hinge.", "membrane.", "midedge.")) for t in factors)
    if "mass" in factors and stiff:
        return (
            "mass and stiffness are both trained: positions only tell their ratio (stiffness, damping, drag "
            "and mass multiplied by one number move alike). Leave out one of them, or read the constants as ratios."
        )
    return None


def coarse(system: System) -> str | None:
    """Return a warning where a shift's unit is large beside a constant that must not fall below zero, else None."""
    for name, entry in system.entries.items() if isinstance(system, PhysicsSystem) else ():
        module, attribute = entry.place
        size = float(entry.value_of_trained.abs().max())
        bounded = attribute in getattr(module, "not_negative", ())
        if entry.constant_kind == "shift" and bounded and 0 < size < entry.unit / MOST_UNIT:
            return (
                f"constants.{name}: its unit, {entry.unit:g}, is large beside the constant, {size:g}, which must not "
                "fall below zero: a step of an optimiser is a few hundredths of the unit. Take a unit such as "
                f'{0.1 * size:.1g}, or kind = "factor", which keeps the sign'
            )
    return None


def unsettled(config: Config, recordings: Recordings) -> str | None:
    """Return a warning where windows begin settled in the middle of recordings of a robot that is driven, else None."""
    begin = config.start
    if begin is None or begin.state != "settled" or begin.velocity == "fitted" or begin.warm_up:
        return None
    short = [stage for stage in config.stages if min(stage.horizon) + 1 < recordings.frames]
    driven = bool((recordings.inputs != recordings.inputs[:, :1]).any())
    if not short or not driven:
        return None
    return (
        f"stage {short[0].name!r}: its windows begin anywhere in a recording, at the equilibrium under the inputs of "
        "that moment, and a robot that is driven may be moving there. Set start.warm_up to the frames that this takes "
        f"to be forgotten, or take whole recordings: horizon = [{recordings.frames - 1}]"
    )
