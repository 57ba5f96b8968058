"""Run one contender in a fresh process, which `floor.py` starts and measures.

    python benchmarks/trainer.py NAME JOB.json STARTED [BUSY_UNITS]   runs a contender, prints one line of JSON
    python benchmarks/trainer.py calibrate MS SHAPE                   prints how many units of work take so long here

The trainer reads every batch once (checksums) and, if busy, does a fixed amount of Python and torch work after each: an
amount, not a time, so that a loader that competes for the interpreter or the cores makes it slower.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from checksums import Checksums
from contenders import CONTENDERS, Job
from cpu_of_parts import cpu_s
from shapes import SHAPES

ROWS = 512  # of a batch, that the busy trainer looks at
SAMPLE_BATCHES = 4  # whose hashed ids are kept


class Work:
    """The trainer's work. A unit takes about 20 µs, half Python and half torch, as in a loop that logs and computes.

    width: dense columns; with many, a unit takes longer.
    """

    def __init__(self, units: int, width: int) -> None:
        self.units = units
        self.seen = 0.0
        self._weight = torch.full((width, 32), 0.01)

    def __call__(self, dense: torch.Tensor) -> None:
        """Do the work for one batch."""
        for unit in range(self.units):
            counts: dict[int, int] = {}
            for step in range(200):
                counts[step & 15] = counts.get(step & 15, unit) + step
            hidden = torch.relu(dense[:ROWS] @ self._weight)
            self.seen += float(hidden.mean()) + counts[3]


def calibrate(target_s: float, width: int) -> int:
    """Return the units of work that take `target_s` here when nothing else runs, by the fastest of many tries."""
    dense, work = torch.rand(ROWS, width), Work(20, width)
    best = float("inf")
    for _ in range(50):
        began = time.perf_counter()
        work(dense)
        best = min(best, (time.perf_counter() - began) / work.units)
    return max(1, round(target_s / best))


def train(name: str, job: Job, started: float, units: int) -> dict[str, object]:
    """Run a contender to the end; `started`: the monotonic clock when the process was started."""
    shape = SHAPES[job.shape]
    loop = CONTENDERS[name].prepare(shape)
    sums, work = Checksums(shape), Work(units, len(shape.dense))
    sample: list[torch.Tensor] = []
    arrivals: list[float] = []
    rows: list[int] = []
    if job.ranks > 1:  # all ranks begin together
        print("ready", flush=True)
        sys.stdin.readline()
    ready, ready_cpu = time.monotonic(), time.process_time()
    done = ready
    first_batch_cpu_s, batch_bytes = 0.0, 0
    for batch in loop(job):
        arrivals.append(time.monotonic())
        if len(arrivals) == 1:
            first_batch_cpu_s = tree_cpu_s(job.measurer)
            batch_bytes = nbytes(batch)
        rows.append(len(batch.labels))
        sums.add(batch)
        if shape.hashed and len(sample) < SAMPLE_BATCHES:
            sample.append(batch.categorical.clone())
        if units:
            work(batch.dense)
        done = time.monotonic()
    if job.arrivals:
        np.save(job.arrivals, np.array([arrivals, rows]))
    if sample:
        np.save(job.sample, torch.cat(sample).numpy())
    # A loader in another process imports there while the trainer waits: this counts as an import, too.
    elsewhere = float(getattr(loop, "imports_s", 0.0))
    ready += elsewhere
    (first, last), parts_cpu_s = getattr(loop, "parts", ((0, 0), None))
    return {
        "import_s": ready - started,
        "import_cpu_s": ready_cpu,
        "first_batch_s": arrivals[0] - ready,
        "first_batch_rows": rows[0],
        "first_batch_cpu_s": first_batch_cpu_s,
        "run_s": done - ready,
        "rows": sum(rows),
        "steps": len(rows),
        "rows_per_s": sum(rows) / (done - ready),
        "after_first_rows_per_s": sum(rows[1:]) / (done - arrivals[0]) if len(rows) > 1 else None,
        "steady_rows_per_s": steady(arrivals, rows),
        "batch_bytes_per_row": batch_bytes / rows[0],
        "parts_cpu_s": parts_cpu_s,
        "parts_rows": sum(rows[first:last]),
        "checksums": sums.totals,
        "hashes": sums.hashes,
    }


def tree_cpu_s(measurer: int) -> float:
    """Return the CPU seconds so far of all processes of this run: the descendants of the process that measures it."""
    total = 0.0
    for process in psutil.Process(measurer or os.getppid()).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += cpu_s(process)
    return total


def nbytes(batch: Any) -> int:
    """Return the bytes of a batch's tensors."""
    jagged = [tensor for each in batch.sparse.values() for tensor in (each.values, each.lengths)]
    return sum(int(tensor.nbytes) for tensor in (batch.dense, batch.categorical, batch.labels, *jagged))


def steady(arrivals: list[float], rows: list[int]) -> float | None:
    """Return rows per second between 20 % and 80 % of the steps; None if the run is too short."""
    first, last = len(rows) // 5, len(rows) * 4 // 5
    passed = arrivals[last] - arrivals[first] if last > first else 0.0
    return sum(rows[first:last]) / passed if passed > 0 else None


def main() -> None:
    """Reads the arguments above."""
    torch.set_num_threads(1)
    if sys.argv[1] == "calibrate":
        print(calibrate(float(sys.argv[2]) / 1000, len(SHAPES[sys.argv[3]].dense)))
        return
    name, path, started, *units = sys.argv[1:]
    warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # batches are never written to
    job = Job(**json.loads(Path(path).read_text()))
    print(json.dumps(train(name, job, float(started), int(units[0]) if units else 0)))


if __name__ == "__main__":
    main()
