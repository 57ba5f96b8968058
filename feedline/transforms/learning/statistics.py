"""Learners of a column's numbers: mean and deviation, minimum and maximum, quantiles.

Runs in: workers that fit (observe, merge) and the process that ends a fit. Pure. Lists and vectors count as their
elements; nulls, NaN and infinities are counted and left out. `Moments` keeps exact sums of values and of squares
(`exact_sums`) and rounds mean and deviation once each. `Quantiles` counts values in buckets whose borders grow by a
constant factor, the mapping of DDSketch (Masson, Rim and Lee 2019): the relative error of a quantile is at most
`error`, and it is exact where its bucket holds one distinct number.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from feedline.dataclass import dataclass
from feedline.errors import DataError
from feedline.transforms.learning.exact_sums import Bins, bins_of, nearest_float, normal, total
from feedline.transforms.learning.learner import Artifact, Parts

if TYPE_CHECKING:
    from ddsketch.mapping import CubicallyInterpolatedMapping

Values = npt.NDArray[Any]

_NULLS, _NONFINITE, _VALUES = "nulls", "nonfinite", "values"
_SUM, _SQUARES = "sum", "squares"
_NO_VALUES = {_VALUES: 0, _NULLS: 0, _NONFINITE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class FiniteNumbers:
    """The finite numbers of a column, one by one, and the counts of the others."""

    values: Values
    nulls: int
    nonfinite: int


def finite_numbers(series: pl.Series) -> FiniteNumbers:
    """The numbers of a column, or of its lists' elements. Null lists hold none and are not counted."""
    if isinstance(series.dtype, pl.List | pl.Array):
        more = {"empty_as_null": False} if isinstance(series.dtype, pl.List) else {}
        series = series.explode(keep_nulls=False, **more)
    if isinstance(series.dtype, pl.Decimal):
        series = series.cast(pl.Float64)
    nulls = series.null_count()
    values = (series.drop_nulls() if nulls else series).to_numpy()
    if values.dtype.kind in "iu":
        return FiniteNumbers(values=values, nulls=nulls, nonfinite=0)
    finite = np.isfinite(values)
    nonfinite = len(values) - int(np.count_nonzero(finite))
    return FiniteNumbers(values=values[finite] if nonfinite else values, nulls=nulls, nonfinite=nonfinite)


def _require_values(facts: dict[str, Any], op: str) -> None:
    if not facts[_VALUES]:
        raise DataError(
            f"{op} learns from finite numbers: got {facts[_NULLS]} nulls and {facts[_NONFINITE]} NaN or infinities, "
            "expected at least one finite number. Fit on other rows, or write the values as its parameters"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _OneRow:
    """What learners have in common whose state has a few rows. op: for messages."""

    op: str
    keys: tuple[str, ...] = ()

    def show(self, artifact: Artifact) -> dict[str, Any]:
        return dict(artifact.facts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments(_OneRow):
    """Learns mean and standard deviation (of the population: divided by the number of values).

    facts: values, nulls, nonfinite, mean, std. Mean is the float64 nearest to the true one; so is std, up to its last
    bit.
    """

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        """A row for each count and each bin of a sum: its name, bin and units."""
        [column] = columns
        numbers = finite_numbers(column)
        return _sums_state(
            {
                _VALUES: {0: len(numbers.values)},
                _NULLS: {0: numbers.nulls},
                _NONFINITE: {0: numbers.nonfinite},
                _SUM: bins_of(numbers.values),
                _SQUARES: bins_of(numbers.values, squares=True),
            }
        )

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return _sums_state(_sums(states))

    def finish(self, parts: Parts) -> Artifact:
        sums = {name: total(bins) for name, bins in _sums(list(parts)).items()}
        facts: dict[str, Any] = {name: int(sums[name]) for name in (_VALUES, _NULLS, _NONFINITE)}
        _require_values(facts, self.op)
        mean = sums[_SUM] / facts[_VALUES]
        variance = sums[_SQUARES] / facts[_VALUES] - mean * mean
        return Artifact(facts={**facts, "mean": nearest_float(mean), "std": root(variance)})

    def blank(self) -> Artifact:
        return Artifact(facts={**_NO_VALUES, "mean": 0.0, "std": 1.0})


def root(square: Fraction) -> float:
    """The square root of a rational number as float64; the number itself may exceed float64."""
    if not square:
        return 0.0
    indices = (square.numerator.bit_length() - square.denominator.bit_length()) // 2
    return math.ldexp(math.sqrt(square / Fraction(4) ** indices), indices)


def _sums_state(sums: dict[str, Bins]) -> pl.DataFrame:
    rows = [(name, index, units) for name, bins in sums.items() for index, units in normal(bins).items()]
    return pl.DataFrame(rows, schema={"of": pl.String(), "bin": pl.Int32(), "units": pl.Int64()}, orient="row")


def _sums(states: Sequence[pl.DataFrame]) -> dict[str, Bins]:
    sums: dict[str, Bins] = {name: {} for name in (_VALUES, _NULLS, _NONFINITE, _SUM, _SQUARES)}
    for state in states:
        for name, index, units in zip(*(column.to_list() for column in state.get_columns()), strict=True):
            sums[name][index] = sums[name].get(index, 0) + units
    return sums


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes(_OneRow):
    """Learns the smallest and the largest finite number.

    facts: values, nulls, nonfinite, min, max; in the column's own type.
    """

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        [column] = columns
        numbers = finite_numbers(column)
        some = len(numbers.values) > 0
        smallest, largest = (numbers.values.min(), numbers.values.max()) if some else (None, None)
        dtype = pl.Series(numbers.values[:0]).dtype
        return pl.DataFrame(
            {
                _VALUES: [len(numbers.values)],
                _NULLS: [numbers.nulls],
                _NONFINITE: [numbers.nonfinite],
                "min": pl.Series([smallest], dtype=dtype),
                "max": pl.Series([largest], dtype=dtype),
            }
        )

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        merged = pl.concat(states)
        return merged.select(pl.col(_VALUES, _NULLS, _NONFINITE).sum(), pl.col("min").min(), pl.col("max").max())

    def finish(self, parts: Parts) -> Artifact:
        facts = self.merge(list(parts)).row(0, named=True)
        _require_values(facts, self.op)
        # -0.0 becomes 0.0, or the result would depend on the order
        return Artifact(facts={**facts, "min": facts["min"] + 0, "max": facts["max"] + 0})

    def blank(self) -> Artifact:
        return Artifact(facts={**_NO_VALUES, "min": 0, "max": 1})


_BUCKET, _COUNT, _ONLY = "bucket", "count", "only"
_NULL_BUCKET, _NONFINITE_BUCKET = -(2**31), -(2**31) + 1
_SPARSE = 8  # from this ratio of buckets to values on, sorting is faster than counting all buckets


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantiles:
    """Learns the values at `parts` - 1 ranks that cut the sorted numbers into equal parts.

    error: the largest relative error of a quantile. facts: values, nulls, nonfinite, error, quantiles (ascending). A
    quantile is the smallest number that is not below at least its share of all numbers (the inverted distribution
    function). Quantiles of integers are integers: the only one of their bucket, or the one nearest to its middle.
    Numbers below 2.3e-308 count as 0. median: for an even number of floats, the mean of the two in the middle.
    """

    op: str
    parts: int
    error: float
    median: bool = False
    keys: tuple[str, ...] = (_BUCKET,)

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        """A row per bucket: its count, and its number if all are the same; null otherwise."""
        [column] = columns
        numbers = finite_numbers(column)
        values = numbers.values + numbers.values.dtype.type(0)  # no negative zeros
        buckets, indices = self._buckets(values)
        counts = np.bincount(indices, minlength=len(buckets))
        only = np.zeros(len(buckets), values.dtype)
        only[indices] = values
        several = np.zeros(len(buckets), np.bool_)
        several[indices[only[indices] != values]] = True
        found = pl.DataFrame(
            {
                _BUCKET: pl.Series(buckets, dtype=pl.Int32),
                _COUNT: pl.Series(counts, dtype=pl.Int64),
                _ONLY: pl.Series(only).cast(_state_type(values)).set(pl.Series(several), None),
            }
        )
        others = pl.DataFrame(
            {
                _BUCKET: [_NULL_BUCKET, _NONFINITE_BUCKET],
                _COUNT: [numbers.nulls, numbers.nonfinite],
                _ONLY: [None, None],
            },
            schema=found.schema,
        )
        return pl.concat((others, found)).filter(pl.col(_COUNT) > 0)

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        only = pl.col(_ONLY)
        one = only.is_not_null().all() & (only.min() == only.max())
        return pl.concat(states).group_by(_BUCKET).agg(pl.col(_COUNT).sum(), pl.when(one).then(only.min()).alias(_ONLY))

    def finish(self, parts: Parts) -> Artifact:
        state = pl.concat(list(parts)).sort(_BUCKET)
        counts = dict(zip(state[_BUCKET].head(2).to_list(), state[_COUNT].head(2).to_list(), strict=True))
        state = state.filter(pl.col(_BUCKET) > _NONFINITE_BUCKET)
        size = int(state[_COUNT].sum())
        facts = {
            _VALUES: size,
            _NULLS: counts.get(_NULL_BUCKET, 0),
            _NONFINITE: counts.get(_NONFINITE_BUCKET, 0),
            "error": self.error,
        }
        _require_values(facts, self.op)
        # 10 numbers in 4 parts: ranks 2, 4 and 7 of the sorted ones, counted from 0
        ranks = [-(-index * size // self.parts) - 1 for index in range(1, self.parts)]
        pair = self.median and size % 2 == 0 and not state[_ONLY].dtype.is_integer()
        ranks += [size // 2] if pair else []
        rows = np.searchsorted(state[_COUNT].cum_sum().to_numpy(), ranks, side="right")
        found = [self._number(*row) for row in state[rows].select(_BUCKET, _ONLY).rows()]
        if state[_ONLY].dtype.is_integer():
            found = [round(number) for number in found]
        quantiles = [found[0] / 2 + found[1] / 2] if pair else found
        return Artifact(facts={**facts, "quantiles": quantiles})

    def blank(self) -> Artifact:
        return Artifact(facts={**_NO_VALUES, "error": self.error, "quantiles": [0] * (self.parts - 1)})

    def show(self, artifact: Artifact) -> dict[str, Any]:
        facts = dict(artifact.facts)
        quantiles = facts.pop("quantiles")
        if self.median:
            return {**facts, "median": quantiles[0]}
        return {**facts, "borders": len(quantiles), "first": quantiles[0], "last": quantiles[-1]}

    def _buckets(self, values: Values) -> tuple[Values, Values]:
        """The buckets that may be in use, ascending, and the index among them for each value."""
        mapping, lowest = _mapping(self.error), _lowest(self.error)
        wide = values.astype(np.float64)
        size = np.minimum(np.abs(wide), mapping.max_possible)
        fraction, exponent = np.frexp(np.maximum(size, mapping.min_possible))
        part = 2 * fraction - 1  # as `key` of the mapping, which takes one value
        logs = ((mapping.A * part + mapping.B) * part + mapping.C) * part + (exponent - 1)
        buckets = np.ceil(logs * _multiplier(self.error)).astype(np.int32) - np.int32(lowest - 1)
        buckets[size <= mapping.min_possible] = 0
        np.negative(buckets, out=buckets, where=wide < 0)
        least, most = (int(buckets.min()), int(buckets.max())) if len(buckets) else (0, -1)
        if most - least > _SPARSE * len(buckets):
            return np.unique(buckets, return_inverse=True)
        return np.arange(least, most + 1, dtype=np.int32), buckets - np.int32(least)

    def _number(self, bucket: int, only: Any) -> Any:
        if only is not None or not bucket:
            return only or 0.0
        number = float(_mapping(self.error).value(abs(bucket) + _lowest(self.error) - 1))
        return math.copysign(number, bucket)


@lru_cache
def _mapping(error: float) -> CubicallyInterpolatedMapping:
    """DDSketch's mapping. Its keys take sums and products only, so they are the same on every processor."""
    from ddsketch.mapping import CubicallyInterpolatedMapping  # noqa: PLC0415 -- a feeder learns nothing

    return CubicallyInterpolatedMapping(error)


@lru_cache
def _multiplier(error: float) -> float:
    """Buckets per unit of the mapping's logarithm: 1 / log(gamma), with gamma = (1 + error) / (1 - error), by `C`, the
    slope that the logarithm has at powers of two."""
    return 1 / math.log1p(2 * error / (1 - error)) / _mapping(error).C


@lru_cache
def _lowest(error: float) -> int:
    """The key of the smallest number that does not count as 0; its bucket here is 1, and -1 that of its negative."""
    mapping = _mapping(error)
    return int(mapping.key(mapping.min_possible))


def _state_type(values: Values) -> pl.DataType:
    if values.dtype.kind == "f":
        return pl.Float64()
    return pl.UInt64() if values.dtype == np.uint64 else pl.Int64()
