"""Kernels for GPUs in Triton's language: banded factors, one robot a lane, and weighted sums of rows.

Importing this needs Triton: `gpu.kernels` does, and says what is missing. All arrays are batch last, so the lanes of a
warp, which are neighbours in the batch, read and write neighbouring numbers. A program for bands is one warp, and a
lane reads back only what it has written itself, so no lane has to wait for another.

A factor is that of `band.cpp`: A = M E U, M the reduced columns below the diagonal, U the reduced rows right of it, E
the inverses of the pivots; U = M^T and not stored where A is symmetric; no rows are exchanged. A line is a column of M
or a row of U: first the number on the diagonal (in a factor the inverse pivot; unused in U), then those of growing
distance from it. A half, all lines of M or of U, holds some lines more than the matrix has unknowns, those of the
identity, so that the kernels may take several lines at a time.

Loops over lines are loops; everything inside is unrolled, so that what pivots leave for later lines stays in registers.
Tuples of vectors are the notation of that.
"""

# mypy: disable-error-code="assignment"
# (a tuple that grows is Triton's notation of a list)

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
    """Return `lines`, or 0 where no lane is wanted."""
    return lines * tl.reduce(wanted.to(tl.int32), 0, _either)


@triton.jit
def _nothing_held(like, REACH: tl.constexpr, OTHER: tl.constexpr, FIRST: tl.constexpr):
    """Return zeros, as many as `_handed_on` returns."""
    held = ()
    for k in tl.static_range(OTHER):
        for _ in tl.static_range(k + FIRST, REACH):
            held = held + (like * 0,)
    return held


@triton.jit
def _entries(values, sources, line, batch, robots, wanted, REACH: tl.constexpr, FIRST: tl.constexpr):
    """Return numbers FIRST .. REACH of a line before the elimination."""
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
    """Return entries AT .. AT + COUNT - 1 less what is held for them; no pivot before reaches the last."""
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
    """Return what is held after a pivot for numbers FIRST and on of each line in its reach.

    `line` are numbers 1 .. REACH of the pivot's line, `factors` those of the other half, times the inverse pivot.
    """
    later = ()
    for k in tl.static_range(1, OTHER + 1):
        for r in tl.static_range(k + FIRST, REACH + 1):
            term = line[r - 1] * factors[k - 1]
            if k < OTHER and r < REACH:  # pivots before reach it, too
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
    """Return the largest size among `most` and the numbers of a line; NaN may be lost."""
    for r in tl.static_range(COUNT):
        most = tl.maximum(most, tl.abs(line[r]))
    return most


@triton.jit(do_not_specialize=["batch", "pitch", "lines"])
def factor_symmetric(
    values,  # (nnz, batch)
    sources,  # (lines, REACH + 1) which entry of the values a number starts as, ZERO or ONE
    numbers,  # (lines, REACH + 1, pitch) the factor
    ok,  # (batch,) bool: all pivots are positive or, of any sign, all are finite and no term grew too much
    definite,  # (batch,) bool: all pivots are positive
    rows,  # (batch,) bool: which robots to factor
    batch,
    pitch,
    lines,
    growth,  # how many times as large as the largest entry a term may be
    ANY_SIGN: tl.constexpr,  # whether pivots need not be positive
    REACH: tl.constexpr,
    CHUNK: tl.constexpr,  # lines whose entries are asked for before the first is needed
    LARGEST: tl.constexpr,  # finite number
    LANES: tl.constexpr,
):
    """Factor symmetric matrices, without row exchanges."""
    batch, pitch = batch.to(tl.int64), pitch.to(tl.int64)
    robots = tl.program_id(0) * LANES + tl.arange(0, LANES)
    wanted = tl.load(rows + robots, mask=robots < batch, other=0) != 0
    positive, bounded = wanted, wanted
    zero = tl.full((LANES,), 0.0, values.dtype.element_ty)
    largest_entry = zero  # of the lines so far, which saves the registers of the largest term
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
    lower_sources,  # (lines, LOWER + 1) which entry of the values a number starts as, ZERO or ONE
    upper_sources,  # (lines, UPPER + 1)
    lower,  # (lines, LOWER + 1, pitch) the factor
    upper,  # (lines, UPPER + 1, pitch)
    ok,  # (batch,) bool: all numbers are finite and no term grew too much
    rows,  # (batch,) bool: which robots to factor
    batch,
    pitch,
    lines,
    growth,  # how many times as large as the largest entry a term may be
    LOWER: tl.constexpr,
    UPPER: tl.constexpr,
    CHUNK: tl.constexpr,
    LARGEST: tl.constexpr,
    LANES: tl.constexpr,
):
    """Factor any matrices, without row exchanges."""
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
    """Return what later lines are less of after a line is found, whose column are numbers AT and on of `columns`."""
    later = ()
    for r in tl.static_range(REACH):
        term = columns[AT + r] * found
        if r < REACH - 1:
            term = held[r + 1] + term
        later = later + (term,)
    return later


@triton.jit
def _product(rows, found, AT: tl.constexpr, REACH: tl.constexpr):
    """Return the product of a row, numbers AT and on of `rows`, with what was found of the lines in its reach."""
    # what was found just now comes last, so that the rest need not wait for it
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
    """Write into y what the first half makes of the right sides; arguments as of `solve`."""
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
    """Write into x what the other half makes of y; arguments as of `solve`."""
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
    lower,  # the half to begin with
    upper,  # the other; the same one for symmetric matrices; the two are swapped for transposed ones
    inverses,  # the half whose lines begin with the inverse pivots
    order,  # (lines,) which unknown stands in a line, -1 for none
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
    """Solve by the factors of any of the two kinds."""
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
    starts,  # (rows + 1,) where the terms of each row begin, and the end
    sources,  # (terms,) rows of x
    weights,  # (terms,)
    x,  # (sources, length)
    y,  # (rows, length)
    length,
    TERMS: tl.constexpr,  # terms that are asked for before the first is needed
    LANES: tl.constexpr,
):
    """Add up weighted rows of x, in the order in which they are listed."""
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
