"""Texts of the command line: what a scene would run (`check`), and how a run went (`simulate`)."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from torchdismech.compilation import THRESHOLD
from torchdismech.contact.obstacles.mesh import Mesh
from torchdismech.contact.obstacles.shape import Shape
from torchdismech.control import Controller
from torchdismech.elastic.assembly import dofs_of
from torchdismech.errors import Status, listed
from torchdismech.integrate import SteppingMethod
from torchdismech.integrate.chunks import chunk_size
from torchdismech.integrate.recorded.recordable import has_own_terms, why_code_unrecorded, why_steps_unrecorded
from torchdismech.integrate.recorded.recording import records_eager_steps
from torchdismech.io.scene import Scene, Setup
from torchdismech.io.scene.files import named_time_tables
from torchdismech.io.schema.contact import Bounded, LawOfObstacles, ObstacleTable, SelfContact, obstacle_name
from torchdismech.model import Model
from torchdismech.model.constants import named_forces
from torchdismech.model.mechanics import Gains
from torchdismech.model.step_memory import step_bytes
from torchdismech.robot.state import Control, State
from torchdismech.system.memory import size_of
from torchdismech.system.plain import PLAIN, in_plain_torch
from torchdismech.trajectory import Trajectory

__all__ = ["failures", "printed_table", "summary", "what_will_run"]

MOST_PARTS = 6  # bodies or clamps that are listed one by one


def summary(trajectory: Trajectory, first_step: int, wall: float, path: Path, compiled: bool) -> dict[str, str]:
    """Return how a run went, as text by label.

    Speed and Newton iterations are those of the steps after `first_step`, with which a resumed run began; everything
    else is of the whole trajectory, the earlier run included.

    Parameters
    ----------
    wall : time that the steps after `first_step` took [s].
    compiled : whether steps were compiled, which the wall time includes.
    """
    new_rows = trajectory.step > first_step
    counts = trajectory.step.diff(prepend=trajectory.step[:1])[:, None]  # (T, 1) steps from the row before to each row
    good = trajectory.status == 0
    stepped = (counts * good)[new_rows].sum().item()
    iterations = (trajectory.iterations * good)[new_rows].sum().item() / max(stepped, 1)
    moved = (trajectory.positions[-1, :, -1] - trajectory.positions[0, :, -1]).norm(dim=-1)
    remarks = [f"for the steps from {first_step}"] * bool(first_step) + ["compiling included"] * compiled
    most = trajectory.iterations_max[new_rows].max().item()
    batch, nodes = trajectory.positions.shape[1:3]
    return {
        "simulated time": f"{trajectory.time[-1].item():g} s in {trajectory.step[-1].item()} steps",
        "wall time": f"{wall:.2f} s" + ", ".join(["", *remarks]),
        "robot-steps/s": f"{stepped / wall:,.0f}",
        "Newton iterations": f"{iterations:.2f} a converged step on average, at most {most}",
        "converged": f"{batch - int(trajectory.failed.sum())} of {batch} robots",
        "tip displacement": f"{moved.min().item():.6g} to {moved.max().item():.6g} m (node {nodes - 1})",
        "file": f"{path} ({len(trajectory.time)} frames)",
    }


def failures(trajectory: Trajectory) -> str:
    """Return a line for each robot that failed, with its step and the reason; empty if none failed."""
    lines = []
    for robot in trajectory.failed.nonzero().flatten().tolist():
        row = int((trajectory.status[:, robot] != 0).nonzero()[0])
        status = Status(int(trajectory.status[row, robot]))
        first, last = trajectory.step[max(row - 1, 0)].item() + 1, trajectory.step[row].item()
        when = f"in step {last}" if first == last else f"in one of the steps {first} to {last}"
        lines.append(f"robot {robot} failed {when}: {status.name.lower()} ({status.explanation})")
    return "\n".join(lines)


def what_will_run(scene: Scene, setup: Setup) -> dict[str, str]:
    """Return what `torchdismech check` prints of a scene and of what it is built into, as text by label."""
    simulation, document = scene.document.simulation, scene.document
    model, state, integrator = setup.model, setup.state, setup.integrator
    nodes, edges = len(scene.geometry.nodes), len(scene.geometry.rod_edges)
    if simulation.integrator == "static":
        steps = f"static equilibrium in {simulation.load_steps or 1} load steps"
    else:
        steps = f"{simulation.integrator}, {scene.steps} steps of {simulation.dt:g} s"
    frames = 1 + -(-scene.steps // document.output.every)
    at_once = chunk_size(model, scene.batch, integrator)
    stepped = "the batch" if at_once == scene.batch else f"{at_once} robots, as many as are stepped at a time"
    strains = sum(term.stencil.count * len(term.stencil.strains) for term in model.terms)
    requested = strains * document.output.strains + 6 * len(model.body.clamps) * document.output.reactions
    node_numbers = (6 if model.contact.none else 9) * nodes  # positions, velocities, and forces of contacts
    bytes_stored = 8 * frames * scene.batch * (node_numbers + model.body.n_angles + requested)
    return {
        "scene": str(scene.path),
        "robots": f"{scene.batch}, {'planar' if document.robot.planar else 'in space'}, on {model.device}",
        "nodes": str(nodes),
        "rod edges": f"{edges} (rods: {len(model.body.rods)})",
        "triangles": f"{len(model.triangles)} (hinges: {len(model.hinges)})",
        "bodies": _bodies(model),
        "springs": str(len(model.springs)),
        "dofs": f"{model.n_dofs}, of which free {model.unknowns.count - model.unknowns.slides.n_idle_unknowns}",
        "clamps": _clamps(model),
        "start": _initial_words(scene),
        "forces": ", ".join(name for name, _ in named_forces(model)) or "none",
        "contact": _contact(scene, model),
        "over time": _over_time(scene),
        "controller": _controller_words(scene, setup.controller),
        "integrator": steps,
        "terms": _terms(model),
        "kernels": _kernels(scene, model, integrator, state),
        "solver": model.solvers.of(at_once).describe(model.device),
        **({"steps on a GPU": _recording(model)} if model.device.type == "cuda" else {}),
        "factorisation": f"{1e3 * _factor_time(model, state, at_once):.3g} ms a robot to factor and solve, measured",
        "memory": f"about {size_of(step_bytes(model, at_once))} for a step of {stepped}",
        "file": f"{frames} frames, about {size_of(bytes_stored)}",
        "drawn": ", ".join(_drawn_range(name, values) for name, values in scene.randomized.items()) or "nothing",
    }


def _bodies(model: Model) -> str:
    """Return in words the number of connected parts of the robot and what they are, so that a missing joint is seen."""
    count = model.body.parts()
    if count == 1:
        return "1"
    parts = [model.body.said_of_part(k) for k in range(min(count, MOST_PARTS))]
    more = [f"and {count - MOST_PARTS} more"] if count > MOST_PARTS else []
    return f"{count} that no edge joins: {', '.join([*parts, *more])}"


def _clamps(model: Model) -> str:
    """Return in words which nodes each clamp holds, so that a node which its box has missed is seen."""
    node_lists = [clamp.nodes.tolist() for clamp in model.body.clamps]
    clamps = [f"clamp{k} ({len(nodes)} nodes: {listed(nodes)})" for k, nodes in enumerate(node_lists[:MOST_PARTS])]
    more = [f"and {len(node_lists) - MOST_PARTS} more"] if len(node_lists) > MOST_PARTS else []
    return ", ".join([*clamps, *more]) or "none"


def _initial_words(scene: Scene) -> str:
    """Return in words where the robots begin, and whether they move there."""
    table = scene.document.initial
    if table is None:
        return "as built, at rest"
    if table.trajectory is not None:
        where = f"frame {table.frame} of {table.trajectory}"
    else:
        where = "as built" if table.positions_file is None else f"where {table.positions_file} says"
    if table.motion is not None:
        return f"{where}, thrown"
    return f"{where}, at rest" if table.trajectory is None else f"{where}, as it moves there"


def _kernels(scene: Scene, model: Model, integrator: SteppingMethod, state: State) -> str:
    """Return in words whether steps run eagerly, recorded or compiled, and why."""
    setting = scene.document.simulation.compile
    if in_plain_torch():
        return f"plain torch, as {PLAIN} asks"
    if setting is False:
        return "eager"
    if setting is True:
        return "compiled"
    rows = chunk_size(model, state.batch, integrator)
    if records_eager_steps(model, integrator, state.q[:rows]):
        return "eager, after some steps recorded, which is faster than compiled"
    slow = why_code_unrecorded(model)
    eager = "eager" if slow is None else f"eager, and not recorded because of {slow}"
    reason = model.compilation.refusal or model.mechanics.why_eager()
    if reason is not None:
        return f"{eager}: {reason}" if slow is None else f"{eager}; not compiled: {reason}"
    least = math.ceil(THRESHOLD / integrator.step_work(model, scene.batch))
    if scene.steps >= least:
        return f"compiled before the first step, as from {least:,} steps on"
    return f"{eager}; compiled from about {least:,} steps on"


def _terms(model: Model) -> str:
    """Return the names of the elastic terms, those that compiled loops evaluate before those that torch evaluates."""
    state, elastic = model.rest_state(model.batch or 1), model.mechanics.layout.elastic
    loops = set(elastic.loops(dofs_of(state.q), model.mechanics.term_constants(state, Control(), None)))
    names = [term.name for term in elastic.terms]
    by_code, by_torch = [n for n in names if n in loops], [n for n in names if n not in loops]
    groups = {"by code of their own": by_code, "by torch": by_torch}
    return "; ".join(f"{', '.join(group)} {how}" for how, group in groups.items() if group) or "none"


def _recording(model: Model) -> str:
    """Return in words whether steps on a GPU are recorded as CUDA graphs, or why not."""
    if reason := why_steps_unrecorded(model):
        return f"call by call, because of {reason}"
    return f"recorded as CUDA graphs{'' if has_own_terms(model) else ' where they are compiled'}"


def _controller_words(scene: Scene, controller: Controller | None) -> str:
    """Return the controller in words; of controller.python only the name, as a check does not run the file."""
    table = scene.document.controller
    if table is None:
        return "none"
    return f"{table.python}, not looked at here" if controller is None else repr(controller)


def _over_time(scene: Scene) -> str:
    """Return in words what changes over time; functions are named alone, as a check does not run them."""
    document = scene.document
    parts = [f"moves: {len(document.move)}"] if document.move else []
    if document.magnetic is not None and document.magnetic.rotating is not None:
        parts.append("rotating magnetic field")
    parts += [f"{key} from {file}" for key, file in named_time_tables(document).items()]
    parts += [f"{name} (not run)" for name in document.code.values()]
    return ", ".join(parts) or "nothing"


def _obstacle_words(table: ObstacleTable, shape: Shape) -> str:
    """Return in words an obstacle's shape and contact law, whether it moves, and the spacing of the contact points."""
    size = [f"{side:.4g}" for side in shape.size.tolist()] if isinstance(shape, Mesh) else []  # shows millimetres as m
    sides = f" of {' x '.join(size)} m" if size else ""
    moving = [] if table.at_rest else ["moving"]
    points = [f"points {table.spacing:g} m apart"] if isinstance(table, Bounded) and table.spacing is not None else []
    return ", ".join([table.shape + sides, *_law_words(table), *moving, *points])


def _law_words(table: LawOfObstacles) -> list[str]:
    """Return the contact response, and words for friction along rods and for rolling, if the table has them."""
    along = [table.forward_friction, table.backward_friction] != [None, None]
    return [table.response, *(["friction along rods"] if along else []), *(["rods roll"] if table.rolling else [])]


def _contact(scene: Scene, model: Model) -> str:
    """Return in words the obstacles, the contacts between parts of the robot, and the range of contact radii."""
    document = scene.document
    if not document.contacts:
        return "none"
    floor = [f"floor ({', '.join(_law_words(document.floor))})"] if document.floor is not None else []
    shapes = {obstacle.name: obstacle.shape for obstacle in model.obstacles}
    named = [(obstacle_name(k, table), table) for k, table in enumerate(document.obstacle)]
    obstacles = [f"{name} ({_obstacle_words(table, shapes[name])})" for name, table in named]
    tables = [table for table in document.contacts.values() if isinstance(table, SelfContact)]
    parts = [f"{contact.name}: {table.response}" for contact, table in zip(model.self_contacts, tables, strict=True)]
    radii = torch.cat([model.body.edge_contact_radius.flatten(), model.body.face_contact_radius.flatten()])
    return "; ".join(
        [
            ", ".join(floor + obstacles) or "no obstacles",
            ", ".join(parts).replace("self_contact", "self-contact") or "self-contact: no",
            f"radii {radii.min().item():.6g} to {radii.max().item():.6g} m",
        ]
    )


def _drawn_range(name: str, values: Tensor) -> str:
    return f"{name} from {values.min().item():.6g} to {values.max().item():.6g}"


def _factor_time(model: Model, state: State, batch: int) -> float:
    """Return the measured time per robot [s] to factor the Newton matrix of the first `batch` robots and solve with it.

    The matrix is that of a step of 10 ms: without the masses it would be singular for a robot that is free.
    """
    values_of_part, part, _ = model.parts(state, Control(), batch)[0]
    with values_of_part.in_place():
        start = model.start_step(part)
        _, values = model.mechanics.force_and_stiffness(start, part.q, part.velocity, part.time, Gains(mass=1e4))
    solver, rhs = model.solvers.of(batch), torch.ones_like(part.q[:, model.unknowns.index])
    times = []
    for _ in range(3):
        start_time = time.perf_counter()
        solver.factor(values).solve(rhs)[0, 0].item()
        times.append(time.perf_counter() - start_time)
    return min(times) / batch


def printed_table(rows: Sequence[Sequence[str]], robots: int, shown: int) -> str:
    """Return rows of cells, the header first, as a text table with columns aligned at the right.

    Parameters
    ----------
    robots, shown : the number of robots, and how many of them have rows; a last line mentions the others.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True)) for row in rows]
    if robots > shown:
        lines.append(f"... and {robots - shown} more robots, which --out FILE.csv writes, too")
    return "\n".join(lines)
