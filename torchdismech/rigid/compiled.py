"""Torques and factors of chains by compiled code, where a CPU has it: what `planar` and `spatial` find, in one call."""

from __future__ import annotations

import torch
from torch import Tensor

from torchdismech import native
from torchdismech.rigid.bodies import Bodies

__all__ = ["CompiledFactor", "serves", "torques"]

NUMBERS = {"plane": 4, "space": 7}  # that a joint keeps
MOST = 64  # threads


def serves(like: Tensor) -> bool:
    """Return whether compiled code serves tensors like this one: float64 on a CPU with a C++ compiler, not recorded."""
    if like.device.type != "cpu" or like.dtype != torch.float64 or (torch.is_grad_enabled() and like.requires_grad):
        return False
    try:
        native.library()
    except native.Unavailable:
        return False
    return True


def torques(
    kind: str, geometry: tuple[Tensor, Tensor], chain: Bodies, velocity: Tensor, acceleration: Tensor
) -> Tensor:
    """Return the torques (J, S, B) that move the joints so [N m].

    Parameters
    ----------
    kind : "plane" or "space".
    geometry : in the plane unit vectors along and across the bodies (K, 2, S, B); in space the axes of the joints
        (J, 3, S, B) and of the bodies (K, 3, 3, S, B).
    """
    columns = geometry[0].shape[-2:]
    constants = (chain.length, chain.centre, chain.mass, chain.inertia, chain.gravity)
    given = [x.expand(*x.shape[:-2], *columns).contiguous() for x in (*geometry, *constants, velocity, acceleration)]
    found = torch.empty_like(given[-1])
    _run(f"{kind}_torque_float64", (len(chain.mass), 1, columns.numel()), (*given, found))
    return found


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
        name = f"{self._kind}_{name}_{str(self._joints.dtype).removeprefix('torch.')}"
        _run(name, (self._bodies, self._parts, self._robots), arrays)


def _run(name: str, sizes: tuple[int, ...], arrays: tuple[Tensor, ...]) -> None:
    """Call a function of the compiled code for all robots, some in a vector."""
    library = native.library()
    groups = -(-sizes[-1] // library.lanes(torch.float64))
    native.in_threads(getattr(library.code, name), (*sizes, *arrays), groups, max(1, min(MOST, groups // 16)))
