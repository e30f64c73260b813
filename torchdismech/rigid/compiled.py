"""The factor of chains by compiled code, where a CPU has it: the recursions of `planar` and `spatial`, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech import native

__all__ = ["CompiledFactor"]

NUMBERS = {"plane": 4, "space": 7}  # that a joint keeps
MOST = 64  # threads


class CompiledFactor:
    """H = M(q) + diagonal, factored by articulated bodies in `native/chain.cpp`; `solve` gives x with H x = b.

    Autograd does not see it.

    Parameters
    ----------
    kind : "plane" or "space".
    inertia, coupling, mass : of the bodies about their joints; mass times the centre's place (K, ..., 1, B or 1).
    geometry : in the plane the arms between joints (K, 2, 1, B); in space the axes (J, 3, 1, B), then the arms.
    diagonal : (J, S, B or 1), real or complex; None for zeros.
    """

    def __init__(
        self,
        kind: str,
        inertia: Tensor,
        coupling: Tensor,
        mass: Tensor,
        geometry: tuple[Tensor, ...],
        diagonal: Tensor | None,
    ):
        self._kind, self._bodies = kind, len(mass)
        self._robots = geometry[0].shape[-1]
        self._geometry = tuple(self._whole(x) for x in geometry)
        joints = len(geometry[0])
        if diagonal is None:
            diagonal = mass.new_zeros(joints, 1, self._robots)
        self._parts = diagonal.shape[1]
        self._joints = diagonal.new_empty(joints * NUMBERS[kind], self._parts, self._robots)
        of_bodies = tuple(self._whole(x) for x in (inertia, coupling, mass))
        self._run("factor", *of_bodies, *self._geometry, self._whole(diagonal), self._joints)

    @staticmethod
    def serves(like: Tensor) -> bool:
        """Return whether factors are found so for tensors like this one: on a CPU with a C++ compiler, in float64."""
        if like.device.type != "cpu" or like.dtype != torch.float64 or (torch.is_grad_enabled() and like.requires_grad):
            return False
        try:
            native.library()
        except native.Unavailable:
            return False
        return True

    def solve(self, torque: Tensor) -> Tensor:
        """Return x (J, S, B) with H x = torque."""
        shape = (len(torque), self._parts, self._robots)
        given = torque.to(self._joints.dtype).expand(shape).contiguous()
        found = torch.empty_like(given)
        self._run("solve", *self._geometry, self._joints, given, found)
        return found

    def _whole(self, x: Tensor) -> Tensor:
        """Return a tensor (.., B or 1) with numbers for every robot, one after the other."""
        return x.expand(*x.shape[:-1], self._robots).contiguous()

    def _run(self, name: str, *arrays: Tensor) -> None:
        library = native.library()
        function = getattr(library.code, f"{self._kind}_{name}_{str(self._joints.dtype).removeprefix('torch.')}")
        groups = -(-self._robots // library.lanes(torch.float64))
        sizes = (self._bodies, self._parts, self._robots)
        native.in_threads(function, (*sizes, *arrays), groups, max(1, min(MOST, groups // 16)))
