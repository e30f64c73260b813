"""The check for machines with a GPU, tried on a CPU: parts that work, fail and hang, what is reported of them."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
import torch

from benchmarks import gpu, gpu_parts, gpu_report, gpu_tests
from benchmarks.table import Row

ROOT = Path(__file__).resolve().parents[2]


def check(out, *words):
    """Run the check on a CPU and return what it wrote for programs and for people."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--device", "cpu", "--tiny", "--out", str(out), *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(path.name for path in out.iterdir()) == ["errors.txt", "gpu.json", "gpu.md", "tests.txt"]
    return json.loads((out / "gpu.json").read_text()), (out / "gpu.md").read_text()


def test_parts_are_measured_and_reported(tmp_path):
    """Measure a few rods and the device; find residuals, converged rows and a profile beside the speed."""
    found, report = check(tmp_path, "device", "rods, 25")
    assert [(part["name"], part["ended"]) for part in found["parts"]] == [
        ("device", "done"),
        ("rods, 25 nodes, B = 2, with backward", "done"),
    ]
    (row,) = (Row(**row) for row in found["rows"])
    assert (row.case, row.who, row.converged) == ("rod, 25 nodes", "eager, with backward", 2)
    assert row.residual is not None and row.residual <= 1e-6  # what steps are solved to
    assert row.seconds > 0
    assert {figure["kind"] for figure in found["figures"]} == {"device", "first", "profile"}
    assert "| rod, 25 nodes, with backward | 65536 | 5,000,000 | 10,000,000 | not measured |" in report
    assert "0 failures" in report


@pytest.mark.slow
def test_everything_runs(tmp_path):
    """Run all parts."""
    found, report = check(tmp_path)
    assert {part["ended"] for part in found["parts"]} == {"done"}
    assert len(found["parts"]) == len(gpu.parts(tiny=True))
    assert "plate, hinges" in report and "a learned force" in report


def test_without_a_device_nothing_is_measured(monkeypatch, capsys, tmp_path):
    """Say so in a sentence and return 2; say what a CPU is for."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for options, words in (([], "no CUDA device here"), (["--device", "cpu"], "add --tiny")):
        monkeypatch.setattr(sys, "argv", ["gpu", "--out", str(tmp_path / "out"), *options])
        assert gpu.main() == 2
        said = capsys.readouterr().err
        assert said.startswith("error: ") and words in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


READY = "print('{\"ready\": true}', flush=True); input();"
SCRIPTS = {
    "hangs": "import os, subprocess, time; started = subprocess.Popen(['sleep', '600']);"
    "open(os.environ['PID_FILE'], 'w').write(str(started.pid)); time.sleep(600)",
    "fails": f"{READY} print('{{\"note\": \"so far\"}}', flush=True); raise SystemExit('no more')",
    "hangs when it measures": f'{READY} print(\'{{"note": "begun"}}\', flush=True); import time; time.sleep(600)',
    "works": f'print("{{odd}}"); {READY} print(\'{{"note": "all is well"}}\')',
}


def test_parts_that_fail_or_hang_keep_nobody(monkeypatch, tmp_path):
    """Report every part; end what hangs, and what it started; begin none for which no time is left."""
    monkeypatch.setattr(gpu, "command", lambda part, options: [sys.executable, "-c", SCRIPTS[part.name]])
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setenv("PID_FILE", str(tmp_path / "pid"))
    began = time.monotonic()
    parts = [gpu.Part(name, gpu_parts.device_part, 1.5) for name in SCRIPTS]
    found = {part.name: part for part in gpu.measured(parts, [], (gpu.WRITING + 14.0) / 60, tmp_path)}
    assert time.monotonic() - began < 60  # far below the 600 s that the hanging ones would take
    assert found["works"].ended == "done" and found["works"].records == [{"note": "all is well"}]
    assert found["fails"].ended == "failed: ended with 1" and found["fails"].records == [{"note": "so far"}]
    assert "no more" in found["fails"].errors and "no more" in (tmp_path / "errors.txt").read_text()
    assert found["hangs when it measures"].ended.startswith("failed: not done within")
    assert found["hangs when it measures"].records == [{"note": "begun"}]
    assert found["hangs"].ended.startswith("failed: not done within")
    grandchild = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{grandchild}/stat")
    assert not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z"
    assert [part["name"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]] == list(SCRIPTS)
    assert gpu.measured(parts[3:], [], 0.0, tmp_path)[0].ended == "not begun: no time was left"


def test_work_of_a_device_is_summed_once():
    """Count launches, work that overlaps once, and the gaps between."""

    def event(category, name, start, duration):
        return {"ph": "X", "cat": category, "name": name, "ts": start, "dur": duration}

    found = gpu_parts.on_device(
        [
            event("cpu_op", "aten::mul", 0.0, 500.0),
            event("kernel", "b", 130.0, 10.0),
            event("kernel", "a", 100.0, 20.0),
            event("gpu_memcpy", "c", 110.0, 15.0),  # until 125, beside a
            event("kernel", "b", 200.0, 30.0),
        ]
    )
    assert found["launches"] == 4
    assert math.isclose(found["busy_ms"], 0.065)
    assert math.isclose(found["gaps_ms"], 0.065) and math.isclose(found["longest_gap_ms"], 0.06)
    assert [(k["name"], k["count"]) for k in found["longest"]] == [("b", 2), ("a", 1), ("c", 1)]


def test_only_honest_rows_meet_a_bar():
    """Take the fastest row of those that converged, to the residual that the bar is for."""

    def row(rate, who="recorded", converged=8192, residual=1e-7):
        return Row("rod, 101 nodes", 8192, who, 1e-2, 1 / rate, residual=residual, converged=converged)

    bar = gpu_report.BARS[0]
    rows = [
        row(9e6, converged=8191),
        row(8e6, residual=1e-3),
        row(7e6, "recorded, with backward"),
        row(1.2e6),
        row(1e5),
    ]
    assert bar.found(rows) == rows[3]
    assert bar.found(rows[:3]) is None
    assert "| 1,200,000 | recorded | met 5 M in one fused kernel |" in "\n".join(gpu_report.bars(rows))
    assert "MISSED" in "\n".join(gpu_report.bars(rows[4:]))
    part = gpu.Found("rods", [{"row": asdict(r)} for r in rows], "done")
    assert gpu_report.failures(part) == ["rod, 101 nodes, B = 8192, recorded: 8191 rows converged"]


def test_guesses_are_named_beside_what_was_found():
    """Compare an evaluation of many robots with one, blocks with buckets, and fronts with the kernel."""
    eager = {"kind": "eager", "case": "rod", "call_on_a_core_s": 1e-3, "robot_on_a_core_s": 2e-4}
    figures = [
        {**eager, "batch": 1, "evaluation_s": 0.02},
        {**eager, "batch": 1000, "evaluation_s": 0.03},
        {"kind": "sizes", "case": "factor: f", "n": 300, "blocks": 10},
        {"kind": "sizes", "case": "factor: f", "n": 300, "buckets": 5},
    ]
    times = {"blocks": 1e-3, "multifrontal": 2e-3, "triton": 5e-4}
    rows = [Row("factor: f", 1, who, seconds=seconds) for who, seconds in times.items()]
    said = "\n".join(gpu_report.guesses(rows, figures))
    assert "B = 1000: 0.05 (" in said  # 10 ms for 1000 robots, of 200 ms on a core
    assert "B = 1: 4 (10 blocks of 100 us, 5 buckets of 400 us)" in said
    assert "(300 unknowns), B = 1: 4" in said
    assert all(name in said for name in ("GPU_SHARE = ", "BLOCK_LAUNCHES = ", "LONG_BAND = ", "FEW_ROBOTS"))


def test_files_that_need_what_is_missing_are_left_out(monkeypatch, tmp_path):
    """Name the package; find the files that have tests for a GPU."""
    (tmp_path / "odd_test_file.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(gpu_tests, "ROOT", tmp_path)
    assert gpu_tests.not_installed(tmp_path / "odd_test_file.py") == "no_such_package"
    monkeypatch.setattr(gpu_tests, "ROOT", ROOT)
    names = {path.name for path in gpu_tests.marked()}
    assert {gpu_tests.LONG, "test_triton.py", "test_device.py"} <= names


def test_what_is_measured_has_a_name_each():
    """Name every part once."""
    for tiny in (True, False):
        names = [part.name for part in gpu.parts(tiny)]
        assert len(names) == len(set(names)) > 8


def test_parts_that_prepare_beside_each_other_fit_into_the_device():
    """Leave for later what the device has no room for; what is important comes first."""
    wanted = [gpu.Part(str(k), lambda look: iter(()), 1.0, memory=size) for k, size in enumerate((30.0, 60.0, 20.0))]
    assert [part.name for part in gpu.within(wanted, 85.0)] == ["0", "2"]
    card = 80e9
    held = sum(part.memory for part in gpu.within([p for p in gpu.parts(tiny=False) if p.early], gpu.ROOM * card))
    assert 0.5 * gpu.ROOM * card < held <= gpu.ROOM * card
