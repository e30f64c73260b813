"""What clamps exert on robots, stored with the frames of a run."""

import math

import h5py
import pytest
import torch

from tests import scenes
from tests.trajectory.runs import ran
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    InputError,
    Material,
    RobotBuilder,
    Static,
    Trajectory,
    forces,
    rollout,
    straight,
)
from torchdismech.contact import HalfSpace, Obstacle, Penalty
from torchdismech.elastic import Dahl
from torchdismech.io.run import run_scene
from torchdismech.io.scene import load_scene
from torchdismech.rigid import Radau, RigidChain

SCENE = (
    scenes.rod(3, radius=1e-3)
    + """
[[clamp]]
nodes = [0]
direction = "rest"
[[clamp]]
nodes = [3]
axes = "z"
twist = false
[environment]
gravity = [0, 0, -9.81]
[simulation]
dt = 0.01
duration = 0.04
[output]
every = 2
reactions = true
[batch]
size = 2
"""
)


@pytest.mark.parametrize("floor", ["", '[floor]\nheight = -0.0012\nresponse = "complementarity"\n'])
def test_files_hold_the_reactions_of_each_frame(scene, tmp_path, floor):
    """Find in the file, with units, what the integrator says of the last step before each frame."""
    scene.write_text(scene.read_text() + floor)
    stored, setup = ran(scene, tmp_path / "run.h5"), load_scene(scene).build()
    state = setup.state
    for step in range(1, 5):
        before = state
        control = setup.integrator.sample(setup.schedule, before, setup.model)
        state, _ = setup.integrator.step(setup.model, before, control)
        if step % 2 == 0:
            expected = setup.integrator.reactions(setup.model, before, state, control)
            for k in range(2):
                assert torch.equal(stored.reactions[f"clamp{k}"][step // 2], expected[:, k])
    assert stored.reactions.keys() == {"clamp0", "clamp1"}
    assert not floor or int(stored.contact["active"][-1].min()) > 0
    assert bool(stored.reactions["clamp0"][0].isnan().all()) and stored.reactions["clamp0"].shape == (3, 2, 6)
    with h5py.File(tmp_path / "run.h5") as file:
        assert file["reaction/clamp1"].attrs["units"] == "N, N m"
    part = stored.frames(slice(1, 2))
    part.save(tmp_path / "part.h5")
    again = Trajectory.load(tmp_path / "part.h5")
    assert torch.equal(again.reactions["clamp1"], stored.reactions["clamp1"][1:2])


def test_resumed_runs_have_all_reactions(scene, tmp_path):
    """Go on with a run: its reactions are those of a run without a cut; one that has none goes on without."""
    whole = ran(scene, tmp_path / "whole.h5")
    ran(scene, tmp_path / "run.h5", simulation__duration=0.02)
    asked = load_scene(scene)
    resumed, _ = run_scene(asked, asked.build(), tmp_path / "run.h5", resume=tmp_path / "run.h5")
    for name, values in whole.reactions.items():
        assert torch.equal(resumed.reactions[name][1:], values[1:]), name
    none = ran(scene, tmp_path / "none.h5", output__reactions=False, simulation__duration=0.02)
    assert none.reactions == {}
    with pytest.raises(InputError, match="stores the reactions none, and .* has clamp0, clamp1"):
        run_scene(asked, asked.build(), tmp_path / "none.h5", resume=tmp_path / "none.h5", force_resume=True)


def lowered(step: float):
    """Return a rod above a plate whose clamp goes down by `step` [m] a step, and the schedule that moves it."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0.02), (0.1, 0, 0.02), 6), Circle(2e-3), Material(1e7, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_contact(Obstacle(HalfSpace((0, 0, 0), (0, 0, 1)), Penalty(1e3, 1e-4), name="plate"))
    model = builder.finalize()

    def schedule(time, model):
        pose = model.rest_poses[None].repeat(len(time), 1, 1)
        pose[:, 0, 2] -= step * time / 0.01
        return Control(pose=pose)

    return model, schedule


def test_load_cell_weighs_a_robot():
    """Carry the weight by the clamp, at rest and by an equilibrium, and less where a plate carries some."""
    model, _ = lowered(0.0)
    weight = float(model.body.node_mass().sum()) * 9.81
    run = rollout(model, model.initial_state(), Static(), 1, reactions=True)
    # 1e-7 N: Static's tolerance
    assert float(run.reactions["clamp0"][-1, 0, 2]) == pytest.approx(weight, abs=1e-7)
    model, schedule = lowered(1e-3)
    run = rollout(model, model.initial_state(), ImplicitEuler(0.01), 19, schedule, reactions=True)
    lift = float(run.contact["force/plate"][-1, 0, 2])
    momentum = model.body.node_mass() * run.velocities[:, 0, :, 2]
    # the held node is a part of the robot, too: what moves it is the clamp's
    change = float((momentum[-1] - momentum[-2]).sum()) / 0.01
    assert lift > 0.1 * weight
    # 1e-7 N: Newton's tolerance of 1e-8 N at each of the free nodes
    assert float(run.reactions["clamp0"][-1, 0, 2]) == pytest.approx(weight - lift + change, abs=1e-7)


def test_what_is_not_known_is_no_number():
    """Store no number for a step that was taken in parts, and of a robot that failed."""
    model, schedule = lowered(0.05)
    in_parts = ImplicitEuler(0.01, max_substeps=64, max_iterations=8)
    run = rollout(model, model.initial_state(), in_parts, 1, schedule, reactions=True)
    assert not run.failed.any() and bool(run.reactions["clamp0"][-1].isnan().all())
    run = rollout(model, model.initial_state(), ImplicitEuler(0.01, max_iterations=1), 1, schedule, reactions=True)
    assert run.failed.all() and bool(run.reactions["clamp0"][-1].isnan().all())


def test_equilibria_tell_reactions_however_the_load_grew():
    """Store the moment that holds a quarter of a circle, whose load `Static` divides by itself, or as it is told."""
    length, radius, youngs = 0.4, 5e-3, 1e6
    moment = youngs * math.pi * radius**4 / 4 * math.pi / 2 / length
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (length, 0, 0), 21), Circle(radius), Material(youngs, 1200.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.PointMoment((0, -moment, 0), nodes=[20]))
    model = builder.finalize()
    _, info = Static().step(model, model.initial_state())
    assert info.substeps.tolist() == [2]
    for load_steps in (1, 3):
        run = rollout(model, model.initial_state(), Static(load_steps=load_steps), 1, reactions=True)
        # 1e-7: the residual is 1e-8 of the load, and a moment at a node acts by way of the edges there
        assert float(run.reactions["clamp0"][-1, 0, 4]) == pytest.approx(moment, rel=1e-7)


@pytest.mark.parametrize("load_steps", [1, 2])
def test_reactions_of_what_remembers(load_steps):
    """Hold a rod with inner friction, loaded anew in two shares: friction is that at the end of the way."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.2, 0, 0), 11), Circle(5e-3), Material(1e6, 1200.0))
    builder.clamp(nodes=[0], direction="rest")
    stiffness = dict.fromkeys(("EI1", "EI2", "GJ"), 5e-4)
    builder.add_inelastic("bend_twist", Dahl(stiffness, 2.0))
    builder.add_force(forces.PointForce([10], (0, 0, 0.02)))
    model = builder.finalize()
    loaded, _ = Static().step(model, model.initial_state())
    run = rollout(model, loaded, Static(load_steps=load_steps), 1, reactions=True)
    # 1e-8: the tolerance of a step as a part of its load; from the state before the last step friction is 1e-2 off
    assert float(run.reactions["clamp0"][-1, 0, 2]) == pytest.approx(-0.02, rel=1e-8)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda text: text.split("[[clamp]]")[0] + text[text.index("[environment]") :], "output.reactions: nothing is"),
    ],
)
def test_scenes_without_reactions_are_refused(tmp_path, change, problem):
    """Say by key what is missing."""
    path = tmp_path / "scene.toml"
    path.write_text(change(SCENE))
    with pytest.raises(InputError, match=problem):
        load_scene(path)


def test_robots_without_reactions_are_refused():
    """Refuse to store what chains, and robots that nothing holds, do not have."""
    chain = RigidChain.cylinder(2, length=1.2, diameter=6e-3, density=2710.0, youngs=1e10, viscosity=1e9)
    with pytest.raises(InputError, match="Radau has none"):
        rollout(chain, chain.initial_state(), Radau(0.01), 1, reactions=True)
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 4), Circle(2e-3), Material(1e7, 1000.0))
    model = builder.finalize()
    with pytest.raises(InputError, match="the robot has none"):
        rollout(model, model.initial_state(), ImplicitEuler(0.01), 1, reactions=True)
