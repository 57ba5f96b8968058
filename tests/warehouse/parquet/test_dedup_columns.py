"""Columns that are stored once per run: their metadata, their writing, and what is refused."""

from __future__ import annotations

import json
import re
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash

from feedline.errors import TableError
from feedline.warehouse.parquet.dedup_columns import (
    METADATA_KEY,
    DedupMetadata,
    GroupRuns,
    RowGroupRuns,
    check_flags,
    dedup_metadata,
    dedup_table,
    is_group_name,
)

FLAGS = np.array([1, 0, 0, 1, 0, 0, 0, 0, 1, 0], bool)
RUNS = RowGroupRuns.of(FLAGS)
METADATA = DedupMetadata(groups={"user": GroupRuns(columns=("a", "b"), row_groups=(RUNS,))})
COLUMNS = ("a", "b", "c", "__run_user")


def schema_of(*names: str) -> pa.Schema:
    return pa.schema([(name, pa.bool_() if name.startswith("__run_") else pa.int64()) for name in names])


def test_metadata_comes_back_from_json():
    digest = xxhash.xxh3_64(bytes([0b00001001, 0b00000001])).hexdigest()
    body = {"version": 1, "groups": {"user": {"columns": ["a", "b"], "row_groups": [[10, 3, digest]]}}}
    assert json.loads(METADATA.to_json()) == body
    assert DedupMetadata.from_json(METADATA.to_json(), "x.parquet") == METADATA
    assert RowGroupRuns.of(np.zeros(0, bool)).rows == 0


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda _: None, "no groups"),
        (lambda body: body | {"groups": []}, "no groups"),
        (lambda body: body | {"groups": {"a b": body["groups"]["user"]}}, "a bad group name 'a b'"),
        (lambda body: body | {"groups": {"user": 1}}, "no mapping in group 'user'"),
        (lambda body: user(body, columns=[]), "no list of columns in group 'user'"),
        (lambda body: user(body, columns=[1]), "no list of columns in group 'user'"),
        (lambda body: user(body, columns=["a", "a"]), "a column twice"),
        (lambda body: user(body, row_groups=None), "no row groups in group 'user'"),
        (lambda body: user(body, row_groups=[[10, 3]]), "a row group that is no [rows, runs, digest]"),
        (lambda body: user(body, row_groups=[[10, 11, "0" * 16]]), "the row group [10, 11, "),
        (lambda body: user(body, row_groups=[[10, 0, "0" * 16]]), "the row group [10, 0, "),
        (lambda body: user(body, row_groups=[[-1, -1, "0" * 16]]), "the row group [-1, -1, "),
        (lambda body: user(body, row_groups=[[10, True, "0" * 16]]), "the row group [10, true, "),
        (lambda body: user(body, row_groups=[[10, 3, "xyz"]]), "the row group [10, 3, "),
    ],
)
def test_malformed_metadata_is_refused_by_name(change: Any, what: str):
    content = json.dumps(change(json.loads(METADATA.to_json()))).encode()
    message = f"metadata 'feedline.dedup' of x.parquet is malformed: it holds {what}"
    with pytest.raises(TableError, match=re.escape(message)):
        DedupMetadata.from_json(content, "x.parquet")


def user(body: dict[str, Any], **parts: Any) -> dict[str, Any]:
    return body | {"groups": {"user": body["groups"]["user"] | parts}}


def test_no_json_and_other_versions_are_refused():
    with pytest.raises(TableError, match="malformed: it holds no JSON"):
        DedupMetadata.from_json(b"\xff{", "x.parquet")
    later = json.dumps({"version": 2, "groups": {}}).encode()
    with pytest.raises(TableError, match=r"x\.parquet stores columns .* got version 2 .*, expected 1"):
        DedupMetadata.from_json(later, "x.parquet")


def test_columns_and_row_groups_that_contradict_the_metadata_are_refused():
    notes = {METADATA_KEY: METADATA.to_json()}
    assert dedup_metadata(notes, schema_of(*COLUMNS), [10], "x.parquet") == METADATA
    assert dedup_metadata({}, schema_of("a", "b"), [10], "x.parquet") is None
    assert dedup_metadata(None, schema_of("a"), [], "x.parquet") is None
    assert dedup_metadata(None, schema_of(*COLUMNS), [10], "x.parquet") is None
    assert dedup_metadata(notes, schema_of(*COLUMNS, "__run_item"), [10], "x.parquet") == METADATA, "one of the user's"
    with pytest.raises(TableError, match=r"lacks column '__run_user' of the group 'user'.*expected a, b and __run_"):
        dedup_metadata(notes, schema_of("a", "b"), [10], "x.parquet")
    with pytest.raises(TableError, match=r"lacks column 'b' of the group 'user'"):
        dedup_metadata(notes, schema_of("a", "__run_user"), [10], "x.parquet")
    with pytest.raises(TableError, match=r"row groups of x.parquet .* got 2 of 5, 5 rows, expected 1 of 10\. Another"):
        dedup_metadata(notes, schema_of(*COLUMNS), [5, 5], "x.parquet")


def test_other_flags_are_refused():
    place = "row group 0 of x.parquet"
    assert check_flags(pa.chunked_array([FLAGS[:3], FLAGS[3:]]), RUNS, "user", place).tolist() == FLAGS.tolist()
    assert check_flags(pa.array(FLAGS), RUNS, "user", place).tolist() == FLAGS.tolist()
    swapped = FLAGS[[0, 1, 3, 2, *range(4, 10)]]
    for flags, message in (
        (pa.array(FLAGS.astype("i1")), "is of type int8"),
        (pa.array([*FLAGS[:9].tolist(), None]), "holds 1 nulls"),
        (pa.array(~FLAGS), "is false in the first row"),
        (pa.array(swapped), "got 10 rows in 3 runs .*, expected 10 in 3 .*Another tool rewrote the file"),
        (pa.array(FLAGS[:9]), "got 9 rows in 3 runs"),
    ):
        with pytest.raises(TableError, match=f"'__run_user' of row group 0 of x.parquet .*{message}"):
            check_flags(flags, RUNS, "user", place)


def test_group_names():
    assert all(map(is_group_name, ["user", "user_2", "a.b-c", "0"]))
    assert not any(map(is_group_name, ["", "a b", "a,b", "ü", "a\n", "-a", "a=b"]))


TYPES = {
    "id": (pa.int64(), [4, 5, 6]),
    "number": (pa.int32(), [5, None, 7]),
    "list": (pa.list_(pa.field("element", pa.int64(), nullable=False)), [[1, 2], [], None]),
    "large": (pa.large_list(pa.float32()), [[1.5, None], None, []]),
    "struct": (pa.struct([pa.field("a", pa.int8(), nullable=False), pa.field("b", pa.list_(pa.int8()))]),
               [{"a": 1, "b": [1]}, None, {"a": 2, "b": None}]),
    "map": (pa.map_(pa.string(), pa.float64()), [[("k", 1.0)], None, []]),
    "vector": (pa.list_(pa.field("element", pa.float32(), nullable=False), 2), [[1.0, 2.0], None, [3.0, 4.0]]),
    "word": (pa.large_string(), ["a", None, ""]),
    "category": (pa.dictionary(pa.int32(), pa.string()), ["x", "y", None]),
    "decimal": (pa.decimal128(20, 3), [1, None, 2]),
    "time": (pa.timestamp("ns", "UTC"), [1, 2, None]),
    "nested": (pa.list_(pa.list_(pa.int16())), [[[1], None], None, [[]]]),
}  # fmt: skip


def test_columns_of_any_type_are_null_where_a_row_repeats_the_one_above(tmp_path: Path):
    pick = [0, 0, 0, 1, 1, 2, 0, 0, 0, 0]
    key = [1, 1, 2, 2, 3, 3, 3, 3, 3, 3]
    required = {"id"}
    columns = {name: pa.array([values[choice or 0] for choice in pick], kind) for name, (kind, values) in TYPES.items()}
    schema = pa.schema([pa.field(name, kind, nullable=name not in required) for name, (kind, _) in TYPES.items()])
    table = pa.table({**columns, "key": pa.array(key)}, schema=schema.append(pa.field("key", pa.int64())))
    table = pa.concat_tables([table[:4], table[4:]])
    groups = {"user": [*TYPES], "keys": ["key"]}
    stored, runs = dedup_table(table, groups, ["key"])

    starts = [at for at, _ in groupby(range(10), key=lambda row: (pick[row], key[row]))]
    flags = [row == 0 or (pick[row], key[row]) != (pick[row - 1], key[row - 1]) for row in range(10)]
    assert len(starts) == sum(flags) == 6
    assert runs == {"user": RowGroupRuns.of(np.array(flags)), "keys": RowGroupRuns.of(np.array(key) != [0, *key[:-1]])}
    path = tmp_path / "x.parquet"
    pq.write_table(stored, path)
    for read in (stored, pq.read_table(path)):
        assert read.column_names == [*TYPES, "key", "__run_user", "__run_keys"]
        assert read["__run_user"].to_pylist() == flags
        for name, (kind, _) in TYPES.items():
            assert read.schema.field(name).nullable
            assert read.schema.field(name).type == kind
            values = table[name].to_pylist()
            assert read[name].to_pylist() == [
                value if flag else None for value, flag in zip(values, flags, strict=True)
            ]
    assert not stored.schema.field("__run_user").nullable
    assert dedup_table(table[:0], groups)[1]["user"] == RowGroupRuns.of(np.zeros(0, bool))
