"""Cost of factoring and solving the matrices of shells: banded, multifrontal, and qdldl where it is installed.

``python -m benchmarks.shell_factor`` prints one line per shell, kind of matrix and batch: process CPU time per robot of
one factorisation and one solve on one thread, in microseconds, with the largest residual |A x - b| / |b| of all robots
beside it. ``--quick`` leaves the largest shells out.

Rounds of all solvers alternate and medians are given, so a busy machine slows all of them alike. The analysis of the
pattern (orders, fronts) is not timed, as a simulation makes it once. The matrices are random with a dominant diagonal;
the time of a direct method does not depend on their values.
"""

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterable

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from torchdismech.geometry.meshes import Mesh, hexagon, rectangle
from torchdismech.solve import linear
from torchdismech.sparse import Pattern

BATCHES = (1, 16, 64)
ROUNDS = 5
HAS_QDLDL = importlib.util.find_spec("qdldl") is not None


def edges(mesh: Mesh) -> tuple[np.ndarray, np.ndarray]:
    """Return the edges (E, 2), lower node first, and those of each triangle (F, 3), opposite its nodes."""
    sides = np.stack([mesh.triangles[:, [1, 2]], mesh.triangles[:, [2, 0]], mesh.triangles[:, [0, 1]]], axis=1)
    pairs, inverse = np.unique(np.sort(sides, axis=2).reshape(-1, 2), axis=0, return_inverse=True)
    return pairs, inverse.reshape(-1, 3)


def coordinates(nodes: Iterable[int]) -> list[int]:
    """Return the three unknowns of each node."""
    return [3 * int(node) + axis for node in nodes for axis in range(3)]


def cliques(groups: list[list[int]], n: int, symmetric: bool) -> Pattern:
    """Return the pattern in which all unknowns of each group are coupled."""
    rows = np.concatenate([np.repeat(group, len(group)) for group in groups])
    cols = np.concatenate([np.tile(group, len(group)) for group in groups])
    return Pattern.union(n, rows, cols, symmetric)


def hinge_groups(mesh: Mesh) -> list[list[int]]:
    """Return the unknowns of every hinge: the nodes of two triangles that share an edge."""
    _, of_triangle = edges(mesh)
    order = np.argsort(of_triangle.ravel(), kind="stable")
    edge = of_triangle.ravel()[order]
    shared = np.flatnonzero(edge[1:] == edge[:-1])
    first, second = order[shared] // 3, order[shared + 1] // 3
    return [coordinates(np.unique(mesh.triangles[[a, b]])) for a, b in zip(first, second, strict=True)]


def hinge_shell(mesh: Mesh, symmetric: bool) -> Pattern:
    """Return the pattern of a shell that bends at hinges."""
    return cliques(hinge_groups(mesh), 3 * len(mesh.nodes), symmetric)


def mid_edge_shell(mesh: Mesh, symmetric: bool) -> Pattern:
    """Return the pattern of a shell with a scalar unknown per edge, numbered after the nodes."""
    pairs, of_triangle = edges(mesh)
    first = 3 * len(mesh.nodes)
    groups = [
        coordinates(nodes) + (first + own).tolist() for nodes, own in zip(mesh.triangles, of_triangle, strict=True)
    ]
    return cliques(groups, first + len(pairs), symmetric)


def hybrid(symmetric: bool) -> Pattern:
    """Return the pattern of a hexagonal hinge shell (127 nodes) that six rods of ten nodes join to a payload."""
    mesh = hexagon(1.0, 6)
    corners = np.argsort(-np.linalg.norm(mesh.nodes, axis=1), kind="stable")[:6]
    payload = len(mesh.nodes)
    node = payload + 1 + np.arange(60).reshape(6, 10)
    edge = 3 * (payload + 61) + np.arange(66).reshape(6, 11)  # unknown of the twist of each rod edge
    groups = hinge_groups(mesh)
    for corner, nodes, twist in zip(corners, node, edge, strict=True):
        walk = [corner, *nodes, payload]
        groups += [coordinates(walk[k - 1 : k + 2]) + twist[k - 1 : k + 1].tolist() for k in range(1, len(walk) - 1)]
        around = mesh.triangles[(mesh.triangles == corner).any(1)]
        groups.append(coordinates(np.unique([*around.ravel(), nodes[0]])) + [int(twist[0])])
    groups.append(coordinates([payload, *node[:, -1]]) + edge[:, -1].tolist())  # the payload turns with all six
    return cliques(groups, int(edge.max()) + 1, symmetric)


def square(nodes: int) -> Mesh:
    """Return a square of `nodes` x `nodes` nodes, its squares halved."""
    return rectangle(1.0, 1.0, 1.0 / (nodes - 1), pattern="right")


SHELLS: dict[str, Callable[[bool], Pattern]] = {
    "hybrid": hybrid,
    "hinge 20x20": lambda symmetric: hinge_shell(square(20), symmetric),
    "hinge 450": lambda symmetric: hinge_shell(rectangle(1.0, 14 / 29, 1 / 29, pattern="right"), symmetric),
    "mid-edge 450": lambda symmetric: mid_edge_shell(rectangle(1.0, 14 / 29, 1 / 29, pattern="right"), symmetric),
    "hinge 40x40": lambda symmetric: hinge_shell(square(40), symmetric),
}
QUICK = ("hybrid", "hinge 20x20", "hinge 450")


def dominant_values(pattern: Pattern, batch: int) -> Tensor:
    """Return (nnz, batch) values of random matrices whose diagonal is larger than the rest of their rows."""
    rng = np.random.default_rng(0)
    values = rng.uniform(-1, 1, size=(pattern.nnz, batch))
    off = pattern.rows != pattern.cols
    ends = np.concatenate([pattern.rows[off], pattern.cols[off]])
    count = np.bincount(ends, minlength=pattern.n)
    values[pattern.diagonal] = count[:, None] + 1.0
    return torch.from_numpy(values)


class FactorAndSolve:
    """One factorisation and one solve by a solver of the library."""

    def __init__(self, solver: linear.Solver):
        self.solver = solver

    def __call__(self, values: Tensor, rhs: Tensor) -> Tensor:
        """Return the solutions (B, n)."""
        return self.solver.factor(values).solve(rhs)


class QdldlLoop:
    """qdldl in a loop, as a user would write it: one symbolic analysis, an update and a solve per robot."""

    def __init__(self, pattern: Pattern):
        import qdldl

        # the columns of the transposed lower triangle are the rows of the pattern
        pointers = np.searchsorted(pattern.rows, np.arange(pattern.n + 1))
        ones = np.ones(pattern.nnz)
        ones[pattern.diagonal] += np.bincount(np.concatenate([pattern.rows, pattern.cols]), minlength=pattern.n)
        self.matrix = sparse.csc_matrix((ones, pattern.cols, pointers), shape=(pattern.n, pattern.n))
        self.solver = qdldl.Solver(self.matrix, upper=True)

    def __call__(self, values: Tensor, rhs: Tensor) -> Tensor:
        """Return the solutions (B, n)."""
        solutions = []
        for row, vector in zip(values.t().contiguous().numpy(), rhs.numpy(), strict=True):
            self.matrix.data[:] = row
            self.solver.update(self.matrix, upper=True)
            solutions.append(self.solver.solve(vector))
        return torch.from_numpy(np.stack(solutions))


def solvers(pattern: Pattern) -> dict[str, Callable[[Tensor, Tensor], Tensor]]:
    """Return functions of values and right-hand sides that factor and solve."""
    found: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        name: FactorAndSolve(linear.make(name, pattern)) for name in ("banded", "multifrontal")
    }
    if HAS_QDLDL and pattern.symmetric:
        found["qdldl loop"] = QdldlLoop(pattern)
    return found


def residual(pattern: Pattern, values: Tensor, x: Tensor, rhs: Tensor) -> float:
    """Return the largest |A x - b| / |b| of all robots."""
    worst = 0.0
    for data, solution, right in zip(values.t().numpy(), x.numpy(), rhs.numpy(), strict=True):
        matrix = sparse.csr_matrix((data, (pattern.rows, pattern.cols)), shape=(pattern.n, pattern.n))
        if pattern.symmetric:
            matrix = matrix + sparse.tril(matrix, -1).T
        worst = max(worst, float(np.linalg.norm(matrix @ solution - right) / np.linalg.norm(right)))
    return worst


def measured(pattern: Pattern, batch: int, rounds: int) -> dict[str, tuple[float, float]]:
    """Return CPU time [us per robot] and residual of every solver."""
    values = dominant_values(pattern, batch)
    rhs = torch.from_numpy(np.random.default_rng(1).normal(size=(batch, pattern.n)))
    found = solvers(pattern)
    error = {name: residual(pattern, values, solve(values, rhs), rhs) for name, solve in found.items()}  # warm-up too
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, solve in found.items():
            start = time.process_time()
            solve(values, rhs)
            times[name].append(time.process_time() - start)
    return {name: (1e6 * statistics.median(times[name]) / batch, error[name]) for name in found}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="leave the largest shells out")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    for name in QUICK if quick else SHELLS:
        for symmetric in (True, False):
            pattern = SHELLS[name](symmetric)
            print(f"\n{name}: n = {pattern.n}, {pattern.nnz} entries")
            for solver in ("banded", "multifrontal"):
                print(f"  {linear.make(solver, pattern).describe()}")
            for batch in BATCHES:
                results = measured(pattern, batch, ROUNDS * 4 if batch == 1 else ROUNDS)
                columns = [f"{solver} {us:8.0f} us ({error:.0e})" for solver, (us, error) in results.items()]
                print(f"  B = {batch:2}: {'   '.join(columns)}   chosen: {linear.choose(pattern, batch).name}")


if __name__ == "__main__":
    main()
