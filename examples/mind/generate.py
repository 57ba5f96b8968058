"""Write tables in the shape of the MIND news data: impressions with histories, and the news they show.

Runs in: one process, before training; it holds one day. The same arguments give the same files.

`behaviors/ds=…` has a row per news that an impression showed: `impression_id`, `user_id`, `ts`, `history` (the news
that the user read before, newest first, up to 50), `news_id` (the candidate) and `clicked`. Rows of an impression are
neighbours. `news.parquet` has `news_id`, `category` and `subcategory`. No row of the data set is in them.

A user prefers two of the categories, and reads them mostly. A candidate is clicked with a probability that is higher if
the user prefers its category, and higher if the news is a good one (`click_logit`). So the history says what to show.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from feedline.workbench.generate import clicks as draws

FIRST_DAY = date(2026, 1, 1)
CATEGORIES, SUBCATEGORIES = 12, 5  # subcategories of each category
NEWS_PER_ROW, USERS_PER_IMPRESSION = 50, 5  # rows of a whole table per news, impressions per user
CANDIDATES = (4, 16)  # fewest and most of an impression
HISTORY, MAX_HISTORY = 12, 50  # mean and most news of a history
DAY_US = 86_400_000_000
_USERS, _TIMES, _SIZES, _CANDIDATES, _LENGTHS, _HISTORY, _LABELS, _NEWS = range(1, 9)  # streams of random words

Ids = npt.NDArray[np.int64]


class News:
    """The news of a table: where those of each category are, and how good each one is."""

    def __init__(self, count: int, seed: int) -> None:
        self.category = (draws.unit(draws.draw_words((seed, _NEWS), (0, 0, 0), count)) * CATEGORIES).astype(np.int64)
        self.subcategory = (draws.unit(draws.draw_words((seed, _NEWS), (1, 0, 0), count)) * SUBCATEGORIES).astype(int)
        self.quality = draws.effect(np.arange(count) + (seed << 32))
        self._by_category = np.argsort(self.category, kind="stable")  # popular news, of low numbers, come first
        self._starts = np.searchsorted(self.category[self._by_category], np.arange(CATEGORIES + 1))

    @property
    def count(self) -> int:
        return len(self.category)

    def of_category(self, category: Ids, share: npt.NDArray[np.float64]) -> Ids:
        """A news of each category, at this share of its list: low shares are popular ones."""
        start, stop = self._starts[category], self._starts[category + 1]
        return self._by_category[np.minimum(start + (share * (stop - start)).astype(np.int64), self.count - 1)]

    def table(self) -> pa.Table:
        names = np.char.add("c", np.arange(CATEGORIES).astype(str))
        kinds = np.char.add(np.char.add(names[self.category], "-"), self.subcategory.astype(str))
        ids = news_names(np.arange(self.count))
        return pa.table({"news_id": ids, "category": pa.array(names[self.category]), "subcategory": pa.array(kinds)})


def news_names(ids: Ids) -> pa.Array:
    """Ids as MIND writes them: N0, N1, …"""
    return pa.array(np.char.add("N", ids.astype(str)), pa.string())


def preferred(users: Ids, which: int) -> Ids:
    """The first or second category that each user prefers."""
    return ((draws.effect(users * 2 + which) + 1) / 2 * CATEGORIES).astype(np.int64)


def click_logit(users: Ids, candidates: Ids, news: News) -> npt.NDArray[np.float64]:
    """The log-odds of a click: what a model can learn."""
    category = news.category[candidates]
    likes = (category == preferred(users, 0)) | (category == preferred(users, 1))
    return -2.2 + 2.4 * likes + 1.0 * news.quality[candidates]


def day_table(news: News, seed: int, day: int, first: int, impressions: int, users: int) -> pa.Table:
    """The rows of one day's impressions, whose ids begin at `first`."""

    def unit(stream: int, count: int, part: int = 0) -> npt.NDArray[np.float64]:
        return draws.unit(draws.draw_words((seed, stream), (part, 0, day), count))

    user = (unit(_USERS, impressions) ** 1.5 * users).astype(np.int64)
    fewest, most = CANDIDATES
    sizes = (unit(_SIZES, impressions) * (most - fewest + 1)).astype(np.int64) + fewest
    row = np.repeat(np.arange(impressions), sizes)  # the impression of each row
    candidates = (unit(_CANDIDATES, len(row)) ** 1.5 * news.count).astype(np.int64)

    drawn = draws.geometric(draws.draw_words((seed, _LENGTHS), (0, 0, day), impressions), HISTORY)
    lengths = np.minimum(drawn - 1, MAX_HISTORY)
    reader = np.repeat(user, lengths)
    choice = unit(_HISTORY, len(reader), 1)
    at_random = (unit(_HISTORY, len(reader), 2) * CATEGORIES).astype(np.int64)
    category = np.where(choice < 0.4, preferred(reader, 0), np.where(choice < 0.8, preferred(reader, 1), at_random))
    read = news.of_category(category, unit(_HISTORY, len(reader), 3) ** 1.5)

    offsets = pa.array(np.concatenate([[0], np.cumsum(lengths)]), pa.int32())
    histories = pa.ListArray.from_arrays(offsets, news_names(read))
    midnight = datetime.combine(FIRST_DAY + timedelta(days=day), time(), UTC)
    moments = np.sort((unit(_TIMES, impressions) * DAY_US).astype(np.int64)) + int(midnight.timestamp()) * 1_000_000
    chance = 1.0 / (1.0 + np.exp(-click_logit(user[row], candidates, news)))
    return pa.table(
        {
            "impression_id": pa.array(first + row),
            "user_id": pa.array(np.char.add("U", user.astype(str)), pa.string()).take(pa.array(row)),
            "ts": pa.array(moments[row], pa.timestamp("us")),
            "history": histories.take(pa.array(row)),
            "news_id": news_names(candidates),
            "clicked": pa.array(unit(_LABELS, len(row)) < chance).cast(pa.int8()),
        }
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables, unless they exist; the folder appears under its name when it is complete."""
    parser = argparse.ArgumentParser(description="Write tables in the shape of the MIND news data.")
    parser.add_argument("directory", type=Path, help="where the tables go, for example warehouse/mind")
    parser.add_argument("--impressions", type=int, default=60_000, help="of all days, ten rows each (default: 60,000)")
    parser.add_argument("--days", type=int, default=6, help="(default: 6)")
    parser.add_argument("--group-rows", type=int, default=16_384, help="rows of a row group (default: 16,384)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if min(options.days, options.group_rows) < 1 or options.impressions < options.days or options.seed < 0:
        parser.error("expected at least one day, an impression a day and a row a row group, and a seed of at least 0")
    directory: Path = options.directory
    if directory.exists():
        print(f"{directory} is there already: nothing to do (remove it to write it again)")
        return
    unfinished = directory.with_name(directory.name + ".unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    news = News(max(options.impressions * 10 // NEWS_PER_ROW, 20 * CATEGORIES), options.seed)
    users, rows = max(options.impressions // USERS_PER_IMPRESSION, 1), 0
    for day in range(options.days):
        start, stop = (options.impressions * each // options.days for each in (day, day + 1))
        table = day_table(news, options.seed, day, start, stop - start, users)
        folder = unfinished / "behaviors" / f"ds={FIRST_DAY + timedelta(days=day)}"
        folder.mkdir(parents=True)
        pq.write_table(table, folder / "part-00000.parquet", row_group_size=options.group_rows, compression="zstd")
        rows += table.num_rows
    pq.write_table(news.table(), unfinished / "news.parquet", compression="zstd")
    unfinished.rename(directory)
    print(f"{directory}: {rows:,} rows of {options.impressions:,} impressions, {news.count:,} news")


if __name__ == "__main__":
    main()
