"""Sparsity patterns of small robots and of bands, and random matrices on them."""

import numpy as np
import torch

from torchdismech.sparse import Pattern


def cliques(groups, n, symmetric=True, hint=None):
    """Return the pattern in which the unknowns of each group touch each other."""
    pairs = [np.array([(a, b) for a in group for b in group]) for group in groups]
    rows, cols = np.concatenate(pairs).T if pairs else np.zeros((2, 0), dtype=int)
    return Pattern.union(n, rows, cols, symmetric, hint)


def _x(node):
    return [3 * node, 3 * node + 1, 3 * node + 2]


def chain(nodes=13, symmetric=True, hint=True):
    """Return the pattern of a rod: springs of three nodes and two edge angles, numbered x first, then theta."""
    theta = [3 * nodes + e for e in range(nodes - 1)]
    springs = [_x(i - 1) + _x(i) + _x(i + 1) + [theta[i - 1], theta[i]] for i in range(1, nodes - 1)]
    walk = np.concatenate([_x(i) + theta[i : i + 1] for i in range(nodes)])
    return cliques(springs, 4 * nodes - 1, symmetric, walk if hint else None)


def ring(nodes=14, symmetric=True):
    """Return the pattern of a closed chain of nodes."""
    springs = [_x(i) + _x((i + 1) % nodes) + _x((i + 2) % nodes) for i in range(nodes)]
    return cliques(springs, 3 * nodes, symmetric)


def star(arms=5, length=6, symmetric=True):
    """Return the pattern of rods that meet in node 0."""
    node = np.concatenate([np.zeros((arms, 1), dtype=int), 1 + np.arange(arms * length).reshape(arms, length)], axis=1)
    springs = [_x(arm[k]) + _x(arm[k + 1]) + _x(arm[k + 2]) for arm in node for k in range(length - 1)]
    springs += [_x(0) + _x(a) + _x(b) for a in node[:, 1] for b in node[:, 1] if a < b]
    return cliques(springs, 3 * (1 + arms * length), symmetric)


def grid(side=6, symmetric=True):
    """Return the pattern of a square net with 3 unknowns a node; the nodes of a square touch each other."""
    squares = [
        _x(i * side + j) + _x(i * side + j + 1) + _x((i + 1) * side + j) + _x((i + 1) * side + j + 1)
        for i in range(side - 1)
        for j in range(side - 1)
    ]
    return cliques(squares, 3 * side * side, symmetric)


def triangles(side, rows):
    """Return the triangles of `rows` rows of `side` nodes: squares halved along the same diagonal."""
    corner = (side * np.arange(rows - 1)[:, None] + np.arange(side - 1)).ravel()
    lower, upper = [corner, corner + 1, corner + side], [corner + 1, corner + side + 1, corner + side]
    return np.concatenate([np.stack(lower, axis=1), np.stack(upper, axis=1)])


def _triangle_edges(mesh):
    """Return the numbers of the three edges of each triangle, and how many edges there are."""
    pairs = np.sort(mesh[:, [[1, 2], [2, 0], [0, 1]]], axis=2).reshape(-1, 2)
    unique, number = np.unique(pairs, axis=0, return_inverse=True)
    return number.reshape(-1, 3), len(unique)


def hinges(side=5, symmetric=True):
    """Return the pattern of a shell that bends at hinges: the nodes of two triangles with a common edge."""
    mesh = triangles(side, side)
    edges, count = _triangle_edges(mesh)
    around = [np.unique(mesh[(edges == e).any(1)]) for e in range(count)]
    return cliques([sum((_x(int(v)) for v in nodes), []) for nodes in around], 3 * side * side, symmetric)


def mid_edges(side=4, rows=4, symmetric=True):
    """Return the pattern of a shell with an unknown per edge, numbered last, that touches its triangles only."""
    mesh = triangles(side, rows)
    edges, count = _triangle_edges(mesh)
    first = 3 * side * rows
    groups = [
        sum((_x(int(v)) for v in nodes), []) + (first + own).tolist() for nodes, own in zip(mesh, edges, strict=True)
    ]
    return cliques(groups, first + count, symmetric)


def band(n, lower, upper):
    """Return the unsymmetric pattern of a band, numbered along it."""
    rows, cols = np.indices((n, n)).reshape(2, -1)
    inside = (rows - cols <= lower) & (cols - rows <= upper)
    return Pattern.union(n, rows[inside], cols[inside], False, np.arange(n))


def random_graph(n, rng, symmetric=True):
    """Return a random sparse pattern, often disconnected."""
    entries = rng.integers(0, n, size=(2, int(rng.integers(0, 3 * n))))
    return Pattern.union(n, entries[0], entries[1], symmetric)


TOPOLOGIES = {"chain": chain, "ring": ring, "star": star, "grid": grid, "mid_edges": mid_edges}


def random_values(pattern, kind, batch, seed=0):
    """Return (nnz, batch) values of well-conditioned random matrices.

    The kind is "definite" (symmetric, diagonally dominant), "indefinite" (the same with random signs on the diagonal)
    or "unsymmetric" (random signs, unsymmetric entries).
    """
    rng = np.random.default_rng(seed)
    values = rng.normal(size=(pattern.nnz, batch))
    off = pattern.rows != pattern.cols
    total = np.zeros((pattern.n, batch))
    np.add.at(total, pattern.rows[off], np.abs(values[off]))
    np.add.at(total, pattern.cols[off], np.abs(values[off]))  # columns too: then also the transposed one is dominant
    sign = 1 if kind == "definite" else rng.choice([-1, 1], size=total.shape)
    values[pattern.diagonal] = sign * (total + 1)
    return torch.from_numpy(values)
