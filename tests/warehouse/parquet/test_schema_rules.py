"""The rules for drifted files: declared, missing and extra columns; values against pyarrow's casts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_schemas import RULES, VALUES, same
from warehouse_samples import write

from feedline import Pipeline
from feedline.errors import PlanError, SpecError, TableError
from feedline.warehouse.discovery.hive import discover
from feedline.warehouse.parquet.schemas import SchemaRules, conform, union, widens, without_dictionaries
from feedline.warehouse.reading.read import ReadRequest, read_arrow
from feedline.warehouse.selection.select import SPLIT_ROWS, plan_fragments, screen_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import snapshot_of


def snapshot(root: str, **rules: Any) -> Snapshot:
    return snapshot_of(discover(root), rules=SchemaRules(**rules))


def rows(taken: Snapshot) -> pa.Table:
    fragments = plan_fragments(taken, screen_rows(taken, None), SPLIT_ROWS)
    return pa.concat_tables([read_arrow(part, ReadRequest(taken.schema.names, taken.schema)) for part in fragments])


@pytest.mark.parametrize(
    ("one", "other", "kind"), [rule for rule in RULES if rule[2] is not None and VALUES.keys() >= set(rule[:2])]
)
def test_each_rule_of_the_union_is_read_as_pyarrow_casts(
    tmp_path: Path, one: pa.DataType, other: pa.DataType, kind: pa.DataType
) -> None:
    for folder, kinds in {"as-listed": (one, other), "turned": (other, one)}.items():
        tables = [pa.table({"x": pa.array(VALUES[stored], stored)}) for stored in kinds]
        files = dict(zip(("a.parquet", "b.parquet"), tables, strict=True))
        taken = snapshot(write(tmp_path / folder, files))
        expected_kind = taken.schema.field("x").type
        assert expected_kind == kind or (pa.types.is_struct(kind) and set(expected_kind) == set(kind))
        stored = [pq.read_table(tmp_path / folder / name)["x"].combine_chunks() for name in files]
        plain = [part.dictionary_decode() if pa.types.is_dictionary(part.type) else part for part in stored]
        expected = pa.concat_arrays([part.cast(expected_kind) for part in plain])
        found = rows(taken)["x"].combine_chunks()
        assert found.type == expected.type
        assert found.to_pylist() == expected.to_pylist()


@given(st.sampled_from(list(VALUES)), st.sampled_from(list(VALUES)))
def test_widening_loses_nothing(stored: pa.DataType, declared: pa.DataType) -> None:
    declared = without_dictionaries(declared)
    if not widens(without_dictionaries(stored), declared):
        return
    values = VALUES[stored]
    read = conform(pa.array(values, stored), declared)
    assert read.type == declared
    assert all(same(value, item) for value, item in zip(values, read.to_pylist(), strict=True))


@pytest.mark.parametrize(
    ("stored", "declared", "fits"),
    [
        (pa.int8(), pa.int64(), True),
        (pa.int64(), pa.int32(), False),
        (pa.uint8(), pa.int16(), True),
        (pa.uint64(), pa.int64(), False),
        (pa.int32(), pa.uint64(), False),
        (pa.int16(), pa.float32(), True),
        (pa.int32(), pa.float32(), False),
        (pa.int32(), pa.float64(), True),
        (pa.uint32(), pa.float64(), True),
        (pa.int64(), pa.float64(), False),
        (pa.int8(), pa.float16(), True),
        (pa.float32(), pa.float64(), True),
        (pa.float64(), pa.float32(), False),
        (pa.float32(), pa.int64(), False),
        (pa.bool_(), pa.int8(), False),
        (pa.int64(), pa.string(), False),
        (pa.large_string(), pa.string(), True),
        (pa.string(), pa.large_string(), True),
        (pa.binary(), pa.string(), False),
        (pa.string(), pa.binary(), False),
        (pa.binary(4), pa.binary(), True),
        (pa.timestamp("ms"), pa.timestamp("us"), True),
        (pa.timestamp("ns"), pa.timestamp("us"), False),
        (pa.timestamp("us"), pa.timestamp("us", "UTC"), False),
        (pa.timestamp("us", "Europe/Berlin"), pa.timestamp("us", "UTC"), True),
        (pa.date32(), pa.timestamp("us"), False),
        (pa.decimal128(5, 2), pa.decimal128(9, 4), True),
        (pa.decimal128(9, 2), pa.decimal128(9, 4), False),
        (pa.null(), pa.list_(pa.string()), True),
        (pa.list_(pa.int8()), pa.list_(pa.int64()), True),
        (pa.large_list(pa.int64()), pa.list_(pa.int64()), True),
        (pa.list_(pa.int64()), pa.list_(pa.int32()), False),
        (pa.list_(pa.int64()), pa.int64(), False),
        (pa.list_(pa.list_(pa.int16())), pa.list_(pa.list_(pa.float32())), True),
        (pa.struct({"a": pa.int8()}), pa.list_(pa.int8()), False),
    ],
)
def test_declared_types_accept_what_widens(stored: pa.DataType, declared: pa.DataType, fits: bool) -> None:
    assert widens(stored, declared) is fits


def test_declared_types_are_read(tmp_path: Path) -> None:
    old = pa.table({"price": pa.array([1, None], pa.int16()), "ids": pa.array([[1], None], pa.list_(pa.int32()))})
    new = pa.table({"ids": pa.array([[2]], pa.large_list(pa.int64())), "price": pa.array([0.1], pa.float32())})
    later = pa.table({"price": pa.nulls(1), "ids": pa.array([[3]], pa.list_(pa.int8())), "word": ["w"]})
    root = write(tmp_path, {"a.parquet": old, "b.parquet": new, "c.parquet": later})
    kinds = {"price": pa.float64(), "ids": pa.list_(pa.int64()), "never": pa.timestamp("us", "UTC")}
    taken = snapshot(root, columns=kinds)
    assert taken.schema == pa.schema(
        {"price": pa.float64(), "ids": pa.list_(pa.int64()), "word": pa.string(), "never": pa.timestamp("us", "UTC")}
    )
    found = rows(taken)
    prices = [table["price"].cast(pa.float64()).combine_chunks() for table in (old, new, later)]
    assert found["price"].combine_chunks().equals(pa.concat_arrays(prices))
    assert found["ids"].to_pylist() == [[1], None, [2], [3]]
    assert found["word"].to_pylist() == [None, None, None, "w"]
    assert found["never"].to_pylist() == [None] * 4
    bounds = [(fact["min"], fact["max"], fact["nulls"]) for fact in taken.column_facts("price").to_pylist()]
    tenth = pa.scalar(0.1, pa.float32()).as_py()
    assert bounds == [(1.0, 1.0, 1), (tenth, tenth, 0), (None, None, 1)]
    assert [fact["nulls"] for fact in taken.column_facts("never").to_pylist()] == [2, 1, 1]


def test_a_type_that_does_not_widen_names_column_file_and_types(tmp_path: Path) -> None:
    root = write(tmp_path, {"a.parquet": pa.table({"x": [0.5]}), "b.parquet": pa.table({"x": [1]})})
    with pytest.raises(
        TableError,
        match=r"column 'x' of .*a\.parquet does not widen into its declared type: got double, expected a type",
    ):
        snapshot(root, columns={"x": pa.float32()})
    with pytest.raises(TableError, match=r"column 'x' of .*b\.parquet .*: got int64, expected a type that double"):
        snapshot(root, columns={"x": pa.float64()})
    with pytest.raises(TableError, match="column 'x' is a partition key: declare its type among `partitions`"):
        union([("f", pa.schema({"y": pa.int8()}))], SchemaRules(columns={"x": pa.int8()}), keys={"x"})


def test_an_extra_column_is_ignored_or_an_error(tmp_path: Path) -> None:
    root = write(tmp_path, {"k=1/a.parquet": pa.table({"x": [1]}), "k=1/b.parquet": pa.table({"x": [2], "y": [3]})})
    kept = snapshot(root, columns={"x": pa.int64()})
    assert kept.schema.names == ["x", "y", "k"]
    assert rows(kept)["y"].to_pylist() == [None, 3]
    with pytest.raises(TableError, match=r"column 'y' of .*b\.parquet is not expected: `columns` names x"):
        snapshot(root, columns={"x": pa.int64()}, extra_error=True)
    assert snapshot(root, columns={"x": pa.int64(), "y": pa.int64()}, extra_error=True).schema.names == ["x", "y", "k"]


# -- through pipeline.yaml --------------------------------------------------------------------------------------------


def pipeline(folder: Path, schema: str, where: str = "true_", dense: str = "price") -> Pipeline:
    text = f"""
version: 1
name: rules
work_dir: work
source:
  table: t
  schema: {schema}
{"" if where == "true_" else f"  where: {where}"}
features:
  dense: {{{dense}: [{{fill_null: 0}}]}}
  label: {{clicked: []}}
batch: {{size: 2, tail: partial}}
shuffle: off
"""
    (folder / "p.yaml").write_text(text)
    return Pipeline.from_yaml(folder / "p.yaml")


@pytest.fixture
def drifted(tmp_path: Path) -> Path:
    """Two days; the first has no price."""
    write(
        tmp_path / "t",
        {
            "ds=2026-01-01/a.parquet": pa.table({"clicked": [1, 0], "age": [5, 6]}),
            "ds=2026-01-02/b.parquet": pa.table(
                {"clicked": [1, 1], "age": [7, 8], "price": pa.array([3, 4], pa.int32())}
            ),
        },
    )
    return tmp_path


def delivered(pipeline: Pipeline) -> list[float]:
    return [value for batch in pipeline.batches() for value in batch["price"].tolist()]


def test_a_missing_column_is_null_or_an_error(drifted: Path) -> None:
    assert delivered(pipeline(drifted, "{missing: null}")) == [0, 0, 3, 4]
    strict = "{missing: error}"
    with pytest.raises(SpecError, match=r"p\.yaml:7.*column 'price' is not in .*ds=2026-01-01/a\.parquet: got 1 files"):
        pipeline(drifted, strict).plan()
    # a file that the partition keys rule out is not asked, one that its missing column rules out is
    assert delivered(pipeline(drifted, strict, where='ds > "2026-01-01"')) == [3, 4]
    with pytest.raises(SpecError, match=r"column 'price' is not in .*ds=2026-01-01/a\.parquet"):
        pipeline(drifted, strict, where="price > 0", dense="age").plan()
    with pytest.raises(SpecError, match=r"column 'price' is not in .*ds=2026-01-01/a\.parquet"):
        pipeline(drifted, strict, where='ds > "2026-01-01" or price > 0', dense="age").plan()


def test_declared_columns_reach_the_batches(drifted: Path) -> None:
    rules = "{columns: {price: double, clicked: int64, age: int, later: list<int64>}, extra: error}"
    plan = pipeline(drifted, rules).plan()
    assert plan.source.snapshot.schema.field("price").type == pa.float64()
    assert delivered(pipeline(drifted, rules)) == [0, 0, 3, 4]
    with pytest.raises(TableError, match=r"column 'price' of .* is not expected"):
        pipeline(drifted, "{columns: {clicked: int, age: int}, extra: error}").plan()
    with pytest.raises(SpecError, match=r"p\.yaml:7.*names? .*type"):
        pipeline(drifted, "{columns: {price: float128}}")
    with pytest.raises(TableError, match="does not widen into its declared type: got int32, expected a type that int8"):
        pipeline(drifted, "{columns: {price: int8}}").plan()
    with pytest.raises(SpecError, match="column 'never' is not in"):
        pipeline(drifted, "{columns: {never: int8}, missing: error}", dense="never").plan()
    with pytest.raises((SpecError, PlanError)):
        pipeline(drifted, "{missing: null}", dense="never").plan()
