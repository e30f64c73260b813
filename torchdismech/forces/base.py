"""Force: the base class of external forces; checks of their parameters, and when timed loads act."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, real_number, refuse_trained, truth
from torchdismech.forces.dependence import Block, Dependence, Derivatives
from torchdismech.robot.body import Body, OnBody
from torchdismech.robot.state import Control, State
from torchdismech.values import constants_in_words, numbers, refuse_no_robots

if TYPE_CHECKING:
    from torchdismech.forces.pairs import PairDependence

__all__ = [
    "Force",
    "Timed",
    "acting",
    "number",
    "refuse_below_zero",
    "refuse_no_rods",
    "refuse_unclear",
    "scalar",
    "time_rounding",
    "vector",
    "vector_on_each",
]

# Relative tolerance on times, which are sums of time steps and so have rounding errors. In double precision N steps add
# up to a relative error below N 1e-16: 1e-9 covers 10 million steps, and is less than one step of a thousand million.
TIME_ROUNDING = {torch.float64: 1e-9, torch.float32: 3e-5}
# Upper bound on that tolerance as a fraction of the time between two moments (a step or more), since late in a run with
# tiny steps the relative one may exceed a step.
MAX_TIME_TOLERANCE = {torch.float64: 1e-3, torch.float32: 0.1}


class Force(OnBody):
    """An external force F(state, control).

    A subclass has to define `forward` only. Its derivatives then come from autograd, and the force is implicit in every
    integrator. On which dofs it depends is found by trials when the model is built: nodes up to 2 edges away if that is
    all, else every dof. The derivatives take three backward passes for each of some groups of nodes in every Newton
    iteration, see `Dependence`. A `LocalForce` states how far a force on nodes reaches; `blocks` and `derivatives`
    written in closed form are several times as fast.

    Parameters
    ----------
    explicit : evaluate the force once at the start of the step and hold it. Then it needs no derivatives, but large
        time steps may become unstable.

    Attributes
    ----------
    constant : whether the force does not change within a step: it may depend on time and control, but not on position
        and velocity. It then needs no derivatives.
    symmetric : whether the derivatives by position and by velocity are symmetric matrices, as those of conservative
        forces are. If those of all forces are, the matrix of a step takes half the memory and time.
    conservative : whether the force depends on position alone and has a `potential`, which robust solvers descend.
    drag : whether the force is a function of velocity alone that is zero at rest, so that it does not act in
        equilibria. If it defines `rayleigh`, steps in time that buckle descend a potential in spite of it.
    compiles : whether `forward` and `derivatives`, which have to be in closed form, may be part of a compiled step:
        they consist of operations on tensors of the state and of the force only, and read no number out of a tensor.
    records : whether a user's force may be part of recorded steps (a tape on a CPU; a CUDA graph on a GPU, for forces
        that change within a step). One robot then takes a fifth of the time, and less in runs, as no Python runs
        between two steps. The force's Python runs in the first steps of a run; after that its operations are replayed,
        until a check notices a change: of numbers, strings, tuples and functions in its attributes, of `training`,
        hooks or modules, or another buffer in place of one. Values of parameters may change at any time. `forward` and
        `derivatives` must not read anything else that changes (lists, globals, files), nor read a number out of a
        tensor. Each subclass has to set this for itself, as it may read more than its base class. Without it, steps are
        not recorded. See `integrate.recorded.declared`.
    by_stencils : whether a conservative force is a sum over stencils, like an elastic term. Steps then evaluate its
        `term` (an `ElasticTerm`) and `term_constants` along with the elastic terms, instead of `forward`; see
        `magnetics.Magnetic`.
    """

    constant = False
    conservative = False
    drag = False
    compiles = False
    records = False
    by_stencils = False
    per_robot: tuple[str, ...] = ()  # names of parameters and buffers that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of those that a step refuses below zero
    dependence: Dependence | PairDependence | None  # for forces whose derivatives come from autograd, else None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "varies" in vars(cls):
            raise InputError(
                f"{cls.__name__}.varies: follows from `constant` and `explicit`; steps would leave out a force that "
                "says otherwise. Set `constant = True` for a force that does not change within a step"
            )

    def __init__(self, explicit: bool = False):
        super().__init__()
        self.explicit = truth(explicit, f"{type(self).__name__}.explicit")
        self.dependence = None

    def extra_repr(self) -> str:
        """Return the constants for print."""
        return constants_in_words(self)

    def bind(self, body: Body) -> None:
        """Store the robot that the force acts on; called once, when the model is made."""
        if hasattr(self, "body"):
            raise InputError(
                f"{type(self).__name__}: belongs to another model already; make a new one for each model, "
                "and take over what was learned by new.load_state_dict(old.state_dict())"
            )
        self.body = body

    def learn_free(self, free: np.ndarray) -> None:
        """Take note of which dofs (n,) are free; called after `bind`.

        For forces that are conservative in some robots only, depending on what is clamped; others ignore it.
        """

    @property
    def symmetric(self) -> bool:
        """Whether the derivatives by position and by velocity are symmetric matrices."""
        return self.conservative

    @property
    def varies(self) -> bool:
        """Whether the force changes within a step, with position or velocity."""
        return not (self.explicit or self.constant)

    @property
    def closed_form(self) -> bool:
        """Whether the class defines `blocks` and `derivatives`, so that derivatives do not come from autograd."""
        written = [getattr(type(self), name) is not getattr(Force, name) for name in ("blocks", "derivatives")]
        if any(written) and not all(written):
            missing = "derivatives" if written[0] else "blocks"
            raise InputError(f"{type(self).__name__}: blocks and derivatives go together, but there is no {missing}")
        return all(written)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n) [N; N m on twist angles].

        `state.director` and `state.tangent` are anchors: transport them to the current tangents before use. They,
        `state.reference_twist` and `state.acceleration` belong to the start of the step, q and velocity do not.
        """
        raise TypeError(f"{type(self).__name__} has to define forward(state, control)")

    def blocks(self) -> list[Block]:
        """Return the dof indices of the blocks in which the derivatives are given."""
        return [] if self.dependence is None else self.dependence.blocks()

    def derivative_count(self) -> int:
        """Return the number of entries per robot of the derivatives by position, for estimates of memory."""
        return sum(block.rows.size * block.cols.shape[1] for block in self.blocks())

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return for each of `blocks` (dF/dq, dF/dvelocity), each (B, S, r, c) or None for zero."""
        return [] if self.dependence is None else self.dependence.derivatives(self, state, control)

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the force, with gradients where autograd records, and its derivatives without gradients.

        Where autograd finds the derivatives, both come from one evaluation. Forces that can compute both together
        faster override it.
        """
        if type(self).derivatives is Force.derivatives and isinstance(self.dependence, Dependence):
            return self.dependence.with_derivatives(self, state, control)
        with torch.no_grad():
            derivatives = self.derivatives(state, control)
        return self(state, control), derivatives

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the potential (B,) of a `conservative` force [J]: its gradient by position is minus the force."""
        raise TypeError(f"{type(self).__name__} is conservative: it has to define potential(state, control)")

    def rayleigh(self, state: State, control: Control) -> Tensor:
        """Return Rayleigh's function (B,) of a `drag` [W]: its gradient by velocity is minus the force."""
        raise TypeError(f"{type(self).__name__} does not define rayleigh(state, control)")

    @property
    def has_rayleigh(self) -> bool:
        """Whether this is a drag that defines `rayleigh`."""
        return self.drag and type(self).rayleigh is not Force.rayleigh


def number(value, what: str) -> Tensor:
    """Return a parameter as a tensor of its own in float64 (tensors of floats keep their dtype).

    A tensor that requires gradients, numbers that are not finite, and what is no number are refused.
    """
    refuse_trained(value, what)
    tensor = numbers(value, what).clone()
    refuse_no_robots(tensor, what)
    if not torch.isfinite(tensor).all():
        raise InputError(f"{what}: expected finite numbers, got {value}")
    return tensor


def scalar(value, what: str, from_zero: bool = False) -> Tensor:
    """Return a parameter that is one number, () or (B, 1); `from_zero` refuses numbers below zero."""
    tensor = number(value, what)
    if tensor.dim() and tensor.shape[1:] != (1,):
        raise InputError(
            f"{what}: expected one number, or one of each robot with shape (B, 1), got {tuple(tensor.shape)}"
        )
    if from_zero:
        refuse_below_zero(tensor, what)
    return tensor


def refuse_below_zero(tensor: Tensor, what: str) -> None:
    """Refuse numbers below zero."""
    if bool((tensor < 0).any()):
        raise InputError(f"{what}: expected 0 or more, got {float(tensor.min()):g}")


def vector(value, what: str, hint: str = "") -> Tensor:
    """Return a parameter that is one vector, (3,) or (B, 3); `hint` is appended to the message about other shapes."""
    tensor = number(value, what)
    if tensor.shape[-1:] != (3,) or tensor.dim() > 2:
        raise InputError(f"{what}: expected shape (3,) or (B, 3), got {tuple(tensor.shape)}{hint}")
    return tensor


def vector_on_each(value, what: str, hint: str = "") -> tuple[Tensor, bool]:
    """Return a vector for all places of a load as (3,) or (B, 3), and whether it was given as (B, 1, 3)."""
    tensor = number(value, what)
    of_robots = tensor.dim() == 3 and tensor.shape[1] == 1
    return vector(tensor[:, 0] if of_robots else tensor, what, hint), of_robots


def refuse_unclear(load: Tensor, count: int, place: str, what: str, one_of_each: str) -> None:
    """Refuse a load (k, 3) on k places: it could mean a vector for each place, or one for each of k robots.

    Parameters
    ----------
    count : k.
    place : word for a place, such as "node".
    what : name of the parameter, for the message.
    one_of_each : how to give a vector for each place, for the message.
    """
    if count > 1 and load.shape == (count, 3):
        raise InputError(
            f"{what}: shape ({count}, 3) for {count} {place}s may mean a vector of each {place} or of each robot. Of "
            f"each robot, the same on all {place}s, is shape ({count}, 1, 3), {what.split('.')[1]}[:, None]; of each "
            f"{place} is {one_of_each}"
        )


def refuse_no_rods(body: Body, what: str, instead: str = "add a rod to it") -> None:
    """Refuse a robot without rods for a force that acts on rods."""
    if not body.n_edges:
        raise InputError(f"{what}: acts on the edges of rods, and the robot has none; {instead}")


class Timed:
    """Mixin for forces that act between the times `start` and `stop` [s] only.

    Raises
    ------
    InputError
        The start is not before the stop.
    """

    start: float
    stop: float

    def act_between(self, start: float, stop: float) -> None:
        """Set the times [s] between which the force acts."""
        start, stop = (real_number(t, f"{type(self).__name__}.{n}") for n, t in (("start", start), ("stop", stop)))
        if not start < stop:
            raise InputError(f"{type(self).__name__}: start has to be before stop, got start={start}, stop={stop}")
        self.start, self.stop = start, stop

    def on(self, time: Tensor) -> Tensor:
        """Return a mask (B,) of the robots on which the force acts at their times (B,) [s], see `acting`."""
        return acting(time, self.start, self.stop)


def acting(time: Tensor, start: float | Tensor, stop: float | Tensor) -> Tensor:
    """Return a mask (B,) of the times with start < t <= stop, or start <= t <= stop where start is 0.

    The interval is open at its start, so that implicit Euler steps, which evaluate a force at their end, apply it in
    exactly (stop - start) / dt steps. In double precision this holds for 10 million steps from 0 on, of whatever
    length, and later in a run for loads of up to 1,000 steps, as long as times can be told apart. In single precision
    time, a sum of steps, drifts: after some 4,000 steps of 1 ms by a tenth of a step, after 10,000 by half a step. So
    there the interval begins and ends later by 3e-5 t, which exceeds the drift up to then; beyond, the number of steps
    may be off by one.

    States begin at time 0. A force that starts at 0 acts at 0, too: in equilibria and in initial accelerations.
    """
    span = stop - start
    past = time - time_rounding(time, span)
    if isinstance(start, Tensor):
        begun = torch.where(start == 0, _from_zero_on(time, span), past > start)
    else:
        begun = _from_zero_on(time, span) if start == 0 else past > start
    return begun & (past <= stop)


def _from_zero_on(time: Tensor, span: float | Tensor) -> Tensor:
    """Return a mask of the times (B,) that are 0 or later, with a tolerance for runs that began at negative times."""
    unit = span.clamp_max(1.0) if isinstance(span, Tensor) else min(span, 1.0)
    return time >= -TIME_ROUNDING[time.dtype] * unit


def time_rounding(time: Tensor, between: float | Tensor) -> Tensor:
    """Return the tolerance (B,) [s] on times (B,) compared with a given moment, as times are sums of rounded steps.

    Parameters
    ----------
    between : time [s] from this moment to the next one, a step or more; bounds the tolerance.
    """
    return (TIME_ROUNDING[time.dtype] * time.abs()).clamp_max(MAX_TIME_TOLERANCE[time.dtype] * between)
