"""A run watched by a real Prometheus, with the files of deploy/: targets, rules, and the dashboard's queries."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pipelines import Place, eventually, furnished
from processes import feedline, free_port, running
from ruamel.yaml import YAML

from feedline import FeedlineDataset

ROOT = Path(__file__).resolve().parents[2]
pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]
# Targets: two feeders, the scheduler, its worker, and two workers of the second feeder.
PROCESSES = {"feeder": 2, "scheduler": 1, "worker": 3}


class Prometheus:
    """Its HTTP API."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1/"

    def get(self, path: str, **parameters: str) -> Any:
        """The data of an answer; what went wrong is raised."""
        url = f"{self._url}{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise ValueError(f"{parameters}: {error.read().decode()}") from None

    def query(self, query: str) -> list[tuple[dict[str, str], float]]:
        """The labels and values of an instant query."""
        return [(each["metric"], float(each["value"][1])) for each in self.get("query", query=query)["result"]]

    def total(self, query: str) -> float:
        """The value of a query of one series; 0 without any."""
        return sum(value for _, value in self.query(query))

    def is_ready(self) -> bool:
        try:
            return "version" in self.get("status/buildinfo")
        except (OSError, ValueError):
            return False


@contextmanager
def prometheus(folder: Path, targets: Path, impatient: str = "") -> Iterator[Prometheus]:
    """A server with the configuration of deploy/, but for the folder of targets and shorter intervals.

    impatient: an alert whose minutes are tenths of a second, of its window seconds.
    """
    for path in (ROOT / "deploy/prometheus").iterdir():
        shutil.copy(path, folder)
    yaml = YAML(typ="safe")
    rules = yaml.load(folder / "alerts.yaml")
    for rule in (rule for group in rules["groups"] for rule in group["rules"] if rule["alert"] == impatient):
        rule["for"] = f"{int(rule['for'].removesuffix('m')) * 100}ms"
        rule["expr"] = rule["expr"].replace("m]", "s]")
    yaml.dump(rules, folder / "alerts.yaml")
    config = yaml.load(folder / "prometheus.yml")
    [files] = [each["file_sd_configs"][0] for each in config["scrape_configs"] if "file_sd_configs" in each]
    files["files"] = [pattern.replace("/mnt/prometheus/feedline", str(targets)) for pattern in files["files"]]
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    yaml.dump(config, folder / "prometheus.yml")
    address = f"127.0.0.1:{free_port()}"
    flags = {"config.file": folder / "prometheus.yml", "storage.tsdb.path": folder / "data"}
    flags |= {"web.listen-address": address}
    with running("prometheus", *(f"--{name}={value}" for name, value in flags.items())) as program:
        server = Prometheus(address)
        assert eventually(server.is_ready), program.text
        yield server
        program.send(signal.SIGTERM)
        assert program.wait() == 0, program.text


@dataclass(frozen=True)
class Scraped:
    """What a Prometheus answered: in the middle of a run, at its end, and after it."""

    targets: list[dict[str, Any]]
    rules: list[dict[str, Any]]
    series: list[dict[str, str]]
    answers: dict[str, list[tuple[dict[str, str], float]]]
    jobs: list[str]
    delivered: float
    rows: int
    after: list[dict[str, Any]]
    up_after: list[tuple[dict[str, str], float]]


def dashboard() -> dict[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "deploy/grafana/feedline.json").read_text(encoding="utf-8"))
    return document


def queries() -> list[str]:
    found = [target["expr"] for panel in dashboard()["panels"] for target in panel.get("targets", ())]
    return [query.replace("$__rate_interval", "20s").replace("$pipeline", ".*") for query in found]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("scraped"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def scraped(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Scraped:
    targets = place.folder / "targets"
    (temporary := place.folder / "d").mkdir()
    own = {"env": {**os.environ, "TMPDIR": str(temporary)}}
    with ExitStack() as stack:
        server = stack.enter_context(prometheus(tmp_path_factory.mktemp("prometheus"), targets))
        with ExitStack() as run:
            scheduler = run.enter_context(feedline("scheduler", "--port", 0, "--metrics", targets, **own))
            address = scheduler.line(r"scheduler at (\S+)")[1]
            worker = run.enter_context(feedline("worker", address, "--threads", 1, "--metrics", targets, **own))
            worker.line("serves")
            own_workers = {"cluster": {"workers": 2, "cpu": None}, "name": 'a "quoted" \\ job\nof two'}
            paths = [
                place.write("a.yaml", metrics=str(targets), cluster={"scheduler": address, "cpu": None}, cache="cache"),
                place.write("b.yaml", metrics=str(targets), cache="cache", **own_workers),
            ]
            datasets = [run.enter_context(FeedlineDataset(path)) for path in paths]
            iterators = [iter(dataset) for dataset in datasets]
            rows = sum(len(next(iterator)) for iterator in iterators for _ in range(20))
            found = list[list[dict[str, Any]]]()

            def are_up() -> bool:
                found.append(server.get("targets")["activeTargets"])
                return [each["health"] for each in found[-1]] == ["up"] * sum(PROCESSES.values())

            assert eventually(are_up), found[-1]
            assert eventually(lambda: server.total("min(count_over_time(feedline_rows_total[1m]))") >= 5)
            rows += sum(len(next(iterator)) for iterator in iterators for _ in range(20))
            assert eventually(lambda: server.total("min(feedline_batches_total)") >= 40)
            # none in the first half minute of a scheduler
            assert eventually(lambda: server.query("feedline_cluster_wanted_workers"))
            answers = {query: server.query(query) for query in queries()}
            rules = [rule for group in server.get("rules")["groups"] for rule in group["rules"]]
            series = server.get("series", **{"match[]": '{job="feedline"}'})
            [variable] = [each for each in dashboard()["templating"]["list"] if each["name"] == "pipeline"]
            metric = variable["query"]["query"].removeprefix("label_values(").partition(",")[0]
            jobs = server.get("label/pipeline/values", **{"match[]": metric})
            rows += sum(len(batch) for iterator in iterators for batch in iterator)
            assert eventually(lambda: server.total("sum(feedline_rows_total)") >= rows)
            delivered = server.total("sum(feedline_rows_total)")
            for dataset in datasets:
                dataset.close()
            for program in (worker, scheduler):
                program.send(signal.SIGTERM)
                assert program.wait() == 0
        left: list[Any] = [None]

        def are_gone() -> bool:
            left[0] = server.get("targets")["activeTargets"]
            return not left[0] and not server.query("up")

        eventually(are_gone)
        return Scraped(
            found[-1], rules, series, answers, jobs, delivered, rows, after=left[0], up_after=server.query("up")
        )


def test_every_process_is_a_target_that_is_up(scraped: Scraped):
    roles = [each["labels"]["feedline_role"] for each in scraped.targets]
    assert {role: roles.count(role) for role in roles} == PROCESSES
    assert {each["lastError"] for each in scraped.targets} == {""}
    assert {each["labels"]["job"] for each in scraped.targets} == {"feedline"}


def test_no_label_of_a_target_hides_one_of_a_metric(scraped: Scraped):
    assert len(scraped.series) > 200
    assert not [each for each in scraped.series if any(name.startswith("exported_") for name in each)]


def test_names_of_jobs_arrive_as_they_are(scraped: Scraped):
    [plain, odd] = sorted(scraped.jobs, key=len)
    assert "\n" in odd
    assert odd.startswith('a "quoted" \\ job\nof two')
    assert plain.startswith("clicks")


def test_every_query_of_the_dashboard_has_an_answer(scraped: Scraped):
    assert len(scraped.answers) >= 30
    assert not [query for query, answer in scraped.answers.items() if not answer]


def test_every_rule_is_healthy_and_nothing_is_alarming(scraped: Scraped):
    alerts = YAML(typ="safe").load(ROOT / "deploy/prometheus/alerts.yaml")["groups"][0]["rules"]
    assert {rule["name"] for rule in scraped.rules} == {rule["alert"] for rule in alerts}
    assert {rule["health"] for rule in scraped.rules} == {"ok"}
    assert not [rule["name"] for rule in scraped.rules if rule["state"] == "firing"]


def test_rows_are_those_that_the_trainers_had(scraped: Scraped):
    assert scraped.delivered == scraped.rows > 0


def test_nothing_is_left_when_the_run_has_ended(scraped: Scraped):
    assert (scraped.after, scraped.up_after) == ([], [])


def test_an_alert_fires_while_a_trainer_starves(place: Place, tmp_path: Path):
    """A trainer that does nothing with its batches waits for blocks all the time, then takes none, then is gone."""
    targets, has_seen = tmp_path / "targets", threading.Event()
    path = place.write("starving.yaml", metrics=str(targets), cluster={"threads": 1}, name="starving")

    def starve(dataset: FeedlineDataset) -> None:
        while not has_seen.is_set():
            for _ in dataset:
                if has_seen.is_set():
                    break

    with (
        prometheus(tmp_path, targets, impatient="FeedlineTrainerWaits") as server,
        FeedlineDataset(path) as dataset,
        ThreadPoolExecutor(1) as pool,
    ):

        def firing() -> list[dict[str, str]]:
            alerts = server.get("alerts")["alerts"]
            return [each["labels"] for each in alerts if each["state"] == "firing"]

        trainer = pool.submit(starve, dataset)
        try:
            assert eventually(firing), server.query("rate(feedline_trainer_wait_seconds_total[5s])")
            [labels] = firing()
        finally:
            has_seen.set()
        trainer.result()
        assert (labels["alertname"], labels["rank"]) == ("FeedlineTrainerWaits", "0")
        assert labels["pipeline"].startswith("starving")
        assert eventually(lambda: not firing())
