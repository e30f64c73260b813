"""The force between two primitives and its derivatives: both kernels, both responses, sticking and sliding."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.contact.pairs_alone import full_table, touching_pairs, whole
from torchdismech.contact import Barrier, Friction, Penalty
from torchdismech.contact.law import ContactLaw
from torchdismech.contact.pairs.pair_loops import Geometry, vectors
from torchdismech.contact.pairs.pairs import FEWEST_SLOTS, Listed, PairTable
from torchdismech.geometry.crossing import closest_crossing
from torchdismech.geometry.distances import closest_on_triangle, closest_segments
from torchdismech.geometry.vec3 import Vec3

KERNELS = {"segments": closest_segments, "triangle": closest_on_triangle, "crossing": closest_crossing}
FIRST = {"segments": [0, 1], "triangle": [0], "crossing": [0, 1, 4, 5]}  # nodes of the first primitive
RESPONSES = {"penalty": Penalty, "barrier": Barrier}
SPEEDS = {"resting": 0.0, "sticking": 0.02, "sliding": 20.0}  # in slip velocities
STIFFNESS, TOLERANCE, SLIP, MU = 100.0, 0.05, 0.3, 0.4
BATCH, PLACES = 2, 40


class Case:
    """Pairs that all touch, each of nodes of its own; two robots with constants of their own."""

    def __init__(self, kernel: str, response: str, rough: bool = True, speed: float = 1.0, seed: int = 0, x=None):
        generator = torch.Generator().manual_seed(seed)

        def random(*shape):
            return torch.rand(*shape, generator=generator, dtype=torch.float64)

        def normal(*shape):
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        stiffness = torch.tensor([[1.0], [1.5]], dtype=torch.float64) * STIFFNESS
        friction = Friction(torch.tensor([[MU], [2 * MU]], dtype=torch.float64), SLIP) if rough else None
        self.law = ContactLaw(RESPONSES[response](stiffness, TOLERANCE), friction)
        self.kernel = KERNELS[kernel]
        continues = None
        if kernel == "crossing":
            x, continues = lines_that_cross(normal, random)
        x = normal(BATCH, PLACES, 4, 3) if x is None else x
        self.q, self.count = x.flatten(1), x.shape[2]
        self.velocity = speed * SLIP * normal(*self.q.shape)
        places = x.shape[1]
        nodes = torch.arange(self.count * places).view(1, places, self.count).expand(BATCH, -1, -1)
        empty = full_table(self.kernel, nodes, x.new_zeros(BATCH, places), continues)
        points = vectors(empty.gathered(self.q))
        r = empty.closest(points).difference(points)
        # the gap is chosen, by the reach: also overlapping for the penalty
        share = random(BATCH, places)
        self.gap = TOLERANCE * (0.05 + 0.9 * share if response == "barrier" else 1.8 * share - 0.9)
        self.table = dataclasses.replace(empty, reaches=r.dot(r).sqrt() - self.gap.flatten())

    def touching(self, q=None, velocity=None, follow=False):
        """Return the pairs that touch."""
        q = self.q if q is None else q
        velocity = self.velocity if velocity is None else velocity
        return touching_pairs(self.table, self.law, q, velocity, follow)

    def forces(self, q=None, velocity=None, follow=False) -> torch.Tensor:
        """Return the nodal forces (3 n, A)."""
        found = self.touching(q, velocity, follow)
        assert len(found.chosen) == len(self.table)
        return found.force()

    def entries(self, vector: torch.Tensor) -> torch.Tensor:
        """Return the entries (3 n, A) of q, or of what has its shape."""
        return self.table.gathered(vector)

    def steps(self, h: float):
        """Yield for each coordinate of the pairs a step (B, n) by h of all of them: they have no node in common."""
        for a in range(3 * self.count):
            step = torch.zeros_like(self.q).view(BATCH, -1, 3 * self.count)
            step[:, :, a] = h
            yield a, step.flatten(1)


def lines_that_cross(normal, random) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes (B, P, 8, 3) of edges of length one that cross at an angle, and where they go on.

    Half of them at the end of a rod, in front of its edge or beside it.
    """
    along, across = torch.eye(3, dtype=torch.float64)[:2]
    place = torch.tensor([-0.5, 0.5, -1.5, 1.5], dtype=torch.float64)[:, None]
    a, b = place * along, place * (across + 0.6 * along) - torch.tensor([0.0, 0.0, 0.3])
    pairs = torch.cat([a[:2], b[:2], a[2:], b[2:]]) + 0.03 * normal(BATCH, PLACES, 8, 3)
    pairs[:, :, [2, 3, 6, 7], :2] += 0.25 * (2 * random(BATCH, PLACES, 1, 2) - 1)
    continues = torch.ones(BATCH, PLACES, 4, dtype=torch.float64)
    half = PLACES // 2
    continues[:, :half, 1] = 0  # the first line ends
    pairs[:, :half, [2, 3, 6, 7], 0] += 1.2 * random(BATCH, half, 1)
    continues[:, : half // 2, 2] = 0  # and the second one, too
    pairs[:, : half // 2, [2, 3, 6, 7]] += 1.2 * random(BATCH, half // 2, 1, 1) * (across + 0.6 * along)
    return pairs, continues


def worst(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest error of blocks (A, 3 n, 3 n), relative to each block's largest entry."""
    return float(((found - expected).abs().amax((1, 2)) / expected.abs().amax((1, 2))).max())


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_force_is_the_gradient_of_the_energy(kernel, response):
    """Match autograd of the energy, and central differences."""
    case = Case(kernel, response, rough=False)

    def energy(q, follow=False):
        found = case.touching(q, follow=follow)
        return case.law.energy(found.gap, found.constants)

    q = case.q.clone().requires_grad_()
    gradient = case.entries(torch.autograd.grad(energy(q, True).sum(), q)[0])
    force = case.forces()
    scale = force.abs().amax(0)
    assert float(((force + gradient).abs().amax(0) / scale).max()) < 1e-12
    for a, step in case.steps(1e-6):
        slope = (energy(case.q + step) - energy(case.q - step)) / 2e-6
        # (1e-6 / tolerance)^2, times 15^2 for the penalty; rounding of the energy 1e-16 / 1e-6 of gaps and forces
        assert float(((force[a] + slope).abs() / (scale + 1e-3 * scale.max())).max()) < 1e-5


@pytest.mark.parametrize("speed", SPEEDS)
@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks(kernel, response, rough, speed):
    """Have -dF/dx and -dF/du in the blocks: against autograd, and central differences."""
    case = Case(kernel, response, rough, SPEEDS[speed])
    found = case.touching()
    force, by_x = found.force_and_blocks(1.0, 0.0)
    by_x, by_u = whole(by_x), whole(found.force_and_blocks(0.0, 1.0)[1])
    assert torch.allclose(force, found.force(), rtol=1e-13, atol=1e-13 * float(force.abs().max()))
    q, u = case.q.clone().requires_grad_(), case.velocity.clone().requires_grad_()
    out = case.forces(q, u, follow=True)
    auto_x, auto_u, quotient_x, quotient_u = (torch.empty_like(by_x) for _ in range(4))
    for a, step in case.steps(1e-6):
        gradients = torch.autograd.grad(out[a].sum(), (q, u), retain_graph=True, materialize_grads=True)
        auto_x[:, a], auto_u[:, a] = (-case.entries(g).t() for g in gradients)
        quotient_x[:, :, a] = -(case.forces(case.q + step) - case.forces(case.q - step)).t() / 2e-6
        change = case.forces(velocity=case.velocity + step) - case.forces(velocity=case.velocity - step)
        quotient_u[:, :, a] = -change.t() / 2e-6
    assert worst(by_x, auto_x) < 1e-10
    # quotients: (h / tolerance)^2 of the response, the same of closest points that run as the angle closes
    assert worst(by_x, quotient_x) < 1e-4
    if rough:
        assert worst(by_u, auto_u) < 1e-10
        assert worst(by_u, quotient_u) < 1e-4  # h / slip velocity where gamma's slope turns
    else:
        assert float(by_u.abs().max()) == 0 == float(quotient_u.abs().max())
        assert torch.allclose(by_x, by_x.mT, rtol=1e-10, atol=1e-10 * float(by_x.abs().max()))
    both = whole(found.force_and_blocks(0.5, 30.0)[1])
    assert torch.allclose(both, 0.5 * by_x + 30 * by_u, rtol=1e-12, atol=1e-12 * float(both.abs().max()))


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_with_a_traction(kernel, response):
    """Differentiate friction that is linearised with a traction: against autograd of that; its own gives Newton's."""
    case = Case(kernel, response)
    found, law = case.touching(), case.law
    constants = law.constants.at(case.table.robot)
    normal, velocity = Vec3(*found.geometry[1:4]), Vec3(*found.geometry[4:7])
    sliding = velocity - normal.times(velocity.dot(normal))
    speed = sliding.dot(sliding).sqrt()
    ratio, rise = law.formulas.friction_ratio(speed, constants.friction)
    own = torch.stack(sliding.times(ratio).components(), dim=1)
    plain = whole(found.force_and_blocks(0.7, 30.0)[1])
    force, blocks = found.force_and_blocks(0.7, 30.0, own)
    assert torch.equal(force, found.force()) or torch.allclose(force, found.force(), rtol=1e-13)
    assert worst(whole(blocks), plain) < 1e-11
    traction = 0.3 * torch.randn(own.shape, generator=torch.Generator().manual_seed(8), dtype=own.dtype)
    by_x, by_u = (whole(found.force_and_blocks(*gains, traction)[1]) for gains in ((1.0, 0.0), (0.0, 1.0)))
    assert worst(by_u, whole(found.force_and_blocks(0.0, 1.0)[1])) > 0.1
    q, u = case.q.clone().requires_grad_(), case.velocity.clone().requires_grad_()
    there = case.touching(q, u, follow=True)
    at, load = Geometry.of(there.geometry), -law.response.derivatives(there.gap, *constants.tensors()[:2])[0]
    slides = at.velocity - at.normal.times(at.velocity.dot(at.normal))
    ahead = (slides - sliding).dot(sliding.times(1 / speed)) * (rise - ratio) / (speed * ratio)
    pull = at.normal - slides.times(ratio) - Vec3(*traction.t()).times(ahead)
    of_pair = pull.times(load * at.share.detach())  # shares are no part of the derivative
    for a, (weight, axis) in enumerate((w, k) for w in at.weights for k in range(3)):
        out = weight * of_pair.components()[axis]
        gradients = torch.autograd.grad(out.sum(), (q, u), retain_graph=True, materialize_grads=True)
        for blocks, gradient in zip((by_x, by_u), gradients, strict=True):
            # of each pair's largest entry; 1e-10 as of blocks above
            off = (blocks[:, a] + case.entries(gradient).t()).abs().amax(1) / blocks.abs().amax((1, 2))
            assert float(off.max()) < 1e-10


def test_all_kinds_of_closest_points():
    """Have points, edges and faces among the pairs above: both slides free, one, none."""
    for kernel in KERNELS:
        found = Case(kernel, "penalty").touching()
        slides = torch.stack([torch.stack(slide) for slide in Geometry.of(found.geometry).slides])
        free = (slides.abs().sum(1) > 0).sum(0)
        assert free.bincount(minlength=3).min() >= 5


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_action_is_reaction(kernel, response, rough):
    """Have no force in sum, and no moment but that of friction: it acts at the closest points, |r| from each other."""
    case = Case(kernel, response, rough, 20.0)
    found = case.touching()
    force, x = found.force().unflatten(0, (-1, 3)), case.entries(case.q).unflatten(0, (-1, 3))
    contact = force[FIRST[kernel]].sum(0)  # on the first primitive
    scale = contact.norm(dim=0)
    way = found.geometry[7] * found.geometry[1:4]  # from the second closest point to the first
    assert float((force.sum(0).norm(dim=0) / scale).max()) < 1e-14
    moment = torch.linalg.cross(x, force, dim=1).sum(0)
    couple = torch.linalg.cross(way, contact, dim=0)
    assert float(((moment - couple).norm(dim=0) / scale).max()) < 1e-13
    if not rough:
        assert float((moment.norm(dim=0) / scale).max()) < 1e-13
    else:
        bound = case.law.constants.at(case.table.robot).friction.coefficient * way.norm(dim=0) * scale
        assert bool((moment.norm(dim=0) <= bound).all())


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_turn_with_the_pair(kernel, response):
    """Give the same force and blocks in a turned and shifted frame."""
    case = Case(kernel, response)
    turn = torch.linalg.matrix_exp(torch.tensor([[0, -0.7, 0.2], [0.7, 0, -1.1], [-0.2, 1.1, 0]], dtype=torch.float64))

    def turned(vector, shift=0.0):
        return (vector.unflatten(1, (-1, 3)) @ turn.t() + shift).flatten(1)

    force, blocks = case.touching().force_and_blocks(1.0, 5.0)
    moved = case.touching(turned(case.q, 0.3), turned(case.velocity) + 0.7)
    turned_force, turned_blocks = moved.force_and_blocks(1.0, 5.0)
    turns = torch.block_diag(*[turn] * case.count)
    # 1e-10: closest points of segments that are nearly parallel feel rounding, as 1e-16 / sin^2
    assert torch.allclose(turned_force, turns @ force, rtol=1e-10, atol=1e-11 * float(force.abs().max()))
    assert worst(whole(turned_blocks), turns @ whole(blocks) @ turns.t()) < 1e-9


@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("kernel", ["segments", "triangle"])
def test_degenerate_pairs(kernel, rough):
    """Give finite forces and blocks for pairs that cross, are parallel, flat or points, at any scale."""
    x = torch.tensor(degenerate(kernel)).view(1, -1, 4, 3).expand(BATCH, -1, -1, -1)
    for size in (1e-6, 1.0, 1e6):
        for speed in SPEEDS.values():
            case = Case(kernel, "penalty", rough, speed, x=size * x)
            found = case.touching()
            force, blocks = found.force_and_blocks(1.0, 1e3)
            assert force.shape[1] == 2 * x.shape[1]
            assert bool(torch.isfinite(force).all() and torch.isfinite(whole(blocks)).all())
            q = case.q.clone().requires_grad_()
            gradient = torch.autograd.grad(case.forces(q, follow=True).sum(), q)[0]
            assert bool(torch.isfinite(gradient).all())


def degenerate(kernel: str) -> np.ndarray:
    """Return special pairs (K, 4, 3)."""
    o, x, y, z = np.zeros(3), *np.eye(3)
    if kernel == "segments":
        pairs = [
            [-x, x, -y, y],  # cross in one point
            [-x, x, z - y, z + y],  # over each other, along the axes
            [o, x, o, x],  # the same
            [o, x, x, o],
            [o, x, y, x + y],  # parallel, side by side
            [o, x, y + 3 * x, y + 5 * x],  # parallel, apart
            [o, x, 2 * x, 3 * x],  # collinear, apart
            [o, 2 * x, x, 3 * x],  # collinear, on each other
            [o, x, x, x + y],  # a common end
            [o, o, z, z],  # points
            [o, o, o, o],
            [o, o, z - x, z + x],
            [o, x, z, z + x + 1e-6 * y],  # nearly parallel
        ]
    else:
        pairs = [
            [(x + y) / 4, o, x, y],  # within
            [z + (x + y) / 4, o, x, y],  # above
            [x, o, x, y],  # at a corner
            [x / 2, o, x, y],  # on a side
            [z, o, x, y],  # above a corner
            [z + x / 2, o, x, y],  # above a side
            [z, o, x, 2 * x],  # flat
            [x / 2, o, x, 2 * x],
            [z, o, o, x],
            [z, o, o, o],  # a point
            [o, o, o, o],
            [z, o, x, x / 2 + 1e-9 * y],  # nearly flat
        ]
    return np.array(pairs)


def test_places_count_the_pairs_of_each_robot():
    """Number the pairs of each robot in their order, also where robots have none; have room for the most."""
    robot = torch.tensor([0, 0, 0, 2, 4, 4])
    listed = Listed(robot, torch.arange(24).view(6, 4))
    table = PairTable.of(closest_segments, listed, torch.ones(6), batch=6)
    assert table.slot.tolist() == [0, 1, 2, 0, 0, 1] and table.shape == (6, FEWEST_SLOTS) and len(table) == 6
    none = PairTable.of(closest_segments, Listed(robot[:0], listed.nodes[:0]), torch.ones(0), batch=6)
    assert none.shape == (6, FEWEST_SLOTS) and len(none) == 0
    many = PairTable.of(
        closest_segments, Listed(robot.repeat(20) * 0, listed.nodes.repeat(20, 1)), torch.ones(120), batch=1
    )
    assert many.shape == (1, 128)
    alone = PairTable.of(closest_segments, Listed(0 * robot, listed.nodes), torch.ones(6), batch=1)
    assert alone.slot.tolist() == list(range(6)) and alone.shape == (1, FEWEST_SLOTS)


@pytest.mark.parametrize("index", [torch.tensor([4, 0, 4, 1]), torch.tensor([True, False, False, False, True, True])])
def test_rows_of_a_table(index):
    """Take the pairs of some robots, by numbers or by which, each in its place, with all that is known of it."""
    robot = torch.tensor([0, 0, 0, 2, 4, 4])
    listed, reach = Listed(robot, torch.arange(48).view(6, 8)), torch.arange(6.0)
    table = PairTable.of(closest_crossing, listed, reach, 6, contact=3, continues=torch.arange(24.0).view(4, 6))
    rows, wanted = table.rows(index), torch.arange(6)[index].tolist()
    expected = [(k, pair) for k, number in enumerate(wanted) for pair in range(6) if robot[pair] == number]
    assert rows.robot.tolist() == [k for k, _ in expected] and rows.contact == 3
    pairs = torch.tensor([pair for _, pair in expected])
    assert rows.shape == (len(wanted), FEWEST_SLOTS) and torch.equal(rows.slot, table.slot[pairs])
    assert torch.equal(rows.listed.nodes, table.listed.nodes[pairs])
    assert torch.equal(rows.reaches, reach[pairs]) and torch.equal(
        torch.stack(rows.kernel_arguments), table.continues[:, pairs]
    )
