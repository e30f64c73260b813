"""Policies by TorchRL's PPO: what they are, and that they learn to reach."""

import pytest
import torch

pytest.importorskip("torchrl")

from studies.reach import reach
from tests.environments.arms import environment
from torchdismech.environments.torchrl import TorchRLRobotEnv
from training.ppo import acted_on, trained_policy


def test_policy_acts_within_bounds():
    """Update a policy once: its actions are within the robots' bounds, and without noise always the same."""
    torch.manual_seed(0)
    arms = reach.environment(4)
    arms.horizon = 3
    policy = trained_policy(arms, updates=1, actions=3)
    run = TorchRLRobotEnv(arms).rollout(3, policy, break_when_any_done=False)
    assert run["action"].shape == (4, 3, 2) and (run["action"].abs() <= 1).all()
    arms.seeded(1)
    first = acted_on(arms, policy)
    arms.seeded(1)
    assert first.shape == (4, 3) and torch.equal(first, acted_on(arms, policy))


def test_rewards_end_with_the_episode():
    """End the episodes of some robots early: they get no reward of another episode."""
    arms = environment(
        batch=4,
        horizon=5,
        reward=lambda model, step: torch.ones_like(step.after.time),
        terminated=lambda model, step: step.after.time > torch.tensor([0.03, 1.0, 0.05, 1.0]),  # actions take 0.02
    )

    def still(seen):
        return seen.set("action", torch.zeros(4, 2))

    assert acted_on(arms, still).sum(1).tolist() == [2, 5, 3, 5]


@pytest.mark.slow
def test_policy_learns_to_reach():
    """Update a policy fifteen times with 32 arms: the tip comes nearer to unseen targets than without any action."""
    torch.manual_seed(0)
    policy = trained_policy(reach.environment(32), updates=15, actions=20)
    unseen = reach.environment(32, seed=10**6)
    still = reach.final_distances(unseen, None)[0]
    assert -acted_on(unseen, policy)[:, reach.HORIZON // 2 :].mean() < 0.6 * still
