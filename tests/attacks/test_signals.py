"""Signals end commands with one sentence and the right exit status, and leave files that are whole; see signals.py."""

import signal
import subprocess
import sys

import pytest

from tests.attacks.signals import ATTACKS, ROOT, SCENE, SIGNALS, fault, simulate, stopped, tried


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_before_torch_is_imported_ends_at_once(tmp_path, number):
    """Send a signal as soon as the program runs: it says so in one sentence, and no import is in its way."""
    (tmp_path / "scene.toml").write_text(SCENE)
    status, said = stopped(tmp_path, simulate("run.h5"), number, 0.0)
    assert fault(tmp_path, number, status, said) is None
    assert said.endswith(": nothing was written\n") and not (tmp_path / "run.h5").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_in_the_midst_of_imports_ends_at_once(tmp_path, number):
    """Send it some tenths of a second later, while torch is imported."""
    (tmp_path / "scene.toml").write_text(SCENE)
    status, said = stopped(tmp_path, simulate("run.h5"), number, 0.4)
    assert fault(tmp_path, number, status, said) is None


@pytest.mark.parametrize("number", SIGNALS)
def test_signal_after_all_is_done_changes_nothing(number):
    """Send a signal when the command has ended, in the second that Python takes to do so: its exit status stays."""
    program = f"""
import atexit, os
from torchdismech.__main__ import main
atexit.register(lambda: os.kill(os.getpid(), {int(number)}))
main()
"""
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and done.stderr == "" and "simulate" in done.stdout


@pytest.mark.slow
def test_signals_at_all_moments_leave_whole_files(tmp_path):
    """Stop simulations, resumed ones and plots at 20 moments each: resumed runs are those that nothing stopped."""
    found = {(name, number): outcomes for name, number, outcomes in tried(tmp_path, 20)}
    assert set(found) == {(name, number) for name in ATTACKS for number in (signal.SIGINT, signal.SIGTERM)}
    for outcomes in found.values():
        assert set(outcomes) <= {"good", "late"}, found
        # of 20: some come after all is done, more of them where the machine was busier when the command was timed
        assert outcomes["good"] >= 5, found
