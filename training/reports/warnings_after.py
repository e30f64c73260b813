"""Warnings at the end of a fit: that it changed nothing, explains nothing, or leaves more than the markers' noise."""

from __future__ import annotations

import math
from collections.abc import Mapping

from torch import Tensor

from training.config import Config
from training.data import Recordings
from training.optimization.resuming import Progress
from training.optimization.validation import Validated
from training.reports.metrics import Errors, in_words
from training.reports.predictions import OpenLoop

__all__ = ["FAR_MARKER", "warnings_after"]

FAR_MARKER = 0.2  # share of the robot's size: farther off, markers are likely to be other ones, or in another frame
NORMAL = math.sqrt(0.5 * math.pi)  # standard deviation over mean absolute value, of normal noise
MOST_NOISE = 2.0  # ratio of residuals to noise that is no cause for a warning: the noise is known roughly


def warnings_after(
    config: Config,
    progress: Progress,
    validated: Validated,
    references: Mapping[str, Errors],
    held_out: Recordings,
) -> list[str]:
    """Return the warnings about a fit that is done.

    Parameters
    ----------
    validated : predictions of the held-out recordings; references : errors of the baselines on these.
    """
    found: list[str | None] = [warning_of_unchanged_weights(config, progress.total, progress.best_at)]
    poor = warnings_of_poor_fit(validated.errors, references, validated.predicted, held_out)
    found += poor or [warning_of_residuals_above_noise(config, validated.errors)]
    return [f"warning: {warning}" for warning in found if warning]


def warnings_of_poor_fit(
    errors: Errors, references: Mapping[str, Errors], predicted: OpenLoop, measured: Recordings
) -> list[str]:
    """Return a warning for each sign that a fit explains nothing: large residuals, baselines that are not beaten."""
    warnings = []
    size, off = _size(predicted.drawn[:, 0]), _distance(predicted, measured)
    if size > 0 and off > FAR_MARKER * size:
        warnings.append(
            f"markers are {1e3 * off:.3g} mm from their predictions (rms of distances), {off / size:.0%} of the "
            "robot's size: this is no fit, and the error bars say nothing; look at the order of the markers, their "
            "points, axes and units, and at how recordings start"
        )
    for name, reference in references.items():
        if not errors.mean < reference.mean:
            warnings.append(
                f"the fit predicts no better than {in_words(name)} ({1e3 * reference.mean:.3g} mm): it explains "
                "nothing of the motion; look at the markers, at what drives the robot, and at what is trained"
            )
    return warnings


def warning_of_residuals_above_noise(config: Config, errors: Errors) -> str | None:
    """Return a warning where residuals are larger than the noise of the markers explains, else None."""
    noise, off = config.loss.scale, NORMAL * errors.mean
    if not MOST_NOISE * noise < off < math.inf:
        return None
    more = "Try more constants" + (", or another network in [terms]" if config.terms else ", or learned [terms]")
    given = "" if "scale" in config.loss.model_fields_set else ", the default: say what it is"
    return (
        f"residuals are {1e3 * off:.3g} mm, {off / noise:.2g} times the noise of the markers (loss.scale = "
        f"{noise:g} m{given}): the robot does not do what was recorded, and what is fitted bends to make up for it, by "
        "more than the error bars say. A constant that is a wrong guess may be left out of [constants]; the model may "
        f"lack something (damping, friction, a load, a delay of the drives); or starts are off. {more}"
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


def _size(nodes: Tensor) -> float:
    """Return the size of a robot [m]: the largest diagonal of the boxes around its nodes (K, N, 3)."""
    return float((nodes.amax(1) - nodes.amin(1)).norm(dim=-1).nan_to_num(nan=0.0, posinf=0.0).max())


def _distance(predicted: OpenLoop, measured: Recordings) -> float:
    """Return the root mean square of the distances from markers that were seen to their predictions [m]."""
    given = measured.frames - predicted.positions.shape[1]
    seen = measured.valid[:, given:]
    return float((predicted.positions - measured.positions[:, given:])[seen].square().sum(-1).mean().sqrt())
