r"""A snake swims as another does: the second closed loop of the Py-DiSMech paper, section VII.

The reference is a simulation: a rod of 0.1 m in a viscous fluid, free in its plane, swims by a travelling wave of
natural curvature -b k^2 sin(kx - wt) that grows over a quarter of a second. The controller only gets its curvature,
stored at each step and linear in between. A PI law sets the natural curvature of another rod so that its curvature
follows. The paper gives no numbers; these are the project's own.

With feed-forward (F = 1) the curvature follows within 0.1 %, and the snakes swim side by side. Without, which is the
paper's law as its text reads, it lags. A rod that takes its natural shape at once obeys, for slow waves,

    s = Kp (s_ref - s) + Ki z,  dz/dt = s_ref - s    so    |s_ref - s| / |s_ref| = w / sqrt(Ki^2 + w^2 (1 + Kp)^2),

which is printed beside what is measured. Snakes that are softer or stiffer by up to 20 %, in a fluid up to 1.5 times as
viscous, follow as well; and gradient descent through the loop finds gains, from a bad start (`gains.py`).

`python -m studies.shape_tracking.shape_tracking` prints the figures and draws shape_tracking.png.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from torchdismech import Circle, Control, ImplicitEuler, Material, Model, RobotBuilder, forces, straight
from torchdismech.control import PI, Strains, Table
from torchdismech.runs.rollout import frames

LENGTH, NODES, RADIUS = 0.1, 41, 1e-3  # m
YOUNGS, DENSITY, TANGENTIAL, NORMAL = 2e7, 1200.0, 0.05, 0.1  # Pa, kg/m^3, Pa s
WAVES, SLOPE, FREQUENCY, START = 3, 0.4, 1.0, 0.25  # along the body; b k; Hz; s, over which the wave grows
STEP, DURATION = 5e-3, 2.0  # s
OMEGA = 2 * math.pi * FREQUENCY
# gains Kp, Ki [1/s] of the plain PI law whose lag is held against theory
PLAIN = [(0.5, 100.0), (0.25, 50.0), (0.5, 50.0), (0.75, 30.0)]
# results of a first try: largest residual after 0.25 s, and that at 2 s; largest RMSE of the nodes after 0.25 s [m];
# largest distance of the leading node [m]
FIRST_TRY = {(0.5, 100.0, 0): (0.071, 0.061, 1.0e-4, 1.5e-4), (0.5, 50.0, 1): (5.8e-4, 7e-6, 1e-7, 4.5e-6)}

Number = float | Tensor


def build(youngs: Number = YOUNGS, fluid: Number = 1.0, nodes: int = NODES) -> Model:
    """Return the snake; numbers (B, 1) make robots of their own, `fluid` is a factor of the resistance."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (LENGTH, 0, 0), nodes), Circle(RADIUS), Material(youngs, DENSITY, 0.5))
    builder.add_force(forces.Resistive(TANGENTIAL * fluid, NORMAL * fluid))
    return builder.finalize()


def wave(time: Tensor, model: Model) -> Control:
    """Return the natural curvatures of the wave at the times (B,)."""
    k = 2 * math.pi * WAVES / LENGTH
    x = model.nodes[torch.as_tensor(model.springs[:, 1]), 0]
    voronoi = model.body.edge_length[..., torch.as_tensor(model.body.springs.edges)].mean(-1)
    grown = (time / START).clamp(0, 1)[:, None]
    bent = -SLOPE * k * torch.sin(k * x - OMEGA * time[:, None]) * grown * voronoi
    # along x with d1 = z: kappa1 bends to z
    return Control(natural_curvature=torch.stack([bent, torch.zeros_like(bent)], dim=-1))


@dataclass(frozen=True)
class Course:
    """The motion of snakes: positions (T, B, N, 3) [m] and curvatures (T, B, S) [1/m] at times (T,) [s]."""

    time: Tensor
    positions: Tensor
    curvature: Tensor

    def after(self, time: float) -> slice:
        """Return the slice of the frames from a time [s] on."""
        return slice(int((self.time < time - 1e-9).sum()), None)


@dataclass(frozen=True)
class Following:
    """The course of some snakes, and the reference course, of one robot, that they were to follow."""

    course: Course
    reference: Course

    @cached_property
    def residual(self) -> Tensor:
        """Largest error of the curvature over the largest curvature of the reference (T, B)."""
        error = (self.course.curvature - self.reference.curvature).abs().amax(-1)
        return error / self.reference.curvature.abs().max()

    @cached_property
    def error(self) -> Tensor:
        """Root of the mean squared distance of the nodes (T, B) [m]."""
        return (self.course.positions - self.reference.positions).square().sum(-1).mean(-1).sqrt()

    @cached_property
    def leading(self) -> Tensor:
        """Distance of the leading node from the reference's (T, B) [m]."""
        return (self.course.positions - self.reference.positions)[:, :, 0].norm(dim=-1)


def swum(model: Model, strains: Strains, robots: int = 1, duration: float = DURATION, **driven: Any) -> Course:
    """Return the course of snakes that a schedule or a controller drives."""
    integrator = ImplicitEuler(STEP, force_tolerance=1e-11, relative_tolerance=0)
    steps = round(duration / STEP)
    found: list[tuple[Tensor, ...]] = []
    for frame in frames(model, model.initial_state(robots), integrator, steps, throw=True, **driven):
        found.append((frame.state.time[0], frame.state.positions, strains.measured(frame.state, model)))
    return Course(*(torch.stack(field) for field in zip(*found, strict=True)))


def reference(duration: float = DURATION) -> tuple[Strains, Course]:
    """Return the controlled strains, which are the curvatures, and the course to follow."""
    model = build()
    strains = Strains(model, ["curvature"])
    return strains, swum(model, strains, duration=duration, schedule=wave)


def stored(course: Course, every: int = 1) -> Table:
    """Return the table of a course's curvature for a controller, at every `every`-th step."""
    return Table(course.time, course.curvature[:, 0]).every(every)


def followed(
    gains: Sequence[tuple[float, float, bool]],
    model: Model | None = None,
    every: int = 1,
    duration: float = DURATION,
    given: tuple[Strains, Course] | None = None,
    **options: Any,
) -> Following:
    """Return the course of snakes with these gains Kp, Ki, F beside the reference; options are those of `PI`."""
    strains, course = reference(duration) if given is None else given
    model = build() if model is None else model
    Kp, Ki, F = (torch.tensor(column, dtype=torch.float64) for column in zip(*gains, strict=True))
    controller = PI(model, strains, stored(course, every), STEP, Kp, Ki, F, **options)
    return Following(swum(model, strains, len(gains), duration, controller=controller), course)


def lag(Kp: float, Ki: float) -> float:
    """Return the residual of the plain PI law for a rod that takes its natural shape at once."""
    return OMEGA / math.sqrt(Ki**2 + OMEGA**2 * (1 + Kp) ** 2)


def others() -> Model:
    """Return 16 snakes that differ from the reference's: E off by up to 20 %, the fluid up to 1.5 times as viscous."""
    youngs = YOUNGS * torch.tensor([0.8, 0.9, 1.1, 1.2], dtype=torch.float64).repeat(4)
    fluid = torch.tensor([1.0, 1.2, 1.35, 1.5], dtype=torch.float64).repeat_interleave(4)
    return build(youngs[:, None], fluid[:, None])


def drawn(found: Following, robot: int, path: Path) -> None:
    """Draw shapes, the paths of the leading nodes and the residuals, where matplotlib is installed."""
    if importlib.util.find_spec("matplotlib") is None:
        print(f"no {path}: pictures need matplotlib, pip install 'torchdismech[view]'")
        return
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    shapes, way, residual = figure.subplots(1, 3)
    time = found.course.time
    for k, at in enumerate((0.1, 0.25, 0.75, 1.25, 2.0)):
        row = int((time - at).abs().argmin())
        for course, style, which in ((found.reference, "k-", 0), (found.course, "C1--", robot)):
            x, _, z = (1e3 * course.positions[row, which]).unbind(-1)
            shapes.plot(x, z - 12 * k, style, lw=1)
        shapes.annotate(f"{at:g} s", (102, -12 * k), fontsize=8)
    shapes.set(title="reference and snake", xlabel="x [mm]", ylabel="z [mm]", aspect="equal")
    for course, style, which in ((found.reference, "k-", 0), (found.course, "C1--", robot)):
        x, _, z = (1e3 * course.positions[:, which, 0]).unbind(-1)
        way.plot(x, z, style, lw=1)
    way.set(title="leading node", xlabel="x [mm]", ylabel="z [mm]")
    for k in range(found.residual.shape[1]):
        residual.semilogy(time[1:], found.residual[1:, k], lw=1)
    residual.set(title="error of curvature over the largest", xlabel="t [s]")
    figure.savefig(path, dpi=150)
    print(f"wrote {path}")


def main() -> None:
    """Print the figures and draw the snake."""
    given = reference()
    gains: list[tuple[float, float, bool]] = [(Kp, Ki, bool(F)) for Kp, Ki, F in FIRST_TRY]
    gains += [(Kp, Ki, False) for Kp, Ki in PLAIN[1:]]
    found = followed(gains, given=given)
    late = found.course.after(0.25)
    print("  Kp    Ki F: residual after .25 s, at 2 s; RMSE after .25 s, leading node [m]; theory of the lag")
    for k, (Kp, Ki, F) in enumerate(gains):
        measured = [found.residual[late, k].max(), found.residual[-1, k]]
        measured += [found.error[late, k].max(), found.leading[:, k].max()]
        theory = "" if F else f"   {lag(Kp, Ki):.4f}"
        print(f"{Kp:4g}{Ki:6g}{F:2g}: " + " ".join(f"{value:.1e}" for value in measured) + theory)
        if (Kp, Ki, F) in FIRST_TRY:
            print("   first try: " + " ".join(f"{value:.1e}" for value in FIRST_TRY[Kp, Ki, F]))
    coarse = followed([(0.5, 50.0, True)], every=4, given=given)
    print(f"stored every 4th step: residual after .5 s {float(coarse.residual[coarse.course.after(0.5)].max()):.1e}")
    differing = followed([(0.5, 50.0, True)] * 16, others(), given=given)
    late = differing.course.after(0.5)
    print(
        f"16 snakes that differ: residual after .5 s at most {float(differing.residual[late].max()):.1e}, leading node "
        f"at most {float(differing.leading.max()):.1e} m"
    )
    drawn(found, 1, Path("shape_tracking.png"))


if __name__ == "__main__":
    main()
