"""A real browser without a window, driven over its debugging port."""

from __future__ import annotations

import base64
import io
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["Browser", "chromium"]

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
# WebGL by the processor; no sandbox, as in containers, where there is nobody to separate
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--use-angle=swiftshader",
    "--enable-unsafe-swiftshader",
    "--remote-debugging-port=0",
    "--window-size=1000,600",
    "--no-first-run",
)


def chromium() -> str | None:
    """Return the program, if there is one."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """A browser that shows one page.

    Parameters
    ----------
    program : see `chromium`.
    folder : for its profile.
    address : of the page.
    """

    def __init__(self, program: str, folder: Path, address: str):
        from websockets.sync.client import connect

        arguments = [program, *OPTIONS, f"--user-data-dir={folder}", address]
        self._process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self._count = 0
        try:
            port = self._port(folder / "DevToolsActivePort")
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=30) as answer:
                pages = [target for target in json.load(answer) if target["type"] == "page"]
            self._socket = connect(pages[0]["webSocketDebuggerUrl"], max_size=None, open_timeout=60)
        except BaseException:
            self._process.kill()
            raise

    def _port(self, file: Path) -> int:
        end = time.monotonic() + 60
        while not (file.is_file() and file.read_text().strip()):
            if time.monotonic() > end or self._process.poll() is not None:
                raise TimeoutError(f"the browser did not start (exit status {self._process.poll()})")
            time.sleep(0.1)
        return int(file.read_text().splitlines()[0])

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return what the browser answers to a command of its debugging protocol."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            answer = json.loads(self._socket.recv(timeout=120))
            if answer.get("id") == self._count:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def evaluate(self, script: str) -> Any:
        """Return the value of a script in the page."""
        return self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def screenshot(self) -> np.ndarray:
        """Return what is seen, (height, width, 3) uint8."""
        from PIL import Image

        content = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))

    def close(self) -> None:
        """End the browser."""
        self._socket.close()
        self._process.terminate()
        self._process.wait(timeout=30)
