"""Measure what the status of a feeder costs its process: gathering it once a second, packing and writing it.

Run: python benchmarks/feeder_status.py [--ranks N] [--calls N] [--json]. Sessions stand in for those of trainers, with
full counts, plans and decisions: what is measured does the same work as in a feeder. CPU time of the thread, the median
of calls. `share`: of a core, with one gathering a second and one file and message every two.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

from feedline.config import load_spec
from feedline.loader.ring.launch import FeederTask
from feedline.loader.ring.status_files import StatusFile
from feedline.loader.wire.codec import pack, unpack
from feedline.loader.wire.run_status import FeederDecision, FeederStatus, PlanStatus, ReadPart
from feedline.service.feeder.timing import TrainerPace
from feedline.service.feeder.trainer_session import FeederCounters
from feedline.service.feeder_status import StatusGatherer
from feedline.service.scheduler.job_book import ClusterSize

PIPELINE = {
    "version": 1,
    "name": "status",
    "source": {"table": "t"},
    "features": {"label": {"y": []}},
    "batch": {"size": 8},
}
DECISIONS = 50


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=8)
    parser.add_argument("--calls", type=int, default=2000)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_RUNTIME_DIR"] = folder
        found = measure(Path(folder), options.ranks, options.calls)
    print(json.dumps(found) if options.json else "\n".join(f"{name:>12} {value:,.6g}" for name, value in found.items()))


def measure(folder: Path, ranks: int, calls: int) -> dict[str, float]:
    """CPU microseconds of each part, for so many ranks."""
    spec = load_spec(PIPELINE, {"work_dir": str(folder)}, base_dir=str(folder))
    size = ClusterSize(workers=8, threads=8)
    cluster: Any = SimpleNamespace(form="pool", dask=None, dashboard=None, size=lambda: size)
    task = FeederTask(ranks=range(ranks), world_size=ranks, local_ranks=ranks, cores=8)
    gatherer = StatusGatherer(spec, cluster, task, job="j", feeder="f")
    sessions = [_session(rank) for rank in range(ranks)]
    for number in range(DECISIONS):
        text = f"rank {number}: 24 blocks in flight (before: 16), 4 ring slots: the trainer is faster than the workers"
        gatherer._decisions._last.append(FeederDecision(at_s=float(number), topic="window", text=text))
    plan = PlanStatus(
        plan="p" * 32,
        snapshot="s" * 64,
        rows=10**9,
        rows_dropped=7,
        steps=10**5,
        batch_size=8192,
        pruning=tuple(
            ReadPart(what=f"row groups by stage {n}", total=10**5, kept=10**4, nbytes=10**11) for n in range(5)
        ),
    )
    gatherer._plan = sessions[0].streams.plan, plan
    gather_us = _median_us(lambda: gatherer._gather(sessions), calls)
    status = gatherer.status
    file = StatusFile()
    found = {
        "ranks": ranks,
        "bytes": len(pack(status)),
        "gather_us": gather_us,
        "pack_us": _median_us(lambda: pack(status), calls),
        "write_us": _median_us(lambda: file.write(status), calls),
        "unpack_us": _median_us(lambda: unpack(FeederStatus, pack(status)), calls),
    }
    file.remove()
    gatherer.close()
    return {**found, "share": (found["gather_us"] + (found["pack_us"] + found["write_us"]) / 2) / 1e6}


_PLAN = object()


class _Session(SimpleNamespace):
    """Stands in for a trainer's session."""

    __hash__ = object.__hash__  # type: ignore[assignment]


def _session(rank: int) -> Any:
    counters, pace = FeederCounters(), TrainerPace()
    for step in range(50):
        pace.step(float(step), 0.0)
    return _Session(
        rank=rank,
        global_rank=rank,
        counters=counters,
        pace=pace,
        starved=False,
        planning=None,
        load=lambda: counters.load(None, starved=False),
        streams=SimpleNamespace(held_bytes=10**9, plan=_PLAN),
        monitor=SimpleNamespace(
            findings=deque([f"feature 'f{n}' is not as expected in epoch 3" for n in range(20)]),
            problems=lambda: {"expectation": 20},
        ),
        channel=SimpleNamespace(peer_pid=lambda: 4711),
    )


def _median_us(call: Callable[[], Any], calls: int) -> float:
    seconds = []
    for _ in range(calls):
        start = time.thread_time_ns()
        call()
        seconds.append(time.thread_time_ns() - start)
    return median(seconds) / 1e3


if __name__ == "__main__":
    main()
