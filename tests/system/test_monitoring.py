"""Metrics of a real run: scrapes of feeder, scheduler and worker, and what dashboards, alerts and docs say of them."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, eventually, furnished
from processes import feedline, free_port
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from promql import parse, problems
from ruamel.yaml import YAML
from span_collector import SpanCollector, span_collector

from feedline import FeedlineDataset
from feedline.errors import FeedlineError
from feedline.service.monitoring.feeder_metrics import FEEDER_METRICS
from feedline.service.scheduler.scheduler_metrics import SCHEDULER_METRICS
from feedline.service.worker.worker_metrics import WORKER_METRICS

ROOT = Path(__file__).resolve().parents[2]
OF_ROLES = {"feeder": FEEDER_METRICS, "scheduler": SCHEDULER_METRICS, "worker": WORKER_METRICS}
# Without a value in a run of a few seconds that goes well.
RARE = {"feedline_cluster_wanted_workers"}
STEPS = 30


def scrape(target: str) -> dict[str, Metric]:
    request = urllib.request.Request(
        f"http://{target}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        read = parse_openmetrics if "openmetrics" in answer.headers["Content-Type"] else parse_text
        families = read(answer.read().decode())
        return {sample.name: family for family in families for sample in family.samples}


def targets(folder: Path) -> dict[str, str]:
    """The targets of file_sd by role."""
    groups = [group for path in sorted(folder.glob("*.json")) for group in json.loads(path.read_text())]
    return {group["labels"]["feedline_role"]: group["targets"][0] for group in groups}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    samples = [each for each in families[name].samples if each.name == name]
    [found] = [each.value for each in samples if labels.items() <= each.labels.items()]
    return found


@dataclass(frozen=True)
class WatchedRun:
    """Scrapes by role of a run in its middle, those of Dask's pages, its rows, its spans, and what its targets' folder
    held at the end."""

    scrapes: dict[str, dict[str, Metric]]
    dask: dict[str, dict[str, Metric]]
    rows: int
    spans: SpanCollector
    after: list[str]

    @property
    def series(self) -> dict[str, list[dict[str, str]]]:
        """The labels of each series, by metric."""
        found: dict[str, list[dict[str, str]]] = {name: [{}] for name in RARE | {"up"}}
        for families in self.scrapes.values():
            for name, family in families.items():
                found.setdefault(name, []).extend(each.labels for each in family.samples if each.name == name)
        return found

    @property
    def types(self) -> dict[str, str]:
        return {name: family.type for each in self.scrapes.values() for name, family in each.items()}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("watched"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def run(place: Place) -> WatchedRun:
    folder = place.folder / "targets"
    (temporary := place.folder / "d").mkdir()
    own = {"env": {**os.environ, "TMPDIR": str(temporary)}}
    with span_collector() as collector, ExitStack() as stack:
        pages, http = (f"127.0.0.1:{free_port()}" for _ in range(2))
        options = ("--port", 0, "--metrics", folder, "--dashboard", pages)
        scheduler = stack.enter_context(feedline("scheduler", *options, **own))
        address = scheduler.line(r"scheduler at (\S+)")[1]
        worker = stack.enter_context(
            feedline("worker", address, "--threads", 1, "--metrics-dir", folder, "--http", http, **own)
        )
        worker.line("serves")
        path = place.write(
            cluster={"scheduler": address, "cpu": None},
            cache=str(place.folder / "cache"),
            metrics=str(folder),
            traces={"endpoint": collector.url, "sample": 1.0},
        )
        with FeedlineDataset(path) as dataset:
            batches = iter(dataset)
            rows = sum(len(next(batches)) for _ in range(STEPS))
            feeder = eventually(lambda: targets(folder).get("feeder"))

            def is_shown() -> bool:
                shown = scrape(feeder)
                return value(shown, "feedline_batches_total") >= STEPS and "feedline_job_ranks" in scrape(
                    targets(folder)["scheduler"]
                )

            assert eventually(is_shown)
            scrapes = {role: scrape(target) for role, target in targets(folder).items()}
            dask = {"scheduler": scrape(pages), "worker": scrape(http)}
            for _ in batches:
                pass
        for program in (worker, scheduler):
            program.send(signal.SIGTERM)
            assert program.wait() == 0
    return WatchedRun(scrapes, dask, rows, collector, sorted(path.name for path in folder.iterdir()))


# -- scrapes ------------------------------------------------------------------------------------------------------


def test_each_process_shows_all_of_its_metrics(run: WatchedRun):
    assert sorted(run.scrapes) == ["feeder", "scheduler", "worker"]
    for role, metrics in OF_ROLES.items():
        missing = {metric.name for metric in metrics} - set(run.scrapes[role]) - RARE
        assert not missing, role
        for metric in metrics:
            for sample in run.scrapes[role][metric.name].samples if metric.name in run.scrapes[role] else ():
                assert set(sample.labels) == set(metric.labels)
        assert value(run.scrapes[role], "feedline_build_info", role=role) == 1
        assert value(run.scrapes[role], "process_resident_memory_bytes") > 1e7


def test_counts_are_those_of_the_run(run: WatchedRun):
    feeder, worker = run.scrapes["feeder"], run.scrapes["worker"]
    assert value(feeder, "feedline_rows_total", rank="0") == 256 * value(feeder, "feedline_batches_total", rank="0")
    assert value(feeder, "feedline_rows_total", rank="0") >= run.rows == 256 * STEPS
    assert value(feeder, "feedline_steps", rank="0") == 78
    assert value(worker, "feedline_worker_blocks_total") >= value(feeder, "feedline_blocks_total", rank="0") > 0
    assert value(worker, "feedline_worker_read_bytes_total") > 0
    assert value(worker, "feedline_worker_serving") == 1
    scheduler = run.scrapes["scheduler"]
    [job] = [each.labels["pipeline"] for each in scheduler["feedline_job_ranks"].samples]
    assert job == feeder["feedline_rows_total"].samples[0].labels["pipeline"]
    assert (value(scheduler, "feedline_cluster_workers"), value(scheduler, "feedline_cluster_threads")) == (1, 1)
    assert value(scheduler, "feedline_job_fair_threads") == 1


def test_pages_of_dask_show_them_beside_its_own(run: WatchedRun):
    for role, own in (("scheduler", "feedline_cluster_workers"), ("worker", "feedline_worker_blocks_total")):
        assert f"dask_{role}" in " ".join(run.dask[role])
        assert value(run.dask[role], own) > 0
        assert value(run.dask[role], "feedline_build_info", role=role) == 1


def test_targets_go_with_their_processes(run: WatchedRun):
    assert run.after == []


def test_every_block_has_a_span(run: WatchedRun):
    blocks = value(run.scrapes["feeder"], "feedline_blocks_total", rank="0")
    spans = [run.spans.spans.get(timeout=10) for _ in range(int(blocks))]
    assert {span.name for span in spans} == {"feedline.block"}
    assert len({span.attributes["feedline.block.name"] for span in spans}) == blocks
    for span in spans:
        stages = [value for name, value in span.attributes.items() if name.startswith("feedline.stage.")]
        assert len(stages) == 3
        assert min(stages) >= 0 < sum(stages)
        assert span.end_ns > span.start_ns


@pytest.mark.nightly
def test_a_feeder_that_is_killed_is_replaced_and_its_target_goes(place: Place):
    """The feeder of `feedline run`, which waits for a trainer."""
    folder = place.folder / "restarts"
    path = place.write("restarts.yaml", metrics=str(folder), cluster={"threads": 1})
    with feedline("run", path) as program:
        feeder = program.line(r"metrics at http://(\S+)/metrics")[1]
        assert eventually(lambda: targets(folder).get("feeder")) == feeder
        assert value(scrape(feeder), "feedline_feeder_restarts_total") == 0
        [killed] = [each for each in program.descendants() if "feed" in each.cmdline()]
        killed.kill()
        assert eventually(lambda: targets(folder).get("feeder") not in (None, feeder))
        assert value(scrape(targets(folder)["feeder"]), "feedline_feeder_restarts_total") == 1
        assert len([*folder.iterdir()]) == 1
        program.send(signal.SIGTERM)
        program.wait()
    assert not [*folder.iterdir()]


# -- dashboards, alerts, docs ---------------------------------------------------------------------------------------


def queries() -> list[str]:
    dashboard = json.loads((ROOT / "deploy/grafana/feedline.json").read_text(encoding="utf-8"))
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert all(panel["targets"] and panel["title"] and panel["description"] for panel in panels)
    return [target["expr"] for panel in panels for target in panel["targets"]]


def alerts() -> dict[str, dict[str, Any]]:
    document = YAML(typ="safe").load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))
    return {rule["alert"]: rule for group in document["groups"] for rule in group["rules"]}


def test_every_query_of_the_dashboard_fits_a_scrape(run: WatchedRun):
    found = queries()
    assert len(found) >= 30
    for query in found:
        text = query.replace("$__rate_interval", "1m").replace("$pipeline", ".*")
        assert not problems(text, run.series, run.types), query


def test_the_variable_of_the_dashboard_is_a_label(run: WatchedRun):
    dashboard = json.loads((ROOT / "deploy/grafana/feedline.json").read_text(encoding="utf-8"))
    [query] = [each["query"]["query"] for each in dashboard["templating"]["list"] if each["name"] == "pipeline"]
    metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", query).groups()
    assert label in run.series[metric][0]


def test_every_alert_fits_a_scrape(run: WatchedRun):
    assert len(alerts()) >= 10
    for name, rule in alerts().items():
        assert not problems(rule["expr"], run.series, run.types), name
        summary = rule["annotations"]["summary"]
        labels = set(re.findall(r"\$labels\.(\w+)", summary))
        assert labels <= parse(rule["expr"]).grouped | {"instance"}, name


def test_queries_that_fit_nothing_are_found(run: WatchedRun):
    for text, problem in (
        ("sum(feedline_rowz_total)", "no metric feedline_rowz_total"),
        ('sum by (feature) (rate(feedline_rows_total{rank="0"}[5m]))', "no label feature to group by"),
        ('rate(feedline_rows_total{stage="read"}[5m])', "feedline_rows_total has no label stage"),
        ('feedline_stage_seconds_total{stage="rad"}', "no series of feedline_stage_seconds_total fits"),
        ("rate(feedline_starved[5m])", "feedline_starved is no counter"),
        ("feedline_rows_total[5m]", "feedline_rows_total has a range outside a function"),
    ):
        assert problem in " ".join(problems(text, run.series, run.types))
    with pytest.raises(ValueError, match="parentheses do not match"):
        parse("sum(feedline_rows_total")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_thresholds_of_alerts():
    for words in (("check", "rules", "alerts.yaml"), ("test", "rules", "alerts_test.yaml")):
        subprocess.run(["promtool", *words], cwd=ROOT / "deploy/prometheus", check=True)


def test_the_page_lists_every_metric_with_its_type_labels_and_meaning():
    text = (ROOT / "docs/monitoring.md").read_text(encoding="utf-8")
    for role, metrics in OF_ROLES.items():
        section = re.search(rf"^### {role}s$.*?(?=^###? )", text, re.MULTILINE | re.DOTALL | re.IGNORECASE)
        assert section is not None, role
        rows = re.findall(r"^\| `(\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", section[0], re.MULTILINE)
        assert rows == [
            (metric.name, metric.type, ", ".join(f"`{label}`" for label in metric.labels), metric.meaning)
            for metric in metrics
        ], role


# -- ports --------------------------------------------------------------------------------------------------------


def test_a_second_feeder_at_a_port_is_refused_with_the_remedy(place: Place, monkeypatch: pytest.MonkeyPatch):
    with socket.create_server(("127.0.0.1", 0)) as holder:
        address = f"127.0.0.1:{holder.getsockname()[1]}"
        path = place.write("taken.yaml", metrics=address, cluster={"threads": 1})
        with pytest.raises(FeedlineError, match=r"metrics cannot be served at .*`metrics: DIR`"):
            next(iter(FeedlineDataset(path)))
