"""`Rules` that recordings have to keep, and which of their faults are repaired."""

from __future__ import annotations

from dataclasses import dataclass

from torchdismech.errors import InputError, check_choice, positive_number, whole_number

__all__ = ["Rules"]

UNIT_SCALES = ("refuse", "repair")
ORDERS = ("refuse", "repair", "trust")
LONGEST_GAP = 1_000_000  # frames


@dataclass(frozen=True)
class Rules:
    """What is expected of recordings, and what is done where they differ from it.

    Attributes
    ----------
    nodes : expected number of nodes; None takes any.
    despike_speed : largest speed of a marker [m/s]: faster positions are put on the line between their neighbours in
        time and marked invalid. None believes every speed.
    max_gap : longest run of frames of a marker, not seen or too fast, that is filled so; longer ones are refused.
    unit_scale : what is done with positions that look like millimetres: "refuse" or "repair" (divide by 1000).
    max_extent : a robot more extended than this [m] looks like millimetres, or centimetres.
    order : what is done with nodes that do not stand in the order of the chain. "refuse" refuses them. "repair" finds
        the order, and refuses where it cannot be decided. Two markers may then change places unnoticed if they are so
        close that an edge keeps its length within `edge_wander` with either of them: look at the messages. "trust" does
        not look: for robots that are no chain or always stay folded.
    edge_wander : largest standard deviation of an edge's length, as a share of its mean; recordings beyond are refused.
    """

    nodes: int | None = None
    despike_speed: float | None = 5.0
    max_gap: int = 10
    unit_scale: str = "refuse"
    max_extent: float = 10.0
    order: str = "refuse"
    edge_wander: float = 0.25

    def __post_init__(self) -> None:
        for name, choices in (("unit_scale", UNIT_SCALES), ("order", ORDERS)):
            check_choice(f"Rules.{name}", getattr(self, name), choices)
        for name in ("despike_speed", "max_extent", "edge_wander"):
            value = getattr(self, name)
            if not (value is None and name == "despike_speed"):
                positive_number(value, f"Rules.{name}", "a positive number")
        if self.nodes is not None:
            whole_number(self.nodes, "Rules.nodes", least=2)
        if whole_number(self.max_gap, "Rules.max_gap", least=0) > LONGEST_GAP:
            raise InputError(f"Rules.max_gap: expected a number of frames from 0 to {LONGEST_GAP}, got {self.max_gap}")
