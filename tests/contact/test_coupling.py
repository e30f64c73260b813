"""The matrix of a step with contact: every block where it belongs, and a pattern that is kept while it serves."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.contact.pairs_alone import whole
from tests.contact.robots import ROBOTS, crossing
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight
from torchdismech.contact import Penalty, SelfContact
from torchdismech.contact.pairs import coupling, node_blocks, pair_calls, pair_loops, pair_sums
from torchdismech.contact.pairs.coupling import CHUNK, CouplingCache, StepPairs
from torchdismech.contact.pairs.pair_loops import KNOWN
from torchdismech.contact.pairs.pairs import Listed, PairBlocks, Pairs, PairTable
from torchdismech.geometry.crossing import closest_crossing

GAINS = (0.7, 30.0)  # of position and velocity


def pressed(kind: str, rough: bool):
    """Return a model, its two robots' q and velocity, not the same, and what may touch there."""
    model = ROBOTS[kind]("penalty", rough)
    generator = torch.Generator().manual_seed(3)
    q = model.initial_state(batch=2).q
    q = q + 1e-3 * torch.randn(q.shape, generator=generator, dtype=q.dtype)
    q[1, : 3 * model.body.n_nodes] += 2e-3  # a robot that is elsewhere
    velocity = 0.1 * torch.randn(q.shape, generator=generator, dtype=q.dtype)
    return model, q, velocity, model.contact.may_touch(q, q, torch.zeros(2, dtype=q.dtype))


def summed_one_by_one(model, q, velocity, pairs: StepPairs, tractions=None) -> torch.Tensor:
    """Return the matrices (B, n_free, n_free) of the contacts, each pair's block added by itself."""
    total = q.new_zeros(len(q), model.n_dofs, model.n_dofs)
    for found in model.self_contacts.touching(pairs.listed, q, velocity):
        expected = None if tractions is None else tractions[found.table][found.table.slots]
        _, blocks = found.force_and_blocks(*GAINS, expected)
        for block, robot, chosen in zip(whole(blocks), found.robot, found.chosen, strict=True):
            dofs = found.table.listed.dofs[:, chosen]
            total[robot, dofs[:, None], dofs] += block
    return total[:, model.unknowns.index][:, :, model.unknowns.index]


@pytest.mark.parametrize("by", ["code", "torch", "many nodes"])
@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("kind", ["rods", "lines", "shell"])
def test_matrix_is_the_sum_of_the_blocks(kind, rough, by, monkeypatch):
    """Place every pair's block in the matrix of its robot, on top of what was there; clamped dofs drop out."""
    if by == "torch":
        without_code(monkeypatch)
    if by == "many nodes":  # too many for a list of all their pairs: blocks are searched for
        monkeypatch.setattr(node_blocks, "LISTED", 0)
    model, q, velocity, pairs = pressed(kind, rough)
    expected = summed_one_by_one(model, q, velocity, pairs)
    assert bool((expected.abs().amax((1, 2)) > 0).all())  # both robots touch themselves
    crossing = [table for table in pairs.listed.tables if table.kernel is closest_crossing]
    assert all(set(table.robot.tolist()) == {0, 1} for table in crossing) and bool(crossing) == (kind == "lines")
    own = torch.randn(model.layout.pattern.nnz, 2, dtype=q.dtype, generator=torch.Generator().manual_seed(0))
    _, values = pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)
    found = pairs.coupling.pattern.to_dense(values) - model.layout.pattern.to_dense(own)
    # 1e-12 of the largest entry: sums in another order
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-12


@pytest.mark.parametrize("by", ["code", "torch"])
@pytest.mark.parametrize("kind", ["rods", "lines", "shell"])
def test_matrix_with_tractions(kind, by, monkeypatch):
    """Give each pair of each robot the traction of its own slot, in compiled code as in torch."""
    if by == "torch":
        without_code(monkeypatch)
    model, q, velocity, pairs = pressed(kind, True)
    generator = torch.Generator().manual_seed(4)
    tables = model.self_contacts.force_tables(pairs.listed)
    known_by_table = {t: 0.3 * torch.randn(*t.shape, KNOWN, generator=generator, dtype=q.dtype) for t in tables}
    own = torch.zeros(model.layout.pattern.nnz, 2, dtype=q.dtype)
    plain = pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)[1]
    with pairs.with_tractions(known_by_table):
        force, values = pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)
    again = pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)
    assert torch.equal(again[1], plain) and not torch.allclose(values, plain)
    # forces do not depend on tractions: two loops find them, which a compiler contracts differently
    assert (again[0] - force).abs().max() <= 1e-13 * force.abs().max()
    expected = summed_one_by_one(model, q, velocity, pairs, {t: known[..., :3] for t, known in known_by_table.items()})
    found = pairs.coupling.pattern.to_dense(values)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-12  # as above
    for table in tables:
        contact = model.self_contacts[table.contact]
        first = contact.friction(table, q, velocity)
        geometry = pair_loops._geometry(
            table.kernel, False, table.gathered(q), table.gathered(velocity), table.reaches, *table.kernel_arguments
        )
        (normal, slid), law = pair_loops.vectors(torch.stack(geometry[1:7])), contact.law
        constants = law.constants.at(table.robot)
        known = torch.stack([*law.formulas.traction(normal, slid, constants).components(), *geometry[1:7]], dim=1)
        assert torch.allclose(first[table.slots], known, rtol=1e-10, atol=1e-12)
        first[table.slots] = 0.0
        assert float(first.abs().sum()) == 0
        traction, turned, before = pair_loops.vectors(known_by_table[table][table.slots].t())
        awaited = law.formulas.expected_traction(turned, before, slid - before, traction, constants).components()
        found = contact.friction(table, q, velocity, known_by_table[table])[table.slots]
        assert torch.allclose(found[:, :3], torch.stack(awaited, dim=1), rtol=1e-9, atol=1e-12)
        assert torch.allclose(found[:, 3:], known[:, 3:], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("by", ["code", "torch"])
@pytest.mark.parametrize("kind", ["rods", "lines", "shell"])
def test_summary_of_pairs(kind, by, monkeypatch):
    """Report how many pairs touch and slide, how deep, and how hard the two surfaces push each other."""
    if by == "torch":
        without_code(monkeypatch)
    model, q, velocity, pairs = pressed(kind, True)
    velocity[1] *= 1e-3  # a robot that hardly slides
    # so thick that some overlap, which else are only within the tolerance
    tables = [replace(table, reaches=table.reaches + 0.02) for table in model.self_contacts.force_tables(pairs.listed)]
    assert tables
    for table in tables:
        contact = model.self_contacts[table.contact]
        found, summary = contact.touching(table, q, velocity), contact.summary(table, q, velocity)
        _, normal, slid = contact.friction(table, q, velocity)[table.slots][found.chosen].split(3, dim=1)
        along = slid - (slid * normal).sum(1, keepdim=True) * normal
        slip_velocity = contact.law.friction.slip_velocity.expand(len(q), 1)[found.robot, 0]
        slides = along.norm(dim=1) > slip_velocity
        forces = found.force().unflatten(0, (-1, 3))
        sizes, on_nodes = forces[pair_loops.FIRST[table.kernel]].sum(0).norm(dim=0), torch.zeros_like(q)
        on_nodes.view(-1).index_add_(0, found.flat_dofs.flatten(), forces.flatten())
        of_robots = [found.robot == robot for robot in range(len(q))]
        assert len(found.robot) and 0 < int(slides.sum()) < len(slides)
        assert summary.touching.tolist() == [int(own.sum()) for own in of_robots]
        assert summary.sliding.tolist() == [int(slides[own].sum()) for own in of_robots]
        load = torch.stack([sizes[own].sum() for own in of_robots])
        deepest = torch.stack([torch.cat([-found.gap[own], q.new_zeros(1)]).max() for own in of_robots])
        # as above, of sizes of their own
        for mine, expected in ((summary.penetration, deepest), (summary.load, load), (summary.on_dofs, on_nodes)):
            assert float((mine - expected).abs().max() / expected.abs().max()) < 1e-12


@pytest.mark.parametrize("friction", [False, True])
@pytest.mark.parametrize("kind", ["rods", "lines", "shell"])
def test_products_with_derivatives(kind, friction):
    """Multiply the derivatives of pairs' forces by q and velocity from the left, as autograd does."""
    model, q, velocity, pairs = pressed(kind, friction)
    by_force = torch.randn(q.shape, generator=torch.Generator().manual_seed(0), dtype=q.dtype)
    leaves = q.clone().requires_grad_(), velocity.clone().requires_grad_()
    force = model.self_contacts.force(pairs.listed, *leaves)
    expected = torch.autograd.grad(force, leaves, by_force, allow_unused=True)
    for gains, product in zip(((1.0, 0.0), (0.0, 1.0)), expected, strict=True):
        total = torch.zeros_like(q)
        for table in model.self_contacts.force_tables(pairs.listed):
            sums = model.self_contacts[table.contact].sums(table, q, velocity)
            sums.add_product(q, velocity, by_force, total, gains)
        product = torch.zeros_like(q) if product is None else product
        assert bool(product.any()) == (friction or gains[0] == 1.0)
        # sums of terms in another order
        assert float((total - product).abs().max()) <= 1e-11 * float(product.abs().max())


@pytest.mark.parametrize("by", ["code", "torch"])
def test_other_pairs_in_the_next_iteration(by, monkeypatch):
    """Place the blocks anew when other pairs touch than in the iteration before."""
    if by == "torch":
        without_code(monkeypatch)
    model, q, velocity, pairs = pressed("shell", True)
    own = torch.zeros(model.layout.pattern.nnz, 2, dtype=q.dtype)
    pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)
    before = sum(len(f.chosen) for f in model.self_contacts.touching(pairs.listed, q, velocity))
    moved = q.clone()
    moved[0, : 3 * model.body.n_nodes] *= 1.3
    assert sum(len(f.chosen) for f in model.self_contacts.touching(pairs.listed, moved, velocity)) != before
    _, values = pairs.force_and_values(model.self_contacts, moved, velocity, own, *GAINS)
    expected = summed_one_by_one(model, moved, velocity, pairs)
    found = pairs.coupling.pattern.to_dense(values)
    assert float((found - expected).abs().max() / expected.abs().max()) < 1e-12  # as above


@pytest.mark.parametrize("kind", ["rods", "lines"])
def test_rows_are_those_of_robots_alone(kind):
    """Give a robot the same matrix in a batch as alone."""
    model, q, velocity, pairs = pressed(kind, True)
    own = torch.zeros(model.layout.pattern.nnz, 2, dtype=q.dtype)
    both = pairs.coupling.pattern.to_dense(pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)[1])
    for row in range(2):
        alone = ROBOTS[kind]("penalty", True, slice(row, row + 1))
        x, v = q[row : row + 1], velocity[row : row + 1]
        single = alone.contact.may_touch(x, x, torch.zeros(1, dtype=q.dtype))
        values = single.force_and_values(alone.self_contacts, x, v, own[:, :1], *GAINS)[1]
        assert torch.equal(both[row], single.coupling.pattern.to_dense(values)[0])


def test_pattern_is_kept_while_it_suffices():
    """Keep pattern and solvers where nothing new may touch; extend them where something does."""
    model, _, _, all_pairs = pressed("rods", False)
    many = all_pairs.listed
    (first,) = many.tables
    last = int(first.robot.bincount().amin()) - 1  # those from here on are of nodes that are not clamped
    listed = Listed(*(of[first.slot >= last] for of in first.listed))
    one = PairTable.of(first.kernel, listed, first.reaches[first.slot >= last], batch=2)
    few = Pairs((one,), many.boxes)
    numbers = model.unknowns.number[: 3 * model.body.n_nodes]
    cache = CouplingCache(model.layout.pattern, numbers, None, model.body.rod_edges)
    small = cache.coupling(few)
    grown = cache.coupling(many)
    assert grown.pattern.nnz > small.pattern.nnz > model.layout.pattern.nnz
    assert set(small.pattern.keys.tolist()) <= set(grown.pattern.keys.tolist())
    again = cache.coupling(few)
    assert again.pattern is grown.pattern and again.solvers is grown.solvers


def test_a_pattern_that_served_few_steps_is_followed_by_a_wider_one():
    """Join the nodes next along rods where patterns change often, and no others."""
    model, _, _, _ = pressed("rods", False)
    edges = np.array([[0, 1], [1, 2], [2, 3], [4, 5], [5, 6], [6, 3]])  # two rods that end at one node
    cache = CouplingCache(model.layout.pattern, np.arange(21), None, edges)
    joined = {divmod(int(key), 7) for key in cache._with_next(np.array([5 * 7 + 1, 3 * 7 + 0]))}
    assert joined == {(5, 1), (4, 1), (6, 1), (5, 0), (5, 2), (3, 0), (2, 0), (6, 0), (3, 1)}
    none = CouplingCache(model.layout.pattern, np.arange(21), None, edges[:0])
    assert none._with_next(np.array([36, 21])).tolist() == [21, 36]


def slid(steps=60):
    """Return q after a rod has slid over another, an edge in five steps, and how many patterns that took."""
    builder, material = RobotBuilder(), Material(1e7, 1000.0, 0.4)
    low = builder.add_rod(straight((0.0, 0.0, 0.0), (0.4, 0.0, 0.0), 41), Circle(4e-3), material)
    builder.clamp(nodes=low.tolist())
    top = builder.add_rod(straight((0.0, 0.0, 8e-3), (0.1, 0.0, 8e-3), 11), Circle(4e-3), material)
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))  # so that they stay on each other
    builder.add_contact(SelfContact(Penalty(300.0, 8e-4), themselves=False))
    model = builder.finalize(compile=False)
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[0, 3 * top] = 1.0  # m/s
    state, patterns = model.initial_state(velocity=velocity), []
    for _ in range(steps):
        state, info = ImplicitEuler(2e-3).step(model, state)
        assert bool(info.converged.all())
        if not patterns or model.contact._couplings.pattern is not patterns[-1]:
            patterns.append(model.contact._couplings.pattern)
    return state.q, len(patterns)


def test_rods_that_slide_along_each_other_need_few_patterns(monkeypatch):
    """Make a pattern every other edge where each edge would need one, and find the same."""
    q, few = slid()
    monkeypatch.setattr(coupling, "FEW_STEPS", 0)
    narrow, many = slid()
    assert many >= 8 and few <= 0.7 * many
    assert float((q - narrow).abs().max()) < 1e-9  # the band is another one: rounding


def test_blocks_of_parts_are_those_of_all():
    """Multiply out the same entries chunk by chunk as at once."""
    generator = torch.Generator().manual_seed(1)
    count = 2 * CHUNK + 7
    sizes = ((4, count), (3, 3, count), (2, 4, 3, count), (2, 4, 3, count))
    blocks = PairBlocks(*(torch.randn(s, generator=generator, dtype=torch.float64) for s in sizes))
    parts = [blocks.entries(slice(k, k + CHUNK)) for k in range(0, count, CHUNK)]
    whole = torch.einsum("ic,jc,abc->abijc", blocks.weights, blocks.weights, blocks.matrix)
    whole = whole + torch.einsum("kiac,kjbc->abijc", blocks.left, blocks.right)
    # rounding of sums of three terms of order one to ten
    assert torch.allclose(torch.cat(parts, dim=1), whole.flatten(0, 3), rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("rough", [False, True])
@pytest.mark.parametrize("kind", ["rods", "lines", "shell"])
def test_compiled_sums_are_torchs(kind, rough, dtype, monkeypatch):
    """Find forces and matrix by compiled code as torch does; each robot has its constants, and some touch nothing."""
    line = "smooth" if kind == "lines" else "straight"
    model = crossing("penalty", rough, kind == "shell", slice(0, 1), line, dtype)
    generator = torch.Generator().manual_seed(3)
    batch = 19  # no multiple of the robots that are summed side by side
    q = model.initial_state(batch=batch).q
    q = q + (1e-3 * torch.randn(q.shape, generator=generator, dtype=torch.float64)).to(dtype)
    q[8:16, : 3 * model.body.n_nodes] *= 100.0  # blown up: nothing touches
    velocity = (0.1 * torch.randn(q.shape, generator=generator, dtype=torch.float64)).to(dtype)
    response = model.self_contacts[0].law.response
    of_each = response.stiffness * torch.linspace(0.5, 2.0, batch, dtype=dtype)[:, None]
    response.stiffness = torch.nn.Parameter(of_each.detach(), requires_grad=False)
    pairs = model.contact.may_touch(q, q, torch.zeros(batch, dtype=dtype))
    touched = {int(robot) for of in model.self_contacts.touching(pairs.listed, q, velocity) for robot in of.robot}
    assert touched == {*range(8), *range(16, 19)}
    own = torch.randn(model.layout.pattern.nnz, batch, generator=generator, dtype=torch.float64).to(dtype)
    found = []
    for by in ("code", "torch"):
        if by == "torch":
            without_code(monkeypatch)
        found.append(
            (
                *pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS),
                force_of(model, pairs, q, velocity),
            )
        )
    for by_code, by_torch in zip(*found, strict=True):
        # sums of a few numbers in other orders, of products that compilers contract otherwise; gaps lose digits
        size = float(by_torch.abs().max())
        assert float((by_code - by_torch).abs().max()) < 5e4 * torch.finfo(dtype).eps * size


def test_sums_by_both():
    """Add tables that torch has to find to those that compiled code finds, in either order."""
    model, q, velocity, pairs = pressed("lines", True)
    own = torch.randn(model.layout.pattern.nnz, 2, dtype=q.dtype, generator=torch.Generator().manual_seed(0))
    force, values = pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)
    contact = model.self_contacts[0]
    kinds = {table.kernel for table in pairs.listed.tables}
    assert len(kinds) == 2
    sums = contact.sums
    for by_torch in kinds:
        contact.sums = lambda table, *at, by_torch=by_torch: None if table.kernel is by_torch else sums(table, *at)
        mixed, mixed_values = pairs.force_and_values(model.self_contacts, q, velocity, own, *GAINS)
        # 1e-12 of the largest: sums in another order
        torch.testing.assert_close(mixed, force, rtol=0, atol=1e-12 * float(force.abs().max()))
        torch.testing.assert_close(mixed_values, values, rtol=0, atol=1e-12 * float(values.abs().max()))


def force_of(model, pairs: StepPairs, q, velocity) -> torch.Tensor:
    """Return the forces (B, n) that are found without their derivatives."""
    return model.self_contacts.force(pairs.listed, q, velocity)


def without_code(monkeypatch) -> None:
    """Let torch find what pairs add up to."""
    for module in (node_blocks, pair_calls, pair_sums):
        monkeypatch.setattr(module, "function_of", lambda *name: None)


@pytest.mark.parametrize("by", ["code", "torch"])
@pytest.mark.parametrize("kind", ["rods", "lines", "shell"])
def test_steps_are_limited(kind, by, monkeypatch):
    """Take the part of a motion in which no pair of a robot moves by more than a quarter of its reach."""
    if by == "torch":
        without_code(monkeypatch)
    model, q, _, pairs = pressed(kind, True)
    rubbing = model.contact.rubbing(pairs)
    motion = 5e-3 * torch.randn(*q.shape, generator=torch.Generator().manual_seed(2), dtype=q.dtype)
    motion = motion[:, : 3 * model.body.n_nodes].unflatten(1, (-1, 3))
    expected = torch.ones(len(q), dtype=q.dtype)
    for table in model.self_contacts.force_tables(pairs.listed):
        first = [node for node in pair_loops.FIRST[table.kernel] if node < 4]
        for robot, nodes, reach in zip(*table.listed, table.reaches, strict=True):
            moved = motion[robot, nodes[:4]]
            second = [node for node in range(4) if node not in first]
            farthest = torch.cdist(moved[first], moved[second]).max()
            expected[robot] = torch.minimum(expected[robot], 0.25 * reach / farthest)
    # sums of squares in another order
    assert (
        torch.allclose(rubbing.step_fraction(motion.flatten(1))[:, 0], expected, rtol=1e-12)
        and float(expected.max()) < 1
    )
    assert torch.equal(rubbing.step_fraction(1e-9 * motion.flatten(1)), torch.ones_like(expected)[:, None])
