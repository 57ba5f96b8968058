"""State the benchmark's published rules in plain numpy, and check that batches hold what they say.

    python examples/mlperf_dlrm_v4/reference.py --samples 512 --day 2026-01-30

For a listen, the sample, of a user at a time:

- the scan is the last 20,000 of the user's events of earlier times, in the order of (time, number);
- of these, the last 1,362 of each pool are the history, in the same order: listened (half of the track or more), liked,
  skipped (less than half), with the bits 1, 2 and 4;
- the context is the user, and seven hashes of what is known of the sample: xxHash64, with the seed 0, of 8 bytes per
  integer, modulo the size of the table;
- the query time is that of the history's last event, or the sample's own if there is none; the label is the bit of
  listened.

"No event at or after the anchor's timestamp can enter its features", says the benchmark. Its loader takes the events
*stored* before the sample, among which are some of the same second; `--stored` counts the samples for which that
differs.
"""

from __future__ import annotations

import argparse
import struct
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import polars as pl
import xxhash
from tensors import CANDIDATE, CONTEXT, QUERY_TIME, candidate, history

from feedline import Pipeline
from feedline.config.overrides import parse_overrides

HERE = Path(__file__).resolve().parent
WAREHOUSE = HERE.parents[1] / "warehouse"
SCAN, PER_POOL = 20_000, 4_086 // 3
LISTENED, LIKED, SKIPPED = 1, 2, 4
CROSSES = {
    "user_x_artist": (("uid", "artist_id"), 100_000_000),
    "user_x_album": (("uid", "album_id"), 40_000_000),
    "user_x_hour": (("uid", "hour"), 24_000_000),
    "item_x_hour": (("item_id", "hour"), 40_000_000),
    "artist_x_hour": (("artist_id", "hour"), 32_000_000),
    "user_x_is_organic": (("uid", "is_organic"), 2_000_000),
    "user_x_artist_x_hour": (("uid", "artist_id", "hour"), 40_000_000),
}

Sample = dict[str, list[int]]


class Events:
    """All events, as arrays in the order of (user, time, number)."""

    def __init__(self, table: Path) -> None:
        frame = pl.read_parquet(table / "**" / "*.parquet").sort("uid", "timestamp", "event_no")
        self.columns = {
            name: frame[name].cast(pl.Int64).to_numpy()
            for name in ("uid", "timestamp", "event_no", "item_id", "artist_id", "album_id")
        }
        played = frame["played_ratio_pct"].fill_null(0).to_numpy()
        kind = frame["event_type"].to_numpy()
        self.pools = {
            LISTENED: (kind == "listen") & (played >= 50),
            LIKED: kind == "like",
            SKIPPED: (kind == "listen") & (played < 50),
        }

    def history(self, user: int, time: int, *, stored_before: int | None = None) -> dict[str, np.ndarray]:
        """Columns and pools of the events that a sample sees. stored_before: its number; then these are not of earlier
        times, but the events before it in the order."""
        columns = self.columns
        start, stop = np.searchsorted(columns["uid"], [user, user + 1])
        end = start + np.searchsorted(columns["timestamp"][start:stop], time)
        if stored_before is not None:
            [place] = np.flatnonzero(columns["event_no"][start:stop] == stored_before)
            end = start + place
        start = max(start, end - SCAN)
        kept = np.concatenate([start + np.flatnonzero(pool[start:end])[-PER_POOL:] for pool in self.pools.values()])
        kept = np.sort(kept)
        weight = sum(bit * pool[kept].astype(np.int64) for bit, pool in self.pools.items())
        return {name: values[kept] for name, values in columns.items()} | {"action_weight": weight}


def sample(events: Events, row: Mapping[str, int]) -> tuple[Sample, Sample]:
    """The history's and the candidate's values, by key."""
    seen = events.history(row["uid"], row["timestamp"])
    known = {**row, "hour": row["timestamp"] // 3600 % 24}
    query_time = int(seen["timestamp"][-1]) if len(seen["timestamp"]) else row["timestamp"]
    context = {"uid": row["uid"]} | {
        name: xxhash.xxh64_intdigest(struct.pack(f"<{len(keys)}q", *(known[key] for key in keys)), seed=0) % size
        for name, (keys, size) in CROSSES.items()
    }
    of_user = {name: [context[name]] for name in CONTEXT}
    of_user |= {name: seen[name].tolist() for name in ("item_id", "artist_id", "album_id", "action_weight")}
    of_user |= {"action_timestamp": seen["timestamp"].tolist(), "dummy_watch_time": [0] * len(seen["timestamp"])}
    of_user[QUERY_TIME] = [query_time]
    listened = LISTENED if row["played_ratio_pct"] >= 50 else 0
    of_item = [row["item_id"], row["artist_id"], row["album_id"], query_time, listened, 1]
    return of_user, {name: [value] for name, value in zip(CANDIDATE, of_item, strict=True)}


def rows_of(table: Path) -> Iterator[dict[str, int]]:
    """The samples in the order of the table."""
    for file in sorted(table.rglob("*.parquet")):
        yield from pl.read_parquet(file).iter_rows(named=True)


def check(pipeline: Pipeline, known: Events, samples: Sequence[Mapping[str, int]]) -> int:
    """Compare the first batches of a pipeline with its first samples; return the values compared. Raises SystemExit
    where one differs."""
    rows, compared = iter(samples), 0
    batches = pipeline.batches()
    for batch in batches:
        found = [history(batch).to_dict(), candidate(batch).to_dict()]
        for number, row in enumerate(islice(rows, batch.rows)):
            for of_batch, expected in zip(found, sample(known, row), strict=True):
                for name, values in expected.items():
                    one = of_batch[name]
                    own = one.values()[one.offsets()[number] : one.offsets()[number + 1]].tolist()
                    if own != values:
                        raise SystemExit(f"{name} of {row} differs: got {own}, expected {values}")
                    compared += len(values)
        if batch.step * batch.rows + batch.rows >= len(samples):
            break
    batches.close()
    return compared


def of_the_same_second(known: Events, samples: Sequence[Mapping[str, int]]) -> int:
    """Samples whose history would hold other events if those stored before them were taken."""
    differ = 0
    for row in samples:
        strict = known.history(row["uid"], row["timestamp"])
        stored = known.history(row["uid"], row["timestamp"], stored_before=row["event_no"])
        differ += not np.array_equal(strict["event_no"], stored["event_no"])
    return differ


def main(arguments: Sequence[str] | None = None) -> None:
    """Check, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pipeline", type=Path, default=HERE / "pipeline.yaml")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key")
    parser.add_argument("--events", type=Path, default=WAREHOUSE / "listens")
    parser.add_argument("--anchors", type=Path, default=WAREHOUSE / "anchors")
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--day", default="", help="those of a day, such as 2026-01-30 (default: the first ones)")
    parser.add_argument("--stored", action="store_true", help="count samples that see events of their own second")
    options = parser.parse_args(arguments)
    overrides = parse_overrides(options.set) | ({"source.where": f'ds == "{options.day}"'} if options.day else {})
    known = Events(options.events)
    samples = list(islice(rows_of(options.anchors / (f"ds={options.day}" if options.day else "")), options.samples))
    compared = check(Pipeline.from_yaml(options.pipeline, overrides), known, samples)
    print(f"{len(samples):,} samples, {compared:,} values: as the rules say")
    if options.stored:
        print(
            f"{of_the_same_second(known, samples):,} of them have another history where events that are stored before "
            "the sample, of its own second, are taken"
        )


if __name__ == "__main__":
    main()
