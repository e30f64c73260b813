"""Stencils: which dofs a spring reads, the strain it makes of them, and the strain's derivatives.

A stencil has k local variables, each a weighted sum of dofs (components of edge vectors, angles, points between
nodes). Strains and derivatives are in terms of these; the sums carry them to dofs. A new stencil lists its variables
and writes `strain`; derivatives come from autograd until it gives `derivatives` in closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.errors import InputError
from torchdismech.geometry import rods
from torchdismech.geometry.vec3 import Vec3
from torchdismech.robot.plane import Plane
from torchdismech.robot.state import Control, State
from torchdismech.values import tensor_of

__all__ = [
    "BendTwistStencil",
    "Derivatives",
    "Natural",
    "Stencil",
    "StretchStencil",
    "Variable",
    "anchors",
    "edge_variables",
    "mapped",
]

# (dofs (S,), weights (S,)): the sum of weight * dof is one local variable
Variable = Sequence[tuple[np.ndarray, np.ndarray]]
Natural = Sequence[Tensor | None]  # natural strains, each broadcasting against (B, S); None for zero
Derivatives = tuple[tuple[Tensor, ...], list[list[Tensor]], Callable[..., list[Tensor]]]


class Stencil(nn.Module):
    """Springs of one kind.

    Parameters
    ----------
    variables : the local variables; each is a list of (dofs, weights), arrays (S,), and is the sum of weight * dof. The
        middle of an edge against a node has the weights 0.5, 0.5 and -1.
    strains : names of the strains.

    Attributes
    ----------
    closed_form : whether `derivatives` are in closed form, so that torch.compile can compile them.
    records : whether recordings of steps on a CPU may hold a stencil of one's own: its methods read nothing that
        changes but their arguments, parameters and registered tensors, and no number of a tensor; see `forces.Force`.
    set_once : attributes that stay as they were made, which recordings need not look at.
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
        """Refuse variables that are no sums over the same number of stencils."""
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
        """Return what stays fixed in a step, batch last: frames' anchors, rest lengths."""
        return ()

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return the strains, each (S, B), of the local variables and constants."""
        raise TypeError(f"{type(self).__name__} has to define strain(local, *constants)")

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return (strains, first, second).

        first[i][a] is d strain_i / d variable_a; second(w) returns sum_i w_i d2 strain_i in the order of `pairs`. The
        default uses autograd: stencils do not share local variables, so the sum over all has the derivatives of each.
        Where autograd records, strains and first derivatives can be differentiated further; second ones cannot.
        """
        recorded = torch.is_grad_enabled() and any(t.requires_grad for t in (*local, *constants))
        with torch.enable_grad():
            variables = [v if recorded and v.requires_grad else v.detach().requires_grad_() for v in local]
            strains = self.strain(variables, *constants)
            first = [list(_gradient(s, variables)) for s in strains]

        def second(*weights: Tensor) -> list[Tensor]:
            entries = []
            with torch.enable_grad():
                for a in range(len(variables)):
                    slope = sum(w.detach() * f[a] for w, f in zip(weights, first, strict=True))
                    entries.extend(_gradient(slope, variables)[a:])
            return [e.detach() for e in entries]

        if recorded:
            return tuple(strains), first, second
        return tuple(s.detach() for s in strains), [[g.detach() for g in f] for f in first], second

    def derivatives_in_plane(self, plane: Plane, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return what `derivatives` does, of robots in a plane: what is zero there may be written as zeros.

        Code that is made of the formulas then leaves out what they multiply. Here nothing is: a stencil that overrides
        `derivatives` alone stays right.
        """
        return self.derivatives(local, *constants)


def _common_sign(weights: np.ndarray) -> int | None:
    """Return +1 or -1 where that is every weight, else None: signs need no product."""
    return next((sign for sign in (1, -1) if len(weights) and (weights == sign).all()), None)


def _gradient(value, variables: list[Tensor]) -> list[Tensor]:
    if not (isinstance(value, Tensor) and value.requires_grad):
        return [torch.zeros_like(v) for v in variables]
    gradients = torch.autograd.grad(value.sum(), variables, create_graph=True, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(gradients, variables, strict=True)]


def edge_variables(start: np.ndarray, end: np.ndarray, held: np.ndarray | None = None) -> list[Variable]:
    """Return the three components of the edge vectors from nodes `start` to nodes `end`.

    Where `held` (S,) is not negative, it is the first dof of a vector that stands in place of an edge's.
    """
    instead = np.full(len(start), -1) if held is None else held
    between = instead < 0
    plus, minus = np.ones(len(start)), np.where(between, -1.0, 0.0)
    return [
        [(np.where(between, 3 * node, instead) + axis, weights) for node, weights in ((end, plus), (start, minus))]
        for axis in range(3)
    ]


def _held_dofs(nodes: np.ndarray, first: int) -> np.ndarray:
    """Return the first dof (S, 2) of the held tangent that each of a spring's two edges is, -1 for edges."""
    held = nodes[:, ::2] < 0
    number = first + 3 * (np.cumsum(held.any(1)) - 1)
    return np.where(held, number[:, None], -1)


def anchors(state: State, edges: Tensor, signs: Tensor) -> list[Tensor]:
    """Return the anchors of the frames that stencils see, each (3, S, B): tangents of their k edges, then directors.

    Parameters
    ----------
    edges, signs : (S, k) framed edges and +1, or -1 where a stencil sees the edge the other way round.
    """
    tangent, director = (vectors.permute(2, 1, 0).contiguous() for vectors in (state.tangent, state.director))
    columns = list(zip(edges.unbind(1), signs.unbind(1), strict=True))
    tangents = [tangent.index_select(1, edge) * sign[:, None] for edge, sign in columns]
    return tangents + [director.index_select(1, edge) for edge, _ in columns]


def mapped(matrices: Tensor, values: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """Return matrices (3, 3, S, 1), one of each stencil, times three values (S, B)."""
    a, b, c = (matrices[i, 0] * values[0] + matrices[i, 1] * values[1] + matrices[i, 2] * values[2] for i in range(3))
    return a, b, c


class StretchStencil(Stencil):
    """Stretch of edges, eps = |e| / rest_length - 1; variables: the 3 components of e.

    Parameters
    ----------
    edges : (E, 2) node indices.
    rest_length : broadcasts against (B, E) [m].
    strain : name of the strain in reports.
    controlled : whether `Control.rest_length` sets the rest lengths: it does those of rods.
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
        """Return the rest lengths, the control's if it sets them, (E, B) or (E, 1)."""
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
        """Return what `derivatives` does, of edges without y."""
        return self.derivatives([*Vec3(*local).without_y().components()], *constants)


class BendTwistStencil(Stencil):
    """Bending and twisting where two edges meet; variables: e, f, theta_e, theta_f.

    Strains: kappa1, kappa2 (integrated curvatures, dimensionless) and tau (integrated twist, rad).

    The curvatures are components in the material frame half-way between those of the two edges: twist turns them, and
    leaves their size alone. The curvature of the papers (`averaged`) is measured on the mean of the two edges'
    directors, which twist shortens: a spring twisted by tau then bends cos(tau/2)^2 times as stiffly. Where rods of
    unlike frames meet, the frame of the leaving edge is taken turned back by `alignment`, so that the twist at rest is
    none: the material frame is that of the entering edge there.

    Parameters
    ----------
    nodes : (S, 3) node before, centre, node after; -1 before or after the centre stands for a held tangent, which takes
        the place of that edge. Held tangents are met in their order.
    edges, signs : (S, 2) the edges and whether they are stored in this direction.
    first_twist_dof, first_held_dof : index in q of the twist angle of edge 0, and of the first held tangent.
    averaged : measure curvature as the papers do.

    Attributes
    ----------
    alignment : (S,) [rad], zero at construction.
    voronoi : (S,) half the length at rest of both edges [m], over which curvature and twist are integrated.
    follows, share : (H,), (H, 3) the spring that each spring of a held tangent follows where natural strains are set,
        and by how much in each strain: lengths of one against the other, zero where there is none.
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
        self.warned = False  # of too much twist
        self.register_buffer("edges", torch.as_tensor(edges, device="cpu"), persistent=False)
        self.register_buffer("signs", torch.as_tensor(signs, dtype=torch.float64, device="cpu"), persistent=False)
        self.register_buffer("alignment", torch.zeros(len(nodes), dtype=torch.float64, device="cpu"))
        self.register_buffer("voronoi", torch.ones(len(nodes), dtype=torch.float64, device="cpu"), persistent=False)
        count = int((nodes < 0).sum())
        self.register_buffer("follows", torch.zeros(count, dtype=torch.int64, device="cpu"), persistent=False)
        self.register_buffer("share", torch.zeros(count, 3, dtype=torch.float64, device="cpu"), persistent=False)

    def constants(self, state: State, control: Control) -> tuple[Tensor, ...]:
        """Return the frames' anchors as the springs see them (3, S, B), reference twist (S, B), alignment (S, 1)."""
        frames = anchors(state, self.edges, self.signs)
        return (*frames, state.reference_twist.t().contiguous(), self.alignment.unsqueeze(-1))

    def strain(self, local: list[Tensor], *constants: Tensor) -> tuple[Tensor, ...]:
        """Return (kappa1, kappa2, tau)."""
        spring = self.spring(local, *constants)
        return spring.kappa1, spring.kappa2, spring.tau

    def natural_of(self, control: Control, own: Natural) -> Natural:
        """Return the natural strains (B, S) that a control sets for the springs between edges, else its own.

        The spring of a held tangent follows the nearest one along its rod, by as much per length.
        """
        curvature = control.natural_curvature
        given = (None, None) if curvature is None else curvature.unbind(-1)
        pairs = zip((*given, control.natural_twist), own, self.share.unbind(-1), strict=True)
        return [value if given is None else self._with_held(given, value, share) for given, value, share in pairs]

    def _with_held(self, given: Tensor, own: Tensor | None, share: Tensor) -> Tensor:
        """Return natural strains (B, S) of all springs for those between edges."""
        if not len(self.follows):
            return given
        assert own is not None
        count = self.count - len(self.follows)
        change = given - own[..., :count]
        held = own[..., count:] + change[:, self.follows] * share.to(given)
        return torch.cat([given, held], dim=1)

    def twist(self, state: State) -> Tensor:
        """Return tau (B, S) [rad] of a state whose anchors are at its positions, as after a step."""
        angle = state.twist[:, self.edges] * self.signs.to(state.q.dtype)
        return angle[..., 1] - angle[..., 0] - self.alignment.to(angle) + state.reference_twist

    def derivatives(self, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return the strains and their derivatives in closed form."""
        spring = self.spring(local, *constants)
        return (spring.kappa1, spring.kappa2, spring.tau), spring.first(), spring.second

    def derivatives_in_plane(self, plane: Plane, local: list[Tensor], *constants: Tensor) -> Derivatives:
        """Return what `derivatives` does, of edges and anchors in a plane, and without any twist."""
        start_e, start_f, director_e, director_f = _as_vectors(constants[:4])
        e, f, none = Vec3(*local[:3]).without_y(), Vec3(*local[3:6]).without_y(), torch.zeros_like(local[6])
        starts = start_e.without_y(), start_f.without_y()
        directors = plane.director(director_e), plane.director(director_f)
        spring = rods.bend_twist(e, f, none, none, *starts, *directors, none, averaged=self.averaged, in_plane=True)
        return (spring.kappa1, spring.kappa2, spring.tau), spring.first(), spring.second

    def spring(self, local: list[Tensor], *constants: Tensor) -> rods.BendTwist:
        """Return the springs' strains, with what their derivatives need."""
        *frames, reference_twist, alignment = constants
        e, f = Vec3(*local[:3]), Vec3(*local[3:6])
        theta_e, theta_f = local[6], local[7] - alignment
        return rods.bend_twist(e, f, theta_e, theta_f, *_as_vectors(frames), reference_twist, averaged=self.averaged)


def _as_vectors(frames: Sequence[Tensor]) -> tuple[Vec3, Vec3, Vec3, Vec3]:
    """Return the anchors of a spring's frames: the tangents of both edges, then their directors."""
    start_e, start_f, director_e, director_f = (Vec3(*anchor.unbind(0)) for anchor in frames)
    return start_e, start_f, director_e, director_f
