"""Trajectories in memory and in their file, which no kill may break."""

import os
import random
import signal
import time

import h5py
import numpy as np
import pytest
import torch

from tests.constant_curvature.arms import paper_arm
from tests.trajectory.writers import (
    BATCH,
    EDGES,
    NO_TRIANGLES,
    NODES,
    ROD_EDGES,
    SPRINGS,
    Killed,
    frame_with,
    written,
)
from torchdismech import rollout
from torchdismech.constant_curvature import ArmIntegrator
from torchdismech.errors import InputError
from torchdismech.rigid import Radau, RigidChain
from torchdismech.robot.state import State, tensor_fields
from torchdismech.trajectory import Recorder, Trajectory, TrajectoryWriter


def assert_same(a: Trajectory, b: Trajectory) -> None:
    """Compare all arrays bitwise."""
    for name in ("step", "time", "positions", "velocities", "twist", "iterations", "residual", "status"):
        assert torch.equal(getattr(a, name), getattr(b, name)), name
    assert a.energies.keys() == b.energies.keys()
    assert all(torch.equal(a.energies[k], b.energies[k]) for k in a.energies)
    assert np.array_equal(a.rod_edges, b.rod_edges)
    assert a.state_step == b.state_step
    for name in tensor_fields(State):
        assert torch.equal(getattr(a.state, name), getattr(b.state, name)), name


def test_trajectories_are_shown_in_a_line(tmp_path):
    """Say how long a run is and what it is of, not all of its numbers."""
    written(tmp_path / "run.h5", [0, 10]).close()
    shown = repr(Trajectory.load(tmp_path / "run.h5"))
    assert shown.startswith(f"Trajectory(2 frames of {BATCH} robots, {NODES} points each, to t = ") and len(shown) < 120


def test_a_recorder_begins_anew_with_each_run():
    """Keep the frames of the last run alone, as a file does."""
    recorder = Recorder()
    for steps in ([0, 10, 20], [0, 10]):
        recorder.start(len(steps), ROD_EDGES, NO_TRIANGLES)
        for step in steps:
            recorder.append(frame_with(step))
        assert recorder.trajectory().step.tolist() == steps


def test_frames_that_cannot_be_saved_are_refused(tmp_path):
    """Refuse a single number, which would take an axis away, and a trajectory of which no frame is left."""
    written(tmp_path / "run.h5", [0, 10]).close()
    run = Trajectory.load(tmp_path / "run.h5")
    with pytest.raises(InputError, match="Trajectory.frames: index: expected a slice, such as .*, got int"):
        run.frames(1)
    with pytest.raises(InputError, match=r"frames: index: expected frames in their order, got slice\(None, None, -1\)"):
        run.frames(slice(None, None, -1))
    with pytest.raises(InputError, match="none.h5: this trajectory has no frames"):
        run.frames(slice(2, 4)).save(tmp_path / "none.h5")


OTHER_FORMATS = {
    "run.mp4": "torchdismech movie makes",
    "run.GIF": "torchdismech movie makes",
    "run.png": "torchdismech plot makes",
    "run.glb": "torchdismech export makes",
    "run.csv": "torchdismech export makes a table, in .csv",
    "run.xlsx": "torchdismech export makes a table",
    "run.npz": "Trajectory.load makes tensors",
}


@pytest.mark.parametrize(("name", "maker"), OTHER_FORMATS.items())
def test_names_of_other_formats_are_no_names_of_trajectories(tmp_path, name, maker):
    """Name what makes such a file of a trajectory, and write nothing."""
    written(tmp_path / "run.h5", [0, 10]).close()
    for write in (Trajectory.load(tmp_path / "run.h5").save, TrajectoryWriter):
        with pytest.raises(InputError, match=f"writes a trajectory, .*run.h5, of which {maker}"):
            write(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["run.h5"]


@pytest.mark.parametrize("name", ["run", "run.hdf5", "run_dt0.01"])
def test_names_that_say_nothing_of_another_format_are_taken(tmp_path, name):
    """Write a trajectory under a name without an ending, or with one of no format."""
    written(tmp_path / "run.h5", [0, 10]).close()
    run = Trajectory.load(tmp_path / "run.h5")
    run.save(tmp_path / name)
    assert_same(Trajectory.load(tmp_path / name), run)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_file_that_is_open_in_this_process_is_called_so(tmp_path, mode):
    """It was called no trajectory, or cut off, so that a whole run looked lost. It loads once it is closed."""
    path = tmp_path / "run.h5"
    written(path, [0, 10]).close()
    run = Trajectory.load(path)
    with h5py.File(path, mode):
        for ask in (lambda: Trajectory.load(path), lambda: run.save(path)):
            with pytest.raises(InputError, match="run.h5: this process has it open already: close"):
                ask()
    assert_same(Trajectory.load(path), run)


def test_a_run_loads_beside_a_file_that_is_open_without_a_lock(tmp_path):
    """Do as the refusal of a file that is open advises."""
    written(tmp_path / "run.h5", [0, 10]).close()
    with h5py.File(tmp_path / "run.h5", "r", locking=False):
        assert len(Trajectory.load(tmp_path / "run.h5").time) == 2


def test_save_replaces_trajectories_alone(tmp_path):
    """Refuse to replace what is no trajectory, and leave it as it was; replace a run."""
    path, text = tmp_path / "run.h5", tmp_path / "precious.txt"
    written(path, [0, 10]).close()
    trajectory = Trajectory.load(path)
    written(tmp_path / "longer.h5", [0, 10, 20]).close()
    Trajectory.load(tmp_path / "longer.h5").save(path)
    assert len(Trajectory.load(path).time) == 3
    text.write_text("my thesis")
    with pytest.raises(InputError, match="precious.txt: is there already, and no trajectory: choose another name"):
        trajectory.save(text)
    assert text.read_text() == "my thesis"


def test_file_has_the_documented_datasets(tmp_path):
    """Find every dataset of the file's description with its shape, dtype and unit."""
    path = tmp_path / "run.h5"
    drawn = {"rod.youngs": torch.arange(3.0)}
    written(path, [0, 10, 20], randomized=drawn, attributes={"scene": "[robot]"}).close()
    shapes = {
        "time": (3,),
        "step": (3,),
        "positions": (3, BATCH, NODES, 3),
        "velocities": (3, BATCH, NODES, 3),
        "twist": (3, BATCH, EDGES),
        "newton/iterations": (3, BATCH),
        "newton/residual": (3, BATCH),
        "newton/status": (3, BATCH),
        "energy/kinetic": (3, BATCH),
        "topology/rod_edges": (EDGES, 2),
        "topology/triangles": (0, 3),
        "randomized/rod.youngs": (BATCH,),
        "state/q": (BATCH, 4 * NODES - 1),
        "state/director": (BATCH, EDGES, 3),
        "state/reference_twist": (BATCH, SPRINGS),
        "state/time": (BATCH,),
    }
    with h5py.File(path) as file:
        assert {name: file[name].shape for name in shapes} == shapes
        assert file["positions"].dtype == np.float64
        assert file["positions"].attrs["units"] == "m" and file["energy/kinetic"].attrs["units"] == "J"
        assert file.attrs["scene"] == "[robot]" and file.attrs["dtype"] == "float64"
        assert {"version", "units"} <= set(file.attrs)
        assert (file["positions"][2] == 20).all()


def test_units_are_those_of_the_kind_of_robot(tmp_path):
    """Store angles of a chain in rad, and elongations of an arm in m."""
    chain = RigidChain.cylinder(2, length=1.2, diameter=6e-3, density=2710.0, youngs=1e10, viscosity=1e9)
    arm, names = paper_arm(), ("twist", "state/q", "state/backup/velocity", "newton/residual")
    for robot, method, units in (
        (chain, Radau(1e-3), ["rad", "rad", "rad/s", "rad"]),
        (arm, ArmIntegrator(1e-3), ["m", "m", "m/s", "N"]),
    ):
        rollout(robot, robot.initial_state(), method, 1).save(tmp_path / "run.h5")
        with h5py.File(tmp_path / "run.h5") as file:
            assert [file[name].attrs["units"] for name in names] == units


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_save_and_load_give_the_same(tmp_path, dtype):
    """Write a recorded trajectory at once and read it back bitwise, in its own precision."""
    recorder = Recorder()
    recorder.start(3, ROD_EDGES, NO_TRIANGLES)
    for step in (0, 1, 2):
        recorder.append(frame_with(step, number=step / 3, dtype=dtype))
    trajectory = recorder.trajectory()
    trajectory.save(tmp_path / "run.h5")
    loaded = Trajectory.load(tmp_path / "run.h5")
    assert loaded.positions.dtype == dtype
    assert_same(loaded, trajectory)
    assert loaded.batch == BATCH and loaded.failed.tolist() == [True] * 3  # the frames' status is their step


def test_writer_and_save_make_the_same_file(tmp_path):
    """Read the same from frames written one by one as from frames collected and saved."""
    recorder = Recorder()
    recorder.start(3, ROD_EDGES, NO_TRIANGLES)
    for step in (0, 5, 10):
        recorder.append(frame_with(step))
    written(tmp_path / "run.h5", [0, 5, 10]).close()
    assert_same(Trajectory.load(tmp_path / "run.h5"), recorder.trajectory())


def test_file_can_be_read_while_it_is_written(tmp_path):
    """See the frames so far in a file that is still open for writing, and nothing of the rest."""
    path = tmp_path / "run.h5"
    writer = written(path, [0, 1], capacity=9)
    trajectory = Trajectory.load(path)
    assert trajectory.time.tolist() == [0, 1] and trajectory.state_step == 1
    # one process has to open a file the same way twice; another process may leave `locking` out
    with h5py.File(path, locking=False) as file:
        assert np.isnan(file["time"][2:]).all() and (file["newton/status"][2:] == -1).all()
        assert np.isnan(file["positions"][2:]).all()
    writer.close()


def test_close_cuts_off_rows_that_were_not_reached(tmp_path):
    """Leave exactly the frames written when a run ends early."""
    path = tmp_path / "run.h5"
    with written(path, [0, 1], capacity=9):
        pass
    with h5py.File(path) as file:
        assert file["time"].shape == (2,) and file["positions"].shape[0] == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.h5"]


def test_resumed_file_continues_the_rows(tmp_path):
    """Find old and new frames one after the other, counted through, with the last state."""
    path = tmp_path / "run.h5"
    written(path, [0, 10, 20]).close()
    before = Trajectory.load(path)
    resumed = TrajectoryWriter(path, resume=before)
    resumed.start(3, ROD_EDGES, NO_TRIANGLES)
    for step in (0, 10, 20):
        resumed.append(frame_with(step, number=20.0 + step))
    resumed.close()
    after = Trajectory.load(path)
    assert after.step.tolist() == [0, 10, 20, 30, 40]
    assert after.positions[:, 0, 0, 0].tolist() == [0, 10, 20, 30, 40]
    assert after.state_step == 40


def structure(path) -> bytes:
    """Return the bytes of a file that are not in a dataset, after checking that no dataset is outside."""
    content = bytearray(path.read_bytes())
    regions = []
    with h5py.File(path, locking=False) as file:

        def note(_, item):
            if isinstance(item, h5py.Dataset) and item.id.get_offset() is not None:
                regions.append((item.id.get_offset(), item.id.get_storage_size()))

        file.visititems(note)
    for offset, size in regions:
        assert offset + size <= len(content)
        content[offset : offset + size] = bytes(size)
    return bytes(content)


def test_writing_frames_leaves_the_structure_alone(tmp_path):
    """Find every byte outside of the datasets unchanged by frames and states: that is why a kill cannot break it."""
    path = tmp_path / "run.h5"
    writer = written(path, [0], capacity=50)
    before = structure(path)
    for step in range(1, 50):
        writer.append(frame_with(step))
        assert structure(path) == before
    writer.close()


def _write_until_killed(path, nodes: int, rows: int) -> None:
    torch.set_num_threads(1)  # the other threads of the process that was forked are not there to be waited for
    writer = TrajectoryWriter(path)
    writer.start(rows, ROD_EDGES, NO_TRIANGLES)
    for step in range(rows):
        writer.append(frame_with(step, nodes=nodes))
    time.sleep(10)  # for whoever kills late


@pytest.mark.parametrize(("nodes", "rows"), [(5, 2000), (3000, 100)], ids=["small rows", "rows larger than buffers"])
def test_killed_run_leaves_a_consistent_file(tmp_path, nodes, rows):
    """Kill a writing process with SIGKILL at random moments: all rows written and one whole state are there."""
    moments = random.Random(nodes)
    reached = []
    for attempt in range(12):
        path = tmp_path / f"{attempt}.h5"
        child = os.fork()
        if child == 0:
            _write_until_killed(path, nodes, rows)
            os._exit(0)
        while not path.exists():  # it appears whole, with its first row
            time.sleep(0.001)
        time.sleep(moments.uniform(0, 0.15))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with h5py.File(path) as file:  # any HDF5 reader opens it
            count = int(np.isfinite(file["time"][()]).sum())
            assert count == 1 or (np.diff(file["time"][:count]) == 1).all()
        trajectory = Trajectory.load(path)
        assert trajectory.step.tolist() == list(range(count))
        expected = torch.arange(count, dtype=torch.float64)
        for values in (trajectory.positions, trajectory.velocities, trajectory.twist, trajectory.energies["kinetic"]):
            assert torch.equal(values.flatten(1).amin(1), expected) and torch.equal(values.flatten(1).amax(1), expected)
        # the state is whole, and of the last row or (killed between the two) of the row before
        assert trajectory.state_step in (count - 1, count - 2)
        for name in tensor_fields(State):
            assert (getattr(trajectory.state, name) == trajectory.state_step).all(), name
        reached.append(count)
        path.unlink()
    assert max(reached) > 1, "no process lived long enough to write: the test shows nothing"


def test_resume_drops_rows_after_the_state(tmp_path, ending):
    """Kill a run in each of the writes of a frame: what is there goes up to a state, also where a row more is there."""
    found = set()
    for write in range(1, 45, 3):
        path = tmp_path / f"{write}.h5"
        writer = written(path, [0, 1], capacity=9)
        ending(write, Killed())
        try:
            writer.append(frame_with(2))
        except Killed:
            torn = Trajectory.load(path)
            assert torn.resumable().step.tolist() == list(range(torn.state_step + 1))
            assert all((getattr(torn.state, name) == torn.state_step).all() for name in tensor_fields(State))
            found.add((len(torn.time), torn.state_step))
        ending(10**9, Killed())
    assert found == {(2, 1), (3, 1), (3, 2)}


@pytest.mark.parametrize("content", [None, b"", b"not HDF5 at all", "other"])
def test_what_is_no_trajectory_is_refused(tmp_path, content):
    """Refuse missing, empty and foreign files by name."""
    path = tmp_path / "run.h5"
    if content == "other":
        with h5py.File(path, "w") as file:
            file["something"] = 1
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match="run.h5"):
        Trajectory.load(path)


@pytest.mark.parametrize("part", [0.1, 0.5, 0.9, 0.999])
def test_cut_off_file_is_refused(tmp_path, part):
    """Refuse what is left of a file that was copied in part."""
    path = tmp_path / "run.h5"
    written(path, range(50)).close()
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(InputError, match="run.h5: not a trajectory file, or cut off"):
        Trajectory.load(path)


def test_what_cannot_be_written_is_refused_before_the_run(tmp_path):
    """Refuse a missing folder and a folder in the file's place at once, and rows that no disk holds with the first."""
    with pytest.raises(InputError, match="no folder"):
        TrajectoryWriter(tmp_path / "nowhere" / "run.h5")
    with pytest.raises(InputError, match="is a folder"):
        TrajectoryWriter(tmp_path)
    with pytest.raises(InputError, match="store fewer frames"):
        written(tmp_path / "run.h5", [0], capacity=10**15)
    assert list(tmp_path.iterdir()) == []
