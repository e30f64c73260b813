"""Kernels for GPUs in Triton's language: banded factors with one robot per lane, and weighted sums of rows.

Importing this module needs Triton: use `gpu.kernels`, which reports what is missing. All arrays are batch last, so the
lanes of a warp, which are neighbours in the batch, read and write neighbouring numbers. A program for bands is one
warp, and a lane reads back only what it has written itself, so no lane has to wait for another.

The factorization is that of `band.cpp`: A = M E U, where M holds the reduced columns below the diagonal, U the reduced
rows right of it, and E the inverse pivots; U = M^T is not stored where A is symmetric; no rows are exchanged. A *line*
is a column of M or a row of U: first the number on the diagonal (in a factor the inverse pivot; unused in U), then
those of growing distance from it. A *half*, all lines of M or of U, is padded with lines of the identity, so that the
kernels may take several lines at a time.

Loops over lines are real loops; everything inside is unrolled, so that the partial sums that pivots leave for later
lines (`held`) stay in registers. They are written as tuples of vectors.
"""

# mypy: disable-error-code="assignment"
# (kernels build lists as tuples that grow, which changes their type)

from __future__ import annotations

import triton
import triton.language as tl

from torchdismech.native import entries

__all__ = ["factor_symmetric", "factor_unsymmetric", "solve", "sum_rows"]

ONE = tl.constexpr(entries.ONE)


@triton.jit
def _either(a, b):
    return a | b


@triton.jit
def _lines_for(lines, wanted):
    """Return `lines`, or 0 if no lane of the warp has a robot to work on."""
    return lines * tl.reduce(wanted.to(tl.int32), 0, _either)


@triton.jit
def _nothing_held(like, REACH: tl.constexpr, OTHER: tl.constexpr, FIRST: tl.constexpr):
    """Return the partial sums before the first pivot: zeros, as many as `_handed_on` returns."""
    held = ()
    for k in tl.static_range(OTHER):
        for _ in tl.static_range(k + FIRST, REACH):
            held = held + (like * 0,)
    return held


@triton.jit
def _entries(values, sources, line, batch, robots, wanted, REACH: tl.constexpr, FIRST: tl.constexpr):
    """Return the entries FIRST .. REACH of a line of the matrix."""
    entries = ()
    for r in tl.static_range(FIRST, REACH + 1):
        source = tl.load(sources + line * (REACH + 1) + r)
        entry = tl.load(values + source * batch + robots, mask=wanted & (source >= 0), other=0.0)
        if r == 0:
            entry = tl.where(source == ONE, 1.0, entry)
        entries = entries + (entry,)
    return entries


@triton.jit
def _reduced(entries, held, AT: tl.constexpr, COUNT: tl.constexpr):
    """Return entries AT .. AT + COUNT - 1 minus their partial sums; no earlier pivot reaches the last of them."""
    line = ()
    for r in tl.static_range(COUNT - 1):
        line = line + (entries[AT + r] - held[r],)
    return line + (entries[AT + COUNT - 1],)


@triton.jit
def _scaled(line, by, COUNT: tl.constexpr):
    scaled = ()
    for r in tl.static_range(COUNT):
        scaled = scaled + (line[r] * by,)
    return scaled


@triton.jit
def _handed_on(held, line, factors, REACH: tl.constexpr, OTHER: tl.constexpr, FIRST: tl.constexpr):
    """Return the partial sums after a pivot, for numbers FIRST and on of each line in its reach.

    `line` holds numbers 1 .. REACH of the pivot's line, `factors` those of its line in the other half, times the
    inverse pivot.
    """
    later = ()
    for k in tl.static_range(1, OTHER + 1):
        for r in tl.static_range(k + FIRST, REACH + 1):
            term = line[r - 1] * factors[k - 1]
            if k < OTHER and r < REACH:  # earlier pivots reach this number, too
                term = held[k * (REACH - FIRST) - (k * (k - 1)) // 2 + r - k - FIRST] + term
            later = later + (term,)
    return later


@triton.jit
def _store(numbers, at, pitch, line, wanted, COUNT: tl.constexpr):
    at = numbers + at
    for r in tl.static_range(COUNT):
        tl.store(at, line[r], mask=wanted)
        at += pitch


@triton.jit
def _largest(most, line, COUNT: tl.constexpr):
    """Return the largest of `most` and the absolute numbers of a line; NaN may be lost."""
    for r in tl.static_range(COUNT):
        most = tl.maximum(most, tl.abs(line[r]))
    return most


@triton.jit(do_not_specialize=["batch", "pitch", "lines"])
def factor_symmetric(
    values,  # (nnz, batch)
    sources,  # (lines, REACH + 1) index of the matrix entry of each number, or ZERO or ONE
    numbers,  # (lines, REACH + 1, pitch) the factor, which is written
    ok,  # (batch,) bool, written: all pivots are positive or, with ANY_SIGN, all are finite and no term grew too much
    definite,  # (batch,) bool, written: all pivots are positive
    rows,  # (batch,) bool: which robots to factor
    batch,
    pitch,
    lines,
    growth,  # largest term of the elimination, relative to the largest entry
    ANY_SIGN: tl.constexpr,  # whether pivots need not be positive
    REACH: tl.constexpr,
    CHUNK: tl.constexpr,  # lines whose entries are loaded before the first is needed
    LARGEST: tl.constexpr,  # finite number
    LANES: tl.constexpr,
):
    """Factor symmetric matrices, without row exchanges."""
    batch, pitch = batch.to(tl.int64), pitch.to(tl.int64)
    robots = tl.program_id(0) * LANES + tl.arange(0, LANES)
    wanted = tl.load(rows + robots, mask=robots < batch, other=0) != 0
    positive, bounded = wanted, wanted
    zero = tl.full((LANES,), 0.0, values.dtype.element_ty)
    largest_entry = zero  # of the lines so far: terms are compared at once, without a register for the largest term
    held = _nothing_held(zero, REACH, REACH, 0)
    for start in range(0, _lines_for(lines, wanted), CHUNK):
        entries = ()
        for s in tl.static_range(CHUNK):
            entries = entries + _entries(values, sources, start + s, batch, robots, wanted, REACH, 0)
        if ANY_SIGN:
            largest_entry = _largest(largest_entry, entries, CHUNK * (REACH + 1))
        for s in tl.static_range(CHUNK):
            column = _reduced(entries, held, s * (REACH + 1), REACH + 1)
            inverse = 1.0 / column[0]
            positive = positive & (inverse > 0) & (inverse <= LARGEST)  # False for NaN
            if ANY_SIGN:
                most = _largest(zero, column, REACH + 1)
                term = most * tl.abs(inverse) * most
                bounded = bounded & (term <= LARGEST) & (term <= largest_entry * growth)  # False for NaN
            held = _handed_on(held, column[1:], _scaled(column[1:], inverse, REACH), REACH, REACH, 0)
            at = (start + s) * (REACH + 1) * pitch + robots
            _store(numbers, at, pitch, (inverse,) + column[1:], wanted, REACH + 1)
    sound = positive
    if ANY_SIGN:
        sound = positive | bounded
    tl.store(ok + robots, sound, mask=robots < batch)
    tl.store(definite + robots, positive, mask=robots < batch)


@triton.jit(do_not_specialize=["batch", "pitch", "lines"])
def factor_unsymmetric(
    values,  # (nnz, batch)
    lower_sources,  # (lines, LOWER + 1) index of the matrix entry of each number, or ZERO or ONE
    upper_sources,  # (lines, UPPER + 1)
    lower,  # (lines, LOWER + 1, pitch) half M of the factor, which is written
    upper,  # (lines, UPPER + 1, pitch) half U
    ok,  # (batch,) bool, written: all numbers are finite and no term grew too much
    rows,  # (batch,) bool: which robots to factor
    batch,
    pitch,
    lines,
    growth,  # largest term of the elimination, relative to the largest entry
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    CHUNK: tl.constexpr,
    LARGEST: tl.constexpr,
    LANES: tl.constexpr,
):
    """Factor unsymmetric matrices, without row exchanges."""
    batch, pitch = batch.to(tl.int64), pitch.to(tl.int64)
    robots = tl.program_id(0) * LANES + tl.arange(0, LANES)
    wanted = tl.load(rows + robots, mask=robots < batch, other=0) != 0
    sound = wanted
    zero = tl.full((LANES,), 0.0, values.dtype.element_ty)
    largest_entry, largest_term = zero, zero
    held_below = _nothing_held(zero, LOWER, UPPER, 0)
    held_right = _nothing_held(zero, UPPER, LOWER, 1)
    for start in range(0, _lines_for(lines, wanted), CHUNK):
        below, right = (), ()
        for s in tl.static_range(CHUNK):
            below = below + _entries(values, lower_sources, start + s, batch, robots, wanted, LOWER, 0)
            right = right + _entries(values, upper_sources, start + s, batch, robots, wanted, UPPER, 1)
        largest_entry = _largest(_largest(largest_entry, below, CHUNK * (LOWER + 1)), right, CHUNK * UPPER)
        for s in tl.static_range(CHUNK):
            column = _reduced(below, held_below, s * (LOWER + 1), LOWER + 1)
            row = _reduced(right, held_right, s * UPPER, UPPER)
            inverse = 1.0 / column[0]
            term = _largest(zero, column, LOWER + 1) * tl.abs(inverse) * _largest(tl.abs(column[0]), row, UPPER)
            sound = sound & (term <= LARGEST)  # False for NaN
            largest_term = tl.maximum(largest_term, term)
            by_row, by_column = _scaled(row, inverse, UPPER), _scaled(column[1:], inverse, LOWER)
            held_below = _handed_on(held_below, column[1:], by_row, LOWER, UPPER, 0)
            held_right = _handed_on(held_right, row, by_column, UPPER, LOWER, 1)
            at = (start + s) * (LOWER + 1) * pitch + robots
            _store(lower, at, pitch, (inverse,) + column[1:], wanted, LOWER + 1)
            _store(upper, ((start + s) * (UPPER + 1) + 1) * pitch + robots, pitch, row, wanted, UPPER)
    tl.store(ok + robots, sound & (largest_term <= largest_entry * growth), mask=robots < batch)


@triton.jit
def _numbers(half, line, pitch, robots, wanted, REACH: tl.constexpr):
    """Return numbers 1 .. REACH of a line of a factor."""
    numbers = ()
    at = half + line * (REACH + 1) * pitch + robots
    for _ in tl.static_range(REACH):
        at += pitch
        numbers = numbers + (tl.load(at, mask=wanted, other=0.0),)
    return numbers


@triton.jit
def _pivot(inverses, line, pitch, robots, wanted, FIRST: tl.constexpr):
    """Return the inverse pivot of a line."""
    return tl.load(inverses + line * (FIRST + 1) * pitch + robots, mask=wanted, other=0.0)


@triton.jit
def _carried_on(held, columns, found, AT: tl.constexpr, REACH: tl.constexpr):
    """Return the partial sums of later lines after the value of a line is found.

    The column of the factor below that line is numbers AT and on of `columns`.
    """
    later = ()
    for r in tl.static_range(REACH):
        term = columns[AT + r] * found
        if r < REACH - 1:
            term = held[r + 1] + term
        later = later + (term,)
    return later


@triton.jit
def _product(rows, found, AT: tl.constexpr, REACH: tl.constexpr):
    """Return the product of a row of the factor, numbers AT and on of `rows`, with the values found in its reach."""
    # the value found just before comes last, so that the other products need not wait for it
    total = rows[AT + REACH - 1] * found[REACH - 1]
    for r in tl.static_range(REACH - 1):
        total = total + rows[AT + REACH - 2 - r] * found[REACH - 2 - r]
    return total


@triton.jit
def _forwards(
    lower,
    inverses,
    order,
    rhs_at,
    rhs_unknown,
    y,
    pitch,
    robots,
    wanted,
    lines,
    zero,
    LOWER: tl.constexpr,
    FIRST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the result of the forward substitution into y; arguments as for `solve`."""
    held = _nothing_held(zero, LOWER, 1, 0)
    for start in range(0, lines, CHUNK):
        columns, pivots, right = (), (), ()
        for s in tl.static_range(CHUNK):
            unknown = tl.load(order + start + s)
            columns = columns + _numbers(lower, start + s, pitch, robots, wanted, LOWER)
            pivots = pivots + (_pivot(inverses, start + s, pitch, robots, wanted, FIRST),)
            right = right + (tl.load(rhs_at + unknown * rhs_unknown, mask=wanted & (unknown >= 0), other=0.0),)
        for s in tl.static_range(CHUNK):
            reduced = (right[s] - held[0]) * pivots[s]
            held = _carried_on(held, columns, reduced, s * LOWER, LOWER)
            tl.store(y + (start + s) * pitch + robots, reduced, mask=wanted)


@triton.jit
def _backwards(
    upper,
    inverses,
    order,
    y,
    x_at,
    x_unknown,
    pitch,
    robots,
    wanted,
    lines,
    zero,
    UPPER: tl.constexpr,
    FIRST: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Write the result of the backward substitution of y into x; arguments as for `solve`."""
    found = _nothing_held(zero, UPPER, 1, 0)
    for done in range(0, lines, CHUNK):
        last = lines - 1 - done
        rows, pivots, reduced = (), (), ()
        for s in tl.static_range(CHUNK):
            rows = rows + _numbers(upper, last - s, pitch, robots, wanted, UPPER)
            pivots = pivots + (_pivot(inverses, last - s, pitch, robots, wanted, FIRST),)
            reduced = reduced + (tl.load(y + (last - s) * pitch + robots, mask=wanted, other=0.0),)
        for s in tl.static_range(CHUNK):
            value = reduced[s] - _product(rows, found, s * UPPER, UPPER) * pivots[s]
            found = (value,) + found[:-1]
            unknown = tl.load(order + last - s)
            tl.store(x_at + unknown * x_unknown, value, mask=wanted & (unknown >= 0))


@triton.jit(do_not_specialize=["batch", "pitch", "lines", "rhs_robot", "rhs_unknown", "x_robot", "x_unknown"])
def solve(
    lower,  # half of the forward substitution: M, or U for transposed matrices
    upper,  # half of the backward substitution: U, or M for symmetric and transposed matrices
    inverses,  # the half whose lines begin with the inverse pivots: M
    order,  # (lines,) unknown of each line, -1 for padding
    rhs,
    y,  # (lines, pitch) scratch
    x,
    ok,  # (batch,) bool: which robots to solve for
    batch,
    pitch,
    lines,
    rhs_robot,  # strides
    rhs_unknown,
    x_robot,
    x_unknown,
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    FIRST: tl.constexpr,  # reach of the half `inverses`
    CHUNK: tl.constexpr,
    LANES: tl.constexpr,
):
    """Solve with a factor of `factor_symmetric` or `factor_unsymmetric`."""
    pitch = pitch.to(tl.int64)
    robots = tl.program_id(0) * LANES + tl.arange(0, LANES)
    wanted = tl.load(ok + robots, mask=robots < batch, other=0) != 0
    rhs_at, x_at = rhs + robots * rhs_robot.to(tl.int64), x + robots * x_robot.to(tl.int64)
    lines = _lines_for(lines, wanted)
    zero = tl.full((LANES,), 0.0, rhs.dtype.element_ty)
    _forwards(lower, inverses, order, rhs_at, rhs_unknown, y, pitch, robots, wanted, lines, zero, LOWER, FIRST, CHUNK)
    _backwards(upper, inverses, order, y, x_at, x_unknown, pitch, robots, wanted, lines, zero, UPPER, FIRST, CHUNK)


@triton.jit
def sum_rows(
    starts,  # (rows + 1,) index of the first term of each row, and the number of terms
    sources,  # (terms,) row of x of each term
    weights,  # (terms,)
    x,  # (sources, length)
    y,  # (rows, length), written
    length,
    TERMS: tl.constexpr,  # terms that are loaded before the first is needed
    LANES: tl.constexpr,
):
    """Write into each row of y a weighted sum of rows of x, added in the order of the terms."""
    row = tl.program_id(0)
    lanes = tl.program_id(1) * LANES + tl.arange(0, LANES)
    first, end = tl.load(starts + row), tl.load(starts + row + 1)
    total = tl.full((LANES,), 0.0, y.dtype.element_ty)
    for start in range(first, end, TERMS):
        for t in tl.static_range(TERMS):
            there = start + t < end
            source = tl.load(sources + start + t, mask=there, other=0)
            weight = tl.load(weights + start + t, mask=there, other=0.0)
            total += weight * tl.load(x + source * length + lanes, mask=there & (lanes < length), other=0.0)
    tl.store(y + row.to(tl.int64) * length + lanes, total, mask=lanes < length)
