"""How the threads of torch's operations wait: soon asleep, unless the user has chosen otherwise."""

import ctypes
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torchdismech.system import threads

ROOT = Path(__file__).resolve().parents[2]
# what GNU's and LLVM's OpenMP say when asked how long they spin
PASSIVE = rf"GOMP_SPINCOUNT = '{threads.FEW}'|KMP_BLOCKTIME='0"
SPINNING = r"GOMP_SPINCOUNT = '[1-9]\d{6,}'|KMP_BLOCKTIME='[1-9]"


def openmp_of(*command: str, **chosen: str) -> str:
    """Return what OpenMP says of its settings as torch loads it in a process of its own."""
    environment = {name: value for name, value in os.environ.items() if name not in threads.CHOSEN_BY}
    environment |= {"OMP_DISPLAY_ENV": "VERBOSE", "PYTHONPATH": str(ROOT), **chosen}
    done = subprocess.run([sys.executable, *command], env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    if not re.search(f"{PASSIVE}|{SPINNING}", done.stderr):
        pytest.skip("this torch's OpenMP does not say how it waits")
    return done.stderr


COMMANDS = {
    "command line": ("-m", "torchdismech", "--version"),
    "console script": ("-c", "from torchdismech.cli import app; import torch"),
    "library": ("-c", "import torchdismech; import torch"),
    "fit": ("-c", "import training.fit; import torch"),
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_threads_soon_sleep(command):
    """Tell OpenMP before torch loads it, whichever way the package is started."""
    assert re.search(PASSIVE, openmp_of(*command))


def test_a_users_own_setting_wins():
    """Leave what the environment says."""
    assert re.search(SPINNING, openmp_of("-c", "import torchdismech; import torch", OMP_WAIT_POLICY="ACTIVE"))


@pytest.fixture
def nothing_chosen(monkeypatch):
    """An environment that says nothing of how threads wait, put back afterwards."""
    for name in threads.CHOSEN_BY:
        monkeypatch.setenv(name, "")  # so that what is set in the test is taken back, too
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("nothing_chosen")
class TestTorchIsLoaded:
    """The package is imported after torch."""

    @pytest.mark.parametrize(
        ("count", "busy", "warned"), [(2, 0.3, False), (2, 2.2, True), (1, 9.0, False)], ids=["idle", "busy", "one"]
    )
    def test_gnu(self, monkeypatch, count, busy, warned):
        """Warn where GNU's OpenMP cannot be told any more and other work would take the core of a thread."""
        monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace())
        monkeypatch.setattr(torch, "get_num_threads", lambda: count)
        monkeypatch.setattr(os, "cpu_count", lambda: 2)
        monkeypatch.setattr(os, "getloadavg", lambda: (busy, busy, busy))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            threads.sleep_while_waiting()
        assert [str(w.message).partition(":")[0] for w in said] == warned * [
            "torch was imported before torchdismech, so its 2 threads spin while they wait for each other, and other "
            "work keeps 2.2 of 2 cores busy"
        ]
        assert threads.POLICY not in os.environ  # it would say what is not so

    def test_llvm(self, monkeypatch):
        """Tell LLVM's and Intel's OpenMP to sleep at once."""
        told = []
        monkeypatch.setattr(ctypes, "CDLL", lambda name: SimpleNamespace(kmp_set_blocktime=told.append))
        threads.sleep_while_waiting()
        assert told == [0]

    @pytest.mark.parametrize("name", threads.CHOSEN_BY)
    def test_chosen(self, monkeypatch, name):
        """Neither tell nor warn where the user has chosen."""
        monkeypatch.setenv(name, "1")
        monkeypatch.setattr(ctypes, "CDLL", None)
        threads.sleep_while_waiting()
