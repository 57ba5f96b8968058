"""Spans of blocks: what a collector decodes of them, the sample, and collectors that do not answer."""

from __future__ import annotations

import logging
import socket
import time

import pytest
from span_collector import span_collector

from feedline.config.monitoring_section import TracesSpec
from feedline.service.monitoring.block_spans import BlockSpans
from feedline.service.monitoring.finished_block import FinishedBlock

BLOCK = FinishedBlock(
    name="r0-l1-b7",
    lane=1,
    index=7,
    first_step=70,
    rows=8192,
    nbytes_read=100_000,
    nbytes_encoded=500_000,
    submitted_s=1000.0,
    arrived_s=1002.5,
    read_s=1.5,
    transform_s=0.5,
    encode_s=0.25,
    attempts=2,
    cached=3,
    missed=4,
)


def test_a_collector_gets_each_block_with_its_times_and_stages(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=ads")
    with span_collector() as collector:
        spans = BlockSpans(TracesSpec(endpoint=collector.url, sample=1.0), job="clicks-1", feeder="host-7")
        spans.add(BLOCK)
        spans.close()
        span = collector.spans.get(timeout=10)
        assert collector.paths.get(timeout=10) == "/v1/traces"
    assert (span.name, span.end_ns - span.start_ns) == ("feedline.block", 2_500_000_000)
    assert abs(span.end_ns * 1e-9 - (time.time() - time.monotonic() + 1002.5)) < 1.0
    assert span.attributes["feedline.block.name"] == "r0-l1-b7"
    assert {name: value for name, value in span.attributes.items() if name.startswith("feedline.stage.")} == {
        "feedline.stage.read_seconds": 1.5,
        "feedline.stage.transform_seconds": 0.5,
        "feedline.stage.encode_seconds": 0.25,
    }
    assert (span.attributes["feedline.block.attempts"], span.attributes["feedline.cache.found"]) == (2, 3)
    assert span.resource["service.name"] == "feedline"
    assert (span.resource["feedline.pipeline"], span.resource["team"]) == ("clicks-1", "ads")


def test_the_environment_names_the_collector_and_the_service(monkeypatch: pytest.MonkeyPatch):
    with span_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        monkeypatch.setenv("OTEL_SERVICE_NAME", "training")
        spans = BlockSpans(TracesSpec(sample=1.0), job="a", feeder="b")
        spans.add(BLOCK)
        spans.close()
        assert collector.spans.get(timeout=10).resource["service.name"] == "training"


def test_a_share_of_the_blocks_is_sent():
    with span_collector() as collector:
        spans = BlockSpans(TracesSpec(endpoint=collector.url, sample=0.25), job="a", feeder="b")
        for _ in range(400):
            spans.add(BLOCK)
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
            spans.add(BLOCK)
            assert collector.paths.get(timeout=10) == "/other/traces"
        spans.close()
    lines = [record.getMessage() for record in caplog.records]
    assert lines == [f"spans cannot be sent to {url}: those of the time until it answers are dropped"]


def test_a_collector_that_never_answers_does_not_keep_the_feeder():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://user:secret@127.0.0.1:{silent.getsockname()[1]}"
        spans = BlockSpans(TracesSpec(endpoint=url, sample=1.0), job="a", feeder="b")
        spans.add(BLOCK)
        begun_s = time.monotonic()
        spans.close()
        assert time.monotonic() - begun_s < 4
