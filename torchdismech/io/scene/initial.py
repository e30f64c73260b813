"""The initial state of a checked scene's robots, from its table [initial]."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from torchdismech.elastic.inelastic import internal_count
from torchdismech.io.scene.contacts import refuse_clamped_overlap
from torchdismech.io.scene.files import reading
from torchdismech.io.scene.refusals import SceneError, naming
from torchdismech.io.scene.schedule import Schedule
from torchdismech.io.schema.initial import Initial
from torchdismech.io.tables import read_vectors
from torchdismech.model import Model
from torchdismech.model.released import without_held
from torchdismech.robot.state import State
from torchdismech.trajectory import Trajectory
from torchdismech.values import tensor_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["initial_state"]

KEY = "initial"
AS_BUILT = 1e-9  # m, rad: rounding in files and angles
OF_ANOTHER = "is a run of another robot: expected the same nodes, edges, triangles, joints and held directions, or none"
ASTRAY = 1e-2  # [rad] most by which directors transported from stored frame to stored frame may be off at the last one


def initial_state(scene: Scene, model: Model, schedule: Schedule) -> State:
    """Return the initial state of a scene's robots, with the acceleration that the forces give them under its schedule.

    Raises
    ------
    SceneError
        Files and trajectories that do not fit, robots that begin inside of what they touch, clamped nodes that do not
        begin where [[move]] moves them from.
    """
    table = scene.document.initial or Initial.model_construct()
    state = _placed(scene, model, table)
    if not bool(torch.isfinite(state.director).all()):
        robot, edge = (~torch.isfinite(state.director).all(-1)).nonzero()[0].tolist()
        problem = f"edge {edge} of robot {robot} points right against where it does as built: its frame is not known"
        raise SceneError(scene.path, KEY, problem)
    if model.in_plane is not None:
        with naming(scene.path, (KEY,)):
            model.in_plane.refuse_shape("positions", state.q)
            model.in_plane.refuse_velocity("velocities", state.velocity)
    _refuse_displaced_clamps(scene, model, state)
    refuse_clamped_overlap(scene, model, state.positions)
    state = state.replace(velocity=model.unknowns.with_held(state.velocity, 0.0))
    control = schedule(state.time, model)
    with naming(scene.path, () if scene.document.initial is None else (KEY,)):
        if table.velocity is None and table.angular_velocity is None:
            state = model.accelerated(state, control)
        else:
            center = None if table.center is None else _vector(scene, state, "center")
            turn = _vector(scene, state, "angular_velocity")
            state = model.thrown(state, _vector(scene, state, "velocity"), turn, center, table.nodes, control)
    if table.moved and not bool(state.finite().all()):
        robot = int((~state.finite()).nonzero()[0])
        problem = f"forces on robot {robot} are not finite where it begins: a triangle or an edge has no size there"
        raise SceneError(scene.path, KEY, problem)
    return state


def _vector(scene: Scene, like: State, name: str) -> Tensor:
    """Return the vector `name` of [initial], (3,), or (B, 3) where it is drawn; zero where it is not given."""
    given = getattr(scene.values.initial, name)
    return like.q.new_zeros(3) if given is None else tensor_of(given, torch.float64).to(like.q)


# ---- where -------------------------------------------------------------------------------------------------------


def _placed(scene: Scene, model: Model, table: Initial) -> State:
    """Return the robots at their initial positions, with velocities from files; accelerations are not known yet."""
    if table.trajectory is not None:
        with reading(scene.path, (KEY, "trajectory"), table.trajectory) as path:
            run = Trajectory.load(path).resumable()
        state = _in_frame(scene, model, table, run)
    else:
        state = model.rest_state(scene.batch)
        if table.positions_file is not None:
            state = model.frames.moved(state, _posture(scene, model, table.positions_file))
    if table.velocity_file is not None:
        velocity = _of_nodes(scene, model, "velocity_file", table.velocity_file).flatten()
        other_dofs = velocity.new_zeros(model.n_dofs - len(velocity))
        state = state.replace(velocity=torch.cat([velocity, other_dofs]).expand(scene.batch, -1).contiguous())
    return state


def _posture(scene: Scene, model: Model, name: str) -> Tensor:
    """Return the dofs q (B, n) of robots with the node positions of a file."""
    x = _of_nodes(scene, model, "positions_file", name)
    with naming(scene.path, (KEY, "positions_file")):
        q = model.posture(x.expand(scene.batch, -1, -1).contiguous())
    if not bool(torch.isfinite(q).all()):
        raise SceneError(scene.path, (KEY, "positions_file"), f"{name}: a triangle has no area there, and no normal")
    return q


def _of_nodes(scene: Scene, model: Model, key: str, name: str) -> Tensor:
    """Return a vector for each node, (N, 3), from the file that [initial] names under `key`."""
    with reading(scene.path, (KEY, key), name) as path:
        return read_vectors(path, model.body.n_nodes, "node").to(model.nodes)


def _in_frame(scene: Scene, model: Model, table: Initial, run: Trajectory) -> State:
    """Return the robots in a frame of an earlier run, with the time set to 0 and accelerations still unknown."""
    last_state = _last_state(scene, model, run)
    rows = _rows(scene, table, run)
    frames = len(run.time)
    if not -frames <= table.frame < frames:
        raise SceneError(scene.path, (KEY, "frame"), f"expected {-frames} to {frames - 1}, got {table.frame}")
    frame = table.frame % frames
    last = last_state.rows(rows).to(model.nodes)
    if int(run.step[frame]) == run.state_step:
        state = last
    elif last.n_held != run.state.n_held:
        problem = "clamps with a direction of that run are let go, which its last frame alone can be: expected -1"
        raise SceneError(scene.path, (KEY, "frame"), problem)
    else:
        state = _carried(scene, model, _with_state_as_frame(run), rows, frame, last)
    return state.replace(time=torch.zeros_like(state.time), acceleration=torch.zeros_like(state.q))


def _with_state_as_frame(run: Trajectory) -> Trajectory:
    """Return the run with its full state as the last frame, also where it was saved without that frame."""
    if int(run.step[-1]) == run.state_step:
        return run
    state = run.state
    row = {"positions": state.positions, "velocities": state.node_velocities, "twist": state.twist}
    row["time"] = state.time.max()
    longer: dict[str, Any] = {name: torch.cat([getattr(run, name), x[None]]) for name, x in row.items()}
    return dataclasses.replace(run, **longer)


def _carried(scene: Scene, model: Model, run: Trajectory, rows: Tensor, frame: int, last: State) -> State:
    """Return the robots in a frame before the last one; a file stores no directors of such frames.

    Directors are transported from the rest state through all stored frames. Those of the last frame are compared with
    the stored ones `last`, which shows whether frames are close enough for that; if not, the frame is refused.
    """
    rest_tangents = model.body.held_tangents
    if rest_tangents.numel() and not torch.equal(last.held_tangents, rest_tangents.expand_as(last.held_tangents)):
        problem = "clamps turned in that run, and only its last frame says how: expected -1"
        raise SceneError(scene.path, (KEY, "frame"), problem)
    if last.internal is not None:
        problem = "what materials remember is stored with the last frame only: expected -1"
        raise SceneError(scene.path, (KEY, "frame"), problem)
    state, state_in_frame = model.rest_state(len(rows)), None
    for k in range(len(run.time)):
        positions, angles = (x[k][rows].to(model.nodes) for x in (run.positions, run.twist))
        state = model.frames.moved(state, model.body.q_of(positions, angles))
        if k == frame:
            state_in_frame = state.replace(velocity=_velocity(run, rows, k).to(state.q))
    turn = torch.linalg.vector_norm(state.director - last.director, dim=-1)
    if turn.numel() and float(turn.max()) > ASTRAY:
        problem = (
            f"how sections are turned is known in the last frame only: carried along from frame to frame they are off "
            f"by {float(turn.max()):.2g} rad at the end: expected -1, or a run with more frames (output.every)"
        )
        raise SceneError(scene.path, (KEY, "frame"), problem)
    assert state_in_frame is not None
    return state_in_frame


def _velocity(run: Trajectory, rows: Tensor, frame: int) -> Tensor:
    """Return the velocity (B, n) in a frame before the last one; rates of angles are differences of its neighbours."""
    previous, following = max(frame - 1, 0), frame + 1
    angle_rates = (run.twist[following] - run.twist[previous])[rows] / (run.time[following] - run.time[previous])
    tangent_rates = angle_rates.new_zeros(len(rows), 3 * run.state.n_held)
    return torch.cat([run.velocities[frame][rows].flatten(1), angle_rates, tangent_rates], dim=1)


def _rows(scene: Scene, table: Initial, run: Trajectory) -> Tensor:
    """Return the index (B,) of the robot of the run whose state each robot of the scene takes."""
    if table.robot is not None:
        if table.robot >= run.batch:
            raise SceneError(scene.path, (KEY, "robot"), f"expected 0 to {run.batch - 1}, got {table.robot}")
        return torch.full((scene.batch,), table.robot, device="cpu")
    if run.batch not in (1, scene.whole):
        problem = f"has {run.batch} robots, and the scene has {scene.whole}: say which by robot"
        raise SceneError(scene.path, (KEY, "trajectory"), problem)
    if run.batch == 1:
        return torch.zeros(scene.batch, dtype=torch.long, device="cpu")
    return torch.tensor(list(scene.robots), device="cpu")


def _last_state(scene: Scene, model: Model, run: Trajectory) -> State:
    """Return the last state of a run, refused unless it is of this robot, with the same laws that remember.

    If the run's robot has clamps with a direction, and this one has none, they are let go.
    """
    body = model.body
    if not isinstance(run.state, State):
        raise SceneError(scene.path, (KEY, "trajectory"), OF_ANOTHER)
    state = State.of(run.state)
    if state.n_held and not body.n_held:
        state = _let_go(scene, state)
    expected = (body.n_dofs, body.n_angles, len(body.springs.nodes), body.n_held)
    same_robot = (
        (state.q.shape[1], state.director.shape[1], state.reference_twist.shape[1], state.n_held) == expected
        and run.rod_edges.tolist() == model.rod_edges.tolist()
        and run.triangles.tolist() == model.triangles.tolist()
    )
    if not same_robot:
        raise SceneError(scene.path, (KEY, "trajectory"), OF_ANOTHER)
    internal = 0 if state.internal is None else state.internal.shape[1]
    if internal != internal_count(model.terms) or _laws(run) not in (None, scene.tables.get("inelastic", [])):
        problem = "is a run of a robot of other materials: expected the same laws that remember"
        raise SceneError(scene.path, (KEY, "trajectory"), problem)
    return state


def _let_go(scene: Scene, state: State) -> State:
    """Return a state without the held tangents of its clamps; refuse one with internal variables."""
    if state.internal is not None:
        problem = "clamps with a direction are let go where materials remember: expected to do so in Python, by "
        raise SceneError(scene.path, (KEY, "trajectory"), f"{problem}model.released(state, before)")
    return without_held(state, [])


def _laws(run: Trajectory) -> list | None:
    """Return the tables [[inelastic]] of the scene of a run; None if the run was not made from a scene."""
    text = run.attributes.get("tables")
    return None if text is None else json.loads(text).get("inelastic", [])


def _refuse_displaced_clamps(scene: Scene, model: Model, state: State) -> None:
    """Refuse [[move]] if clamped dofs do not begin as the robot was built: motions are relative to that."""
    if not scene.document.move:
        return
    off = model.unknowns.with_held(torch.zeros_like(state.q), state.q - model.body.rest_q).abs() > AS_BUILT
    if bool(off.any()):
        robot, dof = off.nonzero()[0].tolist()
        what = f"node {dof // 3}" if dof < 3 * model.body.n_nodes else "an edge"
        problem = (
            f"{what} of robot {robot} is clamped and does not begin where it is as built, from where [[move]] moves "
            "it: begin elsewhere, or move it from there by actuation.python, with a pose or clamped_q of its Control"
        )
        raise SceneError(scene.path, KEY, problem)
