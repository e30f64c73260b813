"""Static equilibria that are no minima: columns, strips, what leaves a saddle and what is reported."""

import math
import warnings

import numpy as np
import pytest
import scipy.optimize
import torch
from scipy.special import ellipe, ellipk

from tests.rods import rod_through
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    SimulationError,
    Static,
    Status,
    forces,
    modes,
    straight,
)
from torchdismech.contact import Complementarity, HalfSpace, Obstacle, Penalty
from torchdismech.integrate.equilibria import settling
from torchdismech.solve import eigen

LENGTH, RADIUS, YOUNGS, DENSITY = 1.0, 5e-3, 1e7, 1000.0
EI = YOUNGS * math.pi * RADIUS**4 / 4
EA = YOUNGS * math.pi * RADIUS**2
EULER = math.pi**2 * EI / LENGTH**2  # N, of a column between two hinges
# critical loads over EULER, the last but one the square of the least root of tan x = x, over pi^2
ENDS = {
    ("clamped", "free"): 0.25,
    ("pinned", "pinned"): 1.0,
    ("clamped", "pinned"): 2.0457483,
    ("clamped", "clamped"): 4.0,
}


def column(edges, ends=("clamped", "free"), planar=True, loads=(), stiffness=None, solver="auto", contact=None):
    """Return a rod along x whose second end, if it is held, slides along x."""
    builder = RobotBuilder(planar=planar)
    points = straight((0, 0, 0), (LENGTH, 0, 0), edges + 1)
    builder.add_rod(points, Circle(RADIUS), Material(YOUNGS, DENSITY), stiffness=stiffness)
    if ends is not None:
        for node, end, axes in ((0, ends[0], "xyz"), (edges, ends[1], "z" if planar else "yz")):
            if end != "free":
                builder.clamp(nodes=[node], axes=axes, direction="rest" if end == "clamped" else None)
    for load in loads:
        builder.add_force(load)
    if contact is not None:
        builder.add_contact(contact)
    return builder.finalize(compile=False, solver=solver)


def tip_force(model, values, axis: int = 0) -> Control:
    """Return a control that pushes the last node with some forces, one for each robot."""
    force = torch.zeros(len(values), model.n_dofs, dtype=torch.float64)
    force[:, 3 * (model.body.n_nodes - 1) + axis] = torch.as_tensor(values, dtype=torch.float64)
    return Control(force=force)


def pressed(edges, ratios, rule=None, start=None, critical=0.25, **more):
    """Return the model, states and info of columns under multiples of the critical load."""
    model = column(edges, **more)
    control = tip_force(model, [-r * critical * EULER for r in ratios])
    state = model.initial_state(batch=len(ratios)) if start is None else start(model)
    return model, *(rule or Static()).step(model, state, control)


def turned_rod(edges):
    """Return a soft rod along x, clamped at both ends."""
    points = straight((0, 0, 0), (1, 0, 0), edges + 1)
    builder = rod_through(points, Circle(5e-3), Material(1e6, 1000.0), held="end")
    builder.clamp(nodes=[edges], direction="rest")
    return builder.finalize()


def turned_by(model, turns: float):
    """Return the control that turns the second end of a rod about its axis."""
    pose = model.rest_poses.unsqueeze(0).clone()
    pose[0, 1, 3:5] = torch.tensor([math.cos(math.pi * turns), math.sin(math.pi * turns)])
    return Control(pose=pose)


def elastica_tip(ratio: float) -> tuple[float, float]:
    """Return the tip (x, z) over the length of a column that is clamped at its foot, under a load of this ratio."""

    def off(k: float) -> float:
        return (2 * ellipk(k * k) / math.pi) ** 2 - ratio

    k = scipy.optimize.brentq(off, 1e-9, 1 - 1e-14)
    return 2 * ellipe(k * k) / ellipk(k * k) - 1, 2 * k / ellipk(k * k)


class TestCriticalLoads:
    """Where the lowest eigenvalue of a straight state changes its sign."""

    @pytest.mark.parametrize("ends", ENDS)
    def test_of_columns(self, ends):
        """Find Euler's four loads within .2 % at 40 edges: with clamped ends, where the wave is shortest, .18 % off."""
        edges = 40
        model, exact = column(edges, ends), ENDS[ends]
        rest = model.initial_state().q

        def softest(ratio: float) -> float:
            q = rest.clone()
            q[:, : 3 * (edges + 1) : 3] *= 1 - ratio * EULER / EA  # the load, as it shortens the column
            return modes(model, model.initial_state(q=q), 1).eigenvalue.item()

        found = scipy.optimize.brentq(softest, 0.8 * exact, 1.2 * exact, rtol=1e-5)
        assert found == pytest.approx(exact, rel=2e-3)

    def test_of_a_strip_that_bends_sideways(self):
        """Stay upright below 4.0126 sqrt(EI GJ) / L^2 at the tip, lean over above; the load is met within 1 %.

        Before it buckles it bends in its stiff plane, by a thousandth of the length: that counts at 1e-3.
        """
        stiffness = {"EI1": 1e3 * EI, "EI2": EI, "GJ": 0.8 * EI}  # a planar robot, in x-z, bends with EI1
        model = column(40, planar=False, stiffness=stiffness)
        exact = 4.0126 * math.sqrt(0.8) * EI / LENGTH**2
        control = tip_force(model, [-0.99 * exact, -1.01 * exact], axis=2)
        with pytest.warns(RuntimeWarning, match="robot 1 is no minimum"):
            _, info = Static(unstable="report").step(model, model.initial_state(batch=2), control)
        assert info.stable.tolist() == [True, False]
        state, info = Static().step(model, model.initial_state(batch=2), control)
        assert info.converged.all() and info.stable.all()
        # nothing pushes the upright one sideways
        assert state.positions[0, :, 1].abs().max() < 1e-9 and state.positions[1, -1, 1] > 0.05

    def test_of_a_strip_under_an_even_load(self):
        """Stay upright below 12.85 sqrt(EI GJ) / L^3 along it, lean over above (Timoshenko and Gere), within 1 %."""
        stiffness = {"EI1": 1e3 * EI, "EI2": EI, "GJ": 0.8 * EI}
        exact = 12.85 * math.sqrt(0.8) * EI / LENGTH**3
        load = torch.tensor([[0, 0, -0.99 * exact], [0, 0, -1.01 * exact]], dtype=torch.float64)
        line = forces.LineLoad(load, edges=range(40))
        model = column(40, planar=False, stiffness=stiffness, loads=[line])
        with pytest.warns(RuntimeWarning, match="robot 1 is no minimum"):
            _, info = Static(unstable="report").step(model, model.initial_state())
        assert info.stable.tolist() == [True, False]


def twisted_ring(edges):
    """Return a ring of a round rod, and what makes it straight by nature with 1.2 times the twist it can bear."""
    angle = 2 * math.pi * np.arange(edges) / edges
    builder = RobotBuilder()
    points = 0.1 * np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    builder.add_rods(points, [(k, (k + 1) % edges) for k in range(edges)], Circle(1e-3), Material(1e7, 1000.0, 0.3))
    builder.clamp(nodes=[0, 1])
    whole = 1.2 * 2 * math.pi * math.sqrt(3) * 1.3  # EI / GJ = 1 + poisson
    model = builder.finalize(compile=False)
    straight_one = torch.zeros_like(model.natural_strains(1).natural_curvature)
    twist = torch.full((1, edges), whole / edges, dtype=torch.float64)
    return model, Control(natural_curvature=straight_one, natural_twist=twist)


class TestLeaving:
    """Straight columns beyond their critical load."""

    def test_comes_to_the_elastica(self):
        """Find the buckled shape at 1.1, 3 and 10 times Euler's load from the straight one, to second order."""
        ratios, errors = [0.9, 1.1, 3.0, 10.0], []
        for edges in (20, 40):
            _, state, info = pressed(edges, ratios)
            assert info.converged.all() and info.stable.all()
            assert state.positions[0, :, 2].abs().max() == 0  # below the load it stays straight
            found = state.positions[1:, -1, ::2].numpy() / LENGTH
            errors.append(np.linalg.norm(found - [elastica_tip(r) for r in ratios[1:]], axis=1))
        # at 10 times the load half of the bend is in a tenth of the length: 4 edges of 40
        assert (errors[1] < [1e-3, 3e-3, 5e-3]).all()
        assert (errors[0] / errors[1] > 3.3).all()

    def test_between_hinges(self):
        """Find the elastica's deflection k / K(k) in the middle, half of what a column of twice the length has."""
        _, state, info = pressed(40, [1.1], ends=("pinned", "pinned"), critical=1.0)
        assert info.stable.all()
        # second order: .3 % at 40 edges
        assert state.positions[0, :, 2].max().item() == pytest.approx(elastica_tip(1.1)[1] / 2, rel=5e-3)

    @pytest.mark.parametrize("ratios", [(1.1,), pytest.param((3.0, 10.0), marks=pytest.mark.slow)])
    @pytest.mark.parametrize("ends", ENDS)
    def test_of_four_ends(self, ends, ratios):
        """End at a minimum whatever the ends and however far beyond the load: no eigenvalue is negative.

        A sliding end under a dead load goes all the way to the other side, where the column is under tension.
        """
        model = column(20, ends)
        control = tip_force(model, [-r * ENDS[ends] * EULER for r in ratios])
        state, info = Static(load_steps=5).step(model, model.initial_state(batch=len(ratios)), control, throw=True)
        assert info.stable.all() and modes(model, state, 1, control).stable.all()

    def test_the_potential_is_lower(self):
        """Have a lower elastic energy less work of the load than the straight column."""
        model, bent, _ = pressed(20, [1.5])
        with pytest.warns(RuntimeWarning, match="no minimum"):
            _, up, _ = pressed(20, [1.5], Static(unstable="report"))
        work = -1.5 * 0.25 * EULER * (bent.positions - up.positions)[0, -1, 0]
        energies = (sum(e for name, e in model.energies(s).items() if name != "kinetic") for s in (bent, up))
        assert (next(energies) - next(energies) - work).item() < 0

    def test_round_columns_in_space_go_upwards(self):
        """Choose +z of all the planes in which a round column may buckle; say that it may still turn about itself."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # whether the turn without any force counts as stable is rounding
            _, state, info = pressed(20, [1.1, 3.0], planar=False)
        assert info.converged.all()
        assert (state.positions[:, -1, 2] > 0.3).all()
        assert state.positions[:, :, 1].abs().max() < 1e-9  # nothing pushes along y: 3e-13 m of rounding seen
        flat = pressed(20, [1.1, 3.0])[1]
        assert torch.allclose(state.positions, flat.positions, atol=1e-6)  # of tolerances of 1e-8 N

    def test_does_not_drift_along_what_takes_no_force(self):
        """Stay in the plane of the first push: a turn without any force has a lowest eigenvalue of rounding."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # as above
            _, state, _ = pressed(40, [10.0], Static(load_steps=10), planar=False)
        # pushes along the turn would bring it 8 cm to the side; balance to 1e-8 N leaves less than 1e-6
        assert state.positions[0, :, 1].abs().max() < 1e-5

    def test_each_robot_is_its_own(self):
        """Leave the same way in a batch as alone, and after the others have come to their minima."""
        _, together, info = pressed(20, [1.1, 0.5, 10.0])
        for robot, ratio in enumerate([1.1, 0.5, 10.0]):
            _, alone, own = pressed(20, [ratio])
            assert torch.allclose(alone.q[0], together.q[robot], atol=1e-9)  # rounding, over 20 iterations
            assert own.iterations[0] == info.iterations[robot]

    def test_only_robots_that_run(self):
        """Leave alone what is not to be stepped."""
        model = column(20)
        control, state = tip_force(model, [-0.5 * EULER] * 2), model.initial_state(batch=2)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            after, _ = Static().step(model, state, control, torch.tensor([False, True]))
        assert torch.equal(after.q[0], state.q[0]) and after.positions[1, -1, 2] > 0.3

    def test_with_gradients(self):
        """Differentiate the buckled tip by the load, as central differences do."""
        model = column(10)
        load = torch.tensor(-0.5 * EULER, dtype=torch.float64, requires_grad=True)
        rule = Static(force_tolerance=1e-13, relative_tolerance=0.0)

        def tip(load):
            force = torch.zeros(1, model.n_dofs, dtype=torch.float64)
            force[0, 30] = 1.0
            state, _ = rule.step(model, model.initial_state(), Control(force=load * force), throw=True)
            return state.positions[0, -1, 2]

        (slope,) = torch.autograd.grad(tip(load), load)
        step = 1e-5 * EULER
        with torch.no_grad():
            expected = (tip(load + step) - tip(load - step)) / (2 * step)
        assert slope.item() == pytest.approx(expected.item(), rel=1e-6)  # of differences: their step squared

    def test_onto_what_stands_in_the_way(self):
        """Buckle up to a ceiling and lie against it, within the depth that its springs give way by."""
        ceiling = Obstacle(HalfSpace((0.0, 0.0, 0.05), (0.0, 0.0, -1.0)), Penalty(100.0, 2e-3))
        model = column(20, ends=("pinned", "pinned"), contact=ceiling)
        control = tip_force(model, [-1.2 * EULER])
        state, info = Static().step(model, model.initial_state(), control, throw=True)
        highest = state.positions[0, :, 2].max().item()
        assert info.stable.all() and 0.05 - RADIUS - 2e-3 < highest < 0.05

    def test_an_angle_that_is_pushed(self):
        """Follow a natural curvature, which has one side: nothing is left to choose."""
        model = column(10)
        curvature = torch.zeros(1, len(model.springs), 2, dtype=torch.float64)
        curvature[0, :, 0] = 0.05
        up, info = Static().step(model, model.initial_state(), Control(natural_curvature=curvature))
        down, _ = Static().step(model, model.initial_state(), Control(natural_curvature=-curvature))
        assert info.stable.all()
        assert up.positions[0, -1, 2].item() == pytest.approx(-down.positions[0, -1, 2].item(), rel=1e-9)


class TestReports:
    """What is said of saddles, and where they stay."""

    def test_report(self):
        """Leave a robot on its saddle, and name it."""
        with pytest.warns(RuntimeWarning, match=r"robot 1 is no minimum .*unstable=\"leave\""):
            _, state, info = pressed(20, [0.5, 10.0], Static(unstable="report"))
        assert info.converged.all() and info.stable.tolist() == [True, False]
        assert state.positions[:, :, 2].abs().max() == 0

    def test_fail(self):
        """Fail a robot on a saddle; it keeps the state it had."""
        model, state, info = pressed(20, [0.5, 10.0], Static(unstable="fail", load_steps=2))
        assert info.status.tolist() == [Status.CONVERGED, Status.UNSTABLE]
        assert torch.equal(state.q[1], model.initial_state().q[0]) and not torch.equal(state.q[0], state.q[1])
        control = tip_force(model, [-EULER])
        with pytest.raises(SimulationError, match="unstable .the equilibrium found is no minimum"):
            Static(unstable="fail").step(model, model.initial_state(), control, throw=True)

    def test_beyond_a_bifurcation_they_stay(self):
        """Turn the end of a straight rod beyond where it buckles, by pose: it stays straight, reported or failed.

        By Greenhill's moment for clamped ends, 8.99 EI / L, it buckles at 8.99 EI / GJ = 13.5 rad = 2.15 turns (nu =
        .5). A third of a turn later the search down the potential leaves the straight rod, and finds no other balance
        in 20 iterations.
        """
        model = turned_rod(10)
        state = model.initial_state()
        report = Static(unstable="report", max_iterations=20)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for sixth in range(1, 16):
                before, (state, info) = state, report.step(model, state, turned_by(model, sixth / 6))
                assert info.converged.all(), sixth
        assert info.stable.tolist() == [False] and info.iterations.item() > 20  # the second search has made it
        # rounding alone moves it aside: 1e-6 m is a thousandth of what the same turn does to a rod that leaves
        assert state.positions[0, :, 1:].abs().max() < 1e-6
        _, info = Static(unstable="fail", max_iterations=20).step(model, before, turned_by(model, 15 / 6))
        assert info.status.tolist() == [Status.UNSTABLE]

    def test_the_way_down_comes_first(self):
        """Find the minimum of a leaning column by "report", though another balance is nearer: upright, a saddle."""
        load = forces.Gravity((0, 0, -0.5))
        points = straight((0, 0, 0), (0.01, 0, 1), 21)
        model = rod_through(points, Circle(5e-3), Material(1e6, 1000.0), [load], held="end").finalize()
        state, info = Static(unstable="report").step(model, model.initial_state())
        assert info.stable.all() and state.positions[0, -1, 2] < 0

    def test_steps_in_time_say_nothing(self):
        """Have no stability in motion."""
        model = column(10)
        assert ImplicitEuler(0.01).step(model, model.initial_state())[1].stable is None

    def test_what_is_free_is_reported(self):
        """Do not move a robot that nothing holds or pulls, however often it is asked."""
        model = column(10, ends=None, planar=False)
        state = model.initial_state()
        with pytest.warns(RuntimeWarning, match="free to move without any force"):
            after, info = Static().step(model, state)
        assert info.stable.tolist() == [False] and info.iterations.tolist() == [0]
        assert torch.equal(after.q, state.q)

    def test_a_search_that_fails_leaves_the_saddle(self):
        """Stay on the saddle, reported, where the search from it takes more iterations than are allowed."""
        with pytest.warns(RuntimeWarning, match="time steps .* a search down from it ended by max_iterations$"):
            _, state, info = pressed(20, [3.0], Static(max_iterations=3))
        assert info.converged.all() and info.stable.tolist() == [False]
        assert state.positions[0, :, 2].abs().max() == 0

    def test_a_long_way_down(self):
        """Settle where the search from a saddle fails, as edges turn by 180 degrees on the way.

        A ring that is twisted beyond 2 pi sqrt(3) EI / GJ (Michell, 1889) turns over, through itself, and comes to lie
        flat with two turns less.
        """
        model, control = twisted_ring(16)
        state, info = Static().step(model, model.initial_state(), control)
        assert info.converged.all() and info.iterations.item() > 200
        flat, there = (model.energies(at, control) for at in (model.initial_state(), state))
        left = (1 - 4 * math.pi / control.natural_twist.sum().item()) ** 2
        assert there["twist"].item() == pytest.approx(left * flat["twist"].item(), rel=1e-3)  # 5e-5
        assert there["bend"].item() == pytest.approx(flat["bend"].item(), rel=0.02)  # .014, .025 with 12 edges

    def test_a_way_that_is_too_long(self, monkeypatch):
        """Say how the search ended where settling is in vain, too, and what to do."""
        monkeypatch.setattr(settling, "MAX_STEPS", 2)
        model, control = twisted_ring(16)
        with pytest.warns(RuntimeWarning, match="time steps .* a search down from it ended by line_search_failed$"):
            state, info = Static().step(model, model.initial_state(), control)
        assert info.stable.tolist() == [False] and state.positions[..., 2].abs().max() == 0

    @pytest.mark.parametrize("chunk", [None, 1])
    def test_a_mode_that_is_not_found_is_reported(self, monkeypatch, chunk):
        """Say why no way down is known, once for all robots, and stay on the saddle; name the line that asked."""
        monkeypatch.setattr(eigen, "DENSE", 0)
        monkeypatch.setattr(eigen, "CYCLES", 0)
        match = r"robot 1, 2 is no minimum .*: the lowest 4 eigenvalues did not settle in 0 cycles$"
        with pytest.warns(RuntimeWarning, match=match) as said:
            _, state, info = pressed(40, [0.5, 3.0, 4.0], Static(chunk=chunk))
        assert info.converged.all() and info.stable.tolist() == [True, False, False]
        assert state.positions[:, :, 2].abs().max() == 0
        assert [warning.filename for warning in said] == [__file__]

    @pytest.mark.parametrize("how", ["loads without a potential", "an iterative solver"])
    def test_unknown(self, how):
        """Leave stability open where it cannot be told, and refuse to fail by it."""

        def more() -> dict:
            return {"loads": [forces.Resistive(0.1, 0.2)]} if how.startswith("loads") else {"solver": "pcg"}

        for unstable in ("leave", "report"):
            _, state, info = pressed(10, [0.5], Static(unstable=unstable), **more())
            assert info.converged.all() and info.stable is None
        with pytest.raises(InputError, match='unstable="fail": nothing tells'):
            pressed(10, [0.5], Static(unstable="fail"), **more())

    def test_other_words_are_refused(self):
        """Name what there is."""
        with pytest.raises(InputError, match="unstable: expected one of 'leave', 'report', 'fail', got 'ignore'"):
            Static(unstable="ignore")


def test_damping_hides_no_saddle():
    """Forces of velocity alone are none at rest: a damped column beyond its load buckles as an undamped one."""
    found = []
    for loads in ([], [forces.MassDamping(2.0), forces.Viscous(0.1)]):
        model = column(10, loads=loads)
        state, info = Static().step(model, model.initial_state(), tip_force(model, [-0.75 * EULER]), throw=True)
        assert bool(info.stable.all())
        found.append(state.q)
    assert found[0][0, 3 * 10 + 2].abs() > 0.1 * LENGTH
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-7)


@pytest.mark.parametrize(("scheme", "times"), [(ImplicitEuler, 1.0), (ImplicitMidpoint, 2.0), (Newmark, 2.0)])
def test_steps_longer_than_a_buckling_grows_are_no_minima(scheme, times):
    """Tell a straight column that a step leaves where it was, from a step of 1/growth on (2/growth, of second order).

    Inertia adds M / dt^2 to the matrix (4 M / dt^2 where a step's mean acceleration counts), whose lowest eigenvalue
    is -growth^2 of M.
    """
    model = column(10)
    control = tip_force(model, [-0.75 * EULER, -0.2 * EULER])
    pressed_state, _ = Static(unstable="report").step(model, model.initial_state(2), control)
    growth = float(modes(model, pressed_state, 1, control).growth_rate[0, 0])
    assert growth > 0
    for share, expected in ((0.99, True), (1.01, False)):
        steps = scheme(share * times / growth)
        after, info = steps.step(model, pressed_state, control, throw=True)
        assert after.positions[0, :, 2].abs().max() < 1e-9 and info.stable is None  # it stays straight either way
        assert steps.minima(model, pressed_state, after, control).tolist() == [expected, True]


def test_minima_of_a_step_are_known_of_potentials_alone():
    """Say None under drag, and with a solver that does not tell; say what `Static` says of equilibria."""
    steps = ImplicitEuler(1e-2)
    for model in (column(10, planar=False, loads=[forces.Resistive(1.0, 2.0)]), column(10, solver="pcg")):
        state = model.initial_state()
        assert steps.minima(model, state, steps.step(model, state, throw=True)[0]) is None
    model = column(10)
    control = tip_force(model, [-0.75 * EULER])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        state, info = Static(unstable="report").step(model, model.initial_state(), control)
    assert Static().minima(model, state, state, control).tolist() == info.stable.tolist() == [False]


def test_minima_know_contacts_that_are_closed():
    """Count a contact that bears a load as closed: a column that lies on a floor is at a minimum by its weight."""
    floor = Obstacle(HalfSpace((0, 0, -2 * RADIUS), (0, 0, 1)), Complementarity())
    model = column(10, loads=[forces.Gravity((0, 0, -9.81))], contact=floor)
    state, steps = model.initial_state(), ImplicitEuler(0.5)
    for _ in range(4):
        before, (state, _) = state, steps.step(model, state, tip_force(model, [-0.75 * EULER]), throw=True)
    assert steps.minima(model, before, state, tip_force(model, [-0.75 * EULER])).tolist() == [True]


@pytest.mark.filterwarnings("error:.*no minimum:RuntimeWarning")
@pytest.mark.parametrize("nodes", [5, 11, 21, 41])
@pytest.mark.parametrize("radius", [5e-4, 2e-3])
def test_rods_may_turn_about_their_own_axes(nodes, radius):
    """Call rods that hang between hinges, or from one, stable: no node moves as they turn about their own axes."""
    for ends in ([0], [0, nodes - 1]):
        builder = RobotBuilder()
        builder.add_rod(straight((0, 0, 0), (0.3, 0.1, -0.2), nodes=nodes), Circle(radius), Material(1e7, 1000.0))
        builder.clamp(nodes=ends)
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        if len(ends) == 1:  # else it may swing round the vertical
            builder.add_force(forces.PointForce([nodes - 1], (0.05, 0, 0)))
        model = builder.finalize()
        _, info = Static().step(model, model.initial_state(), throw=True)
        assert info.stable.tolist() == [True]


@pytest.mark.filterwarnings("ignore:.*no minimum:RuntimeWarning")
@pytest.mark.parametrize("nodes", [11, 21, 41])
def test_what_is_free_to_move_is_no_minimum_whatever_rounding_leaves_of_it(nodes):
    """Say of hanging rods that are bent, and may swing round the vertical, what does not depend on rounding."""
    for held in (None, "rest"):
        builder = RobotBuilder()
        bow = [(0.1 * math.sin(s), 0.0, 0.1 * math.cos(s)) for s in np.linspace(0, math.pi / 2, nodes)]
        builder.add_rod(bow, Circle(2e-3), Material(1e7, 1000.0))
        builder.clamp(nodes=[0], direction=held)
        builder.add_force(forces.Gravity((0, 0, -9.81)))
        model = builder.finalize()
        # what is left of the balance resists the swing, or helps it along: next to nothing is to be left
        _, info = Static(force_tolerance=1e-14, relative_tolerance=1e-13).step(model, model.initial_state(), throw=True)
        assert info.stable.tolist() == [held is not None]
