"""The unknowns of a robot: which dofs a step solves for, and conversion between vectors of unknowns and of all dofs."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.robot.body import Body
from torchdismech.robot.slides import Slides

__all__ = ["Unknowns"]


class Unknowns(nn.Module):
    """The dofs of a robot that a step solves for.

    A vector of unknowns (B, n_free) has the free dofs of a vector of dofs (B, n), in their order. Nodes that slide have
    all three coordinates among them; changes across their lines move nothing (see `slides.py`).

    Parameters
    ----------
    body : of the robot.
    free : (n,) bool, dofs that move; the others are clamped (or prescribed by `Control.clamped_q`).
    slides : nodes that move along lines or in planes alone; None: no node does.

    Attributes
    ----------
    free : (n,) bool.
    algebraic : (n,) bool, unknowns without inertia.
    some_algebraic : whether there are any.
    index : (n_free,) the dofs that are unknowns.
    planar : whether no node moves along y, and no edge turns about itself.
    some_in_part : whether clamps hold some nodes in one or two directions alone; of a planar robot in one of its plane.
    out_of_plane : (K,) dofs out of the plane x-z: y of nodes, angles of edges, y of held tangents.
    prescribed : (K,) dofs whose motion is prescribed, in part or whole: clamped dofs, of a planar robot without y of
        nodes and the angles, and all coordinates of sliding nodes.
    number : (n,) array, the number of each dof among the unknowns, -1 where it is clamped.

    Raises
    ------
    InputError
        Nothing can move.
    """

    free: Tensor
    algebraic: Tensor
    index: Tensor
    prescribed: Tensor
    out_of_plane: Tensor

    def __init__(self, body: Body, free: np.ndarray, slides: Slides | None = None):
        super().__init__()
        if not free.any():
            raise InputError("every dof of the robot is clamped: nothing can move")
        self._body = (body,)  # in a tuple, as the model has registered this module already
        self.slides = slides or Slides(np.zeros(0, dtype=np.int64), np.zeros((0, 3, 3)), body.nodes.dtype)
        self.number = np.where(free, np.cumsum(free) - 1, -1)
        self.register_buffer("free", torch.as_tensor(free, device="cpu"), persistent=False)
        massless = (body.mass == 0).reshape(-1, body.n_dofs)
        self.register_buffer("algebraic", massless.all(0) & self.free.to(massless.device), persistent=False)
        self.some_algebraic = bool(self.algebraic.any())
        self.register_buffer("index", torch.as_tensor(np.flatnonzero(free), device="cpu"), persistent=False)
        across = np.zeros(body.n_dofs, dtype=bool)  # dofs of nodes and angles that are out of the plane x-z
        across[1 : 3 * body.n_nodes : 3] = True
        across[3 * body.n_nodes : 3 * body.n_nodes + body.n_angles] = True
        self.planar = not (free & across).any()
        freedoms = free[: 3 * body.n_nodes].reshape(-1, 3).sum(1)
        self.some_in_part = not self.slides.none or bool(((freedoms % (2 if self.planar else 3)) != 0).any())
        held_y = np.arange(body.first_held + 1, body.n_dofs, 3)
        leaving = np.concatenate([np.flatnonzero(across), held_y])
        self.register_buffer("out_of_plane", torch.as_tensor(leaving, device="cpu"), persistent=False)
        held = ~free & ~across if self.planar else ~free
        prescribed = np.union1d(np.flatnonzero(held), self.slides.dofs.numpy())
        self.register_buffer("prescribed", torch.as_tensor(prescribed, device="cpu"), persistent=False)

    @property
    def count(self) -> int:
        """Number of unknowns n_free; a sliding node has three."""
        return len(self.index)

    def of_dofs(self, dofs: Tensor) -> Tensor:
        """Return the unknowns (B, n_free) of a vector of all dofs (B, n)."""
        return dofs.index_select(1, self.index)

    def into_dofs(self, unknowns: Tensor, whole: Tensor) -> Tensor:
        """Return `whole` (B, n) with the unknowns (B, n_free) put in; sliding nodes move along their lines only."""
        moved = whole.index_copy(1, self.index, unknowns)
        return moved if self.slides.none else self.slides.projected(moved, whole)

    def with_held(self, moving: Tensor, held: Tensor | float) -> Tensor:
        """Return `moving` (B, n) in the directions in which the robot can move, `held` (B, n) in all others.

        The others are clamped dofs, and directions of sliding nodes across their lines.
        """
        written = torch.where(self.free, moving, held)
        return written if self.slides.none else self.slides.projected(written, held)

    def with_prescribed(self, whole: Tensor, values: Tensor) -> Tensor:
        """Return `whole` (B, n) with `values` (B, K) in `prescribed` dofs; of sliding nodes only across their lines."""
        written = whole.index_copy(1, self.prescribed, values)
        return written if self.slides.none else self.with_held(whole, written)

    def on_unknowns(self, force: Tensor, robot: int | None = None) -> Tensor:
        """Return forces (B, n) as generalised forces on the unknowns (B, n_free), projected for sliding nodes.

        With `robot`, all rows, however many, are forces on that robot.
        """
        along = force if self.slides.none else self.slides.projected(force, 0.0, robot)
        return self.of_dofs(along)

    def where_algebraic(self, there: Tensor | float, elsewhere: Tensor) -> Tensor:
        """Return `there` in unknowns without inertia, `elsewhere` (B, n) in all other dofs."""
        return torch.where(self.algebraic, there, elsewhere) if self.some_algebraic else elsewhere

    def residual_weight(self) -> Tensor:
        """Return weights (n_free,) for the norm of a residual, so that it is in N.

        Forces have weight 1, torques one over the mean edge length.
        """
        (body,) = self._body
        length = body.typical_length()
        twist = self.index >= 3 * body.n_nodes
        return torch.where(twist, 1 / length, torch.ones_like(length))
