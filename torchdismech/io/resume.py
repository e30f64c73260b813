"""What a trajectory file keeps of the run that wrote it, and whether another run may go on from there."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import BaseModel
from pydantic.fields import FieldInfo

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
    before = Trajectory.load(path).resumable()
    if not force:
        _refuse_changes(scene, setup, path, before, rows)
    _refuse_misfit(scene, setup, path, before)
    if before.state_step >= setup.steps:
        if scene.document.simulation.integrator == "static":
            raise InputError(
                f"{path}: has the equilibrium already: nothing to do; run the scene without --resume to find it anew, "
                "or begin another scene from it by [initial] trajectory"
            )
        raise InputError(
            f"{path}: has {before.state_step} steps already and the scene asks for {setup.steps}: "
            "nothing to do; raise simulation.duration or --steps"
        )
    if (before.status[-1] != Status.CONVERGED).all():
        raise InputError(f"{path}: every robot failed: nothing to go on with")
    return before


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


def _refuse_changes(scene: Scene, setup: Setup, path: Path, before: Trajectory, rows: slice) -> None:
    if "tables" not in before.attributes:
        raise InputError(f"{path}: was not written from a scene file: nothing says how to go on")
    theirs = dict(_leaves(_stored(path, before, "tables")))
    ours = dict(_leaves(scene.tables))
    changed = {key for key in theirs.keys() | ours.keys() if theirs.get(key) != ours.get(key)} - MAY_CHANGE
    if changed:
        theirs, ours = _with_defaults(theirs, changed), _with_defaults(ours, changed)
    different = sorted(key for key in changed if theirs.get(key) != ours.get(key))
    if different:
        key = different[0]
        flag = FLAGS.get(key, f"an override of {scene.path}")
        where = f"by {flag}" if key in scene.overridden else f"in {scene.path}"
        raise InputError(
            f"{path}: is a run of another scene: {key} was {theirs.get(key)!r} and is {ours.get(key)!r} {where}; "
            f"only simulation.duration may change; {INSIST}"
        )
    differences = _changed_files(scene, path, before) + _changed_parts(scene, setup, path, before)
    if differences:
        raise InputError(f"{path}: is a run of another robot or other files: {', '.join(differences)}; {INSIST}")
    rest = setup.state.positions.cpu()
    if before.batch != scene.batch or not torch.equal(before.positions[0, rows], rest):
        raise InputError(f"{path}: its robots do not start where those of {scene.path} do; {INSIST}")
    drawn = scene.randomized
    if before.randomized.keys() != drawn.keys() or any(not torch.equal(before.randomized[k], drawn[k]) for k in drawn):
        raise InputError(
            f"{path}: its random numbers are not those that {scene.path} draws with this version; {INSIST}"
        )


def _with_defaults(values: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """Return `values` (by dotted key), with defaults for those of `keys` that are missing.

    So a default that is written out does not count as a change. Known are the defaults of the tables that every scene
    has, whether it says so or not: [robot], [simulation], [environment], [batch] and [output].
    """
    defaults = {}
    for key in keys - values.keys():
        name, _, field = key.partition(".")
        fields = _fields_of_every_scene(name)
        if field in fields and not fields[field].is_required():
            defaults[key] = fields[field].get_default(call_default_factory=True)
    return defaults | values


def _fields_of_every_scene(name: str) -> dict[str, FieldInfo]:
    """Return the fields of the table `name`, if every scene has that table; else none."""
    table = Document.model_fields.get(name)
    if table is None:
        return {}
    kind = table.annotation if table.is_required() else type(table.get_default(call_default_factory=True))
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}


def _changed_files(scene: Scene, path: Path, before: Trajectory) -> list[str]:
    theirs, ours = _stored(path, before, "files"), scene.fingerprints
    names = named_files(scene.document)
    return [f"{key} ({names[key]}) has changed" for key in ours if theirs.get(key) != ours[key]]


def _changed_parts(scene: Scene, setup: Setup, path: Path, before: Trajectory) -> list[str]:
    """Return a phrase for each array of the robot that differs; for rod edges and triangles the first difference."""
    theirs, ours = _stored(path, before, "robot"), _parts(scene, setup.model)
    found = []
    for name in ours:
        if theirs.get(name) != ours[name]:
            arrays = {
                "rod edges": (before.rod_edges, setup.model.rod_edges),
                "triangles": (before.triangles, setup.model.triangles),
            }
            found.append(_first_difference(name, *arrays[name]) if name in arrays else f"the {name} have changed")
    return found


def _first_difference(name: str, theirs: np.ndarray, ours: np.ndarray) -> str:
    if theirs.shape != ours.shape:
        return f"there were {len(theirs)} {name} and are {len(ours)}"
    wrong = np.flatnonzero((theirs != ours).any(axis=1))
    if not len(wrong):
        return f"the {name} have changed"
    k = int(wrong[0])
    return f"{name.removesuffix('s')} {k} had the nodes {theirs[k].tolist()} and has {ours[k].tolist()}"


def _refuse_misfit(scene: Scene, setup: Setup, path: Path, before: Trajectory) -> None:
    """Refuse an earlier run whose state, controller memory or stored quantities do not fit those of this one.

    Stored quantities are energies, contacts, strains and reactions, each a column of the file that goes on.
    """
    state = setup.state
    if type(before.state) is not type(state):
        raise InputError(
            f"{path}: was written by another kind of integrator than {scene.path} has, or for another "
            "kind of robot: it does not fit"
        )
    kept = {"energies": set(before.energies), "contacts": set(before.contact), "strains": set(before.strains)}
    kept["reactions"] = set(before.reactions)
    names = {"energies": set(setup.model.energies(state)), "contacts": set(setup.model.contact_report(state))}
    names["strains"] = set(setup.model.strains(state)) if setup.strains else set()
    names["reactions"] = {f"clamp{k}" for k in range(len(setup.model.body.clamps))} if setup.reactions else set()
    _refuse_sizes(scene, setup, path, before)
    remembered = setup.controller.initial(setup.model, state) if remembers(setup.controller) else {}
    if before.memory.keys() != remembered.keys():
        kept_there, asked = (", ".join(sorted(names)) or "nothing" for names in (before.memory, remembered))
        raise InputError(
            f"{path}: keeps {kept_there} of its controller, and that of {scene.path} remembers {asked}: its memory "
            "does not fit"
        )
    stored, own = before.state.q.dtype, state.q.dtype
    if stored != own:
        raise InputError(f"{path}: its state is in {stored}, and {scene.path} in {own}: it does not fit")
    for name in names:
        if kept[name] != names[name]:
            written, asked = (", ".join(sorted(which[name])) or "none" for which in (kept, names))
            raise InputError(f"{path}: stores the {name} {written}, and {scene.path} has {asked}: its rows do not fit")


def _refuse_sizes(scene: Scene, setup: Setup, path: Path, before: Trajectory) -> None:
    """Refuse a state with other numbers of robots, nodes, dofs, framed edges, springs or internal variables."""
    state = setup.state
    sizes = {"robots": (before.batch, scene.batch)}
    for name, field in {"nodes": "positions", "degrees of freedom": "q", "framed edges": "director"}.items():
        sizes[name] = (getattr(before.state, field).shape[1], getattr(state, field).shape[1])
    sizes["springs"] = (before.state.reference_twist.shape[-1], state.reference_twist.shape[-1])
    internal = [getattr(which, "internal", None) for which in (before.state, state)]
    was, now = (0 if values is None else values.shape[1] for values in internal)
    sizes["internal variables"] = (was, now)
    for name, (was, now) in sizes.items():
        if was != now:
            raise InputError(f"{path}: has {was} {name}, and {scene.path} has {now}: its state does not fit")


def _stored(path: Path, before: Trajectory, name: str) -> dict[str, Any]:
    """Return the table that the file keeps as JSON in the attribute `name`; refuse one that is missing or damaged."""
    if name not in before.attributes:
        raise InputError(
            f"{path}: does not say what its {name} were, as a file of an older version: nothing tells whether they "
            f"have changed; {INSIST}"
        )
    try:
        table = json.loads(before.attributes[name])
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: its attribute {name!r} is damaged: {error}") from error
    if not isinstance(table, dict):
        raise InputError(f"{path}: its attribute {name!r} is damaged: expected a table")
    return table


def _leaves(tables: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested tables; lists of tables are numbered, any other list is one value."""
    if isinstance(tables, list) and tables and isinstance(tables[0], dict):
        tables = {str(k): table for k, table in enumerate(tables)}
    if not isinstance(tables, dict):
        yield key, tables
        return
    for name, value in tables.items():
        yield from _leaves(value, f"{key}.{name}" if key else name)
