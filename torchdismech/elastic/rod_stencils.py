"""The stencils of rods: stretch of an edge, and bending and twist between two edges."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.elastic.stencil import Derivatives, Natural, Stencil, anchors, edge_variables
from torchdismech.geometry import rods
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.plane import Plane
from torchdismech.robot.state import Control, State
from torchdismech.selection import first_of_run
from torchdismech.values import tensor_of

__all__ = ["BendTwistStencil", "StretchStencil"]


class StretchStencil(Stencil):
    """Stretch of edges, eps = |e| / rest_length - 1; variables: the 3 components of e.

    Parameters
    ----------
    edges : (E, 2) node indices.
    rest_length : broadcasts against (B, E) [m].
    strain : name of the strain in reports.
    controlled : whether `Control.rest_length` replaces the rest lengths: for rods it does, for edges of shells not.
    """

    closed_form = True
    per_robot = ("rest_length",)
    not_negative = positive = ("rest_length",)
    rest_length: Tensor

    def __init__(self, edges: np.ndarray, rest_length: Tensor, strain: str = "stretch", controlled: bool = True):
        super().__init__(edge_variables(edges[:, 0], edges[:, 1]), [strain])
        self.controlled = controlled
        self.register_buffer("rest_length", tensor_of(rest_length))

    def constants(self, state: State, control: Control) -> tuple[Tensor, ...]:
        """Return the rest lengths (E, B) or (E, 1) [m], those of the control if it sets them."""
        set_by_control = self.controlled and control.rest_length is not None
        length = control.rest_length if set_by_control else self.rest_length
        assert length is not None
        return (length.unsqueeze(-1) if length.dim() == 1 else length.t().contiguous(),)

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return (eps,)."""
        return (rods.stretch(Vec3(*local), *constants),)

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return eps and its derivatives in closed form."""
        strain, first, second = rods.stretch_derivatives(Vec3(*local), *constants)
        return (strain,), [first], lambda weight: [weight * s for s in second]

    def derivatives_in_plane(self, plane: Plane, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return the strain and its derivatives as `derivatives` does, for edges in the x-z plane, with zeros for y."""
        return self.derivatives([*Vec3(*local).without_y().components()], *constants)


class BendTwistStencil(Stencil):
    """Bending and twisting where two edges meet; variables: e, f, theta_e, theta_f.

    Strains: kappa1, kappa2 (integrated curvatures, dimensionless) and tau (integrated twist, rad).

    The curvatures are components in the material frame half-way between those of the two edges: twist rotates them, but
    does not change their magnitude. The curvature of the papers (`averaged`) is measured on the mean of the two edges'
    directors, which twist makes shorter: a spring twisted by tau is then cos(tau/2)^2 times as stiff in bending. Where
    the frames of the two edges are not carried from one to the other, the frame of the leaving edge is turned back by
    `alignment`, so that the twist at rest is zero and the material frame is that of the entering edge.

    Parameters
    ----------
    nodes : (S, 3) node before, centre, node after; -1 before or after the centre means that a held tangent takes the
        place of that edge. Springs with a held tangent are in the order of the held tangents.
    edges, signs : (S, 2) framed edges, and +1 where an edge is stored in the direction of the spring, else -1.
    first_twist_dof, first_held_dof : index in q of the twist angle of edge 0, and of the first held tangent.
    averaged : measure curvature as in the papers.

    Attributes
    ----------
    alignment : (S,) [rad], zero at construction.
    voronoi : (S,) half the sum of both edges' rest lengths [m], over which curvature and twist are integrated.
    follows, share : (H,), (H, 3) for the spring of each held tangent: the spring whose controlled natural strains it
        follows, and the factor for each strain (a ratio of Voronoi lengths), zero if there is no such spring.
    """

    closed_form = True
    edges: Tensor
    signs: Tensor
    alignment: Tensor
    voronoi: Tensor
    follows: Tensor
    share: Tensor

    def __init__(
        self,
        nodes: np.ndarray,
        edges: np.ndarray,
        signs: np.ndarray,
        first_twist_dof: int,
        first_held_dof: int,
        averaged: bool = False,
    ):
        twists = [[(first_twist_dof + edges[:, k], signs[:, k])] for k in range(2)]
        held = _held_dofs(nodes, first_held_dof)
        entering, leaving = (edge_variables(nodes[:, k], nodes[:, k + 1], held[:, k]) for k in range(2))
        super().__init__([*entering, *leaving, *twists], ["kappa1", "kappa2", "tau"])
        self.averaged = averaged
        self.register_buffer("edges", torch.as_tensor(edges, device="cpu"), persistent=False)
        self.register_buffer("signs", torch.as_tensor(signs, dtype=torch.float64, device="cpu"), persistent=False)
        self._runs, self._reverses = tuple(map(first_of_run, edges.T)), bool((signs < 0).any())
        self.register_buffer("alignment", torch.zeros(len(nodes), dtype=torch.float64, device="cpu"))
        self.register_buffer("voronoi", torch.ones(len(nodes), dtype=torch.float64, device="cpu"), persistent=False)
        count = int((nodes < 0).sum())
        self.register_buffer("follows", torch.zeros(count, dtype=torch.int64, device="cpu"), persistent=False)
        self.register_buffer("share", torch.zeros(count, 3, dtype=torch.float64, device="cpu"), persistent=False)

    def constants(self, state: State, control: Control) -> tuple[Tensor, ...]:
        """Return the anchors of both edges' frames, each (3, S, B), reference twist (S, B) and alignment (S, 1)."""
        frames = anchors(state, self.edges, self.signs if self._reverses else None, self._runs)
        return (*frames, state.reference_twist.t().contiguous(), self.alignment.unsqueeze(-1))

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return (kappa1, kappa2, tau)."""
        spring = self.spring(local, *constants)
        return spring.kappa1, spring.kappa2, spring.tau

    def natural_of(self, control: Control, own: Natural) -> Natural:
        """Return the natural strains, each (B, S): the control's where it sets them, else `own`.

        A control sets those of springs between edges. The spring of a held tangent changes by the same amount per
        length as the next spring along its rod.
        """
        curvature = control.natural_curvature
        curvatures = (None, None) if curvature is None else curvature.unbind(-1)
        pairs = zip((*curvatures, control.natural_twist), own, self.share.unbind(-1), strict=True)
        return [
            value if controlled is None else self._with_held(controlled, value, share)
            for controlled, value, share in pairs
        ]

    def _with_held(self, controlled: Tensor, own: Tensor | None, share: Tensor) -> Tensor:
        """Return the natural strains (B, S) of all springs, from the `controlled` ones of springs between edges."""
        if not len(self.follows):
            return controlled
        assert own is not None
        count = self.count - len(self.follows)
        change = controlled - own[..., :count]
        held = own[..., count:] + change[:, self.follows] * share.to(controlled)
        return torch.cat([controlled, held], dim=1)

    def twist(self, state: State) -> Tensor:
        """Return tau (B, S) [rad] of a state whose anchors are at its present tangents, as after each step."""
        angle = state.twist[:, self.edges] * self.signs.to(state.q.dtype)
        return angle[..., 1] - angle[..., 0] - self.alignment.to(angle) + state.reference_twist

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return the strains and their derivatives in closed form."""
        spring = self.spring(local, *constants)
        return (spring.kappa1, spring.kappa2, spring.tau), spring.first(), spring.second

    def derivatives_in_plane(self, plane: Plane, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return strains and derivatives as `derivatives` does, for untwisted edges and anchors in the x-z plane."""
        start_e, start_f, director_e, director_f = _as_vectors(constants[:4])
        e, f, none = Vec3(*local[:3]).without_y(), Vec3(*local[3:6]).without_y(), torch.zeros_like(local[6])
        starts = start_e.without_y(), start_f.without_y()
        directors = plane.director(director_e), plane.director(director_f)
        spring = rods.bend_twist(e, f, none, none, *starts, *directors, none, averaged=self.averaged, in_plane=True)
        return (spring.kappa1, spring.kappa2, spring.tau), spring.first(), spring.second

    def spring(self, local: list[Tensor], *constants: Tensor) -> rods.BendTwist:
        """Return the springs' strains together with the intermediate results that their derivatives need."""
        *frames, reference_twist, alignment = constants
        e, f = Vec3(*local[:3]), Vec3(*local[3:6])
        theta_e, theta_f = local[6], local[7] - alignment
        return rods.bend_twist(e, f, theta_e, theta_f, *_as_vectors(frames), reference_twist, averaged=self.averaged)


def _held_dofs(nodes: np.ndarray, first: int) -> np.ndarray:
    """Return for both sides (S, 2) of each spring the first dof of its held tangent, -1 where there is an edge."""
    held = nodes[:, ::2] < 0
    number = first + 3 * (np.cumsum(held.any(1)) - 1)
    return np.where(held, number[:, None], -1)


def _as_vectors(frames: Sequence[Tensor]) -> tuple[Vec3, Vec3, Vec3, Vec3]:
    """Return the anchors of a spring's frames: the tangents of both edges, then their directors."""
    start_e, start_f, director_e, director_f = (Vec3(*anchor.unbind(0)) for anchor in frames)
    return start_e, start_f, director_e, director_f
