"""Rows per second that a trainer gets: from Feedline, and from other loaders, each run in a fresh process.

Used by `dedup.py`; run as a program it is the trainer of one run, which takes batches and does nothing with them:

    python benchmarks/dedup_delivery.py CASE.json     prints one line of JSON

An epoch is delivered, and the rate is that between 20 % and 80 % of the steps, so that neither the start nor what was
fetched ahead counts. The contenders and their work are those of `floor.py`. All processes have the allocator
settings of a feeder.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from contenders import CONTENDERS, Job
from measure import measure
from shapes import SHAPES
from trainer import steady

from feedline.resources.allocators import allocator_environment

FEEDLINE = "feedline"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What one run delivers. loader: `FEEDLINE`, or a contender of `floor.py`; files: what the others read. workers:
    processes that compute Feedline's blocks (0: threads of its feeder do)."""

    loader: str
    pipeline: str
    files: tuple[str, ...] = ()
    overrides: Mapping[str, object] | None = None
    batch_size: int = 4096
    workers: int = 0
    threads: int = 1


def deliver(cases: Mapping[str, Case], rounds: int) -> dict[str, float]:
    """Run the cases in turn, `rounds` times; return median rows per second. Raises ValueError if their rows differ."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in cases}
    for number in range(rounds):
        names = list(cases)[number % len(cases) :] + list(cases)[: number % len(cases)]
        for name in names:
            runs[name].append(_run(name, cases[name]))
    rows = {run["rows"] for several in runs.values() for run in several}
    if len(rows) != 1:
        raise ValueError(f"the runs deliver different numbers of rows: got {sorted(rows)}, expected one")
    return {name: statistics.median(run["rows_per_s"] for run in several) for name, several in runs.items()}


def _run(name: str, case: Case) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        path = Path(scratch) / "case.json"
        path.write_text(json.dumps({**asdict(case), "work_dir": scratch}))
        environment = {**os.environ, **allocator_environment(case.threads)}
        environment.pop("POLARS_MAX_THREADS", None)  # that of the measuring process
        done = measure([sys.executable, str(Path(__file__).resolve()), str(path)], env=environment)
    if done.code != 0:
        raise RuntimeError(f"{name} ended with exit code {done.code}:\n{done.stderr[-4000:]}")
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return result


def feedline_epoch(case: Mapping[str, Any]) -> Callable[[Job], Iterator[Any]]:
    """An epoch of Feedline, its feeder in another process."""
    from feedline import FeedlineDataset

    overrides = {**(case["overrides"] or {}), "work_dir": case["work_dir"]}
    if case["workers"]:
        overrides["cluster"] = {"workers": case["workers"], "threads": 1}

    def loop(job: Job) -> Iterator[Any]:
        with FeedlineDataset(job.pipeline, set=overrides) as dataset:
            yield from dataset

    return loop


def train(case: Mapping[str, Any]) -> dict[str, float]:
    """Take every batch; return rows and rows per second."""
    loop = feedline_epoch(case) if case["loader"] == FEEDLINE else CONTENDERS[case["loader"]].prepare(SHAPES["lists"])
    job = Job(
        files=list(case["files"]),
        pipeline=case["pipeline"],
        batch_size=case["batch_size"],
        threads=case["threads"],
    )
    arrivals, rows = [], []
    for batch in loop(job):
        arrivals.append(time.monotonic())
        rows.append(len(batch.labels))
    return {"rows": sum(rows), "rows_per_s": steady_rate(arrivals, rows)}


def steady_rate(arrivals: list[float], rows: list[int]) -> float:
    """Rows per second between 20 % and 80 % of the steps. Raises ValueError if the run is too short."""
    rate = steady(arrivals, rows) if len(rows) >= 5 else None
    if rate is None:
        raise ValueError(f"too few batches to measure: got {len(rows)}, expected 5 or more. Give more rows or copies")
    return rate


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(json.dumps(train(json.loads(Path(sys.argv[1]).read_text()))))
