"""Formulas of closed contacts, each evaluated by one loop over the contacts of all robots.

The symbols are those of `closed_contacts.py`, the loops and their tensors those of `contact.constraint_loops`. The
state of a contact is six numbers: whether it is closed, sticks and slips (1 or 0); the direction e of its friction if
it slips; and the spring by which this friction turns with the slide. The size of the friction is given beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from torchdismech.contact.constraint_loops import ContactLoop, dot, forces_on_nodes, parts, rows

__all__ = [
    "ADJOINT_FORCES",
    "BY_LAW",
    "FIRST_FRICTION",
    "LOADS",
    "MOVABLE",
    "MULTIPLIERS",
    "NEXT_FORCES",
    "OFF_CONE",
    "STATE",
    "STIFFENING",
    "VIOLATION",
    "WHOLE_FRICTION",
]

STATE = 6  # numbers
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
    """Return state, friction and loads of contacts and the forces that these exert, as a round begins; and J^T s J.

    Parameters
    ----------
    load, slide : (S, 3), (S, 2) of the round before.
    offset : (S, 3) gaps and slides at the iterate.
    closed, friction, stiffness, slide_stiffness : (S,) flags, coefficients, s and k.

    Returns
    -------
    The state (6), size of friction, loads of what is fixed (3), nodal forces (3 k), blocks (3 k x 3 k).
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
    state, friction_size = [*flags, *_unit_or_zero(pushed), spring], torch.where(slips, most, zero)
    fixed = [torch.where(flag, x, zero) for flag, x in zip((is_closed, sticks, sticks), parts(load), strict=True)]
    along = rows(jacobian)
    across = [_across(state, column) for column in zip(*along[1:], strict=True)]
    springs = [flag * stiffness for flag in (flags[0], flags[1], flags[1])]
    forces = forces_on_nodes(_pressing(state, friction_size, fixed, parts(offset), stiffness), along)
    return [*state, friction_size, *fixed, *forces, *_blocks([*along, across], [*springs, spring])]


def _loads(
    jacobian: Tensor,
    offset: Tensor,
    friction: Tensor,
    stiffness: Tensor,
    state: Tensor,
    size: Tensor,
    load: Tensor,
    missing_before: Tensor,
    motion: Tensor,
    dofs: Tensor,
) -> list[Tensor]:
    """Return the loads after a motion (B n,), and by how much friction is larger under these than it was taken for.

    Parameters
    ----------
    offset, friction, stiffness : as for `_first_friction`.
    state, size, load : (6, S), (S,) and (3, S): state, size of friction, and loads of what is fixed before.
    missing_before : (S,) by how much friction was larger in the solve before.

    Returns
    -------
    Loads of what is fixed (3), gaps and slides after the step (3), and the loads with the friction of what slips (3);
    then by how much friction is larger, this times its change since the solve before, and the change's square.
    """
    of_state = state.unbind(0)
    moved = [motion[dof] for dof in parts(dofs)]
    after = [c + dot(row, moved) for c, row in zip(parts(offset), rows(jacobian), strict=True)]
    fixed = _where_fixed(of_state, [p - stiffness * c for p, c in zip(load.unbind(0), after, strict=True)])
    rubbing = _friction(of_state, size, after[1:])
    whole = [fixed[0], *(t + f for t, f in zip(fixed[1:], rubbing, strict=True))]
    missing = torch.where(of_state[2] > 0, _most(friction, fixed[0]) - size, torch.zeros_like(size))
    change = missing - missing_before
    return [*fixed, *after, *whole, missing, missing * change, change * change]


def _next_forces(
    jacobian: Tensor, offset: Tensor, stiffness: Tensor, state: Tensor, load: Tensor, size: Tensor, *history: Tensor
) -> list[Tensor]:
    """Return the size of friction in the next solve, and the forces (3 k) that loads exert there.

    Parameters
    ----------
    size : (S,) of the friction in the last solve.
    history : none for friction that stays as it is. Else by how much it is larger under the loads of this solve; size,
        and by how much it was larger, in the one before (S,); sums (2, B) of the last two numbers of `_loads` for each
        robot, zero after the first solve; and the robot (S,) of each contact.
    """
    of_state = state.unbind(0)
    if history:
        wanted = _by_secant(size, *history).clamp(0.0, math.inf)
        size = torch.where(of_state[2] > 0, wanted, torch.zeros_like(size))
    pressing = _pressing(of_state, size, load.unbind(0), parts(offset), stiffness)
    return [size + torch.zeros_like(stiffness), *forces_on_nodes(pressing, rows(jacobian))]


def _multipliers(
    jacobian: Tensor,
    friction: Tensor,
    stiffness: Tensor,
    state: Tensor,
    fixed: Tensor,
    approach: Tensor,
    missing_before: Tensor,
    motion: Tensor,
    dofs: Tensor,
) -> list[Tensor]:
    """Return the multipliers of contacts after a solve of the adjoint equations that led to a motion (B n,).

    Parameters
    ----------
    friction, stiffness, state : as for `_loads`.
    fixed, approach : (3, S), (S,) multipliers of what is fixed, and the motion of gaps that was asked for.
    missing_before : (S,) by how much that motion was off in the solve before.

    Returns
    -------
    Multipliers of what is fixed (3), and of all conditions (3); then by how much the motion that was asked for is off,
    this times its change since the solve before, and the change's square.
    """
    of_state = state.unbind(0)
    closed, sticks, slips, ex, ey, _ = of_state
    moved = [motion[dof] for dof in parts(dofs)]
    gap, *slide = [dot(row, moved) for row in rows(jacobian)]
    zero = torch.zeros_like(gap)
    held = [c + stiffness * x for c, x in zip(fixed.unbind(0), (gap - approach, *slide), strict=True)]
    held = [*_where_fixed(of_state, held)]
    along = [torch.where(closed > 0, x, zero) for x in slide]
    whole = [held[0], *(torch.where(sticks > 0, c, x) for c, x in zip(held[1:], along, strict=True))]
    missing = torch.where(slips > 0, -friction * (ex * slide[0] + ey * slide[1]), zero) - approach
    change = missing - missing_before
    return [*held, *whole, missing, missing * change, change * change]


def _adjoint_forces(
    jacobian: Tensor, stiffness: Tensor, state: Tensor, fixed: Tensor, approach: Tensor, *history: Tensor
) -> list[Tensor]:
    """Return the motion of gaps that the next solve of the adjoint equations asks for, and the forces (3 k) in it.

    Parameters
    ----------
    fixed, approach : (3, S), (S,) of the last solve.
    history : as for `_next_forces`, of that motion.
    """
    of_state = state.unbind(0)
    approach = torch.where(of_state[2] > 0, _by_secant(approach, *history), torch.zeros_like(approach))
    normal, *tangential = fixed.unbind(0)
    pressing = _where_fixed(of_state, [normal - stiffness * approach, *tangential])
    return [approach, *forces_on_nodes(pressing, rows(jacobian))]


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


def _by_secant(
    value: Tensor, missing: Tensor, value_before: Tensor, missing_before: Tensor, sums: Tensor, robot: Tensor
) -> Tensor:
    """Return the next value by a secant of what is missing of it, one for each robot; see `_next_forces`."""
    product, square = (of_robots[robot] for of_robots in sums.unbind(0))
    share = torch.where(square > 0, product / torch.where(square > 0, square, torch.ones_like(square)), square)
    return value + missing - share * (value + missing - value_before - missing_before)


def _off(load: Numbers, slide: Numbers, friction: Tensor) -> Tensor:
    most, length = friction * load[0], _length(slide)
    on_cone = (most > 0) & (_length(load[1:]) >= (1 - ON_CONE) * most)
    some = torch.where(most > 0, most, torch.ones_like(most))
    off = [t / some + e for t, e in zip(load[1:], _unit_or_zero(slide), strict=True)]
    return torch.where(on_cone, length * _length(off), length)


def _pressing(state: Numbers, size: Tensor, load: Numbers, offset: Numbers, stiffness: Tensor) -> Numbers:
    """Return the loads (3) on the right-hand side of the augmented system."""
    normal, *tangential = _where_fixed(state, [p - stiffness * c for p, c in zip(load, offset, strict=True)])
    return [normal, *(t + f for t, f in zip(tangential, _friction(state, size, offset[1:]), strict=True))]


def _where_fixed(state: Numbers, values: Numbers) -> Numbers:
    """Return values (3) of gaps and slides that are fixed, and zero of the others."""
    closed, sticks = state[:2]
    return [
        torch.where(flag > 0, x, torch.zeros_like(x)) for flag, x in zip((closed, sticks, sticks), values, strict=True)
    ]


def _friction(state: Numbers, size: Tensor, slide: Numbers) -> Numbers:
    """Return the friction (2) of what slips at slides (2)."""
    ex, ey, spring = state[3:]
    turned = spring * _across(state, slide)
    return [size * ex + turned * ey, size * ey - turned * ex]


def _across(state: Numbers, vector: Numbers) -> Tensor:
    """Return the component of a vector (2) across the friction's direction e, along (-e_y, e_x)."""
    return state[3] * vector[1] - state[4] * vector[0]


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
LOADS, NEXT_FORCES = ContactLoop(_loads, "loads"), ContactLoop(_next_forces, "next forces")
MULTIPLIERS = ContactLoop(_multipliers, "multipliers")
ADJOINT_FORCES = ContactLoop(_adjoint_forces, "adjoint forces")
WHOLE_FRICTION = ContactLoop(_whole_friction, "whole friction")
OFF_CONE, VIOLATION = ContactLoop(_off_cone, "friction off its law"), ContactLoop(_violation, "violated laws")
