"""The magnetic forces of a checked scene: its magnetised rods and shells, and the field around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech import magnetics
from torchdismech.errors import InputError
from torchdismech.io.scene.files import reading
from torchdismech.io.scene.refusals import SceneError
from torchdismech.io.scene.users_code import line_in, named_in_code
from torchdismech.io.schema import magnetic as schema
from torchdismech.io.schema.robot import Magnetisable
from torchdismech.io.tables import TimeTable, read_rows, read_time_table
from torchdismech.magnetics.fields import field_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["magnetic_forces"]

KEY = "magnetic.python"
ELEMENTS = {"rod": "rod edge", "shell": "triangle"}
VECTORS = {"gradient": ("value", "center"), "dipole": ("moment", "center")}


def magnetic_forces(
    scene: Scene, table_of_edges: np.ndarray, table_of_triangles: np.ndarray, run_code: bool
) -> list[magnetics.Magnetic | magnetics.MagneticShells]:
    """Return the forces on the magnetised rods and shells of a scene, if it has any.

    Parameters
    ----------
    table_of_edges, table_of_triangles : (E,), (F,) [[rod]] table of each edge, [[shell]] table of each triangle.
    run_code : run the file that magnetic.python names; if False, the field is zero in its place.
    """
    table = scene.document.magnetic
    if table is None:
        return []
    field: magnetics.Field | tuple[float, float, float] = (0.0, 0.0, 0.0)
    if table.python is None:
        field = _field(scene, table)
    elif run_code:
        field = _field_from_code(scene, table.python)
    all_forces: list[magnetics.Magnetic | magnetics.MagneticShells] = []
    if any(rod.magnetised for rod in scene.document.rod):
        magnetisation = _magnetisation(scene, "rod", scene.document.rod, table_of_edges)
        all_forces.append(magnetics.Magnetic(magnetisation, field))
    if any(shell.magnetised for shell in scene.document.shell):
        magnetisation = _magnetisation(scene, "shell", scene.document.shell, table_of_triangles)
        all_forces.append(magnetics.MagneticShells(magnetisation, field))
    return all_forces


def _magnetisation(scene: Scene, kind: str, tables: Sequence[Magnetisable], table_of: np.ndarray) -> Tensor:
    """Return the remanence of the elements (E, 3), or (B, E, 3) where numbers are drawn [A/m]."""
    parts: list[tuple[np.ndarray, Tensor]] = []
    for k, table in enumerate(tables):
        index = np.flatnonzero(table_of == k)
        if table.magnetisation is not None:
            magnetisation = scene.numbers.vector((kind, k, "magnetisation"), table.magnetisation).unsqueeze(-2)
            parts.append((index, magnetisation))
        elif table.magnetisation_file is not None:
            with reading(scene.path, (kind, k, "magnetisation_file"), table.magnetisation_file) as path:
                rows = read_rows(path, len(index), ("x", "y", "z"), f"{ELEMENTS[kind]} of the table")
            parts.append((index, rows))
    robots: Sequence[int] = next(
        (magnetisation.shape[:1] for _, magnetisation in parts if magnetisation.dim() == 3), ()
    )
    of_elements = torch.zeros(*robots, len(table_of), 3, dtype=torch.float64, device="cpu")
    for index, magnetisation in parts:
        of_elements[..., index, :] = magnetisation
    return of_elements


def _field(scene: Scene, table: schema.Magnetic) -> magnetics.Field:
    numbers = scene.numbers
    if table.constant is not None:
        return magnetics.Constant(numbers.vector(("magnetic", "constant"), table.constant))
    if table.rotating is not None:
        amplitude, frequency, phase = (
            numbers.scalar(("magnetic", "rotating", name), getattr(table.rotating, name))
            for name in ("amplitude", "frequency", "phase")
        )
        first, second = (
            torch.eye(3, dtype=torch.float64, device="cpu")["xyz".index(axis)] for axis in table.rotating.plane
        )
        return magnetics.Rotating(amplitude, frequency, first, second, phase)
    for name, kind in (("gradient", magnetics.Gradient), ("dipole", magnetics.Dipole)):
        inside = getattr(table, name)
        if name == "dipole" and inside is not None and inside.file is not None:
            rows = _rows_in_time(scene, "magnetic.dipole.file", inside.file, {6: "x, y, z, moment x, y, z"})
            return magnetics.MovingDipole(rows.times, rows.values[:, 3:], rows.values[:, :3])
        if inside is not None:
            vectors = {key: numbers.vector(("magnetic", name, key), getattr(inside, key)) for key in VECTORS[name]}
            matrix = {"gradient": inside.gradient} if name == "gradient" else {}
            return kind(**vectors, **matrix)
    assert table.file is not None
    rows = _rows_in_time(scene, "magnetic.file", table.file, {3: "Bx, By, Bz"})
    scale = numbers.scalar(("magnetic", "scale"), table.scale)
    values = rows.values.unsqueeze(1) * scale if isinstance(scale, Tensor) else rows.values * scale
    return magnetics.Table(rows.times, values)


def _rows_in_time(scene: Scene, key: str, file: str, columns: dict[int, str]) -> TimeTable:
    """Read a table over time; refuse several rows with the static integrator, which has no time."""
    with reading(scene.path, key, file) as path:
        rows = read_time_table(path, columns)
    if scene.document.simulation.integrator == "static" and len(rows.times) > 1:
        problem = f'{file} has {len(rows.times)} rows: integrator = "static" has no time; expected one row'
        raise SceneError(scene.path, key, problem)
    return rows


def _field_from_code(scene: Scene, name: str) -> magnetics.Field:
    """Return the field that "file.py:name" gives: a function of time, or a module such as `magnetics.Dipole`."""
    path, function = named_in_code(scene.path, KEY, name)
    attribute = name.rpartition(":")[2]

    def refused(error: Exception) -> SceneError:
        problem = f"raised {type(error).__name__}{line_in(path, error)}: {error}"
        return SceneError(scene.path, KEY, f"{attribute} of {path} {problem}")

    def checked(time: Tensor) -> Tensor | Sequence[float]:
        try:
            return function(time)
        except Exception as error:  # whatever the user's function raises: named here, with its cause kept
            raise refused(error) from error

    field = field_of(function) if isinstance(function, nn.Module) else magnetics.Timed(checked)
    try:  # one evaluation, so that errors in the field show before the run
        value = field(
            torch.zeros(scene.batch, 1, 3, dtype=torch.float64, device="cpu"),
            torch.zeros(scene.batch, dtype=torch.float64, device="cpu"),
        )
    except SceneError:
        raise
    except InputError as error:
        raise SceneError(scene.path, KEY, f"{attribute} of {path}: {error}") from error
    except Exception as error:
        raise refused(error) from error
    if not bool(torch.isfinite(value).all()):
        raise SceneError(
            scene.path, KEY, f"{attribute} of {path}: expected finite numbers at time 0, got {value[0, 0]}"
        )
    return field
