"""Which cases are slow, besides the tests that are marked so where they stand."""

from pathlib import Path

import pytest

SLOW_CASES = Path(__file__).parent / "slow_cases.txt"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the cases in slow_cases.txt."""
    slow = set(SLOW_CASES.read_text(encoding="utf-8").splitlines())
    for item in items:
        if item.nodeid in slow:
            item.add_marker(pytest.mark.slow)
