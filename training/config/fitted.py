"""The tables [constants] and [terms] of a config: constants of a model that are trained, and networks added to it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, field_validator, model_validator

from training.config.base import NamedCode, Table

__all__ = ["Constant", "Term"]

PositiveNumber = Annotated[float, Field(gt=1e-15, le=1e15)]


class Constant(Table):
    """Constants of the model that training changes together, by factors or shifts that they share.

    Attributes
    ----------
    tensors : names from `torchdismech.trainable.constants`; of a robot from a scene also "added_mass" of the nodes
        (beyond the scene's `[[mass]]`, zero at the start), "markers.position", "markers.rotation", "clamp0.position",
        "clamp0.rotation", ..., "NAME.gain", "NAME.offset".
    kind : "factor" (positive stays positive) or "shift".
    per : train one number for "all" elements, or one for each "element" of the tensor.
    elements : with per = "element" the flat indices of the elements that change; by default all do.
    unit : size of a change that matters, of a shift, in the constant's unit.
    mean : mean of the prior: the value of the first tensor that is likely before anything is measured, one number or
        one for each element; by default the value that the model starts with.
    spread : standard deviation of the prior, of a factor as a share (0.2 is 20 %), of a shift in the constant's unit,
        one number or one for each element; by default there is no prior.
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
    """A learned term: a network that adds a force, an energy or a dissipation to the model.

    Attributes
    ----------
    kind : "force", "energy" (on `strain`) or "dissipation" (on the rates of `strain`).
    network : its name in `models.FORCES` or `models.ENERGIES`; or "file.py:Name", a `forces.Force` or `elastic.Energy`
        of the user's, relative to the working directory, made with `options`.
    strain : "bend_twist" or "stretch".
    replace : put the energy in place of the linear one.
    options : arguments of the network's constructor, by name.
    """

    kind: Literal["force", "energy", "dissipation"]
    network: str
    strain: Literal["bend_twist", "stretch"] = "bend_twist"
    replace: bool = False
    options: dict[str, Any] = {}

    @property
    def code(self) -> str | None:
        """The user's network as "file.py:Name"; None for one of `models`."""
        return self.network if ":" in self.network else None

    @field_validator("network")
    @classmethod
    def _name_or_code(cls, network: str) -> str:
        return TypeAdapter(NamedCode).validate_python(network) if ":" in network else network
