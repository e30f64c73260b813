"""Functions that the examples share: their command line, running a scene file, and a straight rod for a file."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchdismech import Geometry, Trajectory, rollout, straight
from torchdismech.io.scene import load_scene

import numpy as np

__all__ = ["run", "start", "straight_rod"]


def start(about: str | None, main: Callable[[], object], **others: Callable[..., object]) -> None:
    """Run the function that the command line asks for: `main`, or one of `others` by an option such as --geometry.

    Parameters
    ----------
    about : text of --help: the docstring of the example.
    others : functions without arguments, by the names of their options.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.set_defaults(asked=main)
    for name, function in others.items():
        first_line = (function.__doc__ or "").partition("\n")[0].replace("%", "%%")
        parser.add_argument(f"--{name}", dest="asked", action="store_const", const=function, help=first_line)
    parser.parse_args().asked()


def run(scene: Path, allow_code: bool = False, progress: bool = True, **overrides: Any) -> Trajectory:
    """Return the trajectory of a scene file; overrides by dotted key, as in **{"simulation.dt": 1e-2}.

    Raises a `SimulationError` if a step of any robot fails.
    """
    loaded = load_scene(scene, overrides)
    setup = loaded.build(allow_code=allow_code)
    trajectory = rollout(
        setup.model,
        setup.state,
        setup.integrator,
        setup.steps,
        schedule=setup.schedule,
        every=setup.every,
        progress=progress,
        throw=True,
        controller=setup.controller,
    )
    return dataclasses.replace(trajectory, randomized=loaded.randomized)


def straight_rod(length: float, nodes: int, along: tuple[float, float, float] = (1.0, 0.0, 0.0)) -> Geometry:
    """Return a rod from the origin along a unit vector [m]."""
    order = np.arange(nodes)
    edges = np.stack([order[:-1], order[1:]], axis=1)
    return Geometry(
        straight((0, 0, 0), tuple(length * x for x in along), nodes), edges, np.zeros((0, 3), dtype=np.int64)
    )
