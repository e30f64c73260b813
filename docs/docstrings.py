"""Docstrings as this project writes them, made ready for napoleon.

Prose stands behind `name :`, where napoleon expects a type, and what is not in backticks is plain text: a `|u|` is no
substitution of reStructuredText, a `*` no emphasis.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

__all__ = ["as_restructured_text"]

NAMED = re.compile(r"^([\w.*]+(?:, [\w.*]+)*) : (.+)$")  # of a parameter or an attribute
# a section of prose, such as "As for `Integrator`", in place of names
PROSE = re.compile(r"^(Parameters|Attributes)\n-{3,}\n(?![\w.*]+(?:, [\w.*]+)* : )(?=\S)(.)", flags=re.MULTILINE)
MARKS = re.compile(r"[*|]|(?<=\w)_(?!\w)")  # emphasis, substitutions, references
SECTIONS_OF_NAMES = ("Parameters", "Attributes")


def as_restructured_text(app, what: str, name: str, thing, options, lines: list[str]) -> None:
    """Change the lines of a docstring in place; a handler of Sphinx's autodoc-process-docstring."""
    text = PROSE.sub(r"\1: \2", "\n".join(lines))
    lines[:] = _escaped("\n".join(_with_prose_below_names(text.split("\n")))).split("\n")


def _with_prose_below_names(lines: list[str]) -> Iterator[str]:
    """Yield lines in which a parameter's description stands below its name."""
    section = ""
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if re.fullmatch(r"-{3,}", below):
            section = line
        found = NAMED.match(line) if section in SECTIONS_OF_NAMES else None
        if found is None:
            told = section in SECTIONS_OF_NAMES and " " in line and not line.startswith(" ")
            yield "    " + line if told else line  # a sentence about all of them follows the last
            continue
        for entry in _single(found[1], found[2]):
            yield from entry


def _single(names: str, prose: str) -> Iterator[tuple[str, str]]:
    """Yield name and prose; of `a : first; b : second` in one line both."""
    first, *others = re.split(r"; (?=\w+(?:, \w+)* : )", prose)
    yield names, "    " + first
    for other in others:
        name, _, rest = other.partition(" : ")
        yield name, "    " + rest


def _escaped(text: str) -> str:
    """Return the text with the marks of reStructuredText outside of backticks made plain."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if k % 2 else MARKS.sub(r"\\\g<0>", part) for k, part in enumerate(parts))
