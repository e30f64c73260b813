"""`State`: everything that changes in a step. `Control`: everything that a caller sets for a step."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import Any, Self, cast

import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_one_alone, refuse_other_kind, shape_or_kind
from torchdismech.records import field_names, replaced
from torchdismech.rows import finite_rows
from torchdismech.values import split, where_rows

__all__ = ["STATES", "BatchState", "Control", "State", "control_of", "running_robots", "tensor_fields"]


class BatchState:
    """Base of the states of all models: dataclasses of tensors with one row for each robot."""

    q: Tensor
    velocity: Tensor
    time: Tensor

    def __repr__(self) -> str:
        """Return the class, numbers of robots and dofs, times, dtype and device, but no further numbers."""
        robots, dofs = self.q.shape
        times = [f"{time:g}" for time in (self.time.aminmax() if robots else ())]
        at = f", t = {' to '.join(dict.fromkeys(times))} s" if times else ""
        of = f"{robots} robot{'s' * (robots != 1)} of {dofs} dofs"
        return f"{type(self).__name__}({of}{at}, {self.q.dtype} on {self.q.device})"

    @property
    def batch(self) -> int:
        """Number of robots."""
        return self.q.shape[0]

    def fields(self) -> tuple[Tensor, ...]:
        """Return the tensors that are set, in the fields' order: `state.with_fields(state.fields())` is a copy."""
        named, _ = _fields_of(type(self))
        return tuple([tensor for name in named if (tensor := getattr(self, name)) is not None])

    def with_fields(self, tensors: Iterable[Tensor]) -> Self:
        """Return a copy with all its tensors replaced by others, in the order of `fields`."""
        return self.replace(**dict(zip(tensor_fields(self), tensors, strict=True)))

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some fields changed."""
        return replaced(self, **changes)

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return a copy on another device or in another dtype, as `Tensor.to`."""
        return self.with_fields(tensor.to(*args, **kwargs) for tensor in self.fields())

    def detach(self) -> Self:
        """Return a copy with detached tensors."""
        return self.with_fields(tensor.detach() for tensor in self.fields())

    def clone(self) -> Self:
        """Return a copy with copies of its tensors."""
        return self.with_fields(tensor.clone() for tensor in self.fields())

    def rows(self, index: Tensor | slice | Sequence[int] | int) -> Self:
        """Return the robots that `index` selects (a mask, indices, a slice, or the number of one robot)."""
        one = isinstance(index, int) or getattr(index, "ndim", 1) == 0  # a number, also of NumPy or in a tensor
        chosen = [int(index)] if one else index  # type: ignore[arg-type]
        return self.with_fields(tensor[chosen] for tensor in self.fields())

    def split(self, size: int) -> list[Self]:
        """Return the states of chunks of `size` robots each, as `values.split` makes them."""
        parts = [split(tensor, size) for tensor in self.fields()]
        return [self.with_fields(fields) for fields in zip(*parts, strict=True)]

    @classmethod
    def joined(cls, parts: Sequence[Self]) -> Self:
        """Return the states of several batches as one batch; all have to be of one robot, with the same history."""
        refuse_one_alone("joined", parts, "states")
        for part in parts:
            refuse_other_kind("joined", part, BatchState, STATES)
        held = [getattr(part, "n_held", 0) for part in parts]
        said = [f"{type(part).__name__} of {part.q.shape[1]} dofs in {part.q.dtype}" for part in parts]
        if len({*zip(said, map(tensor_fields, parts), held, strict=True)}) != 1:
            got = ", ".join(
                f"{text}, {n} of its directions held" if n else text for text, n in zip(said, held, strict=True)
            )
            raise InputError(
                f"joined: expected one or more states of one kind and robot, got {got or 'none'}; "
                "integrator.started(state) gives a state the history of its rule"
            )
        return parts[0].with_fields(torch.cat(tensors) for tensors in zip(*(p.fields() for p in parts), strict=True))

    def check_like(self, dtype: torch.dtype, device: torch.device) -> None:
        """Refuse a state of no robots, and tensors of another dtype than the model's, or on another device."""
        if not self.batch:
            raise InputError(
                f"{type(self).__name__}: expected one robot at least, got none; a mask may have chosen none"
            )
        for name, tensor in zip(tensor_fields(self), self.fields(), strict=True):
            _refuse_unlike(type(self), name, tensor, dtype, device, "state")

    def merged(self, other: Self, take: Tensor) -> Self:
        """Return this state, with the rows of `other` where `take` (B,) is True."""
        pairs = zip(self.fields(), other.fields(), strict=True)
        return self.with_fields(where_rows(take, theirs, mine) for mine, theirs in pairs)


def tensor_fields(kind: BatchState | type[BatchState]) -> tuple[str, ...]:
    """Return the names of a state's tensors without those that are None; for a class, of all tensors it requires."""
    named, optional = _fields_of(kind if isinstance(kind, type) else type(kind))
    missing = [name for name in optional if getattr(kind, name) is None]
    return tuple([name for name in named if name not in missing]) if missing else named


STATES = "a state, such as model.initial_state()"
SHAPE, DTYPE, DEVICE = attrgetter("shape"), attrgetter("dtype"), attrgetter("device")


def control_of(given: object) -> Control:
    """Return the control that a caller passed, or an empty one for None; refuse anything else."""
    if given is None:
        return Control()
    if isinstance(given, Tensor):
        raise InputError("control: expected a Control, got Tensor: write Control(force=...), or what else it is to set")
    refuse_other_kind("control", given, Control, "a Control")
    return cast(Control, given)


def running_robots(state: BatchState, given: Tensor | None) -> Tensor:
    """Return the mask (B,) of robots to step: the given one, checked, or all robots for None.

    A `state` that is no state is refused, too, as it may have changed places with the model.
    """
    refuse_other_kind("state", state, BatchState, STATES)
    if given is None:
        return torch.ones(state.batch, dtype=torch.bool, device=state.q.device)
    if not isinstance(given, Tensor) or given.dtype != torch.bool or given.shape != (state.batch,):
        got = f"{tuple(given.shape)} of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__
        raise InputError(f"running: expected a tensor ({state.batch},) of bool, robots to step, got {got}")
    if given.device != state.q.device:
        raise InputError(f"running: expected it on {state.q.device}, as the state is, got {given.device}")
    return given


def _fields_of(kind: type[BatchState]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the names of a state class's tensors, and of those among them that may be None."""
    if kind not in _fields:
        fields: tuple[dataclasses.Field, ...] = dataclasses.fields(kind)  # type: ignore[arg-type]
        named = tuple(f.name for f in fields if f.metadata.get("tensor", True))
        _fields[kind] = named, tuple(f.name for f in fields if f.metadata.get("optional", False))
    return _fields[kind]


# by kind; not `functools.cache`, into which torch.compile does not look
_fields: dict[type[BatchState], tuple[tuple[str, ...], tuple[str, ...]]] = {}


@dataclass(frozen=True, repr=False, eq=False)
class State(BatchState):
    """Everything of B robots that changes in a step; a step is a pure function of it.

    A state is equal to itself alone, as are controls and reports of steps: compare their tensors.

    Attributes
    ----------
    q : (B, n) positions of the nodes [m], then the angles of the framed edges [rad], then the held tangents; n =
        3 N + A + 3 H. Framed edges are the E rod edges (twist), the sides of triangles at joints with rods (twist),
        with "midedge" bending the sides of triangles (angle of the mid-edge normal), and the held tangents (twist), one
        for each rod edge at a node that a clamp holds with a direction.
    velocity, acceleration : (B, n) [m/s, rad/s; m/s^2, rad/s^2].
    director, tangent : (B, A, 3) anchors of the reference frames: unit directors at unit tangents. The director at
        another tangent is the anchor, parallel transported.
    reference_twist : (B, S) twist of the reference frames at the springs at the anchors [rad], continuous in time.
    time : (B,) [s].
    n_held : number of held tangents H, an int.
    internal : (B, M) internal variables of materials with memory, see `Model.internal_variables`; None without such.
    """

    q: Tensor
    velocity: Tensor
    acceleration: Tensor
    director: Tensor
    tangent: Tensor
    reference_twist: Tensor
    time: Tensor
    n_held: int = field(default=0, kw_only=True, metadata={"tensor": False})
    internal: Tensor | None = field(default=None, kw_only=True, metadata={"optional": True})

    @staticmethod
    def of(state: State) -> State:
        """Return a plain `State` from one of a subclass, without the fields that a scheme has added (BDF2)."""
        return State(**{f.name: getattr(state, f.name) for f in dataclasses.fields(State)})

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return (self.q.shape[1] - self.director.shape[1]) // 3 - self.n_held

    @property
    def positions(self) -> Tensor:
        """Positions of the nodes (B, N, 3) [m]."""
        return self.q[:, : 3 * self.n_nodes].unflatten(1, (-1, 3))

    @property
    def node_velocities(self) -> Tensor:
        """Velocities of the nodes (B, N, 3) [m/s]."""
        return self.velocity[:, : 3 * self.n_nodes].unflatten(1, (-1, 3))

    @property
    def twist(self) -> Tensor:
        """Angles of the framed edges (B, A) [rad], those of the rods first."""
        first = 3 * self.n_nodes
        return self.q[:, first : first + self.director.shape[1]]

    @property
    def held_tangents(self) -> Tensor:
        """Directions (B, H, 3) in which clamps hold rods."""
        return self.q[:, self.q.shape[1] - 3 * self.n_held :].unflatten(1, (-1, 3))

    @property
    def kind(self) -> tuple:
        """Key by which states are alike: class, `n_held`, shapes, dtypes and devices; compared in each step."""
        tensors = self.fields()
        return type(self), self.n_held, *map(SHAPE, tensors), *map(DTYPE, tensors), *map(DEVICE, tensors)

    @torch.no_grad()
    def finite(self) -> Tensor:
        """Return for which robots (B,) all numbers are finite."""
        own = [self.time, self.q, self.velocity, self.acceleration, self.director, self.tangent, self.reference_twist]
        return finite_rows(own if self.internal is None else [*own, self.internal])


@dataclass(frozen=True, eq=False)
class Control:
    """What a caller sets for one step; None leaves the model's own value.

    Attributes
    ----------
    natural_curvature : (B, S, 2) kappa1, kappa2 of each spring, dimensionless (integrated over the Voronoi length).
        kappa1 above 0 bends a rod towards the directors m1 of its sections, kappa2 towards m2 = t x m1. Planar robots
        refuse the one out of their plane: kappa2, unless rods have directors of your own.
    natural_twist : (B, S) [rad]; above 0 sections turn about their tangents as a right-handed screw does.
    natural_hinge_angle : (B, H) [rad] of the edges between two triangles, for "hinge" and for "midedge" bending.
    natural_membrane_strain : (B, F, 3) Green's strains E11, E22, E12 at which triangles of continuum membranes are at
        rest, for example by growth.
    rest_length : (B, E) of the rod edges [m]. Bending stiffness and mass stay those of the length as built: what grows
        sets these, too (docs/questions.md, "How does a rod grow?").
    clamped_q : (B, n) values of the clamped dofs at the end of the step; those of free dofs are not read. For planar
        robots, dofs out of their plane (y of all nodes, angles of edges) stay as the state has them.
    pose : (B, C, 7) poses of the model's clamps, as rigid bodies, at the end of the step: position of the mean of its
        nodes [m], and rotation from rest as a unit quaternion (w, x, y, z). It takes precedence over `clamped_q`.
    force : (B, n) an additional force [N, N m]. A torque on an angle turns its edge about itself. Within a step it acts
        along the edge as this was at the start, which is right to first order in dt, and `modes` leaves out how it
        turns with the edge. `Static` repeats its search until the edge stays. `forces.PointMoment` leaves nothing out.
    values : tensors that replace constants of the model in this step, by their names in `model.places` (which
        `trainable.constants(model)` gives, too). Each has a row for each robot; for constants that are one number
        (B, 1), or () for all robots. For example {"Pressure.pressure": (B, 1)}. Tables over time cannot be set.
        An obstacle whose place is set jumps there: friction and the check of passing through see only the motion of a
        `contact.Path`.
    """

    natural_curvature: Tensor | None = None
    natural_twist: Tensor | None = None
    natural_hinge_angle: Tensor | None = None
    natural_membrane_strain: Tensor | None = None
    rest_length: Tensor | None = None
    clamped_q: Tensor | None = None
    pose: Tensor | None = None
    force: Tensor | None = None
    values: Mapping[str, Tensor] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values is None:  # as the other fields: the model's own
            object.__setattr__(self, "values", {})  # type: ignore[unreachable]
        elif not isinstance(self.values, dict):
            refuse_other_kind("Control.values", self.values, Mapping, "tensors by the names of constants, a dict")
        _refuse_other_than_tensors(self.tensors())

    def __repr__(self) -> str:
        """Return the names of what is set, with the shapes of the tensors in place of their numbers."""
        given = [f"{name}={shape_or_kind(value)}" for name, value in self.tensors().items()]
        values = ", ".join(f"{name!r}: {shape_or_kind(value)}" for name, value in self.values.items())
        return f"Control({', '.join([*given, *([f'values={{{values}}}'] if values else [])])})"

    def replace(self, **changes: Any) -> Control:
        """Return a copy with some fields changed."""
        own = vars(self)
        fields = {name: own[name] for name in field_names(self)}
        # faster than `dataclasses.replace`, as `records.replaced` is; unchanged fields were checked before
        if (
            not isinstance(changes.get("values", self.values), dict)
            or not changes.keys() <= fields.keys()
            or torch.compiler.is_compiling()
        ):
            return dataclasses.replace(self, **changes)
        copy = object.__new__(type(self))
        vars(copy).update(fields, **changes)
        _refuse_other_than_tensors({name: given for name, given in copy.tensors().items() if name in changes})
        return copy

    def without_values(self) -> Control:
        """Return the control without `values`, for use while these stand in the model."""
        return self.replace(values={}) if self.values else self

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Control:
        """Return a control with these tensors as its fields."""
        return cls(**tensors)  # type: ignore[arg-type]

    def tensors(self) -> Mapping[str, Tensor]:
        """Return the fields that are set, by name, without `values`."""
        return self._fields_set

    @cached_property
    def _fields_set(self) -> Mapping[str, Tensor]:
        own = vars(self)
        return {name: own[name] for name in field_names(self) if own[name] is not None and name != "values"}

    def not_finite(self, rows: Tensor, time: Tensor, clamped: Tensor | None = None) -> str | None:
        """Return a sentence on a number that is not finite, of robots in the mask `rows` (B,); None without any.

        Parameters
        ----------
        time : (B,) at which the control is given [s], for the sentence.
        clamped : the dofs of which `clamped_q` is read; None: all.
        """
        for name, value in {**self.tensors(), **{f"values[{k!r}]": v for k, v in self.values.items()}}.items():
            if name == "clamped_q" and clamped is not None:
                value = value[:, clamped]
            finite = torch.isfinite(value)
            finite = finite.flatten(1).all(1) if finite.dim() > 1 else finite.all()
            off = ~finite.expand(len(rows)) & rows
            if bool(off.any()):
                robot = int(off.nonzero()[0])
                of_robot = value[robot % len(value)] if value.dim() else value
                what = "NaN" if bool(of_robot.isnan().any()) else "an infinite number"
                return (
                    f"Control.{name} of robot {robot} at t = {float(time[robot]):g} s holds {what}: look at what makes "
                    "it, a schedule, a controller or its network"
                )
        return None

    def rows(self, index: Tensor | slice | Sequence[int]) -> Control:
        """Return the control of the robots that `index` selects."""
        values = {name: value[index] if value.dim() else value for name, value in self.values.items()}
        return Control.of({name: value[index] for name, value in self.tensors().items()}).replace(values=values)

    def split(self, size: int, count: int) -> list[Control]:
        """Return the controls of `count` chunks of `size` robots each (see `values.split`), without `values`."""
        parts = {name: split(value, size) for name, value in self.tensors().items()}
        return [Control.of({name: of_parts[k] for name, of_parts in parts.items()}) for k in range(count)]

    @property
    def kind(self) -> tuple:
        """Key by which two controls are alike: the fields that are set, shapes, dtypes, devices and `requires_grad`."""
        named = self.tensors()
        tensors = named.values()
        what = (SHAPE, DTYPE, DEVICE, attrgetter("requires_grad"))
        return (*named, *(get(tensor) for tensor in tensors for get in what))

    def check(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype, device: torch.device) -> None:
        """Refuse tensors of another shape, dtype or device than expected."""
        for name, value in self.tensors().items():
            if tuple(value.shape) != shapes[name]:
                raise InputError(f"Control.{name}: expected shape {shapes[name]}, got {tuple(value.shape)}")
            _refuse_unlike(Control, name, value, dtype, device, name)

    def check_numbers(self) -> None:
        """Refuse rest lengths that are not above 0."""
        if self.rest_length is not None and bool((self.rest_length <= 0).any()):
            raise InputError(f"Control.rest_length: expected more than 0, got {float(self.rest_length.min()):g}")


def _refuse_unlike(kind: type, name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device, whole: str) -> None:
    """Refuse a field of another dtype than the model's, or on another device; messages say to convert `whole`."""
    if tensor.dtype != dtype:
        expected, got, to = f"{dtype}", f"{tensor.dtype}", f"{dtype}"
    elif tensor.device != device:
        expected, got, to = f"it on {device}", f"{tensor.device}", repr(str(device))
    else:
        return
    raise InputError(f"{kind.__name__}.{name}: expected {expected}, as the model is, got {got}; take {whole}.to({to})")


def _refuse_other_than_tensors(fields: Mapping[str, object]) -> None:
    """Refuse fields of a control that are no tensors."""
    for name, value in fields.items():
        if not isinstance(value, Tensor):
            refuse_other_kind(f"Control.{name}", value, Tensor, "a tensor with a row for each robot")
