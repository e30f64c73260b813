"""Steps in which parts of robots touch as constraints, or beside obstacles that are, are recorded as a whole."""

import pytest
import torch

from tests.integrate.touching_rods import STEPS, TIGHT, assert_same, course, dropped, unrecorded
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, meshes, straight, unroll
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.errors import Status
from torchdismech.integrate import step
from torchdismech.integrate.candidates import LoadsWithPairs, constraints_of_points
from torchdismech.integrate.recorded import recording, touching_steps
from torchdismech.integrate.recorded.contact_step import RecordedContactStep
from torchdismech.integrate.recorded.lasting_pairs import LastingPairs
from torchdismech.integrate.search import attempts

FLOOR = HalfSpace((0, 0, -0.012), (0, 0, 1))


@pytest.fixture(autouse=True)
def recorded_soon(monkeypatch):
    """Record steps sooner than usual, so that tests need fewer of them."""
    monkeypatch.setattr(touching_steps, "FEWEST_STEPS", 3)


@pytest.fixture
def recordings(monkeypatch):
    """List what recordings with pairs return of each step."""
    found, take = [], RecordedContactStep.taken

    def listed(step, *given):
        taken = take(step, *given)
        if taken is not None and isinstance(taken.contacts, LoadsWithPairs):
            found.append(taken)
        return taken

    monkeypatch.setattr(RecordedContactStep, "taken", listed)
    return found


def solved(recordings):
    """Return how many steps recordings have taken to their end."""
    return sum(taken.unsolved is None for taken in recordings)


def floor(law, friction, slip=()):
    """Return an obstacle below the rods."""
    return Obstacle(FLOOR, law, *([Friction(friction, *slip)] if friction else []))


@pytest.mark.parametrize("friction", [0.0, 0.3])
@pytest.mark.parametrize("case", ["pairs", "pairs and floor", "pairs beside a penalty", "floor beside pairs"])
def test_steps_are_those_without_a_recording(case, friction, recordings, monkeypatch):
    """Take the same steps as Python does, with the same reports, and most of them by a recording."""

    def made():
        law, obstacle = {
            "pairs": (Complementarity(), None),
            "pairs and floor": (Complementarity(), floor(Complementarity(), friction)),
            "pairs beside a penalty": (Complementarity(), floor(Penalty(300.0, 1e-3), friction, (1e-2,))),
            "floor beside pairs": (Penalty(300.0, 1e-3), floor(Complementarity(), friction)),
        }[case]
        return dropped(friction, obstacle, law)

    integrator = ImplicitEuler(2e-3, **TIGHT)
    steps = course(*made(), integrator)
    assert solved(recordings) > STEPS // 4
    others = unrecorded(monkeypatch, *made(), integrator)
    assert sum(bool((info.contact["load/self_contact"] > 0).any()) for _, info in others) > STEPS // 3
    # where rounds wander as a rough rod lands, rounding decides how long: 6 and 34 seen, to the same root
    assert_same(steps, others, same_rounds=not friction)


def test_a_sheet_on_a_rod(recordings, monkeypatch):
    """Take steps of points that touch triangles by a recording."""

    def made():
        builder, mesh = RobotBuilder(), meshes.rectangle(0.12, 0.12, 0.03)
        nodes = builder.add_shell(mesh.nodes, mesh.triangles, 3e-3, Material(1e5, 1000.0, 0.3))
        builder.add_rod(straight((0.02, 0.05, 0.0063), (0.1, 0.05, 0.0063), 6), Circle(3e-3), Material(1e6, 1000.0))
        builder.clamp(nodes=[int(node) for node in nodes[:10]])
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        builder.add_contact(SelfContact(Complementarity(), Friction(0.3)))
        model = builder.finalize(compile=False)
        return model, model.initial_state()

    integrator = ImplicitEuler(2e-3, **TIGHT)
    steps = course(*made(), integrator, 40)
    assert solved(recordings) > 10
    assert_same(steps, unrecorded(monkeypatch, *made(), integrator, 40))


def test_robots_of_a_batch_touch_one_after_the_other(recordings, monkeypatch):
    """Take steps of robots of which some touch and some do not."""
    integrator, given = ImplicitEuler(1e-3, **TIGHT), {"law": Complementarity(), "robots": 3, "drop": 0.004}
    steps = course(*dropped(**given), integrator, 90)
    active = torch.stack([info.contact["active"] for _, info in steps]) > 0
    assert bool((active.any(1) & ~active.all(1)).any()) and solved(recordings) > 10
    assert_same(steps, unrecorded(monkeypatch, *dropped(**given | {"law": Complementarity()}), integrator, 90))


def test_several_steps_are_single_ones():
    """Take a hundred steps in series of recorded ones."""
    model, start = dropped(law=Complementarity())
    integrator = ImplicitEuler(2e-3, **TIGHT)
    single = course(model, start, integrator, 100)
    after, info = integrator.steps(model, start, 100)
    assert bool(info.converged.all())
    # each of both ways may have recorded another pattern of the matrix, and so rounds otherwise
    assert float((after.q - single[-1][0].q).abs().max()) < 1e-9


def test_tables_are_filled_up_for_other_pairs(monkeypatch, recordings):
    """Take fewer and more pairs without a new recording, while tables have room for them."""
    counts, take = set(), LastingPairs.take

    def counted(pairs, found):
        taken = take(pairs, found)
        if taken:
            counts.add(sum(map(len, found.listed.tables)))
        return taken

    monkeypatch.setattr(LastingPairs, "take", counted)
    model, start = dropped(0.0, law=Complementarity())
    integrator = ImplicitEuler(2e-3, **TIGHT)
    steps = course(model, start, integrator, 200)
    assert len(counts) > 1 and solved(recordings) > 50
    other, start = dropped(0.0, law=Complementarity())
    assert_same(steps, unrecorded(monkeypatch, other, start, integrator, 200))


def test_steps_that_recordings_leave_are_solved(recordings, monkeypatch):
    """Go on in Python where rounds of a recording end without a root, and count their iterations."""
    monkeypatch.setattr(attempts, "SEMISMOOTH_STEPS", 2)
    integrator = ImplicitEuler(2e-3, **TIGHT)
    steps = course(*dropped(law=Complementarity(), robots=2), integrator)
    assert any(taken.unsolved is not None and bool(taken.unsolved.all()) for taken in recordings)
    assert_same(steps, unrecorded(monkeypatch, *dropped(law=Complementarity(), robots=2), integrator))


@pytest.mark.parametrize("with_floor", [False, True])
@pytest.mark.parametrize("friction, trained", [(0.0, "gravity"), (0.3, "gravity"), (0.3, "friction")])
def test_gradients_by_steps_that_touch(friction, with_floor, trained, monkeypatch):
    """Find the gradients that steps without a recording have, by a recording unless contact of parts is trained."""
    gradients, integrator = [], ImplicitEuler(2e-3, **TIGHT)
    for wait in (recording.STEPS_BEFORE_RECORDING, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", wait)
        below = floor(Complementarity(), friction) if with_floor else None
        model, start = dropped(friction, below, Complementarity(), robots=2)
        course(model, start, integrator)
        gravity, law = model.forces[0], model.self_contacts[0].law
        weight = gravity.acceleration if trained == "gravity" else law.friction.coefficient
        weight.requires_grad_()
        velocity = start.velocity.clone().requires_grad_()
        run = unroll(model, start.replace(velocity=velocity), integrator, 40)
        run.positions[-1].square().sum().backward()
        gradients.append((velocity.grad, weight.grad))
        kept = [
            passes for kind in model.recordings for key, passes in kind.backward.items() if key[0] is LoadsWithPairs
        ]
        assert any(passes.recording for passes in kept) == (trained == "gravity" and wait < 10**9)
    for found, expected in zip(*gradients, strict=True):
        # adjoint equations with friction are solved by twelve secants in recordings, to 1e-9 of the last change
        assert float(expected.abs().max()) > 0
        assert float((found - expected).abs().max()) < 1e-7 * float(expected.abs().max())


def test_rounds_do_not_go_to_and_fro(monkeypatch):
    """Solve all steps of a rod that a node of the other touches twice, once sliding and once not, by rounds."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    low = builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 11), Circle(4e-3), material)
    builder.add_rod(straight((0, -0.1, 0.0082), (0, 0.1, 0.0082), 10), Circle(4e-3), material)
    builder.clamp(nodes=[int(low[0]), int(low[-1])])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(SelfContact(Complementarity(), Friction(0.3)))
    model = builder.finalize(compile=False)
    found, search = [], step.semismooth_newton

    def listed(*given):
        found.append(search(*given))
        return found[-1]

    monkeypatch.setattr(step, "semismooth_newton", listed)
    unrecorded(monkeypatch, model, model.initial_state(), ImplicitEuler(2e-3), 60)
    assert len(found) > 20
    assert all(bool((root.status == Status.CONVERGED).all()) for root in found)


def test_loads_of_some_robots(recordings):
    """Give the equations of chosen robots of a recorded step the pairs and loads of these."""
    model, start = dropped(law=Complementarity(), robots=3)
    integrator = ImplicitEuler(2e-3, **TIGHT)
    steps = course(model, start, integrator)
    loads, before, after = recordings[-1].contacts, steps[-2][0], steps[-1][0]
    assert recordings[-1].unsolved is None and not loads.none
    order = torch.tensor([2, 0])
    problem = integrator._problem(model, before, None)
    chosen = integrator._problem(model, before.rows(order), None)
    for equations, q in ((loads.equations(problem), after.q), (loads.equations(chosen, order), after.q[order])):
        equations.prepare()
        # a step ends with forces out of balance by 1e-12 N
        assert float(equations.residual(model.unknowns.of_dofs(q)).abs().max()) < 1e-10


def test_constraints_without_pairs_beside_a_penalty(recordings):
    """Give the equations of a recorded step in which parts touch by a penalty, and none that are constraints may."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    low = builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 9), Circle(4e-3), material, name="low")
    builder.add_rod(straight((0.01, -0.08, 0.0085), (0.01, 0.1, 0.0085), 10), Circle(4e-3), material, name="high")
    far = builder.add_rod(straight((-0.1, 0, 1), (0.1, 0, 1), 3), Circle(4e-3), material, name="far")
    builder.clamp(nodes=[int(node) for node in (low[0], low[-1], *far)])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(SelfContact(Penalty(300.0, 1e-3), between=("low", "high")))
    builder.add_contact(SelfContact(Complementarity(), between=("low", "far"), name="other"))
    model, integrator = builder.finalize(compile=False), ImplicitEuler(2e-3, **TIGHT)
    after = model.initial_state()
    while not recordings:
        before = after
        after, _ = integrator.step(model, before)
    taken = recordings[-1]
    assert taken.unsolved is None and taken.bears_load and not taken.contacts.load.numel()
    equations = taken.contacts.equations(integrator._problem(model, before, None))
    equations.prepare()
    # a step ends with forces out of balance by 1e-12 N
    assert float(equations.residual(model.unknowns.of_dofs(after.q)).abs().max()) < 1e-10


def test_constraints_are_made_while_no_pair_is_there():
    """Make further constraints of the same tables while these hold no pairs, and let all take others afterwards."""
    model, start = dropped(law=Complementarity(), robots=2)
    q_touching, q_apart = start.q.clone(), start.q.clone()
    q_touching[:, 29:57:3] -= 5e-4
    q_apart[:, 29:57:3] += 0.1
    touching, apart = (model.contact.may_touch_at(q) for q in (q_touching, q_apart))
    pairs, problem = LastingPairs(model.contact, touching), ImplicitEuler(2e-3)._problem(model, start, None)
    all_constraints = [pairs.constrain(problem)]
    assert not touching.listed.none and apart.listed.none and pairs.take(apart)
    all_constraints.append(pairs.constrain(problem))
    for constraints in all_constraints:
        assert float(constraints.at(q_touching, constraints.time).gap.min()) > 100
    assert pairs.take(touching)
    for constraints in all_constraints:
        gap = constraints.at(q_touching, constraints.time).gap[: len(touching.listed.tables[0])]
        assert torch.equal(gap, touching.listed.tables[0].gaps(q_touching))


def test_what_fills_tables_up_adds_nothing_to_the_matrix():
    """Add blocks of contacts to a matrix as without the pairs that only fill up their tables."""
    model, start = dropped(law=Complementarity(), robots=2)
    q = start.q.clone()
    q[:, 29:57:3] -= 5e-4
    found, problem = model.contact.may_touch_at(q), ImplicitEuler(2e-3)._problem(model, start, None)
    pairs = LastingPairs(model.contact, found)
    filled, pattern = pairs.constrain(problem), pairs.pairs.coupling.pattern
    plain = constraints_of_points(model.contact, problem.state, problem.end, pairs=found.listed)
    blocks = torch.rand(12, 12, len(filled), dtype=q.dtype, generator=torch.Generator().manual_seed(0))
    added = []
    for constraints in (filled, plain):
        added.append(q.new_zeros(pattern.nnz, 2))
        constraints.add_blocks(added[-1], blocks[:, :, : len(constraints)], pattern, model.unknowns.number)
    assert len(filled) > len(plain) > 0 and bool(added[1].any())
    torch.testing.assert_close(*added, rtol=1e-15, atol=0)  # a few sums, in another order
