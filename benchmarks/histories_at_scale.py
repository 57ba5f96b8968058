"""Simulate a table of histories that no machine here holds: what its indexes take, and what blocks request of a store.

    python benchmarks/histories_at_scale.py --users 100000000 --events 1000000000000

Users have heavy-tailed numbers of events; a sample is an event, so that active users have many. The layout is that of
`feedline optimize --history`: files, row groups and pages of 512 events, whose places are computed, not written. The
pages that a block's rows need are requested as blocks do (`warehouse.storage.ranges.coalesce`). Bytes of an index are
those that `--index-key` and `--index-stripe` say, which were measured on written tables.
"""

from __future__ import annotations

import argparse
import json

import numpy as np

from feedline.warehouse.parquet.history_note import STRIPE_ROWS
from feedline.warehouse.storage.ranges import coalesce

SIGMA = 1.35  # of the logarithm of events per user, as in benchmarks/histories.py
GROUP_ROWS = 65_536


def drawn_users(rng: np.random.Generator, mean: float, rows: int, samples_per_user: float) -> np.ndarray:
    """int64 [users]: the events of the users of a block's rows, drawn by their activity."""
    sizes = rng.lognormal(np.log(mean) - SIGMA**2 / 2 + SIGMA**2, SIGMA, max(1, round(rows / samples_per_user)))
    return np.maximum(1, sizes.astype(np.int64))


def pages_of(first: np.ndarray, stop: np.ndarray, column_bytes: list[float]) -> list[tuple[int, int]]:
    """The byte ranges of the pages that hold the events [first, stop) of each user, column by column."""
    row_bytes, ranges = sum(column_bytes), []
    for start, end in zip(first.tolist(), stop.tolist(), strict=True):
        for group in range(start // GROUP_ROWS, (max(start, end - 1)) // GROUP_ROWS + 1):
            low = max(start, group * GROUP_ROWS) // STRIPE_ROWS * STRIPE_ROWS
            high = -(-min(end, (group + 1) * GROUP_ROWS) // STRIPE_ROWS) * STRIPE_ROWS
            place = group * GROUP_ROWS * row_bytes
            for width in column_bytes:
                inside = low - group * GROUP_ROWS, high - group * GROUP_ROWS
                ranges.append((int(place + inside[0] * width), int(place + inside[1] * width)))
                place += GROUP_ROWS * width
    return ranges


def block(rng: np.random.Generator, options: argparse.Namespace, *, clustered: bool) -> dict[str, float]:
    """Requests and bytes of a block. clustered: its rows are of neighbouring users; else of any."""
    mean, widths = options.events / options.users, [float(each) for each in options.column_bytes.split(",")]
    per_user = options.samples_per_user if clustered else 1.0
    sizes = drawn_users(rng, mean, options.rows, per_user)
    ends = (sizes * rng.random(len(sizes))).astype(np.int64)
    firsts = np.maximum(0, ends - options.last)
    if clustered:  # users lie one after another in one file
        starts = np.cumsum(sizes) - sizes
        requests = coalesce(pages_of(starts + firsts, starts + ends, widths))
    else:  # each user lies somewhere else
        offsets = rng.integers(0, GROUP_ROWS, len(sizes))
        requests = [
            each
            for offset, first, end in zip(offsets, firsts, ends, strict=True)
            for each in coalesce(pages_of(np.array([offset + first]), np.array([offset + end]), widths))
        ]
    needed = float((ends - firsts).sum() * sum(widths))
    read = sum(stop - start for start, stop in requests)
    return {"requests": len(requests), "bytes": read, "amplification": read / max(needed, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=10**8)
    parser.add_argument("--events", type=int, default=10**12)
    parser.add_argument("--rows", type=int, default=4_096, help="samples of a block")
    parser.add_argument("--last", type=int, default=4_096, help="events of a sample, at most")
    parser.add_argument("--samples-per-user", type=float, default=20, help="of an epoch, of its users")
    parser.add_argument("--samples-per-s", type=float, default=100_000, help="of all trainers")
    parser.add_argument("--column-bytes", default="2.5,2.5,2.2,2.0,1.0,0.1", help="stored bytes of an event, by column")
    parser.add_argument("--index-key", type=float, default=6.7, help="bytes of an index per user")
    parser.add_argument("--index-stripe", type=float, default=5.1, help="bytes of an index per stripe")
    parser.add_argument("--file-bytes", type=float, default=256 * 2**20)
    parser.add_argument("--blocks", type=int, default=20)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    row_bytes = sum(float(each) for each in options.column_bytes.split(","))
    index = options.users * options.index_key + options.events / STRIPE_ROWS * options.index_stripe
    facts: dict[str, float] = {
        "stored_bytes": options.events * row_bytes,
        "files": options.events * row_bytes / options.file_bytes,
        "index_bytes": index,
        "index_bytes_per_event": index / options.events,
        "index_bytes_per_user": index / options.users,
        "index_bytes_of_a_file": index / (options.events * row_bytes / options.file_bytes),
    }
    for name, clustered in (("any", False), ("clustered", True)):
        found = [block(rng, options, clustered=clustered) for _ in range(options.blocks)]
        blocks_per_s = options.samples_per_s / options.rows
        facts[f"{name}_requests_of_a_block"] = float(np.median([each["requests"] for each in found]))
        facts[f"{name}_requests_per_s"] = facts[f"{name}_requests_of_a_block"] * blocks_per_s
        facts[f"{name}_bytes_per_s"] = float(np.median([each["bytes"] for each in found])) * blocks_per_s
        facts[f"{name}_amplification"] = float(np.median([each["amplification"] for each in found]))
    if options.json:
        print(json.dumps(facts))
    else:
        for name, value in facts.items():
            print(f"{name.replace('_', ' '):28} {value:,.4g}")


if __name__ == "__main__":
    main()
