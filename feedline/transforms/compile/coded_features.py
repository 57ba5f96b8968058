"""Compute features of a dictionary-coded column once per distinct value.

Runs in: every process that computes blocks. Pure. A column comes as codes into a dictionary of its values, or lists of
codes. Where all ops of a feature work on one value at a time (`Op.per_value`), or keep a slice of each list, the same
expressions are evaluated on the dictionary, and the codes say which result each row has. Only values that rows use are
evaluated, and each is counted as often as it is used; null is one value more. What cannot be evaluated so is an error
that does not name the row: the caller then evaluates the rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.types as pat
from numpy.typing import NDArray

from feedline.native import rows
from feedline.native.coded_values import CodedValues
from feedline.spec.features import FeatureSpec
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import ArtifactSet
from feedline.transforms.ops import bind
from feedline.transforms.values.ragged import slice_numbers

# Ops on numbers that cost more than a value's code does: 5 ns per row, with the call for each chunk of a column.
# Strings and lists are worth their codes with any op.
_COSTLY = frozenset({"vocabulary", "log", "log1p", "logit", "box_cox"})
# Ops whose result is an integer for every value: of their dictionary all may be computed, whether rows use it or not.
_TOTAL = frozenset({"modulo", "hash_bucket", "sigrid_hash"})

Slices = tuple[tuple[int, int | None], ...]
# By column and slices, the last dictionary of which all was evaluated, and its values.
Evaluated = dict[tuple[str, Slices], tuple[pl.Series, pl.DataFrame]]


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
        self, codes: pl.Series, dictionary: pl.Series, evaluated: Evaluated
    ) -> tuple[dict[str, CodedValues], dict[str, list[tuple[int, int]]]]:
        """The values of each feature, and the counts of its lookups, as `CompiledFeatures.apply_counting` gives them.

        codes: Int32 or lists of it. evaluated: kept by the caller from chunk to chunk. Raises DataError for values that
        cannot be computed.
        """
        found: dict[str, CodedValues] = {}
        lookups: dict[str, list[tuple[int, int]]] = {}
        for slices, features in self._groups:
            sliced = codes
            for start, stop in slices:
                sliced = slice_numbers(sliced, start, stop)
            flat, offsets, has_nulls = _flat_codes(sliced, len(dictionary))
            size = len(dictionary) + 1
            uses: NDArray[np.int64] | None = None
            index: NDArray[np.int64] | None = None
            key = self.name, slices
            known, finished = evaluated.get(key, (None, None))
            if has_nulls or not _is_total(features) or (known is not dictionary and len(dictionary) > len(flat)):
                if any(output.lookups or output.dtype == pl.Float32() for output in features.outputs):
                    uses = rows.count_codes(flat, size)
                index = np.flatnonzero(rows.mark_codes(flat, size) if uses is None else uses)
                uses = None if uses is None else uses[index]
                entries = _entries(dictionary, index)
                frame, counts = features.apply_counting(entries.rename(self.name).to_frame(), uses)
                lookups |= counts
            elif known is dictionary and finished is not None:
                frame = finished
            else:
                frame = features.apply(dictionary.rename(self.name).to_frame())
                evaluated[key] = dictionary, frame
            for output in features.outputs:
                found[output.name] = CodedValues(
                    values=frame.get_column(output.name),
                    index=index,
                    entries=size,
                    uses=uses,
                    codes=flat,
                    offsets=offsets,
                )
        return found, lookups


def _is_total(features: CompiledFeatures) -> bool:
    return all(
        call.op in _TOTAL or bind(call).op.slices is not None for feature in features.features for call in feature.ops
    ) and all(output.dtype == pl.Int64() for output in features.outputs)


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


def coded_features(features: Sequence[FeatureSpec], schema: pa.Schema, reads: Mapping[str, Sequence[str]]) -> set[str]:
    """The columns that features read, all of them value by value. reads: the columns of each feature, by name."""
    columns = {feature.column or feature.name for feature in features if feature.op is None and feature.expr is None}
    columns &= set(schema.names)
    for feature in features:
        name = feature.column or feature.name
        own = name in columns and coded_slices(feature, schema.field(name).type) is not None
        columns.difference_update(set(reads[feature.name]) - ({name} if own else set()))
    return columns


def _flat_codes(codes: pl.Series, null: int) -> tuple[NDArray[np.int32], NDArray[np.int64] | None, bool]:
    """The codes, `null` for nulls, the offsets of lists, of which null ones are empty, and whether any code is null."""
    offsets = None
    if isinstance(codes.dtype, pl.List):
        array = codes.rechunk().to_arrow()
        offsets = array.offsets.to_numpy()
        if array.null_count:
            lengths = np.where(array.is_null().to_numpy(zero_copy_only=False), 0, np.diff(offsets))
            codes = pl.Series(array.flatten())
            offsets = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
        else:
            first = int(offsets[0])
            codes = pl.Series(array.values.slice(first, int(offsets[-1]) - first))
            offsets = offsets - first if first else offsets
    has_nulls = codes.null_count() > 0
    return (codes.fill_null(null) if has_nulls else codes).to_numpy(), offsets, has_nulls


def _entries(dictionary: pl.Series, index: NDArray[np.int64]) -> pl.Series:
    """The values at an ascending index; the one after the last is null."""
    if len(index) and index[-1] == len(dictionary):
        found = dictionary.gather(index[:-1]) if len(index) <= len(dictionary) else dictionary
        return found.extend_constant(None, 1)
    return dictionary.gather(index) if len(index) < len(dictionary) else dictionary
