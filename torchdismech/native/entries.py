"""What stands in tables of the kernels for bands in place of the entry that a number starts as."""

__all__ = ["ONE", "ZERO"]

ZERO = -1  # there is none
ONE = -2  # likewise, on the diagonal of lines that only fill up the last ones
