"""The live page as a browser has it, and a scheduler in this process that serves it of statuses that a test makes."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.request import urlopen

from distributed import Scheduler, SpecCluster
from pipelines import PATIENCE_S
from websocket import WebSocket, create_connection

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.page.dashboard import PAGE, DashboardOnDemand


@contextlib.contextmanager
def served_page(statuses: Callable[[], Sequence[FeederStatus]], *, port: int = 0) -> Iterator[str]:
    """Serve the page; the value is its address. port: 0 for any."""
    options = {"dashboard": False, "dashboard_address": f"127.0.0.1:{port}", "protocol": "inproc://"}
    with SpecCluster(
        scheduler={"cls": Scheduler, "options": options}, worker={}, silence_logs=logging.ERROR
    ) as cluster:
        scheduler: Any = cluster.scheduler
        scheduler.http_application.add_application(DashboardOnDemand(scheduler, statuses))
        try:
            yield f"http://127.0.0.1:{scheduler.http_server.port}{PAGE}"
        finally:
            cluster.sync(scheduler.http_server.close_all_connections)


@contextlib.contextmanager
def websocket(address: str, subprotocols: list[str], **options: str) -> Iterator[WebSocket]:
    """The websocket of the page at an address."""
    url = f"{address.replace('http', 'ws')}/ws"
    connection = create_connection(url, subprotocols=subprotocols, timeout=PATIENCE_S, **options)
    try:
        yield connection
    finally:
        connection.shutdown()  # `close` does nothing where the server has closed it


@contextlib.contextmanager
def viewer(address: str, **options: str) -> Iterator[WebSocket]:
    """Open the page: the websocket over which it is updated."""
    with urlopen(address, timeout=PATIENCE_S) as answer:
        found = re.search('"token":"([^"]+)"', answer.read().decode())
    assert found is not None
    with websocket(address, ["bokeh", found[1]], **options) as connection:
        assert "ACK" in str(connection.recv())
        yield connection


def wait_for(connection: WebSocket, text: str) -> str:
    """Ask for the page, and return what is received of it until a text is."""
    for part in ('{"msgid": "1", "msgtype": "PULL-DOC-REQ"}', "{}", "{}"):
        connection.send(part)
    received = ""
    while text not in received:
        received += str(connection.recv())
    return received
