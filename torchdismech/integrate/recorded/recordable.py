"""Which models and integrators recordings can hold, by what they are made of; `recording.py` decides when steps are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn

from torchdismech.contact import Mesh, Obstacle
from torchdismech.forces.base import Force
from torchdismech.fused import is_own
from torchdismech.integrate.recorded.declared import PLAIN, declares_records, is_foreign, unseen
from torchdismech.magnetics.uniform import Timed
from torchdismech.model import Model
from torchdismech.model.user_code import runs_users_code
from torchdismech.origin import class_name, function_is_of_library
from torchdismech.solve import linear
from torchdismech.solve.linear.base import DirectSolver
from torchdismech.values import every_module

if TYPE_CHECKING:
    from torchdismech.integrate.integrator import SteppingMethod

__all__ = [
    "child_modules",
    "declared",
    "evaluated_forces",
    "has_own_terms",
    "records_all_users_code",
    "is_recordable_force",
    "is_recordable_method",
    "modules_below",
    "why_code_unrecorded",
    "why_evaluations_unrecorded",
    "why_steps_apart_unrecorded",
    "why_steps_unrecorded",
]


def why_steps_unrecorded(model: Model) -> str | None:
    """Return why no recording can hold a whole step of these robots with inertia; None where one can."""
    contact = model.contact
    if len(contact.self_contacts) or contact.constrained:
        return "contact of parts of a robot, or by Complementarity"
    return why_steps_apart_unrecorded(model)


def why_steps_apart_unrecorded(model: Model) -> str | None:
    """Return the same for steps in which no parts of a robot touch, and nothing touches what is a constraint."""
    if why := why_evaluations_unrecorded(model):
        return why
    if model.device.type != "cpu" and (why := _why_unrecorded_on_a_gpu(model)):
        return why
    others = (
        obstacle.name for obstacle in model.contact.constrained_obstacles if not _is_recordable_obstacle(obstacle)
    )
    if (name := next(others, None)) is not None:
        return f"the obstacle {name!r}, which holds users' code that could change unseen or does not say `records`"
    direct = model.solvers.name == "auto" or issubclass(linear.SOLVERS[model.solvers.name], DirectSolver)
    return None if direct else f"the solver {model.solvers.name}, which reads numbers"


def why_evaluations_unrecorded(model: Model) -> str | None:
    """Return why residual and matrix of these robots' steps cannot be recorded; None if they can."""
    modules = (module for force in changing_forces(model) for module in force.modules())
    if any(_calls_others(module) for module in modules if not is_foreign(module)):
        return "forces that call a function of the user's"
    if model.device.type == "cpu":
        return None  # a tape records the operations of autograd like all others
    terms = model.mechanics.uncompiled_terms()
    return f"derivatives by autograd ({', '.join(terms)})" if terms else None


def _why_unrecorded_on_a_gpu(model: Model) -> str | None:
    """Return which force or obstacle no CUDA graph can hold; None if there is none.

    On a CPU this is not asked beforehand: a tape that meets such an operation is given up.
    """
    for force in changing_forces(model):
        if why := unseen(modules_below([force])):
            return why
    meshes = [obstacle.name for obstacle in model.obstacles if isinstance(obstacle.shape, Mesh)]
    return f"the mesh of {meshes[0]!r}, whose search of the nearest triangle reads numbers" if meshes else None


def is_recordable_method(method: SteppingMethod) -> bool:
    """Return whether recordings can hold steps by an integrator.

    They cannot if it has attributes besides its scheme and plain values, whose changes would go unnoticed, or if a user
    wrote its `attempts`, as a recording would always replay the first of them.
    """
    plain = all(isinstance(value, PLAIN) for name, value in vars(method).items() if name != "scheme")
    return plain and function_is_of_library(type(method).attempts)


def is_recordable_force(force: Force) -> bool:
    """Return whether recordings can hold a force.

    They can if nothing in it could change unnoticed: it is the library's own and holds no function of a user's, or it
    says `records`, as all other users' modules in it do.
    """
    if unseen(modules_below([force])) is not None:
        return False
    own = (module for module in force.modules() if not is_foreign(module))
    return declares_records(force) or all(is_own(module) and not _calls_others(module) for module in own)


def _is_recordable_obstacle(obstacle: Obstacle) -> bool:
    """Return whether recordings can hold an obstacle: its shape, law and motion are the library's or say `records`."""
    own = (module for module in obstacle.modules() if not is_foreign(module))
    return unseen(modules_below([obstacle])) is None and not any(map(_calls_others, own))


def why_code_unrecorded(model: Model) -> str | None:
    """Return which elastic term or varying force cannot be recorded, and why; None if all can.

    Users' code has to say `records`, and modules of the library must not make tensors anew by parametrizations.
    """
    owners = (*model.terms, *changing_forces(model))
    if why := next(filter(None, (unseen(modules_below([owner])) for owner in owners)), None):
        return why
    made = (class_name(m) for owner in owners for m in owner.modules() if not (is_foreign(m) or is_own(m)))
    return next((f"what makes tensors of {name} anew" for name in made), None)


def has_own_terms(model: Model) -> bool:
    """Return whether all elastic terms are the library's own."""
    return all(is_own(module) for term in model.terms for module in term.modules())


def changing_forces(model: Model) -> list[Force]:
    """Return the external forces that change within a step."""
    return [force for force in model.forces if force.varies]


def evaluated_forces(model: Model, all_forces: bool) -> list[Force]:
    """Return the external forces that recordings evaluate: those that change within a step, or all of them.

    Obstacles that are constraints are among them: these exert no force by themselves, but recorded steps find their
    loads.
    """
    constraints = filter(_is_recordable_obstacle, model.contact.constrained_obstacles)
    return [*model.forces] if all_forces else [*changing_forces(model), *constraints]


def declared(model: Model) -> list[nn.Module]:
    """Return the users' modules that say `records`: forces, shapes and laws of contact, on a CPU also elastic terms.

    On a GPU forces that do not change within a step are not recorded, and users' elastic terms only as torch.compile
    makes them.
    """
    owners = [*model.forces, *model.terms] if model.device.type == "cpu" else changing_forces(model)
    return [module for owner in owners for module in owner.modules() if declares_records(module)]


def records_all_users_code(model: Model) -> bool:
    """Return whether all users' code in a model says `records`, so that none of it has to run between two steps."""
    if not model.has_user_hooks:
        return True
    said = {id(module) for owner in declared(model) for module in owner.modules()}
    return all(id(module) in said or not runs_users_code(module) for module in every_module(model))


def _calls_others(module: nn.Module) -> bool:
    """Return whether a module holds a function that is not the library's, or another object that can be called.

    A function of time for a magnetic field does not count: it is called before the step.
    """
    if isinstance(module, Timed):
        return False
    return any(callable(value) and not function_is_of_library(value) for value in vars(module).values())


def modules_below(roots: list[nn.Module]) -> Iterator[nn.Module]:
    """Yield the roots and all modules in them, each once."""
    seen: set[int] = set()
    waiting = roots[::-1]
    while waiting:
        module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield module
            waiting += child_modules(module)[::-1]


def child_modules(module: nn.Module) -> list[nn.Module]:
    """Return the direct submodules of a module, without its parametrizations."""
    return [child for name, child in module._modules.items() if child is not None and name != "parametrizations"]
