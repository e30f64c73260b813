"""Stencil: the dofs that a kind of spring depends on, its strains as functions of these, and their derivatives.

A stencil has k local variables, each a weighted sum of dofs (components of edge vectors, angles, points between
nodes). Strains and their derivatives are in terms of these; the weights carry derivatives over to dofs. A new stencil
lists its variables and defines `strain`; derivatives come from autograd unless it has `derivatives` in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.autograd import AutogradOn, slopes_by
from torchdismech.errors import InputError
from torchdismech.geometry.vec3 import components_of
from torchdismech.robot.plane import Plane
from torchdismech.robot.state import Control, State
from torchdismech.selection import selected

__all__ = ["Derivatives", "Natural", "Stencil", "Variable", "anchors", "edge_variables", "mapped"]

# pairs of (dofs (S,), weights (S,)): a local variable is the sum of weight * dof over the pairs
Variable = Sequence[tuple[np.ndarray, np.ndarray]]
Natural = Sequence[Tensor | None]  # natural strains, each broadcasting against (B, S); None for zero
Derivatives = tuple[tuple[Tensor, ...], list[list[Tensor]], Callable[..., list[Tensor]]]


class Stencil(nn.Module):
    """The geometry of S springs of one kind: strains as functions of q.

    Parameters
    ----------
    variables : the local variables; each is a list of (dofs, weights), arrays (S,), and is the sum of weight * dof. For
        example, a component of the vector from a node to the middle of an edge has the weights 0.5, 0.5 and -1.
    strains : names of the strains.

    Attributes
    ----------
    closed_form : whether `derivatives` are in closed form, so that torch.compile can compile them.
    records : whether a user's stencil may be part of steps that are recorded on a CPU. Its methods then must not read
        anything that changes but their arguments, parameters and registered tensors, nor convert a tensor to a number;
        see `forces.Force`.
    set_once : attributes that never change, which recordings need not check.
    """

    closed_form = False
    records = False
    set_once = ("variables", "_common")
    per_robot: tuple[str, ...] = ()  # names of buffers that may have a leading robot dimension

    def __init__(self, variables: Sequence[Variable], strains: Sequence[str]):
        super().__init__()
        self.strains = tuple(strains)
        self.variables = [
            [(np.asarray(d), np.asarray(w, dtype=np.float64)) for d, w in variable] for variable in variables
        ]
        self._check_variables()
        self.count = len(self.variables[0][0][0])
        for i, variable in enumerate(self.variables):
            for j, (dofs, weights) in enumerate(variable):
                self.register_buffer(f"_dofs{i}_{j}", torch.as_tensor(dofs, device="cpu"), persistent=False)
                weight = torch.as_tensor(weights, device="cpu").unsqueeze(-1)
                self.register_buffer(f"_weights{i}_{j}", weight, persistent=False)
        self._common = [[_common_sign(weights) for _, weights in variable] for variable in self.variables]

    def _check_variables(self) -> None:
        """Refuse variables that are no lists of dofs and weights (S,), with the same S in all."""
        name = type(self).__name__
        if not self.variables or not all(self.variables):
            raise InputError(f"{name}: variables have to be lists of (dofs, weights), one at least, got an empty list")
        count = self.variables[0][0][0].shape[:1]
        for i, variable in enumerate(self.variables):
            for dofs, weights in variable:
                if not dofs.shape == weights.shape == count:
                    raise InputError(
                        f"{name}: variable {i}: dofs and weights have to be arrays (S,) with one entry for each "
                        f"stencil, the same S in all variables, got {dofs.shape} and {weights.shape}"
                    )
                if not np.issubdtype(dofs.dtype, np.integer) or (len(dofs) and dofs.min() < 0):
                    raise InputError(f"{name}: variable {i}: dofs have to be indices into q, whole numbers from 0 on")
                if not np.isfinite(weights).all():
                    raise InputError(f"{name}: variable {i}: weights hold numbers that are not finite")

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """Pairs (i <= j) of local variables, in the order in which second derivatives are listed."""
        k = len(self.variables)
        return [(i, j) for i in range(k) for j in range(i, k)]

    def local(self, q: Tensor) -> list[Tensor]:
        """Return the k local variables, each (S, B), of q (n, B)."""
        values = []
        for i, variable in enumerate(self.variables):
            value: Tensor | None = None
            for j in range(len(variable)):
                part = q[getattr(self, f"_dofs{i}_{j}")]
                sign = self._common[i][j]
                if sign is None:
                    part, sign = part * getattr(self, f"_weights{i}_{j}"), 1
                if value is None:
                    value = part if sign > 0 else -part
                else:
                    value = value + part if sign > 0 else value - part
            assert value is not None
            values.append(value)
        return values

    def constants(self, state: State, control: Control) -> tuple[Tensor, ...]:
        """Return tensors that stay fixed in a step, batch last, e.g. anchors of frames, rest lengths."""
        return ()

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return the strains, each (S, B), of the local variables and constants."""
        raise TypeError(f"{type(self).__name__} has to define strain(local, *constants)")

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return (strains, first, second).

        first[i][a] is d strain_i / d variable_a; second(w0, w1, ...) returns sum_i w_i d2 strain_i in the order of
        `pairs`. The default uses autograd: springs do not share local variables, so the derivatives of the sum over all
        springs are those of each. Where autograd is enabled, strains and first derivatives can be differentiated
        further; second derivatives cannot.
        """
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (*local, *constants))
        with AutogradOn():
            variables = [v if recorded and v.requires_grad else v.detach().requires_grad_() for v in local]
            strains = self.strain(variables, *constants)
            first = [slopes_by(variables, s, create_graph=True) for s in strains]

        def second(*weights: Tensor) -> list[Tensor]:
            entries = []
            with AutogradOn():
                for a in range(len(variables)):
                    slope = sum(w.detach() * f[a] for w, f in zip(weights, first, strict=True))
                    entries.extend(slopes_by(variables, slope, create_graph=True)[a:])
            return [e.detach() for e in entries]

        if recorded:
            return tuple(strains), first, second
        return tuple(s.detach() for s in strains), [[g.detach() for g in f] for f in first], second

    def derivatives_in_plane(self, plane: Plane, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return strains and derivatives as `derivatives` does, for robots that lie in the x-z plane.

        An override may write zeros for what is zero there, and code that is compiled from it leaves out the products
        with these. The default writes none, so a stencil that overrides `derivatives` alone is correct.
        """
        return self.derivatives(local, *constants)


def _common_sign(weights: np.ndarray) -> int | None:
    """Return +1 or -1 if all weights are that, else None; with a sign `local` needs no multiplication."""
    return next((sign for sign in (1, -1) if len(weights) and (weights == sign).all()), None)


def edge_variables(start: np.ndarray, end: np.ndarray, held: np.ndarray | None = None) -> list[Variable]:
    """Return as variables the three components of the edge vectors from nodes `start` to nodes `end`.

    Where `held` (S,) is not negative, it is the first dof of a vector (a held tangent) that replaces the edge vector.
    """
    held_dof = np.full(len(start), -1) if held is None else held
    is_edge = held_dof < 0
    plus, minus = np.ones(len(start)), np.where(is_edge, -1.0, 0.0)
    return [
        [(np.where(is_edge, 3 * node, held_dof) + axis, weights) for node, weights in ((end, plus), (start, minus))]
        for axis in range(3)
    ]


def anchors(state: State, edges: Tensor, signs: Tensor | None, runs: Sequence[int | None]) -> list[Tensor]:
    """Return the anchors of the frames of each spring's k edges, each (3, S, B): k tangents, then k directors.

    Parameters
    ----------
    edges : (S, k) framed edges.
    signs : (S, k) +1, or -1 where a spring has the edge in the opposite direction; None where none has.
    runs : the `first_of_run` of each column of edges.
    """
    columns = list(zip(edges.unbind(1), runs, strict=True))
    tangent, director = components_of(state.tangent), components_of(state.director)
    tangents, directors = ([selected(x, 1, *column) for column in columns] for x in (tangent, director))
    if signs is not None:
        tangents = [tangent * sign[:, None] for tangent, sign in zip(tangents, signs.unbind(1), strict=True)]
    return tangents + directors


def mapped(matrices: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrices (3, 3, S, 1), one for each spring, times the vector of three values (S, B)."""
    a, b, c = (matrices[i, 0] * values[0] + matrices[i, 1] * values[1] + matrices[i, 2] * values[2] for i in range(3))
    return a, b, c
