"""What jobs that run at the same time share through a cache's folder: trainers of one host, each with a feeder.

    python cache_sharing.py --shape lists --rows 400000 --jobs 4 --rounds 3

Cases, each with empty folders: one job alone; jobs with a folder each; identical jobs, and jobs of different seeds,
with one folder. Then two trainers of which one is twice as fast, each alone, both with a folder each, and both with one
folder; their steps take so long that a job alone can keep up with the fast one. Jobs start at once, and read one epoch.

Consumed are features x segments of row groups that blocks needed, kept those that the folder has at the end: a job
alone computes each once. CPU is of trainers and feeders, from the start of the feeder on.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml
from shape_tables import write_table
from shapes import SHAPES

from feedline import Pipeline
from feedline.commands.run import RunRequest, feeder_accesses
from feedline.config import load_spec
from feedline.loader.ring.client import FeederClient
from feedline.loader.wire.facts import Hello
from feedline.service.drain import DrainProgress, drain
from feedline.warehouse.cache.entry_file import EntryFile
from feedline.warehouse.cache.eviction import list_entries

SLACK = 1.3  # the fast trainer's pace, of a job's that is as fast as computing allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A job: its pipeline.yaml, and the seconds that its trainer takes for a step."""

    pipeline: Path
    step_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the jobs of a case took. computed, consumed, kept: features x segments."""

    walls_s: tuple[float, ...]
    cpu_s: float
    waited_s: float
    computed: int
    consumed: int
    kept: int
    steps: int


def train(pipeline: str, step_s: float) -> dict[str, Any]:
    """Read an epoch, the last one, once a line comes from the standard input; what it took."""
    spec = load_spec(pipeline)
    request = RunRequest(spec=spec, ranks=[0], world_size=1)
    print("ready", flush=True)
    sys.stdin.readline()
    before, began_s, progress = _cpu_s(), time.monotonic(), DrainProgress(rank=0)
    feed = FeederClient(feeder_accesses(request)[0])
    try:
        feed.start()
        drain(feed, Hello(rank=0, world_size=1), progress, epochs=1, stop=lambda: bool(time.sleep(step_s)))
        wall_s = time.monotonic() - began_s
    finally:
        feed.close()
    if progress.error is not None:
        raise progress.error
    assert progress.feeder is not None
    assert progress.feeder.delivery.cached is not None
    cached = asdict(progress.feeder.delivery.cached)
    return {"wall_s": wall_s, "cpu_s": _cpu_s() - before, "steps": progress.batches, **cached}


def _cpu_s() -> float:
    """CPU seconds of this process and its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def run_trials(trials: Sequence[Trial], caches: Sequence[Path]) -> Measured:
    """Run jobs at once. caches: the folders that they use, which are emptied before."""
    for cache in caches:
        shutil.rmtree(cache, ignore_errors=True)
    programs = [
        subprocess.Popen(
            [sys.executable, __file__, "--train", str(trial.pipeline), "--step-s", str(trial.step_s)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for trial in trials
    ]
    try:
        for program in programs:
            assert program.stdout is not None
            if program.stdout.readline() != "ready\n":
                raise RuntimeError(f"a trainer ended before its first batch: exit status {program.wait()}")
        ends = [program.stdin for program in programs if program.stdin is not None]
        for end in ends:
            end.write("go\n")
            end.flush()
        found = [json.loads(program.communicate()[0]) for program in programs]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    return Measured(
        walls_s=tuple(each["wall_s"] for each in found),
        cpu_s=sum(each["cpu_s"] for each in found),
        waited_s=sum(each["waited_s"] for each in found),
        computed=sum(each["computed"] for each in found),
        consumed=sum(each["computed"] + each["found"] for each in found),
        kept=sum(map(kept_columns, caches)),
        steps=found[0]["steps"],
    )


def kept_columns(folder: Path) -> int:
    """The features x segments that a folder has."""
    kept = set()
    for entry in list_entries(str(folder)):
        with EntryFile(entry.path) as file:
            kept |= {(file.index.group.digest, digest) for digest in file.index.columns}
    return len(kept)


class Place:
    """Pipelines over one table, with work folders that have been used before, and folders of caches."""

    def __init__(self, folder: Path, spec: Mapping[str, Any]) -> None:
        self._folder, self._spec = folder, spec

    def cache(self, name: object) -> Path:
        """A cache's folder."""
        return self._folder / f"cache {name}"

    def trial(self, number: int, cache: Path, *, seed: int = 0, step_s: float = 0.0) -> Trial:
        """A job with a name and a folder of its own."""
        name = f"trial-{number}-{seed}-{cache.name[6:]}"
        spec = {
            **self._spec,
            "name": name,
            "work_dir": str(self._folder / name),
            "shuffle": {"seed": seed},
            "cache": {"dir": str(cache), "mode": "features", "free": 1, "size": "100 GB"},
        }
        path = self._folder / f"{name}.yaml"
        if not path.exists():
            path.write_text(json.dumps(spec))
            Pipeline.from_yaml(path).plan()  # snapshot and counts
        return Trial(pipeline=path, step_s=step_s)


def measure(place: Place, jobs: int) -> dict[str, Measured]:
    """One round of all cases."""
    one, folders = place.cache("one"), [place.cache(number) for number in range(jobs)]
    found = {
        "alone": run_trials([place.trial(0, one)], [one]),
        "apart": run_trials([place.trial(number, folder) for number, folder in enumerate(folders)], folders),
        "identical": run_trials([place.trial(number, one) for number in range(jobs)], [one]),
        "seeds": run_trials([place.trial(number, one, seed=number) for number in range(jobs)], [one]),
    }
    step_s = SLACK * found["alone"].walls_s[0] / found["alone"].steps
    fast, slow = (place.trial(number, one, step_s=step_s * (1 + number)) for number in range(2))
    slow_apart = place.trial(1, folders[1], step_s=2 * step_s)
    return found | {
        "fast": run_trials([fast], [one]),
        "slow": run_trials([slow], [one]),
        "both apart": run_trials([fast, slow_apart], [one, folders[1]]),
        "both": run_trials([fast, slow], [one]),
    }


def describe(name: str, rounds: Sequence[Measured]) -> str:
    """A line of medians over rounds."""
    middle = statistics.median
    walls = "  ".join(f"{middle(times):5.1f}" for times in zip(*(each.walls_s for each in rounds), strict=True))
    return (
        f"{name:10} {middle(each.computed / each.consumed for each in rounds):6.3f}"
        f"  {middle(each.computed / each.kept for each in rounds):5.2f}"
        f"  {middle(each.cpu_s for each in rounds):6.1f}  {middle(each.waited_s for each in rounds):6.1f}  {walls}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="lists")
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--group-rows", type=int, default=16_384)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--train", help=argparse.SUPPRESS)
    parser.add_argument("--step-s", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.train:
        print(json.dumps(train(options.train, options.step_s)))
        return
    shape = SHAPES[options.shape]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_table(folder / "table", shape, rows=options.rows, group_rows=options.group_rows)
        text = shape.pipeline(str(folder / "table"), batch_size=options.batch_size, work_dir=scratch)
        place = Place(folder, yaml.safe_load(text))
        rounds = [measure(place, options.jobs) for _ in range(options.rounds)]
    print(f"{options.shape}: {options.rows:,} rows, {rounds[0]['alone'].kept:,} features x segments")
    print("case       computed/consumed; /kept   CPU-s  waited  wall s of each job")
    for name in rounds[0]:
        print(describe(name, [each[name] for each in rounds]))


if __name__ == "__main__":
    main()
