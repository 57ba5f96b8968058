"""Counts and spans of blocks: sums from any thread; what a collector decodes, and collectors that do not answer."""

from __future__ import annotations

import logging
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from finished_blocks import BLOCK_RESULT, FINISHED_BLOCK
from span_collector import span_collector

from feedline.config.monitoring_section import TracesSpec
from feedline.service.monitoring.block_counts import BlockCounts
from feedline.service.monitoring.block_spans import BlockSpans


def test_no_block_of_any_thread_is_lost():
    counts = BlockCounts()

    def compute(index: int) -> None:
        counts.begin()
        if index % 4:
            counts.end(BLOCK_RESULT)
        else:
            counts.fail("data")

    counts.begin()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(compute, range(2000)))
    read = counts.read()
    counts.end(BLOCK_RESULT)
    failed = {kind: blocks for kind, blocks in read.failed.items() if blocks}
    assert (read.running, failed, read.sums.blocks) == (1, {"data": 500}, 1500)
    assert (read.sums.rows, read.sums.nbytes_read, read.sums.nbytes_encoded) == (15_000, 150_000, 7_500)
    assert read.sums.times.stages == {"read": 2250.0, "transform": 750.0, "encode": 375.0}


def test_a_collector_gets_each_block_with_its_times_and_stages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=ads")
    with span_collector() as collector:
        spans = BlockSpans(TracesSpec(endpoint=collector.url, sample=1.0), job="clicks-1", feeder="host-7")
        spans.add(FINISHED_BLOCK)
        spans.close()
        span = collector.spans.get(timeout=10)
        assert collector.paths.get(timeout=10) == "/v1/traces"
    assert (span.name, span.end_ns - span.start_ns) == ("feedline.block", 2_500_000_000)
    assert abs(span.end_ns * 1e-9 - (time.time() - time.monotonic() + 1002.5)) < 1.0
    assert span.attributes == {
        "feedline.block.name": "r0-l1-b7",
        "feedline.block.lane": 1,
        "feedline.block.index": 7,
        "feedline.block.first_step": 70,
        "feedline.block.rows": 10,
        "feedline.block.read_bytes": 100,
        "feedline.block.encoded_bytes": 5,
        "feedline.block.attempts": 2,
        "feedline.stage.read_seconds": 1.5,
        "feedline.stage.transform_seconds": 0.5,
        "feedline.stage.encode_seconds": 0.25,
        "feedline.cache.found": 3,
        "feedline.cache.computed": 4,
    }
    assert span.resource["service.name"] == "feedline"
    assert (span.resource["feedline.pipeline"], span.resource["team"]) == ("clicks-1", "ads")


def test_the_environment_names_the_collector_and_the_service(monkeypatch: pytest.MonkeyPatch):
    with span_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
        spans = BlockSpans(TracesSpec(sample=1.0), job="a", feeder="b")
        spans.add(FINISHED_BLOCK)
        spans.close()
        assert collector.spans.get(timeout=10).resource["service.name"] == "training"


def test_a_share_of_the_blocks_is_sent():
    with span_collector() as collector:
        spans = BlockSpans(TracesSpec(endpoint=collector.url, sample=0.25), job="a", feeder="b")
        for _ in range(400):
            spans.add(FINISHED_BLOCK)
        spans.close()
        count = 0
        while not collector.spans.empty():
            collector.spans.get()
            count += 1
    assert 40 < count < 170  # 100 expected, 8.7 the standard deviation


def test_a_collector_that_refuses_is_logged_once_and_a_path_stays_as_it_is(caplog: pytest.LogCaptureFixture):
    with span_collector(status=400) as collector, caplog.at_level(logging.INFO):
        url = f"{collector.url}/other/traces"
        spans = BlockSpans(TracesSpec(endpoint=url, sample=1.0), job="a", feeder="b", delay_ms=10)
        for _ in range(2):
            spans.add(FINISHED_BLOCK)
            assert collector.paths.get(timeout=10) == "/other/traces"
        spans.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"spans cannot be sent to {url}: those of the time until it answers are dropped"]


def test_a_collector_that_never_answers_does_not_keep_the_feeder():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}"
        spans = BlockSpans(TracesSpec(endpoint=url, sample=1.0), job="a", feeder="b")
        spans.add(FINISHED_BLOCK)
        begun_s = time.monotonic()
        spans.close()
        assert time.monotonic() - begun_s < 4
