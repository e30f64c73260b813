"""The controller of a checked scene."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

from torchdismech.control import PI, Controller, Fixed, Memory, Reference, Strains, Table
from torchdismech.control.protocol import remembers
from torchdismech.io.scene.files import reading, table_over_time
from torchdismech.io.scene.refusals import SceneError, naming
from torchdismech.io.scene.schedule import Schedule
from torchdismech.io.scene.users_code import UsersFunction
from torchdismech.io.schema import controller as schema
from torchdismech.io.tables import read_vectors
from torchdismech.model import Model
from torchdismech.robot.state import Control, State

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["build_controller"]

KEY = "controller.python"
# the strains in tables of [actuation] that [controller] may override
OVER_TIME = {
    "natural_curvature": ("kappa1", "kappa2"),
    "natural_twist": ("twist",),
    "natural_hinge_angle": ("hinge_angle",),
    "rest_length": ("stretch",),
}


def build_controller(scene: Scene, model: Model, state: State, schedule: Schedule, run_code: bool) -> Controller | None:
    """Return the controller of a scene, checked to fit the run; None if the scene has none.

    Parameters
    ----------
    schedule : natural strains over time; a table in it that the controller overrides as a whole is refused.
    run_code : run the file that controller.python names; if False, its controller is not made, and None returned.
    """
    table, dt = scene.values.controller, scene.document.simulation.dt
    if table is None or (table.python is not None and not run_code):
        return None
    assert dt is not None  # the schema refuses controllers of statics
    if table.python is not None:
        return _from_code(scene, table.python, model, dt)
    with naming(scene.path, ("controller",)):
        controller = _pi(scene, table, model, dt)
        controller.check(model, state, dt, scene.steps)
    _refuse_overridden(scene, controller, model, schedule)
    return controller


def _refuse_overridden(scene: Scene, controller: PI, model: Model, schedule: Schedule) -> None:
    """Refuse a table of [actuation] of which the controller sets every natural strain: it would do nothing."""
    for key, fields in OVER_TIME.items():
        table = schedule.strains.get(key)
        if table is None:
            continue
        if key == "natural_curvature" and table.values.shape[1] == len(model.springs):
            fields = ("kappa1",)
        if not any(controller.leaves(model, field) for field in fields):
            problem = (
                f"does nothing, as [controller] sets {' and '.join(fields)} of all elements: remove the key, or name "
                "in controller.actuators the elements that the controller sets"
            )
            raise SceneError(scene.path, ("actuation", key), problem)


def _pi(scene: Scene, table: Any, model: Model, dt: float) -> PI:
    """Return the PI controller that [controller] describes, with gains for each robot where they are drawn."""
    strains = Strains(model, table.fields, table.elements)
    gains = {name: getattr(table, name) for name in ("Kp", "Ki")}
    return PI(
        model,
        strains,
        _reference(scene, table, model, strains),
        dt,
        **{name: gain.squeeze(1) if isinstance(gain, Tensor) else gain for name, gain in gains.items()},
        feed_forward=table.feed_forward,
        smoothing=table.smoothing,
        actuators=table.actuators,
        rate=table.rate,
        limit=table.limit,
        least_length=table.least_length,
        every=table.every,
        delay=table.delay,
        noise=table.noise,
        seed=scene.document.batch.seed,
        robots=scene.robots,
    )


def _reference(scene: Scene, table: schema.Controller, model: Model, strains: Strains) -> Reference:
    if table.target is not None:
        with reading(scene.path, "controller.target", table.target) as path:
            nodes = read_vectors(path, model.body.n_nodes, "node")
        return Fixed(strains.of_shape(model, nodes, _directors(scene, table, model)))
    assert table.reference is not None
    listed = ", ".join(f"{name} of {len(index)}" for name, index in strains.elements.items())
    rows = table_over_time(scene, "controller.reference", table.reference, {len(strains): listed})
    return Table(rows.times.to(model.device), rows.values.to(model.device), table.beyond)


def _directors(scene: Scene, table: schema.Controller, model: Model) -> Tensor | None:
    """Return the first directors (E, 3) of the target shape from target_directors; None if there is no such file."""
    if table.target_directors is None:
        return None
    with reading(scene.path, "controller.target_directors", table.target_directors) as path:
        return read_vectors(path, len(model.rod_edges), "rod edge")


# ---- users' code ---------------------------------------------------------------------------------------------------


def _from_code(scene: Scene, name: str, model: Model, dt: float) -> Controller:
    """Return the controller that the user's function "file.py:function" makes, called with the model and dt [s]."""
    user_function = UsersFunction(scene.path, KEY, name, made="made a controller that ")
    controller = user_function.call(user_function.function, model, dt)
    if not callable(controller):
        raise user_function.refused(
            f"has to return a controller, such as a function of (state, control, model), got {controller!r}"
        )
    if remembers(controller):
        return _WithMemory(user_function, controller)

    def checked(state: State, control: Control, model: Model) -> Control:
        return user_function.checked(user_function.call(controller, state, control, model), model, state.batch)

    return checked


class _WithMemory:
    """A controller with memory made by a user's code; its errors are named and its controls checked."""

    def __init__(self, user_function: UsersFunction, controller: Any):
        self.user_function, self.controller = user_function, controller

    def check(self, model: Model, state: State, dt: float, steps: int) -> None:
        """Let the controller refuse a run of `steps` steps of dt [s], if it has a method `check`."""
        check = getattr(self.controller, "check", None)
        if check is not None:
            self.user_function.call(check, model, state, dt, steps)

    def initial(self, model: Model, state: State) -> Memory:
        """Return the memory before the first step."""
        return self.user_function.call(self.controller.initial, model, state)

    def __call__(self, state: State, memory: Memory, control: Control, model: Model) -> tuple[Control, Memory]:
        """Return the control of the step from `state`, and the memory after it."""
        answer = self.user_function.call(self.controller, state, memory, control, model)
        if not (isinstance(answer, tuple) and len(answer) == 2):
            problem = (
                f"made a controller with a memory that has to return (Control, memory), got {type(answer).__name__}"
            )
            raise self.user_function.refused(problem)
        return self.user_function.checked(answer[0], model, state.batch), answer[1]
