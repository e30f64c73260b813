"""How planar robots lie in their plane, so that compiled formulas can leave out the numbers that are zero there.

A planar robot is one whose nodes do not move along y, and whose edges do not turn about themselves. As long as all its
nodes have the same y, most numbers in a spring's formulas are zero: seven tenths of the operations that evaluate
forces and their matrix in space.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import torch
from torch import Tensor, nn

from torchdismech.geometry.vec3 import Vec3
from torchdismech.native import function_of
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State

__all__ = ["IN_PLANE", "SLANTED", "Plane", "curvatures_in_plane", "plane_of"]

# By rounding, a vector along y may have this fraction of its size in the x-z plane, and a velocity in the plane this
# fraction of its size along y.
IN_PLANE = 1e-12
SLANTED = 1e-7  # an edge in the plane may have this fraction of its length along y, by rounding of its nodes
OUT_OF_PLANE = 1e-6  # a component of a unit vector that is not larger counts as zero


class Plane(Enum):
    """How robots with all nodes at one y lie in that plane: with all directors across it, or all within it."""

    DIRECTORS_ACROSS = 1
    DIRECTORS_WITHIN = 2

    def director(self, director: Vec3) -> Vec3:
        """Return a director with exact zeros in the components that it cannot have."""
        if self is Plane.DIRECTORS_WITHIN:
            return director.without_y()
        return Vec3(torch.zeros_like(director.x), director.y, torch.zeros_like(director.z))


def curvatures_in_plane(body: Body, tangents: Tensor) -> Tensor:
    """Return which of kappa1, kappa2 bend a planar robot in its plane, (S, 2) bool, held tangents' springs included.

    The curvature binormal is along y; kappa1 is its component on the second directors, kappa2 on the first ones.

    Parameters
    ----------
    tangents : of the framed edges at rest (A, 3).
    """
    across = torch.linalg.cross(tangents, body.directors)
    parts = torch.stack([across[:, 1], body.directors[:, 1]], dim=-1).abs()
    return (parts[torch.as_tensor(body.springs.edges, device="cpu")] > OUT_OF_PLANE).any(1)


def plane_of(state: State, controls: Iterable[Control], alignments: Iterable[Tensor]) -> Plane | None:
    """Return how robots lie in a plane now and after steps with these controls; None if they do not, or if unknown.

    Besides one y, they must have no reference twist, and directors all on one side of their edges. All tensors are of
    one dtype and on one device. The look takes some microseconds, a third of what it saves for a single robot.

    Parameters
    ----------
    state : of robots whose nodes are clamped along y, and whose angles are all clamped.
    controls : of the steps: targets of clamps must stay in the plane, and natural curvatures must be finite, as those
        out of the plane are left out of the formulas.
    alignments : angles between frames that meet, which must be zero, too.
    """
    q, tangent, director, twist = tensors = state.q, state.tangent, state.director, state.reference_twist
    function = function_of("plane_of", q.dtype)
    if function is None or not all(map(_is_readable, tensors)):
        return None
    (robots, dofs), angles = q.shape, director.shape[1]
    sizes = robots, dofs, (dofs - angles) // 3 - state.n_held, angles
    number = function(*sizes, twist.shape[1], q.data_ptr(), tangent.data_ptr(), director.data_ptr(), twist.data_ptr())
    if not number or not all(_holds("all_zero", (angle.numel(),), angle) for angle in alignments):
        return None
    for control in controls:
        target, curvature = control.clamped_q, control.natural_curvature
        if target is not None and not _holds("one_y", sizes, target):
            return None
        if curvature is not None and not _holds("all_finite", (curvature.numel(),), curvature):
            return None
    return Plane(number)


def _holds(what: str, sizes: tuple[int, ...], tensor: Tensor) -> bool:
    """Return whether a compiled test, such as "all_zero", holds for a tensor; False where the test cannot read it."""
    function = function_of(what, tensor.dtype)
    return function is not None and _is_readable(tensor) and bool(function(*sizes, tensor.data_ptr()))


def _is_readable(tensor: Tensor) -> bool:
    """Return whether a tensor is an ordinary one (or a parameter), contiguous on the CPU, for compiled code to read."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.is_contiguous()
