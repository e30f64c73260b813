"""Where the time of a step goes, in groups that a person understands: ``python -m benchmarks.profile [case ...]``.

Ten steps are traced by torch.profiler after a warm-up, without recordings: a recording is one call, inside of which a
trace shows nothing. The time of every operation of torch and call of compiled code is counted for the part of the
library that called it (a room, such as `elastic/`). What a step without a trace takes beyond these is counted as calls:
Python, and torch's own way to its operations. A recorded step, whose time stands above, does the same operations with
next to no calls. A trace slows Python down, but hardly the operations; where these are tiny (one robot) they seem
longer than they are.

``--trace FILE`` keeps the trace, for chrome://tracing or https://ui.perfetto.dev.
"""

import argparse
import dataclasses
import json
import math
import re
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import contact, rods, shells
from benchmarks.machine import machine
from torchdismech import ImplicitEuler, Model, State
from torchdismech.integrate.recorded import recording

STEPS, WARM_UP, ROUNDS = 10, 5, 3
UNTIL_RECORDED = 20  # steps
CALLS = "calls, Python"
# Groups of a frame, "path: function", by the room of the library that it begins with; the first match counts.
GROUPS = {
    "elastic/": "stencils: energies, forces, matrix blocks",
    "geometry/rods": "stencils: energies, forces, matrix blocks",
    "geometry/shells": "stencils: energies, forces, matrix blocks",
    "materials": "stencils: energies, forces, matrix blocks",
    "forces/": "loads",
    "contact/": "contact",
    "geometry/distances": "contact",
    "integrate/candidates": "contact",
    "sparse/": "sums and scatter",
    "solve/linear/": "factor and solve",
    "body": "moves and frames",
    "geometry/": "moves and frames",
    "kinematics": "moves and frames",
    "solve/newton": "vectors of Newton's loop",
    "solve/search": "vectors of Newton's loop",
    "solve/relaxed": "vectors of Newton's loop",
    "integrate/equations": "vectors of Newton's loop",
    "integrate/search/": "vectors of Newton's loop",
    "": "the step's start and end: guess, scale, new state",
}
TRANSPARENT = ("native/", "fused/", "values", "geometry/vec3", "geometry/frames")  # counted for their callers
# Frames that call compiled code through ctypes: their time is its time.
COMPILED = re.compile(
    r"torchdismech/(native/compiled\.py\(\d+\): in_threads|contact/pairs/pair_calls\.py\(\d+\): call)$"
)


@dataclass(frozen=True)
class Subject:
    """A case to be profiled, with the function that builds its model and first state."""

    name: str
    dt: float  # s
    build: Callable[[], tuple[Model, State]]


def subjects() -> Iterator[Subject]:
    """Yield all cases that can be profiled."""
    for batch in (1, 256):
        case = rods.Case(1e6, batch, "eager", STEPS, 1e-2)
        yield Subject(f"rod, 101 nodes, B = {batch}", case.dt, lambda case=case: rod(case))  # type: ignore[misc]
    for name in shells.CASES:
        yield Subject(
            f"{name}, B = 64",
            shells.DT,
            lambda name=name: started(shells.CASES[name](64, False, "cpu"), 64),  # type: ignore[misc]
        )
    yield Subject("contact rods, B = 64", contact.DT, lambda: bundle(64))


def rod(case: rods.Case) -> tuple[Model, State]:
    """Return the benchmark's cantilevers."""
    return started(rods.cantilever_model(case), case.batch)


def started(model: Model, batch: int) -> tuple[Model, State]:
    """Return a model and its robots at rest."""
    return model, model.initial_state(batch=batch)


def bundle(batch: int) -> tuple[Model, State]:
    """Return the benchmark's touching rods."""
    model, push = contact.case_of("rods")(True, False, "cpu")
    return model, model.initial_state(velocity=push.expand(batch, -1))


@dataclass(frozen=True)
class Profile:
    """The time of a step, by groups."""

    name: str
    recorded_ms: float  # CPU time, of the whole batch, as users get it
    step_ms: float  # the same without recordings, and without a trace
    groups: dict[str, float]  # ms a step, largest first; CALLS is the rest
    calls: int  # operations and compiled kernels a step


def profiled(subject: Subject, trace: Path) -> Profile:
    """Measure steps as users get them, recorded, and then steps without recordings, without and with a trace."""
    integrator = ImplicitEuler(subject.dt, relative_tolerance=1e-6)
    model, start = subject.build()

    def steps(count: int, state: State) -> State:
        for _ in range(count):
            state, _ = integrator.step(model, state)
        return state

    state = steps(WARM_UP, start)
    steps(UNTIL_RECORDED, state)
    recorded = [1e3 * _cpu_seconds(lambda: steps(STEPS, state)) / STEPS for _ in range(ROUNDS)]
    with without_recordings():
        model, start = subject.build()
        state = steps(WARM_UP, start)
        return dataclasses.replace(_traced(subject.name, steps, state, trace), recorded_ms=statistics.median(recorded))


@contextmanager
def without_recordings() -> Iterator[None]:
    """Let models that are built within the block take steps without recordings."""
    before, recording.STEPS_BEFORE_RECORDING = recording.STEPS_BEFORE_RECORDING, sys.maxsize
    try:
        yield
    finally:
        recording.STEPS_BEFORE_RECORDING = before


def _traced(name: str, steps: Callable[[int, State], State], state: State, trace: Path) -> Profile:
    """Return the profile of `STEPS` steps from a state, taken in turns without and with a trace, written to a file."""
    plain, rounds, calls = [], [], 0
    for _ in range(ROUNDS):  # in turns, so that a busy machine slows both alike
        plain.append(1e3 * _cpu_seconds(lambda: steps(STEPS, state)) / STEPS)
        began = time.perf_counter()
        with profile(activities=[ProfilerActivity.CPU], with_stack=True) as run:
            cpu = _cpu_seconds(lambda: steps(STEPS, state))
            wall = time.perf_counter() - began
        run.export_chrome_trace(str(trace))
        times, calls = grouped(json.loads(trace.read_text())["traceEvents"])
        # a trace has wall times, which other processes on a busy machine stretch
        rounds.append({group: 1e-3 * us * min(1.0, cpu / wall) / STEPS for group, us in times.items()})
    medians = {group: statistics.median(found[group] for found in rounds) for group in rounds[0]}
    groups = dict(sorted(medians.items(), key=lambda item: -item[1]))
    step_ms = statistics.median(plain)
    return Profile(name, math.nan, step_ms, {**groups, CALLS: step_ms - sum(groups.values())}, calls // STEPS)


def _cpu_seconds(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def grouped(events: list[dict[str, Any]]) -> tuple[Counter[str], int]:
    """Return the microseconds that operations took for each group, and how many operations there were.

    Events are those of a Chrome trace: each has a start and a duration, and lies inside the one that called it.
    """
    times: Counter[str] = Counter()
    calls = 0
    # end, group, whether its own time counts, whether it lies within a call of compiled code
    open_events: list[tuple[float, str, bool, bool]] = []
    frames = [e for e in events if e.get("ph") == "X" and e.get("cat") == "python_function"]
    # without the marks that torch.compile leaves, which do not lie inside of each other
    operations = [e for e in events if e.get("ph") == "X" and e.get("cat") == "cpu_op" and "::" in e["name"]]
    for event in sorted(frames + operations, key=lambda e: (e["tid"], e["ts"], -e["dur"])):
        while open_events and event["ts"] >= open_events[-1][0]:
            open_events.pop()
        above = open_events[-1] if open_events else None
        group = room_group(event["name"]) if event["cat"] == "python_function" else None
        compiled = COMPILED.search(event["name"]) is not None or (above is not None and above[3])
        counts = event["cat"] == "cpu_op" or compiled
        group = group or (above[1] if above else GROUPS[""])
        if counts:
            times[group] += event["dur"]
            calls += above is None or not above[2]
        if above and above[2]:  # the caller's own time is that without its callees
            times[above[1]] -= event["dur"]
        open_events.append((event["ts"] + event["dur"], group, counts, compiled))
    return times, calls


def room_group(frame: str) -> str | None:
    """Return the group of a Python frame by its file; None outside the library and where it works for its caller."""
    found = re.search(r"torchdismech/(\S+)\.py\(\d+\)(: \S+)", frame)
    if found is None or found[1].startswith(TRANSPARENT):
        return None
    return next(group for room, group in GROUPS.items() if "".join(found.groups()).startswith(room))


def text(found: Profile) -> str:
    """Return a profile as lines of text."""
    lines = [
        f"{found.name}: {found.recorded_ms:.3g} ms a step of the batch; without recordings {found.step_ms:.3g} ms and "
        f"{found.calls} operations, of which"
    ]
    lines += [f"  {ms / found.step_ms:6.1%} {ms:9.3f} ms  {group}" for group, ms in found.groups.items()]
    return "\n".join(lines)


def markdown(found: list[Profile]) -> str:
    """Return all profiles as one table: a column each."""
    groups = [*dict.fromkeys(GROUPS.values()), CALLS]
    rows = [["", *(p.name for p in found)], ["---"] * (len(found) + 1)]
    rows += [["ms a step of the batch", *(f"{p.recorded_ms:.3g}" for p in found)]]
    rows += [["the same without recordings", *(f"{p.step_ms:.3g}" for p in found)]]
    rows += [["operations a step", *(str(p.calls) for p in found)]]
    for group in groups:
        shares = [p.groups.get(group, 0.0) / p.step_ms for p in found]
        if any(shares):
            rows.append([group, *(f"{share:.0%}" if share else "" for share in shares)])
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def main() -> None:
    """Profile the cases that the command line chooses, and print."""
    names = [subject.name for subject in subjects()]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.profile", description=__doc__.partition("\n")[0])
    parser.add_argument("words", nargs="*", help=f"only names with all of these words: {'; '.join(names)}")
    parser.add_argument("--trace", type=Path, help="keep the last trace here")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    print(", ".join(f"{key} {value}" for key, value in machine().items()))
    found = []
    with tempfile.TemporaryDirectory() as directory:
        for subject in subjects():
            if all(word in subject.name for word in chosen.words):
                found.append(profiled(subject, chosen.trace or Path(directory) / "trace.json"))
                print(text(found[-1]), flush=True)
    print(f"\n{markdown(found)}" if found else f"nothing is called {' '.join(chosen.words)}: {'; '.join(names)}")


if __name__ == "__main__":
    main()
