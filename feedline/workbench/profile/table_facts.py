"""The facts of a table and of its columns, as a profile has them.

Runs in: the process of `feedline profile` and of `feedline init`. Pure. Rates and shares are fractions from 0 to 1;
None stands for what could not be measured. Facts hold no strings of rows, unless the profile was made with `values`:
numbers, times and partition values are shown, as they are what one decides from.

Facts of a column are of the sampled rows, except where footers have them of the whole table (`exact`).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from feedline.dataclass import dataclass

# What Feedline can make of a column: by its type and by what the sample shows. `category`: ids and codes, of few or of
# many values (integers, Booleans); `string`: strings and bytes; `list`: lists of numbers, strings or Booleans, and
# lists of {id, weight}; `nested`: structs, maps, lists of lists, which an expression has to take apart.
ColumnRole: TypeAlias = Literal["numeric", "category", "string", "list", "time", "nested", "unsupported"]
Number: TypeAlias = int | float
QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts of finite numbers between ascending edges, one more than counts; the last bin includes its upper edge.

    log: the edges grow by a factor instead of a step, for skewed numbers that are positive. Where few numbers are far
    out, the first and the last bin hold those, and are wider than all others.
    """

    edges: tuple[float, ...]
    counts: tuple[int, ...]
    log: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FrequentValue:
    """One of the most frequent values: its share of the values that are not null. value: as text; None unless the
    profile was made with `values`, or the value is a number or a Boolean."""

    share: float
    value: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DistinctCount:
    """The distinct values of a column that are not null.

    sample: among the sampled values, exact. table: an estimate for the table by how many values few sampled row groups
    hold (see `distinct_values`), with `error`, its relative standard error (0: exact, as all rows were read). once: the
    share of the distinct values that occur once in the sample.
    """

    sample: int
    table: int
    error: float
    once: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ListLengths:
    """Lengths of lists that are not null; empty_rate: the share of these without elements. fixed: all are this long."""

    mean: float
    p50: int
    p95: int
    p99: int
    max: int
    empty_rate: float
    fixed: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NumberFacts:
    """Finite numbers of a column, or of its lists' elements. Rates are shares of the values that are not null.

    quantiles: at `QUANTILES`. skewness: the third standardised moment; 0 for a constant.
    """

    min: Number | None
    max: Number | None
    mean: float | None
    std: float | None
    skewness: float | None
    quantiles: tuple[Number, ...]
    zero_rate: float
    negative_rate: float
    nan_rate: float
    inf_rate: float
    histogram: Histogram | None = None

    @property
    def median(self) -> Number | None:
        """The number in the middle."""
        return self.quantiles[len(QUANTILES) // 2] if self.quantiles else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnProfile:
    """The facts of one column.

    type: its Arrow type; element: that of a list's elements. reason: why its role is `nested` or `unsupported`, or what
    decided otherwise. partition: a key of the table's folders. rows: those that its facts are of. null_rate: `exact`:
    of the table's footers. element_null_rate: of a list's elements. numbers: of numeric columns, Booleans (0 and 1) and
    lists of them. first, last: the earliest and latest time, in ISO 8601. string_bytes: the mean and longest length of
    strings. vocabulary: distinct values of the column, or of its lists' elements. bytes_per_row: compressed, of the
    table; encodings, codecs: of the sampled row groups. constant: one value at most besides nulls.
    repeated: the share of sampled rows that repeat the row above in the table's order.
    time_order: whether it never falls (1) or never rises (-1) with the chosen time, within files; 0: neither.
    id_like: nearly every row has a value of its own. time_like: a reason why it may be a time. label_like: a reason why
    it may be a label. disguise: why it seems to be the chosen label in disguise. correlation: with the label, Pearson's
    for numbers, Cramer's V for codes. shared_nulls: Pearson's of its nulls with those of the label: near 1 for columns
    that are written with the label. unknown: the share of held-out rows whose value no row to learn from has; gain: the
    share of the label's variance that values tell in held-out rows; as_ids: why integers are ids, which predict better
    so; same_moment: the column whose times are the same (these four: `feedline init`). is_index: an index of pandas,
    which numbers rows.
    """

    name: str
    type: str
    role: ColumnRole
    reason: str | None = None
    element: str | None = None
    partition: bool = False
    nullable: bool = True
    rows: int = 0
    null_rate: float | None = None
    null_exact: bool = False
    element_null_rate: float | None = None
    numbers: NumberFacts | None = None
    range_exact: bool = False
    first: str | None = None
    last: str | None = None
    string_bytes: tuple[float, int] | None = None
    lengths: ListLengths | None = None
    vocabulary: DistinctCount | None = None
    frequent: tuple[FrequentValue, ...] = ()
    bytes_per_row: float | None = None
    encodings: tuple[str, ...] = ()
    codecs: tuple[str, ...] = ()
    constant: bool = False
    repeated: float | None = None
    time_order: int = 0
    id_like: bool = False
    time_like: str | None = None
    label_like: str | None = None
    disguise: str | None = None
    correlation: float | None = None
    shared_nulls: float | None = None
    unknown: float | None = None
    gain: float | None = None
    as_ids: str | None = None
    same_moment: str | None = None
    is_index: bool = False

    @property
    def all_null(self) -> bool:
        """Whether no row has a value."""
        return self.null_rate == 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelCandidate:
    """A column that may be the label: a score from 0 to 1, reasons in words, and for a binary one the share of ones."""

    column: str
    score: float
    reason: str
    balance: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeCandidate:
    """A column that may be the time of a row, with its range in ISO 8601 (None: unknown). unit: of an integer that
    counts since 1970: s, ms, us or ns."""

    column: str
    score: float
    reason: str
    first: str | None = None
    last: str | None = None
    unit: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedColumns:
    """Columns that change in the same rows, as one deduplicated group: rows by unique rows, and the share of the bytes
    of all features in a slot that the group saves (an estimate)."""

    columns: tuple[str, ...]
    factor: float
    saved_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionCandidate:
    """A column whose equal values may be a session, or another group of rows that share content.

    rows_per_key: S, sampled rows by distinct values; run_rows: the mean run of equal values in the table's order (as
    large as S where the table is clustered by it). repeated: the other columns that repeat the row above within a key
    in at least half of the rows, with that share. groups: proposed deduplicated groups of them, in the order in which
    `shuffle.by` or a clustered table would have the rows.
    """

    column: str
    score: float
    reason: str
    rows_per_key: float
    run_rows: float
    repeated: Mapping[str, float]
    groups: tuple[RepeatedColumns, ...] = ()

    @property
    def saved_share(self) -> float:
        """The share of a slot's bytes that all groups save."""
        return sum(group.saved_share for group in self.groups)

    @property
    def clustered(self) -> bool:
        """Whether the table stores the rows of a key together."""
        return self.run_rows >= 0.8 * self.rows_per_key


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionKey:
    """A key of the table's folders: its type, how many values it has, and the least and greatest of them, as text."""

    name: str
    type: str
    values: int
    first: str | None
    last: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPart:
    """What was read of the table: row groups spread over it, and the first rows of each. columns: how many have
    facts of rows; bytes: compressed, of the read columns."""

    rows: int
    row_groups: int
    bytes: int
    columns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """The facts of a table. uri: redacted. format: hive, manifest, delta or iceberg. row_group_rows: the fewest, the
    median and the most rows of a row group. selected_rows: those of the row groups that `where` may keep. skipped:
    files left out because they are corrupt, with the reason. warnings: sentences for people.

    labels, times, sessions: candidates, the best first. label, time: the columns that disguises and orders refer to:
    the caller's, or the best candidates. session: the caller's, or the best candidate.
    """

    uri: str
    format: str
    partitions: tuple[PartitionKey, ...]
    files: int
    rows: int
    bytes: int
    row_groups: int
    row_group_rows: tuple[int, int, int]
    selected_rows: int
    where: str | None
    sampled: SampledPart
    columns: tuple[ColumnProfile, ...]
    labels: tuple[LabelCandidate, ...] = ()
    times: tuple[TimeCandidate, ...] = ()
    sessions: tuple[SessionCandidate, ...] = ()
    label: str | None = None
    time: str | None = None
    session: str | None = None
    skipped: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()

    def column(self, name: str) -> ColumnProfile:
        """The column of that name. Raises KeyError if there is none."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)

    @property
    def disguises(self) -> tuple[ColumnProfile, ...]:
        """The columns that seem to be the chosen label in disguise."""
        return tuple(column for column in self.columns if column.disguise is not None)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return plain_values(dataclasses.asdict(self))  # type: ignore[no-any-return]


def plain_values(value: Any) -> Any:
    """A value of mappings and sequences for a JSON document: NaN and infinities, which JSON lacks, become None."""
    if isinstance(value, Mapping):
        return {str(key): plain_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
