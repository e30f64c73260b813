"""TermConstants: tensors that an elastic term needs beside q; StrainRate, PresentRate: how it measures strain rates."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from torchdismech.robot.plane import Plane

__all__ = ["PresentRate", "StrainRate", "TermConstants"]


@dataclass(frozen=True)
class StrainRate:
    """The strain rate of a step as a difference quotient: (strain - reference strain) / time.

    The reference strain is a weighted sum of the strains at some earlier q, with weights that add up to 1. It is fixed
    during a step, so the viscous stress has a potential in the step, and its matrix is symmetric.

    Attributes
    ----------
    time : a number or () [s].
    weights : one for each point.
    points : the earlier q, each (B, n).
    """

    time: float | Tensor
    weights: tuple[float, ...]
    points: tuple[Tensor, ...]


@dataclass(frozen=True)
class PresentRate:
    """The strain rate at a state itself: the derivative of the strain by q times the velocity.

    It is written as a difference quotient over `time`, from the strain that there would have been so long before.

    Attributes
    ----------
    time : [s]. Forces are the same for any; their derivatives by position contain the damping divided by it.
    """

    time: float = 1.0


@dataclass
class TermConstants:
    """Tensors of an elastic term that stay fixed while a step is solved, batch last.

    Attributes
    ----------
    natural, measure, scale : as those of `ElasticTerm`, each broadcasting against (S, B); natural strains are the
        control's where it sets them.
    stencil : the result of `Stencil.constants`.
    before : the elastic strains at the start of the step, each (S, B); None without inelastic laws.
    rate_from, rate_time : reference strains, each (S, B), and time [s], a number or (): the rates of the elastic
        strains are (strain - rate_from) / rate_time. None where nothing dissipates.
    internal : the internal variables of each inelastic law at the start of the step, each (S, B).
    elapsed : () the time since the start of the step for these laws [s], see `Past`; None without such laws.
    plane : how planar robots lie in their plane, so that zeros can be left out; None if they do not, or it is unknown.
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
