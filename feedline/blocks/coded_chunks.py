"""Rows of which some columns are codes into dictionaries, and the features that are computed on these.

Runs in: every process that computes blocks. Pure. Which columns come as codes may differ between row groups, so a job's
features are split, and compiled, for each set of columns that occurs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from numpy.typing import NDArray

from feedline.blocks.single_flight import SingleFlight
from feedline.config.features import FeatureSpec
from feedline.dataclass import dataclass
from feedline.transforms.compile.coded_features import CodedColumn, value_features
from feedline.transforms.compile.compiled import CompiledFeatures, compile_some
from feedline.warehouse.parquet.repeated_rows import run_starts_at
from feedline.warehouse.reading.columns import expand_codes

_MOST_SETS = 8  # sets of coded columns for which a job's features are compiled
_NARROW = 2**16  # entries of a dictionary whose codes have 16 bits


@dataclass(frozen=True, slots=True)
class DictionaryFrame:
    """Rows. dictionaries: of the columns that are codes (Int32, UInt16, or lists of these), the values."""

    frame: pl.DataFrame
    dictionaries: Mapping[str, pa.Array]

    def expand(self) -> pl.DataFrame:
        return expand_codes(self.frame, self.dictionaries) if self.dictionaries else self.frame

    def only(self, coded: Collection[str]) -> DictionaryFrame:
        """The same frame, with the dictionaries of these of its columns."""
        return DictionaryFrame(
            self.frame, {name: self.dictionaries[name] for name in coded if name in self.dictionaries}
        )


def first_coded_rows(coded: DictionaryFrame, columns: Sequence[str], borders: Sequence[int]) -> NDArray[np.bool_]:
    """As `first_rows`, of the values of these columns.

    Equal codes are equal values. Others may be, too: a dictionary may have an entry twice, as those do that were laid
    end to end. So values are compared where codes differ, of rows in which no column before does.
    """
    starts = run_starts_at(coded.frame, [name for name in columns if name not in coded.dictionaries], borders)
    for name in columns:
        if name not in coded.dictionaries or starts.all():
            continue
        other = np.flatnonzero(run_starts_at(coded.frame, [name], ()) & ~starts)
        codes = coded.frame.get_column(name)
        if isinstance(codes.dtype, pl.List):
            lengths = np.diff(codes.rechunk().to_arrow().offsets.to_numpy())
            longer = lengths[other] != lengths[other - 1]
            starts[other[longer]] = True
            other = other[~longer]
        if len(other):
            pairs = pl.DataFrame([codes])[np.stack([other - 1, other], axis=1).ravel()]
            values = expand_codes(pairs, {name: coded.dictionaries[name]})
            starts[other] = run_starts_at(values, [name], ())[1::2]
    return starts


def join_coded(parts: Sequence[DictionaryFrame]) -> DictionaryFrame:
    """Rows laid end to end. A column is coded where it is so in all parts, with their dictionaries end to end: each
    once, if parts after one another have the same.
    """
    coded = set(parts[0].dictionaries).intersection(*(part.dictionaries for part in parts[1:]))
    joined: list[list[pl.Series]] = [[] for _ in parts]  # codes
    dictionaries = {}
    for name in coded:
        columns = [part.frame.get_column(name) for part in parts]
        dictionaries[name], starts = _join_dictionaries([part.dictionaries[name] for part in parts])
        is_narrow = len(dictionaries[name]) <= _NARROW and all(_codes(each) == np.uint16 for each in columns)
        kind = np.dtype(np.uint16 if is_narrow else np.int32)
        for own, codes, start in zip(joined, columns, starts, strict=True):
            own.append(_shift(codes, start, kind))
    frames = []
    for part, own in zip(parts, joined, strict=True):
        others = {name: values for name, values in part.dictionaries.items() if name not in coded}
        frames.append(_replaced(expand_codes(part.frame, others), own))
    return DictionaryFrame(pl.concat(frames, rechunk=True), dictionaries)


def _replaced(frame: pl.DataFrame, columns: Sequence[pl.Series]) -> pl.DataFrame:
    """The frame with other columns in place of those of their names, without a query."""
    others = {series.name: series for series in columns}
    return pl.DataFrame([others.get(series.name, series) for series in frame]) if columns else frame


def _join_dictionaries(parts: Sequence[pa.Array]) -> tuple[pa.Array, list[int]]:
    """Dictionaries laid end to end, and where each part's begins."""
    # of 5 entries, of 3, and the same once more -> 0, 5, 5
    joined, starts = [parts[0]], [0]
    for before, part in itertools.pairwise(parts):
        if part is not before:
            starts.append(starts[-1] + len(before))
            joined.append(part)
        else:
            starts.append(starts[-1])
    return joined[0] if len(joined) == 1 else pa.concat_arrays(joined), starts


def _codes(series: pl.Series) -> np.dtype[Any]:
    """The type of a column's codes."""
    kind = series.dtype
    return np.dtype(np.uint16 if pl.UInt16 in (kind, getattr(kind, "inner", None)) else np.int32)


def _shift(codes: pl.Series, start: int, kind: np.dtype[Any]) -> pl.Series:
    """Codes of another type, moved to where their dictionary begins."""
    own = _codes(codes)
    if not start and own == kind:
        return codes
    array = codes.to_arrow()
    values = array.values if isinstance(codes.dtype, pl.List) else array
    numbers = np.frombuffer(values.buffers()[1] or b"", own, values.offset + len(values))
    moved = np.empty(len(numbers), kind)
    np.add(numbers, start, out=moved, dtype=kind, casting="unsafe")  # of nulls: never looked at
    buffers = [values.buffers()[0], pa.py_buffer(moved)]
    shifted = pa.Array.from_buffers(pa.from_numpy_dtype(kind), len(values), buffers, values.null_count, values.offset)
    if values is not array:
        lists = pa.large_list(shifted.type)
        shifted = pa.Array.from_buffers(
            lists, len(array), array.buffers()[:2], array.null_count, array.offset, [shifted]
        )
    return pl.Series(codes.name, shifted)


class CodedColumns:
    """The features of plain rows, or those of a group, by the columns that come as codes.

    columns: those that may, each with the most elements of its lists that are needed (0: all). expanded: those of them
    of which not everything is computed on codes.
    """

    def __init__(self, columns: Mapping[str, int], expanded: frozenset[str], features: CompiledFeatures) -> None:
        self.columns = columns
        self.expanded = expanded.intersection(columns)
        self._features = features
        self._by_column: dict[str, list[FeatureSpec]] = {name: [] for name in columns}
        for feature, slices in value_features(features):
            name = feature.column or feature.name
            if slices is not None and name in columns:
                self._by_column[name].append(feature)
        self._sets: set[frozenset[str]] = set()
        self._splits: SingleFlight[frozenset[str], tuple[CompiledFeatures, list[CodedColumn]]] = SingleFlight()
        self._coded: SingleFlight[str, CodedColumn] = SingleFlight()

    def split(self, coded: Collection[str]) -> tuple[CompiledFeatures, list[CodedColumn]] | None:
        """The features that are computed on rows, and those of each coded column; None where files differ so much in
        what they code that it is not worth to compile the features for each set of columns.
        """
        names = frozenset(coded)
        if names not in self._sets and len(self._sets) >= _MOST_SETS:
            return None
        self._sets.add(names)
        return self._splits.get(names, lambda: self._compile(names))

    def _compile(self, coded: Collection[str]) -> tuple[CompiledFeatures, list[CodedColumn]]:
        whole = self._features
        on_codes = {feature.name for name in coded for feature in self._by_column[name]}
        plain = compile_some(whole, {feature.name for feature in whole.features if feature.name not in on_codes})
        return plain, [self._coded.get(name, functools.partial(self._column, name)) for name in sorted(coded)]

    def _column(self, name: str) -> CodedColumn:
        return CodedColumn(name, self._by_column[name], self._features.schema, self._features.artifacts)
