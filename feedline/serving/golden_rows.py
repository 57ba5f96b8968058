"""Which rows prove an installation? Some of the table, and some with the values that go wrong first.

Runs in: the process that fits. Real rows are the first ones of splits spread over the table. Made-up rows are like the
first row, with nulls, extremes, empty and repeating lists in place of its values: all columns at once, except where a
feature refuses such a value (a null that nothing fills, a list of another length); its columns then keep the row's own.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pat

from feedline.errors import DataError
from feedline.expressions import BoundExpression
from feedline.expressions.extraction import Frame
from feedline.warehouse.reading.read import read_fragment
from feedline.warehouse.reading.sample import BoundSample
from feedline.warehouse.selection.first_rows import screened_splits
from feedline.warehouse.snapshot.snapshot import Snapshot

SPLITS, ROWS_OF_SPLIT, MADE_UP, SYNTHETIC = 10, 24, 16, 64
_CHUNK_ROWS, _CHUNKS = 2_048, 16  # that are looked at in a split, should the filter keep few rows

Encodes = Callable[[Frame], bool]  # whether rows can be transformed
_LONG = "a text that is longer than what lies inside a view"


def real_rows(
    snapshot: Snapshot,
    columns: Sequence[str],
    schema: pa.Schema,
    *,
    where: BoundExpression | None,
    sample: BoundSample | None,
) -> pa.Table:
    """The first kept rows of some splits, with these columns in the types of `schema`."""
    wanted = pa.schema([schema.field(name) for name in columns])
    found = [wanted.empty_table()]
    for fragment in screened_splits(snapshot, where, sample, _spread):
        left = ROWS_OF_SPLIT
        chunks = read_fragment(fragment, columns, where, schema, sample=sample, chunk_rows=_CHUNK_ROWS)
        for _, chunk in zip(range(_CHUNKS), chunks, strict=False):
            table = chunk.frame.head(left).to_arrow()
            found.append(pa.table([table[name].cast(wanted.field(name).type) for name in columns], schema=wanted))
            left -= table.num_rows
            if not left:
                break
    return pa.concat_tables(found).combine_chunks()


def _spread(splits: int) -> list[int]:
    """Some splits, spread over all."""
    return list(dict.fromkeys(np.linspace(0, splits - 1, SPLITS).astype(int).tolist())) if splits else []


def refused(rows: pa.Table, encodes: Encodes) -> list[int]:
    """The rows that cannot be transformed."""
    if not rows.num_rows or encodes(rows):
        return []
    return [row for row in range(rows.num_rows) if not encodes(rows.slice(row, 1))]


def made_up_rows(first: pa.Table, count: int, features: Sequence[tuple[Sequence[str], Encodes]]) -> pa.Table:
    """`count` rows like the one row of `first`; features: the columns of each, and whether it takes some rows.

    Each feature takes `first`.
    """
    schema = first.schema
    made = {field.name: [_value(field, place) for place in range(count)] for field in schema}
    rows = pa.table({field.name: pa.array(made[field.name], field.type) for field in schema}, schema=schema)
    for columns, encodes in features:
        for row in refused(rows.select(list(columns)), encodes):
            for name in columns:
                made[name][row] = first[name][0].as_py()
    rows = pa.table({field.name: pa.array(made[field.name], field.type) for field in schema}, schema=schema)
    everything = [encodes for _, encodes in features]
    wrong = set(refused(rows, lambda some: all(encodes(some) for encodes in everything)))
    return rows.take(pa.array([row for row in range(count) if row not in wrong], pa.int64()))


def plain_row(schema: pa.Schema) -> pa.Table:
    """One row that most features take, of no table."""
    return pa.table({field.name: pa.array([_plain(field.type)], field.type) for field in schema}, schema=schema)


def takes(encode: Callable[[Frame], object]) -> Encodes:
    """Whether `encode` transforms rows, from the errors that it raises."""

    def attempt(rows: Frame) -> bool:
        try:
            encode(rows)
        except DataError:
            return False
        return True

    return attempt


def _value(field: pa.Field, place: int) -> Any:
    """The value of a made-up row: difficult ones first, in another order per column, then drawn ones."""
    choose = random.Random(f"{field.name}:{place}")
    difficult = [None, *_difficult(field.type, choose)]
    return difficult[place] if place < len(difficult) else _drawn(field.type, choose)


def _difficult(kind: pa.DataType, choose: random.Random) -> list[Any]:
    if pat.is_dictionary(kind):
        return _difficult(kind.value_type, choose)
    if pat.is_boolean(kind):
        return [False, True]
    if pat.is_integer(kind):
        bits, signed = kind.bit_width, pat.is_signed_integer(kind)
        low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
        return [0, 1, high, low, *([-1] if signed else [])]
    if pat.is_floating(kind):
        info = np.finfo(kind.to_pandas_dtype())
        edges = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]
        return [*edges, float(info.max), float(info.smallest_subnormal)]
    if _is_list(kind):
        return _difficult_lists(kind, choose)
    if pat.is_struct(kind):
        fields = {field.name: [None, *_difficult(field.type, choose)] for field in kind}
        most = max((len(values) for values in fields.values()), default=0)
        return [{name: values[at % len(values)] for name, values in fields.items()} for at in range(most)]
    if pat.is_map(kind):
        key, items = _plain(kind.key_type), [None, *_difficult(kind.item_type, choose)]
        return [[], *([(key, item)] for item in items)]
    return _difficult_texts_and_times(kind)


def _difficult_lists(kind: pa.DataType, choose: random.Random) -> list[Any]:
    inner = _difficult(kind.value_type, choose)
    if pat.is_fixed_size_list(kind):
        return [[value] * kind.list_size for value in inner]
    drawn = [_drawn(kind.value_type, choose) for _ in range(70)]
    return [[], [None], drawn[:1], [drawn[0], drawn[1], drawn[0]], inner, [*drawn[:3], None], drawn]


def _difficult_texts_and_times(kind: pa.DataType) -> list[Any]:
    texts = ["", "a", "exactly8", "Zürich 🙂", _LONG, "1"]
    if pat.is_string(kind) or pat.is_large_string(kind) or pat.is_string_view(kind):
        return texts
    if pat.is_binary(kind) or pat.is_large_binary(kind) or pat.is_binary_view(kind):
        return [text.encode() for text in texts]
    if pat.is_fixed_size_binary(kind):
        return [b"\0" * kind.byte_width, b"\xff" * kind.byte_width]
    if pat.is_decimal(kind):
        largest = Decimal((0, (9,) * kind.precision, -kind.scale))
        return [Decimal(0), largest, -largest]
    if pat.is_timestamp(kind):
        zone = None if kind.tz is None else UTC
        moments = [(1970, 1, 1), (1969, 12, 31, 23, 59, 59), (2026, 3, 29, 1), (2000, 2, 29), (2100, 1, 1)]
        return [datetime(*moment, tzinfo=zone) for moment in moments]  # type: ignore[misc,arg-type]
    if pat.is_date(kind):
        return [date(1970, 1, 1), date(1969, 12, 31), date(2000, 2, 29), date(2100, 12, 31)]
    if pat.is_duration(kind):
        return [timedelta(0), timedelta(seconds=-1), timedelta(days=400)]
    return [time(0), time(23, 59, 59)] if pat.is_time(kind) else []


def _drawn(kind: pa.DataType, choose: random.Random) -> Any:
    """A value without surprises."""
    if pat.is_dictionary(kind):
        return _drawn(kind.value_type, choose)
    if pat.is_integer(kind):
        return choose.randrange(min(10**6, 2 ** (kind.bit_width - 1)))
    if pat.is_floating(kind):
        return float(kind.to_pandas_dtype()(choose.gauss(0, 10)))
    if pat.is_fixed_size_list(kind):
        return [_drawn(kind.value_type, choose) for _ in range(kind.list_size)]
    if _is_list(kind):
        return [_drawn(kind.value_type, choose) for _ in range(choose.randrange(30))]
    if pat.is_struct(kind):
        return {field.name: _drawn(field.type, choose) for field in kind}
    if pat.is_map(kind):
        return [(_drawn(kind.key_type, choose), _drawn(kind.item_type, choose))]
    values = _difficult(kind, choose)
    return choose.choice(values) if values else None


def _plain(kind: pa.DataType) -> Any:
    if pat.is_dictionary(kind):
        return _plain(kind.value_type)
    if pat.is_integer(kind):
        return 1
    if pat.is_floating(kind):
        return 0.5
    if pat.is_fixed_size_list(kind):
        return [_plain(kind.value_type)] * kind.list_size
    if _is_list(kind):
        return [_plain(kind.value_type)] * 3
    if pat.is_struct(kind):
        return {field.name: _plain(field.type) for field in kind}
    if pat.is_map(kind):
        return [(_plain(kind.key_type), _plain(kind.item_type))]
    values = _difficult(kind, random.Random(0))
    return values[-1] if values else None


def _is_list(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pat.is_list, pat.is_large_list, pat.is_fixed_size_list))
