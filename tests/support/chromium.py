"""A headless Chromium, driven over its DevTools protocol: pages as a user's browser shows them.

Debian's package `chromium` has it. A page collects what its console says, and each request with its outcome.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from websocket import WebSocket, WebSocketTimeoutException, create_connection

# All text that a page shows, with that in shadow roots, where Bokeh keeps it.
_TEXT = """(function text(node) {
  return [...node.childNodes].map(each => each.nodeType === 3 ? each.data
    : each.nodeType !== 1 || /^(STYLE|SCRIPT)$/.test(each.tagName) ? "" : text(each.shadowRoot || each)).join(" ")
})(document.body || document)"""
_NAMES = ("chromium", "chromium-browser", "google-chrome")
_START_S = 60.0
_OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-port=0",
    "--remote-allow-origins=*",
)


def chromium_path() -> str | None:
    """The browser of this machine, or None."""
    return next((path for name in _NAMES if (path := shutil.which(name)) is not None), None)


needs_chromium = pytest.mark.skipif(
    chromium_path() is None, reason="needs a browser: got no chromium on PATH. Install Debian's package chromium"
)


class BrowserPage:
    """A tab. console: its errors and warnings; requests: the address of each, by its number; failed: those that did not
    succeed, with the reason."""

    def __init__(self, socket: WebSocket) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.console: list[str] = []
        self.requests: dict[str, str] = {}
        self.failed: list[str] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol, and return its result."""
        number = next(self._numbers)
        self._socket.send(json.dumps({"id": number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def resize(self, width: int, height: int) -> None:
        """Show the page in a window of this size; below 600 pixels, as on a telephone."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )

    def open(self, address: str) -> None:
        """Load an address."""
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression of JavaScript."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def text(self) -> str:
        """All words of the page, with single spaces."""
        return " ".join(str(self.evaluate(_TEXT)).split())

    def wait_for_text(self, pattern: str, *, seconds: float = 60.0) -> re.Match[str]:
        """The first match in the page's words."""
        until = time.monotonic() + seconds
        while (found := re.search(pattern, text := self.text())) is None:
            assert time.monotonic() < until, f"no {pattern!r} in: {text}; console: {self.console}; {self.failed}"
            self.listen(0.1)
        return found

    def screenshot(self, path: Path) -> None:
        """Write the whole page, as wide as the window, as PNG."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        data = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)["data"]
        path.write_bytes(base64.b64decode(data))

    def listen(self, seconds: float) -> None:
        """Take note of what the browser says for so long."""
        until = time.monotonic() + seconds
        while (left_s := until - time.monotonic()) > 0:
            self._socket.settimeout(left_s)
            try:
                self._note(json.loads(self._socket.recv()))
            except WebSocketTimeoutException:
                break
        self._socket.settimeout(_START_S)

    def hosts(self) -> set[str]:
        """The hosts of all requests."""
        return {host for address in self.requests.values() if (host := urlsplit(address).hostname) is not None}

    def _note(self, message: dict[str, Any]) -> None:
        method, about = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and about["type"] in ("error", "warning", "assert"):
            self.console.append(" ".join(str(each.get("value", each.get("description"))) for each in about["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(about["exceptionDetails"]))
        elif method == "Log.entryAdded" and about["entry"]["level"] == "error":
            self.console.append(f"{about['entry']['text']} {about['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requests[about["requestId"]] = about["request"]["url"]
        elif method == "Network.webSocketCreated":
            self.requests[about["requestId"]] = about["url"]
        elif method == "Network.loadingFailed":
            self.failed.append(f"{self.requests.get(about['requestId'])}: {about['errorText']}")
        elif method == "Network.responseReceived" and about["response"]["status"] >= 400:
            self.failed.append(f"{about['response']['url']}: {about['response']['status']}")


@contextlib.contextmanager
def browser(folder: Path) -> Iterator[BrowserPage]:
    """A browser with one empty tab. folder: for its log."""
    path = chromium_path()
    assert path is not None
    profile = Path(tempfile.mkdtemp(prefix="feedline-", dir="/tmp"))  # its socket's path must be short
    with (folder / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            [path, *_OPTIONS, f"--user-data-dir={profile}", "about:blank"],
            stdout=log,
            stderr=log,
            env={**os.environ, "TMPDIR": str(profile)},
        )
    try:
        socket = create_connection(_tab(profile, process), timeout=_START_S)
        with contextlib.closing(socket):
            page = BrowserPage(socket)
            yield page
            with contextlib.suppress(Exception):  # it may close the connection before it answers
                page.call("Browser.close")
        process.wait(_START_S)
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(profile, ignore_errors=True)


def _tab(profile: Path, process: subprocess.Popen[bytes]) -> str:
    """The address of the protocol of the first tab."""
    file, until = profile / "DevToolsActivePort", time.monotonic() + _START_S
    while not file.exists() or not file.read_text().count("\n"):
        assert process.poll() is None, f"chromium ended with status {process.returncode}"
        assert time.monotonic() < until, "chromium opened no port"
        time.sleep(0.05)
    port = file.read_text().split("\n")[0]
    while True:
        with urlopen(Request(f"http://127.0.0.1:{port}/json/list"), timeout=_START_S) as answer:
            tabs = [each for each in json.load(answer) if each["type"] == "page"]
        if tabs:
            return str(tabs[0]["webSocketDebuggerUrl"])
        assert time.monotonic() < until, "chromium opened no tab"
        time.sleep(0.05)
