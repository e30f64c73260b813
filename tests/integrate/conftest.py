"""Recordings of steps, by the stand-in for CUDA graphs and by tapes."""

import pytest

from tests.integrate.recordings import Graphs


@pytest.fixture(params=["graphs", "tapes"])
def graphs(request, monkeypatch):
    """Return recordings, switched on."""
    return Graphs(monkeypatch, request.param)
