"""ElementForce: forces that are sums over nodes, edges or triangles, evaluated by one compiled loop over these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, any_of
from torchdismech.forces.base import Force, number, refuse_below_zero
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.fused import Fused
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.state import Control, State

__all__ = [
    "ElementForce",
    "Loops",
    "blocks_of",
    "coefficient",
    "dofs_of_nodes",
    "refuse_other_count",
    "sizes_of",
    "vectors_at",
]

Values = Sequence[Tensor]  # each (S, B), for S elements and B robots


class Loops:
    """The compiled loops (`torchdismech.fused`) that compute a force, its derivatives, or both at once.

    Parameters
    ----------
    name : for warnings.
    force, derivatives : functions of the same tensors, which return a list of values (S, B): the components of the
        force, and the entries of the blocks of derivatives.
    components : number of values that `force` returns.
    """

    def __init__(self, name: str, force: Callable[..., Values], derivatives: Callable[..., Values], components: int):
        self.components = components
        self.force, self.derivatives = Fused(force, name), Fused(derivatives, name)
        self.both = Fused(partial(_both, force, derivatives), name)


def _both(force: Callable[..., Values], derivatives: Callable[..., Values], *arguments: Tensor) -> list[Tensor]:
    return [*force(*arguments), *derivatives(*arguments)]


class ElementForce(Force):
    """A force that is a sum over elements.

    A subclass defines `_loops`, whose functions get q and velocity (n, B), the dofs of each element, (k, 3, S) of k
    nodes or (k, S), and the tensors of `_loop_arguments`.
    """

    compiles = True
    _dofs: Tensor

    @property
    def _loops(self) -> Loops:
        raise TypeError(f"{type(self).__name__} has to define _loops")

    def _loop_arguments(self, state: State) -> tuple[Tensor, ...]:
        """Return the further arguments of the loops: tensors that broadcast to (S, B), or that loops index by rows."""
        raise TypeError(f"{type(self).__name__} has to define _loop_arguments(state)")

    def _placed(self, entries: Tensor) -> Derivatives:
        """Return the derivatives for each of `blocks`, from the entries (k, S, B) that the loop computed."""
        raise TypeError(f"{type(self).__name__} has to define _placed(found)")

    def _acted_on(self) -> Tensor:
        """Return the dofs (components, S) that the force acts on."""
        return self._dofs.flatten(0, -2)

    def blocks(self) -> list[Block]:
        """Return one block of each element: all its dofs against themselves."""
        dofs = self._dofs.flatten(0, -2).t().cpu().numpy()
        return [Block(dofs, dofs)]

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        return self._summed(self._loop_values(self._loops.force, state))

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives by position and velocity."""
        return self._placed(self._loop_values(self._loops.derivatives, state))

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the force and its derivatives, by one loop."""
        is_unchanged = all(
            getattr(type(self), name) is getattr(ElementForce, name) for name in ("forward", "derivatives")
        )
        if torch.is_grad_enabled() or not is_unchanged:
            return super().with_derivatives(state, control)
        values, first = self._loop_values(self._loops.both, state), self._loops.components
        return self._summed(values[:first]), self._placed(values[first:])

    def _loop_values(self, loop: Fused, state: State) -> Tensor:
        """Return the k values of a loop for all elements, (k, S, B)."""
        moving = (x.t().contiguous() for x in (state.q, state.velocity))  # robots contiguous, for vector instructions
        return loop(self._dofs.shape[-1], *moving, self._dofs, *self._loop_arguments(state))

    def _summed(self, components: Tensor) -> Tensor:
        """Return the force (B, n), summed from the components (k, S, B) of all elements."""
        total = components.new_zeros(self.body.n_dofs, components.shape[-1])
        return total.index_add(0, self._acted_on().flatten(), components.flatten(0, 1)).t()


def dofs_of_nodes(*nodes: np.ndarray) -> Tensor:
    """Return the position dofs (k, 3, S) of the k nodes of S elements, given as k arrays (S,)."""
    return torch.as_tensor(3 * np.stack(nodes)[:, None] + np.arange(3)[:, None], device="cpu")


def vectors_at(values: Tensor, dofs: Tensor) -> Vec3:
    """Return the vectors, components (S, B), at dofs (3, S) of q or velocity (n, B)."""
    return Vec3(*(values[dof] for dof in dofs.unbind(0)))


def sizes_of(sizes: Tensor) -> Tensor:
    """Return sizes or coefficients (S,) or (B, S) transposed to (S, 1) or (S, B); a single number as it is."""
    return sizes.unsqueeze(1) if sizes.dim() == 1 else sizes.t()


def coefficient(value, what: str) -> Tensor:
    """Return a coefficient as a tensor: one number (), one per element (S,), per robot (B, 1) or for both (B, S).

    A single dimension is always that of elements, whatever the number of robots. `refuse_other_count` checks S later.
    """
    tensor = number(value, what)
    if tensor.dim() > 2:
        raise InputError(
            f"{what}: expected one number, (S,), (B, 1) or (B, S) of S elements and B robots, "
            f"got shape {tuple(tensor.shape)}"
        )
    refuse_below_zero(tensor, what)
    return tensor


def refuse_other_count(tensor: Tensor, what: str, count: int, elements: str) -> None:
    """Refuse a constant of another number of elements than `count`; `elements` is their name in the message."""
    if tensor.dim() > 2 or (tensor.dim() and tensor.shape[-1] not in (1, count)):
        raise InputError(
            f"{what}: expected one number, ({count},) with one of each of the {count} {elements}, or "
            f"{any_of('(B, 1)', f'(B, {count})')} with those of each robot, got shape {tuple(tensor.shape)}"
        )


def blocks_of(entries: Tensor, rows: int) -> Tensor:
    """Return blocks (B, S, r, c) with `rows` rows r, from their entries (r c, S, B) in row order."""
    return entries.unflatten(0, (rows, -1)).permute(3, 2, 0, 1)
