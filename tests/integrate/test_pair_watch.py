"""Parts that stay apart are watched in recorded steps, instead of being looked for in each."""

import pytest
import torch

from tests.integrate.recordings import course
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    RobotBuilder,
    Status,
    forces,
    rollout,
    straight,
    unroll,
)
from torchdismech.contact import Barrier, Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.recorded.pair_watch import PairWatch

LAWS = {
    "penalty": lambda: (Penalty(200.0, 1e-3), Friction(0.3, 1e-3)),
    "barrier": lambda: (Barrier(0.1, 1e-3),),
    "constraint": lambda: (Complementarity(),),
}
WARM = 20  # steps after which steps are recorded


def falling(law, height, floor=None, centre_line="straight"):
    """Return two rods, one that is held and one that falls onto it from a height [m], above a floor."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    low = builder.add_rod(straight((-0.1, 0, 0), (0.1, 0, 0), 9), Circle(4e-3), material)
    builder.add_rod(straight((0.01, -0.08, height), (0.01, 0.1, height), 10), Circle(4e-3), material)
    builder.clamp(nodes=low.tolist())
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(SelfContact(*LAWS[law](), centre_line=centre_line))
    if floor is not None:
        builder.add_contact(Obstacle(HalfSpace((0, 0, floor), (0, 0, 1)), *LAWS[law]()[:1]))
    return builder.finalize(compile=False)


def warmed(model, integrator, velocity=None):
    """Return a model's initial state, after some steps from it have been taken so that the next ones are recorded."""
    start = model.initial_state(velocity=velocity)
    course(model, start, integrator, WARM)
    return start


@pytest.fixture
def searches(monkeypatch):
    """Count how often pairs to watch are looked for."""
    made, renew = [], PairWatch.renew
    monkeypatch.setattr(PairWatch, "renew", lambda *given: made.append(renew(*given)) or made[-1])
    return made


@pytest.mark.parametrize("floor", [None, -0.5])
@pytest.mark.parametrize(("law", "rule"), [*((law, ImplicitEuler) for law in LAWS), ("penalty", ImplicitMidpoint)])
def test_steps_are_those_without_a_recording(law, rule, floor, searches):
    """Take the same steps, from a fall through the first contact, one by one, several at once, and with frames."""
    integrator, count = rule(2e-3), 32  # 12 mm take 49 ms
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
        plain = falling(law, 0.02, floor)
        expected = course(plain, plain.initial_state(), integrator, count)
    touched = next(k for k, (_, info) in enumerate(expected) if bool(info.contact["active"].any()))
    assert 20 <= touched < 30 and not searches
    model = falling(law, 0.02, floor)
    start = warmed(model, integrator)
    searches.clear()
    single = course(model, start, integrator, count)
    assert len(searches) < touched / 2
    several, info = integrator.steps(model, start, count)
    frames = rollout(model, start, integrator, count)
    assert bool(info.converged.all()) and info.count == count
    # a step ends where its residual is small enough, which is the same to the bit without contact; a landing spreads
    # what the searches for contact loads leave
    for k, (state, _) in enumerate(expected):
        near = 1e-12 if k < touched else 1e-6
        assert float((single[k][0].q - state.q).abs().max()) < near
        assert float((frames.positions[k + 1] - state.positions).abs().max()) < near
    assert float((several.q - expected[-1][0].q).abs().max()) < 1e-6


def test_most_steps_need_no_search(searches):
    """Look for pairs a few times in a hundred steps, and take these in a few calls of compiled code."""
    model, integrator = falling("penalty", 0.5), ImplicitEuler(1e-3)
    start = warmed(model, integrator)
    searches.clear()
    after, info = integrator.steps(model, start, 100)
    assert bool(info.converged.all()) and len(searches) <= 25
    single = course(model, start, integrator, 100)
    assert torch.equal(after.q, single[-1][0].q) and torch.equal(after.velocity, single[-1][0].velocity)


def test_searches_that_find_nothing_become_rare(monkeypatch):
    """Look for pairs in fewer and fewer steps where all that is found is near."""
    made, width = [], PairWatch._width
    monkeypatch.setattr(PairWatch, "_width", lambda *given: made.append(1) or width(*given))
    monkeypatch.setattr(PairWatch, "near", lambda *_: torch.tensor(True, device="cpu"))
    model, integrator = falling("barrier", 0.5, centre_line="smooth"), ImplicitEuler(1e-3)
    course(model, model.initial_state(), integrator, 12 + 63)  # the first 12 are not recorded
    assert len(made) == 6  # with pauses of 0, 1, 3, 7, 15 and 31 steps after them


@pytest.mark.parametrize("changed", ["tolerance", "radius"])
def test_parts_that_grow_are_seen(changed):
    """Find the contact of parts that grow, in place, to where they touch while their pairs are watched."""
    model, integrator = falling("penalty", 0.05), ImplicitEuler(1e-4)
    state = warmed(model, integrator)
    contact = model.self_contacts[0]
    sizes = contact.law.response.tolerance if changed == "tolerance" else contact.edges.radius
    state, info = integrator.step(model, state)
    assert not bool(info.contact["active"].any())
    sizes.data += 0.05
    _, info = integrator.step(model, state)
    assert bool(info.contact["active"].any())


def test_another_state_is_looked_at_anew():
    """Find the contact of a state that lies elsewhere than the one before it."""
    model, integrator = falling("penalty", 0.05), ImplicitEuler(2e-3)
    warmed(model, integrator)
    start = model.initial_state()
    start.q[:, 27:57].unflatten(1, (-1, 3))[..., 2] -= 0.0415  # m: half a mm of overlap
    (state, info), expected = (integrator.step(m, start) for m in (model, falling("penalty", 0.05)))
    assert bool(info.contact["active"].any())
    assert float((state.q - expected[0].q).abs().max()) < 1e-8  # 1e-6 of the forces of a step


def test_a_fast_rod_does_not_fly_through_what_is_watched():
    """Stop a rod that would pass another within a step, after steps in which it stayed inside its box."""
    model, integrator = falling("penalty", 0.05), ImplicitEuler(2e-3)
    state = warmed(model, integrator)
    state.velocity[0, 27:57].unflatten(0, (-1, 3))[:, 2] = -50.0  # m/s: 100 mm in a step
    after, info = integrator.step(model, state)
    assert not bool(info.converged.all()) or bool((after.positions[0, 9:, 2] > 0).all())


@pytest.mark.parametrize("chunk", [None, 1])
def test_one_robot_of_a_batch_that_lands(chunk):
    """Match robots alone where one lands while the other still falls, also where they are taken one by one."""
    integrator, count = ImplicitEuler(2e-3, chunk=chunk), 40
    model = falling("penalty", 0.046)
    velocity = torch.zeros(2, model.n_dofs, dtype=torch.float64)
    velocity[1, 27:57].unflatten(0, (-1, 3))[:, 2] = -0.4  # m/s: it lands in 56 ms
    start = warmed(model, integrator, velocity)
    together, _ = integrator.steps(model, start, count)
    for k in range(2):
        own = falling("penalty", 0.046)
        alone, _ = integrator.steps(own, warmed(own, integrator, velocity[[k]]), count)
        assert float((together.q[k] - alone.q[0]).abs().max()) < 1e-7  # 1e-6 of the forces of each step


@pytest.mark.parametrize("height", [0.05, 0.0135])
def test_gradients_of_runs(height):
    """Match gradients through single steps, of a run without contact and of one in which a rod lands."""
    model, integrator, found = falling("penalty", height), ImplicitEuler(2e-3), []
    start = warmed(model, integrator)
    for at_once in (True, False):
        velocity = start.velocity.clone().requires_grad_()
        state, count = start.replace(velocity=velocity), 16
        if at_once:
            for _ in range(2):  # the second time the backward pass is recorded, too
                run = unroll(model, state, integrator, count)
                (gradient,) = torch.autograd.grad(run.q[-1].square().sum(), velocity)
        else:
            for _ in range(count):
                state, info = integrator.step(model, state)
            assert bool(info.contact["active"].any()) == (height < 0.02)
            (gradient,) = torch.autograd.grad(state.q.square().sum(), velocity)
        found.append(gradient)
    # with contact the searches end within 1e-6 of the forces, from other first iterates
    assert torch.allclose(*found, rtol=1e-9 if height > 0.02 else 1e-5, atol=1e-12 if height > 0.02 else 1e-8)


def test_smooth_lines_are_not_watched(searches):
    """Look for pairs in each step where rods that may touch do so as smooth lines."""
    model, integrator = falling("penalty", 0.02, centre_line="smooth"), ImplicitEuler(2e-3)
    straight_ones = falling("penalty", 0.02)
    after, _ = integrator.steps(model, warmed(model, integrator), 20)
    expected, _ = integrator.steps(straight_ones, warmed(straight_ones, integrator), 20)
    assert torch.equal(after.q, expected.q)  # nothing touches yet


@pytest.mark.filterwarnings("ignore:unroll. robot 1. not_finite")
def test_a_robot_that_is_not_finite_spoils_no_gradient():
    """Leave a robot where it is that begins with NaN, and its gradient what it is, while the other falls."""
    model, integrator = falling("constraint", 0.05), ImplicitEuler(2e-3)
    start = warmed(model, integrator, torch.zeros(2, model.n_dofs, dtype=torch.float64))
    q = start.q.clone()
    q[1, 40] = torch.nan
    found = []
    for schedule in (None, lambda time, model: Control()):  # which is asked before each step
        velocity = start.velocity.clone().requires_grad_()
        with pytest.warns(RuntimeWarning, match="State.q of robot 1 .*holds NaN"):
            run = unroll(model, start.replace(q=q, velocity=velocity), integrator, 8, schedule)
        assert run.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE]
        found += torch.autograd.grad(run.q[-1, 0].square().sum(), velocity)
    assert torch.allclose(*found, rtol=1e-12, atol=0)  # the same steps


def arched():
    """Return a rod that falls onto the back of an arch of three long edges, out of which its smooth line bulges."""
    builder, material = RobotBuilder(), Material(1e6, 1000.0)
    angle = torch.linspace(-0.45, 0.45, 4)
    nodes = torch.stack([0.1 * angle.sin(), 0 * angle, 0.1 * angle.cos() - 0.1], 1)
    arch = builder.add_rod(nodes, Circle(4e-3), material)
    builder.add_rod(straight((0, -0.08, 0.012), (0, 0.08, 0.012), 8), Circle(4e-3), material)
    builder.clamp(nodes=arch.tolist())
    builder.add_force(forces.Gravity((0, 0, -1)))
    builder.add_contact(SelfContact(Penalty(300.0, 1e-4), centre_line="smooth"))
    return builder.finalize(compile=False)


def test_lines_that_bulge_out_of_their_edges_are_seen(monkeypatch):
    """Find the contact of smooth lines whose edges are farther apart than their surfaces reach."""
    model, other, integrator = arched(), arched(), ImplicitEuler(1e-3)
    state, touched = warmed(model, integrator), 0
    for _ in range(110):
        after, info = integrator.step(model, state)
        with monkeypatch.context() as patch:
            patch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
            expected, _ = integrator.step(other, state)
        # one step from the same state; without the contact it is 5e-5 m off
        assert float((after.q - expected.q).abs().max()) < 1e-10
        touched += bool(info.contact["active"].any())
        state = after
    assert touched > 5
