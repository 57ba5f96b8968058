"""Sampling: the set of kept rows against the written definition in plain Python, however a table is cut and read."""

from __future__ import annotations

import datetime
import functools
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from sampling_definition import key_hash, place_hash, stays
from warehouse_samples import write

from feedline.config.source_section import SampleSpec
from feedline.errors import ExpressionError, SpecError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import UNCOUNTED
from feedline.warehouse.reading.read import ReadRequest, read_arrow, read_fragment
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT, Sample, bind_sample, sampled_rows, with_weight
from feedline.warehouse.selection.select import CountTask, Selection, plan_fragments, screen_rows, select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.warehouse.table import Table

fractions = st.one_of(st.sampled_from([1.0, 0.5, 0.1, 1e-30]), st.floats(0.01, 1.0))
seeds = st.integers(0, 2**63 - 1)


@given(st.text(max_size=40), st.integers(0, 10_000), st.integers(0, 60), fractions, seeds)
def test_samples_by_position_follow_the_definition(
    path: str, first: int, rows: int, fraction: float, seed: int
) -> None:
    sample = Sample(fraction=fraction, seed=seed)
    expected = [stays(place_hash(path, first + index, seed), fraction) for index in range(rows)]
    data = pa.record_batch({"x": np.zeros(rows)})
    assert bind_sample(sample, data.schema).hash_mask(data, path, first).tolist() == expected
    assert sampled_rows(sample, path, first, rows) == sum(expected)


@given(st.integers(0, 10_000), st.integers(0, 60), st.floats(0.01, 0.99), seeds, st.booleans())
def test_a_sample_and_its_rest_share_no_row_and_have_all(
    first: int, rows: int, fraction: float, seed: int, by_key: bool
) -> None:
    sample = Sample(fraction=fraction, seed=seed, key=("x",) if by_key else ())
    rest = Sample.of(SampleSpec(fraction=fraction, seed=seed, key=sample.key or None, rest=True))
    assert rest is not None
    assert rest.fitted == sample
    data = pa.record_batch({"x": np.arange(rows) // 3})
    kept, left = (bind_sample(each, data.schema).hash_mask(data, "f", first) for each in (sample, rest))
    assert (kept ^ left).all()
    assert sampled_rows(sample, "f", first, rows) + sampled_rows(rest, "f", first, rows) == rows
    assert rest.weight == pytest.approx(1 / (1 - fraction))
    assert ("rest" in sample.to_json(), rest.to_json()["rest"]) == (False, True)


def test_a_rest_needs_a_sample_of_all_rows() -> None:
    for request in ({"fraction": 1, "rest": True}, {"fraction": 0.5, "where": "x > 0", "rest": True}):
        with pytest.raises(SpecError, match="needs a fraction below 1 and no `where`"):
            Sample.of(request)


KINDS: dict[str, tuple[st.SearchStrategy[Any], list[pa.DataType]]] = {
    "integers": (st.integers(0, 127), [pa.int8(), pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64()]),
    "signed": (st.integers(-(2**31), 2**31 - 1), [pa.int32(), pa.int64()]),
    "large": (st.integers(0, 2**64 - 1), [pa.uint64()]),
    "flags": (st.booleans(), [pa.bool_()]),
    "floats": (st.floats(width=32), [pa.float32(), pa.float64()]),
    "texts": (st.text(max_size=30), [pa.string(), pa.large_string(), pa.string_view()]),
    "bytes": (st.binary(max_size=30), [pa.binary(), pa.large_binary(), pa.binary_view()]),
    "fixed": (st.binary(min_size=4, max_size=4), [pa.binary(4), pa.binary()]),
    "days": (st.dates(), [pa.date32()]),
    "seconds": (
        st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1)).map(
            lambda moment: moment.replace(microsecond=0)
        ),
        [pa.timestamp(unit) for unit in ("s", "ms", "us", "ns")],
    ),
    "moments": (
        st.datetimes(datetime.datetime(1800, 1, 1), datetime.datetime(2200, 1, 1)).map(
            lambda moment: moment.replace(tzinfo=datetime.UTC)
        ),
        [pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin")],
    ),
}


@examples(80)
@given(st.data(), st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3), fractions, seeds)
def test_samples_by_key_follow_the_definition_for_all_types(
    data: st.DataObject, kinds: list[str], fraction: float, seed: int
) -> None:
    count = data.draw(st.integers(0, 12))
    columns = [
        data.draw(st.lists(st.one_of(st.none(), KINDS[kind][0]), min_size=count, max_size=count)) for kind in kinds
    ]
    names = [f"k{index}" for index in range(len(kinds))]
    rows = list(zip(*columns, strict=True))
    expected = [stays(key_hash(row, seed), fraction) for row in rows]
    types = [data.draw(st.sampled_from(KINDS[kind][1])) for kind in kinds]
    batch = pa.record_batch([pa.array(values, kind) for values, kind in zip(columns, types, strict=True)], names)
    sample = bind_sample(Sample(fraction=fraction, seed=seed, key=tuple(names)), batch.schema)
    assert sample.hash_mask(batch, "any", 7).tolist() == expected
    if count:
        assert sample.hash_mask(batch.slice(1), "other", 0).tolist() == expected[1:]


def test_hashes_that_the_documentation_shows() -> None:
    text = (Path(__file__).parents[3] / "docs" / "snapshots.md").read_text(encoding="utf-8")
    placed = re.findall(r"^\| `(.+)`, row (\d+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(placed) == 4
    for path, index, seed, shown in placed:
        assert place_hash(path, int(index), int(seed)) == int(shown)
    keyed = re.findall(r"^\| key (.+) \| (\d+) \| (\d+) \|$", text, re.MULTILINE)
    assert len(keyed) == 10
    meanings = {"null": None, "true": True, "2026-01-01": datetime.date(2026, 1, 1)}
    meanings["2026-01-01 12:00:00"] = datetime.datetime(2026, 1, 1, 12)
    for shown_key, seed, shown in keyed:
        key = [meanings[part] if part in meanings else json.loads(part) for part in shown_key.split(", ")]
        assert key_hash(tuple(key), int(seed)) == int(shown)
        batch = pa.record_batch({f"k{index}": [value] for index, value in enumerate(key)})
        names = tuple(batch.schema.names)
        exact = Sample(fraction=(int(shown) + 2**12) / 2**64, seed=int(seed), key=names)
        below = Sample(fraction=(int(shown) - 2**12) / 2**64, seed=int(seed), key=names)
        assert bind_sample(exact, batch.schema).hash_mask(batch, "f", 0).tolist() == [True]
        assert bind_sample(below, batch.schema).hash_mask(batch, "f", 0).tolist() == [False]


# -- tables ------------------------------------------------------------------------------------------------------------

WHERES = [None, "x >= 20", "x < 35", "y != 2", 'c == "a"', "z is not None and x > 5", "x > 1000"]
SAMPLE_WHERES = [None, "y == 0", "x < 30", "z is None", 'c != "a"', "x >= 0", "z > 0", "x > 1000"]
KEYS = [(), ("u",), ("u", "c"), ("z",)]


def keeps(text: str | None, row: dict[str, Any]) -> bool:
    """The few conditions above, judged by Python with SQL's nulls."""
    if text is None:
        return True
    if text.endswith("is None"):
        return row["z"] is None
    if text.startswith("z is not None"):
        return row["z"] is not None and row["x"] > 5
    name, operator, literal = text.split()
    value = row[name]
    if value is None:
        return False
    other = literal.strip('"') if name == "c" else int(literal)
    return {
        "==": value == other,
        "!=": value != other,
        ">=": value >= other,
        "<": value < other,
        ">": value > other,
    }[operator]


def shop(seed: int, rows: int) -> pa.Table:
    rng = np.random.default_rng(seed)
    x = np.sort(rng.integers(0, 50, rows))
    z = [None if rng.random() < 0.3 else float(value) for value in rng.normal(size=rows).round(1)]
    users = [f"u{value}" for value in rng.integers(0, 9, rows)]
    return pa.table({"x": x, "y": x % 3, "z": pa.array(z, pa.float64()), "u": users, "id": rng.permutation(rows)})


@pytest.fixture(scope="module")
def shops(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("shops")
    tables = {f"c={c}/f{part}.parquet": shop(10 * part + ord(c), 40 + part) for c in "ab" for part in (0, 1)}
    return take_snapshot(write(root, tables, row_group_size=12))


@functools.cache
def stored_rows(uri: str, paths: tuple[str, ...]) -> dict[str, list[list[dict[str, Any]]]]:
    """The rows of each row group of each file, by pyarrow."""
    files = {path: pq.ParquetFile(f"{uri}/{path}") for path in paths}
    return {
        path: [file.read_row_group(group).to_pylist() for group in range(file.num_row_groups)]
        for path, file in files.items()
    }


def oracle(snapshot: Snapshot, where: str | None, sample: Sample) -> tuple[list[dict[str, Any]], list[int], list[int]]:
    """Kept rows with their weights, kept and matched rows per row group: row by row, by pyarrow and Python."""
    kept, counts, matched = [], [], []
    for path, groups in stored_rows(snapshot.uri, tuple(snapshot.files["path"].to_pylist())).items():
        index = 0
        for group in groups:
            counts.append(0)
            matched.append(0)
            for stored in group:
                row = stored | {"c": path[2]}
                index += 1
                if not keeps(where, row):
                    continue
                matched[-1] += 1
                sampled = keeps(sample.where, row)
                key = tuple(row[name] for name in sample.key)
                hashed = key_hash(key, sample.seed) if key else place_hash(path, index - 1, sample.seed)
                if not sampled or stays(hashed, sample.fraction):
                    counts[-1] += 1
                    kept.append(row | {SAMPLE_WEIGHT: 1 / sample.fraction if sampled else 1.0})
    return kept, counts, matched


@examples(30, by_day=5)
@given(
    st.tuples(st.sampled_from(WHERES), st.sampled_from(SAMPLE_WHERES), st.sampled_from(KEYS)),
    st.sampled_from([0.01, 0.3, 0.9, 1]),
    st.integers(0, 5),
    st.sampled_from([5, 30, 1000]),
    st.sampled_from([3, 7, 1000]),
)
def test_counts_and_rows_are_those_of_the_definition(
    shops: Snapshot,
    conditions: tuple[str | None, str | None, tuple[str, ...]],
    fraction: float,
    seed: int,
    split_rows: int,
    chunk_rows: int,
) -> None:
    where, sample_where, key = conditions
    sample = Sample(fraction=fraction, where=sample_where, seed=seed, key=key)
    rows, counts, matched = oracle(shops, where, sample)
    bound = bind_where(where, shops.schema) if where else None
    sampled = bind_sample(sample, shops.schema)
    with tempfile.TemporaryDirectory() as work_dir:
        selection = select_rows(shops, bound, sample=sampled, work_dir=work_dir)
        again = select_rows(shops, bound, sample=sampled, work_dir=work_dir, map=refuse)
    assert selection.rows.tolist() == again.rows.tolist() == counts
    assert selection.verdicts.matched.tolist() == matched
    assert (selection.report.kept.rows, selection.report.matched.rows) == (sum(counts), sum(matched))
    schema = with_weight(shops.schema, None)
    screened = screen_rows(shops, bound, sample=sampled)
    assert all(a in (UNCOUNTED, b) for a, b in zip(screened.rows.tolist(), counts, strict=True))
    asked = ((["id", "c", SAMPLE_WEIGHT], selection), (["id", SAMPLE_WEIGHT], screened), (["x"], selection))
    for names, hash_mask in asked:
        expected = [
            tuple(np.float32(row[name]) if name == SAMPLE_WEIGHT else row[name] for name in names) for row in rows
        ]
        fragments = plan_fragments(shops, hash_mask, split_rows)
        request = ReadRequest(names, schema, bound, sample=sampled, chunk_rows=chunk_rows)
        tables = [read_arrow(fragment, request) for fragment in fragments]
        assert [tuple(row.values()) for table in tables for row in table.to_pylist()] == expected
        frames = [chunk.frame for fragment in fragments for chunk in read_fragment(fragment, request)]
        assert [row for frame in frames for row in frame.rows()] == expected


def refuse(function: object, tasks: list[CountTask]) -> list[tuple[Any, ...]]:
    raise AssertionError("counted again")


def ids(snapshot: Snapshot, **sample: Any) -> list[int]:
    return Table(snapshot.uri).read(["id"], sample=sample)["id"].to_pylist()


def selected(snapshot: Snapshot, work_dir: Path, text: str | None = None, map: Any = None, **sample: Any) -> Selection:
    bound = bind_where(text, snapshot.schema) if text else None
    sampled = bind_sample(Sample.of(sample), snapshot.schema)
    return select_rows(snapshot, bound, sample=sampled, work_dir=str(work_dir), map=map)


def test_nothing_is_read_where_arithmetic_or_statistics_suffice(shops: Snapshot, tmp_path: Path) -> None:
    for sample in (
        {"fraction": 0.3},
        {"fraction": 0.3, "where": 'c == "a"'},
        {"fraction": 0.3, "where": "x >= 0"},
        {"fraction": 0.3, "where": "x > 1000", "key": "u"},
        {"fraction": 1, "where": "z > 0", "key": "u"},
    ):
        selection = selected(shops, tmp_path, map=refuse, **sample)
        report = selection.report
        assert (report.counted.row_groups, report.counted_bytes) == (0, 0)
        assert report.whole.row_groups + report.by_position.row_groups == report.table.row_groups
        assert (report.matched.rows, report.table.rows) == (shops.rows, shops.rows)


def test_counting_reads_only_columns_of_filter_and_sample(shops: Snapshot, tmp_path: Path) -> None:
    def stored(names: set[str], wanted: Any = lambda path, group: True) -> int:
        total = 0
        for path in shops.files["path"].to_pylist():
            metadata = pq.read_metadata(f"{shops.uri}/{path}")
            for group in range(metadata.num_row_groups):
                chunks = [metadata.row_group(group).column(i) for i in range(metadata.num_columns)]
                if wanted(path, metadata.row_group(group)):
                    total += sum(c.total_compressed_size for c in chunks if c.path_in_schema in names)
        return total

    def on_day_a(path: str, group: Any) -> bool:
        return path.startswith("c=a")

    def bytes_of(text: str | None = None, **sample: Any) -> int:
        return selected(shops, tmp_path, text, **sample).report.counted_bytes

    assert bytes_of(fraction=0.3, key=["u"]) == stored({"u"})
    assert bytes_of(fraction=0.3, key=["u", "c"]) == stored({"u"})
    assert bytes_of(fraction=0.3, where="z != 0.5", key=["u", "z"]) == stored({"u", "z"})
    assert bytes_of(fraction=0.3, where="z != 0.5") == stored({"z"})
    assert bytes_of('c == "a"', fraction=0.3, where="z != 0.5") == stored({"z"}, on_day_a)
    assert bytes_of(fraction=0.3, where='c == "a"', key="u") == stored({"u"}, on_day_a)
    assert bytes_of("u.str.len_chars() > 1", fraction=0.3) == stored({"u"})
    assert bytes_of("u.str.len_chars() > 1", fraction=0.3, where="u is None", key="u") == stored({"u"})


def test_counts_are_stored_per_sample(shops: Snapshot, tmp_path: Path) -> None:
    variants: list[dict[str, Any]] = [
        {"fraction": 0.3},
        {"fraction": 0.31},
        {"fraction": 0.3, "seed": 1},
        {"fraction": 0.3, "where": "y == 0"},
        {"fraction": 0.3, "key": ["u"]},
        {"fraction": 0.3, "key": ["u", "x"]},
        {"fraction": 0.3, "key": ["x", "u"]},
    ]
    for number, sample in enumerate(variants):
        assert not selected(shops, tmp_path, **sample).report.cached
        assert selected(shops, tmp_path, map=refuse, **sample).report.cached
        assert len(list((tmp_path / "counts").iterdir())) == number + 1


def test_sampled_frames_of_dask(shops: Snapshot) -> None:
    sample = {"fraction": 0.4, "where": "y == 0", "seed": 2}
    rows, _, _ = oracle(shops, "x > 5", Sample(**sample))
    table = Table(shops.uri)
    for split_rows in (7, 1000):
        frame = table.to_dask(["id", SAMPLE_WEIGHT], "x > 5", sample=sample, split_rows=split_rows)
        with pytest.MonkeyPatch.context():
            found = frame.compute(scheduler="synchronous")
        assert found["id"].tolist() == [row["id"] for row in rows]
        assert str(found[SAMPLE_WEIGHT].dtype) == "float[pyarrow]"
        assert found[SAMPLE_WEIGHT].tolist() == [np.float32(row[SAMPLE_WEIGHT]) for row in rows]
        assert len(table.to_dask(sample=sample, where="x > 5")) == len(rows)
    read = table.read(["id", SAMPLE_WEIGHT], "x > 5", sample=sample)  # in threads
    assert read["id"].to_pylist() == [row["id"] for row in rows]
    assert read[SAMPLE_WEIGHT].to_pylist() == [np.float32(row[SAMPLE_WEIGHT]) for row in rows]
    assert table.read(where="x > 5", sample=Sample(**sample)).column_names == ["x", "y", "z", "u", "id", "c"]


def test_invalid_samples_are_refused(tmp_path: Path) -> None:
    kinds = {"ids": pa.list_(pa.int64()), "d": pa.decimal128(5, 2), "s": pa.struct({"a": pa.int8()}), "x": pa.int64()}
    schema = pa.schema(list(kinds.items()))
    for name in ("ids", "d", "s"):
        with pytest.raises(SpecError, match=f"the sample's key has a column without a hash: got '{name}' of type"):
            bind_sample(Sample(fraction=0.1, key=(name,)), schema)
    with pytest.raises(SpecError, match=r"unknown column: got 'idz'. Did you mean `ids`"):
        bind_sample(Sample(fraction=0.1, key=("idz",)), schema)
    with pytest.raises(ExpressionError, match="the sample's where:"):
        bind_sample(Sample(fraction=0.1, where="y > 1"), schema)
    for wrong in ({"fraction": 0}, {"fraction": 2}, {"fraction": "x"}, {}, {"fraction": 0.1, "sed": 1}):
        with pytest.raises(SpecError, match=r"^sample"):
            Sample.of(wrong)
    root = write(tmp_path, {"f.parquet": pa.table({"x": [1, 2], SAMPLE_WEIGHT: [3, 4]})})
    for columns in (None, [SAMPLE_WEIGHT]):
        with pytest.raises(SpecError, match="sample_weight has two meanings: got a column of the table"):
            Table(root).read(columns, sample={"fraction": 0.5})
    assert Table(root).read(["x"], "sample_weight > 3", sample={"fraction": 1}).to_pydict() == {"x": [2]}
    assert Table(root).read([SAMPLE_WEIGHT]).to_pydict() == {SAMPLE_WEIGHT: [3, 4]}
