"""Arms for the tests, and their kinematics written a second time: point by point, by finite rotations."""

import math

import numpy as np
import torch

from torchdismech import Control
from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle

HANGING = (0.0, math.pi, 0.0)
DT = 4e-3
REST = torch.tensor([0.017157] * 3 + [0.0066636] * 3 + [0.0016351] * 3, dtype=torch.float64)


def paper_arm(obstacles=(), **changes) -> PneumaticArm:
    """Return the paper's arm of three sections, hanging."""
    settings = {"orientation": HANGING, "obstacles": obstacles, **changes}
    return PneumaticArm([0.15] * 3, [1.17, 0.54, 0.265], 0.04, 265.0, settings.pop("damping", 125.0), **settings)


def incline(degrees: float, friction=0.5, height=-0.58) -> Obstacle:
    """Return a face through (0, 0, height) that rises along x."""
    angle = math.radians(degrees)
    face = HalfSpace((0.0, 0.0, height), (-math.sin(angle), 0.0, math.cos(angle)))
    return Obstacle(face, Complementarity(), Friction(friction), name="face")


def pushed(batch: int, force: float = 25.0) -> Control:
    """Return the control that bends the lower sections towards x."""
    value = torch.zeros(batch, 9, dtype=torch.float64)
    value[:, [3, 6]] = force
    return Control(force=value)


def run(arm, steps: int, batch: int = 1, control: Control | None = None, q=REST, **settings):
    """Return the last state and the reports of steps, all made."""
    integrator = ArmIntegrator(DT, **settings)
    state, reports = arm.initial_state(batch, q=q), []
    for _ in range(steps):
        state, info = integrator.step(arm, state, control)
        assert bool(info.converged.all()), info.status
        reports.append(info)
    return state, reports


def poses(count: int, bend: float, seed: int = 0) -> torch.Tensor:
    """Return random elongations (count, 9) that bend a section by angles of about so much [rad]."""
    noise = torch.randn(count, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return 0.04 * bend * noise


def point_on_arm(arm: PneumaticArm, q: np.ndarray, section: int, share: float, pieces: int = 1000) -> np.ndarray:
    """Return a point of one arm by adding up short straight pieces, each turned by a share of the bend."""
    place, turn = arm.base.numpy().copy(), _matrix(arm.orientation.numpy())
    angle = 2 * np.pi * np.arange(arm.chambers) / arm.chambers
    for k in range(section + 1):
        grown = q[arm.chambers * k : arm.chambers * (k + 1)]
        length = arm.length.numpy()[k] + grown.mean()
        u = -2 / (arm.chambers * arm.radius.numpy().flat[0]) * np.array([grown @ np.cos(angle), grown @ np.sin(angle)])
        part = share if k == section else 1.0
        half, whole = (_matrix(np.array([-u[1], u[0], 0.0]) * part * f / pieces) for f in (0.5, 1.0))
        step = half @ np.array([0.0, 0.0, length * part / pieces])
        for _ in range(pieces):
            place, turn = place + turn @ step, turn @ whole
    return place


def _matrix(vector: np.ndarray) -> np.ndarray:
    from scipy.spatial.transform import Rotation

    return Rotation.from_rotvec(vector).as_matrix()
