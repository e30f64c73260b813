"""Tags of TensorBoard: those in the event files of a run, and those that docs/training.md has."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "training.md"
WORDS = {"NAME": r"[\w.]+", "GROUP": r"\w+", "SPLIT": r"(held_out_final|eval)"}  # as the page says


def written(folder: Path) -> set[str]:
    """Return the tags in a folder and those below."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tags = set()
    for file in folder.rglob("events.out.tfevents.*"):
        found = EventAccumulator(str(file)).Reload().Tags()
        tags |= {tag for kind in ("scalars", "images", "histograms", "tensors") for tag in found[kind]}
    # TensorBoard's own ends: of texts, and of the three parts of a mesh
    return {re.sub(r"/text_summary$|_(VERTEX|FACE|COLOR)$", "", tag) for tag in tags}


def documented() -> list[str]:
    """Return the tags in the page's table, as regular expressions where they have words in capitals."""
    section = PAGE.read_text(encoding="utf-8").split("## In TensorBoard\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    tags = [re.escape(tag) for row in rows for tag in re.findall(r"`([^`]+)`", row)]
    return [re.sub("|".join(WORDS), lambda word: WORDS[word[0]], tag) for tag in tags]


def unlike(tags: set[str]) -> tuple[list[str], list[str]]:
    """Return the tags that the page has no pattern for, and the page's patterns that no tag has."""
    patterns = documented()
    unsaid = sorted(tag for tag in tags if not any(re.fullmatch(pattern, tag) for pattern in patterns))
    unused = sorted(pattern for pattern in patterns if not any(re.fullmatch(pattern, tag) for tag in tags))
    return unsaid, unused
