"""RobotBuilder: from nodes, sections, materials and clamps to a Model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from torchdismech.body import Body
from torchdismech.elastic import BendTwistStencil, ElasticTerm, Energy, LinearElastic, StretchStencil, Sum
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.geometry.checks import check_folds, check_rods
from torchdismech.geometry.frames import first_director, transported, unit
from torchdismech.geometry.topology import Rod, Springs, find_rods, find_springs
from torchdismech.materials import Circle, Material, Number, Rectangle, positive
from torchdismech.model import Model

__all__ = ["RobotBuilder"]

# ---- the builder -------------------------------------------------------------------------------------------------


@dataclass
class _Rods:
    """Edges that were added together."""

    edges: np.ndarray
    constants: dict[str, Tensor]  # per edge: youngs, shear, density, area, ..., EA, EI1, EI2, GJ
    natural: str
    directors: np.ndarray | None


class RobotBuilder:
    """Collects rods, clamps, masses and forces, and makes a Model of them.

    Nodes that coincide (within `join_distance`) are one node: that is how rods are joined.

    Parameters
    ----------
    planar : keep to the x-z plane: y and all twist angles are fixed.
    join_distance : [m]; nodes of different rods closer than this are one.
    """

    def __init__(self, planar: bool = False, join_distance: float = 1e-9):
        self.planar = planar
        self.join_distance = join_distance
        self._nodes = np.zeros((0, 3))
        self._rods: list[_Rods] = []
        self._clamps: list[tuple[np.ndarray, str, bool]] = []
        self._masses: list[tuple[np.ndarray, Tensor]] = []
        self._forces: list[Force] = []
        self._terms: list[ElasticTerm] = []
        self._energies: list[tuple[str, str | None, Energy]] = []
        self._dissipations: list[tuple[str, Energy]] = []

    @property
    def nodes(self) -> np.ndarray:
        """Nodes so far (N, 3) [m]."""
        return self._nodes

    def add_rod(
        self,
        nodes,
        section: Circle | Rectangle,
        material: Material,
        natural: str = "initial",
        stiffness: dict[str, Number] | None = None,
        directors=None,
    ) -> np.ndarray:
        """Add a rod through `nodes` (k, 3) and return the indices (k,) of its nodes.

        Parameters
        ----------
        section, material : numbers or tensors per edge and per robot.
        natural : "initial" takes curvature and twist at rest from the shape as built; "straight" has none along rods
            (where rods branch, the angle as built is kept).
        stiffness : any of EA [N], EI1, EI2, GJ [N m^2] in place of what section and material give.
        directors : (k-1, 3) reference directors d1 instead of those carried along the rod.
        """
        points = np.asarray(nodes, dtype=float)
        chain = np.arange(len(points))
        edges = np.stack([chain[:-1], chain[1:]], axis=1)
        return self.add_rods(points, edges, section, material, natural, stiffness, directors)

    def add_rods(
        self,
        nodes,
        edges,
        section: Circle | Rectangle,
        material: Material,
        natural: str = "initial",
        stiffness: dict[str, Number] | None = None,
        directors=None,
    ) -> np.ndarray:
        """Add a network of rods: nodes (k, 3) and edges (m, 2) into them; else as `add_rod`."""
        points, pairs = np.asarray(nodes, dtype=float), np.asarray(edges, dtype=np.int64)
        check_rods(points, pairs, where="rod")
        if natural not in ("initial", "straight"):
            raise InputError(f"natural: expected 'initial' or 'straight', got {natural!r}")
        constants = _edge_constants(section, material, stiffness or {}, len(pairs))
        index = self._join(points)
        directors = None if directors is None else np.asarray(directors, dtype=float).reshape(len(pairs), 3)
        self._rods.append(_Rods(index[pairs], constants, natural, directors))
        return index

    def clamp(self, nodes: Sequence[int] | None = None, box=None, axes: str = "xyz", twist: bool = True) -> None:
        """Fix nodes, given by index or by a box (min, max).

        Parameters
        ----------
        axes : which components are fixed.
        twist : also fix the twist of rod edges whose two nodes are both in this set.
        """
        if (nodes is None) == (box is None):
            raise InputError("clamp: give either nodes or box")
        if not set(axes) <= set("xyz"):
            raise InputError(f"clamp.axes: expected a subset of 'xyz', got {axes!r}")
        if nodes is None:
            low, high = (np.asarray(corner, dtype=float) for corner in box)
            selected = np.flatnonzero(((self._nodes >= low) & (self._nodes <= high)).all(1))
            if not len(selected):
                raise InputError(f"clamp.box: no node lies between {low.tolist()} and {high.tolist()}")
        else:
            selected = self._checked(nodes, "clamp.nodes")
        self._clamps.append((selected, axes, twist))

    def add_mass(self, nodes: Sequence[int], mass: Number) -> None:
        """Add `mass` [kg], () or (B, 1), to each of the nodes."""
        self._masses.append((self._checked(nodes, "mass.nodes"), positive(mass, "mass")))

    def add_force(self, force: Force) -> None:
        """Add an external force."""
        self._forces.append(force)

    def add_term(self, term: ElasticTerm) -> None:
        """Add an elastic term of your own: a stencil on the nodes of this robot and an energy."""
        if term.name in {"stretch", "bend_twist", *(t.name for t in self._terms)}:
            raise InputError(f"add_term: there is an elastic term named {term.name!r} already; choose another name")
        self._terms.append(term)

    def add_energy(self, name: str, energy: Energy, part: str = "residual") -> None:
        """Add an energy density to that of "stretch" or "bend_twist"; reports call it `part`."""
        self._check_strain(name)
        self._energies.append((name, part, energy))

    def replace_energy(self, name: str, energy: Energy) -> None:
        """Put an energy density in place of the linear one of "stretch" or "bend_twist"."""
        self._check_strain(name)
        self._energies.append((name, None, energy))

    def add_dissipation(self, name: str, dissipation: Energy) -> None:
        """Add a density of dissipated power [W/m], a function of the rates of strain of "stretch" or "bend_twist"."""
        self._check_strain(name)
        self._dissipations.append((name, dissipation))

    def finalize(
        self, solver: str = "auto", compile: bool = False, dtype: torch.dtype = torch.float64, device=None
    ) -> Model:
        """Return the model.

        Parameters
        ----------
        solver : "auto", or the name of a linear solver: dense, banded, multifrontal, pcg, bicgstab.
        compile : compile the stencil kernels (see `Model`).
        """
        if not self._rods:
            raise InputError("the robot has no rods: add some with add_rod or add_rods")
        edges = np.concatenate([r.edges for r in self._rods])
        check_rods(self._nodes, edges, where="robot")
        rods = find_rods(len(self._nodes), edges)
        springs = find_springs(len(self._nodes), edges, rods)
        check_folds(self._nodes, springs.nodes)
        constants = {
            name: _joined([r.constants[name] for r in self._rods], [len(r.edges) for r in self._rods])
            for name in self._rods[0].constants
        }
        body = self._body(edges, rods, springs, constants, dtype)
        directors = self._directors(rods)
        terms = [
            _stretch_term(body, constants),
            *_bend_twist_terms(body, constants, directors, self._straight(edges, springs)),
            *self._terms,
        ]
        self._add_residuals({t.name: t for t in terms})
        model = Model(
            body, [t.to(dtype) for t in terms], self._forces, self._free(edges), directors.to(dtype), solver, compile
        )
        return model.to(device=device, dtype=dtype)

    # ---- parts -------------------------------------------------------------------------------------------------

    @staticmethod
    def _check_strain(name: str) -> None:
        if name not in ("stretch", "bend_twist"):
            raise InputError(f"energy: expected the strains 'stretch' or 'bend_twist', got {name!r}")

    def _add_residuals(self, terms: dict[str, ElasticTerm]) -> None:
        """Put the energies and dissipations that were added into their terms."""
        for name in {n for n, *_ in [*self._energies, *self._dissipations]} - set(terms):
            raise InputError(f"energy: this robot has no term {name!r}; it has: {', '.join(terms)}")
        for name, part, energy in self._energies:
            own = terms[name].energy
            if part is None:
                terms[name].energy = energy
            elif isinstance(own, Sum):
                own.add(part, energy)
            else:
                terms[name].energy = Sum({"linear": own, part: energy})
        for k, (name, dissipation) in enumerate(self._dissipations):
            present = terms[name].dissipation
            both = None if present is None else Sum({f"present{k}": present, f"added{k}": dissipation})
            terms[name].dissipation = dissipation if both is None else both

    def _join(self, points: np.ndarray) -> np.ndarray:
        """Add the points that are new and return the index of each."""
        index = np.empty(len(points), dtype=np.int64)
        existing = self._nodes
        fresh: list[np.ndarray] = []
        for k, point in enumerate(points):
            near = np.flatnonzero(np.linalg.norm(existing - point, axis=1) <= self.join_distance)
            if len(near):
                index[k] = near[0]
            else:
                index[k] = len(existing) + len(fresh)
                fresh.append(point)
        if fresh:
            self._nodes = np.concatenate([existing, np.array(fresh)])
        return index

    def _checked(self, nodes: Sequence[int], what: str) -> np.ndarray:
        index = np.asarray(nodes, dtype=np.int64).reshape(-1)
        wrong = index[(index < 0) | (index >= len(self._nodes))]
        if len(wrong) or not len(index):
            raise InputError(f"{what}: expected indices 0 to {len(self._nodes) - 1}, got {wrong.tolist() or 'none'}")
        return index

    def _free(self, edges: np.ndarray) -> np.ndarray:
        free = np.ones(3 * len(self._nodes) + len(edges), dtype=bool)
        first_twist = 3 * len(self._nodes)
        for nodes, axes, twist in self._clamps:
            for axis in axes:
                free[3 * nodes + "xyz".index(axis)] = False
            if twist:
                free[first_twist + np.flatnonzero(np.isin(edges, nodes).all(1))] = False
        if self.planar:
            free[1:first_twist:3] = False
            free[first_twist:] = False
        return free

    def _straight(self, edges: np.ndarray, springs: Springs) -> np.ndarray:
        """Return the springs (S,) along rods whose edges were both added as naturally straight."""
        straight_edge = np.concatenate([np.full(len(r.edges), r.natural == "straight") for r in self._rods])
        return straight_edge[springs.edges].all(1) & springs.along_rod

    def _body(self, edges, rods, springs, constants, dtype) -> Body:
        nodes = torch.as_tensor(self._nodes)
        length = torch.linalg.vector_norm(nodes[edges[:, 1]] - nodes[edges[:, 0]], dim=-1)
        edge_volume = constants["area"] * length
        volume = _nodal(0.5 * edge_volume, edges, len(nodes))
        node_mass = _nodal(0.5 * constants["density"] * edge_volume, edges, len(nodes))
        for index, mass in self._masses:
            share = node_mass.new_zeros(len(nodes))
            share[index] = 1.0
            node_mass = node_mass + mass * share
        twist_mass = (constants["density"] * constants["polar"] * length).expand(*_lead(node_mass), len(edges))
        node_mass = node_mass.expand(*_lead(twist_mass), -1)
        return Body(
            nodes,
            edges,
            rods,
            springs,
            mass=torch.cat([node_mass.repeat_interleave(3, dim=-1), twist_mass], dim=-1),
            edge_length=length,
            edge_radius=constants["radius"].expand(*_lead(constants["radius"]), len(edges)).contiguous(),
            node_length=_nodal(0.5 * length, edges, len(nodes)),
            node_volume=volume,
        ).to(dtype)

    def _directors(self, rods: list[Rod]) -> Tensor:
        """Return d1 (E, 3): on each rod's first edge as `first_director`, then carried along; or as given."""
        nodes = torch.as_tensor(self._nodes)
        directors = torch.zeros(sum(len(r.edges) for r in self._rods), 3, dtype=nodes.dtype)
        for rod in rods:
            tangent = unit(nodes[rod.nodes[1:]] - nodes[rod.nodes[:-1]])
            d = first_director(tangent[0])
            for k, edge in enumerate(rod.edges):
                d = transported(d, tangent[k - 1], tangent[k]) if k else d
                directors[edge] = d
        offset = 0
        for added in self._rods:
            if added.directors is not None:
                directors[offset : offset + len(added.edges)] = _normal_directors(added, nodes)
            offset += len(added.edges)
        return directors


def _lead(tensor: Tensor) -> tuple[int, ...]:
    """Return the robot dimension of a per-element tensor: () or (B,)."""
    return tuple(tensor.shape[:-1]) if tensor.dim() == 2 else ()


def _normal_directors(added: _Rods, nodes: Tensor) -> Tensor:
    given = torch.as_tensor(added.directors)
    tangent = unit(nodes[added.edges[:, 1]] - nodes[added.edges[:, 0]])
    if not (((given * tangent).sum(-1).abs() < 1e-6) & ((given.norm(dim=-1) - 1).abs() < 1e-6)).all():
        raise InputError("directors: expected unit vectors normal to their edges (to 1e-6)")
    return unit(given - tangent * (given * tangent).sum(-1, keepdim=True))


def _edge_constants(section, material, stiffness: dict[str, Number], count: int) -> dict[str, Tensor]:
    """Return section, material and stiffness constants, each () or (.., E) or (B, 1)."""
    s, m = section.constants(), material.constants()
    unknown = set(stiffness) - {"EA", "EI1", "EI2", "GJ"}
    if unknown:
        raise InputError(f"stiffness: expected any of EA, EI1, EI2, GJ, got {', '.join(sorted(unknown))}")
    constants = {**s, "density": m["density"], "relaxation": m["relaxation"]}
    derived = {
        "EA": m["youngs"] * s["area"],
        "EI1": m["youngs"] * s["I1"],
        "EI2": m["youngs"] * s["I2"],
        "GJ": m["shear"] * s["J"],
    }
    for name, value in derived.items():
        constants[name] = positive(stiffness[name], f"stiffness.{name}") if name in stiffness else value
    for name, value in constants.items():
        if value.dim() > 2 or (value.dim() and value.shape[-1] not in (1, count)):
            raise InputError(
                f"{name}: expected a shape that broadcasts against (B, {count} edges), got {tuple(value.shape)}"
            )
    return constants


def _joined(parts: list[Tensor], counts: list[int]) -> Tensor:
    """Return one tensor () or (.., E) or (B, 1) from those of each group of edges."""
    if len(parts) == 1:
        return parts[0]
    if all(p.dim() == 0 for p in parts) and all(torch.equal(p, parts[0]) for p in parts):
        return parts[0]
    robots = {p.shape[0] for p in parts if p.dim() == 2} - {1}
    if len(robots) > 1:
        raise InputError(f"parameters are given for different numbers of robots: {sorted(robots)}")
    lead = tuple(robots) or ((1,) if any(p.dim() == 2 for p in parts) else ())
    return torch.cat([p.expand(*lead, n) for p, n in zip(parts, counts, strict=True)], dim=-1)


def _nodal(per_edge: Tensor, edges: np.ndarray, n_nodes: int) -> Tensor:
    """Return (..., N): each edge's value (..., E) added to both its nodes."""
    total = per_edge.new_zeros(*per_edge.shape[:-1], n_nodes)
    index = torch.as_tensor(edges)
    return total.index_add(-1, index[:, 0], per_edge).index_add(-1, index[:, 1], per_edge)


def _stretch_term(body: Body, constants: dict[str, Tensor]) -> ElasticTerm:
    stencil = StretchStencil(body.rod_edges, body.edge_length.clone())
    return ElasticTerm(
        "stretch",
        stencil,
        LinearElastic({"EA": constants["EA"].clone()}),
        measure=None,
        dissipation=_viscous({"EA": constants["EA"]}, constants["relaxation"]),
    )


def _bend_twist_terms(
    body: Body, constants: dict[str, Tensor], directors: Tensor, straight_spring: np.ndarray
) -> list[ElasticTerm]:
    """Return the bend-twist term, or none for a robot without springs."""
    springs = body.springs
    if not len(springs.nodes):
        return []
    stencil = BendTwistStencil(springs.nodes, springs.edges, springs.signs, 3 * body.n_nodes)
    lengths = body.edge_length[springs.edges]
    voronoi = lengths.mean(-1)
    stiffness = {name: _at_springs(constants[name], springs.edges, lengths) for name in ("EI1", "EI2", "GJ")}
    _, _, twist = _shape_strains(body, stencil, directors)
    stencil.alignment = torch.where(torch.as_tensor(springs.carried), 0.0, twist)
    natural = _shape_strains(body, stencil, directors)
    keep = torch.as_tensor(~straight_spring)
    return [
        ElasticTerm(
            "bend_twist",
            stencil,
            LinearElastic(stiffness, parts={"bend": (0, 1), "twist": (2,)}),
            measure=voronoi,
            scale=voronoi,
            natural=tuple(torch.where(keep, n, torch.zeros_like(n)) for n in natural),
            controlled=_controlled_bend_twist,
            dissipation=_viscous(stiffness, _at_springs(constants["relaxation"], springs.edges, lengths)),
        )
    ]


def _viscous(stiffness: dict[str, Tensor], relaxation: Tensor) -> LinearElastic | None:
    """Return the Kelvin-Voigt dissipation: relaxation time [s] x stiffness; None where there is none."""
    if not bool((relaxation > 0).any()):
        return None
    return LinearElastic({f"viscous_{name}": value * relaxation for name, value in stiffness.items()})


def _controlled_bend_twist(control) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the natural kappa1, kappa2, tau that a control sets."""
    curvature = control.natural_curvature
    return (
        None if curvature is None else curvature[..., 0],
        None if curvature is None else curvature[..., 1],
        control.natural_twist,
    )


def _at_springs(per_edge: Tensor, edges: np.ndarray, lengths: Tensor) -> Tensor:
    """Return the length-weighted mean of the two edges' values: both halves of the Voronoi cell bend alike."""
    if per_edge.dim() == 0 or per_edge.shape[-1] == 1:
        return per_edge.clone()
    return (per_edge[..., edges] * lengths).sum(-1) / lengths.sum(-1)


def _shape_strains(body: Body, stencil: BendTwistStencil, directors: Tensor) -> tuple[Tensor, ...]:
    """Return (kappa1, kappa2, tau), each (S,), of the shape as built."""
    dtype = body.nodes.dtype
    nodes = body.nodes
    edges = torch.as_tensor(body.rod_edges)
    tangent = unit(nodes[edges[:, 1]] - nodes[edges[:, 0]])
    q = torch.cat([nodes.flatten(), nodes.new_zeros(body.n_edges)])[:, None]
    signs = torch.as_tensor(body.springs.signs, dtype=dtype)
    vectors = []
    for field, sign in ((tangent, True), (directors.to(dtype), False)):
        for k in range(2):
            v = field[body.springs.edges[:, k]]
            vectors.append((v * signs[:, k, None] if sign else v).t().unsqueeze(-1))
    start_e, start_f, director_e, director_f = vectors
    zero = nodes.new_zeros(len(signs), 1)
    local = stencil.local(q)
    alignment = stencil.alignment.to(dtype).unsqueeze(-1)
    strains = stencil.strain(local, start_e, start_f, director_e, director_f, zero, alignment)
    return tuple(s.squeeze(-1).clone() for s in strains)
