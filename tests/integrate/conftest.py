"""Recordings of steps, by the stand-in for CUDA graphs and by tapes; and which steps are taken as one."""

import pytest

from tests.integrate.recordings import Graphs
from torchdismech.integrate import several


@pytest.fixture(params=["graphs", "tapes"])
def graphs(request, monkeypatch):
    """Return recordings, switched on."""
    return Graphs(monkeypatch, request.param)


@pytest.fixture
def courses(monkeypatch):
    """Return how many steps were taken as one, in each turn; 0 where they were taken one by one."""
    taken, plain = [], several.course_of

    def told(problem, size):
        found = plain(problem, size)
        taken.append(0 if found is None else len(found.q))
        return found

    monkeypatch.setattr(several, "course_of", told)
    return taken
