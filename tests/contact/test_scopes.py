"""Who touches whom: parts by name, pieces that do not touch themselves, several laws in one robot."""

import itertools

import numpy as np
import pytest
import torch

from tests import shells
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, straight
from torchdismech.contact import Barrier, Complementarity, Friction, Penalty, SelfContact
from torchdismech.errors import InputError

SOFT = Material(1e6, 1000.0, 0.3)
TOLERANCE = 2e-3
NAMES = ("cable", "rope", None, "rope", "sheet")


def tangle(*contacts: SelfContact, names=NAMES) -> RobotBuilder:
    """Return four bent rods and a patch of a shell in a small space, by these names."""
    rng = np.random.default_rng(0)
    builder = RobotBuilder()
    for name in names[:4]:
        t = np.linspace(0, 1, 8)[:, None]
        a, b, c = 0.035 * rng.normal(size=(3, 3))
        builder.add_rod(a + t * b + 0.5 * t**2 * c, Circle(8e-3), SOFT, name=name)
    nodes, triangles = shells.patch()
    builder.add_shell(nodes - nodes.mean(0), triangles, 0.016, SOFT, name=names[4])
    for contact in contacts:
        builder.add_contact(contact)
    return builder


def contact(**options) -> SelfContact:
    """Return a contact between parts."""
    return SelfContact(Penalty(100.0, TOLERANCE), ring=1, **options)


def found(model) -> list[set]:
    """Return the pairs of nodes of each contact at rest, each pair as two frozensets."""
    x = model.nodes[None]
    pairs = model.self_contacts.pairs(x, x, torch.zeros(1, dtype=torch.float64))
    result: list[set] = [set() for _ in model.self_contacts]
    for table in pairs.tables:
        split = 2 if table.rounding else 1
        for nodes in table.listed.nodes.tolist():
            key = frozenset([frozenset(nodes[:split]), frozenset(nodes[split:])])
            assert not any(key in other for other in result)  # no pair is ruled twice
            result[table.contact].add(key)
    return result


def owner(node: int) -> int:
    """Return which of the rods, or 4 for the shell, a node of the tangle belongs to."""
    return min(node // 8, 4)


def between(pairs: set, *allowed: tuple[int, int]) -> set:
    """Return the pairs whose sides belong to allowed pairs of rods and shell."""
    either = {frozenset(pair) for pair in allowed}
    return {pair for pair in pairs if frozenset(owner(min(side)) for side in pair) in either}


EACH = list(itertools.combinations_with_replacement(range(5), 2))
CASES = {
    "two names": ({"between": ("rope", "sheet")}, [(1, 4), (3, 4)]),
    "one name twice": ({"between": ("rope", "rope")}, [(1, 1), (1, 3), (3, 3)]),
    "others of its name": ({"between": ("rope", "rope"), "themselves": False}, [(1, 3)]),
    "a part and itself": ({"between": ["cable", "cable"]}, [(0, 0)]),
    "all but themselves": ({"themselves": False}, [pair for pair in EACH if pair[0] != pair[1]]),
}


@pytest.mark.parametrize("case", CASES)
def test_pairs_of_a_contact(case):
    """Find of all pairs those whose parts the contact is for, and no other."""
    options, allowed = CASES[case]
    (everything,) = found(tangle(contact()).finalize())
    (pairs,) = found(tangle(contact(**options)).finalize())
    expected = between(everything, *allowed)
    assert pairs == expected and len(everything) > len(pairs) > 0


def test_contacts_share_all_pairs():
    """Give what a contact names to it, and the rest to the one that names nothing, in whatever order they come."""
    (everything,) = found(tangle(contact()).finalize())
    both = [contact(between=("rope", "sheet")), contact(between=("rope", "rope"))]
    ours, theirs, rest = found(tangle(*both, contact()).finalize())
    assert ours == between(everything, (1, 4), (3, 4)) and theirs == between(everything, (1, 1), (1, 3), (3, 3))
    assert ours | theirs | rest == everything and ours and theirs and rest
    both = [contact(between=("rope", "sheet")), contact(between=("rope", "rope"))]
    assert found(tangle(contact(), *both).finalize()) == [rest, ours, theirs]


def test_what_hangs_together_is_a_piece():
    """Take ropes that were added at once for a piece each, and rods that are tied to each other for one."""
    ropes = np.concatenate([straight((0, y, 0.0), (0.1, y, 0), 6) for y in (0.0, 0.01, 0.02)])
    edges = np.concatenate([6 * k + np.stack([np.arange(5), np.arange(1, 6)], 1) for k in range(3)])
    for tied in (False, True):
        builder = RobotBuilder()
        builder.add_rods(ropes, edges, Circle(5e-3), SOFT)
        if tied:
            builder.add_rod([[0, 0, 0], [0, 0.01, 0]], Circle(5e-3), SOFT)
        builder.add_contact(contact(themselves=False))
        (pairs,) = found(builder.finalize())
        touching = {frozenset(min(side) // 6 for side in pair) for pair in pairs}
        first_and_second = frozenset([0, 1])
        assert (first_and_second in touching) != tied and frozenset([1, 2]) in touching


def test_forces_of_several_contacts_add_up():
    """Have of two laws the force of each alone on its pairs, and of equal laws that of one; likewise the matrix."""

    def evaluated(*contacts):
        model = tangle(*contacts).finalize()
        state = model.initial_state()
        generator = torch.Generator().manual_seed(1)
        velocity = 0.1 * torch.randn(state.q.shape, generator=generator, dtype=state.q.dtype)
        pairs = model.contact.may_touch_at(state.q)
        own = torch.zeros(model.layout.pattern.nnz, 1, dtype=state.q.dtype)
        force, values = pairs.force_and_values(model.self_contacts, state.q, velocity, own, 0.7, 30.0)
        # 1e-12 of the largest: loops with and without derivatives contract products and sums otherwise
        alone = model.self_contacts.force(pairs.listed, state.q, velocity)
        assert float((force - alone).abs().max() / force.abs().max()) < 1e-12
        return force, pairs.coupling.pattern.to_dense(values), model.self_contacts.energies(pairs.listed, state.q)

    def law(stiffness, name=None, mu=0.4):
        return SelfContact(Penalty(stiffness, TOLERANCE), Friction(mu, 0.05), 1, between=name)

    one = evaluated(law(50.0))
    same = evaluated(law(50.0, ("rope", "sheet")), law(50.0))
    other = evaluated(law(80.0, ("rope", "sheet"), 0.1))
    mixed = evaluated(law(80.0, ("rope", "sheet"), 0.1), law(50.0))
    alone = evaluated(law(50.0, ("rope", "sheet")))
    # 1e-12 of the largest: sums in another order
    for k in range(2):
        scale = float(one[k].abs().max())
        assert float((same[k] - one[k]).abs().max()) < 1e-12 * scale
        assert float((mixed[k] - (one[k] - alone[k] + other[k])).abs().max()) < 3e-12 * scale
        assert float((other[k] - alone[k]).abs().max()) > 1e-3 * scale
    assert set(mixed[2]) == {"rope-sheet", "self_contact"}
    total = sum(same[2].values())
    assert float((total - one[2]["self_contact"]).abs()) < 1e-12 * float(total)


def dropped_robot(*contacts: SelfContact) -> RobotBuilder:
    """Return two crossed rods, the lower one held, the upper one above it."""
    builder = RobotBuilder()
    builder.add_rod(straight((-0.05, 0, 0.011), (0.05, 0, 0.011), 5), Circle(5e-3), SOFT, name="upper")
    low = builder.add_rod(straight((0, -0.05, 0), (0, 0.05, 0), 5), Circle(5e-3), SOFT, name="lower")
    builder.clamp(nodes=low.tolist())
    builder.add_force(forces.Gravity((0.3, 0, -9.81)))
    for own in contacts:
        builder.add_contact(own)
    return builder


def dropped(*contacts: SelfContact):
    """Return the middle of the upper of the rods above after a while, and the report of the last step."""
    model = dropped_robot(*contacts).finalize()
    state, integrator = model.initial_state(), ImplicitEuler(4e-3, max_substeps=16)
    for _ in range(8):
        state, info = integrator.step(model, state)
        assert bool(info.converged.all())
    return state.positions[0, 2], info


@pytest.mark.parametrize("response", ["penalty", "barrier", "complementarity"])
def test_named_parts_hold_each_other(response):
    """Let a rod lie on another where the contact is for the two, and fall through where it is not."""

    def law():
        return {"penalty": Penalty(500.0, 1e-3), "barrier": Barrier(5.0, 1e-3), "complementarity": Complementarity()}

    held, info = dropped(SelfContact(law()[response], between=("upper", "lower")))
    assert 0.009 < float(held[2]) < 0.0112 and int(info.contact["active"]) >= 1
    whole, _ = dropped(SelfContact(law()[response]))
    # 1e-12 m: the same equations
    torch.testing.assert_close(held, whole, rtol=0, atol=1e-12)
    passed, _ = dropped(SelfContact(law()[response], between=("upper", "upper")))
    assert float(passed[2]) < 8e-3


def test_constraint_and_penalty_in_one_robot():
    """Hold one rod on another by a constraint while a penalty rules the rest, and balance the forces on parts."""
    rest = SelfContact(Penalty(500.0, 1e-3))
    held, info = dropped(SelfContact(Complementarity(), Friction(0.5), between=("upper", "lower")), rest)
    alone, _ = dropped(SelfContact(Complementarity(), Friction(0.5)))
    torch.testing.assert_close(held, alone, rtol=0, atol=1e-12)
    upper, lower = info.contact["force/part0"], info.contact["force/part1"]
    assert float(upper[0, 2]) > 0 and float((upper + lower).abs().max()) < 1e-9


def test_robots_of_a_batch_and_gradients():
    """Give each robot of a batch its own numbers of two contacts, as alone, and their derivatives as differences."""

    def height(stiffness, own):
        laws = [
            SelfContact(Penalty(number, 1e-3), between=names, name=name)
            for number, names, name in ((stiffness, ("upper", "lower"), "grip"), (own, None, None))
        ]
        model = dropped_robot(*laws).finalize()
        stiffened = model.self_contacts[0].law.response.stiffness.requires_grad_()
        state, integrator = model.initial_state(len(stiffened) if stiffened.dim() else 1), ImplicitEuler(4e-3)
        for _ in range(6):
            state, info = integrator.step(model, state)
            assert bool(info.converged.all())
        return state.positions[:, 2, 2], stiffened

    column = torch.tensor([[200.0], [600.0]], dtype=torch.float64)
    both, stiffness = height(column, column)
    by_stiffness = torch.autograd.grad(both.sum(), stiffness)[0]
    for row in range(2):
        alone, _ = height(float(column[row]), float(column[row]))
        # 1e-12 m: what Newton's method leaves of the force, over a stiffness
        assert float((alone - both[row]).detach().abs()) < 1e-12
        step = 1e-3 * float(column[row])
        low, high = (float(height(float(column[row]) + h, float(column[row]))[0]) for h in (-step, step))
        # 1e-4: truncation of the difference, h^2, and 1e-12 m over the change
        assert float(by_stiffness[row]) == pytest.approx((high - low) / (2 * step), rel=1e-4)
        assert float(by_stiffness[row]) > 1e-8


@pytest.mark.parametrize(
    ("contacts", "message"),
    [
        (lambda: [contact(between=("rope", "net"))], r"no part named 'net'; it has 'cable', 'rope', 'sheet'"),
        (lambda: [contact(between=("rope", "cable")), contact(between=("cable", "rope"))], "already"),
        (lambda: [contact(), contact(name="other")], "already"),
        (lambda: [contact(between=("cable", "cable"), themselves=False)], "nothing that may touch"),
        (lambda: [contact(between=("rope", "cable"), themselves=False)], "themselves"),
        (lambda: [contact(between="rope")], "names of two parts"),
        (lambda: [contact(between=("rope",))], "names of two parts"),
        (lambda: [contact(name="a/b")], "without '/'"),
        (lambda: [contact(), contact()], "'self_contact' is the name of something else"),
    ],
)
def test_refusals(contacts, message):
    """Refuse names that no part has, contacts that rule the same, and such that rule nothing."""
    with pytest.raises(InputError, match=message):
        tangle(*contacts()).finalize()


def test_robot_without_names_says_how_to_give_them():
    """Say where names come from where no part has one, and refuse a name that reports cannot use."""
    with pytest.raises(InputError, match="it has none: give add_rod"):
        tangle(contact(between=("rope", "rope")), names=5 * (None,)).finalize()
    with pytest.raises(InputError, match="name: expected"):
        tangle(names=("a/b", None, None, None, None))
