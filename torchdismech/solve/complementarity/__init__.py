"""Complementarity problems of a batch: linear ones (LCPs), and frictional contact given by its Delassus matrix."""

from torchdismech.solve.complementarity.contact import CONTACT_METHODS, ContactSolution, solve_contact
from torchdismech.solve.complementarity.gradient import differentiable_impulses
from torchdismech.solve.complementarity.lcp import LCP_METHODS, LcpSolution, solve_lcp
from torchdismech.solve.complementarity.problem import independent_contacts

__all__ = [
    "CONTACT_METHODS",
    "LCP_METHODS",
    "ContactSolution",
    "LcpSolution",
    "differentiable_impulses",
    "independent_contacts",
    "solve_contact",
    "solve_lcp",
]
