"""What a trajectory file keeps of the run that wrote it, and whether another run may go on from there."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from torchdismech.control.protocol import remembers
from torchdismech.errors import InputError, Status
from torchdismech.io.scene import Scene, Setup
from torchdismech.io.scene.files import named_files
from torchdismech.io.schema.scene import Document
from torchdismech.model import Model
from torchdismech.trajectory import Trajectory

__all__ = ["attributes", "earlier_run"]

MAY_CHANGE = {"simulation.duration"}  # keys that may differ from those of the earlier run
FLAGS = {  # options of the command line that override keys of the scene
    "batch.size": "--batch",
    "batch.seed": "--seed",
    "simulation.compile": "--compile or --no-compile",
    "simulation.max_substeps": "--max-substeps",
}
INSIST = "--force-resume goes on all the same"


def attributes(scene: Scene, model: Model) -> dict[str, str]:
    """Return the attributes, text by name, that a trajectory file keeps so that its run can be resumed.

    They are the scene as text and as tables, and digests of the files that it names and of the robot's parts, by which
    `earlier_run` sees whether anything has changed.
    """
    return {
        "scene": scene.text,
        "tables": json.dumps(scene.tables, sort_keys=True),
        "files": json.dumps(scene.fingerprints, sort_keys=True),
        "robot": json.dumps(_parts(scene, model), sort_keys=True),
    }


def earlier_run(scene: Scene, setup: Setup, path: Path, rows: slice, force: bool = False) -> Trajectory:
    """Return the trajectory of an earlier run up to its last full state, checked to be of this scene.

    Parameters
    ----------
    setup : the scene as it is set up in this process.
    path : the trajectory file of the earlier run.
    rows : the robots of the whole batch that `setup` has.
    force : accept a scene, files or a robot that have changed, as long as the stored state fits.

    Raises
    ------
    InputError
        The run is of another scene or robot, its state does not fit, it has all steps already, or every robot failed.
    """
    earlier = Trajectory.load(path).resumable()
    if not force:
        _refuse_changes(scene, setup, path, earlier, rows)
    _refuse_misfit(scene, setup, path, earlier)
    if earlier.state_step >= setup.steps:
        if scene.document.simulation.integrator == "static":
            raise InputError(
                f"{path}: has the equilibrium already: nothing to do; run the scene without --resume to find it anew, "
                "or begin another scene from it by [initial] trajectory"
            )
        raise InputError(
            f"{path}: has {earlier.state_step} steps already and the scene asks for {setup.steps}: "
            "nothing to do; raise simulation.duration or --steps"
        )
    if (earlier.status[-1] != Status.CONVERGED).all():
        raise InputError(f"{path}: every robot failed: nothing to go on with")
    return earlier


def _parts(scene: Scene, model: Model) -> dict[str, str]:
    """Return the SHA-256 of each of the robot's arrays: nodes, elements, springs, hinges and clamped dofs, by name."""
    arrays = {
        "nodes": scene.geometry.nodes,
        "rod edges": model.rod_edges,
        "triangles": model.triangles,
        "springs": model.springs,
        "hinges": model.hinges,
        "clamped dofs": ~model.free.cpu().numpy(),
    }
    return {name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for name, array in arrays.items()}


def _refuse_changes(scene: Scene, setup: Setup, path: Path, earlier: Trajectory, rows: slice) -> None:
    if "tables" not in earlier.attributes:
        raise InputError(f"{path}: was not written from a scene file: nothing says how to go on")
    tables = _stored(path, earlier, "tables"), scene.tables
    with contextlib.suppress(ValidationError):  # of a table of another version
        # with all defaults: one that is written out is no change
        tables = Document.model_validate(tables[0]).model_dump(), Document.model_validate(tables[1]).model_dump()
    theirs, ours = dict(_leaves(tables[0])), dict(_leaves(tables[1]))
    different = sorted(key for key in (theirs | ours).keys() - MAY_CHANGE if theirs.get(key) != ours.get(key))
    if different:
        key = different[0]
        flag = FLAGS.get(key, f"an override of {scene.path}")
        overridden = not scene.overridden.isdisjoint({key, key.replace(".0.", ".", 1)})
        where = f"by {flag}" if overridden else f"in {scene.path}"
        raise InputError(
            f"{path}: is a run of another scene: {key} was {theirs.get(key)!r} and is {ours.get(key)!r} {where}; "
            f"only simulation.duration may change; {INSIST}"
        )
    differences = _changed_files(scene, path, earlier) + _changed_parts(scene, setup, path, earlier)
    if differences:
        raise InputError(f"{path}: is a run of another robot or other files: {', '.join(differences)}; {INSIST}")
    initial_positions = setup.state.positions.cpu()
    if earlier.batch != scene.batch or not torch.equal(earlier.positions[0, rows], initial_positions):
        raise InputError(f"{path}: its robots do not start where those of {scene.path} do; {INSIST}")
    drawn = scene.randomized
    theirs_drawn = earlier.randomized
    if theirs_drawn.keys() != drawn.keys() or any(not torch.equal(theirs_drawn[k], drawn[k]) for k in drawn):
        raise InputError(
            f"{path}: its random numbers are not those that {scene.path} draws with this version; {INSIST}"
        )


def _changed_files(scene: Scene, path: Path, earlier: Trajectory) -> list[str]:
    theirs, ours = _stored(path, earlier, "files"), scene.fingerprints
    names = named_files(scene.document)
    return [f"{key} ({names[key]}) has changed" for key in ours if theirs.get(key) != ours[key]]


def _changed_parts(scene: Scene, setup: Setup, path: Path, earlier: Trajectory) -> list[str]:
    """Return a phrase for each array of the robot that differs; for rod edges and triangles the first difference."""
    theirs, ours = _stored(path, earlier, "robot"), _parts(scene, setup.model)
    differences = []
    for name in ours:
        if theirs.get(name) != ours[name]:
            arrays = {
                "rod edges": (earlier.rod_edges, setup.model.rod_edges),
                "triangles": (earlier.triangles, setup.model.triangles),
            }
            differences.append(_first_difference(name, *arrays[name]) if name in arrays else f"the {name} have changed")
    return differences


def _first_difference(name: str, theirs: np.ndarray, ours: np.ndarray) -> str:
    if theirs.shape != ours.shape:
        return f"there were {len(theirs)} {name} and are {len(ours)}"
    wrong = np.flatnonzero((theirs != ours).any(axis=1))
    if not len(wrong):
        return f"the {name} have changed"
    k = int(wrong[0])
    return f"{name.removesuffix('s')} {k} had the nodes {theirs[k].tolist()} and has {ours[k].tolist()}"


def _refuse_misfit(scene: Scene, setup: Setup, path: Path, earlier: Trajectory) -> None:
    """Refuse an earlier run whose state, controller memory or stored quantities do not fit those of this one.

    Stored quantities are energies, contacts, strains and reactions, each a column of the file that goes on.
    """
    state = setup.integrator.started(setup.state)
    if type(earlier.state) is not type(state):
        raise InputError(
            f"{path}: was written by another kind of integrator than {scene.path} has, or for another "
            "kind of robot: it does not fit"
        )
    _refuse_sizes(scene, setup, path, earlier)
    model, controller = setup.model, setup.controller
    remembered = controller.initial(model, state) if remembers(controller) else {}
    if earlier.memory.keys() != remembered.keys():
        theirs, ours = (", ".join(sorted(names)) or "nothing" for names in (earlier.memory, remembered))
        raise InputError(
            f"{path}: keeps {theirs} of its controller, and that of {scene.path} remembers {ours}: its memory "
            "does not fit"
        )
    stored_dtype, dtype = earlier.state.q.dtype, state.q.dtype
    if stored_dtype != dtype:
        raise InputError(f"{path}: its state is in {stored_dtype}, and {scene.path} in {dtype}: it does not fit")
    clamps = [f"clamp{k}" for k in range(len(model.body.clamps))]
    columns: dict[str, tuple[Iterable[str], Iterable[str]]] = {  # that are stored, and that this run would store
        "energies": (earlier.energies, model.energies(state)),
        "contacts": (earlier.contact, model.contact_report(state)),
        "strains": (earlier.strains, model.strains(state) if setup.strains else ()),
        "reactions": (earlier.reactions, clamps if setup.reactions else ()),
    }
    for what, names in columns.items():
        theirs, ours = (", ".join(sorted(of_run)) or "none" for of_run in names)
        if theirs != ours:
            raise InputError(f"{path}: stores the {what} {theirs}, and {scene.path} has {ours}: its rows do not fit")


def _refuse_sizes(scene: Scene, setup: Setup, path: Path, earlier: Trajectory) -> None:
    """Refuse a state with other numbers of robots, nodes, dofs, framed edges, springs or internal variables."""
    state = setup.state
    sizes = {"robots": (earlier.batch, scene.batch)}
    for name, field in {"nodes": "positions", "degrees of freedom": "q", "framed edges": "director"}.items():
        sizes[name] = (getattr(earlier.state, field).shape[1], getattr(state, field).shape[1])
    sizes["springs"] = (earlier.state.reference_twist.shape[-1], state.reference_twist.shape[-1])
    internal = [getattr(either, "internal", None) for either in (earlier.state, state)]
    was, now = (0 if values is None else values.shape[1] for values in internal)
    sizes["internal variables"] = (was, now)
    for name, (was, now) in sizes.items():
        if was != now:
            raise InputError(f"{path}: has {was} {name}, and {scene.path} has {now}: its state does not fit")


def _stored(path: Path, earlier: Trajectory, name: str) -> dict[str, Any]:
    """Return the table that the file keeps as JSON in the attribute `name`; refuse one that is missing or damaged."""
    if name not in earlier.attributes:
        raise InputError(
            f"{path}: does not say what its {name} were, as a file of an older version: nothing tells whether they "
            f"have changed; {INSIST}"
        )
    try:
        table = json.loads(earlier.attributes[name])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: its attribute {name!r} is damaged: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{path}: its attribute {name!r} is damaged: expected a table")
    return table


def _leaves(tables: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of what is given in nested tables; lists of tables are numbered, other lists values."""
    if isinstance(tables, list) and tables and isinstance(tables[0], dict):
        tables = {str(k): table for k, table in enumerate(tables)}
    if isinstance(tables, dict):
        for name, value in tables.items():
            yield from _leaves(value, f"{key}.{name}" if key else name)
    elif tables is not None and tables != []:
        yield key, tables
