"""Collecting rods, shells, clamps, masses and forces, and making a Model of them."""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.body import BuiltBody, built_body
from torchdismech.builder.clamps import ClampedNodes, fixed_directions, free_dofs
from torchdismech.builder.given import (
    check_choice,
    check_device,
    check_module,
    check_name,
    corners_of,
    refuse_lost_stiffness,
    warn_of_two_weights,
    warn_of_units,
)
from torchdismech.builder.laws import Laws
from torchdismech.builder.masses import EdgeInertia
from torchdismech.builder.nodes import joined_nodes, nodes_in_box
from torchdismech.builder.parts import warn_of_passing, warn_of_thin_obstacles
from torchdismech.builder.planar import (
    refuse_fields_out_of_plane,
    refuse_moments_out_of_plane,
    refuse_out_of_plane,
    refuse_rods_out_of_plane,
    refuse_stiffness_out_of_plane,
)
from torchdismech.builder.rod_terms import bend_twist_terms, rod_corners, stretch_terms
from torchdismech.builder.rods import RodGroup, Rods, edge_constants
from torchdismech.builder.shell_terms import bending_terms, membrane_terms
from torchdismech.builder.shells import (
    BENDING,
    MEMBRANE,
    USUAL_MEMBRANE,
    ShellGroup,
    Shells,
    face_constants,
)
from torchdismech.builder.spring_stiffness import SpringStiffness, refuse_set_twice
from torchdismech.compilation import Setting
from torchdismech.contact import Obstacle, SelfContact
from torchdismech.elastic import ElasticTerm, Energy, Inelastic
from torchdismech.errors import InputError, real_number, refuse_other_dtype, truth, warn
from torchdismech.forces import Force
from torchdismech.geometry.checks import Elements, Indices, array_of, check_nodes, check_rods, distinct_indices
from torchdismech.geometry.mesh_checks import check_triangles
from torchdismech.model import Model
from torchdismech.ownership import own, refuse_shared
from torchdismech.robot.materials import Circle, Material, Number, Rectangle, positive
from torchdismech.solve import linear
from torchdismech.values import Given

__all__ = ["RobotBuilder"]

NATURAL = {"rod": ("initial", "straight"), "shell": ("initial", "flat")}


class RobotBuilder:
    """Collects rods, shells, clamps, masses and forces, and makes a Model of them.

    Nodes of different calls that coincide (within `join_distance`) are one node, which joins rods and shells. Two nodes
    of one call in one place are refused, as a ring has an edge back to its first node (see `add_rods`); of shells,
    which may be slit there, they are warned of.

    A builder with forces, energies or laws is finalized once, as each of these belongs to one model: to build again
    with more parts, or in another dtype, run the same lines from the start (`Model.to` has other dtypes of the same
    robot). Networks, energies whose parameters all require gradients, may be given to several models.

    Parameters
    ----------
    planar : keep to the x-z plane: y and all twist angles are fixed; for robots without shells, each of whose rods lies
        in one such plane.
    join_distance : 0 or more [m]; nodes of different calls that are no farther apart than this are one.
    joints : "stiff": where rods branch, and where a rod ends at or passes through a shell, every pair of edges (of the
        shell: the sides of the triangles there) resists bending and twisting as the rods do. "pinned": such nodes only
        hold together, as ropes that are tied.
    curvature : of rods, in the material frame "half-way" between two edges, so that twist does not soften bending; or
        "averaged", on the mean of their frames, as the papers on discrete elastic rods have it (docs/rods.md).
    mass : "lumped" at the nodes, or "consistent" with motion that is linear along edges and in triangles: frequencies
        of rods are far closer then (docs/rods.md), for a few per cent of a step.
    clamp_rule : how the energy of a rod is added up at a clamp with a direction. "trapezoidal": a uniform moment bends
        the rod uniformly, and errors are of second order. "gregory": of third order in deflections and frequencies, but
        the first edge and the spring next to it are off by a twelfth of what an edge bends (docs/rods.md).
    """

    def __init__(
        self,
        planar: bool = False,
        join_distance: float = 1e-9,
        joints: str = "stiff",
        curvature: str = "half-way",
        mass: str = "lumped",
        clamp_rule: str = "trapezoidal",
    ):
        check_choice("joints", joints, ("stiff", "pinned"))
        check_choice("curvature", curvature, ("half-way", "averaged"))
        check_choice("mass", mass, ("lumped", "consistent"))
        check_choice("clamp_rule", clamp_rule, ("trapezoidal", "gregory"))
        expected = "a finite length from 0 up [m]"
        join_distance = real_number(join_distance, "join_distance", expected)
        if not 0 <= join_distance < math.inf:
            raise InputError(f"join_distance: expected {expected}, got {join_distance}")
        self.planar = truth(planar, "planar")
        self.curvature, self.mass, self.clamp_rule = curvature, mass, clamp_rule
        self.joints = joints
        self.join_distance = join_distance
        self._nodes = np.zeros((0, 3))
        self._rods: list[RodGroup] = []
        self._shells: list[ShellGroup] = []
        self._materials: list[tuple[Material, bool]] = []  # with each whether its modulus counts
        self._clamps: list[ClampedNodes] = []
        self._masses: list[tuple[np.ndarray, Tensor]] = []
        self._fixed: list[EdgeInertia] = []
        self._forces: list[Force] = []
        self._self_contacts: list[SelfContact] = []
        self._laws = Laws(self._refuse_out_of_plane)
        self._spring_stiffnesses: list[SpringStiffness] = []
        self._model_made = False  # and nothing was added since
        self._spent = False  # whether forces, energies or laws belong to a model already

    @property
    def nodes(self) -> np.ndarray:
        """Nodes so far (N, 3) [m]."""
        return self._nodes

    def add_nodes(self, nodes: Given) -> np.ndarray:
        """Add nodes (k, 3) before the rods and shells that use them, and return their indices (k,)."""
        points = array_of(nodes, "nodes", float)
        check_nodes(points, where="nodes")
        return self._join(points, where="nodes")

    def add_rod(
        self,
        nodes: Given,
        section: Circle | Rectangle,
        material: Material,
        natural: str = "initial",
        stiffness: Mapping[str, Number] | None = None,
        directors: Given | None = None,
        contact_radius: Number | None = None,
        name: str | None = None,
    ) -> np.ndarray:
        """Add a rod through `nodes` (k, 3) and return the indices (k,) of its nodes.

        Parameters
        ----------
        section, material : numbers or tensors per edge and per robot.
        natural : "initial" takes curvature and twist at rest from the shape as built; "straight" has none along rods
            (where rods branch, the angle as built is kept).
        stiffness : any of EA [N], EI1, EI2, GJ [N m^2] in place of what section and material give.
        directors : (k-1, 3) reference directors d1, along which a rectangle has its height. By default the first edge's
            is vertical if the edge is horizontal, along x if it is vertical (t x y; z along y), and carried on without
            twist from there, also from a rod whose end this one goes on from.
        contact_radius : [m]; by default the circle's radius, half the smaller side of a rectangle.
        name : what `SelfContact(between=...)` calls it; several rods and shells may have the same.
        """
        points = array_of(nodes, "rod", float)
        chain = np.arange(len(points))
        edges = np.stack([chain[:-1], chain[1:]], axis=1)
        return self.add_rods(points, edges, section, material, natural, stiffness, directors, contact_radius, name)

    def add_rods(
        self,
        nodes: Given,
        edges: Elements,
        section: Circle | Rectangle,
        material: Material,
        natural: str = "initial",
        stiffness: Mapping[str, Number] | None = None,
        directors: Given | None = None,
        contact_radius: Number | None = None,
        name: str | None = None,
        whole: Hashable | None = None,
    ) -> np.ndarray:
        """Add a network of rods: nodes (k, 3) and edges (m, 2) into them; else as `add_rod`.

        A ring of k nodes has k edges, the last of them (k - 1, 0).

        Parameters
        ----------
        whole : calls that are given the same number or name count as one: where their edges meet, `directors` that turn
            are a twist of the rod, as within a call (docs/rods.md, "Corners and branches"). By default none does.
        """
        points, pairs = array_of(nodes, "rod", float), np.asarray(edges)
        check_rods(points, pairs, where="rod")
        if not len(pairs):
            raise InputError(f"rod: expected an edge or more, so two nodes or more, got {len(points)} nodes, 0 edges")
        check_choice("natural", natural, NATURAL["rod"])
        check_name(name)
        constants = edge_constants(section, material, stiffness or {}, contact_radius, len(pairs))
        if self.planar:
            turned = directors is not None or any(group.directors is not None for group in self._rods)
            refuse_stiffness_out_of_plane("stiffness.", stiffness or {}, turned)
        index = self._join(points, where="rod")
        directors = None if directors is None else array_of(directors, "directors", float)
        if directors is not None and directors.shape != (len(pairs), 3):
            raise InputError(f"directors: expected one of each edge, ({len(pairs)}, 3), got {directors.shape}")
        own = {"EA", "EI1"} if self.planar else {"EA", "EI1", "EI2", "GJ"}
        self._materials.append((material, not own <= set(stiffness or {})))
        whole = object() if whole is None else whole
        self._rods.append(
            RodGroup(index[pairs], constants, isinstance(section, Circle), natural, directors, name, whole)
        )
        return index

    def add_shell(
        self,
        nodes: Given,
        triangles: Elements,
        thickness: Number,
        material: Material,
        bending: str = "midedge",
        natural: str = "initial",
        stiffness: Mapping[str, Number] | None = None,
        membrane: str | None = None,
        name: str | None = None,
    ) -> np.ndarray:
        """Add a shell: nodes (k, 3) and triangles (m, 3) into them; return the indices (k,) of its nodes.

        Shells that share nodes are joined there, along shared edges into one surface. `finalize` checks how all
        triangles lie to each other; those that are wound against their neighbours are turned, a warning says how many.

        Parameters
        ----------
        thickness, material : numbers or tensors per triangle and per robot; thickness in m.
        bending : "midedge": curvature of triangles by normals at their sides, converges to plate theory on any mesh,
            one unknown more an edge; "hinge": springs between triangles, cheap, stiffness depends on the mesh.
        natural : "initial" takes the curved shape as built for the rest shape; "flat" has none.
        stiffness : any of `membrane` [N/m] (springs: that of an edge per rest length, sqrt(3)/2 E h; continuum:
            E h / (2 (1 - nu^2))) and `bending` [N m] (hinge: E h^3 / (6 sqrt(3)); midedge: E h^3 / (24 (1 - nu^2))), in
            place of what thickness and material give.
        membrane : how all shells of the robot stretch. "continuum": triangles of constant strain, as thickness and
            material say. "springs": each edge is one; Poisson's ratio is 1/3 and the stiffness depends on the mesh.
            None: "continuum" with "midedge", "springs" with "hinge", as in the papers.
        name : what `SelfContact(between=...)` calls it; several rods and shells may have the same.
        """
        points, faces = check_triangles(nodes, triangles, where="shell")
        check_choice("bending", bending, BENDING)
        membrane = USUAL_MEMBRANE[bending] if membrane is None else membrane
        check_choice("membrane", membrane, MEMBRANE)
        check_choice("natural", natural, NATURAL["shell"])
        check_name(name)
        constants = face_constants(thickness, material, stiffness or {}, membrane, bending, len(faces))
        index = self._join(points, where="shell")
        self._materials.append((material, len(stiffness or {}) < 2))  # there are two
        self._shells.append(ShellGroup(index[faces], constants, membrane, bending, natural, name))
        return index

    def clamp(
        self,
        nodes: Indices | None = None,
        box: Given | None = None,
        axes: str | None = None,
        twist: bool = True,
        direction: str | Sequence[float] | None = None,
        along: Sequence[float] | Sequence[Sequence[float]] | torch.Tensor | None = None,
        normal: Sequence[float] | Sequence[Sequence[float]] | torch.Tensor | None = None,
    ) -> None:
        """Fix nodes, given by indices, each once, or a bool mask (N,), or by a box (min, max).

        Of a box those on its faces are fixed, too, also where rounding puts them outside: up to a millionth of the
        extent of the robot's nodes so far.

        A rod is held by its end node and a direction. Without a direction, fix two nodes. The rod is then held half an
        edge too far: the error of its tip is about 1.5 / edges (docs/rods.md).

        Parameters
        ----------
        axes : which components are fixed; by default "xyz", without `along` and `normal`; "" is none, for clamps of the
            twist or a direction alone. What holds nothing is refused when the model is built.
        twist : also fix the angle of edges whose two nodes are both in this set, the twist of rods and the mid-edge
            normals of shells (without it a shell is hinged there); with a direction, the twist of rods at the nodes.
        direction : "rest": rods have at these nodes the tangent of the rest shape, each edge there its own; or a
            vector along the rod, from each edge's first node to its second. None: rods turn freely about nodes.
            A vector is the tangent of the rest shape, too: where that is the shape as built (`natural="initial"`) it
            says which tangent a curved rod has at the node, and bends nothing. To point a rod elsewhere, add it with
            `natural="straight"`, or turn the clamp by `Control.pose`.
        along : (3,), or one of each robot (B, 3); in place of axes: the nodes slide along this line without friction,
            and are held across it.
        normal : (3,) or (B, 3); in place of axes: the nodes slide in the plane with this normal, and are held along it.

        Lines and planes keep their directions also where `Control.pose` turns a clamp. What several clamps of a node
        hold adds up.
        """
        if (nodes is None) == (box is None):
            raise InputError("clamp: give either nodes or box")
        twist = truth(twist, "clamp.twist")
        fixed = fixed_directions(axes, along, normal, self.planar)
        if nodes is None:
            low, high = corners_of(box)
            selected = nodes_in_box(self._nodes, low, high)
            if not len(selected):
                raise InputError(f"clamp.box: no node lies between {low.tolist()} and {high.tolist()}")
        else:
            selected = distinct_indices(nodes, len(self._nodes), "clamp.nodes")
        self._clamps.append(ClampedNodes.of(selected, fixed, twist, direction, self.planar))
        self._warn_of_model_made("clamp")

    def add_mass(self, nodes: Indices, mass: Number) -> None:
        """Add `mass` [kg], () or (B, 1), to each of the nodes, given by indices, each once, or a bool mask (N,)."""
        index = distinct_indices(nodes, len(self._nodes), "mass.nodes")
        self._masses.append((index, _one_each("mass", mass, "nodes")))
        self._warn_of_model_made("add_mass")

    def add_inertia(self, edges: Indices, across: Number, along: Number | None = None) -> None:
        """Fix something that is hard to turn to each of some edges of rods: a disc, a motor, a tool.

        Its mass is added by `add_mass` to the node at which its centre is.

        Parameters
        ----------
        edges : indices of rod edges, each once, or a bool mask (E,).
        across : its moment of inertia about any axis across the edge [kg m^2], above zero, () or (B, 1). It is the same
            about all of these axes: of a cylinder along the edge, or whatever moves in a plane.
        along : about the edge itself [kg m^2], likewise; None adds nothing. Planar robots refuse it: they do not twist.
        """
        index = distinct_indices(edges, sum(len(group.edges) for group in self._rods), "inertia.edges")
        if along is not None and self.planar:
            raise InputError("inertia.along: the robot is planar, and its rods do not twist; leave it out")
        given = {name: value for name, value in (("across", across), ("along", along)) if value is not None}
        numbers = {name: _one_each(f"inertia.{name}", value, "edges") for name, value in given.items()}
        self._fixed.append(EdgeInertia(index, numbers["across"], numbers.get("along")))
        self._warn_of_model_made("add_inertia")

    def set_spring_stiffness(
        self, springs: Elements, EI1: Number | None = None, EI2: Number | None = None, GJ: Number | None = None
    ) -> None:
        """Give some bend-twist springs stiffnesses of their own [N m^2], in place of those of their edges.

        EI1 and EI2 are about axes half-way between the sections of both edges; where rods branch, and at shells, about
        those of the edge that was added first (docs/rods.md, "Axes at joints").

        Parameters
        ----------
        springs : (k, 3) the nodes of each spring: before it, at it, after it, in either direction.
        EI1, EI2, GJ : (), (k,), (B, 1) or (B, k); None leaves what the edges give.
        """
        new = SpringStiffness.of(springs, EI1=EI1, EI2=EI2, GJ=GJ)
        self._refuse_out_of_plane("set_spring_stiffness.", new.values)
        refuse_set_twice(self._spring_stiffnesses, new)
        self._spring_stiffnesses.append(new)
        self._warn_of_model_made("set_spring_stiffness")

    def add_force(self, force: Force) -> None:
        """Add an external force."""
        check_module("add_force", force, Force, "a force, such as forces.Gravity((0, 0, -9.81))")
        self._forces.append(force)
        self._warn_of_model_made("add_force")

    def add_contact(self, contact: Obstacle | SelfContact) -> None:
        """Let the robot touch an obstacle, or its parts each other.

        Of several `SelfContact`, one may be for all parts; those that name parts come before it.
        """
        kinds = "an obstacle, contact.Obstacle(shape, response), or contact.SelfContact(response)"
        check_module("add_contact", contact, (Obstacle, SelfContact), kinds)
        taken = {"kinetic", *(f.name for f in self._forces if isinstance(f, Obstacle))}
        taken |= {own.name for own in self._self_contacts}
        if isinstance(contact, Obstacle):
            taken.add("self_contact")
        if contact.name in taken or re.fullmatch(r"part\d+", contact.name):
            raise InputError(f"add_contact: {contact.name!r} is the name of something else; choose another name")
        if isinstance(contact, Obstacle):
            self._forces.append(contact)
        else:
            self._self_contacts.append(contact)
        self._warn_of_model_made("add_contact")

    def add_term(self, term: ElasticTerm) -> None:
        """Add an elastic term of your own: a stencil on the nodes of this robot and an energy."""
        self._laws.add_term(term)
        self._warn_of_model_made("add_term")

    def add_energy(self, name: str, energy: Energy, part: str | None = None) -> None:
        """Add an energy density to that of a term.

        Terms and what their strains are: "stretch" (1) and "bend_twist" (1/m) of rods, densities in J/m; of shells
        "membrane" (1), J/m along each edge, or (E11, E22, E12), J/m^2, of a continuum; "hinge" (angle [rad]), J a
        hinge; "midedge" (b11, b22, b12 [1/m]), J/m^2. Natural strains are taken off. At corners and joints of rods the
        strains of "bend_twist" are those that the rod's own energy sees there (docs/rods.md, "Corners and branches"),
        also for dissipations and inelastic laws.

        Parameters
        ----------
        part : what reports call this energy; by default "residual", or where several are given no name
            "stretch_residual", "bend_twist_residual", ...
        """
        self._laws.add_energy(name, energy, part)
        self._warn_of_model_made("add_energy")

    def replace_energy(self, name: str, energy: Energy) -> None:
        """Put an energy density in place of the linear one of a term (see `add_energy`); what is added stays."""
        self._laws.replace_energy(name, energy)
        self._warn_of_model_made("replace_energy")

    def add_dissipation(self, name: str, dissipation: Energy) -> None:
        """Add a density of dissipated power, a function of a term's rates of strain (see `add_energy`; W for J).

        It is convex and least where all rates are 0: `finalize` refuses one of your own whose slopes are not 0 there.
        """
        self._laws.add_dissipation(name, dissipation)
        self._warn_of_model_made("add_dissipation")

    def add_inelastic(self, name: str, law: Inelastic, part: str | None = None) -> None:
        """Let a term's material remember: `elastic.Dahl` (hysteresis), `elastic.Maxwell` (relaxation), or your own.

        The law's stress acts beside that of the term's energy (see `add_energy` for the terms).

        Parameters
        ----------
        part : what constants and reports call the law; by default its class in small letters.
        """
        self._laws.add_inelastic(name, law, part)
        self._warn_of_model_made("add_inelastic")

    def finalize(
        self,
        solver: linear.Setting = "auto",
        compile: Setting = "auto",
        dtype: torch.dtype = torch.float64,
        device: torch.device | str | None = None,
    ) -> Model:
        """Return the model, which what is added to the builder afterwards does not change.

        A builder with forces, contact, energies or laws makes one model, to which these belong; others make any number.

        Parameters
        ----------
        solver : "auto", or the name of a linear solver: dense, banded, multifrontal, pcg, bicgstab. With
            options it is a mapping, {"name": "pcg", "tolerance": 1e-10, "product": "torch-sparse"}; see the classes in
            `solve.linear`.
        compile : True, False, or "auto": compile what steps evaluate once they are long enough (see `Model`).
        dtype : of positions, forces and constants: torch.float64, or torch.float32.
        device : where they are, such as "cuda"; None: on the CPU.

        Raises
        ------
        InputError
            The robot has no parts; a dtype or device is none of these; parts, clamps, forces and constants do not go
            together: the message names them.
        """
        refuse_other_dtype("dtype", dtype)
        check_device(device)
        self._check_parts()
        given = self._laws.modules()
        refuse_shared("finalize", given)
        nodes = torch.as_tensor(self._nodes, device="cpu")
        rods, shells = Rods(self._rods, nodes), Shells(self._shells, nodes)
        built = built_body(
            self._nodes,
            rods,
            shells,
            self._clamps,
            self._masses,
            self._fixed,
            stiff=self.joints == "stiff",
            consistent=self.mass == "consistent",
            planar=self.planar,
            dtype=dtype,
        )
        corners = rod_corners(built, rods, self._spring_stiffnesses, self.curvature == "averaged")
        body = built.body.to(dtype)  # in place
        if self.planar:
            refuse_moments_out_of_plane(self._forces, body, built.directors)
        warn_of_passing(body, self.join_distance)
        terms = self._elastic_terms(built, rods, shells, corners, dtype)
        free, slides = free_dofs(body, self._clamps, self.planar)
        terms = [t.to(dtype) for t in terms]
        forces = [f.to(dtype) for f in self._forces]
        model = Model(body, terms, forces, free, solver, compile, self._self_contacts, slides)
        if self.planar:
            refuse_fields_out_of_plane(forces, body)
        warn_of_thin_obstacles(model.obstacles)
        own(given)
        self._model_made, self._spent = True, bool(forces or given or self._self_contacts)
        return model.to(device=device, dtype=dtype)

    def _check_parts(self) -> None:
        """Refuse a robot without parts, and of a planar one what leaves its plane; warn of doubtful numbers."""
        if not (self._rods or self._shells):
            raise InputError("the robot has neither rods nor shells: add some with add_rod, add_rods or add_shell")
        if self.planar and self._shells:
            raise InputError("planar: a robot with shells moves in space; build it with planar=False")
        if self.planar:
            refuse_rods_out_of_plane(self._nodes, np.concatenate([group.edges for group in self._rods]))
            refuse_out_of_plane(self._forces)
        warn_of_units(self._materials)
        warn_of_two_weights(self._forces)

    def _elastic_terms(
        self, built: BuiltBody, rods: Rods, shells: Shells, corners: Tensor | None, dtype: torch.dtype
    ) -> list[ElasticTerm]:
        """Return the terms of rods and shells, then those of the user's own, with all energies and laws in them.

        Parameters
        ----------
        corners : what they do to springs, see `rod_corners`.
        dtype : of the model, which has to hold the stiffnesses.
        """
        body = built.body
        bend_twist = bend_twist_terms(
            built,
            rods,
            self._spring_stiffnesses,
            corners,
            averaged=self.curvature == "averaged",
            gregory=self.clamp_rule == "gregory",
        )
        of_parts = [
            *stretch_terms(body, rods),
            *bend_twist,
            *membrane_terms(body, shells),
            *bending_terms(body, shells),
        ]
        for term in of_parts:
            refuse_lost_stiffness(term, dtype)
        terms = [*of_parts, *self._laws.terms]
        self._laws.put_into({t.name: t for t in terms})
        return terms

    def _refuse_out_of_plane(self, what: str, names: Iterable[str]) -> None:
        """Refuse stiffnesses, by their names, that the rods so far do not feel where the robot is planar."""
        if self.planar:
            turned = not self._rods or any(group.directors is not None for group in self._rods)
            refuse_stiffness_out_of_plane(what, names, turned)

    def _warn_of_model_made(self, what: str) -> None:
        """Warn, once, where something is added after a model was made, which lacks it."""
        if self._model_made:
            self._model_made = False
            anew = "by another builder, as forces, energies and laws belong to one" if self._spent else "by finalize()"
            warn(
                f"{what}: comes after finalize(), whose model does not change: add everything first, or make another "
                f"model {anew}; or, if that is meant, warnings.filterwarnings('ignore', '{what}: comes after')"
            )

    def _join(self, points: np.ndarray, where: str) -> np.ndarray:
        """Add the points that are new and return the index of each."""
        self._nodes, index = joined_nodes(self._nodes, points, self.join_distance, where)
        self._warn_of_model_made(where)
        return index


def _one_each(where: str, given: Number, elements: str) -> Tensor:
    """Return a number above 0 for each of some elements, () or (B, 1); refuse others, as one for each element."""
    number = positive(given, where)
    if number.dim() and number.shape[1:] != (1,):  # else a row of robots would be taken for one of elements
        raise InputError(
            f"{where}: expected one number, or one of each robot with shape (B, 1), got {tuple(number.shape)}; "
            f"{elements} with other numbers take a call each"
        )
    return number
