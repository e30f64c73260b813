"""Nodes that slide along lines and in planes: the same as along axes, held exactly, differentiated, refused."""

import math

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from torchdismech import (
    BDF2,
    Circle,
    Control,
    ImplicitEuler,
    ImplicitMidpoint,
    InputError,
    Material,
    Newmark,
    RobotBuilder,
    Static,
    forces,
    meshes,
    modes,
    straight,
    unroll,
)
from torchdismech.contact import Complementarity, Friction, HalfSpace, Obstacle, Penalty, SelfContact
from torchdismech.solve.newton import matrix_values

INTEGRATORS = [ImplicitEuler, ImplicitMidpoint, Newmark, BDF2]
EXACT = {"force_tolerance": 1e-13, "relative_tolerance": 0.0}
SLOPE = Rotation.from_rotvec([0, -math.pi / 4, 0]).as_matrix()  # takes x to (1, 0, 1) / sqrt(2)
ANYHOW = Rotation.from_rotvec([0.4, -0.7, 0.9]).as_matrix()
STIFFNESS = torch.tensor([[1e6], [3e6]], dtype=torch.float64)


def arch(turn=None, contact=None, youngs=STIFFNESS, solver="auto", compile=False, ways=None, **options):
    """Return two arches that are held at one end and slide at the other along x, in the middle across y.

    With `turn` (3, 3) all of it is turned, so that the line and the plane are not those of axes; `ways` are another
    line for the end and another normal for the middle, (3,) or (B, 3) each.
    """
    whole = np.eye(3) if turn is None else turn
    s = np.linspace(0, 1, 9)
    x = np.stack([s, 0.05 * np.sin(3 * s), 0.2 * s * (1 - s)], axis=1)
    builder = RobotBuilder(**options)
    builder.add_rod(x @ whole.T, Circle(0.01), Material(youngs, 1000.0), name="arch")
    builder.clamp(nodes=[0], direction="rest")
    if ways is not None:
        builder.clamp(nodes=[8], along=ways[0])
        builder.clamp(nodes=[4], normal=ways[1])
    elif turn is None:
        builder.clamp(nodes=[8], axes="yz")
        builder.clamp(nodes=[4], axes="y")
    else:
        builder.clamp(nodes=[8], along=whole[:, 0])
        builder.clamp(nodes=[4], normal=whole[:, 1])
    builder.add_force(forces.Gravity(tuple(whole @ (-1.0, 0.7, -5.0))))
    builder.add_force(forces.Viscous(0.01))
    if contact is not None:
        touch(builder, whole, contact)
    return builder.finalize(solver=solver, compile=compile)


def touch(builder, whole, contact) -> None:
    """Add a floor that the end scrapes along, or a rod that lies across near the end."""
    if contact == "rods":
        across = np.linspace([0.9, -0.2, 0.043], [0.9, 0.3, 0.043], 6)
        builder.add_rod(across @ whole.T, Circle(0.01), Material(1e6, 1000.0))
        builder.add_contact(SelfContact(Penalty(300.0, 2e-3), Friction(0.2, 1e-2)))
        return
    floor = HalfSpace(tuple(whole @ (1, 0, -0.0101)), tuple(whole @ (-0.05, 0, 1)))
    law = Penalty(300.0, 2e-3) if contact == "floor" else Complementarity()
    friction = Friction(0.2, 1e-2) if contact == "floor" else Friction(0.2)
    builder.add_contact(Obstacle(floor, law, friction, name="floor"))


def moved(model, integrator, steps=12, turn=None):
    """Return positions, reactions in the axes before the turn, and iterations after some steps."""
    method, state, iterations = integrator(0.01, **EXACT), model.initial_state(), 0
    for _ in range(steps):
        before = state
        state, info = method.step(model, before, throw=True)
        iterations += int(info.iterations.sum())
    back = torch.eye(3, dtype=torch.float64) if turn is None else torch.as_tensor(turn)
    wrenches = torch.zeros(1)
    if not model.contact.constrained:
        wrenches = method.reactions(model, before, state).unflatten(2, (2, 3)) @ back
    return state.positions @ back, wrenches, iterations


@pytest.mark.parametrize("turn", [SLOPE, ANYHOW], ids=["45 degrees", "any"])
@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_turned_scenes_move_as_those_along_axes(integrator, turn):
    """Move and pull at clamps as the same robots do whose line and plane are those of axes."""
    plain, sliding = moved(arch(), integrator), moved(arch(turn), integrator, turn=turn)
    # a residual of 1e-13 N over the arch's stiffness of 0.1 N/m in each of 12 steps; forces by stiffnesses of 1e4 N/m
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-11)
    torch.testing.assert_close(sliding[1], plain[1], rtol=0, atol=1e-10)
    assert sliding[2] <= plain[2] + 2


@pytest.mark.parametrize("contact", ["floor", "rods", "constraints"])
def test_turned_contact_is_the_same(contact):
    """Touch a floor and another rod as the same robots along axes do; iterations of constraints are as many."""
    plain = moved(arch(contact=contact), ImplicitEuler)
    sliding = moved(arch(ANYHOW, contact), ImplicitEuler, turn=ANYHOW)
    # as above; constraints hold gaps to 1e-9 m
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-9 if contact == "constraints" else 1e-10)
    assert abs(sliding[2] - plain[2]) <= 4
    free = moved(arch(), ImplicitEuler)[0]
    assert (free - plain[0][:, :9]).abs().max() > 1e-4  # it does touch


@pytest.mark.parametrize("options", [{"mass": "consistent"}, {"solver": "dense"}, {"solver": "pcg"}], ids=str)
def test_turned_scenes_by_other_masses_and_solvers(options):
    """Be the same with masses that couple nodes, and by every kind of solver."""
    plain, sliding = moved(arch(**options), Newmark), moved(arch(ANYHOW, **options), Newmark, turn=ANYHOW)
    torch.testing.assert_close(sliding[0], plain[0], rtol=0, atol=1e-11)  # as above


def test_a_side_of_a_shell_slides():
    """Be the same for a sheet whose side slides in a plane."""
    sheet, found = meshes.rectangle(0.3, 0.2, 0.05), []
    left, right = (np.flatnonzero(np.abs(sheet.nodes[:, 0] - x) < 1e-9).tolist() for x in (0.0, 0.3))
    for turn in (None, ANYHOW):
        whole = np.eye(3) if turn is None else turn
        builder = RobotBuilder()
        builder.add_shell(sheet.nodes @ whole.T, sheet.triangles, 2e-3, Material(1e6, 1000.0, 0.3), bending="midedge")
        builder.clamp(nodes=left)
        builder.clamp(nodes=right, **({"axes": "z"} if turn is None else {"normal": whole[:, 2]}))
        builder.add_force(forces.Gravity(tuple(whole @ (0, 0.5, -5.0))))
        found.append(moved(builder.finalize(compile=False), ImplicitEuler, 5, turn)[0])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-11)  # as above


def test_planar_robots_slide_in_their_plane():
    """Be the same for a robot of the x-z plane."""
    found = []
    for turn in (np.eye(3), SLOPE):
        builder = RobotBuilder(planar=True)
        builder.add_rod(straight((0, 0, 0), turn[:, 0], 8), Circle(0.01), Material(1e6, 1000.0))
        builder.clamp(nodes=[0])
        builder.clamp(nodes=[7], along=turn[:, 0])
        builder.add_force(forces.Gravity(tuple(turn @ (-1, 0, -5))))
        model = builder.finalize(compile=False)
        found.append((model, moved(model, Newmark, turn=turn)[0]))
    assert found[0][0].unknowns.slides.none and found[1][0].unknowns.slides.n_across == 1
    torch.testing.assert_close(found[1][1], found[0][1], rtol=0, atol=1e-11)  # as above


def test_nodes_stay_on_their_lines_and_are_pushed_across_alone():
    """Stay on line and plane to rounding, and feel nothing along; reactions carry what gravity leaves."""
    model = arch(ANYHOW)
    line, normal = (torch.as_tensor(ANYHOW[:, k]) for k in range(2))
    state = model.initial_state()
    rest, euler = state.positions, ImplicitEuler(0.01)
    for _ in range(40):
        before = state
        state, _ = euler.step(model, before, throw=True)
    way = state.positions - rest
    off = way[:, 8] - (way[:, 8] @ line)[:, None] * line
    # 40 steps of rounding of positions of 1 m
    assert off.abs().max() < 1e-14 and (way[:, 4] @ normal).abs().max() < 1e-14
    assert (way[:, 8] @ line).abs().min() > 1e-3
    _, end, middle = euler.reactions(model, before, state)[..., :3].unbind(1)
    # rounding of the forces of edges, 10 N
    assert (end @ line).abs().max() < 1e-13 and torch.linalg.vector_norm(end, dim=1).min() > 1e-3
    torch.testing.assert_close(middle, (middle @ normal)[:, None] * normal, rtol=0, atol=1e-13)


def test_an_equilibrium_and_its_modes():
    """Hang and vibrate as along axes, all modes of it; stability is told."""
    found = []
    for turn in (None, ANYHOW):
        model = arch(turn)
        state, info = Static(force_tolerance=1e-12).step(model, model.initial_state(), throw=True)
        most = model.unknowns.count - model.unknowns.slides.n_across
        back = torch.eye(3, dtype=torch.float64) if turn is None else torch.as_tensor(turn)
        found.append((state.positions @ back, modes(model, state, most).eigenvalue, info.stable))
        with pytest.raises(InputError, match=f"from 1 to {most}"):
            modes(model, state, most + 1)
    torch.testing.assert_close(found[1][0], found[0][0], rtol=0, atol=1e-9)  # 1e-12 N over 0.01 N/m
    # rounding of the largest, and that of positions times what the stiffness changes with them
    assert (found[1][1] - found[0][1]).abs().max() < 1e-8 * found[0][1].max()
    torch.testing.assert_close(found[1][1][:, :8], found[0][1][:, :8], rtol=1e-7, atol=0)
    assert bool(found[0][2].all()) and bool(found[1][2].all())


def test_each_robot_of_a_batch_moves_as_alone():
    """Move each robot as the model of its own constants does."""
    together = moved(arch(ANYHOW), Newmark)[0]
    for k in range(2):
        alone = moved(arch(ANYHOW, youngs=STIFFNESS[k, 0]), Newmark)[0]
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-12)  # rounding of sums


LINES = torch.tensor([[1.0, 0, 0.3], [-0.8, 0.2, 0.4], [2.0, 0, 0]], dtype=torch.float64)
NORMALS = torch.tensor([[0.0, 1, 0.2], [0.3, 1, 0], [0, 1, 0]], dtype=torch.float64)
YOUNGS = torch.tensor([[1e6], [3e6], [2e6]], dtype=torch.float64)


def on_own_ways(robots=slice(None), **options):
    """Return arches each of whose ends slides along a line of its own, in the middle in a plane of its own.

    The last robot's are those of axes.
    """
    lines, normals, youngs = LINES[robots], NORMALS[robots], YOUNGS[robots]
    if isinstance(robots, int):
        youngs = youngs[0]
    return arch(ways=(lines, normals), youngs=youngs, **options)


@pytest.mark.parametrize("integrator", INTEGRATORS)
def test_each_robot_may_slide_along_its_own_line(integrator):
    """Move each robot as the model of its own line and plane does; lines along axes are those of axes."""
    together = moved(on_own_ways(), integrator)
    for k in range(3):
        alone = moved(on_own_ways(k), integrator)
        # as above; where a line is along an axis it is held as an axis is when the robot is alone
        torch.testing.assert_close(together[0][k : k + 1], alone[0], rtol=0, atol=1e-11)
        torch.testing.assert_close(together[1][k : k + 1], alone[1], rtol=0, atol=1e-10)
    assert on_own_ways(2).unknowns.slides.none and on_own_ways().batch == 3


@pytest.mark.parametrize("contact", ["floor", "rods", "constraints"])
def test_robots_on_their_own_lines_touch_as_alone(contact):
    """Widen patterns for what touches, and find the loads of constraints, as each robot alone does."""
    together = moved(on_own_ways(contact=contact), ImplicitEuler)[0]
    for k in range(3):
        alone = moved(on_own_ways(k, contact=contact), ImplicitEuler)[0]
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-9)  # as above


@pytest.mark.parametrize("options", [{"mass": "consistent"}, {"solver": "dense"}, {"solver": "pcg"}], ids=str)
def test_own_lines_by_other_masses_and_solvers(options):
    """Be those of the robots alone with masses that couple nodes, and by every kind of solver."""
    together = moved(on_own_ways(**options), Newmark)[0]
    for k in range(3):
        alone = moved(on_own_ways(k, **options), Newmark)[0]
        torch.testing.assert_close(together[k : k + 1], alone, rtol=0, atol=1e-11)  # as above


def test_equilibria_and_modes_on_their_own_lines():
    """Hang and vibrate as each robot alone does; say of each what nothing holds."""
    model = on_own_ways()
    state, info = Static(force_tolerance=1e-12).step(model, model.initial_state(), throw=True)
    found = modes(model, state, 6).eigenvalue
    for k in range(3):
        single = on_own_ways(k)
        alone, told = Static(force_tolerance=1e-12).step(single, single.initial_state(), throw=True)
        torch.testing.assert_close(state.positions[k : k + 1], alone.positions, rtol=0, atol=1e-9)  # as above
        torch.testing.assert_close(found[k : k + 1], modes(single, alone, 6).eigenvalue, rtol=1e-7, atol=0)
        assert bool(info.stable[k]) == bool(told.stable)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 4), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[0, 3], along=[(0, 1, 0), (0, 0, 1)])
    builder.add_force(forces.PointForce([1], (0, 0, 1.0)))
    loose = builder.finalize(compile=False)
    with pytest.raises(InputError, match="nothing holds the robot along z, where its loads pull with 1 N"):
        Static().step(loose, loose.initial_state())
    running = torch.tensor([True, False])  # that one's line is across the load
    Static().step(loose, loose.initial_state(), running=running, throw=True)


@pytest.mark.parametrize("integrator", [ImplicitEuler, Static])
def test_gradients_on_own_lines_are_those_alone(integrator):
    """Differentiate each robot by its own stiffness, in parts of the batch, too, as the robot alone."""
    method = integrator(**EXACT) if integrator is Static else integrator(0.01, **EXACT)
    for options in ({}, {"chunk": 2}):
        method.chunk = options.get("chunk", "auto")
        gradients = []
        for robots in (slice(None), 0, 1, 2):
            model = on_own_ways(robots)
            stiffness = model.term("bend_twist").energy.EI1.requires_grad_(True)
            after, _ = method.step(model, model.initial_state(), throw=True)
            after.positions[:, 8].sum().backward()
            gradients.append(stiffness.grad.reshape(3 if isinstance(robots, slice) else 1, -1).sum(1))
        torch.testing.assert_close(gradients[0], torch.cat(gradients[1:]), rtol=1e-7, atol=0)


@pytest.mark.slow
def test_compiled_steps_on_own_lines():
    """Take compiled steps as those that are not."""
    found = {}
    for compiled in (False, True):
        model = on_own_ways(compile=compiled)
        found[compiled] = moved(model, Newmark)[0]
    torch.testing.assert_close(found[True], found[False], rtol=0, atol=1e-12)  # rounding of sums


def test_own_lines_that_do_not_fit_are_refused():
    """Name the node whose lines are fewer in one robot, and clamps of unlike numbers of robots."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 4), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[3], normal=[(0, 0, 1), (0, 1, 0)])
    builder.clamp(nodes=[3], normal=(0, 0, 1))
    with pytest.raises(InputError, match="node 3 moves in 1 or 2 directions, from robot to robot"):
        builder.finalize()
    builder.clamp(nodes=[2], along=[(1, 0, 0)] * 3)
    with pytest.raises(InputError, match="directions of 2 and of 3 robots"):
        builder.finalize()
    with pytest.raises(InputError, match=r"clamp.along\[1\]: expected a vector \(3,\) other than zero"):
        builder.clamp(nodes=[1], along=[(1, 0, 0), (0, 0, 0)])


def test_the_matrix_is_the_residuals_derivative():
    """Be the residual's derivative along the line, and a stiffness across it that is coupled to nothing."""
    model = arch(ANYHOW)
    state, _ = ImplicitMidpoint(0.01).step(model, model.initial_state(), throw=True)
    equations = ImplicitMidpoint(0.01).equations(model, state)
    x = state.q[:, model.unknowns.index]
    values = matrix_values(equations, x, model.solvers.of(2), model.unknowns.residual_weight())
    matrix = model.layout.pattern.to_dense(values)
    scale = matrix.abs().max()
    for k in range(model.unknowns.count):
        step = torch.zeros_like(x)
        step[:, k] = 1e-6
        slope = (equations.residual(x + step) - equations.residual(x - step)) / 2e-6
        own = int(model.unknowns.index[k]) // 3
        if own not in (4, 8):
            assert (matrix[:, :, k] - slope).abs().max() < 1e-8 * scale  # of second order in 1e-6 m
            continue
        at = [i for i, dof in enumerate(model.unknowns.index.tolist()) if dof // 3 == own]
        allowed = torch.as_tensor(model.unknowns.slides.projections()[0, [4, 8].index(own)])
        others = [i for i in range(model.unknowns.count) if i not in at]
        assert (matrix[:, others, k] - slope[:, others]).abs().max() < 1e-8 * scale
        within = matrix[:, at][:, :, at] @ allowed
        assert (within[:, :, at.index(k)] - slope[:, at]).abs().max() < 1e-8 * scale
        across = torch.linalg.eigvalsh(matrix[:, at][:, :, at] - within)
        assert bool((across[:, -1] > 1e-3 * scale).all())


@pytest.mark.parametrize("integrator", [ImplicitEuler, Newmark])
def test_gradients_are_those_of_differences(integrator):
    """Differentiate by stiffness, start and the place of the line."""
    shift = torch.linspace(-1, 1, 3, dtype=torch.float64)
    model = arch(ANYHOW)
    bending = model.term("bend_twist").energy.EI1.detach()

    def loss(factor, start, line, record):
        with torch.set_grad_enabled(record):
            values = {"bend_twist.EI1": factor * bending}
            first = model.initial_state(2)
            state = first.replace(q=first.q + start * torch.cos(torch.arange(model.n_dofs)) * model.free)
            target = first.q.clone()
            target[:, 24:27] = target[:, 24:27] + line * shift
            end = unroll(
                model, state, integrator(0.02, **EXACT), 3, lambda time, model: Control(clamped_q=target, values=values)
            )
            return (end.state.positions * torch.linspace(0, 1, 27, dtype=torch.float64).view(9, 3)).sum()

    at = torch.tensor([1.0, 1e-3, 2e-3], dtype=torch.float64).unbind()
    leaves = [value.clone().requires_grad_() for value in at]
    found = torch.autograd.grad(loss(*leaves, True), leaves)
    for k in range(3):
        sides = []
        for sign in (1, -1):
            near = [value + sign * 1e-5 * (j == k) for j, value in enumerate(at)]
            sides.append(float(loss(*near, False)))
        # of second order; 1e-10 of noise, as steps end within 1e-13 N on nodes that 1e-3 N/m hold
        assert float(found[k]) == pytest.approx((sides[0] - sides[1]) / 2e-5, rel=1e-5, abs=1e-5 * 0.1)


@pytest.mark.parametrize("contact", ["floor", "rods", "constraints"])
def test_gradients_pass_through_contact(contact):
    """Differentiate by stiffness and the place of the line where robots touch something."""
    shift = torch.linspace(-1, 1, 3, dtype=torch.float64)
    model, euler = arch(ANYHOW, contact), ImplicitEuler(0.01, **EXACT)
    bending, state = model.term("bend_twist").energy.EI1.detach(), model.initial_state()
    with torch.no_grad():
        for _ in range(6):
            state, _ = euler.step(model, state, throw=True)

    def loss(factor, line, record):
        with torch.set_grad_enabled(record):
            target = state.q.clone()
            target[:, 24:27] = target[:, 24:27] + line * shift
            control = Control(clamped_q=target, values={"bend_twist.EI1": factor * bending})
            end = unroll(model, state, euler, 2, lambda time, model: control)
            return (end.state.positions[:, :9] * torch.linspace(0, 1, 27, dtype=torch.float64).view(9, 3)).sum()

    at = torch.tensor([1.0, 1e-5], dtype=torch.float64).unbind()
    leaves = [value.clone().requires_grad_() for value in at]
    found = torch.autograd.grad(loss(*leaves, True), leaves)
    for k, size in enumerate((1e-4, 1e-7)):
        sides = []
        for sign in (1, -1):
            near = [value + sign * size * (j == k) for j, value in enumerate(at)]
            sides.append(float(loss(*near, False)))
        # of second order; sums of 10 rounded to 1e-15
        assert float(found[k]) == pytest.approx((sides[0] - sides[1]) / (2 * size), rel=1e-4, abs=1e-9)


def test_recorded_steps_are_those_that_are_not():
    """Take steps that are recorded with every bit of those that are not."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    model, euler = arch(ANYHOW), ImplicitEuler(0.005)
    state = other = model.initial_state()
    for _ in range(30):
        state, _ = euler.step(model, state, throw=True)
        with Watched():
            other, _ = euler.step(model, other, throw=True)
    assert torch.equal(state.q, other.q)


@pytest.mark.slow
def test_compiled_steps_are_those_that_are_not():
    """Take the same steps compiled."""
    found = []
    for compiled in (False, True):
        model = arch(ANYHOW, compile=compiled)
        found.append(moved(model, Newmark)[0])
    torch.testing.assert_close(found[1], found[0], rtol=0, atol=1e-12)  # rounding of sums


def test_what_clamps_hold_adds_up():
    """Slide along the line in which two planes meet, be held by three; lines along axes are those of axes."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[2, 3, 4, 5], normal=(1, 1, 0))
    builder.clamp(nodes=[3, 4], normal=(1, 1, 1))
    builder.clamp(nodes=[4], axes="x")
    builder.clamp(nodes=[5], axes="z")
    builder.clamp(nodes=[0], along=(0, 0, -2))
    builder.clamp(nodes=[1], normal=(0, 3, 0))
    model = builder.finalize(compile=False)
    free = model.free[:18].view(6, 3)
    assert free[0].tolist() == [False, False, True] and free[1].tolist() == [True, False, True]
    assert not bool(free[4].any()) and free[5].tolist() == [True, True, False]
    slides = model.unknowns.slides
    assert slides.nodes.tolist() == [2, 3, 5]
    allowed = torch.tensor([[1, -1, 0], [-1, 1, 0], [0, 0, 0]], dtype=torch.float64) / 2
    found = torch.as_tensor(slides.projections()[0])
    torch.testing.assert_close(found[1], allowed, rtol=0, atol=1e-15)
    torch.testing.assert_close(found[2], allowed, rtol=0, atol=1e-15)
    torch.testing.assert_close(found[0], allowed + torch.diag(torch.tensor([0.0, 0, 1])).to(allowed))


def test_what_is_nearly_an_axis_is_none():
    """Keep directions that are off an axis by more than rounding, and take others for the axis."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    for node, off in enumerate((1e-8, 1e-11, 1e-13)):
        builder.clamp(nodes=[2 * node], along=(1e200, 1e200 * off, 0))
        builder.clamp(nodes=[2 * node + 1], normal=(1e-200, 0, 1e-200 * off))
    model = builder.finalize(compile=False)
    assert model.unknowns.slides.nodes.tolist() == [0, 1, 2, 3]
    for node, off in enumerate((1e-8, 1e-11)):
        along, across = model.unknowns.slides.projections()[0, 2 * node : 2 * node + 2]
        assert along[0, 1].item() == pytest.approx(off, rel=1e-4)  # rounding of 1e-16
        assert across[0, 2].item() == pytest.approx(-off, rel=1e-4)
    free = model.free[:18].view(6, 3)
    assert free[4].tolist() == [True, False, False] and free[5].tolist() == [False, True, True]


def test_a_line_that_moves_takes_its_node_along():
    """Follow a line that `clamped_q` moves, and stay where it is along it if nothing pulls."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 6), Circle(0.01), Material(1e6, 1000.0))
    builder.clamp(nodes=[5], along=(1, 0, 1), direction="rest")
    model = builder.finalize(compile=False)
    state = model.initial_state()
    target = state.q.clone()
    target[0, 15:18] += torch.tensor([0.2, 0.1, 0.0], dtype=torch.float64)
    state, _ = Static().step(model, state, Control(clamped_q=target), throw=True)
    way = state.positions[0] - model.nodes
    # the rod moves as a whole: by x - z = 0.2 and y = 0.1; rounding of positions
    torch.testing.assert_close(way[:, 0] - way[:, 2], torch.full_like(way[:, 0], 0.2), rtol=0, atol=1e-12)
    torch.testing.assert_close(way[:, 1], torch.full_like(way[:, 0], 0.1), rtol=0, atol=1e-12)


REFUSED = {
    "nothing": ({"along": (0, 0, 0)}, r"clamp.along: expected a vector \(3,\) other than zero, got \(0, 0, 0\)"),
    "not finite": ({"normal": (0, float("nan"), 0)}, "clamp.normal: expected a vector"),
    "two numbers": ({"along": (1, 0)}, "clamp.along: expected a vector"),
    "a word": ({"along": "x"}, "clamp.along: expected a vector"),
    "line and plane": ({"along": (1, 0, 0), "normal": (0, 1, 0)}, "expected one of axes, along and normal, got along"),
    "line and axes": ({"along": (1, 0, 0), "axes": "z"}, "got axes and along; what several clamps of a node hold"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_makes_no_sense_is_refused(name):
    """Name the argument, what was expected and what came."""
    given, message = REFUSED[name]
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(0.01), Material(1e6, 1000.0))
    with pytest.raises(InputError, match=message):
        builder.clamp(nodes=[0], **given)


@pytest.mark.parametrize("given", [{"along": (1, 1, 0)}, {"normal": (0, 1, 0)}])
def test_planar_robots_cannot_slide_out_of_their_plane(given):
    """Refuse lines that leave the plane, and planes other than those across it."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (1, 0, 0), 3), Circle(0.01), Material(1e6, 1000.0))
    with pytest.raises(InputError, match="a planar robot keeps to the x-z plane"):
        builder.clamp(nodes=[0], **given)
