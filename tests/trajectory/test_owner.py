"""One writer a file: a second one is refused, what a dead one left is taken over."""

import json
import multiprocessing
import os
import signal
import socket

import pytest

from tests.trajectory.writers import NO_TRIANGLES, ROD_EDGES, frame_with, written
from torchdismech.errors import InputError
from torchdismech.trajectory import OwnerMark, Trajectory, TrajectoryWriter, owner


def in_child(work) -> int:
    """Return how a forked child ended that did some work: its exit status, or minus the signal."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(17)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_second_writer_is_refused_and_the_first_loses_nothing(tmp_path, capfd):
    """Begin to write and to save what another process writes: it is refused by name, with what to do."""
    path = tmp_path / "run.h5"
    writer = written(path, [0, 1], capacity=9)
    other = written(tmp_path / "other.h5", [0, 1])
    other.close()
    assert in_child(lambda: TrajectoryWriter(path).start(2, ROD_EDGES, NO_TRIANGLES)) == 17
    assert in_child(lambda: other.trajectory().save(path)) == 17
    said = capfd.readouterr().err.splitlines()
    assert len(said) == 2
    for line in said:
        assert f"{path}: process {os.getpid()} on {socket.gethostname()} writes it since" in line
        assert f"wait for it or choose another file; if no such process runs any more, delete {path.parent}" in line
    for step in range(2, 9):
        writer.append(frame_with(step))
    writer.close()
    assert Trajectory.load(path).step.tolist() == list(range(9))
    assert sorted(os.listdir(tmp_path)) == ["other.h5", "run.h5"]


def test_second_writer_of_a_process_is_refused(tmp_path):
    """Refuse a second writer here, too, until the first is closed or gone."""
    path = tmp_path / "run.h5"
    writer = written(path, [0, 1], capacity=9)
    with pytest.raises(InputError, match="this process writes it already since .*: close its writer first"):
        written(path, [0])
    del writer
    written(path, [0]).close()
    assert os.listdir(tmp_path) == ["run.h5"]


def test_killed_writer_is_taken_over_with_what_it_left(tmp_path):
    """Kill a writer: the next one goes on from its frames, and its half-made file is gone."""
    path = tmp_path / "run.h5"

    def killed() -> None:
        kept = written(path, [0, 1], capacity=9)
        (tmp_path / ".run.h5.0123456789abcdef.partial").write_bytes(bytes(1000))
        os.kill(os.getpid(), signal.SIGKILL)
        kept.close()

    assert in_child(killed) == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 3
    resumed = TrajectoryWriter(path, resume=Trajectory.load(path))
    resumed.start(2, ROD_EDGES, NO_TRIANGLES)
    for step in (0, 1):
        resumed.append(frame_with(step, number=1.0 + step))
    resumed.close()
    assert Trajectory.load(path).step.tolist() == [0, 1, 2] and os.listdir(tmp_path) == ["run.h5"]


@pytest.mark.skipif(owner._started(os.getpid()) is None, reason="the system does not tell when a process has ended")
def test_writer_that_waits_for_its_parent_has_died(tmp_path):
    """Take over from a killed process that its parent has not noticed yet."""
    path = tmp_path / "run.h5"
    context = multiprocessing.get_context("fork")
    ready = context.Event()

    def wait() -> None:
        kept = OwnerMark(path)
        ready.set()
        signal.pause()
        kept.release()

    process = context.Process(target=wait)
    process.start()
    assert ready.wait(30)
    with pytest.raises(InputError, match=f"process {process.pid} on"):
        OwnerMark(path)
    os.kill(process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not noticed
    with OwnerMark(path):
        pass
    process.join()


def marked(path, **changes) -> dict:
    """Leave the mark of a process of this machine that does not run, but for some changes."""
    content = owner._this_process() | {"process": 2**22 + 1} | changes  # beyond what Linux counts to
    path.with_name(f".{path.name}.owner").write_text(json.dumps(content))
    return content


def test_mark_of_another_place_is_left_alone(tmp_path):
    """Take over from the dead of this machine only: of another, or of another container, nobody here knows."""
    path = tmp_path / "run.h5"
    for changes in ({"host": "elsewhere"}, {"machine": "another"}, {"processes": "pid:[1]"}, {"process": "7"}):
        marked(path, **changes)
        with pytest.raises(InputError, match="if no such process runs any more, delete"):
            OwnerMark(path)
    marked(path)
    OwnerMark(path).release()
    # the number of a dead process may be that of another one now
    marked(path, process=os.getppid(), process_started="1")
    if owner._started(os.getppid()) is not None:  # Linux says when a process started
        OwnerMark(path).release()


def test_mark_from_before_a_restart_is_taken_over(tmp_path, monkeypatch):
    """Know the dead by the machine's new start, where the machine has a name; else leave the mark alone."""
    path = tmp_path / "run.h5"
    own = owner._this_process()
    monkeypatch.setattr(owner, "_this_process", lambda: own | {"machine": "m", "boot": "second"})
    marked(path, boot="first", process=os.getpid())
    OwnerMark(path).release()
    monkeypatch.setattr(owner, "_this_process", lambda: own | {"machine": None, "boot": "second"})
    marked(path, boot="first", process=os.getpid())
    with pytest.raises(InputError):
        OwnerMark(path)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"[" * 5000, b'{"process": -1}', b"\xff\xfe"])
def test_mark_that_cannot_be_understood_is_left_alone(tmp_path, content):
    """Refuse to write, and name the mark: nobody knows whose it is."""
    path = tmp_path / "run.h5"
    mark = tmp_path / ".run.h5.owner"
    mark.write_bytes(content)
    with pytest.raises(InputError, match=f"delete {mark}"):
        OwnerMark(path)
    assert mark.read_bytes() == content


def test_mark_is_not_written_through_a_link(tmp_path):
    """Refuse where a link stands in place of the mark: what it points at stays as it is."""
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / ".run.h5.owner").symlink_to(target)
    with pytest.raises(InputError, match="damaged"):
        OwnerMark(tmp_path / "run.h5")
    assert target.read_text() == "kept"


def test_only_one_takes_over_from_the_dead(tmp_path):
    """Let many processes find the mark of a dead one at once: one gets the file."""
    path = tmp_path / "run.h5"
    context = multiprocessing.get_context("fork")
    for _ in range(5):
        marked(path)
        gate, end, got = context.Barrier(8), context.Event(), context.Value("i", 0)

        def take(gate=gate, end=end, got=got) -> None:
            gate.wait(30)
            try:
                with OwnerMark(path):
                    with got.get_lock():
                        got.value += 1
                    gate.wait(30)
            except InputError:
                gate.wait(30)

        processes = [context.Process(target=take) for _ in range(8)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(60)
        assert got.value == 1 and [p.exitcode for p in processes] == [0] * 8
        path.with_name(".run.h5.owner").unlink(missing_ok=True)


def test_forked_child_leaves_the_mark_of_its_parent(tmp_path):
    """Let a child forget the writer that it inherited: the parent has the file still."""
    path = tmp_path / "run.h5"
    mark = OwnerMark(path)
    assert in_child(mark.release) == 0
    assert os.listdir(tmp_path) == [".run.h5.owner"]
    mark.release()
    assert os.listdir(tmp_path) == []


def test_replaced_file_is_left_alone(tmp_path):
    """Put another file in place of one that is written: the writer says so, and does not replace it in turn."""
    path = tmp_path / "run.h5"
    writer = written(path, [0, 1], capacity=9)
    path.unlink()
    path.write_text("another's")
    with pytest.raises(InputError, match="was replaced or deleted while it was written"):
        writer.close()
    assert path.read_text() == "another's" and os.listdir(tmp_path) == ["run.h5"]
