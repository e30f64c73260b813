"""Contract checks to run on your own stencils, energies and forces.

```python
report = check_energy(MyEnergy(), strains=2, size=10.0)
print(report)              # a table: what was checked, the worst error, the tolerance
report.raise_if_failed()   # AssertionError with that table
```
Derivatives are held against central differences with steps of eps^(1/3) of the variables' size: truncation and
rounding are then both near 1e-10 of the function's own size, and 1e-6 of the largest derivative
leaves room for strong curvature.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from torchdismech.body import Body
from torchdismech.compilation import Compilation, Cost
from torchdismech.elastic import Assembly, ElasticTerm, Energy, LinearElastic, Stencil
from torchdismech.errors import InputError
from torchdismech.forces import Force
from torchdismech.geometry.surface import find_surface
from torchdismech.geometry.topology import find_joint_springs, find_rods, find_springs
from torchdismech.hooks import settle_dependence
from torchdismech.model import Model
from torchdismech.sparse import Pattern
from torchdismech.state import Control, State

__all__ = [
    "Check",
    "Report",
    "check_energy",
    "check_force",
    "check_rigid_motion",
    "check_stencil",
    "check_symmetry",
]

DERIVATIVE = 1e-6  # relative to the largest derivative; see the module
SAME = 1e-12  # relative; two ways to compute the same, in float64
SYMMETRY = 1e-9  # relative; positions are rounded anew when a robot is moved, and differences of them lose digits


@dataclass(frozen=True)
class Check:
    """One property, how far it is from holding, and how far it may be."""

    name: str
    error: float
    tolerance: float

    @property
    def ok(self) -> bool:
        """Whether it holds; NaN never does."""
        return self.error <= self.tolerance


@dataclass
class Report:
    """What was checked of one term."""

    title: str
    checks: list[Check] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether all checks hold."""
        return all(check.ok for check in self.checks)

    def raise_if_failed(self) -> None:
        """Raise an AssertionError that shows the table if any check failed."""
        if not self.ok:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        width = max(len(check.name) for check in self.checks)
        lines = [self.title]
        for check in self.checks:
            verdict = "ok" if check.ok else "FAILED"
            lines.append(
                f"  {check.name:<{width}}  error {check.error:8.1e}  tolerance {check.tolerance:.0e}  {verdict}"
            )
        return "\n".join(lines)


def check_stencil(stencil: Stencil, state: State, control: Control | None = None) -> Report:
    """Check a stencil at a state (B, n) of the robot it belongs to: take one that is bent, twisted and stretched.

    Checks: it reads dofs that there are; the local variables are the sums of dofs that the stencil lists; shapes; the
    same twice; no stencil changes another's strains; `derivatives` has the strains of `strain`; first and second
    derivatives by the local variables against differences; force and matrix, as a model sums them, against differences
    along random moves of all dofs; each robot as if it were alone.
    """
    report = Report(f"{type(stencil).__name__}: {stencil.count} stencils, {state.batch} robots")
    control = control or Control()
    constants = stencil.constants(state, control)
    q = state.q.t().contiguous()
    missing = sum(int((dofs >= len(q)).sum()) for variable in stencil.variables for dofs, _ in variable)
    report.checks.append(Check(f"dofs are 0 to {len(q) - 1}", float(missing), 0.0))
    if missing:
        return report
    local = torch.stack(stencil.local(q))
    report.checks.append(_compared("local variables are the listed sums", local, _listed_sums(stencil, q), SAME))
    shapes = _shapes(stencil, local, constants)
    report.checks.extend(shapes)
    if not all(shape.ok for shape in shapes):
        return report

    def strain(v: Tensor) -> Tensor:
        return torch.stack(stencil.strain(list(v), *constants)).detach()

    report.checks.append(_finite(strain(local)))
    report.checks.append(_compared("the same twice", strain(local), strain(local), SAME))
    report.checks.append(_separate(strain, local))
    report.checks.extend(_by_local(stencil, local, constants, strain))
    report.checks.extend(_along_moves(stencil, state, control))
    alone = torch.cat([_strains_of(stencil, state.rows([i]), _row(control, i)) for i in range(state.batch)], dim=-1)
    report.checks.append(_compared("each robot as if alone", alone, strain(local), SAME))
    return report


def check_energy(energy: Energy, strains: int, size: float = 1.0, stencils: int = 6, robots: int = 3) -> Report:
    """Check an energy density at random strains of about the given size.

    Checks: shapes; the same twice; no stencil changes another's energy; first and second derivatives against
    differences; `slopes` has the first ones; second ones symmetric; parts, if there are any, add up.

    Parameters
    ----------
    strains : how many strains the density takes.
    size : their typical size in the energy's units (curvatures in 1/m).
    """
    report = Report(f"{type(energy).__name__}: {strains} strains of size {size:g}")
    point = size * torch.randn(strains, stencils, robots, dtype=torch.float64, generator=_generator())
    zero = torch.zeros(stencils, robots, dtype=torch.float64)
    report.checks.append(_shaped("density", [[energy.density(tuple(point))]], (1, 1), tuple(zero.shape)))
    first, second = energy.derivatives(tuple(point))
    rows = [[zero if c is None else _widened(c, zero) for c in row] for row in second]
    firsts = [_widened(g, zero) for g in first]
    report.checks.append(_shaped("first derivatives", [firsts], (1, strains), tuple(zero.shape)))
    report.checks.append(_shaped("second derivatives", rows, (strains, strains), tuple(zero.shape)))
    if not report.ok:
        return report

    def density(s: Tensor) -> Tensor:
        return energy.density(tuple(s)).detach().unsqueeze(0)

    def slopes(s: Tensor) -> Tensor:
        return torch.stack([g.expand(s.shape[1:]) for g in energy.derivatives(tuple(s))[0]]).detach()

    matrix = torch.stack([torch.stack(row) for row in rows]).detach()
    report.checks.append(_finite(density(point)))
    report.checks.append(_compared("the same twice", density(point), density(point), SAME))
    report.checks.append(_separate(density, point))
    value = _differences(density, point)[:, 0]
    report.checks.append(_compared("first derivatives", slopes(point), value))
    own = torch.stack([g.expand_as(zero) for g in energy.slopes(tuple(point))]).detach()
    report.checks.append(_compared("slopes() has the first derivatives", own, slopes(point), SAME))
    report.checks.append(_compared("second derivatives", matrix, _differences(slopes, point)))
    report.checks.append(_compared("second derivatives symmetric", matrix, matrix.transpose(0, 1), 1e-9))
    if parts := energy.parts(tuple(point)):
        total = torch.stack([part.expand_as(zero) for part in parts.values()]).sum(0).detach()
        report.checks.append(_compared("parts add up", total, density(point)[0], SAME))
    return report


def check_force(force: Force, model: Model, state: State, control: Control | None = None) -> Report:
    """Check a force at a state (B, n) that moves and is deformed.

    A force that is part of no model yet is bound to this one's robot: so one that `finalize` refuses can be looked at.

    Checks: shape; finite; derivatives by position and velocity against differences over ALL dofs, so that a dependence
    outside the declared blocks shows; symmetry as claimed; each robot as if it were alone.
    """
    report = Report(f"{type(force).__name__}{' (explicit)' if force.explicit else ''}: {state.batch} robots")
    control = control or Control()
    if not hasattr(force, "body"):
        force.bind(model.body)
        settle_dependence(force, model.batch, state, control)
    value = force(state, control).detach()
    wrong = value.shape != state.q.shape
    report.checks.append(Check("force is (B, n)", float(wrong), 0.0))
    if wrong:
        return report
    report.checks.append(Check("finite", float((~torch.isfinite(value)).sum()), 0.0))
    report.checks.append(_compared("the same twice", force(state, control).detach(), value, 0.0))
    if not force.explicit:
        by_q, by_velocity = _dense_derivatives(force, state, control)
        for name, matrix, variable in (("position", by_q, "q"), ("velocity", by_velocity, "velocity")):
            differences = _force_differences(force, state, control, variable)
            report.checks.append(_compared(f"derivative by {name}", matrix, differences))
            if force.symmetric:
                report.checks.append(_compared(f"... symmetric, as claimed ({name})", matrix, matrix.mT, 1e-9))
    if force.conservative:
        report.checks.append(
            _compared("minus the gradient of its potential", value, -_potential_slopes(force, state, control))
        )
    if model.batch is None:
        alone = torch.cat([force(state.rows([i]), _row(control, i)) for i in range(state.batch)])
        report.checks.append(_compared("each robot as if alone", alone.detach(), value, SAME))
    return report


def check_symmetry(
    force: Force,
    model: Model,
    state: State,
    control: Control | None = None,
    rotation: str | None = "gravity",
    translation: bool = True,
    relabelling: bool = True,
    reversal: bool = True,
    gravity: tuple[float, float, float] = (0.0, 0.0, -1.0),
) -> Report:
    """Check the symmetries that a force of a model claims, at a state (B, n) that moves and is deformed.

    Parameters
    ----------
    rotation : "gravity": turning the robot about the axis of gravity turns the force; "any": about every axis; None: no
        claim.
    translation : moving the robot leaves the force as it is.
    relabelling : other numbers for nodes and edges give the same force under other numbers.
    reversal : so does storing edges in the opposite direction (their second material director turns round).
    gravity : direction of the axis.
    """
    if rotation not in ("gravity", "any", None):
        raise InputError(f"check_symmetry: rotation has to be 'gravity', 'any' or None, got {rotation!r}")
    control = control or Control()
    report = Report(f"{type(force).__name__}: symmetries, {state.batch} robots")
    value = force(state, control).detach()
    if rotation is not None:
        turn = _turn(gravity if rotation == "gravity" else (0.3, -0.8, 0.5)).to(value)
        name = "turns with the robot" + (" about gravity" if rotation == "gravity" else "")
        found = force(_turned(state, turn), control).detach()
        report.checks.append(_compared(name, found, _on_nodes(value, turn, state), SYMMETRY))
    if translation:
        shift = torch.tensor([0.7, -1.3, 0.4], dtype=value.dtype, device=value.device)
        q = torch.cat([(state.positions + shift).flatten(1), state.twist], dim=1)
        report.checks.append(
            _compared("moves with the robot", force(state.replace(q=q), control).detach(), value, SYMMETRY)
        )
    for claimed, flips, name in ((relabelling, False, "other numbers"), (reversal, True, "edges the other way round")):
        if claimed:
            found = _relabelled(force, model.body, state, control, flips)
            report.checks.append(_compared(name, found, value, SYMMETRY))
    return report


def check_rigid_motion(model: Model, state: State) -> Report:
    """Check that the elastic energies of a model's terms do not change when a robot is turned and moved."""
    report = Report(f"elastic energies under a rigid motion: {', '.join(t.name for t in model.terms)}")
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=_generator()))
    turn = (turn * torch.linalg.det(turn)).to(state.q)
    positions = state.positions @ turn.mT + torch.tensor([0.3, -0.2, 0.5], dtype=state.q.dtype)
    moved = state.replace(
        q=torch.cat([positions.flatten(1), state.twist], dim=1),
        director=state.director @ turn.mT,
        tangent=state.tangent @ turn.mT,
    )
    before, after = model.energies(state), model.energies(moved)
    for name in before:
        if name != "kinetic":
            # rounding of positions times the stiffness of stretching: far above 1e-12 of a small energy
            report.checks.append(_compared(name, after[name], before[name], 1e-8))
    return report


# ---- differences -------------------------------------------------------------------------------------------------


def _generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def _row(control: Control, index: int) -> Control:
    return control.rows([index])


def _strains_of(stencil: Stencil, state: State, control: Control) -> Tensor:
    return torch.stack(stencil.strain(stencil.local(state.q.t().contiguous()), *stencil.constants(state, control)))


def _turn(axis: tuple[float, float, float]) -> Tensor:
    """Return the rotation (3, 3) by an odd angle about an axis."""
    a = torch.tensor(axis, dtype=torch.float64)
    a = a / torch.linalg.vector_norm(a)
    cross = torch.linalg.cross(a.expand(3, 3), torch.eye(3, dtype=torch.float64)).mT
    return torch.linalg.matrix_exp(1.234 * cross)


def _turned(state: State, turn: Tensor) -> State:
    """Return the state with everything turned."""
    return state.replace(
        q=_on_nodes(state.q, turn, state),
        velocity=_on_nodes(state.velocity, turn, state),
        acceleration=_on_nodes(state.acceleration, turn, state),
        director=state.director @ turn.mT,
        tangent=state.tangent @ turn.mT,
    )


def _on_nodes(value: Tensor, turn: Tensor, state: State) -> Tensor:
    """Return (B, n) with the vectors of the nodes turned."""
    nodes = value[:, : 3 * state.n_nodes].unflatten(1, (-1, 3)) @ turn.mT
    return torch.cat([nodes.flatten(1), value[:, 3 * state.n_nodes :]], dim=1)


def _relabelled(force: Force, body: Body, state: State, control: Control, flips: bool) -> Tensor:
    """Return the force of a copy that is bound to the same robot under other numbers, back under the old ones.

    Controls that are set per dof, edge or spring do not follow: check with those a force does not read.
    """
    generator = _generator()
    node, edge = (torch.randperm(k, generator=generator) for k in (body.n_nodes, body.n_edges))
    angle = torch.cat([edge, torch.arange(body.n_edges, body.n_angles)])
    sign = torch.where(torch.rand(len(edge), generator=generator) < 0.5, -1.0, 1.0).to(state.q) if flips else None
    other = _other_body(body, node, edge, sign)
    dofs = torch.cat([(3 * node[:, None] + torch.arange(3)).flatten(), 3 * body.n_nodes + angle])
    ends = torch.ones(body.n_angles, dtype=state.q.dtype)
    if sign is not None:
        ends[: len(edge)] = sign
    signs = torch.cat([torch.ones(3 * body.n_nodes, dtype=state.q.dtype), ends])
    moved = state.replace(
        **{name: (getattr(state, name)[:, dofs] * signs) for name in ("q", "velocity", "acceleration")},
        director=state.director[:, angle],
        tangent=state.tangent[:, angle] * ends[:, None],
        reference_twist=state.q.new_zeros(state.batch, len(other.springs.nodes)),
    )
    twin = copy.deepcopy(force)
    del twin.body
    twin.bind(other)
    found = twin(moved, control).detach() * signs
    return torch.zeros_like(found).index_copy(1, dofs, found)


def _other_body(body: Body, node: Tensor, edge: Tensor, sign: Tensor | None) -> Body:
    """Return the body whose node k is the old `node[k]`, and likewise for rod edges; negative signs reverse them."""
    new_number = torch.argsort(node).numpy()
    edges = new_number[body.rod_edges[edge.numpy()]]
    if sign is not None:
        edges = np.where((sign < 0).numpy()[:, None], edges[:, ::-1], edges)
    rods, joints, normals = find_rods(body.n_nodes, edges), new_number[body.joint_edges], new_number[body.normal_edges]
    springs = find_springs(body.n_nodes, edges, rods)
    if len(joints):
        springs = springs.joined(find_joint_springs(body.n_nodes, np.concatenate([edges, joints]), len(edges)))
    angle = torch.cat([edge, torch.arange(body.n_edges, body.n_angles)])
    mass = torch.cat([(3 * node[:, None] + torch.arange(3)).flatten(), 3 * body.n_nodes + angle])
    sizes = {
        "mass": body.mass[..., mass],
        "edge_length": body.edge_length[..., edge],
        "edge_area": body.edge_area[..., edge],
        "edge_radius": body.edge_radius[..., edge],
        "edge_contact_radius": body.edge_contact_radius[..., edge],
        "shell_edge_length": body.shell_edge_length,
        "face_area": body.face_area,
        "face_contact_radius": body.face_contact_radius,
        "hinge_angle": body.hinge_angle,
        "node_length": body.node_length[..., node],
        "node_volume": body.node_volume[..., node],
    }
    surface = find_surface(new_number[body.triangles])
    directors = body.directors[angle]
    return Body(body.nodes[node], edges, joints, normals, rods, springs, surface, directors, **sizes)


def _shaped(name: str, rows, counts: tuple[int, int], shape: tuple[int, ...]) -> Check:
    """Return how many of a matrix of tensors, `counts` rows and columns, are missing, too many or of another shape."""
    rows = [list(row) if isinstance(row, tuple | list) else [] for row in rows]
    wrong = abs(len(rows) - counts[0]) + sum(abs(len(row) - counts[1]) for row in rows)
    wrong += sum(tuple(value.shape) != shape for row in rows for value in row)
    many = f"{counts[0]} x {counts[1]}" if counts[0] > 1 else f"{counts[1]}"
    return Check(f"{name}: {many} of shape (S, B)", float(wrong), 0.0)


def _finite(value: Tensor) -> Check:
    return Check("finite", float((~torch.isfinite(value)).sum()), 0.0)


def _widened(value: Tensor, like: Tensor) -> Tensor:
    """Return a tensor as large as another if it broadcasts against it, else as it is."""
    try:
        return value.expand_as(like)
    except RuntimeError:
        return value


def _separate(function: Callable[[Tensor], Tensor], point: Tensor) -> Check:
    """Check that moving the first stencil leaves the outputs (.., S, B) of the others as they are."""
    moved = point.clone()
    moved[:, 0] *= 1.1
    return _compared("no stencil changes another", function(moved)[..., 1:, :], function(point)[..., 1:, :], SAME)


def _weighted(weights: Tensor, slopes: list[list[Tensor]]) -> Tensor:
    """Return sum_i w_i d strain_i / d variable_a, (k, S, B)."""
    rows = [torch.stack(row) for row in slopes]
    return sum(w * row for w, row in zip(weights, rows, strict=True))


def _compared(name: str, found: Tensor, expected: Tensor, tolerance: float = DERIVATIVE) -> Check:
    if not expected.numel():
        return Check(name, 0.0, tolerance)
    scale = expected.abs().max().item() or 1.0
    return Check(name, (found - expected).abs().max().item() / scale, tolerance)


def _step(size: Tensor, least: float = 0.0) -> float:
    return torch.finfo(size.dtype).eps ** (1 / 3) * (max(size.abs().max().item(), least) or 1.0)


def _differences(function: Callable[[Tensor], Tensor], point: Tensor) -> Tensor:
    """Return (k, outputs, S, B): the outputs' derivatives by each of the k variables, stencil by stencil."""
    columns = []
    least = 1e-3 * point.abs().max().item()  # what is zero up to rounding has no size of its own
    for k in range(point.shape[0]):
        step = torch.zeros_like(point)
        step[k] = _step(point[k], least)
        columns.append((function(point + step) - function(point - step)).detach() / (2 * step[k]))
    return torch.stack(columns)


def _listed_sums(stencil: Stencil, q: Tensor) -> Tensor:
    """Return the sums (k, S, B) of weight * dof, as `Stencil.variables` lists them, of q (n, B)."""
    return torch.stack(
        [torch.stack([torch.as_tensor(w).to(q)[:, None] * q[d] for d, w in v]).sum(0) for v in stencil.variables]
    )


def _weights(stencil: Stencil, local: Tensor) -> Tensor:
    """Return a random weight of each strain (strains, S, B)."""
    return torch.randn(len(stencil.strains), *local.shape[1:], dtype=local.dtype, generator=_generator())


def _shapes(stencil: Stencil, local: Tensor, constants: tuple[Tensor, ...]) -> list[Check]:
    """Check the shapes of what a stencil returns."""
    names, expected = len(stencil.strains), tuple(local.shape[1:])
    strain = _shaped("strains", [stencil.strain(list(local), *constants)], (1, names), expected)
    if not strain.ok:
        return [strain]
    strains, first, second = stencil.derivatives(list(local), *constants)
    by_pairs = second(*_weights(stencil, local))
    return [
        strain,
        _shaped("strains of derivatives()", [strains], (1, names), expected),
        _shaped("first derivatives", first, (names, len(local)), expected),
        _shaped("second derivatives", [by_pairs], (1, len(stencil.pairs)), expected),
    ]


def _by_local(
    stencil: Stencil, local: Tensor, constants: tuple[Tensor, ...], strain: Callable[[Tensor], Tensor]
) -> Iterator[Check]:
    """Hold the derivatives by the local variables against differences."""
    weights = _weights(stencil, local)
    strains, first, second = stencil.derivatives(list(local), *constants)
    yield _compared("derivatives() has the strains", torch.stack(list(strains)), strain(local), SAME)
    found = torch.stack([torch.stack(row) for row in first], dim=1)  # (k, strains, S, B)
    yield _compared("first derivatives", found, _differences(strain, local))

    def gradient(v: Tensor) -> Tensor:
        _, slopes, _ = stencil.derivatives(list(v), *constants)
        return _weighted(weights, slopes)

    differences = _differences(gradient, local)
    upper = torch.stack([differences[j, i] for i, j in stencil.pairs])
    yield _compared("second derivatives", torch.stack(second(*weights)), upper)


def _along_moves(stencil: Stencil, state: State, control: Control) -> Iterator[Check]:
    """Hold the force and the matrix of a model with this stencil against differences of its energy and its force."""
    n, dtype, generator = state.q.shape[1], state.q.dtype, _generator()
    strains = _strains_of(stencil, state, control)
    natural = torch.randn(len(strains), stencil.count, dtype=dtype, generator=generator)
    natural = natural * (strains.abs().amax() + 1)  # stress in every strain, at rest, too
    energy = LinearElastic({name: torch.ones((), dtype=dtype) for name in stencil.strains})
    term = ElasticTerm("checked", stencil, energy, torch.ones((), dtype=dtype), natural=natural.unbind())
    unknown = np.arange(n)
    pattern = Pattern.union(n, *term.couplings(unknown), symmetric=True)
    assembly = Assembly([term], [], n, unknown, pattern, dtype, Compilation(False, Cost(0.0, 0.0)))
    q, constants = state.q.t().contiguous(), term.constants(state, control)
    force, values = assembly.force_and_stiffness(q, [constants])
    matrix = pattern.to_dense(values.detach())
    step = torch.finfo(dtype).eps ** (1 / 3)
    by_energy, by_force, expected_energy, expected_force = [], [], [], []
    for move in _moves(stencil, state):
        ahead, behind = q + step * move, q - step * move
        by_energy.append(-(force * move).sum(0))
        expected_energy.append((term.potential(ahead, constants) - term.potential(behind, constants)) / (2 * step))
        by_force.append((matrix @ move.t().unsqueeze(-1)).squeeze(-1))
        change = assembly.force(behind, [constants]) - assembly.force(ahead, [constants])
        expected_force.append(change.t() / (2 * step))
    for name, found, expected in (
        ("force along moves of all dofs", by_energy, expected_energy),
        ("matrix along moves of all dofs", by_force, expected_force),
    ):
        yield _compared(name, torch.stack(found).detach(), torch.stack(expected).detach())


def _moves(stencil: Stencil, state: State, count: int = 3) -> Tensor:
    """Return random moves (count, n, B), of nodes by about the sizes that stencils see, of angles by about 1 rad."""
    nodes, local = 3 * state.n_nodes, stencil.local(state.q.t().contiguous())
    lengths = [v.abs() for v, ((dofs, _), *_) in zip(local, stencil.variables, strict=True) if dofs.max() < nodes]
    size = torch.stack(lengths).amax(0).median().item() if lengths else 1.0
    moves = torch.randn(count, *state.q.t().shape, dtype=state.q.dtype, generator=_generator())
    moves[:, :nodes] *= size or 1.0
    return moves


def _dense_derivatives(force: Force, state: State, control: Control) -> Iterator[Tensor]:
    """Yield the (B, n, n) derivatives by position and by velocity that the blocks add up to."""
    derivatives = force.derivatives(state, control)
    for kind in range(2):
        dense = state.q.new_zeros(*state.q.shape, state.q.shape[1])
        for block, values in zip(force.blocks(), derivatives, strict=True):
            entries = values[kind]
            if entries is None:
                continue
            shape = (len(block.rows), block.rows.shape[1], block.cols.shape[1])
            rows = torch.as_tensor(block.rows)[:, :, None].expand(shape).flatten()
            cols = torch.as_tensor(block.cols)[:, None, :].expand(shape).flatten()
            for robot in range(state.batch):
                dense[robot].index_put_((rows, cols), entries[robot].detach().flatten(), accumulate=True)
        yield dense


def _potential_slopes(force: Force, state: State, control: Control) -> Tensor:
    """Return the (B, n) central differences of a force's potential by q."""
    columns = []
    for k in range(state.q.shape[1]):
        step = torch.zeros_like(state.q)
        step[:, k] = _step(state.q)
        ahead, behind = (force.potential(state.replace(q=state.q + s * step), control).detach() for s in (1, -1))
        columns.append((ahead - behind) / (2 * step[0, k]))
    return torch.stack(columns, dim=-1)


def _force_differences(force: Force, state: State, control: Control, variable: str) -> Tensor:
    """Return the (B, n, n) central differences of the force by `variable`, over all dofs."""
    at = getattr(state, variable)
    columns = []
    for k in range(at.shape[1]):
        step = torch.zeros_like(at)
        step[:, k] = _step(at)
        ahead, behind = (force(state.replace(**{variable: at + s * step}), control).detach() for s in (1, -1))
        columns.append((ahead - behind) / (2 * step[0, k]))
    return torch.stack(columns, dim=-1)
