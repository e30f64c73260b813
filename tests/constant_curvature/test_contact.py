"""Steps in contact: laws, closed forms, refusals, gradients, and one row that does not disturb another."""

import math
import warnings

import numpy as np
import pytest
import torch

from tests.constant_curvature.arms import HANGING, incline, paper_arm
from torchdismech import Control, InputError, Static, Trajectory, rollout, trainable, unroll
from torchdismech.constant_curvature import ArmIntegrator, ArmState, PneumaticArm
from torchdismech.constant_curvature.impulses import StepContacts
from torchdismech.contact import Box, Complementarity, Cylinder, Friction, HalfSpace, Obstacle, Path, Penalty, Sphere
from torchdismech.errors import Status
from torchdismech.solve.complementarity import Conditioning

DT = 4e-3
REST = torch.tensor([0.017157] * 3 + [0.0066636] * 3 + [0.0016351] * 3, dtype=torch.float64)


def pushed(batch: int, force: float = 25.0) -> Control:
    """Return the control that bends the lower sections towards x."""
    value = torch.zeros(batch, 9, dtype=torch.float64)
    value[:, [3, 6]] = force
    return Control(force=value)


def run(arm, steps: int, batch: int = 1, control: Control | None = None, q=REST, **settings):
    """Return the last state and the reports of steps, all made."""
    integrator = ArmIntegrator(DT, **settings)
    state, reports = arm.initial_state(batch, q=q), []
    for _ in range(steps):
        state, info = integrator.step(arm, state, control)
        assert bool(info.converged.all()), info.status
        reports.append(info)
    return state, reports


def test_laws_hold_in_every_step():
    """Push against a rising face: gaps stay, loads are in the cone, friction only takes energy, both modes are seen."""
    arm = paper_arm([incline(45, torch.tensor([[0.2], [0.5], [20.0]]).double(), height=-0.526)], disks=1)
    _, reports = run(arm, 50, 3, pushed(3))
    mu = torch.tensor([0.2, 0.5, 20.0], dtype=torch.float64)
    modes = torch.zeros(3, 2, dtype=torch.bool)
    for info in reports:
        impulse = info.plates.impulse
        assert info.plates.gap.min() > -1e-6
        assert (impulse[..., 0] >= 0).all()
        friction = impulse[..., 1:].norm(dim=2)
        assert (friction <= mu[:, None] * impulse[..., 0] + 1e-9).all()
        assert (friction[info.plates.sliding] > 0).all()
        modes |= torch.stack([info.plates.sticking.any(1), info.plates.sliding.any(1)], 1)
    assert modes[0, 1] and modes[2, 0]  # the smooth face is slid along, the rough one holds


def test_small_arms_are_stepped_as_large_ones():
    """Bend an arm onto a ball, and one of a ten-thousandth of its size: steps are judged by the tolerance alone."""
    ends = []
    for size in (1.0, 1e-4):  # times go with its root, so that gravity is the same, and masses with its third power
        shape = Sphere((-0.0483 * size, 0.0836 * size, -0.317 * size), 0.05 * size)
        ball = Obstacle(shape, Complementarity(1e-8 * size), Friction(0.5), name="ball")
        lengths, masses = [0.15 * size] * 3, [1.17 * size**3, 0.54 * size**3, 0.265 * size**3]
        springs = 265.0 * size**2, 125.0 * size**2.5
        sizes = {"plate_radius": 0.05 * size, "orientation": HANGING}
        arm = PneumaticArm(lengths, masses, 0.04 * size, *springs, obstacles=[ball], **sizes)
        integrator = ArmIntegrator(2e-3 * size**0.5)
        state = arm.initial_state(q=torch.full((9,), 0.02 * size, dtype=torch.float64))
        push = size**3 * torch.tensor([[0, 0, 0, 1.0, 0, 0, 1, 1, 0]], dtype=torch.float64)
        touched = 0
        for k in range(40):
            state, info = integrator.step(arm, state, Control(force=0.32 * k * push), throw=True)
            touched += int((info.plates.impulse[..., 0] > 0).any())
        assert touched > 2
        ends.append(state.q / size)
    torch.testing.assert_close(*ends, rtol=0, atol=1e-14)


def test_pyramid_and_conditioned_problem_lead_to_the_same_place():
    """Run the paper's pyramid, with and without its conditioning, beside the exact cone; motion is in a plane of it."""
    ends = []
    for settings in ({}, {"cone": "pyramid"}, {"cone": "pyramid", "conditioning": Conditioning()}):
        arm = paper_arm([incline(45, height=-0.526)], disks=1)
        ends.append(run(arm, 40, 1, pushed(1), **settings)[0].positions[0, -1])
    # the pyramid's first direction lies along tangent 1, in which the arm slides: no difference but the regularisation
    assert (ends[1] - ends[0]).norm() < 1e-6 and (ends[2] - ends[0]).norm() < 1e-5


def test_plate_on_an_incline_sticks_below_the_friction_angle():
    """Stand a straight section without springs on inclines by a tiny plate: it slides where the slope is more than mu.

    Half of its weight, straight down, is all that the plate carries, so this is Coulomb's block.
    """
    slopes = torch.tensor([0.0, 0.2, 0.4, 0.49, 0.51, 0.6], dtype=torch.float64)
    angle = slopes.atan()
    normal = torch.stack([-angle.sin(), 0 * angle, angle.cos()], 1)
    face = HalfSpace((0.0, 0.0, -0.1501), normal)
    obstacle = Obstacle(face, Complementarity(), Friction(0.5), name="incline")
    arm = PneumaticArm(
        [0.15], 1.0, 0.04, 0.0, 5.0, disks=0, plate_radius=1e-5, orientation=HANGING, obstacles=[obstacle]
    )
    integrator = ArmIntegrator(DT)
    state = arm.initial_state()
    for _ in range(12):
        state, info = integrator.step(arm, state)
    assert info.contact["sticking"].tolist() == [1, 1, 1, 1, 0, 0]
    assert info.contact["sliding"].tolist() == [0, 0, 0, 0, 1, 1]
    load = info.contact["force/incline"]
    # what is left of the settling: 2e-7 N
    assert torch.allclose(load[:4, 2], torch.full((4,), 9.81 / 2).double(), rtol=1e-6)
    # the plate touches by its rim, 1e-5 m off the axis: 1.1e-3 N seen, with a tenth of that radius half as much
    assert load[:4, :2].abs().max() < 2e-3


def test_rows_do_not_know_each_other():
    """Compare a row of a batch, beside one that fails, with the robot alone; the failure is flagged and stays put."""
    mu = torch.tensor([[0.2], [0.5], [0.9]], dtype=torch.float64)
    alone, _ = run(paper_arm([incline(45, 0.5, height=-0.526)], disks=1), 30, 1, pushed(1))
    arm = paper_arm([incline(45, mu, height=-0.526)], disks=1)
    state = arm.initial_state(q=REST.repeat(3, 1))
    state = state.replace(velocity=torch.tensor([[math.nan], [0.0], [0.0]], dtype=torch.float64) * torch.ones(1, 9))
    bad = state.q.clone()
    bad[2] = -0.16
    state = state.replace(q=bad)
    for _ in range(30):
        state, info = ArmIntegrator(DT).step(arm, state, pushed(3))
        assert info.status.tolist() == [Status.NOT_FINITE, Status.CONVERGED, Status.COLLAPSED]
    assert (state.q[2] == -0.16).all() and state.time.tolist() == [0.0, state.time[1].item(), 0.0]
    # to rounding of the solvers, whose products group differently in a batch
    assert (state.q[1] - alone.q[0]).abs().max() < 1e-12


def test_push_that_shortens_a_section_to_nothing_is_flagged():
    """Pull all chambers of the last section together; the state before is kept."""
    arm = paper_arm(disks=0, damping=1.0)
    force = torch.zeros(1, 9, dtype=torch.float64)
    force[:, 6:] = -2000.0
    state, integrator = arm.initial_state(), ArmIntegrator(5e-3)
    for _ in range(50):
        after, info = integrator.step(arm, state, Control(force=force))
        if not info.converged.all():
            break
        state = after
    assert info.status.tolist() == [Status.COLLAPSED] and (after.q == state.q).all()


def test_step_that_may_jump_over_a_thin_obstacle_is_flagged():
    """Move a plate by more than half the thickness of a thin box near by."""
    thin = Obstacle(Box((0.0, 0.0, -0.52), (0.4, 0.4, 1e-4)), Complementarity(), Friction(0.5), name="sheet")
    arm = paper_arm([thin], disks=0)
    fast = arm.initial_state(velocity=torch.full((9,), 10.0, dtype=torch.float64))
    _, info = ArmIntegrator(DT).step(arm, fast)
    assert info.status.tolist() == [Status.PASSED_THROUGH]


def test_moving_obstacle_pushes():
    """Push a hanging arm aside by a wall that comes at .1 m/s: the plate moves with it."""
    wall = Obstacle(
        HalfSpace((0.055, 0.0, 0.0), (-1.0, 0.0, 0.0)),
        Complementarity(),
        Friction(0.5),
        path=Path.uniform((-0.1, 0.0, 0.0)),
        name="wall",
    )
    arm = paper_arm([wall], disks=0)
    _, reports = run(arm, 30)
    # gaps are linear in a step: of second order in its length, 4e-7 m at the last
    assert reports[-1].plates.gap.amin().item() == pytest.approx(0.0, abs=1e-6)
    assert reports[-1].contact["force/wall"][0, 0] < -0.1


def test_plates_do_not_sink_into_a_wall_that_pushes_them():
    """Push a hanging arm with a wall at 1 m/s: what the motion bows in a step is made up for wholly, step by step."""
    face = HalfSpace((0.05, 0, 0), (-1, 0.2, -0.1))
    wall = Obstacle(face, Complementarity(), Friction(0.3), path=Path.uniform((-1.0, 0, 0), 10.0), name="wall")
    arm = paper_arm([wall])
    start = arm.initial_state(q=[0.0172] * 3 + [0.0066] * 3 + [0.0016] * 3)  # about as it hangs
    run = rollout(arm, start, ArmIntegrator(4e-3), 18)
    assert not run.failed.any() and (run.contact["active"] > 0).sum() > 5
    assert run.contact["penetration"].max() < 1e-6  # as docs/pneumatic_arm.md has it


def test_gradients_through_contact():
    """Hold gradients of 50 steps by force, friction, stiffness, start and the face's place against central differences.

    No contact changes between open, sticking and sliding within the differences: each stays in its mode for the same
    steps, which is asserted; at such a change the end state has a kink.
    """
    names = ("force", "mu", "stiffness", "start", "height")
    base = torch.tensor([25.0, 0.3, 265.0, 0.0, -0.526], dtype=torch.float64)
    h = torch.tensor([1e-3, 1e-5, 1e-2, 1e-7, 1e-7], dtype=torch.float64)
    rows = torch.stack([base] + [base + sign * h * e for e in torch.eye(5).double() for sign in (1, -1)])
    angle = math.radians(45)
    points = torch.nn.functional.pad(rows[:, 4:5], (2, 0))
    face = HalfSpace(points, (-math.sin(angle), 0.0, math.cos(angle)))
    friction = Friction(rows[:, 1:2])
    stiffness = torch.nn.Parameter(rows[:, 2:3].clone())
    arm = PneumaticArm(
        [0.15] * 3,
        [1.17, 0.54, 0.265],
        0.04,
        stiffness,
        125.0,
        disks=1,
        orientation=HANGING,
        obstacles=[Obstacle(face, Complementarity(), friction, name="face")],
    )
    force, start = rows[:, :1].clone().requires_grad_(True), rows[:, 3:4].clone().requires_grad_(True)
    own = arm.obstacles[0]  # whose shape and law are copies
    mu, height = own.law.friction.coefficient.requires_grad_(True), own.shape.point.requires_grad_(True)
    given = (force, mu, stiffness, start, height)
    push = torch.zeros(9, dtype=torch.float64)
    push[[3, 6]] = 1.0
    state = arm.initial_state(q=REST + start)
    integrator, modes = ArmIntegrator(DT), []
    for _ in range(50):
        state, info = integrator.step(arm, state, Control(force=force * push))
        modes.append(torch.stack([info.plates.sticking, info.plates.sliding], -1))
    modes = torch.stack(modes)
    assert bool(info.converged.all()) and bool((modes == modes[:, :1]).all())
    assert bool(modes[..., 1].any())
    tip = state.positions[:, -1]
    for axis in (0, 2):
        exact = [x[0, -1] for x in torch.autograd.grad(tip[0, axis], given, retain_graph=True)]
        measured = (tip[1::2, axis] - tip[2::2, axis]).detach() / (2 * h)
        for name, a, b in zip(names, exact, measured, strict=True):
            # of differences: their steps squared, and rounding over these; 1e-9 seen
            assert a.item() == pytest.approx(b.item(), rel=1e-7, abs=1e-9), (name, axis)


def on_a_ball_that_moves():
    """Return an obstacle that the last plate of a hanging arm lies on: a ball on a path of its own."""
    path = Path([0.0, 1.0], [[0.0, 0.0, 0.0], [0.02, 0.0, 0.05]])
    return Obstacle(Sphere((-0.2, 0.0, -0.737), 0.3), Complementarity(), Friction(0.3), path=path, name="ball")


EDGES = {
    "box": Box((0.01, 0.0, -0.62), (0.2, 0.2, 0.2), (0.25, math.pi / 4 - 0.1, 0.1)),
    "cylinder": Cylinder((0.0, 0.0, -0.7), (0.05, 0.0, -0.51), 0.2),
}


@pytest.mark.parametrize("name", EDGES)
def test_gradients_through_contact_with_an_edge(name):
    """Push the end plate onto a box's edge and a cylinder's rim; compare gradients of steps in contact."""
    obstacle = Obstacle(EDGES[name], Complementarity(), Friction(0.5), name=name)
    arm, integrator = paper_arm([obstacle], disks=0), ArmIntegrator(dt=2e-3)
    push = torch.tensor([[12.0, 10.0, 10.0] * 3], dtype=torch.float64)
    state, touched = arm.initial_state(1, q=torch.full((9,), -0.01, dtype=torch.float64)), 0
    while touched < 3:
        state, info = integrator.step(arm, state, Control(force=push), throw=True)
        touched += int(info.contact["active"])
        assert info.plates.gap.min() > -1e-6  # as docs/pneumatic_arm.md says

    def tip(share: torch.Tensor) -> torch.Tensor:
        after = state
        for _ in range(3):
            after, _ = integrator.step(arm, after, Control(force=push + share), throw=True)
        return after.positions[0, -1]

    zero = torch.zeros((), dtype=torch.float64)
    exact = torch.autograd.functional.jacobian(tip, zero)
    h = torch.tensor(1e-5, dtype=torch.float64)
    with torch.no_grad():
        measured = (tip(h) - tip(-h)) / (2 * h)
    # the differences' rounding is 1e-17 / 1e-5 = 1e-12; what they measure is 1e-5
    assert (exact - measured).abs().max() < 1e-6 * measured.abs().max()


@pytest.mark.parametrize(
    ("obstacle", "names", "unit"),
    [
        (lambda: incline(45, 0.3, -0.526), ["face.friction"], None),
        (lambda: incline(45, 0.3, -0.526), ["face.point"], 1e-2),
        (on_a_ball_that_moves, ["ball.friction"], None),
        (on_a_ball_that_moves, ["ball.center"], 1e-2),
        (on_a_ball_that_moves, ["ball.radius"], None),
        (on_a_ball_that_moves, ["ball.displacements"], 1e-2),
    ],
)
def test_constants_of_obstacles_are_trained(obstacle, names, unit):
    """Hold gradients by what `trainable` makes of an obstacle's constants against central differences."""
    arm = paper_arm([obstacle()], disks=0)
    assert set(names) < trainable.constants(arm).keys()
    made = trainable.scaled(arm, names) if unit is None else trainable.shifted(arm, names, unit, _row(arm, names[0]))
    (change,) = made.parameters()

    def tip():
        out = unroll(arm, arm.initial_state(q=REST), ArmIntegrator(DT), 12, lambda t, a: pushed(1))
        assert bool((out.status == Status.CONVERGED).all())
        return arm.points(out.q[-1])[0, -1, 0]

    gradient = torch.autograd.grad(tip(), change)[0]
    along, ends = torch.linspace(1.0, 2.0, change.numel(), dtype=torch.float64).view_as(change), []
    with torch.no_grad():
        for sign in (1, -1):
            change += sign * 1e-5 * along
            ends.append(tip())
            change -= sign * 1e-5 * along
    # rounding of the differences is 1e-16 / 2e-5, and their error 1e-10 times a third derivative
    assert float((gradient * along).sum()) == pytest.approx(float(ends[0] - ends[1]) / 2e-5, rel=1e-6, abs=1e-9)
    assert float(gradient.abs().max()) > 1e-6


@pytest.mark.parametrize("name", ["ball.friction", "ball.radius"])
def test_constants_of_obstacles_that_are_below_zero_are_refused(name):
    """Refuse a step with a constant that an optimiser drove there, by its name."""
    arm = paper_arm([on_a_ball_that_moves()], disks=0)
    trainable.shifted(arm, [name], 1.0).shift.data.fill_(-1.0)
    with pytest.raises(InputError, match=rf"^{name}: expected 0 or more, got -0.7"):
        ArmIntegrator(DT).step(arm, arm.initial_state(q=REST))


def _row(arm, name):
    """Return the shape of a constant."""
    return trainable.value(arm, name).shape


def test_arms_in_millimetres_are_warned_of():
    """Warn of an arm of 300 m."""
    with pytest.warns(UserWarning, match="pneumatic arms: they are 300 m long. If lengths are in millimetres"):
        PneumaticArm([150.0, 150.0], 0.1, 0.04, 265.0)


def test_gradients_of_steps_that_are_solved_again(monkeypatch):
    """Hold gradients by force, start and the face's height where the gaps' curvature makes steps be solved again."""
    attempts, solve = [], StepContacts.impulses
    monkeypatch.setattr(StepContacts, "impulses", lambda self: attempts.append(1) or solve(self))
    h = torch.tensor([1e-3, 1e-7, 1e-7], dtype=torch.float64)
    base = torch.tensor([25.0, 0.0, -0.476], dtype=torch.float64)
    rows = torch.stack([base] + [base + sign * h * e for e in torch.eye(3).double() for sign in (1, -1)])
    force, start = (x.clone().requires_grad_(True) for x in rows[:, :2].split(1, 1))
    angle = math.radians(4)
    face = HalfSpace(torch.nn.functional.pad(rows[:, 2:], (2, 0)), (-math.sin(angle), 0.0, math.cos(angle)))
    face.point = torch.nn.Parameter(face.point.detach())
    arm = paper_arm([Obstacle(face, Complementarity(), Friction(0.3), name="face")], disks=1)
    push = pushed(1, 1.0).force
    state = arm.initial_state(q=REST + start, velocity=0.3 * push - 0.15 * push.roll(1))
    for _ in range(4):
        state, info = ArmIntegrator(1e-2).step(arm, state, Control(force=force * push))
        assert bool(info.converged.all()) and bool((info.plates.sliding == info.plates.sliding[:1]).all())
    assert len(attempts) > 4
    assert state.q.requires_grad and not info.plates.gap.requires_grad
    tip = state.positions[:, -1]
    for axis in (0, 2):
        force_, start_, point = torch.autograd.grad(tip[0, axis], (force, start, face.point), retain_graph=True)
        exact = torch.stack([force_[0, 0], start_[0, 0], point[0, 2]])
        measured = (tip[1::2, axis] - tip[2::2, axis]).detach() / (2 * h)
        # rounding of the differences is 1e-16 / 1e-7; without the derivatives of the gaps a third of `start` is left
        assert torch.allclose(exact, measured, rtol=1e-6, atol=1e-8), (exact, measured)


def test_unroll_gives_gradients_too():
    """Differentiate the end of `unroll` with checkpoints by the damping."""
    arm = paper_arm([incline(45, height=-0.526)], disks=0)
    arm.damping.requires_grad_(True)
    out = unroll(arm, arm.initial_state(q=REST), ArmIntegrator(DT), 10, lambda t, a: pushed(1), checkpoint_every=5)
    out.q[-1].sum().backward()
    assert torch.isfinite(arm.damping.grad).all() and arm.damping.grad.abs().sum() > 0


def test_positions_of_runs_with_gradients():
    """Give the points of each state of `unroll`, as `rollout` does."""
    arm = paper_arm()
    run = unroll(arm, arm.initial_state(q=REST), ArmIntegrator(DT), 2, lambda t, a: pushed(1))
    expected = rollout(arm, arm.initial_state(q=REST), ArmIntegrator(DT), 2, lambda t, a: pushed(1)).positions
    torch.testing.assert_close(run.positions, expected, rtol=0, atol=1e-13)  # rounding


def test_controls_that_are_not_finite_are_named():
    """Say which robot's forces hold NaN."""
    arm, control = paper_arm(), pushed(2)
    control.force[1, 4] = math.nan
    with pytest.warns(RuntimeWarning, match="Control.force of robot 1 at t = 0 s holds NaN"):
        _, info = ArmIntegrator(DT).step(arm, arm.initial_state(2), control)
    assert info.status.tolist() == [Status.CONVERGED, Status.NOT_FINITE]


def test_beginning_inside_of_an_obstacle_is_warned_of():
    """Begin with the last plate 50 mm inside of a face, or of a ball that a path carries there; not beside them."""
    floor = HalfSpace((0.0, 0.0, -0.40), (0.0, 0.0, 1.0))
    deep = paper_arm([Obstacle(floor, Complementarity(), name="floor")])
    with pytest.warns(RuntimeWarning, match=r"'floor' \(HalfSpace\): plate 11 of robot 0 begins inside .* 0.05 m deep"):
        rollout(deep, deep.initial_state(), ArmIntegrator(DT), 1)
    carried = Path([0.0, 1.0], [[0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    ball = Obstacle(Sphere((0.0, 0.0, -0.95), 0.1), Complementarity(), path=carried, name="ball")
    arm = paper_arm([ball])
    later = arm.initial_state().replace(time=torch.tensor([0.45], dtype=torch.float64))
    with pytest.warns(RuntimeWarning, match="'ball' .* 0.05 m deep"):
        ArmIntegrator(DT).prepare(arm, later, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ArmIntegrator(DT).prepare(arm, arm.initial_state(), 1)


def test_states_begin_where_lists_say():
    """Give elongations as a list and rates as an array: in the arm's dtype, for as many robots as there are rows."""
    state = paper_arm().initial_state(q=[0.01] * 9, velocity=np.full((2, 9), 0.1, dtype=np.float32))
    assert state.q.dtype == state.velocity.dtype == torch.float64 and state.q.shape == (2, 9)
    assert (state.q == 0.01).all()


BALL = Obstacle(Sphere((0.0, 0.0, -0.6), 0.05), Complementarity(), Friction(0.5), name="ball")
REFUSED = {
    "one obstacle alone": (
        lambda: paper_arm(incline(45.0)),
        "obstacles: expected a list of contact.Obstacle, also of one alone, got Obstacle",
    ),
    "one mass in a list": (
        lambda: PneumaticArm([0.1, 0.1], [0.1], 0.04, 265.0),
        r"mass: expected a number or 2 of them, got a list of one, \[0.1\]",
    ),
    "a section without length": (
        lambda: paper_arm().initial_state(q=[0.0] * 3 + [-0.2] * 3 + [0.0] * 3),
        "initial_state: q: .* section 1 of robot 0 is -0.05 m long",
    ),
    "a rotation matrix": (
        lambda: paper_arm(orientation=torch.diag(torch.tensor([1.0, -1.0, -1.0]).double())),
        "PneumaticArm.orientation: expected a rotation vector .* got what looks like a rotation matrix",
    ),
    "lengths in single precision": (
        lambda: PneumaticArm(torch.tensor([0.15]), 1.0, 0.04, 265.0),
        "PneumaticArm: expected all constants in one dtype, got length in torch.float32; mass, .* tensor.double",
    ),
    "a stiffness with gradients": (
        lambda: PneumaticArm([0.15], 1.0, 0.04, torch.tensor(265.0).double().requires_grad_()),
        "PneumaticArm.stiffness: got a tensor that requires gradients.* or give an nn.Parameter, which an arm keeps",
    ),
    "shape of one": (lambda: paper_arm().shape(torch.zeros(9).double()), r"q: expected a tensor of shape \(B, 9\)"),
    "potential of one": (lambda: paper_arm().potential(torch.zeros(9).double()), r"q: expected a tensor of shape"),
    "masses of one": (lambda: paper_arm().mass_matrix(torch.zeros(9).double()), r"q: expected a tensor of shape"),
    "forces of others": (
        lambda: paper_arm().inverse_dynamics(*(torch.zeros(1, n).double() for n in (9, 8, 9))),
        r"velocity: expected a tensor of shape \(B, 9\), got \(1, 8\)",
    ),
    "text for directions": (
        lambda: ArmIntegrator(DT, directions="8"),
        "directions: expected a whole number from 4 up, got '8'",
    ),
    "text for a conditioning": (
        lambda: ArmIntegrator(DT, cone="pyramid", conditioning="R"),
        "conditioning: expected a solve.complementarity.Conditioning, got str",
    ),
    "Static": (
        lambda: Static().step(paper_arm(), paper_arm().initial_state()),
        r"that takes constant_curvature.ArmIntegrator \(and at rest: constant_curvature.equilibrium\)",
    ),
    "two chambers": (lambda: paper_arm(chambers=2), "chambers: expected a whole number from 3 up"),
    "no radius": (lambda: PneumaticArm([0.15], 1.0, 0.0, 265.0), "radius: expected numbers above 0"),
    "no length": (lambda: PneumaticArm([0.15, 0.0], 1.0, 0.04, 265.0), "lengths|length: expected numbers above 0"),
    "no mass": (lambda: PneumaticArm([0.15], -1.0, 0.04, 265.0), "mass: expected numbers above 0"),
    "penalty": (
        lambda: paper_arm([Obstacle(Sphere((0, 0, 0), 0.1), Penalty(100.0, 1e-3), name="soft")]),
        "obstacle soft: .* expected the response Complementarity",
    ),
    "no obstacle": (lambda: paper_arm([Sphere((0, 0, 0), 0.1)]), "expected contact.Obstacle, got Sphere"),
    "twice a name": (lambda: paper_arm([BALL, BALL]), "a name of its own"),
    "friction": (lambda: Friction(-0.1), "Friction.coefficient: expected 0 or more"),
    "alpha 0": (lambda: ArmIntegrator(DT, stabilisation=0.0), "stabilisation: expected alpha above 0"),
    "alpha 2": (lambda: ArmIntegrator(DT, stabilisation=2.0), "stabilisation: expected alpha above 0"),
    "scheme": (lambda: ArmIntegrator(DT, scheme="rk4"), "scheme: expected one of implicit, explicit, rk23"),
    "conditioning": (lambda: ArmIntegrator(DT, conditioning=Conditioning()), 'set cone="pyramid"'),
    "q": (lambda: paper_arm().initial_state(q=torch.full((9,), math.nan)), "initial_state: q holds numbers that are"),
    "velocity": (
        lambda: paper_arm().initial_state(velocity=torch.full((2, 9), math.inf)),
        "initial_state: velocity holds numbers that are not finite",
    ),
    "size of q": (lambda: paper_arm().initial_state(q=torch.zeros(8)), r"initial_state: q has to be \(9,\)"),
    "robots of q": (lambda: paper_arm().initial_state(3, torch.zeros(2, 9)), "is given for 2 robots, asked for are 3"),
    "batch": (lambda: paper_arm().initial_state(2.5), "batch has to be a whole number from 1 up, got 2.5"),
    "dtype of control": (
        lambda: ArmIntegrator(DT).step(a := paper_arm(), a.initial_state(), Control(force=torch.zeros(1, 9))),
        "Control.force: expected torch.float64, as the model is, got torch.float32",
    ),
    "single precision": (
        lambda: ArmIntegrator(DT).step(a := paper_arm([incline(45.0)]).float(), a.initial_state()),
        "contact of an arm needs an arm in torch.float64, got torch.float32",
    ),
    "control": (lambda: ArmIntegrator(DT).step(a := paper_arm(), a.initial_state(), pushed(2)), "Control.force"),
    "explicit with four": (
        lambda: ArmIntegrator(DT, scheme="explicit").step(a := paper_arm(chambers=4), a.initial_state()),
        "the mass matrix of sections with 4 chambers is singular",
    ),
}


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(call, message):
    """Refuse what makes no sense, naming it."""
    with pytest.raises(InputError, match=message):
        call()


@pytest.mark.parametrize("touches", [False, True])
def test_a_run_goes_on_from_its_file(touches, tmp_path):
    """Write a run, read it back with its impulses, and go on from its state as if without a file."""
    arm = paper_arm([incline(45, height=-0.526)] if touches else [], disks=1)
    start, integrator = arm.initial_state(2, q=REST), ArmIntegrator(DT)
    whole = rollout(arm, start, integrator, 6, schedule=lambda time, arm: pushed(2))
    first = rollout(arm, start, integrator, 4, schedule=lambda time, arm: pushed(2))
    first.save(tmp_path / "arm.h5")
    read = Trajectory.load(tmp_path / "arm.h5")
    assert isinstance(read.state, ArmState) and read.state_step == 4
    assert bool((read.state.impulses > 0).any()) == touches
    for name in ("positions", "velocities", "twist"):
        assert torch.equal(getattr(read, name), getattr(whole, name)[:5])
    rest = rollout(arm, read.state, integrator, 2, schedule=lambda time, arm: pushed(2))
    assert torch.equal(rest.twist[1:], whole.twist[5:])
