"""Rods that touch on smooth centre lines where they cross: no pair is missed, and forces do not know the edges."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch

from tests.contact.pairs_alone import whole
from torchdismech import Circle, InputError, Material, Model, RobotBuilder, straight
from torchdismech.contact import Complementarity, Friction, Penalty, SelfContact
from torchdismech.contact.pairs.pair_loops import vectors
from torchdismech.contact.pairs.pairs import PairTable, Touching
from torchdismech.contact.pairs.primitives import BoxPairs
from torchdismech.geometry.crossing import BEYOND, closest_crossing
from torchdismech.geometry.distances import closest_segments

TOLERANCE, STIFFNESS = 2e-3, 100.0
RADII = torch.tensor([[1e-3], [4e-3], [8e-3]], dtype=torch.float64)
HOOP, RADIUS, EDGES = 0.1, 5e-3, 32  # m: radius of a ring and of its rod; edges of the ring


def tangle(rows=slice(None), rough: bool = False, centre_line: str = "smooth") -> Model:
    """Return six bent rods in a small space; each robot with its own radii."""
    rng = np.random.default_rng(0)
    builder = RobotBuilder()
    for _ in range(6):
        t = np.linspace(-1, 1, 9)[:, None]
        a, b, c = rng.normal(size=(3, 3))
        rod = 0.012 * a + 0.08 * t * b / np.linalg.norm(b) + 0.015 * t**2 * c
        builder.add_rod(rod, Circle(1e-3), Material(1e6, 1000.0, 0.3), contact_radius=RADII[rows])
    friction = Friction(0.3, 1e-2) if rough else None
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), friction, ring=1, centre_line=centre_line))
    return builder.finalize()


def placed(model: Model, shake: float, seed: int = 0) -> torch.Tensor:
    """Return positions (3, N, 3) about those at rest."""
    generator = torch.Generator().manual_seed(seed)
    return model.nodes + shake * torch.randn(3, len(model.nodes), 3, dtype=torch.float64, generator=generator)


def all_lines(model: Model) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the nodes (K, 8) of all pairs of edges of two rods of nine nodes each, and where lines go on (K, 4)."""
    edges = [(9 * rod + k, k > 0, k < 7) for rod in range(6) for k in range(8)]
    pairs = [(e, f) for e, f in itertools.combinations(edges, 2) if e[0] // 9 != f[0] // 9]
    nodes = [[e[0], e[0] + 1, f[0], f[0] + 1] + [e[0] - 1, e[0] + 2, f[0] - 1, f[0] + 2] for e, f in pairs]
    continues = torch.tensor([[*e[1:], *f[1:]] for e, f in pairs])
    around = torch.tensor(nodes)
    around[:, 4:][~continues] = 0
    return around, continues.double()


def listed(table: PairTable, robot: int) -> set[tuple[int, ...]]:
    """Return the ends of edges of a robot's pairs, the lower edge first."""
    nodes = table.listed.nodes[table.robot == robot][:, :4].tolist()
    return {tuple(n) if n[0] < n[2] else (*n[2:], *n[:2]) for n in nodes}


def test_lines_bulge_and_cross_as_vectors_say():
    """Find by loops, compiled and by torch, what vectors say: how far lines bulge, and which of all pairs cross."""
    model = tangle()
    x = placed(model, 3e-3)
    lines, reach = model.self_contacts[0].lines, 2 * RADII[:, 0]
    start, end, before, after = x[:, lines.nodes].unbind(2)  # (B, M, 3); the ends themselves where lines end
    continues = (lines.nodes[:, 2:] != lines.nodes[:, :2]).double()
    bends = torch.stack([before - 2 * start + end, start - 2 * end + after], 2) * continues.unsqueeze(-1)
    edge = end - start
    across = torch.linalg.cross(edge.unsqueeze(2).expand_as(bends), bends).norm(dim=-1).amax(2)
    curvature = across / edge.norm(dim=-1) ** 3
    edges = torch.arange(len(lines.nodes))
    robot, i, j = (k.flatten() for k in torch.meshgrid(torch.arange(3), edges, edges, indexing="ij"))
    e, f = edge[robot, i], edge[robot, j]
    sine = torch.linalg.cross(e, f).norm(dim=-1) / (e.norm(dim=-1) * f.norm(dim=-1))
    apart = torch.tensor([not {*a} & {*b} for a in lines.nodes.tolist() for b in lines.nodes.tolist()]).repeat(3)
    curved = curvature[robot, i] + curvature[robot, j]
    crosses = apart & (sine**2 > (2.0 * reach[robot] * curved).clamp_min(0.25))
    assert 0.1 < float(crosses.double().mean()) < 0.9 and bool((sine**2 > 0.25)[apart & ~crosses].any())
    room = 1e-4 * torch.rand(x.shape, dtype=x.dtype, generator=torch.Generator().manual_seed(1))
    far = torch.full_like(reach[robot], 1.0)  # m: nothing is too far away
    for follow in (False, True):  # what autograd might follow is left to torch
        low, high = ((x - room).requires_grad_(follow), x + room)
        bulges = lines.bulges(low, high)
        moved = room.norm(dim=-1)[:, lines.nodes].amax(2)
        assert torch.allclose(bulges, (bends.norm(dim=-1).amax(2) + 4 * moved) / 12, rtol=1e-12, atol=0)
        straight_ones, crossing = lines.near_pairs(BoxPairs(robot, i, j, reach[robot]), low, high, far, x.flatten(1))
        assert len(straight_ones.reach) + len(crossing.reach) == len(robot)
        expected = torch.cat([lines.nodes[i][:, :2], lines.nodes[j][:, :2]], 1)[crosses]
        assert torch.equal(crossing.listed.nodes[:, :4], expected)
        assert torch.equal(crossing.continues, torch.cat([continues[i], continues[j]], 1)[crosses].t())


def test_no_pair_is_missed():
    """Have all pairs of lines that touch, and own their closest points, anywhere between start and end."""
    model, slack = tangle(), 1e-3
    start, end = placed(model, 2e-3), placed(model, 8e-3, seed=1)
    pairs = model.self_contacts.pairs(start, end, torch.full((3,), slack, dtype=torch.float64))
    edges, lines = pairs.tables
    assert (edges.kernel, lines.kernel) == (closest_segments, closest_crossing)
    nodes, continues = all_lines(model)
    generator = torch.Generator().manual_seed(2)
    touched = 0
    for share in np.linspace(0, 1, 15):
        beside = slack * (2 * torch.rand(start.shape, generator=generator, dtype=torch.float64) - 1)
        x = torch.lerp(start, end, float(share)) + beside
        for robot in range(3):
            points = vectors(x[robot][nodes].flatten(1).t())
            closest = closest_crossing(*points, *continues.unbind(1))
            touch = closest.squared_distance(points).sqrt() < 2 * RADII[robot] + TOLERANCE
            expected = {tuple(n) for n in nodes[touch, :4].tolist()}
            assert expected <= listed(edges, robot) | listed(lines, robot)
            touched += len(expected & listed(lines, robot))
        assert all(not listed(edges, robot) & listed(lines, robot) for robot in range(3))
    assert touched > 50


@pytest.mark.parametrize("rough", [False, True])
def test_rows_are_the_robots_alone(rough):
    """Find for each robot of a batch the forces and energies that it has alone."""
    model = tangle(rough=rough)
    x = placed(model, 3e-3)
    q, still = model.body.q_of(x), torch.zeros(3, dtype=torch.float64)
    velocity = 0.1 * torch.randn(q.shape, dtype=q.dtype, generator=torch.Generator().manual_seed(1))
    pairs = model.self_contacts.pairs(x, x, still)
    force, energy = model.self_contacts.force(pairs, q, velocity), model.self_contacts.energy(pairs, q)
    assert bool((energy > 0).all())
    for robot in range(3):
        row = slice(robot, robot + 1)
        alone = tangle(row, rough)
        own = alone.self_contacts.pairs(x[row], x[row], still[row])
        found = alone.self_contacts.force(own, q[row], velocity[row])
        # sums in another order
        assert torch.allclose(force[row], found, rtol=1e-12, atol=1e-14 * float(force.abs().max()))
        assert torch.allclose(energy[row], alone.self_contacts.energy(own, q[row]), rtol=1e-12)


def test_forces_of_a_robot_balance():
    """Have no force and no moment in sum, whatever touches as lines or as edges."""
    model = tangle()
    x = placed(model, 3e-3)
    q = model.body.q_of(x)
    pairs = model.self_contacts.pairs(x, x, torch.zeros(3, dtype=torch.float64))
    force = model.self_contacts.force(pairs, q, torch.zeros_like(q))[:, : x[0].numel()].unflatten(1, (-1, 3))
    size = force.abs().sum((1, 2))
    assert bool((force.sum(1).abs().amax(1) < 1e-14 * size).all())
    # rounded edges push by a hair beside their closest points
    lines_only = model.self_contacts.force(dataclasses.replace(pairs, tables=pairs.tables[1:]), q, torch.zeros_like(q))[
        :, : x[0].numel()
    ].unflatten(1, (-1, 3))
    assert bool((torch.linalg.cross(x, lines_only, dim=2).sum(1).abs().amax(1) < 1e-14 * size).all())


def test_rods_along_each_other_touch_as_straight_edges():
    """Give parallel rods exactly the forces of straight edges."""
    forces = []
    for centre_line in ("straight", "smooth"):
        builder = RobotBuilder()
        for height in (0.0, 1.9 * RADIUS):
            rod = straight((0, 0, height), (0.2, 0.01, height), 11) + [0, 1e-4, 1e-4] * np.sin(np.arange(11))[:, None]
            builder.add_rod(rod, Circle(RADIUS), Material(1e6, 1000.0))
        builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), centre_line=centre_line))
        model = builder.finalize()
        q = model.initial_state().q
        pairs = model.contact.may_touch(q, q, torch.zeros(1, dtype=q.dtype)).listed
        forces.append(model.self_contacts.force(pairs, q, torch.zeros_like(q)))
    assert float(forces[0].abs().max()) > 0 and torch.equal(*forces)


class Ring:
    """A ring and a rod that stands on it, along the ring's axis, at some angle about that."""

    def __init__(self, centre_line: str, turned: bool = False):
        """Build it; with `turned`, every third edge of the ring is stored the other way round."""
        builder = RobotBuilder()
        angle = 2 * np.pi * np.arange(EDGES) / EDGES
        ring = HOOP * np.stack([np.cos(angle), np.sin(angle), 0 * angle], 1)
        edges = np.stack([np.arange(EDGES), (np.arange(EDGES) + 1) % EDGES], 1)
        if turned:
            edges[::3] = edges[::3, ::-1].copy()
        section, material = Circle(RADIUS), Material(1e6, 1000.0)
        builder.add_rods(ring, edges, section, material)
        builder.add_rod(straight((2 * HOOP, 0, -0.03), (2 * HOOP, 0, 0.04), 4), section, material)
        builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), themselves=False, centre_line=centre_line))
        self.model = builder.finalize()

    def touching(self, angles: torch.Tensor, away: float = HOOP + 2 * RADIUS - 1.2e-3) -> list[Touching]:
        """Return what touches when the rod stands at some angles (B,), so far from the axis [m]."""
        x = self.model.nodes.expand(len(angles), -1, -1).clone()
        x[:, EDGES:, :2] = away * torch.stack([angles.cos(), angles.sin()], 1)[:, None]
        q = self.model.body.q_of(x)
        pairs = self.model.self_contacts.pairs(x, x, q.new_zeros(len(q)))
        return self.model.self_contacts.touching(pairs, q, torch.zeros_like(q))

    def force(self, angles: torch.Tensor) -> torch.Tensor:
        """Return the force (B, 2) of the ring on the rod at some angles (B,): outwards and along the ring."""
        total = torch.zeros(len(angles), 2, dtype=torch.float64)
        for found in self.touching(angles):
            nodal = found.force().unflatten(0, (-1, 3)) * self._on_rod(found).unsqueeze(1)
            total = total.index_add(0, found.robot, nodal.sum(0)[:2].t())
        out = torch.stack([angles.cos(), angles.sin()], 1)
        along = torch.stack([-out[:, 1], out[:, 0]], 1)
        return torch.stack([(total * out).sum(1), (total * along).sum(1)], 1)

    def stiffness(self, angles: torch.Tensor) -> torch.Tensor:
        """Return how the force (B, 3, 3) on the rod falls as the rod moves as a whole."""
        total = torch.zeros(len(angles), 3, 3, dtype=torch.float64)
        for found in self.touching(angles):
            on_rod = self._on_rod(found).t()
            blocks = whole(found.force_and_blocks(1.0, 0.0)[1]).unflatten(1, (-1, 3)).unflatten(3, (-1, 3))
            moved = torch.einsum("ki,kiajb,kj->kab", on_rod, blocks, on_rod)
            total = total.index_add(0, found.robot, moved)
        return total

    def _on_rod(self, found: Touching) -> torch.Tensor:
        """Return 1 for nodes (n, A) of the rod, 0 for those of the ring."""
        return (found.table.listed.nodes[found.chosen].t() >= EDGES).double()


def test_a_ring_is_as_good_as_round():
    """Push a rod outwards with one force wherever it stands on a ring, and not along; straight edges do neither."""
    angles = 2 * torch.pi / EDGES * torch.linspace(0, 1, 41, dtype=torch.float64)
    smooth, edged = Ring("smooth").force(angles), Ring("straight").force(angles)
    # lines are circles to third order in the edges
    assert float((smooth[:, 0] - smooth[:, 0].mean()).abs().max()) < 2e-3 * float(smooth[:, 0].mean())
    assert float(smooth[:, 1].abs().max()) < 5e-4 * float(smooth[:, 0].mean())
    assert float(edged[:, 0].max() - edged[:, 0].min()) > 0.5 * float(edged[:, 0].mean())
    assert float(edged[:, 1].abs().max()) > 0.1 * float(edged[:, 0].mean())


def test_force_is_continuous_at_nodes():
    """Hand the contact over from cubic to cubic without a jump, within the width in which both have it, too."""
    step = 2 * torch.pi / EDGES
    angles = step + step * BEYOND * torch.tensor([-4.0, -1.5, -0.9, -0.3, 0.0, 0.2, 0.7, 1.2, 5.0], dtype=torch.float64)
    force = Ring("smooth").force(angles)
    # 5e-5 of an edge farther along; rounding of a place over the width: 1e-16 / 1e-5
    assert float((force - force.mean(0)).abs().max()) < 1e-6 * float(force[:, 0].mean())


def test_edges_may_be_stored_either_way():
    """Find the same lines, whichever way their edges are stored."""
    angles = 2 * torch.pi / EDGES * torch.linspace(0, 3, 20, dtype=torch.float64)
    # rounding of a place, 1e-16, over the width in which cubics share
    assert torch.allclose(Ring("smooth").force(angles), Ring("smooth", turned=True).force(angles), rtol=0, atol=1e-10)


def test_edges_of_different_lengths():
    """Take the curvature of a line for whether it crosses, not how its edges grow longer."""
    builder = RobotBuilder()
    along = np.array([0.0, 0.02, 0.04, 0.07, 0.12, 0.18])
    builder.add_rod(np.stack([along, 0 * along, 0 * along], 1), Circle(RADIUS), Material(1e6, 1000.0))
    builder.add_rod(straight((0.055, -0.1, 0.0099), (0.055, 0.11, 0.0099), 6), Circle(RADIUS), Material(1e6, 1000.0))
    builder.add_contact(SelfContact(Penalty(STIFFNESS, TOLERANCE), centre_line="smooth"))
    model = builder.finalize()
    q = model.initial_state().q
    touching = model.self_contacts.touching(model.contact.may_touch_at(q).listed, q, torch.zeros_like(q))
    assert {found.table.kernel: len(found.chosen) for found in touching if len(found.chosen)} == {closest_crossing: 1}


def test_stiffness_at_nodes():
    """Have at a node, where both cubics count half, the mean of the stiffness on both sides, which are not the same."""
    step = 2 * torch.pi / EDGES
    angles = step + step * BEYOND * torch.tensor([-30.0, 0.0, 30.0], dtype=torch.float64)
    ring = Ring("smooth")
    for table in (found.table for found in ring.touching(angles)):
        assert table.kernel is closest_crossing and int(table.robot.bincount()[1]) >= 2
    before, at, after = ring.stiffness(angles)
    # of second order in the way to either side, 3e-4 of an edge: 2e-7 seen
    assert torch.allclose(at, (before + after) / 2, rtol=0, atol=1e-6 * float(at.abs().max()))


def test_a_line_beside_its_edge_is_found():
    """Find a line that bulges out of its edge where the edge alone is out of reach."""
    step = 2 * torch.pi / EDGES
    edge, bend = HOOP * np.cos(step / 2), 2 * HOOP * (1 - np.cos(step))  # its middle's distance from the axis
    away = edge + bend * np.cos(step / 2) / 24 + 2 * RADIUS + TOLERANCE - 1e-6
    angle = torch.tensor([step / 2], dtype=torch.float64)
    assert [len(found.chosen) for found in Ring("smooth").touching(angle, away)] == [1]
    assert sum(len(found.chosen) for found in Ring("straight").touching(angle, away)) == 0


def test_refusals():
    """Say which lines there are, and that constraints take straight edges."""
    with pytest.raises(InputError, match=r"centre_line: expected one of 'straight', 'smooth', got 'round'"):
        SelfContact(Penalty(1.0, 1e-3), centre_line="round")
    with pytest.raises(InputError, match=r"centre_line: 'smooth' goes with Penalty or Barrier"):
        SelfContact(Complementarity(), centre_line="smooth")
