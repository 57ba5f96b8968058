"""The cost of counting the rows that a filter keeps, with columns as codes, compared with pyarrow's decoder.

Both count the same row groups of one file, on one thread, alternating: with the kernel, which evaluates conditions once
per distinct value, and with FEEDLINE_DECODER=arrow, which evaluates them on every row. The file stays in the kernel's
cache and its footer parsed. Seconds are CPU time of the process, so that other work on the machine counts less. Run by
`warehouse.py`; needs no other process.
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from feedline import Table
from feedline.expressions import BoundExpression, bind_where
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.reading.fragment import UNCOUNTED, Fragment, fragment_at
from feedline.warehouse.selection.select import count_fragment
from feedline.warehouse.snapshot.snapshot import Snapshot

CONDITIONS = (
    "shop == 7",
    "shop in [1, 20, 300]",
    "item == 7",
    "user == 'user-7'",
    "country == 'DE' and price > 3",
    "item is None or price < 2",
    "url.str.contains('/7/')",
    "country == 'DE' and score > 1",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilterCost:
    """The cost of counting one filter: the rows that it keeps, and nanoseconds per row with each decoder, medians."""

    where: str
    kept: int
    coded_ns: float
    arrow_ns: float

    @property
    def ratio(self) -> float:
        """How many times faster codes are counted."""
        return self.arrow_ns / self.coded_ns


def write_table(path: Path, *, rows: int, row_group_rows: int) -> None:
    """Write ids of few values without nulls (shop) and with (item), strings, prices, and a score for each row."""
    random = np.random.default_rng(0)
    countries = np.array(["DE", "FR", "US", "GB", "IT", "JP"])
    urls = np.array([f"https://example.com/{number % 97}/{'x' * (number % 13)}" for number in range(3000)])
    users = np.array([f"user-{number}" for number in range(200)])
    table = pa.table(
        {
            "shop": random.integers(0, 200, rows),
            "item": pa.array(random.integers(0, 1000, rows), mask=random.random(rows) < 0.05),
            "user": users[random.integers(0, len(users), rows)],
            "country": countries[random.integers(0, len(countries), rows)],
            "price": np.round(random.gamma(2, 3, rows), 1),
            "url": urls[random.integers(0, len(urls), rows)],
            "score": random.standard_normal(rows).astype(np.float32),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=row_group_rows, compression="zstd")


def compare(table: Path, *, rounds: int) -> list[FilterCost]:
    """Count each condition `rounds` times with both decoders, alternating."""
    snapshot = Table(table).snapshot()
    groups = np.arange(len(snapshot.rows_per_row_group))
    fragment = fragment_at(snapshot, 0, groups, np.full(len(groups), UNCOUNTED))
    return [_compare(snapshot, fragment, bind_where(text, snapshot.schema), rounds) for text in CONDITIONS]


def _compare(snapshot: Snapshot, fragment: Fragment, where: BoundExpression, rounds: int) -> FilterCost:
    seconds: dict[str, list[float]] = {"auto": [], "arrow": []}
    kept = set()
    before = os.environ.get(DECODER_VARIABLE)
    try:
        for turn in range(rounds + 1):  # the first one is not timed
            for decoder in ("auto", "arrow") if turn % 2 else ("arrow", "auto"):
                os.environ[DECODER_VARIABLE] = decoder
                began_s = time.process_time()
                kept.add(sum(count.rows for count in count_fragment(fragment, where, snapshot.schema)))
                if turn:
                    seconds[decoder].append(time.process_time() - began_s)
    finally:
        os.environ.pop(DECODER_VARIABLE)
        if before is not None:
            os.environ[DECODER_VARIABLE] = before
    [count] = kept  # the same with both
    coded_ns, arrow_ns = (statistics.median(seconds[name]) * 1e9 / snapshot.rows for name in ("auto", "arrow"))
    return FilterCost(where=where.text, kept=count, coded_ns=coded_ns, arrow_ns=arrow_ns)
