"""What a fit is made of: a TOML file, checked field by field, with `--set key=value` on top."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    TypeAdapter,
    ValidationError,
    field_validator,
    model_validator,
)

from torchdismech.errors import InputError
from training.config.base import Gravity, Identifier, Name, NamedCode, Stiffness, Table, Word
from training.config.scene import Drives, Markers, SceneRobot, Start
from training.config.stages import Loss, Noise, Stage
from training.data import WITHOUT_SPLITS, Rules, holds_recordings
from training.files import text_of
from training.options import checked, faults

__all__ = ["Config", "Constant", "Data", "Logging", "Loss", "Noise", "Robot", "Simulation", "Stage", "Term", "load"]


PositiveNumber = Annotated[float, Field(gt=1e-15, le=1e15)]

OF_SCENES = {"rod", "shell", "environment", "clamp"}  # tables that scenes have, and configs of fits have not
OF_FITS = {"data", "stages"}  # tables that every config of a fit has, and scenes have not
OWN_FILES = ("config", "metrics", "certainty")  # .json in the folder of a run


def _rules(given: Any) -> Any:
    """Return the rules of a table."""
    if isinstance(given, Rules):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"expected a table, got {given!r:.80}")
    return Rules(**checked(Rules, given, ""))


class Data(Table):
    """Where the recordings are and what is expected of them.

    Attributes
    ----------
    path : file or folder, as `training.data.read` takes it; relative to the working directory.
    train, eval : names of the splits of an archive, or subfolders. A file of one kind of recordings (.csv, .h5, .pkl)
        has none, nor has a folder that holds such files itself: leave both out; then there is no evaluation set.
    inputs : names of what was recorded along with the motion: columns of tables, keys of archives.
    pieces : cut recordings into pieces of so many seconds; None leaves them whole.
    options : for the reader, e.g. {dt = 0.01} for pickles.
    rules : a table of fields of `training.data.Rules`.
    held_out : share of the training recordings that training never sees: early stopping and choices look at these.
        With 0 there are none: they look at what is trained on, and say so.
    """

    path: Name
    train: Word | None = "train"
    eval: Word | None = "eval"
    inputs: list[Name] = []
    pieces: float | None = Field(None, gt=0, le=1e9)
    options: dict[str, Any] = {}
    rules: Annotated[Rules, BeforeValidator(_rules)] = Rules()
    held_out: float = Field(0.2, ge=0, lt=1)

    @model_validator(mode="before")
    @classmethod
    def _single_files_have_no_splits(cls, given: Any) -> Any:
        if not isinstance(given, dict) or not isinstance(given.get("path"), str):
            return given
        named = [name for name in ("train", "eval") if given.get(name) is not None]
        if not given["path"].lower().endswith(WITHOUT_SPLITS):
            return given if named or not holds_recordings(given["path"]) else {**given, "train": None, "eval": None}
        if named:
            raise ValueError(f"{named[0]}: {given['path']} has no splits: leave train and eval out")
        return {**given, "train": None, "eval": None}

    @field_validator("options")
    @classmethod
    def _place_and_split_stand_elsewhere(cls, options: dict[str, Any]) -> dict[str, Any]:
        twice = [name for name in options if name in ("path", "split", "inputs")]
        if twice:
            raise ValueError(
                f"{twice[0]} is no option of a reader: say data.path, data.train, data.eval and data.inputs"
            )
        return options

    @model_validator(mode="after")
    def _eval_names_files(self) -> Data:
        if self.eval in OWN_FILES:
            raise ValueError(f"eval: {self.eval}.json is a file of the run itself: give the split another name")
        return self


class Robot(Table):
    """A rod whose nodes are the markers; rest lengths are measured: the medians over the training recordings.

    Attributes
    ----------
    gripped : nodes whose motion is given, negative ones counted from the end.
    hold : what is gripped: "nodes" only, so that the rod bends at the last of them over half of either edge, or the
        "direction", too, in which it leaves them: that of the gripped edge, exact at the last node.
    hold_twist : edges between gripped nodes do not turn about themselves.
    linear_density : [kg/m]. Positions cannot tell it: it sets the scale of all forces.
    bending, twisting : EI [N m^2] and GJ [N m^2] to start from; stretching : EA [N].
    relaxation_time : of bending and twisting [s] (Kelvin-Voigt); drag : force per length and velocity [Pa s].
    hysteresis : how stiffly strands that rub on each other resist bending before they slide, as a share of `bending`;
        what they remember is not measured, so a window begins as if they had never slid.
    hysteresis_limit : the curvature [1/m] that they resist at most (`elastic.Dahl`).
    gravity : [m/s^2].
    """

    gripped: list[int] = Field(min_length=1)
    hold: Literal["nodes", "direction"] = "nodes"
    hold_twist: bool = True
    linear_density: float = Field(0.1, gt=1e-9, le=1e6)
    bending: Stiffness = 5e-3
    twisting: Stiffness = 3e-3
    stretching: Stiffness = 2e3
    relaxation_time: float = Field(0.01, gt=1e-12, le=1e6)
    drag: float = Field(0.02, gt=1e-12, le=1e9)
    hysteresis: float = Field(0.0, ge=0, le=1e3)
    hysteresis_limit: float = Field(1.0, gt=1e-6, le=1e6)
    gravity: tuple[Gravity, Gravity, Gravity] = Field((0.0, 0.0, -9.81), strict=False)


class Constant(Table):
    """Constants of the model that training may change, together.

    Attributes
    ----------
    tensors : names from `torchdismech.trainable.constants`; of a robot from a scene also "added_mass" of the nodes
        (beyond the scene's `[[mass]]`, zero at the start), "markers.position", "markers.rotation", "clamp0.position",
        "clamp0.rotation", ..., "NAME.gain", "NAME.offset".
    kind : "factor" (positive stays positive) or "shift".
    per : one number for all, or one for each "element" of the tensor.
    elements : with per = "element" the only ones that change, counted through.
    unit : of a shift: the size of a change that matters.
    mean : what is likely before anything is measured: the value of the first tensor, one or one for each element; by
        default what the model starts with.
    spread : its standard deviation, of a factor as a share (0.2 is 20 %), of a shift in the constant's unit, one or one
        for each element; by default anything is equally likely.
    """

    tensors: list[str] = Field(min_length=1)
    kind: Literal["factor", "shift"] = "factor"
    per: Literal["all", "element"] = "all"
    elements: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(None, min_length=1)
    unit: float | None = Field(None, gt=1e-15, le=1e12)
    mean: float | list[float] | None = None
    spread: PositiveNumber | list[PositiveNumber] | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> Constant:
        if (self.unit is None) == (self.kind == "shift"):
            raise ValueError("unit is needed for a shift and has no meaning for a factor")
        if self.elements is not None and self.per == "all":
            raise ValueError('elements are chosen among single ones: set per = "element"')
        if self.mean is not None and self.spread is None:
            raise ValueError("mean: a prior needs a spread, too")
        return self


class Term(Table):
    """A learned term.

    Attributes
    ----------
    kind : "force", "energy" (on `strain`) or "dissipation" (on the rates of `strain`).
    network : its name in `models.FORCES` or `models.ENERGIES`; or "file.py:Name", a `forces.Force` or `elastic.Energy`
        of the user's, relative to the working directory, made with `options`.
    strain : "bend_twist" or "stretch".
    replace : put the energy in place of the linear one.
    options : for the network's constructor.
    """

    kind: Literal["force", "energy", "dissipation"]
    network: str
    strain: Literal["bend_twist", "stretch"] = "bend_twist"
    replace: bool = False
    options: dict[str, Any] = {}

    @property
    def code(self) -> str | None:
        """The Python file and the name in it; None for one of `models`."""
        return self.network if ":" in self.network else None

    @field_validator("network")
    @classmethod
    def _name_or_code(cls, network: str) -> str:
        return TypeAdapter(NamedCode).validate_python(network) if ":" in network else network


class Simulation(Table):
    """How steps are taken.

    Attributes
    ----------
    integrator : "implicit_euler", "implicit_midpoint" or "newmark".
    substeps : steps between two frames.
    force_tolerance : [N], at most 1; relative_tolerance : of the forces at play.
    max_substeps : parts that a failing step is divided into.
    compile : true, false, or "auto": compile what steps evaluate where the fit is long.
    """

    integrator: Literal["implicit_euler", "implicit_midpoint", "newmark"] = "implicit_euler"
    substeps: int = Field(1, ge=1, le=1000)
    force_tolerance: float = Field(1e-6, gt=1e-15, le=1)
    relative_tolerance: float = Field(1e-6, ge=0, le=0.01)
    max_substeps: int = Field(4, ge=0, le=1024)
    compile: Literal["auto", True, False] = "auto"


class Logging(Table):
    """What goes to TensorBoard how often.

    Attributes
    ----------
    every : iterations between scalars.
    shapes_at : times [s] at which simulated and measured shapes are drawn.
    save_every : iterations between checkpoints.
    pictures_every : looks at the held-out recordings from one with shapes, mesh and movie to the next; the first has
        them, and so has the end.
    """

    every: int = Field(1, ge=1)
    shapes_at: list[Annotated[float, Field(ge=0, le=1e9)]] = Field([0.1, 0.5, 1.0, 2.0, 4.0], max_length=20)
    save_every: int = Field(20, ge=1)
    pictures_every: int = Field(5, ge=1)


def _kind_of_robot(given: Any) -> str:
    """Return which table a robot is: tags stay out of messages (see `options.faults`)."""
    scene = "scene" in given if isinstance(given, dict) else isinstance(given, SceneRobot)
    return "(SceneRobot)" if scene else "(Robot)"


AnyRobot = Annotated[
    Annotated[Robot, Tag("(Robot)")] | Annotated[SceneRobot, Tag("(SceneRobot)")], Discriminator(_kind_of_robot)
]


class Config(Table):
    """A fit: of a rod whose nodes are the markers, of a robot that a scene describes, or of a `system` of the user's.

    Attributes
    ----------
    name : of the run: its folder by default, and its place in TensorBoard.
    seed : of all that is drawn: windows, noise, first weights, and which recordings are held out.
    device : "auto" takes CUDA where there is some; of several processes each takes a GPU of its own.
    physics : false fits a network without a rod: the baseline `models.FreeNodes`.
    system : "file.py:Name", a class derived from `training.system.System`, relative to the working directory.
    options : for its constructor.
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
        """What messages call it: the file that it was read from."""
        return self._file

    @property
    def of_chain(self) -> bool:
        """Whether markers are the nodes of a chain."""
        return isinstance(self.robot, Robot)

    @property
    def code(self) -> list[str]:
        """Python files that the config runs, without those that a scene names."""
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
        if self.system is None and self.options:
            raise ValueError("options are for a system: leave them out")
        return self

    @model_validator(mode="after")
    def _something_to_train(self) -> Config:
        names = [stage.name for stage in self.stages]
        if len({name.casefold() for name in names}) < len(names):  # some disks do not tell A from a
            raise ValueError(f"two stages of the same name: {', '.join(names)}")
        if not self.physics and (self.constants or self.terms):
            raise ValueError("without physics there are no constants and no terms: leave them out")
        if self.physics and self.baseline:
            raise ValueError("baseline holds options of the network without physics: set physics = false")
        if self.system is not None:
            return self  # it says itself what it has
        there = {"constants"} if self.constants else set()
        modules = [drive for drive in self.drives.values() if drive.module is not None]
        there |= {"learned"} if self.terms or modules or not self.physics else set()
        there |= {"starts"} if self.start is not None and self.start.velocity == "fitted" else set()
        for stage in self.stages:
            missing = sorted(set(stage.train) - there)
            if missing:
                raise ValueError(f"stage {stage.name!r} trains {', '.join(missing)}, of which there are none")
        return self


def load(path: str | Path, settings: Sequence[str] = ()) -> Config:
    """Return the config of a TOML (or JSON) file, with settings "a.b=value" on top (values as in TOML, or plain text).

    Raises
    ------
    InputError
        The file cannot be read; a field is unknown, missing or wrong: it is named.
    """
    path = Path(path)
    text = text_of(path)
    try:
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "a number of thousands of digits" if "int_max_str_digits" in str(error) else error
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise InputError(f"{path}: expected the config of a fit, in TOML (or .json), no {kind}: {reason}") from error
    if not isinstance(tables, dict):
        raise InputError(f"{path}: expected a table of fields, got {type(tables).__name__}")
    if tables.keys() & OF_SCENES and not tables.keys() & OF_FITS:
        raise InputError(
            f"{path}: is a scene: expected the config of a fit, which names it: robot = {{scene = "
            f'"{path.name}"}} (docs/training.md)'
        )
    for setting in settings:
        _put(tables, setting)
    try:
        config = Config.model_validate(tables)
    except ValidationError as error:
        raise InputError(f"{path}: {faults(error, Config)}") from error
    config._file = str(path)
    return config


def _put(tables: dict[str, Any], setting: str) -> None:
    """Set "a.b.0.c=value" in nested tables."""
    key, equals, text = setting.partition("=")
    if not (equals and key):
        raise InputError(f"--set: expected key=value, got {setting!r}")
    *way, last = key.strip().split(".")
    at: Any = tables
    for name in way:
        if isinstance(at, list):
            at = at[_index(at, name, setting)]
        else:
            if at.get(name) is None:  # JSON says null where a table is missing
                at[name] = {}
            at = at[name]
        if not isinstance(at, (dict, list)):
            raise InputError(f"--set {setting}: {name} holds a value, not a table")
    at[_index(at, last, setting) if isinstance(at, list) else last] = _value(text.strip())


def _index(items: list[Any], name: str, setting: str) -> int:
    """Return the place in a list that a number, or the `name` of a table in it, stands for."""
    for k, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == name:
            return k
    if name.isdecimal() and len(name) < 10 and int(name) < len(items):
        return int(name)
    raise InputError(f"--set {setting}: {name!r} is not in the list of {len(items)}")


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        return text
