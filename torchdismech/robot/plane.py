"""How planar robots lie in their plane: code that is made of formulas leaves out what is zero there.

A planar robot is one whose nodes do not move along y, and whose edges do not turn about themselves. As long as all its
nodes have the same y, a good part of a spring's formulas is zeros: seven tenths of what finds forces and their matrix
in space.
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

IN_PLANE = 1e-12  # of a vector along y, what rounding may leave of it in the x-z plane
SLANTED = 1e-7  # of the length of an edge, what rounding of its nodes may leave along y
OUT_OF_PLANE = 1e-6  # component of a unit vector across the plane that counts as none


class Plane(Enum):
    """How robots lie in a plane of one y: their edges' directors are at right angles to it, or in it."""

    DIRECTORS_ACROSS = 1
    DIRECTORS_WITHIN = 2

    def director(self, director: Vec3) -> Vec3:
        """Return a director with zeros where it has no part."""
        if self is Plane.DIRECTORS_WITHIN:
            return director.without_y()
        return Vec3(torch.zeros_like(director.x), director.y, torch.zeros_like(director.z))


def curvatures_in_plane(body: Body, tangents: Tensor) -> Tensor:
    """Return which curvatures kappa1, kappa2 (S, 2) of a planar robot's springs are in its plane, those held included.

    kappa1 is the component of the binormal, which is along y, on the second directors, kappa2 that on the first.

    Parameters
    ----------
    tangents : of the framed edges at rest (A, 3).
    """
    across = torch.linalg.cross(tangents, body.directors)
    parts = torch.stack([across[:, 1], body.directors[:, 1]], dim=-1).abs()
    return (parts[torch.as_tensor(body.springs.edges, device="cpu")] > OUT_OF_PLANE).any(1)


def plane_of(state: State, controls: Iterable[Control], alignments: Iterable[Tensor]) -> Plane | None:
    """Return how robots lie in a plane, and stay there; None: in none, or it is not known.

    They are untwisted, and their directors are on one side of their edges. All tensors are of one dtype and on one
    device. To look takes some microseconds, a third of what the plane saves a robot.

    Parameters
    ----------
    state : of robots whose nodes are clamped along y, and whose angles are all clamped.
    controls : of the steps: where they hold clamped dofs, and curvatures at rest, which have to be finite numbers, as
        those across the plane are left out.
    alignments : angles between frames that meet, which have to be zero, too.
    """
    q, tangent, director, twist = read = state.q, state.tangent, state.director, state.reference_twist
    looks = function_of("plane_of", q.dtype)
    if looks is None or not all(map(_plain, read)):
        return None
    (robots, dofs), angles = q.shape, director.shape[1]
    sizes = robots, dofs, (dofs - angles) // 3 - state.n_held, angles
    found = looks(*sizes, twist.shape[1], q.data_ptr(), tangent.data_ptr(), director.data_ptr(), twist.data_ptr())
    if not found or not all(_holds("all_zero", (angle.numel(),), angle) for angle in alignments):
        return None
    for control in controls:
        target, curvature = control.clamped_q, control.natural_curvature
        if target is not None and not _holds("one_y", sizes, target):
            return None
        if curvature is not None and not _holds("all_finite", (curvature.numel(),), curvature):
            return None
    return Plane(found)


def _holds(what: str, sizes: tuple[int, ...], tensor: Tensor) -> bool:
    """Return what a compiled function says of a tensor."""
    function = function_of(what, tensor.dtype)
    return function is not None and _plain(tensor) and bool(function(*sizes, tensor.data_ptr()))


def _plain(tensor: Tensor) -> bool:
    """Return whether a tensor's numbers stand one after the other in memory of the CPU."""
    return type(tensor) in (Tensor, nn.Parameter) and tensor.is_cpu and tensor.is_contiguous()
