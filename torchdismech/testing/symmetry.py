"""Checks of invariance: forces and energies under rotation, translation, renumbering and reversal of edges."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.errors import InputError, refuse_other_kind, truth
from torchdismech.forces import Force
from torchdismech.geometry.surface import find_surface
from torchdismech.geometry.topology import NO_PAIRS, Held, find_joint_springs, find_rods, find_springs
from torchdismech.model import Model
from torchdismech.robot.body import Body, Sections
from torchdismech.robot.state import Control, State, control_of
from torchdismech.testing.report import (
    SYMMETRY,
    Report,
    comparison,
    fixed_generator,
    rounding,
)
from torchdismech.testing.robots import prepare_check
from torchdismech.values import numbers

__all__ = ["check_rigid_motion", "check_symmetry"]


def check_symmetry(
    force: Force,
    model: Model,
    state: State,
    control: Control | None = None,
    rotation: str | None = "gravity",
    translation: bool = True,
    relabelling: bool = True,
    reversal: bool = True,
    gravity: tuple[float, float, float] = (0.0, 0.0, -1.0),
) -> Report:
    """Check symmetries that a force is supposed to have, at a state (B, n) that moves and is deformed.

    A force that does not belong to a model yet is bound to this model's robot, as by `check_force`.

    Parameters
    ----------
    rotation : "gravity": rotating the robot about the axis of gravity rotates the force with it; "any": the same about
        an arbitrary axis; None: not checked.
    translation : check that moving the robot does not change the force.
    relabelling : check that renumbering nodes and edges only renumbers the force.
    reversal : the same with random edges stored in the opposite direction, which reverses their second material
        director.
    gravity : direction of the axis.
    """
    control = control_of(control)
    prepare_check("check_symmetry", force, model, state, control)
    claims = {"translation": translation, "relabelling": relabelling, "reversal": reversal}
    for claim, made in claims.items():
        truth(made, f"check_symmetry: {claim}")
    if rotation not in ("gravity", "any", None):
        raise InputError(f"check_symmetry: rotation has to be 'gravity', 'any' or None, got {rotation!r}")
    axis = numbers((0.3, -0.8, 0.5) if rotation == "any" else gravity, "check_symmetry: gravity")
    if axis.shape != (3,) or not 0 < float(axis.norm()) < np.inf:
        raise InputError(f"check_symmetry: gravity: expected a direction (3,) that is not zero, got {gravity!r}")
    report = Report(f"{type(force).__name__}: symmetries, {state.batch} robots")
    value = force(state, control).detach()
    doubt = _rounding(lambda at: force(at, control), state)
    if rotation is not None:
        turn = _turn(axis.to("cpu", torch.float64)).to(value)
        name = "turns with the robot" + (" about gravity" if rotation == "gravity" else "")
        found = force(_turned(state, turn), control).detach()
        report.checks.append(comparison(name, found, _on_nodes(value, turn, state), SYMMETRY, doubt))
    if translation:
        shift = torch.tensor([0.7, -1.3, 0.4], dtype=value.dtype, device=value.device)
        q = _with_positions(state, state.positions + shift)
        report.checks.append(
            comparison("moves with the robot", force(state.replace(q=q), control).detach(), value, SYMMETRY, doubt)
        )
    for claimed, flips, name in ((relabelling, False, "other numbers"), (reversal, True, "edges the other way round")):
        if claimed:
            found = _relabelled(force, model.body, state, control, flips)
            report.checks.append(comparison(name, found, value, SYMMETRY, doubt))
    return report


def check_rigid_motion(model: Model, state: State) -> Report:
    """Check that the elastic energies of a model's terms do not change when a robot is turned and moved."""
    for name, given, kind in (("model", model, Model), ("state", state, State)):
        refuse_other_kind(f"check_rigid_motion(model, state): {name}", given, kind, f"a {kind.__name__}")
    report = Report(f"elastic energies under a rigid motion: {', '.join(t.name for t in model.terms)}")
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=fixed_generator(), device="cpu"))
    turn = (turn * torch.linalg.det(turn)).to(state.q)
    turned = _turned(state, turn)
    positions = turned.positions + torch.tensor([0.3, -0.2, 0.5], dtype=state.q.dtype, device="cpu")
    moved = turned.replace(q=_with_positions(turned, positions))
    before, after = model.energies(state), model.energies(moved)
    for name in before:
        if name != "kinetic":
            # rounded positions times the stretching stiffness change a small energy by far more than 1e-12 of it
            doubt = _rounding(partial(_energy, model, name), state)
            report.checks.append(comparison(name, after[name], before[name], 1e-8, doubt))
    return report


def _energy(model: Model, name: str, state: State) -> Tensor:
    return model.energies(state)[name]


def _rounding(function: Callable[[State], Tensor], state: State) -> float:
    """Return an upper estimate of the change of a function by rounding of positions about 1 m from the origin.

    A force that is zero in exact arithmetic is of this size.
    """
    return rounding(lambda q: function(state.replace(q=q)), state.q, 1.0 + state.q.abs().max())


def _turn(axis: Tensor) -> Tensor:
    """Return the rotation matrix (3, 3) about an axis (3,) by 1.234 rad."""
    a = axis / torch.linalg.vector_norm(axis)
    cross = torch.linalg.cross(a.expand(3, 3), torch.eye(3, dtype=torch.float64, device="cpu")).mT
    return torch.linalg.matrix_exp(1.234 * cross)


def _turned(state: State, turn: Tensor) -> State:
    """Return the state with all its vectors rotated."""
    return state.replace(
        q=_on_nodes(state.q, turn, state),
        velocity=_on_nodes(state.velocity, turn, state),
        acceleration=_on_nodes(state.acceleration, turn, state),
        director=state.director @ turn.mT,
        tangent=state.tangent @ turn.mT,
    )


def _on_nodes(value: Tensor, turn: Tensor, state: State) -> Tensor:
    """Return a vector of dofs (B, n) with the vectors of nodes and of held tangents rotated."""
    sizes = (3 * state.n_nodes, state.twist.shape[1], 3 * state.n_held)
    nodes, angles, held = value.split(sizes, dim=1)
    nodes, held = (vectors.unflatten(1, (-1, 3)) @ turn.mT for vectors in (nodes, held))
    return torch.cat([nodes.flatten(1), angles, held.flatten(1)], dim=1)


def _with_positions(state: State, positions: Tensor) -> Tensor:
    """Return the q (B, n) of a state with other positions (B, N, 3) of its nodes."""
    return torch.cat([positions.flatten(1), state.q[:, 3 * state.n_nodes :]], dim=1)


def _relabelled(force: Force, body: Body, state: State, control: Control, flips: bool) -> Tensor:
    """Return the force (B, n) computed on the same robot with other numbers for nodes and edges, in the old numbering.

    With `flips` about half of the rod edges are reversed, too. Control fields per dof, edge or spring are not
    renumbered, so the control should set none that the force reads.
    """
    generator = fixed_generator()
    node, edge = (torch.randperm(k, generator=generator, device="cpu") for k in (body.n_nodes, body.n_edges))
    angle = torch.cat([edge, torch.arange(body.n_edges, body.n_angles, device="cpu")])
    chance = torch.rand(len(edge), generator=generator, device="cpu")
    sign = torch.where(chance < 0.5, -1.0, 1.0).to(state.q) if flips else None
    other = _other_body(body, node, edge, sign)
    vectors = torch.arange(body.first_held, body.n_dofs, device="cpu")
    dofs = torch.cat([(3 * node[:, None] + torch.arange(3, device="cpu")).flatten(), 3 * body.n_nodes + angle, vectors])
    ends = torch.ones(body.n_angles, dtype=state.q.dtype, device="cpu")
    if sign is not None:
        ends[: len(edge)] = sign
    signs = torch.ones(body.n_dofs, dtype=state.q.dtype, device="cpu")
    signs[3 * body.n_nodes : body.first_held] = ends
    moved = state.replace(
        **{name: (getattr(state, name)[:, dofs] * signs) for name in ("q", "velocity", "acceleration")},
        director=state.director[:, angle],
        tangent=state.tangent[:, angle] * ends[:, None],
        reference_twist=state.q.new_zeros(state.batch, len(other.springs.nodes)),
    )
    twin = copy.deepcopy(force)
    del twin.body
    twin.bind(other)
    found = twin(moved, control).detach() * signs
    return torch.zeros_like(found).index_copy(1, dofs, found)


def _other_body(body: Body, node: Tensor, edge: Tensor, sign: Tensor | None) -> Body:
    """Return the body whose node k is the old `node[k]`, rod edge k the old `edge[k]`, reversed where `sign` is -1."""
    new_number = torch.argsort(node).numpy()
    edges = new_number[body.rod_edges[edge.numpy()]]
    if sign is not None:
        edges = np.where((sign < 0).numpy()[:, None], edges[:, ::-1], edges)
    pairs = [np.stack([r.edges, np.roll(r.edges, -1)], axis=1)[: None if r.ring else -1] for r in body.rods]
    going_on = torch.argsort(edge).numpy()[np.concatenate([NO_PAIRS, *pairs])]
    rods = find_rods(body.n_nodes, edges, going_on)
    joints, normals = new_number[body.joint_edges], new_number[body.normal_edges]
    springs = find_springs(body.n_nodes, edges, rods)
    if len(joints):
        springs = springs.joined(find_joint_springs(body.n_nodes, np.concatenate([edges, joints]), len(edges)))
    there, along = new_number[body.held.nodes], torch.argsort(edge).numpy()[body.held.edges]
    held = Held(there, along, edges[along, 0] == there, body.held.clamps)
    springs = springs.joined(held.springs(edges, body.n_angles - body.n_held))
    angle = torch.cat([edge, torch.arange(body.n_edges, body.n_angles, device="cpu")])
    which, own = edge.numpy(), body.sections
    return Body(
        nodes=body.nodes[node],
        rod_edges=edges,
        joint_edges=joints,
        normal_edges=normals,
        rods=rods,
        springs=springs,
        surface=find_surface(new_number[body.triangles]),
        held=held,
        clamps=(),
        part_names=dataclasses.replace(body.part_names, edges=body.part_names.edges[which]),
        sections=Sections(*(x[..., which] for x in (own.height, own.width, own.round))),
        radius_known=body.radius_known[which],
        directors=body.directors[angle],
        held_tangents=body.held_tangents,
        **_sizes(body, node, edge, angle),
    )


def _sizes(body: Body, node: Tensor, edge: Tensor, angle: Tensor) -> dict[str, Tensor | None]:
    """Return the masses, lengths, areas and radii of a body, renumbered by old indices of nodes, edges and angles."""
    nodes = (3 * node[:, None] + torch.arange(3, device="cpu")).flatten()
    mass = torch.cat([nodes, 3 * body.n_nodes + angle, torch.arange(body.first_held, body.n_dofs, device="cpu")])
    return {
        "mass": body.mass[..., mass],
        "link_share": body.link_share,
        "edge_inertia": None if body.edge_inertia is None else body.edge_inertia[..., edge],
        "edge_length": body.edge_length[..., edge],
        "edge_area": body.edge_area[..., edge],
        "edge_radius": body.edge_radius[..., edge],
        "edge_contact_radius": body.edge_contact_radius[..., edge],
        "shell_edge_length": body.shell_edge_length,
        "face_area": body.face_area,
        "face_contact_radius": body.face_contact_radius,
        "hinge_angle": body.hinge_angle,
        "node_length": body.node_length[..., node],
        "node_volume": body.node_volume[..., node],
    }
