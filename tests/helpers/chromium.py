"""A headless Chromium that tests drive by its debugging protocol."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import connect

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def find_chromium() -> str | None:
    """Return the path of a browser, None if there is none; CHROMIUM names another."""
    found = (os.environ.get("CHROMIUM"), *map(shutil.which, NAMES))
    return next((path for path in found if path), None)


class Page:
    """A tab of the browser."""

    def __init__(self, socket: Any):
        self._socket, self._numbers = socket, itertools.count()
        self.errors: list[str] = []
        for name in ("Page", "Runtime", "Log"):
            self.call(f"{name}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=30))
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message)

    def evaluate(self, code: str) -> Any:
        """Run JavaScript and return its value."""
        done = self.call("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, code: str, seconds: float = 20.0) -> Any:
        """Wait until JavaScript gives something true."""
        end = time.monotonic() + seconds
        while not (value := self.evaluate(code)):
            assert time.monotonic() < end, f"{code}\n{self.errors}"
            time.sleep(0.05)
        return value

    def save_picture(self, path: Path) -> None:
        """Save what the tab shows as a PNG file."""
        data = self.call("Page.captureScreenshot", format="png")["data"]
        path.write_bytes(base64.b64decode(data))

    def _note(self, message: dict[str, Any]) -> None:
        """Keep what the page complains about."""
        given = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(given["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and given["entry"]["level"] == "error":
            self.errors.append(given["entry"]["text"])


@contextlib.contextmanager
def browse(folder: Path, url: str, size: tuple[int, int] = (1200, 760)) -> Iterator[Page]:
    """Open a page; `folder` keeps the browser's files."""
    command = [find_chromium(), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
    command += [f"--user-data-dir={folder}", f"--window-size={size[0]},{size[1]}"]
    command += ["--remote-debugging-port=0", "--disable-dev-shm-usage", "about:blank"]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        place = folder / "DevToolsActivePort"
        end = time.monotonic() + 60
        while not (place.exists() and place.read_text().count("\n")):
            assert process.poll() is None and time.monotonic() < end, "the browser did not start"
            time.sleep(0.1)
        port = place.read_text().split("\n")[0]
        tabs = httpx.get(f"http://127.0.0.1:{port}/json/list").json()
        tab = next(one for one in tabs if one["type"] == "page")
        with connect(tab["webSocketDebuggerUrl"], max_size=None) as socket:
            page = Page(socket)
            page.call("Page.navigate", url=url)
            page.wait_for("document.readyState === 'complete'")
            yield page
    finally:
        process.terminate()
        process.wait(20)
