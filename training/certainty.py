"""How sure a fit is of its constants: error bars and correlations by the Gauss-Newton matrix.

Residuals of open-loop predictions are differentiated by differences, in units in which each constant may be expected
to change by about one: its prior's standard deviation, else a factor e, or the unit of a shift. The Gauss-Newton matrix
over the noise's variance is the inverse of their covariance; starts that are fitted are eliminated from it, recording
by recording. Noise is taken as independent from frame to frame: errors of the model itself are not in the error bars.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from training.physics import PhysicsSystem
from training.starts import whole

if TYPE_CHECKING:
    from training.data import Recordings, Window
    from training.loop import Trainer

__all__ = ["Certainty", "certainty_of"]

STEP = 1e-2  # of the differences, in these units: its error is 1e-4, far above that of Newton's method
MOST_RECORDINGS = 8  # that are looked at: fewer than there are make error bars as much wider as they should be
MOST_SHORT_ONES = 64  # of recordings shorter than MOST_FRAMES, which say less each
MOST_FRAMES = 100
MOST_CONSTANTS = 200
CORRELATED = 0.7  # from there on pairs are told
SHOWN = 0.2  # of a direction: what a constant has to have in it to be named


@dataclass(frozen=True)
class Certainty:
    """What recordings tell of the constants, one entry for each number that is trained.

    Attributes
    ----------
    names : of the numbers, such as "bending" or "rest_length[3]".
    values : of them; spreads : their standard deviations, in the same unit.
    covariance : (P, P) in the units of the module.
    loose : directions (D, P), of length one, in which data say less than was known before.
    noise : standard deviation of the residuals [m].
    """

    names: list[str]
    values: list[float]
    spreads: list[float]
    covariance: Tensor
    loose: Tensor
    noise: float

    @property
    def correlations(self) -> Tensor:
        """Correlations (P, P)."""
        size = self.covariance.diagonal().clamp_min(1e-300).sqrt()
        return self.covariance / (size[:, None] * size)

    def pairs(self) -> list[tuple[str, str, float]]:
        """Return pairs of constants that go together, the strongest first."""
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
        """Return a sentence for each direction that nothing determines."""
        told = []
        for direction in self.loose:
            largest = direction.abs().max()
            parts = [(float(w), n) for w, n in zip(direction, self.names, strict=True) if abs(w) >= SHOWN * largest]
            together = " ".join(f"{weight:+.2f} {name}" for weight, name in parts[:8])
            more = ", ..." if len(parts) > 8 else ""
            told.append(
                f"warning: the recordings do not determine {together}{more} (in logarithms, or units of shifts): they "
                "say less about it than was known before; leave a constant out, or give it a prior (mean, spread)"
            )
        return told

    def told(self) -> str:
        """Return a table of the constants, what goes together, and what nothing determines."""
        width = max(map(len, self.names))
        lines = [f"residuals {1e3 * self.noise:.3g} mm; constants with standard deviations:"]
        rows = zip(self.names, self.values, self.spreads, strict=True)
        lines += [f"  {name:{width}}  {value:.4g} +- {spread:.2g}" for name, value, spread in rows]
        pairs = self.pairs()
        lines += [f"  {a} and {b} correlate: {c:+.2f}" for a, b, c in pairs[:20]]
        lines += [f"  and {len(pairs) - 20} pairs more"] if len(pairs) > 20 else []
        return "\n".join([*lines, *self.warnings()])

    def facts(self) -> dict[str, Any]:
        """Return all numbers, for a file."""
        return {
            "constants": {n: [v, s] for n, v, s in zip(self.names, self.values, self.spreads, strict=True)},
            "correlations": [[a, b, c] for a, b, c in self.pairs()],
            "undetermined": self.loose.tolist(),
            "noise": self.noise,
        }


@torch.no_grad()
def certainty_of(trainer: Trainer) -> Certainty | None:
    """Return what the recordings that were trained on tell of the constants; None where none were trained."""
    system = trainer.system
    if not isinstance(system, PhysicsSystem) or not system.entries or not trainer.processes.writes:
        return None
    numbers = _numbers(system)
    if not 0 < len(numbers) <= MOST_CONSTANTS or not any("constants" in s.train for s in trainer.config.stages):
        return None
    count = min(len(trainer.fitted), _most_recordings(trainer.fitted.frames))
    rows = torch.linspace(0, len(trainer.fitted) - 1, count).long()
    window = _window(system, trainer.fitted.subset(rows))
    start = None
    if trainer.starts is not None:
        start = trainer.starts.fitted.detach()[rows.to(system.device)]
    residual = _Residual(system, window.replace(start=start))
    now = residual()
    noise = float(now.square().sum().div(max(int(residual.measured.sum()) * 3, 1)).sqrt())
    scale = max(noise, 1e-3 * trainer.config.loss.scale)
    share = len(trainer.fitted) / count  # of what was measured that is looked at, counted as if all were alike
    columns = torch.stack([number.slope(residual) / scale for number in numbers], dim=-1)  # (B, R, P)
    matrix = share * torch.einsum("brp,brq->pq", columns, columns)
    if start is not None:
        matrix = matrix - share * _told_by_starts(residual, start, columns, scale)
    return _certainty(numbers, matrix.cpu(), noise)


def _most_recordings(frames: int) -> int:
    """Return how many recordings of so many frames are looked at."""
    return max(MOST_RECORDINGS, min(MOST_SHORT_ONES, MOST_RECORDINGS * MOST_FRAMES // frames))


def _window(system: PhysicsSystem, recordings: Recordings) -> Window:
    return whole(system, recordings, frames=min(recordings.frames, MOST_FRAMES + system.given))


class _Residual:
    """Residuals (B, R) of predictions of a window, zero where nothing was measured."""

    def __init__(self, system: PhysicsSystem, window: Window):
        self.system, self.window = system, window
        self.measured = window.valid[:, system.given :].clone()
        self.measured[:, : system.warm_up] = False

    def __call__(self) -> Tensor:
        return self._of(self.window, self.measured)

    def repeated(self, times: int, start: Tensor) -> Tensor:
        """Return the residuals (times B, R) with other starts (times B, S)."""

        def again(x: Tensor) -> Tensor:
            return x.repeat(times, *[1] * (x.dim() - 1))

        own = self.window
        tensors = {name: again(getattr(own, name)) for name in ("positions", "valid", "inputs", "time")}
        history = {name: again(value) for name, value in own.history.items()}
        return self._of(own.replace(**tensors, history=history, start=start), again(self.measured))

    def _of(self, window: Window, measured: Tensor) -> Tensor:
        prediction = self.system.predict(window)
        off = prediction.positions - window.positions[:, self.system.given :]
        return torch.where(measured[..., None] & prediction.good[:, None, None, None], off, 0.0).flatten(1)


@dataclass(frozen=True)
class _Number:
    """A single number that was trained: its place in a parameter, its unit there, and what it stands for."""

    name: str
    parameter: Tensor
    index: int
    unit: float
    prior: float  # 1 where there is one, else 0
    value: float
    spread_of_one: float  # change of the value with one unit

    def slope(self, residual: _Residual) -> Tensor:
        """Return the derivative (B, R) by the number in its units."""
        flat = self.parameter.data.view(-1)
        before = flat[self.index].clone()
        ends = []
        for sign in (1, -1):
            flat[self.index] = before + sign * STEP * self.unit
            ends.append(residual())
        flat[self.index] = before
        return (ends[0] - ends[1]) / (2 * STEP)


def _numbers(system: PhysicsSystem) -> list[_Number]:
    """Return all numbers that are trained."""
    found = []
    for name, trained in system.entries.items():
        parameter = trained.parameter
        spread, value, mask = (t.flatten() for t in (trained.spread, trained.value, trained.mask))
        for k in mask.nonzero().flatten().tolist():
            label = name if parameter.numel() == 1 else f"{name}[{k}]"
            known = bool(spread[k].isfinite())
            unit = float(spread[k]) if known else 1.0
            own = float(value[k] if value.numel() == parameter.numel() else value.double().mean())
            factor = trained.constant_kind == "factor"
            of_one = abs(own) * unit if factor else trained.unit * unit
            found.append(_Number(label, parameter, k, unit, float(known), own, of_one))
    return found


def _told_by_starts(residual: _Residual, start: Tensor, columns: Tensor, scale: float) -> Tensor:
    """Return what of the matrix (P, P) goes to the starts, which are fitted as well."""
    batch, size = start.shape
    sides = STEP * torch.eye(size).to(start)
    moved = torch.cat([start[None] + sign * sides[:, None] for sign in (1, -1)]).flatten(0, 1)  # (2 S B, S)
    ends = residual.repeated(2 * size, moved).unflatten(0, (2, size, batch))
    own = ((ends[0] - ends[1]) / (2 * STEP * scale)).permute(1, 2, 0)  # (B, R, S)
    square = torch.einsum("brs,brt->bst", own, own) + torch.eye(own.shape[2]).to(own)  # the prior is one
    mixed = torch.einsum("brs,brp->bsp", own, columns)
    return torch.einsum("bsp,bsq->pq", mixed, torch.linalg.solve(square, mixed))


def _certainty(numbers: list[_Number], matrix: Tensor, noise: float) -> Certainty:
    """Return the certainty for what data tell, a matrix (P, P) in units of the numbers."""
    matrix = 0.5 * (matrix + matrix.T)
    values, vectors = torch.linalg.eigh(matrix)
    loose = vectors.T[values < 1]  # data alone leave more than a unit open
    prior = torch.tensor([number.prior for number in numbers], dtype=matrix.dtype)
    whole_matrix = matrix + torch.diag(prior)
    floor = 1e-12 * max(float(whole_matrix.diagonal().max()), 1e-12)
    covariance = torch.linalg.inv(whole_matrix + floor * torch.eye(len(numbers), dtype=matrix.dtype))
    size = covariance.diagonal().clamp_min(0).sqrt()
    spreads = [n.spread_of_one * float(s) if math.isfinite(s) else math.inf for n, s in zip(numbers, size, strict=True)]
    return Certainty([n.name for n in numbers], [n.value for n in numbers], spreads, covariance, loose, noise)
