"""Scenes whose clamps hold rods in a direction, and turn."""

import math

import pytest
import torch

from tests import scenes
from torchdismech import Circle, ImplicitEuler, Material, RobotBuilder, forces, rollout, straight
from torchdismech.io.scene.refusals import SceneError

ROBOT = (
    scenes.rod(3)
    + """
[environment]
gravity = [0, 0, -9.81]
viscosity = 0.1
[simulation]
dt = 0.01
duration = 0.1
"""
)
HELD = '[[clamp]]\nnodes = [0]\ndirection = "rest"\n'
FAR_END = '[[clamp]]\nnodes = [3]\ndirection = "rest"\n'


def last_state(scene):
    """Return the state at the end of a scene."""
    setup = scene.build()
    trajectory = rollout(setup.model, setup.state, setup.integrator, setup.steps, setup.schedule, throw=True)
    return setup.model, trajectory.state


def test_a_direction_is_that_of_python(load):
    """Swing as the same robot built by hand."""
    _, state = last_state(load(ROBOT + HELD))
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Viscous(0.1))
    model = builder.finalize(compile=False)
    expected = rollout(model, model.initial_state(), ImplicitEuler(0.01), 10, throw=True).state
    torch.testing.assert_close(state.q, expected.q, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rule", ["trapezoidal", "gregory"])
def test_rules_at_clamps(load, rule):
    """Have the clamp's spring half an edge long, or 5/12 of one."""
    model, _ = last_state(load(ROBOT.replace("[robot]\n", f'[robot]\nclamp_rule = "{rule}"\n') + HELD))
    length = {"trapezoidal": 0.05, "gregory": 0.1 * 5 / 12}[rule]
    assert model.term("bend_twist").scale[-1].item() == pytest.approx(length)


def test_a_given_direction(load):
    """Hold a rod at 45 degrees to where it was built: that is its shape without loads."""
    model, state = last_state(load(ROBOT + HELD.replace('"rest"', "[1, 0, 1]")))
    expected = torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64) / math.sqrt(2)
    torch.testing.assert_close(state.held_tangents[0, 0], expected)
    assert model.term("bend_twist").natural_kappa1[-1] != 0


def test_each_robot_slides_along_its_own_line(load):
    """Draw the line of each robot, as from Python; other numbers of clamps are the same for all."""
    slides = HELD + "[[clamp]]\nnodes = [3]\nalong = [1, 0, 0.5]\n[batch]\nsize = 2\n[batch.randomize]\n"
    _, state = last_state(load(ROBOT + slides + '"clamp.1.along.2" = {values = [0.5, -1.0]}\n'))
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.3, 0, 0), 4), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    builder.clamp(nodes=[3], along=[(1, 0, 0.5), (1, 0, -1.0)])
    builder.add_force(forces.Gravity((0, 0, -9.81)))
    builder.add_force(forces.Viscous(0.1))
    model = builder.finalize(compile=False)
    expected = rollout(model, model.initial_state(2), ImplicitEuler(0.01), 10, throw=True).state
    torch.testing.assert_close(state.q, expected.q, rtol=0, atol=1e-12)
    with pytest.raises(SceneError, match="share their clamps, but for along and normal"):
        load(ROBOT + slides + '"clamp.1.nodes.0" = {values = [3, 2]}\n').build()


def test_rotations_turn_clamps_as_rigid_bodies(load):
    """Turn one end about the rod's axis by one turn: it twists evenly. About another axis: its direction turns."""
    still = ROBOT.replace("gravity = [0, 0, -9.81]\n", "")
    turn = "[[move]]\nnodes = [3]\nrotation = {{axis = {}, center = [0.3, 0, 0], rate = {}}}\nstop = 0.1\n"
    twisting = turn.format([1, 0, 0], 20 * math.pi)
    _, state = last_state(load(still.replace("duration = 0.1", "duration = 1.0") + HELD + FAR_END + twisting))
    # one turn over three edges, in the middles of which the angles are; the spin of the edges has died down
    expected = torch.tensor([1 / 6, 1 / 2, 5 / 6], dtype=torch.float64) * 2 * math.pi
    torch.testing.assert_close(state.twist[0, :3], expected, rtol=1e-4, atol=0)
    assert state.twist[0, 4].item() == pytest.approx(2 * math.pi)  # of the clamp that turns
    _, state = last_state(load(still + HELD + FAR_END + turn.format([0, 1, 0], 5.0)))
    torch.testing.assert_close(
        state.held_tangents[0, 1], torch.tensor([math.cos(0.5), 0, -math.sin(0.5)], dtype=torch.float64)
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_clamps_turn_by_less_than_half_a_turn_a_step(load, sign):
    """Refuse a rate by which a clamp would turn the other way, or not at all; nearly half a turn a step is turned."""
    still = ROBOT.replace("gravity = [0, 0, -9.81]\n", "")
    turn = "[[move]]\nnodes = [3]\nrotation = {{axis = [1, 0, 0], center = [0.3, 0, 0], rate = {}}}\n"
    shift = "[[move]]\nnodes = [0]\nvelocity = [0.01, 0, 0]\n"
    for asked, shown in ((101 * math.pi, "3.173"), (200 * math.pi, "6.283")):
        words = rf"move.1.rotation.rate: turns a clamp by {shown} rad in a step of 0.01 s: expected less than half a"
        with pytest.raises(SceneError, match=words):
            load(still + HELD + FAR_END + shift + turn.format(sign * asked)).build()
    _, state = last_state(load(still + HELD + FAR_END + turn.format(99 * sign * math.pi)))
    turned = state.twist[0, 4].item()  # of the clamp that turns, in ten steps of 0.01 s
    assert turned == pytest.approx(9.9 * sign * math.pi, rel=1e-12)  # rounding of ten sums
    # a turn that is over within a step counts as far as it goes, and clamps that are no rigid bodies count no turns
    load(still + HELD + FAR_END + turn.format(1000.0) + "stop = 0.003\n").build()
    load(still + HELD + "[[clamp]]\nnodes = [3]\n" + turn.format(1000.0)).build()


def test_drawn_rates_of_all_robots_count(load):
    """Name the robot whose rate is too high."""
    drawn = '[batch]\nsize = 3\n[batch.randomize]\n"move.0.rotation.rate" = {values = [1.0, -400.0, 2.0]}\n'
    turn = "[[move]]\nnodes = [0]\nrotation = {axis = [1, 0, 0], center = [0, 0, 0], rate = 1.0}\n"
    with pytest.raises(
        SceneError, match=r"move.0.rotation.rate: turns a clamp by 4 rad in a step of 0.01 s \(robot 1\)"
    ):
        load(ROBOT + HELD + turn + drawn).build()


def test_translations_keep_directions(load):
    """Move an end sideways: the rod leaves it in the same direction."""
    move = "[[move]]\nnodes = [0]\nvelocity = [0, 0.1, 0.2]\n"
    _, state = last_state(load(ROBOT + HELD + move))
    torch.testing.assert_close(state.held_tangents[0, 0], torch.tensor([1.0, 0, 0], dtype=torch.float64))
    torch.testing.assert_close(state.positions[0, 0], torch.tensor([0, 0.01, 0.02], dtype=torch.float64))


@pytest.mark.parametrize(
    ("clamps", "named"),
    [
        ('[[clamp]]\nnodes = [0]\ndirection = "up"\n', "clamp.0.direction"),
        ("[[clamp]]\nnodes = [0]\ndirection = [0, 0, 0]\n", "clamp.0"),
        (HELD + HELD, "held in a direction by two clamps"),
        ("[[clamp]]\nnodes = [0]\ndirection = [-1, 0, 0]\n", "within 90 degrees"),
    ],
)
def test_refusals(load, clamps, named):
    """Name what does not fit."""
    with pytest.raises(SceneError, match=named):
        load(ROBOT + clamps).build()


def test_a_part_of_a_clamp_does_not_turn(load):
    """Refuse motion of one of two nodes of a clamp where clamps turn as a whole."""
    both = '[[clamp]]\nnodes = [0, 3]\ndirection = "rest"\n'
    turn = "[[move]]\nnodes = [3]\nrotation = {axis = [1, 0, 0], center = [0, 0, 0], rate = 1.0}\n"
    with pytest.raises(SceneError, match="node 0 of the same clamp stays"):
        load(ROBOT + both + turn).build()


TWO_HELD = (
    ROBOT.replace("[0.3, 0, 0]]", "[0.3, 0, 0], [0.4, 0, 0]]").replace("[2, 3]]", "[2, 3], [3, 4]]")
    + HELD
    + "[[clamp]]\nnodes = [3, 4]\n"
)
TURN = "[[move]]\nnodes = [0]\nrotation = {axis = [1, 0, 0], center = [0, 0, 0], rate = 1.0}\n"
FILE = '[[move]]\nnodes = [4, 3]\nfile = "path.csv"\n'


def test_paths_shift_rigid_clamps(load):
    """Shift a clamp of two nodes by a file, while another clamp turns: it is where the file says."""
    path = "0, 0.4,0,0, 0.3,0,0\n0.1, 0.4,0,0.01, 0.3,0,0.01\n"
    _, state = last_state(load(TWO_HELD + FILE + TURN, path__csv=path))
    expected = torch.tensor([[0.3, 0, 0.01], [0.4, 0, 0.01]], dtype=torch.float64)
    torch.testing.assert_close(state.positions[0, 3:], expected, rtol=0, atol=1e-15)  # rounding of a mean


def test_what_rigid_clamps_do_not_do_is_refused(load):
    """Refuse, where a clamp turns as a rigid body, what other clamps would do otherwise than without."""
    # node 4 turns by 45 degrees about node 3
    path = "0, 0.4,0,0, 0.3,0,0\n0.1, 0.370711,0,0.070711, 0.3,0,0\n"
    with pytest.raises(SceneError, match=r"move.0.file: turns or deforms clamp.1: at 0.1 s node 4 is 0.0765.* m from"):
        load(TWO_HELD + FILE + TURN, path__csv=path).build()
    twist = "[[move]]\nedges = [3]\ntwist_rate = 5.0\n"
    with pytest.raises(SceneError, match=r"move.1.twist_rate: edge 3 is held by clamp.1"):
        load(TWO_HELD + TURN + twist).build()
    # without the clamp that turns both do what they say: 0.5 rad in 0.1 s, and what the file has, to its rounding
    _, state = last_state(load(TWO_HELD + FILE + twist, path__csv=path))
    assert state.twist[0, 3].item() == pytest.approx(0.5, rel=1e-12)
    assert state.positions[0, 4].tolist() == pytest.approx([0.370711, 0, 0.070711], abs=1e-15)
