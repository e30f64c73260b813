"""What ctypes is told of the compiled functions, and what these take and return: a difference is a crash."""

import ctypes
import re
import subprocess
from collections import defaultdict
from types import SimpleNamespace

import pytest

from torchdismech.native import build
from torchdismech.native.compiled import SOURCES
from torchdismech.native.signatures import ARRAY, NUMBER, declare

pytestmark = pytest.mark.usefixtures("compiler")  # which expands the sources' macros

RESULTS = {"void": None, "int64_t": NUMBER}


def preprocessed(source):
    """Return C++ with its own macros in place of their names, and nothing of the files that it includes."""
    own = re.sub(r"^\s*#\s*include.*$", "", source, flags=re.MULTILINE)
    command = [*build.compiler(), "-E", "-P", "-x", "c++", "-"]
    return subprocess.run(command, input=own, capture_output=True, text=True, check=True).stdout


def end_of_braces(text, start):
    """Return where the braces end that open at `start`, the place after the last one."""
    depth = 0
    for place in range(start, len(text)):
        depth += (text[place] == "{") - (text[place] == "}")
        if not depth:
            return place + 1
    raise ValueError("braces that do not close")


def without_bodies(text):
    """Return text with a semicolon in place of all that stands in braces."""
    found = []
    while (start := text.find("{")) >= 0:
        found += [text[:start], ";"]
        text = text[end_of_braces(text, start) :]
    return "".join([*found, text])


def exported(text):
    """Return what preprocessed C++ exports under plain names, by these: the result and the arguments, as ctypes' kinds.

    Parameters are int64_t or pointers: ctypes is told of no other kind.
    """
    found = {}
    for here in re.finditer(r'extern "C"\s*', text):
        start = text.index("{", here.end())
        is_block = start == here.end()
        declared = without_bodies(
            text[start + 1 : end_of_braces(text, start) - 1] if is_block else text[here.end() : start] + ";"
        )
        for result, name, listed in re.findall(r"(\w+)\s+(\w+)\s*\(([^()]*)\)\s*;", declared):
            found[name] = (
                RESULTS[result],
                [kind_of(parameter) for parameter in listed.split(",") if parameter.strip()],
            )
    return found


def kind_of(parameter):
    """Return ctypes' kind of a parameter such as "const double* x"."""
    if "*" in parameter:
        return ARRAY
    assert parameter.split()[0] == "int64_t", parameter
    return NUMBER


def told():
    """Return what ctypes is told of each function: its result and its arguments."""
    functions = defaultdict(lambda: SimpleNamespace(argtypes=(), restype=ctypes.c_int))  # as ctypes has it untold

    class Code:
        def __getattr__(self, name):
            return functions[name]

    declare(Code())
    return {name: (function.restype, list(function.argtypes)) for name, function in functions.items()}


def test_ctypes_is_told_what_functions_take():
    """Compare each function that the sources export, and no others, argument by argument."""
    found = {}
    for source in SOURCES:
        of_source = exported(preprocessed(source.read_text("utf-8")))
        assert of_source, f"{source.name}: exports nothing"
        found |= of_source
    assert told() == found


def test_what_is_exported_is_found():
    """Find functions in a block, alone and made by macros, with all their arguments; leave out those of C++."""
    source = """
#include <vector>
#define BOTH(T, suffix) void scaled_##suffix(int64_t count, T* x, const T* by) { if (count) { *x *= *by; } }
static int64_t inner(int64_t count) { return count; }
extern "C" {
int64_t count_of() { return inner(1); }  // a comment
BOTH(double, float64)
BOTH(float, float32)
}
extern "C" int64_t alone(int64_t count, const void* given) { return count; }
"""
    scaled = (None, [NUMBER, ARRAY, ARRAY])
    assert exported(preprocessed(source)) == {
        "count_of": (NUMBER, []),
        "scaled_float64": scaled,
        "scaled_float32": scaled,
        "alone": (NUMBER, [NUMBER, ARRAY]),
    }
