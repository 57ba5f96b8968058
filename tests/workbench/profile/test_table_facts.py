"""The facts of a table: found by name, and written as JSON."""

from __future__ import annotations

import json
import math

from feedline.workbench.profile.table_facts import (
    ColumnProfile,
    DistinctCount,
    NumberFacts,
    SampledPart,
    SessionCandidate,
    TableFacts,
)


def facts(*columns: ColumnProfile) -> TableFacts:
    return TableFacts(
        uri="/t",
        format="hive",
        partitions=(),
        files=1,
        rows=10,
        bytes=100,
        row_groups=1,
        row_group_rows=(10, 10, 10),
        selected_rows=10,
        where=None,
        sampled=SampledPart(rows=10, row_groups=1, bytes=100, columns=len(columns)),
        columns=columns,
    )


def numbers(**changed: float | None) -> NumberFacts:
    usual = dict.fromkeys(("mean", "std", "skewness", "min", "max"), 1.0)
    rates = dict.fromkeys(("zero_rate", "negative_rate", "nan_rate", "inf_rate"), 0.0)
    return NumberFacts(**{**usual, **rates, **changed}, quantiles=(1, 2, 3, 4, 5, 6, 7))


def test_disguised_columns_are_those_with_a_reason():
    plain = ColumnProfile(name="a", type="int64", role="numeric")
    disguised = ColumnProfile(name="b", type="int64", role="numeric", disguise="equal to the label")
    assert facts(plain, disguised).disguises == (disguised,)


def test_json_has_no_values_that_json_lacks():
    column = ColumnProfile(
        name="a",
        type="double",
        role="numeric",
        numbers=numbers(skewness=math.nan, max=math.inf),
        vocabulary=DistinctCount(sample=3, table=4, error=0.0, once=0.5),
    )
    document = json.loads(json.dumps(facts(column).to_json(), allow_nan=False))
    [found] = document["columns"]
    assert found["numbers"]["skewness"] is None
    assert found["numbers"]["max"] is None
    assert found["vocabulary"] == {"sample": 3, "table": 4, "error": 0.0, "once": 0.5}


def test_a_table_is_clustered_where_runs_are_as_long_as_sessions():
    def session(run_rows: float) -> SessionCandidate:
        return SessionCandidate(column="s", score=1, reason="", rows_per_key=10, run_rows=run_rows, repeated={})

    assert session(9.0).clustered
    assert not session(1.1).clustered
