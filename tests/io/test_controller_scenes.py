"""Scenes that close a loop: what a file says is the controller, how it goes on, and what is refused."""

import re
import subprocess
import sys

import h5py
import pytest
import torch
from typer.testing import CliRunner

from tests.control.robots import wave
from torchdismech import InputError, Trajectory, rollout
from torchdismech.cli import app
from torchdismech.control import PI, Fixed, Strains
from torchdismech.io.scene import load_scene
from torchdismech.runs.rollout import frames

NODES = 7
PLACES = ", ".join(f"[{0.1 * k / (NODES - 1):.6f}, 0, 0]" for k in range(NODES))
EDGES = ", ".join(f"[{k}, {k + 1}]" for k in range(NODES - 1))
SCENE = f"""
[robot]
nodes = [{PLACES}]
rod_edges = [{EDGES}]
planar = true
[rod]
section = {{shape = "circle", radius = 1e-3}}
youngs = 1e6
density = 1200.0
[[clamp]]
nodes = [0]
axes = "xz"
[[clamp]]
nodes = [{NODES - 1}]
axes = "z"
[environment]
gravity = [0, 0, -9.81]
viscosity = 0.1
[simulation]
dt = 0.01
duration = 0.07
[batch]
size = 3
seed = 5
[batch.randomize]
"rod.youngs" = {{ uniform = [8e5, 2e6] }}
"controller.Kp" = {{ values = [0.3, 0.5, 0.4] }}
[output]
every = 2
"""
PI_TABLE = """
[controller]
kind = "pi"
target = "target.csv"
Kp = 0.5
Ki = 5.0
smoothing = 1
rate = {curvature = 300.0}
every = 0.02
delay = 1
noise = {curvature = 0.1}
"""
TARGET = "\n".join(",".join(f"{value:.12g}" for value in row) for row in wave(NODES).tolist())
CODE = """
import torch


class Pushing:
    def initial(self, model, state):
        return {"sum": state.q.new_zeros(state.batch)}

    def __call__(self, state, memory, control, model):
        total = memory["sum"] + state.positions[:, 3, 2]
        natural = model.natural_strains(state.batch).natural_curvature
        natural = natural + total[:, None, None] * natural.new_tensor([1.0, 0])
        return control.replace(natural_curvature=natural), {"sum": total}


def made(model, dt):
    assert dt == 0.01
    return Pushing()


def stateless(model, dt):
    return lambda state, control, model: control


def nothing(model, dt):
    return None


def failing(model, dt):
    def controller(state, control, model):
        return 1 / 0

    return controller
"""


@pytest.fixture
def write(tmp_path):
    """Return a function that writes a scene, with the files that it may name, and returns its path."""

    def write(text: str):
        (tmp_path / "target.csv").write_text(TARGET)
        (tmp_path / "loop.py").write_text(CODE)
        path = tmp_path / "scene.toml"
        path.write_text(text)
        return path

    return write


def without_gains(text: str) -> str:
    """Return a scene that draws no gains."""
    return text.replace('"controller.Kp" = { values = [0.3, 0.5, 0.4] }', "")


def test_scene_closes_the_loop_of_python(write):
    """Run the PI law of a scene: it is the one that Python builds, gains of single robots and noise by number too."""
    setup = load_scene(write(SCENE + PI_TABLE)).build()
    model, start = setup.model, setup.state
    strains = Strains(model)
    controller = PI(
        model,
        strains,
        Fixed(strains.of_shape(model, wave(NODES))),
        0.01,
        Kp=torch.tensor([0.3, 0.5, 0.4], dtype=torch.float64),
        Ki=5.0,
        smoothing=1,
        rate={"curvature": 300.0},
        every=0.02,
        delay=1,
        noise={"curvature": 0.1},
        seed=5,
    )
    found, expected = (rollout(model, start, setup.integrator, 7, controller=c) for c in (setup.controller, controller))
    # the target's file has 12 digits
    torch.testing.assert_close(found.positions, expected.positions, rtol=0, atol=1e-11)
    assert (found.memory["integral"] != 0).any() and found.memory["robot"].tolist() == [0, 1, 2]


def test_target_with_directors(write, tmp_path):
    """Hold a rod twisted as a file of directors says, which Python is given likewise."""
    in_space = SCENE.replace("planar = true", "planar = false")
    model = load_scene(write(in_space + PI_TABLE)).build().model
    turned = torch.linspace(0.0, 0.3, len(model.rod_edges), dtype=torch.float64)
    directors = torch.stack([torch.zeros_like(turned), turned.cos(), turned.sin()], dim=1)
    (tmp_path / "m1.csv").write_text("\n".join(",".join(f"{x:.17g}" for x in row) for row in directors.tolist()))
    table = PI_TABLE.replace("Kp = 0.5", 'fields = ["curvature", "twist"]\ntarget_directors = "m1.csv"\nKp = 0.5')
    scene = load_scene(write(in_space + table)).build()
    strains = Strains(scene.model, ["curvature", "twist"])
    expected = strains.of_shape(scene.model, wave(NODES), directors)
    # the target's file has 12 digits, and curvatures are differences of its rows
    torch.testing.assert_close(scene.controller.reference.values, expected, rtol=1e-6, atol=1e-6)
    assert (expected[strains.parts["twist"]].abs() > 0.1).all()
    (tmp_path / "m1.csv").write_text("0,1,0\n")
    with pytest.raises(InputError, match=r"controller: .*m1\.csv: expected 6 rows, one for each rod edge, got 1"):
        load_scene(tmp_path / "scene.toml").build()


def simulate(path, *options: str):
    """Simulate by the command line and return how it ended."""
    return CliRunner().invoke(app, ["simulate", str(path), "--no-progress", *options])


def datasets(path) -> dict[str, torch.Tensor]:
    """Return all numbers in a file."""
    found: dict[str, torch.Tensor] = {}
    with h5py.File(path) as file:
        file.visititems(
            lambda name, item: (
                found.update({name: torch.as_tensor(item[()].astype(float))})
                if isinstance(item, h5py.Dataset) and not name.startswith(("texts", "checksums/fixed"))
                else None
            )
        )
    return found


@pytest.mark.parametrize(
    ("table", "flags"), [(PI_TABLE, ()), ('[controller]\npython = "loop.py:made"', ("--allow-code",))]
)
@pytest.mark.parametrize("cut", [3, 4])
def test_a_resumed_run_is_the_run_in_one_go(write, tmp_path, table, flags, cut):
    """Stop a run between and on frames, in the middle of a sample: resumed, its file is that of one go bit for bit."""
    text = SCENE + table if "pi" in table else without_gains(SCENE) + table
    path, whole, part = write(text), tmp_path / "whole.h5", tmp_path / "part.h5"
    assert simulate(path, "--out", str(whole), *flags).exit_code == 0
    assert simulate(path, "--out", str(part), "--steps", str(cut), *flags).exit_code == 0
    assert simulate(path, "--resume", str(part), *flags).exit_code == 0
    found, expected = Trajectory.load(part), Trajectory.load(whole)
    assert torch.equal(found.state.q, expected.state.q) and torch.equal(found.positions[-1], expected.positions[-1])
    assert found.memory and all(torch.equal(found.memory[name], value) for name, value in expected.memory.items())
    if cut % 2 == 0:
        ours, theirs = datasets(part), datasets(whole)
        assert ours.keys() == theirs.keys() and "state/memory/" in " ".join(ours)
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_parts_of_a_batch_are_the_batch(write):
    """Run the parts of a scene: each robot has its gains, its noise and its memory, as in the whole."""
    scene = load_scene(write(SCENE + PI_TABLE))
    runs = []
    for part in (scene, scene.part(slice(0, 1)), scene.part(slice(1, 3))):
        setup = part.build()
        runs.append(rollout(setup.model, setup.state, setup.integrator, 7, controller=setup.controller))
    whole, *parts = runs
    assert torch.cat([part.memory["robot"] for part in parts]).tolist() == [0, 1, 2]
    for name in ("integral", "action", "seen"):
        joined = torch.cat([part.memory[name] for part in parts])
        # sums over elements are grouped by the number of robots: 1e-16 m in a step, over an edge of 1.7 cm and squared
        torch.testing.assert_close(joined, whole.memory[name], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_processes_share_the_robots(write, tmp_path):
    """Divide the robots among two processes: the file of one process, with the controller's memory in it."""
    path, one, two = write(SCENE + PI_TABLE), tmp_path / "one.h5", tmp_path / "two.h5"
    assert simulate(path, "--out", str(one)).exit_code == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    program = ["-m", "torchdismech", "simulate", str(path), "--shard", "--out", str(two), "--no-progress"]
    subprocess.run([*launcher, *program], check=True, capture_output=True)
    ours, theirs = datasets(two), datasets(one)
    assert ours.keys() == theirs.keys()
    for name in theirs:
        if "checksum" not in name:
            torch.testing.assert_close(ours[name], theirs[name], rtol=1e-9, atol=1e-9, equal_nan=True)


def test_code_makes_controllers(write):
    """Let a file make controllers with and without memory; nothing of it runs without leave."""
    text = without_gains(SCENE)
    scene = load_scene(write(text + '[controller]\npython = "loop.py:made"'))
    with pytest.raises(InputError, match="controller.python: runs code from loop.py:made: pass --allow-code"):
        scene.build()
    setup = scene.build(allow_code=True)
    run = list(frames(setup.model, setup.state, setup.integrator, 3, controller=setup.controller))
    assert run[-1].memory["sum"].shape == (3,) and (run[-1].memory["sum"] < 0).all()
    setup = load_scene(write(text + '[controller]\npython = "loop.py:stateless"')).build(allow_code=True)
    assert rollout(setup.model, setup.state, setup.integrator, 1, controller=setup.controller).memory == {}


def test_check_prints_what_is_controlled(write):
    """Print strains, numbers and units of a scene's loop; of code its name."""
    said = CliRunner().invoke(app, ["check", str(write(SCENE + PI_TABLE))]).output
    assert "PI of stretch: 6 [1], kappa1: 5 [1/m]; a sample each 0.02 s" in said
    path = write(without_gains(SCENE) + '[controller]\npython = "loop.py:made"')
    assert "loop.py:made, not looked at here" in CliRunner().invoke(app, ["check", str(path)]).output


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('kind = "pi"\n', "", "controller: expected exactly one of kind or python, got none of them"),
        ('kind = "pi"', 'kind = "pid"', "controller.kind: expected 'pi'"),
        (
            'kind = "pi"',
            'python = "loop.py:made"',
            'controller: Ki belongs to kind = "pi"; what python names has its own',
        ),
        ('target = "target.csv"\n', "", "expected exactly one of target or reference, got none of them"),
        ("smoothing", "smothing", "controller.smothing: unknown key; did you mean 'smoothing'"),
        ("Ki = 5.0", "Ki = -5.0", "controller.Ki: expected greater than or equal to 0"),
        ("Ki = 5.0", "limit = {curv = 1.0}", "controller.limit.curv: expected 'stretch', 'curvature', 'kappa1'"),
        ("Ki = 5.0", "limit = {kappa1 = -1.0}", "controller.limit.kappa1: expected greater than or equal to 0"),
        ("Ki = 5.0", "limit = {}", "controller.limit: expected a table of at least 1 key"),
        ("Ki = 5.0", "elements = {}", "controller.elements: expected a table of at least 1 key"),
        (
            'target = "target.csv"',
            'reference = "r.csv"\ntarget_directors = "m1.csv"',
            "belongs to target: remove the key",
        ),
        ("Ki = 5.0", 'Ki = 5.0\nbeyond = "hold"', "beyond belongs to reference; a target has no times"),
        ("Ki = 5.0", 'Ki = 5.0\nfields = ["twist"]', "controller: fields: twist: a planar robot does not twist"),
        ("Ki = 5.0", 'Ki = 5.0\nfields = ["strech"]', "controller.fields.0: expected 'stretch'"),
        (
            "Ki = 5.0",
            'Ki = 5.0\nfields = ["curvature"]\nleast_length = 0.2',
            'controller: least_length is of fields with "stretch"; these do not use it: remove the key',
        ),
        ("every = 0.02", "every = 0.025", "every: expected a whole number of steps of dt = 0.01 s, got 0.025 s"),
        ("curvature = 300.0", "twist = 300.0", "PI: rate: no field 'twist' is controlled"),
        (
            "Ki = 5.0",
            "Ki = 5.0\nelements = {stretch = [9]}",
            "elements: stretch: rod edges: expected indices 0 to 5 or a mask (6,), at least one; got [9]",
        ),
        ("Ki = 5.0", "Ki = 5.0\nactuators = {}", "controller.actuators: expected a table of at least 1 key"),
        ("target.csv", "none.csv", "controller.target: no such file"),
        ("Ki = 5.0", "Ki = 5.0\nlimit = {stretch = 0.95}", "limit: stretch: 0.95 leaves 0.05 of the rest lengths"),
    ],
)
def test_refuses_what_closes_no_loop(write, old, new, message):
    """Name file, key, what was expected and what came."""
    assert old in PI_TABLE
    path = write(SCENE + PI_TABLE.replace(old, new))
    with pytest.raises(InputError, match=re.escape(message)) as error:
        load_scene(path).build(allow_code=True)
    assert str(path) in str(error.value)


ARC = """
[robot]
nodes = [[0, 0, 0], [0.1, 0, 0], [0.2, 0, 0], [0.3, 0, 0]]
rod_edges = [[0, 1], [1, 2], [2, 3]]
[rod]
section = {shape = "circle", radius = 1e-2}
youngs = 1e6
density = 1000
[[clamp]]
nodes = [0]
direction = "rest"
[simulation]
dt = 1e-2
duration = 0.5
[actuation]
natural_curvature = "bent.csv"
"""
BOTH = """
[controller]
kind = "pi"
fields = ["curvature"]
reference = "straight.csv"
beyond = "hold"
actuators = {curvature = [0]}
Kp = 0
Ki = 0
"""


def test_a_controller_leaves_other_springs_to_the_actuation(write, tmp_path):
    """Let a table bend three springs and a controller hold the first: the others bend as the table says."""
    (tmp_path / "bent.csv").write_text("0, 0.1, 0.1, 0.3, 0.3\n")
    (tmp_path / "straight.csv").write_text("0, 0, 0, 0, 0\n")
    setup = load_scene(write(ARC + BOTH)).build()
    run = rollout(setup.model, setup.state, setup.integrator, 1, setup.schedule, controller=setup.controller)
    control, _ = setup.controller(setup.state, run.memory, setup.schedule(setup.state.time, setup.model), setup.model)
    expected = [[0.0, 0.0], [0.1, 0.3]]  # kappa1, kappa2 of each spring; the columns are kappa1 of both, then kappa2
    torch.testing.assert_close(control.natural_curvature[0], torch.tensor(expected, dtype=torch.float64))
    assert (run.positions[-1] - run.positions[0]).norm(dim=-1).max() > 1e-3
    everything = BOTH.replace("actuators = {curvature = [0]}\n", "")
    message = "actuation.natural_curvature: does nothing, as [controller] sets kappa1 and kappa2 of all elements"
    with pytest.raises(InputError, match=re.escape(message)):
        load_scene(write(ARC + everything)).build()
    assert message in CliRunner().invoke(app, ["check", str(tmp_path / "scene.toml")]).output


def test_refuses_references_that_do_not_fit(write, tmp_path):
    """Refuse tables of strains with a wrong number of columns, or too short; held at its ends a short one is right."""
    path = write(SCENE + PI_TABLE.replace('target = "target.csv"', 'reference = "reference.csv"'))
    reference = tmp_path / "reference.csv"
    reference.write_text("0, 0, 0\n")
    with pytest.raises(InputError, match=r"reference.csv:1: expected 12 \(time, stretch of 6, kappa1 of 5\) columns"):
        load_scene(path).build()
    reference.write_text("0" + ", 0" * 11 + "\n0.05" + ", 0.1" * 11 + "\n")
    with pytest.raises(InputError, match="controller: reference: is known from 0 to 0.05 s and the run goes from 0 to"):
        load_scene(path).build()
    path.write_text(path.read_text().replace("Ki = 5.0", 'Ki = 5.0\nbeyond = "hold"'))
    assert load_scene(path).build().controller is not None


def test_refuses_statics(write):
    """Refuse a loop without time."""
    static = SCENE.replace("dt = 0.01\nduration = 0.07", 'integrator = "static"')
    with pytest.raises(InputError, match='a loop is closed over time, and integrator = "static" has no time'):
        load_scene(write(static + PI_TABLE))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "nothing of .*loop.py has to return a controller, .* got None"),
        ("absent", "has no 'absent' that can be called"),
        ("failing", r"failing of .*loop.py raised ZeroDivisionError in line \d+: division by zero"),
    ],
)
def test_names_what_code_does_wrong(write, name, message):
    """Name the function and the line."""
    scene = load_scene(write(without_gains(SCENE) + f'[controller]\npython = "loop.py:{name}"'))
    with pytest.raises(InputError, match=f"controller.python: .*{message}"):
        setup = scene.build(allow_code=True)
        rollout(setup.model, setup.state, setup.integrator, 1, controller=setup.controller)


def test_refuses_to_resume_what_does_not_fit(write, tmp_path):
    """Refuse a scene with other gains; insisted on, a controller that remembers other things."""
    path, out = write(SCENE + PI_TABLE), tmp_path / "run.h5"
    assert simulate(path, "--out", str(out), "--steps", "2").exit_code == 0
    path.write_text(path.read_text().replace("Ki = 5.0", "Ki = 6.0"))
    said = simulate(path, "--resume", str(out))
    assert said.exit_code == 2 and "controller.Ki was 5.0 and is 6.0" in said.output
    path.write_text(path.read_text().replace("delay = 1\n", ""))
    said = simulate(path, "--resume", str(out), "--force-resume")
    assert said.exit_code == 2 and "of its controller, and that of" in said.output and "seen" in said.output
