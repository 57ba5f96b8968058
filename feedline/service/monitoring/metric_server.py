"""Serve `/metrics` of a process over HTTP, from its state at the moment of a scrape.

Runs in: feeders, workers and schedulers whose metrics are asked for: nothing else imports this module, as it loads
Python's HTTP server. Threads of the server answer; they take the state as it is and never wait for the process's own
loop, but in a scheduler. There is no login: answers hold counts and names, no rows.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from feedline.errors import ClusterError
from feedline.service.monitoring.metric import Metric
from feedline.service.monitoring.process_metrics import PROCESS_METRICS, read_process
from feedline.service.monitoring.target_files import MetricsTarget, target_labels
from feedline.service.monitoring.text_format import END, TextFormat, choose_format, write_metrics
from feedline.spec.monitoring_section import MetricsSpec

logger = logging.getLogger("feedline.metrics")

# A port that a process of before still has: so long it is tried again.
TAKEN_S, _PAUSE_S = 5.0, 0.1
# A client that sends nothing for so long is dropped.
_CLIENT_S = 10.0
# The end of a process waits so long for the server's.
_POLL_S = 0.1
# Connections at once: a Prometheus has one.
_CLIENTS = 32
_PLAIN = "text/plain; charset=utf-8"

State = TypeVar("State")


@dataclass(frozen=True, slots=True)
class MetricServer:
    """A server that answers. address: "host:port", as others reach it."""

    address: str


@contextlib.contextmanager
def serve_metrics(
    spec: MetricsSpec,
    metrics: Sequence[Metric[State]],
    source: Callable[[], State],
    labels: Mapping[str, str],
    *,
    taken_s: float = TAKEN_S,
) -> Iterator[MetricServer]:
    """Serve a process's metrics, and those of the process itself (memory, CPU, descriptors), until the context ends.

    source: reads the state of the moment, in a thread of the server. labels: of the target file; `feedline_role`
    names the process. taken_s: how long a port that is taken is tried again. Raises ClusterError if the address cannot
    be listened at, or the folder not be written.
    """

    def read(form: TextFormat) -> bytes:
        text = write_metrics(metrics, source(), form)
        if (process := read_process()) is not None:
            text += write_metrics(PROCESS_METRICS, process, form)
        return (text + END[form]).encode(errors="replace")  # a name may hold what UTF-8 has not

    host, port = spec.address
    server = _listen(host, port, partial(_Scrape, read), taken_s)
    thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name="feedline-metrics", daemon=True)
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        thread.start()
        stack.callback(server.shutdown)
        address = _reached_at(host, server.server_address[1])
        if spec.folder is not None:
            target = MetricsTarget(spec.folder, address, target_labels(labels))
            stack.callback(target.remove)
        logger.setLevel(logging.INFO)  # where it is asked for, a free port is news, in feeders too
        logger.info("metrics at http://%s/metrics", address)
        yield MetricServer(address)


def _reached_at(host: str, port: int) -> str:
    """The address at which others reach what listens there."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False  # a slow client does not keep the process
    request_queue_size = 128  # of 5, the system lets many that come at once wait for seconds

    def __init__(self, *arguments: Any) -> None:
        self._lock = threading.Lock()
        self._open: dict[socket.socket, None] = {}  # the longest open first
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a client in a thread. One too many ends the connection that is open for the longest: a client that
        never ends its request keeps nobody out."""
        with self._lock:
            self._open[request] = None
            if len(self._open) > _CLIENTS:
                _hang_up(oldest := next(iter(self._open)))
                del self._open[oldest]
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a connection."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End all connections, too: what stays open between scrapes would be answered as long as the process lives."""
        super().server_close()
        with self._lock:
            for request in self._open:
                _hang_up(request)

    def server_bind(self) -> None:
        """Without a look-up of the host's full name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of ours."""
        logger.debug("a scrape of %s failed", client_address)


def _hang_up(connection: socket.socket) -> None:
    """Have the thread of a connection end it."""
    with contextlib.suppress(OSError):  # ended already
        connection.shutdown(socket.SHUT_RDWR)


def _listen(host: str, port: int, handler: Callable[..., Any], taken_s: float) -> _Server:
    deadline_s = time.monotonic() + taken_s
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server = type("Server", (_Server,), {"address_family": family})
            return server((host, port), handler)  # type: ignore[no-any-return]
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline_s:
                raise ClusterError(_cannot_listen(host, port, error)) from error
        time.sleep(_PAUSE_S)


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        remedy = (
            "Only one process of a host can listen at a port: name a folder instead (`metrics: DIR`), where each "
            "process listens on a free port and writes its target file for Prometheus, or free the port"
        )
    else:
        remedy = "Name an address of this host with a port that this user may open, such as 127.0.0.1:9400, or a folder"
    return f"metrics cannot be served at {host}:{port}: {error.strerror or error}. {remedy}"


class _Scrape(BaseHTTPRequestHandler):
    """Answers one client."""

    protocol_version = "HTTP/1.1"
    timeout = _CLIENT_S
    wbufsize = -1  # one packet for head and body: a second would wait 40 ms for the client to confirm the first
    disable_nagle_algorithm = True

    def __init__(self, read: Callable[[TextFormat], bytes], *arguments: Any) -> None:
        self._read = read
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer a scrape, in the format that the client asks for."""
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, _PLAIN, b"metrics are at /metrics\n")
            return
        form = choose_format(self.headers.get("Accept", ""))
        try:
            content = self._read(form)
        except Exception:
            logger.exception("the metrics cannot be read")
            self._answer(500, _PLAIN, b"the metrics cannot be read: see the log\n")
            return
        self._answer(200, form.value, content)

    do_HEAD = do_GET  # noqa: N815 -- names of http.server, here and below

    def do_POST(self) -> None:
        """Refuse what is not a question. Its content is not read, so the connection ends."""
        self.close_connection = True
        self._answer(405, _PLAIN, b"metrics can be read with GET\n", Allow="GET, HEAD")

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST  # noqa: N815

    def _answer(self, status: int, content_type: str, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", content_type)
        if "gzip" in self.headers.get("Accept-Encoding", "") and not self._is_near():
            content = gzip.compress(content, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)
        self.wfile.flush()

    def version_string(self) -> str:
        """The header `Server`: releases are no one's business."""
        return "feedline"

    def _is_near(self) -> bool:
        """Whether the client is on this host: compression takes a third of a scrape, and saves it nothing."""
        return self.client_address[0] == self.connection.getsockname()[0]  # type: ignore[no-any-return]

    def log_message(self, *_: object) -> None:
        """Scrapes are not logged."""
