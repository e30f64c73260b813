"""Measure what several threads of one process gain: parts of a batch side by side, and loops that they share out.

``python -m benchmarks.threads`` (or ``make benchmark-threads``) steps the same batches on 1, 2, ... of torch's threads,
up to one a core, in turns, and prints the wall time of a robot-step. Wall time counts what other programs take, so this
needs a machine of its own.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from benchmarks import contact, thrown
from benchmarks.check import trained
from benchmarks.machine import machine
from benchmarks.rods import RELATIVE_TOLERANCE, Case, cantilever_model
from benchmarks.shells import plate
from torchdismech import ImplicitEuler, Model, State, unroll

DT, STEPS, REPEATS = 1e-2, 20, 7
Run = Callable[[], object]


def forward(model: Model, state: State, dt: float = DT) -> Run:
    """Return a run of steps that are taken at once."""
    return partial(ImplicitEuler(dt, relative_tolerance=RELATIVE_TOLERANCE).steps, model, state, STEPS)


def single(model: Model, state: State) -> Run:
    """Return a run of single calls of `step`, as controllers and environments make them."""
    integrator = ImplicitEuler(DT, relative_tolerance=RELATIVE_TOLERANCE)

    def run() -> None:
        after = state
        for _ in range(STEPS):
            after, _ = integrator.step(model, after)

    return run


def training(batch: int) -> Run:
    """Return a forward and a backward pass through rods with a trained stiffness."""
    model, parameters = trained(batch, learned=False)
    integrator, start = ImplicitEuler(DT, relative_tolerance=RELATIVE_TOLERANCE), model.initial_state(batch).detach()

    def run() -> None:
        ends = unroll(model, start, integrator, STEPS).positions[-1, :, -1]
        torch.autograd.grad(ends.square().mean(), parameters)

    return run


def rods(batch: int, kind: Callable[[Model, State], Run]) -> Run:
    """Return a run of cantilevers of 101 nodes."""
    model = cantilever_model(Case(1e6, batch, "eager", STEPS, DT))
    return kind(model, model.initial_state(batch))


def plates(batch: int) -> Run:
    """Return a run of plates of 441 nodes."""
    model = plate("hinge", batch, compile=False, device="cpu")
    return forward(model, model.initial_state(batch))


def bundles(batch: int) -> Run:
    """Return a run of bundles of six rods that rub against each other."""
    model, push = contact.rods(touching=True, rough=True, compile=False, device="cpu")
    integrator = ImplicitEuler(contact.DT, relative_tolerance=contact.RELATIVE_TOLERANCE)
    speed = 1 + 0.1 * torch.randn(batch, 1, generator=torch.Generator().manual_seed(0), dtype=push.dtype)
    pushed, _ = integrator.steps(model, model.initial_state(velocity=speed * push), STEPS)  # together
    return forward(model, pushed, contact.DT)


CASES: dict[str, tuple[int, Callable[[int], Run]]] = {
    "rods, 101 nodes": (256, partial(rods, kind=forward)),
    "rods, 101 nodes, single steps": (256, partial(rods, kind=single)),
    "rods, 101 nodes, forward and backward": (256, training),
    "rods thrown on a rough floor": (256, lambda batch: forward(*thrown.thrown(batch), dt=thrown.DT)),
    "plates, hinges": (64, plates),
    "six rods in contact, rough": (64, bundles),
}


def measured(case: str, counts: list[int], repeats: int) -> dict[int, float]:
    """Return the median wall time of a robot-step [s] for each number of threads."""
    batch, make = CASES[case]
    runs: dict[int, Run] = {}
    times: dict[int, list[float]] = {count: [] for count in counts}
    for count in counts:  # how many robots are taken at a time is found with the first step
        torch.set_num_threads(count)
        runs[count] = make(batch)
        for _ in range(4):  # until steps are recorded for all threads
            runs[count]()
    for count in counts * repeats:  # in turns, so that other load slows all alike
        torch.set_num_threads(count)
        began = time.perf_counter()
        runs[count]()
        times[count].append((time.perf_counter() - began) / STEPS / batch)
    return {count: statistics.median(own) for count, own in times.items()}


def row(case: str, seconds: dict[int, float]) -> str:
    """Return a line of the table, in Markdown: microseconds, and how many times as fast as with the fewest threads."""
    first = seconds[min(seconds)]
    cells = [f"{1e6 * own:.3g} ({first / own:.2f})" for own in seconds.values()]
    return f"| {case} | {CASES[case][0]} | {' | '.join(cells)} |"


def main() -> None:
    """Measure numbers of threads, print a table in Markdown and write JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.threads", description=__doc__.partition("\n")[0])
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    powers = [2**k for k in range(cores.bit_length()) if 2**k <= cores]
    parser.add_argument("--threads", type=int, nargs="+", default=powers)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--out", type=Path, default=Path("out/threads.json"))
    chosen = parser.parse_args()
    head = machine()
    print(", ".join(f"{key} {value}" for key, value in head.items()), flush=True)
    print(f"\n| wall time of a robot-step [us] | B | {' | '.join(f'{n} threads' for n in chosen.threads)} |")
    print("|---" * (2 + len(chosen.threads)) + "|", flush=True)
    found = {}
    for case in CASES:
        found[case] = measured(case, chosen.threads, chosen.repeats)
        print(row(case, found[case]), flush=True)
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    chosen.out.write_text(json.dumps({"machine": head, "seconds": found}))
    print(f"\nwritten: {chosen.out}")


if __name__ == "__main__":
    main()
