"""The report lists the row groups that were not read, by reason."""

from __future__ import annotations

from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
from selected_numbers import numbers

from feedline.expressions import bind_where
from feedline.warehouse.reading.row_filter import SAMPLED, UNSAMPLED, WHERE_TRUE
from feedline.warehouse.reading.sample import Sample, bind_sample
from feedline.warehouse.selection.pruning_report import deciding_parts
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot


def test_the_report_lists_pruned_row_groups_by_reason(ladder: Snapshot, tmp_path: Path) -> None:
    where = bind_where('ds == "2026-01-02" and x >= 35', ladder.schema)
    selection = select_rows(ladder, where, work_dir=str(tmp_path / "w"))
    assert numbers(selection) == {
        "by_partition": (10, 100),
        "by_statistics": (3, 30),
        "whole": (6, 60),
        "counted": (1, 10),
        "kept": (7, 65),
    }
    assert selection.rows.tolist() == [0] * 13 + [5] + [10] * 6
    size = duckdb.sql(
        "select total_compressed_size from parquet_metadata(?) where path_in_schema = 'x' and row_group_id = 3",
        params=[f"{ladder.uri}/ds=2026-01-02/f.parquet"],
    ).fetchall()[0][0]
    assert selection.report.counted_bytes == size


def test_columns_are_needed_only_in_row_groups_that_nothing_decides() -> None:
    schema = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("k", pa.int64())])
    where = bind_where("a > 1", schema)
    sample = bind_sample(Sample(fraction=0.5, seed=1, key=("k",), where="b == 0"), schema)
    proofs = np.array([0, WHERE_TRUE, UNSAMPLED, SAMPLED, WHERE_TRUE | UNSAMPLED], np.uint8)
    found = [(set(names), at.tolist()) for names, at in deciding_parts(proofs, where, sample)]
    assert found == [
        ({"a"}, [True, False, True, True, False]),
        ({"b"}, [True, True, False, False, False]),
        ({"k"}, [True, True, False, True, False]),
    ]
    whole = np.array([True, False, False, False, False])
    weighed = [at.tolist() for _, at in deciding_parts(proofs, where, sample, whole=whole, weigh=True)]
    assert weighed[0][0] is False
    assert weighed[1][0] is True  # the weight of a row that stays
    assert weighed[2][0] is False


def test_without_filter_and_sample_nothing_is_needed() -> None:
    assert [names for names, _ in deciding_parts(np.zeros(2, np.uint8), None, None)] == [frozenset()] * 3
