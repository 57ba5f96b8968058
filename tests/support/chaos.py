"""Do to a run of two ranks what machines and networks do, and audit what the trainers received.

    python chaos.py FOLDER [--faults 1000] [--seed 0] [--seconds N]

Faults hit a random victim; meanwhile the number of workers follows the demand, up to a limit that varies. In the end
both trainers finish an epoch, and `feedline verify` compares the receipts of all starts with the plan. Prints one JSON
object: the audit's findings, and for each kind of fault the recovery times (the longest time in which a rank got no
batch, until each has got many more).
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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from deployment import Deployment, pick
from pipelines import Place, furnished
from processes import ended_here
from proxy import Proxy

BATCHES = 60  # that each rank gets before a fault counts as overcome: more than feeder and ring hold
PROCESSES = ("worker", "scheduler", "feeder", "trainer", "run")
NETWORK = ("feeder-scheduler", "worker-scheduler", "feeder-worker")
DELAY_S = (0.2, 3.0)
JUMP_S = (-7200.0, 7200.0)
DISK_S = 1.0
WORKERS = (1, 3)
OTHER_FAULT_SHARE = 0.15  # of the faults that another one follows at once


@dataclass
class Chaos:
    """A deployment, its random numbers, and what was done to it. undo: what ends faults, by the time it is due."""

    deployment: Deployment
    random: random.Random
    disk: Path | None = None
    batches: int = BATCHES
    counts: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    recovery_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    undo: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    is_random: bool = (
        True  # the number of workers follows the demand up to a limit that varies, and some faults come in pairs
    )

    def kinds(self) -> list[str]:
        """All kinds of faults."""
        signals = [f"{name} {victim}" for name in ("kill", "terminate", "suspend") for victim in PROCESSES]
        network = [f"{name} {where}" for name in ("delay", "reset", "half-open") for where in NETWORK]
        clocks = [f"clock {where}" for where in self.deployment.clocks]
        return [*signals, *network, *clocks, *(["full disk"] if self.disk is not None else [])]

    def strike(self, kind: str) -> bool:
        """Do it, to a random victim; whether there was one."""
        what, _, where = kind.partition(" ")
        if what in ("kill", "terminate", "suspend"):
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
        number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "suspend": signal.SIGSTOP}[what]
        try:
            victim.send_signal(number)
        except psutil.NoSuchProcess:
            return False
        if what == "suspend":
            self.undo.append((time.monotonic() + self._duration_s(), lambda: _resume(victim)))
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
        if not self.strike(kind):
            return
        self.counts[kind] += 1
        deaths = ("feeder", "run", "disk")  # three in a row without a batch are an error
        second = self.random.choice(self.kinds()) if self.is_random and self.random.random() < OTHER_FAULT_SHARE else ""
        if second and not second.endswith(deaths):
            time.sleep(self.random.random() * 0.3)
            if self.strike(second):
                self.counts[second] += 1
        before_s = time.monotonic()
        gap_s = deployment.await_batches(self.batches, self.step)
        if not second:
            self.recovery_s[kind].append(gap_s)
        if gap_s > 10 or os.environ.get("CHAOS_LOG"):
            took_s = time.monotonic() - before_s
            print(f"{kind} {second}: {gap_s:.1f} s, {took_s:.1f} s in all", file=sys.stderr, flush=True)
        while self.undo:
            self.step()
            time.sleep(0.02)


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
    seconds: float = 1e9,
    disk: Path | None = None,
    batches: int = BATCHES,
    **options: Any,
) -> dict[str, Any]:
    """Go through these faults, or so many random ones, then to the end of an epoch; what `feedline verify` found.

    options: of `Deployment`. disk: the folder of `work_dir` if it is a file system of its own. batches: that each rank
    gets before a fault counts as overcome. Given faults come one by one, on two workers.
    """
    deployment = Deployment(place, **options)
    chaos = Chaos(deployment, random.Random(seed), disk, batches)
    chaos.is_random = deployment.follows_demand = isinstance(faults, int)
    begin_s = time.monotonic()
    try:
        drawn = faults if not isinstance(faults, int) else _draw(chaos, faults)
        for kind in drawn:
            if kind == "full disk":
                deployment.pardons = ("No space left on device",)
            chaos.go_through(kind)
            deployment.pardons = ()
            if time.monotonic() - begin_s > seconds:
                break
        last = deployment.finish()
    finally:
        for _, undo in chaos.undo:
            undo()
        deployment.close()
    audit = ended_here("verify", deployment.path, "--receipts", deployment.receipts, "--json")
    findings = json.loads(audit.stdout) if audit.stdout else {"error": audit.stderr}
    return {
        **findings,
        "status": audit.returncode,
        "faults": dict(chaos.counts),
        "recovery": recovery_table(chaos.recovery_s),
        "starts": dict(deployment.starts),
        "pardoned": dict(deployment.pardoned),
        "last_epoch": last,
        "seconds": round(time.monotonic() - begin_s),
    }


def _draw(chaos: Chaos, number: int) -> list[str]:
    """So many faults, each kind about as often as the others."""
    kinds = chaos.kinds()
    rounds = [chaos.random.sample(kinds, len(kinds)) for _ in range(-(-number // len(kinds)))]
    return [kind for each in rounds for kind in each][:number]


def recovery_table(recovery_s: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Number, median, 99th percentile and maximum in seconds, by kind."""
    return {
        kind: {
            "faults": len(times),
            "median_s": round(statistics.median(times), 2),
            "p99_s": round(sorted(times)[min(len(times) - 1, int(0.99 * len(times)))], 2),
            "max_s": round(max(times), 2),
        }
        for kind, times in sorted(recovery_s.items())
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
    parser.add_argument("--kind", action="append", help="only these, one after the other")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop striking after this time")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True)
    table = arguments.folder / "clicks"
    from feedline.warehouse.synthetic.clicks import ClickRecipe
    from feedline.warehouse.synthetic.generate import generate_clicks

    recipe = ClickRecipe(rows=20_000, days=3, seed=7, histories=2, row_group_rows=1_024, part_rows=4_096)
    generate_clicks(str(table), recipe)
    (arguments.folder / "place").mkdir()
    with furnished(arguments.folder / "place", table) as place, SmallDisk(place.work) as disk:
        faults = arguments.kind or arguments.faults
        findings = chaos(place, faults, seed=arguments.seed, seconds=arguments.seconds, disk=disk)
    print(json.dumps({**findings, "differences": findings.get("differences", [])[:5]}, indent=1))
    sys.exit(findings["status"])


if __name__ == "__main__":
    main()
