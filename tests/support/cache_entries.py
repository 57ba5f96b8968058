"""Columns of a cache that are a function of their name, and processes that write them until they are killed."""

from __future__ import annotations

import hashlib
import itertools
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from feedline.warehouse.cache.cache_folder import CachedColumn, CacheFolder, CacheRef, EntryGroup, open_folder


def digest_of(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def group_of(row_group: int = 0, table: str = "clicks", partition: Mapping[str, Any] | None = None) -> EntryGroup:
    return EntryGroup(
        digest=digest_of(f"{table} {row_group}"),
        table=table,
        path="day=1/part.parquet" if table == "clicks" else "part.parquet",
        row_group=row_group,
        partition={} if partition is None else partition,
    )


def column_of(text: str, rows: int = 1_000) -> CachedColumn:
    """Lengths and values that follow from the name."""
    numbers = np.random.default_rng(int(digest_of(text)[:8], 16)).integers(0, 2**31, rows)
    return CachedColumn(arrays={"values": numbers, "lengths": numbers.astype(np.int32)}, facts={"name": text})


def columns_of(group: EntryGroup, count: int = 3, rows: int = 1_000) -> dict[str, CachedColumn]:
    texts = [f"{group.digest} {number}" for number in range(count)]
    return {digest_of(text): column_of(text, rows) for text in texts}


def same(left: CachedColumn, right: CachedColumn) -> bool:
    """Whether names, dtypes, shapes, bits and facts are the same."""
    return (
        dict(left.facts) == dict(right.facts)
        and list(left.arrays) == list(right.arrays)
        and all(
            (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
            for one, other in zip(left.arrays.values(), right.arrays.values(), strict=True)
        )
    )


def right_or_missing(found: Mapping[str, CachedColumn], truth: Mapping[str, CachedColumn]) -> bool:
    return all(same(column, truth[name]) for name, column in found.items())


def ref_of(
    folder: Path,
    size: int | None = 2**30,
    *,
    shared: bool = False,
    free: int = 0,
    write_budget: float | None = None,
) -> CacheRef:
    return CacheRef(folder=str(folder), size=size, free=free, shared=shared, write_budget=write_budget)


def files_of(folder: Path | str, suffix: str = ".entry") -> list[Path]:
    return sorted(path for path in (Path(folder) / "v1").rglob(f"*{suffix}"))


def filled(folder: Path, groups: int = 3, size: int | None = 2**30) -> CacheFolder:
    """A cache with the columns of some row groups."""
    cache = CacheFolder(ref_of(folder, size))
    for number in range(groups):
        group = group_of(number)
        assert cache.put(group, columns_of(group), cpu_s=1.0)
    return cache


def fill_until_killed(folder: str, groups: int, rows: int, started: Any) -> None:
    """Write row groups again and again, under names of their own each time."""
    cache = open_folder(ref_of(Path(folder)))
    made = [(group_of(number), columns_of(group_of(number), 3, rows)) for number in range(groups)]
    for number in itertools.count():
        group, columns = made[number % groups]
        cache.put(group, dict(list(columns.items())[: 1 + number % 3]), cpu_s=1.0)
        started.set()


def stop_halfway(folder: str, row_group: int, halfway: Any) -> None:
    """Write a part of a file, and wait to be killed."""
    cache, whole = open_folder(ref_of(Path(folder))), os.writev

    def write(number: int, views: list[memoryview]) -> int:
        written = whole(number, views[: len(views) // 2])
        halfway.set()
        threading.Event().wait(60)
        return written

    os.writev = write
    cache.put(group_of(row_group), columns_of(group_of(row_group)), cpu_s=1.0)


def fill_in_flight(folder: str, groups: int, barrier: Any, computed: Any) -> None:
    """Compute what is not found, one process at a time per row group; report what this process computed."""
    cache = open_folder(ref_of(Path(folder)))
    barrier.wait(30)
    mine = []
    for number in range(groups):
        group = group_of(number)
        truth = columns_of(group)
        if len(cache.find(group, list(truth))) == len(truth):
            continue
        with cache.flight(group):
            found = cache.find(group, list(truth))
            if len(found) < len(truth):
                cache.put(group, truth, cpu_s=1.0)
                mine.append(number)
    computed.put(mine)


def hold_flight(folder: str, row_group: int, held: Any) -> None:
    """Hold a flight until this process is killed."""
    cache = open_folder(ref_of(Path(folder)))
    with cache.flight(group_of(row_group)):
        held.set()
        threading.Event().wait(60)
