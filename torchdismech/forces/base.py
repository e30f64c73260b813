"""The hook for external forces."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, refuse_trained, truth
from torchdismech.forces.dependence import Block, Derivatives, DerivativesByAutograd
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import numbers, refuse_no_robots

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

# Of a time: by how much it may be off what it is meant to be, as it is a sum of steps. In double precision N steps
# amount to less than N 1e-16, so these are enough for 10 million steps, and less than one of a thousand million.
ROUNDING = {torch.float64: 1e-9, torch.float32: 3e-5}
# Of what is between two moments, a step at least: no more than this, as a run may begin late and have tiny steps
PART = {torch.float64: 1e-3, torch.float32: 0.1}


class Force(nn.Module):
    """An external force F(state, control).

    A subclass writes `forward`. What the force depends on is then found when the model is built, at trial states: what
    is up to 2 edges away if that is all, else every dof. Its derivatives come from autograd, and the force is implicit
    in every integrator. They take three backward passes for each of some groups of nodes in every Newton iteration, see
    `Dependence`; `LocalForce` says how far a force on nodes reaches, and `blocks` and `derivatives` in closed form are
    several times as fast.

    Parameters
    ----------
    explicit : evaluate the force once at the start of the step and hold it. Then it needs no derivatives; large time
        steps may become unstable.

    Attributes
    ----------
    constant : whether the force does not change within a step: it may with time and control, not with position and
        velocity. It then needs no derivatives.
    symmetric : whether the derivatives by position and by velocity are symmetric matrices, as those of conservative
        forces are. If those of all forces are, the matrix of a step takes half the memory and time.
    conservative : whether the force changes with position alone and has a `potential`, which robust solvers descend.
    drag : whether the force is a function of velocity alone, none where nothing moves: equilibria do not feel it.
    compiles : whether `forward` and `derivatives`, which have to be in closed form, may be part of a compiled step:
        they are nothing but operations on tensors of the state and of the force, and look at no number.
    records : whether a recording of steps (a tape on a CPU, a CUDA graph on a GPU) may hold a force of one's own; one
        robot then takes a fifth of the time, and less in runs, as nothing is asked of it between two steps. On a GPU
        that is for forces that change within a step. Its Python runs in the first steps of a run
        and is replayed from then on, until something changes that a look at the force shows: numbers, strings, tuples
        and functions in its attributes, `training`, hooks, modules, buffers that are others. Numbers of parameters may
        change at any time. `forward` and `derivatives` then read nothing else that changes (lists, globals, files),
        and wait for no number of a tensor. A subclass says so itself, as it may read more. Without, steps go call
        by call. See `integrate.recorded.declared`.
    by_stencils : whether a conservative force is a sum over stencils, as elastic terms are. Steps then evaluate its
        `term` (an `ElasticTerm`) with `term_constants` along with these, not `forward`: see `magnetics.Magnetic`.
    """

    constant = False
    conservative = False
    drag = False
    compiles = False
    records = False
    by_stencils = False
    per_robot: tuple[str, ...] = ()  # names of parameters and buffers that may have a leading robot dimension
    not_negative: tuple[str, ...] = ()  # names of those that a step refuses below zero
    body: Body
    dependence: DerivativesByAutograd | None  # of forces whose derivatives come from autograd

    def __init__(self, explicit: bool = False):
        super().__init__()
        self.explicit = truth(explicit, f"{type(self).__name__}.explicit")
        self.dependence = None

    def bind(self, body: Body) -> None:
        """Learn the robot that the force acts on; called once, when the model is made."""
        if hasattr(self, "body"):
            raise InputError(f"{type(self).__name__}: belongs to another model already; make a new one for each model")
        self.body = body

    def learn_free(self, free: np.ndarray) -> None:
        """Learn which dofs (n,) of the robot are free, after `bind`: a force may have a potential in some robots alone.

        Nothing is to be done for those that have one in all robots, or in none.
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
        """Whether the derivatives are written, and do not come from autograd."""
        written = [getattr(type(self), name) is not getattr(Force, name) for name in ("blocks", "derivatives")]
        if any(written) and not all(written):
            missing = "derivatives" if written[0] else "blocks"
            raise InputError(f"{type(self).__name__}: blocks and derivatives go together, but there is no {missing}")
        return all(written)

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n) [N; N m on twist angles].

        `state.director` and `state.tangent` are anchors: transport them to the current tangents before use; they,
        `state.reference_twist` and `state.acceleration` are those of the start of the step.
        """
        raise TypeError(f"{type(self).__name__} has to define forward(state, control)")

    def blocks(self) -> list[Block]:
        """Return where the derivatives stand."""
        return [] if self.dependence is None else self.dependence.blocks()

    def derivative_count(self) -> int:
        """Return how many numbers its derivatives by position are while they are made."""
        return sum(block.rows.size * block.cols.shape[1] for block in self.blocks())

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return for each of `blocks` (dF/dq, dF/dvelocity), each (B, S, r, c) or None for zero."""
        return [] if self.dependence is None else self.dependence.derivatives(self, state, control)

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the force and its derivatives, which autograd does not follow.

        For a force that finds both at once this is the place to say so.
        """
        with torch.no_grad():
            derivatives = self.derivatives(state, control)
        return self(state, control), derivatives

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the potential (B,) of a `conservative` force [J]: its gradient by position is minus the force."""
        raise TypeError(f"{type(self).__name__} is conservative: it has to define potential(state, control)")


def number(value, what: str) -> Tensor:
    """Return a parameter as a tensor in float64 (tensors of floats keep their dtype).

    Refused is what is trained, not finite, or no numbers.
    """
    refuse_trained(value, what)
    tensor = numbers(value, what)
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
    """Return a parameter that is one vector, (3,) or (B, 3); `hint` ends what is said of other shapes."""
    tensor = number(value, what)
    if tensor.shape[-1:] != (3,) or tensor.dim() > 2:
        raise InputError(f"{what}: expected shape (3,) or (B, 3), got {tuple(tensor.shape)}{hint}")
    return tensor


def vector_on_each(value, what: str, hint: str = "") -> tuple[Tensor, bool]:
    """Return a vector that acts on each of some places alike, (3,) or (B, 3), and whether it came as (B, 1, 3)."""
    tensor = number(value, what)
    of_robots = tensor.dim() == 3 and tensor.shape[1] == 1
    return vector(tensor[:, 0] if of_robots else tensor, what, hint), of_robots


def refuse_unclear(load: Tensor, count: int, place: str, what: str, one_of_each: str) -> None:
    """Refuse a load (k, 3) on k places of a kind, which may be meant as one of each place or as one of each robot.

    Parameters
    ----------
    place : what it acts on, a word such as "node".
    one_of_each : how a load of each place is written.
    """
    if count > 1 and load.shape == (count, 3):
        raise InputError(
            f"{what}: shape ({count}, 3) for {count} {place}s may mean a vector of each {place} or of each robot. Of "
            f"each robot, the same on all {place}s, is shape ({count}, 1, 3), {what.split('.')[1]}[:, None]; of each "
            f"{place} is {one_of_each}"
        )


def refuse_no_rods(body: Body, what: str, instead: str = "add a rod to it") -> None:
    """Refuse a robot without rods for a force that acts on these."""
    if not body.n_edges:
        raise InputError(f"{what}: acts on the edges of rods, and the robot has none; {instead}")


class Timed:
    """What forces have in common that act from a start to a stop [s] alone.

    Raises
    ------
    InputError
        The start is not before the stop.
    """

    start: float
    stop: float

    def act_between(self, start: float, stop: float) -> None:
        """Learn when the force acts."""
        if not start < stop:
            raise InputError(f"{type(self).__name__}: start has to be before stop, got start={start}, stop={stop}")
        self.start, self.stop = float(start), float(stop)

    def on(self, time: Tensor) -> Tensor:
        """Return where (B,) the force acts at the times (B,) [s], see `acting`."""
        return acting(time, self.start, self.stop)


def acting(time: Tensor, start: float | Tensor, stop: float | Tensor) -> Tensor:
    """Return where (B,) the times are in start < t <= stop, or start <= t <= stop where start is 0.

    Open at the start, so that an implicit Euler step, which sees a force at its end, feels it for exactly
    (stop - start) / dt steps. In double precision that is so for 10 million steps from 0 on, be they of seconds or of
    nanoseconds, and for those that a run takes around a load of up to 1,000 steps at any time that tells them apart. In
    single precision time, which is a sum of steps, drifts: by a tenth of a step of 1 ms after some 4,000 of them,
    10,000 take half a step. So there the interval begins and ends 3e-5 t later, more than what the drift is up to then,
    and the count may be off by one beyond it.

    States begin at the time 0. What starts there acts there, too: on equilibria, and on accelerations to begin with.
    """
    span = stop - start
    past = time - time_rounding(time, span)
    if isinstance(start, Tensor):
        begun = torch.where(start == 0, _from_zero_on(time, span), past > start)
    else:
        begun = _from_zero_on(time, span) if start == 0 else past > start
    return begun & (past <= stop)


def _from_zero_on(time: Tensor, span: float | Tensor) -> Tensor:
    """Return which times (B,) are 0 or later; runs may come from times before, whose sums end beside 0."""
    unit = span.clamp_max(1.0) if isinstance(span, Tensor) else min(span, 1.0)
    return time >= -ROUNDING[time.dtype] * unit


def time_rounding(time: Tensor, between: float | Tensor) -> Tensor:
    """Return by how much (B,) [s] the times (B,), which are sums of steps, may be past a moment that they meet.

    Parameters
    ----------
    between : time [s] between this moment and the next one, of one step or more.
    """
    return (ROUNDING[time.dtype] * time.abs()).clamp_max(PART[time.dtype] * between)
