"""Policies by TorchRL's PPO: what they are, and that they learn to reach."""

import sys

import pytest
import torch

pytest.importorskip("torchrl")

from studies.reach import reach
from tests.environments.arms import environment
from torchdismech import BDF2, InputError
from torchdismech.environments import Force
from torchdismech.environments.torchrl import TorchRLRobotEnv
from training import ppo
from training.ppo import rewards_of, trained_policy


def test_policy_acts_within_bounds():
    """Update a policy once: its actions are within the robots' bounds, and without noise always the same."""
    torch.manual_seed(0)
    arms = reach.environment(4)
    arms.horizon = 3
    policy = trained_policy(arms, updates=1, actions=3)
    run = TorchRLRobotEnv(arms).rollout(3, policy, break_when_any_done=False)
    assert run["action"].shape == (4, 3, 2) and (run["action"].abs() <= 1).all()
    arms.seeded(1)
    first = rewards_of(arms, policy)
    arms.seeded(1)
    assert first.shape == (4, 3) and torch.equal(first, rewards_of(arms, policy))


def test_training_goes_on_where_it_was_cut_off(tmp_path, monkeypatch):
    """Cut a training off in its second update: it goes on to every bit of the policy of one that was not."""
    monkeypatch.setattr(ppo, "EPOCHS", 2)

    def trained(**options):
        torch.manual_seed(0)
        arms = reach.environment(4)
        arms.horizon = 3  # so that robots begin anew within an update
        return trained_policy(arms, updates=3, actions=4, width=8, **options)

    whole, file = trained(checkpoint=tmp_path / "whole.pt"), tmp_path / "cut.pt"
    improved, calls = ppo._improve, []

    def cut_off(*given):
        calls.append(given)
        if len(calls) > ppo.EPOCHS + 1:
            raise KeyboardInterrupt
        improved(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(ppo, "_improve", cut_off)
        trained(checkpoint=file)
    torch.manual_seed(99)
    arms = reach.environment(4)
    arms.horizon = 3
    found = trained_policy(arms, updates=3, actions=4, width=8, checkpoint=str(file), resume=True)
    pairs = zip(whole.state_dict().values(), found.state_dict().values(), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)
    with pytest.raises(InputError, match="cut.pt is there already: go on by resume=True"):
        trained(checkpoint=file)
    with pytest.raises(InputError, match="discount: .*cut.pt was trained with 0.95, got 0.5"):
        trained(checkpoint=file, resume=True, discount=0.5)
    file.write_bytes(b"no training")
    with pytest.raises(InputError, match="cut.pt holds no training"):
        trained(checkpoint=file, resume=True)


def test_training_is_shown_by_tensorboard(tmp_path):
    """Show each update once, also those of a training that goes on; see rewards and episodes as they were."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    def trained(**options):
        arms = environment(2, horizon=2)
        return trained_policy(arms, 3, 2, width=4, checkpoint=tmp_path / "policy.pt", log=tmp_path / "log", **options)

    trained()
    shown = EventAccumulator(str(tmp_path / "log")).Reload()
    for tag in ("reward/of_an_action", "speed/actions_per_second", "policy/loss_objective", "policy/entropy"):
        assert [event.step for event in shown.Scalars(tag)] == [0, 1, 2]
    assert [event.value for event in shown.Scalars("episodes/truncated")] == [2.0, 2.0, 2.0]
    trained(resume=True)
    assert len(EventAccumulator(str(tmp_path / "log")).Reload().Scalars("reward/of_an_action")) == 3


def test_training_is_shown_and_kept_in_files_alone(tmp_path, monkeypatch):
    """Refuse what is no path, a folder that cannot be made, and TensorBoard where it is not installed."""
    (tmp_path / "file").touch()
    for option, given, words in (
        ("log", 5, "trained_policy: log: expected the path of a folder, got 5"),
        ("log", tmp_path / "file" / "log", "log: cannot be written"),
        ("checkpoint", 5, "trained_policy: checkpoint: expected the path of a file, got 5"),
    ):
        with pytest.raises(InputError, match=words):
            trained_policy(environment(2), 1, 2, width=4, **{option: given})
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(InputError, match="log needs TensorBoard: pip install"):
        trained_policy(environment(2), 1, 2, width=4, log=tmp_path / "log")


def test_episodes_go_on_over_updates(monkeypatch):
    """Take fewer actions an update than an episode has: robots go on, and begin anew when their episode is over."""
    arms, taken = environment(2, horizon=5), []
    acted = arms.acted

    def noted(at, action, running=None):
        taken.append((at.episode.tolist(), at.actions.tolist()))
        return acted(at, action, running)

    monkeypatch.setattr(arms, "acted", noted)
    trained_policy(arms, updates=4, actions=2, width=4)
    assert taken == [([k // 5] * 2, [k % 5] * 2) for k in range(8)]


def test_training_of_another_robot_is_not_gone_on_with(tmp_path):
    """Name what differs where a checkpoint has states that the environment's integrator does not make."""
    arguments = {"updates": 2, "actions": 2, "width": 4, "checkpoint": tmp_path / "policy.pt"}
    trained_policy(environment(2), **arguments)
    with pytest.raises(InputError, match="policy.pt was trained with other robots or another integrator: .*step_len"):
        trained_policy(environment(2, integrator=BDF2(0.02)), **arguments, resume=True)


@pytest.mark.parametrize("missing", ["policy", "random", "state", "settings"])
def test_checkpoints_that_lack_something_are_refused(tmp_path, missing):
    """Name what a file lacks."""
    file = tmp_path / "policy.pt"
    arguments = {"updates": 2, "actions": 2, "width": 4, "checkpoint": file}
    trained_policy(environment(2), **arguments)
    kept = torch.load(file, weights_only=True)
    del kept[missing]
    torch.save(kept, file)
    with pytest.raises(InputError, match=f"policy.pt lacks .*{missing}"):
        trained_policy(environment(2), **arguments, resume=True)
    torch.save(torch.zeros(3), file)
    with pytest.raises(InputError, match="policy.pt: expected a training that trained_policy wrote, got Tensor"):
        trained_policy(environment(2), **arguments, resume=True)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"updates": 0}, "updates: expected a whole number from 1 up, got 0"),
        ({"updates": 1.5}, "updates: expected a whole number from 1 up, got 1.5"),
        ({"actions": 0}, "actions: expected a whole number from 1 up, got 0"),
        ({"width": 0}, "width: expected a whole number from 1 up, got 0"),
        ({"rate": 0.0}, "rate: expected a number above 0, got 0"),
        ({"rate": float("nan")}, "rate: expected a number above 0, got nan"),
        ({"discount": 2.0}, "discount: expected a number from 0 to 1, got 2"),
        ({"discount": "0.9"}, "discount: expected a number from 0 to 1, got '0.9'"),
        (
            {"checkpoint": "no/such/folder.pt"},
            "checkpoint: expected a file in a folder that is there, got no/such/folder",
        ),
        ({"resume": True}, "resume: expected a checkpoint to go on from, got None"),
        ({"resume": "no"}, "resume: expected True or False, got 'no'"),
    ],
)
def test_trainings_that_make_no_sense_are_refused(wrong, words):
    """Name the argument before any robot moves."""
    with pytest.raises(InputError, match=f"trained_policy: {words}"):
        trained_policy(environment(2), **{"updates": 1, "actions": 1, **wrong})


def test_policies_need_bounds_that_single_precision_tells_apart():
    """Refuse bounds that are one number there, and what is no environment."""
    arms = environment(2, actions=[Force([15], 1.0, 1.0 + 1e-9)])
    with pytest.raises(InputError, match="expected bounds of actions that single precision tells apart, got 1 and 1"):
        trained_policy(arms, updates=1, actions=1)
    with pytest.raises(InputError, match="trained_policy: environment: expected an Environment, got NoneType"):
        trained_policy(None, updates=1, actions=1)


def test_one_sample_an_update_is_refused():
    """Refuse a single action of a single robot; two of one, or one of two, lead to weights that are finite."""
    with pytest.raises(InputError, match="actions: expected two or more an update of a single robot.*, got 1"):
        trained_policy(environment(1), updates=1, actions=1, width=4)
    for robots, actions in ((1, 2), (2, 1)):
        policy = trained_policy(environment(robots), updates=1, actions=actions, width=4)
        assert all(bool(part.isfinite().all()) for part in policy.parameters())


def test_weights_that_are_not_finite_are_refused(tmp_path):
    """Stop after an update by a rate that is far too large, before its weights are kept."""
    with pytest.raises(InputError, match="update 0 led to weights that are not finite: take a smaller rate"):
        trained_policy(environment(2), updates=1, actions=2, width=4, rate=1e30, checkpoint=tmp_path / "policy.pt")
    assert not (tmp_path / "policy.pt").exists()


@pytest.mark.parametrize("high", [float("inf"), 1e300])
def test_policies_need_bounds_of_actions(high):
    """Refuse actions without bounds, and with bounds beyond single precision."""
    arms = environment(2, actions=[Force([15], 0.0, high)])
    with pytest.raises(InputError, match="trained_policy: expected actions with bounds"):
        trained_policy(arms, updates=1, actions=1)


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

    assert rewards_of(arms, still).sum(1).tolist() == [2, 5, 3, 5]


@pytest.mark.slow
def test_policy_learns_to_reach():
    """Update a policy fifteen times with 32 arms: the tip comes nearer to unseen targets than without any action."""
    torch.manual_seed(0)
    policy = trained_policy(reach.environment(32), updates=15, actions=20)
    unseen = reach.environment(32, seed=10**6)
    still = reach.final_distances(unseen, None)[0]
    assert -rewards_of(unseen, policy)[:, reach.HORIZON // 2 :].mean() < 0.6 * still
