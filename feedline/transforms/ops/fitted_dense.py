"""Ops that normalise numbers by column statistics: standardize, min_max, fill_median, fill_mean, quantile_bucketize.

Built in every process, run on the workers. The statistics are parameters, or learnt from rows (see `statistics`), from
all elements of lists and vectors together. Nulls, NaN and infinities are counted and left out. Arithmetic is in
float64, whatever the column's type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

import numpy as np
import polars as pl
from pydantic import Field, field_validator, model_validator

from feedline.errors import SpecError
from feedline.expressions.types import NUMBERS
from feedline.transforms.learning.learner import Artifact, Learning
from feedline.transforms.learning.statistics import Extremes, Moments, Quantiles
from feedline.transforms.ops.dense import Number, as_float, floats_of_numbers, widen
from feedline.transforms.ops.generated import count_borders
from feedline.transforms.registry.op import Parameters, example, op
from feedline.transforms.values.arrays import Values
from feedline.transforms.values.kinds import Value

_ERROR = Field(ge=1e-4, le=0.1, description="The largest relative error, where the result is not exact.")


class Standardize(Parameters):
    mean: Annotated[float | None, Field(description="The mean, subtracted first (default: learnt).")] = None
    std: Annotated[float | None, Field(gt=0, description="The standard deviation, the divisor (default: learnt).")] = (
        None
    )

    @model_validator(mode="after")
    def _both(self) -> Standardize:
        if (self.mean is None) is not (self.std is None):
            name = "mean" if self.std is None else "std"
            raise ValueError(
                f"mean and std are both given or both learnt: got {name} alone. Write "
                "{standardize: {mean: 0, std: 1}} with their values, or standardize alone"
            )
        return self


@floats_of_numbers(
    parameters=Standardize,
    examples=(
        example("standardize", None, pl.Float64(), [1.0, 1.0, 5.0, 5.0, None], [-1.0, -1.0, 1.0, 1.0, None]),
        example("standardize", {"mean": 10, "std": 2}, pl.Float64(), [10.0, 13.0, None], [0.0, 1.5, None]),
        example("standardize", None, pl.List(pl.Int64()), [[4, 4], [4], None], [[0.0, 0.0], [0.0], None]),
    ),
    learns=Learning(learner=lambda parameters, _: Moments(op="standardize") if parameters.mean is None else None),
)
def standardize(x: Value, parameters: Standardize, artifact: Artifact | None, _: Mapping[str, Value]) -> Value:
    """Shifts by the mean and scales by the standard deviation: (x - mean) / std, computed in float64.

    As a bare word it learns both from the column's finite numbers, exactly, however large the mean is beside the
    deviation; the deviation is that of the population (divided by n, as in scikit-learn's StandardScaler). In a column
    of one distinct number it is taken as 1, and the number becomes 0. Fitting without any finite number is an error.
    Nulls stay null; NaN and infinities follow IEEE 754.
    """
    x = widen(x, floats=True)
    facts = {"mean": parameters.mean, "std": parameters.std} if artifact is None else artifact.facts
    mean, std = np.float64(facts["mean"]), np.float64(facts["std"] or 1)

    def kernel(values: Values, out: Values) -> None:
        wide = values.astype(np.float64)
        np.subtract(wide, mean, out=wide)
        np.divide(wide, std, out=wide)
        np.copyto(out, wide, casting="same_kind")

    return x.apply_kernel(kernel, x.dtype)


class MinMax(Parameters):
    min: Annotated[Number | None, Field(description="The number that maps to the range's begin (default: learnt).")] = (
        None
    )
    max: Annotated[Number | None, Field(description="The number that maps to the range's end (default: learnt).")] = (
        None
    )
    to: Annotated[tuple[float, ...], Field(description="The range: its begin and its end.")] = (0.0, 1.0)

    @field_validator("to", mode="after")
    @classmethod
    def _ascending(cls, to: tuple[float, ...]) -> tuple[float, ...]:
        if len(to) != 2 or to[0] >= to[1]:
            raise ValueError(f"to must be a begin and an end above it: got {[*to]}. Write {{min_max: {{to: [-1, 1]}}}}")
        return to

    @model_validator(mode="after")
    def _both(self) -> MinMax:
        if (self.min is None) is not (self.max is None):
            name = "min" if self.max is None else "max"
            raise ValueError(
                f"min and max are both given or both learnt: got {name} alone. Write "
                "{min_max: {min: 0, max: 10}} with their values, or min_max alone"
            )
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min must not be above max: got min {self.min}, max {self.max}")
        return self


@floats_of_numbers(
    parameters=MinMax,
    examples=(
        example("min_max", None, pl.Int64(), [2, 4, 6, None], [0.0, 0.5, 1.0, None]),
        example("min_max", {"to": [-1, 1]}, pl.List(pl.Float32()), [[0.0, 8.0], [2.0], []], [[-1.0, 1.0], [-0.5], []]),
        example("min_max", {"min": 0, "max": 10}, pl.Float64(), [5.0, 20.0, math.nan], [0.5, 2.0, math.nan]),
        example("min_max", None, pl.Float64(), [7.0, 7.0, None], [0.0, 0.0, None]),
    ),
    learns=Learning(learner=lambda parameters, _: Extremes(op="min_max") if parameters.min is None else None),
)
def min_max(x: Value, parameters: MinMax, artifact: Artifact | None, _: Mapping[str, Value]) -> Value:
    """Maps a column's range to another: (x - min) / (max - min) * (end - begin) + begin, computed in float64.

    As a bare word (or with `to` alone) it learns min and max, the smallest and largest finite number. Numbers outside
    of them map to numbers outside of the range: add `{clip: {min: 0, max: 1}}` to limit them. If min equals max,
    every finite number becomes the range's begin. Fitting without any finite number is an error. Nulls stay null, NaN
    stays NaN, infinities stay infinities (NaN if min equals max). Like scikit-learn's MinMaxScaler, and NVTabular's
    NormalizeMinMax, which maps a constant column to 0.5.
    """
    x = widen(x, floats=True)
    facts: Mapping[str, Any] = {"min": parameters.min, "max": parameters.max} if artifact is None else artifact.facts
    least, most = (as_float(facts[name], pl.Float64(), name) for name in ("min", "max"))
    begin, end = parameters.to
    span = most - least
    if math.isinf(span) or math.isinf(end - begin):
        raise SpecError(f"a range must fit float64: got {least} to {most}, and {begin} to {end}")

    def kernel(values: Values, out: Values) -> None:
        wide = values.astype(np.float64)
        np.subtract(wide, least, out=wide)
        if span:
            np.divide(wide, span, out=wide)
        if not span or end - begin != 1:
            np.multiply(wide, end - begin if span else 0.0, out=wide)
        if begin or not span:  # no negative zeros of a constant column
            np.add(wide, begin, out=wide)
        np.copyto(out, wide, casting="same_kind")

    return x.apply_kernel(kernel, x.dtype)


class FillMedian(Parameters):
    error: Annotated[float, _ERROR] = 0.001


@op(
    per_value=True,
    takes=NUMBERS,
    gives="integers of integers, floats of floats",
    parameters=FillMedian,
    examples=(
        example("fill_median", None, pl.Int64(), [1, None, 3, 40], [1, 3, 3, 40]),
        example("fill_median", None, pl.Float64(), [1.0, 2.0, None, math.inf], [1.0, 2.0, 1.5, math.inf]),
        example("fill_median", None, pl.List(pl.Float32()), [[0.5, None], None, []], [[0.5, 0.5], None, []]),
    ),
    learns=Learning(
        learner=lambda parameters, _: Quantiles(op="fill_median", parts=2, error=parameters.error, median=True)
    ),
)
def fill_median(x: Value, _: FillMedian, artifact: Artifact, __: Mapping[str, Value]) -> Value:
    """Replaces nulls by the median of the column's finite numbers.

    The median is exact if it is one of few distinct numbers (any integer up to 1 / (2 error) is); otherwise its
    relative error is at most `error`. For an even number of floats it is the mean of the two in the middle, for
    integers the lower one. In lists it replaces null elements; a null list stays null. NaN is a value, not a null, and
    stays. Fitting without any finite number is an error. Like NVTabular's FillMedian.
    """
    return _fill(widen(x), artifact.facts["quantiles"][0])


@floats_of_numbers(
    examples=(
        example("fill_mean", None, pl.Float64(), [1.0, None, 4.0, math.nan], [1.0, 2.5, 4.0, math.nan]),
        example("fill_mean", None, pl.List(pl.Int64()), [[1, None], [2], None], [[1.0, 1.5], [2.0], None]),
    ),
    learns=Learning(learner=lambda _, __: Moments(op="fill_mean")),
)
def fill_mean(x: Value, _: Parameters, artifact: Artifact, __: Mapping[str, Value]) -> Value:
    """Replaces nulls by the exact mean of the column's finite numbers.

    In lists it replaces null elements; a null list stays null. NaN is a value, not a null, and stays. Fitting without
    any finite number is an error.
    """
    return _fill(widen(x, floats=True), artifact.facts["mean"])


def _fill(x: Value, number: Number) -> Value:
    fill = number if x.dtype.is_integer() else as_float(number, x.dtype, "what was learnt")
    return x.fill_nulls(fill)


class QuantileBucketize(Parameters):
    buckets: Annotated[
        int, Field(ge=2, le=10_000, description="The number of buckets, each with about equally many values.")
    ]
    error: Annotated[float, _ERROR] = 0.001


@op(
    per_value=True,
    ids=lambda parameters, *_: parameters.buckets,
    takes=NUMBERS,
    gives="int64",
    parameters=QuantileBucketize,
    examples=(
        example("quantile_bucketize", 2, pl.Int64(), [1, 2, 3, 40, None], [0, 0, 1, 1, None]),
        example("quantile_bucketize", {"buckets": 4}, pl.Float64(), [1.0, 1.0, 1.0, 5.0, 9.0], [0, 0, 0, 1, 2]),
        example("quantile_bucketize", 2, pl.List(pl.Float32()), [[0.5, 1.5], [], None], [[0, 1], [], None]),
    ),
    learns=Learning(
        learner=lambda parameters, _: Quantiles(
            op="quantile_bucketize", parts=parameters.buckets, error=parameters.error
        )
    ),
)
def quantile_bucketize(x: Value, parameters: QuantileBucketize, artifact: Artifact, _: Mapping[str, Value]) -> Value:
    """The bucket of a number, among buckets that hold about equally many of the learnt values.

    The borders are quantiles of the column's finite numbers, applied as in bucketize: a value equal to a border belongs
    to the lower bucket, NaN becomes null, infinities are in the outer buckets. Border k is the smallest number that is
    at least as large as k / buckets of the values, exact or with a relative error of at most `error` (see fill_median);
    so subtract the offset first from numbers that are far from 0 and differ by less than that. Equal borders become
    one, so a column of few distinct numbers has fewer buckets: 0 to at most buckets - 1. Nulls stay null. Fitting
    without any finite number is an error.
    """
    x = widen(x)
    borders: list[Any] = artifact.facts["quantiles"]
    if x.dtype == pl.Float32():
        borders = [as_float(border, x.dtype, "a border") for border in borders]
    distinct = [left for left, right in pairwise([*borders, None]) if left != right]
    return count_borders(x, distinct)
