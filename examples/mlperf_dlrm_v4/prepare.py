"""Write the samples: the listens whose user has enough events before them, in the order of time, a file per day.

python examples/mlperf_dlrm_v4/prepare.py warehouse/listens warehouse/anchors --min-history 64
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import polars as pl

COLUMNS = (
    "uid", "timestamp", "event_no", "item_id", "artist_id", "album_id", "is_organic", "played_ratio_pct",
)  # fmt: skip


def samples(events: pl.LazyFrame, min_history: int) -> pl.LazyFrame:
    """Listens with at least `min_history` events of their user at earlier times."""
    earlier = pl.col("timestamp").rank("min").over("uid") - 1
    chosen = events.filter((earlier >= min_history).and_(pl.col("event_type") == "listen"))
    return chosen.select(*COLUMNS, "ds").sort("timestamp", "event_no")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the events, write the samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("events", type=Path, help="the table of `feedline generate listens`")
    parser.add_argument("out", type=Path)
    parser.add_argument("--min-history", type=int, default=64, help="the benchmark: 4086 (default: %(default)s)")
    options = parser.parse_args(arguments)
    events = pl.scan_parquet(options.events / "**" / "*.parquet", hive_partitioning=True)
    rows = samples(events, options.min_history).collect()
    for (day,), part in rows.group_by("ds", maintain_order=True):
        folder = options.out / f"ds={day}"
        folder.mkdir(parents=True, exist_ok=True)
        part.drop("ds").write_parquet(folder / "part-0.parquet")
    print(f"{rows.height:,} samples: {options.out}")


if __name__ == "__main__":
    main()
