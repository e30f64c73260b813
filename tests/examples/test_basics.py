"""The basic examples: what the README shows."""

import ast
import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BASICS = sorted((ROOT / "examples" / "basics").glob("*.py"))


@pytest.mark.parametrize("path", BASICS, ids=[path.stem for path in BASICS])
def test_it_runs_to_its_end(path, tmp_path, monkeypatch):
    """Run a basic example: it asserts what it ends in."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")


def test_the_fit_starts_from_any_guess(tmp_path):
    """Begin the fit with a tenth of the guess, as a reader may: that is one number, and it finds the same stiffness."""
    changed = tmp_path / "fit.py"
    text = (ROOT / "examples" / "basics" / "fit.py").read_text(encoding="utf-8")
    changed.write_text(text.replace("1e6  # Pa", "1e5  # Pa"), encoding="utf-8")
    assert runpy.run_path(str(changed))["guess"] == 1e5


@pytest.mark.parametrize("path", BASICS, ids=[path.stem for path in BASICS])
def test_it_is_short_and_stands_alone(path):
    """Need the library and nothing else, fit on a screen, and end in an assertion."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    froms = [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    plain = [name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names]
    assert {name.split(".")[0] for name in (*froms, *plain)} <= {"torchdismech", "torch", "math"}
    assert froms[0].startswith("torchdismech"), "before torch: it says how torch's threads wait"
    assert isinstance(tree.body[-1], ast.Assert) and ast.get_docstring(tree)
    assert len([line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]) <= 32


def test_the_readme_shows_them():
    """Show each file word for word, under a link to it."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = dict(re.findall(r"\[`(examples/basics/\w+\.py)`\].*?```python\n(.*?)```", readme, flags=re.DOTALL))
    assert shown == {f"examples/basics/{path.name}": path.read_text(encoding="utf-8") for path in BASICS}
