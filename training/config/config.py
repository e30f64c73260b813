"""The whole config of a fit: its tables, checked each by itself and against each other."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, PrivateAttr, Tag, model_validator

from training.config.base import Identifier, NamedCode, Table, Word
from training.config.data import Data
from training.config.fitted import Constant, Term
from training.config.rod import Robot, Simulation
from training.config.scene import Drives, Markers, SceneRobot, Start
from training.config.stages import Loss, Noise, Stage
from training.data import Rules

__all__ = ["Config", "Logging"]


class Logging(Table):
    """What is written to TensorBoard and into checkpoints, and how often.

    Attributes
    ----------
    every : iterations between scalars.
    shapes_at : times [s] at which simulated and measured shapes are drawn.
    save_every : iterations between checkpoints.
    pictures_every : looks at the held-out recordings from one that draws shapes, mesh and movie to the next; the first
        look draws them, and so does the end of the fit.
    """

    every: int = Field(1, ge=1)
    shapes_at: list[Annotated[float, Field(ge=0, le=1e9)]] = Field([0.1, 0.5, 1.0, 2.0, 4.0], max_length=20)
    save_every: int = Field(20, ge=1)
    pictures_every: int = Field(5, ge=1)


def _kind_of_robot(given: Any) -> str:
    """Return the tag of a robot's table in pydantic's union; messages leave such tags out."""
    scene = "scene" in given if isinstance(given, dict) else isinstance(given, SceneRobot)
    return "(SceneRobot)" if scene else "(Robot)"


AnyRobot = Annotated[
    Annotated[Robot, Tag("(Robot)")] | Annotated[SceneRobot, Tag("(SceneRobot)")], Discriminator(_kind_of_robot)
]


class Config(Table):
    """A fit: of a rod whose nodes are the markers, of a robot that a scene describes, or of a `system` of the user's.

    Attributes
    ----------
    name : name of the run, in its default folder and in TensorBoard.
    seed : seed of all random numbers: windows, noise, first weights, and which recordings are held out.
    device : "auto" takes CUDA where there is a GPU; of several processes each takes a GPU of its own.
    physics : false fits a network without a rod: the baseline `models.FreeNodes`.
    system : "file.py:Name", a class derived from `training.system.System`, relative to the working directory.
    options : arguments of the system's constructor, by name.
    baseline : options of the network without physics.
    """

    _file: str = PrivateAttr("config")
    name: Word
    seed: int = Field(0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    physics: bool = True
    data: Data
    robot: AnyRobot | None = None
    system: NamedCode | None = None
    options: dict[str, Any] = {}
    markers: Markers | None = None
    drives: Drives = {}
    start: Start | None = None
    simulation: Simulation | None = None
    constants: dict[Identifier, Constant] = {}
    terms: dict[Identifier, Term] = {}
    baseline: dict[str, Any] = {}
    loss: Loss = Loss()
    noise: Noise = Noise()
    stages: list[Stage] = Field(min_length=1)
    logging: Logging = Logging()

    @property
    def file(self) -> str:
        """The file that the config was read from, for messages."""
        return self._file

    @property
    def of_chain(self) -> bool:
        """Whether the markers are the nodes of a chain: of a rod between markers, or of the network without physics."""
        return isinstance(self.robot, Robot)

    @property
    def code(self) -> list[str]:
        """The Python that the config runs, each as "file.py:Name", without code that its scene names."""
        drives, terms = (drive.module for drive in self.drives.values()), (term.code for term in self.terms.values())
        return [name for name in (self.system, *drives, *terms) if name is not None]

    @model_validator(mode="after")
    def _one_kind_of_system(self) -> Config:
        if (self.robot is None) == (self.system is None):
            raise ValueError("expected a robot or a system, got both" if self.system else "robot: it is missing")
        if not isinstance(self.robot, SceneRobot):
            given = [name for name in ("markers", "drives", "start") if getattr(self, name)]
            if given:
                raise ValueError(f"{given[0]}: belongs to a robot from a scene: set robot.scene, or leave it out")
        elif self.simulation is not None:
            raise ValueError("simulation: the scene says how steps are taken; change that by robot.overrides")
        elif not self.physics:
            raise ValueError("physics: the network without physics is for chains: leave the scene out")
        rules, gripped = self.data.rules, isinstance(self.robot, SceneRobot) and self.robot.gripped
        if not self.of_chain and rules.order == "repair":
            raise ValueError("data.rules.order: only nodes of a chain are put in order: leave it out")
        if not self.of_chain and rules.edge_wander != Rules.edge_wander:
            raise ValueError("data.rules.edge_wander: only edges of a chain are measured: leave it out")
        if not self.of_chain and not gripped and rules.max_gap != Rules.max_gap:
            raise ValueError("data.rules.max_gap: is of a chain, or of gripped markers, of which there are none")
        if self.system is None and self.options:
            raise ValueError("options are for a system: leave them out")
        return self

    @model_validator(mode="after")
    def _something_to_train(self) -> Config:
        names = [stage.name for stage in self.stages]
        if len({name.casefold() for name in names}) < len(names):  # stages name files, and some disks ignore case
            raise ValueError(f"two stages of the same name: {', '.join(names)}")
        if not self.physics and (self.constants or self.terms):
            raise ValueError("without physics there are no constants and no terms: leave them out")
        if self.physics and self.baseline:
            raise ValueError("baseline holds options of the network without physics: set physics = false")
        if self.system is not None:
            return self  # which groups it has is known once it is made
        there = {"constants"} if self.constants else set()
        modules = [drive for drive in self.drives.values() if drive.module is not None]
        there |= {"learned"} if self.terms or modules or not self.physics else set()
        there |= {"starts"} if self.start is not None and self.start.velocity == "fitted" else set()
        for stage in self.stages:
            missing = sorted(set(stage.train) - there)
            if missing:
                raise ValueError(f"stage {stage.name!r} trains {', '.join(missing)}, of which there are none")
        if self.constants and not any("constants" in stage.train for stage in self.stages):
            raise ValueError("constants: no stage trains them: add them to the train of one, or leave them out")
        return self
