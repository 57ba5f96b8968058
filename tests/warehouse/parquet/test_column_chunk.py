"""Column chunks of three writers, in every type and encoding, are decoded to what pyarrow decodes."""

from __future__ import annotations

import gzip
import io
import itertools
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from page_decoding import File, arrow_table, beginnings, difference, opened, pages_in, read_rows, stored, table_of

from feedline.native import parquet as native
from feedline.warehouse.parquet.column_chunk import ChunkDecoder, ChunkError
from feedline.warehouse.parquet.column_kinds import column_kind

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

INTEGERS = ("PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT")
FLOATS = ("PLAIN", "BYTE_STREAM_SPLIT")
STRINGS = ("PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY")
FIXED = ("PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY")


def integers(bits: int, *, signed: bool = True) -> st.SearchStrategy[int]:
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    return st.integers(low, high) | st.integers(0, 3)


def by_bits(dtype: str) -> st.SearchStrategy[Any]:
    """Floats of any bits."""
    size = np.dtype(dtype).itemsize
    return st.binary(min_size=size, max_size=size).map(lambda raw: np.frombuffer(raw, dtype)[0])


TEXT = st.sampled_from(["", "a", "ab", "abc", "b" * 40, "ü"]) | st.text(max_size=12)
# Values, and the encodings that pyarrow writes them in
KINDS: dict[pa.DataType, tuple[st.SearchStrategy[Any], tuple[str, ...]]] = {
    pa.bool_(): (st.booleans(), ("PLAIN", "RLE")),
    pa.int8(): (integers(8), INTEGERS),
    pa.int16(): (integers(16), INTEGERS),
    pa.int32(): (integers(32), INTEGERS),
    pa.int64(): (integers(64), INTEGERS),
    pa.uint8(): (integers(8, signed=False), INTEGERS),
    pa.uint16(): (integers(16, signed=False), INTEGERS),
    pa.uint32(): (integers(32, signed=False), INTEGERS),
    pa.uint64(): (integers(64, signed=False), INTEGERS),
    pa.date32(): (integers(32), INTEGERS),
    pa.time32("ms"): (st.integers(0, 86_399_999), INTEGERS),
    pa.time64("us"): (st.integers(0, 86_399_999_999), INTEGERS),
    pa.time64("ns"): (st.integers(0, 86_399_999_999_999), INTEGERS),
    pa.timestamp("ms"): (integers(64), INTEGERS),
    pa.timestamp("us", "UTC"): (integers(64), INTEGERS),
    pa.timestamp("ns"): (integers(64), INTEGERS),
    pa.duration("s"): (integers(64), INTEGERS),
    pa.duration("ns"): (integers(64), INTEGERS),
    pa.float16(): (by_bits("f2"), FIXED),
    pa.float32(): (by_bits("f4"), FLOATS),
    pa.float64(): (by_bits("f8"), FLOATS),
    pa.string(): (TEXT, STRINGS),
    pa.large_string(): (TEXT, STRINGS),
    pa.binary(): (st.binary(max_size=12), STRINGS),
    pa.large_binary(): (st.binary(max_size=12), STRINGS),
    pa.binary(1): (st.binary(min_size=1, max_size=1), FIXED),
    pa.binary(5): (st.binary(min_size=5, max_size=5), FIXED),
    pa.binary(16): (st.binary(min_size=16, max_size=16), FIXED),
    pa.decimal128(4, 1): (st.integers(-9999, 9999).map(lambda n: Decimal(n) / 10), FIXED),
    pa.decimal128(38, 0): (st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal), FIXED),
}
CODECS = ("none", "zstd", "snappy", "gzip", "lz4")


def array(values: list[Any], kind: pa.DataType) -> pa.Array:
    """An array; of types of time, from their integers."""
    if pa.types.is_temporal(kind):
        width = pa.int32() if kind.bit_width == 32 else pa.int64()
        return pa.array(values, width).view(kind)
    return pa.array(values, kind)


@st.composite
def repeats(draw: Any, item: st.SearchStrategy[Any], *, most: int = 120) -> list[Any]:
    """Items in runs, so that levels and codes are repeated as well as packed."""
    runs = draw(st.lists(st.tuples(item, st.sampled_from([1, 1, 2, 9, 40])), max_size=25))
    return [value for value, count in runs for _ in range(count)][:most]


@st.composite
def columns(draw: Any) -> tuple[pa.Field, pa.Array, tuple[str, ...]]:
    """A column, flat or of lists, nullable or not at each level, and the encodings of its type."""
    kind = draw(st.sampled_from(list(KINDS)))
    value, encodings = KINDS[kind]
    nullable, listed = draw(st.booleans()), draw(st.sampled_from([0, 0, 1, 2]))
    item = st.none() | value if nullable else value
    if not listed:
        return pa.field("v", kind, nullable=nullable), array(draw(repeats(item)), kind), encodings
    lists = draw(st.booleans())  # whether they may be null
    each = st.lists(item, max_size=5) | st.just([])
    rows = draw(repeats(st.none() | each if lists else each))
    flat = array([value for row in rows for value in row or []], kind)
    offsets = np.cumsum([0, *(len(row or []) for row in rows)])
    field = pa.field("element", kind, nullable=nullable)
    types = (pa.list_(field), pa.int32(), pa.ListArray), (pa.large_list(field), pa.int64(), pa.LargeListArray)
    list_type, offset_type, maker = types[listed - 1]
    mask = pa.array([row is None for row in rows], pa.bool_()) if lists else None
    made = maker.from_arrays(pa.array(offsets, offset_type), flat, type=list_type, mask=mask)
    return pa.field("v", list_type, nullable=lists), made, encodings


@st.composite
def options(draw: Any, field: pa.Field, encodings: tuple[str, ...]) -> dict[str, Any]:
    """How pyarrow writes a column: encoding, pages, codec and checksums."""
    chosen: dict[str, Any] = {
        "compression": draw(st.sampled_from(CODECS)),
        "data_page_version": draw(st.sampled_from(["1.0", "2.0"])),
        "write_page_checksum": draw(st.booleans()),
        "write_batch_size": draw(st.sampled_from([1, 3, 1024])),
        "data_page_size": draw(st.sampled_from([1, 64, 2**20])),
        "row_group_size": draw(st.sampled_from([50, 1000])),
        "store_schema": True,
    }
    encoding = draw(st.sampled_from([None, *encodings]))
    if encoding is None:
        return chosen | {"use_dictionary": True, "dictionary_pagesize_limit": draw(st.sampled_from([16, 10**6]))}
    leaf = "v.list.element" if pa.types.is_nested(field.type) else "v"
    return chosen | {"use_dictionary": False, "column_encoding": {leaf: encoding}}


@given(
    data=st.data(),
    chunk_rows=st.sampled_from([1, 2, 7, 64, 1000]),
    coded=st.booleans(),
    prefix=st.sampled_from([0, 0, 1, 2]),
)
@examples(500, by_day=70)
def test_what_pyarrow_writes_is_decoded_as_pyarrow_decodes_it(
    data: st.DataObject, chunk_rows: int, coded: bool, prefix: int
):
    field, values, encodings = data.draw(columns())
    table = pa.table([values], schema=pa.schema([field]))
    content = stored(table, **data.draw(options(field, encodings)))
    found = table_of(content, chunk_rows, coded=coded, prefix=prefix)
    if prefix and coded and pa.types.is_nested(field.type):
        found, table = (beginnings(each, prefix) for each in (found, table))
    assert difference(found, table) == ""
    if prefix:
        return
    expected = arrow_table(content)
    if expected.num_rows == len(values):  # pyarrow 26 loses the rows of a DELTA page whose lists have no values
        assert difference(found, expected) == ""


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_type_in_every_encoding_and_codec(kind: pa.DataType):
    """Each once for certain, what the example above draws at random: long pages, blocks of deltas, nulls.

    Versions of pages alternate, so that each two of encoding, codec and version meet.
    """
    rng = np.random.default_rng(0)
    rows = 400
    if pa.types.is_boolean(kind):
        raw: Any = rng.random(rows) < 0.7
    elif pa.types.is_decimal(kind):
        raw = [Decimal(int(value)) for value in rng.integers(-999, 1000, rows)]
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        raw = [f"word {value}" for value in rng.integers(0, 50, rows)]
    elif pa.types.is_fixed_size_binary(kind):
        raw = [rng.bytes(kind.byte_width) for _ in range(rows)]
    elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        raw = [rng.bytes(value) for value in rng.integers(0, 9, rows)]
    else:
        raw = rng.integers(0, 100, rows)
    null = rng.random(rows) < 0.1
    values = array([None if gone else value for value, gone in zip(list(raw), null, strict=True)], kind)
    wrong = []
    for place, (encoding, codec) in enumerate(itertools.product(KINDS[kind][1], CODECS)):
        version = ("1.0", "2.0")[(place + place // len(CODECS)) % 2]
        encoded = {"use_dictionary": False, "column_encoding": {"v": encoding}}
        content = stored(pa.table({"v": values}), compression=codec, data_page_version=version, **encoded)
        assert encoding in File(content).metadata.row_group(0).column(0).encodings
        if found := difference(table_of(content, 150), arrow_table(content)):
            wrong.append(f"{encoding}, {codec}, pages {version}: {found}")
    assert not wrong, "\n".join(wrong)


def test_all_null_and_empty_columns():
    empty_lists = pa.array([[], None, []] * 100, pa.list_(pa.int16()))
    for values in (
        *(pa.nulls(300, kind) for kind in KINDS),
        pa.nulls(300, pa.list_(pa.string())),
        empty_lists,
        pa.array([[None, None]] * 300, pa.list_(pa.decimal128(9, 2))),
        pa.array([], pa.list_(pa.bool_())),
        *(pa.array([], kind) for kind in KINDS),
    ):
        for version in ("1.0", "2.0"):
            content = stored(pa.table({"v": values}), data_page_version=version)
            for coded in (False, True):
                assert difference(table_of(content, 130, coded=coded), arrow_table(content)) == ""


@pytest.mark.parametrize("entries", [1, 2, 3, 5, 17, 200, 300, 5000])
def test_dictionaries_of_any_size(entries: int):
    """Codes of many widths, in packed groups and in runs."""
    rng = np.random.default_rng(entries)
    codes = np.concatenate((np.arange(entries), rng.integers(0, entries, 6000), np.repeat(entries - 1, 500)))
    content = stored(pa.table({"n": codes * 11, "s": [f"s{code}" for code in codes]}), data_page_size=500)
    for coded in (False, True):
        assert difference(table_of(content, 999, coded=coded), arrow_table(content)) == ""


def coded_chunk(content: bytes, name: str = "v") -> Any:
    return read_rows(File(content).chunk(name, codes=True), File(content).metadata.num_rows)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.int64(), pa.int8(), pa.decimal128(25, 2)])
def test_codes_come_with_their_dictionary(kind: pa.DataType):
    values = pa.array([None if row % 9 == 0 else row % 5 for row in range(300)], pa.int64()).cast(kind)
    array = coded_chunk(stored(pa.table({"v": values})))
    assert (array.type, len(array.dictionary)) == (pa.dictionary(pa.uint16(), kind), 5)
    array.validate(full=True)
    assert array.dictionary_decode().equals(values)
    assert array.indices.fill_null(0).to_numpy().max() == 4


@pytest.mark.parametrize(("entries", "kind"), [(65_535, pa.uint16()), (65_536, pa.int32())])
def test_codes_have_16_bits_where_these_count_the_entries_and_null(entries: int, kind: pa.DataType):
    values = pa.array(np.tile(np.arange(entries), 3))
    array = coded_chunk(stored(pa.table({"v": values}), row_group_size=3 * entries))
    assert (array.type, len(array.dictionary)) == (pa.dictionary(kind, pa.int64()), entries)
    assert array.dictionary_decode().equals(values)


@pytest.mark.parametrize("wide", [False, True])
def test_codes_of_lists_are_lists_of_codes(wide: bool):
    make = pa.large_list if wide else pa.list_
    values = pa.array([None if row % 9 == 0 else ["a", None, "b"][: row % 4] for row in range(300)], make(pa.string()))
    array = coded_chunk(stored(pa.table({"v": values})))
    assert array.type == make(pa.field("element", pa.dictionary(pa.uint16(), pa.string())))
    array.validate(full=True)
    assert array.to_pylist() == values.to_pylist()


def test_no_codes_of_a_chunk_that_falls_back_to_plain_or_has_a_large_dictionary():
    few = pa.table({"v": [f"word {row % 40}" for row in range(500)]})
    mixed = stored(few, dictionary_pagesize_limit=100, data_page_size=200, write_batch_size=10)
    encodings = File(mixed).metadata.row_group(0).column(0).encodings
    assert {"PLAIN", "RLE_DICTIONARY"} <= set(encodings)
    assert coded_chunk(mixed).type == pa.string()
    large = pa.table({"v": [f"word {row % 300}" for row in range(500)]})
    assert coded_chunk(stored(large)).type == pa.string()
    for table, content in ((few, mixed), (large, stored(large))):
        assert difference(table_of(content, 77, coded=True), table) == ""


def test_polars_files(tmp_path: Path):
    rng = np.random.default_rng(0)
    rows = 500
    numbers, null = rng.integers(0, 100, rows), rng.random(rows) < 0.2
    integers = pl.Series(numbers)
    flat = {
        "i8": integers.cast(pl.Int8),
        "u32": integers.cast(pl.UInt32),
        "i64": integers,
        "wide": pl.Series(rng.integers(-(2**62), 2**62, rows)),
        "f32": integers.cast(pl.Float32),
        "f64": integers / 7,
        "bool": integers > 40,
        "string": pl.Series([f"s{number}" for number in numbers]),
        "binary": pl.Series([f"s{number}".encode() for number in numbers]),
        "date": integers.cast(pl.Date),
        "time": (integers * 1000).cast(pl.Time),
        "datetime": integers.cast(pl.Datetime("us")),
        "duration": integers.cast(pl.Duration("ms")),
        "decimal": integers.cast(pl.Decimal(20, 2)),
    }
    flat |= {f"{name}?": pl.select(pl.when(~null).then(column)).to_series() for name, column in flat.items()}
    lists = [
        None if gone else [None, *row.tolist()][: row[0] % 5]
        for gone, row in zip(null, rng.integers(0, 9, (rows, 4)), strict=True)
    ]
    frame = pl.DataFrame(flat | {"list": pl.Series(lists, dtype=pl.List(pl.Int64))})
    for codec in ("uncompressed", "zstd", "snappy", "gzip", "lz4"):
        out = io.BytesIO()
        frame.write_parquet(out, compression=codec, data_page_size=300, row_group_size=300)
        content = out.getvalue()
        assert difference(table_of(content, 70), arrow_table(content)) == ""
        assert difference(table_of(content, 70, coded=True), arrow_table(content)) == ""


DUCKDB_COLUMNS = """
    i::int i32, (i * 7)::bigint i64, (i % 200)::utinyint u8, (i / 3)::double f64, (i / 3)::float f32, i % 2 = 0 b,
    case when i % 3 > 0 then 'w' || (i % 5) end s, ('x' || i)::blob bl, date '2020-01-01' + i::int d,
    timestamp '2020-01-01' + interval (i) second ts, time '01:00:00' tm, i::decimal(30, 2) dec,
    case when i % 2 = 0 then i end ni, [i, null, i + 1] l,
    case when i % 4 = 0 then null when i % 4 = 1 then [] else ['a' || (i % 3), null] end ls
"""


@pytest.mark.parametrize("version", ["V1", "V2"])
@pytest.mark.parametrize("codec", ["uncompressed", "zstd", "snappy", "gzip", "lz4_raw"])
def test_duckdb_files(tmp_path: Path, version: str, codec: str):
    path = tmp_path / "f.parquet"
    with duckdb.connect() as connection:
        connection.execute(
            f"copy (select {DUCKDB_COLUMNS} from range(3000) r(i)) to '{path}' "
            f"(format parquet, parquet_version '{version}', codec '{codec}', row_group_size 2048)"
        )
    content = path.read_bytes()
    assert difference(table_of(content, 700), arrow_table(content)) == ""
    assert difference(table_of(content, 700, coded=True), arrow_table(content)) == ""


def test_other_types_are_left_to_pyarrow_for_a_reason():
    reasons = {
        "nested": (pa.array([[[1]]], pa.list_(pa.list_(pa.int64()))), "nested"),
        "struct": (pa.array([{"a": 1}], pa.struct({"a": pa.int64()})), "nested"),
        "wide": (
            pa.array([1], pa.decimal128(38)).cast(pa.decimal256(60)),
            "fixed_len_byte_array as decimal256(60, 0)",
        ),
        "long": (pa.array([bytes(70_000)], pa.binary(70_000)), "fixed_len_byte_array as fixed_size_binary[70000]"),
        "category": (
            pa.array(["a"]).dictionary_encode(),
            "byte_array as dictionary<values=string, indices=int32, ordered=0>",
        ),
    }
    table = pa.table({name: values for name, (values, _) in reasons.items()})
    file = File(stored(table))
    for name, leaves in zip(file.schema.names, file.leaves, strict=True):
        kind = column_kind(file.schema.field(name), file.metadata.schema.column(leaves[0]))
        assert kind == reasons[name][1]
    assert difference(table_of(file.content, alone=False), table) == ""


@pytest.mark.parametrize("codec", ["brotli", "none"])
def test_other_codecs_and_encodings_are_left_to_pyarrow(codec: str):
    content = stored(pa.table({"v": [1, 2, 3]}), compression=codec, use_dictionary=False)
    if codec == "none":  # levels in the deprecated encoding
        header = content.index(b"\x15\x06\x15\x06")
        content = content[: header + 1] + b"\x08" + content[header + 2 :]
    assert File(content).chunk("v") is None


def gzip_rows(members: bytes, values: int) -> list[int]:
    """The rows of a chunk of one page of plain int64 values, whose body is given."""
    sizes = b"\x15" + varint(16 * values) + b"\x15" + varint(2 * len(members))
    header = b"\x15\x00" + sizes + b"\x2c\x15" + varint(2 * values) + b"\x15\x00\x15\x06\x15\x06\x00\x00"
    file = File(stored(pa.table({"v": range(values)}, schema=pa.schema([REQUIRED])), compression="gzip"))
    kind, chunk = file.decoder.kind(0), file.metadata.row_group(0).column(0)
    return read_rows(opened(kind, chunk, values, pa.py_buffer(header + members)), values).to_pylist()


REQUIRED = pa.field("v", pa.int64(), nullable=False)


def varint(value: int) -> bytes:
    return bytes((value,)) if value < 128 else bytes((value & 127 | 128,)) + varint(value >> 7)


def test_several_gzip_members_are_one_page():
    content = np.arange(5, dtype=np.int64).tobytes()
    parts = [gzip.compress(content[start : start + 7]) for start in range(0, 40, 7)]
    assert gzip_rows(b"".join(parts), 5) == [0, 1, 2, 3, 4]
    many = gzip.compress(b"") * 50_000 + gzip.compress(content)  # once, each copied all bytes behind it: a minute
    assert gzip_rows(many, 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(bytes(39), mtime=0),
        gzip.compress(bytes(41), mtime=0),
        gzip.compress(bytes(40), mtime=0)[:-1],
        gzip.compress(bytes(40), mtime=0) + b"junk",
        gzip.compress(bytes(40), mtime=0) + gzip.compress(b"x", mtime=0),
        b"",
    ],
)
def test_gzip_of_another_size_is_refused(body: bytes):
    with pytest.raises(ChunkError, match="does not decompress"):
        gzip_rows(body, 5)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("change", [-1, 1])
def test_a_page_of_another_size_than_its_header_says_is_refused(codec: str, change: int):
    """Also where a codec would return memory that it did not write."""
    table = pa.table({"v": range(7)}, schema=pa.schema([REQUIRED]))
    content = bytearray(stored(table, compression=codec, use_dictionary=False, write_statistics=False))
    header = content.index(b"\x15\x00\x15\x70")  # the kind, and 56 bytes
    content[header + 3] += 2 * change
    chunk = File(bytes(content)).chunk("v")
    with pytest.raises(ChunkError, match=r"decompress|another size"):
        read_rows(chunk, 7)


def test_no_bytes_do_not_decompress_to_some():
    table = pa.table({"v": pa.nulls(7, pa.int64())})
    content = stored(table, compression="snappy", use_dictionary=False, data_page_version="2.0", write_statistics=False)
    file = File(content)
    chunk = file.metadata.row_group(0).column(0)
    [found] = pages_in(content[chunk.data_page_offset :][: chunk.total_compressed_size], 7)
    assert found.compressed == found.def_bytes  # there are no values
    assert table_of(content).equals(table)
    at = content.index(bytes((0x15, 2 * found.uncompressed, 0x15, 2 * found.compressed)))
    flag = content.index(b"\x15\x00\x12", at) + 2
    larger = bytearray(content)
    larger[at + 1] += 2
    larger[flag] = 0x11  # they are compressed
    decoder = File(bytes(larger)).chunk("v")
    with pytest.raises(ChunkError, match="does not decompress to its size"):
        read_rows(decoder, 7)


def as_if_of(table: pa.Table, rows: int, **options: Any) -> ChunkDecoder | None:
    """A table's first column as if the footer said another number of rows."""
    file = File(stored(table, **options))
    kind, chunk = file.decoder.kind(0), file.metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    return opened(kind, chunk, rows, file.read(start, start + chunk.total_compressed_size))


@pytest.mark.parametrize("values", [pa.array(range(20)), pa.array([[row] * (row % 3) for row in range(20)])])
@pytest.mark.parametrize("page", [1, 2**20])
def test_more_or_fewer_rows_than_the_footers_are_refused(values: pa.Array, page: int):
    table = pa.table({"v": values})
    sizes = {"data_page_size": page, "write_batch_size": 3}
    for rows in (1, 19):
        chunk = as_if_of(table, rows, **sizes)
        with pytest.raises(ChunkError, match="more rows than its footer says"):
            read_rows(chunk, rows)
    chunk = as_if_of(table, 21, **sizes)
    with pytest.raises(ChunkError, match="fewer rows than its footer says: got 20, expected 21"):
        read_rows(chunk, 21)
    chunk = as_if_of(table, 20, **sizes)
    assert pa.concat_arrays([read_rows(chunk, some) for some in (3, 16, 1)]).equals(values)


@pytest.mark.parametrize("name", ["v", "l"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_checksums_are_compared(name: str, version: str):
    table = pa.table({"v": [1.5, 2.5, 3.5], "l": [["aaa"], ["bbb"], ["ccc"]]}).select([name])
    written = {
        "write_page_checksum": True,
        "use_dictionary": False,
        "data_page_version": version,
        "compression": "none",
    }
    content = stored(table, write_statistics=False, **written)
    at = content.index(np.float64(1.5).tobytes() if name == "v" else b"aaa")
    damaged = content[: at + 1] + b"b" + content[at + 2 :]
    assert difference(table_of(content), table) == ""
    chunk = File(damaged).chunk(name)
    with pytest.raises(ChunkError, match="checksum"):
        read_rows(chunk, 3)


def test_small_integers_wrap_as_in_pyarrow():
    """A file may store more than its type holds."""
    schema = pa.schema([pa.field("v", pa.int32())])
    content = stored(pa.table({"v": [300, -200, 70_000]}, schema=schema), store_schema=False)
    file = File(content)
    column = file.metadata.schema.column(0)
    kind = column_kind(pa.field("v", pa.int8()), column)
    chunk = file.metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset
    made = opened(kind, chunk, 3, file.read(start, start + chunk.total_compressed_size))
    assert read_rows(made, 3).to_pylist() == np.array([300, -200, 70_000]).astype(np.int8).tolist()


pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")


@pytest.mark.parametrize("coded", [True, False])
@pytest.mark.parametrize("length", [9, 20])
def test_of_long_lists_only_what_is_needed_is_delivered(coded: bool, length: int):
    """Of those that are twice as long on average; as codes, and as values where there are no codes."""
    rows = [list(range(length)) if row % 3 else None for row in range(300)]
    table = pa.table({"v": pa.array(rows, pa.list_(pa.int64()))})
    found = table_of(stored(table, use_dictionary=coded), 70, coded=True, prefix=4)
    average = length * 2 / 3
    assert difference(found, beginnings(table, 4) if average > 8 else table) == ""
    assert difference(table_of(stored(table), 70, coded=True, prefix=0), table) == ""
