"""Metrics over HTTP: formats by prometheus_client's own parsers, escapes, taken ports, target files, and errors."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from feedline.errors import ClusterError
from feedline.service.monitoring.metric import Metric, single
from feedline.service.monitoring.metric_server import StateCollector, add_to_dask, serve_metrics
from feedline.spec.monitoring_section import MetricsSpec

NAME = 'odd "name" \\ of\na job'
METRICS: tuple[Metric[list[float]], ...] = (
    single("feedline_numbers_total", "Sum\nof numbers \\ of a list.", sum, {"pipeline": lambda numbers: NAME}),
    single("feedline_first", "The first.", lambda numbers: numbers[0] if numbers else None, {}),
)
ANY = MetricsSpec(listen="127.0.0.1:0")


def get(address: str, path: str = "/metrics", **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


def test_both_formats_have_the_state_of_the_moment_and_the_process():
    numbers = [2.0, 0.5]
    with serve_metrics(ANY, StateCollector(METRICS, lambda: numbers), {}) as server:
        numbers.append(4.0)
        status, kind, content = get(server.address)
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        families = {family.name: family for family in parse_text(content.decode())}
        assert families["feedline_numbers"].type == "counter"
        [sample] = families["feedline_numbers"].samples
        assert (sample.name, sample.labels, sample.value) == ("feedline_numbers_total", {"pipeline": NAME}, 6.5)
        assert families["feedline_numbers"].documentation == METRICS[0].meaning
        assert families["process_resident_memory_bytes"].samples[0].value > 1e6
        status, kind, content = get(server.address, Accept="application/openmetrics-text; version=1.0.0")
        assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
        again = {family.name: family for family in parse_openmetrics(content.decode())}
        assert [each.value for name in ("feedline_numbers", "feedline_first") for each in again[name].samples] == [
            *(6.5, 2.0)
        ]
        numbers.clear()
        assert "feedline_first" not in {family.name for family in parse_text(get(server.address)[2].decode())}


def test_an_answer_is_compressed_where_the_client_reads_that():
    with serve_metrics(ANY, StateCollector(METRICS, lambda: [1.0]), {}) as server:
        content = get(server.address, **{"Accept-Encoding": "gzip"})[2]
        assert b"feedline_numbers_total" in gzip.decompress(content)


def test_other_paths_are_not_found_and_the_server_goes_on_after_an_error():
    def fail() -> list[float]:
        raise ValueError("no state")

    collector = StateCollector(METRICS, fail)
    with serve_metrics(ANY, collector, {}) as server:
        assert get(server.address, "/")[:1] == (404,)
        status, _, content = get(server.address)
        assert (status, content) == (500, b"the metrics cannot be read: see the log\n")
        collector.source = lambda: None
        assert get(server.address)[0] == 200
        with socket.create_connection(server.address.split(":")) as half:
            half.send(b"GET /metr")  # and goes away
        assert get(server.address)[0] == 200


def test_the_address_is_logged(caplog: pytest.LogCaptureFixture):
    with serve_metrics(ANY, StateCollector(METRICS, lambda: [1.0]), {}) as server:
        assert [record.getMessage() for record in caplog.records] == [f"metrics at http://{server.address}/metrics"]


def test_a_taken_port_is_an_error_that_names_the_folder():
    with serve_metrics(ANY, StateCollector(METRICS, lambda: [1.0]), {}) as server:
        spec = MetricsSpec(listen=server.address)
        collector = StateCollector(METRICS, lambda: [1.0])
        with (
            pytest.raises(ClusterError, match=r"metrics cannot be served at 127\.0\.0\.1:\d+: Address.*`metrics: DIR`"),
            serve_metrics(spec, collector, {}, taken_s=0.0),
        ):
            pass
    with serve_metrics(spec, collector, {}, taken_s=0.0) as again:  # the port of one that has ended
        assert again.address == server.address


def test_the_folder_has_the_target_while_the_server_answers(tmp_path: Path):
    spec = MetricsSpec(dir=str(tmp_path))
    with serve_metrics(spec, StateCollector(METRICS, lambda: [1.0]), {"role": "feeder"}) as server:
        [path] = tmp_path.iterdir()
        [group] = json.loads(path.read_text())
        assert group["targets"] == [server.address]
        assert group["labels"]["role"] == "feeder"
        assert get(group["targets"][0])[0] == 200
    assert list(tmp_path.iterdir()) == []


def test_where_all_addresses_are_listened_at_the_target_names_the_host(tmp_path: Path):
    spec = MetricsSpec(listen="0.0.0.0:0", dir=str(tmp_path))
    with serve_metrics(spec, StateCollector(METRICS, lambda: [1.0]), {}) as server:
        assert server.address.rpartition(":")[0] == socket.gethostname()
    with serve_metrics(MetricsSpec(listen="[::1]:0"), StateCollector(METRICS, lambda: [1.0]), {}) as server:
        assert server.address.startswith("[::1]:")
        assert get(server.address)[0] == 200


@pytest.fixture
def on_dask() -> Iterator[str]:
    name = "of a test"
    yield name
    from feedline.service.monitoring.metric_server import _ON_DASK

    REGISTRY.unregister(_ON_DASK.pop(name))


def test_metrics_of_dask_pages_are_those_of_the_last_that_were_added(on_dask: str):
    for number in (1.0, 2.0):
        add_to_dask(on_dask, StateCollector(METRICS, lambda number=number: [number]))
    assert REGISTRY.get_sample_value("feedline_first") == 2.0


def test_nothing_of_it_is_loaded_before_it_is_asked_for():
    code = """if True:
        import sys
        import feedline.commands.feed, feedline.service.monitoring.feeder_metrics, feedline.service.cluster.attempts
        import feedline.service.worker.worker_metrics, feedline.service.scheduler.scheduler_metrics
        print({"prometheus_client", "http.server", "opentelemetry", "requests"} & set(sys.modules))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
