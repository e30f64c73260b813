"""The pneumatic arm's scenes end where they should."""

import functools

import numpy as np
import pytest
import torch

from studies.pneumatic_arm import ablation, pneumatic_arm
from studies.pneumatic_arm.conditioned import Conditioning, solve_conditioned
from studies.pneumatic_arm.scenarios import draped, inclined_box, rough_incline, two_spheres
from tests.constant_curvature.arms import incline, paper_arm, pushed, run
from torchdismech import Control
from torchdismech.constant_curvature import ArmIntegrator

TIP = np.array([0.113, 0.0, -0.407])  # m, of scenario A at 2 s, from an earlier program with central differences


def test_arm_bends_onto_the_incline():
    """Follow scenario A with steps of 10 ms: shortens, touches, sticks, slides; the tip is near that of fine steps."""
    trajectory = pneumatic_arm.run(inclined_box(half=True, disks=0), dt=1e-2)
    height = {0.4: -0.490, 0.8: -0.482}
    for time, expected in height.items():
        frame = int((trajectory.time - time).abs().argmin())
        assert abs(trajectory.positions[frame, 0, -1, 2].item() - expected) < 2e-3
    active, sliding = trajectory.contact["active"][:, 0], trajectory.contact["sliding"][:, 0]
    assert (active[trajectory.time < 1.15] == 0).all()
    assert active[-1] == 1 and sliding[-1] == 1
    assert trajectory.contact["penetration"].max() < 1e-6
    assert np.linalg.norm(trajectory.positions[-1, 0, -1].numpy() - TIP) < 6e-3


@pytest.mark.slow
@pytest.mark.parametrize("half", [True, False], ids=["half-space", "box"])
def test_tip_of_scenario_a(half):
    """Reach the tip of an independent program at 2 ms, on the half-space and on the box, to 2 mm."""
    trajectory = pneumatic_arm.run(inclined_box(half=half))
    frame = int((trajectory.time - 1.6).abs().argmin())
    assert trajectory.contact["sticking"][frame, 0] == 1
    assert trajectory.contact["sliding"][-1, 0] == 1
    assert np.linalg.norm(trajectory.positions[-1, 0, -1].numpy() - TIP) < 2e-3
    assert trajectory.contact["penetration"].max() < 1e-6


def test_varied_arms_are_counted():
    """Count what four arms with other constants do; the first is the arm as it is."""
    scene = pneumatic_arm.varied(inclined_box, 4, disks=0)
    assert scene.arm.stiffness[0].item() == pytest.approx(265.0)
    trajectory = pneumatic_arm.run(scene, dt=5e-3, duration=0.1)
    assert pneumatic_arm.counts(trajectory, 0.1) == (0, 0, 4)


def test_draped_arm_bears_load_on_many_plates():
    """Let the arm of scenario A' fall, from apart, until it lies on the face with four plates or more."""
    scene = draped(45.0, 6)
    trajectory = pneumatic_arm.run(scene, dt=1e-2, duration=0.8)
    assert trajectory.contact["penetration"].max() < 1e-6
    assert trajectory.contact["active"][-1, 0] >= 4


def test_many_plates_stick_and_then_slide():
    """Follow scenario A'': the arm falls, sticks on the face with many plates, and slides as it is lifted."""
    trajectory = pneumatic_arm.run(rough_incline(), duration=1.4)
    active, sticking, sliding = (trajectory.contact[name][:, 0] for name in ("active", "sticking", "sliding"))
    # two plates bear nearly all; what each of those between has is hardly determined, and some open or slide at times
    at_rest = (trajectory.time > 0.35) & (trajectory.time < 0.95)
    assert active[0] == 0 and (active[at_rest] >= 4).all() and (sticking[at_rest] >= 4).all()
    lifted = trajectory.time > 1.25
    assert (sticking[lifted] == 0).all() and (sliding[lifted] == 1).all()
    assert trajectory.contact["penetration"].max() < 1e-6


def test_plates_that_are_about_to_be_lifted():
    """Step from where an arm of scenario A'' begins to leave the face; all starts of the interior point method fail."""
    scene = rough_incline(friction=0.8783542, stiffness=230.6467)
    q = [-0.0049403, 0.0069483, 0.0069483, 0.0024431, -0.0042095, -0.0042095, -0.0006979, -0.0006979, -0.0006979]
    v = [-0.0020173, -0.002047, -0.002047, 0.0017567, 0.0017865, 0.0017865, 0.0064939, 0.0064939, 0.0064939]
    force = torch.tensor([0, 0, 0, 1, 0, 0, 1, 0, 0], dtype=torch.float64) * 2.3263162
    start = scene.arm.initial_state(1, q=torch.tensor(q, dtype=torch.float64))
    start = start.replace(velocity=torch.tensor([v], dtype=torch.float64))
    _, info = ArmIntegrator(2e-3).step(scene.arm, start, Control(force=force[None]), throw=True)
    assert 1 <= info.contact["active"].item() <= 3


@pytest.mark.slow
def test_two_balls_are_touched_one_after_the_other():
    """See contact with the upper ball alone, then with both."""
    trajectory = pneumatic_arm.run(two_spheres())
    upper, lower = (trajectory.contact[f"force/{n}"][:, 0].norm(dim=1) > 0 for n in ("upper", "lower"))
    assert bool((upper & ~lower).any()) and bool((upper & lower)[-1])
    assert not bool((lower & ~upper).any())
    assert trajectory.contact["penetration"].max() < 1e-6


def test_ablation_counts_as_the_paper_counts():
    """Take the first steps of sixteen runs; tables have a row for each subset of the stages."""
    runs = [
        {"stages": s, "solved": x, "penetration": 1e-3, "simulated": 1.0}
        for s, x in (("none", 0.94), ("none", 0.96), ("RET", 1.0))
    ]
    assert [ablation.success(run) for run in runs] == [False, True, True]
    assert ablation.table(runs).splitlines()[2].startswith("| none | 1 of 2 |")
    assert [ablation.name_of(s) for s in ablation.STAGES][:3] == ["none", "T", "E"]
    scene = ablation.draped(60.0, 3)
    assert torch.isfinite(scene.start.q).all()


def test_conditioned_problem_leads_to_the_same_place():
    """Let an arm slide by the paper's pyramid, conditioned, and by the exact cone; motion is in a plane of both."""
    ends, conditioned = [], functools.partial(solve_conditioned, conditioning=Conditioning(), method="interior_point")
    for settings in ({}, {"solver": conditioned}):
        arm = paper_arm([incline(45, height=-0.526)], disks=1)
        ends.append(run(arm, 40, 1, pushed(1), **settings)[0].positions[0, -1])
    # the pyramid's first direction lies along tangent 1, in which the arm slides: no difference but the regularisation
    assert (ends[1] - ends[0]).norm() < 1e-5
