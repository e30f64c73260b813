"""The shared sparsity pattern."""

import numpy as np
import pytest
import torch

from torchdismech.sparse import Pattern


@pytest.fixture
def pattern():
    """A symmetric pattern of 4 unknowns: entries given twice, in both triangles, one diagonal missing."""
    return Pattern.union(4, [0, 1, 3, 1, 0], [1, 0, 1, 1, 0], symmetric=True)


def test_union_drops_repetitions_and_keeps_the_lower_triangle(pattern):
    """Merge repeated entries, keep row >= col, add the diagonal."""
    assert list(zip(pattern.rows, pattern.cols, strict=True)) == [(0, 0), (1, 0), (1, 1), (2, 2), (3, 1), (3, 3)]
    assert pattern.nnz == 6


def test_unsymmetric_union_keeps_both_triangles():
    """Keep an upper entry without its mirror image."""
    pattern = Pattern.union(2, [0], [1], symmetric=False)
    assert list(zip(pattern.rows, pattern.cols, strict=True)) == [(0, 0), (0, 1), (1, 1)]


def test_diagonal_points_at_the_diagonal(pattern):
    """Find every diagonal entry in the values."""
    np.testing.assert_array_equal(pattern.rows[pattern.diagonal], np.arange(4))
    np.testing.assert_array_equal(pattern.cols[pattern.diagonal], np.arange(4))


def test_position_finds_entries_and_refuses_others(pattern):
    """Return places in the values; raise for an entry outside the pattern."""
    np.testing.assert_array_equal(pattern.position([3, 1], [1, 0]), [4, 1])
    with pytest.raises(IndexError):
        pattern.position([2], [0])


@pytest.mark.parametrize("symmetric", [True, False])
def test_to_dense_places_every_value(symmetric):
    """Write each value at its entry, and at the mirrored one where symmetric; zero elsewhere."""
    pattern = Pattern.union(3, [1, 2], [0, 1], symmetric)
    values = torch.arange(1.0, 1 + 2 * pattern.nnz, dtype=torch.float64).view(pattern.nnz, 2)
    dense = pattern.to_dense(values)
    expected = np.zeros((2, 3, 3))
    for k, (row, col) in enumerate(zip(pattern.rows, pattern.cols, strict=True)):
        expected[:, row, col] = values[k]
        if symmetric:
            expected[:, col, row] = values[k]
    np.testing.assert_array_equal(dense.numpy(), expected)
