"""Rows of which some columns are codes into dictionaries, and the features that are computed on these.

Runs in: every process that computes blocks. Pure. Which columns come as codes may differ between row groups, so a job's
features are split, and compiled, for each set of columns that occurs.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feedline.blocks.single_flight import SingleFlight
from feedline.config.features import FeatureSpec
from feedline.transforms.compile.coded_features import CodedColumn, value_features
from feedline.transforms.compile.compiled import CompiledFeatures, compile_some
from feedline.warehouse.parquet.repeated_rows import run_starts_at
from feedline.warehouse.reading.columns import expand_codes

_MOST_SETS = 8  # sets of coded columns for which a job's features are compiled


@dataclass(frozen=True, slots=True)
class DictionaryFrame:
    """Rows. dictionaries: of the columns that are codes (Int32, UInt16, or lists of these), the values."""

    frame: pl.DataFrame
    dictionaries: Mapping[str, pl.Series]

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
    dictionaries = {name: _join_dictionaries([part.dictionaries[name] for part in parts]) for name in coded}
    # Codes of 16 bits stay what they are while all have one dictionary.
    wide = {
        name: any(part.dictionaries[name] is not parts[0].dictionaries[name] for part in parts[1:]) for name in coded
    }
    frames = []
    starts = dict.fromkeys(coded, 0)
    for before, part in zip((parts[0], *parts), parts, strict=False):
        for name in coded:
            if part.dictionaries[name] is not before.dictionaries[name]:
                starts[name] += len(before.dictionaries[name])
        frame = expand_codes(
            part.frame, {name: values for name, values in part.dictionaries.items() if name not in coded}
        )
        shifted = [_shift(frame.get_column(name), start) for name, start in starts.items() if wide[name]]
        frames.append(_replaced(frame, shifted))
    return DictionaryFrame(pl.concat(frames, rechunk=True), dictionaries)


def _replaced(frame: pl.DataFrame, columns: Sequence[pl.Series]) -> pl.DataFrame:
    """The frame with other columns in place of those of their names, without a query."""
    others = {series.name: series for series in columns}
    return pl.DataFrame([others.get(series.name, series) for series in frame]) if columns else frame


def _join_dictionaries(parts: Sequence[pl.Series]) -> pl.Series:
    joined = [parts[0], *(part for before, part in itertools.pairwise(parts) if part is not before)]
    return joined[0] if len(joined) == 1 else pl.concat(joined, rechunk=True)


def _shift(codes: pl.Series, start: int) -> pl.Series:
    """The codes as numbers of 32 bits, and more by `start`."""
    if not isinstance(codes.dtype, pl.List):
        return codes.cast(pl.Int32) + pl.Series([start], dtype=pl.Int32)
    array = codes.rechunk().to_arrow()
    shifted = pc.add(array.values.cast(pa.int32()), pa.scalar(start, pa.int32()))
    kind = pa.large_list(pa.int32())
    buffers = array.buffers()[:2]
    return pl.Series(
        codes.name, pa.Array.from_buffers(kind, len(array), buffers, array.null_count, array.offset, [shifted])
    )


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
