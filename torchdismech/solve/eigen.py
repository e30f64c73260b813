"""Lowest eigenvalues of the stiffness against the mass matrix: sparse shift-invert on the CPU, for vibrations."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor

from torchdismech.sparse import Pattern

__all__ = ["ROUNDING", "lowest_modes", "sparse_matrix"]

DENSE = 300  # unknowns up to which the dense problem is solved for all eigenvalues: as fast there
EXTRA = 8  # least number of vectors iterated beside those asked for, so that equal eigenvalues are all found
DEPTH = 3  # blocks of vectors in the Krylov space of a cycle
CYCLES = 60  # restarts after which the iteration fails
# Eigenvalues have converged once they change between two cycles by no more than SETTLED times themselves plus NOISE
# machine epsilons of the largest eigenvalue: products with large matrices are no more accurate.
SETTLED, NOISE = 1e-11, 64
SHIFT = 1e-11  # first shift, relative to the largest eigenvalue: with less the shifted matrix is singular to rounding
# Machine epsilons of the largest eigenvalue up to which an eigenvalue counts as zero: the eigenvalues of rigid motions
# of rods and shells with 20 to 600 unknowns come out within half an epsilon.
ROUNDING = 2
# Least eigenvalue of the consistent mass matrix of an edge or a triangle, and so of a robot, scaled to a unit diagonal.
LEAST = 0.5
DOUBLE = float(np.finfo(float).eps)


def lowest_modes(stiffness: Any, mass: Any, count: int, precision: float = DOUBLE) -> tuple[np.ndarray, np.ndarray]:
    """Return the lowest eigenvalues (count,) and shapes (n, count) of K v = w M v; the shapes have v^T M v = 1.

    Unknowns without mass follow the others, K_aa v_a = -K_am v_m, and are eliminated. Eigenvalues within rounding of
    zero are returned as exact zeros. The largest component of each shape is positive.

    Parameters
    ----------
    stiffness : (n, n) symmetric scipy matrix, which may be singular or indefinite.
    mass : (n, n) symmetric scipy matrix, positive definite but for unknowns without mass, whose rows are zero. It may
        couple unknowns as consistent masses of rods and triangles do, see `LEAST`.
    precision : relative accuracy of the stiffness, from which it follows how small an eigenvalue counts as zero.

    Raises
    ------
    ValueError
        Numbers that are not finite; unknowns without mass whose stiffness is not positive definite.
    ArithmeticError
        The eigenvalues do not converge.
    """
    if not (np.isfinite(stiffness.data).all() and np.isfinite(mass.data).all()):
        raise ValueError("the stiffness or the mass is not finite")
    condensed = _Condensed(stiffness.tocsc(), mass.tocsc())
    block = count + max(EXTRA, count // 2)
    if condensed.size <= max(DENSE, 2 * DEPTH * block):
        eigenvalue, vectors = condensed.ritz(np.eye(condensed.size))
    else:
        eigenvalue, vectors = _lowest(condensed, count, block)
    eigenvalue, shape = eigenvalue[:count], condensed.shape(vectors[:, :count])
    eigenvalue = np.where(np.abs(eigenvalue) <= ROUNDING * precision * condensed.largest, 0.0, eigenvalue)
    largest = np.take_along_axis(shape, np.abs(shape).argmax(0)[None], axis=0)
    return eigenvalue, shape * np.where(largest < 0, -1.0, 1.0)


def sparse_matrix(pattern: Pattern, values: Tensor) -> Any:
    """Return the matrix with values (nnz,) on a pattern as a scipy matrix on the CPU, with both triangles."""
    from scipy.sparse import coo_array

    numbers = values.detach().double().cpu().numpy()
    matrix = coo_array((numbers, (pattern.rows, pattern.cols)), shape=(pattern.n, pattern.n)).tocsc()
    if not pattern.symmetric:
        return matrix
    own = coo_array((numbers[pattern.diagonal], (np.arange(pattern.n),) * 2), shape=matrix.shape).tocsc()
    return matrix + matrix.T - own


class _Condensed:
    """The stiffness condensed to the unknowns with mass, scaled so that the diagonal of the mass matrix is 1.

    Scaled unknowns y (m, k) belong to displacements y / `root`; unknowns without mass follow statically.

    Attributes
    ----------
    size : number m of unknowns with mass.
    moving, massless : indices of the m unknowns with mass, and of the a unknowns without.
    root : (m, 1) roots of the diagonal masses.
    largest : upper bound of the largest eigenvalue.
    """

    def __init__(self, stiffness: Any, mass: Any):
        self.stiffness, self.mass = stiffness, mass
        own = mass.diagonal()
        self.moving, self.massless = np.flatnonzero(own > 0), np.flatnonzero(own <= 0)
        self.size, self.root = len(self.moving), np.sqrt(own[own > 0])[:, None]
        rows, masses = stiffness.tocsr(), mass.tocsr()[self.moving][:, self.moving]
        masses.eliminate_zeros()
        self._masses = None if masses.nnz == self.size else masses
        self._moving, self._coupling = rows[self.moving][:, self.moving], rows[self.massless][:, self.moving]
        self._massless = None
        if len(self.massless):
            self._massless = _positive_factor(rows[self.massless][:, self.massless])
            if self._massless is None:
                raise ValueError("an angle without inertia is held by nothing, or pushed away from where it is")
        self.largest = float((abs(self._moving) @ (1 / self.root) / self.root).max())  # Gershgorin's bound
        if self._masses is not None:
            self.largest /= LEAST

    def follow(self, moved: np.ndarray) -> np.ndarray:
        """Return the displacements (a, k) of the massless unknowns that follow those (m, k) of the others."""
        if self._massless is None:
            return np.zeros((0, moved.shape[1]))
        return -self._massless.solve(self._coupling @ moved)

    def product(self, y: np.ndarray) -> np.ndarray:
        """Return the condensed, scaled stiffness times y (m, k)."""
        moved = y / self.root
        return (self._moving @ moved + self._coupling.T @ self.follow(moved)) / self.root

    def inert(self, y: np.ndarray) -> np.ndarray:
        """Return the scaled mass matrix times y (m, k)."""
        return y if self._masses is None else (self._masses @ (y / self.root)) / self.root

    def ritz(self, space: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the Ritz values (k,) and vectors (m, k) in the space spanned by orthonormal vectors (m, k)."""
        from scipy.linalg import eigh

        matrix = space.T @ self.product(space)
        masses = None if self._masses is None else space.T @ self.inert(space)
        eigenvalue, mixture = eigh(0.5 * (matrix + matrix.T), masses)
        return eigenvalue, space @ mixture

    def shape(self, y: np.ndarray) -> np.ndarray:
        """Return the displacements (n, k) of all unknowns in modes y (m, k)."""
        shape = np.zeros((self.mass.shape[0], y.shape[1]))
        shape[self.moving] = y / self.root
        shape[self.massless] = self.follow(shape[self.moving])
        return shape

    def shifted(self) -> Any:
        """Return a factorization of K + shift M by the first of ever larger shifts that makes it positive definite."""
        shift = SHIFT * self.largest
        while shift < 10 * self.largest:
            factor = _positive_factor(self.stiffness + shift * self.mass)
            if factor is not None:
                return factor
            shift *= 10
        raise ValueError("no shift makes the stiffness positive definite")

    def inverse(self, factor: Any, y: np.ndarray) -> np.ndarray:
        """Return (K + shift M)^-1 M y for y (m, k), condensed and scaled: a step of inverse iteration.

        Parameters
        ----------
        factor : from `shifted`.
        """
        rhs = np.zeros((self.mass.shape[0], y.shape[1]))
        rhs[self.moving] = self.root * self.inert(y)
        return self.root * factor.solve(rhs)[self.moving]


def _positive_factor(matrix: Any) -> Any:
    """Return a factorization of a symmetric sparse matrix; None if the matrix is not positive definite.

    This is an LU factorization without exchanges of rows, whose pivots have the signs of the eigenvalues (Sylvester).
    """
    from scipy.sparse.linalg import splu

    options = {"SymmetricMode": True, "Equil": False}
    try:
        factor = splu(matrix.tocsc(), permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options=options)
    except RuntimeError:  # exactly singular
        return None
    exchanged = not np.array_equal(factor.perm_r, factor.perm_c)
    return None if exchanged or not (factor.U.diagonal() > 0).all() else factor


def _lowest(condensed: _Condensed, count: int, block: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the `block` lowest Ritz values and vectors (m, block) once the lowest `count` of them have converged.

    The method is shift-invert with short block Krylov spaces that are restarted from their Ritz vectors. A block holds
    more vectors than are wanted, so that several modes of one frequency are found, which single vectors may miss.
    """
    factor = condensed.shifted()
    vectors = np.random.default_rng(0).standard_normal((condensed.size, block))
    before = np.full(count, np.inf)
    for _ in range(CYCLES):
        basis = [np.linalg.qr(vectors)[0]]
        for _ in range(DEPTH):
            basis.append(np.linalg.qr(condensed.inverse(factor, basis[-1]))[0])
        space = np.linalg.qr(np.hstack(basis[1:]))[0]
        eigenvalue, vectors = (found[..., :block] for found in condensed.ritz(space))
        change = np.abs(eigenvalue[:count] - before)
        if (change <= SETTLED * np.abs(eigenvalue[:count]) + NOISE * DOUBLE * condensed.largest).all():
            return eigenvalue, vectors
        before = eigenvalue[:count]
    raise ArithmeticError(f"the lowest {count} eigenvalues did not settle in {CYCLES} cycles")
