"""The table [data] of a config: where the recordings are, and what is expected of them."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, field_validator, model_validator

from training.config.base import Name, Table, Word
from training.data import WITHOUT_SPLITS, Rules, holds_recordings
from training.options import checked

__all__ = ["Data"]

OWN_FILES = ("config", "metrics", "certainty")  # names of .json files in a run's folder, which no split may take


def _rules(given: Any) -> Any:
    """Return the `Rules` that a table of the config sets."""
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
    train, eval : names of the splits to train on and to evaluate on: keys of an archive, or subfolders. A file without
        splits (.csv, .h5, .pkl) has none, nor has a folder that holds such files itself: leave both out; then there is
        no evaluation set.
    inputs : names of what was recorded along with the motion: columns of tables, keys of archives.
    pieces : cut recordings into pieces of so many seconds; None leaves them whole.
    options : further arguments of the reader, e.g. {dt = 0.01} for pickles.
    rules : a table of fields of `training.data.Rules`.
    held_out : share of the training recordings that no gradient sees: early stopping and the choice of the best weights
        use these. With 0 none are held out: the recordings that are trained on stand in for them, with a warning.
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
