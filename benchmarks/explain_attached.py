"""What an attached `feedline explain` costs the run beside it, in windows with one and without, in turn.

    python benchmarks/explain_attached.py              8 rounds of four windows: about 18 minutes
    python benchmarks/explain_attached.py --rounds 2 --seconds 5

A run that computes on all cores is drained in this process. A round is four windows: without, with, with, without
(ABBA), so that a machine that becomes slower or faster changes both alike. In each window with one, the whole command
starts, watches and ends. Printed are its own CPU seconds as a part of the cores' time while it was attached, which is
exact, and two ratios, with explain over without: rows per second, and CPU seconds of the run per row, which is steadier
beside other programs. Their 95 % intervals are a bootstrap over rounds. Exit status 1 where a figure is over 2 %, or an
interval lies beyond it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import yaml
from explain_situations import listed_columns, listed_pipeline, write_table

from feedline.commands.run import RunRequest, feeder_accesses
from feedline.config import load_spec
from feedline.loader.limits.run_facts import Interval
from feedline.loader.ring.client import FeederClient
from feedline.loader.wire.facts import FeederStats, Hello
from feedline.resources.cgroups import available_cores
from feedline.service.drain import DrainProgress, start_draining, stop_draining

MOST = 0.02
_PATTERN = (False, True, True, False)
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A stretch of the run. explain_s: CPU seconds of the attached command (None: there was none)."""

    seconds: float
    rows: int
    cpu_s: float
    explain_s: float | None

    @property
    def rows_per_s(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_per_row(self) -> float:
        return self.cpu_s / max(self.rows, 1)


def bootstrap(values: Sequence[float]) -> Interval:
    """The 95 % interval of the mean."""
    drawn = np.random.default_rng(0).choice(np.asarray(values), (_RESAMPLES, len(values))).mean(axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975]).tolist()
    return Interval(low=low, high=high)


def ratios(windows: Sequence[Window], value: Callable[[Window], float]) -> list[float]:
    """Of each round, the mean of windows with an explain over that of those without."""
    found = []
    for start in range(0, len(windows), len(_PATTERN)):
        each = windows[start : start + len(_PATTERN)]
        beside = fmean(value(window) for window in each if window.explain_s is not None)
        found.append(beside / fmean(value(window) for window in each if window.explain_s is None))
    return found


def measure_windows(path: Path, seconds: float, rounds: int) -> list[Window]:
    """Drain a run, and measure its windows. seconds: that an attached explain watches."""
    spec = load_spec(path, {})
    request = RunRequest(spec=spec, ranks=[0], world_size=1)
    feed, ended = FeederClient(feeder_accesses(request)[0]), threading.Event()
    feed.start()
    hello = Hello(rank=0, world_size=1)
    progress = start_draining(feed, hello, rank=0, epochs=10**9, stop=ended.is_set)
    try:
        _pause(progress, seconds)
        return [_measure(progress, path, seconds, attached) for _ in range(rounds) for attached in _PATTERN]
    finally:
        ended.set()
        stop_draining(feed, progress)
        feed.close()


def _pause(progress: DrainProgress, seconds: float) -> None:
    """Wait while the run goes on. Raises what ended it."""
    until_s = time.perf_counter() + seconds
    while time.perf_counter() < until_s or not progress.rows:
        time.sleep(0.05)
        if progress.error is not None:
            raise progress.error


def _measure(progress: DrainProgress, path: Path, seconds: float, attached: bool) -> Window:
    start_s, rows, cpu_s = time.perf_counter(), progress.rows, _cpu_s(progress)
    command = [sys.executable, "-m", "feedline", "explain", str(path), "--attach", "--seconds", str(seconds), "--json"]
    explain = subprocess.Popen(command, stdout=subprocess.DEVNULL) if attached else None
    _pause(progress, seconds + 2)
    explain_s = None
    if explain is not None:
        _, status, usage = os.wait4(explain.pid, 0)
        explain.returncode = os.waitstatus_to_exitcode(status)
        if explain.returncode:
            raise RuntimeError(f"feedline explain --attach failed: got exit status {explain.returncode}")
        explain_s = usage.ru_utime + usage.ru_stime
    return Window(
        seconds=time.perf_counter() - start_s,
        rows=progress.rows - rows,
        cpu_s=_cpu_s(progress) - cpu_s,
        explain_s=explain_s,
    )


def _cpu_s(progress: DrainProgress) -> float:
    """CPU seconds of the run's blocks, loop and copies."""
    stats = progress.feeder or FeederStats()
    blocks = stats.delivery
    return blocks.times.cpu_s + stats.loop_cpu_s + stats.copy_cpu_s


def write_pipeline(folder: Path, *, tiny: bool = False) -> Path:
    """A pipeline that computes on all cores."""
    table = write_table(folder / "table", listed_columns(20), 131_072, 32_768, tiny=tiny)
    cluster = {"threads": max(1, int(available_cores())), "dashboard": False}
    document = listed_pipeline(folder, table, {"hash_bucket": 1000}, cluster=cluster, batch={"size": 4096})
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(document))
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=30.0, help="that each explain watches (default: 30)")
    parser.add_argument("--rounds", type=int, default=8, help="of four windows (default: 8)")
    options = parser.parse_args(arguments)
    root = Path(tempfile.mkdtemp(prefix="feedline-attached-"))
    try:
        windows = measure_windows(write_pipeline(root), options.seconds, options.rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    beside = [(window, window.explain_s) for window in windows if window.explain_s is not None]
    share = fmean(own_s / (window.seconds * available_cores()) for window, own_s in beside)
    own_s = fmean(each for _, each in beside)
    print(f"explain --attach --seconds {options.seconds:g}: {own_s:.2f} CPU-s, {share:.2%} of the cores' time")
    rates, costs = ratios(windows, lambda each: each.rows_per_s), ratios(windows, lambda each: each.cpu_per_row)
    slower, dearer = bootstrap(rates), bootstrap(costs)
    print(f"rows/s of the run: {fmean(rates):.4f} of those without ({slower.low:.4f} to {slower.high:.4f})")
    print(f"CPU-s per row of the run: {fmean(costs):.4f} of those without ({dearer.low:.4f} to {dearer.high:.4f})")
    return int(share > MOST or slower.high < 1 - MOST or dearer.low > 1 + MOST)


if __name__ == "__main__":
    sys.exit(main())
