"""Encode a frame's columns as arrays from which batches are cut (see `encoded_rows`).

Runs in: Dask workers (or the feeder's Dask threads), `Pipeline.transform`, `Pipeline.batches`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import Observer
from feedline.native import rows as native
from feedline.native.coded_values import CodedArray, CodedValues
from feedline.resources.result_memory import empty

# --------------------------------------------------------------------------------------------------------------------
# The finished floats of features: `on_nonfinite` is applied to them, and they are counted.


@dataclass(frozen=True, slots=True)
class Repeats:
    """How many rows of the table each row stands for, int64 [N]; lengths, int64 [N]: of the rows' lists of values."""

    of_rows: NDArray[np.int64]
    lengths: NDArray[np.int64] | None = None

    def count(self, values: NDArray[Any], *, chosen: bool = False) -> int:
        """How many values all rows of the table have: scalars, vectors [N, width], or the values of lists.

        chosen: only those where `values`, a mask, is true.
        """
        if chosen:
            repeats = self.of_rows if self.lengths is None else np.repeat(self.of_rows, self.lengths)
            return int(np.dot(values.reshape(len(repeats), -1).sum(axis=1), repeats))
        if self.lengths is not None:
            return int(np.dot(self.of_rows, self.lengths))
        return int(self.of_rows.sum()) * (values.shape[1] if values.ndim == 2 else 1)


def apply_on_nonfinite(
    values: NDArray[Any],
    column: SlotColumn,
    observer: Observer | None,
    *,
    row_of: Callable[[int], int] | None = None,
    repeats: Repeats | None = None,
    weights: bool = False,
    extremes: Sequence[float] | None = None,
) -> NDArray[Any]:
    """Apply a feature's `on_nonfinite` to its finished floats (or the weights of its ids), counted by the observer.

    values: one scalar or vector per row, or the values of lists, where `row_of` maps a value's index to its row. They
    are copied only if they change. repeats: how often the rows' values count. extremes: the values' minimum and
    maximum, if they are known. These are finite if and only if all values are, so values are searched only if that test
    fails.

    Raises DataError, with the row, if on_nonfinite is error.
    """
    if observer is None and column.on_nonfinite == "keep":
        return values
    low, high = extremes or ((values.min(), values.max()) if values.size else (math.inf, -math.inf))
    all_finite = not values.size or (math.isfinite(low) and math.isfinite(high))
    finite = None if all_finite else np.isfinite(values)
    if finite is not None:
        if column.on_nonfinite == "error":
            raise _nonfinite_error(values, finite, column, row_of, "weight" if weights else "value")
        low = values.min(where=finite, initial=math.inf)
        high = values.max(where=finite, initial=-math.inf)
    if observer is not None:
        if not weights:
            count = values.size if repeats is None else repeats.count(values)
            observer.count_floats(column, count, (low, high))
        if finite is not None:
            wrong = int(np.count_nonzero(~finite)) if repeats is None else repeats.count(~finite, chosen=True)
            observer.count_nonfinite(column, wrong)
    if finite is None or column.on_nonfinite == "keep":
        return values
    return np.where(finite, values, values.dtype.type(0))


def _nonfinite_error(
    values: NDArray[Any], finite: NDArray[np.bool_], column: SlotColumn, row_of: Callable[[int], int] | None, what: str
) -> DataError:
    index = int(np.argmin(finite))
    row = row_of(index) if row_of is not None else index * len(values) // values.size
    return DataError(
        f"feature {column.name!r} holds a {what} that is not finite ({column.chain}): got {values.flat[index]} and "
        f"{int(finite.size - np.count_nonzero(finite)) - 1:,} more in {values.size:,}, expected finite numbers. Change "
        f"its ops, or set its on_nonfinite to zero or keep"
    ).at(row)


# --------------------------------------------------------------------------------------------------------------------

_INT64, _FLOAT32 = np.dtype(np.int64), np.dtype(np.float32)
# A wide matrix is written in blocks of rows of this size, so that a cache line gets its 16 values before it is evicted:
# 504 columns of 32,768 rows in 32 ms instead of 47.
_MATRIX_BYTES = 8 * 2**20
_Columns: TypeAlias = Mapping[str, pl.Series | NDArray[Any]]  # arrays hold no nulls
# Of a sparse feature: values, offsets and weights.
_EncodedLists: TypeAlias = tuple[NDArray[Any] | CodedArray, NDArray[np.int64], NDArray[np.float32] | None]
_UNFILTERED: Mapping[str, str] = MappingProxyType({})
_NOT_CODED: Mapping[str, Any] = MappingProxyType({})
_ALL = slice(None)
_MANY_ROWS = 1_024  # of fewer, finding out which arrays can be compared in one call costs more than the calls
_FILL = {"list": "fill_null", "list of weights": "{weighted: {fill: 1.0}}"}


def encode(
    features: pl.DataFrame | _Columns,
    schema: BatchSchema,
    observer: Observer | None = None,
    filters: Mapping[str, str] = _UNFILTERED,
    repeats: NDArray[np.int64] | None = None,
    *,
    coded: Mapping[str, CodedValues] = _NOT_CODED,
    rows: int | None = None,
    order: NDArray[np.int32] | None = None,
) -> EncodedRows:
    """Encode finished features (one column per feature, of its group's dtype), counted by `observer`.

    filters: for features read from columns, the condition of `source.where` that would drop their nulls, for messages.
    repeats: int64 [N], how many rows of the table each row stands for when it is counted (None: one). coded: features
    that are none of these columns, once per distinct value, with `uses` that count `repeats`; errors name no row of
    theirs. rows: N, if there may be no columns. order: int32 [N], the rows in the order of the result, where
    `can_order` the schema and all lists are coded; errors name rows of the columns.

    Raises DataError, with feature and row, for a null scalar, a null element of a list or vector, or a null weight. A
    null list is an empty list.
    """
    gathered = _GatheredColumns(observer, order, repeats, filters)
    if isinstance(features, pl.DataFrame):
        rows = features.height if rows is None else rows
        features = dict(zip(features.columns, features.get_columns(), strict=True))
    rows = len(next(iter(features.values()), ())) if rows is None else rows
    if rows >= _MANY_ROWS:
        gathered.compare(features, schema, coded, rows)
    lists = gathered.lists([column for column in schema.sparse if column.name in coded], coded)
    for column in schema.sparse:
        if column.name not in coded:
            assert order is None, "lists that are not coded are gathered when they are written"
            lists[column.name] = _lists(features[column.name], column, observer, repeats)
    ids = gathered.ids([column for column in schema.group("categorical") if column.name in coded], coded)
    categorical = [
        ids[column.name] if column.name in coded else gathered.finished(_ids(features[column.name], column, gathered))
        for column in schema.group("categorical")
    ]
    in_order = [lists[column.name] for column in schema.sparse]
    encoded = EncodedRows(
        rows=rows,
        dense=_row_major(features, schema.group("dense"), coded, rows, gathered),
        categorical=tuple(categorical),
        labels=_row_major(features, schema.group("label"), coded, rows, gathered),
        values=tuple(values for values, _, _ in in_order),
        weights=tuple(weights for _, _, weights in in_order),
        offsets=tuple(offsets for _, offsets, _ in in_order),
        extra=tuple(_arrow(features[column.name]) for column in schema.group("extra")),
    )
    gathered.finish()
    return encoded


def can_order(schema: BatchSchema) -> bool:
    """Whether rows may be encoded in another order: in place of a gather of all that they hold, once they are written.

    Codes are a quarter of the values that they stand for, or less, and lie in the caches; extras do not.
    """
    plain = not schema.group("extra") and not schema.dedup
    return native.COMPILED and plain and not any(column.weighted for column in schema.sparse)


class _GatheredColumns:
    """The columns whose values are gathered, in one call, from those of distinct values; and what `encode` was given
    for all columns. plain, extremes: the arrays of columns that are compared in one call, and their extremes. counted:
    those of them that are counted already: ids, and finite floats."""

    def __init__(
        self,
        observer: Observer | None,
        order: NDArray[np.int32] | None,
        repeats: NDArray[np.int64] | None,
        filters: Mapping[str, str],
    ) -> None:
        self.observer = observer
        self.filters = filters
        self.plain: Mapping[str, NDArray[Any]] = {}
        self.extremes: Mapping[str, Sequence[float]] = {}
        self.counted: set[str] = set()
        self.order = order
        # Numpy would convert the order for each column, and check it: together a fifth of a shuffled block's time.
        self._index = None if order is None else order.astype(np.int64)
        self.repeats = repeats
        self._targets: list[native.CodedTarget] = []
        self._gathered: list[tuple[str, int]] = []  # ids that are counted as they are gathered: how many
        self._ids: list[tuple[str, int, Sequence[int]]] = []  # those of lists, with their extremes
        self._floats: list[tuple[str, int, Sequence[float]]] = []

    def in_order(self, values: NDArray[Any], rows: slice = _ALL) -> NDArray[Any]:
        """The values of these rows of the result: scalars or vectors of all rows in the order of the columns."""
        return values[rows] if self._index is None else values.take(self._index[rows], axis=0, mode="clip")

    def finished(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values of the result: scalars of all rows in the order of the columns."""
        if self._index is None:
            return values
        return values.take(self._index, out=empty(len(values), values.dtype), mode="clip")

    def compare(self, features: _Columns, schema: BatchSchema, coded: Collection[str], rows: int) -> None:
        """Find scalars without nulls, and their extremes, in two calls: where two threads encode, numpy's, two for each
        column, wait for each other."""
        integers, floats = dict[str, NDArray[Any]](), dict[str, NDArray[Any]]()
        for column in itertools.chain(*(schema.group(group) for group in ("categorical", "dense", "label"))):
            if column.name in coded or (self.observer is None and column.on_nonfinite == "keep"):
                continue
            values = features[column.name]
            if isinstance(values, pl.Series):
                if values.null_count():
                    continue
                values = values.to_numpy()
            own = integers if values.dtype is _INT64 else floats if values.dtype is _FLOAT32 else None
            if own is not None and values.ndim == 1 and values.flags.c_contiguous:
                own[column.name] = values
        self.plain = integers | floats
        count = itertools.repeat(rows if self.repeats is None else int(self.repeats.sum()))
        if integers and self.observer is not None:
            extremes = native.extremes(list(integers.values())).tolist()
            self.observer.count_ids(integers, itertools.islice(count, len(integers)), extremes)
            self.counted.update(integers)
        if not floats:
            return
        ends = native.extremes(list(floats.values()))
        of_floats = dict(zip(floats, ends.tolist(), strict=True))
        if self.observer is not None:
            all_finite = math.isfinite(ends.sum())  # of float32, summed as float64
            names = list(floats if all_finite else itertools.compress(floats, np.isfinite(ends).all(axis=1)))
            extremes = [of_floats[name] for name in names]
            self.observer.count_float_columns(names, itertools.islice(count, len(names)), extremes)
            self.counted.update(names)
        self.extremes = of_floats

    def lists(self, columns: Sequence[SlotColumn], coded: Mapping[str, CodedValues]) -> dict[str, _EncodedLists]:
        """The values and offsets of sparse features; both are counted.

        Values are codes if these take fewer bytes.
        """
        names = [column.name for column in columns]
        same: dict[tuple[object, ...], tuple[native.Codes, NDArray[np.int64]]] = {}  # columns may share their codes
        picked = []
        for name in names:
            key = _place_of(coded[name])
            if key not in same:
                same[key] = self._codes_of(coded[name])
            picked.append(same[key])
        if self.observer is not None and self.repeats is None and names:
            self.observer.count_list_columns(names, [offsets for _, offsets in picked])
        elif self.observer is not None:
            for column, (_, offsets) in zip(columns, picked, strict=True):
                self.observer.count_lists(column, offsets, self.repeats)
        pairs: dict[str, tuple[NDArray[np.int64], native.Codes | None]] = {
            column.name: (coded[column.name].values, None if coded[column.name].index is not None else codes)
            for column, (codes, _) in zip(columns, picked, strict=True)
            if column.dtype == "int64" and len(codes)
        }
        ends = dict(zip(pairs, native.used_extremes(list(pairs.values())) if pairs else (), strict=True))
        found: dict[str, _EncodedLists] = {}
        for column, (codes, offsets) in zip(columns, picked, strict=True):
            own = coded[column.name]
            if column.dtype == "float32":
                table = self._count_floats(own, column)
            elif len(codes):
                least, most, *extremes = ends[column.name]
                table = _narrowed(own.values, least, most)
                self._ids.append((column.name, self._count_of(own), extremes))
            else:
                table = own.values
            values = CodedArray(codes, _at_entries(own, table))
            is_smaller = values.nbytes < values.dtype.itemsize * len(codes)
            found[column.name] = values if is_smaller else np.asarray(values), offsets, None
        return found

    def _codes_of(self, lists: CodedValues) -> tuple[native.Codes, NDArray[np.int64]]:
        """The codes of the lists, or of their slices, in the order of the result, and their offsets in it.

        They are copied: they may be few of those that were decoded, which are not kept for them.
        """
        ends = lists.offsets
        assert ends is not None
        if self.order is None and lists.slices is None:
            codes = empty(len(lists.codes), lists.codes.dtype)
            codes[:] = lists.codes
            return codes, ends
        start, offsets = (0, ends) if lists.slices is None else lists.slices
        if self.order is not None:
            lengths, ends = np.diff(ends), empty(len(ends), np.int64)
            ends[0] = 0
            np.cumsum(self.in_order(lengths), out=ends[1:])
        codes = empty(int(ends[-1]), lists.codes.dtype)
        native.slice_values(offsets, lists.codes, codes.itemsize, start, ends, codes, self.order)
        return codes, ends

    def add(
        self,
        coded: CodedValues,
        values: NDArray[Any],
        target: NDArray[Any],
        first: int = 0,
        step: int = 1,
        counted: bool = False,
    ) -> None:
        """Set every `step`-th value of a flat target from the first on: of all codes, at the end."""
        self._targets.append((target, first, step, _at_entries(coded, values), coded.codes, counted))

    def ids(self, columns: Sequence[SlotColumn], coded: Mapping[str, CodedValues]) -> dict[str, NDArray[np.int64]]:
        """The ids of all codes, which are set, and counted, at the end."""
        found = {column.name: empty(len(coded[column.name].codes), np.int64) for column in columns}
        filled = [name for name, target in found.items() if len(target)]
        if not filled:
            return found
        extremes = native.extremes([coded[name].values for name in filled]).tolist()
        for name, (least, most) in zip(filled, extremes, strict=True):
            own = coded[name]
            self.add(own, _narrowed(own.values, least, most), found[name], counted=True)
            self._gathered.append((name, self._count_of(own)))
        return found

    def add_floats(
        self, coded: CodedValues, column: SlotColumn, target: NDArray[np.float32], first: int, step: int
    ) -> None:
        """As `add`, and count them. Raises as `apply_on_nonfinite`."""
        values = self._count_floats(coded, column)
        if coded.count:
            self.add(coded, values, target, first, step)

    def _count_floats(self, coded: CodedValues, column: SlotColumn) -> NDArray[Any]:
        """Count finished floats. Returns them, with `on_nonfinite` applied. Raises as `apply_on_nonfinite`."""
        values = coded.values
        if coded.uses is not None:
            return apply_on_nonfinite(values, column, self.observer, repeats=Repeats(coded.uses))
        if self.observer is not None:
            assert coded.used is not None, "of floats, the least and the greatest are counted"
            if coded.count:
                used = values[coded.used]
                extremes = (float(np.minimum.reduce(used)), float(np.maximum.reduce(used)))
                self._floats.append((column.name, self._count_of(coded), extremes))
        return values

    def _count_of(self, coded: CodedValues) -> int:
        """How many values all rows of the table have."""
        if self.repeats is None:
            return coded.count
        lengths = None if coded.offsets is None else np.diff(coded.offsets)
        return Repeats(self.repeats, lengths).count(coded.codes)

    def finish(self) -> None:
        """Gather, and count."""
        ends = native.gather_codes(self._targets, self.order) if self._targets else []
        ids = [*self._ids, *((*each, pair) for each, pair in zip(self._gathered, ends, strict=True))]
        if self.observer is not None and ids:
            self.observer.count_ids(*zip(*ids, strict=True))
        if self.observer is not None and self._floats:
            self.observer.count_float_columns(*zip(*self._floats, strict=True))


def _place_of(lists: CodedValues) -> tuple[object, ...]:
    """What is equal for lists whose codes, offsets and slices lie in the same memory."""
    arrays = [lists.codes, lists.offsets, *(() if lists.slices is None else lists.slices[1:])]
    places = [None if each is None else (each.ctypes.data, len(each), each.dtype) for each in arrays]
    return (*places, None if lists.slices is None else lists.slices[0])


def _at_entries(coded: CodedValues, values: NDArray[Any]) -> NDArray[Any]:
    """The values of all entries, 0 for those that are not used."""
    if coded.index is None:
        return values
    table = np.zeros(coded.entries, values.dtype)
    table[coded.index] = values
    return table


def _narrowed(ids: NDArray[np.int64], least: int, most: int) -> NDArray[np.int64] | NDArray[np.int32]:
    """Ids in 32 bits, if these hold them all: twice as many are in the caches."""
    return ids.astype(np.int32) if least >= -(2**31) and most < 2**31 else ids


def _scalars(series: pl.Series | NDArray[Any], name: str, filters: Mapping[str, str]) -> NDArray[Any]:
    if not isinstance(series, pl.Series):
        return series
    if series.null_count():
        row = int(series.is_null().arg_max() or 0)
        instead = f", or `{filters[name]}` to source.where" if name in filters else ""
        raise DataError(
            f"feature {name!r} holds a null: got {series.null_count():,} nulls in {len(series):,} rows, expected none. "
            f"Add fill_null to its ops{instead}"
        ).at(row)
    return series.to_numpy()


def _ids(series: pl.Series | NDArray[Any], column: SlotColumn, gathered: _GatheredColumns) -> NDArray[np.int64]:
    if column.name in gathered.counted:
        return gathered.plain[column.name]
    ids = _scalars(series, column.name, gathered.filters)
    if gathered.observer is not None:
        count = len(ids) if gathered.repeats is None else int(gathered.repeats.sum())
        gathered.observer.count_integers(column, ids, count)
    return ids


def _lists(
    series: pl.Series | NDArray[Any], column: SlotColumn, observer: Observer | None, repeats: NDArray[np.int64] | None
) -> _EncodedLists:

    def row_of(index: int) -> int:
        return int(np.searchsorted(offsets, index, side="right")) - 1

    assert isinstance(series, pl.Series), "lists are no array"
    values, offsets = _encode_ragged(series.struct.field("values") if column.weighted else series, column.name, "list")
    of_lists = Repeats(repeats, np.diff(offsets)) if repeats is not None else None
    if observer is not None:
        observer.count_lists(column, offsets, repeats)
    if column.dtype == "float32":
        values = apply_on_nonfinite(values, column, observer, row_of=row_of, repeats=of_lists)
    elif observer is not None:
        observer.count_integers(column, values, values.size if of_lists is None else of_lists.count(values))
    if not column.weighted:
        return values, offsets, None
    list_weights, borders = _encode_ragged(series.struct.field("weights"), column.name, "list of weights")
    assert np.array_equal(borders, offsets), f"feature {column.name!r} has weights that do not belong to its ids"
    list_weights = apply_on_nonfinite(list_weights, column, observer, row_of=row_of, repeats=of_lists, weights=True)
    return values, offsets, list_weights


def _row_major(
    features: _Columns,
    columns: Sequence[SlotColumn],
    coded: Mapping[str, CodedValues],
    rows_of_all: int,
    gathered: _GatheredColumns,
) -> NDArray[np.float32]:
    width = sum(column.width for column in columns)
    matrix = empty((rows_of_all, width), np.float32)
    flat = matrix.reshape(-1)
    of_rows = None if gathered.repeats is None else Repeats(gathered.repeats)
    sources: list[tuple[int | slice, NDArray[Any]]] = []
    laid: dict[int, NDArray[np.float32]] = {}
    for column in columns:
        if column.name in coded:
            gathered.add_floats(coded[column.name], column, flat, column.offset, width)
            continue
        if column.name in gathered.counted and gathered.order is None:
            laid[column.offset] = gathered.plain[column.name]
            continue
        series = gathered.plain[column.name] if column.name in gathered.plain else features[column.name]
        target: int | slice
        if isinstance(series, pl.Series) and isinstance(series.dtype, pl.Array):
            target, values = slice(column.offset, column.offset + column.width), _vectors(series, column.name)
        else:
            target, values = column.offset, _scalars(series, column.name, gathered.filters)
        if column.name not in gathered.counted:
            extremes = gathered.extremes.get(column.name)
            values = apply_on_nonfinite(values, column, gathered.observer, repeats=of_rows, extremes=extremes)
        is_copied = values.dtype == np.float32 and values.flags.c_contiguous
        if is_copied and isinstance(target, int) and gathered.order is None:
            laid[target] = values
        else:
            sources.append((target, values))
    native.lay_columns(matrix, laid)
    step = max(_MATRIX_BYTES // (4 * max(width, 1)), 1)
    for start in range(0, rows_of_all if sources else 0, step):
        rows = slice(start, start + step)
        for target, values in sources:
            matrix[rows, target] = gathered.in_order(values, rows)
    return matrix


def _vectors(series: pl.Series, name: str) -> NDArray[Any]:
    """The vectors as a matrix, without a copy."""
    array = series.rechunk().to_arrow()
    width = array.type.list_size
    if array.null_count:
        row = int(series.is_null().arg_max() or 0)
        raise DataError(
            f"feature {name!r} holds a null: got {array.null_count:,} null vectors in {len(series):,} rows, expected "
            f"none. `{{pad: {width}}}` makes vectors of null lists"
        ).at(row)
    flat = array.values.slice(array.offset * width, len(array) * width)
    if flat.null_count:
        row = int(np.flatnonzero(flat.is_null().to_numpy(zero_copy_only=False))[0]) // width
        raise DataError(
            f"feature {name!r} holds a null inside a vector: got {flat.null_count:,} null elements, expected none. "
            f"Add fill_null to its ops"
        ).at(row)
    matrix: NDArray[Any] = flat.to_numpy().reshape(len(array), width)
    return matrix


def _arrow(series: pl.Series | NDArray[Any]) -> pa.Array:
    array = series.to_arrow() if isinstance(series, pl.Series) else pa.array(series)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    return array.cast(array.type.value_type) if pa.types.is_dictionary(array.type) else array


def _encode_ragged(series: pl.Series, name: str, what: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    array = series.rechunk().to_arrow()
    if array.null_count:
        array = pc.if_else(array.is_valid(), array, pa.scalar([], type=array.type))
    offsets = array.offsets.to_numpy()
    first, last = int(offsets[0]), int(offsets[-1])
    values = array.values.slice(first, last - first)
    if values.null_count:
        position = first + int(values.is_null().to_numpy(zero_copy_only=False).argmax())
        raise DataError(
            f"feature {name!r} holds a null inside a {what}: got {values.null_count:,} null elements, expected "
            f"none. Add {_FILL[what]} to its ops"
        ).at(int(np.searchsorted(offsets, position, side="right")) - 1)
    return values.to_numpy(), offsets - first if first else offsets
