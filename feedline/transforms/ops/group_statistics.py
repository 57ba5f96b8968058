"""The op group_statistics: statistics of another column over the rows of the same key.

Built in every process, run on the workers. Learning is one pass: count, exact sums of the values and of their squares,
and extremes by key (`group_sums`). The result does not depend on the order of rows, to the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import polars as pl
from pydantic import Field, model_validator

from feedline.dataclass import dataclass
from feedline.errors import SpecError
from feedline.transforms.learning.exact_sums import products
from feedline.transforms.learning.group_sums import GroupedState, GroupSums, check_numbers
from feedline.transforms.learning.learner import Artifact, Learning, Parts
from feedline.transforms.ops.group_table import (
    KEY,
    MAX_MEMORY,
    GroupColumns,
    GroupKeys,
    KeyedRows,
    MaxMemory,
    check_artifact,
    check_parts,
    ordered_table,
)
from feedline.transforms.registry.op import Parameters, example, example_of_several, op
from feedline.transforms.values.kinds import Value
from feedline.transforms.values.ragged import over_columns, vectors_of

Statistic = Literal["count", "sum", "mean", "min", "max", "var", "std"]
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]

# the number of values below which a statistic is null
_LEAST_COUNT = {"count": 0, "sum": 0, "mean": 1, "min": 1, "max": 1, "var": 2, "std": 2}
_SMALLER = "Use fewer keys, with hash_bucket or a vocabulary's min_count before it"
_NEARLY_SAME = 2.0**-45  # sums err by 2**-95 at most: their difference by 2**-50
_SMALLEST = 2.0**-800  # rounding errors of smaller products underflow float64


class GroupStatistics(Parameters):
    stats: Annotated[
        Statistic | list[Statistic],
        Field(description="The statistics of each key: one word gives a number, a list a vector of numbers."),
    ]
    of: Annotated[
        str | None, Field(min_length=1, description="The column of the table to describe; optional for `count`.")
    ] = None
    max_memory: MaxMemory = MAX_MEMORY

    @model_validator(mode="after")
    def _consistent(self) -> GroupStatistics:
        if not self.stats:
            raise ValueError(f"stats must not be empty: got [], expected some of {', '.join(get_args(Statistic))}")
        if twice := next((name for name in self.names if self.names.count(name) > 1), None):
            raise ValueError(f"stats must differ: got {twice} twice")
        if self.of is None and (first := next((name for name in self.names if name != "count"), None)):
            raise ValueError(f"{first} needs a column: got no `of`, expected of: COLUMN. Only count does without it")
        return self

    @property
    def names(self) -> tuple[Statistic, ...]:
        return tuple(self.stats) if isinstance(self.stats, list) else (self.stats,)


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsByKey:
    """Learns statistics of a column by key."""

    groups: GroupKeys
    parameters: GroupStatistics = field(compare=False)  # part of a fit's key, except `max_memory`

    @property
    def keys(self) -> tuple[str, ...]:
        """The columns that identify a group: its bins stay together when a state is cut."""
        return self.groups.names

    @property
    def _sums(self) -> GroupSums:
        return GroupSums(
            by=self.groups.names,
            squares="var" in self._stored_statistics,
            extremes=bool(
                {"min", "max", "var"}.intersection(self._stored_statistics)
            ),  # equal extremes mean a variance of 0
        )

    @property
    def _stored_statistics(self) -> tuple[str, ...]:
        names = dict.fromkeys("var" if name == "std" else name for name in self.parameters.names if name != "count")
        return ("count", *names)

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        rows = self.groups.rows(columns[: len(self.groups.types)])
        frame = rows.frame(self.groups.names)
        if self.parameters.of is None:
            return self._sums.observe(frame, None)
        return self._sums.observe(*rows.finite(frame, columns[-1]))

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return self._sums.merge(states)

    def finish(self, parts: Parts) -> Artifact:
        check_parts(self.groups, parts, len(self._stored_statistics), self.parameters.max_memory, _SMALLER)
        table = ordered_table(self.groups, [self._empty(), *(self._statistics(state) for state in parts)])
        rows = int(table["count"].to_numpy().sum())
        return Artifact(facts={"rows": rows, "groups": table.num_rows}, table=table)

    def blank(self) -> Artifact:
        return Artifact(facts={"rows": 0, "groups": 0}, table=self._empty().to_arrow())

    def show(self, artifact: Artifact) -> dict[str, Any]:
        summary: dict[str, Any] = dict(artifact.facts)
        if artifact.table is not None and artifact.table.num_rows:
            for name in self._stored_statistics:
                numbers = pl.Series(artifact.table[name])
                summary[name] = [numbers.min(), numbers.max()]
        return summary

    def _statistics(self, state: pl.DataFrame) -> pl.DataFrame:
        by_group = GroupedState.by(state, self.groups.names)
        counts = by_group.counts()
        sums = by_group.sums()
        found: dict[str, Any] = {"count": counts, "sum": sums[0], "mean": sums[0] / counts}
        if self._sums.extremes:
            found["min"], found["max"] = by_group.extremes()
        if self._sums.squares:
            found["var"] = _variances(by_group, counts, sums)
        return by_group.groups.with_columns(pl.Series(name, found[name]) for name in self._stored_statistics)

    def _empty(self) -> pl.DataFrame:
        numbers: dict[str, pl.DataType] = {
            "count": pl.Int64(),
            **dict.fromkeys(self._stored_statistics[1:], pl.Float64()),
        }
        return pl.DataFrame(schema=self.groups.schema() | numbers)


def _variances(by_group: GroupedState, counts: Integers, sums: tuple[Floats, Floats]) -> Floats:
    """The unbiased variance of each group's values; 0 for a single one.

    (n Q - S S) / n (n - 1), for the sums S and Q of the values and their squares, in twice the precision of float64; in
    rational numbers if that is not enough: for values that are nearly equal, or beyond its range.
    """
    least, most = by_group.extremes()
    squares = by_group.sums(squares=True)
    number = counts.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        left, left_rest = products(number, squares[0])
        right, right_rest = products(sums[0], sums[0])
        rest = (left_rest + number * squares[1]) - (right_rest + 2 * sums[0] * sums[1])
        numerator = (left - right) + rest
        found = numerator / number / (number - 1)
        inexact = ~((numerator > left * _NEARLY_SAME) & (left > _SMALLEST) & np.isfinite(found))
    found[least == most] = 0
    recomputed = np.flatnonzero(inexact & (least != most))
    found[recomputed] = by_group.variances(recomputed)
    return found


def _check(parameters: GroupStatistics, side_values: Mapping[str, Value]) -> None:
    if parameters.of is not None and "of" in side_values:
        check_numbers(side_values["of"], "of", parameters.of)


@op(
    per_value=True,
    inputs=(KEY,),
    repeats=True,
    gives="float64 (count int64), lists of it, or vectors of float64 for a list of statistics",
    parameters=GroupStatistics,
    examples=(
        example("group_statistics", "count", pl.Int64(), [7, 7, 8, None], [2, 2, 1, 1]),
        example_of_several(
            "group_statistics",
            {"stats": ["mean", "max"], "of": "price"},
            [(pl.String(), ["a", "a", "b"]), (pl.Float64(), [1.0, 2.0, None])],
            [[1.5, 2.0], [1.5, 2.0], [None, None]],
        ),
    ),
    learns=Learning(
        learner=lambda parameters, values: StatisticsByKey(groups=GroupKeys.of(values), parameters=parameters),
        side_columns=lambda parameters: {} if parameters.of is None else {"of": parameters.of},
        check=_check,
    ),
)
def group_statistics(
    values: Sequence[Value], parameters: GroupStatistics, artifact: Artifact, _: Mapping[str, Value]
) -> Value:
    """Statistics of another column over all rows of the same key, such as the mean price of a shop's items.

    A key is a value of one column, or the values of several together. `stats: mean` gives a number, `stats: [mean,
    std]` a vector of numbers in that order:

    - `count`: how many of the key's rows have a value in `of`; without `of`, how many rows it has
    - `sum`, `mean`, `min`, `max` of these values
    - `var`, `std`: their variance and standard deviation, with n - 1 in the denominator

    Values that are null, NaN or infinite are left out; true is 1, false 0. Null is a key like any other. A key without
    values, or one that did not occur in the fit (unknown in `oov_rate`), has count and sum 0 and null for the rest; for
    a single value, `var` and `std` are null: add `{fill_null: 0}`. The elements of a list are separate keys,
    each with its row's value, and `stats` is one word; a null list stays null. Sums are exact, so the result does not
    depend on the order of rows or the partition of the table, to the last bit.

    A process that looks up keys holds three numbers of 8 bytes per key and one for each statistic, and the index: 52
    bytes for an integer, 68 and the characters for a string. More than `max_memory` is an error.

    A row's own value is included. For a label use target_encoding, which leaves it out. Like `JoinGroupby` in
    NVTabular, whose count always counts rows.
    """
    keys = GroupKeys.of(values)
    vectors = isinstance(parameters.stats, list)
    if keys.listed and vectors:
        raise SpecError(
            f"a list of keys takes one statistic: got stats {list(parameters.names)}, expected one word. Write a "
            "feature for each"
        )
    check_artifact(artifact, keys, parameters.max_memory, _SMALLER)
    dtype: pl.DataType = pl.Int64() if parameters.stats == "count" else pl.Float64()

    positions, lookup = keys.positions(values, artifact)

    def run(found_at: pl.Series) -> pl.Series:
        rows, group_columns = KeyedRows.of([found_at]), GroupColumns(keys, artifact)
        numbers = _statistics(group_columns, rows.keys[0].to_numpy(), parameters.names)
        holes = np.isnan(numbers)
        if vectors:
            return vectors_of(numbers, holes=holes if holes.any() else None)
        found = rows.series(numbers[:, 0], holes[:, 0] if holes.any() else None)
        return found.cast(pl.List(dtype) if keys.listed else dtype)

    if vectors:
        result: pl.DataType = pl.Array(dtype, len(parameters.names))
    else:
        result = pl.List(dtype) if keys.listed else dtype
    return Value(expr=over_columns([positions], run, result), dtype=result, lookup=lookup)


def _statistics(group_columns: GroupColumns, positions: Integers, names: Sequence[Statistic]) -> Floats:
    """float64 [V, statistics]: the numbers of the group at each position, NaN where it has none."""
    counts = np.where(positions, group_columns.take("count", positions), 0)
    matrix = np.empty((len(positions), len(names)))
    for column, name in zip(matrix.T, names, strict=True):
        numbers = np.where(positions, group_columns.take("var" if name == "std" else name, positions), 0.0)
        column[:] = np.sqrt(numbers) if name == "std" else numbers
        column[counts < _LEAST_COUNT[name]] = np.nan
    return matrix
