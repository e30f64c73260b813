"""Argument and result types of the compiled functions, declared for ctypes."""

from __future__ import annotations

import ctypes

__all__ = ["declare"]

NUMBER, ARRAY = ctypes.c_int64, ctypes.c_void_p


def declare(code: ctypes.CDLL) -> None:
    """Declare the argument and result types of all functions."""
    _declare_solvers_and_sums(code)
    _declare_pairs(code)
    _declare_chains(code)
    _declare_tapes(code)


def _declare_solvers_and_sums(code: ctypes.CDLL) -> None:
    """Declare the functions of bands, sums, norms, shifts of nodes and planes."""
    code.band_vector_bytes.restype = NUMBER
    for dtype in ("float64", "float32"):
        for kind in ("band", "single_band"):
            factor, solve = getattr(code, f"{kind}_factor_{dtype}"), getattr(code, f"{kind}_solve_{dtype}")
            factor.argtypes = [NUMBER] * 4 + [ARRAY, ARRAY, NUMBER, ARRAY, ARRAY, ARRAY, ARRAY, NUMBER, NUMBER]
            solve.argtypes = [NUMBER] * 4 + [ARRAY, ARRAY, ARRAY, NUMBER, ARRAY, ARRAY, NUMBER, NUMBER]
            factor.restype = solve.restype = None
        numbers = getattr(code, f"single_band_numbers_{dtype}")
        numbers.argtypes, numbers.restype = [NUMBER] * 3, NUMBER
        weighted_sums = getattr(code, f"weighted_sums_{dtype}")
        weighted_sums.argtypes = [NUMBER] + [ARRAY] * 5 + [NUMBER, NUMBER]
        subtract_sums = getattr(code, f"subtract_sums_{dtype}")
        subtract_sums.argtypes = [NUMBER] + [ARRAY] * 5 + [NUMBER] + [ARRAY] * 2 + [NUMBER, NUMBER]
        norms, finite = getattr(code, f"weighted_norms_{dtype}"), getattr(code, f"finite_rows_{dtype}")
        norms.argtypes, finite.argtypes = [NUMBER] + [ARRAY] * 3 + [NUMBER] * 2, [NUMBER] + [ARRAY] * 2 + [NUMBER] * 2
        columns = getattr(code, f"finite_columns_{dtype}")
        columns.argtypes = [NUMBER] * 2 + [ARRAY] * 2 + [NUMBER] * 2
        totals = getattr(code, f"totals_{dtype}")
        totals.argtypes = [NUMBER] + [ARRAY] * 2 + [NUMBER] * 2
        norms.restype = finite.restype = columns.restype = totals.restype = None
        shifts = getattr(code, f"node_shifts_{dtype}")
        shifts.argtypes = [NUMBER] * 7 + [ARRAY] * 6 + [NUMBER, NUMBER]
        trees = getattr(code, f"tree_shifts_{dtype}")
        trees.argtypes = [NUMBER] * 7 + [ARRAY] * 5 + [NUMBER, NUMBER]
        weighted_sums.restype = subtract_sums.restype = shifts.restype = trees.restype = None
        for name, sizes, arrays in (("one_y", 4, 1), ("all_zero", 1, 1), ("all_finite", 1, 1), ("plane_of", 5, 4)):
            of_plane = getattr(code, f"{name}_{dtype}")
            of_plane.argtypes, of_plane.restype = [NUMBER] * sizes + [ARRAY] * arrays, NUMBER
    code.node_shift_blocks.argtypes, code.node_shift_blocks.restype = [NUMBER] * 2, NUMBER


def _declare_pairs(code: ctypes.CDLL) -> None:
    """Declare the functions that find pairs that may touch or triangles that are nearest, and that sum over pairs."""
    for dtype in ("float64", "float32"):
        placed = [ARRAY, NUMBER, ARRAY, ARRAY, ARRAY]
        further: dict[str, list] = {
            "values": [ARRAY, ARRAY],
            "summary": [ARRAY] * 4,
            "known": [ARRAY, ARRAY],
            "least": [ARRAY, ARRAY],
            "forces": [ARRAY] * 3,
            "product": [ARRAY] * 4,
            "blocks": [ARRAY] * 4 + [NUMBER, ARRAY, ARRAY],
        }
        for name, more in further.items():
            of_pairs = getattr(code, f"pair_{name}_{dtype}")
            of_pairs.argtypes, of_pairs.restype = [*placed, *more, NUMBER, NUMBER], None
        nearest = getattr(code, f"nearest_triangles_{dtype}")
        nearest.argtypes, nearest.restype = [NUMBER, ARRAY, NUMBER] + [ARRAY] * 4 + [NUMBER] * 2, None
    code.blocks_of_pairs.argtypes = [NUMBER] * 2 + [ARRAY, NUMBER, ARRAY, ARRAY, NUMBER, ARRAY]
    code.blocks_of_pairs.restype = NUMBER
    code.overlapping_boxes.argtypes = [NUMBER] * 2 + [ARRAY] * 2 + [NUMBER] + [ARRAY] * 3 + [NUMBER] * 2 + [ARRAY]
    code.overlapping_boxes.restype = NUMBER


def _declare_chains(code: ctypes.CDLL) -> None:
    """Declare the functions for chains of rigid elements."""
    for what in ("torque", "factor", "solve", "acceleration"):
        for dtype in ("float64", "complex128") if what in ("factor", "solve") else ("float64",):
            for kind in ("plane", "space"):
                function = getattr(code, f"{kind}_{what}_{dtype}")
                function.argtypes, function.restype = [NUMBER] * 3 + [ARRAY] * 3 + [NUMBER, NUMBER], None
    code.space_turn_float64.argtypes = [NUMBER] * 3 + [ARRAY] * 2 + [NUMBER, NUMBER]
    code.space_turn_float64.restype = None


def _declare_tapes(code: ctypes.CDLL) -> None:
    """Declare the functions that tapes call."""
    code.calls_in_turn.argtypes, code.calls_in_turn.restype = [NUMBER, ARRAY, ARRAY, NUMBER], NUMBER
    code.steps_in_turn.argtypes, code.steps_in_turn.restype = [ARRAY, NUMBER, NUMBER, ARRAY], NUMBER
    code.all_hold.argtypes, code.all_hold.restype = [NUMBER, ARRAY], NUMBER
    code.most_arguments.restype = NUMBER
    code.copies_in_turn.argtypes, code.copies_in_turn.restype = [NUMBER, ARRAY], None
    code.run_instructions.argtypes, code.run_instructions.restype = [NUMBER, ARRAY], NUMBER
