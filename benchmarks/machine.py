"""What a benchmark ran on, and how much memory it took."""

import datetime
import platform
import resource
import sys
from importlib.metadata import version
from pathlib import Path


def machine() -> dict[str, str]:
    """Return the date, the processor and the versions that a measurement depends on."""
    packages = {name: version(name) for name in ("torch", "numpy", "scipy", "pyelastica", "numba")}
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_name(),
        "system": platform.platform(),
        "python": platform.python_version(),
        **packages,
    }


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def peak_bytes() -> int:
    """Return the largest resident size this process has had so far, in bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # macOS counts bytes, Linux kibibytes
