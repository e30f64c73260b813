"""The tutorials in docs/tutorials: each runs, and is made of cells that become a page."""

import runpy
from pathlib import Path

import pytest

TUTORIALS = sorted((Path(__file__).resolve().parents[2] / "docs" / "tutorials").glob("*.py"))


SLOW = {"control", "residual_force"}  # they differentiate some hundred steps


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in TUTORIALS]
)
def test_it_runs(path, tmp_path, monkeypatch):
    """Run a tutorial from its first cell to its last assertion."""
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")


@pytest.mark.parametrize("path", TUTORIALS, ids=[path.stem for path in TUTORIALS])
def test_it_is_a_page(path):
    """Begin with a heading, and tell prose from code in every cell."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# %% [markdown]\n# # ")
    cells = text.split("# %%")[1:]
    prose = [cell for cell in cells if cell.startswith(" [markdown]")]
    assert len(prose) >= 4 and all(line.startswith("#") or not line for c in prose for line in c.splitlines()[1:])
