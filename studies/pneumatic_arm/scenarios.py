"""The paper's arm of three sections, and the scenes in which it touches things.

Given in the paper: rest length .15 m and masses of the sections, K and B of a chamber. Chosen here, as the paper does
not say: chambers at r = 40 mm, plates of 50 mm, mu = .5, all geometry. See docs/pneumatic_arm.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torchdismech import Control
from torchdismech.constant_curvature import ArmState, PneumaticArm
from torchdismech.contact import Box, Complementarity, Friction, HalfSpace, Obstacle, Sphere

LENGTHS, MASSES = [0.15] * 3, [1.17, 0.54, 0.265]  # m, kg
RADIUS, STIFFNESS, DAMPING, FRICTION = 0.04, 265.0, 125.0, 0.5  # m, N/m, N s/m
DOWN = (0.0, math.pi, 0.0)  # the base's z axis down, its x axis to -x
THICK = 0.3  # m, of boxes


@dataclass(frozen=True)
class Scene:
    """An arm among obstacles, its first state, and the ramp that drives its chambers.

    Attributes
    ----------
    actuated : chambers whose force ramps, counted from 0.
    peak : of the ramp (), or (B, 1) [N].
    begins, ends : of the ramp [s].
    """

    arm: PneumaticArm
    start: ArmState
    actuated: Sequence[int]
    peak: Tensor
    begins: float = 1.0
    ends: float = 2.0

    @property
    def schedule(self) -> Callable[[Tensor, PneumaticArm], Control]:
        """The forces on the chambers over time."""
        which = torch.zeros(self.arm.n_dofs, dtype=self.arm.dtype)
        which[list(self.actuated)] = 1.0

        def forces(time: Tensor, arm: PneumaticArm) -> Control:
            share = ((time - self.begins) / (self.ends - self.begins)).clamp(0, 1)[:, None]
            return Control(force=share * self.peak * which)

        return forces


def hanging(obstacles: Sequence[Obstacle], disks: int, stiffness=STIFFNESS, orientation=DOWN) -> PneumaticArm:
    """Return the paper's arm."""
    return PneumaticArm(
        LENGTHS, MASSES, RADIUS, stiffness, DAMPING, disks=disks, obstacles=obstacles, orientation=orientation
    )


def face(degrees: float, friction=FRICTION, height: float = -0.58) -> Obstacle:
    """Return the half-space of scenario A, through (0, 0, height)."""
    normal = (-math.sin(math.radians(degrees)), 0.0, math.cos(math.radians(degrees)))
    return Obstacle(HalfSpace((0.0, 0.0, height), normal), Complementarity(), Friction(friction), name="box")


def box(degrees: float, point: Sequence[float], sign: int, friction=FRICTION) -> Obstacle:
    """Return a box of 2 m by 2 m with a point on the middle of its upper face, which leans towards sign x."""
    angle = sign * math.radians(degrees)
    middle = [point[0] - math.sin(angle) * THICK / 2, point[1], point[2] - math.cos(angle) * THICK / 2]
    shape = Box(middle, (2.0, 2.0, THICK), (0.0, angle, 0.0))
    return Obstacle(shape, Complementarity(), Friction(friction), name="box")


def inclined_box(
    degrees: float = 45.0, disks: int = 3, batch: int = 1, friction=FRICTION, stiffness=STIFFNESS, peak=40.0, half=False
) -> Scene:
    """Return scenario A: the arm hangs, lengthened by 20 mm, shortens, and bends onto a box from 1 s on."""
    obstacle = face(degrees, friction) if half else box(degrees, (0.0, 0.0, -0.58), -1, friction)
    arm = hanging([obstacle], disks, stiffness)
    start = arm.initial_state(batch, q=torch.full((9,), 0.02, dtype=torch.float64))
    return Scene(arm, start, (3, 6), torch.as_tensor(peak, dtype=torch.float64))


def draped(
    degrees: float = 45.0,
    disks: int = 3,
    batch: int = 1,
    friction=FRICTION,
    stiffness=STIFFNESS,
    peak=40.0,
    begins: float = 1.0,
    ends: float = 2.0,
) -> Scene:
    """Return scenario A': the arm falls onto a box's face that slopes almost as it does, and lies on it.

    The base stands 60 mm above the face, its axis 5 degrees less steep, so that all plates are apart at the start.
    """
    angle = math.radians(degrees)
    point = (-0.06 * math.sin(angle), 0.0, -0.06 * math.cos(angle))
    tilt = (0.0, math.pi / 2 + angle - math.radians(5.0), 0.0)
    arm = hanging([box(degrees, point, 1, friction)], disks, stiffness, tilt)
    return Scene(arm, arm.initial_state(batch), (3, 6), torch.as_tensor(peak, dtype=torch.float64), begins, ends)


def rough_incline(batch: int = 1, friction=0.8, stiffness=STIFFNESS, peak=40.0) -> Scene:
    """Return scenario A'': as A', with six disks a section, on a face of 30 degrees that is rough enough to hold it.

    It comes to rest, as tan 30 degrees = .58 is less than mu, and sticks with many plates until the chambers lift it.
    """
    return draped(30.0, 6, batch, friction, stiffness, peak)


def two_spheres(batch: int = 1, friction=FRICTION, stiffness=STIFFNESS, peak=40.0) -> Scene:
    """Return scenario B: a shortening arm is pushed aside by a ball, then bends its tip against another."""
    x, y = 0.5, -math.sqrt(0.75)  # where chambers 7 and 8 bend the tip to
    upper = Sphere((-0.0965 * x, -0.0965 * y, -0.317), 0.05)
    lower = Sphere((0.145 * x, 0.145 * y, -0.5), 0.05)
    balls = [
        Obstacle(shape, Complementarity(), Friction(friction), name=name)
        for shape, name in ((upper, "upper"), (lower, "lower"))
    ]
    arm = hanging(balls, 3, stiffness)
    start = arm.initial_state(batch, q=torch.full((9,), 0.02, dtype=torch.float64))
    return Scene(arm, start, (6, 7), torch.as_tensor(peak, dtype=torch.float64))
