"""Numbers from CSV files; those over time are linear between the rows, held before the first and after the last."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, shown
from torchdismech.io.dismech import NUMBER

__all__ = ["TimeTable", "read_rows", "read_time_table"]


@dataclass(frozen=True)
class TimeTable:
    """Numbers (T, C) at the times (T,) [s]."""

    times: Tensor
    values: Tensor

    def at(self, time: Tensor) -> Tensor:
        """Return the numbers at the times (B,), as (B, C)."""
        times, values = self.times.to(time), self.values.to(time)
        if len(times) == 1:
            return values.expand(len(time), -1)
        after = torch.searchsorted(times, time.contiguous()).clamp(1, len(times) - 1)
        before = after - 1
        part = ((time - times[before]) / (times[after] - times[before])).clamp(0, 1)[:, None]
        return torch.lerp(values[before], values[after], part)


def read_time_table(path: Path, columns: dict[int, str]) -> TimeTable:
    """Read rows of time and numbers.

    Parameters
    ----------
    columns : the numbers of columns that are right, besides the time, and what they are then.

    Raises
    ------
    InputError
        Named with file and line: a missing file, no rows, a wrong number of columns, what is not a finite number, times
        that do not increase.
    """
    rows: list[list[float]] = []
    for where, row in _rows(path):
        if len(row) - 1 not in columns:
            expected = " or ".join(f"{n + 1} (time, {what})" for n, what in columns.items())
            raise InputError(f"{where}: expected {expected} columns, got {len(row)}")
        if rows and len(row) != len(rows[0]):
            raise InputError(f"{where}: expected {len(rows[0])} columns as in the rows before, got {len(row)}")
        if rows and row[0] <= rows[-1][0]:
            raise InputError(f"{where}: expected a time after {rows[-1][0]} (times increase), got {row[0]}")
        rows.append(row)
    if not rows:
        raise InputError(f"{path}: no rows; expected time and {' or '.join(columns.values())}")
    table = torch.tensor(rows, dtype=torch.float64)
    return TimeTable(table[:, 0].contiguous(), table[:, 1:].contiguous())


def read_rows(path: Path, count: int, columns: Sequence[str], what: str) -> Tensor:
    """Read so many rows of numbers, (count, columns).

    Parameters
    ----------
    what : of which a row is.

    Raises
    ------
    InputError
        Named with file and line: a missing file, a wrong number of rows or columns, what is not a finite number.
    """
    rows = []
    for where, row in _rows(path):
        if len(row) != len(columns):
            raise InputError(f"{where}: expected {len(columns)} ({', '.join(columns)}) columns, got {len(row)}")
        rows.append(row)
    if len(rows) != count:
        raise InputError(f"{path}: expected {count} rows, one for each {what}, got {len(rows)}")
    return torch.tensor(rows, dtype=torch.float64).reshape(count, len(columns))


def _rows(path: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield where each row of numbers is and its numbers; a header and comments are left out."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8); expected CSV") from error
    header_possible = True
    for number, fields in enumerate(_lines(path, text), start=1):
        stripped = [field.strip() for field in fields]
        if not any(stripped) or stripped[0].startswith("#"):
            continue
        row = _row(f"{path}:{number}", stripped, header_possible)
        header_possible = False
        if row is not None:
            yield f"{path}:{number}", row


def _lines(path: Path, text: str) -> Iterator[list[str]]:
    """Yield the fields of each line."""
    reader = csv.reader(text.splitlines())
    try:
        yield from reader
    except csv.Error as error:  # a field of more than 131072 characters
        raise InputError(f"{path}:{reader.line_num}: not a row of numbers: {error}") from error


def _row(where: str, fields: list[str], header_possible: bool) -> list[float] | None:
    """Return the numbers of a row, or None for the header."""
    numbers = []
    for field in fields:
        if not NUMBER.fullmatch(field):
            # a header has no numbers at all; one bad number among good ones is a mistake
            if header_possible and not any(_is_number(f) for f in fields):
                return None
            raise InputError(f"{where}: expected a number, got {shown(field)}")
        numbers.append(float(field))
    if not np.isfinite(numbers).all():
        raise InputError(f"{where}: expected finite numbers, got {shown(fields)}")
    return numbers


def _is_number(field: str) -> bool:
    """Return whether Python reads a number: a first row with one is no header, even if it is a mistaken one."""
    try:
        float(field)
    except ValueError:
        return False
    return True
