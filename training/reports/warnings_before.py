"""Warnings before a fit: recordings that hardly belong to its robot, constants and starts that cannot be right."""

from __future__ import annotations

import torch

from torchdismech import InputError
from training.config import Config
from training.data import Recordings
from training.reports.warnings_after import FAR_MARKER
from training.robots.physics import PhysicsSystem
from training.robots.scenes import SceneSystem
from training.system import System

__all__ = ["warnings_before"]

MOST_STEPS = 300  # steps of a scene between frames, beyond which times are probably in another unit
MOST_UNIT = 10.0  # ratio of a shift's unit to its constant: beyond, an optimiser's step is tenths of the constant


def warnings_before(config: Config, system: System, recordings: Recordings, trained_on: Recordings) -> list[str]:
    """Return the warnings about a fit before it begins; refuse recordings that cannot be of its robot.

    Parameters
    ----------
    recordings : all of the training split; trained_on : those that are not held out.
    """
    found = [
        warning_of_times_in_another_unit(config, system, recordings),
        warning_of_distant_markers(system, recordings),
        warning_of_undetermined_constants(config),
        warning_of_coarse_units(system),
        warning_of_unsettled_starts(config, trained_on),
        None if config.data.held_out else "no recording is held out: errors are of what was trained on",
    ]
    return [f"warning: {warning}" for warning in found if warning]


@torch.no_grad()
def warning_of_distant_markers(system: System, recordings: Recordings) -> str | None:
    """Return a warning where markers begin far from their points on the robot, else None.

    Raises
    ------
    InputError
        Every marker is farther off than the robot is large, and nothing that is fitted can move the robot there: it
        starts from rest, and neither its clamps nor the frame of the recordings are trained.
    """
    if not isinstance(system, SceneSystem) or system.measured:
        return None
    off, size = system.off_at_start(recordings)
    if not size > 0 or not bool((off > FAR_MARKER * size).any()):  # NaN: not seen in frame 0
        return None
    k, marker = divmod(int(off.nan_to_num(nan=-1.0).argmax()), off.shape[1])
    found = (
        f"{recordings.names[k]}: marker {marker} is {float(off[k, marker]):.3g} m from its point of the robot in frame "
        f"0, and the robot is {size:.3g} m large"
    )
    advice = "look at the order of the markers, at their unit (m), at the axes (z up), and at markers.position and "
    advice += "markers.rotation"
    if system.starts_as_described and bool((off > size)[off.isfinite()].all()):
        raise InputError(f"{found}; expected recordings that begin where the scene has the robot: {advice}")
    return f"{found}: are these markers of this robot? {advice[0].upper()}{advice[1:]}"


def warning_of_times_in_another_unit(config: Config, system: System, recordings: Recordings) -> str | None:
    """Return a warning where more than `MOST_STEPS` steps lie between two frames, as times may be in another unit."""
    if not isinstance(system, SceneSystem) or system.substeps <= MOST_STEPS:
        return None
    dt, steps = recordings.dt, system.substeps
    unit, times = ("milliseconds", 1000) if steps <= 1000 * MOST_STEPS else ("microseconds", 1_000_000)
    given = "dt" if "dt" in config.data.options or config.data.path.lower().endswith((".npz", ".h5")) else "column time"
    return (
        f"{recordings.names[0]}: {given}: frames are {dt:g} s apart, which takes {steps} steps of {dt / steps:.3g} s "
        f"(the scene's simulation.dt) each: this looks like {unit}; expected seconds: divide the times by {times}, or "
        "take longer steps"
    )


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
    """Return a warning where windows of a driven robot begin in equilibrium in the middle of recordings, else None."""
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
