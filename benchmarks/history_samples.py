"""Samples per second that a trainer gets, from Feedline's late rows or from arrays of events, in a fresh process.

    python benchmarks/history_samples.py CASE.json               one run, which prints one line of JSON
    python benchmarks/history_samples.py explode EVENTS FOLDER   explodes a table of events to arrays

Used by `histories.py`. The arrays' loader is a stand-in for that of MLPerf Training's recommendation_v4, written from
what its documentation and code do. Events lie in the order of (user, time, number) in memory-mapped .npy files, one per
column, with a flag for each pool. A torch DataLoader with one worker process asks for samples by index. For each one,
the worker slices the last 20,000 events before it, selects the last 1,362 of each pool by its flags, sorts the places,
and gathers six columns with numpy. Style `lists` then puts the values into one Python list, of which a tensor is made,
as that loader does; style `arrays` concatenates numpy arrays, which is faster. Samples are collated to values by
column and lengths. Two things differ from that loader, both in its favour: samples are requested in the order of users,
and artists and albums are columns of events, not looked up by item.

Steady rates are those between 20 % and 80 % of the steps: per second, and per second of CPU of all processes of the
run. The sums of all values are returned, so that loaders of the same samples can be compared.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import polars as pl
import psutil
import torch
from cpu_of_parts import cpu_s
from history_tables import KEY, POOL_LAST, POOLED_COLUMNS, SCAN, TIE, TIME
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

_TICK_S = 0.01  # of the kernel's count
FEEDLINE, LISTS, ARRAYS = "feedline", "lists", "arrays"
_COLUMNS = (KEY, *POOLED_COLUMNS)
_FLAGS = {"listened": (0, 1), "liked": (1, 2), "skipped": (0, 4)}  # the type of event of each pool, and its bit
_TYPES = {"listen": 0, "like": 1, "dislike": 2, "unlike": 3, "undislike": 4}


def explode(events: str, folder: Path) -> None:
    """Write a table of events as arrays, sorted; one column is held in memory besides the sorted table."""
    folder.mkdir(parents=True)
    frame = pl.read_parquet(f"{events}/**/*.parquet").sort(KEY, TIME, TIE)
    for name in _COLUMNS:
        np.save(folder / f"{name}.npy", frame[name].cast(pl.Int64).to_numpy())
    kind = frame["event_type"].replace_strict(_TYPES, return_dtype=pl.Int64).to_numpy()
    played = frame["played_ratio_pct"].fill_null(0).cast(pl.Float32).to_numpy()
    np.save(folder / "event_type.npy", kind)
    np.save(folder / "played_ratio_pct.npy", played)
    for name, (of_type, _) in _FLAGS.items():
        of_ratio = {"listened": played >= 50, "skipped": played < 50}.get(name, True)
        np.save(folder / f"is_{name}.npy", (kind == of_type) & of_ratio)


class MappedEvents(Dataset[tuple[Tensor, int]]):
    """Samples by index. starts, stops: int64 [samples], the events of the sample's user before its time."""

    def __init__(self, folder: Path, starts: NDArray[np.int64], stops: NDArray[np.int64], style: str) -> None:
        self._columns = [np.load(folder / f"{name}.npy", mmap_mode="r") for name in POOLED_COLUMNS]
        self._flags = [(np.load(folder / f"is_{name}.npy", mmap_mode="r"), bit) for name, (_, bit) in _FLAGS.items()]
        self._starts, self._stops, self._style = starts, stops, style

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        """The values of six columns, laid end to end, and the length of each."""
        stop = int(self._stops[index])
        start = max(int(self._starts[index]), stop - SCAN)
        flags = [flag[start:stop] for flag, _ in self._flags]
        every = np.arange(stop - start)
        kept = np.sort(np.concatenate([every[flag][-POOL_LAST:] for flag in flags]), kind="stable")
        pools = np.zeros(len(kept), np.int64)
        for flag, (_, bit) in zip(flags, self._flags, strict=True):
            pools[flag[kept]] |= bit
        columns = [*(column[start:stop][kept] for column in self._columns), pools]
        if self._style == ARRAYS:
            return torch.from_numpy(np.concatenate(columns)), len(kept)
        values: list[int] = []
        for column in columns:
            values.extend(column.tolist())
        return torch.tensor(values, dtype=torch.long), len(kept)


def collate(samples: list[tuple[Tensor, int]]) -> tuple[list[Tensor], Tensor]:
    """The values of each column, and the lengths: int64 [rows]."""
    columns = [values.view(len(POOLED_COLUMNS) + 1, -1) for values, _ in samples]
    values = [torch.cat([each[place] for each in columns]) for place in range(len(POOLED_COLUMNS) + 1)]
    return values, torch.tensor([length for _, length in samples])


def mapped(case: Mapping[str, Any]) -> Iterator[tuple[int, list[Tensor]]]:
    """Rows and values by column of each batch, from arrays."""
    starts, stops = np.load(case["places"])
    events = MappedEvents(Path(case["arrays"]), starts, stops, case["loader"])
    loader = DataLoader(events, batch_size=case["batch_size"], num_workers=1, prefetch_factor=8, collate_fn=collate)
    for values, lengths in loader:
        yield len(lengths), values


def feedline(case: Mapping[str, Any]) -> Iterator[tuple[int, list[Tensor]]]:
    """Rows and values by column of each batch, from a feeder with one thread for blocks."""
    from feedline import FeedlineDataset

    with FeedlineDataset(case["pipeline"], set={"cluster": {"threads": 1}}) as dataset:
        for batch in dataset:
            lists = [feature.values for feature in batch.sparse.values()]
            rows = len(next(iter(batch.sparse.values())).lengths)
            del batch
            yield rows, lists


def run(case: Mapping[str, Any]) -> dict[str, Any]:
    """Take every batch. Raises ValueError if there are too few to measure."""
    batches: Callable[[Mapping[str, Any]], Iterator[tuple[int, list[Tensor]]]]
    batches = feedline if case["loader"] == FEEDLINE else mapped
    moments: list[tuple[int, float, float]] = []  # rows so far, when, CPU-seconds
    rows: list[int] = []
    sums: list[int] = []
    for count, values in batches(case):
        rows.append(count)
        if case.get("sums"):
            found = [int(each.sum()) for each in values]
            sums = [one + other for one, other in zip(sums, found, strict=True)] if sums else found
        del values
        if not moments or time.monotonic() - moments[-1][1] >= case["sample_s"]:
            moments.append((sum(rows), time.monotonic(), _tree_cpu_s()))
    steady = [each for each in moments if 0.2 * sum(rows) <= each[0] <= 0.8 * sum(rows)]
    if len(steady) < 2:
        raise ValueError(f"too few rows to measure: got {sum(rows)} in {len(rows)} batches. Give more samples")
    (first, begin, cpu), (last, end, cpu_end) = steady[0], steady[-1]
    return {
        "rows": sum(rows),
        "sums": sums,
        "rows_per_s": (last - first) / (end - begin),
        "rows_per_cpu_s": (last - first) / max(cpu_end - cpu, _TICK_S),
    }


def _tree_cpu_s() -> float:
    """CPU seconds so far of this process and its children, in the scheduler's count."""
    total = time.process_time()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, FileNotFoundError):
            total += cpu_s(process)
    return total


def main() -> None:
    """Read the arguments above."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    if sys.argv[1] == "explode":
        explode(sys.argv[2], Path(sys.argv[3]))
        return
    torch.set_num_threads(1)
    print(json.dumps(run(cast("dict[str, Any]", json.loads(Path(sys.argv[1]).read_text())))))


if __name__ == "__main__":
    main()
