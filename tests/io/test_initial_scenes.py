"""[initial]: robots that begin elsewhere, thrown and spinning, in files and in frames of other runs."""

import json
import math

import pytest
import torch
from typer.testing import CliRunner

from tests.scenes import run
from torchdismech import (
    ImplicitMidpoint,
    InputError,
    Material,
    Rectangle,
    RobotBuilder,
    Trajectory,
    forces,
    rollout,
)
from torchdismech.cli import app
from torchdismech.environments import Environment
from torchdismech.io.run import run_scene

NODES = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.0], [0.3, 0.0, 0.0], [0.4, 0.0, 0.0]]
EDGES = [[0, 1], [1, 2], [2, 3], [3, 4]]
ROD = """
[rod]
section = {shape = "rectangle", width = 8e-3, height = 4e-3}
youngs = 1e6
density = 1000.0
"""
ROBOT = f"[robot]\nnodes = {NODES}\nrod_edges = {EDGES}\n"
GRAVITY = "[environment]\ngravity = [0, 1.0, -9.81]\n"
CLAMP = "[[clamp]]\nnodes = [0, 1]\n"
STEPS = '[simulation]\ndt = 0.01\nduration = 0.1\nintegrator = "implicit_midpoint"\n'
FREE = ROBOT + ROD + GRAVITY + STEPS
HELD = FREE + CLAMP
BENT = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.2, 0.0, 0.01], [0.3, 0.01, 0.03], [0.39, 0.02, 0.06]]


def built(clamped=False):
    """Return the model of the scenes above, built by hand."""
    builder = RobotBuilder()
    builder.add_rods(NODES, EDGES, Rectangle(8e-3, 4e-3), Material(1e6, 1000.0))
    builder.add_force(forces.Gravity([0.0, 1.0, -9.81]))
    if clamped:
        builder.clamp(nodes=[0, 1])
    return builder.finalize()


def same(found, model, state):
    """Compare all bits of a scene's run with a rollout from Python."""
    expected = rollout(model, state, ImplicitMidpoint(0.01), 10)
    for name in ("positions", "velocities", "twist"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name


def double(*numbers):
    """Return a tensor of float64."""
    return torch.tensor(numbers, dtype=torch.float64)


def table(rows, between=" "):
    """Return rows as text."""
    return "\n".join(between.join(map(repr, row)) for row in rows)


# ---- thrown and spinning -----------------------------------------------------------------------------------------


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


# ---- elsewhere ---------------------------------------------------------------------------------------------------


def test_positions_from_a_file(load):
    """Begin where a file says, and thrown from there; the natural shape is as built."""
    model = built(True)
    state = model.initial_state(q=model.posture(double(*BENT)[None]))
    text = HELD + '[initial]\npositions_file = "x.csv"\n'
    same(run(load(text, x__csv="x, y, z\n" + table(BENT, ", "))), model, state)
    thrown = model.thrown(state, double(0.0, 0.0, 1.0), double(0.0, 0.0, 0.0))
    same(run(load(text + "velocity = [0, 0, 1]\n", x__csv=table(BENT))), model, thrown)


def test_turned_shells_are_at_rest_in_their_posture():
    """Turn and move a bent shell with mid-edge normals: its posture has the strains of the rest shape."""
    builder = RobotBuilder()
    square = [[0.0, 0.0, 0.0], [0.1, 0.0, 0.0], [0.0, 0.1, 0.02], [0.1, 0.1, 0.0]]
    builder.add_shell(square, [[0, 1, 2], [1, 3, 2]], 1e-3, Material(1e6, 1000.0), bending="midedge")
    model = builder.finalize()
    for axis in ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.3, -0.5, 0.8)):  # the first is along an edge, whose frame stays
        turn = torch.linalg.matrix_exp(torch.linalg.cross(torch.eye(3).double(), 2.0 * double(*axis).expand(3, 3)).mT)
        state = model.initial_state(q=model.posture((model.nodes @ turn.mT + double(0.1, 0.2, 0.3))[None]))
        for name, value in model.strains(state).items():
            torch.testing.assert_close(
                value, model.strains(model.initial_state(1))[name], rtol=0, atol=1e-12, msg=f"{name}, {axis}"
            )


def written(load, tmp_path, text, name="run.h5"):
    """Run a scene into a file."""
    scene = load(text)
    run_scene(scene, scene.build(), tmp_path / name)
    return Trajectory.load(tmp_path / name)


SPUN = HELD + "[initial]\nangular_velocity = [2.0, 3.0, 4.0]\n"


def test_begins_where_a_run_ended(load, tmp_path):
    """Begin in the last state of a run, all of it, at time 0; a run goes on as if it had not been cut."""
    before = written(load, tmp_path, SPUN)
    model = built(True)
    state = model.accelerated(before.state.replace(time=double(0.0)))
    found = run(load(HELD + '[initial]\ntrajectory = "run.h5"\n'))
    same(found, model, state)
    whole = run(load(SPUN.replace("duration = 0.1", "duration = 0.2")))
    # the acceleration, which the first step guesses from, is the only thing that is found anew
    torch.testing.assert_close(found.positions[-1], whole.positions[-1], rtol=0, atol=1e-9)


@pytest.mark.parametrize("frame", [0, 3, -4])
def test_begins_in_a_frame_of_a_run(load, tmp_path, frame):
    """Begin in the middle of a run of which every step is stored: go on as it did."""
    before = written(load, tmp_path, SPUN + "[output]\nevery = 1\n")
    found = run(load(HELD + f'[initial]\ntrajectory = "run.h5"\nframe = {frame}\n'))
    at = frame % 11
    assert torch.equal(found.positions[0], before.positions[at]) and float(found.time[0]) == 0
    count = 11 - at
    # rates of angles come from the frames beside: they are off by some steps squared, at the first frame by a step;
    # without them the nodes are 4e-6 to 2e-5 m off
    off = 1e-5 if frame == 0 else 1e-6
    torch.testing.assert_close(found.positions[:count], before.positions[at:], rtol=0, atol=off)


def test_frames_that_are_too_far_apart_are_refused(load, tmp_path):
    """Refuse a frame whose sections cannot be told from the frames around it."""
    spun = SPUN.replace("[2.0, 3.0, 4.0]", "[0.0, 30.0, 20.0]").replace("duration = 0.1", "duration = 0.3")
    written(load, tmp_path, spun + "[output]\nevery = 15\n")
    with pytest.raises(InputError, match=r"initial.frame: how sections are turned is known in the last frame only"):
        load(HELD + '[initial]\ntrajectory = "run.h5"\nframe = 1\n').build()


def test_robots_of_a_run(load, tmp_path):
    """Begin each robot as its own, all as one, and a part of a batch as it does in the whole."""
    batch = '[batch]\nsize = 3\n[batch.randomize]\n"initial.velocity.2" = {values = [1.0, 2.0, 3.0]}\n'
    before = written(load, tmp_path, HELD + "[initial]\nvelocity = [0, 0, 0]\n" + batch)
    begins = HELD + '[initial]\ntrajectory = "run.h5"\n'
    scene = load(begins + "[batch]\nsize = 3\n")
    assert torch.equal(scene.build().state.q, before.state.q)
    assert torch.equal(scene.part(slice(1, 3)).build().state.q, before.state.q[1:])
    assert torch.equal(load(begins + "robot = 2\n[batch]\nsize = 2\n").build().state.q, before.state.q[[2, 2]])
    with pytest.raises(InputError, match=r"initial.trajectory: has 3 robots, and the scene has 2: say which by robot"):
        load(begins + "[batch]\nsize = 2\n").build()
    with pytest.raises(InputError, match=r"initial.robot: expected 0 to 2, got 3"):
        load(begins + "robot = 3\n").build()
    written(load, tmp_path, HELD, "one.h5")
    alike = load(begins.replace("run.h5", "one.h5") + "[batch]\nsize = 2\n").build().state.q
    assert torch.equal(alike[0], alike[1])


def test_clamps_with_a_direction_begin_as_they_were(load, tmp_path):
    """Take the held direction from the last state of a run that turned it; refuse its other frames."""
    clamp = '[[clamp]]\nnodes = [0]\ndirection = "rest"\n'
    turning = "[[move]]\nnodes = [0]\nrotation = {axis = [0, 1, 0], center = [0, 0, 0], rate = 2.0}\n"
    before = written(load, tmp_path, FREE + clamp + turning)
    begins = FREE + clamp + '[initial]\ntrajectory = "run.h5"\n'
    state = load(begins).build().state
    assert torch.equal(state.held_tangents, before.state.held_tangents)
    assert float(state.held_tangents[0, 0, 2]) == pytest.approx(-math.sin(0.2), rel=1e-9)
    with pytest.raises(InputError, match=r"initial.frame: clamps turned in that run"):
        load(begins + "frame = 0\n").build()
    with pytest.raises(
        InputError, match=r"is clamped and does not begin where it is as built, from where \[\[move\]\]"
    ):
        load(begins + turning).build()


def test_contact_is_looked_at_where_robots_begin(load):
    """Refuse overlap with a barrier where the robots begin, not where they are built."""
    floor = '[floor]\nheight = 0.05\nstiffness = 10.0\nresponse = "barrier"\n'
    with pytest.raises(InputError, match=r"floor: node \d of robot 0 starts at a gap of -0.05"):
        load(FREE + floor).build()
    up = table([[x, y, z + 0.1] for x, y, z in NODES])
    scene = load(FREE + floor + '[initial]\npositions_file = "x.txt"\n', x__txt=up)
    assert scene.build().state.positions[0, :, 2].tolist() == [0.1] * 5
    assert CliRunner().invoke(app, ["check", str(scene.path)]).exit_code == 0
    down = table([[x, y, z + 0.02] for x, y, z in NODES])
    with pytest.raises(InputError, match=r"floor: node \d of robot 0 starts at a gap of -0.03"):
        load(FREE + floor + '[initial]\npositions_file = "x.txt"\n', x__txt=down).build()


def test_runs_are_resumed_and_looked_at(load, tmp_path):
    """Resume a run that began thrown, bit for bit; find its sections although it began elsewhere."""
    table_of = ROD.replace("[rod]", "[[rod]]")
    rods = (
        table_of
        + "box = {min = [0, 0, 0], max = [0.2, 0, 0]}\n"
        + table_of.replace("width = 8e-3", "width = 6e-3")
        + "box = {min = [0.2, 0, 0], max = [1, 0, 0]}\n"
    )
    up = table([[x, y, z + 0.1] for x, y, z in NODES])
    text = FREE.replace(ROD, rods) + '[initial]\npositions_file = "x.txt"\nvelocity = [1, 0, 0]\n'
    whole = run(load(text, x__txt=up))
    half = load(text, {"simulation.duration": 0.05})
    run_scene(half, half.build(), tmp_path / "run.h5")
    scene = load(text)
    resumed, first = run_scene(scene, scene.build(), tmp_path / "run.h5", resume=tmp_path / "run.h5")
    assert first == 5 and torch.equal(resumed.positions[-1], whole.positions[-1])
    assert resumed.appearance().sections.width.tolist() == [8e-3, 8e-3, 6e-3, 6e-3]
    assert json.loads(resumed.attributes["files"]).keys() == {"initial.positions_file"}


# ---- refusals ----------------------------------------------------------------------------------------------------


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
        ("velocity = [1, 0, 0]\nnodes = [1, 1]\n", "initial.nodes: expected each of the nodes once, got 1 twice"),
        ('positions_file = "none.txt"\n', "initial.positions_file: no such file"),
        ('positions_file = "x.txt"\n', "x.txt: expected 5 rows, one for each node, got 4"),
        ('positions_file = "back.txt"\n', "initial: edge 0 of robot 0 points right against where it does as built"),
        ('positions_file = "same.txt"\n', "initial: nodes 0 and 1 of robot 0 begin at the same place"),
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
    ("keys", "key"),
    [
        ("velocity = [0, 1, 0]", "velocity"),
        ("angular_velocity = [1, 1, 0]", "angular_velocity"),
        ('positions_file = "x.txt"', "positions_file"),
        ('velocity_file = "x.txt"', "velocity_file"),
    ],
)
def test_planar_robots_stay_in_their_plane(load, keys, key):
    """Refuse what leads planar robots out of it, and let them turn within."""
    planar = ROBOT + "planar = true\n" + ROD + STEPS + "[initial]\n"
    with pytest.raises(InputError, match=rf"initial.{key}: a planar robot cannot leave the x-z plane"):
        load(planar + keys, x__txt=table([[x, 0.1, z] for x, _, z in NODES])).build()
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


def test_without_the_table_robots_begin_as_built(load):
    """Keep the bits of `Model.initial_state`."""
    model = built(True)
    same(run(load(HELD)), model, model.initial_state())
