"""One rod, as many tests want it: through some points, held at its start, under loads."""

from __future__ import annotations

from collections.abc import Sequence

from torchdismech import Circle, Material, Rectangle, RobotBuilder
from torchdismech.forces import Force

__all__ = ["rod_through"]

CLAMPS = {"edge": {"nodes": [0, 1]}, "end": {"nodes": [0], "direction": "rest"}, "not": None}


def rod_through(
    points,
    section: Circle | Rectangle,
    material: Material,
    loads: Sequence[Force] = (),
    held: str = "edge",
    builder: RobotBuilder | None = None,
    **options,
) -> RobotBuilder:
    """Return a builder with a rod through `points` (k, 3), to which a test adds what else it needs.

    Parameters
    ----------
    loads : external forces, in this order.
    held : "edge": by its first two nodes; "end": by its first node and its direction there; "not" at all.
    builder : what the rod is added to; None: an empty one.
    options : of `RobotBuilder.add_rod`.
    """
    builder = RobotBuilder() if builder is None else builder
    index = builder.add_rod(points, section, material, **options)
    clamp = CLAMPS[held]
    if clamp is not None:
        builder.clamp(**{**clamp, "nodes": index[clamp["nodes"]].tolist()})
    for load in loads:
        builder.add_force(load)
    return builder
