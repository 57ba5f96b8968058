"""Metrics of a feeder: names, values, and how many series there are whatever the pipeline holds."""

from __future__ import annotations

import re
from dataclasses import replace

from prometheus_client import CollectorRegistry
from prometheus_client.openmetrics.exposition import generate_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from watched_status import watched_status

from feedline.loader.wire.run_status import FeederStatus
from feedline.service.monitoring.feeder_metrics import FEEDER_METRICS
from feedline.service.monitoring.prometheus_server import StateCollector
from feedline.service.scheduler.scheduler_metrics import SCHEDULER_METRICS
from feedline.service.worker.worker_metrics import WORKER_METRICS

ALL = (*FEEDER_METRICS, *SCHEDULER_METRICS, *WORKER_METRICS)
UNITS = ("seconds", "bytes", "ratio", "rows", "slots", "blocks", "workers", "threads")
LABELS = {"pipeline", "rank", "stage", "result", "direction", "kind", "version", "kernels", "role", "name", "form"}


def scraped(status: FeederStatus) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(StateCollector(FEEDER_METRICS, lambda: status))
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {f"{each.name}{sorted(each.labels.items())}": each.value for family in families for each in family.samples}


def series(metric: str, **labels: object) -> str:
    texts = {key: str(value) for key, value in {"pipeline": "clicks-1234abcd", **labels}.items()}
    return f"feedline_{metric}{sorted(texts.items())}"


def test_the_status_is_what_a_scrape_shows():
    found = scraped(watched_status())
    assert found[series("rows_total", rank=0)] == 640
    assert [found[series("batches_total", rank=rank)] for rank in (0, 1)] == [20, 21]
    assert found[series("trainer_wait_seconds_total", rank=1)] == 1.5
    assert found[series("slot_wait_seconds_total", rank=1)] == 7.5
    assert found[series("stage_seconds_total", rank=0, stage="read")] == 4.0
    assert found[series("stage_cpu_seconds_total", rank=0, stage="transform")] == 1.5
    assert found[series("cache_columns_total", rank=0, result="found")] == 30
    assert found[series("quality_problems_total", rank=0, kind="unknown")] == 7
    assert [found[series("starved", rank=rank)] for rank in (0, 1)] == [1, 0]
    assert found[series("ring_ready_slots", rank=0)] == 3
    assert found[series("feeder_restarts_total")] == 1
    assert (found[series("scheduler_lost_total")], found[series("scheduler_regained_total")]) == (2, 1)
    assert found[series("feeder_info", name="clicks", form="threads")] == 1
    assert found[f"feedline_build_info{[('kernels', 'ring, rows'), ('role', 'feeder'), ('version', '0.1.0')]}"] == 1


def test_without_a_cache_and_a_plan_there_are_no_samples_of_them():
    status = watched_status(1, cached=False)
    found = scraped(replace(status, ranks=(replace(status.ranks[0], plan=None),)))
    assert not [name for name in found if "cache" in name or "epoch_rows" in name]


def test_the_number_of_series_grows_with_ranks_alone():
    few, many = scraped(watched_status(1)), scraped(watched_status(64))
    per_rank = sum("rank" in name for name in few)
    assert len(many) == len(few) + 63 * per_rank
    assert per_rank <= 60
    assert len(many) < 4000


def test_paths_and_values_are_in_no_series():
    ranks = (replace(watched_status().ranks[0], findings=("price: got 17",), error="DataError: s3://key:secret@b"),)
    text = "".join(scraped(replace(watched_status(), ranks=ranks, pipeline="s3://key:secret@bucket/p.yaml")))
    assert not [word for word in ("secret", "bucket", "price", "17", "DataError", "yaml") if word in text]


def test_names_follow_prometheus_conventions():
    for metric in ALL:
        assert re.fullmatch(r"feedline(_[a-z]+)+", metric.name), metric.name
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert metric.meaning.endswith(".")
        assert set(metric.labels) <= LABELS
    names = [metric.name for metric in ALL]
    assert len(names) == len(set(names)) + 2, "only feedline_build_info is of all processes"
