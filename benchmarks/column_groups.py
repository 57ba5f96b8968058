"""What two column groups cost beside one reader of all features: bytes, CPU and rows per second of an epoch.

    python benchmarks/column_groups.py                  4 M rows of clicks, with a filter and without; 5 rounds
    python benchmarks/column_groups.py --shuffle off    in the table's order (default: pipeline.yaml's shuffle)
    python benchmarks/column_groups.py --folder DIR     the table is kept there, and found again
    python benchmarks/column_groups.py --tiny           3,000 rows, the filter, one round: a test that it works

45 features: 13 numbers and a label in one group, 26 ids and 6 lists in the other. In each round one feeder delivers all
features, and two feeders the groups, of which this process takes a step each in turn; which of the two comes first
alternates. Bytes are those of the column chunks that blocks read: as the feeders report them, and as the plan says. CPU
is that of the feeders and of this process, from the plan to the epoch's end: what starting a feeder takes is left out,
what a second one costs from then on is not (its Dask, its loop).

The filter's columns are read by every reader, so they count twice for two: bytes and CPU of the groups are compared
with those of the reader of all *and* of the filter once more. What a filter costs is measured apart, on one thread of
this process: its columns are read, and it is evaluated. Prints medians and, in brackets, least and most of the rounds;
`--json` prints one object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import psutil

from feedline import Pipeline
from feedline.config import load_spec
from feedline.config.chosen_features import choose_features
from feedline.loader.launcher import RankInfo
from feedline.loader.rank_agreement import hello_of
from feedline.loader.ring.client import FeederClient
from feedline.loader.ring.launch import feeder_access
from feedline.planning.plan import Plan
from feedline.planning.resolve import plan_column_group
from feedline.warehouse.reading.read import ReadRequest, bytes_of, read_fragment
from feedline.warehouse.selection.select import plan_fragments
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

GROUPS = (("dense", "label"), ("categorical", "sparse"))
WHERE = "session_id % 8 != 0"  # of a column that no feature reads
GROUP_ROWS = 65_536


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An epoch of one reader, or of several in step. nbytes: that blocks read. cpu_s, rows_per_s: from the plan on."""

    nbytes: int
    cpu_s: float
    rows_per_s: float
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """A case. filter_bytes, filter_cpu_s: of reading and evaluating the filter once. planned_bytes: of the reader of
    all, and of the groups together. bytes_ratio, cpu_ratio, rate_ratio: of the groups, to the reader of all and (but
    for the rate) the filter once more; per round."""

    where: str | None
    rows: int
    filter_bytes: int
    filter_cpu_s: float
    planned_bytes: tuple[int, int]
    whole: Run
    groups: Run
    bytes_ratio: float
    cpu_ratio: tuple[float, ...]
    rate_ratio: tuple[float, ...]


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=4_000_000)
    parser.add_argument("--batch-size", type=int, default=8192)
    parser.add_argument("--shuffle", choices=["default", "off"], default="default")
    parser.add_argument("--folder", type=Path, help="of the table (default: a temporary one)")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    if options.tiny:
        options.rounds, options.rows, options.batch_size = 1, 3_000, 256
    return options


def write_pipeline(folder: Path, options: argparse.Namespace) -> Path:
    """The pipeline of a click table, which is generated unless it is there."""
    table = folder / f"clicks-{options.rows}"
    if not table.exists():
        group = min(GROUP_ROWS, options.rows // 6)
        recipe = ClickRecipe(rows=options.rows, days=2, strings=0, row_group_rows=group, part_rows=4 * group)
        generate_clicks(str(table), recipe)
    path = folder / "pipeline.yaml"
    path.write_text(clicks_pipeline(str(table), batch_size=options.batch_size, work_dir=str(folder / "work")))
    return path


def overrides_of(options: argparse.Namespace, where: str | None) -> dict[str, object]:
    shuffle: dict[str, object] = {"shuffle": "off"} if options.shuffle == "off" else {}
    return {**shuffle, "cluster.dashboard": False, **({} if where is None else {"source.where": where})}


def read(path: Path, overrides: dict[str, object], groups: Sequence[Sequence[str]]) -> Run:
    """Read an epoch, a step of each group in turn (an empty one: all features)."""
    spec, ranks = load_spec(path, overrides), RankInfo(rank=0, world_size=1, local_ranks=1, source="")
    chosen = [choose_features(spec, names) if names else () for names in groups]
    accesses = [feeder_access(spec, ranks, each) for each in chosen]
    feeds = [FeederClient(access) for access in accesses]
    try:
        answers = [feed.open(hello_of(ranks, each)) for feed, each in zip(feeds, chosen, strict=True)]
        feeders = [psutil.Process(answer.feeder.feeder) for answer in answers]
        rows, before, began = 0, _cpu_s(feeders), time.perf_counter()
        for feed, answer in zip(feeds, answers, strict=True):
            feed.begin(answer, 0, 0, last=True)
        while all(items := [feed.next() for feed in feeds]):
            rows += items[0][2]
        seconds, cpu_s = time.perf_counter() - began, _cpu_s(feeders) - before
        if any(items):
            raise AssertionError("groups had epochs of different length")
        nbytes = sum(feed.reports.stats.delivery.nbytes_read for feed in feeds)
        return Run(nbytes=nbytes, cpu_s=cpu_s, rows_per_s=rows / seconds, rows=rows)
    finally:
        for feed in feeds:
            feed.close()


def _cpu_s(feeders: Sequence[psutil.Process]) -> float:
    """CPU seconds so far of this process and of feeders."""
    times = [feeder.cpu_times() for feeder in feeders]
    return time.process_time() + sum(each.user + each.system for each in times)


def filter_cpu_s(plan: Plan, rounds: int) -> float:
    """CPU seconds of reading the filter's columns and evaluating it, on this thread; 0 without a filter."""
    if plan.source.where is None:
        return 0.0
    columns, costs = sorted(plan.source.where.columns), []
    fragments = plan_fragments(plan.source.snapshot, plan.source.selection, GROUP_ROWS)
    for _ in range(rounds):
        before = time.process_time()
        for fragment in fragments:
            for _chunk in read_fragment(fragment, ReadRequest(columns, plan.source.snapshot.schema, plan.source.where)):
                pass
        costs.append(time.process_time() - before)
    return statistics.median(costs)


def measure(path: Path, options: argparse.Namespace, where: str | None) -> Figures:
    """All rounds of a case."""
    overrides, whole, groups = overrides_of(options, where), [], []
    plan = Pipeline.from_yaml(path, overrides).plan()
    for turn in range(options.rounds):
        for each in ("whole", "groups") if turn % 2 == 0 else ("groups", "whole"):
            if each == "whole":
                whole.append(read(path, overrides, [()]))
            else:
                groups.append(read(path, overrides, GROUPS))
    kept = np.flatnonzero(plan.source.selection.rows < plan.source.snapshot.rows_per_row_group)
    columns = [] if plan.source.where is None else sorted(plan.source.where.columns)
    filter_bytes = bytes_of(plan.source.snapshot, None, columns) if len(kept) else 0
    filter_s = filter_cpu_s(plan, options.rounds)
    apart = sum(int(plan_column_group(plan, names).source.row_group_bytes.sum()) for names in GROUPS)
    if {run.rows for run in (*whole, *groups)} != {whole[0].rows}:
        raise AssertionError("groups and the reader of all features had different rows")
    return Figures(
        where=where,
        rows=int(plan.source.selection.rows.sum()),
        filter_bytes=filter_bytes,
        filter_cpu_s=filter_s,
        planned_bytes=(int(plan.source.row_group_bytes.sum()), apart),
        whole=_median(whole),
        groups=_median(groups),
        bytes_ratio=groups[0].nbytes / (whole[0].nbytes + filter_bytes),
        cpu_ratio=tuple(two.cpu_s / (one.cpu_s + filter_s) for one, two in zip(whole, groups, strict=True)),
        rate_ratio=tuple(two.rows_per_s / one.rows_per_s for one, two in zip(whole, groups, strict=True)),
    )


def _median(runs: Sequence[Run]) -> Run:
    return Run(
        nbytes=runs[0].nbytes,
        cpu_s=statistics.median(run.cpu_s for run in runs),
        rows_per_s=statistics.median(run.rows_per_s for run in runs),
        rows=runs[0].rows,
    )


def describe(figures: Figures) -> str:
    """The figures of a case, as lines."""
    one, two = figures.whole, figures.groups
    lines = [f"{figures.rows:,} rows, {'no filter' if figures.where is None else f'where {figures.where}'}"]
    if figures.where is not None:
        lines.append(f"  filter, once: {figures.filter_bytes:,} bytes, {figures.filter_cpu_s:.3f} CPU-s")
    for name, run, planned in (("all", one, figures.planned_bytes[0]), ("groups", two, figures.planned_bytes[1])):
        rate = f"{run.cpu_s:.2f} CPU-s, {run.rows_per_s / 1e3:,.0f} K rows/s"
        lines.append(f"  {name}: {run.nbytes:,} bytes read of {planned:,} planned, {rate}")
    lines.append(
        f"  groups, of all: bytes {figures.bytes_ratio:.3f}, CPU {_spread(figures.cpu_ratio)}, rows/s "
        f"{_spread(figures.rate_ratio)}"
    )
    return "\n".join(lines)


def _spread(ratios: Sequence[float]) -> str:
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"


def main(arguments: Sequence[str]) -> int:
    """Run the program; return the exit status."""
    options = parse(arguments)
    with tempfile.TemporaryDirectory(prefix="feedline-bench-") as scratch:
        path = write_pipeline(options.folder or Path(scratch), options)
        found = [measure(path, options, where) for where in ([WHERE] if options.tiny else [None, WHERE])]
    print(json.dumps([asdict(each) for each in found]) if options.json else "\n".join(map(describe, found)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
