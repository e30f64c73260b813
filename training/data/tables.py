"""Recordings from tables of marker tracks: `time,x0,y0,z0,x1,...` [s, m]; an empty cell is a gap.

Other columns are inputs, which are read where they are asked for by name.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from torchdismech.errors import InputError
from training.data.file_checks import refuse_oversized
from training.data.stacking import Single, time_step

__all__ = ["read_table"]

# x0 or marker_0_x
COLUMN = re.compile(r"(?P<axis>[xyz])(?P<node>[0-9]{1,6})|marker_(?P<marker>[0-9]{1,6})_(?P<of>[xyz])")
# names that begin like those and do not match them: misspelt ones
MISNAMED = re.compile(r"[xyz][0-9]|marker")
BYTES_A_BYTE = 10  # in memory for a byte of the file: each cell is an object of 60 bytes before it is a number


def read_table(path: Path, inputs: tuple[str, ...] = ()) -> Single:
    """Return the recording of a file.

    Parameters
    ----------
    inputs : names of the columns that hold inputs. With inputs, unknown columns are ignored, unless their names begin
        like those of markers; without, they are refused.

    Raises
    ------
    InputError
        A column is missing or unknown, a cell is no number, a row is too short, or the time does not tick evenly.
    """
    refuse_oversized(path, BYTES_A_BYTE * path.stat().st_size)
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            numbered = [(reader.line_num, row) for row in reader if row]  # numbers of the file's lines, blank ones too
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path}: not a table of text: {error}; expected comma separated values") from error
    rows = dict(numbered)
    if not rows:
        raise InputError(f"{path}: empty; expected a header time,x0,y0,z0,x1,... and a row for each frame")
    named = [name.strip() for name in rows.pop(min(rows))]
    own = [_input(named, name, path) for name in inputs]
    header = [name if column in own else name.lower() for column, name in enumerate(named)]
    time_column, columns = _columns(header, path, own)
    cells = _cells(rows, header, path)
    time = cells[:, time_column]
    if not np.isfinite(time).all():
        row = list(rows)[int(np.argmin(np.isfinite(time)))]
        raise InputError(f"{path}: row {row}: no time; expected seconds in each row")
    values = cells[:, own] if inputs else None
    return Single(path.name, cells[:, columns], time_step(time, str(path)), values, inputs, float(time[0]))


def _input(named: list[str], name: str, path: Path) -> int:
    """Return the index of an input's column, whose name has to be spelt as in the header, capitals included."""
    if name not in named:
        raise InputError(
            f"{path}: no column {name!r:.80}; expected it among the inputs, spelt as in the header; there are: "
            f"{', '.join(named)}"
        )
    if named.count(name) > 1:
        raise InputError(
            f"{path}: {named.count(name)} columns named {name!r:.80}; expected one, as it is among the inputs: rename "
            "the others"
        )
    return named.index(name)


def _columns(header: list[str], path: Path, inputs: list[int]) -> tuple[int, np.ndarray]:
    """Return the index of the time's column and those of the nodes' coordinates, (N, 3); inputs are passed over."""
    places: dict[tuple[int, str], int] = {}
    for column, name in enumerate(header):
        if name == "time" or column in inputs:
            continue
        match = COLUMN.fullmatch(name)
        if match is None and inputs and not MISNAMED.match(name):
            continue
        if match is None:
            raise InputError(
                f"{path}: unknown column {name!r:.80}; expected time, x0, y0, z0, x1, ... or marker_0_x, ...: rename it"
            )
        place = int(match["node"] or match["marker"] or 0), match["axis"] or match["of"]
        if place in places:
            raise InputError(f"{path}: the columns {header[places[place]]!r} and {name!r} are the same axis of a node")
        places[place] = column
    if header.count("time") != 1:
        raise InputError(f"{path}: {header.count('time')} columns named time; expected one, in seconds")
    nodes = 1 + max((node for node, _ in places), default=-1)
    if len(places) != 3 * nodes:
        missing = (f"{axis}{node}" for node in range(nodes) for axis in "xyz" if (node, axis) not in places)
        raise InputError(f"{path}: no column {next(missing)}; expected x, y, z of the nodes 0, 1, ...")
    if nodes == 0:
        raise InputError(f"{path}: no nodes; expected columns x0, y0, z0, x1, ...")
    columns = np.array([[places[node, axis] for axis in "xyz"] for node in range(nodes)])
    return header.index("time"), columns


def _cells(rows: Mapping[int, list[str]], header: list[str], path: Path) -> np.ndarray:
    """Return the cells (rows, columns) as float64, NaN where they are empty, of rows by their numbers in the file."""
    cells = np.full((len(rows), len(header)), np.nan)
    for r, (number, row) in enumerate(rows.items()):
        if len(row) != len(header):
            raise InputError(f"{path}: row {number} has {len(row)} cells; expected {len(header)}, as in the header")
        for c, text in enumerate(row):
            if not text.strip():
                continue
            try:
                cells[r, c] = _number(text.strip())
            except ValueError as error:
                raise InputError(
                    f"{path}: row {number}, column {header[c]}: {text!r:.80}; expected a number or nothing"
                ) from error
    return cells


def _number(text: str) -> float:
    """Return the number of a cell; refuse 1_0 for ten and digits of other alphabets, which Python would take."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)
