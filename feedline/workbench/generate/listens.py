"""The rows of a generated log of listens: `ListenRecipe` describes the table, `ListenFile` generates one file's rows.

Runs in the generator's Dask tasks. Pure: a file is a function of the recipe, the day and the file's index in it. The
table has the shape of Yambda-5B, a music service's log of 4.76 billion events of 1,000,000 users in 300 days
(https://arxiv.org/abs/2505.22238). Columns, in file order, none with nulls unless it says so:

    uid                   int64
    timestamp             int64   seconds since 1970-01-01 UTC within the partition's day, a multiple of 5
    item_id               int64   Zipf (exponent 0.75) over `items`, frequent ones first
    artist_id, album_id   int64   of the item: one album, and an album has one artist
    is_organic            uint8   1: the user chose it; 0: it was recommended; the same for a session
    played_ratio_pct      uint16  0 .. 160; null where the event is no listen
    track_length_seconds  uint32  of the item, a multiple of 5; null where the event is no listen
    event_type            string  listen, like, dislike, unlike or undislike
    event_no              int64   0 .. rows-1, the row's index in the log (day, file, row)
    ingested_at           int64   seconds: when the event was known, 12 s after `timestamp` in the mean, 0.3 % hours

A file covers an even share of its day and is in the order of time, with users mixed. Events of all users, laid end to
end, are cut into sessions of 32; a permutation of the sessions, cut into even shares, makes the files. So each user has
exactly the events that the law gives (`events_before`), and no file depends on another. A session's events come in
reports of a client, of mean 2.5 events, which have one time and are ingested together; so 0.6 of the neighbours in a
user's history are ties. Reports are 185 s apart in the mean, less where a session would be longer than its file's share
of the day. An event that is no listen is of the item before it in the session. Half of the listens are of the user's
own 256 favourites, Zipf (exponent 1.05) among these.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.hashing import hash_words
from feedline.workbench.generate.daily_table import DailyTable, check_ranges
from feedline.workbench.generate.draws import (
    Int64s,
    Words,
    draw_words,
    geometric,
    lognormal,
    nulls,
    permute,
    unit,
    zipf,
)

_USERS, _SESSIONS, _STARTS, _REPORTS, _GAPS, _KINDS, _FAVOURITES, _ITEMS, _ORGANIC, _PLAYED, _DELAYS = range(11)
_ALBUM, _ARTIST, _LENGTH = range(3)  # seeds of hashes
_FULL_ROWS, _FULL_USERS, _FULL_ITEMS = 4_763_000_000, 1_000_000, 9_390_000  # Yambda-5B
_MAX_ITEMS = 1 << 24  # of `zipf`
_LAW_SIGMA, _LAW_SHARE = 1.35, 0.9523
_LAW_BUCKETS = 1 << 14
_SESSION_EVENTS = 32
_TICK_S, _DAY_S = 5, 86_400
_REPORT_SHARE = 0.4  # of a session's events, those that begin a report
_GAP_TICKS = 37.0
_FAVOURITE_SHARE, _FAVOURITES_PER_USER = 0.5, 256
_ITEM_EXPONENT = 0.75  # the most frequent of 9.39 million has 0.45 % of what is no favourite
_ORGANIC_SHARE = 0.5
_ALBUMS_PER_ITEM, _ARTISTS_PER_ITEM = 0.36, 0.14
_LENGTH_MEDIAN_S, _LENGTH_SIGMA = 200, 0.35
_DELAY_MEAN_S, _LATE_SHARE, _LATE_S = 12.0, 0.003, (3_600, 12 * 3_600)
_KIND_SHARES = {"played": 0.613, "skipped": 0.359, "like": 0.019, "unlike": 0.005, "dislike": 0.0035, "undislike": 5e-4}
_EVENT_TYPES = ("listen", "listen", "like", "unlike", "dislike", "undislike")
_SCHEMA = pa.schema(
    [
        *((name, pa.int64()) for name in ("uid", "timestamp", "item_id", "artist_id", "album_id")),
        ("is_organic", pa.uint8()),
        ("played_ratio_pct", pa.uint16()),
        ("track_length_seconds", pa.uint32()),
        ("event_type", pa.string()),
        ("event_no", pa.int64()),
        ("ingested_at", pa.int64()),
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenRecipe(DailyTable):
    """A log of `rows` events over `days` partitions, from the day `start` on.

    `users`: users among whom the events are divided (default: Yambda-5B's 4,763 events per user). `items`: tracks
    (default: as Yambda's samples of several sizes, 9.39 million times the square root of the share of its rows).
    Raises SpecError for values out of range.
    """

    users: int | None = None
    items: int | None = None

    def __post_init__(self) -> None:
        """Raise SpecError for values out of range."""
        DailyTable.__post_init__(self)
        ranges = {"users": (1, 1 << 27), "items": (1, _MAX_ITEMS)}
        check_ranges(self, {name: each for name, each in ranges.items() if getattr(self, name) is not None})
        if self.users is not None and self.users > self.rows:
            raise SpecError(f"users exceed rows: got {self.users} users and {self.rows} rows, expected a row per user.")

    @property
    def user_count(self) -> int:
        return self.users or max(1, round(self.rows * _FULL_USERS / _FULL_ROWS))

    @property
    def item_count(self) -> int:
        return self.items or min(_MAX_ITEMS, math.ceil(_FULL_ITEMS * math.sqrt(self.rows / _FULL_ROWS)))

    def schema(self) -> pa.Schema:
        return _SCHEMA


@functools.lru_cache(maxsize=2)
def events_before(rows: int, users: int) -> Int64s:
    """Return the events of the users 0 .. i-1, the least active first, as int64 [users + 1]: from 0 to `rows`.

    The law of events per user is log-normal, with sigma 1.35, of which the top 4.77 % are cut off: with m the mean, the
    median is 0.57 m and the largest 5.82 m. With Yambda-5B's mean of 4,763 these are its 2,695 and 27,738. User i has
    the law's quantile of (i + 0.5) / `users`.
    """
    shares = np.arange(_LAW_BUCKETS + 1) * (_LAW_SHARE / _LAW_BUCKETS)
    normal = statistics.NormalDist()
    quantiles = [0.0, *(math.exp(_LAW_SIGMA * normal.inv_cdf(share)) for share in shares[1:].tolist())]
    weights = np.interp((np.arange(users) + 0.5) * (_LAW_SHARE / users), shares, quantiles)
    totals = np.cumsum(weights)
    before = np.zeros(users + 1, np.int64)
    before[1:] = totals / totals[-1] * rows
    return before


class ListenFile:
    """The rows of one file. Numbers of events are in the order of sessions; `_order` holds them in file order."""

    def __init__(self, recipe: ListenRecipe, day: int, part: int) -> None:
        self._recipe, self._day, self._part = recipe, day, part
        self._start, stop = recipe.part_bounds(day, part)
        self._rows = stop - self._start
        self._likes = self._listens = 0
        self._user, self._session, self._begins = self._draw_sessions()
        self._report_begins = unit(self._words(_REPORTS)) < _REPORT_SHARE
        self._report_begins[self._begins] = True

    def counts(self) -> tuple[int, int]:
        """Return (listens, likes) of the file, after its last row group."""
        return self._listens, self._likes

    def row_groups(self) -> Iterator[pa.Table]:
        size, table = self._recipe.row_group_rows, self._table()
        for first in range(0, self._rows, size):
            yield table.slice(first, size)

    def _table(self) -> pa.Table:
        recipe, rows = self._recipe, self._rows
        timestamp, order = self._draw_times()
        kind = np.searchsorted(np.cumsum(list(_KIND_SHARES.values()))[:-1], unit(self._words(_KINDS)), side="right")
        listens = kind < 2
        self._listens, self._likes = int(np.count_nonzero(listens)), int(np.count_nonzero(kind == 2))
        subject = np.where(listens, np.arange(rows), 0)
        subject[self._begins] = self._begins
        item = self._draw_items()[np.maximum.accumulate(subject)][order]
        album = (hash_words(item.view(np.uint64), _ALBUM) % self._count(_ALBUMS_PER_ITEM)).astype(np.int64)
        artist = zipf(hash_words(album.view(np.uint64), _ARTIST), int(self._count(_ARTISTS_PER_ITEM)))
        length = lognormal(hash_words(item.view(np.uint64), _LENGTH), _LENGTH_SIGMA) * (_LENGTH_MEDIAN_S / _TICK_S)
        organic = unit(self._words(_ORGANIC, len(self._begins))) < _ORGANIC_SHARE
        no_listen = ~listens[order]
        columns = [
            permute(self._user[order], recipe.user_count, (recipe.seed, _USERS)),
            timestamp,
            item,
            artist,
            album,
            organic[self._session][order].astype(np.uint8),
            pa.array(self._draw_played(kind)[order], pa.uint16(), mask=no_listen),
            pa.array(np.rint(length).astype(np.uint32) * _TICK_S, pa.uint32(), mask=no_listen),
            pa.array(_EVENT_TYPES).take(pa.array(kind[order])),
            np.arange(self._start, self._start + rows),
            timestamp + self._draw_delays()[order],
        ]
        return pa.table(columns, schema=_SCHEMA)

    def _draw_sessions(self) -> tuple[Int64s, Int64s, Int64s]:
        """(User of each event, session of each event, first event of each session)."""
        recipe, full = self._recipe, self._recipe.rows // _SESSION_EVENTS
        session, event = np.divmod(np.arange(self._start, self._start + self._rows), _SESSION_EVENTS)
        # 70 events are the sessions 0 and 1, which may change places, and the 6 events of session 2
        numbers = np.arange(session[0], session[-1] + 1)
        if full:
            moved = numbers < full
            numbers[moved] = permute(numbers[moved], full, (recipe.seed, _SESSIONS))
        place = numbers[session - session[0]] * _SESSION_EVENTS + event
        user = np.searchsorted(events_before(recipe.rows, recipe.user_count), place, side="right") - 1
        begins = np.flatnonzero((np.diff(session, prepend=-1) != 0) | (np.diff(user, prepend=-1) != 0))
        lengths = np.diff(begins, append=self._rows)
        return user, np.repeat(np.arange(len(begins)), lengths), begins

    def _draw_times(self) -> tuple[Int64s, Int64s]:
        """(Seconds since 1970, numbers of events), both in file order."""
        parts, ticks = self._recipe.parts(self._day), _DAY_S // _TICK_S
        low, high = ticks * self._part // parts, ticks * (self._part + 1) // parts
        begins, session = self._begins, self._session
        since = np.cumsum(np.where(self._report_begins, geometric(self._words(_GAPS), _GAP_TICKS), 0))
        since -= since[begins][session]
        # a session that is longer than the file's time is compressed to it
        length = since[np.append(begins[1:], self._rows) - 1]
        span = np.minimum(length, max(high - low - 1, 0))
        start = (unit(self._words(_STARTS, len(begins))) * (max(high - low, 1) - span)).astype(np.int64)
        tick = start[session] + since * span[session] // np.maximum(length, 1)[session]
        order = np.argsort(tick.astype(np.uint16), kind="stable")  # a radix sort, for 16 bits only
        midnight = int(self._recipe.midnight(self._day).timestamp())
        return midnight + (low + tick[order]) * _TICK_S, order

    def _draw_items(self) -> Int64s:
        words, choices = self._words(_ITEMS), self._words(_FAVOURITES)
        number = zipf(choices, _FAVOURITES_PER_USER)
        favourites = hash_words((self._user * _FAVOURITES_PER_USER + number).view(np.uint64), self._recipe.seed)
        words = np.where(nulls(choices, _FAVOURITE_SHARE), favourites, words)
        return zipf(words, self._recipe.item_count, _ITEM_EXPONENT)

    def _draw_played(self, kind: Int64s) -> Int64s:
        """Percent of the track: played to the end by two of three that are not skipped, 1 % with parts repeated."""
        share = unit(self._words(_PLAYED))
        played = np.where(share < 0.99, np.minimum(50 + share * 150, 100), 101 + (share - 0.99) * 6_000)
        return np.where(kind == 1, share * share * 50, played).astype(np.int64)

    def _draw_delays(self) -> Int64s:
        words = self._words(_DELAYS, int(np.count_nonzero(self._report_begins)))
        low, high = _LATE_S
        late = low + unit(hash_words(words, 0)) * (high - low)
        delays = np.where(nulls(words, _LATE_SHARE), late.astype(np.int64), geometric(words, _DELAY_MEAN_S + 1) - 1)
        delays_of_events: Int64s = delays[np.cumsum(self._report_begins) - 1]
        return delays_of_events

    def _count(self, per_item: float) -> np.uint64:
        return np.uint64(math.ceil(self._recipe.item_count * per_item))

    def _words(self, stream: int, count: int | None = None) -> Words:
        words = self._rows if count is None else count
        return draw_words((self._recipe.seed, stream), (0, self._part, self._day), words)
