r"""A caterpillar crawls on a floor by changing its lengths: after an example of MAT-DiSMech's code.

Three feet of equal weight are joined by two segments whose rest lengths change in three moves: the front segment gets
longer by a stroke s, then the rear one as the front one gets short again, then the rear one gets short as well. Each
time one foot is pushed or pulled forward, and its friction is less than what the two others can bear: they hold. After
a cycle all is as before, a step further on.

The distance follows from statics. The segments are elastic: a foot of weight w slides when a segment is strained by
e = mu w / EA. In the steady gait the segments are, in parts of e, compressed by (rear, front)

    (-1, 0) at the start, then (0, 1), (1, 0) and again (-1, 0),

where in the first move the middle foot gives way until the rear segment is unstrained. So the rear foot, which moves in
the last move only, with its segment of rest length L + s compressed before and of rest length L stretched after it,
advances by

    way = (L + s) (1 - e) - L (1 + e) = s - e (2 L + s),

or not at all if this is negative: more friction helps to hold, but costs distance, and a stroke less than about 2 e L
only strains the segments. Without friction nothing moves the centre of mass.

Four robots crawl on a floor that is a constraint, four on one that is a penalty. With mu = 0.25 and a stroke of 5 mm
statics give 4.18 mm a cycle. On the constraint feet hold without creeping, and it is 4.16 mm. The loss comes from
inertia: the middle foot starts suddenly, and pushes back the rear one, whose friction is fully used just then. On the
penalty feet creep while they hold, the faster the nearer they are to sliding: 4.14 mm, and the robot whose stroke is
too short goes backwards by 0.01 mm a cycle.

`python -m studies.caterpillar.caterpillar` prints the distances a cycle and draws caterpillar.png.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
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
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty
from torchdismech.view import pictured

SEGMENT, SECTION = 0.05, Circle(1e-3)  # m
YOUNGS, DENSITY = 2e5, 1200.0
FOOT = 2e-3  # kg, with the share of the segments
FRICTION = [0.0, 0.25, 0.5, 0.5]
STROKES = [5e-3, 5e-3, 5e-3, 1e-3]  # m
MOVE = 5.0  # s: so slow that inertia hardly counts
# strokes by which the rear and the front segment are longer at the start of each move, and after the last
GAIT = [(0.0, 0.0), (0.0, 1.0), (1.0, 0.0), (0.0, 0.0)]
STIFFNESS, TOLERANCE, SLIP_VELOCITY = 1000.0, 1e-3, 1e-5  # N/m, m, m/s
GRAVITY = 9.81


@dataclass(frozen=True)
class Crawl:
    """Results of a run.

    Attributes
    ----------
    ways : (cycles, B) distance of the rear foot in each cycle [m].
    drifts : (B,) displacement of the centre of mass from the start to the end [m].
    overlaps : (B,) largest overlap with the floor [m].
    """

    ways: Tensor
    drifts: Tensor
    overlaps: Tensor


def build(constraint: bool) -> Model:
    """Return four robots on a floor that is a constraint, or a penalty."""
    friction = torch.tensor(FRICTION, dtype=torch.float64)[:, None]
    builder = RobotBuilder(planar=True)
    feet = builder.add_rod(straight((0, 0, 0), (2 * SEGMENT, 0, 0), 3), SECTION, Material(YOUNGS, DENSITY))
    half_segment = 0.5 * DENSITY * torch.pi * SECTION.radius**2 * SEGMENT
    builder.add_mass(feet[[0, 2]], FOOT - half_segment)
    builder.add_mass(feet[[1]], FOOT - 2 * half_segment)
    builder.add_force(forces.Gravity((0.0, 0.0, -GRAVITY)))
    floor = HalfSpace((0.0, 0.0, -SECTION.radius), (0.0, 0.0, 1.0))
    if constraint:
        contact = Obstacle(floor, Complementarity(), Friction(friction), name="floor")
    else:
        contact = Obstacle(floor, Penalty(STIFFNESS, TOLERANCE), Friction(friction, SLIP_VELOCITY), name="floor")
    builder.add_contact(contact)
    return builder.finalize()


def gait(time: Tensor, model: Model) -> Control:
    """Return the rest lengths at the times (B,); moves start and end without acceleration."""
    strokes, beyond = torch.tensor(STROKES, dtype=time.dtype), torch.tensor(GAIT, dtype=time.dtype)
    phase = (time / MOVE) % (len(GAIT) - 1)
    move = phase.long()
    share = phase - move
    done = (share**3 * (10 - 15 * share + 6 * share**2))[:, None]
    longer = (1 - done) * beyond[move] + done * beyond[move + 1]
    return Control(rest_length=SEGMENT + strokes[:, None] * longer)


def simulated(constraint: bool, cycles: int = 3, dt: float = 0.1) -> tuple[Model, Trajectory]:
    """Return the model and the run; the robots start at rest."""
    model = build(constraint)
    steps = cycles * round((len(GAIT) - 1) * MOVE / dt)
    every = steps // (30 * cycles)
    return model, rollout(model, model.initial_state(len(FRICTION)), ImplicitEuler(dt), steps, gait, every, throw=True)


def measured(trajectory: Trajectory) -> Crawl:
    """Return the results of a run."""
    x = trajectory.positions[..., 0]
    cycle = (trajectory.time / ((len(GAIT) - 1) * MOVE)).flatten()
    rear = x[(cycle - cycle.round()).abs() < 1e-6, :, 0]
    middle = x.mean(2)  # all feet have the same mass
    return Crawl(rear.diff(dim=0), middle[-1] - middle[0], trajectory.contact["penetration"].amax(0))


def expected_ways() -> Tensor:
    """Return the distance of each robot in a cycle (B,) by statics [m]."""
    friction, stroke = (torch.tensor(x, dtype=torch.float64) for x in (FRICTION, STROKES))
    strain = friction * FOOT * GRAVITY / (YOUNGS * torch.pi * SECTION.radius**2)
    way = (stroke - strain * (2 * SEGMENT + stroke)).clamp(min=0.0)
    return torch.where(friction > 0, way, 0.0)


def main() -> None:
    """Print the numbers and draw a robot on the floor that is a constraint."""
    runs = {name: simulated(name == "constraint") for name in ("constraint", "penalty")}
    crawls = {name: measured(trajectory) for name, (_, trajectory) in runs.items()}
    print("way of the last cycle [mm], drift of the middle of mass in all [mm]")
    print(f"{'mu':>6}{'stroke':>8}{'statics':>10}" + "".join(f"{name:>12}{'drift':>10}" for name in crawls))
    for b, (mu, stroke, way) in enumerate(zip(FRICTION, STROKES, expected_ways(), strict=True)):
        found = "".join(f"{1e3 * c.ways[-1, b]:12.4f}{1e3 * c.drifts[b]:10.4f}" for c in crawls.values())
        print(f"{mu:6g}{1e3 * stroke:8g}{1e3 * way:10.4f}{found}")
    model, trajectory = runs["constraint"]
    pictured(trajectory, Path("caterpillar.png"), robot=1, node=0, snapshots=4)


if __name__ == "__main__":
    main()
