"""Solvers for batches of sparse linear systems that share a pattern.

`choose` picks a solver by the pattern, `make` by name. A solver holds what follows from the pattern alone; its
`factor(values)` returns a factorization of the batch, whose `solve(rhs)` returns the solutions. See
`docs/architecture.md` for an example.
"""

from torchdismech.solve.linear.at_root import solved_at_root
from torchdismech.solve.linear.base import Factor, JoinedFactor, Solver
from torchdismech.solve.linear.choice import choose
from torchdismech.solve.linear.definite import SMALLEST_EIGENVALUE, factored, null_vectors, positive_definite
from torchdismech.solve.linear.names import SOLVERS, Setting, make, named
from torchdismech.solve.linear.shifted import largest_entry, shifted_factor

__all__ = [
    "SMALLEST_EIGENVALUE",
    "SOLVERS",
    "Factor",
    "JoinedFactor",
    "Setting",
    "Solver",
    "choose",
    "factored",
    "largest_entry",
    "make",
    "named",
    "positive_definite",
    "shifted_factor",
    "solved_at_root",
    "null_vectors",
]
