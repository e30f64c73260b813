"""PairForce: a base class for users' forces that act between nodes which a rod edge joins."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError, shape_or_kind
from torchdismech.forces.dependence import Block, Derivatives, as_recorded, gradients_by_seeds, variables_of
from torchdismech.forces.local import LocalForce
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State

__all__ = ["PairDependence", "PairForce"]


class PairForce(LocalForce):
    """A force on each node from each node that a rod edge joins it with; a subclass defines `pair_force`.

    The force between two nodes depends on these two only, so its derivatives are a block of 3 x 6 for each pair and
    take three backward passes over the pairs: a third of what a `LocalForce` with the same reach takes along a rod, and
    less where rods branch.

    Parameters
    ----------
    explicit : evaluate the force once at the start of a step and hold it; then there are no derivatives.

    Attributes
    ----------
    pairs : (P, 2) node indices: the neighbour, and the node on which the force acts; each rod edge is two pairs.
    edges_of_pairs : (P,) the rod edge of each pair, as an index into `body.edge_length`.
    """

    pairs: Tensor
    edges_of_pairs: Tensor

    def __init__(self, explicit: bool = False):
        super().__init__(reach=1, explicit=explicit)

    def pair_force(self, x: Tensor, u: Tensor) -> Tensor:
        """Return the force on the second node of each pair (B, P, 3) [N].

        Parameters
        ----------
        x, u : positions [m] and velocities [m/s] of both nodes (B, P, 2, 3).
        """
        raise TypeError(f"{type(self).__name__} has to define pair_force(x, u)")

    def nodal_force(self, state: State, control: Control) -> Tensor:
        """Return the force on the nodes (B, N, 3) [N]."""
        return self.summed(self._checked(*self.seen_by_pairs(state)))

    def seen_by_pairs(self, state: State) -> list[Tensor]:
        """Return what `pair_force` is given: positions and velocities of both nodes (B, P, 2, 3).

        A force that is given more needs another `dependence`, as that of pairs differentiates by these two alone.
        """
        return [self.of_pairs(state.positions), self.of_pairs(state.node_velocities)]

    def with_derivatives(self, state: State, control: Control) -> tuple[Tensor, Derivatives]:
        """Return the force, and its derivatives without gradients, from one evaluation of `pair_force`."""
        if self._is_changed() or not isinstance(self.dependence, PairDependence):
            return super().with_derivatives(state, control)
        force, derivatives = self.dependence.with_derivatives(self._checked, self.seen_by_pairs(state))
        return self.body.on_nodes(self.summed(force)), derivatives

    def of_pairs(self, of_nodes: Tensor) -> Tensor:
        """Return values of nodes (B, N, ...) for both nodes of each pair, (B, P, 2, ...)."""
        return of_nodes.index_select(1, self.pairs.flatten()).unflatten(1, self.pairs.shape)

    def summed(self, of_pairs: Tensor) -> Tensor:
        """Return for each node the sum (B, N, 3) of the forces (B, P, 3) of pairs that act on it."""
        still = of_pairs.new_zeros(len(of_pairs), self.body.n_nodes, 3)
        return still.index_add(1, self.pairs[:, 1], of_pairs)

    def bind(self, body: Body) -> None:
        """Store the body and build the pairs."""
        super().bind(body)
        edges = np.asarray(body.rod_edges)
        pairs = np.concatenate([edges, edges[:, ::-1]])
        self.register_buffer("pairs", torch.as_tensor(pairs.copy(), device="cpu"), persistent=False)
        self.register_buffer("edges_of_pairs", torch.arange(len(edges), device="cpu").repeat(2), persistent=False)
        self.dependence = PairDependence(pairs)

    def _is_changed(self) -> bool:
        """Return whether a subclass, this object or hooks put anything around `pair_force`."""
        general = (LocalForce.forward, PairForce.nodal_force, LocalForce.derivatives)
        own = (getattr(method, "__func__", None) for method in (self.forward, self.nodal_force, self.derivatives))
        hooks = (self._forward_hooks, self._forward_pre_hooks, self._backward_hooks, self._backward_pre_hooks)
        return any(hooks) or tuple(own) != general

    def _checked(self, *seen: Tensor) -> Tensor:
        """Return `pair_force` (B, P, 3); refuse a result of another shape."""
        force, expected = self.pair_force(*seen), (len(seen[0]), len(self.pairs), 3)
        if not isinstance(force, Tensor) or tuple(force.shape) != expected:
            raise InputError(
                f"{type(self).__name__}.pair_force: expected the force of each pair, of shape (B, P, 3) = {expected}, "
                f"got {shape_or_kind(force)}"
            )
        return force


class PairDependence(nn.Module):
    """Derivatives of a `PairForce`: a block for each pair (P, 2), of the force on its second node by both nodes."""

    def __init__(self, pairs: np.ndarray):
        super().__init__()
        self.reach: int | None = 1
        dofs = 3 * pairs[..., None] + np.arange(3)  # (P, 2, 3)
        self._blocks = [Block(dofs[:, 1], dofs.reshape(len(pairs), 6))]

    def blocks(self) -> list[Block]:
        """Return the dof indices of the blocks."""
        return self._blocks

    def derivatives(self, force: Any, state: State, control: Control) -> Derivatives:
        """Return the derivatives by position and by velocity (B, P, 3, 6); None for zero."""
        return self.with_derivatives(force.pair_force, force.seen_by_pairs(state))[1]

    def with_derivatives(self, pair_force: Callable[..., Tensor], seen: Sequence[Tensor]) -> tuple[Tensor, Derivatives]:
        """Return a force on pairs (B, P, 3), and the same as `derivatives` without gradients, from one evaluation.

        Parameters
        ----------
        seen : positions and velocities of both nodes (B, P, 2, 3), which `pair_force` is given.
        """
        with variables_of(*seen) as variables:
            value = pair_force(*variables)
            if not value.requires_grad:
                return value, [(None, None)]
            seeds = value.new_zeros(3, *value.shape)
            for k in range(3):
                seeds[k, ..., k].fill_(1.0)
            gradients = gradients_by_seeds(value, variables, seeds, retain_graph=True)
        by_position, by_velocity = (
            None if gradient is None else gradient.movedim(0, 2).flatten(3) for gradient in gradients
        )
        return as_recorded(value), [(by_position, by_velocity)]
