"""Parts read from files: which Parquet columns are decoded, and that the values are pyarrow's and DuckDB's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from part_samples import KEYS, MAP, events, first, flat_table, flattened, pl_frame, taken
from warehouse_samples import write

from feedline import Table
from feedline.errors import DataError, TableError
from feedline.expressions import bind_where
from feedline.warehouse.parquet.footer import column_leaves
from feedline.warehouse.reading import columns as parts
from feedline.warehouse.reading.columns import FileColumns, expand_codes, expand_series, expanded_frame, part_bytes
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.read import bytes_of
from feedline.warehouse.selection.select import select_rows
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("t")
    return write(folder, {f"ds={day}/f.parquet": events(50, day) for day in (1, 2)}, row_group_size=20)


NAMES = [
    'user["country"]',
    'user["geo"]["lat"]',
    'user["scores"]["b"]["lat"]',
    "features_map['price']",
    'features_map["é"]',
    'features_map["none"]',
    "lists[2]",
    "n",
    "ds",
]


@pytest.mark.parametrize("where", [None, 'user["country"] == "US" or features_map["price"] > 10 and lists[1] is None'])
def test_parts_equal_those_of_whole_columns(root: str, where: str | None) -> None:
    rows = pq.read_table(root).cast(Table(root).read().schema).to_pylist()
    if where is not None:
        rows = [
            row
            for row in rows
            if taken(row, "user[country]") == "US"
            or ((taken(row, "features_map[price]") or 0) > 10 and taken(row, "lists[1]") is None)
        ]
    found = Table(root).read(NAMES, where)
    assert found.schema.names == NAMES
    assert found.to_pylist() == [{name: taken(row, name) for name in NAMES} for row in rows]
    frame = Table(root).to_dask(NAMES, where)
    assert pa.table(frame.compute()).select(NAMES).to_pylist() == found.to_pylist()
    assert len(Table(root).read([*NAMES, "features_map"], where)["features_map"]) == len(rows)


@pytest.mark.parametrize(
    ("names", "expected", "dictionaries"),
    [
        (["n"], ["n"], []),
        (['user["country"]'], ["user.country"], []),
        (['user["geo"]["lon"]', "n"], ["user.geo.lon", "n"], []),
        (['user["geo"]'], ["user.geo.lat", "user.geo.lon"], []),
        (
            ['user["scores"]["a"]["lat"]', 'user["scores"]["b"]["lat"]'],
            ["user.scores.key_value.key", "user.scores.key_value.value.lat"],
            ["user.scores.key_value.key"],
        ),
        (
            ['features_map["price"]', 'features_map["cost"]'],
            ["features_map.key_value.key", "features_map.key_value.value"],
            ["features_map.key_value.key"],
        ),
        (["features_map", 'features_map["a"]'], ["features_map.key_value.key", "features_map.key_value.value"], []),
        (["lists[1]"], ["lists.key_value.key", "lists.key_value.value.list.element"], []),
        (['user["country"]', "user"], [f"user.{name}" for name in (
            "country", "geo.lat", "geo.lon", "scores.key_value.key",
            "scores.key_value.value.lat", "scores.key_value.value.lon",
        )], []),
    ],
)  # fmt: skip
def test_only_the_leaves_of_the_parts_are_decoded(
    root: str, names: list[str], expected: list[str], dictionaries: list[str]
) -> None:
    path = next(Path(root).rglob("*.parquet"))
    schema = take_snapshot(root).schema
    file = pq.ParquetFile(path)
    assert file.metadata.num_columns == 11
    stored = dict(zip(file.schema_arrow.names, column_leaves(file.schema_arrow, 11, "f"), strict=True))
    columns = FileColumns([field_of(schema, name) for name in names], schema, stored, file.schema_arrow, {})
    assert [file.schema.column(leaf).path for leaf in columns.leaves] == expected
    assert columns.dictionaries(file.metadata, [0]) == dictionaries


# --- flattened columns --------------------------------------------------------------------------------------


WANTED = ['features_map["price"]', 'features_map["cost"]', "n"]


def test_a_key_is_taken_from_where_each_file_has_it(tmp_path: Path) -> None:
    root, whole = flat_table(tmp_path)
    expected = [{name: taken(row, name) for name in WANTED} for row in whole.to_pylist()]
    assert Table(root).read(WANTED).to_pylist() == expected
    one = Table(root).read(WANTED[:1])
    assert one.to_pylist() == [{WANTED[0]: row[WANTED[0]]} for row in expected]
    where = 'features_map["price"] > 5 or features_map["cost"] is None'
    kept = [row for row in expected if (row[WANTED[0]] or 0) > 5 or row[WANTED[1]] is None]
    assert Table(root).read(WANTED, where).to_pylist() == kept
    snapshot = take_snapshot(root)
    bound = bind_where(where, snapshot.schema)
    assert bound.columns == {"features_map", "features_map.price", "features_map.cost"}
    selection = select_rows(snapshot, bound, work_dir=str(tmp_path / "work"))
    assert int(selection.rows.sum()) == len(kept)
    # the whole column and its columns, as a frame, give the same through `polars` and `project`
    table = Table(root).read(["features_map", "features_map.price", "features_map.cost"])
    assert pl_frame(table).filter(bound.polars).height == len(kept)


def test_the_map_is_not_read_where_every_key_has_a_column(tmp_path: Path) -> None:
    root, _ = flat_table(tmp_path)
    schema = take_snapshot(root).schema
    decoded = {}
    for name in "abc":
        file = pq.ParquetFile(tmp_path / f"{name}.parquet")
        ranges = column_leaves(file.schema_arrow, file.metadata.num_columns, name)
        stored = dict(zip(file.schema_arrow.names, ranges, strict=True))
        columns = FileColumns([field_of(schema, part) for part in WANTED], schema, stored, file.schema_arrow, {})
        decoded[name] = [file.schema.column(leaf).path for leaf in columns.leaves]
    whole = ["features_map.key_value.key", "features_map.key_value.value"]
    assert decoded == {
        "a": [*whole, "n"],
        "b": ["features_map.price", *whole, "n"],
        "c": ["features_map.price", "features_map.cost", "n"],
    }


def test_bytes_of_parts_are_those_read(tmp_path: Path) -> None:
    root, _ = flat_table(tmp_path)
    snapshot = take_snapshot(root)
    sizes = []
    for name in "abc":
        group = pq.ParquetFile(tmp_path / f"{name}.parquet").metadata.row_group(0)
        chunks = [group.column(leaf) for leaf in range(group.num_columns)]
        sizes.append({chunk.path_in_schema: chunk.total_compressed_size for chunk in chunks})
    maps = [sum(size for path, size in file.items() if path.startswith("features_map.key")) for file in sizes]
    price = [file.get("features_map.price", 0) for file in sizes]
    cost = [file.get("features_map.cost", 0) for file in sizes]
    assert part_bytes(snapshot, WANTED[:1]).tolist() == [maps[0], price[1], price[2]]
    assert part_bytes(snapshot, WANTED[:2]).tolist() == [maps[0], maps[1] + price[1], price[2] + cost[2]]
    assert bytes_of(snapshot, None, [*WANTED[:1], "features_map"]) == sum(maps) + sum(price)
    assert bytes_of(snapshot, None, [*WANTED[:1], "features_map.price"]) == maps[0] + sum(price)
    user = [sum(size for path, size in file.items() if path.startswith("user")) for file in sizes]
    assert part_bytes(snapshot, ['user["country"]', 'user["geo"]["lat"]']).tolist() == user


def test_a_table_of_which_every_key_is_flattened(tmp_path: Path) -> None:
    whole = events(30, 1)
    root = write(tmp_path, {"a.parquet": flattened(whole, *KEYS).drop_columns(["features_map"])})
    expected = [{name: taken(row, name) for name in WANTED} for row in whole.to_pylist()]
    assert Table(root).read(WANTED).to_pylist() == expected
    kept = [row for row in expected if (row[WANTED[0]] or 0) > 5]
    assert Table(root).read(WANTED, 'features_map["price"] > 5').to_pylist() == kept
    assert (
        part_bytes(take_snapshot(root), WANTED).tolist()
        == part_bytes(take_snapshot(root), ["features_map.price", "features_map.cost", "n"]).tolist()
    )


def test_keys_of_integers_and_flattened_lists(tmp_path: Path) -> None:
    old = pa.table({"w": pa.array([[(7, [1, 2]), (-1, None)], None], pa.map_(pa.int32(), pa.list_(pa.int64())))})
    new = old.append_column("w.7", pa.array([[5], None], pa.large_list(pa.int64())))
    new = new.set_column(0, "w", pa.array([[(-1, [3])], []], old.schema.field("w").type))
    root = write(tmp_path, {"a.parquet": old, "b.parquet": new})
    assert Table(root).read(["w[7]", "w[-1]"]).to_pylist() == [
        {"w[7]": [1, 2], "w[-1]": None},
        {"w[7]": None, "w[-1]": None},
        {"w[7]": [5], "w[-1]": [3]},
        {"w[7]": None, "w[-1]": None},
    ]


def test_a_value_in_the_map_beside_a_null_in_its_column_is_an_error(tmp_path: Path) -> None:
    table = events(30, 1)
    wrong = table.append_column("features_map.price", pa.nulls(30, pa.float32()))
    root = write(tmp_path, {"a.parquet": wrong})
    with pytest.raises(DataError, match=r'features_map\["price"\] of .*a.parquet, row group 0 is stored twice'):
        Table(root).read(WANTED)
    copies = table.append_column("features_map.price", flattened(table, "price")["features_map.price"])
    root = write(tmp_path / "copies", {"a.parquet": copies})  # a copy of the key does no harm
    assert Table(root).read(WANTED).to_pylist() == [{n: taken(row, n) for n in WANTED} for row in table.to_pylist()]


# --- drifted files ------------------------------------------------------------------------------------------


def test_files_that_hold_parts_in_other_types(tmp_path: Path) -> None:
    tables = {
        "a.parquet": pa.table(
            {
                "u": pa.array([{"a": 1, "b": "x"}, None], pa.struct([("a", pa.int8()), ("b", pa.string())])),
                "m": pa.array([[(1, 1.5)], None], pa.map_(pa.int8(), pa.float32())),
                "s": pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string())),
            }
        ),
        "b.parquet": pa.table(
            {
                "u": pa.array([{"a": 2**40, "c": 3}], pa.struct([("a", pa.int64()), ("c", pa.int32())])),
                "m": pa.array([[(2**40, 1e300), (1, 2.5)]], pa.map_(pa.int64(), pa.float64())),
                "s": pa.array([[("k", "w")]], pa.map_(pa.large_string(), pa.dictionary(pa.int8(), pa.string()))),
            }
        ),
        "c.parquet": pa.table({"u": pa.nulls(1), "m": pa.nulls(1), "s": pa.nulls(1)}),
        "d.parquet": pa.table({"u": pa.array([{"z": 1}]), "other": [1]}),
    }
    root = write(tmp_path, tables)
    names = ['u["a"]', 'u["b"]', 'u["c"]', "m[1]", "m[1099511627776]", 's["k"]']
    rows = [
        [1, "x", None, 1.5, None, "v"],
        [None] * 6,
        [2**40, None, 3, 2.5, 1e300, "w"],
        [None] * 6,
        [None] * 6,
    ]
    found = Table(root).read(names)
    assert found.to_pylist() == [dict(zip(names, row, strict=True)) for row in rows]
    assert found.schema.types == [pa.int64(), pa.string(), pa.int32(), pa.float64(), pa.float64(), pa.string()]


@pytest.mark.parametrize(
    "options",
    [
        {"use_dictionary": False},
        {"dictionary_pagesize_limit": 64, "data_page_size": 128, "write_batch_size": 8},
        {"use_dictionary": False, "column_encoding": {"m.key_value.key": "DELTA_BYTE_ARRAY"}},
        {"use_dictionary": False, "column_encoding": {"m.key_value.key": "DELTA_LENGTH_BYTE_ARRAY"}},
        {"store_schema": False, "data_page_version": "2.0"},
    ],
)
def test_keys_in_every_encoding(tmp_path: Path, options: dict[str, Any]) -> None:
    random = np.random.default_rng(0)
    rows = [[(f"k{key}", float(key)) for key in random.integers(0, 40, 6)] for _ in range(300)]
    table = pa.table({"m": pa.array(rows, MAP), "m.key_value.key": [str(row) for row in range(300)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=200, **options)
    found = Table(tmp_path).read([f'm["k{key}"]' for key in range(41)] + ["m.key_value.key"])
    for key in range(41):
        assert found[f'm["k{key}"]'].to_pylist() == [first(row, f"k{key}") for row in rows]
    assert found["m.key_value.key"].to_pylist() == [str(row) for row in range(300)]


@examples(30)
@given(
    rows=st.lists(
        st.none() | st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 9)), max_size=4), max_size=40
    ),
    flat=st.sets(st.sampled_from("ab")),
    size=st.integers(1, 20),
)
def test_random_maps_flattened_or_not(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], flat: set[str], size: int
) -> None:
    rest = [None if row is None else [pair for pair in row if pair[0] not in flat] for row in rows]
    table = pa.table({"m": pa.array(rest, pa.map_(pa.string(), pa.int64()))})
    for key in sorted(flat):
        table = table.append_column(f"m.{key}", pa.array([first(row, key) for row in rows], pa.int64()))
    root = write(tmp_path_factory.mktemp("m"), {"a.parquet": table}, row_group_size=size)
    names = [f'm["{key}"]' for key in "abcd"]
    expected = [{f'm["{key}"]': first(row, key) for key in "abcd"} for row in rows]
    assert Table(root).read(names).to_pylist() == expected
    kept = [row for row in expected if row['m["a"]'] is None or (row['m["b"]'] or 0) > 4]
    assert Table(root).read(names, 'm["a"] is None or m["b"] > 4').to_pylist() == kept


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ('user["cuntry"]', r"user\[\"cuntry\"\] is not in the table: the struct has 0 fields 'cuntry'"),
        ("features_map[1]", "the map's keys are string, the key is 1"),
        ('usr["country"]', "column 'usr' is not in the table"),
        ("n[1]", "int64 has no part 1"),
    ],
)
def test_errors_in_reads(root: str, name: str, message: str) -> None:
    with pytest.raises(TableError, match=message):
        Table(root).read([name])


def test_thousands_of_keys_take_one_pass(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """However many keys: a map's flat keys are looked at once per chunk."""
    rows = [[(f"f{key:04d}", float(row)) for key in range(row % 3, 3000, 3)] for row in range(40)]
    root = write(tmp_path, {"a.parquet": pa.table({"m": pa.array(rows, MAP)})})
    calls: list[int] = []
    numbers = parts.extract_parts

    def watched(array: pa.Array, wanted: Any) -> Any:
        calls.append(len(wanted.parts))
        return numbers(array, wanted)

    monkeypatch.setattr(parts, "extract_parts", watched)
    names = [f'm["f{key:04d}"]' for key in range(3000)]
    found = Table(root).read(names)
    assert calls == [3000]
    assert found.num_columns == 3000
    for key in (0, 1, 2999):
        assert found[names[key]].to_pylist() == [float(row) if (key - row) % 3 == 0 else None for row in range(40)]


def test_a_snapshot_of_maps_is_the_same_when_it_is_loaded(tmp_path: Path) -> None:
    """pyarrow names a map's entries after its column, which a saved schema does not keep."""
    named = pa.map_(pa.field("k", pa.string(), nullable=False), pa.field("v", pa.int64(), nullable=False))
    table = events(5, 1).append_column("named", pa.array([[("a", 1)]] * 5, named))
    snapshot = take_snapshot(write(tmp_path / "t", {"a.parquet": table}))
    snapshot.save(str(tmp_path / "work"))
    loaded = Snapshot.load(str(tmp_path / "work"), snapshot.id)
    assert loaded.schema.equals(snapshot.schema)
    assert [str(kind) for kind in loaded.schema.types] == [str(kind) for kind in snapshot.schema.types]
    assert (
        Table(tmp_path / "t").read(["named", 'named["a"]']).to_pylist() == [{"named": [("a", 1)], 'named["a"]': 1}] * 5
    )


def test_large_maps_are_decoded_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = [[(f"k{key}", float(row)) for key in range(20)] for row in range(500)]
    root = write(
        tmp_path,
        {"a.parquet": pa.table({"m": pa.array(rows, MAP), "n": [str(row) for row in range(500)]})},
        row_group_size=300,
    )
    monkeypatch.setattr(parts, "_ENTRIES", 2_000)
    monkeypatch.setattr(parts, "_LEAST_ROWS", 16)
    lengths: list[int] = []
    take = parts.extract_parts

    def watched(array: pa.Array, wanted: Any) -> Any:
        lengths.append(len(array))
        return take(array, wanted)

    monkeypatch.setattr(parts, "extract_parts", watched)
    assert Table(root).read(['m["k7"]'])['m["k7"]'].to_pylist() == [float(row) for row in range(500)]
    assert lengths == [100] * 5
    lengths.clear()
    Table(root).read(["n"])
    assert lengths == [300, 200], "columns without maps come in whole chunks"


WORDS = pl.Series("values", ["a", "bb", "Zürich " * 9, None])


@pytest.mark.parametrize("dtype", [pl.UInt16, pl.Int32])
def test_codes_are_positions_in_the_values(dtype: type[pl.DataType]):
    codes = pl.Series("x", [2, 0, None, 3, 0], dtype=dtype)
    expected = [None if code is None else WORDS[code] for code in codes.to_list()]
    found = expand_series(codes, WORDS.to_arrow())
    assert found.name == "x"
    assert found.dtype == pl.String
    assert found.to_list() == expected


@pytest.mark.parametrize("start", [0, 1, 3])
def test_lists_of_codes_are_lists_of_values(start: int):
    lists = pl.Series("x", [[9, 9], [2, 0], None, [], [1, None]], dtype=pl.List(pl.UInt16))
    values = pl.concat([WORDS, pl.Series(["p"] * 6)])
    expected = [
        None if row is None else [None if code is None else values[code] for code in row] for row in lists.to_list()
    ]
    assert expand_series(lists[start:], values.to_arrow()).to_list() == expected[start:]


def test_only_columns_with_values_are_replaced():
    frame = pl.DataFrame({"x": pl.Series([1, 0], dtype=pl.UInt16), "n": [7, 8]})
    found = expand_codes(frame, {"x": WORDS.to_arrow()})
    assert found.to_dict(as_series=False) == {"x": ["bb", "a"], "n": [7, 8]}
    assert expand_codes(frame, {}) is frame


def test_dictionary_arrays_are_columns_of_codes():
    words = pa.array(["a", None, "b", "a"])
    lists = pa.array([["a"], [], None, ["b", "b"]])
    entries = pa.array(["a", "b"])
    codes = pa.ListArray.from_arrays(
        lists.offsets, pa.DictionaryArray.from_arrays(pa.array([0, 1, 1], pa.int32()), entries), mask=lists.is_null()
    )
    batch = pa.record_batch({"n": [1, 2, 3, 4], "w": words.dictionary_encode(), "l": codes})
    assert expanded_frame(batch, ["w", "n"]).to_dict(as_series=False) == {"w": words.to_pylist(), "n": [1, 2, 3, 4]}
    assert expanded_frame(batch, ["n"]).columns == ["n"]
