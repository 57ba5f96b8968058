"""Damage the pages of small Parquet files at random, and decode them with the kernel and with pyarrow.

As a program: `page_mutations.py SEED COUNT KERNEL` damages `COUNT` files, decodes each with the kernel built at a path,
prints how many were decoded to the same values or refused, and fails at the first that the kernel decodes to other
values than pyarrow, or that pyarrow alone refuses. Pages are copied to memory of their own size first: where the
kernel is built with AddressSanitizer, a byte read behind them ends the process.
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa

ROWS = 60
_LIST = pa.list_(pa.field("element", pa.int64(), nullable=False))


@cache
def samples() -> list[bytes]:
    """Small files of every type, encoding, version of pages and codec."""
    from page_decoding import stored

    rng = np.random.default_rng(0)
    numbers = rng.integers(-(2**31), 2**31, ROWS)
    few = rng.integers(0, 5, ROWS)
    null = rng.random(ROWS) < 0.2

    def sparse(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([None if gone else value for value, gone in zip(values, null, strict=True)], kind)

    def lists(values: Any, kind: pa.DataType) -> pa.Array:
        return pa.array([list(values[row : row + row % 4]) for row in range(ROWS)], kind)

    words = [f"word {'x' * (n % 7)}{n}" for n in few]
    mixed = [None if gone else [value, None] * (value % 3) for value, gone in zip(few.tolist(), null, strict=True)]
    full = pa.array([numbers[: 1 + row % 3].tolist() for row in range(ROWS)], _LIST)  # definition levels are one run
    columns: dict[str, tuple[pa.Array, list[str]]] = {
        "i32": (pa.array(numbers.astype(np.int32)), ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]),
        "i64": (sparse(few.tolist(), pa.int64()), ["PLAIN", "DELTA_BINARY_PACKED", "BYTE_STREAM_SPLIT"]),
        "i8": (sparse(few.tolist(), pa.int8()), ["PLAIN"]),
        "f64": (sparse(numbers.tolist(), pa.float64()), ["PLAIN", "BYTE_STREAM_SPLIT"]),
        "b": (sparse((few > 2).tolist(), pa.bool_()), ["PLAIN", "RLE"]),
        "s": (sparse(words, pa.string()), ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY", "DELTA_BYTE_ARRAY"]),
        "d": (sparse(few.tolist(), pa.decimal128(25, 0)), ["PLAIN", "BYTE_STREAM_SPLIT", "DELTA_BYTE_ARRAY"]),
        "li": (lists(numbers.tolist(), _LIST), ["PLAIN", "DELTA_BINARY_PACKED"]),
        "lf": (full, ["PLAIN", "DELTA_BINARY_PACKED"]),
        "ln": (pa.array(mixed, pa.list_(pa.int32())), ["PLAIN"]),
        "ls": (lists(words, pa.large_list(pa.large_string())), ["PLAIN", "DELTA_LENGTH_BYTE_ARRAY"]),
    }
    files = []
    for name, (values, encodings) in columns.items():
        required = name in ("i32", "li", "lf")
        schema = pa.schema([pa.field(name, values.type, nullable=not required)])
        table = pa.table([values], schema=schema)
        leaf = f"{name}.list.element" if name.startswith("l") else name
        for number, encoding in enumerate([*encodings, "dictionary"]):
            if encoding == "dictionary" and name == "b":
                continue
            options: dict[str, Any] = {"use_dictionary": encoding == "dictionary"}
            if encoding != "dictionary":
                options["column_encoding"] = {leaf: encoding}
            pages = {"write_batch_size": 7, "data_page_size": 100, "write_statistics": False}
            codecs = "none", ("snappy", "lz4", "gzip", "zstd")[number % 4]
            files += [
                stored(table, compression=codec, data_page_version=version, **pages, **options)
                for version in ("1.0", "2.0")
                for codec in codecs
            ]
    return files


@cache
def bodies(content: bytes) -> list[tuple[int, int]]:
    """Where the bytes of a file's pages start and stop, without their headers."""
    from page_decoding import File, pages_in

    chunk = File(content).metadata.row_group(0).column(0)
    start = chunk.dictionary_page_offset if chunk.has_dictionary_page else chunk.data_page_offset
    found = pages_in(content[start : start + chunk.total_compressed_size], chunk.num_values)
    return [(start + page.start, start + page.start + page.compressed) for page in found if page.compressed]


def damaged(content: bytes, rng: random.Random) -> bytes:
    """A file with one to three changes between its magic number and its footer, most of them inside pages."""
    out = bytearray(content)
    stop = len(out) - 8 - int.from_bytes(out[-8:-4], "little")
    spans = bodies(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(*rng.choice(spans)) if rng.random() < 0.8 else rng.randrange(4, stop)
        kind = rng.randrange(8)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at] = rng.choice((0, 1, 2, 3, 0x7F, 0x80, 0xFE, 0xFF))
        elif kind == 3:  # a size that is a little wrong
            out[at] = (out[at] + rng.choice((-4, -2, -1, 1, 2, 3, 4, 8))) % 256
        elif kind == 4:
            size = min(rng.randrange(1, 9), stop - at)
            out[at : at + size] = rng.choice((b"\xff", b"\x00", b"\x80")) * size
        elif kind == 5:  # bytes that are missing: those behind them, in the page or in all pages, move up
            end = next((end for start, end in spans if start <= at < end), stop) if rng.random() < 0.8 else stop
            size = min(rng.randrange(1, 5), end - at)
            out[at:end] = out[at + size : end] + bytes(size)
        elif kind == 6:
            end = next((end for start, end in spans if start <= at < end), stop) if rng.random() < 0.8 else stop
            size = min(rng.randrange(1, 5), end - at)
            out[at:end] = rng.randbytes(size) + out[at : end - size]
        else:  # other bytes of the file
            size = min(rng.randrange(1, 17), stop - at)
            start = rng.randrange(*rng.choice(spans))
            part = out[start : min(start + size, stop)]
            out[at : at + len(part)] = part[: stop - at]
    return bytes(out)


def outcome(content: bytes, *, chunk_rows: int, coded: bool) -> tuple[str, str]:
    """How a file is decoded by both: `same`, `left to pyarrow`, `refused`, `refused by the kernel`, `refused by
    pyarrow`, or `different`; and why.
    """
    from page_decoding import File, arrow_table, difference, table_of

    from feedline.errors import CorruptFileError

    expected = found = None
    try:
        expected = arrow_table(content)
    except (OSError, pa.ArrowException, MemoryError) as error:
        refusal = str(error)
    file = File(content)
    if any(file.chunk(name, group) is None for name in file.schema.names for group in file.groups):
        return "left to pyarrow", ""  # also where it does not open: what pyarrow says of it, is said
    try:
        found = table_of(content, chunk_rows, coded=coded)
    except CorruptFileError as error:
        return ("refused", "") if expected is None else ("refused by the kernel", str(error))
    if expected is None:
        return "refused by pyarrow", refusal
    why = difference(found, expected)
    return ("different", why) if why else ("same", "")


def outcomes(seed: int, count: int) -> Iterator[tuple[str, str, bytes]]:
    """The outcomes of so many damaged files, why, and the files."""
    rng = random.Random(seed)
    files = samples()
    for number in range(count):
        content = damaged(files[number % len(files)], rng)
        result, why = outcome(content, chunk_rows=rng.choice((1, 7, 50, 1000)), coded=rng.random() < 0.5)
        yield result, why, content


def load_kernel(path: str) -> None:
    """Use the kernel built at a path, and hand it pages in memory of their own size."""
    spec = importlib.util.spec_from_file_location("feedline.native._parquet", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["feedline.native._parquet"] = module

    from feedline.native import parquet as native

    assert native._compiled is module
    begin, dictionary, open_chunks = native.Cursor.begin, native.Cursor.set_dictionary, native.open_chunks

    def alone(content: Any) -> Any:
        return None if content is None else np.frombuffer(bytes(content), np.uint8).copy()

    cursor: Any = native.Cursor
    cursor.begin = lambda self, page, levels, values: begin(self, page, alone(levels), alone(values))
    cursor.set_dictionary = lambda self, content, count: dictionary(self, alone(content), count)
    native.open_chunks = lambda requests: open_chunks(
        [(alone(content[start : start + size]), 0, size, *others) for content, start, size, *others in requests]
    )


def main(seed: str, count: str, kernel: str) -> None:
    load_kernel(kernel)
    faulthandler.enable()
    found: Counter[str] = Counter()
    for result, why, content in outcomes(int(seed), int(count)):
        found[result] += 1
        assert result not in ("different", "refused by pyarrow"), f"{result}, {why}: {content.hex()}"
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
