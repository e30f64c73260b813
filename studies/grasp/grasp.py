"""A soft gripper closes on a ball, squeezes and lifts it: six frictions in one batch.

Four fingers hang around a hollow ball that lies on a floor. Their natural curvature grows until they press on the ball
from the sides, a little above its equator, and then the palm goes up. Ball and fingers are parts of one robot: all that
holds the ball is contact of rods and shell, with friction; the floor is smooth.

Friction alone lifts: the fingers press with N each, so they carry no more than about 4 mu N, and the ball comes along
where that is more than its weight W. With slippery fingers it stays on the floor, which then carries W again. Both are
read from the contact report, at rest and in the end.

`python -m studies.grasp.grasp` prints the squeeze before the palm goes up, how far the ball was lifted and how much of
its weight fingers and floor carry in the end, and draws grasp.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import trimesh
from torch import Tensor

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    Model,
    RobotBuilder,
    Trajectory,
    forces,
    rollout,
    straight,
)
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.view import pictured

FINGERS, EDGES, LENGTH = 4, 8, 0.06  # m
BELOW = 5e-4  # m, that the tips hang below the equator: bent, they press on it
FINGER, FINGER_MATERIAL = Circle(3e-3), Material(2e7, 1100.0, 0.5, 0.02)
BALL, THICKNESS, BALL_MATERIAL = 0.025, 2e-3, Material(2e7, 2000.0, 0.4, 0.01)  # m
CLEARANCE = 2e-3  # m, between ball and fingers before they close
BEND = 0.5  # rad, by which a free finger would turn from root to tip
CLOSING, WAITING, LIFTING, HOLDING = 0.4, 0.2, 0.4, 0.4  # s
LIFT = 0.03  # m
AT_LAST = 12  # frames
FRICTION, SLIP_VELOCITY = [0.0, 0.1, 0.2, 0.3, 0.4, 0.6], 1e-3
STIFFNESS, TOLERANCE = 1000.0, 5e-4  # N/m, m
GRAVITY = 9.81


@dataclass(frozen=True)
class Robot:
    """A model, the nodes of its ball, and those of each finger from its root to its tip (F, n)."""

    model: Model
    ball: np.ndarray
    fingers: np.ndarray


@dataclass(frozen=True)
class Grasp:
    """Results of a run.

    Attributes
    ----------
    weight : of the ball [N].
    squeezes : (B,) mean force of a finger on the ball towards the axis before the palm goes up [N].
    lifts : (B,) height by which the ball's middle has risen in the end [m].
    holds, floors : (B,) loads that fingers and floor carry in the end, over the weight: means of the last frames, as a
        ball let go may tip from one triangle to the next.
    overlaps : (B,) largest overlap of two surfaces in any step [m].
    """

    weight: float
    squeezes: Tensor
    lifts: Tensor
    holds: Tensor
    floors: Tensor
    overlaps: Tensor


def build(subdivisions: int) -> Robot:
    """Return the gripper around a ball whose triangles are those of an icosahedron, so many times divided by four."""
    builder = RobotBuilder()
    sphere = trimesh.creation.icosphere(subdivisions, BALL)
    ball = builder.add_shell(np.asarray(sphere.vertices), np.asarray(sphere.faces), THICKNESS, BALL_MATERIAL, "hinge")
    away = BALL + THICKNESS / 2 + FINGER.radius + CLEARANCE
    fingers = []
    for azimuth in 2 * np.pi * np.arange(FINGERS) / FINGERS:
        outwards = np.array([np.cos(azimuth), np.sin(azimuth), 0.0])
        root, tip = (away * outwards + [0.0, 0.0, height] for height in (LENGTH, -BELOW))
        inwards = np.tile(-outwards, (EDGES, 1))  # the first directors: kappa1 bends a finger towards the axis
        line = straight(root, tip, EDGES + 1)
        fingers.append(builder.add_rod(line, FINGER, FINGER_MATERIAL, directors=inwards))
    builder.clamp(nodes=[finger[k] for finger in fingers for k in (0, 1)])
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    builder.add_force(forces.MassDamping(2.0))
    friction = torch.tensor(FRICTION, dtype=torch.float64)[:, None]
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), Friction(friction, SLIP_VELOCITY)))
    floor = HalfSpace((0.0, 0.0, sphere.vertices[:, 2].min() - THICKNESS / 2), (0.0, 0.0, 1.0))
    builder.add_contact(Obstacle(floor, Penalty(STIFFNESS, TOLERANCE), name="floor"))
    return Robot(builder.finalize(), ball, np.stack(fingers))


def moved(robot: Robot):
    """Return the schedule that closes the fingers and then lifts their roots."""
    model = robot.model
    start = model.initial_state(len(FRICTION)).q
    closing = torch.tensor([1.0, 0.0], dtype=start.dtype).expand(len(model.springs), 2)
    roots = torch.as_tensor(3 * robot.fingers[:, :2].ravel() + 2)

    def schedule(time: Tensor, model: Model) -> Control:
        """Return the control with natural curvatures and the roots' positions at the times (B,)."""
        kappa = 2 * torch.tan(BEND * eased(time / CLOSING) / (EDGES - 1) / 2)
        target = start.clone()
        target[:, roots] += LIFT * eased((time - CLOSING - WAITING) / LIFTING)[:, None]
        return Control(clamped_q=target, natural_curvature=kappa[:, None, None] * closing)

    return schedule


def eased(s: Tensor) -> Tensor:
    """Return a smooth step from 0 to 1 for s from 0 to 1, with zero slope at both ends."""
    s = s.clamp(0, 1)
    return 3 * s**2 - 2 * s**3


def simulated(subdivisions: int = 2, dt: float = 4e-3) -> tuple[Robot, Trajectory, Grasp]:
    """Return the gripper, the run and its results."""
    robot = build(subdivisions)
    model = robot.model
    steps = round((CLOSING + WAITING + LIFTING + HOLDING) / dt)
    integrator = ImplicitEuler(dt, max_substeps=16)
    every = max(1, steps // 70)
    state = model.initial_state(len(FRICTION))
    trajectory = rollout(model, state, integrator, steps, moved(robot), every, throw=True)
    return robot, trajectory, measured(robot, trajectory)


def measured(robot: Robot, trajectory: Trajectory) -> Grasp:
    """Return the results of a run."""
    body, contact = robot.model.body, trajectory.contact
    weight = GRAVITY * float(body.node_mass()[robot.ball].sum())
    before = int((trajectory.time < CLOSING + WAITING).sum()) - 1
    outwards = torch.nn.functional.normalize(robot.model.nodes[robot.fingers[:, 0], :2], dim=-1)
    squeezes = [
        (contact[f"force/part{int(body.part_of_node[finger[0]])}"][before, :, :2] * out).sum(-1)
        for finger, out in zip(robot.fingers, outwards, strict=True)
    ]
    heights = trajectory.positions[:, :, robot.ball, 2].mean(2)
    floors = contact["force/floor"][-AT_LAST:, :, 2].mean(0) / weight
    holds = contact[f"force/part{int(body.part_of_node[robot.ball[0]])}"][-AT_LAST:, :, 2].mean(0) / weight
    overlaps = contact["penetration"].amax(0)
    return Grasp(weight, torch.stack(squeezes).mean(0), heights[-1] - heights[0], holds, floors, overlaps)


def main() -> None:
    """Print the numbers and draw the ball that the roughest fingers hold."""
    robot, trajectory, grasp = simulated()
    titles = ("friction", "4 mu N / W", "lift [mm]", "fingers / W", "floor / W", "overlap [mm]")
    print("".join(f"{title:>14}" for title in titles))
    for k, mu in enumerate(FRICTION):
        carried = FINGERS * mu * grasp.squeezes[k] / grasp.weight
        row = carried, 1e3 * grasp.lifts[k], grasp.holds[k], grasp.floors[k], 1e3 * grasp.overlaps[k]
        print(f"{mu:14g}" + "".join(f"{float(value):14.4f}" for value in row))
    pictured(trajectory, Path("grasp.png"), robot=len(FRICTION) - 1, snapshots=3)


if __name__ == "__main__":
    main()
