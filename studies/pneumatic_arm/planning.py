"""A plan through contact: the paper's arm, standing on its base, turns a ball above it by 90 degrees about an axis.

The plan is found by CasADi and IPOPT (`pip install 'torchdismech[plan]'`), then its forces are replayed in the
simulator, which has small steps and its own law of contact: open loop, and with a feedback that pulls the arm to its
plan. See docs/pneumatic_arm.md.

`python -m studies.pneumatic_arm.planning --axis x` takes minutes, prints how the plan was found and the results of its
replays, and draws planning_x.png.
"""

from __future__ import annotations

import argparse
import importlib.util
import math
from pathlib import Path

import numpy as np

from studies.pneumatic_arm.scenarios import DAMPING, LENGTHS, MASSES, RADIUS, STIFFNESS
from torchdismech.constant_curvature import PneumaticArm
from torchdismech.constant_curvature.planning import (
    Ball,
    Plan,
    Replay,
    angle_between,
    plan_rotation,
    replay,
    rotation_about,
    touching_start,
)

GAIN = 1000.0  # N/m, of the replay with feedback
PARTS = 8  # steps of the simulator in one of the plan


def standing(disks: int = 0) -> PneumaticArm:
    """Return the paper's arm on its base, its axis upwards."""
    return PneumaticArm(LENGTHS, MASSES, RADIUS, STIFFNESS, DAMPING, disks=disks)


def found(axis: str, steps: int = 100, duration: float = 4.0, progress: bool = False) -> Plan:
    """Return the plan that turns the ball by 90 degrees about an axis."""
    return plan_rotation(
        standing(), Ball(), rotation_about(axis, 90.0), steps=steps, duration=duration, progress=progress
    )


def table(plan: Plan) -> str:
    """Return a table in Markdown of the solver's runs."""
    lines = ["| program | eps | status | iterations | CPU time [s] |", "|---|---|---|---|---|"]
    lines += [f"| {s.name} | {s.relaxation:g} | {s.status} | {s.iterations} | {s.seconds:.1f} |" for s in plan.stages]
    return "\n".join(lines)


def summary(plan: Plan) -> str:
    """Return a line with the plan's errors, residuals and forces."""
    minutes = sum(stage.seconds for stage in plan.stages) / 60
    return (
        f"{'converged' if plan.converged else 'NOT converged'} after {minutes:.1f} minutes of CPU time: "
        f"error {plan.error:.1e}, products up to {plan.residuals['complementarity']:.2e}, "
        f"defects up to {plan.defect:.1e}, |quaternion| - 1 up to {plan.residuals['quaternion']:.0e}; "
        f"normal force {float(plan.normal.min()):.2f} to {float(plan.normal.max()):.2f} N"
    )


def outcome(plan: Plan, played: Replay) -> str:
    """Return a line that compares the ball's last orientation in the simulator with the plan's."""
    wanted, got = angle_between(plan.orientation[0], plan.orientation[-1]), played.angle
    return (
        f"the ball is turned by {math.degrees(got):.1f} degrees, in the plan by {math.degrees(wanted):.1f}; "
        f"its orientations differ by {math.degrees(played.difference(plan)):.1f} degrees"
    )


def draw(plan: Plan, played: dict[str, Replay], axis: str, path: Path) -> None:
    """Draw arm and ball over time, the ball's angle and the forces, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path}: pictures need matplotlib, pip install 'torchdismech[view]'")
        return
    from matplotlib.figure import Figure

    across = 0 if axis == "y" else 1  # the ball's circumference moves along x, or along y
    ball = Ball()
    figure = Figure(figsize=(11, 6.5), layout="constrained")
    parts = figure.subplot_mosaic([["arm", "angle"], ["arm", "contact"], ["arm", "force"]], width_ratios=[1, 1.4])
    arm = parts["arm"]
    points = standing(disks=9).points(plan.q).numpy()
    middle = np.array(ball.center)[[across, 2]]
    angle = np.linspace(0, 2 * np.pi, 100)
    arm.plot(middle[0] + ball.radius * np.cos(angle), middle[1] + ball.radius * np.sin(angle), color="0.4")
    frames = sorted({round(share * (len(points) - 1)) for share in (0, 0.02, 0.05, 0.1, 0.3, 1)})
    for number, frame in enumerate(frames):
        color = f"C{number}"
        arm.plot(points[frame, :, across], points[frame, :, 2], color=color, label=f"{float(plan.times[frame]):.2f} s")
        mark = _carried(plan.orientation[frame].numpy())[[across, 2]] * ball.radius
        arm.plot([middle[0], middle[0] + mark[0]], [middle[1], middle[1] + mark[1]], color=color)
    arm.set(aspect="equal", xlabel=f"{'xy'[across]} [m]", ylabel="z [m]", title="arm, and a mark on the ball")
    arm.legend(fontsize="small")
    times = plan.times.numpy()
    for name, orientation in [("plan", plan.orientation), *((n, r.orientation) for n, r in played.items())]:
        turned = [math.degrees(angle_between(orientation[0], now)) for now in orientation]
        parts["angle"].plot(times, turned, label=name)
    parts["angle"].set(ylabel="ball's angle [degrees]")
    parts["angle"].legend(fontsize="small")
    tangential = (plan.contact_force.square().sum(1) - plan.normal.square()).clamp(min=0).sqrt()
    parts["contact"].plot(times[1:], plan.normal, label="normal")
    parts["contact"].plot(times[1:], tangential, label="tangential")
    parts["contact"].set(ylabel="contact [N]")
    parts["contact"].legend(fontsize="small")
    parts["force"].plot(times[1:], plan.force)
    parts["force"].set(xlabel="time [s]", ylabel="chambers [N]")
    figure.savefig(path, dpi=120)
    print(f"wrote {path}")


def _carried(orientation: np.ndarray) -> np.ndarray:
    """Return the direction (3,), from the ball's middle, of the point that is lowest at the identity orientation."""
    w, x, y, z = orientation
    return -np.array([2 * (x * z + w * y), 2 * (y * z - w * x), 1 - 2 * (x * x + y * y)])


def main() -> None:
    """Plan, print, replay, draw."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--axis", default="x", choices=("x", "y", "z"))
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path, help="the plan, an npz file; planning_AXIS.npz by default")
    parser.add_argument("--plan", type=Path, help="replay this plan instead of finding one")
    chosen = parser.parse_args()
    path = chosen.out or Path(f"planning_{chosen.axis}.npz")
    start, held = touching_start(standing(), Ball())
    print("start, at rest against the ball: elongations [mm]", np.round(1e3 * start.numpy(), 1))
    print("held by the chambers' forces [N]", np.round(held.numpy(), 2))
    if chosen.plan is None:
        plan = found(chosen.axis, chosen.steps, progress=True)
        plan.save(path)
        print(f"wrote {path}")
    else:
        plan = Plan.load(chosen.plan)
    print(table(plan))
    print(summary(plan))
    played = {}
    for name, gain in (("open loop", 0.0), ("with feedback", GAIN)):
        played[name] = replay(standing(), Ball(), plan, dt=plan.step / PARTS, gain=gain, progress=True)
        print(f"replayed {name}: {outcome(plan, played[name])}")
    draw(plan, played, chosen.axis, path.with_suffix(".png"))


if __name__ == "__main__":
    main()
