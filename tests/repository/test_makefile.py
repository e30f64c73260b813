"""What make removes."""

import re
from pathlib import Path

MAKEFILE = (Path(__file__).resolve().parents[2] / "Makefile").read_text(encoding="utf-8")


def test_clean_leaves_what_was_changed_or_waited_for():
    """Remove what targets make anew by themselves, but no scene that may have been changed, and no run."""
    removed = re.search(r"^clean:\n\trm -rf (.*)$", MAKEFILE, re.MULTILINE)[1].split()
    kept = {"demo", "$(RUNS)", "runs", "out"}
    assert {"$(VENV)", "site"} <= set(removed) and not kept & set(removed)
    said = re.search(r'echo "make clean +(.*)"', MAKEFILE)[1]
    assert said.endswith("the folders demo, $(RUNS) and out stay")
