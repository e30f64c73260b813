"""What of an elastic term stays fixed in a step, and how fast its strains change."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdismech.robot.plane import Plane

__all__ = ["PresentRate", "StrainRate", "TermConstants"]


@dataclass(frozen=True)
class StrainRate:
    """How fast a strain changes where forces are evaluated: what it is there less what it was, over a time.

    What it was is a sum of strains at some q, the same in all of a step, with weights that add up to 1. So the viscous
    stress has a potential in a step, and its matrix is symmetric.

    Attributes
    ----------
    time : a number or () [s].
    weights, points : of the sum; each q is (B, n).
    """

    time: float | Tensor
    weights: tuple[float, ...]
    points: tuple[Tensor, ...]


@dataclass(frozen=True)
class PresentRate:
    """How fast a strain changes at a state itself: strain' velocity.

    Attributes
    ----------
    time : for how long [s] it counts as having changed so. Forces are the same for any; their derivatives by position
        have the damping over this time in them.
    """

    time: float = 1.0


@dataclass
class TermConstants:
    """What stays fixed in a step, batch last.

    Attributes
    ----------
    natural, measure, scale : as those of `ElasticTerm`, each broadcasting against (S, B); the natural strains may be
        those that a control sets.
    stencil : what `Stencil.constants` gives.
    before : the elastic strains at the start of the step, each (S, B); None where nothing remembers.
    rate_from, rate_time : the rates of the elastic strains are these less `rate_from`, each (S, B), over `rate_time`
        [s], a number or (); None where nothing dissipates.
    internal : the internal variables of each inelastic law at the start of the step, each (S, B).
    elapsed : () the time since the start of the step as these laws see it [s], see `Past`; None without such laws.
    plane : how the robots lie in their plane; None where that is not known, or they lie in none.
    """

    natural: tuple[Tensor | None, ...]
    measure: Tensor
    scale: Tensor | None
    stencil: tuple[Tensor, ...]
    before: tuple[Tensor, ...] | None = None
    rate_from: tuple[Tensor, ...] | None = None
    rate_time: float | Tensor | None = None
    internal: tuple[tuple[Tensor, ...], ...] = ()
    elapsed: Tensor | None = None
    plane: Plane | None = None
