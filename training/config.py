"""What a fit is made of: a TOML file, checked field by field, with `--set key=value` on top."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)
from torch import nn

from torchdismech.errors import InputError
from training.data import Rules
from training.files import text_of
from training.options import checked, faults

__all__ = ["Config", "Constant", "Data", "Logging", "Loss", "Noise", "Robot", "Simulation", "Stage", "Term", "load"]


# What is far beyond any robot is a slip of the keyboard, and would end in overflow many steps later.
Stiffness = Annotated[float, Field(gt=1e-15, le=1e12)]
Gravity = Annotated[float, Field(ge=-1e4, le=1e4)]
OWN_FILES = ("config", "metrics")  # .json in the folder of a run


def _names_files(name: str) -> str:
    if not re.fullmatch(r"\w[\w .+-]{0,79}", name):
        raise ValueError(f"names files: expected letters, digits, blanks and . + - _, got {name!r:.99}")
    return name


def _names_attributes(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_]\w{0,79}", name) or hasattr(nn.ModuleDict(), name):
        raise ValueError(f"expected a name of letters, digits and _ that means nothing to PyTorch, got {name!r:.99}")
    return name


def _printable(name: str) -> str:
    if not name or not name.isprintable():
        raise ValueError(f"expected the name of a file or folder, got {name!r:.99}")
    return name


Word = Annotated[str, AfterValidator(_names_files)]
Identifier = Annotated[str, AfterValidator(_names_attributes)]


def _rules(given: Any) -> Any:
    """Return the rules of a table."""
    if isinstance(given, Rules):
        return given
    if not isinstance(given, dict):
        raise ValueError(f"expected a table, got {given!r:.80}")
    return Rules(**checked(Rules, given, ""))


class Table(BaseModel):
    """A table of the file: no field that is not known, no number that is text or infinite."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, str_max_length=1000, allow_inf_nan=False)


class Data(Table):
    """Where the recordings are and what is expected of them.

    Attributes
    ----------
    path : file or folder, as `training.data.read` takes it; relative to the working directory.
    train, eval : names of the splits; None where the file has none (then there is no evaluation set).
    options : for the reader, e.g. {dt = 0.01} for pickles.
    rules : a table of fields of `training.data.Rules`.
    held_out : share of the training recordings that training never sees: early stopping and choices look at these.
    """

    path: Annotated[str, AfterValidator(_printable)]
    train: Word | None = "train"
    eval: Word | None = "eval"
    options: dict[str, Any] = {}
    rules: Annotated[Rules, BeforeValidator(_rules)] = Rules()
    held_out: float = Field(0.2, gt=0, lt=1)

    @field_validator("options")
    @classmethod
    def _place_and_split_stand_elsewhere(cls, options: dict[str, Any]) -> dict[str, Any]:
        twice = [name for name in options if name in ("path", "split")]
        if twice:
            raise ValueError(f"{twice[0]} is no option of a reader: say data.path, data.train and data.eval")
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
    hold_twist : edges between gripped nodes do not turn about themselves.
    linear_density : [kg/m]. Positions cannot tell it: it sets the scale of all forces.
    bending, twisting : EI [N m^2] and GJ [N m^2] to start from; stretching : EA [N].
    relaxation_time : of bending and twisting [s] (Kelvin-Voigt); drag : force per length and velocity [Pa s].
    gravity : [m/s^2].
    """

    gripped: list[int] = Field(min_length=1)
    hold_twist: bool = True
    linear_density: float = Field(0.1, gt=1e-9, le=1e6)
    bending: Stiffness = 5e-3
    twisting: Stiffness = 3e-3
    stretching: Stiffness = 2e3
    relaxation_time: float = Field(0.01, gt=1e-12, le=1e6)
    drag: float = Field(0.02, gt=1e-12, le=1e9)
    gravity: tuple[Gravity, Gravity, Gravity] = Field((0.0, 0.0, -9.81), strict=False)


class Constant(Table):
    """Constants of the model that training may change, together.

    Attributes
    ----------
    tensors : names from `torchdismech.trainable.constants`.
    kind : "factor" (positive stays positive) or "shift".
    per : one number for all, or one for each "element" of the tensor.
    unit : of a shift: the size of a change that matters.
    """

    tensors: list[str] = Field(min_length=1)
    kind: Literal["factor", "shift"] = "factor"
    per: Literal["all", "element"] = "all"
    unit: float | None = Field(None, gt=1e-15, le=1e12)

    @model_validator(mode="after")
    def _unit_belongs_to_shifts(self) -> Constant:
        if (self.unit is None) == (self.kind == "shift"):
            raise ValueError("unit is needed for a shift and has no meaning for a factor")
        return self


class Term(Table):
    """A learned term.

    Attributes
    ----------
    kind : "force", "energy" (on `strain`) or "dissipation" (on the rates of `strain`).
    network : its name in `models.FORCES` or `models.ENERGIES`.
    strain : "bend_twist" or "stretch".
    replace : put the energy in place of the linear one.
    options : for the network's constructor.
    """

    kind: Literal["force", "energy", "dissipation"]
    network: str
    strain: Literal["bend_twist", "stretch"] = "bend_twist"
    replace: bool = False
    options: dict[str, Any] = {}


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


class Loss(Table):
    """Mean over coordinates of a robust distance, in metres: |d| far from zero, d^2 / (2 scale) near it.

    Attributes
    ----------
    scale : where the one becomes the other [m]: about the noise of the markers.
    """

    scale: float = Field(1e-3, gt=1e-9, le=1e3)


class Noise(Table):
    """Noise on where windows start, so that errors on the way are met in training.

    Attributes
    ----------
    position, velocity : standard deviations of free nodes [m], [m/s].
    """

    position: float = Field(0.0, ge=0, le=10)
    velocity: float = Field(0.0, ge=0, le=1e3)


class Stage(Table):
    """One stage of training.

    Attributes
    ----------
    train : which groups of parameters move: "constants", "learned", or both.
    iterations : number of batches.
    horizon : frames to predict; several are taken in turn for equal shares of the iterations.
    batch : windows a batch, over all processes.
    rates : learning rate by group; decay : factor that the rates reach at the end, following a cosine.
    clip : largest norm of a group's gradient.
    check_every : iterations between two looks at the held-out recordings; patience : looks without a better one
        before the stage ends.
    checkpoint_every : see `torchdismech.unroll`.
    """

    name: Word
    train: list[Literal["constants", "learned"]] = Field(min_length=1)
    iterations: int = Field(ge=1, le=10_000_000)
    horizon: list[Annotated[int, Field(ge=1)]] = Field([50, 100], min_length=1)
    batch: int = Field(24, ge=1, le=100_000)
    rates: dict[Literal["constants", "learned"], Annotated[float, Field(gt=0, le=10)]] = {
        "constants": 0.03,
        "learned": 1e-3,
    }
    decay: float = Field(0.1, gt=0, le=1)
    clip: float = Field(1.0, gt=0)
    check_every: int = Field(20, ge=1)
    patience: int = Field(5, ge=1)
    checkpoint_every: int | None = Field(None, ge=1)

    @model_validator(mode="after")
    def _complete(self) -> Stage:
        missing = [group for group in self.train if group not in self.rates]
        if missing:
            raise ValueError(f"rates has no entry for {', '.join(missing)}")
        if len(set(self.train)) < len(self.train):
            raise ValueError(f"train names a group twice: {', '.join(self.train)}")
        return self


class Logging(Table):
    """What goes to TensorBoard how often.

    Attributes
    ----------
    every : iterations between scalars.
    shapes_at : times [s] at which simulated and measured shapes are drawn.
    save_every : iterations between checkpoints.
    """

    every: int = Field(1, ge=1)
    shapes_at: list[Annotated[float, Field(ge=0, le=1e9)]] = Field([0.1, 0.5, 1.0, 2.0, 4.0], max_length=20)
    save_every: int = Field(20, ge=1)


class Config(Table):
    """A fit. `physics = false` fits a network without a rod: the baseline `models.FreeNodes`.

    `device` "auto" takes CUDA where there is some; of several processes each takes a GPU of its own.
    """

    name: Word
    seed: int = Field(0, ge=0, lt=2**32)
    device: Literal["auto", "cpu", "cuda"] = "auto"
    physics: bool = True
    data: Data
    robot: Robot
    simulation: Simulation = Simulation()
    constants: dict[Identifier, Constant] = {}
    terms: dict[Identifier, Term] = {}
    baseline: dict[str, Any] = {}
    loss: Loss = Loss()
    noise: Noise = Noise()
    stages: list[Stage] = Field(min_length=1)
    logging: Logging = Logging()

    @model_validator(mode="after")
    def _something_to_train(self) -> Config:
        there = {"constants"} if self.constants and self.physics else set()
        there |= {"learned"} if self.terms or not self.physics else set()
        if not self.physics and (self.constants or self.terms):
            raise ValueError("without physics there are no constants and no terms: leave them out")
        if self.physics and self.baseline:
            raise ValueError("baseline holds options of the network without physics: set physics = false")
        names = [stage.name for stage in self.stages]
        if len({name.casefold() for name in names}) < len(names):  # some disks do not tell A from a
            raise ValueError(f"two stages of the same name: {', '.join(names)}")
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
        raise InputError(f"{path}: no {path.suffix[1:].upper() or 'TOML'} that can be read: {reason}") from error
    if not isinstance(tables, dict):
        raise InputError(f"{path}: expected a table of fields, got {type(tables).__name__}")
    for setting in settings:
        _put(tables, setting)
    try:
        return Config.model_validate(tables)
    except ValidationError as error:
        raise InputError(f"{path}: {faults(error)}") from error


def _put(tables: dict[str, Any], setting: str) -> None:
    """Set "a.b.0.c=value" in nested tables."""
    key, equals, text = setting.partition("=")
    if not (equals and key):
        raise InputError(f"--set: expected key=value, got {setting!r}")
    *way, last = key.strip().split(".")
    at: Any = tables
    for name in way:
        at = at[_index(at, name, setting)] if isinstance(at, list) else at.setdefault(name, {})
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
