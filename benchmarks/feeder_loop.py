"""What a feeder's process takes for each batch and each block when blocks are ready: its loop and its slot writers.

    python benchmarks/feeder_loop.py                 one rank, then eight: batches per second, CPU by thread
    python benchmarks/feeder_loop.py --calls         also the calls of functions and, with strace, of the system
    python benchmarks/feeder_loop.py --tiny          that it works, not a measurement

Two tables, flat (2 dense columns, 9 ids) and lists (13 dense, 26 ids, 6 lists), each in small batches of large blocks
(64 of 16,384 rows), in large batches of large blocks (4,096 of 32,768), and in blocks of one batch each (4,096 rows):
the last two differ by what blocks take. The feeder's loop runs in a process of its own, with real sessions, rings and
sockets; its cluster returns blocks that were computed before. Another process is all the trainers: it frees each slot
as soon as it is announced. Per rank one epoch; each rank reads as many batches as the others.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from feedline.blocks.compute import run_block
from feedline.blocks.request import BlockResult
from feedline.config.cluster_section import ClusterSpec
from feedline.loader.ring.channel import Channel, pair
from feedline.loader.wire.facts import FeederFacts, Hello
from feedline.loader.wire.ring_messages import BeginStream, PlanAnswer, PlanRequest
from feedline.pipeline import Pipeline
from feedline.planning.plan import Plan
from feedline.service.cluster.attempts import Submission
from feedline.service.cluster.open_cluster import LocalCluster
from feedline.service.cluster.request import ClusterRequest
from feedline.service.feeder.feeder import Feeder
from feedline.service.feeder.planner import Planner
from feedline.service.feeder.trainer_session import SessionSetup, TrainerSession
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

MEMORY_BYTES = 1 << 30
COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "flat": {"dense": 2, "ids": 9, "strings": 0, "histories": 0},
    "lists": {"dense": 13, "ids": 26, "strings": 0, "histories": 6},
}
ATTACH_S = 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """A table and how it is cut. batches: of all ranks."""

    name: str
    columns: str
    batch_rows: int
    block_rows: int
    batches: int


CASES = [
    Case(f"{columns}, {name}", columns, batch_rows, block_rows, batches)
    for columns in COLUMNS
    for name, batch_rows, block_rows, batches in (
        ("small", 64, 16_384, 16_384),
        ("large", 4096, 32_768, 1024),
        ("blocks", 4096, 4096, 1024),
    )
]


@dataclass(slots=True)
class Counts:
    """CPU seconds of the loop and of all threads; calls of Python and of compiled functions by the loop, and by slot
    writers; system calls by name (of all threads), where they were counted."""

    loop_s: float = 0.0
    all_s: float = 0.0
    frames: int = 0
    natives: int = 0
    writer_frames: int = 0
    writer_natives: int = 0
    system: Mapping[str, int] | None = None


class _Finished:
    """The task of a block that is ready."""

    def cancel(self) -> None:
        pass


class ReadyBlocks(LocalCluster):
    """A cluster whose blocks are ready. Blocks of as many rows share the rows of the first of them."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(ClusterRequest(ClusterSpec(dashboard=False), threads=2))
        schedule = plan.source.schedule(0)
        requests = [plan.request(block, 0) for lane in range(plan.lanes) for block in schedule.blocks(lane)]
        first = {request.rows: request for request in reversed(requests)}
        self._results = {rows: run_block(plan.source.job, each, "block", False) for rows, each in first.items()}
        self.blocks = len(requests)

    def start(self, submission: Submission) -> Any:
        """The block's result, at once."""
        result: BlockResult = replace(self._results[submission.request.rows], key=submission.key)
        submission.arrived(submission.key, result)
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


@contextmanager
def counting(counts: Counts, *, calls: bool, system: bool) -> Iterator[None]:
    """Count what this thread does meanwhile, which is the loop, and what threads do that it starts."""

    def of_loop(_: Any, event: str, __: Any) -> None:
        counts.frames += event == "call"
        counts.natives += event == "c_call"

    def of_writer(_: Any, event: str, __: Any) -> None:
        counts.writer_frames += event == "call"
        counts.writer_natives += event == "c_call"

    tracer = _trace_system_calls() if system else None
    if calls:
        threading.setprofile(of_writer)
        sys.setprofile(of_loop)
    began_s, all_began_s = time.thread_time(), time.process_time()
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        counts.loop_s, counts.all_s = time.thread_time() - began_s, time.process_time() - all_began_s
        if tracer is not None:
            tracer.send_signal(signal.SIGINT)
            counts.system = dict(_system_calls(tracer.communicate()[1]))


def _trace_system_calls() -> subprocess.Popen[str] | None:
    """strace on all threads of this process; None where there is none, or it may not."""
    if shutil.which("strace") is None:
        return None
    command = ["strace", "-f", "-c", "-U", "calls,name", "-p", str(os.getpid())]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    deadline_s = time.monotonic() + ATTACH_S
    while time.monotonic() < deadline_s and tracer.poll() is None:
        if f"TracerPid:\t{tracer.pid}" in Path("/proc/self/status").read_text():
            return tracer
        time.sleep(0.01)
    tracer.kill()
    tracer.wait()
    return None


def _system_calls(report: str) -> Iterator[tuple[str, int]]:
    for line in report.splitlines():
        words = line.split()
        if len(words) == 2 and words[0].isdigit() and words[1] != "total":
            yield words[1], int(words[0])


def serve(
    path: Path, sockets: Sequence[socket.socket], answer: Connection, *, calls: bool = False, system: bool = False
) -> None:
    """Serve trainers until they leave; answer with the counts, and the number of blocks. Runs in a process of its
    own."""
    plan = Pipeline.from_yaml(path, {"lanes": len(sockets)}).plan(world_size=len(sockets))
    with closing(ReadyBlocks(plan)) as cluster, closing(Planner(lambda *_: plan, job="benchmark")) as planner:
        feeder, counts = Feeder(cluster), Counts()
        about = FeederFacts(imports_s=0.0, log=None, dashboard=None, live_page=None, feeder=os.getpid())
        setup = SessionSetup(
            cluster=cluster, planner=planner, world_size=len(sockets), memory_bytes=MEMORY_BYTES, about=about
        )
        for rank, connection in enumerate(sockets):
            feeder.add(TrainerSession(Channel(connection), setup, rank=rank, wake=feeder.wake))
        with counting(counts, calls=calls, system=system):
            feeder.serve(until=lambda: not feeder.sessions)
        answer.send((counts, cluster.blocks))


def measure(path: Path, ranks: int, **count: bool) -> tuple[dict[str, float], Counts]:
    """Batches per second of so many ranks, and microseconds of CPU that each batch took, of the loop and of the other
    threads; and the counts. count: see `counting`; the times are then those of a slower loop."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    pairs = [pair() for _ in range(ranks)]
    theirs = [each for _, each in pairs]
    process = context.Process(target=serve, args=(path, theirs, there), kwargs=count, daemon=True)
    process.start()
    there.close()
    for each in theirs:
        each.close()
    batches, seconds = read_all([ours for ours, _ in pairs])
    for ours, _ in pairs:
        ours.close()
    counts, blocks = here.recv()
    process.join()
    found = {
        "ranks": ranks,
        "batches": batches,
        "blocks": blocks,
        "batches_per_s": batches / seconds,
        "loop_us": 1e6 * counts.loop_s / batches,
        "others_us": 1e6 * (counts.all_s - counts.loop_s) / batches,
    }
    return found, counts


def count_calls(path: Path, ranks: int) -> dict[str, float]:
    """Calls for each batch, as `Counts` has them, and system calls in all and of those that wake, or wait."""
    found, counts = measure(path, ranks, calls=True)
    batches = found["batches"]
    calls = {
        "calls": (counts.frames + counts.natives) / batches,
        "frames": counts.frames / batches,
        "natives": counts.natives / batches,
        "writer_calls": (counts.writer_frames + counts.writer_natives) / batches,
    }
    system = measure(path, ranks, system=True)[1].system
    if system is not None:
        calls["system_calls"] = sum(system.values()) / batches
        calls |= {name: count / batches for name, count in system.items() if count / batches >= 0.01}
    return calls


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shuffle", action="store_true", help="with the default shuffle")
    parser.add_argument("--case", action="append", choices=[each.name for each in CASES], help="(default: all)")
    parser.add_argument("--ranks", type=int, action="append", help="(default: 1 and 8)")
    parser.add_argument("--calls", action="store_true", help="count calls in two further rounds")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.add_argument("--tiny", action="store_true", help="few batches of one case, one round")
    options = parser.parse_args()
    cases = [each for each in CASES if options.case is None or each.name in options.case]
    if options.tiny:
        options.rounds, cases = 1, [replace(CASES[0], batches=800)]
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        for case in cases:
            path = write_pipeline(Path(scratch) / case.name, case, shuffled=options.shuffle)
            for ranks in options.ranks or (1, 8):
                rounds = [measure(path, ranks)[0] for _ in range(options.rounds)]
                found = {name: statistics.median(each[name] for each in rounds) for name in rounds[0]}
                if options.calls:
                    found |= count_calls(path, ranks)
                print(json.dumps({"case": case.name} | found) if options.json else describe(case, found), flush=True)
            shutil.rmtree(path.parent)
    return 0


def write_pipeline(folder: Path, case: Case, *, shuffled: bool) -> Path:
    """The case's table, and its pipeline."""
    rows, columns = case.batches * case.batch_rows, COLUMNS[case.columns]
    recipe = ClickRecipe(rows=rows, days=1, row_group_rows=case.block_rows, part_rows=4 * case.block_rows, **columns)
    generate_clicks(str(folder / "table"), recipe)
    text = clicks_pipeline(str(folder / "table"), **columns, batch_size=case.batch_rows, work_dir=str(folder))
    text = text.replace("source:\n", f"source:\n  split_rows: {case.block_rows}\n")
    (folder / "pipeline.yaml").write_text(text if shuffled else text + "shuffle: off\n")
    return folder / "pipeline.yaml"


def describe(case: Case, found: Mapping[str, float]) -> str:
    """A line of figures."""
    cpu = f"{found['loop_us']:.0f} us of the loop's CPU, {found['others_us']:.0f} us of other threads'"
    head = f"{case.name}, {found['ranks']:.0f} ranks: {found['batches_per_s']:,.0f} batches/s; for each batch {cpu}"
    if "calls" in found:
        head += f", {found['frames']:.1f} frames and {found['natives']:.1f} compiled calls of the loop"
        head += f", {found['writer_calls']:.1f} calls of slot writers"
    if "system_calls" in found:
        head += f", {found['system_calls']:.2f} system calls"
    return head


if __name__ == "__main__":
    raise SystemExit(main())
