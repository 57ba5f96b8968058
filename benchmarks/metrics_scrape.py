"""The cost of a scrape of a feeder's metrics.

    python benchmarks/metrics_scrape.py             8 ranks, with a cache
    python benchmarks/metrics_scrape.py --ranks 64

Serves the metrics of a status as a feeder does, scrapes them over HTTP in the format that Prometheus asks for, prints
the CPU time of the process that answers and the time to the answer (medians, in milliseconds), series and bytes;
`--json` prints one object. The target is 5 ms for the ranks of a host.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import time
from collections.abc import Sequence

from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederStatus, PlanStatus, RankStatus
from feedline.service.monitoring.feeder_metrics import FEEDER_METRICS
from feedline.service.monitoring.metric_server import StateCollector, serve_metrics
from feedline.spec.monitoring_section import MetricsSpec

_FORMAT = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--scrapes", type=int, default=200)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args(arguments)


def status_of(ranks: int) -> FeederStatus:
    """A feeder in the middle of an epoch, with all that it may count."""
    plan = PlanStatus(plan="p", snapshot="s", rows=10**9, rows_dropped=77, steps=10**5, batch_size=8192)
    cached = CacheCounts(found=123_456, computed=654, nbytes_read=10**12, nbytes_written=10**9, waited_s=1.23456)
    delivery = BlockStats(blocks=12_345, nbytes_read=10**12, read_s=1234.5678, transform_s=234.5678, cached=cached)
    stats = FeederStats(batches=54_321, rows=54_321 * 8192, nbytes=10**12, steps=10**5, delivery=delivery)
    problems = {"null": 12_345_678, "nonfinite": 0, "unknown": 87_654, "expectation": 1}
    each = [
        RankStatus(rank=rank, state="feeding", stats=stats, stalled_s=12.345678, plan=plan, problems=problems)
        for rank in range(ranks)
    ]
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
    status = status_of(ranks)
    took_s, cpu_s = list[float](), list[float]()
    with serve_metrics(MetricsSpec(), StateCollector(FEEDER_METRICS, lambda: status), {}) as server:
        connection = http.client.HTTPConnection(server.address, timeout=60)
        for _ in range(scrapes):
            begun_s, begun_cpu_s, asking_s = time.perf_counter(), time.process_time(), time.thread_time()
            connection.request("GET", "/metrics", headers={"Accept": _FORMAT})
            content = connection.getresponse().read()
            asking_s = time.thread_time() - asking_s
            took_s.append(time.perf_counter() - begun_s)
            cpu_s.append(time.process_time() - begun_cpu_s - asking_s)
        connection.close()
    series = sum(not line.startswith("#") for line in content.decode().splitlines())
    return {
        "ranks": ranks,
        "series": series,
        "bytes": len(content),
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
            f"{options.ranks} ranks: {found['series']} series, {found['bytes']:,} bytes: "
            f"{found['cpu_ms']:.2f} ms of CPU time, answered in {found['answer_ms']:.2f} ms"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
