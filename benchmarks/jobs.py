"""Measurements that run in processes of their own, so that compiling and peak memory are theirs alone."""

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.table import Row

ROOT = Path(__file__).parents[1]


@dataclass(frozen=True)
class Job:
    """A call of `benchmarks.<module>.rows(**settings)`.

    Attributes
    ----------
    module, settings : what is called, with what JSON can hold.
    case, batch, who, peer : name it, and its row where it fails.
    """

    module: str
    case: str
    batch: int
    who: str
    settings: dict[str, Any]
    peer: bool = False

    @property
    def label(self) -> str:
        """What it is, in a line."""
        return f"{self.module}: {self.case}, B = {self.batch}, {self.who}"


def run(job: Job) -> list[Row]:
    """Return what a job measured; one row that says why where it failed."""
    command = [sys.executable, "-m", "benchmarks", "--job", json.dumps(asdict(job))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    return [Row(job.case, job.batch, job.who, peer=job.peer, note=why(done.stderr, done.returncode, job.peer))]


def why(stderr: str, returncode: int, peer: bool) -> str:
    """Return the last words of a process that failed; a peer may just not be there."""
    last = (stderr.strip().splitlines() or [f"ended with {returncode}"])[-1]
    kind, _, words = last.partition(": ")
    missing = peer and kind.endswith(("ModuleNotFoundError", "NotInstalled"))
    return f"not installed: {words}" if missing else f"failed: {last}"
