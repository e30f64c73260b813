"""[initial]: beginnings that are refused, by table and key."""

import pytest
import torch

from tests.io.beginnings import BENT, CLAMP, FREE, GRAVITY, NODES, ROBOT, ROD, STEPS, double, table, written
from torchdismech import InputError
from torchdismech.environments import Environment


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "initial: expected at least one of positions_file, trajectory, velocity"),
        ("velocity = [1, 2]\n", "initial.velocity: "),
        ("velocity = [1, 2, nan]\n", "initial.velocity.2: "),
        ("speed = 1\n", "initial.speed: unknown key; "),
        (
            'positions_file = "x.txt"\ntrajectory = "run.h5"\n',
            "initial: expected positions_file or trajectory, got both",
        ),
        ("velocity = [1, 0, 0]\nframe = 2\n", "initial: frame is of a trajectory, which is not given"),
        ('velocity = [1, 0, 0]\nvelocity_file = "x.txt"\n', "initial: expected velocity_file, or velocity and"),
        ("velocity = [1, 0, 0]\ncenter = [1, 0, 0]\n", "initial: center is what angular_velocity turns about"),
        ('positions_file = "x.txt"\nnodes = [1]\n', "initial: nodes are those with velocity"),
        ("velocity = [1, 0, 0]\nnodes = [5]\n", "initial.nodes: expected nodes 0 to 4, got 5"),
        ("angular_velocity = [0, 0, 1]\nnodes = [3]\n", "initial: thrown: angular_velocity turns nothing"),
        ("velocity = [1, 0, 0]\nnodes = [1, 1]\n", "initial.nodes: expected each of the nodes once, got 1 twice"),
        ('positions_file = "none.txt"\n', "initial.positions_file: no such file"),
        ('positions_file = "x.txt"\n', "x.txt: expected 5 rows, one for each node, got 4"),
        ('positions_file = "back.txt"\n', "initial: edge 0 of robot 0 points right against where it does as built"),
        (
            'positions_file = "same.txt"\n',
            "nodes 0 and 1 of robot 0 are in one place",
        ),
        ('trajectory = "x.txt"\n', "x.txt: not a trajectory file"),
        ('trajectory = "other.h5"\n', "initial.trajectory: is a run of another robot"),
        ('trajectory = "run.h5"\nframe = 2\n', "initial.frame: expected -2 to 1, got 2"),
        ('trajectory = "run.h5"\nframe = -3\n', "initial.frame: expected -2 to 1, got -3"),
    ],
)
def test_bad_beginnings_are_refused_by_key(load, tmp_path, text, problem):
    """Name table and key of what cannot be."""
    (tmp_path / "x.txt").write_text(table(NODES[:4]))
    (tmp_path / "back.txt").write_text(table([[-x, y, z] for x, y, z in NODES]))
    (tmp_path / "same.txt").write_text(table([NODES[1], *NODES[1:]]))
    if "other" in text:
        written(load, tmp_path, ROBOT.replace("[3, 4]]", "[4, 3]]") + ROD + STEPS, "other.h5")
    if "run.h5" in text:
        written(load, tmp_path, FREE)
    with pytest.raises(InputError) as error:
        load(FREE + "[initial]\n" + text).build()
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("clamp", "keys"),
    [
        (CLAMP, "velocity = [1, 0, 0]\nnodes = [0, 1]"),
        ('[[clamp]]\nnodes = [4]\naxes = "xz"\n', "velocity = [1, 0, 2]\nnodes = [4]"),
        ("[[clamp]]\nnodes = [4]\nalong = [1, 0, 1]\n", "velocity = [0, 2, 0]\nnodes = [4]"),
    ],
)
def test_velocities_of_what_clamps_hold_are_refused(load, clamp, keys):
    """Refuse a velocity that moves nothing; take one of zero, and one of all nodes, of which others move."""
    with pytest.raises(InputError, match="initial: thrown: clamps hold all that this velocity moves"):
        load(FREE + clamp + f"[initial]\n{keys}\n").build()
    velocity, nodes = keys.split("\n")
    for taken in (velocity, f"velocity = [0, 0, 0]\n{nodes}"):
        load(FREE + clamp + f"[initial]\n{taken}\n").build()


def test_triangles_without_an_area_are_refused(load):
    """Refuse shells that begin where they have no normals, or where forces on them are not finite."""
    sheet = "[robot]\nnodes = [[0, 0, 0], [1, 0, 0], [0, 1, 0]]\ntriangles = [[0, 1, 2]]\n"
    shell = '[shell]\nthickness = 1e-3\nyoungs = 1e6\ndensity = 1e3\nbending = "midedge"\n'
    line = '[initial]\npositions_file = "x.txt"\n'
    for keys, problem in (
        (shell, "initial.positions_file: x.txt: a triangle has no area there"),
        (
            shell.replace("midedge", "hinge") + "magnetisation = [1, 0, 0]\n",
            "initial: forces on robot 0 are not finite",
        ),
    ):
        field = "[magnetic]\nconstant = [0, 0, 1]\n" * ("magnetisation" in keys)
        with pytest.raises(InputError, match=problem):
            load(sheet + keys + field + GRAVITY + STEPS + line, x__txt="0 0 0\n1 0 0\n2 0 0\n").build()


@pytest.mark.parametrize(
    ("keys", "what"),
    [
        ("velocity = [0, 1, 0]", "thrown"),
        ("angular_velocity = [1, 1, 0]", "thrown"),
        ('positions_file = "x.txt"', "positions"),
        ('velocity_file = "x.txt"', "velocities"),
    ],
)
def test_planar_robots_stay_in_their_plane(load, keys, what):
    """Refuse what leads planar robots out of it, and let them turn within."""
    planar = ROBOT + "planar = true\n" + ROD + STEPS + "[initial]\n"
    with pytest.raises(InputError, match=f"initial: {what}: the robot is planar: it"):
        load(planar + keys, x__txt=table([[x, x, z] for x, _, z in NODES])).build()
    beside = load(planar + 'positions_file = "x.txt"', x__txt=table([[x, 0.1, z] for x, _, z in NODES])).build()
    assert bool((beside.state.positions[..., 1] == 0.1).all())
    assert bool((load(planar + "angular_velocity = [0, 3, 0]").build().state.node_velocities[0, :, 2] != 0).any())


def test_motion_needs_time_and_environments_their_own_start(load):
    """Refuse velocities in statics, and [initial] where a task says how robots begin."""
    static = ROBOT + ROD + CLAMP + '[simulation]\nintegrator = "static"\n'
    with pytest.raises(InputError, match=r'initial.velocity is motion, and integrator = "static" has no time'):
        load(static + "[initial]\nvelocity = [1, 0, 0]\n")
    scene = load(static + '[initial]\npositions_file = "x.txt"\n', x__txt=table(BENT))
    assert not torch.equal(scene.build().state.positions[0], double(*NODES))
    scene = load(FREE + "[initial]\nvelocity = [1, 0, 0]\n")
    with pytest.raises(InputError, match=r"\[initial\] says where robots begin, which the task's start does"):
        Environment.from_scene(scene.path, None)
