"""Docstrings describe arguments that there are."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ROOMS = ("torchdismech", "models", "training", "benchmarks", "studies")
SECTION = re.compile(r"^Parameters\n-+\n(.*?)(?=^\w[^\n]*\n---|\Z)", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^([\w*, ]+?) :", re.MULTILINE)  # "name : ...", or several names; what belongs to one is indented


def described(docstring: str) -> set[str]:
    """Return the names of the arguments that a docstring describes."""
    entries = [entry for section in SECTION.findall(docstring) for entry in ENTRY.findall(section)]
    return {name.strip().lstrip("*") for entry in entries for name in entry.split(",")}


def arguments(function: ast.FunctionDef) -> set[str]:
    """Return the names of a function's arguments."""
    given = function.args
    several = [one for one in (given.vararg, given.kwarg) if one is not None]
    return {one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs, *several)}


def taken(node: ast.FunctionDef | ast.ClassDef) -> set[str] | None:
    """Return the names of what a function or a class takes; None for a class whose base class says so."""
    if isinstance(node, ast.FunctionDef):
        return arguments(node)
    makers = [each for each in node.body if isinstance(each, ast.FunctionDef) and each.name in ("__init__", "__new__")]
    fields = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    return fields.union(*map(arguments, makers)) if makers or not node.bases else None


def documented(file: Path) -> Iterator[tuple[ast.FunctionDef | ast.ClassDef, str]]:
    """Yield the functions and classes of a file, each with its docstring."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and (docstring := ast.get_docstring(node)):
            yield node, docstring


def test_described_arguments_are_taken():
    """Describe no argument that a function or class does not take: it has been renamed, or taken away."""
    unknown = []
    for file in sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py")):
        for node, docstring in documented(file):
            names = taken(node)
            if names is not None and (stale := described(docstring) - names):
                unknown.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}: {', '.join(sorted(stale))}")
    assert not unknown, "\n".join(unknown)
