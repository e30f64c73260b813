"""ModelTraits: what recordings compare of a model, *traits* by value and *objects* by identity (see `step_kind`)."""

from __future__ import annotations

from itertools import compress
from operator import is_
from typing import Any

from torch import Tensor, nn

from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.recorded.declared import PLAIN, hooked, is_foreign, settings
from torchdismech.integrate.recorded.recordable import child_modules, declared, evaluated_forces, modules_below
from torchdismech.model import Model
from torchdismech.snapshot import own_tensors
from torchdismech.values import Place, Values, tensor_at, tensors_of

__all__ = ["ModelTraits", "plain_attributes"]


class ModelTraits:
    """The traits and objects that a model has to share with the model of a kind's first step.

    Parameters
    ----------
    problem : the first step.
    all_forces : whether recordings evaluate all external forces.

    Attributes
    ----------
    of_users : modules of users' forces and energies that say `records`.
    movable_places : the places of the model's tensors that are inputs of a step.
    """

    def __init__(self, problem: StepProblem, all_forces: bool):
        model = problem.model
        self._all_forces = all_forces
        self._modules = list(modules_below(self._roots(model)))
        looked_at = {*map(id, self._modules)}
        said = (module for module in modules_below(declared(model)) if id(module) in looked_at)
        self.of_users = [module for module in said if is_foreign(module)]
        movable = [self._movable_names(module, problem.values) for module in self._modules]
        places = ((m, name) for m, names in zip(self._modules, movable, strict=True) for name in sorted(names))
        self.movable_places: list[Place] = [place for place in places if getattr(*place) is not None]
        self._numbers = [tuple(name for name, _ in plain_attributes(module)) for module in self._modules]
        # for each tensor in `_tensors`: whether it is a captured constant, known by its address; else it is movable
        self._captured = [True] * sum(len(own) for own in own_tensors(model))
        for module, names in zip(self._modules, movable, strict=True):
            self._captured += [name not in names for own in own_tensors(module) for name in own]
        self._names = self._names_of(model)
        self._objects, self._values = self._objects_of(model), self._values_of(model)
        # never read: while these tensors live no other can get their addresses, which are compared as traits
        self._alive = [*compress(self._tensors(model), self._captured)]

    def match(self, model: Model) -> bool:
        """Return whether a model has the same traits and objects."""
        if self._names_of(model) != self._names:  # compared first, as the rest asks for tensors by these names
            return False
        objects = self._objects_of(model)
        same = len(objects) == len(self._objects) and all(map(is_, objects, self._objects))
        return same and self._values_of(model) == self._values

    def captures(self, place: Place) -> bool:
        """Return whether the tensor in a place is a captured constant, which recordings know by its address."""
        return place not in self.movable_places and any(place[0] is own for own in self._modules)

    def moved(self) -> list[Tensor]:
        """Return the tensors in the movable places, as they are now."""
        tensors = [tensor_at(module, name) for module, name in self.movable_places]
        return [tensor for tensor in tensors if tensor is not None]

    def _movable_names(self, module: nn.Module, values: Values) -> set[str]:
        """Return the names of a module's tensors that may be replaced before the next step.

        These are those that may be given per robot, those that `values` replaces, and the parameters of users' modules.
        """
        names = {*getattr(module, "per_robot", ())} | {name for owner, name in values.tensors if owner is module}
        return names | {*module._parameters} if any(module is own for own in self.of_users) else names

    def _names_of(self, model: Model) -> list[tuple[str, bool]]:
        """Return the names of all parameters, buffers and submodules, each with whether it is None."""
        owners = [model, *self._modules]
        held = [of for owner in owners for of in (owner._parameters, owner._buffers, owner._modules)]
        return [(name, value is None) for of in held for name, value in of.items()]

    def _objects_of(self, model: Model) -> list[Any]:
        """Return what is compared by identity: the modules as they are nested, and settings of users' modules."""
        found: list[Any] = [model.self_contacts, *self._roots(model)]
        for module in self._modules:
            if module._modules:  # most have none in them
                found += child_modules(module)
        for module in self.of_users:
            found += settings(module)
        return found

    def _roots(self, model: Model) -> list[nn.Module]:
        """Return the outermost modules that the equations read, besides the model itself."""
        forces = evaluated_forces(model, self._all_forces)
        return [model.body, model.unknowns, *model.terms, model.mechanics.layout, model.frames, *forces]

    def _tensors(self, model: Model) -> list[Tensor | None]:
        """Return the parameters and buffers of the model itself and of `_modules`; None where one is not set."""
        return tensors_of([model, *self._modules])

    def _values_of(self, model: Model) -> list[Any]:
        """Return what is compared by value: types, shapes and addresses of tensors, plain attributes, hooks."""
        constants, moved = [*compress(self._tensors(model), self._captured)], self.moved()
        # types come first: a number and an array that took its place cannot be compared
        traits: list[Any] = [type(value) for module in self.of_users for value in vars(module).values()]
        traits += [tensor.shape for tensor in moved]
        traits += [tensor.dtype for tensor in moved]
        traits += [None if tensor is None else tensor.data_ptr() for tensor in constants]
        traits += [None if tensor is None else (tensor.shape, tensor.stride(), tensor.dtype) for tensor in constants]
        attributes = [*map(vars, self._modules)]
        traits += map(type, self._modules)
        traits += map(len, attributes)
        for own, names in zip(attributes, self._numbers, strict=True):
            traits += [_exactly(own.get(name)) for name in names]
        traits += map(hooked, self.of_users)
        return traits


def plain_attributes(owner: Any) -> list[tuple[str, Any]]:
    """Return the attributes of an object that are numbers, truth values, strings or None, with their names."""
    return [(name, value) for name, value in vars(owner).items() if isinstance(value, PLAIN)]


def _exactly(value: Any) -> Any:
    """Return a plain value in a form that tells 0.0 from -0.0 and compares NaN equal to NaN."""
    return value.hex() if type(value) is float else value
