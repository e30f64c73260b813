"""Tables in files: text with commas, tabs or spaces, workbooks, and what is wrong with them, by line."""

import sys
import zipfile

import pytest
import torch

from torchdismech import InputError
from torchdismech.io import tables
from torchdismech.io.tables import read_time_table, read_vectors

ROWS = [[0.0, 0.1, -2e-3], [0.5, 1 / 3, 4.0]]
COLUMNS = {2: "two numbers"}


def written(path, rows, header=()):
    """Write a workbook of one sheet."""
    openpyxl = pytest.importorskip("openpyxl")
    book = openpyxl.Workbook()
    for row in [*([header] if header else []), *rows]:
        book.active.append(row)
    book.create_sheet("another").append(["not", "read"])
    book.save(path)
    return path


@pytest.mark.parametrize("between", [",", ", ", " ", "   ", "\t", " \t"])
@pytest.mark.parametrize("header", ["", "time{0}a{0}b\n", "# made by hand\n\n"])
def test_text_is_divided_by_commas_tabs_or_spaces(tmp_path, between, header):
    """Read the same numbers, all their bits, however they are divided."""
    path = tmp_path / "table.txt"
    lines = [between.join(map(repr, row)) for row in ROWS]
    path.write_text(header.format(between) + "\n".join(lines) + "\n")
    table = read_time_table(path, COLUMNS)
    assert torch.cat([table.times[:, None], table.values], 1).tolist() == ROWS
    assert read_vectors(path, 2, "row").tolist() == ROWS


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("0\t\t1", "expected a number, got ''"),
        ("0,,1", "expected a number, got ''"),
        ("0 1", "expected 3 (time, two numbers) columns, got 2"),
        ("0 1;2", "expected a number, got '1;2'; columns are divided by commas, tabs or spaces"),
        ("0,1;2,5", "expected a number, got '1;2'; columns are divided by commas, tabs or spaces"),
        ("0\t1 2", "expected a number, got '1 2'"),
    ],
)
def test_numbers_do_not_slip_into_other_columns(tmp_path, line, problem):
    """Refuse a field too many, one too few, and other signs between them, by line."""
    path = tmp_path / "table.txt"
    path.write_text("time a b\n" + line + "\n")
    with pytest.raises(InputError) as error:
        read_time_table(path, COLUMNS)
    assert f"{path}:2: {problem}" in str(error.value)


def test_workbooks_give_the_numbers_of_text(tmp_path):
    """Read the first sheet, all bits of its numbers, with a header, empty rows and columns that end early."""
    path = written(tmp_path / "t.xlsx", [[], [0, 0.1, -2e-3, None], [], [0.5, 1 / 3, 4]], ["time", "a", "b", "c"])
    table = read_time_table(path, COLUMNS)
    assert torch.cat([table.times[:, None], table.values], 1).tolist() == ROWS


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([[0, 1, 2], [1, None, 2]], ":2: expected a number, got ''"),
        ([[0, 1, 2], [1, "x", 2]], ":2: expected a number, got 'x'"),
        ([[0, 1, 2], [1, True, 2]], ":2: expected a number, got 'True'"),
        ([[0, 1, 2], [1, 2]], ":2: expected 3"),
        ([[0, 1, "=1+1"]], ":1: expected 3"),  # nobody worked the formula out: the cell is empty
        ([], ": no rows"),
    ],
)
def test_faults_of_workbooks_are_named_by_row(tmp_path, rows, problem):
    """Refuse cells without numbers."""
    path = written(tmp_path / "t.xlsx", rows)
    with pytest.raises(InputError) as error:
        read_time_table(path, COLUMNS)
    assert f"{path}{problem}" in str(error.value)


def test_what_is_no_workbook_is_refused(tmp_path, monkeypatch):
    """Name files that only are called so, that lack their parts, that would fill the memory, and those of old."""
    pytest.importorskip("openpyxl")
    path = tmp_path / "t.xlsx"
    path.write_text("0,1,2\n")
    with pytest.raises(InputError, match="not a workbook, or damaged"):
        read_time_table(path, COLUMNS)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("[Content_Types].xml", "<x/>")
    with pytest.raises(InputError, match="t.xlsx: .*no valid workbook part"):
        read_time_table(path, COLUMNS)
    monkeypatch.setattr(tables, "LARGEST_WORKBOOK", 1 << 20)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("xl/workbook.xml", bytes(2 << 20))
    with pytest.raises(InputError, match=r"is 2 MiB when unpacked; expected at most 1 MiB"):
        read_time_table(path, COLUMNS)
    old = tmp_path / "t.xls"
    old.write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(InputError, match=r"\.xls are not read: save it as \.xlsx or as text"):
        read_time_table(old, COLUMNS)
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_time_table(tmp_path / "none.xlsx", COLUMNS)


def test_without_openpyxl_one_line_says_what_to_install(tmp_path, monkeypatch):
    """Ask for the package only where a workbook is to be read."""
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(InputError, match=r"needs the package openpyxl \(pip install 'torchdismech\[excel\]'\)"):
        read_time_table(tmp_path / "t.xlsx", COLUMNS)
