"""Robots as environments: episodes, partial resets, failed steps, gradients."""

import dataclasses
import pickle
import warnings

import pytest
import torch

from tests.environments.arms import NODES, actions, arm, bend, environment, reach, same
from torchdismech import (
    BDF2,
    Control,
    ImplicitEuler,
    InputError,
    Model,
    Status,
)
from torchdismech.contact import Sphere
from torchdismech.environments import (
    Actuator,
    Constant,
    Draws,
    Environment,
    Force,
    Held,
    Task,
    contact,
    node_positions,
    node_velocities,
    observations,
    strains,
)
from torchdismech.environments import actions as acting


@pytest.mark.parametrize("floor", [False, True])
def test_partial_reset_touches_its_robots_only(floor):
    """Reset two of five robots: they are as in an environment that begins there, the others do not change.

    Steps after it, too, are those of robots that all began at that time, and those of robots that went on.
    """
    env, calm = environment(floor=floor), environment(floor=floor)
    env.reset()
    calm.reset()
    for k in range(2):
        env.step(actions(5, k))
        calm.step(actions(5, k))
    rows = torch.tensor([False, True, False, True, False])
    env.reset(rows)
    fresh = environment(floor=floor)
    fresh.reset()
    fresh.reset()  # the second episode of all
    assert same(env.current, fresh.current, rows) and same(env.current, calm.current, ~rows)
    for k in range(2):
        for each in (env, fresh, calm):
            each.step(actions(5, k))
    # what other robots do may change the last digit: of accelerations of 1e3 m/s^2 1e-13, over some steps more; above a
    # floor robots take other iterates beside some that touch it, and agree within the tolerance: 3e-6 m/s^2 seen
    rounding = 1e-5 if floor else 1e-8
    assert same(env.current, fresh.current, rows, rounding) and same(env.current, calm.current, ~rows, rounding)


def test_reset_robots_begin_their_steps_anew():
    """Reset robots that BDF2 steps: each moves as one alone that begins there, also after all are reset."""
    env, alone = environment(3, integrator=BDF2(0.02), seed=7), environment(1, integrator=BDF2(0.02), seed=8)
    for each in (env, alone):
        each.reset()
        each.reset()
    for _ in range(2):
        env.step(torch.zeros(3, 2))
    env.reset(torch.tensor([False, True, False]))
    alone.reset()
    for _ in range(3):
        found, expected = env.step(torch.zeros(3, 2)), alone.step(torch.zeros(1, 2))
        # what other robots do may change the last digit
        assert torch.allclose(found.observation[1], expected.observation[0], rtol=0, atol=1e-10)


def test_robot_draws_the_same_in_any_batch():
    """Give robot 2 of five and a robot alone with its seed the same episodes, one after the other."""
    env, alone = environment(5, seed=7), environment(1, seed=9)
    for _ in range(3):
        five, one = env.reset(), alone.reset()
        assert torch.equal(five[2], one[0])
    env.seeded(7)
    assert torch.equal(env.reset()[2], environment(1, seed=9).reset()[0])


def test_draws_are_in_the_dtype_of_the_model():
    """Draw the numbers of float64, rounded, for robots in float32: what is observed of them stays in float32."""
    env, exact = (environment(2, model=arm(dtype=dtype)) for dtype in (torch.float32, torch.float64))
    found, expected = env.reset(), exact.reset()
    assert found.dtype == env.current.goal["target"].dtype == torch.float32
    assert expected.dtype == torch.float64 and torch.equal(found[:, -3:], expected[:, -3:].float())  # the targets
    seed = torch.arange(4)
    for kind, bounds in (("uniform", (1.0, 3.0)), ("loguniform", (1.0, 3.0)), ("normal", (1.0, 3.0))):
        single, double = (getattr(Draws(seed, seed, dtype=d), kind)(*bounds, 2) for d in (torch.float32, torch.float64))
        assert torch.equal(single, double.float()) and double.dtype == torch.float64


def test_robots_that_begin_inside_of_obstacles_are_warned_of():
    """Say once, at the first reset, that a robot begins below the floor, by the height that the episode drew."""
    heights = torch.tensor([[-0.02], [0.3]], dtype=torch.float64)
    low = {"constants": lambda m, draws: {"ground.point": torch.nn.functional.pad(heights, (2, 0))}}
    env = environment(2, model=arm(floor=True), **low)
    with pytest.warns(RuntimeWarning, match="'ground' .* of robot 1 begins inside of it, 0.305 m deep"):
        env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.reset()
        env.reset(torch.tensor([False, True]))
        environment(2, model=arm(floor=True)).reset()


def test_robots_go_on_where_they_were(tmp_path):
    """Write where robots are, some of them at the end of their episode, and go on elsewhere: every bit is the same.

    Episodes that begin later are the same, too.
    """
    low = {"terminated": lambda m, step: step.after.positions[:, -1, 1] < -0.004}
    env = environment(horizon=6, **low)
    env.reset()
    env.reset(torch.arange(5) < 2)
    for k in range(3):
        env.step(actions(5, k))
    assert env.ended.any() and not env.ended.all()
    torch.save((env.current, env.ended), tmp_path / "robots.pt")
    other = environment(horizon=6, seed=99, **low)
    found = other.resume(*torch.load(tmp_path / "robots.pt", weights_only=False))
    assert torch.equal(found, env.observed(env.current)) and torch.equal(other.ended, env.ended)
    for k in range(6):
        outcomes = [each.step(actions(5, k)) for each in (env, other)]
        for name in ("observation", "reward", "terminated", "truncated", "status"):
            assert torch.equal(*[getattr(outcome, name) for outcome in outcomes])
        assert torch.equal(*[each.reset(each.ended) for each in (env, other)])
    assert torch.equal(env.current.episode, other.current.episode) and int(env.current.episode.max()) > 1
    with pytest.raises(InputError, match="resume: at: expected the `current` of an environment, got State"):
        env.resume(env.current.state)
    with pytest.raises(InputError, match=r"resume: ended: expected \(5,\) bool, got \(3,\) bool"):
        env.resume(env.current, torch.ones(3, dtype=torch.bool))
    for odd, got in (
        (environment(3), "expected 5 robots, got 3"),
        (environment(integrator=BDF2(0.02)), "expected a State with goals: target; .* got a TwoStepState"),
        (environment(goal=lambda m, draws: {"aim": torch.zeros(5, 3)}, observations=[node_positions()]), "goals: aim"),
    ):
        odd.reset()
        with pytest.raises(InputError, match=f"resume: at: .*{got}"):
            env.resume(odd.current)


def test_episode_is_truncated_at_its_horizon():
    """Take four actions; the robots then do nothing until they are reset."""
    env = environment(horizon=4)
    env.reset()
    outcomes = [env.step(actions(5)) for _ in range(4)]
    assert [bool(o.truncated.all()) for o in outcomes] == [False, False, False, True]
    assert not any(o.terminated.any() for o in outcomes)
    before = env.current
    with pytest.warns(RuntimeWarning, match=r"the episodes of all robots are over.*reset\(environment.ended\)"):
        outcome = env.step(actions(5))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.step(actions(5))  # it was said
    assert same(before, env.current, slice(None)) and (outcome.reward == 0).all() and not outcome.ended.any()
    env.reset(env.ended)
    assert not env.ended.any() and (env.current.actions == 0).all()


def test_robots_that_are_over_are_no_matter_beside_others():
    """Say nothing where some robots go on, nor where it is meant that all are over."""
    env = environment(horizon=2)
    env.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env.step(actions(5))
        env.reset(torch.tensor([True, False, False, False, False]))
        env.step(actions(5))
        assert env.ended.tolist() == [False, True, True, True, True]
        env.step(actions(5))
        assert bool(env.ended.all()) and not env.step(actions(5), idle=True).truncated.any()


def test_failed_step_terminates_with_its_reason():
    """Let one robot's step fail: its episode is over, it says why, and the others go on."""
    heavy = torch.tensor([[0.0, 0, -9.81]] * 4 + [[0.0, 0, -1e10]], dtype=torch.float64)
    env = environment(
        integrator=ImplicitEuler(0.05, max_iterations=6), constants=lambda m, draws: {"Gravity.acceleration": heavy}
    )
    env.reset()
    outcome = env.step(actions(5))
    assert outcome.terminated.tolist() == [False] * 4 + [True]
    assert outcome.status[4] != Status.CONVERGED and (outcome.status[:4] == Status.CONVERGED).all()
    assert outcome.reward[4] == 0 and torch.isfinite(outcome.observation).all()


def test_task_may_end_an_episode():
    """Terminate where the tip is below a height."""
    env = environment(terminated=lambda m, step: step.after.positions[:, -1, 2] < -1e-4, horizon=50)
    env.reset()
    ended = torch.zeros(5, dtype=torch.bool)
    for _ in range(6):
        outcome = env.step(actions(5))
        low = env.current.state.positions[:, -1, 2] < -1e-4
        assert torch.equal(outcome.terminated, low & ~ended)
        ended |= outcome.terminated
    assert ended.any()


@pytest.mark.parametrize("constants", [None, reach(arm()).constants])
def test_steps_hold_an_action(monkeypatch, constants):
    """Take three steps with one action, at once, to the bit as an integrator would; a robot that fails stays."""
    model, asked = arm(), []
    integrator = ImplicitEuler(0.02, max_iterations=6)
    env = Environment(model, integrator, reach(model, constants=constants), 3, steps=3)
    added = env.task.actions[0].added
    monkeypatch.setattr(env.task.actions[0], "added", lambda *given: asked.append(given) or added(*given))
    env.reset()
    fast = env.current.state.velocity.clone()
    fast[1] += 1e4 * torch.sin(3.0 * torch.arange(model.n_dofs)) * model.free
    env.resume(dataclasses.replace(env.current, state=env.current.state.replace(velocity=fast)))
    for _ in range(3):  # until steps are recorded
        state, running = env.current.state, ~env.ended
        control = added(Control(), actions(3), state, model).replace(values=dict(env.current.constants))
        good = running
        for _ in range(3):
            state, info = integrator.step(model, state, control, good)
            good = good & info.converged
        outcome = env.step(actions(3))
        assert all(map(torch.equal, env.current.state.fields(), state.fields()))
        assert good.tolist() == [True, False, True] and outcome.terminated.tolist() == [False, bool(running[1]), False]
        assert bool((outcome.status == int(Status.STOPPED))[1]) != bool(running[1]) and (outcome.status[::2] == 0).all()
    assert len(asked) == 3


def test_rewards_are_differentiated_by_actions():
    """Compare the gradient of two steps' rewards with central differences."""
    env = environment(2, integrator=ImplicitEuler(0.02, force_tolerance=1e-13, relative_tolerance=0.0))
    env.reset()
    start = env.current

    def total(action):
        at, reward = start, 0.0
        for _ in range(2):
            at, outcome = env.acted(at, action)
            reward = reward + outcome.reward.sum()
        return reward

    action = (0.5 * actions(2)).requires_grad_()
    (gradient,) = torch.autograd.grad(total(action), action)
    for place in ((0, 0), (1, 1)):
        step = torch.zeros(2, 2, dtype=torch.float64)
        step[place] = 1e-5
        with torch.no_grad():
            difference = float(total(action + step) - total(action - step)) / 2e-5
        # rewards of 0.1 m are known to 1e-13 m or so, over 1e-5
        assert float(gradient[place]) == pytest.approx(difference, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("end", ["over", "failed"])
def test_gradients_do_not_pass_robots_that_do_not_count(end):
    """Reward by a root whose derivative is infinite where an arm does not move: compare with central differences.

    The second arm is over after its first action, or fails in its second: then it has no share in the gradient by what
    both have of actions, goals and constants.
    """

    def moved(model, step):
        way = (step.after.positions[:, -1] - step.before.positions[:, -1]).square().sum(1)
        given = step.action[:, 0] * step.goal["share"] * model.forces[0].acceleration[:, 2]
        return (way * given.square()).sqrt()

    env = environment(
        2,
        integrator=ImplicitEuler(0.02, max_iterations=12, force_tolerance=1e-13, relative_tolerance=0.0),
        actions=[Actuator("natural_curvature", bend(arm()).matrix, -1e4, 1e4)],
        observations=[node_positions()],
        reward=moved,
        terminated=lambda m, step: torch.tensor([False, end == "over"]),
        start=None,
        goal=lambda m, draws: {"share": shared[2].expand(2)},
        constants=lambda m, draws: {"Gravity.acceleration": shared[3] * torch.tensor([[0.0, 0, -1]] * 2).double()},
    )
    further = torch.zeros(2, 2, 2, dtype=torch.float64)
    further[1, 1] = 8e3 if end == "failed" else 0.1

    def total():
        at, running, found = env.began(torch.arange(2), torch.zeros(2, dtype=torch.int64)), torch.tensor([True] * 2), 0
        for k in range(2):
            at, outcome = env.acted(at, shared[:2] + further[k], running)
            running, found = running & ~outcome.ended, found + outcome.reward.sum()
        assert outcome.reward[0] > 0 and outcome.reward[1] == 0 and not running[1]
        assert (outcome.status == Status.CONVERGED).tolist() == [True, False]
        return found

    shared = torch.tensor([0.4, 0.6, 2.0, 9.0], dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(total(), shared)
    given = shared.detach()
    step = 1e-5 * torch.tensor([1.0, -0.6, 0.8, 0.4], dtype=torch.float64)
    with torch.no_grad():
        shared = given + step
        more = total()
        shared = given - step
        # rewards of 0.1 are known to 1e-12 or so, over 1e-5
        assert float(gradient @ step) == pytest.approx(float(more - total()) / 2, rel=1e-5, abs=1e-11)
    assert (gradient != 0).all()


def test_actions_and_observations_of_all_kinds():
    """Act by natural strains, a constant, held dofs and forces; observe strains, nodes and contact."""
    model = arm(floor=True)
    springs = len(model.springs)
    task = Task(
        actions=[
            bend(model),
            Actuator("rest_length", torch.ones(NODES - 1, 1), -0.01, 0.01),
            Constant("Gravity.acceleration", -10.0, 10.0, count=3),
            Held([2, 5], -0.01, 0.01),
            Force([3 * NODES - 1], -1e-2, 1e-2),
        ],
        observations=[strains("stretch", "kappa1"), node_positions(), contact("penetration")],
        reward=lambda m, step: step.after.positions[:, -1, 2],
    )
    env = Environment(model, ImplicitEuler(0.02), task, 3)
    assert len(env.low) == len(env.high) == 2 + 1 + 3 + 2 + 1
    assert env.reset().shape == (3, NODES - 1 + springs + 3 * NODES + 1)
    rest = env.current.state.positions[0, 0, 2]
    for _ in range(3):
        outcome = env.step(torch.tensor([[0, 0, 0, 0, 0, -9.81, 0.005, 0.005, 1.0]] * 3, dtype=torch.float64))
    assert not outcome.terminated.any()
    assert (env.current.state.positions[:, 0, 2] - rest).allclose(torch.tensor(0.005, dtype=torch.float64))


def no_reward(model, step):
    """Return zeros."""
    return step.after.q.new_zeros(step.after.batch)


def test_environments_with_the_librarys_observations_can_be_pickled():
    """Send one to another process, as workers that are started by "spawn" get it: it goes on to the bit."""
    observations = [strains("stretch"), node_positions([1, 2]), node_velocities(), contact("penetration")]
    model = arm(floor=True)
    env = Environment(model, ImplicitEuler(0.02), Task([bend(model)], observations, no_reward), 2)
    env.reset()
    env.step(actions(2))
    sent = pickle.loads(pickle.dumps(env))
    assert torch.equal(*(each.step(actions(2, 1)).observation for each in (env, sent)))
    assert same(env.current, sent.current, slice(None))


@pytest.mark.parametrize(
    ("observation", "message"),
    [
        (strains("kappa3"), "observations.strains: no 'kappa3' in this robot; there are: stretch, kappa1, kappa2, tau"),
        (
            contact("penetration", "gap"),
            "observations.contact: no 'gap' in this robot; there are: active, .*penetration",
        ),
    ],
)
def test_observations_that_there_are_none_of_are_refused(observation, message):
    """Name what the robot has in place of a strain or a number of contact that it has not."""
    with pytest.raises(InputError, match=message):
        environment(2, floor=True, observations=[observation]).reset()


def test_a_constant_of_an_episode_may_be_one_number_for_all():
    """Draw one number () for all robots: each has it as its own, where some begin anew and in gradients, too."""
    env = environment(2, constants=lambda m, draws: {"stretch.EA": stiffness})
    stiffness = torch.tensor(80.0, dtype=torch.float64)
    env.reset()
    env.reset(torch.tensor([True, False]))
    assert env.current.constants["stretch.EA"].tolist() == [[80.0], [80.0]]
    before = env.current.state.positions
    env.step(actions(2))
    assert not torch.equal(env.current.state.positions, before)
    stiffness.requires_grad_()
    at = env.began(torch.arange(2), torch.zeros(2, dtype=torch.int64))
    env.acted(at, actions(2))[1].reward.sum().backward()
    assert stiffness.grad.isfinite() and stiffness.grad != 0


def test_constants_of_episodes_are_seen():
    """Observe and reward with the constants that the episodes drew, as steps have them; the model keeps its own."""
    seen = lambda m, s, g: m.forces[0].acceleration.expand(s.batch, 3)  # noqa: E731
    env = environment(observations=[seen], reward=lambda m, step: seen(m, step.after, None)[:, 2])
    drawn = env.reset()
    assert torch.equal(drawn, env.current.constants["Gravity.acceleration"])
    assert torch.equal(env.step(actions(5)).reward, drawn[:, 2])
    assert env.model.forces[0].acceleration.tolist() == [0, 0, -9.81]


def test_actions_beyond_their_bounds_are_bounds():
    """Keep numbers within low and high."""
    env, other = environment(2), environment(2)
    env.reset()
    other.reset()
    env.step(torch.full((2, 2), 5.0, dtype=torch.float64))
    other.step(torch.ones(2, 2, dtype=torch.float64))
    assert same(env.current, other.current, slice(None))
    told = environment(2, reward=lambda model, step: step.action.sum(1))
    told.reset()
    assert told.step(torch.full((2, 2), 5.0, dtype=torch.float64)).reward.tolist() == [2.0, 2.0]


def test_what_an_action_asks_for_goes_on():
    """Ask an action of three steps at each of its steps: what it makes of its numbers may change with the state."""

    class Growing(Force):
        asked: list = []

        def added(self, control, numbers, state, model):
            self.asked.append(state.time[0].item())
            return super().added(control, numbers * state.time[:, None], state, model)

    model = arm()
    env = Environment(model, ImplicitEuler(0.02), reach(model, actions=[Growing([17], -1.0, 1.0)]), 1, steps=3)
    env.reset()
    env.step(torch.ones(1, 1, dtype=torch.float64))
    assert Growing.asked == pytest.approx([0.0, 0.02, 0.04]) and Force.holds and not Growing.holds


def test_other_clamped_dofs_stay_where_an_episode_begins():
    """Hold one dof of a clamp beside where robots are at rest; the others are not moved to rest."""
    model = arm()
    begun = model.body.rest_q.flatten().clone()
    begun[1 : 3 * NODES : 3] += 0.005
    task = Task(
        actions=[Held([2], -0.01, 0.01)],
        observations=[node_positions()],
        reward=lambda m, step: step.after.positions[:, 0, 0],
        start=lambda m, draws: {"q": begun},
    )
    env = Environment(model, ImplicitEuler(0.02), task, 1)
    env.reset()
    assert not env.step(torch.full((1, 1), 0.004, dtype=torch.float64)).terminated.any()
    held = env.current.state.positions[0, :2]
    expected = model.body.rest_q.view(-1)[:6].view(2, 3) + torch.tensor([[0, 0.005, 0.004], [0, 0.005, 0]])
    assert held.allclose(expected.to(held))


def test_an_action_finds_nothing_twice(monkeypatch):
    """Ask once an action for natural strains, put constants in place for acting, step, reward and observations alone.

    Which nodes are observed is looked at once for all actions.
    """
    found: dict[str, int] = {}

    def count(owner, name):
        own = getattr(owner, name)

        def counted(*given):
            found[name] = found.get(name, 0) + 1
            return own(*given)

        monkeypatch.setattr(owner, name, counted)

    env = environment()
    for owner, name in [(acting, "natural_strain"), (observations, "checked_indices"), (Model, "values_of")]:
        count(owner, name)
    env.reset()
    assert found.pop("checked_indices") == 2  # of positions and of velocities
    found.clear()
    for _ in range(2):
        env.step(actions(5))
    assert found == {"natural_strain": 2, "values_of": 2 * 4}


def test_an_observation_looks_at_the_nodes_of_each_robot():
    """Observe the last of six nodes, then of robots that have no such node: these are refused."""
    seen, model, short = node_positions([NODES - 1]), arm(), arm(nodes=NODES - 2)
    state = model.initial_state(2)
    for _ in range(2):
        assert torch.equal(seen(model, state, {}), state.positions[:, -1])
    with pytest.raises(InputError, match="node_positions: nodes: expected indices 0 to 3"):
        seen(short, short.initial_state(2), {})


def test_an_action_of_ones_own_sees_what_constants_are_set_to():
    """Ask a further kind of action what the model's gravity is: what the action before it has set, of each robot."""
    seen = []

    class Pulled(Force):
        def added(self, control, numbers, state, model):
            seen.append(model.forces[0].acceleration)
            return super().added(control, numbers, state, model)

    parts = [Pulled([17], -1.0, 1.0), Constant("Gravity.acceleration", -10.0, 10.0, count=3)]
    env = environment(2, actions=parts, constants=None)
    env.reset()
    given = torch.arange(8.0, dtype=torch.float64).reshape(2, 4) - 3.0
    env.step(given)
    assert torch.equal(seen[0], given[:, 1:]) and env.model.forces[0].acceleration.tolist() == [0, 0, -9.81]


def test_outcomes_are_shown_in_a_line():
    """Print what an action led to without its tensors."""
    env = environment(batch=3)
    env.reset()
    outcome = env.step(actions(3))
    width, mean = outcome.observation.shape[1], float(outcome.reward.mean())
    of = f"3 robots that observe {width} numbers; mean reward {mean:.4g}; 0 terminated, 0 truncated"
    assert repr(outcome) == f"Outcome({of})"
    assert repr(env).startswith(
        "Environment(3 robots, 2 numbers an action of 1 step of ImplicitEuler(dt=0.02), up to 4 "
    )
    assert repr(env.current) == "Episodes(3 robots, each a State with goals: target; constants: Gravity.acceleration)"


def test_constants_of_exchanged_shapes_are_drawn():
    """Draw a constant of a shape that took the place of another, after the constants were named."""
    model = arm(floor=True)
    assert "ground.normal" in model.places
    model.obstacles[0].shape = Sphere((0, 0, -0.2), 0.1)
    env = environment(model=model, constants=lambda m, draws: {"ground.radius": draws.uniform(0.05, 0.1, 1)})
    env.reset()
    assert 0.05 < float(env.current.constants["ground.radius"].min()) < 0.1
