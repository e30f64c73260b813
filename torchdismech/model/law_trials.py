"""Trials of users' contact laws when a model is built, by themselves: no state has to touch anything for that.

A wrong second derivative makes steps take many times the iterations, and a slope that is not that of the energy pushes
otherwise than reports say; both would go unnoticed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from torchdismech.contact import Obstacle, Potential, SelfContact
from torchdismech.contact.law import ContactLaw
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.model.differences import same
from torchdismech.model.user_code import another_dtype, force_label, holds_users_code, not_deterministic
from torchdismech.origin import class_name
from torchdismech.values import leading

__all__ = ["refuse_wrong_laws"]

# gaps over the tolerance: odd numbers, as a law may well change its formula at half the tolerance
ABOVE_ZERO = (0.0531, 0.1137, 0.2713, 0.4909, 0.7331, 0.9127, 0.9829)
BELOW_ZERO = (-0.9713, -0.3137, -0.0731, 0.0)
APART = (1.0011, 1.1, 2.0, 10.0, 1000.0)  # gaps where nothing may act; the first differs from 1 in float32, too
SPEEDS = (0.0, 0.0131, 0.1137, 0.3719, 0.8317, 1.2713, 3.3137, 20.0)  # speeds over the slip velocity
# Step of differences, over the tolerance or the slip velocity. In float64 its rounding is 1e-11 of that, and a function
# that varies over a hundredth of the tolerance is linear over it to 1e-6.
STEP = 1e-5
OFF = 1e-4  # largest relative error of derivatives against differences, a hundred times the error of these
CREEP = 1e-7  # a speed, over the slip velocity, that is as good as rest
ROUNDED = 1e-15 / STEP  # rounding error of a difference quotient over STEP, for values of size one
LEFT = 1e-6  # largest value beyond the tolerance over the largest within it; an exponential leaves exp(-15), less

Values = tuple[Tensor, ...]


@torch.no_grad()
def refuse_wrong_laws(forces: Sequence[Force], self_contacts: Sequence[SelfContact], robots: int | None) -> None:
    """Refuse users' contact laws that do not fulfil the contract of `contact.Potential`; messages name the contact.

    Parameters
    ----------
    robots : number of robots that the model's tensors are given for; None: any number.
    """
    named = [(force_label(force), force.law) for force in forces if isinstance(force, Obstacle)]
    named += [(contact.scope.label, contact.law) for contact in self_contacts]
    for contact, law in named:
        if isinstance(law, ContactLaw) and holds_users_code(law.response):
            with leading(law, robots, 2):
                _refuse_wrong_law(law, f"{contact}: its law, {class_name(law.response)}")


def _refuse_wrong_law(law: ContactLaw, name: str) -> None:
    response = law.response
    slip = None if law.friction is None else law.friction.slip_velocity
    _refuse_other_results(response, name)
    if slip is not None:
        at_slip = _by_robot(slip)
        _slipping(response, at_slip, at_slip, f"{name}: slipping()")
    if response.stiffness.dtype != torch.float64:
        response = copy.deepcopy(response).double()
    _refuse_wrong_potential(response, name)
    if slip is not None:
        _refuse_wrong_slipping(response, slip.double(), f"{name}: slipping()")


# ---- what is returned ----------------------------------------------------------------------------------------------


def _refuse_other_results(response: Potential, name: str) -> None:
    """Refuse a law whose results have a wrong shape or dtype, change from call to call, or depend on other contacts."""
    k, t = _constants(response)
    gaps = t * t.new_tensor((*_gaps_of_finite_values(response), *APART))
    values = _evaluated(response, gaps, k, t, name)
    again = _evaluated(response, gaps, k, t, name)
    if not all(map(same, values, again)):
        raise InputError(not_deterministic(name))
    # a selection of the gaps in one dimension, as contact between a robot's parts evaluates them
    selected = [x.expand_as(gaps).reshape(-1)[1::2] for x in (gaps, k, t)]
    for value, part in zip(values, _evaluated(response, selected[0], selected[1], selected[2], name), strict=True):
        expected = value.reshape(-1)[1::2]
        # vectorised code may round differently for another number of gaps
        near = (part - expected).abs() <= 1e3 * torch.finfo(gaps.dtype).eps * value.abs().nan_to_num(0, 0, 0).max()
        if not bool((near | ~expected.isfinite()).all()):
            raise InputError(
                f"{name}: what it gives of a contact depends on which others it is evaluated with; expected operations "
                "element by element"
            )


def _evaluated(response: Potential, gap: Tensor, stiffness: Tensor, tolerance: Tensor, name: str) -> Values:
    """Return energy, slope and curvature at gaps; refuse results that are no tensors of the gaps' shape and dtype."""
    shapes = f"gaps of shape {tuple(gap.shape)}"
    energy = _result_of(lambda: response.energy(gap, stiffness, tolerance), f"{name}: energy() at {shapes}")
    slopes = _result_of(lambda: response.derivatives(gap, stiffness, tolerance), f"{name}: derivatives() at {shapes}")
    return (
        *_checked_results((energy,), gap, f"{name}: energy()", "phi"),
        *_checked_results(slopes, gap, f"{name}: derivatives()", "dphi/dd and d2phi/dd2"),
    )


def _result_of(function: Callable[[], Any], name: str) -> Any:
    try:
        return function()
    except Exception as error:
        raise InputError(f"{name} cannot be evaluated: {type(error).__name__}: {error}") from error


def _checked_results(result: Any, like: Tensor, name: str, what: str) -> Values:
    """Return a method's result as a tuple; refuse it unless it is the tensors that `what` names, shaped like `like`."""
    count, shape = len(what.split(" and ")), tuple(like.shape)
    expected = f"{name}: expected {what}, {'' if count == 1 else 'a pair, each '}a tensor of shape {shape}, as given"
    if not isinstance(result, tuple | list) or len(result) != count or not all(isinstance(x, Tensor) for x in result):
        kinds = [type(x).__name__ for x in result] if isinstance(result, tuple | list) else type(result).__name__
        raise InputError(f"{expected}; got {kinds}")
    for part in result:
        if tuple(part.shape) != shape:
            raise InputError(f"{expected}; got the shapes {[tuple(x.shape) for x in result]}")
        if part.dtype != like.dtype:
            raise InputError(another_dtype(name, part, like))
    return tuple(result)


# ---- the potential -------------------------------------------------------------------------------------------------


def _refuse_wrong_potential(response: Potential, name: str) -> None:
    """Refuse derivatives that are not those of the energy, and values that are not zero from the tolerance on."""
    k, t = _constants(response)

    def at(gap: Tensor) -> Values:
        return _evaluated(response, gap, k, t, name)

    gap, step = t * t.new_tensor(_gaps_of_finite_values(response)), STEP * t
    here, behind, ahead = at(gap), at(gap - step), at(gap + step)
    _refuse_not_finite(here, gap, name)
    methods = ("energy()", "dphi/dd", "d2phi/dd2")
    for order in (1, 2):
        before, value, after = (values[order - 1] for values in (behind, here, ahead))
        sides = (value - before) / step, (after - value) / step
        place = _first_wrong(here[order], *sides, value.abs() * ROUNDED / t)
        if place is not None:
            raise InputError(
                f"{name}: derivatives(): {methods[order]} is not the derivative of {methods[order - 1]}: at a gap of "
                f"{float(gap[place]):.4g} m it is {float(here[order][place]):.6g} {('N', 'N/m')[order - 1]}, and "
                f"differences say {_middle(sides, place):.6g}"
            )
    _refuse_beyond(at, here, t, name)
    _refuse_without_nan(at(t * t.new_tensor([torch.nan])), name)


def _refuse_not_finite(values: Values, gap: Tensor, name: str) -> None:
    for what, value in zip(("phi", "dphi/dd", "d2phi/dd2"), values, strict=True):
        if not bool(value.isfinite().all()):
            place = tuple((~value.isfinite()).nonzero()[0].tolist())
            cure = "; a law that is infinite from zero down says `feasible_only = True`" if gap[place] <= 0 else ""
            raise InputError(
                f"{name}: {what} is {float(value[place])} at a gap of {float(gap[place]):.4g} m; expected a finite "
                f"number{cure}"
            )


def _refuse_beyond(at: Callable[[Tensor], Values], near: Values, t: Tensor, name: str) -> None:
    gap = t * t.new_tensor(APART)
    for what, value, inside in zip(("phi", "dphi/dd", "d2phi/dd2"), at(gap), near, strict=True):
        wrong = ~(value.abs() <= LEFT * inside.abs().amax(1, keepdim=True))
        if bool(wrong.any()):
            place = tuple(wrong.nonzero()[0].tolist())
            raise InputError(
                f"{name}: {what} is {float(value[place]):.4g} at a gap of {float(gap[place]):.4g} m, above the "
                f"tolerance; expected 0 there, as by torch.where(gap >= tolerance, 0.0, ...)"
            )


def _refuse_without_nan(values: Values, name: str) -> None:
    for what, value in zip(("phi", "dphi/dd"), values[:2], strict=True):  # d2phi/dd2 may be a constant, also for NaN
        if bool(value.isfinite().any()):
            raise InputError(
                f"{name}: {what} of a gap that is NaN is {float(value.reshape(-1)[0]):.4g}, so that a robot whose "
                "numbers are lost would seem to touch nothing; expected NaN: torch.where(gap >= tolerance, 0.0, ...) "
                "and not torch.where(gap < tolerance, ..., 0.0)"
            )


# ---- friction ------------------------------------------------------------------------------------------------------


def _refuse_wrong_slipping(response: Potential, slip_velocity: Tensor, name: str) -> None:
    """Refuse gamma(v)/v and dgamma/dv that do not belong to one function gamma, smooth at rest."""
    slip = _by_robot(slip_velocity)
    speed, step = slip * slip.new_tensor(SPEEDS), STEP * slip

    def gamma(speed: Tensor) -> Tensor:
        return speed * _slipping(response, speed, slip, name)[0]

    ratio, rise = _slipping(response, speed, slip, name)
    place = _first(~(ratio.isfinite() & rise.isfinite()))
    if place is not None:
        raise InputError(
            f"{name}: at {float(speed[place]):.4g} m/s gamma(v)/v is {float(ratio[place])} and dgamma/dv "
            f"{float(rise[place])} s/m; expected finite numbers, at rest the limits of both"
        )
    creeping = _slipping(response, CREEP * slip, slip, name)[0]  # at rest both have to be the slope of gamma
    for what, at_rest in (("gamma(v)/v", ratio[:, :1]), ("dgamma/dv", rise[:, :1])):
        place = _first_wrong(at_rest, creeping, creeping, 0 * creeping)
        if place is not None:
            raise InputError(
                f"{name}: {what} at rest is {float(at_rest[place]):.6g} s/m; expected what gamma(v)/v is close to "
                f"rest, {float(creeping[place]):.6g} s/m"
            )
    speed, rise = speed[:, 1:], rise[:, 1:]
    behind, here, ahead = gamma(speed - step), gamma(speed), gamma(speed + step)
    sides = (here - behind) / step, (ahead - here) / step
    place = _first_wrong(rise, *sides, here.abs() * ROUNDED / slip)
    if place is not None:
        raise InputError(
            f"{name}: gamma(v)/v and dgamma/dv are not of one gamma: at {float(speed[place]):.4g} m/s dgamma/dv is "
            f"{float(rise[place]):.6g} s/m, differences of v times gamma(v)/v say {_middle(sides, place):.6g}"
        )


def _slipping(response: Potential, speed: Tensor, slip: Tensor, name: str) -> Values:
    """Return gamma(v)/v and dgamma/dv at speeds; refuse results that are no tensors of the speeds' shape and dtype."""
    results = _result_of(lambda: response.slipping(speed, slip), f"{name} at speeds of shape {tuple(speed.shape)}")
    return _checked_results(results, speed, name, "gamma(v)/v and dgamma/dv")


# ---- shared --------------------------------------------------------------------------------------------------------


def _gaps_of_finite_values(response: Potential) -> tuple[float, ...]:
    """Return the gaps, over the tolerance, at which a law has to be finite."""
    return ABOVE_ZERO if response.feasible_only else (*BELOW_ZERO, *ABOVE_ZERO)


def _constants(response: Potential) -> tuple[Tensor, Tensor]:
    """Return stiffness and tolerance, each (B, 1), broadcast to the same number of robots."""
    stiffness, tolerance = torch.broadcast_tensors(_by_robot(response.stiffness), _by_robot(response.tolerance))
    return stiffness, tolerance


def _by_robot(constant: Tensor) -> Tensor:
    """Return a constant, () or (B, 1), as (1, 1) or (B, 1)."""
    return constant.detach().reshape(-1, 1)


def _first_wrong(derivative: Tensor, behind: Tensor, ahead: Tensor, rounded: Tensor) -> tuple[int, ...] | None:
    """Return the first index at which derivatives are off the differences to both sides; between these they are right.

    So a kink, where the differences disagree, is no error.
    """
    between, apart = 0.5 * (behind + ahead), 0.5 * (ahead - behind).abs()
    return _first(~((derivative - between).abs() <= OFF * between.abs() + apart + 10 * rounded))


def _middle(sides: tuple[Tensor, Tensor], place: tuple[int, ...]) -> float:
    """Return the central difference at an index."""
    return float(0.5 * (sides[0] + sides[1])[place])


def _first(wrong: Tensor) -> tuple[int, ...] | None:
    return tuple(wrong.nonzero()[0].tolist()) if bool(wrong.any()) else None
