"""Readers: what each file must hold, and what happens when it does not."""

import csv
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.training.readings import FAULTLESS, nested, pickled
from tests.training.swinging import DT
from torchdismech.errors import InputError, Status
from torchdismech.state import State
from torchdismech.trajectory import Frame, Recorder
from training.data import Rules, prepared, read

REAL = Path(__file__).resolve().parents[3] / "shared" / "data" / "dlo"


# ---- archives


def archive(path: Path, **changes) -> Path:
    """Return an archive of two splits with some arrays changed; None leaves one out."""
    arrays = {"train": FAULTLESS[:2], "eval": FAULTLESS[2:], "dt": DT, "train_id": np.array([7, 9])}
    np.savez(path, **{name: array for name, array in (arrays | changes).items() if array is not None})
    return path


def test_archive_is_read_by_split(tmp_path):
    """Read a split with its names and time step; single precision is widened."""
    path = archive(tmp_path / "cable.npz", eval=FAULTLESS[2:].astype(np.float32))
    train = read(path, "train")
    assert np.array_equal(train.positions.numpy(), FAULTLESS[:2])
    assert train.names == ("cable.npz:train/7", "cable.npz:train/9")
    assert train.dt == DT
    assert bool(train.valid.all())
    found = read(str(path), split="eval")
    assert found.positions.dtype == torch.float64
    assert np.array_equal(found.positions.numpy(), FAULTLESS[2:].astype(np.float32))
    assert found.names == ("cable.npz:eval/0",)


def test_archive_of_one_split_needs_no_name(tmp_path):
    """Take the only split there is; not seen is not valid."""
    positions = FAULTLESS.copy()
    positions[1, 5, 2, 0] = np.nan
    found = read(archive(tmp_path / "a.npz", train=None, eval=positions, train_id=None))
    assert found.valid.shape == (3, 60, 6)
    assert (~found.valid).nonzero().tolist() == [[1, 5, 2]]


ARCHIVE_FAULTS = {
    "no split named": ({}, None, "got train, eval; name a split"),
    "no such split": ({}, "test", "no split 'test'; it has train, eval"),
    "no dt": ({"dt": None}, "train", "expected a key dt"),
    "two dts": ({"dt": np.array([DT, DT])}, "train", "expected one number"),
    "three axes": ({"train": FAULTLESS[0]}, "train", r"expected \(recordings, frames, nodes, 3\), got \(60, 6, 3\)"),
    "planar": ({"train": FAULTLESS[:2, ..., :2]}, "train", r"got \(2, 60, 6, 2\)"),
    "objects": ({"train": np.array([{"a": 1}, None], dtype=object)}, "train", "not an archive of plain numbers"),
    "texts": ({"train": np.full((1, 3, 2, 3), "x")}, "train", "expected real numbers, got dtype <U1"),
    "complex": ({"train": FAULTLESS[:2] * 1j}, "train", "expected real numbers, got dtype complex"),
    "empty split": ({"train": FAULTLESS[:0], "train_id": None}, "train", "no recordings in it"),
    "ids of another count": ({"train_id": np.arange(3)}, "train", "train_id: expected one for each of 2"),
    "an id twice": ({"train_id": np.array([7, 7])}, "train", "same name: .*train/7"),
    "infinite": ({"train": np.where(FAULTLESS > 0.1, np.inf, FAULTLESS)[:2]}, "train", "is infinite"),
    "two frames": ({"train": FAULTLESS[:2, :2]}, "train", "2 frames; expected at least 3"),
}


@pytest.mark.parametrize(("changes", "split", "complaint"), ARCHIVE_FAULTS.values(), ids=ARCHIVE_FAULTS.keys())
def test_archive_faults_are_refused(tmp_path, changes, split, complaint):
    """Name what is wrong with an archive."""
    with pytest.raises(InputError, match=complaint):
        read(archive(tmp_path / "cable.npz", **changes), split)


def test_files_cut_off_are_refused(tmp_path):
    """Refuse half of an archive, of a pickle and of a trajectory, by the name of the file."""
    whole = archive(tmp_path / "whole.npz").read_bytes()
    pickled = pickle.dumps(nested(FAULTLESS[0]))
    for name, content in (("a.npz", whole[:500]), ("b.pkl", pickled[:500]), ("c.h5", b"\x89HDF\r\n\x1a\n")):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError, match=name):
            read(path, **({"dt": DT} if path.suffix == ".pkl" else {"split": "train"} if path.suffix == ".npz" else {}))


def test_single_arrays_are_refused(tmp_path):
    """Refuse an array without names, which has no room for dt."""
    with (tmp_path / "a.npz").open("wb") as file:
        np.save(file, FAULTLESS)
    with pytest.raises(InputError, match=r"a\.npz: not an archive of plain numbers: File is not a zip file"):
        read(tmp_path / "a.npz")


# ---- tables

CLASSIC = [f"{axis}{node}" for node in range(6) for axis in "xyz"]


MARKERS = [f"marker_{node}_{axis}" for node in range(6) for axis in "xyz"]


def table(path: Path, positions: np.ndarray = FAULTLESS[0], header=CLASSIC, time=None, order=None) -> Path:
    """Write a table; NaN as an empty cell; `order` of the columns, `time` in the first if not given."""
    time = DT * np.arange(len(positions)) if time is None else time
    rows = [["time", *header]]
    for at, frame in zip(time, positions.reshape(len(positions), -1), strict=True):
        rows.append([repr(float(at)), *("" if np.isnan(x) else repr(float(x)) for x in frame)])
    if order is not None:
        rows = [[row[c] for c in order] for row in rows]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path


@pytest.mark.parametrize("header", [CLASSIC, MARKERS, [name.upper() for name in CLASSIC]], ids=["x0", "marker", "X0"])
@pytest.mark.parametrize("order", [None, np.random.default_rng(0).permutation(19)], ids=["in order", "mixed columns"])
def test_tables_are_read(tmp_path, header, order):
    """Read both ways of naming columns, in any order; empty cells are gaps."""
    positions = FAULTLESS[0].copy()
    positions[7, 2, 1] = np.nan
    found = read(table(tmp_path / "a.csv", positions, header, order=order))
    assert np.array_equal(found.positions[0].numpy(), positions, equal_nan=True)
    assert (~found.valid).nonzero().tolist() == [[0, 7, 2]]
    assert found.dt == pytest.approx(DT, rel=1e-12)  # the mean of rounded differences


def test_byte_order_mark_and_rounded_times_are_taken(tmp_path):
    """Read what spreadsheets write: a mark at the start; a clock of 120 Hz rounded to milliseconds."""
    time = np.round(np.arange(60) / 120, 3)
    path = table(tmp_path / "a.csv", time=time)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert read(path).dt == pytest.approx(1 / 120, rel=1e-3)  # a millisecond's rounding over 0.5 s


def jumped(times: np.ndarray) -> np.ndarray:
    """Return times with two frames left out after frame 9."""
    return np.where(np.arange(len(times)) > 9, times + 2 * DT, times)


CLOCK = DT * np.arange(60)


CLOCK_FAULTS = {
    "missing frames": (jumped(CLOCK), r"frames are missing: time jumps from 0\.09 s in frame 9 to 0\.12"),
    "double row": (CLOCK[np.r_[0:10, 9:59]], "time goes from 0.09 s in frame 9 to 0.09 s; expected it to grow"),
    "backwards": (CLOCK[::-1], "expected it to grow"),
    "uneven": (CLOCK + 0.3 * DT * np.sin(np.arange(60)), "uneven clock: frame"),
    "no time": (np.where(np.arange(60) == 4, np.nan, CLOCK), "row 6: no time"),
}


@pytest.mark.parametrize(("time", "complaint"), CLOCK_FAULTS.values(), ids=CLOCK_FAULTS.keys())
def test_clock_faults_are_refused(tmp_path, time, complaint):
    """Name the frame at which the time column is wrong."""
    with pytest.raises(InputError, match=rf"a\.csv: .*{complaint}"):
        read(table(tmp_path / "a.csv", time=time))


TEXT_FAULTS = {
    "empty": ("", "empty; expected a header"),
    "header only": ("time,x0,y0,z0,x1,y1,z1\n", "0 frames"),
    "no time": ("x0,y0,z0\n1,2,3\n", "0 columns named time"),
    "no nodes": ("time\n0\n1\n2\n", "no nodes"),
    "an axis missing": ("time,x0,y0,z0,x1,y1\n", "no column z1"),
    "a node missing": ("time,x0,y0,z0,x2,y2,z2\n", "no column x1"),
    "an axis twice": ("time,x0,y0,z0,marker_0_x\n", "'x0' and 'marker_0_x' are the same"),
    "unknown column": ("time,x0,y0,z0,force\n", "unknown column 'force'"),
    "short row": ("time,x0,y0,z0\n0,1,2,3\n0.01,1,2\n", "row 3 has 3 cells; expected 4"),
    "no number": ("time,x0,y0,z0\n0,1,2,3\n0.01,1,oops,3\n", "row 3, column y0: 'oops'"),
    "two frames": ("time,x0,y0,z0,x1,y1,z1\n0,1,1,1,2,2,2\n0.01,1,1,1,2,2,2\n", "2 frames; expected at least 3"),
    "infinite": ("time,x0,y0,z0,x1,y1,z1\n" + "".join(f"{t},1,inf,1,2,2,2\n" for t in range(3)), "is infinite"),
}


@pytest.mark.parametrize(("text", "complaint"), TEXT_FAULTS.values(), ids=TEXT_FAULTS.keys())
def test_table_faults_are_refused(tmp_path, text, complaint):
    """Name file, row and column."""
    path = tmp_path / "a.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=rf"a\.csv: .*{complaint}"):
        read(path)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """Refuse a table that is none."""
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(InputError, match=r"a\.csv: not a table of text"):
        read(path)


# ---- folders


def folder(path: Path, lengths=(60, 60, 60)) -> Path:
    """Return a folder of pickles, in two splits."""
    for k, name in enumerate(("train/2.pkl", "train/10.pickle", "eval/1.pkl")):
        pickled(path / name, nested(FAULTLESS[k, : lengths[k]]))
    return path


def test_folder_of_pickles_is_read_by_split(tmp_path):
    """Read a subfolder in the order of the numbers in the names."""
    path = folder(tmp_path)
    found = read(path, "train", dt=DT)
    assert found.names == ("2.pkl", "10.pickle")
    assert np.array_equal(found.positions.numpy(), FAULTLESS[:2])
    assert np.array_equal(read(path / "eval", dt=DT).positions.numpy(), FAULTLESS[2:])


def test_folder_of_tables_is_read(tmp_path):
    """Read all tables of a folder; other files are not looked at."""
    for k in range(3):
        table(tmp_path / f"{k}.csv", FAULTLESS[k])
    (tmp_path / "notes.txt").write_text("cable of 2024")
    found = read(tmp_path)
    assert np.array_equal(found.positions.numpy(), FAULTLESS)
    assert found.names == ("0.csv", "1.csv", "2.csv")


def test_unequal_lengths_are_refused_or_cut(tmp_path):
    """Refuse recordings of unequal length by name; cut them when told to."""
    path = folder(tmp_path, lengths=(60, 40, 60))
    with pytest.raises(InputError, match=r"2\.pkl: 60 frames, but 10\.pickle has 40; .*truncate=True"):
        read(path, "train", dt=DT)
    found = read(path, "train", dt=DT, truncate=True)
    assert np.array_equal(found.positions.numpy(), FAULTLESS[:2, :40])


def test_files_of_different_robots_are_refused(tmp_path):
    """Name the file whose nodes differ."""
    table(tmp_path / "a.csv")
    table(tmp_path / "b.csv", FAULTLESS[1, :, :5], CLASSIC[:15])
    with pytest.raises(InputError, match=r"b\.csv: 5 nodes, but a\.csv has 6"):
        read(tmp_path)


def test_files_of_different_clocks_are_refused(tmp_path):
    """Name the file whose time step differs."""
    table(tmp_path / "a.csv")
    table(tmp_path / "b.csv", time=2 * CLOCK)
    with pytest.raises(InputError, match=r"b\.csv: 0\.02 s between frames, but a\.csv has 0\.01"):
        read(tmp_path)


def test_folders_without_recordings_are_refused(tmp_path):
    """Say what was expected; name the splits that are there."""
    folder(tmp_path / "cable")
    (tmp_path / "cable" / "test").mkdir()
    with pytest.raises(InputError, match="name a split among its folders eval, test, train"):
        read(tmp_path / "cable", dt=DT)
    with pytest.raises(InputError, match="no recordings; expected"):
        read(tmp_path / "cable", "test", dt=DT)
    with pytest.raises(InputError, match="no such folder; expected one for the split 'validation'"):
        read(tmp_path / "cable", "validation", dt=DT)


def test_mixed_folders_are_refused(tmp_path):
    """Refuse to choose between tables and pickles."""
    table(tmp_path / "a.csv")
    pickled(tmp_path / "b.pkl", nested(FAULTLESS[0]))
    with pytest.raises(InputError, match="side by side"):
        read(tmp_path, dt=DT)


# ---- trajectories


def simulated(path: Path, failed=(), times=None) -> Path:
    """Write a run of three robots that move as the chain does; `failed` ones fail a step."""
    times = CLOCK if times is None else times
    recorder = Recorder()
    recorder.start(len(times), np.array([[k, k + 1] for k in range(5)]), np.zeros((0, 3), dtype=np.int64))
    zeros = torch.zeros(3, dtype=torch.float64)
    status = torch.tensor([Status.NOT_FINITE if k in failed else Status.CONVERGED for k in range(3)])
    for step, time in enumerate(times.tolist()):
        q = torch.zeros(3, 18 + 5, dtype=torch.float64)
        q[:, :18] = torch.from_numpy(FAULTLESS[:, step].reshape(3, -1))
        edges = torch.zeros(3, 5, 3, dtype=torch.float64)
        twist = torch.zeros(3, 4, dtype=torch.float64)
        state = State(q, torch.zeros_like(q), torch.zeros_like(q), edges, edges, twist, zeros + time)
        counts = torch.zeros(3, dtype=torch.long)
        recorder.append(Frame(step, state, counts, counts, zeros, status if step else counts, {"kinetic": zeros}))
    recorder.trajectory().save(path)
    return path


def test_trajectories_are_read(tmp_path):
    """Read one recording of each robot."""
    found = read(simulated(tmp_path / "run.h5"))
    assert np.array_equal(found.positions.numpy(), FAULTLESS)
    assert found.names == ("run.h5:robot 0", "run.h5:robot 1", "run.h5:robot 2")
    assert found.dt == pytest.approx(DT, rel=1e-12)  # the mean of rounded differences


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


# ---- what reads what


def test_unknown_files_and_options_are_refused(tmp_path):
    """Refuse what no reader takes, and options that a reader would ignore."""
    (tmp_path / "a.txt").write_text("1")
    cable = archive(tmp_path / "a.npz")
    single = table(tmp_path / "a.csv")
    run = simulated(tmp_path / "run.h5")
    recording = pickled(tmp_path / "1.pkl", nested(FAULTLESS[0]))
    faults = [
        (tmp_path / "nothing", {}, "no such file or folder"),
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


# ---- real data


@pytest.mark.parametrize(("cable", "nodes"), [("dlo1", 13), ("dlo3", 12)])
def test_real_cables_are_read_and_prepared(cable, nodes):
    """Read motion capture of real cables; repair a few fast node-frames and nothing else."""
    path = REAL / f"{cable}.npz"
    if not path.exists():
        pytest.skip(f"motion capture of real cables is not in this repository: ../shared/data/dlo/{path.name}")
    for split, count in (("train", 56), ("eval", 14)):
        raw = read(path, split)
        assert raw.positions.shape == (count, 500, nodes, 3)
        found, messages = prepared(raw, Rules(nodes=nodes))
        invalid = ~found.valid
        assert invalid.sum() <= 50  # node-frames, of hundreds of thousands: about 35 are faster than 5 m/s
        assert all("faster than 5 m/s" in message for message in messages)
        assert torch.equal(found.positions[~invalid], raw.positions[~invalid])
        # the fastest step, 11 m/s, is 0.11 m; a repair moves a node by less
        assert (found.positions - raw.positions).abs().max() < 0.11


def test_archives_are_read_to_the_end(tmp_path):
    """Refuse an array whose header says less than there is, whose checksum a reader would not get to."""
    path = archive(tmp_path / "a.npz")
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    members["train.npy"] = members["train.npy"].replace(b"(2, 60, 6, 3)", b"(1, 60, 6, 3)")
    with zipfile.ZipFile(path, "w") as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(InputError, match=r"a\.npz: .*'train\.npy' is not as long as it says"):
        read(path, "train")


@pytest.mark.parametrize("cell", ["1_0", "١", "0x1"])
def test_numbers_of_other_languages_are_refused(tmp_path, cell):
    """Refuse what is a number for Python, or nowhere."""
    path = tmp_path / "a.csv"
    path.write_text(f"time,x0,y0,z0\n0,1,2,{cell}\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 2, column z0: .*expected a number or nothing"):
        read(path)


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
