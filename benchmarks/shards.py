"""Measure what several processes gain: the same rods, shared by 1 and by 2 processes of torchrun.

``python -m benchmarks.shards`` (or ``make benchmark-shards``) starts `torchrun --nproc-per-node` for each number of
processes in turn, several times, and prints the wall time of a robot-step and the parallel efficiency: the time of one
process over that of n, over n, in wall time and in CPU time. Each process has one thread and steps its share of the
batch without talking to the others, so losses come from what cores share, memory and caches, and from the smaller
batches. On a busy machine wall time also depends on how much of the cores was free; CPU time does not.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from benchmarks.jobs import ROOT
from benchmarks.machine import machine
from benchmarks.rods import RELATIVE_TOLERANCE, Case, cantilever_model, timed_steps
from torchdismech import ImplicitEuler, Status
from torchdismech.system.processes import joined

DT, STEPS, WARM_UP, REPEATS = 1e-2, 20, 3, 5


def share(batch: int, mode: str, out: Path) -> None:
    """Step this process's share of the batch; the first process writes the wall and CPU seconds of the slowest."""
    torch.set_num_threads(1)
    with joined("gloo") as processes:
        own = processes.own(batch)
        case = Case(1e6, own.stop - own.start, mode, STEPS, DT)
        model, integrator = cantilever_model(case), ImplicitEuler(DT, relative_tolerance=RELATIVE_TOLERANCE)
        state, _, _ = timed_steps(integrator, model, model.initial_state(batch=case.batch), WARM_UP)
        if processes.world > 1:
            dist.barrier()
        began = time.perf_counter()
        _, infos, cpu = timed_steps(integrator, model, state, STEPS)
        seconds = torch.tensor([time.perf_counter() - began, cpu], dtype=torch.float64)
        failed = torch.tensor(sum(int((info.status != Status.CONVERGED).sum()) for info in infos))
        if processes.world > 1:
            dist.all_reduce(seconds, dist.ReduceOp.MAX)
            dist.all_reduce(failed)
        if processes.writes:
            out.write_text(json.dumps({"wall": seconds[0].item(), "cpu": seconds[1].item(), "failed": failed.item()}))


def started(processes: int, batch: int, mode: str) -> dict[str, float]:
    """Return the seconds that so many processes of torchrun measured.

    Raises
    ------
    RuntimeError : if they fail, or a robot does not converge.
    """
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "seconds.json"
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = ["-m", "benchmarks.shards", "--batch", str(batch), "--mode", mode, "--share", str(out)]
        done = subprocess.run([*torchrun, *command], cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{processes} processes failed:\n{done.stderr}")
        found = json.loads(out.read_text())
    if found["failed"]:
        raise RuntimeError(f"{found['failed']:.0f} robot-steps did not converge")
    return found


def text(found: dict[int, list[dict[str, float]]], batch: int) -> str:
    """Return the table for the runs of each number of processes, in Markdown."""
    lines = [
        "| processes | wall time of a robot-step (least, most) | efficiency | in CPU time | CPU time / wall time |",
        "| --- | --- | --- | --- | --- |",
    ]
    medians = {
        count: {kind: statistics.median(run[kind] for run in runs) for kind in ("wall", "cpu")}
        for count, runs in found.items()
    }
    first = min(found)
    for count, runs in found.items():
        walls = sorted(1e6 * run["wall"] / (STEPS * batch) for run in runs)
        wall, cpu = (first * medians[first][kind] / (count * medians[count][kind]) for kind in ("wall", "cpu"))
        busy = statistics.median(run["cpu"] / run["wall"] for run in runs)
        shown = f"{statistics.median(walls):.0f} us ({walls[0]:.0f}, {walls[-1]:.0f})"
        lines.append(f"| {count} | {shown} | {wall:.0%} | {cpu:.0%} | {busy:.0%} |")
    return "\n".join(lines)


def main() -> None:
    """Measure numbers of processes in turns, print a table in Markdown and write JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.shards", description=__doc__.partition("\n")[0])
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--batch", type=int, default=512, help="robots of all processes together")
    parser.add_argument("--mode", default="compiled", choices=["eager", "compiled"])
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=Path("out/shards.json"))
    parser.add_argument("--share", type=Path, help=argparse.SUPPRESS)  # a process of torchrun
    chosen = parser.parse_args()
    if chosen.share:
        share(chosen.batch, chosen.mode, chosen.share)
        return
    head = machine()
    print(", ".join(f"{key} {value}" for key, value in head.items()), flush=True)
    found: dict[int, list[dict[str, float]]] = {count: [] for count in chosen.processes}
    for count in chosen.processes * chosen.repeats:  # in turns, so that other load slows all alike
        found[count].append(started(count, chosen.batch, chosen.mode))
    print()
    print(text(found, chosen.batch))
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"machine": head, "batch": chosen.batch, "mode": chosen.mode, "runs": found}))
    print(f"\nwritten: {chosen.out}")


if __name__ == "__main__":
    main()
