"""What of a scene never acts within its run, as its times are beyond the end: in ms perhaps, where s are meant."""

from __future__ import annotations

from torchdismech.errors import warn
from torchdismech.io.scene.scene import Scene

__all__ = ["warn_of_idle"]

TIMED = {"point_force": "acts", "line_load": "acts", "moment": "acts", "move": "moves anything"}
ROUNDING = 1e-9  # of the duration, a number of steps times their length


def warn_of_idle(scene: Scene) -> None:
    """Warn of loads and motions that begin when the run has ended; not refused, as the run may be gone on with."""
    end = scene.document.simulation.duration
    if end is None:  # an equilibrium: the schema refuses start and stop there
        return
    for name, does in TIMED.items():
        for k, table in enumerate(getattr(scene.document, name)):
            if table.start >= end * (1 - ROUNDING):
                warn(
                    f"{scene.path}: {name}.{k}.start: [[{name}]] begins at {table.start:g} s, and the run ends at "
                    f"{end:g} s: it never {does}; times are in s"
                )
