"""Solvers for batches of sparse linear systems that share a pattern.

`choose` picks a solver by the pattern, `make` by name. A solver holds what follows from the pattern alone; its
`factor(values)` returns a factorization of the batch, whose `solve(rhs)` returns the solutions. See
`docs/architecture.md` for an example.
"""

from torchdismech.solve.linear.at_root import solved_at_root
from torchdismech.solve.linear.base import Factor, JoinedFactor, Solver
from torchdismech.solve.linear.choice import choose
from torchdismech.solve.linear.definite import RESISTS, factored, resisting, softest_motion
from torchdismech.solve.linear.names import SOLVERS, Setting, make, named
from torchdismech.solve.linear.shifted import largest_entry, shifted_factor

__all__ = [
    "RESISTS",
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
    "resisting",
    "shifted_factor",
    "solved_at_root",
    "softest_motion",
]
