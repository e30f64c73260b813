"""How planar robots lie in their plane: code that is made of formulas leaves out what is zero there.

A planar robot is one whose nodes do not move along y, and whose edges do not turn about themselves. As long as all its
nodes have the same y, a good part of a spring's formulas is zeros: seven tenths of what finds forces and their matrix
in space.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

import torch
from torch import Tensor

from torchdismech.geometry.vec3 import Vec3
from torchdismech.native import function_of
from torchdismech.state import State

__all__ = ["Plane", "keep_plane", "plane_of"]

KNOWN = "_plane"  # beside the fields of a state: copies with other fields do not have it


class Plane(Enum):
    """How robots lie in a plane of one y: their edges' directors are at right angles to it, or in it."""

    DIRECTORS_ACROSS = 1
    DIRECTORS_WITHIN = 2

    def director(self, director: Vec3) -> Vec3:
        """Return a director with zeros where it has no part."""
        if self is Plane.DIRECTORS_WITHIN:
            return director.without_y()
        return Vec3(torch.zeros_like(director.x), director.y, torch.zeros_like(director.z))


def plane_of(state: State, targets: Sequence[Tensor], alignments: Sequence[Tensor]) -> Plane | None:
    """Return how robots lie in a plane: untwisted, and with frames that are alike. None: in none, or it is not known.

    All tensors are of one dtype and on one device.

    Parameters
    ----------
    state : of robots whose nodes are clamped along y, and whose angles are all clamped.
    targets : q (B, n) at which clamped dofs are to be.
    alignments : angles between frames that meet, which have to be zero, too.
    """
    known: tuple[Plane, list] | None = vars(state).get(KNOWN)
    if known is not None and not targets and known[1] == _stamps(state, alignments):
        return known[0]
    looks, in_plane = function_of("plane_of", state.q.dtype), function_of("in_plane", state.q.dtype)
    q, tangent, director, twist = read = _read(state)
    if looks is None or in_plane is None or not all(map(_plain, (*read, *targets, *alignments))):
        return None
    (robots, dofs), angles = q.shape, director.shape[1]
    nodes = (dofs - angles) // 3 - state.n_held
    found = looks(robots, dofs, nodes, angles, twist.shape[1], *[tensor.data_ptr() for tensor in read])
    stays = all(in_plane(robots, dofs, nodes, angles, target.data_ptr()) for target in targets)
    aligned = all(in_plane(1, angle.numel(), 0, angle.numel(), angle.data_ptr()) for angle in alignments)
    return Plane(found) if found and stays and aligned else None


def keep_plane(state: State, plane: Plane, alignments: Sequence[Tensor]) -> None:
    """Keep with a state how its robots lie, as after a step in their plane, until its tensors are written to.

    To look takes as long as the plane saves a single robot.
    """
    if not any(tensor.is_inference() for tensor in (state.q, *alignments)):  # those do not tell
        vars(state)[KNOWN] = plane, _stamps(state, alignments)


def _read(state: State) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return state.q, state.tangent, state.director, state.reference_twist


def _stamps(state: State, alignments: Sequence[Tensor]) -> list[int]:
    """Return numbers that are others when a tensor has been written to, or takes another's place."""
    return [*[tensor._version for tensor in (*_read(state), *alignments)], *map(id, alignments)]


def _plain(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers stand one after the other in memory of the CPU."""
    return type(tensor) is Tensor and tensor.is_cpu and tensor.is_contiguous()
