"""Stage situations of which the bottleneck is known, ask for the verdict, take its first advice, and measure again.

    python benchmarks/explain.py                 all situations, one after another: about five minutes
    python benchmarks/explain.py --only STORE    those whose name has this word
    python benchmarks/explain.py --attached      the cost of an attached `feedline explain`

Sleeps stand for slow stores, trainers and starved workers, so that they are the same on every machine. `predicted` and
`measured` are rows per second after the advice over those before it. The verdict must name the staged limit and stage;
the measured gain shall lie within 25 % of the predicted one. Predictions of CPU need a machine without other work.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from slow_store import slow_store

from feedline.commands.run import RunRequest, feeder_accesses
from feedline.explain.explanation import Explanation
from feedline.explain.short_run import run_shortly
from feedline.loader.limits.advice import Advice
from feedline.loader.limits.verdict import Verdict
from feedline.resources.cgroups import available_cores
from feedline.spec import load_spec

WITHIN = 0.25
_WARM_UP = 4  # of ten samples
_OPS = '''"""An op that waits: it stands for a worker that computes for so long."""

import time


def waiting(values, seconds):
    time.sleep(seconds)
    return values
'''


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """A pipeline in which something is the limit. limit, stage: that the verdict must name. step_s: of its trainer
    (None: none). apply: what the first advice changes: keys of pipeline.yaml, by a dotted name; None where it is more
    than keys. cores: that it may use (0: all)."""

    document: Mapping[str, Any]
    limits: Sequence[str]
    stages: Sequence[str]
    step_s: float | None = None
    apply: Callable[[Advice | None], Mapping[str, object]] = field(default=lambda advice: keys_of(advice))
    kind: str | None = None  # of the advice to take (None: the first)
    cores: int = 0
    cores_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What was said of a situation, and what came of it."""

    name: str
    verdict: Verdict
    advice: Advice | None
    named: bool  # whether the verdict names the staged limit
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """The measured gain over the predicted one, less 1."""
        return self.measured / self.predicted - 1 if self.predicted else float("inf")

    @property
    def is_right(self) -> bool:
        """Whether the verdict names the bottleneck, and the gain is as predicted."""
        return self.named and abs(self.error) <= WITHIN


def keys_of(advice: Advice | None) -> dict[str, object]:
    """The keys of an advice's change, by dotted names: `cluster: {threads: 4}` is {"cluster.threads": 4}."""
    return {} if advice is None else _dotted(yaml.safe_load(advice.change))


def _dotted(value: Mapping[str, Any], head: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for name, each in value.items():
        found |= _dotted(each, f"{head}{name}.") if isinstance(each, Mapping) else {f"{head}{name}": each}
    return found


def table(folder: Path, *, files: int = 4, rows: int = 65_536, row_group: int = 8_192) -> Path:
    """A table of a float, a list of ids and a label."""
    draw = np.random.default_rng(7)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(files):
        offsets = np.concatenate([[0], np.cumsum(draw.integers(0, 12, rows))]).astype(np.int32)
        lists = pa.ListArray.from_arrays(offsets, draw.integers(0, 100_000, offsets[-1]))
        columns = {"x": draw.random(rows, np.float32), "ids": lists, "y": draw.integers(0, 2, rows).astype(np.float32)}
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", row_group_size=row_group)
    return folder


def pipeline(folder: Path, uri: str | Path, *, waits_s: float = 0.0, **changes: Any) -> dict[str, Any]:
    """A pipeline over the table; waits_s: that an op sleeps per block."""
    ops: list[Any] = [{"fill_null": 0}]
    if waits_s:
        (folder / "waiting_ops.py").write_text(_OPS)
        parameters = {"function": "waiting_ops:waiting", "form": "numpy", "gives": "float32"}
        ops.append({"python": {**parameters, "parameters": {"seconds": waits_s}}})
    document = {
        "version": 1,
        "name": "explained",
        "work_dir": str(folder / "work"),
        "allow_code": bool(waits_s),
        "source": {"table": str(uri), "split_rows": 8_192},
        "features": {"dense": {"x": ops}, "sparse": {"ids": [{"modulo": 1000}]}, "label": {"y": []}},
        "batch": {"size": 1024},
        "shuffle": {"rows": False, "window_rows": 8_192},
        "cluster": {"threads": 1, "dashboard": False},
        "epochs": 1000,
    }
    return document | changes


@contextmanager
def a_slow_store(folder: Path) -> Iterator[Staged]:
    """Each read of the store takes 0.2 s; the trainer takes a block of 8 steps in 0.1 s."""
    with slow_store(table(folder / "table"), 0.2) as store:
        document = pipeline(folder, store.uri)
        yield Staged(document=document, limits=["threads"], stages=["store wait"], step_s=0.012, kind="threads")


@contextmanager
def a_slow_trainer(folder: Path) -> Iterator[Staged]:
    """Nothing helps a trainer of 20 ms per step: twice the threads gain nothing."""
    document = pipeline(folder, table(folder / "table"))
    yield Staged(
        document=document, limits=["trainer"], stages=["trainer"], step_s=0.02, apply=lambda _: {"cluster.threads": 2}
    )


@contextmanager
def a_starved_cluster(folder: Path) -> Iterator[Staged]:
    """A worker takes 0.4 s per block, the trainer could take one in 0.16 s."""
    document = pipeline(folder, table(folder / "table"), waits_s=0.4, cluster={"workers": 1, "threads": 1})
    yield Staged(document=document, limits=["threads"], stages=["ops"], step_s=0.02, kind="workers")


@contextmanager
def starved_threads(folder: Path) -> Iterator[Staged]:
    """The same with a thread in the feeder."""
    document = pipeline(folder, table(folder / "table"), waits_s=0.4)
    yield Staged(document=document, limits=["threads"], stages=["ops"], step_s=0.02, kind="threads")


@contextmanager
def one_core(folder: Path) -> Iterator[Staged]:
    """Feeder, blocks and trainer on one core; the advice is cores of other hosts, for which another one stands, and for
    their workers processes: threads would wait for the interpreter's lock."""
    document = pipeline(folder, table(folder / "table", rows=262_144, row_group=32_768))
    ops: list[Any] = [{"fill_null": 0}, "log1p"]
    document["features"] = {
        "dense": {f"x{number}": {"column": "x", "ops": [*ops, {"clip": {"max": 1 + number}}]} for number in range(64)},
        "sparse": {"ids": [{"first_x": 8}, {"modulo": 997}]},
        "label": {"y": []},
    }
    document |= {"source": {"table": str(folder / "table")}, "batch": {"size": 8192}, "shuffle": {"seed": 1}}
    yield Staged(
        document=document, limits=["cores"], stages=["decoding", "ops", "encoding"], kind="workers", cores=1,
        cores_after=2, apply=lambda _: {"cluster.workers": 2, "cluster.threads": 1},
    )  # fmt: skip


@contextmanager
def a_cold_cache(folder: Path) -> Iterator[Staged]:
    """An op of 0.4 s per block, a cache that is empty, and a trainer that takes a block in 0.16 s."""
    document = pipeline(folder, table(folder / "table"), waits_s=0.4)
    document |= {"cache": {"dir": str(folder / "cache"), "mode": "features"}}
    yield Staged(document=document, limits=["threads"], stages=["ops"], step_s=0.02, kind="cache", apply=lambda _: {})


SITUATIONS: dict[str, Callable[[Path], Any]] = {
    "slow store": a_slow_store,
    "slow trainer": a_slow_trainer,
    "starved cluster": a_starved_cluster,
    "starved threads": starved_threads,
    "one core": one_core,
    "cold cache": a_cold_cache,
}


def explained(path: Path, step_s: float | None, seconds: float, overrides: Mapping[str, object] = {}) -> Explanation:
    """A short run of a pipeline."""
    spec = load_spec(path, dict(overrides))
    request = RunRequest(path=path, overrides=dict(overrides), spec=spec, ranks=[0], world_size=1)
    access = feeder_accesses(request)[0]
    found = run_shortly(
        access, spec, seconds=seconds, step_s=step_s, cores=available_cores(), stop=lambda: False, sample_s=seconds / 10
    )
    late = replace(found.slowest, samples=found.slowest.samples[_WARM_UP:])  # all workers have come
    return replace(found, ranks=(late,))


@contextmanager
def on_cores(count: int) -> Iterator[None]:
    """Run this process, and those that it starts, on some cores (0: all)."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, sorted(before)[: count or len(before)])
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def judge_situation(name: str, folder: Path, seconds: float) -> Result:
    """Stage a situation, and take its advice."""
    with SITUATIONS[name](folder) as staged:
        path = folder / "pipeline.yaml"
        path.write_text(yaml.safe_dump(dict(staged.document)))
        with on_cores(staged.cores):
            before = explained(path, staged.step_s, seconds).slowest.verdict()
        advice = next((each for each in before.advice if staged.kind in (None, each.kind)), None)
        if "cache" in staged.document:
            _fill_cache(path)
        with on_cores(staged.cores_after):
            after = explained(path, staged.step_s, seconds, staged.apply(advice)).slowest.verdict()
    is_asked = staged.kind is None or advice is not None
    return Result(
        name=name,
        verdict=before,
        advice=advice,
        named=is_asked and before.limit in staged.limits and before.stage in staged.stages,
        predicted=1.0 if advice is None else advice.rows_ratio,
        measured=after.rows_per_s / before.rows_per_s if before.rows_per_s else 0.0,
    )


def _fill_cache(path: Path) -> None:
    """An epoch, so that the next run finds everything."""
    command = [sys.executable, "-m", "feedline", "run", str(path), "--sink", "null", "--set", "epochs=1", "--json"]
    subprocess.run(command, check=True, capture_output=True)


def attached_cost(folder: Path, seconds: float, rounds: int = 3) -> tuple[float, float]:
    """Rows per second of a drained run beside an attached `feedline explain`, over those without: median and spread."""
    document = pipeline(folder, table(folder / "table", rows=262_144, row_group=32_768))
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump({**document, "batch": {"size": 4096}, "shuffle": {"seed": 1}}))
    ratios = []
    for _ in range(rounds):
        plain = explained(path, None, seconds).slowest.verdict().rows_per_s
        command = f"{sys.executable} -m feedline explain {path} --attach --seconds {seconds} --json > {folder / 'out'}"
        watcher = subprocess.Popen(["sh", "-c", f"sleep 2; {command}"])
        watched = explained(path, None, seconds).slowest.verdict().rows_per_s
        watcher.wait()
        ratios.append(watched / plain)
    return median(ratios), max(ratios) - min(ratios)


def lines(results: Sequence[Result]) -> Iterator[str]:
    """A table in Markdown."""
    yield "| situation | verdict | advice | predicted | measured | |"
    yield "|---|---|---|---|---|---|"
    for each in results:
        advice = "none" if each.advice is None else each.advice.change
        outcome = "right" if each.is_right else "named" if each.named else "wrong"
        gains = f"{each.predicted:.2f} | {each.measured:.2f}"
        yield f"| {each.name} | {each.verdict.sentence} | `{advice}` | {gains} | {outcome} |"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each measurement (default: 10)")
    parser.add_argument("--only", default="", help="situations whose name has this word")
    parser.add_argument("--attached", action="store_true", help="measure the cost of an attached explain instead")
    return parser.parse_args(arguments)


def main() -> None:
    """Measure, and print the table."""
    options = parse()
    root = Path(tempfile.mkdtemp(prefix="feedline-explain-"))
    try:
        if options.attached:
            ratio, spread = attached_cost(root, options.seconds)
            print(f"rows/s beside an attached explain over those without: {ratio:.3f} (spread {spread:.3f})")
            return
        results = []
        for name in SITUATIONS:
            if options.only.lower() in name:
                (folder := root / name.replace(" ", "_")).mkdir()
                began_s = time.perf_counter()
                results.append(judge_situation(name, folder, options.seconds))
                print(f"{name}: {time.perf_counter() - began_s:.0f} s", file=sys.stderr)
        print("\n".join(lines(results)))
    finally:
        shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
