"""What quality counts of the columns of a cache: of all their rows, kept with them, and of any part of these.

Pure; runs in every process that computes blocks. Values, extremes, lengths and numbers that are not finite are counted
again of a part; which rows are null, and what they look up, is kept per row: nothing where it is the same in all rows
or follows from the lengths of lists, else bits, or counts in as few bytes as hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from feedline.blocks.row_counts import RowCounts
from feedline.loader.encoding.finished_floats import Repeats, apply_on_nonfinite
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.encoding.quality import COUNTS, Observer, Quality
from feedline.native import rows as native
from feedline.warehouse.cache.cache_folder import CachedColumn

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
