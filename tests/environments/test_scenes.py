"""Scenes as environments: what an episode draws anew, actions beside a scene's loads, and what is refused."""

import pytest
import torch

from tests import scenes
from tests.environments.arms import same
from torchdismech import (
    InputError,
)
from torchdismech.environments import (
    Constant,
    Draws,
    Environment,
    Force,
    Task,
    node_positions,
)
from torchdismech.environments.randomized import RandomizedConstants
from torchdismech.io.scene import load_scene

SCENE = (
    scenes.falling(3, 0.06, "[0.0, 0.0, -9.81]")
    + """\
[batch]
size = 3
[batch.randomize]
"""
)


DRAWN = {
    "rod.youngs": "{ uniform = [8e5, 2e6] }",
    "rod.density": "{ loguniform = [500.0, 2000.0] }",
    "rod.section.radius": "{ values = [4e-3, 5e-3, 6e-3] }",
    "environment.gravity.1": "{ normal = [0.0, 1.0] }",
}


def scene_of(folder, drawn, more=""):
    """Return the file of a scene that draws these numbers."""
    path = folder / "scene.toml"
    path.write_text(more + SCENE + "".join(f'"{name}" = {law}\n' for name, law in drawn.items()))
    return path


def pulled(**changes):
    """Return a task: pull at the tip."""
    parts = {"actions": [Force([11], -1.0, 1.0)], "observations": [node_positions([3])]}
    return Task(**{**parts, "reward": lambda m, step: step.after.positions[:, -1, 2], **changes})


def test_scene_becomes_an_environment(tmp_path):
    """Take robots, batch and duration from a scene."""
    scene = scene_of(tmp_path, {"rod.youngs": DRAWN["rod.youngs"]})
    env = Environment.from_scene(scene, pulled(), steps=2)
    assert (env.batch, env.horizon, env.model.batch) == (3, 3, 3)
    env.reset()
    assert not env.current.constants
    assert not env.step(torch.full((3, 1), 0.01, dtype=torch.float64)).ended.any()
    scene = scene_of(tmp_path, {}, "[[move]]\nnodes = [0, 1]\nvelocity = [0.0, 0.0, 0.1]\n")
    with pytest.raises(InputError, match=r"\[move\] moves the robots"):
        Environment.from_scene(scene, pulled())


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('[[tendon]]\nnodes = [0, 1, 2]\noffset = [0, 0, 1e-2]\ntension_file = "t.csv"\n', "tendon.0.tension_file"),
        (
            "[[tendon]]\nnodes = [0, 1]\noffset = [0, 0, 1e-2]\ntension = 0.1\n"
            '[[tendon]]\nnodes = [0, 1]\nstiffness = 9.0\npull_file = "t.csv"\n',
            "tendon.1.pull_file",
        ),
        (
            '[[chamber]]\nnodes = [1, 2]\noffset = [0, 0, 1e-2]\narea = 1e-5\npressure_file = "t.csv"\n',
            "chamber.0.pressure_file",
        ),
    ],
    ids=["tension", "pull", "pressure"],
)
def test_scenes_whose_files_drive_are_refused(tmp_path, table, words):
    """Refuse files that drive tendons and chambers, by table and key: no action would read them."""
    (tmp_path / "t.csv").write_text("0, 0.3\n1, 0.3\n")
    with pytest.raises(InputError, match=f"{words}: t.csv drives the .*give a number"):
        Environment.from_scene(scene_of(tmp_path, {}, table), pulled())


def test_scene_draws_its_robots_anew(tmp_path):
    """Reset one of three robots: it has the numbers of its next episode, the others keep every bit of theirs.

    They are those that its seed and episode give, whoever else is there, and robots are as if built with them.
    """
    env = Environment.from_scene(scene_of(tmp_path, DRAWN), pulled(), anew=True, seed=5)
    names = {"mass", "stretch.EA", "bend_twist.EI1", "bend_twist.EI2", "bend_twist.GJ", "Gravity.acceleration"}
    env.reset()
    assert env.current.constants.keys() == names  # radii are a list for the scene's robots, and stay
    action = torch.full((3, 1), 0.01, dtype=torch.float64)
    env.step(action)
    before, rows = env.current, torch.tensor([False, True, False])
    env.reset(rows)
    assert same(before, env.current, ~rows)
    assert not any(torch.equal(before.constants[name][rows], env.current.constants[name][rows]) for name in names)
    env.step(action)
    # robots built with these numbers, of robots 5, 6 and 7 in their episodes 0, 1 and 0
    draws = Draws(env.current.seed, torch.tensor([0, 1, 0]))
    numbers = {
        "rod.youngs": draws.named("rod.0.youngs").uniform(8e5, 2e6),
        "rod.density": draws.named("rod.0.density").loguniform(500.0, 2000.0),
        "environment.gravity.1": draws.named("environment.gravity.1").normal(0.0, 1.0),
    }
    listed = {name: f"{{ values = {values.tolist()} }}" for name, values in numbers.items()}
    built = Environment.from_scene(scene_of(tmp_path, DRAWN | listed), pulled(), seed=5)
    built.reset()
    built.step(action)
    # 1e-12 m: the order of sums; robot 1 has begun anew since its first step
    there, here = built.current.state.positions, env.current.state.positions
    assert torch.allclose(here[rows], there[rows], rtol=0, atol=1e-12)
    built.step(action)
    assert torch.allclose(here[~rows], built.current.state.positions[~rows], rtol=0, atol=1e-12)


def test_code_of_a_scene_runs_where_it_may(tmp_path):
    """Refuse a scene's field in Python unless code is allowed; then robots drawn anew feel it as a constant one."""
    (tmp_path / "field.py").write_text(
        "import torch\ndef up(time):\n    return torch.tensor([0.0, 0.0, 1e-2], dtype=time.dtype)\n"
    )

    def magnetised(field):
        drawn = {"rod.magnetisation.0": "{ uniform = [1e4, 2e4] }"}
        scene = scene_of(tmp_path, drawn, f"[magnetic]\n{field}\n")
        scene.write_text(scene.read_text().replace("[rod]\n", "[rod]\nmagnetisation = [1e4, 0, 0]\n"))
        return scene

    with pytest.raises(InputError, match="runs code from field.py:up: .*allow_code=True"):
        Environment.from_scene(magnetised('python = "field.py:up"'), pulled())
    made = [
        Environment.from_scene(magnetised(field), pulled(), anew=True, allow_code=True)
        for field in ('python = "field.py:up"', "constant = [0, 0, 1e-2]", "constant = [0, 0, 0]")
    ]
    for env in made:
        env.reset()
        assert env.current.constants.keys() == {"Magnetic.magnetisation"}
    coded, constant, none = (env.step(torch.zeros(3, 1, dtype=torch.float64)).observation for env in made)
    # 1e-12 m: rounding; without the field robots are elsewhere
    assert torch.allclose(coded, constant, rtol=0, atol=1e-12) and not torch.allclose(coded, none, rtol=0, atol=1e-9)


def test_one_robot_of_a_scene_is_drawn_anew(tmp_path):
    """Let a robot alone draw what a robot in a batch with its seed does."""
    drawn = {name: DRAWN[name] for name in ("rod.youngs", "environment.gravity.1")}
    three = Environment.from_scene(scene_of(tmp_path, drawn), pulled(), anew=True, seed=5)
    path = scene_of(tmp_path, drawn)
    path.write_text(path.read_text().replace("size = 3", "size = 1"))
    one = Environment.from_scene(path, pulled(), anew=True, seed=7)
    for _ in range(2):
        three.reset()
        one.reset()
        assert one.current.constants.keys() == three.current.constants.keys()
        for name, value in one.current.constants.items():
            assert torch.equal(value[0], three.current.constants[name][2]), name


def test_robots_draw_again_what_a_scene_does_not_accept(tmp_path):
    """Draw stiffnesses of which a tenth are negative: robots have the first that is not, whoever else is there."""
    law = {"rod.youngs": "{ normal = [1e6, 8e5] }"}
    env = Environment.from_scene(scene_of(tmp_path, law), pulled(), anew=True, seed=5)
    seed, again = torch.tensor([5, 6, 7]), 0
    area = torch.pi * 5e-3**2
    for episode in torch.arange(12).unsqueeze(1).expand(-1, 3):
        draws = Draws(seed, episode).named("rod.0.youngs")
        youngs = draws.normal(1e6, 8e5)
        again += int((youngs <= 0).sum())
        while bool((youngs <= 0).any()):
            youngs = torch.where(youngs > 0, youngs, draws.normal(1e6, 8e5))
        stiffness = env.began(seed, episode).constants["stretch.EA"]
        torch.testing.assert_close(stiffness[:, 0], youngs * area, rtol=1e-12, atol=0)  # rounding
    assert again > 0  # else nothing was tried
    never = scene_of(tmp_path, {"rod.youngs": "{ normal = [1e6, 0.1] }"})
    scene = load_scene(never)
    hopeless = scene.document.batch.randomize["rod.youngs"].model_copy(update={"normal": [-1e6, 0.1]})
    scene.document.batch.randomize["rod.youngs"] = hopeless
    with pytest.raises(
        InputError, match=r"rod.youngs.*robot . drew -.* in draw 100, as in all before: expected greater than 0"
    ):
        RandomizedConstants(scene)


@pytest.mark.parametrize(
    ("drawn", "more", "changes", "words"),
    [
        ({"rod.section.radius": DRAWN["rod.section.radius"]}, "", {}, "has no distribution to draw from"),
        (
            {"rod.section.radius": "{ uniform = [4e-3, 5e-3] }"},
            "[self_contact]\nstiffness = 1.0\n",
            {},
            "rod.section.radius: change edge_contact_radius of Body, which is set when robots are built",
        ),
        (
            {"environment.gravity.1": DRAWN["environment.gravity.1"]},
            "",
            {"constants": lambda m, draws: {"Gravity.acceleration": draws.uniform(-9.0, 9.0, 3)}},
            "Task.constants: Gravity.acceleration is drawn by the scene, too",
        ),
    ],
)
def test_what_cannot_be_drawn_anew_is_refused(tmp_path, drawn, more, changes, words):
    """Name what is drawn, and why not."""
    scene = scene_of(tmp_path, drawn, more)
    with pytest.raises(InputError, match=words):
        Environment.from_scene(scene, pulled(**changes), anew=True).reset()


@pytest.mark.parametrize("anew", [False, True])
@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("law", ["{ uniform = [0, 2e4] }", "{ values = [1e4, 2e4, 3e4] }"])
def test_actions_do_not_hide_what_a_scene_draws(tmp_path, anew, size, law):
    """Refuse an action that sets the pressures that robots draw or list, when the environment is made.

    A list of one number is that of the scene's only robot: an action may set it as any other.
    """
    chamber = "[[chamber]]\nnodes = [1, 2]\noffset = [0, 0, 1e-2]\narea = 1e-5\npressure = 1e4\n"
    drawn = {"environment.gravity.1": DRAWN["environment.gravity.1"], "chamber.0.pressure": law}
    scene = scene_of(tmp_path, drawn, chamber)
    alone = scene.read_text().replace("size = 3", "size = 1").replace("1e4, 2e4, 3e4", "1e4")
    scene.write_text(scene.read_text() if size == 3 else alone)
    listed_alone = size == 1 and "values" in law
    if not listed_alone:
        with pytest.raises(InputError, match=r"scene.toml: \[batch.randomize\] draws Chambers.pressure, and an action"):
            Environment.from_scene(scene, pulled(actions=[Constant("Chambers.pressure", 0.0, 2e4)]), anew=anew)
    area = [Constant("Chambers.pressure" if listed_alone else "Chambers.area", 1e-6, 2e-5)]
    Environment.from_scene(scene, pulled(actions=area), anew=anew).reset()  # nobody draws it


def test_options_of_scenes_are_looked_at(tmp_path):
    """Refuse numbers of steps that are none, and a number of robots, which the scene says."""
    scene = scene_of(tmp_path, {})
    with pytest.raises(InputError, match=r"Environment: steps"):
        Environment.from_scene(scene, pulled(), steps=0)
    with pytest.raises(InputError, match=r"batch: the scene says"):
        Environment.from_scene(scene, pulled(), batch=2)
