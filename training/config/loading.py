"""`load`: a config from its TOML or JSON file, with `--set key=value` on top."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from torchdismech.errors import InputError, path_of, refuse_other_kind
from torchdismech.io.scene.names import setting as parsed
from training.config.config import Config
from training.files import text_of
from training.options import faults

__all__ = ["load"]

OF_SCENES = {"rod", "shell", "environment", "clamp"}  # tables that scenes have, and configs of fits have not
OF_FITS = {"data", "stages"}  # tables that every config of a fit has, and scenes have not


def load(path: str | Path, settings: Sequence[str] = ()) -> Config:
    """Return the config of a TOML (or JSON) file, with settings "a.b=value" on top (values as in TOML, or plain text).

    Raises
    ------
    InputError
        The file cannot be read; a field is unknown, missing or wrong: it is named.
    """
    path = path_of(path, "load")
    text = text_of(path)
    try:
        tables = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        reason = "a number of thousands of digits" if "int_max_str_digits" in str(error) else error
        kind = "JSON" if path.suffix == ".json" else "TOML"
        raise InputError(f"{path}: expected the config of a fit, in TOML (or .json), no {kind}: {reason}") from error
    refuse_other_kind(str(path), tables, dict, "a table of fields")
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
        raise InputError(f"{path}: {faults(error, tables, Config)}") from error
    config._file = str(path)
    return config


def _put(tables: dict[str, Any], setting: str) -> None:
    """Set "a.b.0.c=value" in nested tables."""
    key, value = parsed(setting)
    *way, last = key.split(".")
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
    at[_index(at, last, setting) if isinstance(at, list) else last] = value


def _index(items: list[Any], name: str, setting: str) -> int:
    """Return the index in a list for a part of a key: the `name` of a table in the list, or a number."""
    for k, item in enumerate(items):
        if isinstance(item, dict) and item.get("name") == name:
            return k
    if name.isdecimal() and len(name) < 10 and int(name) < len(items):
        return int(name)
    raise InputError(f"--set {setting}: {name!r} is not in the list of {len(items)}")
