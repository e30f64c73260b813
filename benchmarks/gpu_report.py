"""The reports of `benchmarks.gpu`, for people (gpu.md) and for programs (gpu.json)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import rods, table
from benchmarks.table import Row
from torchdismech import compilation
from torchdismech.solve.linear import choice
from torchdismech.system.memory import size_of

if TYPE_CHECKING:
    from benchmarks.gpu import Found

MOST = 4_000_000  # characters of a log that are kept


@dataclass(frozen=True)
class Bar:
    """A rate to be reached: robot-steps a second of all robots, every step solved to `rods.RELATIVE_TOLERANCE`.

    `least` has to be reached; `goal` and the text `further` are aims beyond.
    """

    case: str
    batch: int
    backward: bool
    least: float
    goal: float
    further: str = ""

    def found(self, rows: Sequence[Row]) -> Row | None:
        """Return the fastest row in any mode whose robots all converged to the tolerance; None without."""
        honest = [
            row
            for row in rows
            if (row.case, row.batch, row.who.endswith("with backward")) == (self.case, self.batch, self.backward)
            and row.converged == row.batch
            and row.residual is not None
            and row.residual <= rods.RELATIVE_TOLERANCE
        ]
        return min(honest, key=lambda row: row.seconds, default=None)


BARS = (
    Bar("rod, 101 nodes", 8192, False, 1e6, 2e6, "5 M in one fused kernel"),
    Bar("rod, 25 nodes", 65536, False, 10e6, 20e6),
    Bar("rod, 25 nodes", 65536, True, 5e6, 10e6),
    Bar("plate, hinges", 1024, False, 20e3, 100e3, "the bar is for 450 nodes, the plate has 441"),
)


def write(out: Path, head: dict[str, str], found: Sequence[Found]) -> None:
    """Write all files of the report anew."""
    rows, figures = told(found, "row"), told(found, "figures")
    parts = [{"name": f.name, "ended": f.ended, "seconds": f.seconds} for f in found]
    everything = {"machine": head, "parts": parts, "rows": rows, "figures": figures, "notes": told(found, "note")}
    (out / "gpu.json").write_text(json.dumps(everything, indent=1), encoding="utf-8")
    (out / "gpu.md").write_text("\n".join(lines(head, found)) + "\n", encoding="utf-8")
    (out / "tests.txt").write_text("\n".join(told(found, "log"))[-MOST:] + "\n", encoding="utf-8")
    errors = [f"==== {f.name}: {f.ended}\n{f.errors}\n" for f in found if f.errors]
    (out / "errors.txt").write_text("".join(errors), encoding="utf-8")


def told(found: Sequence[Found], kind: str) -> list[Any]:
    """Return the content of all records of one kind."""
    return [record[kind] for part in found for record in part.records if kind in record]


def failures(part: Found) -> list[str]:
    """Return a line for each failure in a part, or for what kept it from its end."""
    failed = [] if part.ended == "done" else [f"{part.name}: {part.ended}"]
    for row in told([part], "row"):
        if row["note"].startswith("failed"):
            failed.append(f"{row['case']}, B = {row['batch']}, {row['who']}: {row['note']}")
        elif row["converged"] is not None and row["converged"] < row["batch"]:
            failed.append(f"{row['case']}, B = {row['batch']}, {row['who']}: {row['converged']} rows converged")
    return failed


def lines(head: dict[str, str], found: Sequence[Found]) -> Iterator[str]:
    """Yield the report in Markdown."""
    rows = [Row(**row) for row in told(found, "row")]
    figures = told(found, "figures")
    yield "# GPU check\n"
    yield ", ".join(f"{key} {value}" for key, value in head.items())
    yield from (f"\n{', '.join(f'{k} {v}' for k, v in fact.items())}" for fact in figures if fact["kind"] == "device")
    yield "\n## Bars: robot-steps a second, residual 1e-6\n"
    yield from bars(rows)
    yield "\n## Parts\n"
    yield from (f"- {part.name}: {part.ended} ({part.seconds:.0f} s)" for part in found)
    yield from (f"- {note}" for note in told(found, "note"))
    yield from tests(figures)
    failed = [words for part in found for words in failures(part)]
    yield f"\n{len(failed)} failures" + "".join(f"\n- {words}" for words in failed)
    yield "\n## Guesses that this lets one set\n"
    yield from guesses(rows, figures)
    if rows:
        yield "\n## All rows\n"
        yield table.text(rows)
    yield "\n## One step, launch by launch\n"
    yield from profiles([fact for fact in figures if fact["kind"] == "profile"])
    yield "\n## First steps: to build, compile, record and warm up, beside the other parts; memory at its peak\n"
    yield "| | B | who | s | a robot | estimated for a step |\n|---|---|---|---|---|---|"
    for f in (f for f in figures if f["kind"] == "first"):
        own, estimate = (size_of(f[key] / f["batch"]) for key in ("bytes", "estimate"))
        yield f"| {f['case']} | {f['batch']} | {f['who']} | {f['seconds']:.1f} | {own} | {estimate} |"


def bars(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table of bars."""
    yield "| | B | bar | goal | found | by | |\n|---|---|---|---|---|---|---|"
    for bar in BARS:
        row = bar.found(rows)
        name = bar.case + (", with backward" if bar.backward else "")
        rate = "not measured" if row is None else f"{1 / row.seconds:,.0f}"
        verdict = "" if row is None else "met" if 1 / row.seconds >= bar.least else "MISSED"
        yield (
            f"| {name} | {bar.batch} | {bar.least:,.0f} | {bar.goal:,.0f} | {rate} | {'' if row is None else row.who} "
            f"| {' '.join(filter(None, (verdict, bar.further)))} |"
        )


def tests(figures: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield how many tests passed so far."""
    last = {fact["recorded"]: fact["counts"] for fact in figures if fact["kind"] == "tests"}
    for recorded, counts in last.items():
        which = "of recorded steps" if recorded else "all others"
        yield f"- tests, {which}: " + ", ".join(f"{number} {outcome.lower()}" for outcome, number in counts.items())


def guesses(rows: Sequence[Row], figures: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the library's guessed constants, each with the values that were measured."""
    yield f"- `compilation.GPU_SHARE = {compilation.GPU_SHARE}`: of a robot's eager evaluation on a core. Found:"
    eager = [fact for fact in figures if fact["kind"] == "eager"]
    alone = {fact["case"]: fact["evaluation_s"] for fact in eager if fact["batch"] == 1}
    for fact in eager:
        if fact["batch"] > 1 and fact["case"] in alone:
            share = (fact["evaluation_s"] - alone[fact["case"]]) / (fact["batch"] * fact["robot_on_a_core_s"])
            own, one, guess = (1e3 * s for s in (fact["evaluation_s"], alone[fact["case"]], fact["call_on_a_core_s"]))
            yield (
                f"  - {fact['case']}, B = {fact['batch']}: {share:.2g} (an evaluation takes {own:.3g} ms, of one robot "
                f"{one:.3g} ms, which is estimated as {guess:.3g} ms)"
            )
    yield (
        f"- `solve.linear.choice.BLOCK_LAUNCHES = {choice.BLOCK_LAUNCHES}` s a block and `BUCKET_LAUNCHES = "
        f"{choice.BUCKET_LAUNCHES}` s a bucket of fronts, launches alone. Found, of a bucket over a block:"
    )
    sizes = {
        (f["case"], key): f[key] for f in figures if f["kind"] == "sizes" for key in ("blocks", "buckets") if key in f
    }
    times = {(row.case, row.batch, row.who): row.seconds * row.batch for row in rows if row.case.startswith("factor")}
    for (case, batch, who), seconds in times.items():
        other = times.get((case, batch, "blocks"))
        if who == "multifrontal" and other is not None and (case, "blocks") in sizes and (case, "buckets") in sizes:
            block, bucket = other / sizes[case, "blocks"], seconds / sizes[case, "buckets"]
            yield (
                f"  - {case}, B = {batch}: {bucket / block:.3g} ({sizes[case, 'blocks']} blocks of "
                f"{1e6 * block:.3g} us, {sizes[case, 'buckets']} buckets of {1e6 * bucket:.3g} us)"
            )
    yield (
        f"- `solve.linear.choice.LONG_BAND = {choice.LONG_BAND}` unknowns and `FEW_ROBOTS = {choice.FEW_ROBOTS}`: "
        "narrow bands of more unknowns and fewer robots go to fronts. Found, time of fronts over that of the kernel:"
    )
    unknowns = {fact["case"]: fact["n"] for fact in figures if fact["kind"] == "sizes"}
    for (case, batch, who), seconds in times.items():
        kernel = times.get((case, batch, "triton"))
        if who == "multifrontal" and kernel is not None:
            yield f"  - {case} ({unknowns[case]} unknowns), B = {batch}: {seconds / kernel:.3g}"


def profiles(found: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield the table of what steps launch, and the kernels that take longest.

    Without gaps between launches a step would take its time at work: recording a step cannot gain more than that.
    """
    yield "| | B | who | wall [ms] | launches | at work [ms] | gaps [ms] | longest gap [ms] | wall / at work |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for f in found:
        ratio = f"{f['wall_ms'] / f['busy_ms']:.3g}" if f["busy_ms"] else ""
        yield (
            f"| {f['case']} | {f['batch']} | {f['who']} | {f['wall_ms']:.3g} | {f['launches']} | {f['busy_ms']:.3g} "
            f"| {f['gaps_ms']:.3g} | {f['longest_gap_ms']:.3g} | {ratio} |"
        )
    yield "\nWall over time at work is the most that recording a step could gain where it is not recorded."
    for f in found:
        if f["longest"]:
            yield f"\n{f['case']}, B = {f['batch']}, {f['who']}: the kernels that take longest"
            yield from (f"- {k['ms']:.3g} ms in {k['count']}: `{k['name']}`" for k in f["longest"])
