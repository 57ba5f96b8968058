"""The rows of generated logs: `LogRecipe` describes four tables, `LogPart` generates what follows from a part of a day.

Runs in the generator's Dask tasks. Pure: a part is a function of the recipe, the day and the part's number. The tables,
each below `ds=YYYY-MM-DD`, the day on which its rows arrived; `ts` is in microseconds, UTC without a zone, and a whole
second, so that ties are many:

    impressions  request_id, session_id, user_id, item_id int64; position int32, from 0 within the request; ts;
                 device string, of the session; price float32, of the item; recent list<int64>, of the request: ids,
                 newest first, one new in front from each request of a session to the next
    clicks       request_id, item_id int64; ts; dwell_ms int64
    orders       user_id, item_id int64; ts; price float32
    users        user_id int64; ts; age int32, null for one in twenty; country string; hist list<int64>, newest first:
                 snapshots, of all users but 5 % on the first day, of 30 % on every other one

A request shows an item once, and has an id that no other has. A session has several requests, and is one user's; three
in ten of its items are of the user's own 16, so an item is often shown again before it is ordered. Impressions are
clicked with probability sigmoid(`click_logits`), 5 % of these twice, after a log-normal delay with a median of 8 s;
but 1 % of clicks half an hour to two hours later, 1 % in the impression's own second, and 0.5 % up to a minute before
it, by a clock that is slow. One in ten of the clicked is ordered, by an exponential law of mean one day: 0.1 % later
than a week. Whatever happens after the last day's end is not in the log.

Faults, each by its share. `late`: a row arrives one or two days after the day of its `ts`, in files of that day; where
this is after the last day, it arrives in time. `duplicates`: a row is written twice, the copy with a delay of its own.
`orphans`: an outcome has no impression: its request, or its user, is a negative number that no impression has.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.hashing import hash_words
from feedline.workbench.generate.daily_table import ROW_BITS, DailyTable, GeneratedFile, check_ranges
from feedline.workbench.generate.draws import (
    Float32s,
    Float64s,
    Int64s,
    Words,
    draw_words,
    effect,
    geometric,
    lognormal,
    unit,
    zipf,
)

LOG_TABLES = ("impressions", "clicks", "orders", "users")
LOG_COUNTS = (*LOG_TABLES, "sessions", "requests", "late", "duplicates", "orphans")  # the latter are rows written
_SESSIONS, _REQUESTS, _USERS, _STARTS, _GAPS, _VIEWS, _ITEMS, _FAVOURITES, _DEVICES = range(9)  # streams
_RECENT, _RECENT_SIZES, _CLICKED, _AGAIN, _CLICK_DELAYS, _CLICK_KINDS, _DWELL, _ORDERED, _ORDER_DELAYS = range(9, 18)
_SNAPSHOTS, _SNAPSHOT_TIMES = range(18, 20)
_COPIES, _LATE, _ORPHANS = ((fault << 8) for fault in (1, 2, 3))  # added to the number of the table
_AGE, _COUNTRY, _PRICE, _HIST_SIZE, _HIST = range(5)  # seeds of hashes
_DAY_S, _SECOND_US = 86_400, 1_000_000
REQUEST_MAX = 64
_MAX_ITEMS = 1 << 24  # of `zipf`
_FAVOURITE_SHARE, _FAVOURITES_PER_USER = 0.3, 16
_REQUEST_GAP_S, _VIEW_GAP_S = 45.0, 0.7  # a view's is 0 s for six in ten
_RECENT_LENGTHS = (5, 50)
_HIST_LENGTHS = 50
_DEVICE_WORDS = ("phone", "tablet", "desktop", "tv")
_COUNTRY_WORDS = ("BR", "DE", "FR", "GB", "IN", "JP", "NG", "PL", "US", "VN")
_AGAIN_SHARE, _EARLY_SHARE, _TIED_SHARE, _SLOW_SHARE, _ORDERED_SHARE = 0.05, 0.005, 0.01, 0.01, 0.1
_CLICK_MEDIAN_S, _SLOW_S, _ORDER_MEAN_S = 8, 1_800, _DAY_S
_USER_EXPONENT = 0.6  # the most active of 15,000 has 0.8 % of the sessions
_FIRST_SHARE, _DAILY_SHARE, _AGELESS_SHARE = 0.95, 0.3, 0.05
_KEY, _TIME, _IDS = pa.int64(), pa.timestamp("us"), pa.list_(pa.int64())
_SCHEMAS = {
    "impressions": pa.schema(
        [
            *((name, _KEY) for name in ("request_id", "session_id", "user_id", "item_id")),
            ("position", pa.int32()),
            ("ts", _TIME),
            ("device", pa.string()),
            ("price", pa.float32()),
            ("recent", _IDS),
        ]
    ),
    "clicks": pa.schema([("request_id", _KEY), ("item_id", _KEY), ("ts", _TIME), ("dwell_ms", pa.int64())]),
    "orders": pa.schema([("user_id", _KEY), ("item_id", _KEY), ("ts", _TIME), ("price", pa.float32())]),
    "users": pa.schema(
        [("user_id", _KEY), ("ts", _TIME), ("age", pa.int32()), ("country", pa.string()), ("hist", _IDS)]
    ),
}
Bools = npt.NDArray[np.bool_]
Column = Callable[[Int64s], pa.Array]  # of row numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRecipe(DailyTable):
    """Logs of `rows` impressions, copies not counted, over `days` days, from the day `start` on.

    `sessions_mean`, `requests_mean`: mean impressions of a session, and of a request. `users`: whose sessions they are
    (default: one per 66 impressions). `items`: what is shown (default: 20 times the square root of `rows`).
    `late`, `duplicates`, `orphans`: shares of rows at fault. `part_rows`: impressions that a task generates, at most.
    Raises SpecError for values out of range.
    """

    sessions_mean: float = 16.5
    requests_mean: float = 5.5
    users: int | None = None
    items: int | None = None
    late: float = 0.01
    duplicates: float = 0.005
    orphans: float = 0.01

    def __post_init__(self) -> None:
        """Raise SpecError for values out of range."""
        DailyTable.__post_init__(self)
        integers = {"users": (1, 1 << 40), "items": (REQUEST_MAX, _MAX_ITEMS)}
        check_ranges(
            self,
            {name: each for name, each in integers.items() if getattr(self, name) is not None},
            {"sessions_mean": (1, 1_000_000), "requests_mean": (1, REQUEST_MAX)}
            | dict.fromkeys(("late", "duplicates", "orphans"), (0, 1)),
        )
        if self.requests_mean > self.sessions_mean:
            raise SpecError(
                f"requests_mean exceeds sessions_mean: got {self.requests_mean} and {self.sessions_mean}, expected "
                "a session of one request or more."
            )

    @property
    def user_count(self) -> int:
        return self.users or max(1, self.rows // 66)

    @property
    def item_count(self) -> int:
        return self.items or min(_MAX_ITEMS, max(REQUEST_MAX, math.ceil(20 * math.sqrt(self.rows))))


@dataclass(frozen=True, slots=True)
class _Events:
    """Rows of one table, in no order: seconds since 1970, the other columns as functions of row numbers, orphans."""

    second: Int64s
    columns: Mapping[str, Column]
    orphan: Bools


class LogPart:
    """What one part of a day gives rise to, on that day and later.

    Impressions are numbered by session and, within a session, by request and position. `counts` is complete once all
    row groups are generated.
    """

    def __init__(self, recipe: LogRecipe, day: int, part: int) -> None:
        self._recipe, self._day, self._part = recipe, day, part
        start, stop = recipe.part_bounds(day, part)
        self._rows = stop - start
        self._session, self._request = self._draw_requests()
        self._session_heads = np.flatnonzero(np.diff(self._session, prepend=-1))
        self._heads = np.flatnonzero(np.diff(self._request, prepend=-1))  # of requests
        self._user = zipf(self._words(_USERS, len(self._session_heads)), recipe.user_count, _USER_EXPONENT)[
            self._session
        ]
        self._item = self._draw_items()
        self._second = self._draw_times()
        self._position = np.arange(self._rows) - self._heads[self._request]
        self._recent = self._draw_recent()
        self._counts = dict.fromkeys(LOG_COUNTS, 0)
        self._counts |= {"sessions": len(self._session_heads), "requests": len(self._heads)}

    def counts(self) -> tuple[int, ...]:
        """Return the counts that `LOG_COUNTS` names, after the last row group."""
        return tuple(self._counts.values())

    def files(self) -> Iterator[GeneratedFile]:
        clicks, clicked = self._clicks()
        events = {"impressions": self._impressions(), "clicks": clicks, "orders": self._orders(clicks, clicked)}
        for number, (name, each) in enumerate(events.items()):
            yield from self._arrivals(number, name, each)
        yield from self._snapshots()

    def _draw_requests(self) -> tuple[Int64s, Int64s]:
        """(Session of each row, request of each row), both 0, 0, 0, 1, 1, .."""
        mean, request_mean = self._recipe.sessions_mean, self._recipe.requests_mean
        session = unit(self._words(_SESSIONS)) * mean < 1
        session[0] = True
        # a session begins a request; of the other rows so many do that requests have their mean
        share = (1 / request_mean - 1 / mean) / (1 - 1 / mean) if mean > 1 else 1.0
        request = session | (unit(self._words(_REQUESTS)) < share)
        rows = np.arange(self._rows)
        request |= (rows - np.maximum.accumulate(np.where(request, rows, 0))) % REQUEST_MAX == 0
        return np.cumsum(session) - 1, np.cumsum(request) - 1

    def _draw_times(self) -> Int64s:
        """Seconds since 1970; the part covers its even share of the day, and holds its sessions as a whole."""
        parts = self._recipe.parts(self._day)
        low, high = _DAY_S * self._part // parts, _DAY_S * (self._part + 1) // parts
        gap = geometric(self._words(_VIEWS), _VIEW_GAP_S + 1) - 1
        gap[self._heads] = geometric(self._words(_GAPS, len(self._heads)), _REQUEST_GAP_S)
        heads, session = self._session_heads, self._session
        since = np.cumsum(gap)
        since -= since[heads][session]
        # a session that is longer than the part's time is compressed to it
        length = since[np.append(heads[1:], self._rows) - 1]
        span = np.minimum(length, max(high - low - 1, 0))
        start = (unit(self._words(_STARTS, len(heads))) * (max(high - low, 1) - span)).astype(np.int64)
        second = start[session] + since * span[session] // np.maximum(length, 1)[session]
        times: Int64s = self._midnight(self._day) + low + second
        return times

    def _draw_items(self) -> Int64s:
        """The item of each row, none twice in a request."""
        items, choices = self._recipe.item_count, self._words(_FAVOURITES)
        number = self._user * _FAVOURITES_PER_USER + zipf(hash_words(choices, 0), _FAVOURITES_PER_USER)
        favourites = hash_words(number.view(np.uint64), self._recipe.seed)
        item = zipf(np.where(unit(choices) < _FAVOURITE_SHARE, favourites, self._words(_ITEMS)), items)
        while len(again := self._shown_before(item)):  # ends: a request has no more rows than there are items
            item[again] = (item[again] + 1) % items
        return item

    def _shown_before(self, item: Int64s) -> Int64s:
        """Rows whose item an earlier row of their request has."""
        key = self._request * self._recipe.item_count + item
        order = np.argsort(key, kind="stable")
        again: Int64s = order[1:][np.diff(key[order]) == 0]
        return again

    def _draw_recent(self) -> pa.ListArray:
        """The list of each request: a window that slides, one id per request, to the front of its session's ids."""
        session = self._session[self._heads]
        first = np.flatnonzero(np.diff(session, prepend=-1))
        requests = np.diff(first, append=len(session))
        low, high = _RECENT_LENGTHS
        lengths = low + (unit(self._words(_RECENT_SIZES, len(first))) * (high - low)).astype(np.int64)
        stops = np.cumsum(lengths + requests - 1)
        values = zipf(self._words(_RECENT, int(stops[-1])), self._recipe.item_count)
        start = (stops - lengths)[session] - (np.arange(len(session)) - first[session])
        return _lists(lengths[session], lambda row, place: values[start[row] + place])

    def _impressions(self) -> _Events:
        number = (self._day << 44) | (self._part << ROW_BITS)
        device = self._words(_DEVICES, len(self._session_heads)) % np.uint64(len(_DEVICE_WORDS))
        columns = {
            "request_id": _values(number | self._request),
            "session_id": _values(number | self._session),
            "user_id": _values(self._user),
            "item_id": _values(self._item),
            "position": _values(self._position.astype(np.int32)),
            "device": _entries(pa.array(_DEVICE_WORDS), device[self._session]),
            "price": _values(item_prices(self._item)),
            "recent": _entries(self._recent, self._request),
        }
        return _Events(self._second, columns, np.zeros(self._rows, np.bool_))

    def _clicks(self) -> tuple[_Events, Int64s]:
        """(Clicks, impression of each)."""
        newest = self._recent.values.to_numpy()[self._recent.offsets.to_numpy()[:-1]][self._request]
        logits = click_logits(self._item, self._position, user_countries(self._user), newest)
        once = np.flatnonzero(unit(self._words(_CLICKED)) < 1 / (1 + np.exp(-logits)))
        row = np.concatenate((once, once[unit(self._words(_AGAIN, len(once))) < _AGAIN_SHARE]))
        second = np.maximum(self._second[row] + self._draw_click_delays(len(row)), self._midnight(0))
        dwell = np.maximum(lognormal(self._words(_DWELL, len(row)), 1.2), 0) * 8_000 + 200
        orphan = self._faulty(_ORPHANS + 1, len(row), self._recipe.orphans)
        request = ((self._day << 44) | (self._part << ROW_BITS) | self._request)[row]
        columns = {
            "request_id": _values(np.where(orphan, -1 - request, request)),
            "item_id": _values(self._item[row]),
            "dwell_ms": _values(dwell.astype(np.int64)),
        }
        return _Events(second, columns, orphan), row

    def _draw_click_delays(self, count: int) -> Int64s:
        words, share = self._words(_CLICK_DELAYS, count), unit(self._words(_CLICK_KINDS, count))
        early, tied, slow = np.cumsum([_EARLY_SHARE, _TIED_SHARE, _SLOW_SHARE])
        place = hash_words(words, 0)
        return np.select(
            [share < early, share < tied, share < slow],
            [
                -1 - (place % np.uint64(60)).astype(np.int64),
                np.int64(0),
                _SLOW_S + (place % np.uint64(3 * _SLOW_S)).astype(np.int64),
            ],
            np.ceil(lognormal(words, 1.0) * _CLICK_MEDIAN_S).astype(np.int64).clip(1),
        )

    def _orders(self, clicks: _Events, clicked: Int64s) -> _Events:
        click = np.flatnonzero(unit(self._words(_ORDERED, len(clicked))) < _ORDERED_SHARE)
        delay = -np.log1p(-unit(self._words(_ORDER_DELAYS, len(click)))) * _ORDER_MEAN_S
        orphan = self._faulty(_ORPHANS + 2, len(click), self._recipe.orphans)
        user, item = self._user[clicked[click]], self._item[clicked[click]]
        columns = {
            "user_id": _values(np.where(orphan, -1 - user, user)),
            "item_id": _values(item),
            "price": _values(item_prices(item)),
        }
        return _Events(clicks.second[click] + delay.astype(np.int64), columns, orphan)

    def _arrivals(self, number: int, name: str, events: _Events) -> Iterator[GeneratedFile]:
        """The files of a table, one for each day on which some of the rows arrive."""
        days, size = self._recipe.days, len(events.second)
        copies = np.flatnonzero(self._faulty(_COPIES + number, size, self._recipe.duplicates))
        row = np.concatenate((np.arange(size), copies))
        happened = (events.second[row] - self._midnight(0)) // _DAY_S
        words = self._words(_LATE + number, len(row))
        late = happened + 1 + (hash_words(words, 0) % np.uint64(4) == 0)  # one day, and two for one in four
        is_late = (unit(words) < self._recipe.late) & (late < days)
        arrived, logged = np.where(is_late, late, happened), happened < days
        for count, rows in (
            (name, logged),
            ("late", logged & is_late),
            ("duplicates", logged[size:]),
            ("orphans", logged & events.orphan[row]),
        ):
            self._counts[count] += int(np.count_nonzero(rows))
        for day in np.unique(arrived[logged]).tolist():
            of_day = row[arrived == day]
            ordered = of_day[np.argsort(events.second[of_day], kind="stable")]
            yield self._file(name, day, ordered, {"ts": _times(events.second), **events.columns})

    def _snapshots(self) -> Iterator[GeneratedFile]:
        """Snapshots of some of the part's even share of all users."""
        parts, users = self._recipe.parts(self._day), self._recipe.user_count
        user = np.arange(users * self._part // parts, users * (self._part + 1) // parts)
        user = user[self._faulty(_SNAPSHOTS, len(user), _DAILY_SHARE if self._day else _FIRST_SHARE)]
        # those of the first day in its first hour
        since = unit(self._words(_SNAPSHOT_TIMES, len(user))) * (_DAY_S if self._day else 3_600)
        second = self._midnight(self._day) + since.astype(np.int64)
        self._counts["users"] += len(user)
        words = hash_words(user.view(np.uint64), _AGE)
        age, ageless = (words % np.uint64(70)).astype(np.int32) + np.int32(13), unit(words) < _AGELESS_SHARE
        columns = {
            "user_id": _values(user),
            "ts": _times(second),
            "age": lambda rows: pa.array(age[rows], mask=ageless[rows]),
            "country": _entries(pa.array(_COUNTRY_WORDS), user_countries(user)),
            "hist": lambda rows: self._histories(user[rows]),
        }
        if len(user):
            yield self._file("users", self._day, np.argsort(second, kind="stable"), columns)

    def _histories(self, user: Int64s) -> pa.ListArray:
        """Ids, one a day and newest first: a list is that of the day before, with a new id and without its last."""
        lengths = (hash_words(user.view(np.uint64), _HIST_SIZE) % np.uint64(_HIST_LENGTHS)).astype(np.int64)
        newest, seed = user * (1 << 20) + (1 << 16) + self._day, _HIST + self._recipe.seed
        return _lists(
            lengths,
            lambda row, place: zipf(hash_words((newest[row] - place).view(np.uint64), seed), self._recipe.item_count),
        )

    def _file(self, name: str, day: int, rows: Int64s, columns: Mapping[str, Column]) -> GeneratedFile:
        origin = "" if day == self._day else f"-of-{self._recipe.midnight(self._day).date().isoformat()}"
        target = f"{name}/{self._recipe.partition(day)}/part-{self._part:05d}{origin}.parquet"
        size, schema = self._recipe.row_group_rows, _SCHEMAS[name]
        groups = (rows[first : first + size] for first in range(0, len(rows), size))
        tables = (pa.table([columns[field](group) for field in schema.names], schema=schema) for group in groups)
        return GeneratedFile(target, schema, tables)

    def _faulty(self, stream: int, count: int, share: float) -> Bools:
        return unit(self._words(stream, count)) < share

    def _midnight(self, day: int) -> int:
        return int(self._recipe.midnight(day).timestamp())

    def _words(self, stream: int, count: int | None = None) -> Words:
        words = self._rows if count is None else count
        return draw_words((self._recipe.seed, stream), (0, self._part, self._day), words)


def click_logits(item: Int64s, position: Int64s, country: Int64s, newest: Int64s) -> Float64s:
    """The log-odds that an impression is clicked: what a model can learn.

    -2.2 + 1.5 * effect(item_id) + effect(country) + 0.8 * effect(newest of recent) - 0.15 * min(position, 10), with
    `draws.effect`, and a country as its number in the order of the alphabet.
    """
    logits = -2.2 + 1.5 * effect(item) + effect(country) + 0.8 * effect(newest)
    return logits - 0.15 * np.minimum(position, 10)


def user_countries(user: Int64s) -> Int64s:
    """Return the number of each user's country."""
    return (hash_words(user.view(np.uint64), _COUNTRY) % np.uint64(len(_COUNTRY_WORDS))).astype(np.int64)


def item_prices(item: Int64s) -> Float32s:
    """Return the price of each item, from 1."""
    return np.maximum(lognormal(hash_words(item.view(np.uint64), _PRICE), 0.8), 0) * np.float32(20) + np.float32(1)


def _values(values: npt.NDArray[Any]) -> Column:
    return lambda rows: pa.array(values[rows])


def _times(second: Int64s) -> Column:
    return lambda rows: pa.array(second[rows] * _SECOND_US).cast(pa.timestamp("us"))


def _entries(entries: pa.Array, index: npt.NDArray[Any]) -> Column:
    return lambda rows: entries.take(pa.array(index[rows]))


def _lists(lengths: Int64s, values: Callable[[Int64s, Int64s], Int64s]) -> pa.ListArray:
    """Lists of the given lengths; `values` is called with the list of each value, and its place in the list."""
    # lengths [2, 0, 1] -> values([0, 0, 2], [0, 1, 0])
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    row = np.repeat(np.arange(len(lengths)), lengths)
    found = values(row, np.arange(offsets[-1]) - offsets[:-1][row])
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(found))
