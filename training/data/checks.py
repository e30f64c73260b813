"""What recordings must be before anything is fitted to them, and which faults may be repaired."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
import torch

from torchdismech.errors import InputError
from training.data import order as chain
from training.data.recordings import Recordings
from training.data.tracks import believable, filled, longest_run

__all__ = ["Rules", "in_order", "prepared"]

UNIT_SCALES = ("refuse", "repair")
ORDERS = ("refuse", "repair", "trust")
SHORTEST_EDGE = 1e-6  # [m]; motion capture tells markers apart that are millimetres apart
LONGEST_GAP = 1_000_000  # frames
MOST_NODES = 1000  # whose order is looked for: that takes the square of their number


@dataclass(frozen=True)
class Rules:
    """What is expected, and what happens where it is not so.

    Attributes
    ----------
    nodes : expected number of nodes; None takes any.
    despike_speed : markers are slower than this [m/s]: places that break it are put on the line between their
        neighbours in time and marked invalid. None believes every speed.
    max_gap : longest run of frames of a marker, not seen or too fast, that is filled so; longer ones are refused.
    unit_scale : of positions that look like millimetres: "refuse" them or "repair" (divide by 1000).
    max_extent : a robot more extended than this [m] looks like millimetres, or centimetres.
    order : what is done with nodes that do not stand in the order of the chain. "refuse" refuses them. "repair" finds
        the order, and refuses where it cannot be decided. Two markers may then change places unnoticed if they are so
        close that an edge keeps its length within `edge_wander` with either of them: look at the messages. "trust" does
        not look: for robots that are no chain or always stay folded.
    edge_wander : an edge whose length's standard deviation is beyond this share of its mean is no edge: refused.
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
            if getattr(self, name) not in choices:
                raise InputError(f"Rules.{name}: expected one of {', '.join(choices)}, got {getattr(self, name)!r}")
        for name in ("despike_speed", "max_extent", "edge_wander"):
            value = getattr(self, name)
            if not (value is None and name == "despike_speed") and not 0 < value < math.inf:
                raise InputError(f"Rules.{name}: expected a positive number, got {value}")
        if self.nodes is not None and self.nodes < 2:
            raise InputError(f"Rules.nodes: expected at least 2, got {self.nodes}")
        if not 0 <= self.max_gap <= LONGEST_GAP:
            raise InputError(f"Rules.max_gap: expected a number of frames from 0 to {LONGEST_GAP}, got {self.max_gap}")


def prepared(recordings: Recordings, rules: Rules, of_chain: bool = True) -> tuple[Recordings, list[str]]:
    """Return recordings that keep the rules, without NaN, and a sentence for each repair of each.

    Parameters
    ----------
    of_chain : the markers are the nodes of a chain. Else their order and what lies between them say nothing, and gaps
        may be of any length: what was not seen does not count. Of a chain with branches, whose recordings say what
        leads where, the order is trusted.

    Raises
    ------
    InputError
        A recording breaks a rule in a way that is not, or cannot be, repaired.
    """
    arranged, messages = in_order(recordings, rules, of_chain)
    rules = rules if of_chain else dataclasses.replace(rules, max_gap=recordings.frames)
    positions, valid = arranged.positions.numpy(), arranged.valid.numpy()
    for k, name in enumerate(recordings.names):
        messages += _fill(positions[k], valid[k], recordings.dt, rules, name)
        if of_chain and not recordings.branched:
            _refuse_wandering_edges(positions[k], rules, name)
    return arranged, messages


def in_order(recordings: Recordings, rules: Rules, of_chain: bool = True) -> tuple[Recordings, list[str]]:
    """Return recordings in metres and in the order of the chain, with all gaps and spikes, and what was repaired.

    So they are what predictions can be compared with: all that was measured, and no place that was not. Arguments and
    errors are those of `prepared`.
    """
    if rules.nodes is not None and recordings.nodes != rules.nodes:
        raise InputError(
            f"{recordings.names[0]}: {recordings.nodes} nodes; expected {rules.nodes}: check the file, or set "
            "Rules.nodes"
        )
    positions = recordings.positions.numpy().copy()
    valid = recordings.valid.numpy().copy()
    messages: list[str] = []
    if of_chain and recordings.nodes < 2:
        raise InputError(f"{recordings.names[0]}: {recordings.nodes} nodes; expected a chain of at least two")
    for k, name in enumerate(recordings.names):
        if of_chain:
            _refuse_long_gaps(positions[k], rules, name)
        elif not valid[k].any():
            raise InputError(f"{name}: no marker was seen in any frame: leave this recording out")
        messages += _scale(positions[k], rules, name)
    if of_chain and not recordings.branched:
        _refuse_short_edges(positions, recordings.names)
        messages += _order(positions, valid, rules, recordings.names)
    done = dataclasses.replace(recordings, positions=torch.from_numpy(positions), valid=torch.from_numpy(valid))
    return done, messages


def _scale(positions: np.ndarray, rules: Rules, name: str) -> list[str]:
    """Divide (T, N, 3) by 1000, in place, where they look like millimetres."""
    # fmax, fmin and the medians leave NaN out
    extents = (np.fmax.reduce(positions, axis=1) - np.fmin.reduce(positions, axis=1)).max(1)
    extent = float(np.median(extents[np.isfinite(extents)]))  # frames without any marker say nothing
    if not extent > rules.max_extent:
        return []
    found = f"{name}: the robot is {extent:.4g} m large: this looks like millimetres or centimetres"
    if rules.unit_scale == "refuse":
        raise InputError(
            f"{found}; expected metres, at most {rules.max_extent:g}: divide centimetres by 100 in the file; of "
            "millimetres set Rules.unit_scale='repair' to divide by 1000; or raise Rules.max_extent"
        )
    if extent / 1000 > rules.max_extent:
        raise InputError(f"{found}, but after division by 1000 it is still above {rules.max_extent:g} m: convert it")
    positions /= 1000
    return [f"{found}; divided by 1000, as if in millimetres"]


def _refuse_short_edges(positions: np.ndarray, names: tuple[str, ...]) -> None:
    """Refuse nodes that stand in one place: an edge between them has no direction."""
    for k, name in enumerate(names):
        lengths = np.nanmedian(chain.edge_lengths(positions[k]), axis=0)
        edge = int(lengths.argmin())
        if lengths[edge] < SHORTEST_EDGE:
            raise InputError(
                f"{name}: the edge from node {edge} to {edge + 1} is {lengths[edge]:.3g} m long; expected at least "
                f"{SHORTEST_EDGE:g} m: two markers in one place are one: leave out the second one"
            )


def _refuse_long_gaps(positions: np.ndarray, rules: Rules, name: str) -> None:
    missing = ~np.isfinite(positions).all(2)
    for node in range(missing.shape[1]):
        start, length = longest_run(missing[:, node])
        if length > rules.max_gap or length == len(missing):
            raise InputError(
                f"{name}: node {node} is not seen for {length} frames from frame {start}; expected gaps of at most "
                f"{rules.max_gap}: cut the recording there, or raise Rules.max_gap"
            )


# ---- order of the nodes ------------------------------------------------------------------------------------------


def _order(positions: np.ndarray, valid: np.ndarray, rules: Rules, names: tuple[str, ...]) -> list[str]:
    """Put the nodes of all recordings into the order of the chain, in place."""
    if rules.order == "trust":
        return []
    if positions.shape[2] > MOST_NODES:
        raise InputError(
            f"{names[0]}: {positions.shape[2]} nodes; expected at most {MOST_NODES} where their order is checked: "
            "leave some out, or set Rules.order='trust'"
        )
    orders = {}
    aparts = [chain.apart(recording) for recording in positions]
    # told from all recordings, if they share an order: one alone may always be folded somewhere
    shared = chain.path_through(np.fmax.reduce(aparts))
    for k, name in enumerate(names):
        order = _found_order(positions[k], aparts[k], shared, rules, name)
        if order is not None:
            orders[k] = order
    if orders:
        _agree_on_first_end(positions, orders, names)
    for k, order in orders.items():
        positions[k] = np.take_along_axis(positions[k], order[:, :, None], axis=1)
        valid[k] = np.take_along_axis(valid[k], order, axis=1)
    return [f"{names[k]}: nodes put into the order of the chain: {_told(order)}" for k, order in orders.items()]


def _found_order(
    positions: np.ndarray, apart: np.ndarray, shared: np.ndarray | None, rules: Rules, name: str
) -> np.ndarray | None:
    """Return (T, N) which entry is which node of the chain, None where they stand in order or nothing can be said."""
    given = np.arange(positions.shape[1])
    own = chain.path_through(apart)
    if own is not None and (own == given).all():
        return None
    constant = [path for path in (given, shared, own) if path is not None and _constant(positions[:, path], rules)]
    shortest = min((_length(path, apart) for path in constant), default=0.0)
    # the given order has the benefit of the doubt, and then that of all recordings
    path = next((path for path in constant if not _clearly_longer(path, apart, shortest)), None)
    if path is given:
        return None
    if rules.order == "refuse":
        seen = "edges do not keep their length" if path is None else f"the chain looks like {_told(path)}"
        raise InputError(
            f"{name}: the nodes do not stand in the order of the chain: {seen}; expected 0, 1, 2, ...: reorder them or "
            "set Rules.order='repair' (Rules.order='trust' where the order is right)"
        )
    if path is not None:
        return np.tile(path, (len(positions), 1))
    return _followed_order(positions, rules, name)


def _followed_order(positions: np.ndarray, rules: Rules, name: str) -> np.ndarray:
    """Return (T, N) where the nodes change places from frame to frame."""
    refusal = f"{name}: the nodes do not stand in the order of the chain, and it cannot be decided"
    if not np.isfinite(positions).all():
        raise InputError(f"{refusal}: places change from frame to frame and there are gaps; expected whole frames")
    order = chain.followed(positions)
    followed = np.take_along_axis(positions, order[:, :, None], axis=1)
    path = chain.path_through(chain.apart(followed))
    if path is None or not _constant(followed[:, path], rules):
        raise InputError(
            f"{refusal}: no order keeps the lengths of the edges within {rules.edge_wander:.0%}; label the markers "
            "again"
        )
    return order[:, path]


def _constant(positions: np.ndarray, rules: Rules) -> bool:
    return bool((chain.robust_wander(positions) <= rules.edge_wander).all())


def _length(path: np.ndarray, apart: np.ndarray) -> float:
    return float(apart[path[:-1], path[1:]].sum())


def _clearly_longer(path: np.ndarray, apart: np.ndarray, shortest: float) -> bool:
    """Whether a chain is longer than the shortest one by more than half a usual edge.

    Two neighbours with an edge l between them that changed places make it longer by up to 2 l, by l at an end. So short
    edges may stand the wrong way round unnoticed; but real cables bend so sharply in a gripper that those seem to.
    """
    return _length(path, apart) - shortest > 0.5 * shortest / (len(path) - 1)


def _agree_on_first_end(positions: np.ndarray, orders: dict[int, np.ndarray], names: tuple[str, ...]) -> None:
    """Turn orders around, in place, so that the same end comes first in all recordings.

    It is told by the lengths of the edges, against a recording that came in order; where all came out of order alike,
    there is nothing to tell.
    """
    first = next((k for k in range(len(names)) if k not in orders), 0)
    given = np.tile(np.arange(positions.shape[2]), (positions.shape[1], 1))
    reference = _lengths(positions[first], orders.get(first, given))
    for k, order in orders.items():
        if k == first or (first in orders and np.array_equal(order, orders[first])):
            continue
        lengths = _lengths(positions[k], order)
        as_found, turned = (float(np.abs(x - reference).sum()) for x in (lengths, lengths[::-1]))
        # a chain alike from both ends differs by noise only, both ways
        if max(as_found, turned) < 0.01 * reference.sum() or min(as_found, turned) > 0.5 * max(as_found, turned):
            raise InputError(
                f"{names[k]}: which end of the chain comes first cannot be told: its edges are alike from both ends; "
                f"expected the order of {names[first]}: label the markers again"
            )
        if turned < as_found:
            orders[k] = order[:, ::-1]


def _lengths(positions: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.nanmedian(chain.edge_lengths(np.take_along_axis(positions, order[:, :, None], axis=1)), axis=0)


def _told(order: np.ndarray) -> str:
    rows = np.atleast_2d(order)
    if not (rows == rows[0]).all():
        return f"followed from frame to frame, from {_told(rows[0])} in frame 0"
    numbers = rows[0].tolist()
    return "-".join(map(str, numbers[:16])) + ("-..." if len(numbers) > 16 else "")


# ---- gaps and spikes ---------------------------------------------------------------------------------------------


def _fill(positions: np.ndarray, valid: np.ndarray, dt: float, rules: Rules, name: str) -> list[str]:
    """Fill gaps and spikes, in place, and mark them invalid."""
    seen = np.isfinite(positions).all(2)
    kept = seen.copy()
    if rules.despike_speed is not None:
        for node in range(positions.shape[1]):
            kept[:, node] = _kept(positions[:, node], seen[:, node], dt * rules.despike_speed, rules, name, node)
    for node in np.flatnonzero(~kept.all(0)).tolist():
        positions[:, node] = filled(positions[:, node], kept[:, node])
    valid &= kept
    never = ~kept.any(0)
    gaps, spikes, held = ~seen & ~never, seen & ~kept, ~kept & ~never & ~_between(kept)
    ends = f"; {int(held.sum())} of all repaired, at the start or the end, hold the nearest place" if held.any() else ""
    messages = []
    if never.any():
        nodes = _listed(np.flatnonzero(never).tolist())
        messages.append(f"{name}: node {nodes} not seen in any frame: it does not count")
    if gaps.any():
        messages.append(f"{name}: {_counted(gaps)} not seen, filled along the line between neighbours in time{ends}")
    if spikes.any():
        speed = f"{_counted(spikes)} faster than {rules.despike_speed:g} m/s"
        messages.append(f"{name}: {speed}, put on the line between neighbours in time{ends}")
    return messages


def _kept(track: np.ndarray, seen: np.ndarray, reach: float, rules: Rules, name: str, node: int) -> np.ndarray:
    """Return which frames of a node to believe, (T,) bool."""
    frames = np.flatnonzero(seen)
    ways = np.linalg.norm(np.diff(track[frames], axis=0), axis=1)
    fast = np.flatnonzero(ways > reach * np.diff(frames))
    if not len(fast):
        return seen
    kept = believable(track, reach, rules.max_gap)
    if kept is None:
        raise InputError(
            f"{name}: node {node} jumps near frame {frames[fast[0] + 1]}: leaving out up to {rules.max_gap} frames "
            f"does not make it slower than {rules.despike_speed:g} m/s; cut the recording there, or set "
            "Rules.max_gap or Rules.despike_speed"
        )
    return kept


def _between(kept: np.ndarray) -> np.ndarray:
    """Return where a frame that is not kept has kept ones before and after, (T, N) bool."""
    before = np.logical_or.accumulate(kept, axis=0)
    after = np.logical_or.accumulate(kept[::-1], axis=0)[::-1]
    return ~kept & before & after


def _counted(marked: np.ndarray) -> str:
    return f"{int(marked.sum())} node-frames (node {_listed(np.flatnonzero(marked.any(0)).tolist())})"


def _listed(nodes: list[int]) -> str:
    return ", ".join(map(str, nodes[:8])) + (", ..." if len(nodes) > 8 else "")


def _refuse_wandering_edges(positions: np.ndarray, rules: Rules, name: str) -> None:
    wander = chain.wander(positions)
    edge = int(wander.argmax())
    if not wander[edge] <= rules.edge_wander:
        raise InputError(
            f"{name}: the edge from node {edge} to {edge + 1} changes its length by {wander[edge]:.0%} (standard "
            f"deviation over mean); expected at most {rules.edge_wander:.0%}: markers are mixed up or slip; leave the "
            "recording out, or raise Rules.edge_wander"
        )
