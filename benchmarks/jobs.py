"""Jobs: measurements that run in processes of their own, so that compiling and peak memory are theirs alone."""

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
    module, settings : the module and the arguments, which JSON can hold.
    case, batch, who, peer : its label, and its row if it fails.
    """

    module: str
    case: str
    batch: int
    who: str
    settings: dict[str, Any]
    peer: bool = False

    @property
    def label(self) -> str:
        """Name of the job for lists, in a line."""
        return f"{self.module}: {self.case}, B = {self.batch}, {self.who}"


def run(job: Job) -> list[Row]:
    """Return the rows of a job, run in a process of its own; if it fails, one row that says why."""
    command = [sys.executable, "-m", "benchmarks", "--job", json.dumps(asdict(job))]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if done.returncode == 0:
        return [Row(**row) for row in json.loads(done.stdout.splitlines()[-1])]
    return [Row(job.case, job.batch, job.who, peer=job.peer, note=why(done.stderr, done.returncode, job.peer))]


def why(stderr: str, returncode: int, peer: bool) -> str:
    """Return why a process failed, from the last line of its stderr; a missing peer is "not installed"."""
    last = (stderr.strip().splitlines() or [f"ended with {returncode}"])[-1]
    kind, _, words = last.partition(": ")
    missing = peer and kind.endswith(("ModuleNotFoundError", "NotInstalled"))
    return f"not installed: {words}" if missing else f"failed: {last}"
