"""The recordings of a split that a config names: repaired, for training and starts, or as measured, for errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torchdismech import InputError
from training import data
from training.config import Config

__all__ = ["measured_recordings", "prepared_recordings"]


def prepared_recordings(config: Config, split: str | None) -> tuple[data.Recordings, list[str]]:
    """Return the checked and repaired recordings of a split, and a message for each repair."""
    recordings = _as_they_are(config, split)
    with _rules_named_as_in_config():
        return data.prepared(recordings, config.data.rules, config.of_chain)


def measured_recordings(config: Config, split: str | None) -> data.Recordings:
    """Return the recordings that errors of a split are measured against.

    Units and the order of nodes are repaired, but gaps and spikes stay as they were measured.
    """
    recordings = _as_they_are(config, split)
    with _rules_named_as_in_config():
        return data.in_order(recordings, config.data.rules, config.of_chain)[0]


@contextmanager
def _rules_named_as_in_config() -> Iterator[None]:
    """Call rules in error messages by their keys in the config, which is where users set them: data.rules.KEY."""
    try:
        yield
    except InputError as error:
        raise InputError(str(error).replace("Rules.", "data.rules.")) from error


def _as_they_are(config: Config, split: str | None) -> data.Recordings:
    """Return the recordings of a split as they are read, cut into pieces where the config says so."""
    inputs = {"inputs": tuple(config.data.inputs)} if config.data.inputs else {}
    recordings = data.read(config.data.path, split, **inputs, **config.data.options)
    return recordings if config.data.pieces is None else recordings.pieces(config.data.pieces)
