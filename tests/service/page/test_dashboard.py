"""The pages of a scheduler's server: loaded when one is opened, Feedline's among Dask's."""

from __future__ import annotations

import contextlib
import logging.handlers
import queue
import re
import subprocess
import sys
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from bokeh.server.views.ws import WSHandler
from page_statuses import status_at
from pipelines import eventually
from served_page import served_page
from tornado.websocket import WebSocketClosedError
from websocket import create_connection

from feedline.service.page import dashboard


def test_the_page_needs_nothing_from_elsewhere_and_is_in_the_menu_of_dask():
    asked = []

    def statuses() -> list[object]:
        asked.append(1)
        return []

    with served_page(statuses) as address:  # type: ignore[arg-type]
        assert not asked
        with urlopen(address, timeout=60) as answer:
            page = answer.read().decode()
        assert asked
        loaded = [part.split('"')[0] for part in page.split('src="')[1:] + page.split('rel="stylesheet" href="')[1:]]
        assert loaded
        assert not [each for each in loaded if "//" in each]  # from this server
        root = address.rpartition("/")[0]
        for name in ("status", "feedline"):
            with urlopen(f"{root}/{name}", timeout=60) as answer:
                assert b'<a href="feedline">Feedline</a>' in answer.read()


def test_a_tab_that_is_closed_while_it_is_answered_leaves_no_traceback(monkeypatch: pytest.MonkeyPatch):
    """Bokeh's ping finds its connection gone; what else finds it then has no session. Other errors are logged."""
    lost, logged = [], logging.handlers.QueueHandler(queue.SimpleQueue())
    records: queue.SimpleQueue[logging.LogRecord] = logged.queue  # type: ignore[assignment]

    def ping(handler: WSHandler, data: bytes) -> None:
        lost.append(handler)
        raise WebSocketClosedError

    loggers = [logging.getLogger(name) for name in ("tornado.application", "bokeh.server.protocol_handler")]
    with served_page(lambda: [status_at(1)]) as address, contextlib.ExitStack() as stack:
        with urlopen(address, timeout=60) as answer:
            token = re.search('"token":"([^"]+)"', answer.read().decode())
        assert token is not None
        monkeypatch.setattr(WSHandler, "ping", ping)
        for logger in loggers:
            logger.addHandler(logged)
            stack.callback(logger.removeHandler, logged)
        socket = create_connection(f"{address.replace('http', 'ws')}/ws", subprotocols=["bokeh", token[1]], timeout=60)
        eventually(lambda: lost and lost[0].connection._session is None)
        for part in ('{"msgid": "1", "msgtype": "PULL-DOC-REQ"}', "{}", "{}"):
            socket.send(part)
        socket.shutdown()
        eventually(lambda: lost[0]._on_close_called)
        for logger in loggers:
            try:
                assert not logger.name
            except AssertionError:
                logger.exception("another")
        found = [records.get(timeout=60).getMessage() for _ in loggers]
    assert [each.partition("\n")[0] for each in found] == ["another"] * 2
    assert records.empty()


@pytest.mark.nightly  # a session lives for 15 s without a viewer
def test_without_viewers_nothing_is_asked():
    asked: list[float] = []

    def statuses() -> list[object]:
        asked.append(time.monotonic())
        return []

    with served_page(statuses) as address:  # type: ignore[arg-type]
        urlopen(address, timeout=60).close()
        eventually(lambda: len(asked) > 5)
        eventually(lambda: time.monotonic() - asked[-1] > 5)


def test_nothing_is_loaded_before_a_page_is_opened():
    code = (
        "import sys, feedline.service.page.dashboard, feedline.service.scheduler.extension; "
        "print(sorted({'bokeh', 'jinja2'} & set(sys.modules)))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "bokeh" not in run.stdout


def test_without_bokeh_a_page_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    def missing(name: str) -> None:
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(dashboard, "import_quietly", missing)
    with served_page(list) as address:
        for _ in range(2):  # the second visitor is told as well
            with pytest.raises(HTTPError, match=r"501: the dashboard needs a package .*'feedline\[dashboard\]'"):
                urlopen(address, timeout=60)
