"""Compute features of a dictionary-coded column once per distinct value.

Runs in: every process that computes blocks. Pure. A column comes as codes into a dictionary of its values, or lists of
codes. Where all ops of a feature work on one value at a time (`Op.per_value`), or keep a slice of each list, the same
expressions are evaluated on the dictionary, and the codes say which result each row has. Only values that rows use are
counted and checked, each as often as it is used; null is one value more. What cannot be evaluated so is an error
that does not name the row: the caller then evaluates the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.errors import DataError
from feedline.native import rows
from feedline.native.coded_values import CodedValues
from feedline.native.rows import Codes
from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import ArtifactSet
from feedline.transforms.ops import bind
from feedline.transforms.values.ragged import slice_bounds, slice_numbers

# Ops on numbers that cost more than a value's code does: 5 ns per row, with the call for each chunk of a column.
# Strings and lists are worth their codes with any op.
_COSTLY = frozenset({"vocabulary", "log", "log1p", "logit", "box_cox"})
_MOST_PREFIX = 2**30  # longer ones are no limit
Slices = tuple[tuple[int, int | None], ...]
# By column, slices and whether a null was appended: the last dictionary of which all was evaluated, and its values, or
# None where those say nothing about the values that rows use.
Evaluated = dict[tuple[str, Slices, bool], tuple[pl.Series, pl.DataFrame | None]]


class CodedColumn:
    """The features that derive from one column alone, value by value."""

    def __init__(self, name: str, features: Sequence[FeatureSpec], schema: pa.Schema, artifacts: ArtifactSet) -> None:
        self.name = name
        groups: dict[Slices, list[FeatureSpec]] = {}
        for feature in features:
            slices = coded_slices(feature, schema.field(name).type)
            assert slices is not None
            groups.setdefault(slices, []).append(feature)
        self._groups: list[tuple[Slices, CompiledFeatures]] = [
            (slices, compile_features(group, schema, artifacts, elements=True)) for slices, group in groups.items()
        ]

    def apply(
        self,
        codes: pl.Series,
        dictionary: pl.Series,
        evaluated: Evaluated,
        repeats: NDArray[np.int64] | None = None,
    ) -> tuple[dict[str, CodedValues], dict[str, list[tuple[int, int]]]]:
        """The values of each feature, and the counts of its lookups, as `CompiledFeatures.apply_counting` gives them.

        codes: Int32, UInt16 or lists of these. evaluated: kept from chunk to chunk. repeats: int64 [rows], how often
        each row counts (None: once). Raises DataError for values that cannot be computed.
        """
        found: dict[str, CodedValues] = {}
        lookups: dict[str, list[tuple[int, int]]] = {}
        for slices, features in self._groups:
            elements, has_nulls = _elements(codes)
            finished = self._evaluate(features, slices, dictionary, has_nulls, elements, evaluated)
            has_floats = any(output.dtype == pl.Float32() for output in features.outputs)
            only_used = finished is None or has_floats
            flat, offsets, rest = _sliced_codes(codes, len(dictionary), slices, keep_last=not only_used)
            size = len(dictionary) + 1
            uses: NDArray[np.int64] | None = None
            index: NDArray[np.int64] | None = None
            if only_used:
                if has_floats or any(output.lookups for output in features.outputs):
                    uses = rows.count_codes(flat, size) if repeats is None else _uses(flat, offsets, repeats, size)
                index = np.flatnonzero(rows.mark_codes(flat, size) if uses is None else uses)
                uses = None if uses is None else uses[index]
            if finished is None:
                assert index is not None
                entries = _entries(dictionary, index)
                frame, counts = features.apply_counting(entries.rename(self.name).to_frame(), uses)
                lookups |= counts
            elif index is not None and len(index) < finished.height:
                frame = pl.DataFrame({name: finished.get_column(name).to_numpy()[index] for name in finished.columns})
            else:
                frame = finished
            for output in features.outputs:
                found[output.name] = CodedValues(
                    values=frame.get_column(output.name),
                    index=index,
                    entries=size,
                    uses=uses,
                    codes=flat,
                    offsets=offsets,
                    slices=rest,
                )
        return found, lookups

    def _evaluate(
        self,
        features: CompiledFeatures,
        slices: Slices,
        dictionary: pl.Series,
        has_nulls: bool,
        codes: int,
        evaluated: Evaluated,
    ) -> pl.DataFrame | None:
        """The features of all entries, a null behind them if rows have any; None if those that rows use are evaluated.

        All of them are, once for all chunks of a column chunk, unless there are more of them than codes in a chunk, or
        one that no row may use makes a difference: it fails, or has no value.
        """
        key = self.name, slices, has_nulls
        known, finished = evaluated.get(key, (None, None))
        if known is dictionary:
            return finished
        if len(dictionary) > codes or any(output.lookups for output in features.outputs):
            return None
        try:
            finished = features.apply(_with_null(dictionary, has_nulls).rename(self.name).to_frame())
        except DataError:
            finished = None
        if finished is not None and not all(_is_complete(series) for series in finished):
            finished = None
        evaluated[key] = dictionary, finished
        return finished


def _uses(
    codes: Codes, offsets: NDArray[np.int64] | None, repeats: NDArray[np.int64], entries: int
) -> NDArray[np.int64]:
    """int64 [entries]: how often each code occurs in rows that count `repeats` times."""
    weights = repeats if offsets is None else np.repeat(repeats, np.diff(offsets))
    return np.bincount(codes, weights, minlength=entries).astype(np.int64)  # exact: counts of a block's values


def _is_complete(series: pl.Series) -> bool:
    """Whether all values are finite numbers."""
    if series.null_count() or not series.dtype.is_numeric():
        return False
    values = series.to_numpy()
    return bool(values.dtype.kind != "f" or np.isfinite(values).all())


def coded_slices(feature: FeatureSpec, kind: pa.DataType) -> Slices | None:
    """The slices that a feature takes of its column's lists; None if it is not computed value by value.

    A slice may follow an op only if that op neither fails nor counts: it is taken first.
    """
    lists = pat.is_list(kind) or pat.is_large_list(kind)
    if feature.op is not None or feature.expr is not None or lists is not (feature.group == "sparse"):
        return None
    if feature.group == "extra" or pat.is_nested(kind.value_type if lists else kind):
        return None
    if not lists and pat.is_primitive(kind) and not any(call.op in _COSTLY for call in feature.ops):
        return None
    slices = []
    may_fail = False
    for call in feature.ops:
        bound = bind(call)
        if bound.op.slices is not None:
            if may_fail:
                return None
            kept = bound.op.slices(bound.parameters)
            slices.append((kept.start or 0, kept.stop))
        elif not bound.op.per_value:
            return None
        may_fail |= bound.op.learns is not None or bound.op.name == "cast"
    return tuple(slices)


def coded_features(
    features: Sequence[FeatureSpec], schema: pa.Schema, reads: Mapping[str, Sequence[str]]
) -> dict[str, int]:
    """The columns that features read, all of them value by value, each with the most elements of a list that they need
    from its beginning (0: all of them). reads: the columns of each feature, by name.
    """
    columns = {feature.column or feature.name for feature in features if feature.op is None and feature.expr is None}
    prefixes: dict[str, list[int]] = {name: [] for name in schema.names if name in columns}
    for feature in features:
        name = feature.column or feature.name
        slices = coded_slices(feature, schema.field(name).type) if name in prefixes else None
        for read in reads[feature.name]:
            if read != name or slices is None:
                prefixes.pop(read, None)
            elif read in prefixes:
                prefixes[read].append(_prefix(slices))
    return {name: max(needed) if all(needed) else 0 for name, needed in prefixes.items() if needed}


def _prefix(slices: Slices) -> int:
    """The number of a list's first elements that hold all of its slices; 0 if that depends on its length."""
    start, stop = slices[0] if slices else (0, None)
    return 0 if stop is None or min(start, stop) < 0 else min(stop, _MOST_PREFIX)


def _elements(codes: pl.Series) -> tuple[int, bool]:
    """How many codes there are, of lists in all of them, and whether any of them is null."""
    if not isinstance(codes.dtype, pl.List):
        return len(codes), codes.null_count() > 0
    values = codes.rechunk().to_arrow().values
    return len(values), values.null_count > 0


def _sliced_codes(
    codes: pl.Series, null: int, slices: Slices, *, keep_last: bool
) -> tuple[Codes, NDArray[np.int64] | None, tuple[int, NDArray[np.int64]] | None]:
    """The codes, `null` for nulls, and the offsets of lists, of which null ones are empty.

    keep_last: the last slice is not taken, if there is one; then also where it begins, and the lists' offsets.
    """
    if not isinstance(codes.dtype, pl.List):
        return _filled(codes.rechunk().to_arrow(), null), None, None
    last = slices[-1] if slices and keep_last and rows.COMPILED else None
    for start, stop in slices if last is None else slices[:-1]:
        codes = slice_numbers(codes, start, stop)
    array = codes.rechunk().to_arrow()
    offsets = array.offsets.to_numpy()
    if array.null_count:
        lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
        values = array.flatten()
        offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    else:
        first = int(offsets[0])
        values = array.values.slice(first, int(offsets[-1]) - first)
        offsets = offsets - first if first else offsets
    flat = _filled(values, null)
    if last is None:
        return flat, offsets, None
    start, stop = slice_bounds(*last)
    return flat, rows.slice_lists(offsets, start, stop), (start, offsets)


def _filled(codes: pa.Array, null: int) -> Codes:
    numbers: Codes = (codes.fill_null(null) if codes.null_count else codes).to_numpy()
    return numbers


def _with_null(dictionary: pl.Series, null: bool) -> pl.Series:
    if not null:
        return dictionary
    return pl.concat([dictionary, pl.Series(dictionary.name, [None], dictionary.dtype)], rechunk=True)


def _entries(dictionary: pl.Series, index: NDArray[np.int64]) -> pl.Series:
    """The values at an ascending index; the one after the last is null."""
    has_null = len(index) > 0 and int(index[-1]) == len(dictionary)
    chosen = index[:-1] if has_null else index
    found = dictionary
    if len(chosen) < len(dictionary):
        plain = dictionary.dtype.is_numeric() and not dictionary.null_count()
        # Polars would start a query of its own for this.
        found = pl.Series(dictionary.to_numpy()[chosen]) if plain else dictionary.gather(chosen)
    return _with_null(found, has_null)
