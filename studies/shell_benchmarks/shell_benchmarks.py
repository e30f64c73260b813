"""Shells that bend far: benchmark problems of Sze, Liu and Lo (2004), and a cylinder that is pinched a little.

- A strip held at one end, with a force across the other.
- The same with a moment at the end, which rolls it up to a full circle.
- A ring with a slit, one of whose lips is held and the other lifted.
- A hemisphere with a hole, pulled apart along one axis and pushed together along the other; a quarter of it.
- An open cylinder that is pulled out at two points; an eighth of it.
- A cylinder with stiff ends that is pinched by small forces, 164.24 P / (E h) of theory (Lindberg, Olson and Cowper,
  1969); an eighth of it.

Shells are grids of squares that are halved, all the same way. Parts of a shell are held at planes of
symmetry: nodes stay in the plane, and so do the normals there. The strip is rolled up by turning the normals at its end
once; the third number of that case is the torque at the held end, in parts of 2 pi EI / L.

Run `python -m studies.shell_benchmarks.shell_benchmarks`, or with the names of some cases; `--squares 0.5` takes half
as many squares along each side as the table in docs/shells.md, `--membrane springs` the other membrane, `--bending
hinge` the other bending.
"""

from __future__ import annotations

import argparse
import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from torchdismech import Control, Material, Model, RobotBuilder, Static, forces

DENSITY = 1.0  # kg/m^3: equilibria do not depend on it
FULL_CIRCLE = 2 * math.pi * 100.0 / 12.0  # N m: the moment that rolls the strip up, EI = 100 N m^2, L = 12 m
HOLE = math.radians(18)  # angle from the pole to the rim of the hemisphere's hole


@dataclass(frozen=True)
class Grid:
    """Squares, each halved, laid out on a surface.

    Attributes
    ----------
    nodes : (N, 3).
    triangles : (F, 3).
    at : (a + 1, b + 1) the number of each node.
    """

    nodes: np.ndarray
    triangles: np.ndarray
    at: np.ndarray

    @classmethod
    def on(cls, surface: Callable, a: int, b: int) -> Grid:
        """Lay (a, b) squares out on surface(u, v), for u and v from 0 to 1."""
        u, v = np.meshgrid(np.linspace(0, 1, a + 1), np.linspace(0, 1, b + 1), indexing="ij")
        nodes = np.stack(surface(u.ravel(), v.ravel()), axis=1)
        at = np.arange(len(nodes)).reshape(a + 1, b + 1)
        p, q, r, s = (x.ravel() for x in (at[:-1, :-1], at[1:, :-1], at[1:, 1:], at[:-1, 1:]))
        halves = [np.stack(corners, axis=1) for corners in ((p, q, r), (p, r, s))]
        return cls(nodes, np.concatenate(halves), at)


@dataclass(frozen=True)
class Shell:
    """A shell under its load.

    Attributes
    ----------
    builder : builder of the model with its loads.
    moves : (node, axis, sign) of each displacement that is measured.
    turned : nodes at the end of the strip whose normals are turned once, or none.
    """

    builder: RobotBuilder
    moves: tuple[tuple[int, int, int], ...]
    turned: tuple[int, ...] = ()


@dataclass(frozen=True)
class Case:
    """A benchmark: the shell, the squares of the table in docs/shells.md, and the reference displacements."""

    shell: Callable[[int, int, dict], Shell]
    squares: tuple[int, int]
    references: tuple[float, ...]
    load_steps: int


def built(grid: Grid, youngs: float, poisson: float, thickness: float, kinds: dict) -> RobotBuilder:
    """Return a builder with the shell."""
    builder = RobotBuilder()
    builder.add_shell(grid.nodes, grid.triangles, thickness, Material(youngs, DENSITY, poisson), **kinds)
    return builder


def strip(length: float, a: int, b: int, kinds: dict) -> tuple[Grid, RobotBuilder]:
    """Return a strip of width 1 along x that is held at x = 0."""
    grid = Grid.on(lambda u, v: (length * u, v, 0 * u), a, b)
    builder = built(grid, 1.2e6, 0.0, 0.1, kinds)
    builder.clamp(nodes=grid.at[0].tolist())
    return grid, builder


def end_shear(a: int, b: int, kinds: dict) -> Shell:
    """Return a strip with a force of 4 across its end."""
    grid, builder = strip(10.0, a, b, kinds)
    end = grid.at[-1]
    builder.add_force(forces.LineLoad((0.0, 0.0, 4.0), sides=np.stack([end[:-1], end[1:]], axis=1)))
    return Shell(builder, ((int(end[0]), 0, -1), (int(end[0]), 2, 1)))


def end_moment(a: int, b: int, kinds: dict) -> Shell:
    """Return a strip whose end is turned once."""
    grid, builder = strip(12.0, a, b, kinds)
    end = grid.at[-1].tolist()
    builder.clamp(nodes=end, axes="y")  # and the normals there
    return Shell(builder, ((end[0], 0, -1), (end[0], 2, 1)), tuple(end))


def slit_ring(a: int, b: int, kinds: dict) -> Shell:
    """Return a ring of radii 6 and 10 with one lip of its slit held, the other lifted by .8 per length."""

    def ring(u, v):
        radius, angle = 6 + 4 * u, 2 * math.pi * v
        return radius * np.cos(angle), radius * np.sin(angle), 0 * u

    grid = Grid.on(ring, a, b)
    with warnings.catch_warnings():  # the lips of the slit are in one place on purpose, and not joined
        warnings.filterwarnings("ignore", message="shell: nodes .* in one place")
        builder = built(grid, 21e6, 0.0, 0.03, kinds)
    builder.clamp(nodes=grid.at[:, 0].tolist())
    lip = grid.at[:, -1]
    builder.add_force(forces.LineLoad((0.0, 0.0, 0.8), sides=np.stack([lip[:-1], lip[1:]], axis=1)))
    return Shell(builder, ((int(lip[0]), 2, 1), (int(lip[-1]), 2, 1)))


def hemisphere(a: int, b: int, kinds: dict) -> Shell:
    """Return a quarter of a hemisphere with a hole, its equator pulled out by 400 along x, pushed in along y."""

    def sphere(u, v):
        up, round_ = (math.pi / 2 - HOLE) * u, 0.5 * math.pi * v
        return 10 * np.cos(up) * np.cos(round_), 10 * np.cos(up) * np.sin(round_), 10 * np.sin(up)

    grid = Grid.on(sphere, a, b)
    builder = built(grid, 6.825e7, 0.3, 0.04, kinds)
    builder.clamp(nodes=grid.at[:, 0].tolist(), axes="y")
    builder.clamp(nodes=grid.at[:, -1].tolist(), axes="x")
    pulled, pushed = int(grid.at[0, 0]), int(grid.at[0, -1])
    builder.clamp(nodes=[int(grid.at[-1, b // 2])], axes="z")
    builder.add_force(forces.PointForce([pulled], (200.0, 0.0, 0.0)))
    builder.add_force(forces.PointForce([pushed], (0.0, -200.0, 0.0)))
    return Shell(builder, ((pulled, 0, 1), (pushed, 1, -1)))


def cylinder_eighth(radius: float, half_length: float, a: int, b: int) -> Grid:
    """Return an eighth of a cylinder along x: u from its middle to its end, v from the top to the side."""

    def surface(u, v):
        angle = 0.5 * math.pi * v
        return half_length * u, radius * np.sin(angle), radius * np.cos(angle)

    return Grid.on(surface, a, b)


def pulled_cylinder(a: int, b: int, kinds: dict) -> Shell:
    """Return an eighth of an open cylinder, pulled up by 40000 at its top."""
    grid = cylinder_eighth(4.953, 10.35 / 2, a, b)
    builder = built(grid, 10.5e6, 0.3125, 0.094, kinds)
    builder.clamp(nodes=grid.at[0].tolist(), axes="x")
    builder.clamp(nodes=grid.at[:, 0].tolist(), axes="y")
    builder.clamp(nodes=grid.at[:, -1].tolist(), axes="z")
    top, side, corner = int(grid.at[0, 0]), int(grid.at[0, -1]), int(grid.at[-1, -1])
    builder.add_force(forces.PointForce([top], (0.0, 0.0, 1e4)))
    return Shell(builder, ((top, 2, 1), (side, 1, -1), (corner, 1, -1)))


def pinched_cylinder(a: int, b: int, kinds: dict) -> Shell:
    """Return an eighth of a cylinder with stiff ends, pushed down by 1e-3 at its top."""
    grid = cylinder_eighth(300.0, 300.0, a, b)
    builder = built(grid, 3e6, 0.3, 3.0, kinds)
    builder.clamp(nodes=grid.at[0].tolist(), axes="x")
    builder.clamp(nodes=grid.at[:, 0].tolist(), axes="y")
    builder.clamp(nodes=grid.at[:, -1].tolist(), axes="z")
    builder.clamp(nodes=grid.at[-1].tolist(), axes="yz", twist=False)
    top = int(grid.at[0, 0])
    builder.add_force(forces.PointForce([top], (0.0, 0.0, -2.5e-4)))
    return Shell(builder, ((top, 2, -1),))


CASES = {
    "end_shear": Case(end_shear, (16, 1), (3.286, 6.698), 5),
    "end_moment": Case(end_moment, (16, 1), (12.0, 0.0, 1.0), 16),
    "slit_ring": Case(slit_ring, (10, 80), (13.891, 17.528), 1),
    "hemisphere": Case(hemisphere, (16, 16), (4.067, 8.178), 5),
    "pulled_cylinder": Case(pulled_cylinder, (16, 24), (2.768, 4.551, 3.222), 10),
    "pinched_cylinder": Case(pinched_cylinder, (32, 32), (164.24e-3 / (3e6 * 3.0),), 1),
}


def turned_once(model: Model, q: Tensor, end: tuple[int, ...]) -> Tensor:
    """Return q (1, n) with the normals at the end of a strip turned by a whole turn, upwards."""
    edges = model.body.framed_edges
    dofs = 3 * len(model.nodes) + np.flatnonzero(np.isin(edges, end).all(1))
    turned = q.clone()
    turned[:, dofs] = -2 * math.pi  # about the edges, which go along y
    return turned


def measured(name: str, squares: float = 1.0, **kinds: str) -> tuple[np.ndarray, int]:
    """Return the displacements of a case's shell, in the order of its references, and the number of Newton iterations.

    Parameters
    ----------
    squares : factor on the number of squares of the table along each side.
    kinds : `bending` and `membrane` of `add_shell`.
    """
    case = CASES[name]
    a, b = (max(1, round(squares * count)) for count in case.squares)
    shell = case.shell(a, b, {"bending": "midedge", "membrane": "continuum", **kinds})
    model = shell.builder.finalize()
    state, control = model.initial_state(), Control()
    if shell.turned:
        control = Control(clamped_q=turned_once(model, state.q, shell.turned))
    steps = Static(load_steps=case.load_steps, force_tolerance=1e-9, max_iterations=200)
    after, info = steps.step(model, state, control, throw=True)
    way = (after.positions - state.positions)[0].numpy()
    moves = [sign * way[node, axis] for node, axis, sign in shell.moves]
    if shell.turned:
        torque = steps.reactions(model, state, after, control)[0, 0, 4]
        moves.append(float(torque) / FULL_CIRCLE)
    return np.array(moves), int(info.iterations)


def main() -> None:
    """Print the displacements beside the references."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="default: all")
    parser.add_argument("--squares", type=float, default=1.0)
    parser.add_argument("--membrane", default="continuum")
    parser.add_argument("--bending", default="midedge")
    given = parser.parse_args()
    for name in given.cases or CASES:
        start = time.process_time()
        moves, iterations = measured(name, given.squares, membrane=given.membrane, bending=given.bending)
        seconds = time.process_time() - start
        pairs = zip(moves, CASES[name].references, strict=True)
        said = ", ".join(f"{move:.6g} ({reference:.6g})" for move, reference in pairs)
        print(f"{name:18} {said}; {iterations} iterations, {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
