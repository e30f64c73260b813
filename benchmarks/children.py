"""Child processes of `benchmarks.gpu`, which write JSON records and can be stopped, continued and killed."""

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

LAST = 10.0  # s to wait for a killed process to end: one that waits for a device may stay
ERRORS = 30_000  # bytes at the end of a process's stderr that are kept


class Child:
    """A process that writes records to stdout, a JSON object a line; after {"ready": true} it waits for a line.

    It has a process group of its own, so that whatever it starts is stopped, continued and killed with it.
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
                with suppress(ValueError):  # no JSON: a library's output, or half a line of a process that was killed
                    record = json.loads(line)
                    self.ready |= "ready" in record
                    self._records.put(record)

    @property
    def over(self) -> bool:
        """Whether the process has ended and everything it wrote is read."""
        return self._process.poll() is not None and not self._reader.is_alive()

    def told(self) -> list[dict[str, Any]]:
        """Return the records that came since the last call, without that of being ready."""
        found = []
        with suppress(Empty):
            while True:
                found.append(self._records.get_nowait())
        return [record for record in found if "ready" not in record]

    def hold(self) -> None:
        """Stop the process until `go`."""
        self._signal(signal.SIGSTOP)

    def go(self) -> None:
        """Continue the process, and let it measure as soon as it is ready."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        if not self.over:
            with suppress(BrokenPipeError):  # it has just ended
                self._process.stdin.write("go\n")
                self._process.stdin.flush()

    def end(self) -> int | None:
        """Kill the process and what it started; return its exit status, None where it does not end."""
        with suppress(subprocess.TimeoutExpired):
            self._signal(signal.SIGKILL)
            self._process.wait(LAST)
            self._reader.join(LAST)
        return self._process.returncode

    def errors(self) -> str:
        """Return the end of the process's stderr."""
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - ERRORS))
        return self._stderr.read().decode(errors="replace")

    def _signal(self, number: int) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
