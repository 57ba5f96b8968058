"""Compute features of a dictionary-coded column once per distinct value.

Runs in: every process that computes blocks. Pure. A column comes as codes into a dictionary of its values, or lists of
codes. Where all ops of a feature are `Op.per_value`, or keep a slice of each list, the same expressions are evaluated
on the dictionary and looked up by the codes. Only values that rows use are counted and checked. On an error the caller
evaluates the rows. See docs/decisions/0038.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.config.features import FeatureSpec
from feedline.errors import DataError
from feedline.expressions.types import has_strings
from feedline.native import rows
from feedline.native.coded_values import CodedValues
from feedline.native.rows import Codes
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import ArtifactSet
from feedline.transforms.ops import bind
from feedline.transforms.registry.user_functions import PYTHON
from feedline.transforms.values.arrays import as_arrays
from feedline.transforms.values.lookup_counts import RowLookups, marks_of_lists
from feedline.transforms.values.ragged import slice_bounds, slice_numbers

# Ops on numbers that cost more than a value's code does: 5 ns per row, with the call for each chunk of a column. So do
# those of users that declare `per_value`.
# Strings and lists are worth their codes with any op.
_COSTLY = frozenset(
    {"vocabulary", "join_external", "target_encoding", "group_statistics", "log", "log1p", "logit", "box_cox"}
)
_MOST_PREFIX = 2**30  # longer ones are no limit
Slices = tuple[tuple[int, int | None], ...]
# By column, slices and whether a null was appended: the last dictionary of which all was evaluated, and the values of
# each feature, or None where those say nothing about the values that rows use.
Evaluated = dict[tuple[str, Slices, bool], tuple[pa.Array, list[NDArray[Any]] | None]]


class CodedColumn:
    """The features that derive from one column alone, value by value."""

    def __init__(self, name: str, features: Sequence[FeatureSpec], schema: pa.Schema, artifacts: ArtifactSet) -> None:
        self.name = name
        groups: dict[Slices, list[FeatureSpec]] = {}
        for feature in features:
            slices = coded_slices(feature, schema.field(name).type)
            assert slices is not None
            groups.setdefault(slices, []).append(feature)
        self._groups = [
            _SlicedFeatures(name, slices, compile_features(group, schema, artifacts, elements=True))
            for slices, group in groups.items()
        ]

    def apply(
        self,
        codes: pl.Series,
        dictionary: pa.Array,
        evaluated: Evaluated,
        repeats: NDArray[np.int64] | None = None,
        of_rows: dict[str, list[RowLookups]] | None = None,
    ) -> tuple[dict[str, CodedValues], dict[str, list[tuple[int, int]]]]:
        """The values of each feature, and the counts of its lookups, as `CompiledFeatures.apply_counting` gives them.

        codes: Int32, UInt16 or lists of these. evaluated: kept from chunk to chunk. repeats: int64 [rows], how often
        each row counts (None: once). of_rows: takes the lookups of each row. Raises DataError for values that cannot be
        computed, and for nulls among those that rows use.
        """
        if len(self._groups) == 1:
            return self._groups[0].apply(codes, dictionary, evaluated, repeats, of_rows)
        found: dict[str, CodedValues] = {}
        lookups: dict[str, list[tuple[int, int]]] = {}
        for group in self._groups:
            values, counts = group.apply(codes, dictionary, evaluated, repeats, of_rows)
            found |= values
            lookups |= counts
        return found, lookups


class _SlicedFeatures:
    """The features of one column that take the same slices of its lists."""

    def __init__(self, name: str, slices: Slices, features: CompiledFeatures) -> None:
        self._name = name
        self._slices = slices
        self._features = features
        self._outputs = [output.name for output in features.outputs]
        self._has_floats = any(output.dtype == pl.Float32() for output in features.outputs)
        self._has_lookups = any(output.lookups for output in features.outputs)
        kind = features.schema.field(name).type
        self._is_listed = pat.is_list(kind) or pat.is_large_list(kind)

    def apply(
        self,
        codes: pl.Series,
        dictionary: pa.Array,
        evaluated: Evaluated,
        repeats: NDArray[np.int64] | None,
        of_rows: dict[str, list[RowLookups]] | None,
    ) -> tuple[dict[str, CodedValues], dict[str, list[tuple[int, int]]]]:
        count = len(dictionary)
        offsets, rest = None, None
        if self._is_listed:
            lists = codes.to_arrow()
            has_nulls = lists.values.null_count > 0
            values = self._evaluate(dictionary, count, has_nulls, len(lists.values), evaluated)
            keep_last = values is not None and not self._has_floats
            flat, offsets, rest = _sliced_codes(codes, lists, count, self._slices, keep_last=keep_last)
        else:
            has_nulls = codes.null_count() > 0
            values = self._evaluate(dictionary, count, has_nulls, codes.len(), evaluated)
            flat = _filled(codes.to_arrow(), count) if has_nulls else codes.to_numpy()
        size = count + has_nulls
        lookups: dict[str, list[tuple[int, int]]] = {}
        index: NDArray[np.int64] | None = None
        uses: NDArray[np.int64] | None = None
        used: NDArray[np.bool_] | None = None
        if values is None:
            if self._has_floats or self._has_lookups:
                uses = rows.count_codes(flat, size) if repeats is None else _uses(flat, offsets, repeats, size)
            index = (rows.mark_codes(flat, size) if uses is None else uses).nonzero()[0]
            uses = None if uses is None else uses[index]
            entries = _entries(pl.Series(dictionary), index).alias(self._name).to_frame()
            of_entries: dict[str, list[RowLookups]] | None = None if of_rows is None else {}
            features, lookups = self._features.apply_counting(entries, uses, of_entries)
            if of_rows is not None and of_entries:
                of_rows |= {
                    name: [_lookups_of_codes(each, index, size, flat, offsets) for each in found]
                    for name, found in of_entries.items()
                }
            values = as_arrays(features)
            if values is None:
                raise DataError(f"a feature of column {self._name!r} holds a null")  # its rows say where
        elif self._has_floats:
            used = rows.mark_codes(flat, size)
        found = {
            name: CodedValues(
                values=each,
                index=index,
                entries=size,
                uses=uses,
                used=used,
                codes=flat,
                offsets=offsets,
                slices=rest,
            )
            for name, each in zip(self._outputs, values, strict=True)
        }
        return found, lookups

    def _evaluate(
        self, dictionary: pa.Array, count: int, has_nulls: bool, codes: int, evaluated: Evaluated
    ) -> list[NDArray[Any]] | None:
        """The features of all entries, a null behind them if rows have any; None if those that rows use are evaluated.

        All of them are, once for all chunks of a column chunk, unless there are more of them than codes in a chunk, or
        one that no row may use makes a difference: it fails, or has no value.
        """
        key = self._name, self._slices, has_nulls
        known, values = evaluated.get(key, (None, None))
        if known is dictionary:
            return values
        if count > codes or self._has_lookups:
            return None
        values = self._finite_numbers(dictionary)
        if has_nulls and values is not None:
            null = self._values_of_null
            values = None if null is None else [np.concatenate(pair) for pair in zip(values, null, strict=True)]
        evaluated[key] = dictionary, values
        return values

    @cached_property
    def _values_of_null(self) -> list[NDArray[Any]] | None:
        return self._finite_numbers(pl.Series([None], dtype=self._features.types[0]).to_arrow())

    def _finite_numbers(self, dictionary: pa.Array) -> list[NDArray[Any]] | None:
        try:
            found = self._features.numbers(dictionary)
        except DataError:
            return None
        if found is None or (self._has_floats and not all(np.isfinite(values).all() for values in found)):
            return None
        return found


def _uses(
    codes: Codes, offsets: NDArray[np.int64] | None, repeats: NDArray[np.int64], entries: int
) -> NDArray[np.int64]:
    """int64 [entries]: how often each code occurs in rows that count `repeats` times."""
    weights = repeats if offsets is None else np.repeat(repeats, np.diff(offsets))
    return np.bincount(codes, weights, minlength=entries).astype(np.int64)  # exact: counts of a block's values


def _lookups_of_codes(
    found: RowLookups, index: NDArray[np.int64], entries: int, codes: Codes, offsets: NDArray[np.int64] | None
) -> RowLookups:
    """What rows look up, of which codes stand for entries. found: by the entries at `index`, all that rows use."""
    asked, missed = (_sums_of_codes(each, index, entries, codes, offsets) for each in found)
    return asked, missed


def _sums_of_codes(
    marks: NDArray[Any], index: NDArray[np.int64], entries: int, codes: Codes, offsets: NDArray[np.int64] | None
) -> NDArray[Any]:
    """Integers [rows]: how many of its codes stand for entries that are marked with 1; mostly all, or none."""
    if not len(marks) or marks.min() == marks.max():
        mark = int(marks[:1].sum())
        return np.full(len(codes), mark, np.uint8) if offsets is None else np.diff(offsets) * mark
    # entry 2 of 3 is marked; codes [0, 2, 2] in lists that begin at [0, 1] -> [0, 2]
    table = np.zeros(entries, np.bool_)
    table[index] = marks
    of_codes = table[codes]
    return of_codes.view(np.uint8) if offsets is None else marks_of_lists(of_codes, offsets[1:])


def coded_slices(feature: FeatureSpec, kind: pa.DataType) -> Slices | None:
    """The slices that a feature takes of its column's lists; None if it is not computed value by value.

    A slice may follow an op only if that op neither fails nor counts: it is taken first.
    """
    lists = pat.is_list(kind) or pat.is_large_list(kind)
    if feature.op is not None or feature.expr is not None or lists is not (feature.group == "sparse"):
        return None
    if feature.group == "extra" or pat.is_nested(kind.value_type if lists else kind):
        return None
    chain = [bind(call) for call in feature.ops]
    costly = any(bound.op.name in _COSTLY or bound.op.placement == PYTHON for bound in chain)
    if not lists and pat.is_primitive(kind) and not costly:
        return None
    slices = []
    may_fail = False
    for bound in chain:
        if bound.op.slices is not None:
            if may_fail:
                return None
            kept = bound.op.slices(bound.parameters)
            slices.append((kept.start or 0, kept.stop))
        elif not bound.op.per_value:
            return None
        may_fail |= bound.op.takes_context or bound.op.name == "cast" or bound.op.placement == PYTHON
    return tuple(slices)


def value_features(features: CompiledFeatures) -> list[tuple[FeatureSpec, Slices | None]]:
    """The features, each with the slices that it takes of its column's lists; None if it is computed on rows."""
    found = []
    for feature, output in zip(features.features, features.outputs, strict=True):
        name, slices = feature.column or feature.name, None
        if output.reads == (name,) and not output.row_columns and not isinstance(output.dtype, pl.Array):
            slices = coded_slices(feature, features.schema.field(name).type)
        found.append((feature, slices))
    return found


def coded_columns(features: CompiledFeatures) -> tuple[dict[str, int], frozenset[str]]:
    """The columns of which features are computed value by value, each with the most elements of a list that they need
    from its beginning (0: all of them); and those of them, only strings, of which other features need the values.
    """
    prefixes: dict[str, list[int]] = {}
    others: set[str] = set()
    for (feature, slices), output in zip(value_features(features), features.outputs, strict=True):
        if slices is None:
            others.update(output.reads, output.row_columns)
        else:
            prefixes.setdefault(feature.column or feature.name, []).append(_prefix(slices))
    expanded = {name for name in others.intersection(prefixes) if has_strings(features.schema.field(name).type)}
    columns = {
        name: max(prefixes[name]) if all(prefixes[name]) and name not in others else 0
        for name in features.columns
        if name in prefixes and (name not in others or name in expanded)
    }
    return columns, frozenset(expanded)


def _prefix(slices: Slices) -> int:
    """The number of a list's first elements that hold all of its slices; 0 if that depends on its length."""
    start, stop = slices[0] if slices else (0, None)
    return 0 if stop is None or min(start, stop) < 0 else min(stop, _MOST_PREFIX)


def _sliced_codes(
    codes: pl.Series, array: pa.LargeListArray, null: int, slices: Slices, *, keep_last: bool
) -> tuple[Codes, NDArray[np.int64], tuple[int, NDArray[np.int64]] | None]:
    """The codes of lists, `null` for nulls, and the offsets of the lists, of which null ones are empty.

    array: the lists. keep_last: the last slice is not taken, if there is one; then also where it begins, and the lists'
    offsets.
    """
    last = slices[-1] if slices and keep_last and rows.COMPILED else None
    taken = slices if last is None else slices[:-1]
    for start, stop in taken:
        codes = slice_numbers(codes, start, stop)
    array = codes.to_arrow() if taken else array
    offsets = np.frombuffer(array.buffers()[1], np.int64, len(array) + 1, 8 * array.offset)
    if array.null_count:
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
        flat = _filled(array.flatten(), null)
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    else:
        first = int(offsets[0])
        flat = _filled(array.values.slice(first, int(offsets[-1]) - first), null)
        offsets = offsets - first if first else offsets
    if last is None:
        return flat, offsets, None
    start, stop = slice_bounds(*last)
    return flat, rows.slice_lists(offsets, start, stop), (start, offsets)


def _filled(codes: pa.Array, null: int) -> Codes:
    """The codes as an array; pyarrow would take ten times as long to find out how."""
    kind = np.dtype(np.uint16 if codes.type.bit_width == 16 else np.int32)
    bits, data = codes.buffers()
    if data is None:
        return np.empty(0, kind)
    start, count = codes.offset, len(codes)
    numbers: Codes = np.frombuffer(data, kind, start + count)[start:]
    if not codes.null_count:
        return numbers
    valid = np.unpackbits(np.frombuffer(bits, np.uint8), count=start + count, bitorder="little")[start:]
    return np.where(valid.view(np.bool_), numbers, kind.type(null))


def _entries(dictionary: pl.Series, index: NDArray[np.int64]) -> pl.Series:
    """The values at an ascending index; the one after the last is null."""
    has_null = len(index) > 0 and int(index[-1]) == len(dictionary)
    chosen = index[:-1] if has_null else index
    found = dictionary
    if len(chosen) < len(dictionary):
        plain = dictionary.dtype.is_numeric() and not dictionary.null_count()
        # Polars would start a query of its own for this.
        found = pl.Series(dictionary.to_numpy()[chosen]) if plain else dictionary.gather(chosen)
    return pl.concat([found, pl.Series([None], dtype=found.dtype)], rechunk=True) if has_null else found
