"""The tables [constants] and [terms] of a config: what training may change of a model, and what it adds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, field_validator, model_validator

from training.config.base import NamedCode, Table

__all__ = ["Constant", "Term"]

PositiveNumber = Annotated[float, Field(gt=1e-15, le=1e15)]


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
