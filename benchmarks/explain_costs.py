"""Stage tables of which the costs are known, ask what would change them, change it, and measure an epoch again.

    python benchmarks/explain_costs.py               all situations, one after another: about five minutes
    python benchmarks/explain_costs.py --only lists  those whose name has this word
    python benchmarks/explain_costs.py --attached    what measuring takes with the budget of `explain --attach`

`predicted` is the gain of an epoch in CPU seconds: the part that the change saves of sampled blocks, of what an epoch
takes. `measured` is what the epoch takes less when the change was made: the feature is really dropped, the table really
rewritten. The measured gain shall lie within 25 % of the predicted one. Blocks are computed with a feeder's allocators.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Pipeline, Table
from feedline.blocks.compute import run_block
from feedline.explain.costs.cost_account import measure_costs
from feedline.explain.costs.cost_process import ATTACHED_S, measure_plan
from feedline.explain.costs.data_changes import DataChange, find_changes_of_data
from feedline.explain.costs.sampled_blocks import sample_blocks
from feedline.loader.ring.launch import feeder_environment
from feedline.planning.plan import Plan
from feedline.spec import load_spec
from feedline.warehouse.cache.cache_folder import CacheRef

WITHIN = 0.25
_MARK = "FEEDLINE_BENCHMARK_ENVIRONMENT"

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedTable:
    """A table and a pipeline in which something costs most. kind, subject: of the change that must be found; apply:
    makes it."""

    columns: Callable[[np.random.Generator, int], dict[str, Any]]
    features: Document
    kind: str
    subject: str
    apply: Callable[[DataChange, Document, Path], object]
    rows: int = 65_536
    row_group_rows: int = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """CPU seconds of an epoch, and of what it gains. found: whether the staged cost was named first of its kind."""

    name: str
    change: str
    found: bool
    epoch_s: float
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """The measured gain over the predicted one, less 1."""
        return self.measured_s / self.predicted_s - 1 if self.predicted_s else float("inf")


def lists(draw: np.random.Generator, lengths: np.ndarray, values: int) -> pa.Array:
    """Lists of random ids."""
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, draw.integers(0, values, int(offsets[-1])))


def _columns(mean: float, values: int = 2**40, tail: int = 0) -> Callable[[np.random.Generator, int], dict[str, Any]]:
    def make(draw: np.random.Generator, rows: int) -> dict[str, Any]:
        lengths = draw.geometric(1 / mean, rows)
        if tail:
            lengths[::25] = tail
        return {
            "price": draw.random(rows).astype(np.float32),
            "hist": lists(draw, lengths, values),
            "tags": lists(draw, draw.geometric(1 / 4, rows), 100),
            "clicked": draw.integers(0, 2, rows),
        }

    return make


def _features(*ops: Any) -> Document:
    return {
        "dense": {"price": [{"fill_null": 0}, "log1p"]},
        "sparse": {"hist": list(ops), "tags": [{"modulo": 100}]},
        "label": {"clicked": []},
    }


def _drop(change: DataChange, document: Document, folder: Path) -> None:
    for group in document["features"].values():
        group.pop(change.subject, None)


def _without_op(change: DataChange, document: Document, folder: Path) -> None:
    document["features"]["sparse"]["hist"] = []


def _shorten(change: DataChange, document: Document, folder: Path) -> None:
    most = int(change.how.partition("first_x: ")[2].partition("}")[0])
    document["features"]["sparse"]["hist"].insert(0, {"first_x": most})


def _rewrite(change: DataChange, document: Document, folder: Path) -> None:
    goal = "decode" if change.kind == "optimize" else "balanced"
    rows = int(change.how.rpartition(" ")[2])
    Table(document["source"]["table"]).optimize(str(folder / "rewritten"), goal=goal, row_group_rows=rows)
    document["source"]["table"] = str(folder / "rewritten")


def _cache(change: DataChange, document: Document, folder: Path) -> None:
    document["cache"] = {"dir": str(folder / "cache"), "mode": "features"}


_HASH = {"hash_bucket": 1000}
_SIGRID = {"sigrid_hash": {"salt": 1, "max_value": 1000}}
SITUATIONS: dict[str, StagedTable] = {
    "heavy lists": StagedTable(
        columns=_columns(80), features=_features(_HASH), kind="drop", subject="hist", apply=_drop
    ),
    "heavy lists, encodings": StagedTable(
        columns=_columns(80), features=_features(_HASH), kind="optimize", subject="hist", apply=_rewrite
    ),
    "long tails": StagedTable(
        columns=_columns(4, tail=600), features=_features(_HASH), kind="truncate", subject="hist", apply=_shorten
    ),
    "heavy op": StagedTable(
        columns=_columns(40, values=10**6),
        features=_features(_SIGRID),
        kind="op",
        subject="sigrid_hash of hist",
        apply=_without_op,
    ),
    "tiny row groups": StagedTable(
        columns=_columns(3),
        features=_features(_HASH),
        kind="row_groups",
        subject="256 rows per row group",
        apply=_rewrite,
        row_group_rows=256,
        rows=32_768,
    ),
    "a filled cache": StagedTable(
        columns=_columns(40), features=_features(_HASH), kind="cache", subject="all features", apply=_cache
    ),
}


def write(staged: StagedTable, folder: Path, *, files: int = 4) -> Path:
    """The staged table, and its pipeline.yaml."""
    (folder / "table").mkdir(parents=True)
    for number in range(files):
        content = pa.table(staged.columns(np.random.default_rng(number), staged.rows))
        pq.write_table(content, folder / "table" / f"{number}.parquet", row_group_size=staged.row_group_rows)
    document = {
        "version": 1,
        "name": "costs",
        "work_dir": "work",
        "source": {"table": str(folder / "table")},
        "features": staged.features,
        "batch": {"size": 1024, "tail": "drop"},
        "shuffle": {"seed": 1},
    }
    path = folder / "pipeline.yaml"
    path.write_text(json.dumps(document))
    return path


def epoch_cpu_s(plans: Sequence[Plan], rounds: int) -> list[float]:
    """CPU seconds of an epoch of each plan, every block computed and packed: the median of rounds in turn. The first
    round, which compiles and fills caches, is left out."""
    seconds: list[list[float]] = [[] for _ in plans]
    for _ in range(rounds + 1):
        for plan, own in zip(plans, seconds, strict=True):
            start = time.process_time()
            for lane in range(plan.lanes):
                for block in plan.schedule(0).blocks(lane, everything=True):
                    run_block(plan.job, plan.request(block, 0), "epoch", packed=True)
            own.append(time.process_time() - start)
    return [median(own[1:]) for own in seconds]


def judge_table(name: str, folder: Path, *, rounds: int = 5, staged: StagedTable | None = None) -> Outcome:
    """Stage a table, ask what would change its costs, and make that change."""
    staged = staged or SITUATIONS[name]
    path = write(staged, folder)
    plan = plan_of(path)
    sample = sample_blocks(plan)
    account = measure_costs(plan, sample=sample, rounds=rounds)
    changes = find_changes_of_data(plan, sample, account, rounds=rounds, only=[staged.kind])  # type: ignore[list-item]
    if not changes:
        return Outcome(name=name, change="nothing", found=False, epoch_s=0.0, predicted_s=0.0, measured_s=0.0)
    document = json.loads(path.read_text())
    staged.apply(changes[0], document, folder)
    changed = path.with_name("changed.yaml")
    changed.write_text(json.dumps(document))
    now_s, then_s = epoch_cpu_s([plan, plan_of(changed)], rounds)
    return Outcome(
        name=name,
        change=changes[0].how,
        found=changes[0].subject == staged.subject,
        epoch_s=now_s,
        predicted_s=changes[0].share * now_s,
        measured_s=now_s - then_s,
    )


def plan_of(path: Path) -> Plan:
    """The plan of a pipeline; one with a cache keeps all features."""
    plan = Pipeline.from_yaml(path).plan()
    assert isinstance(plan, Plan)
    if plan.job.cache is None:
        return plan
    ref = CacheRef(folder=plan.job.cache.folder, size=1 << 40, free=0, shared=False, write_budget=None)
    return replace(plan, job=replace(plan.job, cache=ref, auto=None))


def lines(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| situation | change | named | CPU-s of an epoch | predicted gain | measured | |"
    yield "|---|---|---|---|---|---|---|"
    for each in outcomes:
        is_right = each.found and abs(each.error) <= WITHIN
        numbers = f"{each.epoch_s:.3f} | {each.predicted_s:.3f} | {each.measured_s:.3f}"
        verdict = "right" if is_right else f"{each.error:+.0%}"
        yield f"| {each.name} | `{each.change}` | {'yes' if each.found else 'no'} | {numbers} | {verdict} |"


def attached_s(folder: Path) -> tuple[float, float]:
    """CPU seconds, and seconds, that measuring takes with the budget of an attached `explain`."""
    plan = plan_of(write(SITUATIONS["heavy lists"], folder))
    cpu_s, wall_s = time.process_time(), time.perf_counter()
    measure_plan(plan, budget_s=ATTACHED_S)
    return time.process_time() - cpu_s, time.perf_counter() - wall_s


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="situations whose name has this word")
    parser.add_argument("--rounds", type=int, default=5, help="of each measurement (default: 5)")
    parser.add_argument("--attached", action="store_true", help="measure what an attached explain takes instead")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    return parser.parse_args(arguments)


def as_feeder(folder: Path) -> None:
    """Start this program again with the environment of a feeder."""
    if _MARK in os.environ:
        return
    path = write(replace(SITUATIONS["heavy lists"], rows=64), folder)
    environment = feeder_environment(load_spec(path, {}), cores=2)
    shutil.rmtree(folder, ignore_errors=True)
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **environment, _MARK: "1"})


def main() -> None:
    """Measure, and print the table."""
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="feedline-explain-costs-"))
    as_feeder(root)
    try:
        if options.attached:
            cpu_s, wall_s = attached_s(root / "attached")
            print(f"measuring with a budget of {ATTACHED_S:g} CPU-s takes {cpu_s:.1f} CPU-s in {wall_s:.1f} s")
            return
        names = [name for name in SITUATIONS if options.only.lower() in name]
        outcomes = [judge_table(name, root / name.replace(" ", "_"), rounds=options.rounds) for name in names]
        print(json.dumps([asdict(each) for each in outcomes]) if options.json else "\n".join(lines(outcomes)))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
