"""The tests that need a CUDA device, as a part of `benchmarks.gpu`."""

import importlib
import importlib.util
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from benchmarks.gpu_parts import Look, Record
from benchmarks.jobs import ROOT

LONG = "test_recording_on_gpu.py"  # compiles many robots; the others take seconds
OUTCOMES = ("PASSED", "FAILED", "ERROR", "SKIPPED", "XFAIL", "XPASS")


def tests_part(look: Look, recorded: bool) -> Iterator[Record]:
    """Run the tests of recorded steps or all others, and yield each outcome as it comes."""
    if importlib.util.find_spec("pytest") is None:
        yield {"note": "tests: left out, as pytest is not installed"}
        return
    files = []
    for path in marked():
        if (path.name == LONG) != recorded:
            continue
        if missing := not_installed(path):
            yield {"note": f"tests: {path.relative_to(ROOT)} is left out, as {missing} is not installed"}
        else:
            files.append(str(path.relative_to(ROOT)))
    if not files:
        return
    counts: Counter[str] = Counter()
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-v", "--tb=short", "-p", "no:cacheprovider", *files]
    # without a device they would all fail, so they are only collected
    command += ["--collect-only", "-q"] if look.device == "cpu" else []
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        for line in run.stdout:
            yield {"log": line.rstrip("\n")}
            words = line.split()
            if "::" in line and len(words) > 1 and words[1] in OUTCOMES:
                counts[words[1]] += 1
                yield {"figures": {"kind": "tests", "recorded": recorded, "counts": dict(counts)}}
    if run.returncode:
        raise RuntimeError(f"pytest ended with {run.returncode}")


def marked() -> list[Path]:
    """Return the files that have tests for a GPU, the smallest first."""
    files = [path for path in (ROOT / "tests").rglob("test_*.py") if "@pytest.mark.gpu" in path.read_text("utf-8")]
    return sorted(files, key=lambda path: path.stat().st_size)


def not_installed(path: Path) -> str | None:
    """Return the package that a file of tests cannot be imported without; None where all are there."""
    try:
        importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    except ModuleNotFoundError as error:
        return error.name
    return None
