"""How sure a fit is of its constants: error bars, correlations, and the distance to its optimum.

`residuals.py` differentiates the residuals of open-loop predictions. From these `evidence.py` finds a covariance of the
constants, which allows for residuals that correlate in time and between markers, and the Gauss-Newton step that is left
to the optimum. Errors of the model itself are in the error bars as far as they look like noise; an error that is the
same in all recordings shifts the constants, and no error bar shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training.optimization.evidence import Evidence, evidence_of
from training.optimization.residuals import FittedNumber, Residual, fitted_numbers, prior_of
from training.robots.physics import PhysicsSystem
from training.system import whole_windows

if TYPE_CHECKING:
    from training.optimization.loop import Trainer
    from training.optimization.resuming import Progress

__all__ = ["Certainty", "certainty_of"]

MOST_RECORDINGS = 16  # that are predicted for error bars; the others are taken to be like them
MOST_SHORT_ONES = 64  # the same for recordings shorter than MOST_FRAMES, as each says less
MOST_FRAMES = 100  # that are predicted of each recording
MOST_CONSTANTS = 200  # numbers, beyond which there are no error bars
CORRELATED = 0.7  # correlation from which on a pair is named
MOST_DIRECTIONS = 5  # undetermined directions that are named, the least determined first
ALARMS = 0.05  # share of converged fits that may be warned of by chance
SHOWN = 0.2  # a constant is named in a direction if its part is this share of the largest one
TOO_SHORT = "it has not converged, or was trained on other windows than whole recordings; train longer"


@dataclass(frozen=True)
class Certainty:
    """Error bars of the constants, with one entry for each of the P numbers that are trained.

    Attributes
    ----------
    names : of the numbers, such as "bending" or "rest_length[3]".
    values : of the constants; spreads : their standard deviations, in the same unit.
    covariance : (P, P) of the numbers, in their units (see `FittedNumber`).
    undetermined : (D, P) unit vectors along which the data say less than was known before.
    noise : standard deviation of the residuals [m].
    steps : Gauss-Newton step from each value to the optimum, in the number's standard deviations.
    distance : largest size of a step in standard deviations, of single numbers and along the principal directions of
        the covariance.
    sampling : standard deviation of `steps` for a fit at its optimum, as only a part of the data was looked at; 0 where
        all were.
    reason : probable cause of a large distance, for the warning.
    """

    names: list[str]
    values: list[float]
    spreads: list[float]
    covariance: Tensor
    undetermined: Tensor
    noise: float
    steps: list[float]
    distance: float
    sampling: float
    reason: str = TOO_SHORT

    @property
    def correlations(self) -> Tensor:
        """Correlation matrix (P, P) of the numbers."""
        size = self.covariance.diagonal().clamp_min(1e-300).sqrt()
        return self.covariance / (size[:, None] * size)

    def pairs(self) -> list[tuple[str, str, float]]:
        """Return the pairs of constants that correlate, with their correlations, the strongest first."""
        found = self.correlations
        count = len(self.names)
        strong = [
            (self.names[i], self.names[j], float(found[i, j]))
            for i in range(count)
            for j in range(i)
            if abs(found[i, j]) >= CORRELATED
        ]
        return sorted(strong, key=lambda pair: -abs(pair[2]))

    def warnings(self) -> list[str]:
        """Return a sentence for each of the least determined directions, and on whether the fit has converged."""
        found = []
        for direction in self.undetermined[:MOST_DIRECTIONS]:
            largest = direction.abs().max()
            parts = [(float(w), n) for w, n in zip(direction, self.names, strict=True) if abs(w) >= SHOWN * largest]
            together = " ".join(f"{weight:+.2f} {name}" for weight, name in parts[:8])
            more = ", ..." if len(parts) > 8 else ""
            found.append(
                f"warning: the recordings do not determine {together}{more} (in logarithms, or units of shifts): they "
                "say less about it than was known before, so priors decide: leave a constant out, or give one that has "
                "no prior a mean and a spread"
            )
        if len(self.undetermined) > MOST_DIRECTIONS:
            count = len(self.undetermined) - MOST_DIRECTIONS
            found.append(f"warning: nor do they determine {count} directions more, which are in certainty.json")
        return found + self._convergence_warning()

    def _convergence_warning(self) -> list[str]:
        """Return a warning if the fit is farther from its optimum than an error bar and chance explain, else []."""
        if self.distance <= 1 + self.sampling * _longest_by_chance(2 * len(self.names)):
            return []
        far = sorted(zip(self.steps, self.names, strict=True), key=lambda step: -abs(step[0]))
        parts = ", ".join(f"{name} {step:+.3g}" for step, name in far[:8] if abs(step) > 0.5)
        part = (
            f", which the part of the measurements that was looked at knows to {self.sampling:.2g}"
            if self.sampling
            else ""
        )
        return [
            f"warning: the fit stands about {self.distance:.3g} standard deviations from where these predictions are "
            f"best{f' ({parts})' if parts else ''}{part}: {self.reason}, or count that into the error bars"
        ]

    def as_text(self) -> str:
        """Return a table of the constants with error bars, the pairs that correlate and the warnings, for printing."""
        width = max(map(len, self.names))
        lines = [f"residuals {1e3 * self.noise:.3g} mm; constants +- standard deviations, and how many to the optimum:"]
        rows = zip(self.names, self.values, self.spreads, self.steps, strict=True)
        lines += [
            f"  {name:{width}}  {_shown(v, spread)} +- {spread:.2g}  {step:+.1f}" for name, v, spread, step in rows
        ]
        pairs = self.pairs()
        lines += [f"  {a} and {b} correlate: {c:+.2f}" for a, b, c in pairs[:20]]
        lines += [f"  and {len(pairs) - 20} pairs more"] if len(pairs) > 20 else []
        return "\n".join([*lines, *self.warnings()])

    def facts(self) -> dict[str, Any]:
        """Return all numbers as plain data, for certainty.json."""
        return {
            "constants": {n: [v, s] for n, v, s in zip(self.names, self.values, self.spreads, strict=True)},
            "correlations": [[a, b, c] for a, b, c in self.pairs()],
            "undetermined": self.undetermined.tolist(),
            "noise": self.noise,
            "steps_to_optimum": dict(zip(self.names, self.steps, strict=True)),
            "distance_to_optimum": self.distance,
        }


@torch.no_grad()
def certainty_of(trainer: Trainer) -> Certainty | None:
    """Return the error bars of the constants, from the recordings that were trained on; None without.

    There are none where no constants were trained or more than `MOST_CONSTANTS` numbers, where no recording is
    predicted to its end, and in processes that do not write.
    """
    system = trainer.system
    if not isinstance(system, PhysicsSystem) or not system.entries or not trainer.processes.writes:
        return None
    numbers = fitted_numbers(system)
    if not numbers or not any("constants" in s.train for s in trainer.config.stages):
        return None
    if len(numbers) > MOST_CONSTANTS:
        print(f"warning: no error bars: {len(numbers)} numbers are trained, they are for at most {MOST_CONSTANTS}")
        return None
    count = min(len(trainer.trained_on), _most_recordings(trainer.trained_on.frames))
    rows = torch.linspace(0, len(trainer.trained_on) - 1, count, device="cpu").long()
    start = None if trainer.starts is None else trainer.starts.fitted.detach()[rows.to(system.device)]
    frames = min(trainer.trained_on.frames, MOST_FRAMES + system.given)
    window = whole_windows(system, trainer.trained_on.subset(rows), frames=frames).replace(start=start)
    at = Residual(system, window).linearized(numbers, progress=True)
    looked_at = int(at.good.sum())
    if not looked_at:
        print(
            "warning: no error bars: no recording is predicted to its end with each constant a little higher and lower"
        )
        return None
    noise = float(at.residual.square().sum().div(at.measured.sum().clamp_min(1)).sqrt())
    share = len(trainer.trained_on) / looked_at  # recordings for each one that is looked at, as if all were alike
    prior = prior_of(numbers, 1 / share, at.residual)
    evidence = evidence_of(at.residual, at.measured, at.jacobian, trainer.config.loss.scale, prior, at.starts)
    everything = 3 * int(system.counted(trainer.trained_on.valid[:, system.given + system.warm_up :]).sum())
    sampling = _sampling_deviation(share, int(at.measured.sum()), everything)
    return replace(_certainty(numbers, evidence, noise, share, sampling), reason=_reason_beside(trainer.progress))


def _shown(value: float, spread: float) -> str:
    """Return a value as text, to the second digit of its error bar, with four digits at least."""
    if not (value and 0 < spread < math.inf):
        return f"{value:.4g}"
    digits = math.floor(math.log10(abs(value))) - math.floor(math.log10(spread)) + 2
    return f"{value:#.{min(max(digits, 4), 16)}g}"


def _longest_by_chance(count: int) -> float:
    """Return the bound that the largest of `count` normal deviates exceeds with a probability of `ALARMS` at most."""
    return NormalDist().inv_cdf(1 - 0.5 * ALARMS / count)


def _sampling_deviation(share: float, looked_at: int, everything: int) -> float:
    """Return the standard deviation, in error bars, of the step that is found for a fit at the optimum of all data.

    Error bars are for `share` times the recordings that were looked at. Where the gradient of all data is zero, that of
    the part that was looked at has the share 1 - looked_at / everything of its noise's variance.
    """
    return math.sqrt(share * max(1 - looked_at / max(everything, 1), 0.0))


def _reason_beside(progress: Progress) -> str:
    """Return why a fit may be off the optimum of its training data, and what to do about it."""
    if progress.best_at == progress.total:
        return TOO_SHORT
    return (
        f"its weights are those after batch {progress.best_at} of {progress.total}, the best at looks at whole "
        "recordings, and what came after them is left out: take smaller rates, look at which recordings are held out"
    )


def _most_recordings(frames: int) -> int:
    """Return how many recordings of so many frames are predicted for error bars."""
    return max(MOST_RECORDINGS, min(MOST_SHORT_ONES, MOST_RECORDINGS * MOST_FRAMES // frames))


def _certainty(
    numbers: list[FittedNumber], evidence: Evidence, noise: float, share: float = 1.0, sampling: float = 0.0
) -> Certainty:
    """Return the error bars that follow from the evidence of some recordings, for `share` times as many."""
    step, curvature, scatter = (x.cpu() for x in (evidence.step, evidence.curvature, evidence.scatter))
    curvature, scatter = 0.5 * share * (curvature + curvature.T), 0.5 * share * (scatter + scatter.T)
    values, vectors = torch.linalg.eigh(curvature)
    noisy = torch.einsum("pk,pq,qk->k", vectors, scatter, vectors)
    # directions in which the data alone leave a standard deviation of more than one unit
    undetermined = vectors.T[(values <= 0) | (values.square() < noisy)]
    prior = torch.tensor([number.precision for number in numbers], device="cpu").to(curvature)
    floor = 1e-12 * max(float((curvature.diagonal() + prior).max()), 1e-12)
    own = torch.diag(prior + floor)
    inverse = torch.linalg.inv(curvature + own)
    covariance = inverse @ (scatter + own) @ inverse
    size = covariance.diagonal().clamp_min(0).sqrt()
    spreads = [
        n.value_per_unit * float(s) if math.isfinite(s) else math.inf for n, s in zip(numbers, size, strict=True)
    ]
    return Certainty(
        [n.name for n in numbers],
        [n.value for n in numbers],
        spreads,
        covariance,
        undetermined,
        noise,
        steps=(step / size).tolist(),
        distance=_longest(step, covariance),
        sampling=sampling,
    )


def _longest(step: Tensor, covariance: Tensor) -> float:
    """Return the largest size of a step (P,) in standard deviations, over numbers and principal directions."""
    values, vectors = torch.linalg.eigh(covariance)
    alone, together = step / covariance.diagonal().sqrt(), (vectors.T @ step) / values.sqrt()
    lengths = torch.cat([alone, together])
    return float(lengths[lengths.isfinite()].abs().max())
