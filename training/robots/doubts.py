"""What is doubtful about a fit before it begins, as far as its config and its robot say."""

from __future__ import annotations

from training.config import Config
from training.data import Recordings
from training.robots.physics import PhysicsSystem
from training.system import System

__all__ = ["warning_of_coarse_units", "warning_of_undetermined_constants", "warning_of_unsettled_starts"]

MOST_UNIT = 10.0  # that a shift's unit is of its constant: steps of a few hundredths of it are steps of tenths of this


def warning_of_undetermined_constants(config: Config) -> str | None:
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


def warning_of_coarse_units(system: System) -> str | None:
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


def warning_of_unsettled_starts(config: Config, recordings: Recordings) -> str | None:
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
