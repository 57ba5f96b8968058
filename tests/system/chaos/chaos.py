"""Do to a run of two ranks what machines and networks do, and audit what the trainers received.

    export PYTHONPATH=tests/support
    python tests/system/chaos/chaos.py FOLDER [--faults 1000] [--per-run 50] [--seed 0] [--kind KIND ...]
    python tests/system/chaos/chaos.py FOLDER --faults 200 --only kill    random kills of workers, feeders, trainers ...
    python tests/system/chaos/chaos.py FOLDER --cache                     with a cache that is smaller than the table
    python tests/system/chaos/chaos.py FOLDER --mixed                     of two tables, one of which grows, balanced

Faults hit a random victim; meanwhile the number of workers follows the demand, up to a limit that varies. At the end
of each run both trainers finish an epoch, and the receipts of all starts are compared with the plan.

FOLDER/faults.jsonl gets a line per fault, FOLDER/runs.jsonl one per run, with the audit's findings; the files of a run
that failed stay in FOLDER/SEED. Called again, it goes on with the first seed that has not passed. Prints as JSON
the recovery times of each kind (the longest time in which a rank got no batch, until each has got many more).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil
from deployment import Deployment, pick
from pipelines import Place, furnished
from proxy import Proxy
from receipts import Audit, Steps, audit_receipts, read_receipts

from feedline import Pipeline
from feedline.warehouse.cache.maintenance import verify_entries
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

BATCHES = 60  # that each rank gets before a fault counts as overcome: more than feeder and ring hold
SIGNALS = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "suspend": signal.SIGSTOP, "pause": signal.SIGSTOP}
PROCESSES = ("worker", "scheduler", "feeder", "trainer", "run")
NETWORK = ("feeder-scheduler", "worker-scheduler", "feeder-worker")
DELAY_S = (0.2, 3.0)
PAUSE_S = 25.0  # after 20 s of silence, a scheduler removes a worker
JUMP_S = (-7200.0, 7200.0)
DAYS = 60  # that the growing table gets in a run
UNFINISHED = (".tmp", ".unfinished", ".draft", ".partial")
LONG_S = 25.0  # without a batch: the processes' last words are recorded
DISK_S = 1.0
CACHE_BYTES = 300_000
WORKERS = (1, 3)
OTHER_FAULT_SHARE = 0.15  # of the faults that another one follows at once
LANDING_SHARE = 0.5  # of the faults before which a partition lands


@dataclass
class Chaos:
    """A deployment, its random numbers, and what was done to it. record: gets each fault, with its recovery time.
    undo: what ends faults, by the time it is due. is_random: the number of workers follows the demand up to a limit
    that varies, and some faults come in pairs. only: how the kinds of faults begin. land: has the table grow, before
    some faults."""

    deployment: Deployment
    random: random.Random
    disk: Path | None = None
    batches: int = BATCHES
    record: Callable[[dict[str, Any]], None] = lambda _: None
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    undo: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    is_random: bool = True
    only: str = ""
    land: Callable[[], None] = lambda: None

    def kinds(self) -> list[str]:
        """The kinds of faults."""
        signals = [f"{name} {victim}" for name in ("kill", "terminate", "suspend") for victim in PROCESSES]
        network = [f"{name} {where}" for name in ("delay", "reset", "half-open") for where in NETWORK]
        clocks = [f"clock {where}" for where in self.deployment.clocks]
        every = [*signals, "pause worker", *network, *clocks, *(["full disk"] if self.disk is not None else [])]
        return [kind for kind in every if kind.startswith(self.only)]

    def strike(self, kind: str) -> bool:
        """Do it, to a random victim; whether there was one."""
        what, _, where = kind.partition(" ")
        if what in SIGNALS:
            return self._signal(what, where)
        if what == "clock":
            self.deployment.clocks[where].jump(self.random.uniform(*JUMP_S))
            return True
        if what == "full":
            return self._fill_disk()
        proxies = {
            "feeder-scheduler": self.deployment.to_scheduler,
            "worker-scheduler": self.deployment.of_workers,
            "feeder-worker": max((worker.proxy for worker in self.deployment.fleet), key=Proxy.connections),
        }
        proxy = proxies[where]
        acts = {"delay": lambda: proxy.delay(self._duration_s()), "reset": proxy.cut, "half-open": proxy.half_open}
        return acts[what]() > 0

    def _duration_s(self) -> float:
        return self.random.uniform(*DELAY_S)

    def _signal(self, what: str, where: str) -> bool:
        victim = pick(self.random, self.deployment.victims(where))
        if victim is None:
            return False
        try:
            victim.send_signal(SIGNALS[what])
        except psutil.NoSuchProcess:
            return False
        if SIGNALS[what] == signal.SIGSTOP:
            duration_s = PAUSE_S if what == "pause" else self._duration_s()
            self.undo.append((time.monotonic() + duration_s, lambda: _resume(victim)))
        return True

    def _fill_disk(self) -> bool:
        """Leave no byte in `work_dir`, forget the counts, and let a new feeder find it so."""
        assert self.disk is not None
        filler = self.disk / "filler"
        for file in self.disk.rglob("*count*"):
            if file.is_file():
                file.unlink()
        with open(filler, "wb", buffering=0) as opened:
            try:
                while True:
                    opened.write(bytes(1 << 16))
            except OSError:
                pass
        for feeder in self.deployment.feeders()[:1]:
            feeder.kill()
        self.undo.append((time.monotonic() + DISK_S, lambda: filler.unlink(missing_ok=True)))
        return True

    def step(self) -> None:
        """End the faults whose time is over."""
        due = [each for each in self.undo if each[0] <= time.monotonic()]
        for each in due:
            self.undo.remove(each)
            each[1]()

    def go_through(self, kind: str) -> None:
        """Strike, sometimes twice, and wait until the trainers are served again."""
        deployment = self.deployment
        if self.is_random:
            deployment.workers = self.random.randint(*WORKERS)
        deployment.await_batches(1, self.step)
        if self.random.random() < LANDING_SHARE:
            self.land()
        if not self.strike(kind):
            return
        self.counts[kind] += 1
        deaths = ("feeder", "run", "disk")  # three in a row without a batch are an error
        second = self.random.choice(self.kinds()) if self.is_random and self.random.random() < OTHER_FAULT_SHARE else ""
        followed = False
        if second and not second.endswith(deaths):
            time.sleep(self.random.random() * 0.3)
            if followed := self.strike(second):
                self.counts[second] += 1
        gap_s = deployment.await_batches(self.batches, self.step)
        while self.undo:
            self.step()
            time.sleep(0.02)
        words = {"words": deployment.words()} if gap_s > LONG_S else {}
        self.record({"kind": kind, "second": second if followed else "", "gap_s": round(gap_s, 2), **words})


def _resume(process: psutil.Process) -> None:
    try:
        process.send_signal(signal.SIGCONT)
    except psutil.NoSuchProcess:
        return


def chaos(
    place: Place,
    faults: Sequence[str] | int,
    *,
    seed: int,
    disk: Path | None = None,
    batches: int = BATCHES,
    record: Callable[[dict[str, Any]], None] = lambda _: None,
    only: str = "",
    land: Callable[[], None] = lambda: None,
    **options: Any,
) -> dict[str, Any]:
    """Go through these faults, or so many random ones, then to the end of an epoch; counts, and `problems`, of which a
    run should have none.

    options: of `Deployment`. disk: the folder of `work_dir` if it is a file system of its own. batches: that each rank
    gets before a fault counts as overcome. record: gets each fault, with its recovery time. only: how the kinds of
    random faults begin. Given faults come one by one, on two workers.
    """
    deployment = Deployment(place, **options)
    chaos = Chaos(deployment, random.Random(seed), disk, batches, record, only=only, land=land)
    chaos.is_random = deployment.follows_demand = isinstance(faults, int)
    begin_s = time.monotonic()
    try:
        drawn = faults if not isinstance(faults, int) else _draw(chaos, faults)
        for kind in drawn:
            if kind == "full disk":
                deployment.pardons = ("No space left on device",)
            chaos.go_through(kind)
            deployment.pardons = ()
        last = deployment.finish()
    finally:
        for _, undo in chaos.undo:
            undo()
        deployment.close()
    left = [str(file) for file in place.work.rglob("*") if file.suffix in UNFINISHED]
    receipts = read_receipts(*sorted(deployment.receipts.glob("*.jsonl")))
    audit = audit_receipts(Pipeline.from_yaml(deployment.path), receipts)
    problems = _problems(audit, last, deployment.starts["trainer"], _steps(deployment.receipts))
    return {
        "rows": audit.rows,
        "again": [asdict(steps) for steps in audit.again],
        "problems": problems + [f"unfinished: {file}" for file in left],
        "faults": dict(chaos.counts),
        "starts": dict(deployment.starts),
        "pardoned": dict(deployment.pardoned),
        "last_epoch": last,
        "seconds": round(time.monotonic() - begin_s),
    }


def _steps(receipts: Path) -> dict[int, set[int]]:
    """The steps of each epoch, as the trainers of all starts were told."""
    steps: dict[int, set[int]] = defaultdict(set)
    for file in receipts.glob("*.steps"):
        for epoch, number in map(json.loads, file.read_text().splitlines()):
            steps[epoch].add(number)
    return steps


def _problems(audit: Audit, last: int, starts: int, steps: dict[int, set[int]]) -> list[str]:
    """What is not as planned: every epoch from its first step to its last one, on every lane, and nothing twice but
    the batch after which a trainer was killed before it had saved its state."""
    if sorted(steps) != list(range(last + 1)) or any(len(told) > 1 for told in steps.values()):
        return [f"epochs and their steps: {dict(steps)}, up to epoch {last}"]
    problems = [*audit.differences, *(f"missing: {gap}" for gap in audit.missing)]
    planned = [Steps(epoch, 0, max(steps[epoch]) - 1, (0, 1, 2, 3)) for epoch in range(last + 1)]
    if audit.received != planned:
        problems.append(f"received: {[run for run in audit.received if run not in planned]}")
    again = sum(run.last - run.first + 1 for run in audit.again)
    if again > starts:
        problems.append(f"{again} batches again, of {starts} starts: {audit.again}")
    return problems


def _draw(chaos: Chaos, number: int) -> list[str]:
    """So many faults, each kind about as often as the others."""
    kinds = chaos.kinds()
    rounds = [chaos.random.sample(kinds, len(kinds)) for _ in range(-(-number // len(kinds)))]
    return [kind for each in rounds for kind in each][:number]


def recovery_table(faults: Iterable[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """Number, median, 99th percentile and maximum in seconds, by kind, of recorded faults that came alone."""
    times: dict[str, list[float]] = defaultdict(list)
    for fault in faults:
        if not fault["second"]:
            times[fault["kind"]].append(fault["gap_s"])
            times["all"].append(fault["gap_s"])
    return {
        kind: {
            "faults": len(each),
            "median_s": round(statistics.median(each), 2),
            "p99_s": round(sorted(each)[min(len(each) - 1, int(0.99 * len(each)))], 2),
            "max_s": round(max(each), 2),
        }
        for kind, each in sorted(times.items())
    }


class SmallDisk:
    """A file system of a few MB in memory, as `work_dir`. Needs the right to mount: `usable` says whether."""

    usable = os.geteuid() == 0 and shutil.which("mount") is not None

    def __init__(self, folder: Path, *, megabytes: int = 8) -> None:
        self.folder = folder
        self._megabytes = megabytes

    def __enter__(self) -> Path | None:
        """Its folder; None where mounting is refused, as in most containers."""
        self.folder.mkdir()
        options = f"size={self._megabytes}m"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.folder], check=False, capture_output=True
        )
        self._mounted = done.returncode == 0
        return self.folder if self._mounted else None

    def __exit__(self, *_: object) -> None:
        if self._mounted:
            subprocess.run(["umount", "-l", self.folder], check=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--per-run", type=int, default=50)
    parser.add_argument("--kind", action="append", help="only these, one after the other, in each run")
    parser.add_argument("--only", default="", help="random faults whose kinds begin so: kill, for one")
    parser.add_argument("--cache", action="store_true", help="use a cache that holds a part of the features")
    parser.add_argument("--mixed", action="store_true", help="two tables, one of which grows, in balanced batches")
    parser.add_argument("--seed", type=int, default=0, help="of the first run")
    arguments = parser.parse_args()
    folder, table = arguments.folder, arguments.folder / "clicks"
    folder.mkdir(parents=True, exist_ok=True)
    if not table.exists():
        recipe = ClickRecipe(rows=20_000, days=3, seed=7, histories=2, row_group_rows=1_024, part_rows=4_096)
        generate_clicks(str(table), recipe)
    passed = {run["seed"] for run in _lines(folder / "runs.jsonl") if not run["problems"]}
    for seed in range(arguments.seed, arguments.seed + -(-arguments.faults // arguments.per_run)):
        if seed not in passed:
            _run(folder, table, arguments, seed)
    runs = {run["seed"]: run["problems"] for run in _lines(folder / "runs.jsonl")}
    print(json.dumps({"runs": runs, "recovery": recovery_table(_lines(folder / "faults.jsonl"))}, indent=1))
    sys.exit(1 if any(runs.values()) else 0)


def _run(folder: Path, table: Path, arguments: argparse.Namespace, seed: int) -> None:
    """A run in a folder of its own, which goes if it passes."""
    own, options = folder / str(seed), dict[str, Any]()
    faults = arguments.kind or arguments.per_run
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    if arguments.cache:
        options["cache"] = {"dir": str(own / "cache"), "size": CACHE_BYTES, "free": 1, "mode": "features"}
    if arguments.mixed:
        options |= mixed_options(table, own, seed)

    def record(fault: dict[str, Any]) -> None:
        _append(folder / "faults.jsonl", {"seed": seed, **fault})

    try:
        with furnished(own, table) as place, SmallDisk(place.work) as disk:
            findings = chaos(place, faults, seed=seed, disk=disk, record=record, only=arguments.only, **options)
        if arguments.cache:
            findings["problems"] += [f"damaged: {file}" for file in verify_entries(str(own / "cache")).damaged]
    except AssertionError as error:
        findings = {"problems": [str(error)]}
    kept = ("problems", "again", "faults", "starts", "pardoned", "last_epoch", "seconds")
    _append(folder / "runs.jsonl", {"seed": seed, **{name: findings[name] for name in kept if name in findings}})
    if not findings["problems"]:
        shutil.rmtree(own)


def mixed_options(table: Path, folder: Path, seed: int) -> dict[str, Any]:
    """Options of `chaos` for a run of a steady table and a growing one, in balanced batches: three rows to one."""
    days, growing = folder / "days", folder / "growing"
    recipe = ClickRecipe(rows=400 * DAYS, days=DAYS, seed=seed, histories=2, row_group_rows=256, part_rows=512)
    generate_clicks(str(days), recipe)
    waiting = sorted(days.iterdir())

    def land() -> None:
        if waiting:
            day = waiting.pop(0)
            shutil.copytree(day, growing / day.name)
            (growing / day.name / "_SUCCESS").touch()

    land()
    sources = [
        {"name": "steady", "table": str(table), "weight": 3, "split_rows": 512},
        {"name": "growing", "table": str(growing), "weight": 1, "split_rows": 512, "follow": {"landed": "_SUCCESS"}},
    ]
    batch = {"size": 64, "tail": "drop", "balance": "hist_0"}
    return {"source": None, "sources": sources, "mix": {"stop": "all"}, "batch": batch, "land": land}


def _append(file: Path, value: dict[str, Any]) -> None:
    with file.open("a") as opened:
        opened.write(json.dumps(value) + "\n")


def _lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


if __name__ == "__main__":
    main()
