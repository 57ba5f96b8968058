"""Rows see the events of their key before a time: compared with a plain statement of the rule, event by event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.histories import HistoryRead, Pool
from feedline.errors import DataError, TableArgumentError
from feedline.warehouse.histories.join import HistoryJoin, union
from feedline.warehouse.histories.moments import NO_TIME
from feedline.warehouse.reading.columns import expand_series
from feedline.warehouse.snapshot.history_ref import EventColumns

RECENT_TYPE = pa.list_(pa.struct({"ts": pa.int64(), "item": pa.int32(), "word": pa.string()}))
COLUMNS = EventColumns(name="events", key="user", on="user", time="ts", known_at="known", tie_break="no")
LAST_TWO = HistoryRead(history="events", at="at", pools=(Pool(name="", last=2),), column="item")
STRIPE = 4


class SortedEvents:
    """Events in the order of user, time and tie break, found by comparing."""

    def __init__(self, table: pa.Table) -> None:
        frame = pl.from_arrow(table).with_row_index("#").sort("user", "ts", "no", "#", nulls_last=False)
        self.table = frame.drop("#").to_arrow().cast(table.schema)
        self.schema = table.schema
        self.users, self.times = self.table["user"].to_pylist(), self.table["ts"].to_pylist()
        self.rows_read = 0

    @property
    def has_null_times(self) -> bool:
        return None in self.times

    def _time(self, place: int) -> int:
        return NO_TIME if self.times[place] is None else self.times[place]

    def find(self, keys: pl.Series) -> tuple[Any, Any]:
        places = [[place for place, user in enumerate(self.users) if key is not None and user == key] for key in keys]
        return (
            np.array([own[0] if own else 0 for own in places]),
            np.array([own[-1] + 1 if own else 0 for own in places]),
        )

    def narrow(self, starts: Any, stops: Any, before: Any) -> tuple[Any, Any]:
        ends = [
            next((place for place in range(start, stop) if self._time(place) >= moment), stop)
            for start, stop, moment in zip(starts.tolist(), stops.tolist(), before.tolist(), strict=True)
        ]
        low = np.maximum(starts, np.array(ends) // STRIPE * STRIPE)
        return low, np.minimum(stops, low // STRIPE * STRIPE + STRIPE)

    def read(self, columns: Sequence[str], ranges: Any) -> pa.Table:
        assert (ranges[1:, 0] > ranges[:-1, 1]).all()
        assert (ranges[:, 0] < ranges[:, 1]).all()
        self.rows_read += int((ranges[:, 1] - ranges[:, 0]).sum())
        parts = [self.table.select(columns).slice(first, stop - first) for first, stop in ranges.tolist()]
        return pa.concat_tables([self.table.select(columns).slice(0, 0), *parts])


def rule(
    events: list[dict[str, Any]], key: Any, at: Any, recent: list[dict[str, Any]] | None, read: HistoryRead
) -> list[Any]:
    """The events that a row sees, and their pools, as the documentation says it."""
    carried = [event for event in recent or () if event["ts"] is not None] if read.recent else []
    carried = sorted(carried, key=lambda event: event["ts"])
    border = carried[0]["ts"] if carried else 99
    own = [
        (event["ts"], event["no"] is not None, event["no"], place, event)
        for place, event in enumerate(events)
        if key is not None
        and at is not None
        and event["user"] == key
        and event["ts"] is not None
        and event["ts"] < min(at - int(read.lag), border)
    ]
    own = [event for *_, event in sorted(own, key=lambda each: each[:4])]
    own += [{**event, "known": at} for event in carried if at is not None and event["ts"] < at - int(read.lag)]
    own = own[-read.scan :] if read.scan else own
    own = [event for event in own if event["known"] is not None and event["known"] <= at]
    taken: dict[int, int] = {}
    for bit, pool in enumerate(read.pools):
        of_pool = [index for index, event in enumerate(own) if pool.where is None or CONDITIONS[pool.where](event)]
        for index in of_pool[-pool.last :]:
            taken[index] = taken.get(index, 0) | 1 << bit
    return [(own[index]["item"], own[index]["word"], taken[index]) for index in sorted(taken)]


CONDITIONS = {
    "item >= 5": lambda event: event["item"] is not None and event["item"] >= 5,
    "word == 'a'": lambda event: event["word"] == "a",
}
SMALL = st.integers(0, 9)
EVENTS = st.lists(
    st.fixed_dictionaries(
        {
            "user": st.none() | st.integers(0, 3),
            "ts": st.none() | SMALL,
            "no": st.none() | SMALL,
            "known": st.none() | SMALL,
            "item": st.none() | SMALL,
            "word": st.none() | st.sampled_from("ab"),
        }
    ),
    max_size=30,
)
RECENT = st.none() | st.lists(
    st.fixed_dictionaries(
        {"ts": st.none() | SMALL, "item": st.none() | SMALL, "word": st.none() | st.sampled_from("ab")}
    ),
    max_size=5,
)
ROWS = st.lists(
    st.tuples(st.none() | st.integers(0, 4), st.none() | st.integers(-1, 11), RECENT), min_size=1, max_size=8
)
POOLS = st.lists(st.tuples(st.integers(1, 4), st.none() | st.sampled_from([*CONDITIONS])), min_size=1, max_size=3).map(
    lambda pools: tuple(Pool(name=str(i), last=last, where=where) for i, (last, where) in enumerate(pools))
)
SCHEMA = pa.schema(
    [("user", pa.int64()), ("ts", pa.int64()), ("no", pa.int64()), ("known", pa.int64()), ("item", pa.int32()),
     ("word", pa.string())]
)  # fmt: skip


def joined(events: Any, reads: list[HistoryRead], rows: list[tuple[Any, Any, Any]]) -> dict[str, list[Any]]:
    table = pa.table(
        {
            "user": pa.array([key for key, _, _ in rows], pa.int64()),
            "at": pa.array([at for _, at, _ in rows], pa.int64()),
            "recent": pa.array([recent for _, _, recent in rows], RECENT_TYPE),
        }
    )
    join = HistoryJoin(COLUMNS, reads, table.schema, SCHEMA)
    series, values = join.join(events, pl.DataFrame(table))
    assert [each.name for each in series] == [*join.names] == [*values]
    return {each.name: expand_series(each, values[each.name]).to_list() for each in series}


@given(EVENTS, ROWS, POOLS, st.integers(0, 3), st.integers(0, 5), st.sampled_from(["", "recent"]))
def test_rows_see_what_the_rule_says(
    events: list[dict[str, Any]],
    rows: list[tuple[Any, Any, Any]],
    pools: tuple[Pool, ...],
    lag: int,
    scan: int,
    recent: str,
):
    whole = HistoryRead(history="events", at="at", pools=pools, lag=str(lag), scan=scan, recent=recent)
    reads = [HistoryRead(**{**_fields(whole), "column": column}) for column in ("item", "word", None)]
    found = joined(SortedEvents(pa.Table.from_pylist(events, SCHEMA)), [*reads, LAST_TWO], rows)
    for index, (key, at, carried) in enumerate(rows):
        expected = rule(events, key, at, carried, whole)
        assert [found[read.name][index] for read in reads] == [
            list(each) for each in zip(*expected, strict=True)
        ] or not expected
        assert [len(found[read.name][index]) for read in reads] == [len(expected)] * 3
        assert found[LAST_TWO.name][index] == [item for item, *_ in rule(events, key, at, carried, LAST_TWO)]


def _fields(read: HistoryRead) -> dict[str, Any]:
    return {name: getattr(read, name) for name in ("history", "at", "pools", "lag", "scan", "recent")}


def test_only_events_that_decide_or_are_seen_are_read():
    table = pa.Table.from_pylist(
        [{"user": 1, "ts": time, "no": 0, "known": 0, "item": time, "word": "a"} for time in range(1000)], SCHEMA
    )
    events = SortedEvents(table)
    columns = EventColumns(name="events", key="user", on="user", time="ts")
    join = HistoryJoin(
        columns,
        [HistoryRead(history="events", at="at", pools=(Pool(name="", last=10),), column="item")],
        pa.schema([("user", pa.int64()), ("at", pa.int64())]),
        SCHEMA,
    )
    [series], values = join.join(events, pl.DataFrame({"user": [1, 1], "at": [500, 505]}))
    assert expand_series(series, next(iter(values.values()))).to_list() == [[*range(490, 500)], [*range(495, 505)]]
    assert events.rows_read <= 15 + 2 * STRIPE


def test_events_out_of_order_are_refused():
    rows = [{"user": 1, "ts": time, "no": 0, "known": 0, "item": time, "word": "a"} for time in (1, 5, 2, 7)]
    events = SortedEvents(pa.Table.from_pylist(rows, SCHEMA))
    events.table, events.times = pa.Table.from_pylist(rows, SCHEMA), [1, 5, 2, 7]
    with pytest.raises(DataError, match="'events' is not sorted as its index says"):
        joined(events, [LAST_TWO], [(1, 6, None)])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (
            {"user": pa.string(), "at": pa.int64()},
            "keys of history 'events' cannot be equal: got 'user' of type string",
        ),
        ({"user": pa.int32(), "at": pa.timestamp("s")}, "cannot be compared: got timestamp"),
        ({"user": pa.int32(), "when": pa.int64()}, "names column 'at', which is not in the table"),
        ({"uid": pa.int32(), "at": pa.int64()}, "names column 'user', which is not in the table. It has uid"),
    ],
)
def test_columns_that_do_not_fit_are_refused(rows: dict[str, pa.DataType], message: str):
    with pytest.raises(TableArgumentError, match=message):
        HistoryJoin(
            COLUMNS,
            [LAST_TWO],
            pa.schema(list(rows.items())),
            SCHEMA,
        )


@given(st.lists(st.tuples(SMALL, SMALL), max_size=12))
def test_union_holds_the_same_integers(ranges: list[tuple[int, int]]):
    found = union(np.array(ranges, np.int64).reshape(-1, 2))
    assert {each for first, stop in found.tolist() for each in range(first, stop)} == {
        each for first, stop in ranges for each in range(first, stop)
    }
    assert (found[1:, 0] > found[:-1, 1]).all()
