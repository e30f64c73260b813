"""Compiled code that is there, or an empty cache for it."""

import pytest

from torchdismech.native import Unavailable, library


@pytest.fixture
def compiler():
    """The compiled code; skip where it cannot be had, and say why."""
    try:
        return library()
    except Unavailable as missing:
        pytest.skip(str(missing))


@pytest.fixture
def cache(monkeypatch, tmp_path):
    """An empty cache directory, for a process that has not looked for compiled code yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "outcome", None)
    return tmp_path / "cache" / "torchdismech"
