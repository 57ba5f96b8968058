"""The rows of a generated click table: `ClickRecipe` describes the table, `ClickFile` generates the rows of one file.

Runs in the generator's Dask tasks. Pure: a file is a function of the recipe, the day and the file's index in it. Every
column of every file has its own stream of words, keyed by (seed, column) with the counter (row group, file, day). A
file holds its sessions and the distinct values of the user-side columns. Columns, in file order:

    request_id           int64        0 .. rows-1, the row's index in the table (day, file, row): unique
    ts                   timestamp    microseconds, UTC without a zone, within the partition's day
    session_id, user_id  int64
    dense_0 ..           float32      log-normal minus a little (some are negative), `null_share` of them null
    id_0 ..              int64        Zipf over 10^2 .. 10^7 ids, by column
    str_0 ..             string       Zipf over 10^2 .. 10^4 words, by column
    hist_0 ..            list<int64>  `history_min` .. `history_max` ids, newest first
    clicked              int8         1 with probability sigmoid(`click_logit`)
    dwell                float32      seconds, null where not clicked
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from feedline.errors import SpecError
from feedline.hashing import hash_words
from feedline.warehouse.snapshot.column_facts import contiguous

# --------------------------------------------------------------------------------------------------------------------
# The random values of a generated table: pure functions of 64-bit words drawn from Philox. A stream of words is
# identified by a key (two words) and a counter (three words); streams never overlap. Each word yields one value: its
# top 14 bits choose a bucket of the distribution's quantile function, the next 24 interpolate in it, and the low 20
# decide whether the value is null. Runs in the generator's Dask tasks.

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
Float32s = npt.NDArray[np.float32]
Float64s = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

_BUCKET_BITS, _FRACTION_BITS, _NULL_BITS = 14, 24, 20
_POINT_BITS = 16  # fraction bits of a Zipf border: border (< 2**40) times fraction fits 63 bits
_ZIPF_EXPONENT = 1.05


def draw_words(key: tuple[int, int], counter: tuple[int, int, int], count: int) -> Words:
    """Return the first `count` words of a stream."""
    philox = np.random.Philox(key=np.array(key, np.uint64), counter=np.array((0, *counter), np.uint64))
    # over the full range, words come unchanged; unlike random_raw, this releases the GIL
    return np.random.Generator(philox).integers(0, (1 << 64) - 1, count, np.uint64, endpoint=True)


def unit(words: Words) -> Float64s:
    """Uniform in [0, 1), from the top 53 bits."""
    return (words >> np.uint64(11)).astype(np.float64) * 2.0**-53


def nulls(words: Words, share: float) -> npt.NDArray[np.bool_]:
    """True for a share of the words, by bits that no value uses."""
    return (words & np.uint64((1 << _NULL_BITS) - 1)) < np.uint64(round(share * (1 << _NULL_BITS)))


def zipf(words: Words, cardinality: int) -> Int64s:
    """Ids 0 .. cardinality-1 by a Zipf law, frequent ones first."""
    borders = _zipf_borders(cardinality)
    bucket, fraction = _split(words)
    low = borders[bucket]
    ids: Int64s = (low + ((borders[bucket + 1] - low) * fraction >> _FRACTION_BITS)) >> _POINT_BITS
    return ids


def lognormal(words: Words, sigma: float) -> Float32s:
    """exp(sigma * normal) - 0.1: a heavy tail, with a few negative values."""
    borders = _lognormal_borders(sigma)
    bucket, fraction = _split(words)
    low = borders[bucket]
    return (low + (borders[bucket + 1] - low) * (fraction * 2.0**-_FRACTION_BITS)).astype(np.float32)


def geometric(words: Words, mean: float) -> Int64s:
    """Geometric integers >= 1 with the given mean."""
    if mean <= 1:
        return np.ones(len(words), np.int64)
    return 1 + np.floor(np.log(1.0 - unit(words)) / math.log(1.0 - 1.0 / mean)).astype(np.int64)


def effect(ids: Int64s) -> Float64s:
    """A fixed value in [-1, 1) per id, by its hash."""
    return unit(hash_words(ids.astype(np.uint64), 0)) * 2.0 - 1.0


def _split(words: Words) -> tuple[Int64s, Int64s]:
    """Return (bucket, fraction within the bucket) from the top bits of each word."""
    top = (words >> np.uint64(64 - _BUCKET_BITS - _FRACTION_BITS)).astype(np.int64)
    return top >> _FRACTION_BITS, top & ((1 << _FRACTION_BITS) - 1)


@functools.cache
def _zipf_borders(cardinality: int) -> Int64s:
    """Return the continuous law's quantile function at each bucket's border, in fixed point."""
    share = np.arange((1 << _BUCKET_BITS) + 1) / (1 << _BUCKET_BITS)
    power = 1.0 - _ZIPF_EXPONENT
    place = ((1.0 - share) + share * (cardinality + 1.0) ** power) ** (1.0 / power) - 1.0
    borders: Float64s = np.minimum(np.floor(place * (1 << _POINT_BITS)), (cardinality << _POINT_BITS) - 1)
    return borders.astype(np.int64)


@functools.cache
def _lognormal_borders(sigma: float) -> Float64s:
    buckets, normal = 1 << _BUCKET_BITS, statistics.NormalDist()
    shares = (min(max(k / buckets, 0.25 / buckets), 1 - 0.25 / buckets) for k in range(buckets + 1))
    return np.array([math.exp(sigma * normal.inv_cdf(share)) - 0.1 for share in shares])


# --------------------------------------------------------------------------------------------------------------------

_TIMES, _SESSIONS, _LABELS, _DWELL, _USERS = range(5)  # streams of no feature; a feature's is kind + index
_DENSE, _IDS, _STRINGS, _HISTORIES, _LENGTHS = (kind << 32 for kind in range(1, 6))
_CHANGES = 1 << 48  # added to a user-side column's stream: where its value changes; alone: where all of them may
_ROW_BITS = 24  # a row's index within its part, below its time in a sort key; a session's in its id
_MAX_PARTS = 1 << 20  # per day: a session's id is (day, part, session) from high to low bits
_DAY_BITS = 37  # microseconds of a day
_DAY_US = 86_400_000_000
_ID_CARDINALITIES = (1_000_000, 100, 10_000, 10_000_000, 1_000, 100_000)
_STRING_CARDINALITIES = (100, 10_000, 1_000)
_HISTORY_CARDINALITY = 1_000_000
_SESSIONS_PER_USER = 4
_INTEGER_RANGES = {
    "rows": (1, 1 << 48),
    "days": (1, 36_500),
    "seed": (0, (1 << 64) - 1),
    "dense": (0, 100_000),
    "ids": (0, 100_000),
    "strings": (0, 100_000),
    "histories": (0, 100_000),
    "history_min": (0, 1 << 20),
    "history_max": (0, 1 << 20),
    "row_group_rows": (1, 1 << _ROW_BITS),
    "part_rows": (1, 1 << _ROW_BITS),
}
_FLOAT_RANGES = {
    "user_share": (0, 1),
    "keep_probability": (0, 1),
    "null_share": (0, 1),
    "sessions_mean": (1, 1_000_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickRecipe:
    """A click table of `rows` rows over `days` partitions, from the day `start` on.

    `sessions_mean`: mean rows of a user session; lengths are geometric, and the last session of a file is truncated.
    `clustered`: a session's rows are together, in time order; else each file, and so each day, is sorted by `ts`.
    `dense`, `ids`, `strings`, `histories`: columns of each kind. The histories and the first `user_share` of the others
    are user-side: from one row of a session to the next, each stays the same with `keep_probability`. A changed history
    has one new id in front and has lost its last; any other changed value is drawn again. `joint_changes`: they change
    in the same rows, so that all user-side columns repeat together with `keep_probability`; else each on its own.
    `part_rows`: a file's rows, at most; the default is four default row groups, about 60 MB. Raises SpecError for
    values out of range.
    """

    rows: int
    days: int
    sessions_mean: float = 8
    seed: int = 0
    dense: int = 13
    ids: int = 26
    strings: int = 2
    histories: int = 6
    history_min: int = 5
    history_max: int = 49
    user_share: float = 0.5
    keep_probability: float = 0.95
    joint_changes: bool = False
    null_share: float = 0.05
    row_group_rows: int = 65_536
    part_rows: int = 1 << 18
    clustered: bool = True
    start: date = date(2026, 1, 1)
    compression: str = "zstd"

    def __post_init__(self) -> None:
        """Raise SpecError for values out of range."""
        for name, (low, high) in (_INTEGER_RANGES | _FLOAT_RANGES).items():
            value, is_integer = getattr(self, name), name in _INTEGER_RANGES
            kinds, words = (int, "an integer") if is_integer else ((int, float), "a number")
            if isinstance(value, bool) or not isinstance(value, kinds) or not low <= value <= high:
                raise SpecError(f"{name} is out of range: got {value!r}, expected {words} from {low} to {high}.")
        if not isinstance(self.joint_changes, bool):
            raise SpecError(f"joint_changes is no boolean: got {self.joint_changes!r}, expected true or false.")
        if self.history_min > self.history_max:
            raise SpecError(f"history_min exceeds history_max: got {self.history_min} and {self.history_max}.")
        if self.days > self.rows:
            raise SpecError(f"days exceed rows: got {self.days} days and {self.rows} rows, expected a row per day.")
        try:
            self.midnight(self.days)
        except OverflowError as error:
            raise SpecError(f"days end after the calendar: got {self.days} days from {self.start}.") from error
        if self.parts(self.days - 1) > _MAX_PARTS:  # the last day holds the most rows
            raise SpecError(
                f"A day has too many files: got {self.parts(self.days - 1)}, expected at most {_MAX_PARTS}."
            )
        if not _is_codec(self.compression):
            raise SpecError(
                f"compression is unknown: got {self.compression!r}, expected zstd, lz4, snappy, gzip, brotli or none."
            )

    def midnight(self, day: int) -> datetime:
        """Return when the day begins, in UTC."""
        return datetime.combine(self.start + timedelta(days=day), time(), UTC)

    def partition(self, day: int) -> str:
        return f"ds={self.midnight(day).date().isoformat()}"

    def parts(self, day: int) -> int:
        """Return the number of files of the day; days, and files in a day, hold even shares of the rows."""
        return -(-(self._before(day + 1) - self._before(day)) // self.part_rows)

    def part_bounds(self, day: int, part: int) -> tuple[int, int]:
        """Return the part's rows as a range of the table's rows."""
        # 10 rows in 3 files -> [0, 3), [3, 6), [6, 10)
        start, stop, parts = self._before(day), self._before(day + 1), self.parts(day)
        return start + (stop - start) * part // parts, start + (stop - start) * (part + 1) // parts

    def scalars(self) -> list[tuple[int, int]]:
        """Return (kind, index) of the dense, id and string columns in file order."""
        counts = ((_DENSE, self.dense), (_IDS, self.ids), (_STRINGS, self.strings))
        return [(kind, index) for kind, count in counts for index in range(count)]

    def is_user_side(self, kind: int, index: int) -> bool:
        """Whether the column describes the user, and so is the same for most of a session."""
        return index < round(self.user_share * {_DENSE: self.dense, _IDS: self.ids, _STRINGS: self.strings}[kind])

    def feature_schema(self) -> pa.Schema:
        """Return the schema of the columns before the labels."""
        kinds = {_DENSE: ("dense", pa.float32()), _IDS: ("id", pa.int64()), _STRINGS: ("str", pa.string())}
        keys = [("request_id", pa.int64()), ("ts", pa.timestamp("us")), ("session_id", pa.int64())]
        scalars = [(f"{kinds[kind][0]}_{index}", kinds[kind][1]) for kind, index in self.scalars()]
        lists = [(f"hist_{index}", pa.list_(pa.int64())) for index in range(self.histories)]
        return pa.schema([*keys, ("user_id", pa.int64()), *scalars, *lists])

    def schema(self) -> pa.Schema:
        return pa.schema([*self.feature_schema(), ("clicked", pa.int8()), ("dwell", pa.float32())])

    def _before(self, day: int) -> int:
        return self.rows * day // self.days


class ClickFile:
    """The rows of one file, generated row group by row group.

    Rows are numbered by session and, within a session, by time; `_order` holds the numbers in file order. A user-side
    column is a function from row numbers to an Arrow array.
    """

    def __init__(self, recipe: ClickRecipe, day: int, part: int) -> None:
        self._recipe, self._day, self._part = recipe, day, part
        self._start, stop = recipe.part_bounds(day, part)
        self._rows = stop - self._start
        self._session = self._draw_sessions()
        self._heads = np.flatnonzero(np.diff(self._session, prepend=-1))
        self._ts, self._order = self._draw_times()
        users = max(1, round(recipe.rows / recipe.sessions_mean / _SESSIONS_PER_USER))
        self._user = zipf(self._words(_USERS, self.sessions), users)
        self._joint = self._draw_changes(_CHANGES) if recipe.joint_changes else None
        self._user_side = {
            kind + index: self._versions(kind, index)
            for kind, index in recipe.scalars()
            if recipe.is_user_side(kind, index)
        }
        self._lists = [self._histories(index) for index in range(recipe.histories)]

    @property
    def sessions(self) -> int:
        """Sessions in this file; the last one is truncated at its end."""
        return len(self._heads)

    def row_groups(self) -> Iterator[pa.Table]:
        size = self._recipe.row_group_rows
        for chunk, first in enumerate(range(0, self._rows, size)):
            yield self._row_group(chunk, first, min(first + size, self._rows))

    def _row_group(self, chunk: int, first: int, stop: int) -> pa.Table:
        recipe, rows = self._recipe, self._order[first:stop]
        session = self._session[rows]
        arrays: list[pa.Array] = [
            pa.array(np.arange(self._start + first, self._start + stop)),
            pa.array(self._ts[first:stop]).cast(pa.timestamp("us")),
            pa.array((self._day << 44) | (self._part << _ROW_BITS) | session),
            pa.array(self._user[session]),
        ]
        for kind, index in recipe.scalars():
            gather = self._user_side.get(kind + index)
            arrays.append(gather(rows) if gather else self._draw(kind, index, len(rows), chunk))
        arrays += [gather(rows) for gather in self._lists]
        logit = click_logit(pa.table(arrays, schema=recipe.feature_schema()))
        clicked = unit(self._words(_LABELS, len(rows), chunk)) < 1.0 / (1.0 + np.exp(-logit))
        dwell = lognormal(self._words(_DWELL, len(rows), chunk), 1.2) * np.float32(10) + np.float32(1)
        arrays += [pa.array(clicked.view(np.int8)), pa.array(dwell, mask=~clicked)]
        return pa.table(arrays, schema=recipe.schema())

    def _draw_sessions(self) -> Int64s:
        """The session of each row: 0, 0, 0, 1, 1, .."""
        mean, lengths, chunk = self._recipe.sessions_mean, np.empty(0, np.int64), 0
        while (total := int(lengths.sum())) < self._rows:
            words = self._words(_SESSIONS, int((self._rows - total) / mean) + 64, chunk)
            lengths, chunk = np.concatenate((lengths, geometric(words, mean))), chunk + 1
        return np.repeat(np.arange(len(lengths)), np.minimum(lengths, self._rows))[: self._rows]

    def _draw_times(self) -> tuple[Int64s, Int64s]:
        """(Microseconds since 1970, row numbers), both in file order; the part covers its even share of the day."""
        recipe = self._recipe
        width = _DAY_US // recipe.parts(self._day)
        begin = int(recipe.midnight(self._day).timestamp()) * 1_000_000 + self._part * width
        since = (unit(self._words(_TIMES, self._rows)) * width).astype(np.int64)
        since = np.sort((self._session << _DAY_BITS) | since) & ((1 << _DAY_BITS) - 1)
        rows = np.arange(self._rows)
        if not recipe.clustered:
            keys = np.sort((since << _ROW_BITS) | rows)
            since, rows = keys >> _ROW_BITS, keys & ((1 << _ROW_BITS) - 1)
        return begin + since, rows

    def _changes(self, stream: int) -> Int32s:
        """0, 0, 1, ..: one more at a session's first row and wherever this user-side column changes inside one."""
        return self._draw_changes(_CHANGES + stream) if self._joint is None else self._joint

    def _draw_changes(self, stream: int) -> Int32s:
        words = self._words(stream, self._rows)
        changed = unit(words) >= self._recipe.keep_probability
        changed[self._heads] = True
        return np.cumsum(changed, dtype=np.int32) - 1  # a part keeps one per user-side column, or one

    def _versions(self, kind: int, index: int) -> Callable[[Int64s], pa.Array]:
        version = self._changes(kind + index)
        distinct = self._draw(kind, index, int(version[-1]) + 1, 0)
        return lambda rows: distinct.take(pa.array(version[rows]))

    def _histories(self, index: int) -> Callable[[Int64s], pa.Array]:
        """A session's history is a window that slides, one id per change, to the front of its stream of ids."""
        recipe, stream = self._recipe, _HISTORIES + index
        version = self._changes(stream)
        changes = np.diff(version[self._heads], append=version[-1] + 1) - 1
        spread = recipe.history_max - recipe.history_min + 1
        lengths = (unit(self._words(_LENGTHS + index, self.sessions)) * spread).astype(np.int64)
        lengths += recipe.history_min
        stops = np.cumsum(lengths + changes)
        values = zipf(self._words(stream, int(stops[-1])), _HISTORY_CARDINALITY)
        start = (stops - lengths)[self._session] - (version - version[self._heads][self._session])

        def gather(rows: Int64s) -> pa.Array:
            size = lengths[self._session[rows]]
            offsets = np.concatenate(([0], np.cumsum(size)))
            indices = np.repeat(start[rows] - offsets[:-1], size) + np.arange(offsets[-1])
            return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), pa.array(values[indices]))

        return gather

    def _draw(self, kind: int, index: int, count: int, chunk: int) -> pa.Array:
        words = self._words(kind + index, count, chunk)
        if kind == _DENSE:
            return pa.array(lognormal(words, 0.6 + 0.2 * (index % 5)), mask=nulls(words, self._recipe.null_share))
        if kind == _IDS:
            return pa.array(zipf(words, _ID_CARDINALITIES[index % len(_ID_CARDINALITIES)]))
        cardinality = _STRING_CARDINALITIES[index % len(_STRING_CARDINALITIES)]
        return _dictionary(cardinality).take(pa.array(zipf(words, cardinality)))

    def _words(self, stream: int, count: int, chunk: int = 0) -> Words:
        return draw_words((self._recipe.seed, stream), (chunk, self._part, self._day), count)


def click_logit(table: pa.Table) -> Float64s:
    """The log-odds of `clicked` for each row of a generated table: what a model can learn.

    -1 + sum of w * (ln(1 + max(dense, 0)) - 0.7) over the first two and last two dense columns (a null adds nothing)
       + sum of w * effect(id) over the first two and last two id columns
       + 1.5 * effect(newest id of hist_0), where there is one,
    with w = 1, -0.8, 0.8, -0.6 in that order and `draws.effect`; with fewer than four columns of a kind, those.
    """
    weights = (1.0, -0.8, 0.8, -0.6)
    logit = np.full(table.num_rows, -1.0)
    for weight, name in zip(weights, _ends(table, "dense_"), strict=False):
        column = contiguous(table[name])
        values = np.log1p(np.fmax(column.to_numpy(zero_copy_only=False).astype(np.float64), 0.0)) - 0.7
        logit += weight * np.where(column.is_valid().to_numpy(zero_copy_only=False), values, 0.0)
    for weight, name in zip(weights, _ends(table, "id_"), strict=False):
        logit += weight * effect(contiguous(table[name]).to_numpy())
    if "hist_0" in table.column_names:
        lists = contiguous(table["hist_0"])
        offsets, values = lists.offsets.to_numpy(), lists.values.to_numpy()
        filled = np.diff(offsets) > 0
        logit[filled] += 1.5 * effect(values[offsets[:-1][filled]])
    return logit


def _is_codec(name: object) -> bool:
    try:
        return isinstance(name, str) and (name == "none" or pa.Codec.is_available(name))
    except ValueError:
        return False


def _ends(table: pa.Table, prefix: str) -> list[str]:
    names = [name for name in table.column_names if name.startswith(prefix)]
    return list(dict.fromkeys(names[:2] + names[-2:]))


@functools.cache
def _dictionary(cardinality: int) -> pa.Array:
    return pa.array([f"w{word:05d}" for word in range(cardinality)])
