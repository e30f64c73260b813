"""Codes in the tables of the band kernels, for numbers that do not start as an entry of the matrix."""

__all__ = ["ONE", "ZERO"]

ZERO = -1  # the number starts as 0
ONE = -2  # it starts as 1: the diagonal of lines that are there only to fill up the last group
