"""Bytes of a footer are a structure, or malformed, in bounded time."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import sample

from feedline.errors import FeedlineError
from feedline.warehouse.parquet.footer import file_facts
from feedline.warehouse.parquet.thrift import MalformedError, structure_of

LOCAL = pafs.LocalFileSystem()


def footer(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def test_any_damage_to_a_footer_is_an_error_or_harmless(tmp_path: Path) -> None:
    """pyarrow alone would end the process for a few of these."""
    good = written(sample(50), row_group_size=25)
    start = len(good) - 8 - len(footer(good))
    rng = random.Random(0)
    file = tmp_path / "f.parquet"
    refused = 0
    for _ in range(800):
        bad = bytearray(good)
        for _ in range(rng.choice([1, 1, 3])):
            place = rng.randrange(start, len(good) - 8)
            bad[place] = rng.choice([bad[place] ^ (1 << rng.randrange(8)), rng.randrange(256)])
        file.write_bytes(bad)
        try:
            facts = file_facts(LOCAL, str(file), len(bad), "the file")
        except FeedlineError as error:
            refused += 1
            assert str(error).startswith("the file")  # noqa: PT017
        else:
            assert all(rows >= 0 for rows in facts.rows)
    assert 300 < refused < 800


@given(st.binary(max_size=200))
def test_any_bytes_are_a_structure_or_malformed(data: bytes) -> None:
    try:
        structure = structure_of(data)
    except MalformedError:
        return
    assert len(structure.rows) == len(structure.chunks)


@pytest.mark.parametrize(
    "hostile",
    [
        b"\x19" + b"\xff" * 1_000_000,  # a number without end
        b"\x1c" * 1_000_000,  # structures in structures
        b"\x19\xf9\xff\xff\xff\xff\x0f" + b"\x19" * 100_000,  # lists of lists
        b"\x49\xfc\xff\xff\xff\xff\xff\xff\xff\xff\x7f\x00",  # more row groups than bytes
        b"\x18\xff\xff\xff\xff\x0f",  # a text longer than the footer
    ],
)
def test_hostile_footers_are_refused_at_once(hostile: bytes) -> None:
    with pytest.raises(MalformedError):
        structure_of(hostile)
