"""Run `feedline run`: feed trainers, or drain its own rings, until done or interrupted.

Runs in: the process of the command. SIGINT and SIGTERM set a flag that every loop checks; all child processes have
ended before the command returns with 130 or 143.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from itertools import repeat
from operator import itemgetter
from typing import Any

from rich.console import Console
from rich.table import Table

from feedline.commands.consoles import say
from feedline.commands.exit_status import Stop
from feedline.commands.live_table import Counters, LiveTable, RankView, RecentRates
from feedline.config import PipelineSpec
from feedline.dataclass import dataclass
from feedline.errors import PlanError, SpecError
from feedline.loader.encoding.cache_counts import CacheCounts
from feedline.loader.encoding.quality import Quality, measures, merge
from feedline.loader.launcher import detect_rank, meeting_name
from feedline.loader.plan_descriptions import describe_bad_files, summary_of
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.ring.launch import FeederAccess, FeederCommand, FeederTask, HostLaunch, feeder_command
from feedline.loader.ring.rendezvous import job_fingerprint, socket_paths, sweep
from feedline.loader.wire.facts import (
    BadFileFacts,
    BlockStats,
    FeederEvent,
    FeederFacts,
    FeederStats,
    Hello,
    PlanFacts,
    SourceFacts,
)
from feedline.loader.wire.run_status import planning_state
from feedline.native.kernels import compiled_kernels, missing_kernels
from feedline.resources.cgroups import available_cores, rank_cores
from feedline.service.drain import DrainProgress, start_draining, stop_draining
from feedline.service.feeder.supervisor import RankReports, SupervisedFeeder, Supervisor

# --------------------------------------------------------------------------------------------------------------------
# Render the quality report as a table: a row per feature, or per noticeable feature. Measures: see
# `loader/encoding/quality`.

# With more features than this, only the most noticeable are shown.
_MAX_FEATURES = 24

Measures = Mapping[str, Any]


def quality_table(quality: Mapping[str, Measures], limit: int = _MAX_FEATURES) -> Table:
    """Render the measures of up to `limit` features: all, or those with most non-finite, unknown and null values."""
    rows = max((measures["rows"] for measures in quality.values()), default=0)
    table = Table(title=f"quality of {rows:,} rows", title_justify="left", caption_justify="left", expand=False)
    for name in ("feature", "group", "null", "min", "max", "not finite", "unknown", "length p50", "p99", "longest"):
        table.add_column(name, justify="left" if name in ("feature", "group") else "right", no_wrap=True)
    names = list(quality) if len(quality) <= limit else _noticeable(quality)[:limit]
    for name in names:
        measures = quality[name]
        table.add_row(
            name,
            measures["group"],
            _share(measures["null_rate"]),
            _number(measures.get("min")),
            _number(measures.get("max")),
            _share(measures.get("nonfinite_rate")),
            _share(measures.get("oov_rate")),
            *(_number(measures.get(f"list_length_{part}")) for part in ("p50", "p99", "max")),
        )
    if len(names) < len(quality):
        table.caption = f"{len(names)} of {len(quality):,} features, the most noticeable first: --json has all"
    return table


def _noticeable(quality: Mapping[str, Measures]) -> list[str]:
    """Sort the features by their largest share of non-finite, unknown or null values, descending."""

    def worst_rate(name: str) -> float:
        measures = quality[name]
        return max(measures.get(rate) or 0.0 for rate in ("nonfinite_rate", "oov_rate", "null_rate"))

    return sorted(quality, key=worst_rate, reverse=True)


def _share(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if value == 0 or value >= 0.0001 else "< 0.01%"


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


# --------------------------------------------------------------------------------------------------------------------

_POLL_S = 0.25
_WAIT_SHARE = 0.1  # share of recent time from which a side is shown as waiting


@dataclass(slots=True)
class RunSummary:
    """Summary of a run over all ranks of this host. bytes_read: of compressed column chunks."""

    rows: int = 0
    batches: int = 0
    seconds: float = 0.0
    rows_per_s: float = 0.0
    wait_fraction: float | None = 0.0
    bytes_read: int = 0
    bytes_delivered: int = 0
    epochs: int = 0
    steps: int = 0
    rows_dropped: int = 0
    ranks: list[int] = field(default_factory=list)
    snapshot: str | None = None
    plan: str | None = None
    dashboard: str | None = None  # Dask's
    live_page: str | None = None
    bad_files: tuple[BadFileFacts, ...] = ()  # left out of the plan
    quality: dict[str, dict[str, Any]] = field(default_factory=dict)  # measures by feature, see docs/quality.md
    cached: CacheCounts | None = None  # None: no cache
    sources: tuple[SourceFacts, ...] = ()  # with the passes of an epoch, of several sources
    kernels: tuple[str, ...] = compiled_kernels()  # of this installation

    def add_plan(self, plan: PlanFacts) -> None:
        """Add the plan that was delivered."""
        self.rows_dropped, self.bad_files = plan.rows_dropped, plan.bad_files
        self.snapshot, self.plan, self.sources = plan.snapshot, plan.plan, plan.sources

    def add_blocks(self, blocks: BlockStats) -> None:
        """Add the blocks of a feeder."""
        self.bytes_read += blocks.nbytes_read
        if blocks.cached is not None:
            self.cached = (self.cached or CacheCounts()) + blocks.cached


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRequest:
    """A pipeline, the ranks of this host, and the number of ranks in all. column_group: the features to deliver, if not
    all."""

    spec: PipelineSpec
    ranks: Sequence[int]
    world_size: int
    column_group: tuple[str, ...] = ()


def run_null(request: RunRequest, console: Console, stop: Stop) -> RunSummary:
    """Drain every rank through its ring for `epochs` epochs. Raises what a feeder raised."""
    if complaint := missing_kernels():  # feeders' logs are not shown
        say(console, f"warning: {complaint}")
    feeds = {rank: FeederClient(access) for rank, access in feeder_accesses(request).items()}
    views: list[DrainProgress] = []
    start_printed = False
    began = time.perf_counter()
    try:
        for feed in feeds.values():
            feed.start()
        for rank, feed in feeds.items():
            first = 0 if request.spec.is_followed else None
            group = request.column_group
            hello = Hello(rank=rank, world_size=request.world_size, column_group=group, epoch=first)
            views.append(start_draining(feed, hello, rank=rank, epochs=request.spec.epochs, stop=stop))
        rates = [RecentRates() for _ in views]
        with LiveTable(console, title=request.spec.name) as progress:
            while not stop() and not all(view.done for view in views):
                time.sleep(_POLL_S)
                if not start_printed and views[0].answer is not None:
                    start_printed = True
                    _print_start(console, views[0].answer)
                _print_warnings(console, views)
                progress.show(list(map(drain_view, views, rates, repeat(request.spec.epochs))))
            if stop():
                _stop_all(feeds.values(), views)
            progress.show(list(map(drain_view, views, rates, repeat(request.spec.epochs))), force=True)
        _print_warnings(console, views)
    finally:
        _stop_all(feeds.values(), views)
        for feed in feeds.values():
            feed.close()
    return _summary(views, time.perf_counter() - began, request)


def _stop_all(feeds: Iterable[FeederClient], views: Sequence[DrainProgress]) -> None:
    """Interrupt the drains that have begun, and wait for them."""
    for feed, view in zip(feeds, views, strict=False):
        stop_draining(feed, view)


def run_trainers(request: RunRequest, console: Console, stop: Stop) -> RunSummary:
    """Run feeders for trainers until every rank's trainer has finished its epochs, or a signal comes."""
    groups = [request.ranks] if request.spec.feeder == "host" else [[rank] for rank in request.ranks]
    supervisor = Supervisor(
        [SupervisedFeeder([RankReports(rank) for rank in ranks], _feeder_command(request, ranks)) for ranks in groups],
        stop,
    )
    began = time.perf_counter()
    try:
        supervisor.start()
        rates = [RecentRates() for _ in supervisor.ranks]
        with LiveTable(console, title=request.spec.name) as progress:
            while not stop() and not all(_has_finished(rank, request.spec.epochs) for rank in supervisor.ranks):
                for ranks, event in supervisor.poll(_POLL_S):
                    _print_event(console, ranks, event)
                    if event.plan is not None and event.rank == request.ranks[0]:
                        _print_findings(console, event.plan)
                progress.show(list(map(trainer_view, supervisor.ranks, rates, repeat(request.spec.epochs))))
    finally:
        supervisor.close()
        for number in request.ranks:  # left behind by a feeder that was killed
            for path in socket_paths(job_fingerprint(request.spec, request.column_group), number, request.world_size):
                sweep(path)
    summary = RunSummary(seconds=time.perf_counter() - began, ranks=list(request.ranks), epochs=request.spec.epochs)
    waited_s = 0.0
    for rank in supervisor.ranks:
        summary.dashboard = summary.dashboard or rank.dashboard
        summary.live_page = summary.live_page or rank.live_page
        if rank.plan is not None and summary.plan is None:
            summary.add_plan(rank.plan)
        for stats in [*rank.past_stats, *([rank.stats] if rank.stats is not None else [])]:
            summary.rows += stats.rows
            summary.batches += stats.batches
            summary.bytes_delivered += stats.nbytes
            summary.add_blocks(stats.delivery)
            summary.steps = stats.steps
            waited_s += stats.wait_blocks_s / len(request.ranks)
    summary.wait_fraction = min(1.0, waited_s / max(summary.seconds, 1e-9))
    summary.rows_per_s = summary.rows / summary.seconds
    plan = next((rank.plan for rank in supervisor.ranks if rank.plan is not None), None)
    summary.quality = _measures(plan, [counted for rank in supervisor.ranks for counted in rank.quality])
    return summary


def _measures(plan: PlanFacts | None, parts: Sequence[Quality]) -> dict[str, dict[str, Any]]:
    """The measures of what all ranks of this host delivered."""
    return {} if plan is None or not parts else measures(merge(parts), plan.schema)


def _feeder_command(request: RunRequest, ranks: Sequence[int]) -> FeederCommand:
    """A feeder of these ranks, or, of none, one whose trainers name them."""
    local_ranks = len(request.ranks)
    cores = rank_cores(local_ranks) if len(ranks) == 1 else available_cores()
    task = FeederTask(
        ranks=ranks,
        world_size=request.world_size,
        local_ranks=local_ranks,
        cores=cores,
        column_group=request.column_group,
        epochs=request.spec.epochs,
    )
    return feeder_command(request.spec, task)


def feeder_accesses(request: RunRequest) -> dict[int, FeederAccess]:
    """How each rank that is drained gets its feeder."""
    host = None
    if request.spec.feeder == "host" and len(request.ranks) > 1:
        name, round = meeting_name(f"run-{os.getpid()}", request.world_size, {})
        host = HostLaunch(name=name, round=round, command=_feeder_command(request, ()))
    return {rank: FeederAccess(command=_feeder_command(request, [rank]), host=host) for rank in request.ranks}


def _print_start(console: Console, answer: Answer) -> None:
    facts = answer.facts
    if pages := _pages(answer.feeder):
        say(console, pages)
    counts = f"{facts.rows:,} rows, {facts.steps:,} steps per rank and epoch, {facts.rows_dropped:,} rows dropped"
    say(console, f"plan {facts.plan[:12]}: {counts}")
    for source in facts.sources:
        share = f"{source.batch_rows:,} of {facts.batch_size:,} rows of a lane's step"
        say(console, f"source {source.name}: {share}, {source.rows:,} rows, {source.passes:.3g} passes per epoch")
    _print_findings(console, facts)


def _pages(feeder: FeederFacts | FeederEvent) -> str:
    """The addresses of the live page and, where there is one, of Dask's dashboard."""
    pages = {"live page": feeder.live_page, "Dask dashboard": feeder.dashboard}
    return ", ".join(f"{name}: {address}" for name, address in pages.items() if address)


def _print_findings(console: Console, facts: PlanFacts) -> None:
    """Print bad files, nulls that features cannot hold, and columns that files lack."""
    bad_files = [describe_bad_files(facts.bad_files)] if facts.bad_files else []
    nulls = [f"warning: {text}" for text in facts.nulls]
    for text in (*bad_files, *nulls, *facts.absent):
        say(console, text)


def _print_warnings(console: Console, views: Sequence[DrainProgress]) -> None:
    """Print the drains' new warnings; raises the error of one that failed."""
    for view in views:
        while view.warnings:
            say(console, f"warning: rank {view.rank}: {view.warnings.pop(0)}")
        if view.error is not None:
            raise view.error


def _print_event(console: Console, ranks: str, event: FeederEvent) -> None:
    pages = _pages(event)
    texts = {
        "ready": f"{ranks}: waiting for a trainer" + (f". {pages}" if pages else ""),
        "trainer": f"{ranks}: trainer {event.pid} attached",
        "left": f"{ranks}: trainer left" + (f" after {event.error}" if event.error else ""),
        "died": f"{ranks}: feeder died (exit status {event.status}), starting another",
    }
    if event.type in texts:
        say(console, texts[event.type])


def _has_finished(rank: RankReports, epochs: int) -> bool:
    """Whether a trainer of this rank has finished its last epoch and disconnected."""
    return any(stats.epochs >= epochs for stats in rank.past_stats)


def drain_view(view: DrainProgress, recent: RecentRates, epochs: int) -> RankView:
    """The display of a drained rank; a finished one shows the rate of its whole run."""
    change = recent.add(Counters(rows=view.rows, batches=view.batches))
    return RankView(
        rank=view.rank,
        state=_drain_state(view),
        epoch=view.epoch,
        epochs=epochs,
        step=view.step,
        steps=view.answer.facts.steps if view.answer is not None else 0,
        rows=view.rows,
        rows_per_s=view.rows / view.seconds if view.done and view.seconds else change.rows_per_s,
        batches_per_s=change.batches_per_s,
        ring_fill=view.ring_fill,
        waits="",  # there is no trainer
        blocks=_blocks(view.feeder),
        found=_found(view.feeder),
        planning=view.planning,
    )


def _drain_state(view: DrainProgress) -> str:
    if view.done:
        return "stopped" if view.stopped else "done"
    return planning_state(view.planning) if view.planning is not None or not view.batches else "feeding"


def trainer_view(rank: RankReports, recent: RecentRates, epochs: int) -> RankView:
    """The display of a rank that serves a trainer, or waits for one."""
    stats = rank.stats or FeederStats()
    counters = Counters(
        rows=stats.rows, batches=stats.batches, trainer_s=stats.wait_blocks_s, feeder_s=stats.wait_slots_s
    )
    change = recent.add(counters)
    waiting = max(("feeder", change.feeder), ("trainer", change.trainer), key=itemgetter(1))
    state = "feeding" if rank.planning is None else planning_state(rank.planning)
    return RankView(
        rank=rank.rank,
        state=state if rank.trainer else "waiting",
        epoch=stats.epoch,
        epochs=epochs,
        step=stats.step,
        steps=stats.steps,
        rows=counters.rows,
        rows_per_s=change.rows_per_s,
        batches_per_s=change.batches_per_s,
        ring_fill=1 - stats.ring_free / stats.ring_slots if stats.ring_slots else None,
        waits=waiting[0] if waiting[1] > _WAIT_SHARE else "",
        blocks=_blocks(rank.stats),
        found=_found(rank.stats),
        planning=rank.planning,
    )


def _blocks(stats: FeederStats | None) -> str:
    """The blocks in flight and their limit; "" before it is decided."""
    return f"{stats.blocks_in_flight}/{stats.window}" if stats is not None and stats.window else ""


def _found(stats: FeederStats | None) -> float | None:
    """The share of features that blocks found in the cache; None without a cache."""
    cached = stats.delivery.cached if stats is not None else None
    return cached.found_share if cached is not None else None


def _summary(views: Sequence[DrainProgress], seconds: float, request: RunRequest) -> RunSummary:
    longest = max(view.seconds for view in views)
    rows = sum(view.rows for view in views)
    summary = RunSummary(
        rows=rows,
        batches=sum(view.batches for view in views),
        seconds=longest or seconds,
        rows_per_s=rows / longest if longest else 0.0,
        wait_fraction=None,  # there is no trainer
        bytes_delivered=sum(view.nbytes for view in views),
        epochs=request.spec.epochs,
        ranks=list(request.ranks),
    )
    for view in views:
        if view.feeder is not None:
            summary.add_blocks(view.feeder.delivery)
    if (answer := views[0].answer) is not None:
        summary.add_plan(answer.facts)
        summary.steps = answer.facts.steps
        summary.dashboard, summary.live_page = answer.feeder.dashboard, answer.feeder.live_page
        summary.quality = _measures(answer.facts, [view.quality for view in views if view.quality])
    return summary


def print_summary(summary: RunSummary, console: Console) -> None:
    """Print what a run did: rows, rates, waiting, skipped files, quality."""
    share = summary.wait_fraction
    waited = "there was no trainer" if share is None else f"the trainer waited {share:.0%} of the time"
    text = (
        f"{summary.rows:,} rows in {summary.batches:,} batches, {summary.seconds:.1f} s, "
        f"{summary.rows_per_s:,.0f} rows/s; read {summary.bytes_read:,} bytes, delivered "
        f"{summary.bytes_delivered:,}; {waited}"
    )
    say(console, text)
    for source in summary.sources:
        say(console, f"source {source.name}: {source.passes:.3g} passes through {source.rows:,} rows in each epoch")
    if summary.cached is not None:
        say(console, summary.cached.describe())
    if summary.bad_files:
        console.print(summary_of(summary.bad_files), highlight=False)
    if summary.quality:
        console.print(quality_table(summary.quality))


def _refuse_launcher() -> None:
    """Refuse to guess the ranks of this host under a launcher, whose tasks may be hosts rather than trainers."""
    try:
        detected = detect_rank(rank=None, world_size=None, distributed=None, environment=os.environ)
        rank = f"rank {detected.rank} of {detected.world_size} ({detected.source})"
        launcher = rank if detected.world_size > 1 else None
    except PlanError as error:
        launcher = str(error)
    if launcher is not None:
        raise SpecError(
            f"--ranks and --world-size are missing under a launcher: got {launcher}, expected the ranks of this host. "
            "Give both; --world-size 1 for an independent run"
        )


def parse_ranks(text: str | None, world_size: int | None) -> list[int]:
    """Parse "0-7" or "0,2,5" (default: all ranks below `world_size`, or rank 0)."""
    if text is None:
        if world_size is None:
            _refuse_launcher()
        return list(range(world_size or 1))
    ranks: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()) or (dash and int(last) < int(first)):
            raise SpecError(f"--ranks is not a list of ranks: got {text!r}, expected one such as 0-7 or 0,2")
        ranks += range(int(first), int(last or first) + 1)
    size = world_size or max(ranks) + 1
    if len(set(ranks)) != len(ranks) or max(ranks) >= size:
        raise SpecError(f"--ranks does not fit --world-size: got {text!r}, expected distinct ranks below {size}")
    return ranks
