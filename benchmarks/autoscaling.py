"""Compare what decides on the number of workers: waiting trainers, or 80 % of the CPU.

    python benchmarks/autoscaling.py           simulated runs of the policies: seconds, no load
    python benchmarks/autoscaling.py --real    a run with worker processes whose blocks sleep: about two minutes

The first scene is the local example of Cachew (USENIX ATC 2022): a worker takes 400 ms per batch, the model 200 ms.
Workers need 2 s to start. `settled`: seconds from the beginning, or the last change of the load, to the last change
of the number of workers; `wait`: seconds that the trainer waited for batches.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable
from scaled_trainer import ScalingPolicy, Scene, simulate

from feedline import FeedlineDataset
from feedline.service.autoscale import (
    Autoscaler,
    ScalingDecision,
    ScalingRules,
    ScalingSample,
)
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

RULES = ScalingRules(least_workers=1, most_workers=16)


class CpuPolicy:
    """What Kubernetes' horizontal autoscaler does for a target of 80 %: every 15 s the workers times the use over the
    target, nothing within 10 % of it; fewer only after five minutes that asked for no more."""

    def __init__(self, rules: ScalingRules) -> None:
        self._rules = rules
        self._due_s = 15.0
        self._asked: list[tuple[float, int]] = []
        self.wanted = max(1, rules.least_workers)

    def decide(self, sample: ScalingSample) -> ScalingDecision:
        """The number of workers after this measurement."""
        if sample.now_s < self._due_s or not sample.workers:
            return ScalingDecision(workers=self.wanted)
        self._due_s = sample.now_s + 15.0
        use = sample.load.busy_threads / (sample.workers * sample.threads_per_worker)
        asked = self._rules.clamp(math.ceil(sample.workers * use / 0.8)) if abs(use / 0.8 - 1) > 0.1 else self.wanted
        self._asked = [each for each in self._asked if each[0] > sample.now_s - 300.0] + [(sample.now_s, asked)]
        self.wanted = max(each for _, each in self._asked)
        return ScalingDecision(workers=self.wanted)


POLICIES: dict[str, Callable[[ScalingRules], ScalingPolicy]] = {
    "waiting": Autoscaler,
    "80 % CPU": CpuPolicy,
}


def _noise(block: int, spread: float) -> float:
    return random.Random(block).uniform(1 - spread, 1 + spread)


# Each with the time of the last change of its load, and the workers that arithmetic says it needs after that.
SCENES: dict[str, tuple[Scene, float, str]] = {
    "Cachew's example": (Scene(seconds=600, step_s=lambda _: 0.2, block_s=lambda *_: 0.4), 0.0, "2"),
    "the same, blocks ± 30 %": (
        Scene(seconds=600, step_s=lambda _: 0.2, block_s=lambda block, _: 0.4 * _noise(block, 0.3)),
        0.0,
        "2 or 3",
    ),
    "trainer 4 times as fast": (
        Scene(seconds=1000, step_s=lambda at_s: 0.2 if at_s < 400 else 0.05, block_s=lambda *_: 0.4),
        400.0,
        "8",
    ),
    "trainer 4 times as slow": (
        Scene(seconds=1000, step_s=lambda at_s: 0.05 if at_s < 400 else 0.2, block_s=lambda *_: 0.4),
        400.0,
        "2",
    ),
    "trainer stops": (
        Scene(seconds=1000, step_s=lambda at_s: 0.05 if at_s < 400 else math.inf, block_s=lambda *_: 0.4),
        400.0,
        "1",
    ),
    "second worker 5 times as slow": (
        Scene(seconds=600, step_s=lambda _: 0.2, block_s=lambda _, worker: 2.0 if worker == 1 else 0.4),
        0.0,
        "3",
    ),
    "store gives 10 blocks/s of 50": (
        Scene(seconds=600, step_s=lambda _: 0.02, block_s=lambda *_: 0.4, most_blocks_per_s=10.0),
        0.0,
        "4",
    ),
    "trainer is the limit": (Scene(seconds=600, step_s=lambda _: 0.5, block_s=lambda *_: 0.4), 0.0, "1"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One scene under one policy."""

    scene: str
    policy: str
    need: str
    workers: int
    settled_s: float
    changes: int
    wait_s: float
    late_wait_s: float
    worker_s: float
    steps: int


def compare() -> list[Outcome]:
    """All scenes under all policies."""
    outcomes = []
    for name, (scene, since_s, need) in SCENES.items():
        for policy, make in POLICIES.items():
            course = simulate(scene, make(RULES))
            outcomes.append(
                Outcome(
                    scene=name,
                    policy=policy,
                    need=need,
                    workers=course.workers,
                    settled_s=course.settled_s(since_s),
                    changes=len(course.changes) - 1,
                    wait_s=course.stalled_s(),
                    late_wait_s=course.stalled_s(scene.seconds - 200),
                    worker_s=course.worker_s,
                    steps=course.steps,
                )
            )
    return outcomes


def show(outcomes: Sequence[Outcome]) -> RichTable:
    """The table."""
    table = RichTable("scene", "policy", title="numbers of workers")
    for heading in ("need", "workers", "settled s", "changes", "wait s", "in the last 200 s", "worker-s", "steps"):
        table.add_column(heading, justify="right")
    for each in outcomes:
        table.add_row(
            each.scene,
            each.policy,
            each.need,
            str(each.workers),
            f"{each.settled_s:.0f}",
            str(each.changes),
            f"{each.wait_s:.0f}",
            f"{each.late_wait_s:.0f}",
            f"{each.worker_s:,.0f}",
            f"{each.steps:,}",
        )
    return table


_SLEEP = """import time


def slow(values, seconds):
    time.sleep(seconds)
    return values
"""
_PIPELINE = """
version: 1
name: autoscaling
allow_code: true
source: {{table: {table}, split_rows: 256}}
features:
  dense: {{dense_0: [{{fill_null: 0}}, {{python: {{function: "sleeping:slow", form: numpy, gives: float32,
                                              parameters: {{seconds: {block_s}}}}}}}]}}
  label: {{clicked: []}}
batch: {{size: 256}}
shuffle: "off"
cluster: {{workers: {{min: 1, max: {most}}}, threads: 1, dashboard: false,
           autoscale: {{shrink_after_s: 20}}}}
"""


def run(folder: Path, *, block_s: float, steps: Sequence[tuple[int, float]], most: int) -> str:
    """Train on blocks of one step that take `block_s`, so many steps at so many seconds each; returns the lines about
    workers in the feeder's log, each with the second at which it was seen."""
    (folder / "sleeping.py").write_text(_SLEEP)
    count = sum(number for number, _ in steps)
    recipe = ClickRecipe(rows=256 * count, days=1, seed=1, row_group_rows=256, dense=1, ids=0, strings=0, histories=0)
    generate_clicks(str(folder / "table"), recipe)
    path = folder / "pipeline.yaml"
    path.write_text(_PIPELINE.format(table=folder / "table", block_s=block_s, most=most))
    lines: list[str] = []
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder)  # where the feeder keeps its log
    start_s = time.perf_counter()
    with FeedlineDataset(path) as dataset:
        batches = iter(dataset)
        for number, step_s in steps:
            for _ in range(number):
                if next(batches, None) is None:
                    break
                time.sleep(step_s)
                seen = _changes(folder)
                lines += [f"{time.perf_counter() - start_s:5.0f} s  {line}" for line in seen[len(lines) :]]
        stats = dataset.stats()
    return "\n".join([*lines, f"{stats.batches} steps in {stats.seconds:.0f} s, {stats.wait_s:.1f} s waiting"])


def _changes(folder: Path) -> list[str]:
    """The lines of the feeder's log about workers."""
    text = "\n".join(log.read_text(encoding="utf-8") for log in folder.glob("**/feeder.log"))
    return [line for line in text.splitlines() if line.startswith("workers needed: ")]


def main(arguments: Sequence[str]) -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--real", action="store_true", help="Run worker processes.")
    options = parser.parse_args(arguments)
    if options.real:
        with tempfile.TemporaryDirectory() as folder:
            print(run(Path(folder), block_s=0.4, steps=[(150, 0.2), (400, 0.08), (150, 0.5)], most=6))
        return 0
    Console(width=160).print(show(compare()), highlight=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
