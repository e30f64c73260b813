"""Contacts that stay as they are need no complementarity problem: the same steps come out as with one."""

import math

import pytest
import torch

from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    Static,
    forces,
    meshes,
    rollout,
    straight,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, SelfContact, Sphere
from torchdismech.integrate.candidates import ContactCandidates
from torchdismech.integrate.problem import StepProblem
from torchdismech.integrate.search import active_set, attempts, delassus

FLOOR = HalfSpace, ((0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
STEP = {"force_tolerance": 1e-12, "relative_tolerance": 0.0}


def sheet(gravity, mu, rows=slice(None), obstacles=(FLOOR,), method="interior_point"):
    """Return square sheets of 25 nodes, .6 mm above the floor, under gravities (B, 3)."""
    mesh = meshes.rectangle(0.08, 0.08, 0.02, "right")
    builder = RobotBuilder()
    builder.add_shell(mesh.nodes + [0, 0, 6e-4], mesh.triangles, 1e-3, Material(1e6, 1000.0, 0.3), "hinge")
    builder.add_force(forces.Gravity(torch.tensor(gravity, dtype=torch.float64)[rows]))
    for k, (shape, sizes) in enumerate(obstacles):
        friction = Friction(mu) if mu else None
        builder.add_contact(Obstacle(shape(*sizes), Complementarity(method=method), friction, name=f"obstacle{k}"))
    return builder.finalize(compile=False)


def rods_on_each_other():
    """Return two rods that cross on a floor, pressed by gravity, with contact of nodes and of edges."""
    builder = RobotBuilder()
    for line in (
        straight((-0.05, 0, 1.1e-3), (0.05, 0, 1.1e-3), 12),
        straight((0, -0.05, 3.3e-3), (0, 0.05, 3.3e-3), 12),
    ):
        builder.add_rod(line, Circle(1e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    shape, sizes = FLOOR
    builder.add_contact(Obstacle(shape(*sizes), Complementarity(), Friction(0.5), name="floor"))
    builder.add_contact(SelfContact(Complementarity(), Friction(0.5), themselves=False))
    return builder.finalize(compile=False)


DOWN, ASLANT, STEEP = (0.0, 0.0, -9.81), (2.0, 0.0, -9.8), (8.0, 0.0, -5.0)
ROBOTS = {
    "smooth floor": lambda: sheet([DOWN], 0.0),
    "rough slopes, one too steep": lambda: sheet([ASLANT, STEEP, DOWN], 0.5),
    "ball and floor": lambda: sheet([DOWN], 0.4, obstacles=(FLOOR, (Sphere, ((0.04, 0.04, -0.0392), 0.04)))),
    "rods": rods_on_each_other,
}


@pytest.mark.parametrize("name", ROBOTS)
def test_steps_are_those_of_the_complementarity_problem(name, monkeypatch):
    """Fall, land and rest, in the same steps with the same loads."""
    made, asked, original = [], [], active_set.ActiveSet.from_loads

    def counted(active, free, rows, guesses):
        found = original(active, free, rows, guesses=True)
        asked.append(found.rows.any().item())
        return found

    monkeypatch.setattr(active_set.ActiveSet, "from_loads", counted)
    monkeypatch.setattr(attempts, "uses_active_sets", lambda *_: False)  # no semismooth steps, which solve all of these
    for few in (active_set.FEWEST_CONTACTS, 10**9):
        monkeypatch.setattr(active_set, "FEWEST_CONTACTS", few)
        model = ROBOTS[name]()
        made.append(rollout(model, model.initial_state(), ImplicitEuler(2e-3, **STEP), steps=12, throw=True))
        assert any(asked) == (few < 10**9)
        asked.clear()
    short, whole = made
    # gaps are zero to 1e-10 m here and to 1e-10 of the largest there; forces to 1e-12 N, masses of some 1e-5 kg
    torch.testing.assert_close(short.positions, whole.positions, rtol=0, atol=1e-8)
    for contact, force in short.contact.items():
        if contact.startswith("force/"):
            # 1e-5 kg stopped 1e-10 m apart in steps of 2 ms: 1e-10 N a contact; 3e-11 seen
            torch.testing.assert_close(force, whole.contact[contact], rtol=0, atol=1e-8)


def test_rest_on_a_slope_takes_few_iterations(monkeypatch):
    """Come to rest with friction at its limit in some contacts, and not in others.

    Their loads are put on the law of friction; what that left of a residual kept a search going for 77 iterations.
    """
    side, radius, tilt = 0.06, 2e-3, math.radians(20)
    mesh, corners = meshes.rectangle(side, side, 0.02), [(0, 0, 0), (side, 0, 0), (side, side, 0), (0, side, 0)]
    builder = RobotBuilder(joints="pinned")
    builder.add_shell(mesh.nodes, mesh.triangles, 1e-3, Material(5.5e4, 1100.0, 0.4, 0.01))
    for a, b in zip(corners, corners[1:] + corners[:1], strict=True):
        builder.add_rod(straight(a, b, 4), Circle(radius), Material(3e6, 1100.0, 0.5, 0.01), name="frame")
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    normal = (math.sin(tilt), 0.0, math.cos(tilt))
    slope = HalfSpace(tuple(-radius * x for x in normal), normal)
    builder.add_contact(Obstacle(slope, Complementarity(), Friction(0.5)))
    model = builder.finalize(compile=False)
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), steps=50, throw=True)
    # rounds of semismooth steps, in which it is found anew which contacts stick: 12 seen as it lands, 5 at rest
    assert run.iterations_max.max() <= 14 and run.iterations_max[20:].max() <= 6
    monkeypatch.setattr(attempts, "uses_active_sets", lambda *_: False)
    model.recordings.clear()  # which hold semismooth steps
    run = rollout(model, model.initial_state(), ImplicitEuler(5e-3), steps=50, throw=True)
    assert run.iterations_max.max() <= 6  # 4 seen as it lands, 1 at rest


def crossing_rods(offset, mu=0.4):
    """Return two rough rods of 5 mm, one of which falls onto the other; their middles are `offset` apart [m]."""
    builder = RobotBuilder()
    for line in (
        straight((-0.1, 0, 5.1e-3), (0.1, 0, 5.1e-3), 21),
        straight((offset, -0.1 - 1.3 * offset, 0.018), (-3.3 * offset, 0.1, 0.018), 21),
    ):
        builder.add_rod(line, Circle(5e-3), Material(1e6, 1000.0, 0.5))
    builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
    shape, sizes = FLOOR
    builder.add_contact(Obstacle(shape(*sizes), Complementarity(), Friction(mu), name="floor"))
    builder.add_contact(SelfContact(Complementarity(), Friction(mu)))
    return builder.finalize(compile=False)


def test_rods_that_come_to_rest_on_each_other_need_no_complementarity_problem(monkeypatch):
    """Rounds of the active set do not go to and fro between sticking and sliding.

    Which contacts bear loads is not known before a step, so each begins with all that would close. With a stiffness of
    slides as large as that of the rods, 9 of 121 active sets were not found.
    """
    model = crossing_rods(3e-3)
    state, euler = model.initial_state(), ImplicitEuler(2e-3)
    state, _ = euler.step(model, state)  # few contacts bear loads in it

    def refuse(*_, **__):
        raise AssertionError("a complementarity problem")

    monkeypatch.setattr(delassus, "solve_contact", refuse)
    for _ in range(60):
        state, info = euler.step(model, state)
        assert info.converged.all()


def test_the_mass_of_clamped_rods_does_not_matter(monkeypatch):
    """Find the same active sets where thin rods slide over clamped ones, whatever mass the clamped ones have.

    When their mass counted in telling sticking from sliding, 18 active sets were not found with heavy ones, 1 with
    light ones.
    """
    calls, solve_contact = [], delassus.solve_contact
    monkeypatch.setattr(delassus, "solve_contact", lambda *args, **kw: calls.append(1) or solve_contact(*args, **kw))
    counts, runs = [], []
    for density in (100.0, 1e5):
        builder, held = RobotBuilder(), []
        for x in (-0.06, -0.03, 0.0, 0.03, 0.06):
            line = straight((x, -0.04, 0), (x, 0.045, 0), 9)
            held.extend(builder.add_rod(line, Circle(5e-3), Material(1e9, density)))
        builder.clamp(nodes=held)
        for y in (-0.012, 0.0033, 0.02):
            line = straight((-0.08, y, 6.05e-3), (0.083, y + 0.003, 6.05e-3), 17)
            builder.add_rod(line, Circle(1e-3), Material(1e6, 1000.0, 0.5))
        builder.add_force(forces.Gravity((3.5, 0.3, -9.81)))
        builder.add_contact(SelfContact(Complementarity(), Friction(0.4)))
        model = builder.finalize(compile=False)
        calls.clear()
        runs.append(rollout(model, model.initial_state(), ImplicitEuler(2e-3), 15, throw=True))
        counts.append(len(calls))
    assert counts[0] == counts[1]
    assert torch.equal(runs[0].iterations, runs[1].iterations)


def test_rods_that_cross_at_nodes_come_to_rest():
    """Four pairs of edges touch at one point there, with the same rows of J.

    Their loads are not found exactly; they have to be within the tolerance of contact.
    """
    model = crossing_rods(0.0)
    state = model.initial_state()
    for _ in range(65):  # loads could not be found in step 61
        state, info = ImplicitEuler(2e-3).step(model, state)
        assert info.converged.all()


def test_friction_of_sliding_contacts_counts_by_the_present_load(monkeypatch):
    """Compared with the cone of a load that has grown since, sliding contacts seem to stick, and rounds go to and fro.

    Then 45 contact problems are left for 45 steps, and 19 otherwise; the bound is between.
    """
    solve_contact, solved = delassus.solve_contact, []

    def noted(*args, **options):
        solved.append(args)
        return solve_contact(*args, **options)

    monkeypatch.setattr(delassus, "solve_contact", noted)
    model = crossing_rods(0.0, mu=0.8)
    state = model.initial_state()
    for _ in range(45):
        state, _ = ImplicitEuler(2e-3).step(model, state)
    assert len(solved) <= 32


def test_geometry_of_contacts_is_that_of_the_q_asked_for():
    """What was found last is kept for the same q alone, and not where q changed in place."""
    model, euler = rods_on_each_other(), ImplicitEuler(1e-3)
    state = model.initial_state()
    running = torch.ones(1, dtype=torch.bool)
    problem = StepProblem(model, euler, state, Control(), euler.dt, running)
    constraints = ContactCandidates(problem).constraints(state, None)
    assert constraints is not None
    with torch.no_grad():
        q = state.q.clone()
        before = constraints.at(q, problem.end)
        assert constraints.at(q.clone(), problem.end) is before
        assert before.geometric_stiffness is None
        assert constraints.at(q, problem.end, with_stiffness=True).geometric_stiffness is not None
        q[:, 2:72:3] += 1e-5  # the first rod rises
        after = constraints.at(q, problem.end)
    assert not torch.equal(after.gap, before.gap)
    torch.testing.assert_close(after.gap, constraints.at(q, problem.end).gap, rtol=0, atol=0)  # with gradients


def spun(model):
    """Return a state in which a sheet turns at 8 rad/s, and glides."""
    x = model.nodes - model.nodes.mean(0)
    turning = 8.0 * torch.stack([-x[:, 1], x[:, 0], 0 * x[:, 0]], dim=1)
    velocity = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    velocity[0, : turning.numel()] = (turning + torch.tensor([0.2, 0.1, 0.0])).flatten()
    return model.initial_state(velocity=velocity)


def pulled(time, model):
    """Pull a sheet at its corner, harder and harder: it sticks, slides there first, and then everywhere."""
    force = torch.zeros(1, model.n_dofs, dtype=torch.float64)
    force[0, :2] = torch.tensor([-0.7, -0.4]) * float(time.max())
    return Control(force=force)


SLIDING = {
    "down a slope": lambda: (sheet([STEEP], 0.5), None, None),
    "to rest": lambda: (model := sheet([DOWN], 0.5), spun(model), None),
    "from one corner on": lambda: (sheet([DOWN], 0.5), None, pulled),
}


@pytest.mark.parametrize("name", SLIDING)
def test_sliding_steps_are_those_of_the_complementarity_problem(name, monkeypatch):
    """Slide, stick and stop, in the same steps with the same loads; W is not asked for."""
    runs, asked, original = [], [], delassus.Delassus.matrix

    def counted(*arguments, **more):
        asked.append(1)
        return original(*arguments, **more)

    monkeypatch.setattr(delassus.Delassus, "matrix", counted)
    for few in (active_set.FEWEST_CONTACTS, 10**9):
        monkeypatch.setattr(active_set, "FEWEST_CONTACTS", few)
        model, state, schedule = SLIDING[name]()
        state = model.initial_state() if state is None else state
        asked.clear()
        runs.append(rollout(model, state, ImplicitEuler(5e-3, **STEP), 30, schedule, throw=True))
        if few < 10**9:
            assert not asked  # 30 to 78 times else
    short, whole = runs
    torch.testing.assert_close(short.positions, whole.positions, rtol=0, atol=1e-8)  # as above
    torch.testing.assert_close(short.contact["sliding"], whole.contact["sliding"], rtol=0, atol=0)
    force = "force/obstacle0"
    torch.testing.assert_close(short.contact[force], whole.contact[force], rtol=0, atol=1e-8)  # as above
    assert int(whole.contact["sliding"].max()) == 25
    moved = (whole.positions[-1] - whole.positions[-2]).norm(dim=-1)
    assert (float(moved.max()) < 1e-9) == (name == "to rest")


def test_edges_that_clamps_hold_in_the_plane(monkeypatch):
    """Drag a sheet by an edge whose nodes may rise and lie on the floor: their friction is the clamp's affair."""
    runs = []
    for few in (active_set.FEWEST_CONTACTS, 10**9):
        monkeypatch.setattr(active_set, "FEWEST_CONTACTS", few)
        mesh = meshes.rectangle(0.08, 0.08, 0.02, "right")
        builder = RobotBuilder()
        nodes = torch.as_tensor(mesh.nodes) + torch.tensor([0, 0, 5e-4 + 1e-9]).double()
        builder.add_shell(nodes.numpy(), mesh.triangles, 1e-3, Material(1e5, 1000.0, 0.3))
        edge = (nodes[:, 0] > 0.08 - 1e-9).nonzero().flatten().tolist()
        builder.clamp(nodes=edge, axes="xy")
        builder.add_force(forces.Gravity((0.0, 0.0, -9.81)))
        shape, sizes = FLOOR
        builder.add_contact(Obstacle(shape(*sizes), Complementarity(), Friction(0.5), name="floor"))
        model = builder.finalize(compile=False)
        dofs = [3 * node for node in edge]

        def dragged(time, model, dofs=dofs):
            target = model.initial_state().q.clone()
            target[:, dofs] += 1e-3 * (float(time.max()) - 0.01) * (float(time.max()) > 0.01)
            return Control(clamped_q=target)

        runs.append(rollout(model, model.initial_state(), ImplicitEuler(5e-3, **STEP), 10, dragged, throw=True))
    short, whole = runs
    torch.testing.assert_close(short.positions, whole.positions, rtol=0, atol=1e-8)
    sticking = short.contact["sticking"]
    assert bool(((sticking > 0) & (sticking < 25)).any())


def test_each_robot_is_its_own():
    """Take a robot whose contacts stay beside one that slides as each alone."""
    gravity = [ASLANT, STEEP]
    together = sheet(gravity, 0.5)
    run = rollout(together, together.initial_state(), ImplicitEuler(2e-3, **STEP), steps=6, throw=True)
    for k in range(2):
        alone = sheet(gravity, 0.5, slice(k, k + 1))
        own = rollout(alone, alone.initial_state(), ImplicitEuler(2e-3, **STEP), steps=6, throw=True)
        torch.testing.assert_close(run.positions[:, k], own.positions[:, 0], rtol=0, atol=1e-9)  # forces to 1e-12 N


def test_other_methods_are_asked():
    """Find the loads by the method that was chosen."""
    ends = []
    for method in ("interior_point", "fischer_burmeister"):
        model = sheet([DOWN], 0.5, method=method)
        ends.append(rollout(model, model.initial_state(), ImplicitEuler(2e-3, **STEP), steps=4, throw=True).state.q)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-8)


SPAN, RISE, BAR, YOUNGS = 0.1, 0.02, 1e-4, 1e8  # m, m, m, Pa: half the span of two bars, their apex, radius, stiffness


class SideLoad(forces.Force):
    """A load on the apex across what it rises by, so small that it only takes the potential from all loads."""

    def forward(self, state, control):
        """Return the force."""
        force = torch.zeros_like(state.q)
        force[:, 3] = 1e-9 * state.q[:, 5]
        return force


@pytest.mark.parametrize("loads", [(), (SideLoad,)], ids=["with a potential", "without"])
def test_what_contact_holds_beyond_its_limit_load(loads):
    """Press two bars that lean on each other down by a plate, beyond where they would snap through under a weight.

    Mises' truss: bars of length l and l0 at rest, whose apex is up by z, press with 2 EA (1 - l / l0) z / l [N], the
    less the lower it is. Only the plate keeps it there: the matrix of the bars alone is indefinite.
    """
    builder = RobotBuilder(planar=True)
    bars = [(0, 0, 0), (SPAN, 0, RISE), (2 * SPAN, 0, 0)]
    ends = builder.add_rod(bars, Circle(BAR), Material(YOUNGS, 1000.0))[[0, 2]]
    for end in ends.tolist():
        builder.clamp(nodes=[end])
    for load in loads:
        builder.add_force(load())
    plate = HalfSpace((0, 0, RISE + BAR), (0, 0, -1))
    builder.add_contact(Obstacle(plate, Complementarity(), name="plate"))
    model = builder.finalize(compile=False)
    state = model.initial_state()
    for z in (0.016, 0.0125, 0.01, 0.007, 0.004):  # the limit load is at z = l0 / sqrt(27), 11.8 mm
        low = torch.tensor([[0, 0, z + BAR]], dtype=torch.float64)
        control = Control(values={"plate.point": low})
        state, info = Static(force_tolerance=1e-12).step(model, state, control, throw=True)
        length, rest = math.hypot(SPAN, z), math.hypot(SPAN, RISE)
        assert state.positions[0, 1, 2].item() == pytest.approx(z, abs=1e-8)  # the contact's tolerance
        expected = 2 * YOUNGS * math.pi * BAR**2 * (1 - length / rest) * z / length
        # they are a rod, which its apex bends: 1e-4 of it
        assert info.contact["force/plate"][0, 2].item() == pytest.approx(-expected, rel=2e-4)
        assert info.iterations.item() < 20  # it was 300, and in vain
