"""The force of a magnetic field on magnetised rods and shells."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech.elastic import ElasticTerm, Energy
from torchdismech.elastic.energy import batch_last
from torchdismech.elastic.scatters import force_scatter
from torchdismech.elastic.stencil import Stencil
from torchdismech.elastic.term_constants import TermConstants
from torchdismech.errors import InputError, shape_or_kind
from torchdismech.forces.base import Force, number
from torchdismech.forces.dependence import Block, Derivatives
from torchdismech.fused import is_own
from torchdismech.geometry.frames import unit
from torchdismech.magnetics.field import Field
from torchdismech.magnetics.fields import field_of
from torchdismech.magnetics.shells import MagneticShellStencil, plane_coordinates
from torchdismech.magnetics.stencil import MagneticStencil
from torchdismech.magnetics.uniform import Timed
from torchdismech.robot.body import Body
from torchdismech.robot.state import Control, State
from torchdismech.values import Given, Values, places_by_batch_size, untrained

__all__ = ["Magnetic", "MagneticShells", "Magnetised", "fields_at", "timed_forces"]


class _Now(nn.Module):
    """The place of the field (B, 3) [T] that a function of time gives for a step; None outside of steps."""

    per_robot = ("field",)
    field: Tensor | None

    def __init__(self):
        super().__init__()
        self.register_buffer("field", None, persistent=False)


def timed_forces(forces: Iterable[Force]) -> list[Magnetised]:
    """Return those of the forces whose field is a function of time."""
    return [force for force in forces if isinstance(force, Magnetised) and isinstance(force.field, Timed)]


def fields_at(forces: Iterable[Magnetised], time: Tensor) -> Values:
    """Return as `Values` the fields (B, 3) [T] of `timed_forces`, at the times (B,) of evaluation."""
    return Values({(force.now, "field"): force.field.at(time) for force in forces})


class Magnetised(Force):
    """Base of the forces on magnetised rods and shells: an elastic term whose one strain is the energy density w."""

    conservative = True
    by_stencils = True
    per_robot = ("magnetisation",)
    counted = "E"  # the letter that stands for the number of elements in messages
    magnetisation: Tensor
    field: Field
    term: ElasticTerm
    _turns: Tensor

    def __init__(self, magnetisation: Given, field: Field | nn.Module | Callable | Tensor | Any):
        super().__init__()
        tensor = number(magnetisation, f"{type(self).__name__}.magnetisation")
        if tensor.shape[-1:] != (3,) or tensor.dim() > 3:
            shapes = f"(3,), ({self.counted}, 3), (B, 1, 3) or (B, {self.counted}, 3)"
            raise InputError(f"{type(self).__name__}.magnetisation: expected shape {shapes}, got {tuple(tensor.shape)}")
        # always (B or 1, E or 1, 3): with two dimensions, the first could count elements or robots
        by_robot = tensor.reshape((1,) * (3 - tensor.dim()) + tuple(tensor.shape))
        self.magnetisation = untrained(by_robot)
        self.field, self.now = field_of(field), _Now()

    def _bind(self, body: Body, nodes: np.ndarray, frames: Tensor, stencil: Stencil, what: str) -> None:
        """Bind the force to a robot: check magnetisation and field against it, make the term and its scatter.

        Parameters
        ----------
        nodes : (E, k) node indices of each element.
        frames : (3, E, 3) the three axes of each element's frame at rest.
        stencil : gives the energy density w of the elements.
        what : the word for the elements in messages.
        """
        super().bind(body)
        rows = self.magnetisation.shape[1]
        if rows not in (1, stencil.count):
            raise InputError(
                f"{type(self).__name__}.magnetisation: expected one row, or one of each of the {stencil.count} {what}, "
                f"got {rows}"
            )
        corners = body.nodes[torch.as_tensor(nodes, device="cpu")].detach()  # (E, k, 3)
        size = torch.linalg.vector_norm(corners - corners.roll(1, 1), dim=-1).amax(1)
        _refuse_odd_field(self.field, corners.mean(1))
        magnets = (self.magnetisation != 0).any(0).any(-1).expand(len(corners))
        self.field.warn_of_near(corners.mean(1)[magnets], size[magnets], what.removesuffix("s"))
        self.register_buffer("_turns", frames, persistent=False)
        self.term = ElasticTerm(stencil.strains[0], stencil, _Density(), measure=None)
        self._sums = force_scatter([self.term.stencil], body.n_dofs, body.nodes.dtype)

    # ---- evaluated along with the elastic terms ----------------------------------------------------------------

    @abstractmethod
    def term_constants(self, state: State, control: Control, elapsed: float | Tensor | None) -> TermConstants:
        """Return the term's constants in a step from `state`, with forces evaluated `elapsed` [s] later (None: 0)."""

    def _by_frame(self) -> Tensor:
        """Return the components (3, E, 1 or B) of the magnetisation along the axes of the frames at rest [A/m]."""
        return (self.magnetisation.unsqueeze(1) * self._turns).sum(-1).permute(1, 2, 0).contiguous()

    def _field_or_time(self, state: State, elapsed: float | Tensor | None) -> Tensor:
        """Return a uniform field (3, 1, B) at the time at which forces are evaluated; else that time (B,)."""
        if self.now.field is not None:
            return self.now.field.t().unsqueeze(1).contiguous()
        time = state.time if elapsed is None else state.time + elapsed
        return self.field.at(time).t().unsqueeze(1).contiguous() if self.field.uniform else time

    # ---- as any other force ------------------------------------------------------------------------------------

    def summed(self, gradient: Tensor) -> Tensor:
        """Return the force (B, n) from the gradient (k E, B) of the energy by the stencil's k local variables."""
        return self._sums(gradient).t()

    def forward(self, state: State, control: Control) -> Tensor:
        """Return the force (B, n)."""
        constants = self.term_constants(state, control, None)
        return self.summed(torch.cat(self.term.gradient(state.q.t().contiguous(), constants)))

    def blocks(self) -> list[Block]:
        """Return one block per element: the forces on its dofs (E, m) by the same dofs."""
        dofs = self._dofs()
        return [Block(dofs, dofs)]

    def derivatives(self, state: State, control: Control) -> Derivatives:
        """Return the derivatives (B, E, m, m) of the force by positions and angles; none by velocity."""
        stencil = self.term.stencil
        _, packed = self.term.gradient_and_hessian(state.q.t().contiguous(), self.term_constants(state, control, None))
        k = len(stencil.variables)
        hessian = state.q.new_zeros(state.batch, stencil.count, k, k)
        for (i, j), entry in zip(stencil.pairs, packed, strict=True):
            hessian[..., i, j] = hessian[..., j, i] = entry.t()
        into = self._into_variables().to(state.q)
        return [(-into.mT @ hessian @ into, None)]

    def potential(self, state: State, control: Control) -> Tensor:
        """Return the energy (B,) [J]."""
        return self.term.potential(state.q.t().contiguous(), self.term_constants(state, control, None))

    @abstractmethod
    def _dofs(self) -> np.ndarray:
        """Return the dofs (E, m) of the elements."""

    def _into_variables(self) -> Tensor:
        """Return the matrices (E, k, m) from an element's dofs to the stencil's variables."""
        dofs, variables = self._dofs(), self.term.stencil.variables
        into = np.zeros((len(dofs), len(variables), dofs.shape[1]))
        for k, variable in enumerate(variables):
            for dof, signs in variable:
                into[:, k] += signs[:, None] * (dofs == dof[:, None])
        return torch.as_tensor(into, device="cpu")


class Magnetic(Magnetised):
    r"""Torques on magnetised rod edges, and forces where the field varies in space.

    Their potential is E = - sum over edges of V (R M) . B(x, time), with V = area x rest length the volume of an edge,
    x its middle, and R = t (x) t0 + m1 (x) m10 + m2 (x) m20 the rotation of its material frame since rest: the
    magnetisation is carried along by the material. The field acts where and when forces are evaluated: at the end of a
    step, at its middle in the midpoint rule.

    The remanence M is fixed, as in hard magnets; the field of the robot itself is left out, as is common where fields
    from outside are far larger.

    Parameters
    ----------
    magnetisation : remanence M in the axes of the world, of the robot as built; (3,) for all edges, (E, 3), (B, 1, 3)
        or (B, E, 3) [A/m]. A remanence in T is mu0 M, 1 T is 7.96e5 A/m. Edges count in the order of
        `Model.rod_edges`; those that are not magnetised have zeros.
    field : B [T]: a vector (3,) or (B, 3), one of `magnetics` (`Constant`, `Rotating`, `Table`, `Timed`, `Gradient`,
        `Dipole`, `MovingDipole`), a function of time (see `Timed`), or a module of positions and time (see `Field`).
    """

    def bind(self, body: Body) -> None:
        """Find the frames at rest; refuse robots without rods, and magnetisations with other than 1 or E rows."""
        count = body.n_edges
        if not count:
            raise InputError(
                "Magnetic: acts on the edges of rods, and the robot has none; of shells take MagneticShells"
            )
        start, end = body.rod_edges.T
        tangent, director = unit(body.nodes[end] - body.nodes[start]), body.directors[:count]
        frames = torch.stack([tangent, director, torch.linalg.cross(tangent, director)])  # (3, E, 3)
        self._bind(
            body, body.rod_edges, frames, MagneticStencil(body.rod_edges, 3 * body.n_nodes, self.field), "rod edges"
        )

    def term_constants(self, state: State, control: Control, elapsed: float | Tensor | None) -> TermConstants:
        """Return the term's constants in a step from `state`, with forces evaluated `elapsed` [s] later (None: 0)."""
        count = self.body.n_edges
        volume = batch_last(self.body.edge_area * self.body.edge_length).contiguous()
        anchors = (x[:, :count].permute(2, 1, 0).contiguous() for x in (state.tangent, state.director))
        fixed = (volume, *anchors, self._by_frame(), self._field_or_time(state, elapsed))
        return TermConstants((None,), volume, None, fixed)

    def _dofs(self) -> np.ndarray:
        """Return the dofs (E, 7) of the edges: their nodes, their angles."""
        start, end = (3 * node[:, None] + np.arange(3) for node in self.body.rod_edges.T)
        angle = 3 * self.body.n_nodes + np.arange(self.body.n_edges)[:, None]
        return np.concatenate([start, end, angle], axis=1)


@torch.no_grad()
def _refuse_odd_field(field: Field, position: Tensor) -> None:
    """Refuse a user's field in space that, at positions (E, 3), does not return vectors (B, E, 3)."""
    if field.uniform or is_own(field):
        return
    robots = max(places_by_batch_size(field), default=1)
    value = field(position.expand(robots, -1, -1), position.new_zeros(robots))
    if not isinstance(value, Tensor) or value.shape[1:] != position.shape:
        expected = f"(B, E, 3), such as {(robots, *position.shape)}, got {shape_or_kind(value)}"
        raise InputError(f"{type(field).__name__}: forward(position, time) has to return {expected}")


class MagneticShells(Magnetised):
    r"""Torques on magnetised triangles of shells, and forces where the field varies in space.

    Their potential is E = - sum over triangles of V (R M) . B(x, time), with V = area x thickness at rest, x the middle
    of a triangle, and R the rotation of its plane since rest: that of the polar decomposition of its deformation
    gradient, with the normal. So stretching and shearing do not change the size of the magnetisation. All else as in
    `Magnetic`.

    Parameters
    ----------
    magnetisation : remanence M in the axes of the world, of the robot as built; (3,) for all triangles, (F, 3),
        (B, 1, 3) or (B, F, 3) [A/m], in the order of `Model.triangles`; those that are not magnetised have zeros.
    field : B [T], as for `Magnetic`.
    """

    counted = "F"
    _plane: Tensor

    def bind(self, body: Body) -> None:
        """Find the frames at rest; refuse robots without shells, and magnetisations with other than 1 or F rows."""
        if not len(body.triangles):
            raise InputError("MagneticShells: acts on triangles, and the robot has none; of rods take Magnetic")
        plane, frames = plane_coordinates(body.nodes, body.triangles)
        self.register_buffer("_plane", plane.unsqueeze(-1), persistent=False)
        self._bind(body, body.triangles, frames, MagneticShellStencil(body.triangles, self.field), "triangles")

    def term_constants(self, state: State, control: Control, elapsed: float | Tensor | None) -> TermConstants:
        """Return the term's constants in a step from `state`, with forces evaluated `elapsed` [s] later (None: 0)."""
        # the body stores the thickness only as the contact radius of faces, which is half of it
        volume = batch_last(2 * self.body.face_contact_radius * self.body.face_area).contiguous()
        fixed = (volume, self._plane, self._by_frame(), self._field_or_time(state, elapsed))
        return TermConstants((None,), volume, None, fixed)

    def _dofs(self) -> np.ndarray:
        """Return the dofs (F, 9) of the triangles: their nodes."""
        return (3 * self.body.triangles[..., None] + np.arange(3)).reshape(len(self.body.triangles), 9)


class _Density(Energy):
    """An energy density that is the strain itself: the stencil's strain is w already."""

    closed_form = True

    def density(self, strain: tuple[Tensor, ...]) -> Tensor:
        """Return the strain."""
        return strain[0]

    def derivatives(self, strain: tuple[Tensor, ...]) -> tuple[list[Tensor], list[list[Tensor | None]]]:
        """Return the first derivative, one, and None for the second, which is zero."""
        return [torch.ones_like(strain[0])], [[None]]
