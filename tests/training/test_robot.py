"""Rods between markers: what their grips hold."""

import pytest
import torch

from tests.training.simulated import DT, GRIPPED, LENGTHS, TREE, gripped_motion
from torchdismech import Control, ImplicitEuler, InputError, Static, trainable, unroll
from training.config import Robot
from training.robots.rod_models import rod_builder
from training.robots.rod_motion import HeldMotion, held_edges, held_twist, rod_state
from training.robots.trees import Tree


def begun(robot: Robot, tree: Tree, motion: torch.Tensor):
    """Return the model, its state at the second frame and its schedule, for a motion (B, T, N, 3) of the markers."""
    model = rod_builder(robot, tree).finalize(compile=False)
    first = torch.arange(len(motion))
    turned = held_twist(motion, held_edges(model), tree).at(first, torch.zeros_like(first))
    state = rod_state(model, motion[:, 0], motion[:, 1], DT, turned, tree)
    return model, state, HeldMotion(model, motion[:, 1:], state.twist, DT)


@pytest.mark.parametrize(("hold", "low", "high"), [("nodes", 1.2, 1.3), ("direction", 0.98, 1.03)])
def test_grip_that_holds_a_direction_ends_at_its_last_node(hold, low, high):
    """Let a stiff rod of eight free edges sag and compare with the beam that begins at the last gripped node."""
    tree = Tree.chain(torch.full((9,), 0.05, dtype=torch.float64))
    robot = Robot(gripped=[0, 1], hold=hold, bending=5e-3, linear_density=1e-3)
    model, state, schedule = begun(robot, tree, tree.shape()[0][None, None].repeat(1, 2, 1, 1))
    found, info = Static().step(model, state, schedule(state.time, model))
    sag = 1e-3 * 9.81 * 0.4**4 / (8 * 5e-3)
    # eight edges: 1.5 % with a direction; nodes alone let the rod bend half an edge earlier, 4 x 1/16 and more
    assert info.converged.all() and low < -found.positions[0, -1, 2] / sag < high


def test_held_directions_are_those_of_gripped_edges():
    """Move directions with their edges, in the frames and between them; frames and twist of both are the same."""
    motion = gripped_motion(2, 50)[:, 40:]
    model, state, schedule = begun(Robot(gripped=GRIPPED, hold="direction"), TREE, motion)
    assert model.body.held.nodes.tolist() == [1, 1, len(LENGTHS) - 1, len(LENGTHS) - 1]
    edges = [0, 0, len(LENGTHS) - 1, len(LENGTHS) - 1]
    assert torch.equal(state.director[:, len(LENGTHS) :], state.director[:, edges])
    assert torch.equal(state.twist[:, len(LENGTHS) :], state.twist[:, edges])
    along = TREE.tangents(motion)[:, :, edges]
    for k in (0.0, 3.0, 3.5):
        q = schedule(torch.full((2,), k * DT, dtype=torch.float64), model).clamped_q
        own = q[:, model.body.first_held :].unflatten(1, (-1, 3))
        before, share = 1 + int(k), k % 1
        expected = torch.lerp(along[:, before], along[:, before + int(share > 0)], share)
        torch.testing.assert_close(own, expected)
    assert torch.equal(state.held_tangents, along[:, 1])


@pytest.mark.filterwarnings("ignore::torchdismech.errors.FailureWarning")
def test_robot_that_fails_leaves_the_motion_of_others_alone():
    """Tear the first of two rods apart: the grips of the second one go on as recorded, as they do alone."""
    motion = gripped_motion(1, 52)[:, 40:].repeat(2, 1, 1, 1)
    motion[0, 6:, -1, 0] = 1e200  # whose square is infinite

    def predicted(motion):
        model, state, schedule = begun(Robot(gripped=GRIPPED), TREE, motion)
        return unroll(model, state, ImplicitEuler(DT), motion.shape[1] - 2, schedule)

    both, alone = predicted(motion), predicted(motion[1:])
    assert (both.status != 0).tolist() == [True, False] and bool((alone.status == 0).all())
    grips = both.positions[:, 1][:, GRIPPED]
    assert torch.allclose(grips, motion[1, 1:, GRIPPED], atol=1e-12)  # rounding
    # Newton's method ends at its tolerance, whose steps another row may change in the last bits
    assert torch.allclose(both.positions[:, 1], alone.positions[:, 0], atol=1e-9)


def test_strands_that_rub_keep_a_bend():
    """Bend a chain and let go: what a fit calls hysteresis leaves it bent, and can be trained."""
    tree = Tree.chain(torch.full((9,), 0.05, dtype=torch.float64))
    left = []
    for strands in ({}, {"hysteresis": 0.5, "hysteresis_limit": 0.2}):
        robot = Robot(gripped=[0, 1], hold="direction", gravity=(0, 0, 0), **strands)
        model, state, _ = begun(robot, tree, tree.shape()[0][None, None].repeat(1, 2, 1, 1))
        force = torch.zeros_like(state.q)
        force[:, 3 * 9 + 2] = -0.02
        for load in (force, 0 * force):
            state, info = Static(4).step(model, state, Control(force=load, clamped_q=state.q))
            assert bool(info.converged.all())
        left.append(float(state.positions[0, -1, 2]))
        assert ("bend_twist.dahl.EI1_limit" in trainable.constants(model)) == bool(strands)
    assert abs(left[0]) < 1e-6 and left[1] < -5e-3


def test_branch_at_a_grip_has_no_direction():
    """Refuse a direction where a branch leaves the last gripped node."""
    length = torch.full((6,), 0.05, dtype=torch.float64)
    edges = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [1, 6]])
    angle = torch.tensor([0.0, 0, 0, 0, 0, 1.0], dtype=torch.float64)
    tree = Tree(edges, length, angle, torch.zeros(6, dtype=torch.float64))
    with pytest.raises(InputError, match=r"robot.hold: a branch begins at gripped node 1"):
        rod_builder(Robot(gripped=GRIPPED, hold="direction"), tree)
    rod_builder(Robot(gripped=GRIPPED), tree)


def test_a_single_gripped_node_has_no_direction():
    """Refuse a direction where no edge is gripped, which held the node alone."""
    with pytest.raises(InputError, match='robot.hold: .* there is none: expected "nodes", or neighbouring nodes'):
        rod_builder(Robot(gripped=[0], hold="direction"), TREE)
