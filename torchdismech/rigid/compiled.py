"""Torques, factors and accelerations of chains by C++ code on a CPU, in place of loops in `planar` and `spatial`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech import native
from torchdismech.rigid.bodies import Bodies

__all__ = ["CompiledFactor", "CompiledPosture", "axes_in_space", "serves"]

NUMBERS = {"plane": 4, "space": 7}  # numbers that a factor stores for each joint
ELEMENTS_A_THREAD = 5000  # groups of robots times parts times elements for which another thread pays, about 1 ms


def serves(like: Tensor) -> bool:
    """Return whether compiled code takes tensors like this one: float64, on a CPU with a C++ compiler, not recorded."""
    if like.device.type != "cpu" or like.dtype != torch.float64 or (torch.is_grad_enabled() and like.requires_grad):
        return False
    try:
        native.library()
    except native.Unavailable:
        return False
    return True


def axes_in_space(q: Tensor, bodies: int) -> tuple[Tensor, Tensor]:
    """Return the axes of the joints (J, 3, S, B) and of the bodies (K, 3, 3, S, B) of chains in space at q."""
    joints, parts, robots = q.shape
    axes = q.new_empty(3 * joints + 9 * bodies, parts, robots)
    turns = (q.cos(), q.sin())
    _in_groups("space_turn", (bodies, parts, robots), (_described(turns, (parts, robots), q.dtype), axes))
    return axes[: 3 * joints].unflatten(0, (-1, 3)), axes[3 * joints :].unflatten(0, (-1, 3, 3))


class CompiledPosture:
    """Chains in a posture, as the functions of `native/chain.cpp` take them; autograd does not record what they do.

    Parameters
    ----------
    kind : "plane" or "space".
    geometry : in the plane unit vectors along and across the bodies (K, 2, S, B); in space the axes of the joints
        (J, 3, S, B) and of the bodies (K, 3, 3, S, B).
    chain : constants of the chains, per robot or shared.
    """

    def __init__(self, kind: str, geometry: tuple[Tensor, Tensor], chain: Bodies):
        self.kind, self.joints, self._bodies = kind, len(geometry[0]), len(chain.mass)
        self._parts, self.robots = geometry[0].shape[-2:]
        constants = (chain.length, chain.centre, chain.mass, chain.inertia, chain.gravity)
        self._arrays = [x.flatten(0, -3) for x in (*geometry, *constants)]
        self._described = _described(self._arrays, (self._parts, self.robots), torch.float64)

    def torque(self, velocity: Tensor, acceleration: Tensor) -> Tensor:
        """Return the torques (J, S, B) that the motion takes, without springs and dampers [N m]."""
        out = velocity.new_empty(self.joints, self._parts, self.robots)
        return self.call("torque", out, velocity, acceleration)

    def acceleration(self, q: Tensor, velocity: Tensor, force: Tensor, stiffness: Tensor, damping: Tensor) -> Tensor:
        """Return the accelerations (J, 1, B) by torques `force` on the joints, springs and dampers."""
        out = velocity.new_empty(self.joints, 1, self.robots)
        return self.call("acceleration", out, q, velocity, force, stiffness, damping)

    def call(self, function: str, out: Tensor, *arguments: Tensor) -> Tensor:
        """Call a function of the compiled code on `arguments`, and return `out` (rows, parts, B), which it writes to.

        Parameters
        ----------
        function : which function: "torque", "factor", "solve" or "acceleration".
        out : contiguous tensor for the result.
        arguments : (rows, parts or 1, B or 1), of any strides.
        """
        sizes = (out.shape[1], self.robots)
        arrays = (self._described, _described(arguments, sizes, out.dtype), out)
        _in_groups(f"{self.kind}_{function}", (self._bodies, *sizes), arrays)
        return out


class CompiledFactor:
    """H = M(q) + diagonal, factored by articulated bodies; `solve` gives x with H x = b. Autograd does not record it.

    Parameters
    ----------
    posture : with one state of each robot (S = 1).
    diagonal : (J, m, B or 1), real or complex: m of them, so that there are m matrices H of each robot; None for one of
        zeros.
    """

    def __init__(self, posture: CompiledPosture, diagonal: Tensor | None):
        self._posture = posture
        if diagonal is None:
            diagonal = torch.zeros(1, 1, 1, dtype=torch.float64, device="cpu").expand(posture.joints, 1, 1)
        shape = (posture.joints * NUMBERS[posture.kind], diagonal.shape[1], posture.robots)
        self._joints = posture.call("factor", diagonal.new_empty(shape), diagonal)

    def solve(self, torque: Tensor) -> Tensor:
        """Return x (J, m, B) with H x = torque, for a torque of this shape."""
        out = self._joints.new_empty(len(torque), *self._joints.shape[1:])
        return self._posture.call("solve", out, self._joints, torque.to(out.dtype))


def _in_groups(name: str, sizes: tuple[int, ...], arrays: tuple[np.ndarray | Tensor, ...]) -> None:
    """Call a function of the compiled code for all robots, several in each SIMD vector; it writes to the last array."""
    library = native.library()
    function = getattr(library.code, f"{name}_{str(arrays[-1].dtype).removeprefix('torch.')}")
    groups = -(-sizes[-1] // library.lanes(torch.float64))
    elements, parts, _ = sizes
    native.in_threads(function, (*sizes, *arrays), groups, groups * parts * elements // ELEMENTS_A_THREAD)


def _described(arrays: Sequence[Tensor], sizes: tuple[int, int], dtype: torch.dtype) -> np.ndarray:
    """Return addresses and strides of tensors (rows, parts or 1, robots or 1) as `chain.cpp` reads them.

    A dimension of size 1, which all parts or robots share, gets the stride zero instead of copies.
    """
    numbers: list[int] = []
    for x in arrays:
        if x.dtype != dtype or any(n not in (1, size) for n, size in zip(x.shape[1:], sizes, strict=True)):
            expected = f"{dtype}, (rows, 1 or {sizes[0]}, 1 or {sizes[1]})"
            raise ValueError(f"chains by compiled code: expected {expected}, got {x.dtype}, {tuple(x.shape)}")
        row, *strides = x.stride()
        shared = (0 if n == 1 else stride for n, stride in zip(x.shape[1:], strides, strict=True))
        numbers += (x.data_ptr(), row, *shared)
    return np.array(numbers, dtype=np.int64)
