"""The cost of a scrape of a feeder's metrics.

    python benchmarks/metrics_scrape.py             8 ranks, with a cache
    python benchmarks/metrics_scrape.py --ranks 64

Serves the metrics of a status as a feeder does, scrapes them over HTTP in the format and compression that Prometheus
asks for, prints the CPU time of the process that answers and the time to the answer (medians, in milliseconds), series
and bytes; `--json` prints one object. The target is 60 ms for 64 ranks. Each scrape finds other numbers, as it does in
a run.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from feedline.config.monitoring_section import MetricsSpec
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederStatus, PlanStatus, RankStatus
from feedline.service.monitoring.feeder_metrics import FEEDER_METRICS
from feedline.service.monitoring.prometheus_server import serve_metrics

_HEADERS = {
    "Accept": "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
    "Accept-Encoding": "gzip",
}
# Numbers that differ from scrape to scrape.
_STATUSES = 5


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def status_of(ranks: int, generator: random.Random) -> FeederStatus:
    """A feeder in the middle of an epoch, with all that it may count, and numbers drawn."""
    plan = PlanStatus(plan="p", snapshot="s", rows=10**9, rows_dropped=77, steps=10**5, batch_size=8192)

    def drawn(value: Any, **others: Any) -> Any:
        """The value with other numbers, in the fields that are numbers and not among the given ones."""
        numbers: dict[str, Any] = {}
        for field in fields(value):
            before = getattr(value, field.name)
            if field.name not in others and type(before) in (int, float):
                number = generator.expovariate(1e-6)
                numbers[field.name] = int(number) if type(before) is int else number
        return replace(value, **numbers, **others)

    each = []
    for rank in range(ranks):
        delivery = drawn(BlockStats(), cached=drawn(CacheCounts()))
        problems = {kind: generator.randrange(10**6) for kind in ("null", "nonfinite", "unknown", "expectation")}
        status = RankStatus(rank=rank, state="feeding", stats=drawn(FeederStats(), delivery=delivery))
        each.append(drawn(status, rank=rank, plan=plan, problems=problems))
    now_s = time.time()
    return FeederStatus(
        job="clicks-1234abcd",
        feeder="host-7",
        name="clicks",
        pipeline="pipeline.yaml",
        host="host",
        pid=7,
        version="0.1.0",
        started_s=now_s,
        now_s=now_s,
        epochs=1,
        form="threads",
        cores=8.0,
        cpu_s=1.0,
        workers=1,
        threads=8,
        ranks=tuple(each),
    )


def measure(ranks: int, scrapes: int) -> dict[str, float]:
    """Scrape so many times. CPU time is that of this process, less that of asking."""
    generator = random.Random(0)
    statuses = itertools.cycle([status_of(ranks, generator) for _ in range(_STATUSES)])
    took_s, cpu_s = list[float](), list[float]()
    with serve_metrics(MetricsSpec(), FEEDER_METRICS, lambda: next(statuses), {}) as address:
        for _ in range(scrapes):
            connection = http.client.HTTPConnection(address, timeout=60)
            begun_s, begun_cpu_s, asking_s = time.perf_counter(), time.process_time(), time.thread_time()
            connection.request("GET", "/metrics", headers=_HEADERS)
            answer = connection.getresponse().read()
            connection.close()
            asking_s = time.thread_time() - asking_s
            took_s.append(time.perf_counter() - begun_s)
            cpu_s.append(time.process_time() - begun_cpu_s - asking_s)
    content = gzip.decompress(answer)
    series = sum(not line.startswith("#") for line in content.decode().splitlines())
    return {
        "ranks": ranks,
        "series": series,
        "bytes": len(content),
        "sent_bytes": len(answer),
        "cpu_ms": round(statistics.median(cpu_s) * 1e3, 3),
        "answer_ms": round(statistics.median(took_s) * 1e3, 3),
    }


def main(arguments: Sequence[str]) -> None:
    """Measure and print."""
    options = parse(arguments)
    found = measure(options.ranks, options.scrapes)
    if options.json:
        print(json.dumps(found))
    else:
        print(
            f"{options.ranks} ranks: {found['series']} series, {found['bytes']:,} bytes, {found['sent_bytes']:,} sent: "
            f"{found['cpu_ms']:.2f} ms of CPU time, answered in {found['answer_ms']:.2f} ms"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
