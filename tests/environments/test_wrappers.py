"""Environments in Gymnasium and TorchRL."""

import numpy as np
import pytest
import torch

from tests.environments.arms import environment

pytest.importorskip("gymnasium")

from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from torchdismech import InputError
from torchdismech.environments import Force
from torchdismech.environments.gym import RobotEnv, VectorRobotEnv


def test_one_robot_passes_gymnasiums_checker():
    """Run `check_env`."""
    check_env(RobotEnv(environment(1)), skip_render_check=True)


def test_one_robot_is_drawn():
    """Draw an arm as it bends: the checker takes the pictures, and the arm, in blue, stays in them as it moves."""
    pytest.importorskip("PIL")
    check_env(RobotEnv(environment(1), render_mode="rgb_array"))
    env = RobotEnv(environment(1), "rgb_array", size=(64, 48))
    env.reset(seed=0)
    pictures = [env.render()]
    for _ in range(3):
        env.step(np.ones(2, dtype=np.float32))
        pictures.append(env.render())
    for picture in pictures:
        assert picture.shape == (48, 64, 3) and picture.dtype == np.uint8
        blue = picture[..., 2] > picture[..., 0].astype(int) + 30
        assert blue[8:-8, 8:-8].any() and not (blue[[0, -1]].any() or blue[:, [0, -1]].any())
    assert not np.array_equal(pictures[0], pictures[-1])
    assert env.metadata["render_fps"] == pytest.approx(1 / (env.environment.steps * env.environment.integrator.dt))


def test_pictures_that_are_not_drawn_are_refused():
    """Name another mode, and an odd size; without a mode nothing is drawn, and a warning says how it would be."""
    with pytest.raises(InputError, match="render_mode: expected \"rgb_array\" or None, got 'human'"):
        RobotEnv(environment(1), "human")
    with pytest.raises(InputError, match="RobotEnv: size: expected even numbers of pixels"):
        RobotEnv(environment(1), "rgb_array", (33, 20))
    env = RobotEnv(environment(1))
    env.reset()
    with pytest.warns(UserWarning, match='render_mode="rgb_array"'):
        assert env.render() is None


def test_batch_is_a_vector_environment():
    """Step five robots past their horizon: they begin anew in the step after, which has no reward."""
    env = VectorRobotEnv(environment(horizon=2))
    assert env.metadata["autoreset_mode"] is env.autoreset_mode is AutoresetMode.NEXT_STEP
    first, _ = env.reset(seed=3)
    assert first in env.observation_space and env.action_space.sample() in env.action_space
    action = np.zeros((5, 2), dtype=np.float32)
    for k in range(5):
        observation, reward, terminated, truncated, infos = env.step(action)
        assert observation in env.observation_space and reward.shape == (5,) and not terminated.any()
        assert truncated.all() == (k in (1, 4)) and (reward == 0).all() == (k == 2)
        assert infos["status"].shape == (5,)
    again, _ = env.reset(seed=3)
    assert np.array_equal(first, again)


def test_some_robots_are_reset_by_mask():
    """Leave resets to the caller, who names robots."""
    env = VectorRobotEnv(environment(horizon=1), autoreset=False)
    assert env.metadata["autoreset_mode"] is AutoresetMode.DISABLED
    env.reset(seed=1)
    _, _, _, truncated, _ = env.step(np.zeros((5, 2), dtype=np.float32))
    assert truncated.all()
    mask = np.array([True, False, False, True, False])
    env.reset(options={"reset_mask": mask})
    assert env.environment.ended.tolist() == (~mask).tolist()
    for odd, got in ((mask[:3], r"\(3,\) bool"), (np.array([0, 3, 1, 2, 4]), r"\(5,\) int64")):
        with pytest.raises(InputError, match=rf"reset_mask: expected \(5,\) bool, got {got}"):
            env.reset(options={"reset_mask": odd})
    assert env.environment.ended.tolist() == (~mask).tolist()


def test_options_and_seeds_that_do_nothing_are_refused():
    """Name an option that no reset has, and a seed that no robot can draw from; the next reset works."""
    batch, one = VectorRobotEnv(environment()), RobotEnv(environment(1))
    with pytest.raises(InputError, match="options: expected reset_mask, got 'rest_mask'"):
        batch.reset(options={"rest_mask": np.ones(5, dtype=bool)})
    with pytest.raises(InputError, match="options: expected none, got 'reset_mask'"):
        one.reset(options={"reset_mask": np.ones(1, dtype=bool)})
    for seed in ([1, 2, None, 4, 5], [1.5] * 5, 2**64):
        with pytest.raises(InputError, match="seed: expected a whole number of 64 bits"):
            batch.reset(seed=seed)
    assert np.array_equal(batch.reset(seed=np.arange(5))[0], batch.reset(seed=0)[0])


def test_episodes_that_are_over_refuse_steps():
    """Ask for a reset."""
    env = RobotEnv(environment(1, horizon=1))
    env.reset()
    env.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(InputError, match="call reset"):
        env.step(np.zeros(2, dtype=np.float32))
    with pytest.raises(InputError, match="of one robot, got 2"):
        RobotEnv(environment(2))


def test_observations_beyond_single_precision_are_refused():
    """Refuse what a policy would see as infinite, with the number that it was."""
    huge = [lambda m, s, goal: s.q[:, :2] * 0 + torch.tensor([1.0, -1e300], dtype=torch.float64)]
    env = VectorRobotEnv(environment(observations=huge))
    with pytest.raises(InputError, match="observation: expected numbers that torch.float32 has, got -1e[+]300; scale"):
        env.reset()


@pytest.mark.parametrize("high", [float("inf"), 1e300])
def test_torchrl_draws_actions_without_bounds(high):
    """Draw finite numbers for actions that have no upper bound in single precision."""
    pytest.importorskip("torchrl")
    from torchrl.envs.utils import check_env_specs

    from torchdismech.environments.torchrl import TorchRLRobotEnv

    env = TorchRLRobotEnv(environment(actions=[Force([15], -1e-3, 1e-3), Force([17], -1e-3, high)]))
    check_env_specs(env)
    assert env.rollout(3)["action"].isfinite().all()


def test_torchrl_says_which_batches_of_gymnasium_it_takes():
    """Let TorchRL's wrapper refuse autoreset in the next step in its own words."""
    wrappers = pytest.importorskip("torchrl.envs")
    with pytest.raises(RuntimeError, match="auto-reset mode must be one of SAME_STEP or DISABLED"):
        wrappers.GymWrapper(VectorRobotEnv(environment(2)))


def test_torchrl_specs():
    """Run `check_env_specs`, and a rollout with partial resets."""
    pytest.importorskip("torchrl")
    from torchrl.envs.utils import check_env_specs

    from torchdismech.environments.torchrl import TorchRLRobotEnv

    env = TorchRLRobotEnv(environment(horizon=3))
    check_env_specs(env)
    run = env.rollout(7, break_when_any_done=False)
    assert run.batch_size == torch.Size([5, 7])
    # three actions, then the next episode
    assert run["next", "truncated"].squeeze(-1)[0].tolist() == [False, False, True] * 2 + [False]
    assert (run["next", "status"] == 0).all()


def test_torchrl_rollouts_go_on():
    """Take three actions, then three more: the robots go on, and begin anew after the fourth."""
    pytest.importorskip("torchrl")
    from torchdismech.environments.torchrl import TorchRLRobotEnv

    environments = [TorchRLRobotEnv(environment(horizon=4)) for _ in range(2)]

    def still(tensordict):
        return tensordict.set("action", torch.zeros(5, 2))

    whole = environments[0].rollout(6, still, break_when_any_done=False)
    environments[1].reset()
    parts = [
        environments[1].rollout(
            3, still, break_when_any_done=False, auto_reset=False, tensordict=environments[1].seen()
        )
        for _ in range(2)
    ]
    assert torch.equal(whole["next", "observation"], torch.cat([part["next", "observation"] for part in parts], 1))
    assert torch.equal(whole["next", "truncated"], torch.cat([part["next", "truncated"] for part in parts], 1))
