"""Steps in contact: laws, closed forms, and one row that does not disturb another."""

import math

import pytest
import torch

from tests.constant_curvature.arms import DT, HANGING, REST, incline, paper_arm, pushed, run
from torchdismech import Control, Trajectory, rollout
from torchdismech.constant_curvature import ArmIntegrator, ArmState, PneumaticArm
from torchdismech.constant_curvature.impulses import Impulses, StepContacts
from torchdismech.contact import Box, Complementarity, Friction, HalfSpace, Obstacle, Path, Sphere
from torchdismech.errors import Status
from torchdismech.solve.complementarity import solve_contact


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


def slid(steps=40, **settings):
    """Return the tip of an arm that has slid along an incline."""
    arm = paper_arm([incline(45, height=-0.526)], disks=1)
    return run(arm, steps, 1, pushed(1), **settings)[0].positions[0, -1]


def test_pyramid_leads_to_the_same_place():
    """Run the paper's pyramid beside the exact cone; motion is in a plane of it."""
    # the pyramid's first direction lies along tangent 1, in which the arm slides: what is left are tolerances
    assert (slid(cone="pyramid") - slid()).norm() < 1e-6


def test_a_solver_of_ones_own():
    """Solve contact problems by a function that is given them; it is the library's own, so no bit differs."""
    seen = []

    def solved(delassus, start, mu, active):
        seen.append((delassus.shape, start.shape, mu.shape, active.dtype))
        return solve_contact(delassus, start, mu, active, cone="pyramid", directions=4)

    assert torch.equal(slid(12, solver=solved), slid(12, cone="pyramid"))
    assert ((1, 3, 3), (1, 3), (1, 1), torch.bool) in seen


def test_plates_on_smooth_obstacles_neither_stick_nor_slide():
    """Count those with friction alone, as of rods and shells: an arm hangs onto a smooth face, or onto a rough one."""
    face = HalfSpace((0.0, 0.0, -0.46), (0.0, 0.0, 1.0))
    for friction, rubbing in ((None, [0]), (Friction(0.5), [1])):
        arm = paper_arm([Obstacle(face, Complementarity(), friction)], disks=0)
        run = rollout(arm, arm.initial_state(), ArmIntegrator(DT), 100)
        assert run.contact["active"][-1].tolist() == [1] and not run.failed.any()
        assert (run.contact["sticking"] + run.contact["sliding"])[-1].tolist() == rubbing


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


def test_a_step_that_is_solved_again_is_so_for_its_robot_alone():
    """Step an arm beside one of which a plate would end inside the ball: its step is the one that it makes alone."""
    ball = Obstacle(Sphere((0.0, 0.1005, -0.4), 0.05), Complementarity(), Friction(0.5), name="ball")
    arm = paper_arm([ball], damping=12.0)
    generator = torch.Generator().manual_seed(0)
    q = 0.02 + 5e-4 * torch.randn(24, 9, dtype=torch.float64, generator=generator)
    velocity = 0.25 * torch.randn(24, 9, dtype=torch.float64, generator=generator)
    start = arm.initial_state(24, q=q, velocity=velocity)
    together, _ = ArmIntegrator(DT).step(arm, start, throw=True)
    for k in (7, 11, 17, 19):
        alone, _ = ArmIntegrator(DT).step(arm, arm.initial_state(1, q=q[k], velocity=velocity[k]), throw=True)
        torch.testing.assert_close(together.q[k], alone.q[0], rtol=0, atol=1e-10)


def test_arms_that_do_not_step_cost_no_contact(monkeypatch):
    """Rest an arm, at zero elongations, deep in the face that the other one stands on: its contacts are not solved."""
    arm = paper_arm([incline(0, height=-0.43)], disks=1)
    solved, impulses_of = [], StepContacts._impulses_of

    def counted(contacts, order, active):
        solved.append(active.any(1).tolist())
        return impulses_of(contacts, order, active)

    monkeypatch.setattr(StepContacts, "_impulses_of", counted)
    state = arm.initial_state(2, q=torch.full((9,), -0.0067, dtype=torch.float64))
    for _ in range(8):
        state, info = ArmIntegrator(DT).step(arm, state, running=torch.tensor([True, False]))
    assert info.contact["active"].tolist() == [1, 0]
    assert 0 < len(solved) <= 8 and all(rows == [True, False] for rows in solved)


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


@pytest.mark.parametrize(("where", "motion", "passes"), [(100.0, 0.0, False), (0.0, 0.0, True), (0.0, 1.0, False)])
def test_thin_obstacles_count_where_they_are(where, motion, passes):
    """Look for a thin box at its place in the step; a plate that moves along with it passes through nothing."""
    velocity = torch.zeros(9, dtype=torch.float64)
    velocity[6:] = 10.0  # the last section gets longer, so its plate goes down by as much
    arm = paper_arm(disks=0)
    start = arm.initial_state(velocity=velocity)
    after, _ = ArmIntegrator(DT).step(arm, start)
    fall = (after.positions - start.positions)[0, -1]
    first = torch.tensor([0.0, 0.0, where], dtype=torch.float64) - motion * fall
    path = Path([0.0, DT, 1.0], torch.stack([first, first + motion * fall, first + motion * fall]).tolist())
    box = Box(tuple((start.positions[0, -1] + (motion - 0.5) * fall).tolist()), (0.4, 0.4, 1e-4))
    moving = paper_arm([Obstacle(box, Complementarity(), Friction(0.5), path=path)], disks=0)
    _, info = ArmIntegrator(DT).step(moving, moving.initial_state(velocity=velocity))
    assert (info.status == Status.PASSED_THROUGH).tolist() == [passes]


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


def test_a_plate_that_walls_close_on_has_no_solution_where_friction_holds_it(monkeypatch):
    """Fail, and say why, where a wall moves towards another with a plate between them; let the plate turn if smooth.

    The problem that has no solution is searched once, not corrected and searched again.
    """
    searched, solved = StepContacts.impulses, []

    def counted(contacts: StepContacts) -> Impulses:
        found = searched(contacts)
        solved.append(bool(found.solved))
        return found

    monkeypatch.setattr(StepContacts, "impulses", counted)
    for friction, status in ((Friction(0.5), Status.CONTACT_UNSOLVED), (None, Status.CONVERGED)):
        walls = [
            Obstacle(
                HalfSpace((-0.0501, 0, 0), (1, 0, 0)), Complementarity(), friction, Path.uniform((0.1, 0, 0)), "a"
            ),
            Obstacle(HalfSpace((0.0501, 0, 0), (-1, 0, 0)), Complementarity(), friction, name="b"),
        ]
        arm = PneumaticArm([0.2], [0.5], 0.03, 300.0, 50.0, disks=0, obstacles=walls, orientation=(0, math.pi, 0))
        start = torch.tensor([0.004, -0.002, -0.002], dtype=torch.float64)  # the plate leans, so that it can turn
        squeezed = rollout(arm, arm.initial_state(1, q=start), ArmIntegrator(2e-3), 10)
        assert int(squeezed.status[-1]) == status
    assert solved.count(False) == 1
    assert "no impulses solve it" in Status.CONTACT_UNSOLVED.explanation
