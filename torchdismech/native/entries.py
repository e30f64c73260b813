"""Codes in the index tables of the band kernels, in place of the index of a matrix entry."""

__all__ = ["ONE", "ZERO"]

ZERO = -1  # the number is 0 before the elimination
ONE = -2  # the number is 1: the diagonal of padding lines
