"""Which cases are slow, besides tests that are marked so; compiled code; the scene of a test module as a file."""

from contextlib import suppress
from pathlib import Path

import pytest

from torchdismech.native import Unavailable, library

SLOW_CASES = Path(__file__).parent / "slow_cases.txt"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases in slow_cases.txt."""
    slow = set(SLOW_CASES.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _compiled_code() -> None:
    """Compile the library's C++ before the first test: that it takes long is said on the streams that tests read."""
    with suppress(Unavailable):
        library()


@pytest.fixture
def scene(tmp_path, request) -> Path:
    """Return the path of a file that holds the SCENE of the test's module."""
    path = tmp_path / "scene.toml"
    path.write_text(request.module.SCENE)
    return path
