"""The parts of `benchmarks.gpu`: each prepares (builds, compiles, warms up), says so, and then measures alone.

A part is a generator of records, which JSON can hold: `READY` where it is prepared, {"row": a row of the table},
{"figures": numbers of one kind}, {"note": a line of text}. A failure becomes a row that says why, and the next case
goes on.
"""

import gc
import json
import statistics
import subprocess
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks import contact, rods, shells
from benchmarks.machine import median_seconds, now, peak_bytes, version_or_none
from benchmarks.peers import Cantilever
from benchmarks.table import Row
from models.residual_force import ResidualForce
from torchdismech import ImplicitEuler, Model, State, StepInfo, forces, trainable
from torchdismech.integrate import forward
from torchdismech.integrate.recorded import gradients as recorded_gradient
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.recordable import why_steps_unrecorded
from torchdismech.model.step_memory import step_bytes

Record = dict[str, Any]
READY: Record = {"ready": True}
TRAINED = ["bend_twist.EI1", "bend_twist.EI2"]
UNROLLED = 4  # steps that one backward pass goes through
# steps until backward passes are recorded, too: those that begin a pass and those within it are of two kinds
BEFORE_RECORDING = recording.STEPS_BEFORE_RECORDING + 2 * recorded_gradient.PASSES_BEFORE_RECORDING
ASKED = "driver_version,clocks.sm,clocks.mem,power.limit,ecc.mode.current"  # of nvidia-smi
MODES = ("recorded", "eager", "recorded, compiled", "compiled")  # compiling takes a minute
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")  # categories of a trace


@dataclass(frozen=True)
class Look:
    """Settings of all measurements: the device, whether only to try that everything runs, and the modes of stepping."""

    device: str
    tiny: bool
    modes: tuple[str, ...] = MODES

    @property
    def most_steps(self) -> int:
        """Largest number of steps that are timed together."""
        return 2 if self.tiny else 20

    @property
    def seconds(self) -> float:
        """Time over which a measurement is repeated, about [s]."""
        return 0.0 if self.tiny else 1.0


@dataclass(frozen=True)
class Subject:
    """Robots that are stepped, and how.

    Attributes
    ----------
    case, mode : for the table; the mode is "recorded" or "recorded, compiled", or the same without recordings: "eager"
        or "compiled".
    """

    case: str
    mode: str
    model: Model
    start: State
    integrator: ImplicitEuler

    @property
    def batch(self) -> int:
        """Number of robots."""
        return self.start.batch

    @property
    def device(self) -> str:
        """Kind of device."""
        return self.model.device.type

    def unrecorded(self):
        """Return a context in which no step is recorded, unless the mode is a recorded one."""
        if self.mode.startswith("recorded"):
            return nullcontext()
        return mock.patch.object(forward, "kind_of", lambda problem: None)

    def steps(self, count: int) -> tuple[list[StepInfo], float]:
        """Return the `StepInfo` of each of so many steps from the start, and the seconds of all."""
        with self.unrecorded(), torch.no_grad():
            _, infos, seconds = rods.timed_steps(self.integrator, self.model, self.start, count)
        return infos, seconds

    def gradients(self) -> tuple[list[StepInfo], float]:
        """Return the same for `UNROLLED` steps, with the seconds of a backward pass through all of them included."""
        began = now(self.device)
        with self.unrecorded():
            state, infos = self.start, []
            for _ in range(UNROLLED):
                state, info = self.integrator.step(self.model, state)
                infos.append(info)
            state.positions[:, -1].square().mean().backward()
        return infos, now(self.device) - began

    def refuse_unrecorded(self, backward: bool) -> None:
        """Refuse a recorded mode whose steps, or backward passes, were not recorded."""
        kinds = self.model.recordings
        if not any(kind.recording is not None for kind in kinds):
            raise RuntimeError(f"no step was recorded: {why_steps_unrecorded(self.model)}")
        if backward and not any(passes.recording for kind in kinds for passes in kind.backward.values()):
            raise RuntimeError("steps were recorded, but no backward pass")


def attempted(
    case: str, batch: int, who: str, measure: Callable[..., Iterator[Record]], *given: Any
) -> Iterator[Record]:
    """Yield the records of a measurement with its arguments; where it fails, a row that says why."""
    try:
        yield from measure(*given)
    except Exception as error:  # reported: the other cases are measured all the same
        words = (str(error).splitlines() or [""])[0]
        yield row(Row(case, batch, who, note=f"failed: {type(error).__name__}: {words[:300]}"))
        traceback.print_exc()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def row(found: Row) -> Record:
    """Return a row as a record."""
    return {"row": asdict(found)}


def cost(subject: Subject, look: Look, backward: bool = False) -> Row:
    """Return the row of a step's cost, with residual and convergence."""
    infos, once = subject.gradients() if backward else subject.steps(2)
    count = 1 if backward else max(2, min(look.most_steps, int(look.seconds / 3 / max(once / 2, 1e-9))))
    times: list[float] = []
    while not times or (sum(times) < look.seconds and len(times) < 7):
        infos, seconds = subject.gradients() if backward else subject.steps(count)
        times.append(seconds)
    batch, iterations = subject.batch, float(rods.iterations_of(infos).mean())
    return Row(
        subject.case,
        batch,
        subject.mode + (", with backward" if backward else ""),
        subject.integrator.dt,
        statistics.median(times) / (len(infos) * batch),
        residual=rods.worst_residual(infos),
        converged=rods.converged_rows(infos),
        peak_mb=peak_bytes(subject.device) / 1e6,
        note=f"{iterations:.2f} iterations, {len(times)} times {len(infos)} steps (median; least "
        f"{min(times) / statistics.median(times):.2f} of it), {subject.model.solvers.of(batch).name}",
    )


# ---- parts -------------------------------------------------------------------------------------------------------


def rods_part(look: Look, nodes: int, batch: int, backward: bool) -> Iterator[Record]:
    """Measure rods in all modes, forward or with a backward pass, and the launches of a step of each."""
    case = f"rod, {nodes} nodes"

    def subject(mode: str) -> Subject:
        model = rods.cantilever_model(rod_case(look, nodes, batch, mode))
        if backward:
            trainable.scaled(model, TRAINED)
        return started(case, mode, model, model.initial_state(batch=batch).detach(), 1e-2)

    yield from in_modes(look, case, batch, subject, backward)


def shells_part(look: Look, case: str, batch: int) -> Iterator[Record]:
    """Measure shells in all modes."""

    def subject(mode: str) -> Subject:
        model = shells.CASES[case](batch, "compiled" in mode, look.device)
        return started(case, mode, model, model.initial_state(batch=batch), shells.DT)

    yield from in_modes(look, case, batch, subject, False)


def learned_network() -> ResidualForce:
    """Return a learned force whose network has nonzero weights, the same each time."""
    force = ResidualForce()
    generator = torch.Generator().manual_seed(0)
    for parameter in force.network.parameters():
        parameter.data = 0.1 * torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
    return force


LOADS: dict[str, Callable[[], forces.Force]] = {
    "drag": lambda: forces.Resistive(0.5, 1.0),
    "a learned force": learned_network,
}


def hooks_part(look: Look, kind: str, batch: int, backward: bool = False) -> Iterator[Record]:
    """Measure rods with a floor, a drag or a learned force in all modes, and the launches of a step of each."""
    case = f"rod, 101 nodes, {kind}"

    def subject(mode: str) -> Subject:
        if kind == "floor":
            model, push = contact.floor(True, False, "compiled" in mode, look.device)
            faster = torch.linspace(0.9, 1.1, batch, dtype=push.dtype, device=push.device)[:, None]
            return started(case, mode, model, model.initial_state(velocity=faster * push), contact.DT)
        model = rods.cantilever_model(rod_case(look, 101, batch, mode), LOADS[kind]())
        if backward:
            trainable.scaled(model, TRAINED)
        return started(case, mode, model, model.initial_state(batch=batch).detach(), 1e-2)

    yield from in_modes(look, case, batch, subject, backward)


def rod_case(look: Look, nodes: int, batch: int, mode: str) -> rods.Case:
    """Return the case of `benchmarks.rods` with so many nodes and robots."""
    form = "compiled" if "compiled" in mode else "eager"
    return rods.Case(1e6, batch, form, 1, 1e-2, rod=Cantilever(nodes=nodes), device=look.device)


def started(case: str, mode: str, model: Model, start: State, dt: float) -> Subject:
    """Return robots that are stepped from a start, all at once, by implicit Euler."""
    return Subject(case, mode, model, start, ImplicitEuler(dt, relative_tolerance=rods.RELATIVE_TOLERANCE, chunk=None))


def in_modes(look: Look, case: str, batch: int, make: Callable[[str], Subject], backward: bool) -> Iterator[Record]:
    """Prepare robots in all modes, then measure and profile all.

    Modes that differ only in recordings share their model and kernels.
    """
    subjects: dict[str, Subject] = {}
    suffix = ", with backward" if backward else ""

    def prepared(mode: str) -> Iterator[Record]:
        held, began = allocated(look.device), time.perf_counter()
        other = subjects.get({"compiled": "recorded, compiled", "eager": "recorded"}.get(mode, ""))
        subject = make(mode) if other is None else replace(other, mode=mode)
        if backward:
            for _ in range(-(-BEFORE_RECORDING // UNROLLED)):
                subject.gradients()
        else:
            subject.steps(look.most_steps)  # so many, as later steps may need more than the first
        if mode.startswith("recorded"):
            subject.refuse_unrecorded(backward)
        subjects[mode] = subject
        first = {
            "kind": "first",
            "case": case,
            "batch": batch,
            "who": mode + suffix,
            "estimate": step_bytes(subject.model, batch),
        }
        yield {"figures": {**first, "seconds": time.perf_counter() - began, "bytes": peak_bytes(look.device) - held}}

    for mode in look.modes:
        yield from attempted(case, batch, mode + suffix, prepared, mode)
    yield READY
    for mode, subject in subjects.items():
        yield from attempted(case, batch, mode + suffix, measured, subject, look, backward)
    for mode, subject in subjects.items():
        yield from attempted(case, batch, f"{mode}{suffix}, profile", profiled, subject, backward)


def allocated(device: str) -> int:
    """Return the bytes that tensors hold on a GPU, and reset its peak; on a CPU the peak of this process."""
    if device == "cpu":
        return peak_bytes()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def measured(subject: Subject, look: Look, backward: bool) -> Iterator[Record]:
    """Yield the row, and, of eager steps, figures to compare the estimate of eager work with."""
    found = cost(subject, look, backward)
    yield row(found)
    if subject.mode == "eager" and not backward:
        infos, _ = subject.steps(2)
        share = subject.model.compilation.cost
        yield {
            "figures": {
                "kind": "eager",
                "case": subject.case,
                "batch": subject.batch,
                "evaluation_s": found.seconds * subject.batch / infos[-1].iterations.double().mean().item(),
                "call_on_a_core_s": share.call,
                "robot_on_a_core_s": share.robot,
            }
        }


# ---- one step, launch by launch ----------------------------------------------------------------------------------


def profiled(subject: Subject, backward: bool) -> Iterator[Record]:
    """Yield figures of one step (of some, with a backward pass): launches, time that the device works, and gaps."""

    def once() -> float:
        return subject.gradients()[1] if backward else subject.steps(1)[1]

    wall = statistics.median(once() for _ in range(3))
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if subject.device == "cuda" else [])]
    with tempfile.TemporaryDirectory() as directory:
        trace = Path(directory) / "trace.json"
        with profile(activities=activities) as run:
            once()
        run.export_chrome_trace(str(trace))
        found = on_device(json.loads(trace.read_text())["traceEvents"])
    steps = UNROLLED if backward else 1
    who = subject.mode + (f", {steps} steps with backward" if backward else "")
    yield {"figures": {"kind": "profile", "case": subject.case, "batch": subject.batch, "who": who,
                       "wall_ms": 1e3 * wall, **found}}  # fmt: skip


def on_device(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Return what a Chrome trace says of a device: launches, ms at work, gaps, and the ten longest kernels.

    Work that overlaps counts once.
    """
    work = sorted((e["ts"], e["dur"], e["name"]) for e in events if e.get("ph") == "X" and e.get("cat") in ON_DEVICE)
    busy, gaps, end = 0.0, [], None
    by_name: dict[str, list[float]] = {}
    for start, duration, name in work:
        if end is not None and start > end:
            gaps.append(start - end)
        busy += max(0.0, start + duration - max(start, start if end is None else end))
        end = start + duration if end is None else max(end, start + duration)
        by_name.setdefault(name, []).append(duration)
    longest = sorted(by_name.items(), key=lambda item: -sum(item[1]))[:10]
    return {
        "launches": len(work),
        "busy_ms": 1e-3 * busy,
        "gaps_ms": 1e-3 * sum(gaps),
        "longest_gap_ms": 1e-3 * max(gaps, default=0.0),
        "longest": [{"name": name[:120], "count": len(t), "ms": 1e-3 * sum(t)} for name, t in longest],
    }


# ---- the device --------------------------------------------------------------------------------------------------


def device_part(look: Look) -> Iterator[Record]:
    """Yield figures of the device: its name and size, and its best rates of copies, products and launches."""
    facts: dict[str, Any] = {"kind": "device", "triton": version_or_none("triton"), "device": look.device}
    if look.device == "cuda":
        properties = torch.cuda.get_device_properties(0)
        facts |= {
            "name": properties.name,
            "multiprocessors": properties.multi_processor_count,
            "memory_gb": properties.total_memory / 1e9,
            "capability": f"{properties.major}.{properties.minor}",
            "cuda": torch.version.cuda,
            "nvidia_smi": said(["nvidia-smi", f"--query-gpu={ASKED}", "--format=csv"]),
        }
    yield READY
    numbers, side = (1 << 16, 64) if look.tiny else (1 << 28, 4096)
    x = torch.ones(numbers, dtype=torch.float64, device=look.device)
    y, a = torch.empty_like(x), torch.ones(side, side, dtype=torch.float64, device=look.device)
    facts["copy_gb_s"] = 16e-9 * numbers / median_seconds(lambda: y.copy_(x), look.device, budget=1.0)
    facts["fp64_product_gflop_s"] = 2e-9 * side**3 / median_seconds(lambda: a @ a, look.device, budget=1.0)
    z = torch.ones(1, device=look.device)
    facts["launch_us"] = 1e4 * median_seconds(lambda: [z.add_(1) for _ in range(100)], look.device, budget=1.0)
    yield {"figures": facts}


def said(command: list[str]) -> str:
    """Return the output of a program, or why it cannot be run."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
