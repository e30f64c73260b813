"""Policies by TorchRL's PPO: what they are, and that they learn to reach."""

import pytest
import torch

pytest.importorskip("torchrl")

from studies.reach import reach  # noqa: E402
from torchdismech.environments.torchrl import TorchRLRobotEnv  # noqa: E402
from training.ppo import acted_on, trained_policy  # noqa: E402


def test_policy_acts_within_bounds():
    """Update a policy once: its actions are within the robots' bounds, and without noise always the same."""
    torch.manual_seed(0)
    environment = reach.environment(4)
    environment.horizon = 3
    policy = trained_policy(environment, updates=1, actions=3)
    run = TorchRLRobotEnv(environment).rollout(3, policy, break_when_any_done=False)
    assert run["action"].shape == (4, 3, 2) and (run["action"].abs() <= 1).all()
    environment.seeded(1)
    first = acted_on(environment, policy)
    environment.seeded(1)
    assert first.shape == (4, 3) and torch.equal(first, acted_on(environment, policy))


@pytest.mark.slow
def test_policy_learns_to_reach():
    """Update a policy fifteen times with 32 arms: the tip comes nearer to unseen targets than without any action."""
    torch.manual_seed(0)
    policy = trained_policy(reach.environment(32), updates=15, actions=20)
    unseen = reach.environment(32, seed=10**6)
    still = reach.final_distances(unseen, None)[0]
    assert -acted_on(unseen, policy)[:, reach.HORIZON // 2 :].mean() < 0.6 * still
