"""Disks that fill up, wherever that happens, and folders that nothing can be written to."""

import errno
import os
import resource
import stat
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.trajectory.test_trajectory import assert_same
from tests.trajectory.writers import NO_TRIANGLES, ROD_EDGES, Ending, Killed, frame_with, written
from torchdismech.errors import InputError
from torchdismech.trajectory import Trajectory, TrajectoryWriter, writing

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
STEPS, CAPACITY = 3, 4  # one row less than there is room for: closing cuts it off


@pytest.fixture
def whole(tmp_path) -> Trajectory:
    """Return a run on a disk with room for it."""
    path = tmp_path / "whole.h5"
    written(path, range(STEPS), CAPACITY).close()
    return Trajectory.load(path)


def writes_of_a_run(tmp_path, ending) -> int:
    """Return how many writes a run takes."""
    ending(10**9, FULL)
    written(tmp_path / "counted.h5", range(STEPS), CAPACITY).close()
    return 10**9 - Ending.left


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_full_disk_leaves_nothing_or_frames_to_go_on_from(tmp_path, ending, whole, stride):
    """Let each of the writes of a run be the last that the disk takes: one sentence, nothing hidden, no frame lost."""
    places = set()
    for write in range(1, writes_of_a_run(tmp_path, ending) + 1, stride):
        folder = tmp_path / str(write)
        folder.mkdir()
        path = folder / "run.h5"
        ending(write, FULL)
        writer = TrajectoryWriter(path)
        writer.start(CAPACITY, ROD_EDGES, NO_TRIANGLES)
        said, done = "", 0
        try:
            for step in range(STEPS):
                writer.append(frame_with(step))
                done += 1
        except InputError as error:
            said = str(error)
        try:
            writer.close()
        except InputError as error:
            assert not said
            said = str(error)
        assert said.startswith(f"{path}: cannot be written") and "No space left on device" in said and "\n" not in said
        if done == 0:
            places.add("creation")
            assert list(folder.iterdir()) == []
            continue
        left = Trajectory.load(path)
        assert [p.name for p in folder.iterdir()] == ["run.h5"]
        assert f"the {len(left.time)} frames in it can be read, and --resume {path} goes on from them" in said
        assert len(left.time) in (done, done + 1) and left.state_step in (done - 1, done)
        places.add("close" if done == STEPS else "state" if len(left.time) > done else "row")
        ending(10**9, FULL)
        resumed = TrajectoryWriter(path, resume=left.resumable())
        resumed.start(STEPS - left.state_step, ROD_EDGES, NO_TRIANGLES)
        for step in range(left.state_step, STEPS):
            resumed.append(frame_with(step - left.state_step, number=float(step)))
        resumed.close()
        after = Trajectory.load(path)
        assert torch.equal(after.positions, whole.positions) and torch.equal(after.state.q, whole.state.q)
    assert places == {"creation", "row", "state", "close"}


def test_failing_to_resume_leaves_what_was_there(tmp_path, ending, whole):
    """Fill the disk while a file is made anew with more room: the frames to resume from are what they were."""
    path = tmp_path / "whole.h5"
    before = path.read_bytes()
    for write in (1, 10, 40, 60, 80):
        ending(write, FULL)
        writer = TrajectoryWriter(path, resume=whole)
        writer.start(3, ROD_EDGES, NO_TRIANGLES)
        with pytest.raises(InputError, match=f"No space left on device; the {STEPS} frames to resume from are what"):
            writer.append(frame_with(0))
        writer.close()
        assert path.read_bytes() == before and os.listdir(tmp_path) == ["whole.h5"]


def test_failing_to_save_leaves_what_was_there(tmp_path, ending, whole):
    """Fill the disk while a trajectory is saved over another."""
    path = tmp_path / "whole.h5"
    before = path.read_bytes()
    ending(30, FULL)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        whole.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["whole.h5"]


def test_interrupt_within_the_making_of_a_file_removes_it(tmp_path, ending):
    """Stop in each of the first writes, HDF5's own ones among them: nothing is left."""
    for write in range(1, 60, 7):
        ending(write, Killed())
        writer = TrajectoryWriter(tmp_path / "run.h5")
        writer.start(CAPACITY, ROD_EDGES, NO_TRIANGLES)
        with pytest.raises(Killed):
            writer.append(frame_with(0))
        writer.close()
        assert os.listdir(tmp_path) == []


def test_closed_writer_does_not_begin_anew(tmp_path):
    """Refuse a frame after the end: it would replace the file."""
    path = tmp_path / "run.h5"
    writer = written(path, [0, 1])
    writer.close()
    with pytest.raises(ValueError, match="closed"):
        writer.append(frame_with(2))
    assert Trajectory.load(path).step.tolist() == [0, 1]


def test_frames_that_do_not_fit_are_refused(tmp_path):
    """Refuse rows beyond the room and of another shape: they would be written over other numbers."""
    path = tmp_path / "run.h5"
    writer = written(path, [0, 1])
    with pytest.raises(ValueError, match="room for 2 rows"):
        writer.append(frame_with(2))
    with pytest.raises(ValueError, match="positions: a row has shape"):
        written(tmp_path / "other.h5", [0], capacity=3).append(frame_with(1, nodes=6))
    writer.close()
    assert Trajectory.load(path).step.tolist() == [0, 1]


def test_estimate_counts_both_states_in_readable_units(tmp_path, monkeypatch):
    """Refuse what the disk has no room for, with numbers that a person can read."""
    free = [0]
    monkeypatch.setattr(writing.shutil, "disk_usage", lambda _: SimpleNamespace(free=free[0]))
    with pytest.raises(InputError) as refused, TrajectoryWriter(tmp_path / "run.h5") as writer:
        writer.start(1, ROD_EDGES, NO_TRIANGLES)
        writer.append(frame_with(0))
    size = float(str(refused.value).split("need ")[1].split(" KiB")[0])
    assert "the disk has 0 KiB" in str(refused.value)
    # B = 3, N = 5, A = 4, S = 3: a row and the two edge arrays (E = 4), then two states
    row = 8 * (2 + 3 * (2 * 15 + 4 + 4 + 1))
    state = 8 * 3 * (3 * 19 + 2 * 12 + 3 + 1)
    assert size == pytest.approx((row + 2 * state + 8 * 8) / 1024, rel=0.02)  # some texts come on top
    free[0] = int(1.05 * size * 1024)
    written(tmp_path / "run.h5", [0], capacity=1).close()


def test_new_files_have_the_rights_of_any_file(tmp_path):
    """Give the file the rights that the user's mask leaves."""
    before = os.umask(0o027)
    try:
        written(tmp_path / "run.h5", [0]).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.h5").stat().st_mode) == 0o640


def test_partial_files_cannot_be_foreseen(tmp_path, monkeypatch):
    """Make them under another name each time, and never through what is there already."""
    made = []
    opened = os.open

    def noting(path, flags, *rest, **options):
        if str(path).endswith(".partial"):
            made.append((str(path), flags))
        return opened(path, flags, *rest, **options)

    monkeypatch.setattr(os, "open", noting)
    written(tmp_path / "a.h5", [0]).close()
    written(tmp_path / "a.h5", [0]).close()
    assert len({path for path, _ in made}) == 2 and all(flags & os.O_EXCL and flags & os.O_CREAT for _, flags in made)
    assert {Path(path).parent for path, _ in made} == {tmp_path}


def test_process_that_cannot_write_ends_without_a_crash(tmp_path):
    """End the interpreter after HDF5 could not write its structure: with an exit status, not in a crash."""
    program = """
from pathlib import Path
from tests.trajectory.writers import written
from torchdismech import InputError
try:
    written(Path("run.h5"), range(20)).close()
except InputError as error:
    raise SystemExit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (8000, 8000)),  # in the middle of the structure
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (1, "run.h5: cannot be written: File too large\n")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_folder_without_the_right_to_write_is_refused(tmp_path):
    """Refuse in one sentence."""
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="run.h5: cannot be written: Permission denied"):
        written(tmp_path / "run.h5", [0])


def test_read_only_file_system_is_refused(tmp_path, monkeypatch):
    """Refuse in one sentence, before a run."""

    def refuse(*_):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(InputError, match="run.h5: cannot be written: Read-only file system"):
        TrajectoryWriter(tmp_path / "run.h5").start(1, ROD_EDGES, NO_TRIANGLES)


def test_saved_again_is_the_same(tmp_path, whole):
    """Save what was loaded, over the file that it is mapped from."""
    whole.save(tmp_path / "whole.h5")
    assert_same(Trajectory.load(tmp_path / "whole.h5"), whole)
