"""Warnings of loads, motions and tables that begin after the end of the run, perhaps with times in ms instead of s."""

from __future__ import annotations

from torchdismech.errors import warn
from torchdismech.io.scene.files import named_time_tables, reading
from torchdismech.io.scene.scene import Scene
from torchdismech.io.tables import first_of_times

__all__ = ["warn_of_idle"]

TIMED = {"point_force": "acts", "line_load": "acts", "moment": "acts", "move": "moves anything"}
ROUNDING = 1e-9  # relative, of the duration, which is a number of steps times dt


def warn_of_idle(scene: Scene) -> None:
    """Warn of loads, motions and tables over time that begin after the end of the run.

    They are not refused, as the run may be resumed with a longer duration.
    """
    end = scene.document.simulation.duration
    if end is not None:  # an equilibrium has none: there are no start and stop, and no table of several rows
        _warn_of_late_starts(scene, end)
        _warn_of_late_tables(scene, end)


def _warn_of_late_starts(scene: Scene, end: float) -> None:
    for name, does in TIMED.items():
        for k, table in enumerate(getattr(scene.document, name)):
            if table.start >= end * (1 - ROUNDING):
                warn(
                    f"{scene.path}: {name}.{k}.start: [[{name}]] begins at {table.start:g} s, and the run ends at "
                    f"{end:g} s: it never {does}; times are in s"
                )


def _warn_of_late_tables(scene: Scene, end: float) -> None:
    for key, file in named_time_tables(scene.document).items():
        with reading(scene.path, key, file) as path:
            first = first_of_times(path)
        if first is not None and first >= end * (1 - ROUNDING):
            warn(
                f"{scene.path}: {key}: {file} begins at {first:g} s, and the run ends at {end:g} s: its first row "
                "holds from beginning to end; times are in s"
            )
