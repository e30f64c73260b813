"""Processes that tell what they find line by line, and that can be held, let go and ended from outside."""

import json
import os
import signal
import subprocess
import tempfile
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from benchmarks.jobs import ROOT

LAST = 10.0  # s that a killed process gets to be gone: one that waits for a device may stay
ERRORS = 30_000  # characters of what a process said on stderr that are kept


class Child:
    """A process that writes JSON objects to stdout, one a line; {"ready": true} says that it waits for a line.

    It has a process group of its own: whatever it starts is held, let go and ended with it.
    """

    def __init__(self, command: list[str]):
        self.ready = False
        self._records: SimpleQueue[dict[str, Any]] = SimpleQueue()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115  open as long as the process is of interest
        self._process = subprocess.Popen(
            command,
            cwd=ROOT,
            env={**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"},  # many of these processes compile at a time
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            text=True,
            start_new_session=True,
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("{"):
                with suppress(ValueError):  # what a library prints, or half a line of a process that was ended
                    record = json.loads(line)
                    self.ready |= "ready" in record
                    self._records.put(record)

    @property
    def over(self) -> bool:
        """Whether the process has ended and everything it wrote is read."""
        return self._process.poll() is not None and not self._reader.is_alive()

    def told(self) -> list[dict[str, Any]]:
        """Return what came since the last call, without the word that it is ready."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._records.get_nowait())
        return [record for record in found if "ready" not in record]

    def hold(self) -> None:
        """Let it stand still until `go`."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """Let it go on, and measure as soon as it is ready."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        if not self.over:
            with suppress(BrokenPipeError):  # it has just ended
                self._process.stdin.write("go\n")
                self._process.stdin.flush()

    def end(self) -> int | None:
        """End it and what it started; return its exit status, None where it cannot be ended."""
        with suppress(subprocess.TimeoutExpired):
            self._signal(signal.SIGKILL)
            self._process.wait(LAST)
            self._reader.join(LAST)
        return self._process.returncode

    def errors(self) -> str:
        """Return the end of what it said on stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - ERRORS))
        return self._stderr.read().decode(errors="replace")

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
