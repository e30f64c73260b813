"""check_stencil and check_energy: check derivatives, shapes and independence of stencils and energies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from torch import Tensor

from torchdismech.compilation import Compilation, Cost
from torchdismech.elastic import Assembly, ElasticTerm, Energy, LinearElastic, Stencil
from torchdismech.elastic.scatters import couplings
from torchdismech.errors import InputError, positive_number, refuse_other_kind, whole_number
from torchdismech.robot.state import Control, State, control_of
from torchdismech.sparse import Pattern
from torchdismech.testing.report import (
    ROUNDINGS,
    SAME,
    Check,
    Report,
    comparison,
    differences,
    finite_check,
    fixed_generator,
    robots_check,
    rounding,
    separation_check,
    shape_check,
    slope,
    stacked,
)
from torchdismech.testing.robots import alone_check, refuse_other_robots

__all__ = ["check_energy", "check_stencil"]

MOVES = 3  # number of random directions in the space of all dofs, along which force and matrix are checked


def check_stencil(stencil: Stencil, state: State, control: Control | None = None) -> Report:
    """Check a stencil at a state (B, n) of the robot it belongs to, which should be bent, twisted and stretched.

    Checks: its dofs exist; the local variables are the sums of dofs that the stencil lists; shapes; finite; the same
    result twice; the strains of a spring do not depend on other springs; `derivatives` returns the strains of `strain`;
    first and second derivatives by local variables against differences; force and matrix, as a model sums them, against
    differences along random directions of all dofs; each robot gives the same result alone as in a batch with different
    robots.
    """
    for name, given, kind in (("stencil", stencil, Stencil), ("state", state, State)):
        refuse_other_kind(f"check_stencil(stencil, state): {name}", given, kind, f"a {kind.__name__}")
    refuse_other_robots(
        "check_stencil", stencil, state.batch, "take a state of COUNT: model.initial_state(batch=COUNT)"
    )
    report = Report(f"{type(stencil).__name__}: {stencil.count} stencils, {state.batch} robots")
    control = control_of(control)
    constants = stencil.constants(state, control)
    q = state.q.t().contiguous()
    missing = sum(int((dofs >= len(q)).sum()) for variable in stencil.variables for dofs, _ in variable)
    report.checks.append(Check(f"dofs are 0 to {len(q) - 1}", float(missing), 0.0))
    if missing:
        return report
    local = torch.stack(stencil.local(q))
    listed, doubt = _listed_sums(stencil, q)
    report.checks.append(comparison("local variables are the listed sums", local, listed, SAME, doubt))
    shapes = _shapes(stencil, local, constants)
    report.checks.extend(shapes)
    if not all(shape.ok for shape in shapes):
        return report

    def strain(v: Tensor) -> Tensor:
        return torch.stack(stencil.strain(list(v), *constants)).detach()

    report.checks.append(finite_check(strain(local)))
    report.checks.append(comparison("the same twice", strain(local), strain(local), SAME))
    report.checks.append(separation_check(strain, local))
    report.checks.extend(_by_local(stencil, local, constants, strain))
    report.checks.extend(_along_moves(stencil, state, control))
    report.checks.append(alone_check(stencil, partial(_strains_of, stencil), state, control, dim=-1))
    return report


def check_energy(energy: Energy, strains: int, size: float = 1.0, stencils: int = 6, robots: int = 3) -> Report:
    """Check an energy density at random strains of about the given size.

    Checks: shapes; finite; the same result twice; the energy of a spring or robot does not depend on other springs or
    robots; first and second derivatives against differences; `slopes` returns the first derivatives; second derivatives
    are symmetric; parts, if there are any, add up to the density.

    Parameters
    ----------
    strains : how many strains the density takes.
    size : their typical size in the energy's units (curvatures in 1/m).
    stencils : number of springs to check with.
    robots : number of robots to check with; if tensors named in `per_robot` are given for several, their number.
    """
    refuse_other_kind("check_energy(energy, strains): energy", energy, Energy, "an Energy")
    strains, stencils, robots = (
        whole_number(count, f"check_energy: {name}")
        for name, count in (("strains", strains), ("stencils", stencils), ("robots", robots))
    )
    size = positive_number(size, "check_energy: size")
    refuse_other_robots("check_energy", energy, robots, "give robots=COUNT")
    report = Report(f"{type(energy).__name__}: {strains} strains of size {size:g}")
    point = size * torch.randn(
        strains, stencils, robots, dtype=torch.float64, generator=fixed_generator(), device="cpu"
    )
    zero = torch.zeros(stencils, robots, dtype=torch.float64, device="cpu")
    report.checks.append(shape_check("density", [[_density(energy, point)]], (1, 1), tuple(zero.shape)))
    first, second = energy.derivatives(tuple(point))
    rows = [[zero if c is None else _widened(c, zero) for c in row] for row in second]
    firsts = [_widened(g, zero) for g in first]
    report.checks.append(shape_check("first derivatives", [firsts], (1, strains), tuple(zero.shape)))
    report.checks.append(shape_check("second derivatives", rows, (strains, strains), tuple(zero.shape)))
    if not report.ok:
        return report

    def density(s: Tensor) -> Tensor:
        return energy.density(tuple(s)).detach().unsqueeze(0)

    def slopes(s: Tensor) -> Tensor:
        return torch.stack([g.expand(s.shape[1:]) for g in energy.derivatives(tuple(s))[0]]).detach()

    matrix = torch.stack([torch.stack(row) for row in rows]).detach()
    report.checks.append(finite_check(density(point)))
    report.checks.append(comparison("the same twice", density(point), density(point), SAME))
    report.checks.append(separation_check(density, point))
    report.checks.append(robots_check(density, point))
    rise, doubt = (found[:, 0] for found in differences(density, point))
    report.checks.append(comparison("first derivatives", slopes(point), rise, doubt=doubt))
    own = torch.stack([g.expand_as(zero) for g in energy.slopes(tuple(point))]).detach()
    report.checks.append(comparison("slopes() has the first derivatives", own, slopes(point), SAME))
    turns = differences(slopes, point)
    report.checks.append(comparison("second derivatives", matrix, turns.value, doubt=turns.doubt))
    report.checks.append(comparison("second derivatives symmetric", matrix, matrix.transpose(0, 1), 1e-9))
    if parts := energy.parts(tuple(point)):
        total = torch.stack([part.expand_as(zero) for part in parts.values()]).sum(0).detach()
        report.checks.append(comparison("parts add up", total, density(point)[0], SAME))
    return report


def _density(energy: Energy, strains: Tensor) -> Tensor:
    """Return the density at strains (m, S, B); refuse an energy that cannot be evaluated."""
    try:
        return energy.density(tuple(strains))
    except Exception as error:
        raise InputError(
            f"{type(energy).__name__}.density: cannot be evaluated: {error}. It is given a tuple of its strains, each "
            f"(stencils, B) = {tuple(strains.shape[1:])}, and returns the densities (stencils, B)"
        ) from error


def _strains_of(stencil: Stencil, state: State, control: Control) -> Tensor:
    return torch.stack(stencil.strain(stencil.local(state.q.t().contiguous()), *stencil.constants(state, control)))


def _widened(value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor expanded to the shape of `like` if it broadcasts, else unchanged."""
    try:
        return value.expand_as(like)
    except RuntimeError:
        return value


def _listed_sums(stencil: Stencil, q: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums (k, S, B) of weight * dof that `Stencil.variables` lists, at q (n, B), and their rounding."""
    reads = [
        torch.stack([torch.as_tensor(w, device="cpu").to(q)[:, None] * q[d] for d, w in v]) for v in stencil.variables
    ]
    sums, sizes = torch.stack([read.sum(0) for read in reads]), torch.stack([read.abs().sum(0) for read in reads])
    return sums, ROUNDINGS * torch.finfo(q.dtype).eps * sizes


def _weights(stencil: Stencil, local: Tensor) -> Tensor:
    """Return random weights of all strains, (strains, S, B)."""
    return torch.randn(
        len(stencil.strains), *local.shape[1:], dtype=local.dtype, generator=fixed_generator(), device="cpu"
    )


def _shapes(stencil: Stencil, local: Tensor, constants: tuple[Tensor, ...]) -> list[Check]:
    """Check the shapes of strains and derivatives that a stencil returns."""
    names, expected = len(stencil.strains), tuple(local.shape[1:])
    strain = shape_check("strains", [stencil.strain(list(local), *constants)], (1, names), expected)
    if not strain.ok:
        return [strain]
    strains, first, second = stencil.derivatives(list(local), *constants)
    by_pairs = second(*_weights(stencil, local))
    return [
        strain,
        shape_check("strains of derivatives()", [strains], (1, names), expected),
        shape_check("first derivatives", first, (names, len(local)), expected),
        shape_check("second derivatives", [by_pairs], (1, len(stencil.pairs)), expected),
    ]


def _by_local(
    stencil: Stencil, local: Tensor, constants: tuple[Tensor, ...], strain: Callable[[Tensor], Tensor]
) -> Iterator[Check]:
    """Compare the derivatives by local variables with differences."""
    weights = _weights(stencil, local)
    strains, first, second = stencil.derivatives(list(local), *constants)
    rounded = rounding(strain, local, local.abs().max())
    yield comparison("derivatives() has the strains", torch.stack(list(strains)), strain(local), SAME, rounded)
    found = torch.stack([torch.stack(row) for row in first], dim=1)  # (k, strains, S, B)
    expected, doubt = differences(strain, local)
    yield comparison("first derivatives", found, expected, doubt=doubt)

    def gradient(v: Tensor) -> Tensor:
        _, slopes, _ = stencil.derivatives(list(v), *constants)
        return _weighted(weights, slopes)

    upper, doubt = (torch.stack([turns[j, i] for i, j in stencil.pairs]) for turns in differences(gradient, local))
    yield comparison("second derivatives", torch.stack(second(*weights)), upper, doubt=doubt)


def _weighted(weights: Tensor, slopes: list[list[Tensor]]) -> Tensor:
    """Return sum_i w_i d strain_i / d variable_a, (k, S, B)."""
    rows = [torch.stack(row) for row in slopes]
    return sum(w * row for w, row in zip(weights, rows, strict=True))


def _along_moves(stencil: Stencil, state: State, control: Control) -> Iterator[Check]:
    """Compare force and matrix of a model with this stencil with differences of its energy and its force."""
    n, dtype, generator = state.q.shape[1], state.q.dtype, fixed_generator()
    strains = _strains_of(stencil, state, control)
    natural = torch.randn(len(strains), stencil.count, dtype=dtype, generator=generator, device="cpu")
    natural = natural * (strains.abs().amax() + 1)  # so that every strain has a stress, even in a state at rest
    energy = LinearElastic({name: torch.ones((), dtype=dtype, device="cpu") for name in stencil.strains})
    term = ElasticTerm("checked", stencil, energy, torch.ones((), dtype=dtype, device="cpu"), natural=natural.unbind())
    unknown = np.arange(n)
    pattern = Pattern.union(n, *couplings(stencil, unknown), symmetric=True)
    assembly = Assembly([term], [], n, unknown, pattern, dtype, Compilation(False, Cost(0.0, 0.0)))
    q, constants = state.q.t().contiguous(), term.constants(state, control)
    force, values = assembly.force_and_stiffness(q, [constants])
    matrix = pattern.to_dense(values.detach())
    step = torch.finfo(dtype).eps ** (1 / 3)
    moves = _moves(stencil, state)

    def energy_along(move: Tensor, by: float) -> Tensor:
        return term.potential(q + by * move, constants)

    def pull_along(move: Tensor, by: float) -> Tensor:
        return -assembly.force(q + by * move, [constants]).t()

    rise = [-(force * move).sum(0) for move in moves]
    change = [(matrix @ move.t().unsqueeze(-1)).squeeze(-1) for move in moves]
    for name, found, along in (
        ("force along moves of all dofs", rise, energy_along),
        ("matrix along moves of all dofs", change, pull_along),
    ):
        expected, doubt = stacked([slope(partial(along, move), step) for move in moves])
        yield comparison(name, torch.stack(found).detach(), expected, doubt=doubt)


def _moves(stencil: Stencil, state: State) -> Tensor:
    """Return random directions (MOVES, n, B): of nodes by about the size of local variables, of angles by 1 rad."""
    nodes, local = 3 * state.n_nodes, stencil.local(state.q.t().contiguous())
    lengths = [v.abs() for v, ((dofs, _), *_) in zip(local, stencil.variables, strict=True) if dofs.max() < nodes]
    size = torch.stack(lengths).amax(0).median().item() if lengths else 1.0
    moves = torch.randn(MOVES, *state.q.t().shape, dtype=state.q.dtype, generator=fixed_generator(), device="cpu")
    moves[:, :nodes] *= size or 1.0
    return moves
