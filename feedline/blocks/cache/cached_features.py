"""Features of some rows as a cache keeps them, with those of deduplicated groups, which have a row per run.

Pure; runs in every process that computes blocks. Where a group's runs begin is kept once, in bits, for all of its
features. A block's unique rows are those of the runs, repeated where it lets one end (see `block_encoder`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.block_encoder import Bools, RowCounts, unique_starts
from feedline.dataclass import dataclass
from feedline.loader.encoding.encode import Repeats, apply_on_nonfinite
from feedline.loader.encoding.encoded_rows import EncodedRows, take
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import COUNTS, Observer, Quality
from feedline.native import rows as native
from feedline.native.coded_values import CodedArray
from feedline.native.rows import lay_columns, take_columns
from feedline.native.unique_rows import UniqueRows, first_uses
from feedline.warehouse.cache.entry_file import CachedColumn

# --------------------------------------------------------------------------------------------------------------------
# What quality counts of the columns of a cache: of all their rows, kept with them, and of any part of these. Pure;
# runs in every process that computes blocks. Values, extremes, lengths and numbers that are not finite are counted
# again of a part; which rows are null, and what they look up, is kept per row: nothing where it is the same in all
# rows or follows from the lengths of lists, else bits, or counts in as few bytes as hold them.

Counts = NDArray[np.int64]
Arrays = dict[str, NDArray[Any]]

_BITS, _NUMBERS, _LENGTHS = "bits", "numbers", "lengths"  # how counts of rows are kept that differ


def facts_of(quality: Quality, schema: BatchSchema) -> dict[str, dict[str, Any]]:
    """What quality counts of each feature, as plain values."""
    facts: dict[str, dict[str, Any]] = {}
    sparse = {column.name: index for index, column in enumerate(schema.group("sparse"))}
    histograms, lookup = quality.histograms(), 0
    for index, column in enumerate(schema):
        own = dict(zip(COUNTS, quality.counts[:, index].tolist(), strict=True))
        facts[column.name] = {
            "rows": quality.rows,
            **own,
            "integers": quality.integers[:, index].tolist(),
            "floats": quality.floats[:, index].tolist(),
            "lengths": histograms[sparse[column.name]].tolist() if column.name in sparse else [],
            "lookups": quality.lookups[:, lookup : lookup + column.lookups].tolist(),
        }
        lookup += column.lookups
    return facts


def quality_of(columns: Mapping[str, CachedColumn], schema: BatchSchema, rows: int) -> Quality:
    """The counts of all rows of some columns."""
    facts = [columns[column.name].facts for column in schema]
    lengths = [np.array(columns[column.name].facts["lengths"], np.int64) for column in schema.group("sparse")]
    lookups = [np.array(own["lookups"], np.int64).reshape(2, -1) for own in facts]
    return Quality(
        rows=rows,
        counts=np.array([[own[name] for own in facts] for name in COUNTS], np.int64).reshape(len(COUNTS), -1),
        integers=np.array([own["integers"] for own in facts], np.int64).reshape(-1, 2).T.copy(),
        floats=np.array([own["floats"] for own in facts], np.float64).reshape(-1, 2).T.copy(),
        histogram=np.concatenate(lengths) if lengths else np.empty(0, np.int64),
        widths=np.array([len(buckets) for buckets in lengths], np.int64),
        lookups=np.concatenate(lookups, axis=1) if lookups else np.zeros((2, 0), np.int64),
    )


def with_row_counts(column: CachedColumn, name: str, row_counts: RowCounts) -> CachedColumn:
    """A column with what is kept of each of its rows."""
    nulls, kept = row_counts.nulls(name), Arrays()
    counts: dict[str, NDArray[Any]] = {} if nulls is None else {"nulls": nulls.view(np.uint8)}
    for number, (asked, missed) in enumerate(row_counts.lookups(name)):
        counts |= {f"asked{number}": asked, f"missed{number}": missed}
    offsets = column.arrays.get("offsets")
    lengths = None if offsets is None else np.diff(offsets)
    forms = {"nulls": 0} | {key: _keep(key, each, lengths, kept) for key, each in counts.items()}
    return CachedColumn({**column.arrays, **kept}, {**column.facts, "of_rows": forms})


def _keep(key: str, counts: NDArray[Any], lengths: NDArray[Any] | None, arrays: Arrays) -> int | str:
    """How the counts of rows are kept: the one that all have, or how they lie in an array, or follow from lengths."""
    low, high = int(counts.min()), int(counts.max())
    if low == high:
        return low
    if lengths is not None and np.array_equal(counts, lengths):
        return _LENGTHS
    if high <= 1:
        arrays[key] = np.packbits(counts.astype(np.bool_, copy=False), bitorder="little")
        return _BITS
    arrays[key] = counts.astype(np.min_scalar_type(high))
    return _NUMBERS


def _sum_of_rows(column: CachedColumn, key: str, start: int, stop: int, repeats: Counts | None) -> int:
    """The sum of what was kept of rows [start, stop)."""
    form = column.facts["of_rows"][key]
    if isinstance(form, int):
        return form * (stop - start if repeats is None else int(repeats.sum()))
    if form == _LENGTHS:
        counts = np.diff(column.arrays["offsets"][start : stop + 1])
    elif form == _NUMBERS:
        counts = column.arrays[key][start:stop]
    else:
        first = start // 8
        bits = column.arrays[key][first : -(-stop // 8)]
        counts = np.unpackbits(bits, bitorder="little")[start - 8 * first : stop - 8 * first]
    return int(counts.sum(dtype=np.int64)) if repeats is None else int(np.dot(counts.astype(np.int64), repeats))


def facts_of_part(
    columns: Mapping[str, CachedColumn], schema: BatchSchema, start: int, stop: int, repeats: Counts | None = None
) -> dict[str, dict[str, Any]]:
    """What quality counts of rows [start, stop) of the columns of a schema. repeats: int64 [rows], how many rows of the
    table each stands for (None: one)."""
    observer = Observer(schema, [()] * len(schema))
    for column in schema:
        own = columns[column.name]
        if column.group == "sparse":
            _count_lists(observer, column, own.arrays, slice(start, stop + 1), repeats)
        elif column.group != "extra":
            values = own.arrays["values"][start:stop]
            of_rows = None if repeats is None else Repeats(repeats)
            if column.group == "categorical":
                observer.count_integers(column, values, None if of_rows is None else of_rows.count(values))
            else:
                apply_on_nonfinite(values, _kept(column), observer, repeats=of_rows)
        lookups = [
            (
                _sum_of_rows(own, f"asked{number}", start, stop, repeats),
                _sum_of_rows(own, f"missed{number}", start, stop, repeats),
            )
            for number in range(column.lookups)
        ]
        if lookups:
            observer.count_lookups(column.name, lookups)
    counted = observer.quality()
    nulls = [_sum_of_rows(columns[column.name], "nulls", start, stop, repeats) for column in schema]
    counted.counts[COUNTS.index("nulls")] = nulls
    return facts_of(replace(counted, rows=stop - start if repeats is None else int(repeats.sum())), schema)


def _count_lists(
    observer: Observer, column: SlotColumn, arrays: Mapping[str, NDArray[Any]], borders: slice, repeats: Counts | None
) -> None:
    offsets = arrays["offsets"][borders]
    flat = slice(int(offsets[0]), int(offsets[-1]))
    observer.count_lists(column, offsets, repeats)
    of_lists = None if repeats is None else Repeats(repeats, np.diff(offsets))
    if "weights" in arrays:
        apply_on_nonfinite(arrays["weights"][flat], _kept(column), observer, repeats=of_lists, weights=True)
    count = flat.stop - flat.start
    if not count:
        return
    if of_lists is not None:
        count = of_lists.count(offsets)
    coded = "codes" in arrays
    used = arrays["values"][flat] if not coded else _used(arrays["codes"][flat], arrays["table"])
    low, high = np.minimum.reduce(used), np.maximum.reduce(used)
    if column.dtype != "float32":
        observer.count_extremes(column, count, low, high)
    elif np.isfinite(low) and np.isfinite(high):
        observer.count_floats(column, count, (low, high))
    else:
        values = arrays["table"][arrays["codes"][flat]] if coded else used
        apply_on_nonfinite(values, _kept(column), observer, repeats=of_lists)


def _used(codes: native.Codes, table: NDArray[Any]) -> NDArray[Any]:
    """The values that codes stand for, each once."""
    return table[native.mark_codes(codes, len(table))]


def _kept(column: SlotColumn) -> SlotColumn:
    """The column, of which values stay as they are."""
    return replace(column, on_nonfinite="keep")


# --------------------------------------------------------------------------------------------------------------------
# Encoded rows as columns of a cache, a column per feature, and back. Pure; runs in every process that computes
# blocks. A matrix is kept column by column, a list as offsets and its values, which stay codes where blocks hold
# codes, and integers in as few bytes as hold them. Numbers that are not finite are kept as they are, as they are
# counted of any part: `on_nonfinite: zero` is applied to what is delivered.

Facts: TypeAlias = Mapping[str, Mapping[str, Any]]  # by feature


def split_columns(encoded: EncodedRows, schema: BatchSchema, facts: Facts) -> dict[str, CachedColumn]:
    """Each feature of some rows, by name. facts: what quality counts of them."""
    found: dict[str, dict[str, NDArray[Any]]] = {}
    for group, matrix in (("dense", encoded.dense), ("label", encoded.labels)):
        single = [column for column in schema.group(group) if column.width == 1]
        taken = take_columns(matrix, [column.offset for column in single])
        found |= {column.name: {"values": values} for column, values in zip(single, taken, strict=True)}
        for column in schema.group(group):
            if column.width != 1:
                part = matrix[:, column.offset : column.offset + column.width]
                found[column.name] = {"values": np.ascontiguousarray(part)}
    for column, ids in zip(schema.group("categorical"), encoded.categorical, strict=True):
        found[column.name] = {"values": _narrowed(ids, facts[column.name])}
    lists = zip(schema.sparse, encoded.values, encoded.weights, encoded.offsets, strict=True)
    for column, values, weights, offsets in lists:
        arrays: dict[str, NDArray[Any]] = {"offsets": offsets.astype(np.int32) if offsets[-1] < 2**31 else offsets}
        if isinstance(values, CodedArray):
            arrays |= {"codes": np.ascontiguousarray(values.codes), "table": np.ascontiguousarray(values.table)}
        else:
            arrays["values"] = _narrowed(values, facts[column.name])
        if weights is not None:
            arrays["weights"] = np.ascontiguousarray(weights)
        found[column.name] = arrays
    for column, array in zip(schema.group("extra"), encoded.extra, strict=True):
        found[column.name] = {"arrow": arrow_bytes(array)}
    return {name: CachedColumn(arrays, facts[name]) for name, arrays in found.items()}


def part_of_column(column: CachedColumn, start: int, stop: int, facts: Mapping[str, Any]) -> CachedColumn:
    """Rows [start, stop) of a column, as views. facts: of these rows."""
    arrays = dict(column.arrays)
    if "offsets" in arrays:
        arrays["offsets"] = arrays["offsets"][start : stop + 1]
    elif "values" in arrays:
        arrays["values"] = arrays["values"][start:stop]
    return CachedColumn(arrays, {**facts, "first": start})


def rows_of_columns(columns: Mapping[str, CachedColumn], schema: BatchSchema, rows: int) -> EncodedRows:
    """The rows of the features of a schema, which are views where they can be."""
    values: list[NDArray[Any] | CodedArray] = []
    weights: list[NDArray[np.float32] | None] = []
    offsets = []
    for column in schema.sparse:
        own = columns[column.name].arrays
        borders, zero = own["offsets"], _becomes_zero(columns[column.name], column)
        first, last = int(borders[0]), int(borders[-1])
        offsets.append(np.subtract(borders, first, dtype=np.int64))
        if "codes" in own:
            table = _finite(own["table"]) if zero else own["table"]
            values.append(CodedArray(own["codes"][first:last], table))
        else:
            values.append(_finite(own["values"][first:last]) if zero else _widened(own["values"][first:last]))
        flat = own["weights"][first:last] if "weights" in own else None
        weights.append(_finite(flat) if zero and flat is not None else flat)
    return EncodedRows(
        rows=rows,
        dense=_matrix(columns, schema.group("dense"), rows),
        categorical=tuple(_widened(columns[column.name].arrays["values"]) for column in schema.group("categorical")),
        labels=_matrix(columns, schema.group("label"), rows),
        values=tuple(values),
        weights=tuple(weights),
        offsets=tuple(offsets),
        extra=tuple(_extra(columns[column.name], rows) for column in schema.group("extra")),
    )


def _matrix(columns: Mapping[str, CachedColumn], chosen: Sequence[SlotColumn], rows: int) -> NDArray[np.float32]:
    width = sum(column.width for column in chosen)
    matrix = np.empty((rows, width), np.float32)
    sources = [(column, columns[column.name].arrays["values"]) for column in chosen]
    sources = [
        (column, _finite(values) if _becomes_zero(columns[column.name], column) else values)
        for column, values in sources
    ]
    lay_columns(matrix, {column.offset: values for column, values in sources if column.width == 1})
    for column, values in sources:
        if column.width != 1:
            matrix[:, column.offset : column.offset + column.width] = values
    return matrix


def _extra(column: CachedColumn, rows: int) -> pa.Array:
    return arrow_array(column.arrays["arrow"]).slice(column.facts.get("first", 0), rows)


def _becomes_zero(kept: CachedColumn, column: SlotColumn) -> bool:
    """Whether some of a column's numbers are not finite, and `on_nonfinite` makes them 0."""
    return column.on_nonfinite == "zero" and bool(kept.facts["nonfinite"])


def _finite(values: NDArray[Any]) -> NDArray[Any]:
    return _widened(values) if values.dtype.kind == "i" else np.where(np.isfinite(values), values, np.float32(0))


def arrow_bytes(array: pa.Array) -> NDArray[np.uint8]:
    """An Arrow array as bytes."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch([array], names=["values"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def arrow_array(content: NDArray[np.uint8]) -> pa.Array:
    """The inverse of `arrow_bytes`."""
    with pa.ipc.open_stream(pa.py_buffer(content)) as reader:
        return reader.read_next_batch().column(0)


def _narrowed(values: NDArray[Any], facts: Mapping[str, Any]) -> NDArray[Any]:
    """Integers in as few bytes as hold their extremes, which were counted; else the values. Writing costs most."""
    low, high = facts["integers"]
    if values.dtype == np.int64 and low <= high:
        for kind in (np.int8, np.int16, np.int32):
            if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max:
                return values.astype(kind)
    return np.ascontiguousarray(values)


def _widened(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.int64) if values.dtype.kind == "i" else values


# --------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CachedFeatures:
    """Some features of some rows. columns: by feature. runs: bool [rows], where runs begin, by deduplicated group.
    rows: the rows as they were encoded, None where they were found, or where groups end runs of their own."""

    columns: Mapping[str, CachedColumn]
    runs: Mapping[str, Bools]
    rows: EncodedRows | None = None

    def merge(self, other: CachedFeatures) -> CachedFeatures:
        """These features and others of the same rows."""
        return CachedFeatures({**self.columns, **other.columns}, {**self.runs, **other.runs})


def split_features(rows: EncodedRows, schema: BatchSchema, quality: Quality, row_counts: RowCounts) -> CachedFeatures:
    """The features of encoded rows, of whose groups each run has one unique row."""
    facts = facts_of(quality, schema)
    found, runs = dict[str, CachedColumn](), dict[str, Bools]()
    of_parts = (rows, *(group.rows for group in rows.groups))
    for part, own in zip(schema.parts, of_parts, strict=True):
        found |= split_columns(own, part, facts)
    for name, group in zip(schema.dedup, rows.groups, strict=True):
        runs[name] = np.zeros(rows.rows, np.bool_)
        runs[name][first_uses(group.inverse)] = True
    columns = {name: with_row_counts(each, name, row_counts) for name, each in found.items()}
    return CachedFeatures(columns, runs, None if runs else rows)


def part_of_features(kept: CachedFeatures, schema: BatchSchema, start: int, stop: int) -> CachedFeatures:
    """Rows [start, stop), as views. schema: of all features of a batch."""
    found, runs = dict[str, CachedColumn](), dict[str, Bools]()
    for name, part in zip((None, *schema.dedup), schema.parts, strict=True):
        columns = {column.name: kept.columns[column.name] for column in part if column.name in kept.columns}
        first, last, repeats = start, stop, None
        if name is not None:
            if name not in kept.runs:
                continue
            first, last, repeats = _runs_between(kept.runs[name], start, stop)
            runs[name] = kept.runs[name][start:stop].copy()
            runs[name][0] = True
        facts = facts_of_part(columns, _only(part, columns), first, last, repeats)
        found |= {each: part_of_column(column, first, last, facts[each]) for each, column in columns.items()}
    return CachedFeatures(found, runs)


def _runs_between(starts: Bools, start: int, stop: int) -> tuple[int, int, NDArray[np.int64]]:
    """The first and the last but one of the runs that rows [start, stop) are of, and how many of them each has."""
    # runs start at rows 0 and 2 of 5: rows [1, 4) are of runs 0 and 1, which have 1 and 2 of them
    first = int(np.count_nonzero(starts[: start + 1])) - 1
    begins = np.flatnonzero(starts[start + 1 : stop]) + 1
    repeats = np.diff(begins, prepend=0, append=stop - start)
    return first, first + len(repeats), repeats


def rows_of_features(kept: CachedFeatures, schema: BatchSchema, rows: int, borders: Sequence[int]) -> EncodedRows:
    """The rows of a batch's features. borders: rows at which a group's runs end, the first apart."""
    plain = rows_of_columns(kept.columns, schema.parts[0], rows)
    groups = []
    for name, part in zip(schema.dedup, schema.parts[1:], strict=True):
        runs = kept.runs[name]
        unique = rows_of_columns(kept.columns, part, int(np.count_nonzero(runs)))
        starts = unique_starts(runs, borders)
        if np.count_nonzero(starts) > unique.rows:
            unique = take([unique], (np.cumsum(runs) - 1)[starts])
        groups.append(UniqueRows(unique, np.cumsum(starts, dtype=np.int32) - np.int32(1)))
    return replace(plain, groups=tuple(groups))


def runs_column(runs: Bools) -> CachedColumn:
    """Where runs begin, as it is kept."""
    return CachedColumn({"starts": np.packbits(runs, bitorder="little")}, {"rows": len(runs)})


def runs_of_column(column: CachedColumn) -> Bools:
    """The inverse of `runs_column`."""
    bits = np.unpackbits(column.arrays["starts"], count=column.facts["rows"], bitorder="little")
    runs: Bools = bits.view(np.bool_)
    return runs


def _only(schema: BatchSchema, names: Mapping[str, CachedColumn]) -> BatchSchema:
    return BatchSchema(tuple(column for column in schema if column.name in names))
