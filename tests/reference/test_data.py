"""The reference numbers themselves: all here, all described, none of it code."""

import numpy as np
import pytest

from tests.reference.loading import FOLDER, load

NAMES = sorted(path.stem for path in FOLDER.glob("*.npz"))


def test_files_are_here():
    """Find all of them beside the tests, in a repository without anything beside it."""
    assert len(NAMES) >= 33 and FOLDER.parent.name == "reference"


def test_a_missing_file_fails():
    """Name a file that is not here; tests of it fail instead of being skipped."""
    with pytest.raises(FileNotFoundError, match="no_such_numbers"):
        load("no_such_numbers")


@pytest.mark.parametrize("name", NAMES)
def test_files_hold_numbers_and_are_described(name):
    """Load numbers and parameters, no objects; the page says where they come from."""
    assert all(array.dtype.kind in "bifU" for array in load(name).values())
    page = (FOLDER / "README.md").read_text(encoding="utf-8")
    suffix = "_" + name.removeprefix("oracle_struct_") if name.startswith("oracle_struct_") else name
    assert f"`{name}`" in page or f"`{suffix}`" in page


def test_stored_numbers_are_finite():
    """Meet no NaN and no infinity in them."""
    for name in NAMES:
        assert all(np.isfinite(a).all() for a in load(name).values() if a.dtype.kind == "f"), name
