"""Docstrings as this project writes them, made ready for napoleon, and signatures that can be read.

Prose stands behind `name :`, where napoleon expects a type, and what is not in backticks is plain text: a `|u|` is no
substitution of reStructuredText, a `*` no emphasis.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

__all__ = ["as_restructured_text", "plain_signature"]

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


def plain_signature(app, what: str, name: str, thing, options, signature: str | None, returns: str | None):
    """Return signature and type of what is returned; a handler of Sphinx's autodoc-process-signature.

    Types go without what checks them (`Annotated[float, Gt(0)]` is a float). Classes derived from a stand-in for a
    package that is not needed here have the signature of their constructor, not that of the stand-in.
    """
    from sphinx.util.inspect import stringify_signature  # here: docstrings are tried without it, too

    if what == "class" and signature == "(*args: Any, **kwargs: Any)":
        constructor = inspect.signature(thing.__init__)
        given = list(constructor.parameters.values())[1:]  # without self
        signature = stringify_signature(inspect.Signature(given))
    return _without_checks(signature), _without_checks(returns)


def _without_checks(text: str | None) -> str | None:
    """Return a signature in which each Annotated[TYPE, ...] is its type, inner ones first."""
    opening = "Annotated["
    while text is not None and opening in text:
        start = text.rindex(opening)
        depth, comma, end = 0, len(text), start + len(opening)
        while depth >= 0:
            depth += {"[": 1, "(": 1, "]": -1, ")": -1}.get(text[end], 0)
            if depth == 0 and text[end] == "," and comma == len(text):
                comma = end
            end += 1
        text = text[:start] + text[start + len(opening) : min(comma, end - 1)] + text[end:]
    return text
