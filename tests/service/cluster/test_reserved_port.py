"""The port of a dashboard that is not there yet: held for it, and for those who ask."""

from __future__ import annotations

import http.server
import select
import socket
import threading
import urllib.request
from contextlib import closing
from pathlib import Path

import pytest
from pipelines import eventually

from feedline.config.cluster_section import ClusterSpec
from feedline.service.cluster.cluster import ReservedPort
from feedline.service.cluster.open_cluster import open_cluster
from feedline.service.cluster.request import ClusterRequest


class Page(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())

    def log_message(self, *_: object) -> None: ...


def read(url: str, into: list[bytes]) -> threading.Thread:
    def fetch() -> None:
        with urllib.request.urlopen(url, timeout=30) as answer:
            into.append(answer.read())

    thread = threading.Thread(target=fetch)
    thread.start()
    return thread


def test_a_port_that_another_thread_polls_is_free_once_it_is_released() -> None:
    """As the feeder's loop polls it, which would keep it listening until something else happens.

    The next server's socket exists before the release: the number of the port's descriptor goes to no other socket,
    which a thread that sleeps before its call, not in it, would then poll.
    """
    with closing(ReservedPort(lambda: None)) as port, socket.socket() as server:
        poll, events = select.poll(), list[object]()
        poll.register(port.fileno(), select.POLLIN)
        polling = threading.Thread(target=lambda: events.extend(poll.poll(30_000)))
        polling.start()
        status = Path(f"/proc/self/task/{polling.native_id}/status")
        assert eventually(lambda: "S (sleeping)" in status.read_text())
        port.release()
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(("127.0.0.1", port.number))
        server.listen()
        polling.join(10)
        assert not polling.is_alive()


def test_who_asks_early_gets_the_page_of_the_server_that_comes() -> None:
    wanted, pages = threading.Event(), list[bytes]()
    with closing(ReservedPort(wanted.set)) as port:
        thread = read(f"http://127.0.0.1:{port.number}/status?a=b", pages)

        def asked() -> bool:
            port.accept()
            return wanted.is_set()

        assert eventually(asked)
        port.release()
        assert port.fileno() == -1
        server = http.server.HTTPServer(("127.0.0.1", port.number), Page)
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        port.redirect()
        thread.join(30)
        server.shutdown()
        serving.join()
        server.server_close()
    assert pages == [b"/status?a=b"]


def test_connections_are_closed_where_no_server_comes() -> None:
    port = ReservedPort(lambda: None)
    with closing(socket.create_connection(("127.0.0.1", port.number))) as connection:
        port.close()
        connection.settimeout(10)
        assert connection.recv(1) == b""


def test_a_port_that_nobody_may_ask_for_refuses_connections() -> None:
    with closing(ReservedPort()) as port, pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port.number))


def test_asking_for_the_dashboard_starts_the_cluster() -> None:
    pages: list[bytes] = []
    with closing(open_cluster(ClusterRequest(ClusterSpec(), threads=1, early=True))) as cluster:
        assert cluster.door is not None
        assert cluster.dashboard is not None
        thread = read(cluster.dashboard.replace("/status", "/health"), pages)

        def answered() -> bool:
            assert cluster.door is not None
            cluster.door.accept()
            return bool(pages)

        assert eventually(answered)
        thread.join(30)
        assert cluster.dask is not None
    assert pages == [b"ok"]
