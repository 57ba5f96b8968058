"""Sessions: candidates by name and values, repeats and groups within them."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from feedline.workbench.profile.profile_table import candidate_columns, measure_session, slot_bytes
from feedline.workbench.profile.table_facts import ColumnProfile, DistinctCount, ListLengths


def column(name: str, distinct: int, **changed: object) -> ColumnProfile:
    count = DistinctCount(sample=distinct, table=distinct, error=0, once=0)
    return ColumnProfile(**{"name": name, "type": "int64", "role": "category", "vocabulary": count, **changed})


def test_candidates_have_several_rows_per_value():
    columns = [
        column("color", 5),
        column("row_id", 10_000),
        column("price", 2_000, type="double", role="numeric"),
        column("shop", 1_000, repeated=0.5),
        column("session_id", 1_000),
        column("day", 500, partition=True),
    ]
    assert candidate_columns(columns, 10_000) == ["session_id", "shop"]
    assert candidate_columns(columns, 0) == []


def test_bytes_are_those_of_the_likely_feature():
    lengths = ListLengths(mean=5, p50=5, p95=9, p99=9, max=9, empty_rate=0)
    assert slot_bytes(column("a", 1, role="list", lengths=lengths)) == 12 + 40
    assert slot_bytes(column("a", 1, role="numeric")) == 4
    assert slot_bytes(column("a", 1, role="nested")) == 0


@pytest.mark.parametrize("clustered", [True, False])
def test_columns_that_repeat_within_sessions_are_grouped(clustered: bool):
    random = np.random.default_rng(0)
    session = np.repeat(np.arange(500), 10)
    user, history = session * 3, [[int(one)] * 20 for one in session]
    item = random.permutation(5000)
    order = np.arange(5000) if clustered else random.permutation(5000)
    frame = pl.DataFrame({"session": session, "user": user, "history": history, "item": item})[order]
    row_bytes = {"session": 8.0, "user": 8.0, "history": 172.0, "item": 8.0}
    found = measure_session(column("session", 500), frame, np.zeros(5000, np.int64), row_bytes)
    assert found.rows_per_key == 10
    assert found.clustered is clustered
    assert found.repeated == {"user": 1.0, "history": 1.0}
    [group] = found.groups
    assert set(group.columns) == {"user", "history"}
    assert group.factor == 10
    assert found.saved_share == pytest.approx((180 * 0.9 - 4) / 196)


def test_rows_of_other_row_groups_are_other_sessions():
    frame = pl.DataFrame({"session": [1, 1, 1, 1], "x": [5, 5, 5, 5]})
    found = measure_session(column("session", 1), frame, np.array([0, 0, 1, 1]), {"x": 8.0})
    assert found.rows_per_key == 2
