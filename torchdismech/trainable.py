"""Constants of a model that an optimiser may change: positive ones by a factor, others by a shift.

```python
stiffness = scaled(model, ["bend_twist.EI1", "bend_twist.EI2"])   # one factor for both, positive by construction
optimizer = torch.optim.Adam(stiffness.parameters(), lr=0.02)     # a step of 0.02 is a change by 2 %
```
Constants that go with other powers of a number, as a shell's do with its thickness, are given with these.
The values at the time of the call stay as they are and are multiplied (or shifted) anew at each evaluation, by
`torch.nn.utils.parametrize`. Several tensors that share one factor move together, as EI and GJ do with Young's modulus.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol
from weakref import ReferenceType, WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from torchdismech.contact.obstacles.shape import Shape
from torchdismech.contact.response import Friction, Response
from torchdismech.errors import InputError, positive_number, real_number, refuse_other_kind, shown, whole_number
from torchdismech.model import Model
from torchdismech.model.constants import constants as constants_of
from torchdismech.model.constants import constants_in, constants_of_contact, named_forces
from torchdismech.origin import class_of
from torchdismech.snapshot import Snapshot
from torchdismech.values import Place, Values, problem_of_bounds

__all__ = ["Factor", "Shift", "constants", "refuse_trained_out_of_bounds", "scaled", "shifted", "value"]


# keys of `Snapshot.checked_keys`
KEEPS_BOUNDS, LISTED = "no optimiser can drive a constant out of its bounds", "constants with bounds were listed"


class NamesConstants(Protocol):
    """A model other than `Model` (rods and shells) that lists its constants itself, such as a rigid chain."""

    @property
    def dtype(self) -> torch.dtype: ...

    @property
    def device(self) -> torch.device: ...

    def constants(self) -> dict[str, Place]: ...


AnyModel = Model | NamesConstants

# The constants of each model that have bounds. Modules are weak references, as one may be the model itself, which an
# entry of this table must not keep alive. `_checked_versions` has address and version of each tensor when last checked.

_bounded_constants: WeakKeyDictionary[AnyModel, list[tuple[str, ReferenceType[nn.Module], str]]] = WeakKeyDictionary()
_checked_versions: WeakKeyDictionary[AnyModel, dict[str, tuple[int, int]]] = WeakKeyDictionary()


class Factor(nn.Module):
    """value = base * exp(log_factor): keeps its sign, so what is positive stays so.

    Attributes
    ----------
    log_factor : () or what broadcasts against the tensors: (E,), (B, 1), (B, E).
    """

    def __init__(self, shape: Sequence[int] = (), dtype: torch.dtype = torch.float64):
        super().__init__()
        self.log_factor = nn.Parameter(torch.zeros(tuple(shape), dtype=dtype, device="cpu"))

    def forward(self, base: Tensor) -> Tensor:
        """Return base * exp(log_factor)."""
        return base * self.log_factor.exp()


class _Power(nn.Module):
    """value = base * exp(power * log_factor), where the factor is one that other constants use, too."""

    def __init__(self, factor: Factor, power: float):
        super().__init__()
        self.factor, self.power = factor, float(power)

    def forward(self, base: Tensor) -> Tensor:
        """Return base * exp(power * log_factor)."""
        return base * (self.power * self.factor.log_factor).exp()


class Shift(nn.Module):
    """value = base + unit * shift.

    Attributes
    ----------
    shift : () or what broadcasts against the tensors, in multiples of `unit`.
    """

    def __init__(self, unit: float, shape: Sequence[int] = (), dtype: torch.dtype = torch.float64):
        super().__init__()
        self.unit = float(unit)
        self.shift = nn.Parameter(torch.zeros(tuple(shape), dtype=dtype, device="cpu"))

    def forward(self, base: Tensor) -> Tensor:
        """Return base + unit * shift."""
        return base + self.unit * self.shift


def scaled(model: AnyModel, names: Sequence[str] | Mapping[str, float], shape: Sequence[int] = ()) -> Factor:
    """Let the named constants be multiplied by one trained factor, and return it.

    Parameters
    ----------
    names : names from `constants(model)`; or a mapping from such names to powers of the factor, such as
        {"membrane.membrane": 1, "hinge.hinge": 3, "mass": 1, "node_volume": 1} for the thickness of a shell, with a
        `relaxation_time` also its viscous constants (docs/shells.md).
    shape : of the factor, e.g. (E,) for one per element or (B, 1) for one per robot; (B, 1, 1) for constants that are
        rows of points.

    Raises
    ------
    InputError
        A name is unknown; its tensor is trained already, is a natural strain out of a planar robot's plane, does not
        broadcast with the shape, or is zero wherever a number of the factor acts; the shape is no tuple of whole
        numbers; a power is zero or no finite number. Then nothing is trained.
    """
    places = _places_of(model, names)
    factor = Factor(_shape(shape, "scaled"), model.dtype).to(model.device)
    changes: dict[str, nn.Module] = {}
    for name in places:
        power = _power(names, name)
        changes[name] = factor if power == 1 else _Power(factor, power)
    _attach(model, places, changes)
    return factor


def shifted(model: AnyModel, names: Sequence[str], unit: float, shape: Sequence[int] = ()) -> Shift:
    """Add one trained shift to the named constants, and return it; `unit` is the size of a change that matters.

    `shape` and errors are those of `scaled`, except that constants may be zero, as a shift changes them.
    """
    unit = positive_number(unit, "shifted: unit")
    if isinstance(names, Mapping):
        raise InputError("shifted: powers are those of a factor, by which scaled multiplies; expected a list of names")
    places = _places_of(model, names)
    shift = Shift(unit, _shape(shape, "shifted"), model.dtype).to(model.device)
    _attach(model, places, dict.fromkeys(places, shift))
    return shift


def _shape(given: object, caller: str) -> tuple[int, ...]:
    """Return the shape as a tuple; refuse what is no tuple of whole numbers.

    Whether it goes with the constants is checked later, in `_attach`.
    """
    if not isinstance(given, tuple | list):
        raise InputError(f"{caller}: shape: expected a tuple of whole numbers, such as (3,), got {given!r:.80}")
    return tuple(whole_number(size, f"{caller}: shape", least=0) for size in given)


def _power(names: Sequence[str] | Mapping[str, float], name: str) -> float:
    """Return the power of the factor by which a constant is multiplied: 1 unless `names` is a mapping."""
    if not isinstance(names, Mapping):
        return 1.0
    power = real_number(names[name], f"scaled: the power of {name}")
    if not math.isfinite(power) or power == 0:
        said = "a power of 0 trains nothing: leave the name out" if power == 0 else "it would make the constant so, too"
        raise InputError(f"scaled: the power of {name}: expected a finite number other than 0, got {power}; {said}")
    return power


def refuse_trained_out_of_bounds(model: AnyModel, snapshot: Snapshot | None = None) -> None:
    """Refuse trained constants that are out of their bounds; only those changed since the last call are checked.

    Parameters
    ----------
    snapshot : of the model, where the caller has one; it remembers whether no optimiser can leave the bounds.
    """
    if snapshot is not None and KEEPS_BOUNDS in snapshot.checked_keys:
        return
    if model not in _bounded_constants or (snapshot is not None and LISTED not in snapshot.checked_keys):
        _bounded_constants[model] = [(label, ref(module), name) for label, module, name in _bounded(model)]
        _checked_versions[model] = {}
        if snapshot is not None:
            snapshot.checked_keys.add(LISTED)
    checked, keeps_bounds = _checked_versions[model], True
    for label, reference, name in _bounded_constants[model]:
        module = reference()
        if module is None:  # it was removed from the model
            continue
        own = module._parameters.get(name, module._buffers.get(name))
        if _keeps_bounds(module, name) if own is None else not own.requires_grad:
            continue
        keeps_bounds = False
        value = (getattr(module, name) if own is None else own).detach()  # None: a parametrization makes it anew
        version = (value.data_ptr(), value._version)
        if own is None or checked.get(label) != version:
            if name in getattr(module, "not_negative", ()) and not bool((value >= 0).all()):
                raise InputError(
                    f"{label}: expected 0 or more, got {float(value.min()):g}; an optimiser may have driven it there: "
                    f'trainable.scaled(model, ["{label}"]) trains a factor, which keeps it positive'
                )
            if problem := problem_of_bounds((module, name), value, {}):
                raise InputError(f"{label}: {problem}; an optimiser may have driven it there")
            checked[label] = version
    if snapshot is not None and keeps_bounds:
        snapshot.checked_keys.add(KEEPS_BOUNDS)


def _bounded(model: AnyModel) -> list[tuple[str, nn.Module, str]]:
    """Return (name, module, attribute) of the constants that have bounds, without those that are None."""
    places: list[tuple[str, nn.Module, str]] = []
    if isinstance(model, Model):
        body, forces = model.body, named_forces(model)
        places += [(name, body, name) for name in body.not_negative]
        places += [constant for term in model.terms for constant in constants_in(term)]
        places += [(f"{label}.{name}", force, name) for label, force in forces for name in force.not_negative]
        others = constants_of_contact(model)
    else:
        others = model.constants()
    places += [(label, *place) for label, place in others.items()]
    return [(label, part, name) for label, part, name in places if _has_bounds(part, name) and _is_set(part, name)]


def _has_bounds(module: nn.Module, name: str) -> bool:
    """Return whether a module declares bounds of the named tensor (see `values.refuse_out_of_bounds`)."""
    names = (*getattr(module, "not_negative", ()), *getattr(module, "open_intervals", ()))
    return name in names or any(name in pair for pair in getattr(module, "not_below", ()))


def _is_set(module: nn.Module, name: str) -> bool:
    """Return whether a module has a tensor of that name, without evaluating its parametrization.

    An evaluation would leave nodes of autograd in the first pass of a step alone, which confuses checkpoints as they
    take the step again.
    """
    own = module._parameters.get(name, module._buffers.get(name))
    return own is not None or parametrize.is_parametrized(module, name)


def _keeps_bounds(module: nn.Module, name: str) -> bool:
    """Return whether training cannot drive a constant out of its bounds.

    That is so where it is trained by factors alone, which keep its sign, and only its sign is bounded.
    """
    if not all(isinstance(made, (Factor, _Power)) for made in module.parametrizations[name]):  # type: ignore[index]
        return False
    pairs = (pair for pair in getattr(module, "not_below", ()) if name in pair)
    return name not in getattr(module, "open_intervals", ()) and not any(
        all(_is_set(module, n) for n in p) for p in pairs
    )


def constants(model: AnyModel) -> dict[str, Place]:
    """Return the constants of a model as {name: (module, attribute)}; for rods and shells see `model/constants.py`."""
    if isinstance(model, Model):
        return constants_of(model)
    if isinstance(model, type) or not hasattr(model, "constants"):
        refuse_other_kind("trainable", model, Model, "a model, as RobotBuilder.finalize returns it")
    return model.constants()


def value(model: AnyModel, name: str) -> Tensor:
    """Return a copy of the present numbers of the named constant (.., elements), also of one that is trained.

    Raises
    ------
    InputError
        No constant has this name.
    """
    module, attribute = _places_of(model, [name])[name]
    return getattr(module, attribute).detach().clone()


def _places_of(model: AnyModel, names: Sequence[str] | Mapping[str, float]) -> dict[str, Place]:
    """Return {name: (module, attribute)} of the named constants; refuse names that are unknown or come twice."""
    known = constants(model)
    if isinstance(names, str) or not isinstance(names, Collection) or not len(names):
        got = f"the text {names!r}; write [{names!r}]" if isinstance(names, str) else shown(names)
        raise InputError(f"trained constants: expected a list of names, one or more, got {got}")
    for name in names:
        if not isinstance(name, str) or name not in known:
            raise InputError(f"no constant {name!r} in this model; there are: {', '.join(sorted(known))}")
        if list(names).count(name) > 1:
            raise InputError(f"trained constants: expected each name once, got {name!r} twice")
    return {name: known[name] for name in names}


def _attach(model: AnyModel, places: Mapping[str, Place], changes: Mapping[str, nn.Module]) -> None:
    """Register a change (a factor or shift) as parametrization of each constant; refuse all where one does not fit."""
    if isinstance(model, Model) and model.in_plane is not None:
        model.in_plane.refuse_trained(places)
    for name, (module, attribute) in places.items():
        if parametrize.is_parametrized(module, attribute):
            raise InputError(f"{name} is trained already")
        if hasattr(nn.ModuleDict, attribute):
            raise InputError(
                f"{name}: torch trains no tensor that is called {attribute!r}, as a method of its own is; expected one "
                "of another name: write a class of your own that has it"
            )
        value = getattr(module, attribute)
        shape = next(changes[name].parameters()).shape
        if not _goes_with(shape, module, attribute, value):
            raise InputError(
                f"{name}: a change of shape {tuple(shape)} does not go with its shape {tuple(value.shape)}"
            )
        if isinstance(changes[name], (Factor, _Power)) and name != "mass" and _is_idle(shape, value):
            raise InputError(  # some angles have no inertia, whatever the masses are
                f"scaled: {name} is zero wherever a number of the factor acts, which changes nothing; use shifted(...)"
            )
        if shape and isinstance(model, Model):
            _refuse_unevaluable(model, name, (module, attribute), changes[name])
    for name, (module, attribute) in places.items():
        parametrize.register_parametrization(module, attribute, changes[name], unsafe=True)
        _let_pickle(module)


def _let_pickle(module: nn.Module) -> None:
    """Let a module with trained constants be pickled, which torch refuses as pickle cannot find the class it made.

    A pickle holds the class below that one, and all parametrizations of the module, a user's own among them.
    """
    type(module).__reduce_ex__ = _as_pickled  # type: ignore[method-assign,assignment]


def _as_pickled(module: nn.Module, protocol: object) -> tuple:
    """Return what pickle calls to make the module again: `_read`, its class, attributes and parametrizations."""
    kind: Any = class_of(module)
    attributes = kind.__getstate__(module)
    modules = dict(attributes["_modules"])
    made = modules.pop("parametrizations")
    return _read, (kind, attributes | {"_modules": modules}, made)


def _read(kind: type[nn.Module], attributes: dict, made: nn.ModuleDict) -> nn.Module:
    """Return the module that `_as_pickled` took apart."""
    module = kind.__new__(kind)
    module.__setstate__(attributes)
    for name in made:  # torch makes the class; what it would register takes numbers through each `right_inverse` again
        module._buffers[name] = torch.empty(0, device="cpu")
        parametrize.register_parametrization(module, name, nn.Identity(), unsafe=True)
    module.parametrizations = made
    _let_pickle(module)
    return module


def _refuse_unevaluable(model: Model, name: str, place: Place, change: nn.Module) -> None:
    """Refuse a change after which the robot's forces cannot be evaluated, as for another number of elements."""
    values = Values({place: change(getattr(*place))})
    with torch.no_grad(), model.lock:
        try:
            with values.in_place():
                _evaluated_at_rest(model)
        except (RuntimeError, InputError) as error:
            _evaluated_at_rest(model)  # an error that comes without the change, too, is raised as it is
            counts = [term.stencil.count for term in model.terms if name.startswith(f"{term.name}.")]
            each = f"({counts[0]},) for one of each element, (B, {counts[0]})" if counts else "one of each element"
            raise InputError(
                f"{name}: a change of shape {tuple(next(change.parameters()).shape)} does not go with this robot: "
                f"expected (), {each} or (B, 1) for one of each of B robots ({error})"
            ) from error


def _evaluated_at_rest(model: Model) -> Tensor:
    """Return the forces (B, n) on robots at rest, as in a step of 1 s, so that dissipation is evaluated, too."""
    state = model.rest_state(model.batch or 1)
    start = model.start_step(state, elapsed=1.0)
    return model.mechanics.force(start, state.q, state.velocity, state.time)


def _goes_with(shape: torch.Size, module: nn.Module, attribute: str, value: Tensor) -> bool:
    """Return whether a change of that shape leaves the module a value of a shape that it accepts."""
    if 0 in shape:
        return False
    if isinstance(module, (Response, Friction)) or (isinstance(module, Shape) and value.numel() == 1):
        # one number, or one of each robot
        return not shape or (len(shape) == 2 and shape[1] == 1 and (value.numel() == 1 or _fits(shape, value.shape)))
    if value.numel() == 1:  # one number for all may become any shape
        return True
    if value.dim() == 1:  # numbers of elements may become (B, elements)
        return len(shape) <= 2 and _fits(shape[-1:], value.shape)
    return len(shape) <= value.dim() and _fits(shape, _for_robots(shape, module, attribute, value))


def _is_idle(shape: torch.Size, value: Tensor) -> bool:
    """Return whether some number of a factor of that shape multiplies only zeros of the value."""
    acts = (value != 0).double().expand(torch.broadcast_shapes(shape, value.shape))
    return bool((acts.sum_to_size(shape) == 0).any())


def _for_robots(shape: torch.Size, module: nn.Module, attribute: str, value: Tensor) -> torch.Size:
    """Return the shape of a value once a change of that shape acts on it.

    It differs from the value's own where the value is for all robots (one row) and the change has a row for each.
    """
    axis = getattr(module, "robot_dimension", 0)
    of_all = attribute in getattr(module, "per_robot", ()) and value.dim() >= 2 + axis and value.shape[axis] == 1
    if not of_all or len(shape) < value.dim():
        return value.shape
    return torch.Size([*value.shape[:axis], shape[axis], *value.shape[axis + 1 :]])


def _fits(shape: torch.Size, of: torch.Size) -> bool:
    """Return whether a tensor of shape `shape` broadcasts to the shape `of`."""
    return all(a in (1, b) for a, b in zip(shape[::-1], of[::-1], strict=False))
