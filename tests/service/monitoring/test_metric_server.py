"""Metrics over HTTP: formats by prometheus_client's own parsers, escapes, taken ports, target files, and errors."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from feedline.errors import ClusterError
from feedline.service.monitoring.metric import Metric, single
from feedline.service.monitoring.metric_server import serve_metrics
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
    with serve_metrics(ANY, METRICS, lambda: numbers, {}) as server:
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


def test_an_answer_is_compressed_for_a_client_of_another_host_that_reads_that():
    with serve_metrics(MetricsSpec(listen="0.0.0.0:0"), METRICS, lambda: [1.0], {}) as server:
        port = server.address.rpartition(":")[2]
        answers = {}
        for source in ("127.0.0.1", "127.0.0.2"):  # another address than that of the server
            connection = http.client.HTTPConnection(f"127.0.0.1:{port}", timeout=10, source_address=(source, 0))
            connection.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            answers[source] = answer.headers["Content-Encoding"], answer.read()
            connection.close()
    assert answers["127.0.0.1"][0] is None
    assert answers["127.0.0.2"][0] == "gzip"
    for content in (answers["127.0.0.1"][1], gzip.decompress(answers["127.0.0.2"][1])):
        assert b"feedline_numbers_total" in content


def test_other_paths_are_not_found_and_the_server_goes_on_after_an_error():
    numbers: list[float] | None = None

    def source() -> list[float]:
        if numbers is None:
            raise ValueError("no state")
        return numbers

    with serve_metrics(ANY, METRICS, source, {}) as server:
        assert get(server.address, "/")[:1] == (404,)
        status, _, content = get(server.address)
        assert (status, content) == (500, b"the metrics cannot be read: see the log\n")
        numbers = []
        assert get(server.address)[0] == 200
        with socket.create_connection(server.address.split(":")) as half:
            half.send(b"GET /metr")  # and goes away
        assert get(server.address)[0] == 200


def test_other_methods_are_refused_and_head_has_no_content():
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as server:
        connection = http.client.HTTPConnection(server.address, timeout=10)
        connection.request("HEAD", "/metrics")
        head = connection.getresponse()
        assert (head.status, head.read()) == (200, b"")
        assert int(head.headers["Content-Length"]) > 100
        for method in ("POST", "PUT", "DELETE"):
            connection.request(method, "/metrics", body=b"GET /metrics HTTP/1.1\r\n\r\n")
            answer = connection.getresponse()
            assert (answer.status, answer.headers["Allow"], answer.will_close) == (405, "GET, HEAD", True)
            assert answer.read() == b"metrics can be read with GET\n"
        connection.request("GET", "/metrics")
        assert connection.getresponse().status == 200
        connection.close()


def test_a_name_that_is_not_unicode_is_shown():
    odd = (single("feedline_odd", "Odd.", len, {"pipeline": lambda numbers: "a\udcff\0b"}),)
    with serve_metrics(ANY, odd, lambda: [1.0], {}) as server:
        [family] = [each for each in parse_text(get(server.address)[2].decode()) if each.name == "feedline_odd"]
        assert family.samples[0].labels == {"pipeline": "a?\0b"}


def test_clients_that_end_no_request_keep_nobody_out():
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as server, contextlib.ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(server.address.split(":"))) for _ in range(100)]
        for each in slow:
            each.send(b"GET /metrics HTTP/1.1\r\n")
        assert get(server.address)[0] == 200
        for each in slow[:68]:
            each.settimeout(10)
            assert each.recv(1) == b""


def test_many_clients_are_answered_at_once():
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as server, ThreadPoolExecutor(16) as pool:
        answers = [*pool.map(lambda _: get(server.address), range(64))]
    assert {(status, b"feedline_numbers_total" in content) for status, _, content in answers} == {(200, True)}


def test_the_end_waits_for_no_client_and_ends_their_connections():
    """One has sent half a request, one waits between scrapes, and one reads nothing of a long answer."""
    many = (single("feedline_long", "L" * 20_000_000, len, {}),)
    with serve_metrics(ANY, many, lambda: [1.0], {}) as server:
        half, idle, deaf = (socket.create_connection(server.address.split(":"), timeout=10) for _ in range(3))
        half.send(b"GET /metr")
        idle.send(b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert idle.recv(4096).startswith(b"HTTP/1.1 200")
        deaf.send(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert deaf.recv(1) == b"H"
    for each in (half, idle):
        assert each.recv(1) == b""
    received = 0
    while content := deaf.recv(1 << 20):
        received += len(content)
    assert received < 20_000_000
    for each in (half, idle, deaf):
        each.close()


def test_the_address_is_logged(caplog: pytest.LogCaptureFixture):
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as server:
        assert [record.getMessage() for record in caplog.records] == [f"metrics at http://{server.address}/metrics"]


def test_a_taken_port_is_an_error_that_names_the_folder():
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as server:
        spec = MetricsSpec(listen=server.address)
        with (
            pytest.raises(ClusterError, match=r"metrics cannot be served at 127\.0\.0\.1:\d+: Address.*`metrics: DIR`"),
            serve_metrics(spec, METRICS, lambda: [1.0], {}, taken_s=0.0),
        ):
            pass
    with serve_metrics(spec, METRICS, lambda: [1.0], {}, taken_s=0.0) as again:  # the port of one that has ended
        assert again.address == server.address


@pytest.mark.parametrize("address", ["192.0.2.1:9400", "absent.invalid:9400"])
def test_an_address_of_another_host_is_an_error_at_once(address: str):
    with (
        pytest.raises(ClusterError, match=rf"cannot be served at {address}: .*an address of this host"),
        serve_metrics(MetricsSpec(listen=address), METRICS, lambda: [1.0], {}, taken_s=1e6),
    ):
        pass


def test_the_folder_has_the_target_while_the_server_answers(tmp_path: Path):
    spec = MetricsSpec(dir=str(tmp_path))
    with serve_metrics(spec, METRICS, lambda: [1.0], {"feedline_role": "feeder"}) as server:
        [path] = tmp_path.iterdir()
        [group] = json.loads(path.read_text())
        assert group["targets"] == [server.address]
        assert group["labels"]["feedline_role"] == "feeder"
        assert get(group["targets"][0])[0] == 200
    assert list(tmp_path.iterdir()) == []


def test_where_all_addresses_are_listened_at_the_target_names_the_host(tmp_path: Path):
    spec = MetricsSpec(listen="0.0.0.0:0", dir=str(tmp_path))
    with serve_metrics(spec, METRICS, lambda: [1.0], {}) as server:
        assert server.address.rpartition(":")[0] == socket.gethostname()
    with serve_metrics(MetricsSpec(listen="[::1]:0"), METRICS, lambda: [1.0], {}) as server:
        assert server.address.startswith("[::1]:")
        assert get(server.address)[0] == 200


def test_nothing_of_it_is_loaded_before_it_is_asked_for():
    code = """if True:
        import sys
        import feedline.commands.feed, feedline.service.monitoring.feeder_metrics, feedline.service.cluster.attempts
        import feedline.service.worker.worker_metrics, feedline.service.scheduler.scheduler_metrics
        print({"prometheus_client", "http.server", "opentelemetry", "requests"} & set(sys.modules))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
