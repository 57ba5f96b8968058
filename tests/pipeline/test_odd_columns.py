"""Pipelines over columns of rare types: extension types, offsets from UTC, unknown zones, wide decimals."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import Pipeline, Table
from feedline.errors import CorruptFileError, SpecError
from feedline.warehouse.parquet.decode import DECODER_VARIABLE

ROWS = 3
INDIA = datetime.timezone(datetime.timedelta(hours=5, minutes=30))
MOMENTS = [datetime.datetime(2024, 1, 1, hour, tzinfo=INDIA) for hour in (0, 5, 6)]
MICROSECONDS = [int(moment.timestamp()) * 10**6 for moment in MOMENTS]


class Point(pa.ExtensionType):  # type: ignore[misc]
    """An extension type of a process, which is unhashable as it defines no hash."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "feedline.test.point")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""

    @classmethod
    def __arrow_ext_deserialize__(cls, storage: pa.DataType, data: bytes) -> Point:
        return cls()


@pytest.fixture
def point() -> Iterator[Point]:
    kind = Point()
    pa.register_extension_type(kind)
    yield kind
    pa.unregister_extension_type("feedline.test.point")


@pytest.fixture(params=["auto", "arrow"])
def decoder(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv(DECODER_VARIABLE, request.param)
    return str(request.param)


def pipeline(folder: Path, columns: dict[str, Any], features: str, source: str = "") -> Pipeline:
    table = folder / "table"
    table.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": range(ROWS), **columns}), table / "a.parquet")
    path = folder / "pipeline.yaml"
    path.write_text(
        f"version: 1\nname: odd\nsource: {{table: table{source}}}\nfeatures: {features}\nbatch: {{size: {ROWS}}}\n"
        "shuffle: off\n"
    )
    return Pipeline.from_yaml(path)


def values(pipeline: Pipeline, name: str) -> list[Any]:
    [batch] = pipeline.batches()
    found = batch.extra[name] if name in batch.extra else batch[name]
    listed: list[Any] = found.to_pylist() if hasattr(found, "to_pylist") else found.tolist()
    return listed


def extension(kind: pa.DataType, storage: list[Any]) -> pa.Array:
    return pa.ExtensionArray.from_storage(kind, pa.array(storage, kind.storage_type))


@pytest.mark.usefixtures("decoder")
def test_registered_extension_types_are_read_as_their_storage(point: Point, tmp_path: Path):
    points = extension(point, [5, 6, 7])
    nested = pa.ListArray.from_arrays(pa.array([0, 1, 1, 3], pa.int32()), points)
    fields = pa.StructArray.from_arrays([points, extension(pa.json_(), ["{}", "[1]", "{}"])], ["at", "json"])
    columns = {
        "point": points,
        "points": nested,
        "fields": fields,
        "json": extension(pa.json_(), ["{}", "[1]", "{}"]),
        "flag": extension(pa.bool8(), [0, 1, 1]),
        "vector": extension(pa.fixed_shape_tensor(pa.float32(), [2]), [[1.0, 2.0]] * ROWS),
    }
    features = (
        "{categorical: {point: []}, sparse: {points: []}, label: {flag: []}, dense: {vector: [], "
        "at: {expr: 'fields[\"at\"]'}}, extra: [json]}"
    )
    odd = pipeline(tmp_path, columns, features, source=', where: json != "x"')
    assert values(odd, "point") == [5, 6, 7]
    assert values(odd, "flag") == [0.0, 1.0, 1.0]
    assert values(odd, "vector") == [[1.0, 2.0]] * ROWS
    assert values(odd, "at") == [5.0, 6.0, 7.0]
    assert values(odd, "json") == ["{}", "[1]", "{}"]
    [batch] = odd.batches()
    assert batch.sparse["points"].values.tolist() == [5, 6, 7]
    whole = Table(str(tmp_path / "table")).read()
    assert whole["point"].to_pylist() == [5, 6, 7]
    assert whole.schema.field("fields").type == pa.struct([("at", pa.int64()), ("json", pa.string())])
    rows = pa.table({"id": range(ROWS), **columns})
    assert odd.transform(rows)["point"].tolist() == [5, 6, 7]


@pytest.mark.usefixtures("decoder")
def test_strings_of_an_extension_type_are_checked_like_others(tmp_path: Path):
    odd = pipeline(tmp_path, {"json": extension(pa.json_(), ["{}", "ab", "{}"])}, "{extra: [json]}")
    path = tmp_path / "table" / "a.parquet"
    pq.write_table(pa.table({"id": range(ROWS), "json": columns_of_bytes()}), path, compression="none")
    with pytest.raises(CorruptFileError, match="'json'"):
        values(odd, "json")


def columns_of_bytes() -> pa.Array:
    """Strings of a JSON column that are not UTF-8, as nobody but a broken writer has them."""
    storage = pa.Array.from_buffers(
        pa.string(), ROWS, [None, pa.py_buffer(bytes(4) + b"\2\0\0\0\4\0\0\0\6\0\0\0"), pa.py_buffer(b"{}\xff\xfe{}")]
    )
    return pa.ExtensionArray.from_storage(pa.json_(), storage)


@pytest.mark.usefixtures("decoder")
@pytest.mark.parametrize("zone", ["+05:30", "+0530", "-03", "Z", "+00:00", "UTC"])
def test_offsets_from_utc_are_instants(zone: str, tmp_path: Path):
    columns = {"ts": pa.array(MICROSECONDS, pa.int64()).cast(pa.timestamp("us", zone))}
    features = "{categorical: {hour: {expr: ts.dt.hour()}, at: {expr: ts.dt.epoch()}}, extra: [ts]}"
    odd = pipeline(tmp_path, columns, features, source=', where: ts >= "2023-12-31T18:30:00Z"')
    assert values(odd, "at") == MICROSECONDS
    assert values(odd, "ts") == MICROSECONDS
    assert values(odd, "hour") == [18, 23, 0]
    assert odd.transform(pa.table({"id": range(ROWS), **columns}))["at"].tolist() == MICROSECONDS
    rows = Table(str(tmp_path / "table")).read(["ts"])
    assert rows.schema.field("ts").type == pa.timestamp("us", "UTC")


def test_files_of_several_offsets_are_one_column(tmp_path: Path):
    columns = {"ts": pa.array(MICROSECONDS, pa.timestamp("us", "+05:30"))}
    odd = pipeline(tmp_path, columns, "{categorical: {at: {expr: ts.dt.epoch()}}}")
    others = {"id": range(ROWS), "ts": pa.array(MICROSECONDS, pa.timestamp("us", "-03:00"))}
    pq.write_table(pa.table(others), tmp_path / "table" / "b.parquet")
    assert [batch["at"].tolist() for batch in odd.batches()] == [MICROSECONDS] * 2


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [
        (pa.timestamp("us", "Foo/Bar"), "Name a zone that the time zone database has"),
        (pa.decimal256(50, 2), "Rewrite it with at most 38 digits"),
        (pa.list_(pa.decimal256(50, 2)), "Rewrite it with at most 38 digits"),
        (pa.struct([("a", pa.decimal256(50, 2)), ("b", pa.int64())]), "Rewrite it with at most 38 digits"),
    ],
)
def test_types_that_frames_lack_are_refused_with_a_remedy(
    kind: pa.DataType, remedy: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
):
    columns = {"odd": pa.nulls(ROWS, kind)}
    for features in ("{extra: [odd]}", "{dense: {odd: []}}"):
        with pytest.raises(SpecError, match=remedy):
            values(pipeline(tmp_path, columns, features), "odd")
    assert values(pipeline(tmp_path, columns, "{categorical: {id: []}}"), "id") == [0, 1, 2]
    assert "panicked" not in capfd.readouterr().err


def test_a_field_beside_a_wide_decimal_is_read(tmp_path: Path):
    rows = [{"wide": Decimal("1.5"), "id": index} for index in range(ROWS)]
    column = pa.array(rows, pa.struct([("wide", pa.decimal256(50, 2)), ("id", pa.int64())]))
    odd = pipeline(tmp_path, {"fields": column}, "{categorical: {x: {expr: 'fields[\"id\"]'}}}")
    assert values(odd, "x") == [0, 1, 2]
