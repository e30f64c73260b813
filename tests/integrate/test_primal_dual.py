"""Primal-dual steps for robots that rub: the same roots as other ways find, in a few iterations, each robot alone."""

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    Material,
    RobotBuilder,
    Status,
    forces,
    straight,
)
from torchdismech.contact import Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.integrate.equations import StepEquations
from torchdismech.integrate.recorded import recording
from torchdismech.integrate.search import primal_dual
from torchdismech.integrate.search.attempts import (
    PRIMAL_DUAL_STEPS,
    STEPS_OF_A_BRIEF_STAGE,
    WHOLE_STEPS,
    Attempt,
    Search,
    Start,
)
from torchdismech.solve import search

ROBOTS, NODES = 24, 9
AHEAD, PLAIN = Attempt(Start.AHEAD, Search.LINE_SEARCH), Attempt(Start.HERE, Search.LINE_SEARCH)
EASED = Attempt(Start.HERE, Search.EASED)


def thrown(robots=ROBOTS, slip=1e-3):
    """Return rods that hit a rough floor at different speeds, soft and stiff, and their state."""
    generator = torch.Generator().manual_seed(3)
    builder = RobotBuilder()
    youngs = torch.logspace(4, 8, ROBOTS, dtype=torch.float64)[:robots, None]
    builder.add_rod(straight((0, 0, 0.007), (0.2, 0, 0.006), NODES), Circle(5e-3), Material(youngs, 1000.0, 0.4))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(200.0, 1e-3), Friction(0.4, slip)))
    model = builder.finalize(compile=False)
    velocity = torch.zeros(ROBOTS, NODES, 3, dtype=torch.float64)
    velocity += 0.5 * torch.randn(ROBOTS, 1, 3, generator=generator, dtype=torch.float64)
    velocity += torch.linspace(-0.5, 0.5, NODES, dtype=torch.float64)[:, None] * torch.tensor([0.0, 1.0, 0.3])
    velocity[..., 2] = -0.5
    full = torch.zeros(robots, model.n_dofs, dtype=torch.float64)
    full[:, : 3 * NODES] = velocity[:robots].flatten(1)
    return model, model.initial_state(velocity=full)


def run(model, state, integrator, count=12):
    """Return the states and the infos of some steps."""
    states, infos = [], []
    for _ in range(count):
        state, info = integrator.step(model, state)
        states.append(state)
        infos.append(info)
    return states, infos


@pytest.mark.parametrize("slip", [1e-3, 1e-5])
@pytest.mark.parametrize("kind", [ImplicitEuler, ImplicitMidpoint])
def test_same_roots_in_fewer_iterations(kind, slip, monkeypatch):
    """Find what line searches and eased friction find, from the same states, in fewer iterations."""
    model, state = thrown(slip=slip)
    states, infos = run(model, state, kind(2e-3))
    worst = torch.stack([info.iterations for info in infos]).max()
    assert all(bool((info.status == Status.CONVERGED).all()) for info in infos)
    assert int(worst) <= WHOLE_STEPS + PRIMAL_DUAL_STEPS
    monkeypatch.setattr(kind, "attempts", lambda *_: [EASED, PLAIN])
    model.recordings.clear()  # they begin as before
    monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", 10**9)
    most = 0
    for before, after in zip([state, *states[:-1]], states, strict=True):
        found, info = kind(2e-3).step(model, before)
        same = info.status == Status.CONVERGED
        most = max(most, int(info.iterations.max()))
        assert int(same.sum()) >= ROBOTS - 1
        # both end at residuals of 1e-8 of the forces
        assert float((found.q - after.q)[same].abs().max()) < 1e-8
    assert most > worst


def test_a_robot_alone_and_every_bit_of_recorded_steps(monkeypatch):
    """Step a robot as if the others were not there, and recorded steps as others."""
    found = []
    for seen in (2, 10**9):
        monkeypatch.setattr(recording, "STEPS_BEFORE_RECORDING", seen)
        model, state = thrown()
        states, infos = run(model, state, ImplicitEuler(2e-3))
        assert any(kind.recording is not None for kind in model.recordings) == (seen == 2)
        found.append([*(s.q for s in states), *(i.iterations for i in infos), *(i.residual for i in infos)])
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
    assert max(int(info.iterations.max()) for info in infos) > WHOLE_STEPS + 1
    few, start = thrown(3)
    alone, _ = run(few, start, ImplicitEuler(2e-3), 3)
    # other solvers may serve so few: rounding, which friction makes larger
    assert float((alone[-1].q - states[2].q[:3]).abs().max()) < 1e-9


def test_ways_of_robots_that_rub():
    """Take primal-dual steps where surfaces are rough, from where whole Newton steps are no good, and no others."""
    model, state = thrown(2)
    equations = ImplicitEuler(2e-3).equations(model, state)
    ways = list(ImplicitEuler(2e-3).attempts(equations))
    whole, rubbing = (
        Attempt(Start.AHEAD, Search.WHOLE, WHOLE_STEPS),
        Attempt(Start.LAST, Search.PRIMAL_DUAL, PRIMAL_DUAL_STEPS),
    )
    assert ways[:3] == [whole, rubbing, EASED]
    assert list(ImplicitEuler(2e-3).attempts(equations, divisible=True)) == [
        *ways[:2],
        Attempt(Start.HERE, Search.EASED_BRIEFLY, STEPS_OF_A_BRIEF_STAGE),
    ]
    unsearched = list(ImplicitEuler(2e-3, line_search=False).attempts(equations))
    assert unsearched == [AHEAD, PLAIN]


def fed(monkeypatch, straightly=True):
    """Return the mean iterations of a rope that is fed onto a rough floor, on which it lies, by a clamp that sinks."""
    if not straightly:
        monkeypatch.setattr(StepEquations, "keeps_edge_lengths", None)
    builder, nodes, speed, dt = RobotBuilder(), 31, 0.1, 5e-2  # m/s, s
    along = torch.linspace(0.0, 1.0, nodes, dtype=torch.float64)
    # half of it lies on the floor, the other half rises to the clamp
    points = torch.stack([along.clamp(max=0.5), 0 * along, (along - 0.5).clamp(min=0) + 5e-3], 1).numpy()
    rope = builder.add_rod(points, Circle(5e-3), Material(1e5, 1000.0, 0.4), "straight")
    builder.clamp(nodes=rope[-2:].tolist())
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.MassDamping(10.0))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(500.0, 5e-4), Friction(0.4, 1e-4)))
    model = builder.finalize(compile=False)
    integrator, state, spent = ImplicitEuler(dt), model.initial_state(), []
    held = state.q.clone()
    for _ in range(30):
        held[:, 3 * rope[-2] + 2 : 3 * rope[-1] + 3 : 3] -= speed * dt
        state, info = integrator.step(model, state, Control(clamped_q=held))
        assert bool((info.status == Status.CONVERGED).all())
        spent.append(float(info.iterations))
    return sum(spent) / len(spent)


def test_what_lies_on_a_floor_is_not_lifted(monkeypatch):
    """Feed a rope onto a floor in few iterations, as moves on the way to the root do not lift all of it."""
    assert fed(monkeypatch) < 0.75 * fed(monkeypatch, straightly=False)


def test_robots_whose_lengths_are_kept():
    """Keep the lengths of robots that touch no obstacle, whatever others of the batch do."""
    model, state = thrown()
    heights = torch.full((ROBOTS, NODES), 0.5, dtype=torch.float64)
    heights[1, 3] = 5.5e-3  # a gap of half the tolerance, at one node
    heights[4] = 4.9e-3  # it lies in the floor
    q = state.q.clone()
    q[:, 2 : 3 * NODES : 3] = heights
    equations = ImplicitEuler(2e-3).equations(model, state.replace(q=q))
    touching = torch.tensor([k in (1, 4) for k in range(ROBOTS)])
    assert torch.equal(equations.keeps_edge_lengths, (~touching).to(q.dtype))
    free = RobotBuilder()
    free.add_rod(straight((0, 0, 0), (0.2, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0, 0.4))
    alone = free.finalize(compile=False)
    assert ImplicitEuler(2e-3).equations(alone, alone.initial_state()).keeps_edge_lengths is None


def crossing(robots=8, centre_line="straight"):
    """Return rods that fall across rods whose ends are held, at different speeds and angles, and their state."""
    generator, rods, nodes = torch.Generator().manual_seed(5), 3, 9
    builder = RobotBuilder()
    youngs = torch.logspace(5, 7, 8, dtype=torch.float64)[:robots, None]
    material = Material(youngs, 1000.0, 0.4)
    for k in range(rods):
        y = 0.03 * (k - 1)
        held = builder.add_rod(straight((-0.08, y, 0), (0.08, y, 0.002), nodes), Circle(4e-3), material)
        builder.clamp(nodes=[int(held[0]), int(held[-1])])
    start, end = (-0.03, -0.08, 0.0105), (0.03, 0.08, 0.0105)
    free = builder.add_rod(straight(start, end, nodes), Circle(4e-3), material)
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    contact = SelfContact(Penalty(300.0, 8e-4), Friction(0.4, 1e-4), centre_line=centre_line, themselves=False)
    builder.add_contact(contact)
    model = builder.finalize(compile=False)
    velocity = torch.zeros(robots, model.n_dofs, dtype=torch.float64)
    thrown = torch.randn(8, 3, generator=generator, dtype=torch.float64)[:robots] * torch.tensor([0.5, 0.5, 0.1])
    thrown[:, 2] -= 0.4
    for node in free:
        velocity[:, 3 * node : 3 * node + 3] = thrown
    return model, model.initial_state(robots, velocity=velocity)


@pytest.mark.parametrize("centre_line", ["straight", "smooth"])
@pytest.mark.parametrize("kind", [ImplicitEuler, ImplicitMidpoint])
def test_parts_of_a_robot(kind, centre_line, monkeypatch):
    """Find what other ways find where rods rub on each other, in fewer iterations, each robot as if it were alone."""
    model, state = crossing(centre_line=centre_line)
    states, infos = run(model, state, kind(2e-3), 16)
    assert all(bool((info.status == Status.CONVERGED).all()) for info in infos)
    assert max(int(info.contact["sliding"].max()) for info in infos) > 0
    few, start = crossing(2, centre_line)
    alone, _ = run(few, start, kind(2e-3), 8)
    assert float((alone[-1].q - states[7].q[:2]).abs().max()) < 1e-9  # as above
    monkeypatch.setattr(kind, "attempts", lambda *_: [AHEAD, EASED, PLAIN])
    worst, most = int(torch.stack([info.iterations for info in infos]).max()), 0
    for before, after in zip([state, *states[:-1]], states, strict=True):
        found, info = kind(2e-3).step(model, before)
        most = max(most, int(info.iterations.max()))
        assert bool((info.status == Status.CONVERGED).all())
        assert float((found.q - after.q).abs().max()) < 1e-8  # as above
    assert worst <= WHOLE_STEPS + PRIMAL_DUAL_STEPS and most > 1.3 * worst


def test_rows_that_go_on_alone(monkeypatch):
    """Find the same where some rows go on without the others, also those of which no pair is near."""
    model, state = crossing(centre_line="smooth")
    together, _ = run(model, state, ImplicitEuler(2e-3), 20)
    divided, take = [], primal_dual._PrimalDual.of_rows
    monkeypatch.setattr(search, "MIN_UNKNOWNS", 1)
    monkeypatch.setattr(search, "ROUNDS_TOGETHER", 1)
    monkeypatch.setattr(
        primal_dual._PrimalDual, "of_rows", lambda self, rows, system: divided.append(rows) or take(self, rows, system)
    )
    apart, infos = run(model, state, ImplicitEuler(2e-3), 20)
    assert divided and all(bool((info.status == Status.CONVERGED).all()) for info in infos)
    for a, b in zip(together, apart, strict=True):
        assert float((a.q - b.q).abs().max()) < 1e-9  # rounding of other solvers, which friction makes larger
    far = state.q.clone()
    far[3:, 81:108] += 0.5  # the free rods of all but three robots
    pairs = model.contact.may_touch(far, far, torch.full((8,), 3e-3, dtype=torch.float64))
    there = state.replace(q=far)
    known = model.contact.rubbing(pairs).first_friction(there)
    for rows in ([0, 2], [5]):
        index = torch.tensor(rows)
        own = model.contact.rubbing(pairs.rows(index)).first_friction(there.rows(index))
        assert len(own) == len(known) > 1 and all(torch.equal(a, b[index]) for a, b in zip(own, known, strict=True))
    assert any(float(found.abs().sum()) > 0 for found in known)


def test_worms_with_scales_do_not_go_to_and_fro_between_forward_and_backward():
    """Bend worms at random on a floor that their scales hold backward: primal-dual steps find each step's root."""
    robots, moves = 16, 12
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 3e-3), (0.1, 0, 3e-3), 11), Circle(3e-3), Material(2e5, 1100.0, 0.5, 0.02))
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    scales = Friction(0.4, 5e-3, forward_coefficient=0.1, backward_coefficient=0.8)
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(100.0, 5e-4), scales))
    model = builder.finalize()
    bends = torch.rand(moves, robots, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    natural = torch.zeros(moves, robots, 9, 2, dtype=torch.float64)
    natural[..., 0] = (0.8 * bends - 0.4).repeat_interleave(3, 2)
    state, worst = model.initial_state(robots), 0
    for bent in natural:
        for _ in range(2):
            state, info = ImplicitEuler(1e-2).step(model, state, Control(natural_curvature=bent), throw=True)
            worst = max(worst, int(info.iterations.max()))
    assert (
        worst <= PRIMAL_DUAL_STEPS
    )  # 17; with whole steps alone 43, of which the last ones are those of other searches


def test_steps_converge_fast_and_move_parts_a_little_at_a_time(monkeypatch):
    """Square the residual near the root; take no step in which two parts move far against each other."""
    model, state = crossing()
    histories, take = [], primal_dual._PrimalDual.round

    def followed(search):
        if not search.iterations.any():
            histories.append([search.at.norm])
        more = take(search)
        histories[-1].append(search.at.norm)
        return more

    monkeypatch.setattr(primal_dual._PrimalDual, "round", followed)
    run(model, state, ImplicitEuler(2e-3), 16)
    rows = [norms for history in histories for norms in torch.stack(history, 1)]
    ways = [[float(norm) for norm in norms if norm < 1e-2 * norms.max()] for norms in rows]
    assert max(len(norms) for norms in rows) > 8
    # residuals of 1e-4 N and less go to 1e-9 of the forces: what falls tenfold each time would take seven
    assert max(len({*way}) for way in ways) <= 4
    near = torch.full((1,), 5e-3, dtype=torch.float64)
    pairs = model.contact.may_touch(state.q[:1], state.q[:1], near)
    rubbing, motion = model.contact.rubbing(pairs), torch.zeros(1, model.body.n_nodes, 3, dtype=torch.float64)
    assert float(rubbing.step_fraction(motion.flatten(1) + 1.0)) == 1.0  # all together
    motion[:, -9:, 2] = -0.05
    # reach 8 mm, of which 2 mm of 50
    assert float(rubbing.step_fraction(motion.flatten(1))) == pytest.approx(2e-3 / 0.05, rel=1e-12)
    assert model.contact.rubbing(None).step_fraction(motion.flatten(1)) is None
