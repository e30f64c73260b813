"""Which parts of a robot may touch: against all pairs, with neighbours, slack, radii of each robot."""

import itertools
import math

import numpy as np
import pytest
import torch

from tests import shells
from torchdismech import Circle, Control, ImplicitEuler, Material, Model, RobotBuilder, helix, rollout, straight
from torchdismech.contact import Barrier, Friction, Obstacle, Path, Penalty, SelfContact, Sphere
from torchdismech.contact.pairs.neighbours import paths_between
from torchdismech.contact.pairs.pairs import FEWEST_SLOTS
from torchdismech.contact.pairs.self_contact import KERNELS
from torchdismech.errors import InputError
from torchdismech.geometry import meshes
from torchdismech.geometry.vec3 import Vec3
from torchdismech.values import per_robot

TOLERANCE = 2e-3
RADII = torch.tensor([[1e-3], [4e-3], [8e-3]], dtype=torch.float64)


def tangle(rows=slice(None), ring: int | None = 1, tolerance=TOLERANCE) -> Model:
    """Return five bent rods and a patch of a shell in a small space; each robot with its own radii."""
    rng = np.random.default_rng(0)
    builder, material = RobotBuilder(), Material(1e6, 1000.0, 0.3)
    for _ in range(5):
        t = np.linspace(0, 1, 8)[:, None]
        a, b, c = 0.035 * rng.normal(size=(3, 3))
        builder.add_rod(a + t * b + 0.5 * t**2 * c, Circle(1e-3), material, contact_radius=RADII[rows])
    nodes, triangles = shells.patch()
    builder.add_shell(nodes - nodes.mean(0), triangles, 2 * RADII[rows], material)
    builder.add_contact(SelfContact(Penalty(100.0, tolerance), ring=ring))
    return builder.finalize()


def primitives(model: Model) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the first and the second primitives of both kinds of pairs, as nodes."""
    body = model.body
    return [(body.links, body.links), (np.arange(body.n_nodes)[:, None], body.triangles)]


def links_apart(model: Model) -> np.ndarray:
    """Return how many links (N, N) lead from node to node."""
    body = model.body
    apart = np.full((body.n_nodes, body.n_nodes), 10**6)
    np.fill_diagonal(apart, 0)
    for i, j in body.links:
        apart[i, j] = apart[j, i] = 1
    for k in range(body.n_nodes):
        apart = np.minimum(apart, apart[:, k, None] + apart[None, k])
    return apart


def radii(model: Model, kind: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the radii (B, M) of the first and second primitives of a kind."""
    body = model.body
    if kind == 1:
        return body.node_contact_radius().expand(3, -1), body.face_contact_radius.expand(3, -1)
    edges = torch.cat([body.edge_contact_radius.expand(3, -1), body.side_contact_radius().expand(3, -1)], 1)
    return edges, edges


def named(nodes, split: int) -> tuple[frozenset, ...]:
    """Return the name of a pair of four nodes, the same whichever of two edges comes first."""
    parts = frozenset(map(int, nodes[:split])), frozenset(map(int, nodes[split:]))
    return tuple(sorted(parts, key=sorted))


def near(model: Model, kind: int, positions: torch.Tensor, ring: int, tolerance: float) -> list[set]:
    """Return the pairs of each robot that are within the tolerance at positions (B, N, 3): all are looked at."""
    first, second = primitives(model)[kind]
    reach_a, reach_b = radii(model, kind)
    apart = links_apart(model)
    found = []
    for robot in range(len(positions)):
        pairs = (
            itertools.combinations(range(len(first)), 2)
            if kind == 0
            else itertools.product(range(len(first)), range(len(second)))
        )
        pairs = [p for p in pairs if apart[np.ix_(first[p[0]], second[p[1]])].min() > ring]
        nodes = np.array([[*first[i], *second[j]] for i, j in pairs])
        i, j = np.array(pairs).T
        corners = tuple(Vec3(*v.unbind(-1)) for v in positions[robot][nodes].unbind(1))
        r = KERNELS[kind](*corners).difference(corners)
        close = r.dot(r).sqrt() < reach_a[robot, i] + reach_b[robot, j] + tolerance
        found.append({named(n, len(first[0])) for n in nodes[close.numpy()]})
    return found


def listed(table, kind: int) -> list[set]:
    """Return the pairs of each robot of a table."""
    split = 2 if kind == 0 else 1
    pairs = [table.listed.nodes[table.robot == robot] for robot in range(table.shape[0])]
    found = [{named(n, split) for n in nodes.tolist()} for nodes in pairs]
    assert sum(len(f) for f in found) == len(table)  # none twice
    return found


def start_of(model: Model, shake: float = 0.0, seed: int = 0) -> torch.Tensor:
    """Return positions (3, N, 3) about those at rest."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(3, len(model.nodes), 3, dtype=torch.float64, generator=generator)
    return model.nodes + shake * noise


@pytest.mark.parametrize("ring", [0, 1, 3])
def test_all_that_touch_at_rest(ring):
    """Find those pairs that are within the tolerance, and no other, where nothing moves."""
    model = tangle(ring=ring)
    x = start_of(model, 3e-3)
    pairs = model.self_contacts.pairs(x, x, torch.zeros(3, dtype=torch.float64))
    for kind, table in enumerate(pairs.tables):
        expected = near(model, kind, x, ring, TOLERANCE)
        assert listed(table, kind) == expected
        assert len(expected[2]) > 20
        assert len(expected[0]) < len(expected[1]) < len(expected[2])  # as the radii
        a, b = radii(model, kind)
        # every pair has the sum of its own robot's radii
        assert torch.allclose(table.reaches, 2 * RADII[table.robot, 0])
        assert torch.equal(a.amax(1), RADII[:, 0]) and torch.equal(b.amax(1), RADII[:, 0])


def test_all_that_touch_on_the_way():
    """Find all pairs that come within the tolerance anywhere between start and end, and beside them up to the slack."""
    model, slack = tangle(), 2e-3
    start, end = start_of(model), start_of(model, 15e-3, seed=1)
    pairs = model.self_contacts.pairs(start, end, torch.full((3,), slack, dtype=torch.float64))
    found = [listed(table, kind) for kind, table in enumerate(pairs.tables)]
    generator = torch.Generator().manual_seed(2)
    touched = 0
    for share in np.linspace(0, 1, 15):
        beside = 2 * torch.rand(start.shape, generator=generator, dtype=torch.float64) - 1
        beside -= beside.mean(1, keepdim=True)  # what all nodes move together does not count
        x = torch.lerp(start, end, float(share)) + slack * beside / beside.abs().max() + share
        assert bool(pairs.boxes.hold(x.flatten(1)).all())
        for kind in range(2):
            for expected, own in zip(near(model, kind, x, 1, TOLERANCE), found[kind], strict=True):
                assert expected <= own
                touched += len(expected)
    assert touched > 500
    # and not everything: far fewer than all pairs
    assert all(len(own) < 0.7 * 40 * 39 / 2 for own in found[0])
    outside = end.clone()
    outside[1, 3] += 10 * slack + (end - start).abs().max()
    assert pairs.boxes.hold(outside.flatten(1)).tolist() == [True, False, True]


def test_neighbours_on_a_rod_finer_than_its_diameter():
    """Leave out by itself what overlaps on a straight rod, and let its far parts touch."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 41), Circle(8e-3), Material(1e6, 1000.0))  # edges 5, diameter 16
    contact = SelfContact(Penalty(100.0, TOLERANCE))
    builder.add_contact(contact)
    model = builder.finalize()
    x = model.nodes[None]
    pairs = model.self_contacts.pairs(x, x, torch.zeros(1, dtype=torch.float64))
    assert len(pairs.tables[0]) == 0
    # folded back onto itself, its halves touch
    folded = x.clone()
    folded[:, 21:] = x[:, 19 - torch.arange(20)] + torch.tensor([0.0, 0.017, 0.0])
    pairs = model.self_contacts.pairs(folded, folded, torch.zeros(1, dtype=torch.float64))
    nodes = pairs.tables[0].listed.nodes
    assert len(nodes) > 30
    # 16 + 2 mm over edges of 5 mm: four edges apart, or more
    assert int((nodes[:, 2:].amin(1) - nodes[:, :2].amax(1)).abs().min()) >= 4


@pytest.mark.parametrize("short", [1e-6, 1e-3])
def test_a_short_edge_changes_nothing_elsewhere(short):
    """Find the pairs of a folded rod as well where one of its edges is very short; all were neighbours by that edge."""
    x = np.arange(41) * 5e-3  # m
    fine = np.insert(x, 1, short)
    found = []
    for along in (x, fine):
        line = np.stack([along, 0 * along, 0 * along], axis=1)
        builder = RobotBuilder()
        builder.add_rod(line, Circle(8e-3), Material(1e6, 1000.0))
        builder.add_contact(SelfContact(Penalty(100.0, TOLERANCE)))
        model = builder.finalize()
        # folded back onto itself in its middle
        middle = along > 0.1 + 1e-9
        line[middle] = np.stack([0.2 - along[middle], np.full(middle.sum(), 0.017), 0 * along[middle]], axis=1)
        folded = torch.as_tensor(line)[None]
        pairs = model.self_contacts.pairs(folded, folded, torch.zeros(1, dtype=torch.float64))
        nodes = pairs.tables[0].listed.nodes
        found.append({tuple(np.round(along[pair], 9)) for pair in nodes.tolist()})
    kept = {pair for pair in found[0] if pair[0] > 0}  # those of the first edge, which is cut in two, are others
    assert len(kept) > 30 and kept == {pair for pair in found[1] if pair[0] > short}


def test_paths_between_pairs():
    """Find the shortest way along edges from a pair's first primitive to its second, up to a limit."""
    links = np.array([[0, 1], [1, 2], [2, 3], [0, 5]])
    lengths = torch.tensor([1.0, 1.0, 0.9, 0.4], dtype=torch.float64)
    pairs = torch.tensor([[0, 5, 2, 3], [0, 1, 1, 2], [0, 5, 3, 3], [0, 1, 4, 4]])  # 4 hangs on nothing
    assert paths_between(pairs, 2, links, lengths, 3.0).tolist() == [2.0, 0.0, 2.9, np.inf]
    assert paths_between(pairs, 2, links, lengths, 2.5).tolist() == [2.0, 0.0, np.inf, np.inf]
    points = torch.tensor([[3, 0, 1, 5]])  # a point and a triangle
    assert paths_between(points, 1, links, lengths, 3.0).tolist() == [1.9]


def test_surfaces_that_just_touch_are_no_neighbours():
    """Leave out edges that overlap as built, and keep those that are apart by the tolerance."""
    for length, counts in ((1.99e-3, 7), (2e-3, 7 + 8)):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (10 * length, 0, 0), 11), Circle(5e-4), Material(1e6, 1000.0))
        builder.add_contact(SelfContact(Penalty(100.0, 1e-3)))  # a reach of 2 mm
        model = builder.finalize()
        folded = model.nodes[None] * torch.tensor([0.25, 1.0, 1.0])
        pairs = model.self_contacts.pairs(folded, folded, torch.zeros(1, dtype=torch.float64))
        apart = pairs.tables[0].listed.nodes
        assert int(((apart[:, 2] - apart[:, 1]).abs() <= 2).sum()) == counts


@pytest.mark.parametrize("thick", [None, 2e-2])
def test_a_thick_rod_changes_nothing_elsewhere(thick):
    """Find the pairs of a hairpin of cord that is squeezed, also if the robot has a thick rod far away.

    Pairs within two radii of the thick rod were neighbours, and the cord passed through itself.
    """
    arc, leg = np.linspace(0, np.pi, 13), np.linspace(0, 0.05, 14)[:-1]
    bend = np.stack([0.05 + 4e-3 * np.sin(arc), 4e-3 * np.cos(arc), 0 * arc], axis=1)
    legs = [np.stack([leg, np.full(13, y), 0 * leg], axis=1) for y in (4e-3, -4e-3)]
    builder = RobotBuilder()
    cord = builder.add_rod(np.concatenate([legs[0], bend, legs[1][::-1]]), Circle(1e-3), Material(1e5, 1100.0))
    if thick is not None:
        builder.add_rod(straight((0, 0.5, 0), (0.3, 0.5, 0), 7), Circle(thick), Material(1e6, 1100.0))
    builder.add_contact(SelfContact(Penalty(100.0, 5e-4)))
    model = builder.finalize()
    squeezed = model.nodes[None].clone()
    squeezed[:, cord, 1] *= 0.2
    pairs = model.self_contacts.pairs(squeezed, squeezed, torch.zeros(1, dtype=torch.float64))
    assert len(pairs.tables[0]) == 73


@pytest.mark.parametrize("degrees", [45, 90])
def test_a_thin_rod_leaves_a_thick_one_without_a_push(degrees):
    """Leave out the pairs at a joint of rods of different radii, where a path along edges goes round the corner."""
    angle, along = math.radians(degrees), np.arange(13) * 4e-3
    branch = np.stack([along * math.cos(angle), 0 * along, along * math.sin(angle)], axis=1)
    builder, material = RobotBuilder(), Material(1e6, 1100.0)
    builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 41), Circle(1e-2), material)
    builder.add_rod(branch, Circle(1e-3), material)
    builder.add_contact(SelfContact(Penalty(100.0, 5e-4)))
    model = builder.finalize()
    x = model.nodes[None]
    pairs = model.self_contacts.pairs(x, x, torch.zeros(1, dtype=torch.float64))
    assert len(pairs.tables[0]) == 0


@pytest.mark.parametrize("thickness", [2.1e-3, 3e-3])
def test_a_thick_plate_is_at_rest(thickness):
    """Leave out all pairs of a plate about as thick as its triangles are wide, whose surfaces overlap as built.

    Nodes beside a triangle's side were farther from all of its nodes, and pushed it.
    """
    mesh = meshes.rectangle(0.02, 0.016, 2e-3, "random")
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes, mesh.triangles, thickness, Material(1e6, 1100.0, 0.3))
    builder.add_contact(SelfContact(Penalty(100.0, 1e-4)))
    model = builder.finalize()
    x = model.nodes[None]
    pairs = model.self_contacts.pairs(x, x, torch.zeros(1, dtype=torch.float64))
    assert [len(table) for table in pairs.tables] == [0, 0]


def hairpins(radii, tolerances) -> Model:
    """Return rods folded on themselves, with a contact radius and a tolerance of its own for each robot."""
    arc, leg = np.linspace(0, np.pi, 8)[1:-1], np.linspace(0, 4e-3, 6)
    bend = np.stack([4e-3 + 2.2e-3 * np.sin(arc), 2.2e-3 * (1 - np.cos(arc)), 0 * arc], axis=1)
    legs = [np.stack([leg, np.full(6, y), 0 * leg], axis=1) for y in (0.0, 4.4e-3)]
    builder = RobotBuilder()
    rows = torch.tensor(radii, dtype=torch.float64)[:, None], torch.tensor(tolerances, dtype=torch.float64)[:, None]
    line = np.concatenate([legs[0], bend, legs[1][::-1]])
    builder.add_rod(line, Circle(5e-4), Material(1e6, 1000.0), contact_radius=rows[0])
    builder.add_contact(SelfContact(Penalty(100.0, rows[1])))
    return builder.finalize()


@pytest.mark.parametrize("tolerances", [[2e-4] * 4, [2e-4, 1e-3, 2e-4, 3e-3]])
def test_neighbours_of_each_robot(tolerances):
    """Leave out in each robot of a batch the pairs that it leaves out alone, however thick the others are."""
    radii = [5e-4, 4e-3, 5e-4, 1e-3]
    model, counts = hairpins(radii, tolerances), set()
    assert model.self_contacts[0]._near_edges.where.shape[0] == 4
    close = 0.2 * model.nodes[None].expand(4, -1, -1)  # all edges are within the reach of each other
    still = torch.zeros(4, dtype=torch.float64)
    found = listed(model.self_contacts.pairs(close, close, still).tables[0], 0)
    for i, (radius, tolerance) in enumerate(zip(radii, tolerances, strict=True)):
        alone = hairpins([radius], [tolerance]).self_contacts
        assert found[i] == listed(alone.pairs(close[i : i + 1], close[i : i + 1], still[:1]).tables[0], 0)[0]
        counts.add(len(found[i]))
    assert len(counts) > 2 - (tolerances[0] == tolerances[1])  # they differ
    with per_robot(model).taken(torch.tensor([3, 1])).in_place():  # of a part of the batch, too
        part = listed(model.self_contacts.pairs(close[:2], close[:2], still[:2]).tables[0], 0)
    assert part == [found[3], found[1]]


def test_a_thin_rod_beside_a_thick_one_steps_as_alone():
    """Take the same steps: a rod whose leg is pressed onto the other one, in a batch with a thick rod."""
    ends = []
    for radii in ([5e-4], [5e-4, 4e-3]):
        model = hairpins(radii, [2e-4] * len(radii))
        state = model.initial_state()
        force = torch.zeros_like(state.q)
        force[:, 1], force[:, 3 * (model.body.n_nodes - 1) + 1] = 0.01, -0.01
        run = rollout(model, state, ImplicitEuler(dt=1e-3), steps=60, schedule=lambda t, m, f=force: Control(force=f))
        assert int(run.status[-1, 0]) == 0 and int(run.contact["active"][-1, 0]) > 0
        ends.append(run.positions[-1, 0])
    # loops for one robot and for two sum in other orders: rounding, of which 60 steps in contact make no more than this
    assert (ends[0] - ends[1]).abs().max() < 1e-9


def test_neighbours_as_given():
    """Leave out pairs as many links apart as asked for, across joints of rods too."""
    for ring in range(4):
        builder = RobotBuilder()
        line, branch = straight((0, 0, 0), (0.09, 0, 0), 10), straight((0.05, 0, 0), (0.05, 0, 0.04), 5)
        builder.add_rod(line, Circle(1e-3), Material(1e6, 1000.0))
        builder.add_rod(branch, Circle(1e-3), Material(1e6, 1000.0))
        contact = SelfContact(Penalty(100.0, 1.0), ring=ring)  # all is within the tolerance
        builder.add_contact(contact)
        model = builder.finalize()
        pairs = model.self_contacts.pairs(model.nodes[None], model.nodes[None], torch.zeros(1, dtype=torch.float64))
        found, apart = listed(pairs.tables[0], 0)[0], links_apart(model)
        expected = sum(
            apart[np.ix_(a, b)].min() > ring for a, b in itertools.combinations(model.body.links.tolist(), 2)
        )
        assert len(found) == expected
    with pytest.raises(InputError, match="ring"):
        SelfContact(Penalty(100.0, 1.0), ring=-1)


def test_there_is_room_for_all_pairs():
    """Have slots for the pairs of the robot with most, but not many more, whatever there were before; lose none."""
    model = tangle(tolerance=1e-4)
    still = torch.zeros(3, dtype=torch.float64)
    apart = start_of(model) * 20  # all parts far from each other: next to no pairs
    counts = []
    for positions in (apart, start_of(model), 0.3 * start_of(model), apart):
        pairs = model.self_contacts.pairs(positions, positions, still)
        counts.append(int(pairs.tables[0].robot.bincount(minlength=3).amax()))
        assert counts[-1] <= pairs.tables[0].shape[1] <= max(FEWEST_SLOTS, 2 * counts[-1])
        assert listed(pairs.tables[0], 0) == near(model, 0, positions, 1, 1e-4)
    assert counts[0] < counts[1] < counts[2] > counts[3]


def test_rows_are_the_robots_alone():
    """Find for each robot of a batch the pairs, forces and energies that it has alone."""
    model, u = tangle(), None
    x = start_of(model, 3e-3)
    q = torch.cat([x.flatten(1), x.new_zeros(3, model.body.n_angles)], dim=1)
    slack = torch.tensor([0.0, 1e-3, 4e-3], dtype=torch.float64)
    pairs = model.self_contacts.pairs(x, x, slack)
    u = torch.randn(q.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(4))
    force, energy = model.self_contacts.force(pairs, q, u), model.self_contacts.energy(pairs, q)
    for i in range(3):
        row = slice(i, i + 1)
        alone = tangle(row).self_contacts
        own = alone.pairs(x[row], x[row], slack[row])
        for kind in range(2):
            assert listed(own.tables[kind], kind)[0] == listed(pairs.tables[kind], kind)[i]
        # sums in the same order: the same bits, but for vector instructions
        assert torch.allclose(alone.force(own, q[row], u[row])[0], force[i], rtol=1e-12, atol=1e-14)
        assert torch.allclose(alone.energy(own, q[row])[0], energy[i], rtol=1e-12)


def test_common_flight_brings_no_pairs():
    """Find the same pairs for robots that fly as for robots at rest; they serve until parts move apart."""
    model, still = tangle(), torch.zeros(3, dtype=torch.float64)
    x = start_of(model, 3e-3)
    flown = x + torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    at_rest = model.self_contacts.pairs(x, x, still)
    flying = model.self_contacts.pairs(x, flown, still + 1e-9)  # m: rounding of positions is 1e-16
    for kind in range(2):
        assert listed(flying.tables[kind], kind) == listed(at_rest.tables[kind], kind)
    assert bool(flying.boxes.hold(flown.flatten(1)).all())
    flown[1, 3, 0] += 1e-3
    assert flying.boxes.hold(flown.flatten(1)).tolist() == [True, False, True]


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
def test_a_poisoned_robot(poison):
    """Find the other robots' pairs, and say that the poisoned one's are not complete."""
    model, still = tangle(), torch.zeros(3, dtype=torch.float64)
    x = start_of(model, 3e-3)
    healthy = model.self_contacts.pairs(x, x, still)
    sick = x.clone()
    sick[1, 7, 2] = poison
    pairs = model.self_contacts.pairs(sick, sick, still)
    assert pairs.boxes.hold(sick.flatten(1)).tolist() == [True, poison == torch.inf, True] or not bool(
        pairs.boxes.hold(sick.flatten(1))[1]
    )
    for kind in range(2):
        found, expected = listed(pairs.tables[kind], kind), listed(healthy.tables[kind], kind)
        assert [found[0], found[2]] == [expected[0], expected[2]]
    q = torch.cat([sick.flatten(1), x.new_zeros(3, model.body.n_angles)], dim=1)
    force = model.self_contacts.force(pairs, q, torch.zeros_like(q))
    assert bool(torch.isfinite(force[[0, 2]]).all())


def test_forces_add_up():
    """Have forces and moments of all pairs together that cancel, in a coil whose turns touch."""
    builder = RobotBuilder()
    builder.add_rod(
        helix((0, 0, 0), (0.02, 0, 0), (0, 0, 1), 6 * np.pi, 5e-3, 120), Circle(1e-3), Material(1e6, 1000.0)
    )
    builder.add_contact(SelfContact(Penalty(100.0, 4e-3)))
    model = builder.finalize()
    q = model.initial_state().q
    pairs = model.self_contacts.pairs(model.nodes[None], model.nodes[None], torch.zeros(1, dtype=torch.float64))
    force = model.self_contacts.force(pairs, q, torch.zeros_like(q))[0, : 3 * len(model.nodes)].view(-1, 3)
    assert float(force.norm(dim=1).max()) > 1e-3
    rounding = 1e-14 * float(force.abs().sum())
    assert float(force.sum(0).norm()) < rounding
    assert float(torch.linalg.cross(model.nodes, force).sum(0).norm()) < rounding


def test_sums_that_are_bound_to_other_pairs():
    """Find of a later table what sums made for it find, and of the first one the same as before, bound or not."""
    model = tangle()
    contact, q = model.self_contacts[0], model.initial_state().q
    still = torch.zeros_like(q)
    moved = model.body.q_of(start_of(model, shake=1e-3, seed=1))
    for kernel in (0, 1):
        first, later, alone = (model.contact.may_touch_at(at).listed.tables[kernel] for at in (q, moved, moved))
        sums = contact.sums(first, q, still)
        if sums is None:
            pytest.skip("nothing can be compiled here")
        before, total = torch.zeros_like(q), torch.zeros_like(q)
        sums.add_force(q, still, before)
        bound = contact.bound_sums(later, sums)
        assert bound is sums and len(later) != len(first)
        bound.add_force(moved, still, total)
        expected = torch.zeros_like(q)
        contact.sums(alone, moved, still).add_force(moved, still, expected)
        assert torch.equal(total, expected) and total.abs().max() > 0
        again = torch.zeros_like(q)
        contact.sums(first, q, still).add_force(q, still, again)
        assert torch.equal(again, before)


def test_belongs_to_one_model():
    """Refuse to be in two models: what is bound to one is not true of another."""
    contact = SelfContact(Penalty(100.0, 1e-3))
    for attempt in range(2):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5 + attempt), Circle(1e-3), Material(1e6, 1000.0))
        builder.add_contact(contact)
        if attempt:
            with pytest.raises(InputError, match="another model"):
                builder.finalize()
        else:
            builder.finalize()


def pushed_rods(rods: int, friction: Friction | None, gap: float) -> Model:
    """Return a clamped rod along y and others beside it, each at the same gap from the one before."""
    builder, section, material = RobotBuilder(), Circle(3e-3), Material(1e7, 1100.0)
    builder.clamp(nodes=builder.add_rod(straight((0, -0.05, 0), (0, 0.05, 0), nodes=3), section, material))
    for k in range(1, rods + 1):
        x = k * (6e-3 + gap)
        builder.add_rod(straight((x, -0.03, 0), (x, 0.04, 0), nodes=4), section, material)
    builder.add_contact(SelfContact(Barrier(1e3, 2e-4), friction))
    return builder.finalize()


@pytest.mark.parametrize(
    ("rods", "friction", "gap", "way"),
    [(1, None, 1e-4, 3e-3), (1, Friction(0.5, 1e-3), 1e-4, 3e-3), (3, None, 1e-4, 2e-3), (1, None, 1e-6, 5e-4)],
)
def test_a_clamp_pushes_across_a_barrier(rods, friction, gap, way):
    """A clamp that moves in a step by more than the gap pushes what is in its way: rods, and what they push in turn.

    These steps failed as NOT_FINITE, as searches began where the clamp overlaps what it pushes.
    """
    model = pushed_rods(rods, friction, gap)
    start = model.initial_state()
    ends = torch.arange(1, 6, dtype=torch.float64)[:, None] * way * (torch.arange(model.n_dofs) % 3 == 0)

    def pushed(time: torch.Tensor, model: Model) -> Control:
        return Control(clamped_q=start.q + ends[round(float(time[0]) / 1e-2) - 1])

    run = rollout(model, start, ImplicitEuler(dt=1e-2), 5, pushed, throw=True)
    places = run.positions[-1, 0, :, 0]
    assert (places[3:7] > places[:3].max() + 6e-3).all(), "the first rod is ahead of the clamp"
    apart = places[3:].unflatten(0, (rods, 4)).mean(1).diff()
    assert (apart > 6e-3).all(), "each rod is ahead of the one before"


def test_what_an_obstacle_cannot_move_carries_nothing_along():
    """A ball pushes a rod near its clamp: what lies beside the clamped part stays there, between two barriers.

    The rod in between moves towards the other barrier, so that the search begins where the robot is. It failed as
    NOT_FINITE where the clamped node was taken for one that the ball moves.
    """
    builder, section, material, apart = RobotBuilder(), Circle(3e-3), Material(1e7, 1100.0), 6.1e-3
    pushed = builder.add_rod(straight((0, -0.06, 0), (0, 0.06, 0), nodes=7), section, material)
    between = builder.add_rod(straight((apart, -0.024, -0.02), (apart, -0.024, 0.02), nodes=3), section, material)
    wall = builder.add_rod(straight((2 * apart, -0.05, 0), (2 * apart, -0.02, 0), nodes=3), section, material)
    builder.clamp(nodes=[*pushed[:3], *wall])
    builder.add_contact(SelfContact(Barrier(1e3, 2e-4)))
    ball, path = Sphere((-0.0133, -0.004, 0), 0.01), Path.uniform((0.06, 0, 0))
    builder.add_contact(Obstacle(ball, Barrier(1e3, 2e-4), path=path, nodes=pushed, spacing=4e-3))
    model = builder.finalize()
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[:, 3 * torch.as_tensor(between)] = 0.05
    rollout(model, model.initial_state(velocity=velocity), ImplicitEuler(dt=1e-2), 2, throw=True)
