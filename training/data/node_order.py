"""Nodes put into the order of the chain, where they stand in another one and rules allow it."""

from __future__ import annotations

import numpy as np

from torchdismech.errors import InputError
from training.data import chain_path
from training.data.rules import Rules

__all__ = ["put_in_order"]

MOST_NODES = 1000  # beyond which the order is not looked for, as the work grows with the square of their number


def put_in_order(positions: np.ndarray, valid: np.ndarray, rules: Rules, names: tuple[str, ...]) -> list[str]:
    """Put the nodes of all recordings (K, T, N, 3) into the order of the chain, in place; return messages of that."""
    if rules.order == "trust":
        return []
    if positions.shape[2] > MOST_NODES:
        raise InputError(
            f"{names[0]}: {positions.shape[2]} nodes; expected at most {MOST_NODES} where their order is checked: "
            "leave some out, or set Rules.order='trust'"
        )
    orders = {}
    aparts = [chain_path.apart(recording) for recording in positions]
    # the order by all recordings, if they share one: a single recording may stay folded somewhere all the time
    shared = chain_path.path_through(np.fmax.reduce(aparts))
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
    """Return which entry of each frame is which node of the chain, (T, N); None where they may stay as they are.

    `apart` (N, N) are the largest distances in this recording, `shared` (N,) is the order that all recordings tell.
    """
    given = np.arange(positions.shape[1])
    own = chain_path.path_through(apart)
    if own is not None and (own == given).all():
        return None
    constant = [path for path in (given, shared, own) if path is not None and _constant(positions[:, path], rules)]
    shortest = min((_length(path, apart) for path in constant), default=0.0)
    # in doubt the order stays as given, or else is that of all recordings
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
    """Return which entry is which node, (T, N), where nodes change places from frame to frame; refuse where unclear."""
    refusal = f"{name}: the nodes do not stand in the order of the chain, and it cannot be decided"
    if not np.isfinite(positions).all():
        raise InputError(f"{refusal}: places change from frame to frame and there are gaps; expected whole frames")
    order = chain_path.followed(positions)
    followed = np.take_along_axis(positions, order[:, :, None], axis=1)
    path = chain_path.path_through(chain_path.apart(followed))
    if path is None or not _constant(followed[:, path], rules):
        raise InputError(
            f"{refusal}: no order keeps the lengths of the edges within {rules.edge_wander:.0%}; label the markers "
            "again"
        )
    return order[:, path]


def _constant(positions: np.ndarray, rules: Rules) -> bool:
    return bool((chain_path.robust_wander(positions) <= rules.edge_wander).all())


def _length(path: np.ndarray, apart: np.ndarray) -> float:
    return float(apart[path[:-1], path[1:]].sum())


def _clearly_longer(path: np.ndarray, apart: np.ndarray, shortest: float) -> bool:
    """Whether a chain is longer than the shortest one by more than half a usual edge.

    Two neighbours that changed places, with an edge l between them, make the chain longer by up to 2 l, or l at an end.
    So a swap at a short edge may pass unnoticed; but a stricter bound would find swaps where there are none, as real
    cables bend sharply in a gripper.
    """
    return _length(path, apart) - shortest > 0.5 * shortest / (len(path) - 1)


def _agree_on_first_end(positions: np.ndarray, orders: dict[int, np.ndarray], names: tuple[str, ...]) -> None:
    """Turn orders around, in place, so that the same end comes first in all recordings.

    The lengths of the edges are compared with those of a recording that came in order, or else of the first one. An
    order that is the same as in that first one is left as it is.
    """
    first = next((k for k in range(len(names)) if k not in orders), 0)
    given = np.tile(np.arange(positions.shape[2]), (positions.shape[1], 1))
    reference = _lengths(positions[first], orders.get(first, given))
    for k, order in orders.items():
        if k == first or (first in orders and np.array_equal(order, orders[first])):
            continue
        lengths = _lengths(positions[k], order)
        as_found, turned = (float(np.abs(x - reference).sum()) for x in (lengths, lengths[::-1]))
        # if both ends are alike, the lengths differ by noise only, either way round
        if max(as_found, turned) < 0.01 * reference.sum() or min(as_found, turned) > 0.5 * max(as_found, turned):
            raise InputError(
                f"{names[k]}: which end of the chain comes first cannot be told: its edges are alike from both ends; "
                f"expected the order of {names[first]}: label the markers again"
            )
        if turned < as_found:
            orders[k] = order[:, ::-1]


def _lengths(positions: np.ndarray, order: np.ndarray) -> np.ndarray:
    return np.nanmedian(chain_path.edge_lengths(np.take_along_axis(positions, order[:, :, None], axis=1)), axis=0)


def _told(order: np.ndarray) -> str:
    rows = np.atleast_2d(order)
    if not (rows == rows[0]).all():
        return f"followed from frame to frame, from {_told(rows[0])} in frame 0"
    numbers = rows[0].tolist()
    return "-".join(map(str, numbers[:16])) + ("-..." if len(numbers) > 16 else "")
