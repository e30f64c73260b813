"""The schedule of a checked scene: motions of clamped nodes and edges, natural strains, constants that files drive."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from torchdismech.elastic.natural import continuum_triangles
from torchdismech.errors import warn
from torchdismech.io.scene.actuators import driven_over_time
from torchdismech.io.scene.files import table_over_time
from torchdismech.io.scene.refusals import Key, SceneError
from torchdismech.io.scene.schedule import NodeMotion, Path3, Rotation, Schedule, Translation, Twisting
from torchdismech.io.scene.turning import refuse_half_turns_in_a_step
from torchdismech.io.schema import scene as schema
from torchdismech.io.tables import TimeTable
from torchdismech.model import Model
from torchdismech.values import tensor_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["build_schedule"]

AXES = "xyz"
CURVATURES = ("kappa1", "kappa2")
ROUNDING = 1e-12  # of natural curvatures
LEAP = 1e-2  # over the robot's extent: a path of a node may begin so far from where that is
OUT_OF_SHAPE = 1e-6  # over the distance between two nodes of a clamp: files have fewer digits than float64


def build_schedule(scene: Scene, model: Model) -> Schedule:
    """Return the schedule of a scene, but for the function that actuation.python names, which is not run here."""
    node_motions, edge_motions = _node_motions(scene), _edge_motions(scene)
    _refuse_unclamped_motions(scene, model)
    rotations = {k: motion for k, motion in node_motions.items() if isinstance(motion, Rotation)}
    turning = {node for rotation in rotations.values() for node in rotation.index}
    poses = not turning.isdisjoint(model.body.held.nodes.tolist())
    if poses:
        _refuse_split_clamps(scene, model)
        _refuse_turned_edges(scene, model)
        _refuse_paths_out_of_shape(scene, model, {k: m for k, m in node_motions.items() if isinstance(m, Path3)})
        refuse_half_turns_in_a_step(scene, rotations)
    return Schedule(
        poses=poses,
        node_motions=list(node_motions.values()),
        edge_motions=edge_motions,
        strains=_strains(scene, model),
        values=driven_over_time(scene, model),
    )


def _node_motions(scene: Scene) -> dict[int, NodeMotion]:
    """Return the motions of nodes by the number of their [[move]]; refuse two of one node at the same time."""
    motions: dict[int, NodeMotion] = {}
    for k, move in enumerate(scene.values.move):
        if move.nodes is not None:
            motion = _node_motion(scene, k, move)
            clashing = [number for number, earlier in motions.items() if motion.overlaps(earlier)]
            if clashing:
                problem = f"a node is moved by move.{clashing[0]} at the same time: set start and stop apart"
                raise SceneError(scene.path, ("move", k, "nodes"), problem)
            motions[k] = motion
    return motions


def _edge_motions(scene: Scene) -> list[Twisting]:
    moves = [move for move in scene.values.move if move.edges is not None]
    return [Twisting(m.edges, m.start, m.stop, tensor_of(m.twist_rate, torch.float64)) for m in moves]


def _node_motion(scene: Scene, k: int, move: schema.Move) -> NodeMotion:
    assert move.nodes is not None
    key: Key = ("move", k)
    if move.velocity is not None:
        return Translation(move.nodes, move.start, move.stop, tensor_of(move.velocity, torch.float64))
    if move.rotation is not None:
        turn = move.rotation
        axis, center, rate = (tensor_of(x, torch.float64) for x in (turn.axis, turn.center, turn.rate))
        return Rotation(move.nodes, move.start, move.stop, axis, center, rate)
    assert move.file is not None
    count = len(move.nodes)
    table = table_over_time(scene, (*key, "file"), move.file, {3 * count: f"x y z of {count} nodes"})
    sideways = table.values[:, 1::3] != torch.as_tensor(scene.geometry.nodes[move.nodes, 1], device="cpu")
    if scene.document.robot.planar and bool(sideways.any()):
        row, column = sideways.nonzero()[0].tolist()
        problem = f"{move.file}: at {table.times[row]:g} s y of node {move.nodes[column]} is not that as built: "
        raise SceneError(scene.path, (*key, "file"), f"{problem}a planar robot cannot leave the x-z plane")
    motion = Path3(move.nodes, -np.inf, np.inf, table)
    _warn_of_leap(scene, (*key, "file"), motion)
    return motion


def _warn_of_leap(scene: Scene, key: Key, motion: Path3) -> None:
    """Warn of a path that begins elsewhere than its nodes are as built: the first step takes them there at once."""
    nodes = torch.as_tensor(scene.geometry.nodes, device="cpu")
    built = nodes[motion.index]
    leap = torch.linalg.vector_norm(motion.moved(built[None], built.new_zeros(1))[0] - built, dim=1)
    worst = int(leap.argmax())
    if leap[worst] > LEAP * (nodes.amax(0) - nodes.amin(0)).max():
        where = ".".join(map(str, key))
        warn(
            f"{scene.path}: {where}: begins {leap[worst]:.4g} m from where node {motion.index[worst]} is as built, and "
            "the first step takes it there at once: the file has to have positions, not displacements"
        )


def _refuse_unclamped_motions(scene: Scene, model: Model) -> None:
    """Refuse motion of dofs that no clamp holds, and motion out of a planar robot's plane."""
    free = model.free.cpu().numpy()
    for k, move in enumerate(scene.values.move):
        axes = _moved_axes(move, scene.document.robot.planar)
        for axis in axes:
            loose = [i for i in move.nodes or [] if free[3 * i + axis]]
            if loose:
                problem = f"node {loose[0]} is moved in {AXES[axis]} but not clamped there: add it to a [[clamp]]"
                raise SceneError(scene.path, ("move", k, "nodes"), problem)
        loose = [j for j in move.edges or [] if free[3 * model.body.n_nodes + j]]
        if loose:
            problem = f"edge {loose[0]} is turned but its twist is not clamped: clamp both its nodes with twist = true"
            raise SceneError(scene.path, ("move", k, "edges"), problem)
        if scene.document.robot.planar and (1 in axes or move.edges):
            raise SceneError(scene.path, ("move", k), "a planar robot cannot leave the x-z plane")


def _refuse_split_clamps(scene: Scene, model: Model) -> None:
    """Refuse motion of only some of a clamp's nodes, in a scene where clamps move as rigid bodies.

    They do so where a clamp with a direction turns.
    """
    for k, move in enumerate(scene.document.move):
        for clamp in model.body.clamps:
            is_moved = np.isin(clamp.nodes, move.nodes or [])
            if is_moved.any() and not is_moved.all():
                problem = (
                    f"node {clamp.nodes[~is_moved][0]} of the same clamp stays: clamps with a direction turn as a whole"
                )
                raise SceneError(scene.path, ("move", k, "nodes"), problem)


def _refuse_turned_edges(scene: Scene, model: Model) -> None:
    """Refuse a twist_rate of edges that clamps hold where clamps move as rigid bodies, which sets these angles."""
    for k, move in enumerate(scene.document.move):
        for number, clamp in enumerate(model.body.clamps):
            turned = np.intersect1d(clamp.framed, move.edges or [])
            if len(turned):
                problem = (
                    f"edge {turned[0]} is held by clamp.{number}, and clamps move as rigid bodies in this scene, as "
                    "one with a direction has a rotation: give this clamp's nodes a rotation about the edge instead"
                )
                raise SceneError(scene.path, ("move", k, "twist_rate"), problem)


def _refuse_paths_out_of_shape(scene: Scene, model: Model, paths: dict[int, Path3]) -> None:
    """Refuse paths from files that turn or deform a clamp where clamps move as rigid bodies: they may only shift it."""
    for k, path in paths.items():
        for number, clamp in enumerate(model.body.clamps):
            columns = [path.index.index(node) for node in clamp.nodes if node in path.index]
            if len(columns) < 2:
                continue
            x = path.table.values.unflatten(1, (-1, 3))[:, columns]
            rest_positions = model.nodes[clamp.nodes].to(x)
            arms = rest_positions[1:] - rest_positions[0]
            off = torch.linalg.vector_norm(x[:, 1:] - x[:, :1] - arms, dim=-1)
            bad = (off > OUT_OF_SHAPE * torch.linalg.vector_norm(arms, dim=-1)).nonzero()
            if len(bad):
                row, node = bad[0].tolist()
                problem = (
                    f"turns or deforms clamp.{number}: at {path.table.times[row]:g} s node {clamp.nodes[node + 1]} is "
                    f"{off[row, node]:g} m from where it is beside node {clamp.nodes[0]} at rest. Clamps move as rigid "
                    "bodies in this scene, as one with a direction has a rotation, and files only shift them: take a "
                    "rotation instead"
                )
                raise SceneError(scene.path, ("move", k, "file"), problem)


def _moved_axes(move: schema.Move, planar: bool) -> list[int]:
    """Return the axes (0, 1, 2) along which a [[move]] may move its nodes."""
    if move.velocity is not None:
        velocity = tensor_of(move.velocity)
        return [axis for axis in range(3) if (velocity[..., axis] != 0).any()]
    if move.rotation is not None:
        direction = np.array(move.rotation.axis) / np.linalg.norm(move.rotation.axis)
        return [axis for axis in range(3) if abs(direction[axis]) < 1]
    if move.file is not None and planar:
        return [0, 2]
    return [0, 1, 2] if move.file is not None else []


def _strains(scene: Scene, model: Model) -> dict[str, TimeTable]:
    """Return the tables of natural strains over time by their keys in [actuation]."""
    given = {name: file for name, file in scene.document.actuation or () if file is not None and name != "python"}
    if "natural_twist" in given and scene.document.robot.planar:
        raise SceneError(scene.path, "actuation.natural_twist", "a planar robot does not twist")
    springs, hinges, edges = len(model.springs), len(model.hinges), len(model.rod_edges)
    triangles = continuum_triangles(model.terms)
    columns = {
        "natural_curvature": {
            springs: f"kappa1 of {springs} springs",
            2 * springs: f"kappa1 and kappa2 of {springs} springs",
        },
        "natural_twist": {springs: f"twist of {springs} springs"},
        "natural_hinge_angle": {hinges: f"angle of {hinges} hinges"},
        "natural_membrane_strain": {3 * triangles: f"E11, E22, E12 of {triangles} triangles"},
        "rest_length": {edges: f"rest length of {edges} rod edges"},
    }
    tables = {}
    for name, file in given.items():
        if 0 in columns[name]:
            raise SceneError(scene.path, f"actuation.{name}", "the robot has no such elements to actuate")
        tables[name] = table = table_over_time(scene, f"actuation.{name}", file, columns[name])
        if name == "rest_length" and not (table.values > 0).all():
            raise SceneError(scene.path, f"actuation.{name}", f"{file}: expected lengths above 0")
        if name == "natural_curvature":
            _refuse_out_of_plane(scene, file, table, model)
    return tables


def _refuse_out_of_plane(scene: Scene, file: str, table: TimeTable, model: Model) -> None:
    """Refuse natural curvatures that would bend a planar robot out of its plane."""
    if model.in_plane is None:
        return
    springs = len(model.springs)
    for k, values in enumerate(table.values.split(springs, dim=1)):
        lost = values.abs().amax(0).cpu().numpy() > ROUNDING
        lost &= ~model.in_plane.curvatures[:springs, k].cpu().numpy()
        if lost.any():
            problem = (
                f"{file}: {CURVATURES[k]} of spring {int(np.flatnonzero(lost)[0])} is out of the x-z plane, to "
                "which a planar robot keeps; leave it 0, or kappa2 out of the file"
            )
            raise SceneError(scene.path, "actuation.natural_curvature", problem)
