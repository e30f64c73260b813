"""The time of frames goes on where robots failed; their states, and the times of these, stay what they were."""

import dataclasses

import numpy as np
import pytest
import torch

from tests.trajectory.writers import NO_TRIANGLES, ROD_EDGES, frame_with, written
from torchdismech import (
    Circle,
    Control,
    ImplicitEuler,
    Material,
    RobotBuilder,
    Static,
    Trajectory,
    rollout,
    straight,
    unroll,
)
from torchdismech.errors import FailureWarning
from torchdismech.trajectory import Frame, TrajectoryWriter

DT = 1e-2
EULER = ImplicitEuler(DT, max_iterations=1)  # enough for a rod at rest


def rods_of_which_some_fly(*fly: bool):
    """Return rods and their state: those that fly bend so fast that one iteration does not solve a step."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), nodes=5), Circle(2e-3), Material(youngs=1e6, density=1000.0))
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize()
    velocity = torch.zeros(len(fly), model.n_dofs, dtype=torch.float64)
    velocity[torch.tensor(fly), 3:15] = torch.linspace(10, -10, 12, dtype=torch.float64)
    return model, model.initial_state(velocity=velocity)


@pytest.mark.parametrize("schedule", [None, lambda time, model: Control()], ids=["several steps at once", "one by one"])
def test_time_goes_on_where_all_robots_failed(schedule):
    """Give frames the times that they have in a run without failures."""
    model, state = rods_of_which_some_fly(True, True)
    with pytest.warns(FailureWarning):
        run = rollout(model, state, EULER, 7, schedule, every=3)
    assert run.failed.all() and run.step.tolist() == [0, 3, 6, 7]
    # rounding of sums of 7 steps
    torch.testing.assert_close(run.time, DT * run.step.double(), rtol=1e-14, atol=0)
    assert torch.equal(run.positions, run.positions[:1].expand_as(run.positions))
    assert torch.equal(run.state.time, torch.zeros(2, dtype=torch.float64))  # the last good one


def test_time_is_that_of_the_robots_that_run():
    """Give the same times whether a robot fails or not."""
    model, state = rods_of_which_some_fly(True, False)
    with pytest.warns(FailureWarning):
        run = rollout(model, state, EULER, 7, every=3)
    assert run.failed.tolist() == [True, False] and run.state.time[0] == 0
    assert torch.equal(run.time, rollout(model, state.rows([1, 1]), EULER, 7, every=3).time)


def test_equilibria_take_no_time():
    """Let time stand where the integrator has no time step."""
    model, state = rods_of_which_some_fly(False)
    assert rollout(model, state, Static(), 2).time.tolist() == [0, 0, 0]


def test_time_goes_on_in_a_file_that_is_continued(tmp_path):
    """Go on from the time of the last frame where no robot is at that time any more."""
    path = tmp_path / "run.h5"
    first = TrajectoryWriter(path)
    first.start(2, ROD_EDGES, NO_TRIANGLES)
    first.append(frame_with(0))
    first.append(failed(step=10, time=10.0))
    first.close()
    second = TrajectoryWriter(path, resume=Trajectory.load(path))
    second.start(2, ROD_EDGES, NO_TRIANGLES)
    second.append(failed(step=0, time=4.0))  # a run begins at the time of its robots
    second.append(failed(step=5, time=9.0))
    second.close()
    assert Trajectory.load(path).time.tolist() == [0, 10, 15]


def test_time_goes_on_after_a_file_that_was_saved_without_its_last_frame(tmp_path):
    """Go on from the time of the full state, which is later than the last frame."""
    path = tmp_path / "run.h5"
    with written(path, [0, 5, 10]):
        pass
    Trajectory.load(path).frames(slice(2)).save(path)
    second = TrajectoryWriter(path, resume=Trajectory.load(path))
    second.start(2, ROD_EDGES, NO_TRIANGLES)
    second.append(frame_with(0, number=10.0))
    second.append(frame_with(5, number=15.0))
    second.close()
    found = Trajectory.load(path)
    assert found.step.tolist() == [0, 5, 15] and found.time.tolist() == [0, 5, 15]


def test_parts_of_a_batch_have_one_time():
    """Take the latest time: that of a part whose robots all had failed before lags behind."""
    assert float(Frame.joined([failed(step=5, time=9.0), failed(step=5, time=10.0)]).time) == 10


def failed(step: int, time: float) -> Frame:
    """Return a frame at some time, of robots that all stopped at 4 s."""
    return dataclasses.replace(frame_with(step, number=4.0), time=torch.tensor(np.float64(time)))


@pytest.mark.parametrize("options", [{}, {"checkpoint_every": 3}, {"schedule": lambda time, model: Control()}])
def test_unrolled_runs_have_the_times_of_their_states(options):
    """Give the time of each state, in steps of all kinds; a robot that failed stays in its last good state."""
    model, state = rods_of_which_some_fly(False, True)
    state = state.replace(time=torch.tensor([0.5, 0.25], dtype=torch.float64))
    with pytest.warns(FailureWarning):
        run = unroll(model, state, EULER, 40, **options)
    assert run.failed.tolist() == [False, True] and torch.equal(run.time[-1], run.state.time)
    # rounding of sums of 40 steps
    torch.testing.assert_close(run.time[:, 0], 0.5 + DT * torch.arange(41, dtype=torch.float64), rtol=1e-14, atol=0)
    assert (run.time[:, 1] == 0.25).all()
    flying = unroll(model, state.rows([0]), EULER, 40, **options)
    torch.testing.assert_close(flying.time, run.time[:, :1], rtol=1e-14, atol=0)
