"""[initial]: robots that begin elsewhere, in files and in frames of other runs."""

import json
import math

import h5py
import pytest
import torch
from typer.testing import CliRunner

from tests.io.beginnings import BENT, EDGES, FREE, HELD, NODES, ROD, built, double, same, table, written
from tests.scenes import run
from torchdismech import InputError, Material, Rectangle, RobotBuilder
from torchdismech.cli import app
from torchdismech.io.run import run_scene


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


def test_begins_in_a_frame_of_a_run_that_was_saved_without_its_last(load, tmp_path):
    """The frames, of which the last is not that of the full state, are as in the whole run."""
    whole = written(load, tmp_path, SPUN + "[output]\nevery = 1\n")
    whole.frames(slice(0, 10, 3)).save(tmp_path / "thinned.h5")
    state = load(HELD + '[initial]\ntrajectory = "thinned.h5"\n').build().state
    expected = load(HELD + '[initial]\ntrajectory = "run.h5"\nframe = 9\n').build().state
    assert torch.equal(state.positions, whole.positions[9])
    assert torch.equal(state.node_velocities, expected.node_velocities)
    torch.testing.assert_close(state.director, expected.director, rtol=0, atol=1e-3)


@pytest.mark.parametrize("frame", ["", "frame = 9\n"])
def test_begins_where_a_killed_run_was_whole(load, tmp_path, frame):
    """A killed run may have stored a frame beyond its last full state: the one before is the last."""
    before = written(load, tmp_path, SPUN.replace("duration = 0.1", "duration = 0.09") + "[output]\nevery = 1\n")
    written(load, tmp_path, SPUN + "[output]\nevery = 1\n", "longer.h5")
    with h5py.File(tmp_path / "run.h5", "r") as whole, h5py.File(tmp_path / "longer.h5", "r+") as killed:
        del killed["state"]
        whole.copy("state", killed)
    state = load(HELD + f'[initial]\ntrajectory = "longer.h5"\n{frame}').build().state
    assert torch.equal(state.q, before.state.q) and torch.equal(state.director, before.state.director)


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
    with pytest.raises(InputError, match=r"where it is as built, from where \[\[move\]\] moves it: .*actuation.python"):
        load(begins + turning).build()
    (tmp_path / "act.py").write_text(
        "import math\n\n\n"
        "def act(time, model, control):\n"
        "    half = 0.1 + 0.1 * time\n"
        "    pose = model.rest_poses.repeat(len(time), 1, 1)\n"
        "    pose[:, 0, 3], pose[:, 0, 5] = half.cos(), half.sin()\n"
        "    return control.replace(pose=pose)\n"
    )
    setup = load(begins + '[actuation]\npython = "act.py:act"\n').build(allow_code=True)
    state, _ = setup.integrator.step(setup.model, setup.state, setup.schedule(setup.state.time + 0.1, setup.model))
    assert float(state.held_tangents[0, 0, 2]) == pytest.approx(-math.sin(0.22), rel=1e-9)


def test_clamps_with_a_direction_are_let_go(load, tmp_path):
    """Drop what a run held in a direction, from its last frame; refuse other frames, and some of the clamps alone."""
    clamps = "".join(f'[[clamp]]\nnodes = [{node}]\ndirection = "rest"\n' for node in (0, 4))
    before = written(load, tmp_path, FREE + clamps + "[output]\nevery = 1\n")
    builder = RobotBuilder()
    builder.add_rods(NODES, EDGES, Rectangle(8e-3, 4e-3), Material(1e6, 1000.0))
    for node in (0, 4):
        builder.clamp(nodes=[node], direction="rest")
    held, free = builder.finalize(), built()
    state = free.released(before.state.replace(time=double(0.0)), held)
    begins = '[initial]\ntrajectory = "run.h5"\n'
    same(run(load(FREE + begins)), free, state)
    with pytest.raises(InputError, match=r"initial.frame: clamps with a direction of that run are let go, which its"):
        load(FREE + begins + "frame = 3\n").build()
    one = '[[clamp]]\nnodes = [4]\ndirection = "rest"\n'
    with pytest.raises(InputError, match=r"initial.trajectory: is a run of another robot: .* held directions, or none"):
        load(FREE + one + begins).build()


def test_contact_is_looked_at_where_robots_begin(load):
    """Refuse overlap with a barrier where the robots begin, not where they are built."""
    floor = '[floor]\nheight = 0.05\nstiffness = 10.0\nresponse = "barrier"\n'
    with pytest.raises(InputError, match=r"toml: robot 0, node \d: the gap to obstacle 'floor' is -0.05"):
        load(FREE + floor).build()
    up = table([[x, y, z + 0.1] for x, y, z in NODES])
    scene = load(FREE + floor + '[initial]\npositions_file = "x.txt"\n', x__txt=up)
    assert scene.build().state.positions[0, :, 2].tolist() == [0.1] * 5
    assert CliRunner().invoke(app, ["check", str(scene.path)]).exit_code == 0
    down = table([[x, y, z + 0.02] for x, y, z in NODES])
    with pytest.raises(InputError, match=r"initial: robot 0, node \d: the gap to obstacle 'floor' is -0.03"):
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


def test_without_the_table_robots_begin_as_built(load):
    """Keep the bits of `Model.initial_state`."""
    model = built(True)
    same(run(load(HELD)), model, model.initial_state())
