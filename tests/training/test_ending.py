"""How the command ends: by signals, by refused input, by a disk that fills."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.training.test_resuming import config
from training.config import load
from training.fitting import fit
from training.optimization import checkpoint

ROOT = Path(__file__).parents[2]


def started(folder: Path, *arguments: str, size: int | None = None) -> subprocess.Popen:
    """Start a fit that would take long, whose files may have so many bytes."""
    path = folder / "fit.json"
    if not path.exists():
        tables = json.loads(config(folder).model_dump_json())
        tables["stages"][0] |= {"iterations": 1_000_000, "patience": 1_000_000}
        path.write_text(json.dumps(tables))

    def limited() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells ignore it for what runs in the background
        if size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    return subprocess.Popen(
        [sys.executable, "-m", "training.fit", *(arguments or (str(path), "--out", str(folder / "run")))],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=limited,
    )


def ended(process: subprocess.Popen) -> tuple[int, str]:
    """Return exit status and last line of a process that has been told to end; find no traceback."""
    _, said = process.communicate(timeout=120)
    assert "Traceback" not in said, said
    return process.returncode, said.strip().splitlines()[-1] if said.strip() else ""


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_signal_ends_a_fit_that_can_go_on(tmp_path, number, status):
    """Say what is kept and how to go on, and keep it."""
    process = started(tmp_path)
    while not (tmp_path / "run" / "best.safetensors").exists() and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(number)
    code, line = ended(process)
    kept = checkpoint.load(tmp_path / "run", "last")[1]["progress"]["total"]
    assert code == status
    assert f"keeps {kept} batches; go on with python -m training.fit --out {tmp_path / 'run'} --resume" in line
    fit(load(tmp_path / "run" / "config.json"), tmp_path / "run", resume=True, until=kept + 1)
    assert checkpoint.load(tmp_path / "run", "last")[1]["progress"]["total"] == kept + 1
    assert not list((tmp_path / "run").glob(".*"))  # nothing half written


@pytest.mark.parametrize("number", [pytest.param(signal.SIGTERM, marks=pytest.mark.slow), signal.SIGINT])
def test_signal_at_the_start_ends_in_one_sentence(tmp_path, number):
    """Send it while torch is imported: nothing was written."""
    process = started(tmp_path)
    maps = Path(f"/proc/{process.pid}/maps")
    if not maps.exists():
        pytest.skip("nothing here tells what a process has loaded")
    while process.poll() is None and "libtorch" not in maps.read_text():
        time.sleep(0.01)
    process.send_signal(number)
    code, line = ended(process)
    assert code == 128 + number
    assert line.endswith(": nothing was written")


@pytest.mark.parametrize(
    ("size", "what"),
    [
        pytest.param(600, "config.json", marks=pytest.mark.slow),
        pytest.param(5000, "last.safetensors", marks=pytest.mark.slow),
        (15_000, "events.out.tfevents"),
    ],
)
def test_disk_that_fills_ends_a_fit_in_one_sentence(tmp_path, size, what):
    """Limit the size of files, which fails as a full disk does: exit status 2, nothing half written."""
    code, line = ended(started(tmp_path, size=size))
    assert code == 2
    assert line.startswith("error: ") and what in line and "cannot be written: File too large" in line
    assert not list((tmp_path / "run").glob(".*"))


def test_refused_input_is_one_sentence(tmp_path):
    """End with exit status 2."""
    (tmp_path / "odd.toml").write_text('name = "a"\nrobot = 3\n')
    code, line = ended(started(tmp_path, str(tmp_path / "odd.toml")))
    assert code == 2
    assert line.startswith(f"error: {tmp_path / 'odd.toml'}: data: missing; robot: expected a table")
