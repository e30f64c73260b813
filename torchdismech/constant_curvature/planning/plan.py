"""Plan: a motion of arm and ball with its forces, and how well it satisfies the equations."""

from __future__ import annotations

import dataclasses
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib.npyio import NpzFile
from torch import Tensor

from torchdismech.errors import InputError, refuse_other_kind

__all__ = ["Plan", "Stage"]


@dataclass(frozen=True)
class Stage:
    """How IPOPT solved one of the programs of a plan.

    Attributes
    ----------
    name : "kinematic" or "dynamic".
    relaxation : eps, the bound on complementary products.
    status : what IPOPT returned; "Solve_Succeeded" is the only success.
    iterations : number of IPOPT's iterations.
    seconds : CPU time of the process [s].
    """

    name: str
    relaxation: float
    status: str
    iterations: int
    seconds: float


@dataclass(frozen=True, eq=False)
class Plan:
    """A motion of one arm that turns a ball, in N steps; all tensors on the CPU, float64.

    Attributes
    ----------
    times : (N + 1,) [s].
    q, velocity : (N + 1, n) elongations of the chambers and their rates [m, m/s].
    orientation, spin : (N + 1, 4) quaternions (w, x, y, z) of the ball, and (N + 1, 3) its angular velocity along the
        world's axes [rad/s].
    force : (N, n) on the chambers, each held over its step [N].
    normal : (N,) normal contact force [N].
    contact_force : (N, 3) of the ball on the end plate, along the world's axes [N].
    gap : (N,) between plate and ball at the end of each step [m].
    target : (4,) requested final orientation.
    residuals : largest violations by name, evaluated on the plan itself: "complementarity", the largest product of two
        complementary unknowns [SI units]; "rate" [m/s], "force" [N], "spin" [rad/s], "orientation", defects of the
        equations of motion; "contact", defects of the definitions of gap, friction margin and sliding; "quaternion", |
        |o| - 1 |.
    stages : how the programs were solved, one after the other.
    """

    times: Tensor
    q: Tensor
    velocity: Tensor
    orientation: Tensor
    spin: Tensor
    force: Tensor
    normal: Tensor
    contact_force: Tensor
    gap: Tensor
    target: Tensor
    residuals: dict[str, float]
    stages: tuple[Stage, ...]

    @property
    def converged(self) -> bool:
        """Whether the last program was solved to its tolerance."""
        return self.stages[-1].status == "Solve_Succeeded"

    @property
    def step(self) -> float:
        """Duration of a step [s]."""
        return float(self.times[1] - self.times[0])

    @property
    def error(self) -> float:
        """Error of the ball's last orientation, 1 - (o . target)^2."""
        return float(1 - (self.orientation[-1] @ self.target) ** 2)

    @property
    def defect(self) -> float:
        """Largest defect of the equations of motion."""
        return max(self.residuals[name] for name in ("rate", "force", "spin", "orientation"))

    def save(self, path: str | Path) -> None:
        """Write the plan to an npz file."""
        arrays: dict[str, Any] = {f.name: getattr(self, f.name).numpy() for f in _tensors()}
        arrays |= {f"residual/{name}": np.array(value) for name, value in self.residuals.items()}
        arrays |= {
            f"stage/{f.name}": np.array([getattr(stage, f.name) for stage in self.stages])
            for f in dataclasses.fields(Stage)
        }
        with open(path, "wb") as file:
            np.savez(file, **arrays)

    @classmethod
    def load(cls, path: str | Path) -> Plan:
        """Read a plan that `save` wrote.

        Raises
        ------
        InputError
            A file that is no .npz, or lacks arrays of a plan.
        """
        with _archive(path) as file:
            columns = [f"stage/{f.name}" for f in dataclasses.fields(Stage)]
            missing = [name for name in [*(f.name for f in _tensors()), *columns] if name not in file]
            if missing:
                raise InputError(f"{path}: expected a file that Plan.save wrote; it lacks {', '.join(missing)}")
            tensors = {f.name: torch.from_numpy(file[f.name]) for f in _tensors()}
            residuals = {name[9:]: float(file[name]) for name in file if name.startswith("residual/")}
            stages = zip(*(file[name].tolist() for name in columns), strict=True)
            return cls(**tensors, residuals=residuals, stages=tuple(Stage(*row) for row in stages))


def _archive(path: str | Path) -> NpzFile:
    """Return an .npz file, open; refuse another kind of file."""
    try:
        archive = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:  # by NumPy for text, empty files, damaged archives
        raise InputError(f"{path}: expected a file that Plan.save wrote, got another, or a damaged one") from error
    refuse_other_kind(str(path), archive, NpzFile, "a file that Plan.save wrote")
    return archive


def _tensors() -> list[dataclasses.Field]:
    return [f for f in dataclasses.fields(Plan) if f.type == "Tensor"]
