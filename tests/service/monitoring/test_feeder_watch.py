"""What a feeder is watched by: nothing without the keys, metrics with targets, spans, and a missing extra."""

from __future__ import annotations

import json
import sys
import threading
import urllib.request
from pathlib import Path

import pytest
from finished_blocks import FINISHED_BLOCK
from span_collector import span_collector
from watched_status import watched_status

from feedline.config.monitoring_section import MetricsSpec, TracesSpec
from feedline.errors import FeederError
from feedline.service.monitoring.feeder_watch import watch_feeder


def test_without_the_keys_nothing_listens():
    before = threading.active_count()
    with watch_feeder(None, None, watched_status, [0]) as observe:
        assert observe is None
        assert threading.active_count() == before


@pytest.mark.parametrize(("ranks", "shown"), [((0, 1, 2), "0-2"), ((5,), "5"), ((), None)])
def test_the_target_names_the_job_and_its_ranks(tmp_path: Path, ranks: tuple[int, ...], shown: str | None):
    with watch_feeder(MetricsSpec(dir=str(tmp_path)), None, watched_status, ranks) as observe:
        assert observe is None
        [group] = json.loads(next(tmp_path.iterdir()).read_text())
        assert (group["labels"]["feedline_role"], group["labels"]["feedline_job"]) == ("feeder", "clicks-1234abcd")
        assert group["labels"].get("feedline_ranks") == shown
        with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=10) as answer:
            assert b'feedline_rows_total{pipeline="clicks-1234abcd",rank="1"} 640.0\n' in answer.read()
    assert not list(tmp_path.iterdir())


def test_blocks_become_spans():
    with span_collector() as collector:
        with watch_feeder(None, TracesSpec(endpoint=collector.url, sample=1.0), watched_status, [0]) as observe:
            assert observe is not None
            observe(FINISHED_BLOCK)
        assert collector.spans.get(timeout=10).resource["service.instance.id"] == "host-7-a"


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    monkeypatch.delitem(sys.modules, "feedline.service.monitoring.block_spans", raising=False)
    with (
        pytest.raises(FeederError, match=r"the key traces needs a package .* Run: pip install 'feedline\[otel\]'"),
        watch_feeder(None, TracesSpec(), watched_status, [0]),
    ):
        pass
