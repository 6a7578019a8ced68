"""A headless Chromium, spoken to over a pipe: no port, no driver, nothing to install beside the browser.

https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.lacks import lacks_root

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_ANSWER_S = 60.0


class Browser:
    """One tab. Everything it was told and did is in `events`."""

    def __init__(self, send_fd: int, receive_fd: int) -> None:
        self._send_fd = send_fd
        self._receive_fd = receive_fd
        self._unread = b""
        self._session: str | None = None
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def attach(self) -> None:
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.command("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._send_fd, json.dumps(message).encode() + b"\0")
        while True:
            told = self._receive()
            if told.get("id") != self._number:
                self.events.append(told)
                continue
            if "error" in told:
                raise RuntimeError(f"{method}: {told['error']}")
            return dict(told["result"])

    def _receive(self) -> dict[str, Any]:
        deadline_s = time.monotonic() + _ANSWER_S
        while b"\0" not in self._unread:
            waited_for = select.poll()  # select() takes no descriptor above 1,023, of which a process of tests has more
            waited_for.register(self._receive_fd, select.POLLIN)
            ready = waited_for.poll(max(0.0, deadline_s - time.monotonic()) * 1e3)
            part = os.read(self._receive_fd, 1 << 20) if ready else b""
            if not part:
                raise RuntimeError("Chromium says nothing: it died, or hangs")
            self._unread += part
        message, _, self._unread = self._unread.partition(b"\0")
        return dict(json.loads(message))

    def open(self, url: str) -> None:
        self.command("Page.navigate", url=url)

    def evaluate(self, expression: str) -> Any:
        """A promise is awaited."""
        told = self.command("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in told:
            raise RuntimeError(f"{expression}: {told['exceptionDetails']}")
        return told["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Waits until the expression is true; looks at each frame that is drawn. An expression may fail until the page
        is there."""
        deadline_s = time.monotonic() + _ANSWER_S
        while True:
            with contextlib.suppress(RuntimeError):
                if found := self.evaluate(expression):
                    return found
            if time.monotonic() > deadline_s:
                raise AssertionError(f"never true: {expression}; the page says: {self.text('body')}")
            with contextlib.suppress(RuntimeError):
                self.evaluate("new Promise((done) => setTimeout(done, 20))")

    def text(self, selector: str) -> str:
        return str(self.evaluate(f"document.querySelector({json.dumps(selector)}).innerText"))

    def resize(self, width: int, height: int = 1000) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        self.command("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path, *, is_whole: bool = True) -> None:
        """The whole page, however long, or its first screen."""
        told = self.command("Page.captureScreenshot", format="png", captureBeyondViewport=is_whole)
        path.write_bytes(base64.b64decode(told["data"]))

    def requested(self) -> list[str]:
        """Every address that was asked for, whether or not it answered."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """Exceptions, and what the console holds against the page."""
        found = []
        for event in self.events:
            match event.get("method"):
                case "Runtime.exceptionThrown":
                    found.append(str(event["params"]["exceptionDetails"]))
                case "Log.entryAdded" if event["params"]["entry"]["level"] == "error":
                    found.append(str(event["params"]["entry"]))
        return found


def _above_nine(descriptor: int) -> int:
    """Out of the way of 3 and 4, on which Chromium listens and answers."""
    moved = fcntl.fcntl(descriptor, fcntl.F_DUPFD, 10)
    os.close(descriptor)
    return moved


@contextmanager
def browser() -> Iterator[Browser]:
    if PROGRAM is None:
        lacks_root("no Chromium on the path; `apt-get install chromium`")
    to_chromium, send = map(_above_nine, os.pipe())
    receive, from_chromium = map(_above_nine, os.pipe())
    with tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as profile:
        process = subprocess.Popen(
            [
                "bash", "-c", f'exec "$@" 3<&{to_chromium} 4>&{from_chromium}', "bash", PROGRAM,
                "--headless=new", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update",
                "--disable-default-apps", "--disable-extensions", "--disable-sync", "--no-default-browser-check",
                f"--user-data-dir={profile}", "about:blank",
            ],
            pass_fds=(to_chromium, from_chromium),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_chromium)
        os.close(from_chromium)
        try:
            tab = Browser(send, receive)
            tab.attach()
            yield tab
        finally:
            process.terminate()
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            os.close(send)
            os.close(receive)
