"""Reads a trajectory file, and checks it: names, dtypes and shapes first, then the numbers.

Nothing in a file is trusted: it may come from anywhere, and may have been damaged or changed.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from torchdismech.constant_curvature.state import ArmState
from torchdismech.errors import InputError
from torchdismech.integrate.bdf2 import TwoStepState
from torchdismech.rigid.state import ChainState
from torchdismech.robot.state import BatchState, State, tensor_fields
from torchdismech.trajectory.checks import Damaged, check_rows, check_sense, check_state, check_topology
from torchdismech.trajectory.checksums import fixed_checksum, row_checksums, state_checksum
from torchdismech.trajectory.members import BYTES, FLOATS, INTEGERS, NUMBERS, UNSIGNED, Members, Shape
from torchdismech.trajectory.structure import COPIES, DATASETS, GROUPS, MEMORY, SHAPES

if TYPE_CHECKING:
    import h5py

__all__ = ["is_trajectory", "read"]

BLOCK = 1 << 22  # most bytes that are read at a time for checksums
# h5py has no exceptions of its own; damaged files make it raise these
UNREADABLE = (OSError, KeyError, ValueError, RuntimeError, TypeError, AttributeError, OverflowError, MemoryError)
OTHERWISE_OPEN = "flag values don't match"  # in HDF5's message if this process has the file open with a lock
# by group of datasets that have one entry for each row: the shapes of those that are not in SHAPES
SHAPES_IN_GROUPS: dict[str, Shape] = {
    "energy": ("T", "B"),
    "strain": ("T", "B", ...),
    "reaction": ("T", "B", 6),
    "contact": ("T", "B"),
    "contact/force": ("T", "B", 3),
    "contact/load": ("T", "B"),
}
WHOLE_NUMBERS = ("step", "newton/iterations", "newton/iterations_max", "newton/status")
PAUSE = 0.005  # s to wait before reading again a state that was being written


def is_trajectory(path: Path) -> bool:
    """Return whether the file has the parts of a trajectory; their contents are not checked.

    Raises
    ------
    InputError
        This process has the file open with a lock already, so that it cannot be opened here.
    """
    try:
        with _opened(path) as file:
            return {"time", "step", "positions", "state", "topology"} <= set(file)
    except (OSError, RuntimeError):  # not HDF5, or too damaged to tell
        return False


def _opened(path: Path) -> h5py.File:
    """Return the file, opened without a lock, so that the file of a running simulation can be read.

    Raises
    ------
    InputError
        This process has the file open with a lock: HDF5 does not open a file both ways in one process.
    """
    import h5py

    try:
        return h5py.File(path, "r", locking=False)
    except OSError as error:
        if OTHERWISE_OPEN not in str(error):
            raise
        raise InputError(
            f"{path}: this process has it open already: close that h5py.File first, or open it there by "
            "h5py.File(path, 'r', locking=False)"
        ) from error


def read(path: Path) -> dict[str, Any]:
    """Return the fields of the `Trajectory` in a file; those with one entry for each row are memory-mapped.

    A state that is being written at the moment is read again until one of its copies is complete.
    """
    if not path.is_file():
        raise InputError(f"{path}: {'a folder; expected a file' if path.is_dir() else 'no such file'}")
    try:
        last_contents: list[tuple[int, int]] | None = None
        while True:
            try:
                return _fields(path)
            except _Torn as torn:
                if torn.contents == last_contents:
                    raise Damaged("state: neither of its copies is whole") from None
                last_contents = torn.contents
                time.sleep(PAUSE)
    except Damaged as problem:
        raise InputError(f"{path}: is damaged, or no trajectory file: {problem}") from problem
    except InputError:
        raise  # its message is complete
    except UNREADABLE as error:
        raise InputError(
            f"{path}: not a trajectory file, or cut off; expected one that `torchdismech simulate` or "
            f"`Trajectory.save` wrote: {' '.join(str(error).split())}"
        ) from error


class _Torn(Exception):
    """No copy of the state is complete: either it is being written just now, or it is damaged.

    If a second look finds the same, it is damaged.

    Attributes
    ----------
    contents : step and checksum of the contents of each copy.
    """

    def __init__(self, contents: list[tuple[int, int]]):
        super().__init__(contents)
        self.contents = contents


def _fields(path: Path) -> dict[str, Any]:
    with _opened(path) as file:
        members = Members(file, path.stat().st_size)
        checked = members.has("checksums")  # files of earlier versions have none
        kind = _kind_of_state(members)
        rows, copies = _rows(members), {copy: _copy(members, copy, kind, checked) for copy in COPIES}
        fixed = _fixed_fields(members.sizes, kind)
        known_before = {name: dataset[()] for name, dataset in _known_before_run(members, checked).items()}
        check_topology(known_before["topology/rod_edges"], known_before["topology/triangles"], members.sizes["N"])
        sums = members.dataset("checksums/rows", ("T", len(rows)), UNSIGNED) if checked else None
        if sums is not None:
            filled = rows | {f"{copy}/{name}": d for copy in COPIES for name, d in copies[copy].items()}
            _check_fixed(members, filled | {"checksums/rows": sums}, known_before)
        # The state is read before the rows: a run that goes on writes each state after its row, so that row is there.
        state, memory, state_step = _state(copies, kind, fixed, checked)
        count = check_rows(rows["time"][()], rows["step"][()])
        complete = not checked or count < members.sizes["T"]
        for name, dataset in rows.items():
            column = None if sums is None else sums[:count, sorted(rows).index(name)]
            _check_numbers(name, dataset, count, column)
        texts = _texts(known_before) if checked else members.attributes()
        mapped = {name: _mapped(dataset, count) for name, dataset in rows.items()}
    arrays = {name: values.numpy() for name, values in mapped.items()}
    of_state = {"positions": state.positions, "velocities": state.node_velocities, "twist": state.twist}
    check_state({name: v.numpy() for name, v in of_state.items()}, state_step, arrays, complete)
    return {
        **{field: mapped[dataset] for field, dataset in DATASETS.items()},
        **{field: _within(mapped, f"{group}/") for field, group in GROUPS.items()},
        "rod_edges": known_before["topology/rod_edges"],
        "triangles": known_before["topology/triangles"],
        "state": state,
        "memory": memory,
        "state_step": state_step,
        "randomized": {name: torch.from_numpy(values) for name, values in _within(known_before, "randomized/").items()},
        "attributes": texts,
    }


def _rows(members: Members) -> dict[str, h5py.Dataset]:
    """Return the datasets that have one entry for each row, by name."""
    shapes: dict[str, Shape] = {name: SHAPES[name] for name in DATASETS.values()}
    for group, shape in SHAPES_IN_GROUPS.items():
        names = members.names(group) if group == "energy" or members.has(group) else []
        paths = [f"{group}/{name}" for name in names if f"{group}/{name}" not in SHAPES_IN_GROUPS]
        shapes |= {path: SHAPES.get(path, shape) for path in paths}
    return {name: members.dataset(name, shape, _kinds(name)) for name, shape in shapes.items()}


def _kinds(name: str) -> tuple[np.dtype, ...]:
    if name.startswith("contact/"):
        return NUMBERS
    return INTEGERS if name in WHOLE_NUMBERS else FLOATS


def _known_before_run(members: Members, checked: bool) -> dict[str, h5py.Dataset]:
    """Return the datasets that were known before the run: topology, randomized values and texts."""
    datasets = {
        name: members.dataset(name, SHAPES[name], INTEGERS) for name in ("topology/rod_edges", "topology/triangles")
    }
    names = [f"randomized/{name}" for name in members.names("randomized")]
    datasets |= {name: members.dataset(name, ("B", ...), NUMBERS) for name in names}
    texts = [f"texts/{name}" for name in members.names("texts")] if checked else []
    return datasets | {name: members.dataset(name, (...,), BYTES) for name in texts}


def _copy(members: Members, copy: str, kind: type[BatchState], checked: bool) -> dict[str, h5py.Dataset]:
    """Return the datasets of one copy of the state, by field, with memory, step and checksum."""
    kinds = (members.dataset("positions", SHAPES["positions"], FLOATS).dtype,)
    remembers = issubclass(kind, State) and members.has(f"{copy}/internal")
    names = [*tensor_fields(kind), *(["internal"] if remembers else [])]
    if kind is TwoStepState and not members.has(f"{copy}/reached_velocity"):
        names.remove("reached_velocity")  # files of earlier versions have none
    fields = {name: members.dataset(f"{copy}/{name}", SHAPES[f"state/{name}"], kinds) for name in names}
    remembered = members.names(f"{copy}/{MEMORY}") if members.has(f"{copy}/{MEMORY}") else []
    for name in remembered:
        fields[f"{MEMORY}/{name}"] = members.dataset(f"{copy}/{MEMORY}/{name}", ("B", ...), NUMBERS)
    fields["step"] = members.dataset(f"{copy}/step", (), INTEGERS)
    return fields | ({"checksum": members.dataset(f"{copy}/checksum", (), UNSIGNED)} if checked else {})


def _kind_of_state(members: Members) -> type[State] | type[ChainState] | type[ArmState]:
    if members.has("state/impulses"):
        return ArmState
    if members.has("state/positions"):
        return ChainState
    return TwoStepState if members.has("state/previous_step") else State


def _fixed_fields(sizes: Mapping[str, int], kind: type[BatchState]) -> dict[str, int]:
    """Return the fields of a state that are no tensors: the number of held tangents, for rods and shells.

    Files without robots or nodes are refused, and a number of dofs that does not fit nodes, framed edges and held
    tangents, a chain's joints, or an arm's chambers.
    """
    if 0 in (sizes["B"], sizes["N"]):
        raise Damaged(f"positions: expected robots and nodes, got {sizes['B']} robots of {sizes['N']} nodes")
    of_rods = issubclass(kind, State)
    expected = 3 * sizes["N"] + sizes["A"] if of_rods else sizes["A"]
    held, rest = divmod(sizes["n"] - expected, 3)
    if rest or held < 0 or (held and not of_rods):
        raise Damaged(f"state/q: expected {expected} dofs as in the rows, got {sizes['n']}")
    return {"n_held": held} if of_rods else {}


def _check_fixed(members: Members, filled: Mapping[str, h5py.Dataset], known_before: Mapping[str, np.ndarray]) -> None:
    kinds = {name: (dataset.dtype, dataset.shape) for name, dataset in filled.items()}
    if members.dataset("checksums/fixed", (), UNSIGNED)[()] != fixed_checksum(kinds, known_before):
        raise Damaged("topology, randomized, texts or names differ from what was written (checksums/fixed)")


def _check_numbers(name: str, dataset: h5py.Dataset, count: int, sums: np.ndarray | None) -> None:
    """Compare the first `count` rows with their checksums; in files without these, refuse implausible numbers."""
    size = max(1, BLOCK // max(1, math.prod(dataset.shape[1:]) * dataset.dtype.itemsize))
    for first in range(0, count, size):
        block = dataset[first : min(first + size, count)]
        if sums is not None:
            wrong = np.flatnonzero(row_checksums({name: block})[:, 0] != sums[first : first + len(block)])
            if len(wrong):
                raise Damaged(f"{name}: row {first + wrong[0]} is not what was written: its checksum differs")
        else:
            check_sense(name, block)


def _state(
    copies: Mapping[str, Mapping[str, h5py.Dataset]],
    kind: type[State] | type[ChainState] | type[ArmState],
    fixed: Mapping[str, int],
    checked: bool,
) -> tuple[State | ChainState | ArmState, dict[str, Tensor], int]:
    """Return the last state, the controller's memory and the step, from the first copy that is complete."""
    contents = []
    for copy in copies.values():
        step = int(copy["step"][()])
        fields = {name: copy[name][()] for name in copy if name not in ("step", "checksum")}
        contents.append((step, state_checksum(fields, step)))
        if step >= 0 and (not checked or copy["checksum"][()] == contents[-1][1]):
            tensors = {name: torch.from_numpy(values) for name, values in fields.items()}
            memory = _within(tensors, f"{MEMORY}/")
            named: dict[str, Any] = {name: values for name, values in tensors.items() if "/" not in name} | dict(fixed)
            if kind is TwoStepState:
                named.setdefault("reached_velocity", named["velocity"])
            return kind(**named), memory, step
    raise _Torn(contents)


def _mapped(dataset: h5py.Dataset, count: int) -> Tensor:
    """Return the first `count` rows as a memory-mapped tensor; changes to it are not written to the file."""
    offset = dataset.id.get_offset()
    if offset is None or 0 in dataset.shape:  # stored in chunks by another program, or empty
        return torch.from_numpy(dataset[:count])
    shape = (count, *dataset.shape[1:])
    return torch.from_numpy(np.memmap(dataset.file.filename, dataset.dtype, "c", offset, shape))


def _texts(known_before: Mapping[str, np.ndarray]) -> dict[str, str]:
    return {name: values.tobytes().decode() for name, values in _within(known_before, "texts/").items()}


def _within(named: Mapping[str, Any], group: str) -> dict[str, Any]:
    """Return the values whose names begin with `group`, by their names without it."""
    return {name.removeprefix(group): value for name, value in named.items() if name.startswith(group)}
