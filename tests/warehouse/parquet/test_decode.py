"""Files of strangers, and damaged ones, are decoded as pyarrow decodes them or refused: never a crash, never other
values."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import page_mutations
import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from checked_kernels import SANITIZED, BuildError, build, sanitizing
from page_decoding import File, arrow_table, difference, stored, table_of
from warehouse_samples import COLLECTION, collection

from feedline.errors import CorruptFileError, FeedlineError
from feedline.native import parquet as native
from feedline.warehouse.parquet import column_chunk
from feedline.warehouse.parquet.column_chunk import ChunkDecoder
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.parquet.footer import file_facts

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

HUGE = "large_string_map.brotli.parquet"  # 4 GiB of a codec and a type that are pyarrow's
FILES = [
    path for folder in ("data", "bad_data", "shredded_variant") for path in collection(folder) if path.name != HUGE
]


def decoded(path: Path, chunk_rows: int, *, coded: bool) -> pa.Table | str:
    """A file's rows, or the kind of error; footers are checked first, as a snapshot does."""
    try:
        file_facts(pafs.LocalFileSystem(), str(path), path.stat().st_size, "file")
        return table_of(path.read_bytes(), chunk_rows, coded=coded, alone=False)
    except (FeedlineError, pa.ArrowException, OSError, MemoryError):
        return "refused"


@pytest.mark.skipif(not FILES, reason=f"the files of apache/parquet-testing are not at {COLLECTION}")
@pytest.mark.parametrize("coded", [pytest.param(False, marks=pytest.mark.nightly), True])
def test_files_of_many_writers_are_decoded_as_by_pyarrow_or_refused_by_both(
    monkeypatch: pytest.MonkeyPatch, coded: bool
):
    """As codes and in small chunks; and as values and whole, which is nightly: so tests/warehouse/test_collection.py
    reads them."""
    differing = []
    outcomes: Counter[str] = Counter()
    for path in FILES:
        chunk_rows = 100_000 if not coded else 7 if path.stat().st_size < 50_000 else 1000
        monkeypatch.setenv(DECODER_VARIABLE, "arrow")
        expected = decoded(path, chunk_rows, coded=coded)
        monkeypatch.delenv(DECODER_VARIABLE)
        found = decoded(path, chunk_rows, coded=coded)
        if isinstance(expected, str) or isinstance(found, str):
            outcomes["refused"] += 1
            if expected is not found:
                differing.append(f"{path.name}: {found}, {expected}")
        else:
            outcomes["same"] += 1
            if why := difference(found, expected):
                differing.append(f"{path.name}: {why}")
    assert differing == []
    assert outcomes["same"] > 100
    assert outcomes["refused"] > 2


@pytest.mark.skipif(not FILES, reason=f"the files of apache/parquet-testing are not at {COLLECTION}")
@pytest.mark.parametrize(
    "name",
    [
        "alltypes_plain.snappy.parquet",
        "byte_stream_split_extended.gzip.parquet",
        "concatenated_gzip_members.parquet",
        "datapage_v2.snappy.parquet",
        "delta_binary_packed.parquet",
        "delta_byte_array.parquet",
        "delta_encoding_optional_column.parquet",
        "delta_length_byte_array.parquet",
        "fixed_length_byte_array.parquet",
        "float16_nonzeros_and_nans.parquet",
        "hadoop_lz4_compressed_larger.parquet",
        "list_columns.parquet",
        "lz4_raw_compressed.parquet",
        "non_hadoop_lz4_compressed.parquet",
        "rle_boolean_encoding.parquet",
    ],
)
def test_files_with_an_encoding_or_a_codec_are_decoded_by_the_kernel(name: str):
    file = File((COLLECTION / "data" / name).read_bytes())
    own = 0
    for column, leaves in zip(file.schema.names, file.leaves, strict=True):
        if len(leaves) == 1 and not isinstance(file.decoder.kind(leaves.start), str):
            assert isinstance(file.chunk(column), ChunkDecoder)
            own += 1
    assert own > 0


def test_columns_of_both_decoders_keep_step():
    table = pa.table(
        {
            "a": pa.array(range(1000)),
            "nested": pa.array([{"x": row} for row in range(1000)]),
            "l": pa.array([[row] * (row % 4) for row in range(1000)]),
        }
    )
    file = File(stored(table, row_group_size=300))
    assert isinstance(file.chunk("a", 1), ChunkDecoder)
    assert isinstance(file.decoder.kind(file.leaf("nested")), str)
    for chunk_rows in (1, 7, 64, 299, 300, 301):
        assert difference(table_of(file.content, chunk_rows, alone=False), table) == ""
    sizes = [batch.num_rows for batch in file.batches(0, 64)]
    assert sizes == [64, 64, 64, 64, 44]


def test_a_chunk_that_does_not_open_is_left_to_pyarrow_which_says_what_is_wrong():
    content = stored(pa.table({"v": ["a", "b"] * 50}), compression="none")
    at = content.index(b"\x01\x00\x00\x00a")
    damaged = content[:at] + b"\xff\xff\xff\x7f" + content[at + 4 :]
    assert File(damaged).chunk("v") is None
    with pytest.raises(OSError, match="Unexpected end of stream"):
        table_of(damaged, alone=False)


@pytest.mark.parametrize("coded", [True, False])
def test_strings_of_more_bytes_than_32_bits_count_are_left_to_pyarrow(coded: bool, monkeypatch: pytest.MonkeyPatch):
    content = stored(pa.table({"s": ["word", "other"] * 500}), use_dictionary=coded)
    size = File(content).metadata.row_group(0).column(0).total_uncompressed_size + 1000 * 5 * coded
    monkeypatch.setattr(column_chunk, "_MOST_BYTES", size)
    assert File(content).chunk("s") is not None
    monkeypatch.setattr(column_chunk, "_MOST_BYTES", size - 1)
    assert File(content).chunk("s") is None
    assert (File(content).chunk("s", codes=True) is None) is not coded


@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_zstd_is_decoded_without_its_shared_library(version: str, monkeypatch: pytest.MonkeyPatch):
    table = pa.table({"n": [1, 2, None] * 900, "l": [["a"], None, []] * 900, "f": np.arange(2700.0)})
    pages = {"data_page_size": 500, "write_batch_size": 90, "write_page_checksum": True}
    content = stored(table, compression="zstd", data_page_version=version, **pages)
    monkeypatch.delitem(native.CODECS, "ZSTD", raising=False)
    decoder = File(content).chunk("n")
    assert decoder is not None
    assert not decoder.finds_pages
    for coded in (False, True):
        assert difference(table_of(content, 70, coded=coded), table) == ""


def test_damage_is_an_error_that_names_column_and_row_group():
    content = stored(pa.table({"v": [0.5] * 100}), use_dictionary=False, compression="none", data_page_version="2.0")
    at = content.index(b"\xc8\x01\x01")  # a run of 100 values that are there
    damaged = content[:at] + b"\xc9" + content[at + 1 :]
    with pytest.raises(CorruptFileError, match="column 'v' of file, row group 0 is not valid Parquet: its levels end"):
        table_of(damaged)


def test_damaged_pages_are_decoded_as_by_pyarrow_or_refused():
    """What neither the kernel nor the footer can know, both deliver; what pyarrow refuses, the kernel does, too."""
    found: Counter[str] = Counter()
    for result, why, content in page_mutations.outcomes(0, 600):
        found[result] += 1
        assert result not in ("different", "refused by pyarrow"), f"{result}, {why}: {content.hex()}"
    assert found["same"] > 120
    assert found["refused"] > 120
    assert found["refused by the kernel"] < 12


@pytest.fixture(scope="module")
def checked_kernel(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, str]]:
    """The kernel with AddressSanitizer and UndefinedBehaviorSanitizer, and the environment that it needs."""
    try:
        folder = build(tmp_path_factory.mktemp("kernel"), SANITIZED)
        checks = sanitizing(folder)
    except BuildError as error:
        pytest.skip(f"the sanitizers or Python's headers are not installed: {error}")
    return str(folder / "feedline" / "native" / "_parquet.abi3.so"), checks


@pytest.mark.nightly
@pytest.mark.parametrize("seed", range(3))
def test_damaged_pages_touch_no_memory_but_their_own(checked_kernel: tuple[str, dict[str, str]], seed: int):
    path, environment = checked_kernel
    command = [sys.executable, page_mutations.__file__, str(seed), "10000", path]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, check=False)
    assert done.returncode == 0, done.stderr[-5000:]
    found = json.loads(done.stdout)
    assert sum(found.values()) == 10_000
    assert found["same"] > 2000


def test_samples_are_whole_before_they_are_damaged():
    """Every file that is damaged is decoded by the kernel, and differs from no other in what it tests."""
    files = page_mutations.samples()
    assert len(set(files)) == len(files)
    encodings: set[str] = set()
    for content in files:
        assert difference(table_of(content, 7), arrow_table(content)) == ""
        encodings.update(pq.ParquetFile(pa.BufferReader(content)).metadata.row_group(0).column(0).encodings)
    assert encodings >= {"PLAIN", "RLE", "RLE_DICTIONARY", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY"}
    assert encodings >= {"DELTA_BYTE_ARRAY", "BYTE_STREAM_SPLIT"}
