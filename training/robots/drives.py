"""Drives of a robot: maps from columns of the recordings to fields of `Control` and to constants, in each step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from torchdismech import InputError, Model
from torchdismech.elastic.natural import continuum_triangles
from torchdismech.errors import shape_or_kind
from torchdismech.geometry.quaternions import product
from torchdismech.io.scene.users_code import named_in_code, naming_line
from torchdismech.robot.state import Control
from torchdismech.values import refuse_table, row_of
from training.config.scene import Drive
from training.options import checked
from training.robots.poses import quaternion

__all__ = ["DriveMap", "LinearMap"]


class LinearMap(nn.Module):
    """The linear map offset + gain @ columns.

    Attributes
    ----------
    gain : (1, elements, columns); offset : (1, 1, elements); or for each of B robots, with B in place of the first 1.
    """

    gain: Tensor
    offset: Tensor

    def __init__(self, gain: Tensor, offset: Tensor):
        super().__init__()
        self.register_buffer("gain", gain[None], persistent=False)
        self.register_buffer("offset", offset[None, None], persistent=False)

    def forward(self, inputs: Tensor, time: Tensor) -> Tensor:
        """Return the elements (B, F, elements) for inputs (B, F, columns); time is not used."""
        return inputs @ self.gain.mT + self.offset


class DriveMap(nn.Module):
    """One entry of `[drives]`: the columns that it reads, its map, and the field or constant that it sets."""

    def __init__(self, name: str, drive: Drive, model: Model, columns: Sequence[str], config_file: str):
        super().__init__()
        self.name, self.drive, self._config_file = name, drive, config_file
        self._model = (model,)
        self._columns = _columns(name, drive, columns)
        self.shape = self._shape()
        size = math.prod(self.shape)
        self._elements = list(range(size)) if drive.elements is None else drive.elements
        wrong = [k for k in self._elements if k >= size]
        if wrong:
            raise InputError(f"drives.{name}.elements: {drive.sets} has {size} numbers, counted from 0; got {wrong[0]}")
        twice = [k for k in self._elements if self._elements.count(k) > 1]
        if twice:
            raise InputError(f"drives.{name}.elements: expected each number once, got {twice[0]} twice: leave one out")
        if not drive.relative and len(self._elements) < size:
            raise InputError(
                f"drives.{name}: relative = false needs all {size} numbers of {drive.sets}: leave elements out"
            )
        self.map = (
            _linear(name, drive, len(self._elements), len(self._columns)) if drive.module is None else self._of_user()
        )

    def values(self, inputs: Tensor, time: Tensor) -> Tensor:
        """Return the mapped values (B, F, *shape) for inputs (B, F, C) at times (B, F) [s]; zero where not driven.

        `applied` adds them to the model's own values, or puts them in their place.
        """
        code = self.drive.module
        file = Path("" if code is None else code.rpartition(":")[0])
        with nullcontext() if code is None else naming_line(file, f"drives.{self.name}.module: {code}"):
            mapped = self.map(inputs[..., self._columns], time)
        expected = (*inputs.shape[:2], len(self._elements))
        if not isinstance(mapped, Tensor) or tuple(mapped.shape) != expected:
            where = f"drives.{self.name}.module"
            raise InputError(f"{where}: expected a tensor {expected}, got {shape_or_kind(mapped)}")
        whole = mapped.new_zeros(*expected[:2], math.prod(self.shape))
        index = torch.tensor(self._elements, device=mapped.device)
        return whole.index_copy(2, index, mapped).unflatten(2, self.shape)

    def applied(self, control: Control, value: Tensor) -> Control:
        """Return the control that sets a value (B, *shape), one frame of `values` or between two."""
        model, sets = self._model[0], self.drive.sets
        if sets == "pose":
            return control.replace(pose=self._posed(control, value))
        if sets in model.places:
            own = control.values.get(sets)
            own = getattr(*model.places[sets]) if own is None else own
            there = value + own if self.drive.relative else value
            return control.replace(values={**control.values, sets: there})
        if self.drive.relative:
            own = getattr(control, sets)
            value = value + (self._own(len(value)) if own is None else own)
        return control.replace(**{sets: value})

    def _own(self, batch: int) -> Tensor | float:
        """Return the model's own value of a field of `Control`, to which a relative drive adds."""
        model, sets = self._model[0], self.drive.sets
        if sets == "force":
            return 0.0
        if sets == "clamped_q":
            return model.body.rest_q
        own = getattr(model.natural_strains(batch), sets)
        assert own is not None  # there are such elements, as the shape is not empty
        return own

    def _posed(self, control: Control, value: Tensor) -> Tensor:
        if not self.drive.relative:
            turn = value[..., 3:]
            return torch.cat([value[..., :3], turn / torch.linalg.vector_norm(turn, dim=-1, keepdim=True)], dim=-1)
        own = self._model[0].rest_poses.expand(len(value), -1, -1) if control.pose is None else control.pose
        return torch.cat([own[..., :3] + value[..., :3], product(quaternion(value[..., 3:]), own[..., 3:])], dim=-1)

    def _shape(self) -> tuple[int, ...]:
        """Return the shape of the field or constant that is set, for one robot; refuse one that does not exist."""
        model, sets = self._model[0], self.drive.sets
        if sets in model.places:
            refuse_table(f"drives.{self.name}.sets: {sets}", model.places[sets])
            return row_of(model.places[sets])
        fields = model.body.control_shapes(1, continuum_triangles(model.terms))
        if sets not in fields:
            known = ", ".join([*fields, *sorted(model.places)])
            raise InputError(f"drives.{self.name}.sets: no {sets!r:.80} to be set; there are: {known}")
        shape = fields[sets][1:]
        if sets == "pose" and self.drive.relative:
            shape = (shape[0], 6)
        if not math.prod(shape):
            raise InputError(f"drives.{self.name}.sets: {sets}: the robot has no such elements to drive")
        return shape

    def _of_user(self) -> nn.Module:
        drive, where = self.drive, f"drives.{self.name}"
        path, kind = named_in_code(Path(self._config_file), f"{where}.module", str(drive.module), folder=Path())
        if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
            raise InputError(
                f"{where}.module: expected a class derived from torch.nn.Module in {path}, got {kind!r:.80}"
            )
        given = ("columns", "elements")
        options: dict[str, Any] = checked(kind, drive.options, f"{where}.options", given)
        make: Any = kind
        with naming_line(path, f"{where}.module: {drive.module}"):
            return make(len(self._columns), len(self._elements), **options)


def _columns(name: str, drive: Drive, columns: Sequence[str]) -> list[int]:
    """Return the indices of the recordings' columns that a drive reads."""
    wanted = list(columns) if drive.columns is None else drive.columns
    lacking = [column for column in wanted if column not in columns]
    if lacking:
        there = ", ".join(columns) or "none: name them in data.inputs"
        raise InputError(f"drives.{name}.columns: the recordings have no {lacking[0]!r:.80}; there are: {there}")
    return [list(columns).index(column) for column in wanted]


def _linear(name: str, drive: Drive, elements: int, columns: int) -> LinearMap:
    shape = (elements, columns)
    gain = torch.zeros(shape, dtype=torch.float64, device="cpu")
    if drive.gain is not None:
        rows = drive.gain if isinstance(drive.gain, list) else [[drive.gain]]
        if len(rows) != elements or any(len(row) != columns for row in rows):
            raise InputError(
                f"drives.{name}.gain: expected {elements} rows, one for each element, of {columns} numbers, one for "
                f"each column, got {len(rows)} of {sorted({len(row) for row in rows})}"
            )
        gain = torch.tensor(rows, dtype=torch.float64, device="cpu")
    offset = drive.offset if isinstance(drive.offset, list) else [drive.offset] * elements
    if len(offset) != elements:
        raise InputError(f"drives.{name}.offset: expected one number or {elements}, got {len(offset)}")
    return LinearMap(gain, torch.tensor(offset, dtype=torch.float64, device="cpu"))
