"""Formulas of closed contacts, each evaluated by one loop over the contacts of all robots.

The symbols are those of `closed_contacts.py`, the loops and their tensors those of `contact.constraint_loops`. The
state of a contact is seven numbers: whether it is closed, sticks and slips (1 or 0); the size of its friction if it
slips, and the direction e of that; and the spring by which the friction turns with the slide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from torchdismech.contact.constraint_loops import ContactLoop, dot, forces_on_nodes, parts, rows

__all__ = [
    "BY_LAW",
    "FIRST_FRICTION",
    "LOADS",
    "MOVABLE",
    "OFF_CONE",
    "STATE",
    "STIFFENING",
    "VIOLATION",
    "WHOLE_FRICTION",
]

STATE = 7  # numbers
ON_CONE = 1e-9  # relative: loads so near to their cone are on it
# largest share mu p_n / |t - k u| of a contact that slides: nearer to 1 its slide is no more than rounding
ALMOST_ONE = 1 - 1e-12

Numbers = Sequence[Tensor]


def _stiffening(jacobian: Tensor, stiffness: Tensor) -> list[Tensor]:
    """Return J^T s J (3 k x 3 k) for rows J (S, m, 3 k) and s (S, m)."""
    return _blocks(rows(jacobian), parts(stiffness))


def _movable(
    jacobian: Tensor, slide: Tensor, friction: Tensor, free: Tensor, mass: Tensor, dofs: Tensor
) -> list[Tensor]:
    """Return `moves`, `partly` and k of contacts, as `ClosedContacts` has them.

    Parameters
    ----------
    slide, friction : (S, 2) slides at the iterate, (S,) coefficients.
    free, mass : (B n,) 1 for dofs that move, else 0; and what inertia resists steps with [N/m].
    """
    squares = [[x * x for x in row] for row in rows(jacobian)]
    is_free = [free[dof] for dof in parts(dofs)]
    gap, first, second = (dot(row, is_free) > 0 for row in squares)
    held = (~first & ~(parts(slide)[0] == 0)) | (~second & ~(parts(slide)[1] == 0))
    moves = gap & (~held | ~(friction > 0))
    own = [mass[dof] for dof in parts(dofs)]
    stiffness = 0.5 * (dot(squares[1], own) + dot(squares[2], own))
    return [_number(moves, stiffness), _number((gap | first | second) & ~moves, stiffness), stiffness]


def _first_friction(
    load: Tensor,
    slide: Tensor,
    offset: Tensor,
    closed: Tensor,
    friction: Tensor,
    stiffness: Tensor,
    slide_stiffness: Tensor,
    jacobian: Tensor,
) -> list[Tensor]:
    """Return the state of contacts, their loads and the forces that these exert, as a round begins; and J^T s J.

    Parameters
    ----------
    load, slide : (S, 3), (S, 2) of the round before.
    offset : (S, 3) gaps and slides at the iterate.
    closed, friction, stiffness, slide_stiffness : (S,) flags, coefficients, s and k.

    Returns
    -------
    The state (7), loads of what is fixed (3), nodal forces (3 k), blocks (3 k x 3 k).
    """
    most = _most(friction, parts(load)[0])
    pushed = [t - slide_stiffness * u for t, u in zip(parts(load)[1:], parts(slide), strict=True)]
    size, zero = _length(pushed), torch.zeros_like(most)
    is_closed, rubs = closed > 0, friction > 0
    slips = is_closed & rubs & (most < size)
    sticks = is_closed & rubs & ~slips
    share = (most / torch.where(slips, size, torch.ones_like(size))).clamp(-math.inf, ALMOST_ONE)
    spring = torch.where(slips, share / (1 - share) * slide_stiffness, zero)
    flags = [_number(flag, most) for flag in (is_closed, sticks, slips)]
    state = [*flags, torch.where(slips, most, zero), *_unit_or_zero(pushed), spring]
    fixed = [torch.where(flag, x, zero) for flag, x in zip((is_closed, sticks, sticks), parts(load), strict=True)]
    along = rows(jacobian)
    across = [_across(state, column) for column in zip(*along[1:], strict=True)]
    springs = [flag * stiffness for flag in (flags[0], flags[1], flags[1])]
    forces = forces_on_nodes(_pressing(state, fixed, parts(offset), stiffness), along)
    return [*state, *fixed, *forces, *_blocks([*along, across], [*springs, spring])]


def _loads(
    follows: bool,
    jacobian: Tensor,
    offset: Tensor,
    friction: Tensor,
    stiffness: Tensor,
    state_and_load: Tensor,
    motion: Tensor,
    dofs: Tensor,
) -> list[Tensor]:
    """Return state and loads after a motion (B n,), forces for the next solve, gaps and slides, and the whole loads.

    Parameters
    ----------
    follows : whether the friction of what slips follows the loads that press it.
    state_and_load : (10, S) before, as `_first_friction` returns them.
    offset, friction, stiffness : as for `_first_friction`.

    Returns
    -------
    The state (7), loads of what is fixed (3), nodal forces (3 k), gaps and slides after the step (3), and the loads
    with the friction of what slips (3).
    """
    state, before = state_and_load.unbind(0)[:STATE], state_and_load.unbind(0)[STATE:]
    moved, along = [motion[dof] for dof in parts(dofs)], rows(jacobian)
    after = [c + dot(row, moved) for c, row in zip(parts(offset), along, strict=True)]
    fixed = _where_fixed(state, [p - stiffness * c for p, c in zip(before, after, strict=True)])
    rubbing = _friction(state, after[1:])
    whole = [fixed[0], *(t + f for t, f in zip(fixed[1:], rubbing, strict=True))]
    if follows:
        most = _most(friction, fixed[0])
        state = (*state[:3], torch.where(state[2] > 0, most, torch.zeros_like(most)), *state[4:])
    forces = forces_on_nodes(_pressing(state, fixed, parts(offset), stiffness), along)
    return [*state, *fixed, *forces, *after, *whole]


def _by_law(load: Tensor, slide: Tensor, sticks: Tensor, friction: Tensor) -> list[Tensor]:
    """Return the loads (3) with friction that obeys its law, see `ClosedContacts.load_by_law`."""
    normal, *tangential = parts(load)
    most, size = _most(friction, normal), _length(tangential)
    within = [torch.where(most < size, most * e, t) for e, t in zip(_unit_or_zero(tangential), tangential, strict=True)]
    against = [-most * e for e in _unit_or_zero(parts(slide))]
    rubs, zero = friction > 0, torch.zeros_like(most)
    by_law = [torch.where(sticks > 0, t, other) for t, other in zip(within, against, strict=True)]
    return [normal, *(torch.where(rubs, t, zero) for t in by_law)]


def _whole_friction(load: Tensor, slid: Tensor, friction: Tensor) -> list[Tensor]:
    """Return the loads (3) with whole friction, see `ClosedContacts.with_full_friction`."""
    normal, *tangential = parts(load)
    most = _most(friction, normal)
    whole = [most * e for e in _unit_or_zero(tangential)]
    return [normal, *(torch.where(slid > 0, full, t) for full, t in zip(whole, tangential, strict=True))]


def _off_cone(load: Tensor, slide: Tensor, friction: Tensor) -> list[Tensor]:
    """Return by how much [m] contacts under loads (S, 3) that slide by (S, 2) [m] break the law of friction.

    That is the slide itself where friction is within its cone, else the slide times how far friction is from pointing
    against it.
    """
    return [_off(parts(load), parts(slide), friction)]


def _violation(gap: Tensor, load: Tensor, slide: Tensor, friction: Tensor, counts: Tensor) -> list[Tensor]:
    """Return by how much [m] contacts break a law; infinity where it is not finite, 0 where a contact does not count.

    Contacts under load may neither be apart nor, unless all friction acts against it, slide.
    """
    zero, bears = torch.zeros_like(gap), parts(load)[0] > 0
    worst = torch.where(bears, torch.abs(gap), torch.where(gap > 0, zero, -gap))
    off, rubs = _off(parts(load), parts(slide), friction), bears & (friction > 0)
    is_finite = (worst < math.inf) & (~rubs | (off < math.inf))
    worst = torch.where(rubs & (worst < off), off, worst)
    return [torch.where(counts > 0, torch.where(is_finite, worst, torch.full_like(worst, math.inf)), zero)]


# ---- parts of formulas --------------------------------------------------------------------------------------------


def _off(load: Numbers, slide: Numbers, friction: Tensor) -> Tensor:
    most, length = friction * load[0], _length(slide)
    on_cone = (most > 0) & (_length(load[1:]) >= (1 - ON_CONE) * most)
    some = torch.where(most > 0, most, torch.ones_like(most))
    off = [t / some + e for t, e in zip(load[1:], _unit_or_zero(slide), strict=True)]
    return torch.where(on_cone, length * _length(off), length)


def _pressing(state: Numbers, load: Numbers, offset: Numbers, stiffness: Tensor) -> Numbers:
    """Return the loads (3) on the right-hand side of the augmented system."""
    normal, *tangential = _where_fixed(state, [p - stiffness * c for p, c in zip(load, offset, strict=True)])
    return [normal, *(t + f for t, f in zip(tangential, _friction(state, offset[1:]), strict=True))]


def _where_fixed(state: Numbers, values: Numbers) -> Numbers:
    """Return values (3) of gaps and slides that are fixed, and zero of the others."""
    closed, sticks = state[:2]
    return [
        torch.where(flag > 0, x, torch.zeros_like(x)) for flag, x in zip((closed, sticks, sticks), values, strict=True)
    ]


def _friction(state: Numbers, slide: Numbers) -> Numbers:
    """Return the friction (2) of what slips at slides (2)."""
    size, ex, ey, spring = state[3:]
    turned = spring * _across(state, slide)
    return [size * ex + turned * ey, size * ey - turned * ex]


def _across(state: Numbers, vector: Numbers) -> Tensor:
    """Return the component of a vector (2) across the friction's direction e, along (-e_y, e_x)."""
    return state[4] * vector[1] - state[5] * vector[0]


def _blocks(along: Sequence[Numbers], stiffness: Numbers) -> list[Tensor]:
    """Return J^T s J, row by row."""
    size = range(len(along[0]))
    scaled = [[s * x for x in row] for s, row in zip(stiffness, along, strict=True)]
    columns, scaled_columns = [*zip(*along, strict=True)], [*zip(*scaled, strict=True)]
    upper = {(i, j): dot(columns[i], scaled_columns[j]) for i in size for j in size if i <= j}
    return [upper[min(i, j), max(i, j)] for i in size for j in size]


def _most(friction: Tensor, normal: Tensor) -> Tensor:
    """Return the largest friction mu p_n of a normal load."""
    return (friction * normal).clamp(0.0, math.inf)


def _length(vector: Numbers) -> Tensor:
    return torch.sqrt(dot(vector, vector))


def _unit_or_zero(vector: Numbers) -> Numbers:
    """Return a vector scaled to length one; zero stays zero."""
    length = _length(vector)
    scale = torch.where(length == 0, torch.ones_like(length), length)
    return [x / scale for x in vector]


def _number(condition: Tensor, like: Tensor) -> Tensor:
    return torch.where(condition, torch.ones_like(like), torch.zeros_like(like))


STIFFENING, MOVABLE = ContactLoop(_stiffening, "stiffening"), ContactLoop(_movable, "freedom")
FIRST_FRICTION, BY_LAW = ContactLoop(_first_friction, "friction"), ContactLoop(_by_law, "law of friction")
# by whether the friction of what slips follows the loads that press it
LOADS = {follows: ContactLoop(partial(_loads, follows), "loads") for follows in (False, True)}
WHOLE_FRICTION = ContactLoop(_whole_friction, "whole friction")
OFF_CONE, VIOLATION = ContactLoop(_off_cone, "friction off its law"), ContactLoop(_violation, "violated laws")
