"""Write the tables that `histories.py` compares: events, samples, and the same samples as fat rows.

Events are those of `feedline generate listens`. Samples are a random share of the listens: of every n-th user, which
lie together, or of all users, which are in the order of time; so fat rows have the neighbours that they would have in a
whole table. A fat row is a sample with its list of events per column, written by pyarrow (zstd) from arrays that numpy
gathers, without Feedline's join. Each table is written when it is first asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feedline import Table
from feedline.workbench.generate.generate import generate_listens
from feedline.workbench.generate.listens import ListenRecipe

Int64s = NDArray[np.int64]

KEY, TIME, TIE = "uid", "timestamp", "event_no"
COLUMNS = ("item_id", "artist_id", "timestamp")  # of the lists of a fat row
HASHED = ("item_id", "artist_id")
BUCKETS = 1_000_000
SAMPLE_COLUMNS = (KEY, TIME, "item_id", "played_ratio_pct")
POOL_LAST = 1_362
SCAN = 20_000
POOLS = {
    "listened": 'event_type == "listen" and played_ratio_pct >= 50',
    "liked": 'event_type == "like"',
    "skipped": 'event_type == "listen" and played_ratio_pct < 50',
}
POOLED_COLUMNS = ("item_id", "artist_id", "album_id", "timestamp", "is_organic")  # with the pools: 6 columns
BY_TIME, CLUSTERED = "by-time", "clustered"
_PART_BYTES = 32 << 20  # of a list column that is gathered at once, and of a row group
_ROW_GROUP_BYTES = 64 << 20
_BLOCK_VALUES = 1 << 24  # of a list column: an epoch has many blocks, or its rate is that of the last one's delivery


@dataclass(frozen=True, slots=True)
class Samples:
    """Events in the order of (user, time, number), and some of them, which are samples, in the same order.

    starts, stops: int64 [samples], the events of the sample's user before its time.
    """

    events: pl.DataFrame
    rows: pl.DataFrame
    starts: Int64s
    stops: Int64s

    @classmethod
    def of(cls, events: pl.DataFrame, chosen: NDArray[np.bool_]) -> Samples:
        users, times = events[KEY].to_numpy(), events[TIME].to_numpy()
        begins = np.diff(users, prepend=-1) != 0
        moments = begins | (np.diff(times, prepend=-1) != 0)
        # users 7 7 7 8, times 1 2 2 2: starts 0 0 0 3, stops 0 1 1 3
        starts, stops = (np.maximum.accumulate(np.where(each, np.arange(len(users)), 0)) for each in (begins, moments))
        places = np.flatnonzero(chosen)
        return cls(events, events[places].select(SAMPLE_COLUMNS), starts[places], stops[places])

    def seen(self, last: int) -> int:
        """The events that some sample sees, of which each sees at most the last ones."""
        first = np.maximum(self.starts, self.stops - last)
        before = np.maximum.accumulate(np.concatenate([[0], self.stops[:-1]]))
        return int(np.maximum(self.stops - np.maximum(first, before), 0).sum())


class Tables:
    """The tables and pipelines, below a folder."""

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options

    @cached_property
    def events(self) -> Path:
        """The log of events, in the order of time."""
        return self.generated(self.options.events)

    def generated(self, rows: int) -> Path:
        folder = self.folder / f"events-{rows}"
        if not folder.exists():
            generate_listens(str(folder), ListenRecipe(rows=rows, days=self.options.days), threads=1)
        return folder

    @cached_property
    def stored(self) -> Path:
        """The events in the layout of histories."""
        target = self.folder / "stored"
        self._optimize(self.events, target, history=KEY, sort_by=(TIME, TIE))
        return target

    @cached_property
    def sorted_events(self) -> pl.DataFrame:
        return pl.read_parquet(self.events / "**" / "*.parquet").sort(KEY, TIME, TIE)

    @cached_property
    def of_users(self) -> Samples:
        """A share of the listens of every n-th user."""
        users = self.sorted_events[KEY].unique(maintain_order=True).gather_every(self.options.part)
        return self._drawn(self.options.share, self.sorted_events[KEY].is_in(users.implode()).to_numpy())

    @cached_property
    def scattered(self) -> Samples:
        """As many samples of all users."""
        return self._drawn(self.options.share / self.options.part, np.ones(self.sorted_events.height, np.bool_))

    def _drawn(self, share: float, among: NDArray[np.bool_]) -> Samples:
        events = self.sorted_events
        drawn = np.random.default_rng(0).random(events.height) < share
        return Samples.of(events, (events["event_type"] == "listen").to_numpy() & drawn & among)

    def samples(self, name: str = "samples") -> Path:
        """The samples, clustered by user; named `last-day`, only those of the last day."""
        rows = self.of_users.rows
        if name == "last-day":
            rows = rows.filter(pl.col(TIME) >= pl.col(TIME).max() // 86_400 * 86_400)
        source, target = self.folder / f"{name}-source", self.folder / name
        if not source.exists():
            source.mkdir()
            rows.write_parquet(source / "part.parquet")
        self._cluster(source, target, "balanced")
        return target

    def fat(self, last: int, order: str, goal: str = "") -> Path:
        """The fat rows of lists of at most `last` events: in the order of time, or clustered by user; as pyarrow wrote
        them, or in the encodings that `feedline optimize` chooses for a goal: decode or size."""
        source = self.folder / f"fat-{last}-{order}"
        if not source.exists():
            self._write_fat(source, last, order)
        if not goal:
            return source
        target = self.folder / f"fat-{last}-{order}-{goal}"
        if order == CLUSTERED:
            self._cluster(source, target, goal)
        else:
            self._optimize(source, target, row_group_bytes=_ROW_GROUP_BYTES, goal=goal)
        return target

    def copies(self, table: Path, count: int) -> Path:
        """Several copies of a table's files in one table, as links: an epoch that is long enough to measure."""
        target = self.folder / f"{table.name}-copies-{count}"
        for copy in range(count):
            for file in files_of(table):
                link = target / f"copy={copy}" / file.relative_to(table)
                link.parent.mkdir(parents=True, exist_ok=True)
                if not link.exists():
                    link.hardlink_to(file)
        return target

    def late(self, table: Path, last: int, columns: Sequence[str] = COLUMNS) -> Path:
        """A pipeline whose lists are joined while it reads."""
        ops = ", ".join(f"{name}: {_ops(name)}" for name in columns)
        return self._pipeline(
            f"late-{table.name}-{last}-{len(columns)}",
            table,
            f"{self._history()}features:\n  sparse:\n    h: {{history: events, columns: [{', '.join(columns)}], "
            f"at: {TIME}, last: {last}, ops: {{{ops}}}}}\n",
            last,
        )

    def read_fat(self, table: Path, last: int, columns: Sequence[str] = COLUMNS) -> Path:
        """A pipeline over fat rows, of the same features."""
        features = "".join(f"    h_{name}: {_ops(name)}\n" for name in columns)
        return self._pipeline(table.name, table, f"features:\n  sparse:\n{features}", last)

    def pooled(self, table: Path) -> Path:
        """The benchmark's samples: three pools, merged by time, six columns."""
        pools = ", ".join(f"{name}: {{where: {where}, last: {POOL_LAST}}}" for name, where in POOLS.items())
        return self._pipeline(
            f"pooled-{table.name}",
            table,
            f"{self._history()}features:\n  sparse:\n    h:\n      history: events\n"
            f"      columns: [{', '.join(POOLED_COLUMNS)}]\n      tag: pools\n      at: {TIME}\n      scan: {SCAN}\n"
            f"      pools: {{{pools}}}\n",
            POOL_LAST,
        )

    def _history(self) -> str:
        return f"histories:\n  events: {{table: {self.stored}, key: {KEY}, time: {TIME}, tie_break: {TIE}}}\n"

    def _pipeline(self, name: str, table: Path, content: str, last: int) -> Path:
        path = self.folder / f"{name}.yaml"
        path.write_text(
            f"version: 1\nname: {name}\nwork_dir: {self.folder / 'work'}\nsource: {{table: {table}}}\n{content}"
            f"batch: {{size: {self.options.batch_size}, tail: partial}}\n"
            f"shuffle: {{seed: 0, window_rows: {min(131_072, _BLOCK_VALUES // last)}}}\n"
        )
        return path

    def _cluster(self, source: Path, target: Path, goal: str) -> None:
        self._optimize(source, target, cluster_by=KEY, sort_by=TIME, row_group_bytes=_ROW_GROUP_BYTES, goal=goal)

    def _optimize(self, source: Path, target: Path, **options: Any) -> None:
        done = target.with_name(f"{target.name}.done")
        if not done.exists():
            Table(source).optimize(target, threads=1, **options)
            done.touch()

    def _write_fat(self, folder: Path, last: int, order: str) -> None:
        folder.mkdir()
        samples = self.scattered if order == BY_TIME else self.of_users
        first = np.maximum(samples.starts, samples.stops - last)
        by_time = np.argsort(samples.rows[TIME].to_numpy(), kind="stable")
        places_of = by_time if order == BY_TIME else np.arange(len(first))
        values = {name: samples.events[name].to_numpy() for name in COLUMNS}
        rows = max(1, _PART_BYTES // (8 * last))
        writer = None
        for part in range(0, len(places_of), rows):
            chosen = places_of[part : part + rows]
            lengths = samples.stops[chosen] - first[chosen]
            offsets = np.concatenate([[0], np.cumsum(lengths)])
            places = np.arange(offsets[-1]) + np.repeat(first[chosen] - offsets[:-1], lengths)
            table = samples.rows[chosen].to_arrow()
            for name, column in values.items():
                lists = pa.ListArray.from_arrays(offsets.astype(np.int32), column[places])
                table = table.append_column(f"h_{name}", lists)
            if writer is None:  # without dictionaries, zstd finds the lists that overlap
                writer = pq.ParquetWriter(
                    folder / "part.parquet", table.schema, compression="zstd", use_dictionary=False
                )
            writer.write_table(table)
        if writer is not None:
            writer.close()


def files_of(table: Path) -> list[Path]:
    """The table's Parquet files."""
    return sorted(table.rglob("*.parquet"))


def _ops(column: str) -> str:
    """The ops of a column of events, or of the fat rows' column for it."""
    if column in HASHED:
        return f"[{{hash_bucket: {BUCKETS}}}]"
    if column == "event_type":
        return "[{hash_bucket: 16}]"
    return "[{fill_null: 0}]" if column in ("played_ratio_pct", "track_length_seconds") else "[]"
