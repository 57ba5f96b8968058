"""What a feeder's process takes for each batch when its blocks are ready: its loop and its slot writers.

    python benchmarks/feeder_loop.py                 one rank, then eight: batches per second, CPU by thread
    python benchmarks/feeder_loop.py --calls         also the loop's calls of functions for each batch
    python benchmarks/feeder_loop.py --tiny          that it works, not a measurement

A flat table (2 dense columns, 9 ids) in batches of 64 rows. The feeder's loop runs in a process of its own, with real
sessions, rings and sockets; its cluster returns blocks that were computed before. Another process is all the trainers:
it frees each slot as soon as it is announced. Per rank one epoch; each rank reads as many batches as the others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import select
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from feedline.blocks.compute import run_block
from feedline.blocks.request import BlockRequest, BlockResult
from feedline.config.cluster_section import ClusterSpec
from feedline.loader.ring.channel import Channel, pair
from feedline.loader.wire.facts import FeederFacts, Hello
from feedline.loader.wire.ring_messages import BeginStream, PlanAnswer, PlanRequest
from feedline.pipeline import Pipeline
from feedline.planning.plan import Plan
from feedline.service.cluster.open_cluster import ThreadCluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import SessionSetup, TrainerSession
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

BATCH_ROWS, BLOCK_ROWS, MEMORY_BYTES = 64, 16_384, 1 << 30
FLAT = {"dense": 2, "ids": 9, "strings": 0, "histories": 0}


class _Finished:
    """The task of a block that is ready."""

    def cancel(self) -> None:
        pass


class ReadyBlocks(ThreadCluster):
    """A cluster whose blocks are ready: those of the plan's first epoch."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(ClusterRequest(ClusterSpec(dashboard=False), threads=2, early=True))
        schedule = plan.source.schedule(0)
        requests = [plan.request(block, 0) for lane in range(plan.lanes) for block in schedule.blocks(lane)]
        self._results = {request: run_block(plan.source.job, request, "block", False) for request in requests}

    dashboard = None

    def connect(self) -> None:
        """Dask is not needed."""

    def start(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        key: str,
        arrived: Callable[[str, Any], None],
        **options: Any,
    ) -> Any:
        """The block's result, at once."""
        request: BlockRequest = arguments[1]
        result: BlockResult = replace(self._results[request], key=key)
        arrived(key, result)
        return _Finished()


def read_all(channels: Sequence[Channel]) -> tuple[int, float]:
    """Be all the trainers: free each slot at once, until every epoch has ended; the batches, and their seconds."""
    poll = select.poll()
    by_descriptor = {channel.fileno(): channel for channel in channels}
    for rank, channel in enumerate(channels):
        poll.register(channel, select.POLLIN)
        channel.send_message(PlanRequest(number=1, hello=Hello(rank=rank, world_size=len(channels))))
    batches, answered, ended, began_s = 0, 0, 0, 0.0
    while ended < len(channels):
        for descriptor, _ in poll.poll():
            channel = by_descriptor[descriptor]
            while (arrival := channel.receive(wait=False)) is not None:
                if arrival[0] == b"R":
                    channel.free(arrival[2], arrival[3])
                    batches += 1
                elif arrival[0] == b"E":
                    ended += 1
                elif isinstance(arrival[1], PlanAnswer):
                    answered += 1
        if answered == len(channels):  # all begin together
            answered, began_s = -1, time.perf_counter()
            for channel in channels:
                channel.send_message(BeginStream(stream=1, epoch=0, step=0, last=True, seen=None))
    return batches, time.perf_counter() - began_s


def serve(path: Path, sockets: Sequence[socket.socket], count_calls: bool, answer: Connection) -> None:
    """Serve trainers until they leave; answer with CPU seconds of the loop and of all threads, and the loop's calls.
    Runs in a process of its own."""
    plan = Pipeline.from_yaml(path, {"lanes": len(sockets)}).plan(world_size=len(sockets))
    calls = 0

    def profile(_: Any, event: str, __: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    with closing(ReadyBlocks(plan)) as cluster, closing(Planner(lambda *_: plan, job="benchmark")) as planner:
        feeder = Feeder(cluster)
        about = FeederFacts(imports_s=0.0, log=None, dashboard=None, feeder=os.getpid())
        setup = SessionSetup(
            cluster=cluster, planner=planner, world_size=len(sockets), memory_bytes=MEMORY_BYTES, about=about
        )
        for rank, connection in enumerate(sockets):
            feeder.add(TrainerSession(Channel(connection), setup, rank=rank, wake=feeder.wake))
        began_s, all_began_s = time.thread_time(), time.process_time()
        if count_calls:
            sys.setprofile(profile)
        feeder.serve(until=lambda: not feeder.sessions)
        sys.setprofile(None)
        answer.send((time.thread_time() - began_s, time.process_time() - all_began_s, calls))


def measure(path: Path, ranks: int, *, count_calls: bool) -> dict[str, float]:
    """Batches per second of so many ranks, and what each batch took: microseconds of CPU of the loop and of the other
    threads, and with `count_calls` the loop's calls of functions (the times are then those of a slower loop)."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    pairs = [pair() for _ in range(ranks)]
    process = context.Process(
        target=serve, args=(path, [theirs for _, theirs in pairs], count_calls, there), daemon=True
    )
    process.start()
    there.close()
    for _, theirs in pairs:
        theirs.close()
    batches, seconds = read_all([ours for ours, _ in pairs])
    for ours, _ in pairs:
        ours.close()
    loop_s, all_s, calls = here.recv()
    process.join()
    found = {"ranks": ranks, "batches": batches, "batches_per_s": batches / seconds}
    return found | {
        "loop_us": 1e6 * loop_s / batches,
        "others_us": 1e6 * (all_s - loop_s) / batches,
        "calls": calls / batches,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shuffle", action="store_true", help="with the default shuffle")
    parser.add_argument("--batches", type=int, default=16_000)
    parser.add_argument("--ranks", type=int, action="append", help="(default: 1 and 8)")
    parser.add_argument("--calls", action="store_true", help="count the loop's calls in a further round")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--tiny", action="store_true", help="few batches, one round")
    options = parser.parse_args()
    if options.tiny:
        options.rounds, options.batches = 1, 800
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        path = write_pipeline(Path(scratch), options.batches, shuffled=options.shuffle)
        for ranks in options.ranks or (1, 8):
            rounds = [measure(path, ranks, count_calls=False) for _ in range(options.rounds)]
            found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
            if options.calls:
                found["calls"] = measure(path, ranks, count_calls=True)["calls"]
            print(json.dumps(found) if options.json else describe(found), flush=True)
    return 0


def write_pipeline(folder: Path, batches: int, *, shuffled: bool) -> Path:
    """A flat table of so many batches, and its pipeline."""
    rows = batches * BATCH_ROWS
    recipe = ClickRecipe(rows=rows, days=1, row_group_rows=BLOCK_ROWS, part_rows=4 * BLOCK_ROWS, **FLAT)
    generate_clicks(str(folder / "table"), recipe)
    text = clicks_pipeline(str(folder / "table"), **FLAT, batch_size=BATCH_ROWS, work_dir=str(folder))
    (folder / "pipeline.yaml").write_text(text if shuffled else text + "shuffle: off\n")
    return folder / "pipeline.yaml"


def describe(found: Mapping[str, float]) -> str:
    """A line of figures."""
    calls = f", {found['calls']:.0f} calls of the loop" if found["calls"] else ""
    cpu = f"{found['loop_us']:.0f} us of the loop's CPU, {found['others_us']:.0f} us of other threads'"
    return f"{found['ranks']:.0f} ranks: {found['batches_per_s']:,.0f} batches/s; for each batch {cpu}{calls}"


if __name__ == "__main__":
    raise SystemExit(main())
