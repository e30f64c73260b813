"""Measure the cost of a step, all in one table: rods, shells, a parachute and contact, beside peers.

``python -m benchmarks`` (or ``make benchmark``) measures every case in a process of its own, prints a table in Markdown
and writes it as JSON, anew after every case. Words choose what is measured: ``python -m benchmarks rods compiled``;
``--list`` shows what there is; ``--quick`` is a short look; ``--scaling`` adds very many and very large robots.

Times of a CPU are process CPU time on one thread. The compilers' caches are empty at the start of the run, so what is
compiled first is compiled cold.
"""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from benchmarks import jobs, table
from benchmarks.machine import machine

MODULES = (
    "peers",
    "rods",
    "cosserat",
    "accuracy",
    "shells",
    "contact",
    "thrown",
    "magnetics",
    "closed_loop",
    "rigid",
    "arm",
)


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="measure only what has all of these words in its name (see --list)")
    parser.add_argument("--quick", action="store_true", help="few, small and short cases, nothing compiled")
    parser.add_argument("--scaling", action="store_true", help="very many and very large robots, too")
    parser.add_argument("--list", action="store_true", help="print what would be measured")
    parser.add_argument("--out", type=Path, default=Path("out/benchmark.json"))
    parser.add_argument("--job", help=argparse.SUPPRESS)  # for the processes that `jobs.run` starts
    return parser.parse_args()


Work = dict[str, Callable[[], list[table.Row]]]  # by its label


def all_work(quick: bool, large: bool) -> Work:
    """Return the measurements that can be made on this machine, by label."""
    modules = [importlib.import_module(f"benchmarks.{name}") for name in MODULES]
    found = [job for module in modules for job in module.jobs(quick, torch.cuda.is_available())]
    work: Work = {job.label: partial(jobs.run, job) for job in found}
    if large:
        scaling = importlib.import_module("benchmarks.scaling")
        for case in scaling.QUICK if quick else scaling.FULL:
            work[f"scaling: {case.name}, B = {case.batch}"] = partial(scaled, scaling, case)
    return work


def scaled(scaling: ModuleType, case: Any) -> list[table.Row]:
    """Return the row of a case of `benchmarks.scaling`, many or large robots."""
    who = "eager, cpu"
    try:
        cost = scaling.run(case)
    except subprocess.CalledProcessError as error:  # its message is on stderr
        return [table.Row(case.name, case.batch, who, note=f"failed: ended with {error.returncode}")]
    return [
        table.Row(
            case.name,
            case.batch,
            who,
            scaling.DT,
            1e-3 * cost.step_ms / case.batch,
            residual=cost.residual,
            converged=cost.converged,
            peak_mb=cost.peak_mb,
            note=f"{cost.iterations:.2f} iterations, {cost.at_a_time} robots at a time, built in {cost.build_s:.1f} s",
        )
    ]


def measured(work: Work, head: dict[str, str], out: Path) -> list[table.Row]:
    """Do the work, one piece after the other, and return its rows; report progress on stderr.

    The rows so far are written after every piece, so that a run that is broken off is not lost.
    """
    rows: list[table.Row] = []
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as cache:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache  # compile times are those of a first run
        for k, (label, piece) in enumerate(work.items()):
            began = time.perf_counter()
            print(f"{k + 1}/{len(work)} {label} ...", end=" ", file=sys.stderr, flush=True)
            found = piece()
            print(f"{time.perf_counter() - began:.0f} s", *(row.note for row in found[:1]), file=sys.stderr, flush=True)
            rows = sorted_by_case([*rows, *found])
            out.write_text(json.dumps({"machine": head, "rows": [asdict(row) for row in rows]}, indent=1))
    return rows


def sorted_by_case(rows: list[table.Row]) -> list[table.Row]:
    """Return the rows of each case together, by batch; cases in the order in which they came."""
    cases = list(dict.fromkeys(row.case for row in rows))
    return sorted(rows, key=lambda row: (cases.index(row.case), row.batch))


def main() -> int:
    """Measure, print, write; return the exit status, 1 where a case failed, but not where a peer is not installed."""
    chosen = arguments()
    if chosen.job:
        job = jobs.Job(**json.loads(chosen.job))
        rows = importlib.import_module(f"benchmarks.{job.module}").rows(**job.settings)
        print(json.dumps([asdict(row) for row in rows]))
        return 0
    work = all_work(chosen.quick, chosen.scaling)
    wanted = {label: piece for label, piece in work.items() if all(word in label for word in chosen.words)}
    if chosen.list or not wanted:
        print("\n".join(wanted) or f"nothing is called {' '.join(chosen.words)}: see --list")
        return 0 if wanted else 2
    head = machine()
    rows = measured(wanted, head, chosen.out)
    print(", ".join(f"{key} {value}" for key, value in head.items()), "\n")
    print(table.text(rows))
    print(f"\nwritten: {chosen.out}")
    return int(any(row.note.startswith("failed") for row in rows))


if __name__ == "__main__":
    sys.exit(main())
