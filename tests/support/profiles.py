"""Facts of tables that no file holds, and what `init` would decide of them: builders, and strategies for any."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from feedline.workbench.begin.init_plan import Choices, HeldOut, InitPlan
from feedline.workbench.begin.label_choice import choose_label, require_label
from feedline.workbench.begin.plan_pipeline import guess_choices, plan_pipeline
from feedline.workbench.begin.trial import by_hash
from feedline.workbench.profile.table_facts import (
    ColumnProfile,
    DistinctCount,
    FrequentValue,
    LabelCandidate,
    ListLengths,
    NumberFacts,
    PartitionKey,
    RepeatedColumns,
    SampledPart,
    SessionCandidate,
    TableFacts,
    TimeCandidate,
)

NAMES = st.text(
    st.characters(exclude_categories=["Cs"]) | st.sampled_from("{}$'\"\\#:.,-[]&*!|>%@` \t\n\x00"),
    min_size=1,
    max_size=12,
)


def numbers(low: float = 0, high: float = 10, **others: Any) -> NumberFacts:
    """Facts of numbers that are spread evenly."""
    width = high - low
    facts: dict[str, Any] = {
        "min": low,
        "max": high,
        "mean": low + width / 2,
        "std": width / 4,
        "skewness": 0.0,
        "quantiles": tuple(low + width * part for part in (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)),
        "zero_rate": 0.0,
        "negative_rate": 0.0,
        "nan_rate": 0.0,
        "inf_rate": 0.0,
    }
    return NumberFacts(**{**facts, **others})


def distinct(count: int, *, once: float = 0.0, sample: int | None = None, error: float = 0.0) -> DistinctCount:
    """A number of distinct values."""
    return DistinctCount(sample=count if sample is None else sample, error=error, table=count, once=once)


def lengths(p95: int = 5, longest: int = 9, **others: Any) -> ListLengths:
    """Lengths of lists."""
    facts = {"mean": 3.0, "p50": 3, "p95": p95, "p99": longest, "max": longest, "empty_rate": 0.1}
    return ListLengths(**{**facts, **others})


def column(name: str, role: str = "numeric", kind: str = "double", **others: Any) -> ColumnProfile:
    """A column of 1,000 sampled rows without nulls."""
    facts: dict[str, Any] = {"name": name, "type": kind, "role": role, "rows": 1_000, "null_rate": 0.0}
    facts["null_exact"] = "null_rate" not in others
    if role == "numeric":
        facts |= {"numbers": numbers(), "vocabulary": distinct(900)}
    return ColumnProfile(**{**facts, **others})


def binary(name: str = "clicked", share: float = 0.2, **others: Any) -> ColumnProfile:
    """A column of 0 and 1."""
    facts: dict[str, Any] = {
        "numbers": numbers(0, 1, mean=share),
        "vocabulary": distinct(2),
        "frequent": (FrequentValue(share=1 - share, value="0"), FrequentValue(share=share, value="1")),
    }
    return column(name, "category", "int64", **{**facts, **others})


def table(*columns: ColumnProfile, rows: int = 100_000, **others: Any) -> TableFacts:
    """A table of these columns; a column named clicked is a candidate for the label."""
    labels = tuple(
        LabelCandidate(column=each.name, score=0.75, reason="named clicked; 0 and 1")
        for each in columns
        if each.name == "clicked"
    )
    facts: dict[str, Any] = {
        "uri": "warehouse/t",
        "format": "hive",
        "partitions": (),
        "files": 4,
        "rows": rows,
        "bytes": 1 << 20,
        "row_groups": 4,
        "row_group_rows": (1, 1, 1),
        "selected_rows": rows,
        "where": None,
        "sampled": SampledPart(rows=1_000, row_groups=4, bytes=1 << 18, columns=len(columns)),
        "columns": tuple(columns),
        "labels": labels,
    }
    return TableFacts(**{**facts, **others})


def time_of(name: str, first: str | None, last: str | None, unit: str | None = None) -> TimeCandidate:
    """A candidate for the time."""
    return TimeCandidate(column=name, score=0.8, reason="timestamp[us]", first=first, last=last, unit=unit)


def session_of(name: str, saved: float = 0.3, run_rows: float = 8.0) -> SessionCandidate:
    """A candidate for the session, of eight rows each."""
    return SessionCandidate(
        column=name,
        score=0.9,
        reason="8 rows of a key",
        rows_per_key=8.0,
        run_rows=run_rows,
        repeated={"user": 0.9},
        groups=(RepeatedColumns(columns=("user",), factor=4.0, saved_share=saved),),
    )


def key(name: str, kind: str, values: int, first: str, last: str) -> PartitionKey:
    """A partition key."""
    return PartitionKey(name=name, type=kind, values=values, first=first, last=last)


RATES = st.floats(0, 1)
COUNTS = st.builds(
    lambda sample, more, once, error: DistinctCount(sample=sample, table=sample + more, once=once, error=error),
    st.integers(0, 1 << 20),
    st.integers(0, 1 << 34),
    RATES,
    st.sampled_from([0.0, 0.01]),
)
FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@st.composite
def any_numbers(draw: st.DrawFn) -> NumberFacts:
    """Facts of any numbers."""
    quantiles = sorted(draw(st.lists(FINITE, min_size=9, max_size=9)))
    rates = draw(st.tuples(RATES, RATES, RATES, RATES))
    names = ("zero_rate", "negative_rate", "nan_rate", "inf_rate")
    return NumberFacts(
        min=quantiles[0],
        max=quantiles[-1],
        mean=draw(FINITE),
        std=draw(st.floats(0, 1e6)),
        skewness=draw(st.floats(-1e3, 1e3)),
        quantiles=tuple(quantiles[1:-1]),
        **dict(zip(names, rates, strict=True)),
    )


KINDS: dict[str, tuple[str, ...]] = {
    "numeric": ("double", "float", "halffloat", "int64", "uint8", "decimal128(9, 2)"),
    "category": ("int64", "int8", "uint64", "bool"),
    "string": ("string", "large_string", "binary", "dictionary<values=string, indices=int32, ordered=0>"),
    "list": (
        "list<element: int64>",
        "list<element: string>",
        "list<element: double>",
        "fixed_size_list<element: float>[4]",
        "list<element: bool>",
        "list<element: struct<id: int64, weight: float>>",
        "list<element: date32[day]>",
    ),
    "time": ("timestamp[us]", "timestamp[ms, tz=Europe/Berlin]", "date32[day]", "time64[us]", "duration[ns]"),
    "nested": ("struct<a: int64>", "map<string, float>", "list<element: list<element: int64>>"),
    "unsupported": ("null", "decimal256(60, 2)"),
}


@st.composite
def any_column(draw: st.DrawFn, name: str) -> ColumnProfile:
    """Facts of any column, as far as a profile could have them."""
    role = draw(st.sampled_from(sorted(KINDS)))
    kind = draw(st.sampled_from(KINDS[role]))
    facts: dict[str, Any] = {
        "null_rate": draw(st.sampled_from([0.0, 0.001, 0.3, 0.99, 1.0])),
        "null_exact": draw(st.booleans()),
        "nullable": draw(st.booleans()),
        "vocabulary": draw(COUNTS | st.none()),
        "constant": draw(st.sampled_from([False, False, False, True])),
        "id_like": role != "list" and draw(st.sampled_from([False, False, True])),
        "correlation": draw(st.none() | st.floats(-1, 1)),
        "disguise": draw(st.none() | st.none() | st.just("AUC 1.0000")),
    }
    if role in ("numeric", "category"):
        facts["numbers"] = draw(any_numbers() | st.none())
    if role == "string":
        facts["string_bytes"] = draw(st.none() | st.tuples(st.floats(0, 1e4), st.integers(0, 1 << 20)))
    if role == "list":
        facts["element"] = kind.split(": ", 1)[1].rsplit(">", 1)[0]
        longest = draw(st.integers(0, 2_000))
        fixed = draw(st.sampled_from([None, longest or None]))
        facts["lengths"] = lengths(draw(st.integers(0, longest)), longest, fixed=fixed)
    if role == "time":
        facts |= {"first": "2026-01-01T00:00:00", "last": draw(st.sampled_from(["2026-01-01T00:00:00", "2027-05-05"]))}
    return column(name, role, kind, **facts)


@st.composite
def any_table(draw: st.DrawFn) -> TableFacts:
    """Facts of a table with a label `clicked` and columns of any kind and name."""
    names = draw(st.lists(NAMES.filter(lambda name: name != "clicked"), max_size=6, unique=True))
    columns = [draw(any_column(name)) for name in names]
    times = tuple(time_of(each.name, each.first, each.last) for each in columns if each.role == "time")
    label = binary(null_rate=draw(st.sampled_from([0.0, 0.1])))
    return table(label, *columns, rows=draw(st.integers(1, 1 << 40)), times=times)


def planned(
    facts: TableFacts, *, path: str = "warehouse/t", held_out: HeldOut | None = None, **choices: object
) -> InitPlan:
    """The plan of a table. held_out: rows that are held out (default: by a hash)."""
    chosen = guess_choices(facts, Choices(**choices))
    label = choose_label(facts, require_label(facts, chosen.label))
    return plan_pipeline(facts, chosen, label=label, held_out=held_out or by_hash(facts, None), table=path)
