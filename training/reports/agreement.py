"""Whether recordings can be of the robot at all: where it begins, how often it was seen, how well it is predicted."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from torchdismech import InputError
from training.config import Config
from training.data import Recordings
from training.reports.metrics import Errors
from training.reports.predictions import OpenLoop
from training.robots.scenes import SceneSystem
from training.system import System

__all__ = [
    "beside_references",
    "warning_of_distant_markers",
    "warning_of_residuals_above_noise",
    "warning_of_times_in_another_unit",
    "warning_of_unchanged_weights",
    "warnings_of_poor_fit",
]

FAR_MARKER = 0.2  # of the robot's size: farther off, markers are likely to be other ones, or in another frame
IN_WORDS = {
    "stay": "markers that stay where they were first",
    "follow": "markers that follow the gripped ones",
}
NORMAL = math.sqrt(0.5 * math.pi)  # standard deviation over mean absolute error, of noise
MOST_NOISE = 2.0  # that residuals are of the noise before something is said: its size is known roughly
MOST_STEPS = 300  # of a scene from frame to frame, of times that nobody wonders at


@torch.no_grad()
def warning_of_distant_markers(system: System, recordings: Recordings) -> str | None:
    """Return a warning where markers begin far from the points of the robot that they are said to sit at, else None.

    Raises
    ------
    InputError
        Every marker is farther off than the robot is large, and nothing that is fitted can bring them together: the
        robot starts from rest, and neither its clamps nor the frame of the recordings are trained.
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
    """Return a warning where so many steps lie between two frames that times are likely to be in another unit."""
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


def warnings_of_poor_fit(
    errors: Errors, references: Mapping[str, Errors], predicted: OpenLoop, measured: Recordings
) -> list[str]:
    """Return a warning for each sign that a fit explains nothing: residuals as large as the robot, lines not beaten."""
    warnings = []
    size, off = _size(predicted.drawn[:, 0]), _distance(predicted, measured)
    if size > 0 and off > FAR_MARKER * size:
        warnings.append(
            f"markers are {1e3 * off:.3g} mm from their predictions (rms), {off / size:.0%} of the robot's "
            "size: this is no fit, and the error bars say nothing; look at the order of the markers, their points, "
            "axes and units, and at how recordings start"
        )
    for name, reference in references.items():
        if not errors.mean < reference.mean:
            warnings.append(
                f"the fit predicts no better than {_told(name)} ({1e3 * reference.mean:.3g} mm): it explains "
                "nothing of the motion; look at the markers, at what drives the robot, and at what is trained"
            )
    return warnings


def warning_of_residuals_above_noise(config: Config, errors: Errors) -> str | None:
    """Return a warning where predictions are farther off than the noise of the markers explains, else None."""
    noise, off = config.loss.scale, NORMAL * errors.mean
    if not MOST_NOISE * noise < off < math.inf:
        return None
    given = "" if "scale" in config.loss.model_fields_set else ", the default: say what it is"
    return (
        f"residuals are {1e3 * off:.3g} mm, {off / noise:.2g} times the noise of the markers (loss.scale = "
        f"{noise:g} m{given}): the robot does not do what was recorded, and what is fitted bends to make up for it, by "
        "more than the error bars say. A constant that is a wrong guess may be left out of [constants]; the model may "
        "lack something (damping, friction, a load, a delay of the drives); or starts are off. Try more constants, or "
        "learned [terms]"
    )


def warning_of_unchanged_weights(config: Config, batches: int, best_at: int) -> str | None:
    """Return a warning where the best weights are those before the first of so many batches, else None."""
    if best_at or not batches:
        return None
    looked_at, reason = "recordings", "windows are too short"
    if config.data.held_out:
        looked_at, reason = "held-out recordings", "these recordings do not agree with those trained on"
    return (
        "what this fit ends with is what it began with: no batch was followed by better predictions of the "
        f"{looked_at} than there were before, so all {batches} are left out: {reason}, rates are too large, or the fit "
        "began at its optimum"
    )


def beside_references(errors: Errors, references: Mapping[str, Errors]) -> str:
    """Return the error of a fit beside those of predictions without a model."""
    others = "; ".join(f"of {_told(name)} {1e3 * e.mean:.2f} mm" for name, e in references.items())
    return f"{1e3 * errors.mean:.2f} mm" + (f" ({others})" if others else "")


def _told(name: str) -> str:
    """Return what a reference is, in words."""
    return IN_WORDS.get(name, f"the reference {name!r}")


def _size(nodes: Tensor) -> float:
    """Return how large a robot is [m], the diagonal of the box around its nodes (K, N, 3), the largest of all."""
    return float((nodes.amax(1) - nodes.amin(1)).norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0).max())


def _distance(predicted: OpenLoop, measured: Recordings) -> float:
    """Return how far what was seen is from its predictions [m], root mean square of distances."""
    given = measured.frames - predicted.positions.shape[1]
    seen = measured.valid[:, given:]
    return float((predicted.positions - measured.positions[:, given:])[seen].square().sum(-1).mean().sqrt())
