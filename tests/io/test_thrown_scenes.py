"""[initial]: robots that begin thrown and spinning."""

import pytest
import torch

from tests.io.beginnings import BENT, FREE, GRAVITY, HELD, NODES, built, double, same, table
from tests.scenes import run
from torchdismech import Material, RobotBuilder


@pytest.mark.parametrize(
    ("keys", "throw"),
    [
        ("velocity = [1.0, 0.5, 2.0]", {"velocity": (1.0, 0.5, 2.0)}),
        ("angular_velocity = [3.0, 0.0, 5.0]", {"angular_velocity": (3.0, 0.0, 5.0)}),
        (
            "velocity = [1.0, 0.0, 0.0]\nangular_velocity = [0.0, 4.0, 0.0]\n"
            "center = [0.4, 0.0, 0.1]\nnodes = [2, 3, 4]",
            {
                "velocity": (1.0, 0.0, 0.0),
                "angular_velocity": (0.0, 4.0, 0.0),
                "center": double(0.4, 0.0, 0.1),
                "nodes": [2, 3, 4],
            },
        ),
    ],
    ids=["thrown", "spinning", "some nodes"],
)
@pytest.mark.parametrize("clamped", [False, True])
def test_thrown_robots_move_as_from_python(load, keys, throw, clamped):
    """Get the bits of `Model.thrown`."""
    model = built(clamped)
    both = {name: double(*throw.get(name, (0.0, 0.0, 0.0))) for name in ("velocity", "angular_velocity")}
    state = model.thrown(model.initial_state(), **{**throw, **both})
    assert bool((state.velocity[:, ~model.free] == 0).all()) and bool((state.velocity != 0).any())
    found = run(load((HELD if clamped else FREE) + f"[initial]\n{keys}\n"))
    same(found, model, state)


def test_velocities_are_drawn_for_each_robot(load):
    """Throw each robot of a batch by its own numbers, as it moves alone."""
    drawn = (
        "[initial]\nvelocity = [1.0, 0.0, 0.0]\nangular_velocity = [0.0, 0.0, 1.0]\n[batch]\nsize = 2\n"
        '[batch.randomize]\n"initial.velocity.0" = {values = [1.0, 2.0]}\n'
        '"initial.angular_velocity.2" = {values = [3.0, -4.0]}\n'
    )
    both = run(load(FREE + drawn))
    for robot, (speed, spin) in enumerate([(1.0, 3.0), (2.0, -4.0)]):
        keys = f"[initial]\nvelocity = [{speed}, 0.0, 0.0]\nangular_velocity = [0.0, 0.0, {spin}]\n"
        alone = run(load(FREE + keys))
        # 1e-12 m: the bits of a robot depend on how many are with it
        torch.testing.assert_close(both.positions[:, robot], alone.positions[:, 0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("axis", [(1.0, 0.0, 0.0), (0.0, 0.6, 0.8)])
def test_spinning_strains_nothing_at_first(axis):
    """Turn a robot, a bent one too, about any axis: to first order all strains stay, twist included."""
    model = built()
    positions = double(*BENT)[None]
    start = model.initial_state(q=model.posture(positions))
    state = model.thrown(start, double(0.0, 0.0, 0.0), 2.0 * double(*axis))
    step = 1e-5  # s: strains change by (omega step)^2 = 4e-10 of a bend of about 1 / m
    moved = model.frames.moved(state, state.q + step * state.velocity)
    for name, value in model.strains(moved).items():
        torch.testing.assert_close(value, model.strains(state)[name], rtol=0, atol=1e-8, msg=name)


def test_spinning_shells_turn_their_normals():
    """Turn a shell with mid-edge normals: no curvature comes of it to first order."""
    builder = RobotBuilder()
    square = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.1, 0.02], [0.1, 0.1, 0.0]]
    builder.add_shell(square, [[0, 1, 2], [1, 3, 2]], 1e-3, Material(1e6, 1000.0), bending="midedge")
    model = builder.finalize()
    state = model.thrown(model.initial_state(), double(1.0, 0.0, 0.0), double(3.0, -2.0, 1.0))
    step = 1e-6  # s: slopes change by (4 step)^2 / 2 = 8e-12, curvatures by that over the size of .1 m
    moved = model.frames.moved(state, state.q + step * state.velocity)
    for name, value in model.strains(moved).items():
        torch.testing.assert_close(value, model.strains(state)[name], rtol=0, atol=1e-8, msg=name)


def test_free_rods_keep_what_they_are_thrown_with(load):
    """Throw a rod that spins without gravity: middle of mass and angular momentum go on."""
    keys = "[initial]\nvelocity = [1.0, 0.0, 2.0]\nangular_velocity = [4.0, 0.0, 5.0]\n"
    scene = load(FREE.replace(GRAVITY, "") + keys)
    model, found = scene.build().model, run(scene)
    mass = model.body.node_mass()
    middle = (found.positions * mass[:, None]).sum(2) / mass.sum()
    expected = middle[0, 0] + found.time[:, None] * double(1.0, 0.0, 2.0)
    torch.testing.assert_close(middle[:, 0], expected, rtol=0, atol=1e-8)  # Newton leaves 1e-8 N on grams for .1 s
    arms = found.positions - middle.unsqueeze(2)
    momentum = (mass[:, None] * torch.linalg.cross(arms, found.velocities)).sum(2)[:, 0]
    # about z; the spin about the rod itself is in its frames, which turn with it
    torch.testing.assert_close(momentum[:, 2], momentum[:1, 2].expand(11), rtol=1e-6, atol=0)
    length = float(mass @ double(*NODES)[:, 0].sub(0.2).square())
    assert momentum[0, 2].item() == pytest.approx(5.0 * length, rel=1e-12)
    rates = model.thrown(model.initial_state(), double(0, 0, 0), double(4.0, 0.0, 5.0)).velocity[0, 15:]
    assert rates.tolist() == [4.0] * 4


def test_velocities_from_a_file(load):
    """Give each node its own velocity."""
    rows = [[0.0, 0.1 * k, 0.2 * k] for k in range(5)]
    model = built()
    velocity = torch.cat([double(*rows).flatten(), torch.zeros(4, dtype=torch.float64)])
    found = run(load(FREE + '[initial]\nvelocity_file = "v.txt"\n', v__txt=table(rows)))
    same(found, model, model.initial_state(velocity=velocity))
