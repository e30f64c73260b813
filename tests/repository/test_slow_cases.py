"""slow_cases.txt names tests that exist."""

import ast
from pathlib import Path

from tests.conftest import SLOW_CASES

ROOT = Path(__file__).resolve().parents[2]


def test_every_slow_case_is_a_test():
    """Find the file, the class and the function of each, and each once."""
    cases = SLOW_CASES.read_text(encoding="utf-8").splitlines()
    assert len(set(cases)) == len(cases)
    assert cases == sorted(cases)
    for case in cases:
        path, *classes, function = case.split("[")[0].split("::")
        scope = ast.parse((ROOT / path).read_text(encoding="utf-8")).body
        for name in classes:
            scope = _inside(scope, name)
        # tests that a class inherits stand elsewhere
        assert classes or function in {node.name for node in scope if isinstance(node, ast.FunctionDef)}, case


def _inside(scope: list[ast.stmt], name: str) -> list[ast.stmt]:
    found = [node.body for node in scope if isinstance(node, ast.ClassDef) and node.name == name]
    assert found, name
    return found[0]
