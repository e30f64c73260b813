"""The machine and versions that a benchmark ran on, its clock and memory, times of work, and the warm-up of steps."""

import datetime
import math
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from torchdismech import Control, Model, State
from torchdismech.integrate.integrator import Integrator
from torchdismech.integrate.recorded.recording import STEPS_BEFORE_RECORDING

PACKAGES = ("torch", "numpy", "scipy", "pyelastica", "numba", "pin")


def machine() -> dict[str, str]:
    """Return the date, the commit, the hardware and the versions that a measurement depends on."""
    gpu = {"gpu": torch.cuda.get_device_name()} if torch.cuda.is_available() else {}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "cpu": cpu_name(),
        **gpu,
        "system": platform.platform(),
        "python": platform.python_version(),
        **{name: version_or_none(name) for name in PACKAGES},
    }


def commit() -> str:
    """Return the commit that is checked out, with "+" where files differ from it; "unknown" without git."""

    def git(*words: str) -> str:
        return subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        ).stdout.strip()

    try:
        return git("rev-parse", "--short", "HEAD") + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def version_or_none(package: str) -> str:
    """Return the version of a package, or that it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def now(device: str = "cpu") -> float:
    """Return process CPU time [s]; for a GPU wall time, after all of its work is done."""
    if device == "cpu":
        return time.process_time()
    torch.cuda.synchronize()
    return time.perf_counter()


def median_seconds(work: Callable[[], object], device: str = "cpu", times: int = 5, budget: float = math.inf) -> float:
    """Return the median seconds of some work over so many times, or fewer once they take the budget [s]."""
    work()
    found: list[float] = []
    while len(found) < times and sum(found) < budget:
        began = now(device)
        work()
        found.append(now(device) - began)
    return statistics.median(found)


def peak_bytes(device: str = "cpu") -> int:
    """Return the most memory this process has had so far, in bytes: resident, or allocated on a GPU."""
    if device != "cpu":
        return torch.cuda.max_memory_allocated()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes


def warm_up(integrator: Integrator, model: Model, state: State, control: Control | None = None) -> None:
    """Take the step from a state so often that it is recorded, if steps of its kind are."""
    for _ in range(STEPS_BEFORE_RECORDING + 2):
        integrator.step(model, state, control)
