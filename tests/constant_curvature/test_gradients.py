"""Gradients of steps in contact: held against differences, and constants of obstacles that are trained."""

import math

import pytest
import torch

from tests.constant_curvature.arms import DT, HANGING, REST, incline, paper_arm, pushed
from torchdismech import Control, InputError, rollout, trainable, unroll
from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
from torchdismech.constant_curvature.impulses import StepContacts
from torchdismech.contact import Box, Complementarity, Cylinder, Friction, HalfSpace, Obstacle, Path, Sphere
from torchdismech.errors import Status


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
