r"""An overhand knot is pulled tight: six rods in one batch, after an example of MAT-DiSMech's code.

A soft rod of 1 m, straight by nature, lies in a loose overhand knot,

    x = t - 6 t exp(-t^2),  y = 2 (1 - 2 t^2) exp(-t^2),  z = -0.6 sin(2.8 t) exp(-t^2 / 1.5)

up to a scale, which crosses itself three times and touches itself nowhere. Its ends are clamped and taken apart in
62 s from 0.45 m to 0.97 m, so slowly that inertia and the fluid about it hardly count. The rod touches itself, with
friction where the strands slide on each other. Four rods are 3.2 mm thick and differ in friction; two, which are pulled
to 0.8 m, have a quarter of that thickness at the same bending stiffness and mass per length, one smooth and one rough.

While the knot is loose it is a loop of radius R and a short braid of the two strands. With B the bending stiffness and
h the rod's radius, the ends need the tension

    T = B / (2 R^2) + mu P,    P = sigma B eps^3 / h^2,    eps = sqrt(h / R),    sigma = 0.492

to leading order in eps (Audoly, Clauvelin, Neukirch, Phys. Rev. Lett. 99, 164301, 2007); P is the total force with
which the strands press on each other. The braid takes a part of order eps of the loop, so both terms have corrections
of that order. This is why there are thin rods: their eps is half that of the thick ones, and both give an extrapolation
to eps = 0.

Measured between 0.58 m and 0.68 m: the smooth rods need 1.42 (eps = 0.16) and 1.19 (eps = 0.08) times B / (2 R^2); a
straight line through both gives 0.97 at eps = 0. The strands press 1.98 and 1.41 times as much on each other as the law
says; the straight line gives 0.82 at eps = 0. Friction adds mu P, with the P that is measured, to within 1 % of T. In
the end the thick knots are tight, R is 6 to 8 h, at 27 to 42 mN, and surfaces overlap by 0.03 mm at most.

`python -m studies.knot.knot` prints these numbers and draws knot.png.
"""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
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
)
from torchdismech.contact import Friction, Penalty, SelfContact
from torchdismech.geometry.curves import polygon_writhe
from torchdismech.view import pictured

LENGTH, SPAN = 1.0, 0.45  # m: of the rod, and from end to end at the start
LAST_SPANS = [0.97] * 4 + [0.8] * 2  # m, in the end: the thin ones stay loose
DURATION, ONSET = 62.0, 2.0  # s: of the run, and in which the ends get to their speed
RADII = [1.6e-3] * 4 + [4e-4] * 2  # m
FRICTION = [0.0, 0.1, 0.2, 0.3, 0.0, 0.3]
BENDING_STIFFNESS, MASS_PER_LENGTH, POISSON = 9.265e-7, 9.49e-3, 0.5  # N m^2, kg/m: 0.18 MPa, 1180 kg/m^3 if thick
VISCOSITY = 2e-3  # Pa s
STIFFNESS, TOLERANCE, SLIP_VELOCITY = 625.0, 5e-4, 1e-4  # N/m, m of the thick rods, m/s
SIGMA = 0.492  # of the trefoil
LOOSE = (0.58, 0.68)  # m from end to end: the knot is as in theory, and the start is forgotten


@dataclass(frozen=True)
class Knot:
    """Results of a run.

    Attributes
    ----------
    spans : (T, B) distances from end to end [m].
    loops : (T, B) radii of the loop [m].
    pulls : (T, B, 2) outward forces at the two ends [N].
    loads : (T, B) total forces of the strands on each other, P [N].
    losses : (B,) work of the pulls beyond the energy that the rod has gained in the end [J].
    links : (2, B) sum of twist and writhe of the rod at the start and in the end, in turns.
    overlaps : (B,) largest overlap in any step [m].
    """

    spans: Tensor
    loops: Tensor
    pulls: Tensor
    loads: Tensor
    losses: Tensor
    links: Tensor
    overlaps: Tensor

    @property
    def loose(self) -> Tensor:
        """The times (T, B) at which the knots are loose, bool."""
        return (self.spans > LOOSE[0]) & (self.spans < LOOSE[1])

    @property
    def thickness(self) -> Tensor:
        """Radii h of the rods, (1, B) [m]."""
        return column(RADII, self.loops.shape[1]).t()

    @property
    def smallness(self) -> Tensor:
        """The small number eps = sqrt(h / R), (T, B)."""
        return (self.thickness / self.loops).sqrt()

    def while_loose(self, values: Tensor) -> Tensor:
        """Return the means (B,) of values (T, B) over the time in which the knots are loose."""
        return torch.where(self.loose, values, 0.0).sum(0) / self.loose.sum(0)

    def tension_ratios(self) -> Tensor:
        """Return the tension T of the loose knots over that of a bent loop, B / (2 R^2), (B,)."""
        ratio = self.pulls.mean(2) * 2 * self.loops**2 / BENDING_STIFFNESS
        return self.while_loose(ratio)

    def load_ratios(self) -> Tensor:
        """Return P h^2 / (B eps^3) of the loose knots (B,), which theory calls sigma."""
        ratio = self.loads * self.thickness**2 / (BENDING_STIFFNESS * self.smallness**3)
        return self.while_loose(ratio)

    def friction_errors(self) -> Tensor:
        """Return the difference of T - mu P of the loose knots and T of the equally thick smooth one, over T (B,)."""
        tension = self.pulls.mean(2)
        friction = column(FRICTION, tension.shape[1]).t()
        smooth = [RADII.index(h) for h in RADII[: tension.shape[1]]]
        return self.while_loose((tension - friction * self.loads - tension[:, smooth]) / tension)

    def extrapolated(self, values: Tensor) -> Tensor:
        """Return values (B,) of the two loose smooth knots, extrapolated along a straight line to eps = 0, ()."""
        thick, thin = (k for k, mu in enumerate(FRICTION) if mu == 0)
        eps = self.while_loose(self.smallness)
        return values[thin] - eps[thin] * (values[thick] - values[thin]) / (eps[thick] - eps[thin])


def column(values: list[float], robots: int) -> Tensor:
    """Return one value for each of the first robots (robots, 1)."""
    return torch.tensor(values[:robots], dtype=torch.float64)[:, None]


def knotted(nodes: int) -> np.ndarray:
    """Return the rod at the start (nodes, 3) [m], evenly divided."""
    t = np.linspace(-8, 8, 4001)
    bell = np.exp(-(t**2))
    line = np.stack([t - 6 * t * bell, 2 * (1 - 2 * t**2) * bell, -0.6 * np.sin(2.8 * t) * bell ** (2 / 3)], axis=1)
    along = np.concatenate([[0.0], np.linalg.norm(np.diff(line, axis=0), axis=1).cumsum()])
    # the length in the knot beyond the distance of its ends does not depend on how long the tails are
    scale = (LENGTH - SPAN) / (along[-1] - (line[-1, 0] - line[0, 0]))
    places = 0.5 * along[-1] + np.linspace(-0.5, 0.5, nodes) * LENGTH / scale
    return scale * np.stack([np.interp(places, along, x) for x in line.T], axis=1)


def build(nodes: int, robots: int) -> Model:
    """Return the first `robots` of the six knotted rods."""
    radius = column(RADII, robots)
    area, inertia = torch.pi * radius**2, 0.25 * torch.pi * radius**4
    builder = RobotBuilder()
    material = Material(BENDING_STIFFNESS / inertia, MASS_PER_LENGTH / area, POISSON)
    rod = builder.add_rod(knotted(nodes), Circle(radius), material, natural="straight")
    builder.clamp(nodes=rod[:2])
    builder.clamp(nodes=rod[-2:])
    builder.add_force(forces.Viscous(VISCOSITY))
    thinner = RADII[0] / radius
    penalty = Penalty(STIFFNESS * thinner, TOLERANCE / thinner)
    builder.add_contact(SelfContact(penalty, Friction(column(FRICTION, robots), SLIP_VELOCITY)))
    return builder.finalize()


def pulled(start: Tensor, nodes: int, last_spans: list[float], duration: float):
    """Return the schedule that takes the ends of rods apart, from q `start` (B, n), at constant speed after `ONSET`."""
    last = 3 * nodes
    outwards = torch.zeros_like(start)
    outwards[:, [0, 3]], outwards[:, [last - 6, last - 3]] = -1.0, 1.0
    ways = 0.5 * (column(last_spans, len(start)) - SPAN) * outwards

    def way(time: Tensor) -> Tensor:
        """Return the time at full speed in which the ends go as far."""
        return time - ONSET * (1 - (-time / ONSET).exp())

    def schedule(time: Tensor, model: Model) -> Control:
        """Return the control with the ends' positions at the times (B,)."""
        share = way(time) / way(torch.tensor(duration, dtype=time.dtype))
        return Control(clamped_q=start + share[:, None] * ways)

    return schedule


def simulated(
    nodes: int = 301,
    dt: float = 0.1,
    duration: float = DURATION,
    last_spans: list[float] = LAST_SPANS,
) -> tuple[Trajectory, Knot]:
    """Return the run of as many rods as there are spans, and its results; the rods start at rest."""
    model = build(nodes, len(last_spans))
    state, steps = model.initial_state(len(last_spans)), round(duration / dt)
    schedule = pulled(state.q, nodes, last_spans, duration)
    trajectory = rollout(model, state, ImplicitEuler(dt, max_substeps=16), steps, schedule, every=5, throw=True)
    return trajectory, measured(model, trajectory)


def measured(model: Model, trajectory: Trajectory) -> Knot:
    """Return the results of a run."""
    pulls, loads, twists = forces_and_twists(model, trajectory)
    x = trajectory.positions
    spans = (x[:, :, -1] - x[:, :, 0]).norm(dim=2)
    tension = 0.5 * (pulls[1:] + pulls[:-1]).mean(2)
    work = (tension * spans.diff(dim=0)).sum(0)
    energy = torch.stack(list(trajectory.energies.values())).sum(0)
    writhes = torch.tensor([[polygon_writhe(line) for line in x[k].numpy()] for k in (0, -1)])
    return Knot(
        spans=spans,
        loops=torch.stack([loop_radii(row) for row in x]),
        pulls=pulls,
        loads=loads,
        losses=work - (energy[-1] - energy[0]),
        links=writhes + twists[[0, -1]] / (2 * torch.pi),
        overlaps=trajectory.contact["penetration"].amax(0),
    )


def forces_and_twists(model: Model, trajectory: Trajectory) -> tuple[Tensor, Tensor, Tensor]:
    """Return pulls (T, B, 2) [N], loads between strands (T, B) [N] and twists (T, B) [rad] at the stored times."""
    state = model.initial_state(trajectory.batch)
    pulls, loads, twists = [], [], []
    for x, theta in zip(trajectory.positions, trajectory.twist, strict=True):
        state = model.frames.moved(state, torch.cat([x.flatten(1), theta], dim=1))
        pairs = model.contact.may_touch(state.q, state.q, torch.full((trajectory.batch,), 1e-6, dtype=x.dtype))
        assert pairs is not None  # the rope may touch itself
        elastic = model.mechanics.elastic_force(model.start_step(state, pairs=pairs), state.q)
        at_rest = model.self_contacts.force(pairs.listed, state.q, torch.zeros_like(state.q))  # without friction
        elastic, contact = (f[:, : x[0].numel()].unflatten(1, (-1, 3)) for f in (elastic, at_rest))
        pulls.append(torch.stack([elastic[:, :2, 0].sum(1), -elastic[:, -2:, 0].sum(1)], dim=1))
        loads.append(0.5 * contact.norm(dim=2).sum(1))  # half, as each load acts on both strands
        twists.append(model.strains(state)["tau"].sum(1))
    return torch.stack(pulls), torch.stack(loads), torch.stack(twists)


def loop_radii(positions: Tensor) -> Tensor:
    """Return the radii (B,) of the circles through the outer half of the loops of rods (B, N, 3) [m].

    The half is that of the rod whose ends are farthest apart, and so is at most half of the loop of any other.
    """
    nodes = positions.shape[1]
    span = float((positions[:, -1] - positions[:, 0]).norm(dim=1).max())
    half = max(2, int((LENGTH - span) / (4 * LENGTH) * (nodes - 1)))
    arc = positions[:, nodes // 2 - half : nodes // 2 + half + 1]
    arc = arc - arc.mean(1, keepdim=True)
    plane = torch.linalg.svd(arc, full_matrices=False).Vh[:, :2]
    flat = arc @ plane.mT  # (B, K, 2)
    # |p|^2 = 2 c . p + (R^2 - |c|^2)
    system = torch.cat([2 * flat, torch.ones_like(flat[..., :1])], dim=2)
    solution = torch.linalg.lstsq(system, flat.square().sum(2, keepdim=True)).solution[..., 0]
    return (solution[:, 2] + solution[:, :2].square().sum(1)).sqrt()


def knotted_part(trajectory: Trajectory, length: float = 0.5) -> Trajectory:
    """Return the middle of the rods, of a length [m], as seen along z: the knots, once they are somewhat tighter."""
    nodes = trajectory.positions.shape[2]
    half = round(0.5 * length / LENGTH * (nodes - 1))
    middle = trajectory.positions[:, :, nodes // 2 - half : nodes // 2 + half + 1].clone()
    middle[..., 2] = 0.0
    return dataclasses.replace(trajectory, positions=middle, rod_edges=trajectory.rod_edges[: 2 * half])


def main() -> None:
    """Print the numbers and draw the roughest of the thick rods."""
    begin = time.perf_counter()
    trajectory, knot = simulated()
    steps = int(trajectory.step[-1])
    print(f"{steps} steps, {(time.perf_counter() - begin) / steps:.2f} s each; Newton iterations of a step:", end=" ")
    print(f"{trajectory.iterations.sum() / (steps * trajectory.batch):.1f}, at most {trajectory.iterations_max.max()}")
    ratios, loads = knot.tension_ratios(), knot.load_ratios() / SIGMA
    columns = {
        "h [mm]": 1e3 * knot.thickness[0],
        "mu": column(FRICTION, trajectory.batch)[:, 0],
        "eps": knot.while_loose(knot.smallness),
        "2 T R^2/B": ratios,
        "P/theory": loads,
        "friction off": knot.friction_errors(),
        "T end [mN]": 1e3 * knot.pulls[-1].mean(1),
        "R end [mm]": 1e3 * knot.loops[-1],
        "loss [mJ]": 1e3 * knot.losses,
        "overlap [um]": 1e6 * knot.overlaps,
    }
    print("".join(f"{title:>13}" for title in columns))
    for row in zip(*columns.values(), strict=True):
        print("".join(f"{float(value):13.4g}" for value in row))
    print(f"to eps = 0: {knot.extrapolated(ratios):.3f} and {knot.extrapolated(loads):.3f}")
    pictured(knotted_part(trajectory), Path("knot.png"), robot=3, snapshots=6)


if __name__ == "__main__":
    main()
