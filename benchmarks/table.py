"""The table of all benchmarks: a row for each case, batch and way of stepping."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

HEAD = (
    "case",
    "B",
    "who",
    "robot-step",
    "robot-steps/s",
    "sim. s/s",
    "x peer",
    "residual",
    "error [m]",
    "from fine [m]",
    "converged",
    "compile [s]",
    "peak [MB]",
    "",
)


@dataclass(frozen=True)
class Row:
    """The cost of a batch, with residuals, errors and convergence of its steps; None where not measured.

    Attributes
    ----------
    case, batch, who : the robot, the number of robots, and the mode of stepping or the peer.
    dt : time that a step simulates [s]; NaN where no step is measured but an evaluation.
    seconds : time of one robot-step: process CPU time of one core, wall time on a GPU.
    peer : whether this is another simulator, with which rows of the same case are compared.
    residual : the largest after a step's last iteration, over the step's force scale.
    error : distance of the robot from the result of the same steps solved to 1e-12 [m].
    drift : distance of the tip from the result of far smaller steps of second order [m].
    converged : robots that converged in every step.
    compile_s : wall time of the first step, or of a peer's compiler [s].
    peak_mb : the most memory that the process, or the GPU, had.
    note : further information, or why nothing was measured.
    """

    case: str
    batch: int
    who: str
    dt: float = math.nan
    seconds: float = math.nan
    peer: bool = False
    residual: float | None = None
    error: float | None = None
    drift: float | None = None
    converged: int | None = None
    compile_s: float | None = None
    peak_mb: float | None = None
    note: str = ""

    @property
    def rate(self) -> float:
        """Simulated seconds per second, summed over the robots."""
        return self.dt / self.seconds


def ratio(row: Row, rows: Sequence[Row]) -> float | None:
    """Return a row's rate over that of the first peer of its case, if possible with the same batch; None without."""
    peers = [other for other in rows if other.peer and other.case == row.case and not math.isnan(other.seconds)]
    peers = [other for other in peers if other.batch == row.batch] or peers
    if row.peer or math.isnan(row.seconds) or not peers:
        return None
    alike = math.isnan(row.dt) and math.isnan(peers[0].dt)  # both are evaluations, no steps
    return peers[0].seconds / row.seconds if alike else row.rate / peers[0].rate


def text(rows: Sequence[Row]) -> str:
    """Return the table in Markdown, its columns aligned."""
    lines = [HEAD, *(_cells(row, ratio(row, rows)) for row in rows)]
    widths = [max(len(line[k]) for line in lines) for k in range(len(HEAD))]
    rule = ["-" * width for width in widths]
    return "\n".join(
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |"
        for line in (lines[0], rule, *lines[1:])
    )


def _cells(row: Row, over_peer: float | None) -> tuple[str, ...]:
    """Return a row's cells, empty where nothing was measured."""

    def shown(value: float | None, form: str) -> str:
        return "" if value is None or math.isnan(value) else format(value, form)

    return (
        row.case,
        str(row.batch),
        row.who,
        duration(row.seconds),
        shown(1 / row.seconds, ",.0f"),
        shown(row.rate, ".3g"),
        shown(over_peer, ".3g"),
        shown(row.residual, ".0e"),
        shown(row.error, ".0e"),
        shown(row.drift, ".1g"),
        "" if row.converged is None else f"{row.converged}/{row.batch}",
        shown(row.compile_s, ".1f"),
        shown(row.peak_mb, ".0f"),
        row.note.replace("|", "/"),
    )


def duration(seconds: float) -> str:
    """Return a time as text in a unit that suits it; "" for NaN."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("us", 1e-6)):
        if seconds >= scale:
            return f"{seconds / scale:.3g} {unit}"
    return "" if math.isnan(seconds) else f"{1e9 * seconds:.3g} ns"


def short(solver: str) -> str:
    """Return a solver's description up to its first bracket."""
    return solver.partition(" (")[0]
