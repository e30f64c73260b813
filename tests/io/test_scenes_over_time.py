"""[[move]], [actuation] and [[point_force]]: what changes while a scene runs."""

import math
import warnings

import pytest
import torch

from tests.io.rod_scenes import CLAMP, GOOD, ROBOT, ROD, SIMULATION, run
from torchdismech import InputError, rollout
from torchdismech.cli.runs import check
from torchdismech.io.run import run_scene
from torchdismech.io.scene.idle import warn_of_idle


def control_at(scene, *times: float):
    """Return the control of the scene at one time for each robot."""
    setup = scene.build()
    return setup.schedule(torch.tensor(times, dtype=torch.float64), setup.model), setup.model


def test_translation_is_straight_within_its_times(load):
    """Move nodes from start to stop at the velocity, and twist an edge."""
    move = "[[move]]\nnodes = [0, 1]\nvelocity = [0, 0.5, 0]\nstart = 1.0\nstop = 3.0\nedges = [0]\ntwist_rate = 2.0\n"
    scene = load(GOOD + move + "[batch]\nsize = 4\n")
    control, _ = control_at(scene, 0.5, 1.0, 2.0, 7.0)
    x = control.clamped_q[:, :15].unflatten(1, (5, 3))
    assert x[:, 1, 1].tolist() == [0, 0, 0.5, 1.0] and (x[:, 1, 0] == 0.1).all() and (x[:, 2:, 1] == 0).all()
    assert control.clamped_q[:, 15].tolist() == [0, 0, 2, 4]


def test_rotation_is_exact_and_moves_follow_each_other(load):
    """Lift by 0.1 m, then turn by 90 degrees about the vertical axis through node 0: radius and height stay exact."""
    moves = (
        "[[move]]\nnodes = [0, 1]\nvelocity = [0, 0, 0.1]\nstop = 1.0\n"
        f"[[move]]\nnodes = [0, 1]\nrotation = {{axis = [0, 0, 3], center = [0, 0, 0], rate = {math.pi / 4}}}\n"
        "start = 1.0\nstop = 3.0\n"
    )
    control, _ = control_at(load(GOOD + moves + "[batch]\nsize = 3\n"), 1.0, 2.0, 9.0)
    x = control.clamped_q[:, :15].unflatten(1, (5, 3))
    half = 0.1 * math.sqrt(0.5)
    expected = torch.tensor([[0.1, 0, 0.1], [half, half, 0.1], [0, 0.1, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(x[:, 1], expected, rtol=0, atol=1e-16)


def test_path_from_a_file_is_followed(load):
    """Read positions of two nodes from a table, linear in time and held at its ends."""
    path = "time,x0,y0,z0,x1,y1,z1\n0, 0,0,0, 0.1,0,0\n2, 0,0,1, 0.1,0,1\n"
    scene = load(GOOD + '[[move]]\nnodes = [0, 1]\nfile = "path.csv"\n[batch]\nsize = 3\n', path__csv=path)
    control, _ = control_at(scene, 0.0, 0.5, 9.0)
    x = control.clamped_q[:, :15].unflatten(1, (5, 3))
    assert x[:, 0, 2].tolist() == [0, 0.25, 1] and x[:, 1, 0].tolist() == [0.1, 0.1, 0.1]


def test_path_that_begins_elsewhere_is_warned_of(load):
    """Name the node and how far it leaps in the first step, as where a file has displacements."""
    text = GOOD + '[[move]]\nnodes = [0, 1]\nfile = "path.csv"\n'
    with pytest.warns(UserWarning, match=r"move.0.file: begins 0.1 m from where node 1 is as built, and the first"):
        load(text, path__csv="0, 0,0,0, 0,0,0\n2, 0,0,1, 0,0,1\n").build()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load(text, path__csv="0, 0,0,0, 0.101,0,0\n2, 0,0,1, 0.1,0,1\n").build()


def test_path_out_of_the_plane_is_refused(load):
    """Name file, time and node before the run, also where the path leaves the plane later than at its beginning."""
    text = GOOD.replace("[robot]\n", "[robot]\nplanar = true\n") + '[[move]]\nnodes = [0, 1]\nfile = "path.csv"\n'
    with pytest.raises(InputError, match=r"move.0.file: path.csv: at 2 s y of node 1 is not that as built: a planar"):
        load(text, path__csv="0, 0,0,0, 0.1,0,0\n2, 0,0,1, 0.1,0.1,1\n").build()
    load(text, path__csv="0, 0,0,0, 0.1,0,0\n2, 0,0,1, 0.1,0,1\n").build()


def test_moved_clamp_carries_its_velocity(load):
    """Move both clamped nodes at 0.2 m/s: the trajectory has them there, at that speed."""
    trajectory = run(load(GOOD + "[[move]]\nnodes = [0, 1]\nvelocity = [0, 0.2, 0]\n"))
    assert not trajectory.failed.any()
    torch.testing.assert_close(trajectory.positions[:, 0, 0, 1], 0.2 * trajectory.time, rtol=1e-12, atol=1e-15)
    # (q - q_n)/dt of implicit Euler
    torch.testing.assert_close(
        trajectory.velocities[1:, 0, 0, 1], torch.full((5,), 0.2, dtype=torch.float64), rtol=1e-9, atol=0
    )


def test_natural_strains_come_from_tables(load):
    """Read natural curvature, twist and rest length; kappa2 stays the model's own unless the file has it."""
    text = (
        GOOD
        + "[batch]\nsize = 3\n[actuation]\n"
        + 'natural_curvature = "kappa.csv"\nnatural_twist = "twist.csv"\nrest_length = "length.csv"\n'
    )
    files = {
        "kappa__csv": "# time and three springs\n0,0,0,0\n1,0.1,0.2,0.3\n",
        "twist__csv": "0,1,2,3\n",
        "length__csv": "t,a,b,c,d\n1,0.1,0.1,0.1,0.1\n3,0.2,0.1,0.1,0.1\n",
    }
    control, model = control_at(load(text, **files), -1.0, 0.5, 2.0)
    torch.testing.assert_close(
        control.natural_curvature[:, :, 0],
        torch.tensor([[0, 0, 0], [0.05, 0.1, 0.15], [0.1, 0.2, 0.3]], dtype=torch.float64),
        rtol=0,
        atol=1e-16,
    )
    assert torch.equal(control.natural_curvature[..., 1], model.natural_strains(3).natural_curvature[..., 1])
    assert control.natural_twist.tolist() == [[1, 2, 3]] * 3
    torch.testing.assert_close(control.rest_length[:, 0], torch.tensor([0.1, 0.1, 0.15], dtype=torch.float64))
    both = load(text, **(files | {"kappa__csv": "0,0,0,0,0.4,0.5,0.6\n"}))
    assert control_at(both, 0.0)[0].natural_curvature[0].tolist() == [[0, 0.4], [0, 0.5], [0, 0.6]]


def test_rod_curls_to_its_natural_curvature(load):
    """Actuate a rod without weight: in static equilibrium kappa1 is the natural one, curling towards +z."""
    text = ROBOT + ROD + CLAMP + '[simulation]\nintegrator = "static"\nforce_tolerance = 1e-11\n'
    text += '[actuation]\nnatural_curvature = "kappa.csv"\n'
    trajectory = run(load(text, kappa__csv="0,0.2,0.2,0.2\n"))
    assert not trajectory.failed.any() and trajectory.positions[-1, 0, -1, 2] > 0.05
    # kappa = 2 tan(angle/2) between edges: the tip's edge has turned by three of these angles. A residual of 1e-11 N
    # at 0.3 m on EI = 4.9e-4 N m^2 leaves about 2e-9 rad.
    x = trajectory.positions[-1, 0]
    turned = math.atan2(x[4, 2] - x[3, 2], x[4, 0] - x[3, 0])
    assert turned == pytest.approx(3 * 2 * math.atan(0.1), abs=1e-8)


def test_python_actuation_tells_robots_apart(load):
    """Run a function from a file beside the scene, given time, model and what the tables say."""
    code = (
        "import torch\n"
        "def act(time, model, control):\n"
        "    robots = torch.arange(len(time), dtype=time.dtype)[:, None]\n"
        "    return control.replace(natural_twist=control.natural_twist + robots + time[:, None])\n"
    )
    text = GOOD + '[batch]\nsize = 2\n[actuation]\nnatural_twist = "twist.csv"\npython = "act.py:act"\n'
    scene = load(text, act__py=code, twist__csv="0,1,2,3\n")
    with pytest.raises(InputError, match="--allow-code"):
        scene.build()
    setup = scene.build(allow_code=True)
    control = setup.schedule(torch.tensor([0.5, 0.5], dtype=torch.float64), setup.model)
    assert control.natural_twist.tolist() == [[1.5, 2.5, 3.5], [2.5, 3.5, 4.5]]
    wrong = load(text, act__py="def act(time, model, control):\n    return None\n", twist__csv="0,1,2,3\n")
    with pytest.raises(InputError, match="act.py has to return a Control"):
        wrong.build(allow_code=True)


TENDON = "[[tendon]]\nnodes = [0, 1, 2, 3, 4]\noffset = [0, 0, 0.01]\n"
TWISTING = "def act(time, model, control):\n    return control.replace(natural_twist=time.new_full((1, 3), 0.1))\n"


@pytest.mark.parametrize("thrown", ["", "[initial]\nvelocity = [0, 0.1, 0]\n"], ids=["at rest", "thrown"])
@pytest.mark.parametrize("integrator", ["newmark", "bdf2"])
def test_a_table_of_a_constant_moves_as_the_constant(load, integrator, thrown):
    """Begin with the acceleration that a file's tension gives, which these integrators go on from."""
    text = GOOD.replace("dt = 0.01", f'dt = 0.01\nintegrator = "{integrator}"') + thrown + TENDON
    number, file = load(text + "tension = 1.0\n"), load(text + 'tension_file = "t.csv"\n', t__csv="0,1\n1,1\n")
    moved, moved_by_file = run(number).positions, run(file).positions
    assert (moved[-1] - moved[0]).abs().max() > 1e-3
    torch.testing.assert_close(moved_by_file, moved, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("actuation", "python"),
    [('natural_twist = "twist.csv"', False), ('python = "act.py:act"', True)],
    ids=["table", "python"],
)
def test_scenes_begin_with_the_acceleration_of_their_actuation(load, actuation, python):
    """Twist the rod from the first moment on, by a table and by a function that is asked at the time 0."""
    scene = load(f"{GOOD}[actuation]\n{actuation}\n", act__py=TWISTING, twist__csv="0,.1,.1,.1\n")
    setup = scene.build(allow_code=python)
    driven = setup.model.initial_state(control=setup.schedule(setup.state.time, setup.model)).acceleration
    assert setup.state.acceleration[0, -1].abs() > 1.0  # of the last edge's angle; without actuation there is none
    torch.testing.assert_close(setup.state.acceleration, driven, rtol=0, atol=0)


def test_point_force_acts_between_its_times(load):
    """Push a free rod for two of four steps: its momentum is that of two steps."""
    text = ROBOT + ROD + SIMULATION + "[[point_force]]\nnodes = [2]\nforce = [0.5, 0, 0]\nstart = 0.01\nstop = 0.03\n"
    setup = load(text).build()
    trajectory = rollout(setup.model, setup.state, setup.integrator, setup.steps, schedule=setup.schedule)
    momentum = (setup.model.body.node_mass() * trajectory.velocities[:, 0, :, 0]).sum(1)
    # 0.5 N for 0.01 s each step; Newton leaves at most its tolerance, 1e-8 N for 0.01 s a step
    expected = torch.tensor([0, 0, 0.005, 0.01, 0.01, 0.01], dtype=torch.float64)
    torch.testing.assert_close(momentum, expected, rtol=0, atol=1e-9)


LATE = {
    "point_force": "nodes = [2]\nforce = [0.5, 0, 0]\n",
    "line_load": "edges = [2]\nload = [0.5, 0, 0]\n",
    "moment": "nodes = [2]\nmoment = [0, 0, 1e-3]\n",
    "move": "nodes = [0, 1]\nvelocity = [0, 0.1, 0]\n",
}


@pytest.mark.parametrize("name", LATE)
def test_what_begins_after_the_end_is_warned_of(load, name):
    """Name the table, its start and the end, where a run is taken to the end; not where it begins in time."""
    table = f"[[{name}]]\n{LATE[name]}start = "
    late = load(GOOD + table + "0.05\n")
    assert late.document.simulation.duration == 0.05
    with pytest.warns(UserWarning, match=rf"{name}.0.start: \[\[{name}\]\] begins at 0.05 s, and the run ends at 0.05"):
        warn_of_idle(late)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_idle(load(GOOD + table + "0.049\n"))


MAGNET = GOOD.replace("density = 1000.0\n", "density = 1000.0\nmagnetisation = [1e3, 0, 0]\n")
DRIVEN = {  # keys of tables: a scene and how many numbers a row has beside its time
    "actuation.rest_length": (GOOD + '[actuation]\nrest_length = "t.csv"\n', "0.1, 0.1, 0.1, 0.1"),
    "move.0.file": (GOOD + '[[move]]\nnodes = [0]\nfile = "t.csv"\n', "0, 0, 0"),
    "tendon.0.tension_file": (GOOD + '[[tendon]]\nnodes = [1, 2, 3]\ntension_file = "t.csv"\n', "1"),
    "chamber.0.pressure_file": (
        GOOD + '[[chamber]]\nnodes = [1, 2]\noffset = [0, 0, 0]\narea = 1e-5\npressure_file = "t.csv"\n',
        "1",
    ),
    "magnetic.file": (MAGNET + '[magnetic]\nfile = "t.csv"\n', "0, 0, 1"),
    "magnetic.dipole.file": (MAGNET + '[magnetic]\ndipole = {file = "t.csv"}\n', "0, 0, 1, 0, 0, 1"),
    "obstacle.0.path": (
        GOOD + '[[obstacle]]\nshape = "sphere"\ncenter = [0, 0, 9]\nradius = 1.0\nstiffness = 1.0\npath = "t.csv"\n',
        "0, 0, 0",
    ),
    "controller.reference": (
        GOOD + '[controller]\nkind = "pi"\nfields = ["stretch"]\nreference = "t.csv"\nbeyond = "hold"\n',
        "0, 0, 0, 0",
    ),
}


@pytest.mark.parametrize("key", DRIVEN)
def test_tables_that_begin_after_the_end_are_warned_of(load, key):
    """Name a table that drives something, when it begins, and the end; not one that begins in time, or has one row."""
    text, numbers = DRIVEN[key]

    def starting(first: float, rows: int = 2):
        lines = [f"{first + row}, {numbers}\n" for row in range(rows)]
        return load(text, t__csv="# in s\n" + "".join(lines))

    words = rf"scene.toml: {key}: t.csv begins at 0.05 s, and the run ends at 0.05 s: its first row holds from"
    with pytest.warns(UserWarning, match=words):
        warn_of_idle(starting(0.05))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_idle(starting(0.049))
        warn_of_idle(starting(0.05, rows=1))


def test_runs_and_checks_warn_of_what_begins_after_the_end(load, tmp_path):
    """Say it in a run, and before one."""
    scene = load(GOOD + "[[point_force]]\nnodes = [2]\nforce = [0.5, 0, 0]\nstart = 100\n")
    with pytest.warns(UserWarning, match="begins at 100 s, and the run ends at 0.05 s: it never acts; times are in s"):
        run_scene(scene, scene.build(), tmp_path / "run.h5")
    with pytest.warns(UserWarning, match="begins at 100 s"):
        check(scene.path)


def test_runs_and_checks_warn_of_what_steps_never_meet(load, tmp_path):
    """Say it in a run, and before one, of a push that begins and ends within a step."""
    scene = load(GOOD + "[[point_force]]\nnodes = [2]\nforce = [0.5, 0, 0]\nstart = 0.012\nstop = 0.018\n")
    words = r"PointForce\(start=0.012, stop=0.018\) never acts in steps of 0.01 s"
    with pytest.warns(RuntimeWarning, match=words):
        run_scene(scene, scene.build(), tmp_path / "run.h5")
    with pytest.warns(RuntimeWarning, match=words):
        check(scene.path)
