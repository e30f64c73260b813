"""Reach by a policy: the arm of `reach`, trained by TorchRL's PPO, beside no action and PI feedback.

    python -m studies.reach.by_ppo           # some minutes; needs the extra [rl]

64 arms take 20 actions towards targets of their own, sixty times: episodes half as long as those of the comparison, as
most is to be learned before the tip is there. The policy sees the error of the tip, the target, and the positions and
velocities of the arm's middle and tip. All are compared on 256 targets that none was trained with. The policy has to
come nearer than a third of the distance that is left without any action.
"""

from __future__ import annotations

import time

import torch

from studies.reach.reach import HORIZON, environment, final_distances, trained_feedback
from training.ppo import rewards_of, trained_policy

UPDATES, ARMS, ACTIONS = 60, 64, 20
MARGIN = 1 / 3


def main() -> None:
    """Train, compare and print."""
    torch.manual_seed(0)
    unseen = environment(256, seed=10**6)
    rows = {"no action": (*final_distances(unseen, None), 0.0)}
    began = time.process_time()
    feedback = trained_feedback()
    rows["PI, gains by gradient"] = (*final_distances(unseen, feedback), time.process_time() - began)
    began = time.process_time()
    policy = trained_policy(environment(ARMS, horizon=ACTIONS), UPDATES, ACTIONS)
    seconds = time.process_time() - began
    distance = -rewards_of(unseen, policy)
    rows["policy by PPO"] = (distance[:, HORIZON // 2 :].mean().item(), distance.mean().item(), seconds)
    print(f"{'distance / length':<24}{'last half':>10}{'all':>8}{'trained [s of CPU]':>20}")
    for name, (last, every, seconds) in rows.items():
        print(f"{name:<24}{last:>10.3f}{every:>8.3f}{seconds:>20.0f}")
    assert rows["policy by PPO"][0] < MARGIN * rows["no action"][0]


if __name__ == "__main__":
    main()
