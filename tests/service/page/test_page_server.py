"""The live page's own server: nothing before somebody looks, the page for whoever asks, and an end in any case."""

from __future__ import annotations

import contextlib
import http.client
import logging
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
from page_statuses import status_at
from pipelines import PATIENCE_S, eventually
from served_page import viewer, wait_for, websocket
from websocket import WebSocket, WebSocketException

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.page.page_server import PageServer


def page_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "feedline-page"]


def statuses() -> list[FeederStatus]:
    return [status_at(5)]


@pytest.fixture
def page(caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]) -> Iterator[PageServer]:
    """A server that has not started. Whatever a test sends to it, nothing is printed, and no thread is left."""
    with closing(PageServer(statuses)) as page:
        yield page
    assert page_threads() == []
    assert page.fileno() == -1
    assert [each.getMessage() for each in caplog.records if each.levelno > logging.INFO] == []
    assert capfd.readouterr() == ("", "")


@pytest.fixture
def served(page: PageServer) -> PageServer:
    page.start()
    return page


def place(page: PageServer) -> tuple[str, int]:
    return "127.0.0.1", int(urlsplit(page.address).port or 0)


def ask(page: PageServer, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, str, str]:
    """The status of an answer, where it leads, and its text."""
    with closing(http.client.HTTPConnection(*place(page), timeout=PATIENCE_S)) as connection:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        return answer.status, answer.getheader("Location", ""), answer.read().decode()


def test_nothing_happens_before_somebody_connects():
    """Then the loop that polls the socket has the server started, which answers what came before."""
    with closing(PageServer(statuses)) as page:
        poll = select.poll()
        poll.register(page.fileno(), select.POLLIN)
        assert poll.poll(0) == []
        with closing(http.client.HTTPConnection(*place(page), timeout=PATIENCE_S)) as early:
            early.request("GET", "/feedline")
            assert poll.poll(PATIENCE_S * 1000) != []
            assert page_threads() == []
            page.accept()
            assert page.fileno() == -1, "the loop does not poll it any more"
            answer = early.getresponse()
            assert (answer.status, b"bokeh" in answer.read()) == (200, True)


def test_the_page_needs_neither_dask_nor_anything_from_elsewhere():
    code = """
import sys
from urllib.request import urlopen
from feedline.service.page.page_server import PageServer
loaded = {"tornado", "bokeh", "distributed", "dask", "pandas"} & set(sys.modules)
page = PageServer(list)
page.start()
with urlopen(page.address) as answer:
    text = answer.read().decode()
page.close()
assert not loaded, loaded
assert not {"distributed", "dask"} & set(sys.modules)
print(text)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_S)
    assert (run.returncode, run.stderr) == (0, "")
    loaded = [part.split('"')[0] for part in run.stdout.split('src="')[1:] + run.stdout.split("<link")[1:]]
    assert loaded
    assert not [each for each in loaded if "//" in each]


def test_what_a_viewer_sees_follows_the_status(served: PageServer):
    with viewer(served.address) as looking:
        assert "job-a ranking" in wait_for(looking, "rank</span> 1")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/nothing", 404), ("POST", "/nothing", 404), ("GET", "/status", 404), ("HEAD", "/x", 404)]
    + [(method, "/feedline", 405) for method in ("HEAD", "POST", "PUT", "DELETE", "OPTIONS")],
)
def test_other_requests_are_refused(served: PageServer, method: str, path: str, status: int):
    found, _, text = ask(served, method, path, b"x" * 100 if method == "POST" else None)
    assert found == status
    if status == 404 and method != "HEAD":
        assert text == "There is no such page here: the live page is at /feedline.\n"


def test_the_root_leads_to_the_page(served: PageServer):
    assert ask(served, "GET", "/")[:2] == (302, "feedline")
    with urlopen(served.address.removesuffix("feedline"), timeout=PATIENCE_S) as answer:
        assert answer.url == served.address


def test_a_hundred_connections_before_the_server_is_there(page: PageServer):
    with ThreadPoolExecutor(100) as viewers:
        answers = [viewers.submit(ask, page, "GET", "/") for _ in range(100)]
        page.start()
        assert {each.result()[0] for each in answers} == {302}


def test_more_connections_than_that_are_closed_and_delay_nobody(served: PageServer):
    ask(served, "GET", "/")
    idle = [socket.create_connection(place(served), timeout=PATIENCE_S) for _ in range(200)]
    try:
        assert idle[-1].recv(1) == b"", "there are too many"
        idle.pop(0).close()

        def is_answered() -> bool:
            with contextlib.suppress(OSError):
                return ask(served, "GET", "/")[0] == 302
            return False

        assert eventually(is_answered)
    finally:
        for each in idle:
            each.close()


@pytest.mark.parametrize(
    "sent", [b"", b"GET", b"\x16\x03\x01\x02\x00\x01\x00" * 40, b"POST / HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n"]
)
def test_who_sends_no_request_delays_nobody(served: PageServer, sent: bytes):
    with socket.create_connection(place(served)) as silent:
        silent.sendall(sent)
        assert ask(served, "GET", "/")[0] == 302


def ends(connection: WebSocket) -> bool:
    """Whether its server ends a websocket, in whatever way."""
    with contextlib.suppress(WebSocketException, OSError):
        while connection.recv():
            pass
    return True


@pytest.mark.parametrize("subprotocols", [["bokeh"], ["bokeh", "bm8"], ["other", "x"]])
def test_a_websocket_of_no_page_is_closed(served: PageServer, subprotocols: list[str]):
    with contextlib.suppress(WebSocketException), websocket(served.address, subprotocols) as looking:
        assert ends(looking)
    assert ask(served, "GET", "/")[0] == 302


def test_the_pages_of_other_sites_cannot_read_it(caplog: pytest.LogCaptureFixture):
    """Those of tunnels can. The log names the origin, and what would allow it."""
    head = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Key": "x" * 24}
    head |= {"Sec-WebSocket-Version": "13"}
    with closing(PageServer(statuses)) as page:
        page.start()
        for origin in ("http://localhost:8787", page.address.removesuffix("/feedline")):
            with viewer(page.address, origin=origin):
                pass
        assert ask(page, "GET", "/feedline/ws", **head, Origin="http://evil.example:80")[0] == 403
    assert "BOKEH_ALLOW_WS_ORIGIN=evil.example:80" in caplog.text


def test_the_end_of_the_server_while_somebody_looks(served: PageServer):
    with viewer(served.address) as looking, socket.create_connection(place(served)):
        served.close()
        assert ends(looking)


@pytest.mark.parametrize("starts", [0, 1, 2])
def test_the_end_of_a_server_that_is_being_loaded_or_never_was(page: PageServer, starts: int):
    with socket.create_connection(place(page), timeout=PATIENCE_S) as waiting:
        for _ in range(starts):
            page.start()
        page.close()
        page.close()
        page.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place(page))
        with contextlib.suppress(ConnectionResetError):
            assert waiting.recv(1) == b""


def test_a_server_that_cannot_be_loaded_refuses_who_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setitem(sys.modules, "feedline.service.page.live_page", None)
    with closing(PageServer(statuses)) as page:
        waiting = socket.create_connection(place(page), timeout=PATIENCE_S)
        page.start()
        with waiting, pytest.raises(ConnectionResetError):
            waiting.recv(1)
    (line,) = caplog.messages
    assert line.startswith("the live page cannot be served: ModuleNotFoundError")
