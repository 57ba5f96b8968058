"""What the live page takes of the process that serves it: CPU time with no viewer, one, and two.

    python benchmarks/dashboard_page.py                  8 ranks, 20 s for each number of viewers
    python benchmarks/dashboard_page.py --ranks 64       a larger job
    python benchmarks/dashboard_page.py --jobs 20        a list of jobs, each with so many ranks
    python benchmarks/dashboard_page.py --seconds 1 --viewers 1 --json

A process of its own serves the page of statuses that were made beforehand, a new one of each feeder every second. A
viewer is a websocket that receives what a browser would; drawing it is the browser's own time. The target is 1 % of a
core per viewer.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from threading import Thread
from urllib.request import urlopen

import psutil
from websocket import WebSocket, create_connection

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.wire.facts import BlockStats, FeederStats
from feedline.loader.wire.run_status import FeederDecision, FeederStatus, PlanStatus, RankStatus, ReadPart
from feedline.service.page.page_server import PageServer

STATUSES = 120  # of each feeder, one a second, then from the first again
SETTLE_S = 2.0  # after a viewer has come


def job_status(job: int, ranks: int, second: int) -> FeederStatus:
    """The status of a feeder of all ranks of a job: counts that grow, decisions and findings that change seldom."""
    texts = tuple(f"feature 'dense_{each}' is not as expected in epoch {second // 60}" for each in range(4))
    plan = PlanStatus(
        plan="5f" * 16,
        snapshot="a0" * 16,
        rows=4_000_000,
        rows_dropped=0,
        steps=4000,
        batch_size=1024,
        pruning=tuple(ReadPart(what=f"row groups by stage {each}", total=100, kept=90 - each) for each in range(3)),
    )
    return FeederStatus(
        job=f"job-{job}",
        feeder=f"job-{job}-feeder",
        name=f"ranking {job}",
        pipeline="/jobs/pipeline.yaml",
        host=f"node-{job}",
        pid=1,
        version="0",
        started_s=0.0,
        now_s=float(second),
        epochs=3,
        form="scheduler",
        cores=16,
        cpu_s=second * 3.0,
        workers=8,
        threads=64,
        ranks=tuple(rank_status(rank, second, plan, texts) for rank in range(ranks)),
        decisions=tuple(
            FeederDecision(at_s=second - second % 30 - each, topic="window", text=f"rank {each}: 6 blocks in flight")
            for each in range(20)
        ),
    )


def rank_status(rank: int, second: int, plan: PlanStatus, findings: tuple[str, ...]) -> RankStatus:
    """A rank that takes about 20,000 rows/s, and waits for a third of the time."""
    rows = second * (20_000 + 17 * rank)
    delivery = BlockStats(
        blocks=rows // 65_536, rows=rows, nbytes_read=rows * 90,
        times=BlockTimes(
            read_s=second * 2.0, read_cpu_s=second * 1.5, fetch_s=second * 0.4, transform_s=second * 0.7,
            transform_cpu_s=second * 0.7, encode_s=second * 0.5, encode_cpu_s=second * 0.5,
        ),
    )  # fmt: skip
    stats = FeederStats(
        batches=rows // 1024, rows=rows, nbytes=rows * 80, wait_slots_s=second * 0.2, step=rows // 1024 % 4000,
        steps=4000, ring_slots=8, ring_free=second % 8, blocks_in_flight=4 + second % 3, window=6, threads=8,
        loop_cpu_s=second * 0.05, copy_s=second * 0.1, copy_cpu_s=second * 0.1, delivery=delivery,
    )  # fmt: skip
    return RankStatus(
        rank=rank, state="feeding", stats=stats, stalled_s=second * (0.3 + rank / 1000), step_s=0.03,
        ready=second % 8, held_bytes=50_000_000, trainer=1, trainers=1, plan=plan, findings=findings,
    )  # fmt: skip


def serve(jobs: int, ranks: int, pipe: Connection) -> None:
    """Serve the page until the pipe says something. Runs in a process of its own."""
    made = [[job_status(job, ranks, second) for job in range(jobs)] for second in range(1, STATUSES + 1)]
    began_s = time.monotonic()

    def statuses() -> Sequence[FeederStatus]:
        second = int(time.monotonic() - began_s)
        current = made[second % STATUSES]
        return [replace(each, now_s=second + 1.0) for each in current]

    with contextlib.closing(PageServer(statuses)) as page:
        page.start()
        pipe.send(page.address)
        pipe.recv()


class Viewer:
    """A page that is open: the websocket over which it is updated. nbytes, messages: received."""

    def __init__(self, address: str, job: str) -> None:
        with urlopen(f"{address}?job={job}", timeout=60) as answer:
            found = re.search(r'"token":"([^"]+)"', answer.read().decode())
        assert found is not None, "the page has no session"
        self.nbytes = self.messages = 0
        self._socket: WebSocket = create_connection(
            f"{address.replace('http', 'ws')}/ws", subprotocols=["bokeh", found[1]], timeout=60
        )
        self._reader = Thread(target=self._read, daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Leave the page."""
        self._socket.close()
        self._reader.join()

    def _read(self) -> None:
        with contextlib.suppress(Exception):  # it is closed
            while received := self._socket.recv():
                self.nbytes += len(received)
                self.messages += 1


def measure(process: psutil.Process, viewers: Sequence[Viewer], seconds: float) -> dict[str, float]:
    """The CPU time of the serving process as a part of a core, and what the viewers receive per second."""
    before, began_s = process.cpu_times(), time.monotonic()
    received = sum(each.nbytes for each in viewers), sum(each.messages for each in viewers)
    time.sleep(seconds)
    after, lasted_s = process.cpu_times(), time.monotonic() - began_s
    return {
        "viewers": len(viewers),
        "core_share": (after.user + after.system - before.user - before.system) / lasted_s,
        "bytes_per_s": (sum(each.nbytes for each in viewers) - received[0]) / lasted_s,
        "messages_per_s": (sum(each.messages for each in viewers) - received[1]) / lasted_s,
    }


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=8, help="of each job (default: 8)")
    parser.add_argument("--jobs", type=int, default=1, help="of the page; the first is looked at (default: 1)")
    parser.add_argument("--viewers", type=int, default=2, help="at most (default: 2)")
    parser.add_argument("--seconds", type=float, default=20.0, help="for each number of viewers (default: 20)")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken (default: 3)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    server = context.Process(target=serve, args=(arguments.jobs, arguments.ranks, theirs))
    server.start()
    found: list[dict[str, float]] = []
    try:
        address = ours.recv()
        process = psutil.Process(server.pid)
        urlopen(address.replace("feedline", "static/js/bokeh.min.js"), timeout=60).close()  # the page is loaded
        viewers: list[Viewer] = []  # they stay: a page that is left is updated for half a minute more
        for count in range(arguments.viewers + 1):
            viewers += [Viewer(address, "job-0")] if count else []
            time.sleep(SETTLE_S)
            found += [measure(process, viewers, arguments.seconds) for _ in range(arguments.rounds)]
        for each in viewers:
            each.close()
    finally:
        ours.send("end")
        server.join()
    shown = [_median([each for each in found if each["viewers"] == count]) for count in range(arguments.viewers + 1)]
    if arguments.json:
        print(json.dumps(shown))
        return
    for each in shown:
        per_viewer = (each["core_share"] - shown[0]["core_share"]) / max(1, each["viewers"])
        print(
            f"{each['viewers']:.0f} viewers: {each['core_share']:.2%} of a core, {per_viewer:.2%} per viewer, "
            f"{each['messages_per_s']:.1f} messages and {each['bytes_per_s'] / 1000:.1f} kB per second"
        )


def _median(rounds: Sequence[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}


if __name__ == "__main__":
    main()
