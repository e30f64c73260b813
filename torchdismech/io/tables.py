"""Tables of numbers in files: text with commas, tabs or spaces, and the first sheet of an Excel workbook (.xlsx).

Tables over time are linear between their rows, and constant before the first and after the last.
"""

from __future__ import annotations

import csv
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, shown
from torchdismech.forces.over_time import between
from torchdismech.io.dismech import text_of
from torchdismech.system.memory import size_of
from torchdismech.values.given import NUMBER, tensor_of

__all__ = ["TimeTable", "first_of_times", "read_time_table", "read_vectors"]

LARGEST_WORKBOOK = 1 << 29  # bytes when unpacked: a small compressed file may unpack to any size
# what damaged workbooks make openpyxl raise
UNREADABLE = (zipfile.BadZipFile, KeyError, IndexError, ValueError, TypeError, AttributeError, SyntaxError, EOFError)


@dataclass(frozen=True)
class TimeTable:
    """Numbers over time: `values` (T, C), or (T, B, C) of each robot, at the increasing `times` (T,) [s]."""

    times: Tensor
    values: Tensor

    @classmethod
    def constant(cls, number: float | Tensor) -> TimeTable:
        """Return the table of one column that has the same number, or the same of each robot (B, 1), at all times."""
        return cls(torch.zeros(1, device="cpu"), tensor_of(number, torch.float64).reshape(1, -1, 1))

    def at(self, time: Tensor) -> Tensor:
        """Return the numbers (B, C) at the times (B,) [s], linear between rows and constant beyond them."""
        return between(self.times.to(time), self.values.to(time), time)


def read_time_table(path: Path, columns: dict[int, str]) -> TimeTable:
    """Read a table over time: rows of a time [s] and numbers.

    Parameters
    ----------
    columns : the numbers of columns, besides the time, that are allowed, with what messages call these columns.

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
    table = torch.tensor(rows, dtype=torch.float64, device="cpu")
    return TimeTable(table[:, 0].contiguous(), table[:, 1:].contiguous())


def first_of_times(path: Path) -> float | None:
    """Return the first time of a table of several rows; None for a single row, which holds at all times."""
    rows = [row for _, row in islice(_rows(path), 2)]
    return rows[0][0] if len(rows) == 2 else None


def read_vectors(path: Path, count: int, what: str) -> Tensor:
    """Read a table of a vector x, y, z in each of `count` rows, (count, 3) float64.

    Parameters
    ----------
    what : the thing that has a row, for messages, such as "node".

    Raises
    ------
    InputError
        Named with file and line: a missing file, a wrong number of rows or columns, what is not a finite number.
    """
    rows = []
    for where, row in _rows(path):
        if len(row) != 3:
            raise InputError(f"{where}: expected 3 (x, y, z) columns, got {len(row)}")
        rows.append(row)
    if len(rows) != count:
        raise InputError(f"{path}: expected {count} rows, one for each {what}, got {len(rows)}")
    return torch.tensor(rows, dtype=torch.float64, device="cpu").reshape(count, 3)


def _rows(path: Path) -> Iterator[tuple[str, list[float]]]:
    """Yield ("file:line", numbers) of each row; a header, comments and empty lines are left out."""
    header_possible = True
    for where, fields in _sheet(path) if path.suffix.lower() == ".xlsx" else _text(path):
        if not any(fields) or fields[0].startswith("#"):
            continue
        row = _row(where, fields, header_possible)
        header_possible = False
        if row is not None:
            yield where, row


def _text(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield ("file:line", fields) of each line of a text file.

    A line is split at commas if it has any, else at tabs if it has any, else at spaces. So a superfluous comma or tab
    makes an empty field, which is refused, and does not shift the columns unseen.
    """
    if path.suffix.lower() == ".xls":
        raise InputError(f"{path}: tables in .xls are not read: save it as .xlsx or as text")
    text = text_of(path, "numbers between commas, tabs or spaces")
    for number, line in enumerate(text.splitlines(), start=1):
        where = f"{path}:{number}"
        if "," in line:
            fields = _between_commas(where, line)
        else:
            fields = line.strip(" ").split("\t") if "\t" in line.strip() else line.split()
        yield where, [field.strip() for field in fields]


def _between_commas(where: str, line: str) -> list[str]:
    try:
        return next(csv.reader([line]))
    except csv.Error as error:  # a field of more than 131072 characters
        raise InputError(f"{where}: not a row of numbers: {error}") from error


def _sheet(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield ("file:row", cells as text) of each row of a workbook's first sheet; of formulas the stored results."""
    try:
        from openpyxl import load_workbook
    except ImportError:
        raise InputError(
            f"{path}: reading .xlsx needs the package openpyxl (pip install 'torchdismech[excel]'); or save it as text"
        ) from None
    try:
        _refuse_endless(path)
        book = load_workbook(path, read_only=True, data_only=True)
        try:
            sheet = book.worksheets[0]
            sheet.reset_dimensions()  # the size that the file declares may be wrong
            for number, row in enumerate(sheet.iter_rows(values_only=True), start=1):
                yield f"{path}:{number}", _cells(row)
        finally:
            book.close()
    except InputError:
        raise
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from error
    except UNREADABLE as error:
        raise InputError(f"{path}: not a workbook, or damaged: {' '.join(str(error).split())}") from error


def _refuse_endless(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        size = sum(member.file_size for member in file.infolist())
    if size > LARGEST_WORKBOOK:
        raise InputError(f"{path}: is {size_of(size)} when unpacked; expected at most {size_of(LARGEST_WORKBOOK)}")


def _cells(row: Sequence[Any]) -> list[str]:
    """Return the cells of a row as text, without empty ones at its end: all rows are as wide as the sheet's widest."""
    cells = ["" if cell is None else repr(cell) if type(cell) in (int, float) else str(cell) for cell in row]
    while cells and not cells[-1]:
        cells.pop()
    return [cell.strip() for cell in cells]


def _row(where: str, fields: list[str], header_possible: bool) -> list[float] | None:
    """Return the numbers of a row, or None for the header."""
    numbers = []
    for field in fields:
        if not NUMBER.fullmatch(field):
            # a header has no numbers at all; one bad number among good ones is a mistake
            if header_possible and not any(_is_number(f) for f in fields):
                return None
            between = "; columns are divided by commas, tabs or spaces" if ";" in field else ""
            raise InputError(f"{where}: expected a number, got {shown(field)}{between}")
        numbers.append(float(field))
    if not np.isfinite(numbers).all():
        raise InputError(f"{where}: expected finite numbers, got {shown(fields)}")
    return numbers


def _is_number(field: str) -> bool:
    """Return whether `float` reads the field: a first row with one is no header, even if `NUMBER` refuses the field."""
    try:
        float(field)
    except ValueError:
        return False
    return True
