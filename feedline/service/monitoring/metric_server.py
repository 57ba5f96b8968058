"""Serve `/metrics` of a process over HTTP, from its state at the moment of a scrape.

Runs in: feeders, workers and schedulers whose metrics are asked for: nothing else imports this module, as it loads
prometheus_client and Python's HTTP server. Threads of the server answer; they take the state as it is and never wait
for the process's own loop, but in a scheduler. There is no login: answers hold counts and names, no rows.
"""

from __future__ import annotations

import contextlib
import gzip
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Generic, TypeVar

from prometheus_client import REGISTRY, CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from feedline.errors import ClusterError
from feedline.service.monitoring.metric import Metric
from feedline.service.monitoring.target_files import MetricsTarget, target_labels
from feedline.spec.monitoring_section import MetricsSpec

logger = logging.getLogger("feedline.metrics")

# A port that a process of before still has: so long it is tried again.
TAKEN_S, _PAUSE_S = 5.0, 0.1
# A client that sends nothing for so long is dropped.
_CLIENT_S = 10.0
# The end of a process waits so long for the server's.
_POLL_S = 0.1

State = TypeVar("State")


class StateCollector(Collector, Generic[State]):
    """Reads the metrics from the state of the moment, at each scrape. source: the state; None where there is none."""

    def __init__(self, metrics: Sequence[Metric[State]], source: Callable[[], State | None]) -> None:
        self._metrics, self.source = metrics, source

    def describe(self) -> Iterator[Family]:
        """The metrics without samples."""
        return (_family(metric) for metric in self._metrics)

    def collect(self) -> Iterator[Family]:
        """The metrics that have samples now."""
        state = self.source()
        if state is None:
            return
        for metric in self._metrics:
            family = _family(metric)
            for labels, value in metric.samples(state):
                family.add_metric(labels, value)
            if family.samples:
                yield family


def _family(metric: Metric[Any]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)


_ON_DASK: dict[str, StateCollector[Any]] = {}


def add_to_dask(name: str, collector: StateCollector[Any]) -> None:
    """Add metrics to those that Dask's own HTTP server shows; of one name, the last ones remain."""
    if (former := _ON_DASK.get(name)) is not None:
        former.source = collector.source  # of a scheduler or worker that this process had before
        return
    _ON_DASK[name] = collector
    REGISTRY.register(collector)


@dataclass(frozen=True, slots=True)
class MetricServer:
    """A server that answers. address: "host:port", as others reach it."""

    address: str


@contextlib.contextmanager
def serve_metrics(
    spec: MetricsSpec,
    collector: Collector,
    labels: Mapping[str, str],
    *,
    taken_s: float = TAKEN_S,
) -> Iterator[MetricServer]:
    """Serve a process's metrics, and those of the process itself (memory, CPU, descriptors), until the context ends.

    labels: of the target file; `role` names the process. taken_s: how long a port that is taken is tried again. Raises
    ClusterError if the address cannot be listened at, or the folder not be written.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    registry.register(collector)
    host, port = spec.address
    server = _listen(host, port, partial(_Scrape, registry), taken_s)
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

    def server_bind(self) -> None:
        """Without a look-up of the host's full name, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle is no error of ours."""
        logger.debug("a scrape of %s failed", client_address)


def _listen(host: str, port: int, handler: Callable[..., Any], taken_s: float) -> _Server:
    deadline_s = time.monotonic() + taken_s
    while True:
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            server = type("Server", (_Server,), {"address_family": family})
            return server((host, port), handler)  # type: ignore[no-any-return]
        except OSError as error:
            if port == 0 or time.monotonic() >= deadline_s:
                raise ClusterError(_cannot_listen(host, port, error)) from error
        time.sleep(_PAUSE_S)


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    return (
        f"metrics cannot be served at {host}:{port}: {error.strerror or error}. Only one process of a host can listen "
        "at a port: name a folder instead (`metrics: DIR`), where each process listens on a free port and writes its "
        "target file for Prometheus, or free the port"
    )


class _Scrape(BaseHTTPRequestHandler):
    """Answers one client."""

    protocol_version = "HTTP/1.1"
    timeout = _CLIENT_S
    wbufsize = -1  # one packet for head and body: a second would wait 40 ms for the client to confirm the first
    disable_nagle_algorithm = True
    server_version = "feedline"
    sys_version = ""

    def __init__(self, registry: CollectorRegistry, *arguments: Any) -> None:
        self._registry = registry
        super().__init__(*arguments)

    def do_GET(self) -> None:
        """Answer a scrape, in the format that the client asks for."""
        if self.path.partition("?")[0] != "/metrics":
            self._answer(404, "text/plain; charset=utf-8", b"metrics are at /metrics\n")
            return
        try:
            encode, content_type = choose_encoder(self.headers.get("Accept", ""))
            content = encode(self._registry)
        except Exception:
            logger.exception("the metrics cannot be read")
            self._answer(500, "text/plain; charset=utf-8", b"the metrics cannot be read: see the log\n")
            return
        self._answer(200, content_type, content)

    def _answer(self, status: int, content_type: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        if "gzip" in self.headers.get("Accept-Encoding", ""):
            content = gzip.compress(content, compresslevel=1)
            self.send_header("Content-Encoding", "gzip")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Scrapes are not logged."""
