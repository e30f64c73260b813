"""Kinds of actions: each turns its numbers of an action into a part of the control of a step."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.actuation import Tendons
from torchdismech.control.elements import can_change
from torchdismech.elastic.natural import natural_strain, refuse_curvatures_without_angles
from torchdismech.errors import InputError, check_choice, real_number, refuse_one_alone, refuse_other_kind, whole_number
from torchdismech.geometry.checks import distinct_indices
from torchdismech.model import Model
from torchdismech.model.initial import trial_state
from torchdismech.model.planar import ELSE_IN_SPACE, NO_EFFECT
from torchdismech.robot.state import Control, State
from torchdismech.values import Values, numbers, refuse_out_of_bounds, refuse_table, row_of

__all__ = [
    "Action",
    "Actuator",
    "Constant",
    "Force",
    "Held",
    "controlled",
    "refuse_hidden",
    "refuse_no_length",
    "refuse_no_numbers",
    "refuse_without_effect",
]

# the strains whose natural values a field of `Control` holds, in the order of the rows of an `Actuator` matrix
FIELDS = {
    "natural_curvature": ("kappa1", "kappa2"),
    "natural_twist": ("twist",),
    "natural_hinge_angle": ("hinge_angle",),
    "rest_length": ("stretch",),
}


class Action(ABC):
    """A part of an action: `count` numbers, each between two bounds, and what they do to the control of a step.

    One of your own sets `low`, `high` and `count`, as attributes of its class or in its constructor, and defines
    `added`; `check` may refuse models that it does not fit.

    Attributes
    ----------
    low, high, count : bounds and number of the numbers.
    holds : whether the control is the same in all steps of an action. If so for all actions of a task, several steps
        may be taken at once, with `added` called once, which halves the time for a single robot. A class that defines
        `added` has to set `holds` itself; without that it is False, and `added` is called at each step.
    """

    low: float
    high: float
    count: int
    holds: bool = False

    def __init_subclass__(cls) -> None:
        if "added" in vars(cls) and "holds" not in vars(cls):
            cls.holds = False  # not inherited: it was said of another `added`
        super().__init_subclass__()

    def _bound(self, name: str, low: float, high: float) -> None:
        self.low, self.high = real_number(low, f"{name}: low"), real_number(high, f"{name}: high")
        if not self.low < self.high:
            raise InputError(f"{name}: expected low < high, got {low} and {high}")

    def check(self, model: Model) -> None:  # noqa: B027 - by default there is nothing to refuse
        """Refuse a model that this action does not fit; by default any is accepted."""

    @abstractmethod
    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control of a step from a state with the effect of the numbers (B, count) added.

        During the call the model holds the tensors of `Control.values`, such as constants drawn for an episode; they
        have to stay in the control. Unless the action `holds`, this is called at each step of an action, so that the
        numbers may describe something that changes over the steps, such as a travelling wave: `state.time` (B,) [s] is
        the time at the beginning of the step.
        """


class Actuator(Action):
    """Natural strains: each number adds a multiple of a pattern of strains to the model's natural strains.

    Several actuators add up. Where a `Constant` sets the same strain, they add to that in place of the model's.

    Parameters
    ----------
    field : of `Control`: "natural_curvature" (numbers of all kappa1, then of all kappa2), "natural_twist",
        "natural_hinge_angle" or "rest_length".
    matrix : (elements of the field, count) a column for each number: what it adds at 1, in the field's units.
    low, high : bounds of the numbers.

    Raises
    ------
    InputError
        Another field; a matrix of another shape or with numbers that are not finite. When an environment is made:
        strains that its robots do not have, another number of rows, a column that changes no strain, bounds within
        which some rest length is zero or less, by itself or together with the task's other actions.
    """

    holds = True

    def __init__(self, field: str, matrix: Tensor, low: float = -1.0, high: float = 1.0):
        check_choice("Actuator: field", field, FIELDS)
        matrix = numbers(matrix, "Actuator: matrix")
        if not bool(torch.isfinite(matrix.detach()).all()):
            raise InputError(f"Actuator: matrix: expected finite numbers, got {matrix}")
        if matrix.dim() != 2 or not matrix.shape[1]:
            raise InputError(f"Actuator: matrix: expected (elements, numbers), got shape {tuple(matrix.shape)}")
        self._bound(f"Actuator({field})", low, high)
        self.field, self.matrix, self.count = field, matrix, matrix.shape[1]

    def check(self, model: Model) -> None:
        """Refuse models without such strains, another number of the matrix's rows, columns that change no strain."""
        natural = natural_strain(self.field, model.body, model.terms, model.batch or 1)
        if natural is None:
            raise InputError(f"Actuator: this robot has no {self.field}")
        if self.field == "natural_hinge_angle":
            refuse_curvatures_without_angles(model.body, model.terms)
        if len(self.matrix) != natural[0].numel():
            raise InputError(
                f"Actuator({self.field}): matrix: expected {natural[0].numel()} rows, got {len(self.matrix)}: one for "
                "each element, of curvature one for kappa1 and one for kappa2 of each spring"
            )
        changes = np.concatenate([can_change(model, name) for name in FIELDS[self.field]])
        idle = ~(self.matrix.detach().cpu().numpy() != 0)[changes].any(0)
        if idle.any():
            raise InputError(
                f"Actuator({self.field}): matrix: column {int(np.flatnonzero(idle)[0])} changes no strain: it is "
                "zero, or acts where all is clamped, or out of a planar robot's plane, or twists one; leave it out"
            )

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with natural strains added to those that it sets, else to the model's."""
        natural = getattr(control, self.field)
        if natural is None:
            natural = natural_strain(self.field, model.body, model.terms, state.batch)
        change = numbers.to(natural) @ self.matrix.to(natural).t()
        if natural.dim() == 3:
            change = change.view(natural.mT.shape).mT
        return control.replace(**{self.field: natural + change})


class Constant(Action):
    """A constant of the model, by its name in `model.places`: a pressure, a field, the speed of a fluid.

    Parameters
    ----------
    name : of the constant.
    low, high : bounds of its value, in its units.
    count : number of its entries: 1 for a number, 3 for a vector, one for each of several tendons in one force; those
        of a matrix are given row by row.

    Raises
    ------
    InputError
        Bounds in the wrong order. When an environment is made: a name or a count that is not that of a constant of its
        robots, a table over time, bounds that allow values which steps refuse, such as a negative tension, and sizes of
        the body on which no force depends, or stiffnesses out of the plane of a planar robot.
    """

    holds = True

    def __init__(self, name: str, low: float, high: float, count: int = 1):
        self._bound(f"Constant({name})", low, high)
        self.name, self.count = name, count

    def check(self, model: Model) -> None:
        """Refuse a name that the model does not have, another count of entries, and bounds that steps refuse."""
        if self.name not in model.places:
            raise InputError(f"Constant: no constant {self.name!r}; there are: {', '.join(sorted(model.places))}")
        refuse_table(f"Constant({self.name})", model.places[self.name])
        entries = math.prod(row_of(model.places[self.name]))
        if entries != self.count:
            raise InputError(
                f"Constant({self.name}): count = {self.count}, but it has {entries} numbers here; give count={entries}"
            )
        refuse_without_effect(f"Constant({self.name})", model, [self.name])
        place = model.places[self.name]
        for name, bound in (("low", self.low), ("high", self.high)):
            value = getattr(*place).new_tensor(bound)
            refuse_out_of_bounds(f"Constant({self.name}): {name}", place, value, {})
        force, attribute = place
        tendons = force if isinstance(force, Tendons) and attribute == "pull" else None
        if tendons is not None and (problem := tendons.problem_of_pull(torch.tensor(self.high, device="cpu"))):
            raise InputError(f"Constant({self.name}): high: {problem}")

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the constant set."""
        value = numbers.to(state.q).unflatten(1, row_of(model.places[self.name]))
        return control.replace(values={**control.values, self.name: value})


class _OnDofs(Action):
    """An action with a number for each of some dofs."""

    def __init__(self, dofs: Sequence[int], low: float, high: float):
        name = type(self).__name__
        self._bound(name, low, high)
        self.dofs = _listed(f"{name}: dofs", dofs)
        self.count = len(self.dofs)


class Held(_OnDofs):
    """Displacements of clamped dofs from their rest positions; all others stay where they are.

    Parameters
    ----------
    dofs : indices into q, each once, also among all `Held` of a task; they have to be clamped, and in the plane of
        planar robots.
    low, high : bounds of the displacements [m or rad].
    """

    holds = True

    def check(self, model: Model) -> None:
        """Refuse dofs that are not clamped, and those that would take a planar robot out of its plane."""
        distinct_indices(self.dofs, model.n_dofs, "Held: dofs")
        free = [dof for dof in self.dofs if bool(model.free[dof])]
        if free:
            raise InputError(f"Held: dofs {free} are not clamped")
        across = model.unknowns.out_of_plane.tolist() if model.planar else []
        if leaving := [dof for dof in self.dofs if dof in across]:
            raise InputError(
                f"Held: dofs {leaving} are the y of nodes or of what clamps hold, or angles of edges, and the robot is "
                "planar: it keeps to the x-z plane; leave them out, or build the robot with planar=False"
            )

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the dofs at their displaced positions."""
        rest = model.body.rest_q.expand(state.batch, -1)
        clamped_q = state.q if control.clamped_q is None else control.clamped_q
        index = torch.as_tensor(self.dofs, device=state.q.device)
        return control.replace(clamped_q=clamped_q.index_copy(1, index, rest[:, index] + numbers.to(rest)))


class Force(_OnDofs):
    """Forces or torques on dofs.

    Parameters
    ----------
    dofs : indices into q, each once, and not clamped, as a force there moves nothing.
    low, high : bounds [N or N m].
    """

    holds = True

    def check(self, model: Model) -> None:
        """Refuse dofs that do not exist, and clamped ones."""
        distinct_indices(self.dofs, model.n_dofs, "Force: dofs")
        clamped = [dof for dof in self.dofs if not bool(model.free[dof])]
        if clamped:
            raise InputError(f"Force: dofs {clamped} are clamped, so a force there moves nothing; Held moves clamps")

    def added(self, control: Control, numbers: Tensor, state: State, model: Model) -> Control:
        """Return the control with the forces added."""
        force = torch.zeros_like(state.q) if control.force is None else control.force
        index = torch.as_tensor(self.dofs, device=state.q.device)
        return control.replace(force=force.index_add(1, index, numbers.to(force)))


def _listed(where: str, dofs: Sequence[int]) -> list[int]:
    """Return indices of dofs as a list; refuse a mask, whose right length is not known before a model is."""
    refuse_one_alone(where, dofs, "indices")
    if any(isinstance(dof, bool | np.bool_) or getattr(dof, "dtype", None) is torch.bool for dof in dofs):
        raise InputError(f"{where}: expected indices into q, got a mask; numpy.flatnonzero(mask) gives its indices")
    return list(dofs)


@torch.no_grad()
def _acts_on_nothing(model: Model, name: str) -> bool:
    """Return whether `name` is a size of the body on which neither the library's forces nor the inertia depend.

    The test changes the size and compares accelerations in a state in which robots are bent, stretched and moving.
    Constants of forces that are zero, such as a field, are one there, as actions, draws and times may change them; but
    not those of obstacles, as a coordinate that is zero says where they are.
    """
    place = body, attribute = model.places[name]
    if body is not model.body or model.has_user_hooks:
        return False
    state = trial_state(model.body, model.frames, model.batch or 1)
    state = state.replace(internal=model.rest_state(state.batch).internal)
    obstacles = set(model.obstacles)
    loads = {module for force in model.forces if force not in obstacles for module in force.modules()}
    acting = {at: torch.where((own := getattr(*at)) == 0, 1.0, own) for at in model.places.values() if at[0] in loads}
    default, accelerations = getattr(body, attribute), []
    for size in (default, 1.5 * default + 0.1 * (default == 0)):
        with model.lock, Values({**acting, place: size}).in_place():
            force = model.mechanics.force(model.start_step(state), state.q, state.velocity, state.time)
            accelerations.append(model.mechanics.inertia.solved(force, model.unknowns))
    return torch.equal(*accelerations)


def refuse_without_effect(where: str, model: Model, names: Sequence[str]) -> None:
    """Refuse constants all of which change nothing: sizes of the body, or stiffnesses out of a robot's plane."""
    if model.in_plane is not None and len(model.in_plane.idle_constants(names)) == len(names):
        raise InputError(f"{where}: changes nothing here: {NO_EFFECT}; leave it out, {ELSE_IN_SPACE}")
    if all(name in model.places and _acts_on_nothing(model, name) for name in names):
        raise InputError(
            f"{where}: changes nothing here: sizes of a body act on loads alone, such as drag; lengths at rest are "
            "stretch.rest_length, stiffnesses stretch.EA, bend_twist.EI1 and so on"
        )


def refuse_no_numbers(where: str, action: Action) -> None:
    """Refuse an action without bounds or count, with bounds in the wrong order, and a count that is no whole number."""
    for name in ("low", "high", "count"):
        if not hasattr(action, name):
            raise InputError(
                f"{where}: {type(action).__name__} has no {name}: low and high are the bounds of its numbers, count is "
                "how many there are"
            )
    whole_number(action.count, f"{where}: count")
    low, high = (real_number(getattr(action, name), f"{where}: {name}") for name in ("low", "high"))
    if not low < high:
        raise InputError(f"{where}: expected low < high, got {low} and {high}")


def refuse_hidden(actions: Sequence[Action]) -> None:
    """Refuse actions of which one would hide another: two that set the same constant or the same dof."""
    constants = [action.name for action in actions if isinstance(action, Constant)]
    if twice := sorted({name for name in constants if constants.count(name) > 1}):
        raise InputError(f"Task.actions: {twice[0]} is set by two of them: leave out one")
    held = [int(dof) for action in actions if isinstance(action, Held) for dof in action.dofs]
    if again := sorted({dof for dof in held if held.count(dof) > 1}):
        raise InputError(f"Task.actions: dof {again[0]} is moved by two Held: leave it out of one")


def refuse_no_length(actions: Sequence[Action], model: Model) -> None:
    """Refuse actuators of rest lengths if some edge may get no length, with all actions at their bounds together."""
    actuators = [action for action in actions if isinstance(action, Actuator) and action.field == "rest_length"]
    if not actuators:
        return
    lengths = natural_strain("rest_length", model.body, model.terms, model.batch or 1)
    assert lengths is not None
    least = lengths.detach().amin(0)
    for action in actions:
        if isinstance(action, Constant) and action.name == "stretch.rest_length":
            least = torch.full_like(least, action.low)
    for actuator in actuators:
        matrix = actuator.matrix.detach().to(lengths)
        least = least + torch.minimum(matrix * actuator.low, matrix * actuator.high).sum(1)
    if bool((least <= 0).any()):
        edge = int(least.argmin())
        raise InputError(
            f"Actuator(rest_length): low, high: expected bounds that leave each edge a length above 0, also along with "
            f"the other actions, but edge {edge} of {float(lengths[:, edge].min()):g} m may get "
            f"{float(least[edge]):g} m; give a narrower range"
        )


def controlled(
    actions: Sequence[Action], action: Tensor, state: State, model: Model, constants: Mapping[str, Tensor]
) -> Control:
    """Return the control of a step for an action (B, k) within its bounds, k the count of all its parts.

    Parameters
    ----------
    constants : constants of the episodes. `Constant` actions are applied first, as the others may build on them.
    """
    parts = list(zip(actions, action.split([part.count for part in actions], dim=1), strict=True))
    control = Control(values=constants)
    for part, entries in sorted(parts, key=lambda pair: not isinstance(pair[0], Constant)):
        with model.lock, model.values_of(control).in_place():
            control = part.added(control, entries, state, model)
            refuse_other_kind(
                f"{type(part).__name__}.added", control, Control, "the control that it was given, changed"
            )
    return control
