"""Serve metrics by prometheus_client: at an address of the process's own, and on the pages of Dask's HTTP server.

Runs in: feeders, workers and schedulers whose metrics are asked for: nothing else imports this module. Threads of the
server answer; they take the state as it is and never wait for the process's own loop, but in a scheduler. There is no
login: answers hold counts and names, no rows.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar
from wsgiref.simple_server import WSGIServer

from prometheus_client import REGISTRY, CollectorRegistry, PlatformCollector, ProcessCollector, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from feedline.config.monitoring_section import MetricsSpec
from feedline.errors import ClusterError
from feedline.service.monitoring.metric import Metric
from feedline.service.monitoring.target_files import MetricsTarget, target_labels

logger = logging.getLogger("feedline.metrics")

# How long a port that a process of before still has is tried again.
TAKEN_S, _PAUSE_S = 5.0, 0.1

State = TypeVar("State")


class StateCollector(Collector, Generic[State]):
    """Reads the metrics from the state of the moment, at each scrape."""

    def __init__(self, metrics: Sequence[Metric[State]], source: Callable[[], State]) -> None:
        self._metrics, self.source = metrics, source

    def describe(self) -> Iterator[Family]:
        return (_family(metric) for metric in self._metrics)

    def collect(self) -> Iterator[Family]:
        """The metrics that have samples now."""
        state = self.source()
        for metric in self._metrics:
            family = _family(metric)
            for labels, value in metric.samples(state):
                # A file's name may hold what UTF-8 has not: "a\udcff" -> "a?"
                family.add_metric([label.encode(errors="replace").decode() for label in labels], value)
            if family.samples:
                yield family


def _family(metric: Metric[Any]) -> CounterMetricFamily | GaugeMetricFamily:
    kind = CounterMetricFamily if metric.type == "counter" else GaugeMetricFamily
    return kind(metric.name, metric.meaning, labels=metric.labels)


# -- a server of the process's own -------------------------------------------------------------------------------------


@contextlib.contextmanager
def serve_metrics(
    spec: MetricsSpec,
    metrics: Sequence[Metric[State]],
    source: Callable[[], State],
    labels: Mapping[str, str],
    *,
    taken_s: float = TAKEN_S,
) -> Iterator[str]:
    """Serve a process's metrics, and those of the process itself (memory, CPU, descriptors), until the context ends;
    yields "host:port", as others reach it.

    source: reads the state of the moment, in a thread of the server. labels: of the target file; `feedline_role`
    names the process. taken_s: how long a port that is taken is tried again. Raises ClusterError if the address cannot
    be listened at, or the folder not be written.
    """
    registry = CollectorRegistry()
    registry.register(StateCollector(metrics, source))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    host, port = spec.address
    with contextlib.ExitStack() as stack:
        server = _listen(host, port, registry, taken_s)
        stack.callback(server.server_close)
        stack.callback(server.shutdown)
        address = _reached_at(host, server.server_port)
        if spec.folder is not None:
            target = MetricsTarget(spec.folder, address, target_labels(labels))
            stack.callback(target.remove)
        logger.setLevel(logging.INFO)  # where it is asked for, a free port is news, in feeders too
        logger.info("metrics at http://%s/metrics", address)
        yield address


def _listen(host: str, port: int, registry: CollectorRegistry, taken_s: float) -> WSGIServer:
    deadline_s = time.monotonic() + taken_s
    while True:
        try:
            server, _ = start_http_server(port, host, registry)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() >= deadline_s:
                raise ClusterError(_cannot_listen(host, port, error)) from error
            time.sleep(_PAUSE_S)
        else:
            return server


def _cannot_listen(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        remedy = (
            "Only one process of a host can listen at a port: name a folder instead (`metrics: DIR`), where each "
            "process listens on a free port and writes its target file for Prometheus, or free the port"
        )
    else:
        remedy = "Name an address of this host with a port that this user may open, such as 127.0.0.1:9400, or a folder"
    return f"metrics cannot be served at {host}:{port}: {error.strerror or error}. {remedy}"


def _reached_at(host: str, port: int) -> str:
    """The address at which others reach what listens there."""
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


# -- pages of Dask's ---------------------------------------------------------------------------------------------------

_ON_DASK: dict[str, StateCollector[Any]] = {}


def add_to_dask(name: str, metrics: Sequence[Metric[State]], source: Callable[[], State]) -> None:
    """Add metrics to `/metrics` of Dask's own HTTP server, which writes it with prometheus_client; of one name, the
    last ones remain: a process may have had a scheduler or worker before."""
    if (former := _ON_DASK.get(name)) is not None:
        former.source = source
        return
    _ON_DASK[name] = collector = StateCollector(metrics, source)
    REGISTRY.register(collector)
