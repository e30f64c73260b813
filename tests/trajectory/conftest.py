"""Trajectory files that stop taking what is written."""

from collections.abc import Callable

import pytest

from tests.trajectory.writers import Ending
from torchdismech.trajectory import partial


@pytest.fixture
def ending(monkeypatch) -> Callable[[int, BaseException], None]:
    """Return a function that says which write of trajectory files from now on is the last, and what it raises."""
    monkeypatch.setattr(partial, "FileIO", Ending)

    def end(write: int, failure: BaseException) -> None:
        monkeypatch.setattr(Ending, "left", write)
        monkeypatch.setattr(Ending, "failure", failure)

    return end
