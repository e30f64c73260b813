"""The unknowns of a robot: which dofs move, how clamps and slides hold the others, and how vectors go to and fro."""

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

    A vector of unknowns (B, n_free) has the free dofs of a vector of dofs (B, n), in their order. Nodes that slide keep
    all of theirs; what would move them across their lines moves nothing (see `slides`).

    Parameters
    ----------
    body : of the robot.
    free : (n,) bool, dofs that move; the others are clamped (or prescribed by `Control.clamped_q`).
    slides : nodes whose free dofs move along lines and in planes alone; None: none.

    Attributes
    ----------
    free : (n,) bool.
    algebraic : (n,) bool, unknowns without inertia.
    some_algebraic : whether there are any.
    index : (n_free,) the dofs that are unknowns.
    planar : whether no node moves along y, and no edge turns about itself.
    out_of_plane : (K,) the dofs across the plane x-z: y of nodes, angles of edges, y of what clamps hold of rods.
    prescribed : (K,) dofs that a clamp may move, and those of nodes that slide; what is out of a plane stays.
    number : (n,) the number of each dof among the unknowns, -1 where it is clamped; an array of numpy.

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
        self._body = (body,)  # the model's own, not registered a second time
        self.slides = slides or Slides(np.zeros(0, dtype=np.int64), np.zeros((0, 3, 3)), body.nodes.dtype)
        self.number = np.where(free, np.cumsum(free) - 1, -1)
        self.register_buffer("free", torch.as_tensor(free, device="cpu"), persistent=False)
        massless = (body.mass == 0).reshape(-1, body.n_dofs)
        self.register_buffer("algebraic", massless.all(0) & self.free.to(massless.device), persistent=False)
        self.some_algebraic = bool(self.algebraic.any())
        self.register_buffer("index", torch.as_tensor(np.flatnonzero(free), device="cpu"), persistent=False)
        across = np.zeros(body.n_dofs, dtype=bool)  # out of the plane x-z
        across[1 : 3 * body.n_nodes : 3] = True
        across[3 * body.n_nodes : 3 * body.n_nodes + body.n_angles] = True
        self.planar = not (free & across).any()
        held_y = np.arange(body.first_held + 1, body.n_dofs, 3)
        leaving = np.concatenate([np.flatnonzero(across), held_y])
        self.register_buffer("out_of_plane", torch.as_tensor(leaving, device="cpu"), persistent=False)
        held = ~free & ~across if self.planar else ~free
        prescribed = np.union1d(np.flatnonzero(held), self.slides.dofs.numpy())
        self.register_buffer("prescribed", torch.as_tensor(prescribed, device="cpu"), persistent=False)

    @property
    def count(self) -> int:
        """Number of unknowns n_free: dofs that are not clamped, all of a node that slides."""
        return len(self.index)

    def picked(self, whole: Tensor) -> Tensor:
        """Return the unknowns (B, n_free) among all dofs (B, n)."""
        return whole.index_select(1, self.index)

    def expand(self, unknowns: Tensor, whole: Tensor) -> Tensor:
        """Return all dofs `whole` (B, n) with these unknowns (B, n_free) in them, as far as clamps let them move."""
        moved = whole.index_copy(1, self.index, unknowns)
        return moved if self.slides.none else self.slides.joined(moved, whole)

    def with_held(self, moving: Tensor, held: Tensor | float) -> Tensor:
        """Return `moving` (B, n) as far as clamps let the robot move, `held` (B, n) as far as they hold it.

        Clamped dofs are held, and so is the motion of sliding nodes across their lines.
        """
        joined = torch.where(self.free, moving, held)
        return joined if self.slides.none else self.slides.joined(joined, held)

    def with_prescribed(self, whole: Tensor, own: Tensor) -> Tensor:
        """Return `whole` (B, n) with `own` (B, K) in `prescribed` dofs; of sliding nodes, across their lines."""
        written = whole.index_copy(1, self.prescribed, own)
        return written if self.slides.none else self.with_held(whole, written)

    def on_unknowns(self, force: Tensor, robot: int | None = None) -> Tensor:
        """Return the generalised forces (B, n_free) on the unknowns of forces (B, n), in directions that are free.

        Where a robot is named, all rows, however many, are forces on that one.
        """
        along = force if self.slides.none else self.slides.joined(force, 0.0, robot)
        return self.picked(along)

    def where_algebraic(self, there: Tensor | float, elsewhere: Tensor) -> Tensor:
        """Return `elsewhere` (B, n), in unknowns without inertia `there`."""
        return torch.where(self.algebraic, there, elsewhere) if self.some_algebraic else elsewhere

    def residual_weight(self) -> Tensor:
        """Return the weights (n_free,) that make a residual of forces and torques one norm in N.

        Forces count as they are, torques over the mean edge length.
        """
        (body,) = self._body
        length = body.typical_length()
        twist = self.index >= 3 * body.n_nodes
        return torch.where(twist, 1 / length, torch.ones_like(length))
