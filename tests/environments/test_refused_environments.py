"""What environments refuse: choices of robots, tasks, actions, seeds and counts that make no sense."""

import numpy as np
import pytest
import torch

from tests.environments.arms import NODES, actions, arm, bend, environment, reach
from tests.rods import rod_through
from torchdismech import (
    Circle,
    InputError,
    Material,
    RobotBuilder,
    Static,
    straight,
    trainable,
)
from torchdismech.actuation import AtNodes, Tendons
from torchdismech.constant_curvature import ArmIntegrator, PneumaticArm
from torchdismech.contact import Capsule, Obstacle, Penalty
from torchdismech.environments import (
    Actuator,
    Constant,
    Draws,
    Environment,
    Force,
    Held,
    contact,
    node_positions,
    node_velocities,
    strains,
)


@pytest.mark.parametrize(
    ("made", "got"),
    [
        (lambda low: low.to(torch.uint8), r"\(5,\) uint8"),
        (lambda low: low.to(torch.int64), r"\(5,\) int64"),
        (lambda low: low.double(), r"\(5,\) float64"),
        (lambda low: low[:, None], r"\(5, 1\) bool"),
        (lambda low: low.any(), r"\(\) bool"),
        (lambda low: low.tolist(), "list; torch.as_tensor"),
    ],
)
def test_ends_that_are_not_yes_or_no_of_each_robot_are_refused(made, got):
    """Name the function and what it returned, not the reward."""
    env = environment(terminated=lambda m, step: made(step.after.positions[:, -1, 2] < 0))
    env.reset()
    with pytest.raises(InputError, match=rf"Task.terminated: expected \(5,\) bool, got {got}"):
        env.step(actions(5))


@pytest.mark.parametrize(
    ("rows", "got"),
    [
        (torch.ones(5, 1, dtype=torch.bool), r"\(5, 1\) bool"),
        (torch.ones(1, dtype=torch.bool), r"\(1,\) bool"),
        (torch.tensor(True), r"\(\) bool"),
        (torch.ones(5, dtype=torch.uint8), r"\(5,\) uint8"),
        (torch.tensor([0, 2]), r"\(2,\) int64"),
        ([True, False, False, False, True], "list; torch.as_tensor"),
    ],
)
@pytest.mark.parametrize("begun", [False, True])
def test_choices_of_robots_that_are_not_yes_or_no_are_refused(rows, got, begun):
    """Leave all robots where they are."""
    env = environment()
    if begun:
        env.reset()
    with pytest.raises(InputError, match=rf"reset: rows: expected \(5,\) bool, got {got}"):
        env.reset(rows)
    if begun:
        assert env.current.episode.tolist() == [0] * 5
        with pytest.raises(InputError, match=rf"running: expected \(5,\) bool, got {got}"):
            env.acted(env.current, actions(5), rows)


@pytest.mark.parametrize(
    ("seed", "episode", "words"),
    [
        (torch.arange(5), torch.zeros(2).long(), r"episode: expected \(5,\) int64, got \(2,\) int64"),
        (torch.arange(6), torch.zeros(6).long(), r"seed: expected \(5,\) int64, got \(6,\) int64"),
        (torch.arange(5), torch.zeros(5), r"episode: expected \(5,\) int64, got \(5,\) float32"),
        (7, torch.zeros(5).long(), r"seed: expected \(5,\) int64, got int"),
    ],
)
def test_episodes_that_are_not_those_of_each_robot_are_refused(seed, episode, words):
    """Name what is not one whole number for each robot, before the task draws."""
    with pytest.raises(InputError, match=f"began: {words}"):
        environment().began(seed, episode)


def planar():
    """Return arms that keep to the x-z plane."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    return builder.finalize(compile=False)


def pneumatic():
    """Return a model that other integrators step."""
    return PneumaticArm([0.15], [0.5], 0.04, 265.0)


def tendon(**driven):
    """Return an arm that a tendon bends."""
    builder = RobotBuilder()
    rod = builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 5), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=rod[:1], direction="rest")
    builder.add_force(Tendons([AtNodes(rod, (0, 0, 0.005))], **(driven or {"tension": 1.0})))
    return builder.finalize(compile=False)


def pull():
    """Return an action on the gravity."""
    return Constant("Gravity.acceleration", -1.0, 1.0, count=3)


IDLE = ["edge_radius", "node_volume"]  # sizes that act on loads which this robot has not


def drawn(name, values):
    """Begin episodes whose task draws these values."""
    return environment(**{name: lambda model, draws: values}).reset()


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda env: env.step(actions(5)), "call reset"),
        (lambda env: (env.reset(), env.step(actions(4))), r"action: expected \(5, 2\), got \(4, 2\)"),
        (lambda env: (env.reset(), env.step(actions(5) * torch.nan)), "not finite"),
        (lambda env: (env.reset(), env.step(actions(5) * 1j)), "action: holds numbers that are complex"),
        (
            lambda env: (env.reset(), env.step(actions(5).numpy())),
            "action: expected a tensor, got ndarray; torch.as_te",
        ),
        (lambda env: env.reset(torch.arange(5) < 2), "first reset"),
        (lambda env: env.seeded([1, 2]), "one for each of 5 robots, got 2"),
        (lambda env: environment(horizon=0), "horizon: expected a whole number from 1 up, got 0"),
        (lambda env: environment(horizon=2.5), "horizon: expected a whole number from 1 up, got 2.5"),
        (lambda env: environment(batch=0), "batch: expected a whole number from 1 up, got 0"),
        (lambda env: Environment(env.model, env.integrator, env.task, 5, steps=1.5), "steps: expected a whole number"),
        (lambda env: Environment(pneumatic(), ArmIntegrator(1e-3), env.task), "rods and shells .*, got PneumaticArm"),
        (lambda env: environment(integrator=Static()), "integrator: expected one that moves in time, got Static"),
        (lambda env: env.seeded(1.5), "seed: expected a whole number of 64 bits, .* got 1.5"),
        (lambda env: env.seeded(2**63 - 5), "seed: expected a whole number of 64 bits"),
        (lambda env: env.seeded(True), "seed: expected a whole number of 64 bits, .* got True"),
        (lambda env: env.seeded([1, 2, None, 4, 5]), "seed: expected a whole number of 64 bits, .* None"),
        (lambda env: Actuator("curvature", torch.ones(1, 1)), "field: expected one of 'natural_curvature'"),
        (lambda env: Actuator("natural_twist", torch.ones(3)), "matrix"),
        (lambda env: Actuator("natural_twist", np.full((4, 1), np.nan)), "matrix: expected finite numbers"),
        (lambda env: environment(actions=[Actuator("natural_twist", torch.eye(4, 5))]), "column 4 changes no strain"),
        (
            lambda env: environment(model=planar(), actions=[Actuator("natural_twist", torch.ones(NODES - 2, 1))]),
            "column 0 changes no strain: .* twists one",
        ),
        (lambda env: environment(model=planar(), actions=[bend(planar())]), "column 1 changes no strain: .* planar"),
        (lambda env: Constant("Gravity.acceleration", 1.0, 1.0), "low < high"),
        (lambda env: drawn("goal", {1: torch.zeros(5)}), "Task.goal: expected tensors by names, got int"),
        (lambda env: environment(actions=[pull(), pull()]), "Gravity.acceleration is set by two of them"),
        (
            lambda env: environment(actions=[pull()]).reset(),
            "Task.constants: Gravity.acceleration is drawn for an episode and set by an action, .* leave out one",
        ),
        (
            lambda env: environment(model=tendon(), actions=[Constant("Tendons.tension", -1.0, 1.0)]),
            r"Constant\(Tendons.tension\): low: expected 0 or more, got -1",
        ),
        (
            lambda env: environment(
                model=tendon(pull=0.0, stiffness=9.0), actions=[Constant("Tendons.pull", 0.0, 1.0)]
            ),
            r"Constant\(Tendons.pull\): high: tendon 0 is to be pulled in by 1 m, and is 0.2 m long",
        ),
        (
            lambda env: environment(actions=[Constant("stretch.rest_length", 0.0, 1.0, count=5)]),
            r"Constant\(stretch.rest_length\): low: expected more than 0, got 0",
        ),
        (
            lambda env: environment(actions=[Actuator("rest_length", torch.eye(5)[:, 1:], -0.05, 0.05)]),
            r"Actuator\(rest_length\): .* edge [1-4] of 0.04 m may get -0.01 m; give a narrower",
        ),
        (
            lambda env: environment(actions=pull()),
            "Task.actions: expected a list of actions, also of one alone, got Con",
        ),
        (lambda env: environment(observations=node_positions()), "Task.observations: expected a list of observations"),
        (lambda env: Held(2, -1.0, 1.0), "Held: dofs: expected a list of indices, also of one alone, got int"),
        (
            lambda env: Held([True] + [False] * 22, -1.0, 1.0),
            r"Held: dofs: expected indices into q, got a mask; .*flatn",
        ),
        (lambda env: Force(np.arange(23) > 15, -1.0, 1.0), r"Force: dofs: expected indices into q, got a mask"),
        (lambda env: Force(torch.arange(23) > 15, -1.0, 1.0), r"Force: dofs: expected indices into q, got a mask"),
        (lambda env: Force([15], "a", 1.0), r"Force: low: expected a number, got 'a'"),
        (lambda env: strains(), r"observations.strains: expected names, such as strains\('kappa1'\), got none"),
        (
            lambda env: environment(observations=[strains(["tau"])]).reset(),
            r"observations.strains: no \['tau'\] in this",
        ),
        (lambda env: contact(), r"observations.contact: expected names, such as contact\('penetration'\), got"),
        (lambda env: environment(actions=[None]), r"Task.actions\[0\]: expected an Actuator, .* got NoneType"),
        (lambda env: Environment(env.model, env.integrator, reach(env.model, actions=[]), 5), "at least one action"),
        (lambda env: environment(actions=[Held([17], -1.0, 1.0)]), r"dofs \[17\] are not clamped"),
        *[
            (
                lambda env, d=dof: environment(model=planar(), actions=[Held([0, d], -1.0, 1.0)]),
                rf"Held: dofs \[{dof}\] .* planar",
            )
            for dof in (1, 3 * NODES, 4 * NODES + 1)
        ],
        (
            lambda env: environment(actions=[Force([99], -1.0, 1.0)]),
            r"Force: dofs: .* to 22 .*got \[99\]",
        ),
        (lambda env: environment(actions=[Force([15.5], -1.0, 1.0)]), r"Force: dofs: expected indices .*got \[15.5\]"),
        (lambda env: environment(actions=[Force([15, 15], -1.0, 1.0)]), "Force: dofs: expected indices, each once"),
        (lambda env: environment(actions=[Force([2, 15], -1.0, 1.0)]), r"Force: dofs \[2\] are clamped"),
        (lambda env: environment(actions=[Constant("Gravity.accelleration", -1.0, 1.0)]), "no constant"),
        (
            lambda env: environment(actions=[Constant("Gravity.acceleration", -1.0, 1.0)]),
            r"Constant\(Gravity.acceleration\): count = 1, but it has 3 numbers here; give count=3",
        ),
        (
            lambda env: environment(actions=[Constant("stretch.rest_length", 1.0, 2.0, count=2)]),
            r"Constant\(stretch.rest_length\): count = 2, but it has 5 numbers here",
        ),
        (lambda env: environment(actions=[Actuator("natural_twist", torch.ones(3, 1))]), "expected 4 rows, got 3"),
        (lambda env: environment(actions=[Actuator("natural_hinge_angle", torch.ones(3, 1))]), "no natural_hinge"),
        (lambda env: environment(observations=[lambda m, s, g: s.q[:, 0]]).reset(), r"observations\[0\]: expected"),
        (lambda env: environment(observations=[lambda m, s, g: None]).reset(), r"observations\[0\]: expected a tensor"),
        (
            lambda env: environment(observations=[node_positions([0]), lambda m, s, g: contact]).reset(),
            r"observations\[1\]: expected a tensor \(5, k\), got a function: .* call it, as in contact\('pen",
        ),
        (lambda env: environment(observations=[contact]).reset(), r"observations\[0\]: .* got a function: .* call it"),
        (lambda env: environment(observations=[3]), r"Task.observations\[0\]: expected a function, got int"),
        (lambda env: environment(observations=[None]), r"Task.observations\[0\]: expected a function, got NoneType"),
        (lambda env: environment(reward=None), "Task.reward: expected a function, got NoneType"),
        (lambda env: environment(observations=[node_positions([1.5])]).reset(), r"nodes: expected indices .* \[1.5\]"),
        (lambda env: environment(observations=[node_velocities([6])]).reset(), r"nodes: expected indices 0 to 5"),
        (lambda env: (e := environment(reward=lambda m, s: s.after.q), e.reset(), e.step(actions(5))), "Task.reward"),
        (lambda env: (e := environment(reward=lambda m, s: 1.0), e.reset(), e.step(actions(5))), "reward: .* tensor"),
        (lambda env: drawn("goal", {"target": 1.0}), "Task.goal: target: expected a tensor, got float"),
        (lambda env: drawn("goal", {"target": torch.zeros(3)}), r"Task.goal: target: expected \(5, ...\), got \(3,\)"),
        (
            lambda env: drawn("goal", {"target": torch.tensor([0.0, 1, 2, torch.nan, 4])}),
            "Task.goal: target: expected finite numbers, got nan for robot 3",
        ),
        (lambda env: env.acted(None, actions(5)), "acted: at: expected Episodes, such as `began` returns, got None"),
        (
            lambda env: environment(actions=[Constant("edge_length", 0.1, 1.0, count=5)]),
            r"Constant\(edge_length\): changes nothing here: .* lengths at rest are stretch.rest_length",
        ),
        (lambda env: drawn("start", {"x": torch.zeros(3)}), "Task.start: expected q and velocity, got 'x'"),
        (lambda env: drawn("constants", None), "Task.constants: expected tensors by name, got NoneType"),
        (
            lambda env: drawn("constants", {"Gravity.acceleration": torch.zeros(5, dtype=torch.float64)}),
            r"Task.constants: Gravity.acceleration: expected a row for each robot, .* got \(5,\): draw it with a count",
        ),
        (
            lambda env: drawn("constants", {name: torch.full((5, 1), 0.1).double() for name in IDLE}),
            r"Task.constants: edge_radius, node_volume: changes nothing here: sizes of a body act on loads alone",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(wrong, words):
    """Name what was wrong."""
    with pytest.raises(InputError, match=words):
        wrong(environment())


def test_sizes_without_effect_are_drawn_beside_others():
    """Draw a radius by all constants that depend on it, of which some act on loads that this robot has not."""
    model, law = arm(), torch.full((5, 1), 1e-3, dtype=torch.float64)
    sizes = {name: trainable.value(model, name).expand(5, -1) for name in IDLE}
    environment(model=model, constants=lambda model, draws: {**sizes, "bend_twist.EI1": law}).reset()


def test_sizes_without_effect_are_refused_beside_an_obstacle_at_the_origin():
    """See that areas move nothing beside a capsule that begins there: where it lies counts as it is."""
    builder = rod_through(straight((0, 0, 1), (0.2, 0, 1), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.add_contact(Obstacle(Capsule((0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 0.01), Penalty(10.0, 1e-3)))
    with pytest.raises(InputError, match="changes nothing here"):
        environment(model=builder.finalize(compile=False), actions=[Constant("edge_area", 1e-6, 1e-4, count=NODES - 1)])


@pytest.mark.parametrize("name", ["bend_twist.EI2", "bend_twist.GJ"])
def test_stiffnesses_out_of_a_robots_plane_are_refused_alone(name):
    """Draw and set stiffnesses that a planar robot does not feel; beside those that it feels they may be drawn."""
    builder = RobotBuilder(planar=True)
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), NODES), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize(compile=False)
    drawn = dict.fromkeys((name, "bend_twist.EI1"), torch.full((5, 1), 1e-3, dtype=torch.float64))
    task = {"model": model, "start": None, "constants": None, "actions": [Force([3], -1.0, 1.0)]}
    with pytest.raises(InputError, match=rf"Constant\({name}\): changes nothing here: the robot is planar"):
        environment(**task | {"actions": [Constant(name, 1e-4, 1e-3)]})
    with pytest.raises(InputError, match=f"Task.constants: {name}: changes nothing here: the robot is planar"):
        environment(**task | {"constants": lambda m, draws: {name: drawn[name]}}).reset()
    environment(**task | {"constants": lambda m, draws: drawn}).reset()


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda d: d.uniform(0.0, 1.0, 0), "uniform: count: expected a whole number from 1 up, got 0"),
        (lambda d: d.uniform(0.1, -0.1, 3), "uniform: expected low below high, got 0.1 and -0.1"),
        (lambda d: d.uniform(0.0, torch.nan), "uniform: high: expected a finite number, got nan"),
        (lambda d: d.loguniform(0.0, 1.0, 2), "loguniform: low: expected more than 0, got 0"),
        (lambda d: d.loguniform(1.0, 2.0, 2.5), "loguniform: count: expected a whole number from 1 up, got 2.5"),
        (lambda d: d.normal(0.0, -1.0, 2), "normal: deviation: expected 0 or more, got -1"),
        (lambda d: d.normal("0", 1.0), "normal: mean: expected a finite number, got '0'"),
    ],
)
def test_draws_that_make_no_sense_are_refused(draw, words):
    """Name the number of a draw that cannot be drawn from."""
    with pytest.raises(InputError, match=f"Draws.{words}"):
        draw(Draws(torch.arange(2), torch.zeros(2).long()))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("observations[1]", {"observations": [node_positions(), lambda m, s, goal: goal["aim"]]}),
        ("reward", {"reward": lambda m, step: step.goal["aim"]}),
        ("terminated", {"terminated": lambda m, step: step.goal["aim"]}),
        ("start", {"start": lambda m, draws: {"q": {}["aim"]}}),
    ],
)
def test_errors_in_a_task_say_in_which_of_its_functions(name, changes):
    """Leave errors of a task's own functions what they are, with a note of where they happened."""
    env = environment(**changes)
    with pytest.raises(KeyError, match="aim") as caught:
        env.reset()
        env.step(actions(5))
    assert caught.value.__notes__ == [f"This happened in Task.{name} of the environment's task."]


def test_constants_that_do_not_fit_the_model_are_noted_as_the_task_s():
    """Say that it was Task.constants that drew what the control of an episode cannot hold."""
    for name, count, words in (("Viscous.speed", 1, "no constant"), ("bend_twist.GJ", 2, "expected shape")):
        env = environment(constants=lambda m, draws, name=name, count=count: {name: draws.uniform(0.1, 0.2, count)})
        with pytest.raises(InputError, match=words) as caught:
            env.reset()
        assert caught.value.__notes__ == ["This happened in Task.constants of the environment's task."]


def test_rewards_and_observations_that_are_no_numbers_are_refused():
    """Name the robot of which a policy could not learn."""

    def reward(model, step):
        return torch.where(torch.arange(2) == 1, torch.nan, step.after.q[:, 0])

    env = environment(2, reward=reward)
    env.reset()
    with pytest.raises(InputError, match=r"Task.reward: expected finite numbers, got nan for robot 1"):
        env.step(torch.zeros(2, len(env.low)))
