"""References over time."""

import pytest
import torch

from tests.control.robots import rod
from torchdismech import Circle, ImplicitEuler, InputError, Material, RobotBuilder, rollout, straight
from torchdismech.control import PI, Strains, Table
from torchdismech.runs.rollout import frames


def test_tables_are_linear_in_between():
    """Look up a table of two robots at its times, between them, and held beyond them."""
    times = torch.tensor([0.0, 1.0, 3.0], dtype=torch.float64)
    values = torch.randn(3, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    table = Table(times, values, beyond="hold")
    assert torch.equal(table(times[1].expand(2)), values[1])
    found = table(torch.tensor([0.25, 2.5], dtype=torch.float64))
    torch.testing.assert_close(found[0], 0.75 * values[0, 0] + 0.25 * values[1, 0])
    torch.testing.assert_close(found[1], 0.25 * values[1, 1] + 0.75 * values[2, 1])
    assert torch.equal(table(torch.tensor([-1.0, 9.0], dtype=torch.float64)), torch.stack([values[0, 0], values[2, 1]]))
    shared = Table(times, values[:, 0])
    torch.testing.assert_close(shared(torch.tensor([0.5], dtype=torch.float64))[0], 0.5 * (values[0, 0] + values[1, 0]))
    assert torch.equal(Table(times[:1], values[:1])(times[:2]), values[0])


@pytest.mark.parametrize("count", [-2, 0, 2.5, True])
def test_rows_are_left_out_by_whole_numbers(count):
    """Refuse to take every -2nd row, which gave the last one alone, and what is no whole number."""
    values = torch.zeros(9, 2, dtype=torch.float64)
    with pytest.raises(InputError, match=f"Table.every: count: expected a whole number from 1 up, got {count}"):
        Table(torch.arange(9.0), values).every(count)
    assert Table(torch.arange(9.0), values).every(3).times.tolist() == [0, 3, 6, 8]


def test_runs_become_references():
    """Record a run: the strains of its frames at their times; a coarser table keeps the last."""
    model = rod(7)
    strains = Strains(model)
    run = list(frames(model, model.initial_state(), ImplicitEuler(0.01), 5))
    table = Table.recorded(run, strains, model)
    assert torch.equal(table(run[3].state.time), strains.measured(run[3].state, model))
    assert table.every(4).times.tolist() == [0.0, table.times[4].item(), table.times[5].item()]
    for frames_given, got in ((iter(()), "got none"), ([frame.time for frame in run], "got NoneType")):
        with pytest.raises(InputError, match=f"Table.recorded: .* {got}"):
            Table.recorded(frames_given, strains, model)


@pytest.mark.parametrize("times", [torch.tensor([0.0, 1.0], dtype=torch.float64), torch.tensor([0, 1]), [0.0, 1.0]])
def test_times_are_of_any_dtype(times):
    """Follow a table whose times are in another precision than the model, to the end of what it knows."""
    builder = RobotBuilder()
    builder.add_rod(straight((0, 0, 0), (0.1, 0, 0), 4), Circle(5e-3), Material(1e6, 1000.0))
    builder.clamp(nodes=[0], direction="rest")
    model = builder.finalize(compile=False, dtype=torch.float32)
    strains = Strains(model, ["curvature"])
    table = Table(times, torch.stack([torch.zeros(len(strains)), torch.full((len(strains),), 0.01)]))
    half = table(torch.tensor([0.5, 0.25]))
    assert half.dtype == torch.float32
    # 1e-8: rounding of 0.01 in single precision
    torch.testing.assert_close(half[:, 0], torch.tensor([0.005, 0.0025]), rtol=0, atol=1e-8)
    controller = PI(model, strains, table, dt=0.1)
    run = rollout(model, model.initial_state(), ImplicitEuler(0.1), 10, controller=controller, throw=True)
    assert run.positions.isfinite().all()
