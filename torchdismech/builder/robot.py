"""RobotBuilder: collects rods, shells, clamps, masses and forces, and makes a Model of them."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from torchdismech.builder.argument_checks import (
    check_device,
    check_module,
    check_name,
    refuse_lost_stiffness,
    warn_of_two_weights,
    warn_of_units,
)
from torchdismech.builder.body import BuiltBody, built_body
from torchdismech.builder.clamps import ClampedNodes, corners_of, fixed_directions, free_dofs
from torchdismech.builder.laws import Laws
from torchdismech.builder.masses import EdgeInertia
from torchdismech.builder.nodes import JOIN_DISTANCE, joined_nodes, nodes_in_box
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
from torchdismech.errors import (
    InputError,
    check_choice,
    positive_number,
    refuse_other_dtype,
    refuse_other_kind,
    truth,
    warn,
)
from torchdismech.forces import Force
from torchdismech.geometry.checks import (
    Elements,
    Indices,
    array_of,
    as_array,
    check_nodes,
    check_rods,
    distinct_indices,
)
from torchdismech.geometry.mesh_checks import check_triangles
from torchdismech.model import Model
from torchdismech.ownership import mark_owned, refuse_shared
from torchdismech.robot.materials import Circle, Material, Number, Rectangle, positive
from torchdismech.solve import linear
from torchdismech.values import Given

__all__ = ["RobotBuilder"]

NATURAL = {"rod": ("initial", "straight"), "shell": ("initial", "flat")}


class RobotBuilder:
    """Collects rods, shells, clamps, masses and forces, and makes a Model of them.

    Nodes of different calls that coincide (within `join_distance`) are one node, which joins rods and shells. Two nodes
    of one call in the same place are refused: to close a ring, give an edge back to its first node (see `add_rods`). In
    shells, which may be slit there, they cause a warning only.

    A builder with forces, energies or laws is finalized once, as each of these belongs to one model: to build again
    with more parts, or in another dtype, run the same lines from the start (`Model.to` converts a model to another
    dtype). Energies whose parameters all require gradients, such as networks, may be given to several models.

    Parameters
    ----------
    planar : restrict motion to the x-z plane: y and all twist angles are fixed. For robots without shells, each of
        whose rods lies in a plane parallel to it.
    join_distance : 0 or more [m]; nodes of different calls that are no farther apart than this are one.
    joints : "stiff": where rods branch, and where a rod ends at or passes through a shell, every pair of edges (of the
        shell: the sides of the triangles there) resists bending and twisting as the rods do. "pinned": such nodes only
        hold together, like ropes that are tied. A rod that is added as one line or ring passes through them as a whole.
    curvature : how the curvature of rods is measured: in the material frame "half-way" between two edges, so that twist
        does not soften bending; or "averaged", on the mean of both edges' frames, as in the papers on discrete elastic
        rods (docs/rods.md).
    mass : "lumped" at the nodes, or "consistent": the mass matrix of motion that is linear along edges and in
        triangles, with far more accurate frequencies of rods (docs/rods.md) for a few per cent more time per step.
    clamp_rule : quadrature of a rod's energy at a clamp with a direction. "trapezoidal": a uniform moment bends the rod
        uniformly, and errors are of second order. "gregory": deflections and frequencies are of third order, but the
        first edge and the spring next to it are off by a twelfth of an edge's bending (docs/rods.md).
    """

    def __init__(
        self,
        planar: bool = False,
        join_distance: float = JOIN_DISTANCE,
        joints: str = "stiff",
        curvature: str = "half-way",
        mass: str = "lumped",
        clamp_rule: str = "trapezoidal",
    ):
        check_choice("joints", joints, ("stiff", "pinned"))
        check_choice("curvature", curvature, ("half-way", "averaged"))
        check_choice("mass", mass, ("lumped", "consistent"))
        check_choice("clamp_rule", clamp_rule, ("trapezoidal", "gregory"))
        self.planar = truth(planar, "planar")
        self.curvature, self.mass, self.clamp_rule = curvature, mass, clamp_rule
        self.joints = joints
        self.join_distance = positive_number(join_distance, "join_distance", "a length from 0 up [m]", or_zero=True)
        self._nodes = np.zeros((0, 3))
        self._rods: list[RodGroup] = []
        self._shells: list[ShellGroup] = []
        self._materials: list[tuple[Material, bool]] = []  # each with whether any stiffness follows from its modulus
        self._clamps: list[ClampedNodes] = []
        self._masses: list[tuple[np.ndarray, Tensor]] = []
        self._fixed: list[EdgeInertia] = []
        self._forces: list[Force] = []
        self._self_contacts: list[SelfContact] = []
        self._laws = Laws(self._refuse_out_of_plane)
        self._spring_stiffnesses: list[SpringStiffness] = []
        self._model_made = False  # whether a model was made, and nothing was added since
        self._spent = False  # whether forces, energies or laws belong to a model already

    @property
    def nodes(self) -> np.ndarray:
        """A copy of the nodes so far (N, 3) [m]."""
        return self._nodes.copy()

    def add_nodes(self, nodes: Given) -> np.ndarray:
        """Add nodes (k, 3) before the rods and shells that use them, and return their indices (k,)."""
        points = array_of(nodes, "nodes")
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
        natural : "initial" takes curvature and twist at rest from the shape as built; "straight" makes them zero along
            the rod (where rods branch, the angle as built is kept).
        stiffness : any of EA [N], EI1, EI2, GJ [N m^2], in place of the values that follow from section and material.
        directors : (k-1, 3) unit vectors d1 across each edge, along which a rectangle has its height. By default that
            of the first edge is t x y (t the tangent): vertical if the edge is horizontal, along x if it is vertical; z
            if the edge is along y. From there it is transported along the rod without twist, also from the end of an
            earlier rod that this one continues.
        contact_radius : [m]; by default the circle's radius, or half the smaller side of a rectangle.
        name : label for `SelfContact(between=...)`; several rods and shells may have the same.
        """
        points = array_of(nodes, "rod")
        check_nodes(points, where="rod")
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
        """Add a network of rods: nodes (k, 3) and edges (m, 2) of node indices; the rest is as for `add_rod`.

        A ring of k nodes has k edges, the last of them (k - 1, 0).

        Parameters
        ----------
        whole : calls with the same number or name here count as one call: where their edges meet, `directors` that turn
            from one edge to the next are a twist of the rod, as within a call (docs/rods.md, "Corners and branches").
            By default each call counts by itself.
        """
        points, pairs = array_of(nodes, "rod"), as_array(edges)
        check_rods(points, pairs, where="rod")
        if not len(pairs):
            raise InputError(f"rod: expected an edge or more, so two nodes or more, got {len(points)} nodes, 0 edges")
        check_choice("natural", natural, NATURAL["rod"])
        check_name(name)
        refuse_other_kind("whole", whole, Hashable, "a number or a name")
        constants = edge_constants(section, material, stiffness or {}, contact_radius, len(pairs))
        if self.planar:
            turned = directors is not None or any(group.directors is not None for group in self._rods)
            refuse_stiffness_out_of_plane("stiffness.", stiffness or {}, turned)
        directors = None if directors is None else array_of(directors, "directors")
        if directors is not None and directors.shape != (len(pairs), 3):
            raise InputError(f"directors: expected one of each edge, ({len(pairs)}, 3), got {directors.shape}")
        index = self._join(points, where="rod")
        acting = {"EA", "EI1"} if self.planar else {"EA", "EI1", "EI2", "GJ"}
        self._materials.append((material, not acting <= set(stiffness or {})))
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
        """Add a shell: nodes (k, 3) and triangles (m, 3) of node indices; return the indices (k,) of its nodes.

        Shells that share nodes are joined there, and along shared edges form one surface. `finalize` checks that all
        triangles have one orientation; those that are wound against their neighbours are reversed, and a warning says
        how many.

        Parameters
        ----------
        thickness, material : numbers or tensors per triangle and per robot; thickness in m.
        bending : "midedge": curvature of triangles from normals at their sides, which converges to plate theory on any
            mesh and adds one unknown per edge. "hinge": springs between triangles, cheap, but with a stiffness that
            depends on the mesh.
        natural : "initial": the shell is curved at rest as it is built; "flat": its curvature at rest is zero.
        stiffness : any of `membrane` [N/m] (springs: that of an edge per rest length, sqrt(3)/2 E h; continuum:
            E h / (2 (1 - nu^2))) and `bending` [N m] (hinge: E h^3 / (6 sqrt(3)); midedge: E h^3 / (24 (1 - nu^2))), in
            place of the values that follow from thickness and material.
        membrane : how all shells of the robot stretch. "continuum": constant-strain triangles with the material's
            Poisson's ratio. "springs": each edge is a spring; Poisson's ratio is 1/3 and the stiffness depends on the
            mesh. None: "continuum" with "midedge", "springs" with "hinge", as in the papers.
        name : label for `SelfContact(between=...)`; several rods and shells may have the same.
        """
        points, faces = check_triangles(nodes, triangles, where="shell")
        check_choice("bending", bending, BENDING)
        membrane = USUAL_MEMBRANE[bending] if membrane is None else membrane
        check_choice("membrane", membrane, MEMBRANE)
        check_choice("natural", natural, NATURAL["shell"])
        check_name(name)
        constants = face_constants(thickness, material, stiffness or {}, membrane, bending, len(faces))
        index = self._join(points, where="shell")
        self._materials.append((material, len(stiffness or {}) < 2))  # False where both stiffnesses are given
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
        """Fix nodes, given by indices (each once), a bool mask (N,), or a box (min, max).

        A box contains the nodes on its faces, too, also those that rounding puts outside: by up to a millionth of the
        extent of the robot's nodes so far.

        To clamp a rod, fix its end node with a direction. Without a direction, fix two nodes: the rod then is clamped
        half an edge too far along it, and the deflection of its tip is off by about 1.5 / edges (docs/rods.md).

        Parameters
        ----------
        axes : which components are fixed; by default "xyz", unless `along` or `normal` is given. "" fixes none, for
            clamps of the twist or a direction alone. A clamp that holds nothing is refused when the model is built.
        twist : also fix the angle of edges whose two nodes are both in this set: the twist of rods and the mid-edge
            normals of shells (without it a shell is hinged there). With a direction, also the twist of rods at the
            nodes.
        direction : "rest": hold the tangent that each rod edge at these nodes has in the rest shape. A vector: hold
            this tangent, which points from each edge's first node to its second. None: rods turn freely about the
            nodes. The vector counts as the tangent of the rest shape, too: where that is the shape as built
            (`natural="initial"`), it states the tangent of a curved rod at the node, and does not bend the rod. To make
            a rod point elsewhere than as built, add it with `natural="straight"`, or turn the clamp by `Control.pose`.
        along : (3,), or (B, 3) for one per robot; in place of axes: the nodes slide along this line without friction,
            and are held across it.
        normal : (3,) or (B, 3); in place of axes: the nodes slide in the plane with this normal, and are held along it.

        Lines and planes keep their directions also where `Control.pose` turns a clamp. Several clamps of a node add up:
        it is held in all directions in which one of them holds it. Poses take it along with the last clamp that holds
        it in some direction.
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
        self._masses.append((index, _number_for_each("mass", mass, "nodes")))
        self._warn_of_model_made("add_mass")

    def add_inertia(self, edges: Indices, across: Number, along: Number | None = None) -> None:
        """Add the rotational inertia of an object fixed to each of some rod edges: a disc, a motor, a tool.

        Its mass is not included: add it by `add_mass` to the node at the object's centre.

        Parameters
        ----------
        edges : indices of rod edges, each once, or a bool mask (E,).
        across : moment of inertia about axes across the edge [kg m^2], above zero, () or (B, 1). One number for all of
            these axes: right for a body that is symmetric about the edge, and for any motion in a plane.
        along : moment of inertia about the edge itself [kg m^2], likewise; None adds nothing. Planar robots, which do
            not twist, refuse it.
        """
        index = distinct_indices(edges, sum(len(group.edges) for group in self._rods), "inertia.edges")
        if along is not None and self.planar:
            raise InputError("inertia.along: the robot is planar, and its rods do not twist; leave it out")
        given = {name: value for name, value in (("across", across), ("along", along)) if value is not None}
        numbers = {name: _number_for_each(f"inertia.{name}", value, "edges") for name, value in given.items()}
        self._fixed.append(EdgeInertia(index, numbers["across"], numbers.get("along")))
        self._warn_of_model_made("add_inertia")

    def set_spring_stiffness(
        self, springs: Elements, EI1: Number | None = None, EI2: Number | None = None, GJ: Number | None = None
    ) -> None:
        """Set stiffnesses of some bend-twist springs [N m^2], in place of those that follow from their edges.

        EI1 and EI2 are about the axes half-way between the sections of both edges; where rods branch, and at shells,
        about the axes of the edge that was added first (docs/rods.md, "Axes at joints").

        Parameters
        ----------
        springs : (k, 3) the three nodes of each spring in the order of the rod, with its centre in the middle; either
            direction will do.
        EI1, EI2, GJ : (), (k,), (B, 1) or (B, k); None leaves the value that follows from the edges.
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
        """Add contact of the robot with an obstacle, or of its parts with each other.

        Of several `SelfContact`, one may be for all parts; those that name parts have precedence over it.
        """
        kinds = "an obstacle, contact.Obstacle(shape, response), or contact.SelfContact(response)"
        check_module("add_contact", contact, (Obstacle, SelfContact), kinds)
        names = {"kinetic", *(f.name for f in self._forces if isinstance(f, Obstacle))}
        names |= {other.name for other in self._self_contacts}
        if isinstance(contact, Obstacle):
            names.add("self_contact")
        if contact.name in names or re.fullmatch(r"part\d+", contact.name):
            raise InputError(f"add_contact: {contact.name!r} is the name of something else; choose another name")
        if isinstance(contact, Obstacle):
            self._forces.append(contact)
        else:
            self._self_contacts.append(contact)
        self._warn_of_model_made("add_contact")

    def add_term(self, term: ElasticTerm) -> None:
        """Add a user-defined elastic term: a stencil on the dofs of this robot with an energy."""
        self._laws.add_term(term)
        self._warn_of_model_made("add_term")

    def add_energy(self, name: str, energy: Energy, part: str | None = None) -> None:
        """Add an energy density to that of the elastic term `name`.

        ==============  ======================================  ==================================
        term            strains                                 density
        ==============  ======================================  ==================================
        "stretch"       stretch of rod edges [1]                J/m
        "bend_twist"    kappa1, kappa2, twist of rods [1/m]     J/m
        "membrane"      stretch of shell edges [1] ("springs")  J/m
        "membrane"      E11, E22, E12 [1] ("continuum")         J/m^2
        "hinge"         angle [rad]                             J per hinge
        "midedge"       b11, b22, b12 [1/m]                     J/m^2
        ==============  ======================================  ==================================

        Natural strains are subtracted from the strains first. At corners and joints of rods the strains of "bend_twist"
        are multiplied by the corner matrix, as for the rod's own energy (docs/rods.md, "Corners and branches"), also
        for dissipations and inelastic laws.

        Parameters
        ----------
        part : name of this energy in reports; by default "residual", or "stretch_residual", "bend_twist_residual", ...
            where several energies are added without a name.
        """
        self._laws.add_energy(name, energy, part)
        self._warn_of_model_made("add_energy")

    def replace_energy(self, name: str, energy: Energy) -> None:
        """Replace the linear energy density of a term (see `add_energy`); energies that were added remain."""
        self._laws.replace_energy(name, energy)
        self._warn_of_model_made("replace_energy")

    def add_dissipation(self, name: str, dissipation: Energy) -> None:
        """Add a dissipation to a term: a density of power as a function of strain rates (see `add_energy`; W for J).

        It has to be convex with its minimum where all rates are 0; `finalize` refuses one whose derivatives are not 0
        there.
        """
        self._laws.add_dissipation(name, dissipation)
        self._warn_of_model_made("add_dissipation")

    def add_inelastic(self, name: str, law: Inelastic, part: str | None = None) -> None:
        """Add a material law with memory to a term: `elastic.Dahl` (hysteresis), `elastic.Maxwell` (relaxation), ...

        The law's stress is added to that of the term's energy (see `add_energy` for the terms).

        Parameters
        ----------
        part : name of the law among constants and in reports; by default its class name in lower case.
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
        """Return the model; parts that are added to the builder afterwards do not change it.

        A builder with forces, contact, energies or laws makes one model, to which these belong; a builder without them
        makes any number.

        Parameters
        ----------
        solver : "auto", or the name of a linear solver: dense, banded, multifrontal, pcg, bicgstab. With
            options it is a mapping, {"name": "pcg", "tolerance": 1e-10, "product": "torch-sparse"}; see the classes in
            `solve.linear`.
        compile : True, False, or "auto": compile the functions that steps evaluate if steps take long enough for that
            to pay (see `Model`).
        dtype : of positions, forces and constants: torch.float64, or torch.float32.
        device : of positions, forces and constants, such as "cuda"; None is the CPU.

        Raises
        ------
        InputError
            The robot has no parts; dtype or device is not supported; or parts, clamps, forces and constants do not fit
            each other, in which case the message names them.
        """
        refuse_other_dtype("dtype", dtype)
        check_device(device)
        self._check_parts()
        modules = self._laws.modules()
        refuse_shared("finalize", modules)
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
        warn_of_thin_obstacles(model.body, model.obstacles)
        mark_owned(modules)
        self._model_made, self._spent = True, bool(forces or modules or self._self_contacts)
        return model.to(device=device, dtype=dtype)

    def _check_parts(self) -> None:
        """Refuse a robot without parts, and a planar one with parts or loads out of its plane; warn of odd numbers."""
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
        """Return the elastic terms of rods and shells, then the user's terms, with all added energies and laws.

        Parameters
        ----------
        corners : the corner matrices of springs, see `rod_corners`.
        dtype : of the model; stiffnesses that it cannot represent are refused.
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
        """Refuse stiffnesses, by their names, that have no effect on the rods so far because the robot is planar."""
        if self.planar:
            turned = not self._rods or any(group.directors is not None for group in self._rods)
            refuse_stiffness_out_of_plane(what, names, turned)

    def _warn_of_model_made(self, what: str) -> None:
        """Warn, once, that a part was added after a model was made, which does not contain it."""
        if self._model_made:
            self._model_made = False
            anew = "by another builder, as forces, energies and laws belong to one" if self._spent else "by finalize()"
            warn(
                f"{what}: comes after finalize(), whose model does not change: add everything first, or make another "
                f"model {anew}; or, if that is meant, warnings.filterwarnings('ignore', '{what}: comes after')"
            )

    def _join(self, points: np.ndarray, where: str) -> np.ndarray:
        """Add the points (k, 3) that are no nodes yet, and return the node index (k,) of each point."""
        self._nodes, index = joined_nodes(self._nodes, points, self.join_distance, where)
        self._warn_of_model_made(where)
        return index


def _number_for_each(where: str, given: Number, elements: str) -> Tensor:
    """Return a number above 0 as a tensor () or (B, 1), the same for each element; refuse other shapes."""
    number = positive(given, where)
    if number.dim() and number.shape[1:] != (1,):  # (k,) would be ambiguous: one number per robot, or per element
        raise InputError(
            f"{where}: expected one number, or one of each robot with shape (B, 1), got {tuple(number.shape)}; "
            f"{elements} with other numbers take a call each"
        )
    return number
