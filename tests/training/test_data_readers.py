"""Readers: what becomes of files of several kinds, cut off, unknown or endless, and of trajectories."""

import os
import pickle

import numpy as np
import pytest

from tests.training.readings import CLOCK, FAULTLESS, archive, jumped, nested, pickled, simulated, table
from tests.training.swinging import DT
from torchdismech.errors import InputError
from training.data import read


def test_files_cut_off_are_refused(tmp_path):
    """Refuse half of an archive, of a pickle and of a trajectory, by the name of the file."""
    whole = archive(tmp_path / "whole.npz").read_bytes()
    pickled = pickle.dumps(nested(FAULTLESS[0]))
    for name, content in (("a.npz", whole[:500]), ("b.pkl", pickled[:500]), ("c.h5", b"\x89HDF\r\n\x1a\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            read(path, **({"dt": DT} if path.suffix == ".pkl" else {"split": "train"} if path.suffix == ".npz" else {}))


def test_trajectories_are_read(tmp_path):
    """Read one recording of each robot."""
    found = read(simulated(tmp_path / "run.h5"))
    assert np.array_equal(found.positions.numpy(), FAULTLESS)
    assert found.names == ("run.h5:robot 0", "run.h5:robot 1", "run.h5:robot 2")
    assert found.dt == pytest.approx(DT, rel=1e-12)  # the mean of rounded differences


def test_trajectories_keep_their_clock(tmp_path):
    """Begin when the run was first written, which scenes with motions over time have to know."""
    assert read(simulated(tmp_path / "run.h5", times=CLOCK + 3.0)).begins.tolist() == [3.0, 3.0, 3.0]


def test_failed_robots_are_refused_or_left_out(tmp_path):
    """Refuse failed robots by number; leave them out, with a warning, when told to; refuse when none is left."""
    path = simulated(tmp_path / "run.h5", failed=[1])
    with pytest.raises(InputError, match=r"run\.h5: steps of robot 1 failed; pass drop_failed=True"):
        read(path)
    with pytest.warns(UserWarning, match=r"run\.h5: robot 1 left out"):
        found = read(path, drop_failed=True)
    assert found.names == ("run.h5:robot 0", "run.h5:robot 2")
    assert np.array_equal(found.positions.numpy(), FAULTLESS[[0, 2]])
    with pytest.raises(InputError, match="all 3 robots failed"):
        read(simulated(tmp_path / "run.h5", failed=[0, 1, 2]), drop_failed=True)


def test_uneven_trajectories_are_refused(tmp_path):
    """Refuse rows that are not evenly spaced in time."""
    with pytest.raises(InputError, match=r"run\.h5: frames are missing"):
        read(simulated(tmp_path / "run.h5", times=jumped(CLOCK)))


def test_unknown_files_and_options_are_refused(tmp_path):
    """Refuse what no reader takes, and options that a reader would ignore."""
    (tmp_path / "a.txt").write_text("1")
    cable = archive(tmp_path / "a.npz")
    single = table(tmp_path / "a.csv")
    run = simulated(tmp_path / "run.h5")
    recording = pickled(tmp_path / "1.pkl", nested(FAULTLESS[0]))
    faults = [
        (tmp_path / "nothing", {}, "no such file or folder"),
        (None, {}, "read: expected the path of a file, got None"),
        (tmp_path / "a.txt", {}, "unknown kind of file"),
        (cable, {"split": "train", "dt": DT}, "no option dt for this kind of file"),
        (single, {"dt": DT}, "no option dt for this kind of file; it takes: inputs"),
        (single, {"truncate": True}, "no option truncate"),
        (single, {"split": "train"}, "a .csv file has no splits"),
        (run, {"split": "train"}, "a .h5 file has no splits"),
        (recording, {"split": "train", "dt": DT}, "a .pkl file has no splits"),
        (recording, {}, "it does not hold dt: pass it"),
        (recording, {"dt": 0.0}, "dt: expected a positive"),
    ]
    for path, options, complaint in faults:
        with pytest.raises(InputError, match=complaint):
            read(path, **options)


def test_what_cannot_be_read_to_its_end_is_refused(tmp_path):
    """Refuse pipes and devices, alone and in a folder, instead of waiting."""
    os.mkfifo(tmp_path / "a.csv")
    (tmp_path / "inside").mkdir()
    (tmp_path / "inside" / "b.pkl").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "a.csv", tmp_path / "inside", tmp_path / "inside" / "b.pkl"):
        with pytest.raises(InputError, match="not a plain file"):
            read(path)


@pytest.mark.parametrize("dt", [1e-300, 1e300, float("nan"), "0.01", True])
def test_absurd_time_steps_are_refused(tmp_path, dt):
    """Refuse time steps of the wrong size and type."""
    with pytest.raises(InputError, match=r"12\.pkl: dt: expected"):
        read(pickled(tmp_path / "12.pkl", nested(FAULTLESS[0])), dt=dt)
