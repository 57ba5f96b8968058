"""Metrics over HTTP and on pages of Dask: both formats, taken ports, target files, errors, and what is not loaded."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from feedline.config.monitoring_section import MetricsSpec
from feedline.errors import ClusterError
from feedline.service.monitoring.metric import Metric, single
from feedline.service.monitoring.prometheus_server import _ON_DASK, add_to_dask, serve_metrics
from feedline.service.monitoring.target_files import MetricsTarget, target_labels

NAME = 'odd "name" \\ of\na job'
METRICS: tuple[Metric[list[float]], ...] = (
    single("feedline_numbers_total", "Sum\nof numbers \\ of a list.", sum, {"pipeline": lambda numbers: NAME}),
    single("feedline_first", "The first.", lambda numbers: numbers[0] if numbers else None, {}),
)
ANY = MetricsSpec(listen="127.0.0.1:0")


def get(address: str, **headers: str) -> tuple[int, str, bytes]:
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/metrics", headers=headers)
        response = connection.getresponse()
        return response.status, response.headers["Content-Type"], response.read()
    finally:
        connection.close()


def test_both_formats_have_the_state_of_the_moment_and_the_process(caplog: pytest.LogCaptureFixture):
    numbers = [2.0, 0.5]
    with serve_metrics(ANY, METRICS, lambda: numbers, {}) as address:
        assert [record.getMessage() for record in caplog.records] == [f"metrics at http://{address}/metrics"]
        numbers.append(4.0)
        status, kind, content = get(address)
        assert (status, kind.split(";")[0]) == (200, "text/plain")
        families = {family.name: family for family in parse_text(content.decode())}
        assert families["feedline_numbers"].type == "counter"
        [sample] = families["feedline_numbers"].samples
        assert (sample.name, sample.labels, sample.value) == ("feedline_numbers_total", {"pipeline": NAME}, 6.5)
        assert families["feedline_numbers"].documentation == METRICS[0].meaning
        assert families["process_resident_memory_bytes"].samples[0].value > 1e6
        assert families["python_info"].samples[0].labels["major"] == "3"
        status, kind, content = get(address, Accept="application/openmetrics-text; version=1.0.0")
        assert (status, kind.split(";")[0]) == (200, "application/openmetrics-text")
        openmetrics = {family.name: family for family in parse_openmetrics(content.decode())}
        assert openmetrics["feedline_numbers"].samples[0].value == 6.5
        assert openmetrics["feedline_first"].samples[0].value == 2.0
        numbers.clear()
        assert "feedline_first" not in {family.name for family in parse_text(get(address)[2].decode())}


def test_the_server_goes_on_after_an_error(capfd: pytest.CaptureFixture[str]):
    numbers: list[float] | None = None

    def source() -> list[float]:
        if numbers is None:
            raise ValueError("no state")
        return numbers

    with serve_metrics(ANY, METRICS, source, {}) as address:
        assert get(address)[0] == 500
        numbers = []
        assert get(address)[0] == 200
        with socket.create_connection(address.split(":")) as half:
            half.send(b"GET /metr")  # and goes away
        assert get(address)[0] == 200
    assert "ValueError: no state" in capfd.readouterr().err


def test_a_name_that_is_not_unicode_is_shown():
    odd = (single("feedline_odd", "Odd.", len, {"pipeline": lambda numbers: "a\udcff\0b"}),)
    with serve_metrics(ANY, odd, lambda: [1.0], {}) as address:
        [family] = [family for family in parse_text(get(address)[2].decode()) if family.name == "feedline_odd"]
        assert family.samples[0].labels == {"pipeline": "a?\0b"}


def test_the_end_waits_for_no_client():
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as address:
        half = socket.create_connection(address.split(":"), timeout=10)
        half.send(b"GET /metr")
        assert get(address)[0] == 200
    half.close()


def test_a_taken_port_is_an_error_that_names_the_folder():
    with serve_metrics(ANY, METRICS, lambda: [1.0], {}) as address:
        spec = MetricsSpec(listen=address)
        with (
            pytest.raises(ClusterError, match=r"metrics cannot be served at 127\.0\.0\.1:\d+: Address.*`metrics: DIR`"),
            serve_metrics(spec, METRICS, lambda: [1.0], {}, taken_s=0.0),
        ):
            pass
    with serve_metrics(spec, METRICS, lambda: [1.0], {}, taken_s=0.0) as again:  # the port of one that has ended
        assert again == address


@pytest.mark.parametrize("address", ["192.0.2.1:9400", "absent.invalid:9400"])
def test_an_address_of_another_host_is_an_error_at_once(address: str):
    with (
        pytest.raises(ClusterError, match=rf"cannot be served at {address}: .*an address of this host"),
        serve_metrics(MetricsSpec(listen=address), METRICS, lambda: [1.0], {}, taken_s=1e6),
    ):
        pass


def test_the_folder_has_the_target_while_the_server_answers(tmp_path: Path):
    spec = MetricsSpec(dir=str(tmp_path))
    with serve_metrics(spec, METRICS, lambda: [1.0], {"feedline_role": "feeder"}) as address:
        [path] = tmp_path.iterdir()
        [group] = json.loads(path.read_text())
        assert group["targets"] == [address]
        assert group["labels"]["feedline_role"] == "feeder"
        assert get(group["targets"][0])[0] == 200
    assert list(tmp_path.iterdir()) == []


def test_where_all_addresses_are_listened_at_the_target_names_the_host(tmp_path: Path):
    spec = MetricsSpec(listen="0.0.0.0:0", dir=str(tmp_path))
    with serve_metrics(spec, METRICS, lambda: [1.0], {}) as address:
        assert address.rpartition(":")[0] == socket.gethostname()
    with serve_metrics(MetricsSpec(listen="[::1]:0"), METRICS, lambda: [1.0], {}) as address:
        assert address.startswith("[::1]:")
        assert get(address)[0] == 200


def test_nothing_of_it_is_loaded_before_it_is_asked_for():
    code = """if True:
        import sys
        import feedline.commands.feed, feedline.service.monitoring.feeder_metrics, feedline.service.cluster.attempts
        import feedline.service.worker.worker_metrics, feedline.service.scheduler.scheduler_metrics
        print({"prometheus_client", "http.server", "opentelemetry", "requests"} & set(sys.modules))
    """
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"


@pytest.fixture
def on_dask() -> Iterator[str]:
    name = "of a test"
    yield name
    REGISTRY.unregister(_ON_DASK.pop(name))


def test_a_page_of_dask_shows_those_that_were_added_last(on_dask: str):
    metrics = (
        single("feedline_first", "The first.", lambda numbers: numbers[0], {}),
        single("feedline_sum_total", "The sum.", sum, {"pipeline": lambda numbers: "a"}),
    )
    for number in (1.0, 2.0):
        add_to_dask(on_dask, metrics, lambda number=number: [number, 0.5])
    assert REGISTRY.get_sample_value("feedline_first") == 2.0
    assert REGISTRY.get_sample_value("feedline_sum_total", {"pipeline": "a"}) == 2.5


CHILD = """
import sys, time
from feedline.service.monitoring.target_files import MetricsTarget
file = MetricsTarget(sys.argv[1], "127.0.0.1:1", {"feedline_role": "worker"})
print(file.path, flush=True)
sys.stdin.read()
"""


def test_a_target_is_what_file_sd_reads(tmp_path: Path):
    labels = target_labels({"feedline_role": "feeder", "feedline_job": "clicks-1", "feedline_ranks": ""})
    file = MetricsTarget(str(tmp_path / "new" / "folder"), "127.0.0.1:9400", labels)
    assert [path.name for path in file.path.parent.iterdir()] == [file.path.name]
    [group] = json.loads(file.path.read_text())
    assert group["targets"] == ["127.0.0.1:9400"]
    assert {**group["labels"], "host": ""} == {"feedline_role": "feeder", "feedline_job": "clicks-1", "host": ""}
    assert not {"pipeline", "rank", "job", "instance"} & set(group["labels"])
    file.remove()
    assert list(file.path.parent.iterdir()) == []
    file.remove()  # at most once more


def test_the_files_of_killed_processes_are_swept_and_those_of_living_ones_stay(tmp_path: Path):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    paths = []
    for child in children:
        assert child.stdout is not None
        paths.append(Path(child.stdout.readline().strip()))
    os.kill(children[0].pid, signal.SIGKILL)
    children[0].wait()
    assert all(path.exists() for path in paths)
    (tmp_path / "others.json").write_text("[]")
    (abandoned := tmp_path / "feedline-worker-a-1-2.tmp").touch()
    os.utime(abandoned, (0, 0))
    (fresh := tmp_path / "feedline-worker-a-1-3.tmp").touch()
    file = MetricsTarget(str(tmp_path), "127.0.0.1:2", {"feedline_role": "feeder"})
    assert [path.exists() for path in (*paths, tmp_path / "others.json", abandoned, fresh, file.path)] == [
        *(False, True, True),
        *(False, True, True),
    ]
    file.remove()
    children[1].kill()
    for child in children:
        child.communicate()


def test_a_folder_that_cannot_be_written_is_an_error_with_a_remedy(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ClusterError, match=r"the folder of metrics cannot be written: .*/file/x: .* Name a folder"):
        MetricsTarget(str(tmp_path / "file" / "x"), "127.0.0.1:1", {})
