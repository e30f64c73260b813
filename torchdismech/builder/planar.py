"""Loads on robots that keep to the x-z plane."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from torchdismech.errors import InputError
from torchdismech.forces import Buoyancy, Force, Gravity, PointForce
from torchdismech.magnetics import Constant, Magnetic

__all__ = ["refuse_out_of_plane"]

IN_PLANE = 1e-12  # of a vector along y, what rounding may leave of it in the x-z plane


def refuse_out_of_plane(forces: Sequence[Force]) -> None:
    """Refuse loads along y, straight out of the plane: they would do nothing."""
    for force in forces:
        found = _vector_of(force)
        if found is None:
            continue
        name, vector = found
        if bool((vector[..., [0, 2]].abs().amax(-1) < IN_PLANE * vector[..., 1].abs()).any()):
            raise InputError(
                f"planar: {type(force).__name__}.{name} is along y, where a planar robot does not move: it keeps "
                f"to the x-z plane, and up is usually z; got {vector.tolist()}"
            )


def _vector_of(force: Force) -> tuple[str, Tensor] | None:
    """Return the name and the value of what sets the direction of a load, where it is the same everywhere."""
    if isinstance(force, Gravity | Buoyancy):
        return "acceleration", force.acceleration.detach()
    if isinstance(force, PointForce):
        return "force", force.force.detach()
    if isinstance(force, Magnetic) and isinstance(force.field, Constant):
        return "field", force.field.value.detach()
    return None
