"""The table of the benchmarks, from runs of a few steps."""

import json
import math
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from benchmarks import (
    accuracy,
    calls,
    closed_loop,
    cosserat,
    jobs,
    machine,
    peer_swimmer,
    peers,
    profile,
    rods,
    shards,
    table,
)


def test_a_job_in_a_process_of_its_own_becomes_a_row_of_the_table():
    """Measure two rods for three steps; find them in the table beside a peer, solved, converged and right."""
    job = rods.job(1e6, 2, "eager", duration=0.03)
    (row,) = jobs.run(job)
    assert row.note.endswith("iterations, banded")
    assert (row.case, row.batch, row.converged) == (job.case, 2, 2)
    assert row.residual is not None and row.residual <= rods.RELATIVE_TOLERANCE
    assert row.error is not None and row.error < 1e-6  # m; three steps to 1e-6 of the force scale move 1e-9 m or so
    assert row.seconds > 0 and row.peak_mb is not None and row.peak_mb > 50  # MB: torch alone takes more
    peer = table.Row(row.case, 1, "a peer", dt=row.dt, seconds=2 * row.seconds, peer=True)
    assert table.ratio(row, [peer, row]) == pytest.approx(2.0)
    lines = table.text([peer, row]).splitlines()
    assert len(lines) == 4 and len({len(line) for line in lines}) == 1, "aligned: all lines are as long"
    assert "2/2" in lines[3] and "eager, cpu" in lines[3]
    assert table.Row(**json.loads(json.dumps(asdict(row)))) == row


def test_the_loop_round_a_numpy_rod_is_ours(monkeypatch):
    """Close the same loop round the peer's rod for three steps: its nodes are where ours are."""
    monkeypatch.setattr(closed_loop, "REPEATS", 1)
    monkeypatch.setattr(closed_loop, "NODES", 21)
    row = closed_loop.numpy_row(3)
    # steps are solved to 1e-9 N, of forces of 1e-3 N, and move by 1e-4 m; measured: 7e-11 m after 20 steps
    assert row.error is not None and row.error < 1e-9


def test_the_loop_round_a_cosserat_rod_is_near(monkeypatch):
    """Close the same loop round PyElastica's rod, whose curvature has the same sign: it follows as ours does."""
    pytest.importorskip("elastica")
    monkeypatch.setattr(closed_loop, "NODES", 21)
    strains, table = closed_loop.reference(10)
    ours = closed_loop.ours_after(strains, table, 10, *peer_swimmer.PYELASTICA_GAINS)
    found = closed_loop.pyelastica_run(table, 10, step=1e-5).nodes
    moved = ours - np.stack([np.linspace(0, 0.1, 21), np.zeros(21)], axis=1)
    # its rod is not damped and swings about ours while the wave grows; measured: 12 % of the displacement
    assert abs(found - ours).max() < 0.2 * abs(moved).max()


@pytest.mark.parametrize(
    ("kind", "youngs", "duration"), [("cantilever", 1e6, 0.1), ("helix", 1e7, 0.1), ("snake", 1e6, 0.5)]
)
def test_both_simulators_move_the_rods_of_the_comparison_alike(kind, youngs, duration):
    """Move a rod by both for a while: its nodes are where the other's are."""
    pytest.importorskip("elastica")
    rod = replace(cosserat.rod_of(kind, youngs), duration=duration)
    peer = cosserat.peer_track(rod, int(np.ceil(2 * cosserat.SAMPLE / rod.crossing)))
    ours = cosserat.course(rod, cosserat.model_of(rod, 1), 1, cosserat.Way("midpoint", 16, 1e-6))
    assert ours.converged == 1 and ours.track.shape == peer.shape
    # shear, rotary inertia and how curvature is measured; measured: 0.8 %, 0.7 % and 0.3 % of the displacement
    assert cosserat.error(rod, ours.track, peer) < 0.01
    assert cosserat.displacement(rod, peer) > 5e-3


@pytest.mark.parametrize(("kind", "youngs"), [("helix", 1e7), ("snake", 1e6)])
def test_single_precision_moves_the_rods_of_the_comparison_alike(kind, youngs):
    """Take the same steps in single precision: all converge, and lead to the same places."""
    rod = replace(cosserat.rod_of(kind, youngs), duration=0.2)
    model = cosserat.model_of(rod, 4)
    way = cosserat.Way("newmark", 4, 1e-6)
    double = cosserat.course(rod, model, 4, way)
    single = cosserat.course(rod, model.to(torch.float32), 4, way)
    assert single.track.dtype == np.float32 and single.converged == 4
    # a thirtieth of the bound to which steps in time are held; measured of one robot: 7e-6 and 1.2e-4
    assert cosserat.error(rod, single.track, double.track) < cosserat.BOUND / 30


def test_the_fewest_steps_within_the_bound_are_taken(monkeypatch):
    """Find a number of steps that is within the bound for all robots where the next coarser one is not."""
    monkeypatch.setattr(cosserat, "INTEGRATORS", {"midpoint": cosserat.ImplicitMidpoint})
    monkeypatch.setattr(cosserat, "TOLERANCES", (1e-6,))
    rod = replace(cosserat.rod_of("cantilever", 1e6), duration=0.2)
    models = {batch: cosserat.model_of(rod, batch) for batch in (1, 3)}
    fine = cosserat.course(rod, models[3], 3, cosserat.Way("midpoint", 64, 1e-6)).track
    way, *_ = cosserat.right_ways(rod, models, fine)
    coarser = way._replace(steps=cosserat.LADDER[cosserat.LADDER.index(way.steps) - 1])
    for steps, right in ((way, True), (coarser, False)):
        assert cosserat.is_right(rod, models, steps, fine) == right
        found = cosserat.course(rod, models[3], 3, steps).track
        apart = [np.linalg.norm(found[:, k] - fine[:, k], axis=-1).max() for k in range(3)]
        far = [np.linalg.norm(fine[:, k] - rod.nodes, axis=-1).max() for k in range(3)]
        assert cosserat.error(rod, found, fine) == pytest.approx(max(a / f for a, f in zip(apart, far, strict=True)))


def test_what_blew_up_is_never_right():
    """Call a track that is not finite infinitely wrong."""
    rod = cosserat.rod_of("cantilever", 1e6)
    fine = rod.nodes[None, None] + np.ones((2, 1, 101, 3))
    assert cosserat.error(rod, np.full_like(fine, np.nan), fine) == math.inf


def test_a_run_in_one_call_leads_where_the_compared_nodes_are(monkeypatch):
    """Time the steps whose error is seen: taken at once, and up to each time of comparison, they have the same bits."""
    rod = replace(cosserat.rod_of("snake", 1e6), duration=0.1)
    model, way, ends = cosserat.model_of(rod, 1), cosserat.Way("newmark", 8, 1e-3), []
    expected = cosserat.course(rod, model, 1, way).track[-1]
    steps = cosserat.INTEGRATORS["newmark"].steps
    monkeypatch.setattr(cosserat.INTEGRATORS["newmark"], "steps", lambda *given: ends.append(steps(*given)) or ends[-1])
    assert cosserat.seconds(rod, model, 1, way) > 0
    assert len(ends) == 3 and all(np.array_equal(state.positions.numpy(), expected) for state, _ in ends)


def test_a_peer_that_is_not_there_has_a_row_that_says_why(monkeypatch, tmp_path):
    """Name what is missing and what to do; never leave the peer out."""
    monkeypatch.setattr(accuracy, "PEER_PYTHON", tmp_path / ".venv-peers" / "bin" / "python")
    with pytest.raises(peers.NotInstalled, match=r"no \.venv-peers; `make peers` makes it"):
        accuracy.run_peer({})
    absent = "Traceback\nModuleNotFoundError: No module named 'elastica'\n"
    assert jobs.why(absent, 1, peer=True) == "not installed: No module named 'elastica'"
    assert jobs.why(absent, 1, peer=False).startswith("failed: ")
    assert jobs.why("benchmarks.peers.NotInstalled: x: no .venv", 1, peer=True) == "not installed: x: no .venv"
    assert jobs.why("ValueError: no", 1, peer=True) == "failed: ValueError: no"
    assert jobs.why("", -9, peer=False) == "failed: ended with -9"
    missing = table.Row("a rod", 4, "a peer", peer=True, note="not installed: x")
    measured = table.Row("a rod", 4, "eager", dt=1e-2, seconds=1e-3)
    assert table.ratio(measured, [missing, measured]) is None
    assert "not installed: x" in table.text([missing, measured])


def test_what_is_measured_is_named_once():
    """List what a short and a long look measure; every name is there once, those with a GPU, too."""
    for quick in (True, False):
        labels = [job.label for module in (peers, rods, cosserat, accuracy) for job in module.jobs(quick, cuda=True)]
        assert len(labels) == len(set(labels)) > 3


def test_a_sweep_gives_the_cheapest_that_is_right_enough():
    """Take the cheapest of those that are right, and none where none is."""
    points = [accuracy.Point("a", f"{k}", seconds, error) for k, (seconds, error) in enumerate([(1, 1e-4), (2, 1e-6)])]
    sweep = accuracy.Sweep(11, 1, points, 0.0, 0.0, 0.0)
    assert sweep.cheapest(1e-5) is points[1]
    assert sweep.cheapest(1e-3) is points[0]
    assert sweep.cheapest(1e-7) is None


def test_without_git_the_commit_is_unknown(monkeypatch, tmp_path):
    """Say "unknown" rather than fail where there is no git."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert machine.commit() == "unknown"


def test_a_trace_is_summed_by_the_rooms_that_called():
    """Count operations for the nearest room of the library, each moment once, and nothing of plain Python."""

    def event(category, name, start, duration):
        return {"ph": "X", "cat": category, "name": name, "tid": 1, "ts": start, "dur": duration}

    times, calls = profile.grouped(
        [
            event("python_function", "torchdismech/integrate/step.py(1): step", 0.0, 100.0),
            event("python_function", "torchdismech/elastic/assembly.py(1): force", 10.0, 30.0),
            event("cpu_op", "aten::mul", 11.0, 4.0),
            event("cpu_op", "aten::empty", 12.0, 1.0),  # within the product: no call of its own
            event("python_function", "torchdismech/native/compiled.py(1): in_threads", 20.0, 5.0),
            event("python_function", "torchdismech/solve/linear/band.py(1): solve", 50.0, 20.0),
            event("python_function", "torchdismech/native/compiled.py(1): in_threads", 51.0, 10.0),
            event("python_function", "torchdismech/native/taping.py(1): taped", 52.0, 8.0),  # which makes the call
            event("cpu_op", "a mark of the compiler", 60.0, 9.0),
            event("cpu_op", "aten::add", 80.0, 2.0),
        ]
    )
    stencils, factor, rest = (profile.GROUPS[key] for key in ("elastic/", "solve/linear/", ""))
    assert times == {stencils: 9.0, factor: 10.0, rest: 2.0}
    assert calls == 4


def test_two_processes_in_the_time_of_one_are_half_as_efficient():
    """Divide the time of one process by that of all of them together."""
    runs = {count: [{"wall": 2.0, "cpu": cpu}] for count, cpu in ((1, 2.0), (2, 1.0))}
    last = shards.text(runs, batch=1).splitlines()[-1]
    assert last == f"| 2 | {1e6 * 2.0 / shards.STEPS:.0f} us ({1e5:.0f}, {1e5:.0f}) | 50% | 100% | 50% |"
    assert math.isclose(1e6 * 2.0 / shards.STEPS, 1e5)


def test_calls_of_a_step_are_counted():
    """Count the calls of a step and of its core, in which there are fewer, less deep."""
    (whole, info), core = calls.traced_step(calls.BEFORE), calls.traced_core()
    assert info.iterations.tolist() == [3] * calls.ROBOTS and bool((info.status == 0).all())
    assert all(0 < inner < outer for inner, outer in zip(core.row(), whole.row(), strict=True))
    assert any(file.endswith("integrate/chunks.py") for file in whole.files - core.files)
