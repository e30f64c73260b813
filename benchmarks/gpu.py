"""Check and measure everything that needs a CUDA device, in one go: ``make gpu-check``.

``python -m benchmarks.gpu --minutes 8 --out FOLDER`` writes FOLDER/gpu.md (bars, tables, the launches of a step, and
measurements for constants that the library guesses), gpu.json (all numbers), tests.txt (the output of pytest) and
errors.txt. All are written anew after every part, so a run that is broken off is not lost.

Every part has a process of its own. First all of them prepare at the same time, the most important first: they build,
compile and warm up, while the tests for GPUs run, too. Then those that are prepared measure, one after the other, each
within its own time; the others are stopped meanwhile and come last, in what is left of the time. A part that fails or
hangs is reported, and the next goes on.

It needs torch, numpy, scipy, h5py, pydantic, trimesh, tqdm, typer and pytest; parts that need a missing one are left
out, with a note. Words choose parts (``--list``). On a CPU it only tries that everything runs: ``--device cpu --tiny``.
"""

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch

from benchmarks import gpu_report
from benchmarks.children import Child
from benchmarks.gpu_factor import factor_part
from benchmarks.gpu_parts import MODES, READY, Look, Record, device_part, hooks_part, rods_part, shells_part
from benchmarks.gpu_tests import tests_part
from benchmarks.machine import machine

PREPARING = 0.5  # share of the time
ROOM = 0.8  # share of the device's memory, for all parts that prepare beside each other
A_NODE, A_SHELL = 7e3, 17e6  # bytes of a rod's node and of a shell, in all modes: guesses, until gpu.json has figures
UNPREPARED = 3  # factor on the limit of a part that is not prepared when it is its turn
WRITING = 10.0  # s, kept at the end for the reports
WITH_BACKWARD = ", with backward"
LAST_TESTS = "recorded steps"  # these tests come last, as they compile many robots
TESTS = (("all others", 120), (LAST_TESTS, 240))
HOOKS = (("floor", False), ("a learned force", False), ("a learned force", True), ("drag", False))


@dataclass(frozen=True)
class Part:
    """A part of the check, which has a process of its own.

    Attributes
    ----------
    work : generator of its records, see `gpu_parts`.
    limit : longest time of its turn [s].
    early : whether it prepares beside the others; a part that takes much memory does not.
    memory : estimate of the memory that it holds once it is prepared [bytes].
    """

    name: str
    work: Callable[[Look], Iterator[Record]]
    limit: float
    early: bool = True
    memory: float = 1e9


def parts(tiny: bool) -> list[Part]:
    """Return all parts, the most important first."""
    tests = [
        Part(f"tests, {which}", partial(tests_part, recorded=which == LAST_TESTS), limit) for which, limit in TESTS
    ]
    bars = [(101, 8192, False), (25, 65536, False), (25, 65536, True)]
    others = [(nodes, b, backward) for b in (1, 256, 8192, 65536) for nodes in (101, 25) for backward in (False, True)]
    chosen = [(101, 2, False), (25, 2, True)] if tiny else [*bars, *(case for case in others if case not in bars)]
    rods = [rods_of(*case) for case in chosen]
    shells = [
        Part(f"shells, {case}, B = {batch}", partial(shells_part, case=case, batch=batch), 40, memory=A_SHELL * batch)
        for batch in ((1,) if tiny else (1024, 1))
        for case in ("plate, hinges", "plate, mid-edge normals")
    ]
    hooks = [hooks_of(*what, 2 if tiny else 1024) for what in HOOKS]
    factor = Part("factor", factor_part, 60)
    return [
        *(Part("device", device_part, 30), tests[0], *rods[:3], shells[0], factor, *hooks),
        *(*rods[3:], *shells[1:], tests[1]),
    ]


def rods_of(nodes: int, batch: int, backward: bool) -> Part:
    """Return the part that measures so many rods."""
    work, large = partial(rods_part, nodes=nodes, batch=batch, backward=backward), nodes * batch > 5e6
    name = f"rods, {nodes} nodes, B = {batch}{WITH_BACKWARD * backward}"
    return Part(name, work, 120 if large else 40, not large, A_NODE * nodes * batch * (1 + backward))


def hooks_of(kind: str, backward: bool, batch: int) -> Part:
    """Return the part that measures rods with a floor, a drag or a learned force (see `HOOKS`)."""
    work = partial(hooks_part, kind=kind, batch=batch, backward=backward)
    memory = A_NODE * 101 * batch * (1 + backward)
    return Part(f"hooks, {kind}, B = {batch}{WITH_BACKWARD * backward}", work, 40, memory=memory)


@dataclass
class Found:
    """The records of a part, and how it ended: "done", or why not."""

    name: str
    records: list[Record] = field(default_factory=list)
    ended: str = "not begun: no time was left"
    seconds: float = 0.0  # of its turn
    errors: str = ""


def measured(chosen: list[Part], options: list[str], minutes: float, out: Path) -> list[Found]:
    """Let all parts prepare, then measure one after the other; return their records."""
    began, end = time.monotonic(), time.monotonic() + 60 * minutes - WRITING
    found = {part.name: Found(part.name) for part in chosen}
    children: dict[str, Child] = {}
    head = machine()
    try:
        prepare(chosen, found, children, options, began + PREPARING * (end - began))
        ready = {name for name, child in children.items() if child.ready or child.over}
        for part in sorted(chosen, key=lambda part: part.name not in ready):
            turn = time.monotonic()
            if turn < end or (part.name in children and children[part.name].over):
                children[part.name] = child = children.get(part.name) or Child(command(part, options))
                limit = part.limit * (1 if part.name in ready else UNPREPARED)
                finish(child, found[part.name], min(end, turn + limit))
                found[part.name].seconds = time.monotonic() - turn
            print(f"{turn - began:4.0f} s {part.name}: {found[part.name].ended}", file=sys.stderr, flush=True)
            gpu_report.write(out, head, list(found.values()))
    finally:
        for child in children.values():
            child.end()
    return list(found.values())


def prepare(
    chosen: list[Part], found: dict[str, Found], children: dict[str, Child], options: list[str], until: float
) -> None:
    """Start the parts, as many at a time as there are cores, until all are ready or time is over; then stop them.

    Parts that the device has no room for beside the others are left for later.
    """
    fitting = within([part for part in chosen if part.early], device_bytes())
    while time.monotonic() < until:
        busy = [child for child in children.values() if not (child.ready or child.over)]
        waiting = [part for part in fitting if part.name not in children]
        for part in waiting[: max(0, (os.cpu_count() or 1) - len(busy))]:
            children[part.name] = Child(command(part, options))
        if not (busy or waiting):
            break
        for name, child in children.items():
            found[name].records += child.told()
        time.sleep(0.1)
    for child in children.values():
        child.hold()


def device_bytes() -> float:
    """Return the bytes of a CUDA device that prepared parts may hold together; infinite where there is no device."""
    if not torch.cuda.is_available():
        return math.inf
    return ROOM * torch.cuda.get_device_properties(0).total_memory


def within(wanted: list[Part], room: float) -> list[Part]:
    """Return the parts that fit into so many bytes together, the first ones first."""
    fitting, held = [], 0.0
    for part in wanted:
        if held + part.memory <= room:
            fitting.append(part)
            held += part.memory
    return fitting


def finish(child: Child, found: Found, until: float) -> None:
    """Let a part measure to its end or until its time is over; collect its records and how it ended."""
    child.go()
    began = time.monotonic()
    while not child.over and time.monotonic() < until:
        found.records += child.told()
        time.sleep(0.05)
    hangs = not child.over
    returned = child.end()
    found.records += child.told()
    if hangs:
        found.ended = f"failed: not done within {time.monotonic() - began:.0f} s, and ended"
    else:
        found.ended = "done" if returned == 0 else f"failed: ended with {returned}"
    found.errors = child.errors()


def command(part: Part, options: list[str]) -> list[str]:
    """Return the command that runs a part in a process of its own."""
    return [sys.executable, "-m", "benchmarks.gpu", *options, "--part", part.name]


def tell(part: Part, look: Look) -> int:
    """Run a part in this process and print its records, one a line; once it is ready, wait for a line on stdin."""
    torch.set_num_threads(1)
    for record in part.work(look):
        print(json.dumps(record), flush=True)
        if record == READY:
            if look.device == "cuda":
                torch.cuda.empty_cache()  # other parts can use the memory
            sys.stdin.readline()
    return 0


def arguments() -> argparse.Namespace:
    """Return the arguments of the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help="only parts with one of these words in their name (see --list)")
    parser.add_argument("--minutes", type=float, default=8.0, help="how long it may take in all")
    parser.add_argument("--out", type=Path, default=Path("out/gpu"), help="folder for what is found")
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="few robots, nothing compiled: only try that it runs")
    parser.add_argument("--modes", nargs="+", choices=MODES, default=MODES, help="only steps of these kinds")
    parser.add_argument("--list", action="store_true", help="print what would be measured")
    parser.add_argument("--part", help=argparse.SUPPRESS)  # for the process of a part
    return parser.parse_args()


def refusal(device: str, tiny: bool) -> str | None:
    """Return why nothing can be measured here; None where it can."""
    if device == "cpu":
        return None if tiny else "a CPU only tries that everything runs: add --tiny, or see `python -m benchmarks`"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device here, so there is nothing to measure; --device cpu --tiny tries the check"
    return None


def main() -> int:
    """Measure, print, write; return the exit status: 1 where a part or a test failed, 2 where nothing is measured."""
    given = arguments()
    everything = parts(given.tiny)
    if given.part:
        modes = ("eager",) if given.tiny else tuple(given.modes)
        return tell(next(part for part in everything if part.name == given.part), Look(given.device, given.tiny, modes))
    chosen = [part for part in everything if not given.words or any(word in part.name for word in given.words)]
    if given.list or not chosen:
        print("\n".join(part.name for part in chosen) or f"nothing is called {' or '.join(given.words)}: see --list")
        return 0 if chosen else 2
    if reason := refusal(given.device, given.tiny):
        print(f"error: {reason}", file=sys.stderr)
        return 2
    given.out.mkdir(parents=True, exist_ok=True)
    options = ["--device", given.device, *(["--tiny"] if given.tiny else []), "--modes", *given.modes]
    found = measured(chosen, options, given.minutes, given.out)
    print((given.out / "gpu.md").read_text(encoding="utf-8"))
    return int(any(gpu_report.failures(part) for part in found))


if __name__ == "__main__":
    sys.exit(main())
