"""Steps in contact whose evaluations are recorded: every bit is as without recordings, whichever way a search goes."""

import collections
import functools
import gc
import weakref

import pytest
import torch

from tests.contact import robots
from tests.integrate.test_primal_dual import crossing
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    RobotBuilder,
    Static,
    forces,
    straight,
)
from torchdismech.contact import Barrier, Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.contact.pairs.coupling import Coupling
from torchdismech.integrate.recorded import recording, round_tapes
from torchdismech.integrate.recorded.evaluations import RecordedEvaluations
from torchdismech.integrate.recorded.recorded_call import RecordedCall
from torchdismech.integrate.search.attempts import Attempt, Search, Start
from torchdismech.integrate.search.primal_dual import next_iterates
from torchdismech.solve.rounds import plain_round

STEPS, SEEN = 8, 2
EASED = Attempt(Start.HERE, Search.EASED)


@pytest.fixture(autouse=True)
def no_whole_steps(monkeypatch):
    """Leave steps in which parts touch to Python, which has recordings of functions and of rounds.

    Recordings that know which parts touch would keep the pairs for some steps after they have parted. Other steps leave
    them out at once, and then have another pattern of the matrix and other rounding.
    """
    monkeypatch.setattr(RecordedEvaluations, "parts_touch", False)


@pytest.fixture(autouse=True)
def rounds(monkeypatch):
    """Record rounds of searches when they come a second time, and return how often each kind of them is replayed."""
    monkeypatch.setattr(round_tapes, "ROUNDS_BEFORE", 1)
    replayed, called = collections.Counter(), round_tapes._Rounds.called

    def counting(self, function, kind, given):
        before = self._calls.total(), len(self._recordings)
        found = called(self, function, kind, given)
        replayed[kind[0]] += before == (self._calls.total(), len(self._recordings))
        return found

    monkeypatch.setattr(round_tapes._Rounds, "called", counting)
    return replayed


def steps(model, integrator, control=None, state=None):
    """Return the states after some steps, and how they went."""
    state, found = state or model.initial_state(model.batch or 1), []
    for _ in range(STEPS):
        state, info = integrator.step(model, state, control)
        found.append((state, info))
    return found


def with_and_without(make, integrator, monkeypatch, control=None):
    """Return what steps lead to with their evaluations recorded and without."""
    found = []
    for seen in (SEEN, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
        model, state = make()
        found.append(steps(model, integrator, control, state))
        kinds = [kind.recording for kind in model.recordings]
        assert [type(kind) for kind in kinds] == [RecordedEvaluations if seen == SEEN else type(None)]
    return found


def assert_same(recorded, others):
    """Refuse any bit that differs."""
    for (state, info), (other, of_other) in zip(recorded, others, strict=True):
        for one, two in zip(state.fields(), other.fields(), strict=True):
            assert torch.equal(one, two)
        for name in ("status", "iterations", "residual", "tolerance", "force_scale", "substeps"):
            assert torch.equal(getattr(info, name), getattr(of_other, name))
        assert info.contact.keys() == of_other.contact.keys()
        for name, value in info.contact.items():
            assert torch.equal(value, of_other.contact[name])


def pressed(slip=1e-4, centre_line="straight", rough_parts=True, speed=1.0):
    """Return three robots, each a rod that falls onto another on a rough floor, and their state.

    The rods rub on the floor, and on each other, too, if parts are rough.
    """
    builder, material = RobotBuilder(), Material(robots.numbers(1e5, 1e6, 1e7), 1000.0, 0.4)
    low = builder.add_rod(straight((-0.08, 0, 0.0045), (0.08, 0, 0.0045), 9), Circle(4e-3), material)
    top = builder.add_rod(straight((0.01, -0.08, 0.013), (0.02, 0.08, 0.013), 9), Circle(4e-3), material)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Viscous(0.02))
    friction = Friction(0.4, slip) if rough_parts else None
    contact = SelfContact(Penalty(300.0, 8e-4), friction, themselves=False, centre_line=centre_line)
    builder.add_contact(contact)
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(200.0, 1e-3), Friction(0.3, slip)))
    model = builder.finalize(compile=False)
    velocity = torch.zeros(3, model.n_dofs, dtype=torch.float64)
    for node in (*low, *top):
        velocity[:, 3 * node : 3 * node + 3] = speed * torch.tensor([0.3, 0.2, -0.3], dtype=torch.float64)
    return model, model.initial_state(3, velocity=velocity)


@pytest.mark.parametrize("centre_line", ["straight", "smooth"])
@pytest.mark.parametrize("kind", [ImplicitEuler, ImplicitMidpoint])
def test_every_bit_of_robots_that_rub(kind, centre_line, monkeypatch, rounds):
    """Keep every bit where parts rub on each other and on a floor."""
    found = with_and_without(lambda: pressed(centre_line=centre_line), kind(2e-3), monkeypatch)
    assert_same(*found)
    assert max(int(info.contact["sliding"].max()) for _, info in found[0]) > 1
    assert max(int(info.iterations.max()) for _, info in found[0]) > 4  # beyond whole Newton steps
    assert rounds[plain_round] > 5 and rounds[next_iterates] > 10


def test_every_bit_of_smooth_robots_on_a_rough_floor(monkeypatch, rounds):
    """Keep every bit where parts touch without friction while they rub on a floor: no step moves them far."""
    found = with_and_without(lambda: pressed(rough_parts=False, speed=4.0), ImplicitEuler(5e-3), monkeypatch)
    assert_same(*found)
    assert max(int(info.iterations.max()) for _, info in found[0]) > 4  # beyond whole Newton steps
    assert rounds[plain_round] > 5 and rounds[next_iterates] > 10


def test_what_a_move_found_is_read_before_another_replay(monkeypatch):
    """Find the same where the recording that subtracts forces works in the memory of the results of a recorded move.

    Recordings of one pool may.
    """
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 0)
    model, state = crossing()
    steps(model, ImplicitEuler(2e-3), state=state)
    plain, subtract = steps(model, ImplicitEuler(2e-3), state=state), RecordedCall.replayed
    (kind,) = model.recordings
    pairs, spoiled = kind.recording._with_pairs, []

    def spoiling(call, *given):
        found = subtract(call, *given)
        if call is pairs._less_force:
            spoiled.append([tensor.fill_(torch.nan) for tensor in pairs._bare_after_step._tape.outputs])
        return found

    monkeypatch.setattr(RecordedCall, "replayed", spoiling)
    assert_same(steps(model, ImplicitEuler(2e-3), state=state), plain)
    assert spoiled and max(int(info.iterations.max()) for _, info in plain) > 3


@pytest.mark.parametrize(
    "ways", [[EASED], [Attempt(Start.HERE, Search.RELAXED)], [Attempt(Start.AHEAD, Search.LINE_SEARCH), EASED]]
)
def test_every_bit_by_other_ways(ways, monkeypatch):
    """Keep every bit where friction is eased in, on the floor, too, and where steps are relaxed."""
    # as if they were the library's own: ways of users' own are not recorded
    monkeypatch.setattr(ImplicitEuler, "attempts", functools.wraps(ImplicitEuler.attempts)(lambda *_: list(ways)))
    assert_same(*with_and_without(pressed, ImplicitEuler(2e-3), monkeypatch))


@pytest.mark.parametrize("kind", ["rods", "shell"])
def test_every_bit_with_potentials(kind, monkeypatch):
    """Keep every bit where barriers keep parts apart, and searches may descend the potential."""

    def make():
        return robots.ROBOTS[kind]("barrier", False), None

    assert_same(*with_and_without(make, ImplicitEuler(1e-3, max_substeps=4), monkeypatch))


@pytest.mark.parametrize("make", [robots.constrained_on_obstacles, robots.constrained_crossing])
def test_every_bit_of_constraints(make, monkeypatch):
    """Keep every bit where contacts are constraints."""
    assert_same(*with_and_without(lambda: (make(0.4), None), ImplicitEuler(1e-3), monkeypatch))


BESIDE = {
    "floor": lambda: Obstacle(HalfSpace((0, 0, -0.03), (0, 0, 1)), Penalty(200.0, 1e-3)),
    "barrier": lambda: Obstacle(HalfSpace((0, 0, -0.03), (0, 0, 1)), Barrier(0.1, 1e-3)),
    "constraint": lambda: Obstacle(HalfSpace((0, 0, -0.03), (0, 0, 1)), Complementarity()),
    "own parts": lambda: SelfContact(Penalty(200.0, 1e-3)),
    "user's force": lambda: Lifting(),
}


def resting(beside="nothing"):
    """Return rods of two materials, clamped at one end, under their weight and beside something, and no state."""
    builder = RobotBuilder()
    line = builder.add_rod(
        straight((0, 0, 0), (0.2, 0, 0), 9), Circle(4e-3), Material(robots.numbers(1e6, 3e6), 1000.0)
    )
    builder.clamp(nodes=line[:2])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    if beside in BESIDE:
        (builder.add_force if beside == "user's force" else builder.add_contact)(BESIDE[beside]())
    return builder.finalize(compile=False), None


class Lifting(forces.Force):
    """A force of a user's own that does not change within a step."""

    constant = True

    def forward(self, state, control):
        """Lift all nodes, twist nothing."""
        return torch.zeros_like(state.q).index_fill(1, torch.arange(2, 27, 3), 1e-4)


@pytest.mark.parametrize("beside", ["nothing", *BESIDE])
def test_every_bit_of_equilibria(beside, monkeypatch):
    """Keep every bit of searches for equilibria; shares of a load are not recorded."""
    found = with_and_without(lambda: resting(beside), Static(), monkeypatch)
    assert_same(*found)
    assert bool(found[0][0][1].converged.all()) and int(found[0][0][1].iterations.max()) > 2
    model, _ = resting(beside)
    steps(model, Static(load_steps=3))
    assert len(model.recordings) == 1  # that of the whole load


def test_every_bit_by_an_iterative_solver(monkeypatch):
    """Keep every bit where the linear solver reads numbers, so that no whole step is recorded."""

    def make():
        builder = RobotBuilder()
        material = Material(robots.numbers(1e5, 1e6), 1000.0, 0.4)
        builder.clamp(nodes=builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 9), Circle(4e-3), material)[:2])
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        return builder.finalize(compile=False, solver="pcg"), None

    assert_same(*with_and_without(make, ImplicitEuler(2e-3), monkeypatch))


def test_numbers_that_change_between_steps(monkeypatch):
    """Read each step's own control, constants, stiffness and step length."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", SEEN)
    model, state = pressed()
    fresh, _ = pressed()
    # other numbers of a law are another kind of step; those that a control sets are not
    for step in range(STEPS):
        dt = 1e-3 * (1 + step % 3)
        push = 1e-3 * torch.randn(3, model.n_dofs, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        control = Control(force=push)
        after, _ = ImplicitEuler(dt).step(model, state, control)
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
        other, _ = ImplicitEuler(dt).step(fresh, state, control)
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", SEEN)
        assert torch.equal(after.q, other.q)
        state = after
    assert any(kind.recording is not None for kind in model.recordings)


@pytest.mark.parametrize("rough", [True, False])
def test_rounds_serve_other_steps(rough, monkeypatch, rounds):
    """Read each step's own pairs, law and length in rounds that were recorded in another, as parts slide on."""
    model, state = pressed(rough_parts=rough, speed=5.0)
    fresh, _ = pressed(rough_parts=rough)
    state = model.initial_state(3, velocity=state.velocity.index_fill(1, torch.arange(27), 0.0))  # of the upper rod
    listed, names = set(), ["self_contact.stiffness", "self_contact.tolerance", *["self_contact.friction"] * rough]
    for step in range(3 * STEPS):
        larger = 1 + torch.rand(3, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        given = {name: k * getattr(*model.places[name]) for name, k in zip(names, larger, strict=False)}
        found = []
        for of, seen in ((model, SEEN), (fresh, 10**9)):
            monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
            found.append(ImplicitEuler(1e-3 * (1 + step % 3)).step(of, state, Control(values=given)))
        assert_same(*([one] for one in found))
        state = found[0][0]
        listed.add(str(model.contact.may_touch_at(state.q).listed.tables[0].listed))
    assert len(listed) > 3 and rounds[plain_round] > 10 and (rounds[next_iterates] > 10 or not rough)


def test_rounds_of_other_modes(monkeypatch, rounds):
    """Go on outside of inference mode where parts first touched in it, and where rounds came in it."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", SEEN)
    model, state = pressed()
    lifted = state.q.clone()
    lifted[:, 29:54:3] += 0.5  # the upper rod
    apart = model.initial_state(3, q=lifted)
    for _ in range(SEEN + 1):
        ImplicitEuler(2e-3).step(model, apart)
    with torch.inference_mode():
        inside = steps(model, ImplicitEuler(2e-3), state=state)
    assert any(kind.recording for kind in model.recordings) and not rounds.total()
    assert_same(steps(model, ImplicitEuler(2e-3), state=state), inside)
    assert rounds.total()


def test_an_interrupted_step_leaves_rounds_that_serve(monkeypatch, rounds):
    """Take the steps after one that was interrupted as places of blocks were told to compiled code."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", SEEN)
    model, state = pressed()
    expected = steps(model, ImplicitEuler(2e-3), state=state)
    steps(model, ImplicitEuler(2e-3), state=state)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Coupling, "block_places", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ImplicitEuler(2e-3).step(model, state)
    gc.collect()
    taken = [torch.full((5,), -1) for _ in range(300)]  # what was freed is others' now
    assert_same(steps(model, ImplicitEuler(2e-3), state=state), expected)
    assert rounds.total() and len(taken) == 300


def test_constants_in_turns_keep_their_rounds(monkeypatch, rounds):
    """Go on by recordings where a control gives a constant of each robot in every other step."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", SEEN)
    model, state = pressed()
    stiffness = model.places["self_contact.stiffness"]
    given = Control(values={"self_contact.stiffness": getattr(*stiffness).expand(3, 1) * robots.numbers(1.0, 1.1, 1.2)})
    made, recorded = [], round_tapes._recorded
    monkeypatch.setattr(round_tapes, "_recorded", lambda *args: made.append(args) or recorded(*args))
    for step in range(2 * STEPS):
        state, _ = ImplicitEuler(2e-3).step(model, state, given if step % 2 else None)
    assert len(made) <= 12 and rounds.total() > 4 * len(made)


def test_gradients_of_steps_with_recorded_evaluations(monkeypatch):
    """Give the gradients of steps without recordings."""
    found = []
    for seen in (SEEN, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
        model, state = pressed()
        velocity = state.velocity.clone().requires_grad_()
        last = steps(model, ImplicitEuler(2e-3), state=state.replace(velocity=velocity))[-1][0]
        last.q[:, :27].square().sum().backward()
        found.append(velocity.grad)
    assert torch.equal(*found)
    assert float(found[0].abs().max()) > 0


def test_a_step_leaves_nothing_behind(monkeypatch):
    """Let go of a step's equations, and with them of its matrices' memory, without waiting for garbage collection."""
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", SEEN)
    model, state = pressed()
    alive = []
    made = RecordedEvaluations.equations

    def watched(self, *given):
        equations = made(self, *given)
        alive.append(weakref.ref(equations))
        return equations

    monkeypatch.setattr(RecordedEvaluations, "equations", watched)
    gc.disable()
    try:
        steps(model, ImplicitEuler(2e-3), state=state)
        assert alive and not any(reference() for reference in alive)
    finally:
        gc.enable()
