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
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.workbench.generate.daily_table import ROW_BITS, DailyTable, check_ranges
from feedline.workbench.generate.draws import (
    Float64s,
    Int32s,
    Int64s,
    Words,
    draw_words,
    effect,
    geometric,
    lognormal,
    nulls,
    unit,
    zipf,
)

_TIMES, _SESSIONS, _LABELS, _DWELL, _USERS = range(5)  # streams of no feature; a feature's is kind + index
_DENSE, _IDS, _STRINGS, _HISTORIES, _LENGTHS = (kind << 32 for kind in range(1, 6))
_CHANGES = 1 << 48  # added to a user-side column's stream: where its value changes; alone: where all of them may
_DAY_BITS = 37  # microseconds of a day
_DAY_US = 86_400_000_000
_ID_CARDINALITIES = (1_000_000, 100, 10_000, 10_000_000, 1_000, 100_000)
_STRING_CARDINALITIES = (100, 10_000, 1_000)
_HISTORY_CARDINALITY = 1_000_000
_SESSIONS_PER_USER = 4
_INTEGER_RANGES = {
    "dense": (0, 100_000),
    "ids": (0, 100_000),
    "strings": (0, 100_000),
    "histories": (0, 100_000),
    "history_min": (0, 1 << 20),
    "history_max": (0, 1 << 20),
}
_FLOAT_RANGES = {
    "user_share": (0, 1),
    "keep_probability": (0, 1),
    "null_share": (0, 1),
    "sessions_mean": (1, 1_000_000),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClickRecipe(DailyTable):
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

    sessions_mean: float = 8
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
    clustered: bool = True

    def __post_init__(self) -> None:
        """Raise SpecError for values out of range."""
        check_ranges(self, _INTEGER_RANGES, _FLOAT_RANGES)
        if not isinstance(self.joint_changes, bool):
            raise SpecError(f"joint_changes is no boolean: got {self.joint_changes!r}, expected true or false.")
        if self.history_min > self.history_max:
            raise SpecError(f"history_min exceeds history_max: got {self.history_min} and {self.history_max}.")
        DailyTable.__post_init__(self)

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
        self.clicks = 0  # in the row groups so far

    @property
    def sessions(self) -> int:
        """Sessions in this file; the last one is truncated at its end."""
        return len(self._heads)

    def counts(self) -> tuple[int, int]:
        """Return (sessions, clicks) of the file, after its last row group."""
        return self.sessions, self.clicks

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
            pa.array((self._day << 44) | (self._part << ROW_BITS) | session),
            pa.array(self._user[session]),
        ]
        for kind, index in recipe.scalars():
            gather = self._user_side.get(kind + index)
            arrays.append(gather(rows) if gather else self._draw(kind, index, len(rows), chunk))
        arrays += [gather(rows) for gather in self._lists]
        logit = click_logit(pa.table(arrays, schema=recipe.feature_schema()))
        clicked = unit(self._words(_LABELS, len(rows), chunk)) < 1.0 / (1.0 + np.exp(-logit))
        self.clicks += int(np.count_nonzero(clicked))
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
            keys = np.sort((since << ROW_BITS) | rows)
            since, rows = keys >> ROW_BITS, keys & ((1 << ROW_BITS) - 1)
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


def _ends(table: pa.Table, prefix: str) -> list[str]:
    names = [name for name in table.column_names if name.startswith(prefix)]
    return list(dict.fromkeys(names[:2] + names[-2:]))


@functools.cache
def _dictionary(cardinality: int) -> pa.Array:
    return pa.array([f"w{word:05d}" for word in range(cardinality)])
