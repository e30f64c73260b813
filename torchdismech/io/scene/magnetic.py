"""The magnetic forces of a checked scene: its magnetised rods and shells, and the field around them."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from torchdismech import magnetics
from torchdismech.io.scene.files import reading, table_over_time
from torchdismech.io.scene.users_code import UsersFunction
from torchdismech.io.tables import read_vectors
from torchdismech.magnetics.fields import field_of
from torchdismech.values import tensor_of

if TYPE_CHECKING:
    from torchdismech.io.scene.scene import Scene

__all__ = ["magnetic_forces"]

KEY = "magnetic.python"
ELEMENTS = {"rod": "rod edge", "shell": "triangle"}


def magnetic_forces(
    scene: Scene, table_of_edges: np.ndarray, table_of_triangles: np.ndarray, run_code: bool
) -> list[magnetics.Magnetic | magnetics.MagneticShells]:
    """Return the forces on the magnetised rods and shells of a scene, if it has any.

    Parameters
    ----------
    table_of_edges, table_of_triangles : (E,), (F,) [[rod]] table of each edge, [[shell]] table of each triangle.
    run_code : run the file that magnetic.python names; if False, the field is zero in its place.
    """
    table = scene.values.magnetic
    if table is None:
        return []
    field: magnetics.Field | tuple[float, float, float] = (0.0, 0.0, 0.0)
    if table.python is None:
        field = _field(scene, table)
    elif run_code:
        field = _field_from_code(scene, table.python)
    all_forces: list[magnetics.Magnetic | magnetics.MagneticShells] = []
    if any(rod.magnetised for rod in scene.values.rod):
        all_forces.append(magnetics.Magnetic(_magnetisation(scene, "rod", table_of_edges), field))
    if any(shell.magnetised for shell in scene.values.shell):
        all_forces.append(magnetics.MagneticShells(_magnetisation(scene, "shell", table_of_triangles), field))
    return all_forces


def _magnetisation(scene: Scene, kind: str, table_of: np.ndarray) -> Tensor:
    """Return the remanence of the elements (E, 3), or (B, E, 3) where numbers are drawn [A/m]."""
    drawn = any(key[0] == kind and key[2] == "magnetisation" for key in scene.draws)
    robots = [scene.batch] if drawn else []
    of_elements = torch.zeros(*robots, len(table_of), 3, dtype=torch.float64, device="cpu")
    for k, table in enumerate(getattr(scene.values, kind)):
        index = np.flatnonzero(table_of == k)
        if table.magnetisation is not None:
            of_elements[..., index, :] = tensor_of(table.magnetisation, torch.float64).unsqueeze(-2)
        elif table.magnetisation_file is not None:
            with reading(scene.path, (kind, k, "magnetisation_file"), table.magnetisation_file) as path:
                of_elements[..., index, :] = read_vectors(path, len(index), f"{ELEMENTS[kind]} of the table")
    return of_elements


def _field(scene: Scene, table: Any) -> magnetics.Field:
    if table.constant is not None:
        return magnetics.Constant(table.constant)
    if (turning := table.rotating) is not None:
        first, second = (torch.eye(3, dtype=torch.float64, device="cpu")["xyz".index(axis)] for axis in turning.plane)
        return magnetics.Rotating(turning.amplitude, turning.frequency, first, second, turning.phase)
    if table.gradient is not None:
        return magnetics.Gradient(table.gradient.value, table.gradient.gradient, table.gradient.center)
    if table.dipole is not None and table.dipole.file is not None:
        rows = table_over_time(scene, "magnetic.dipole.file", table.dipole.file, {6: "x, y, z, moment x, y, z"})
        return magnetics.MovingDipole(rows.times, rows.values[:, 3:], rows.values[:, :3])
    if table.dipole is not None:
        return magnetics.Dipole(table.dipole.moment, table.dipole.center)
    assert table.file is not None
    rows = table_over_time(scene, "magnetic.file", table.file, {3: "Bx, By, Bz"})
    drawn = isinstance(table.scale, Tensor)
    values = rows.values.unsqueeze(1) * table.scale if drawn else rows.values * table.scale
    return magnetics.Table(rows.times, values)


def _field_from_code(scene: Scene, name: str) -> magnetics.Field:
    """Return the field that "file.py:name" gives: a function of time, or a module such as `magnetics.Dipole`."""
    user_function = UsersFunction(scene.path, KEY, name)
    given = user_function.function
    field = field_of(given) if isinstance(given, nn.Module) else magnetics.Timed(partial(user_function.call, given))
    points = torch.zeros(scene.batch, 1, 3, dtype=torch.float64, device="cpu")
    value = user_function.call(field, points, points[:, 0, 0])  # so that errors in the field show before the run
    if not bool(torch.isfinite(value).all()):
        raise user_function.refused(f"has to give finite numbers at time 0, got {value[0, 0]}")
    return field
