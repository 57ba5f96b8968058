"""Tables whose repeated columns are stored once per run: every row comes back, bit for bit, from the files alone."""

from __future__ import annotations

import math
import re
import runpy
import struct
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
import xxhash
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from optimized import CLUSTERED, files_of, in_arrow, multiset, rewrite, stored_row_groups, warehouse

from feedline import Table
from feedline.errors import TableArgumentError, TableError
from feedline.warehouse.optimize.landing import Target
from feedline.warehouse.parquet.writer import Encoding, Limits, TableFormat, TableWriter, leaf_paths

QUIET, LOUD = (struct.unpack("<d", struct.pack("<Q", bits))[0] for bits in (0x7FF8000000000001, 0xFFF8000000000000))
VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "x": (pa.float64(), [0.0, -0.0, QUIET, LOUD, 1.5, None]),
    "ids": (pa.list_(pa.int64()), [[1, 2], [], None, [None], [1]]),
    "scores": (pa.large_list(pa.float32()), [[0.0], [-0.0], [math.nan], None]),
    "word": (pa.string(), ["", "a", None]),
    "vector": (pa.list_(pa.float32(), 2), [[1.0, 2.0], [1.0, -0.0], None]),
    "user": (pa.struct([("a", pa.int8()), ("b", pa.list_(pa.int8()))]), [{"a": 1, "b": []}, {"a": None, "b": [1]}]),
    "map": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [("k", None)], [], None]),
    "kind": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", None]),
}  # fmt: skip


def bits(value: Any) -> Any:
    """The value with its floats as bytes, which compare bit by bit."""
    if isinstance(value, float):
        return struct.pack("<d", value)
    if isinstance(value, list | tuple):
        return [bits(each) for each in value]
    return {name: bits(each) for name, each in value.items()} if isinstance(value, dict) else value


def rows_of(table: pa.Table, names: list[str]) -> list[Any]:
    return [bits([row[name] for name in names]) for row in table.to_pylist()]


def expanded(paths: list[Path]) -> pa.Table:
    """The rows of files with each run's first row repeated, by pandas; the flags left out."""
    parts = []
    for table, content, _ in stored_row_groups(paths):
        for name, group in content["groups"].items():
            flags = table[f"__run_{name}"].to_numpy()
            first = pd.Series(np.where(flags, np.arange(len(flags)), np.nan)).ffill().astype("int64")
            for column in group["columns"]:
                place = table.column_names.index(column)
                table = table.set_column(place, column, table[column].take(pa.array(first)))
            table = table.drop_columns([f"__run_{name}"])
        parts.append(table)
    return pa.concat_tables(parts)


@st.composite
def tables(draw: st.DrawFn) -> tuple[pa.Table, dict[str, list[str]]]:
    names = draw(st.permutations(sorted(VALUES)))
    rows = draw(st.integers(0, 14))
    columns = {}
    for name in names:
        kind, values = VALUES[name]
        pool = draw(st.lists(st.sampled_from(values), min_size=1, max_size=2))
        columns[name] = pa.array(draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows)), kind)
    columns["key"] = pa.array(np.arange(rows) // 4)
    first, second = draw(st.integers(1, 4)), draw(st.integers(0, 4))
    groups = {"one": names[:first]} | ({"two": names[first : first + second]} if second else {})
    return pa.table(columns), groups


@examples(50, by_day=8)
@given(case=tables(), group_rows=st.integers(1, 6), one_file=st.booleans(), cut=st.integers(1, 5), keyed=st.booleans())
def test_files_give_back_every_row(
    tmp_path_factory: pytest.TempPathFactory, case: Any, group_rows: int, one_file: bool, cut: int, keyed: bool
) -> None:
    table, groups = case
    folder = tmp_path_factory.mktemp("files")
    required = pa.schema([field.with_nullable(table[field.name].null_count > 0) for field in table.schema])
    table = pa.Table.from_arrays(table.columns, schema=required)
    format = TableFormat(
        schema=required,
        encodings=[Encoding(leaf=leaf, encoding="DICTIONARY", codec="none") for leaf in leaf_paths(required)],
        limits=Limits(row_group_rows=group_rows, row_group_bytes=None, file_bytes=1 << 30 if one_file else 1),
        groups=groups,
        keys=["key"] if keyed else [],
    )
    writer = TableWriter(pafs.LocalFileSystem(), str(folder), "part", format, note={}, suffix=".parquet")
    for start in range(0, table.num_rows, cut):
        writer.write(table.slice(start, cut))
    written = [folder / file.name for file in writer.close()]
    assert len(written) == 1 if one_file else max(1, -(-table.num_rows // group_rows))
    done = 0
    for stored, content, index in stored_row_groups(written):
        assert stored.column_names == [*table.column_names, *(f"__run_{name}" for name in groups)]
        for name, columns in groups.items():
            rows = rows_of(table.slice(done, stored.num_rows), [*columns, *(["key"] if keyed else [])])
            flags = [at == 0 or row != rows[at - 1] for at, row in enumerate(rows)]
            assert stored[f"__run_{name}"].to_pylist() == flags, "a run starts exactly where it must"
            digest = xxhash.xxh3_64(np.packbits(flags, bitorder="little").tobytes()).hexdigest()
            assert content["groups"][name]["columns"] == columns
            assert content["groups"][name]["row_groups"][index] == [len(flags), sum(flags), digest]
            for column in columns:
                assert (
                    stored[column].filter(pa.array(flags)).null_count + flags.count(False) == stored[column].null_count
                )
        done += stored.num_rows
    assert done == table.num_rows
    if done:
        back = expanded(written)
        assert back.schema.types == table.schema.types
        assert rows_of(back, table.column_names) == rows_of(table, table.column_names)


GROUPS = (("user", ("word", "ids", "holes")), ("cost", ("price",)))


@pytest.mark.parametrize("memory_bytes", [pytest.param(None, marks=pytest.mark.nightly), 24_000])
def test_a_clustered_table_comes_back_from_every_partition_and_unit(tmp_path: Path, memory_bytes: int | None) -> None:
    source = warehouse(tmp_path / "in", days=2, rows=300)
    report = rewrite(source, tmp_path / "out", **CLUSTERED, dedup=GROUPS, memory_bytes=memory_bytes)
    rewrite(source, tmp_path / "plain", **CLUSTERED, memory_bytes=memory_bytes)
    for day in ("ds=2026-01-01", "ds=2026-01-02"):
        files, plain = files_of(tmp_path / "out" / day), files_of(tmp_path / "plain" / day)
        whole = pa.concat_tables([pq.read_table(path, partitioning=None) for path in plain])
        assert rows_of(expanded(files), whole.column_names) == rows_of(whole, whole.column_names)
    before, after, runs = {}, {}, {"user": 0, "cost": 0}
    for sizes, root in ((before, source), (after, tmp_path / "out")):
        for path in files_of(root):
            metadata = pq.read_metadata(path)
            for group in range(metadata.num_row_groups):
                for index in range(metadata.num_columns):
                    chunk = metadata.row_group(group).column(index)
                    name = chunk.path_in_schema.split(".")[0]
                    sizes[name] = sizes.get(name, 0) + chunk.total_compressed_size
    for stored, _, _ in stored_row_groups(files_of(tmp_path / "out")):
        for name in runs:
            runs[name] += stored[f"__run_{name}"].to_numpy().sum()
    for (name, columns), saving in zip(GROUPS, report.groups, strict=True):
        assert (saving.group, saving.columns, saving.rows, saving.runs) == (name, columns, 1800, runs[name])
        assert saving.bytes_before == sum(before[column] for column in columns)
        assert saving.bytes_after == sum(after[column] for column in (*columns, f"__run_{name}"))
    assert report.groups[0].factor > 8 > report.groups[1].factor
    assert not {"word", "ids"} & set(report.non_null)
    assert "event" in report.non_null


def test_groups_are_part_of_what_a_finished_partition_was_written_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = warehouse(tmp_path / "in", days=2, rows=100), tmp_path / "out"
    user: dict[str, Any] = {**CLUSTERED, "dedup": GROUPS[:1]}
    landed = []

    def land(self: Target, folder: str, *args: Any, **kwargs: Any) -> None:
        if landed:
            raise TableArgumentError("stopped")
        landed.append(folder)
        whole(self, folder, *args, **kwargs)

    whole = Target.land
    with monkeypatch.context() as patch:
        patch.setattr(Target, "land", land)
        with pytest.raises(TableArgumentError, match="stopped"):
            rewrite(source, target, **user)
    assert [report.written for report in (rewrite(source, target, **user), rewrite(source, target, **user))] == [1, 0]
    assert multiset(expanded(files_of(target))) == multiset(in_arrow(source).drop_columns(["ds"]))
    assert rewrite(source, target, **{**CLUSTERED, "dedup": GROUPS}).written == 2
    assert rewrite(source, target, **CLUSTERED, expand=True).written == 2
    assert rewrite(source, target, **CLUSTERED).written == 0, "the plain table has the note that it always had"


@pytest.fixture(scope="module")
def fences() -> list[str]:
    page = (Path(__file__).parents[3] / "docs" / "dedup.md").read_text(encoding="utf-8")
    section = page[page.index("\n## Other engines") : page.index("\n## Is it worth it?")]
    return re.findall(r"```(?:sql|python fragment[^\n]*)\n(.*?)```", section, re.DOTALL)


def test_the_documented_queries_give_the_rows_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fences: list[str]
) -> None:
    session = np.repeat(np.arange(40), 10)
    hist = [None if one % 3 == 0 else [one] * (one % 4) for one in np.arange(400) // 4]
    table = pa.table(
        {
            "session_id": session,
            "ts": np.arange(400),
            "price": np.arange(400) / 8,
            "user_id": pa.array(session // 2, mask=session % 5 == 0),
            "hist_0": pa.array(hist, pa.list_(pa.int64())),
            "hist_1": pa.array([[] if one is None else None for one in hist], pa.list_(pa.int64())),
        }
    )
    (tmp_path / "in").mkdir()
    pq.write_table(table, tmp_path / "in" / "all.parquet")
    groups = (("user", ("user_id", "hist_0", "hist_1")),)
    limits: dict[str, Any] = {"row_group_rows": 64, "file_bytes": 3000, "goal": "size"}
    rewrite(tmp_path / "in", tmp_path / "clicks-dedup", cluster_by=("session_id",), dedup=groups, **limits)
    files = files_of(tmp_path / "clicks-dedup")
    assert len(files) > 1
    assert pq.ParquetFile(files[0]).num_row_groups > 1
    monkeypatch.chdir(tmp_path)
    view, fill = fences
    with duckdb.connect() as engine:
        engine.execute(view)
        rows = engine.sql("SELECT * FROM clicks ORDER BY ts").to_arrow_table()
        few = engine.sql("SELECT hist_0 FROM clicks WHERE ts % 7 = 3 ORDER BY ts").to_arrow_table()
    assert rows.column_names == table.column_names
    assert rows.to_pylist() == table.to_pylist()
    assert few.to_pylist() == table.select(["hist_0"]).take(np.arange(3, 400, 7)).to_pylist()
    by_time = {row["ts"]: row for row in table.to_pylist()}
    (tmp_path / "fill.py").write_text(fill)
    frame = runpy.run_path("fill.py")["rows"]
    assert frame.height == pq.read_metadata(files[0]).num_rows
    assert frame.to_dicts() == [by_time[ts] for ts in frame["ts"]]


def test_a_column_named_like_flags_is_a_column(tmp_path: Path) -> None:
    """Unless the file may be a copy of one with groups, from which a tool dropped the metadata."""
    table = pa.table({"a": [1, 1, 2], "__run_user": [True, False, False], "__run_first": [True, None, True]})
    pq.write_table(table, tmp_path / "in.parquet")
    rewrite(tmp_path / "in.parquet", tmp_path / "out", dedup=(("item", ("a",)),))
    assert Table(str(tmp_path / "out")).read().to_pylist() == table.to_pylist()
    with pytest.raises(
        TableArgumentError, match="--dedup user needs a column '__run_user' for its flags, and the table"
    ):
        rewrite(tmp_path / "in.parquet", tmp_path / "again", dedup=(("user", ("a",)),))
    all_first = pa.table({"a": [1, None, 2], "__run_user": [True, True, True]})
    pq.write_table(all_first, tmp_path / "first.parquet")
    assert Table(str(tmp_path / "first.parquet")).read().equals(all_first)
    pq.write_table(pa.table({"a": [1, None, 2], "__run_user": [True, False, True]}), tmp_path / "copy.parquet")
    with pytest.raises(
        TableError, match=r"has a column '__run_user' without the metadata 'feedline\.dedup', and nulls"
    ):
        rewrite(tmp_path / "copy.parquet", tmp_path / "other")


@pytest.mark.nightly
def test_a_table_in_place_is_rewritten_as_the_plain_one(tmp_path: Path) -> None:
    """Its groups are kept, replaced or expanded, in another order of rows: every file has the bytes that it gets from
    the plain table, apart from the note that names the sources."""
    source = warehouse(tmp_path / "in", days=1, rows=400, files=2)
    rewrite(source, tmp_path / "stored", **CLUSTERED, dedup=GROUPS)
    rewrite(source, tmp_path / "plain", **CLUSTERED)
    other: dict[str, Any] = {"cluster_by": ("word",), "sort_by": ("event",), "row_group_rows": 150}
    for number, (mine, theirs) in enumerate(
        [({}, {"dedup": GROUPS}), ({"dedup": GROUPS[:1]}, {"dedup": GROUPS[:1]}), ({"expand": True}, {})]
    ):
        rewrite(tmp_path / "stored", tmp_path / f"from-stored-{number}", **other, **mine)
        rewrite(tmp_path / "plain", tmp_path / f"from-plain-{number}", **other, **theirs)
        found, wanted = (
            [pq.ParquetFile(path) for path in files_of(tmp_path / f"from-{name}-{number}")]
            for name in ("stored", "plain")
        )
        assert [file.read().equals(that.read()) for file, that in zip(found, wanted, strict=True)] == [True] * len(
            found
        )
        notes = [file.metadata.metadata.get(b"feedline.dedup") for file in found]
        assert notes == [file.metadata.metadata.get(b"feedline.dedup") for file in wanted]
        assert all(notes) == bool(theirs)


REQUIRED = pa.field("element", pa.int32(), nullable=False)
STRUCTS = pa.struct([pa.field("a", pa.int8(), nullable=False)])


@pytest.mark.parametrize("dedup", [(), (("g", ("x",)),)])
@pytest.mark.parametrize(
    ("kind", "row"),
    [
        (pa.list_(REQUIRED, 2), [1, 2]),
        (pa.list_(STRUCTS, 2), [{"a": 1}, {"a": 2}]),
        (pa.list_(pa.field("element", STRUCTS, nullable=False), 2), [{"a": 1}, {"a": 2}]),
    ],
)
def test_vectors_of_required_elements_may_be_null(
    tmp_path: Path, kind: pa.DataType, row: list[Any], dedup: Any
) -> None:
    table = pa.table({"x": pa.array([row, row, None, None, row], kind), "y": range(5)})
    pq.write_table(table, tmp_path / "in.parquet")
    rewrite(tmp_path / "in.parquet", tmp_path / "out", dedup=dedup)
    assert Table(str(tmp_path / "out")).read().to_pylist() == table.to_pylist()
