"""The tables of a fit's config that say how it is trained: loss, noise, stages."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from training.config.base import Table, Word

__all__ = ["OF_ADAM", "Loss", "Noise", "Stage"]

OF_ADAM = ("rates", "decay", "clip", "checkpoint_every")  # fields that only stages by Adam have


class Loss(Table):
    """Mean over coordinates of a robust distance, in metres: |d| far from zero, d^2 / (2 scale) near it.

    Attributes
    ----------
    scale : distance at which the loss turns from quadratic to linear [m]: about the noise of the markers. It also sets
        how much measurements weigh against priors.
    markers : indices of the markers that count in the loss and in errors; by default all do. Predictions may still
        start from the others.
    """

    scale: float = Field(1e-3, gt=1e-9, le=1e3)
    markers: list[Annotated[int, Field(ge=0, lt=2**31)]] | None = Field(None, min_length=1)


class Noise(Table):
    """Noise on the starts of windows, so that training meets states that are off; not in "gauss_newton" stages.

    Attributes
    ----------
    position : standard deviation on the positions of free nodes [m].
    velocity : standard deviation on their velocities [m/s]; it needs windows that start from two frames.
    """

    position: float = Field(0.0, ge=0, le=10)
    velocity: float = Field(0.0, ge=0, le=1e3)


Group = Literal["constants", "learned", "starts"]


class Stage(Table):
    """One stage of training.

    Attributes
    ----------
    name : name of the stage: its weights are kept as after-NAME.
    train : groups of parameters that are trained: "constants", "learned", and "starts" where starts are fitted.
    method : "adam": a batch of other windows in each iteration. "gauss_newton": for constants (and starts); each
        iteration is a step to the optimum of `batch` windows, the same ones as long as the horizon stays, without noise
        on their starts. Where a step brings next to nothing the next horizon follows, and after the last one the stage
        ends, so a few iterations do; it has no rates, decay and clip.
    iterations : number of batches.
    horizon : frames to predict; several are taken in turn for equal shares of the iterations.
    batch : windows in a batch, over all processes.
    rates : learning rate by group; decay : factor on the rates at the end of the stage, reached along a cosine.
    clip : largest norm of a group's gradient, to which a longer one is shortened.
    check_every : iterations between two looks at the held-out recordings; patience : looks without a better one
        before the stage ends.
    checkpoint_every : steps between states that are kept for the backward pass; see `torchdismech.unroll`.
    """

    name: Word
    train: list[Group] = Field(min_length=1)
    method: Literal["adam", "gauss_newton"] = "adam"
    iterations: int = Field(ge=1, le=10_000_000)
    horizon: list[Annotated[int, Field(ge=1)]] = Field([50, 100], min_length=1)
    batch: int = Field(24, ge=1, le=100_000)
    rates: dict[Group, Annotated[float, Field(gt=0, le=10)]] = {"constants": 0.03, "learned": 1e-3, "starts": 0.05}
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
        if self.method == "gauss_newton":
            self._refuse_what_adam_has()
        return self

    def _refuse_what_adam_has(self) -> None:
        """Refuse groups other than constants and starts, and fields that only Adam uses."""
        if "constants" not in self.train or "learned" in self.train:
            raise ValueError(
                f'method: "gauss_newton" is for constants, and starts beside them: got {", ".join(self.train)}'
            )
        for name in self.changed(*OF_ADAM):
            raise ValueError(f'{name}: "gauss_newton" has none: leave it out')
