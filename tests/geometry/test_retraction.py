"""Moves that keep the lengths of edges to first order."""

import copy

import numpy as np
import torch

from torchdismech.geometry.retraction import LengthPreservingMove, _node_shifts, _shifts_by_lapack

CHAIN = np.array([[0, 1], [1, 2], [2, 3], [3, 4]])
STAR = np.array([[0, 1], [2, 1], [1, 3], [3, 4]])
RING = np.array([[0, 1], [1, 2], [2, 3], [3, 4], [4, 0]])


def setting(edges, fixed=()):
    """Return the move, q (2, n) and a large step (2, n) that leaves fixed nodes in place."""
    generator = torch.Generator().manual_seed(0)
    q, step = torch.randn(2, 2, 15 + len(edges), dtype=torch.float64, generator=generator)
    free = np.ones((5, 3), dtype=bool)
    free[list(fixed)] = False
    step[:, :15].unflatten(1, (5, 3))[:, list(fixed)] = 0.0
    return LengthPreservingMove(edges, free, torch.float64), q, 0.3 * step


def vectors(q, edges):
    """Return the edge vectors (2, E, 3)."""
    x = q[:, :15].unflatten(1, (5, 3))
    return x[:, edges[:, 1]] - x[:, edges[:, 0]]


def wanted_lengths(q, step, edges):
    """Return |e| + t . de."""
    e, de = vectors(q, edges), vectors(step, edges)
    length = e.norm(dim=-1)
    return torch.maximum(length + (e * de).sum(-1) / length, 0.1 * length)


def test_trees_get_exact_lengths():
    """Give each edge of a chain or star the length that the step asks for."""
    for edges in (CHAIN, STAR):
        for fixed in ([], [0]):
            move, q, step = setting(edges, fixed)
            moved = move(q, step)
            assert (vectors(moved, edges).norm(dim=-1) - wanted_lengths(q, step, edges)).abs().max() < 1e-12
            assert torch.equal(moved[:, 15:], (q + step)[:, 15:])
            assert torch.equal(moved[:, :3][:, : 3 * len(fixed)], q[:, :3][:, : 3 * len(fixed)])


def test_loops_and_two_clamps_come_closer():
    """Come closer to the lengths than the plain move where not all of them can be had."""
    for edges, fixed in ((RING, [0]), (CHAIN, [0, 4])):
        move, q, step = setting(edges, fixed)
        wanted = wanted_lengths(q, 0.3 * step, edges)
        ours, plain = move(q, 0.3 * step), q + 0.3 * step
        off = [(vectors(v, edges).norm(dim=-1) - wanted).norm() for v in (ours, plain)]
        assert off[0] < off[1]
        assert torch.equal(ours[:, :3], q[:, :3])


def test_a_free_body_keeps_its_mean():
    """Leave the mean position of a body without clamps where the plain move has it."""
    move, q, step = setting(CHAIN)
    mean = [v[:, :15].unflatten(1, (5, 3)).mean(1) for v in (move(q, step), q + step)]
    assert torch.allclose(*mean, atol=1e-14)


def test_is_the_plain_move_to_first_order():
    """Differ from q + step by second order."""
    move, q, step = setting(RING, [0])
    off = [(move(q, s * step) - q - s * step).norm() for s in (1e-2, 1e-3)]
    assert 80 < off[0] / off[1] < 120


def networks():
    """Yield edges and free components of networks with and without clamps, and with those of some components only."""
    islands = np.array([[0, 1], [1, 2], [3, 4]])
    some = np.ones((5, 3), dtype=bool)
    some[0], some[3, 1] = False, False
    for edges in (CHAIN, STAR, RING, islands):
        for free in (np.ones((5, 3), dtype=bool), some, np.zeros((5, 3), dtype=bool)):
            yield edges, free


def test_a_banded_factor_does_what_a_matrix_does():
    """Shift nodes on a CPU, by compiled code and without it, as a GPU does; one robot and many, alone and together."""
    generator = torch.Generator().manual_seed(1)
    for edges, free in networks():
        for shifts in LengthPreservingMove(edges, free, torch.float64).shifts:
            for robots in (1, 2, 3, 11, 40):
                changes = torch.randn(3, len(edges), robots, dtype=torch.float64, generator=generator)
                expected, found = shifts.by_matrix(changes), shifts(changes)
                given = (shifts.place, shifts.part, shifts.ends, shifts.factor, shifts.parts)
                assert (_node_shifts(changes, *given) - expected).abs().max() < 1e-13
                # all solve five nodes directly: they differ by rounding
                assert (found - expected).abs().max() < 1e-13
                assert (_shifts_by_lapack(changes, *given) - expected).abs().max() < 1e-13
                # a row is the same to the bit whatever stands beside it
                assert torch.equal(shifts(changes[..., -1:]), found[..., -1:])
                assert torch.equal(shifts(changes[1]), found[1])


def test_a_large_network_is_moved_without_a_matrix():
    """Move a network for which no matrix is kept as one for which it is, on a CPU."""
    for edges, free in networks():
        _, q, step = setting(edges)
        step[:, :15] *= torch.as_tensor(free).flatten()
        small, large = (LengthPreservingMove(edges, free, torch.float64, most) for most in (5, 4))
        assert small.dense and not large.dense and large.enabled
        assert torch.equal(small(q, step), large(q, step))


def test_a_large_network_may_be_compiled_and_copied():
    """Compile a move by a banded factor into one graph, and copy it."""
    move = LengthPreservingMove(CHAIN, np.ones((5, 3), dtype=bool), torch.float64, 0)
    _, q, step = setting(CHAIN)
    expected = move(q, step)
    assert torch.equal(copy.deepcopy(move)(q, step), expected)
    compiled = torch.compile(move, fullgraph=True, backend="eager")(q, step)
    assert (compiled - expected).abs().max() < 1e-14  # by torch and by a loop: rounding


def test_robots_of_a_batch_that_go_straight():
    """Move those robots by q + step whose lengths are not to be kept, the others as if all were kept."""
    for edges, fixed in ((CHAIN, [0]), (RING, [])):
        move, q, step = setting(edges, fixed)
        found = move(q, step, torch.tensor([1.0, 0.0], dtype=torch.float64))
        assert torch.equal(found[0], move(q, step)[0])
        assert torch.equal(found[1], (q + step)[1])
