"""Readers of tables, and of folders of tables and pickles."""

from pathlib import Path

import numpy as np
import pytest

from tests.training.readings import CLASSIC, CLOCK, FAULTLESS, archive, jumped, nested, pickled, table
from tests.training.swinging import DT
from torchdismech.errors import InputError
from training.config import Data
from training.data import read

MARKERS = [f"marker_{node}_{axis}" for node in range(6) for axis in "xyz"]


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
    "short row after blank ones": ("\ntime,x0,y0,z0\n\n\n0,1,2,3\n\n0.01,1,2\n", "row 7 has 3 cells; expected 4"),
    "no number after blank rows": ("time,x0,y0,z0\n\n\n0,1,oops,3\n", "row 4, column y0: 'oops'"),
    "no time after blank rows": ("time,x0,y0,z0\n0,1,2,3\n\n,1,2,3\n", "row 4: no time"),
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


@pytest.mark.parametrize("cell", ["1_0", "١", "0x1"])
def test_numbers_of_other_languages_are_refused(tmp_path, cell):
    """Refuse what is a number for Python, or nowhere."""
    path = tmp_path / "a.csv"
    path.write_text(f"time,x0,y0,z0\n0,1,2,{cell}\n", encoding="utf-8")
    with pytest.raises(InputError, match="row 2, column z0: .*expected a number or nothing"):
        read(path)


def test_inputs_are_the_columns_of_that_very_name(tmp_path):
    """Tell P from p; refuse a name that no column has, and one that comes twice."""
    rows = [f"{0.01 * k},0,0,0,{k},{10 * k}" for k in range(3)]

    def written(*names: str) -> Path:
        (tmp_path / "a.csv").write_text("\n".join([",".join(["Time", "X0", "y0", "z0", *names]), *rows]))
        return tmp_path / "a.csv"

    path = written("P", "p")
    assert read(path, inputs=("p",)).inputs[0, :, 0].tolist() == [0, 10, 20]
    assert read(path, inputs=("p", "P")).inputs[0, 1].tolist() == [10, 1]
    with pytest.raises(InputError, match=r"a\.csv: no column 'q'; .*spelt as in the header; there are: Time, X0"):
        read(path, inputs=("q",))
    with pytest.raises(InputError, match="columns: 'p' comes twice"):
        read(path, inputs=("p", "p"))
    with pytest.raises(InputError, match=r"a\.csv: 2 columns named 'p'; expected one, as it is among the inputs"):
        read(written("p", "p"), inputs=("p",))
    with pytest.raises(InputError, match="no column 'p'"):
        read(written("P", "Q"), inputs=("p",))


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
    with pytest.raises(InputError, match=r"2\.pkl: 60 frames, but 10\.pickle has 40; .*truncate=True.*pad=True"):
        read(path, "train", dt=DT)
    found = read(path, "train", dt=DT, truncate=True)
    assert np.array_equal(found.positions.numpy(), FAULTLESS[:2, :40])


def test_shorter_recordings_are_not_seen_from_their_ends_on(tmp_path):
    """Keep all of each where told to: no marker where a recording has ended, and its last inputs."""
    for name, frames in (("a", 60), ("b", 40)):
        path = table(tmp_path / f"{name}.csv", FAULTLESS[0][:frames], time=CLOCK[:frames])
        rows = path.read_text().splitlines()
        path.write_text("\n".join([f"{rows[0]},pressure", *(f"{row},{k}" for k, row in enumerate(rows[1:]))]))
    found = read(tmp_path, pad=True, inputs=("pressure",))
    assert (found.frames, found.valid.all(-1).sum(1).tolist()) == (60, [60, 40])
    assert np.array_equal(found.positions[1, :40].numpy(), FAULTLESS[0][:40]) and found.positions[1, 40:].isnan().all()
    assert found.inputs[1, 38:42, 0].tolist() == [38, 39, 39, 39]
    assert found.pieces(0.2).names == (
        "a.csv from 0 s",
        "a.csv from 0.2 s",
        "a.csv from 0.4 s",
        *("b.csv from 0 s", "b.csv from 0.2 s"),
    )
    with pytest.raises(InputError, match="truncate, pad: expected one of them"):
        read(tmp_path, pad=True, truncate=True, inputs=("pressure",))


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


def test_endings_may_be_in_capitals(tmp_path):
    """Read a folder of a.csv and b.CSV, one of these alone, and a config of it, which has no splits."""
    table(tmp_path / "a.csv")
    upper = table(tmp_path / "b.CSV", FAULTLESS[1])
    assert read(tmp_path).names == ("a.csv", "b.CSV")
    assert read(upper).names == ("b.CSV",)
    (tmp_path / "a.csv").unlink()
    for path in (tmp_path, upper):
        assert Data(path=str(path)).train is None
    assert len(read(archive(tmp_path / "c.npz").rename(tmp_path / "c.NPZ"), "train")) == 2


@pytest.mark.parametrize("name", ["b.npz", "b.H5"])
def test_files_of_many_recordings_in_a_folder_are_refused(tmp_path, name):
    """Say that they are not read, beside tables and without; they were passed over."""
    (tmp_path / name).write_bytes(b"")
    for _ in range(2):
        with pytest.raises(InputError, match=rf"{name} holds many recordings; of a folder \.csv, .* files are read"):
            read(tmp_path)
        table(tmp_path / "a.csv")


@pytest.mark.parametrize("name", ["x1_mm", "Marker 1 x", "marker_1"])
def test_columns_that_begin_like_markers_are_refused_beside_inputs(tmp_path, name):
    """Refuse what may be a marker under another name; read it as an input; leave out what is neither."""
    rows = [f"{0.01 * k},0,0,0,{k},{10 * k}" for k in range(3)]
    (tmp_path / "a.csv").write_text("\n".join([f"time,x0,y0,z0,p,{name}", *rows]))
    with pytest.raises(InputError, match=rf"a\.csv: unknown column '{name.lower()}'; expected .*: rename it"):
        read(tmp_path / "a.csv", inputs=("p",))
    assert read(tmp_path / "a.csv", inputs=("p", name)).inputs[0, 2].tolist() == [2, 20]
    (tmp_path / "a.csv").write_text("\n".join(["time,x0,y0,z0,p,temperature", *rows]))
    assert read(tmp_path / "a.csv", inputs=("p",)).columns == ("p",)


def test_mixed_folders_are_refused(tmp_path):
    """Refuse to choose between tables and pickles."""
    table(tmp_path / "a.csv")
    pickled(tmp_path / "b.pkl", nested(FAULTLESS[0]))
    with pytest.raises(InputError, match="side by side"):
        read(tmp_path, dt=DT)
