"""The DiSMech text format: sections of nodes, edges and triangles, numbered from 1.

::

    *Nodes              # x, y, z [m]; also *rodNodes
    0.0, 0.0, 0.0
    *Edges              # two nodes each; also *rodEdges
    1, 2
    *Triangles          # three nodes each
    1, 2, 3

Headers may be written in any case; `#` starts a comment; blank lines are skipped; commas or blanks separate numbers.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from torchdismech.errors import InputError, path_of, shown
from torchdismech.geometry.checks import check_nodes, edge_problem
from torchdismech.geometry.mesh_checks import triangle_problem
from torchdismech.values.given import NUMBER

__all__ = ["Geometry", "read_dismech", "text_of", "write_dismech"]

SECTIONS = {"nodes": "nodes", "rodnodes": "nodes", "edges": "edges", "rodedges": "edges", "triangles": "triangles"}
COLUMNS = {"nodes": 3, "edges": 2, "triangles": 3}
KNOWN_HEADERS = "*Nodes, *Edges, *Triangles, *rodNodes, *rodEdges"
LARGEST_INDEX = 2**53  # beyond it a float64 no longer holds every whole number


@dataclass(frozen=True, eq=False)
class Geometry:
    """Nodes, rod edges and triangles of a structure in the order of its file, with indices from 0.

    Attributes
    ----------
    nodes : (N, 3) float64, positions [m].
    rod_edges : (E, 2) int64, the nodes of each rod edge.
    triangles : (F, 3) int64, the nodes of each triangle.
    """

    nodes: np.ndarray
    rod_edges: np.ndarray
    triangles: np.ndarray


@dataclass
class _Section:
    """The rows of numbers of one section, with the line numbers of its header and rows for messages."""

    header_line: int
    rows: list[list[float]]
    lines: list[int]


def read_dismech(path: str | Path) -> Geometry:
    """Read a structure from a DiSMech text file.

    Raises
    ------
    InputError
        Named with file and line: an unknown or repeated header, data before a header, a wrong number of columns, a
        number that is not finite, an index that is missing or below 1, an edge from a node to itself, given twice or
        without length, a triangle that names a node twice, is given twice or has no area, an empty file, a file
        without nodes or without edges and triangles.
    """
    path = path_of(path, "read_dismech")
    sections = _sections(path, text_of(path, "DiSMech text"))
    if not sections:
        raise InputError(f"{path}: the file is empty; expected sections {KNOWN_HEADERS}")
    if "nodes" not in sections:
        raise InputError(f"{path}: no *Nodes section; expected one of *Nodes, *rodNodes")
    if not sections["nodes"].rows:
        raise InputError(f"{path}:{sections['nodes'].header_line}: the section of nodes is empty")
    if not any(sections[name].rows for name in ("edges", "triangles") if name in sections):
        raise InputError(f"{path}: nodes only; expected an *Edges or a *Triangles section with at least one row")
    nodes = np.array(sections["nodes"].rows, dtype=np.float64)
    check_nodes(nodes, str(path))
    edges = _elements(path, sections.get("edges"), nodes, 2, edge_problem)
    return Geometry(nodes, edges, _elements(path, sections.get("triangles"), nodes, 3, triangle_problem))


def write_dismech(path: str | Path, geometry: Geometry) -> None:
    """Write a structure as DiSMech text; `read_dismech` gets the same numbers back, to the last digit."""
    sections = {"Nodes": geometry.nodes, "Edges": geometry.rod_edges + 1, "Triangles": geometry.triangles + 1}
    lines = []
    for name, table in sections.items():
        if len(table):
            lines += [f"*{name}", *(", ".join(map(str, row)) for row in table.tolist())]
    path = path_of(path, "write_dismech")
    try:
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def text_of(path: Path, expected: str) -> str:
    """Return the text of a file; refuse one that cannot be read or is no text, where `expected` was expected."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text file (byte {error.start} is not UTF-8); expected {expected}") from error


def _sections(path: Path, text: str) -> dict[str, _Section]:
    sections: dict[str, _Section] = {}
    current = None
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.split("#", 1)[0].strip()
        if not content:
            continue
        if content.startswith("*"):
            current = _section_name(f"{path}:{number}", content)
            if current in sections:
                first = sections[current].header_line
                raise InputError(f"{path}:{number}: a second section of {current}; the first starts on line {first}")
            sections[current] = _Section(number, [], [])
        elif current is None:
            raise InputError(
                f"{path}:{number}: data before a header: {shown(content)}; expected one of {KNOWN_HEADERS}"
            )
        else:
            sections[current].rows.append(_row(f"{path}:{number}", current, content))
            sections[current].lines.append(number)
    return sections


def _section_name(where: str, header: str) -> str:
    name = SECTIONS.get(header[1:].strip().lower())
    if name is None:
        raise InputError(f"{where}: unknown header {shown(header)}; expected one of {KNOWN_HEADERS}")
    return name


def _row(where: str, section: str, content: str) -> list[float]:
    fields = re.split(r"\s*,\s*|\s+", content.removesuffix(",").strip())
    if len(fields) != COLUMNS[section]:
        raise InputError(
            f"{where}: expected {COLUMNS[section]} numbers in the section of {section}, got {len(fields)}: "
            f"{shown(content)}"
        )
    for field in fields:
        if not NUMBER.fullmatch(field):
            raise InputError(f"{where}: expected a number in the section of {section}, got {shown(field)}")
    values = [float(field) for field in fields]
    if not np.isfinite(values).all():
        raise InputError(f"{where}: expected finite numbers, got {shown(content)}")
    if section != "nodes":
        for value, field in zip(values, fields, strict=True):
            if value != int(value) or not 1 <= value <= LARGEST_INDEX:
                raise InputError(f"{where}: expected a node index, a whole number from 1, got {shown(field)}")
    return values


def _elements(path: Path, section: _Section | None, nodes: np.ndarray, size: int, problem_of: Callable) -> np.ndarray:
    """Return the edges (k, 2) or triangles (k, 3) of a section, with indices from 0; k is 0 if there is no section.

    `problem_of` finds the first that is at fault, which is refused with its line.
    """
    if section is None or not section.rows:
        return np.zeros((0, size), dtype=np.int64)
    elements = np.array(section.rows).astype(np.int64) - 1
    if problem := problem_of(nodes, elements, first_index=1):
        raise InputError(f"{path}:{section.lines[problem[0]]}: {problem[1]}")
    return elements
