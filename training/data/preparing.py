"""Recordings checked against rules, and repaired where these allow it, before anything is fitted to them."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from torchdismech.errors import InputError
from training.data import chain_path
from training.data.gaps import fill_gaps
from training.data.label_swaps import swapped_labels
from training.data.node_order import put_in_order
from training.data.recordings import Recordings
from training.data.rules import Rules
from training.data.tracks import longest_run

__all__ = ["in_order", "prepared"]

SHORTEST_EDGE = 1e-6  # [m]; motion capture tells markers apart that are millimetres apart


def prepared(recordings: Recordings, rules: Rules, of_chain: bool = True) -> tuple[Recordings, list[str]]:
    """Return recordings that keep the rules, without NaN, and a sentence for each repair and each warning.

    Parameters
    ----------
    of_chain : whether the markers are the nodes of a chain. If not, their order and distances are not checked, and gaps
        may be of any length, as unseen markers do not count. Of a chain with branches, whose edges the recordings give,
        the order is trusted.

    Raises
    ------
    InputError
        A recording breaks a rule in a way that is not, or cannot be, repaired.
    """
    arranged, messages = in_order(recordings, rules, of_chain)
    rules = rules if of_chain else dataclasses.replace(rules, max_gap=recordings.frames)
    positions, valid = arranged.positions.numpy(), arranged.valid.numpy()
    for k, name in enumerate(recordings.names):
        messages += fill_gaps(positions[k], valid[k], recordings.dt, rules, name, "node" if of_chain else "marker")
        if of_chain and not recordings.branched:
            _refuse_wandering_edges(positions[k], rules, name)
    return arranged, messages


def in_order(recordings: Recordings, rules: Rules, of_chain: bool = True) -> tuple[Recordings, list[str]]:
    """Return recordings in metres and in the order of the chain, with all gaps and spikes, and messages.

    Predictions are compared with these: they hold all that was measured, and nothing that was filled in. Arguments and
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
        else:
            messages += _swaps(positions[k], name)
        messages += _scale(positions[k], rules, name)
    if of_chain and not recordings.branched:
        _refuse_short_edges(positions, recordings.names)
        messages += put_in_order(positions, valid, rules, recordings.names)
    done = dataclasses.replace(recordings, positions=torch.from_numpy(positions), valid=torch.from_numpy(valid))
    return done, messages


def _swaps(positions: np.ndarray, name: str) -> list[str]:
    """Return a warning where markers (T, N, 3) seem to have swapped their labels; nothing is changed."""
    found = swapped_labels(positions)
    if not found:
        return []
    frame, first, second = found[0]
    others = f" (and {len(found) - 1} more such places)" if len(found) > 1 else ""
    return [
        f"warning: {name}: from frame {frame} on markers {first} and {second} go on where the other one was{others}: "
        "their labels seem to be swapped; exchange their columns from there on"
    ]


def _scale(positions: np.ndarray, rules: Rules, name: str) -> list[str]:
    """Divide positions (T, N, 3) by 1000, in place, if they look like millimetres and the rules allow it."""
    # fmax, fmin and the medians leave NaN out
    extents = (np.fmax.reduce(positions, axis=1) - np.fmin.reduce(positions, axis=1)).max(1)
    extent = float(np.median(extents[np.isfinite(extents)]))  # frames without any marker are left out
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
    """Refuse neighbouring nodes in one place, as an edge between them has no direction."""
    for k, name in enumerate(names):
        lengths = np.nanmedian(chain_path.edge_lengths(positions[k]), axis=0)
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


def _refuse_wandering_edges(positions: np.ndarray, rules: Rules, name: str) -> None:
    wander = chain_path.wander(positions)
    edge = int(wander.argmax())
    if not wander[edge] <= rules.edge_wander:
        raise InputError(
            f"{name}: the edge from node {edge} to {edge + 1} changes its length by {wander[edge]:.0%} (standard "
            f"deviation over mean); expected at most {rules.edge_wander:.0%}: markers are mixed up or slip; leave the "
            "recording out, or raise Rules.edge_wander"
        )
