"""Bounds of column chunks are decoded as they were written, or unknown."""

from __future__ import annotations

import io
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from warehouse_samples import write

from feedline.warehouse.parquet.bounds import bounds_of
from feedline.warehouse.parquet.thrift import BYTE_ARRAY, FIXED, INT32, INT64
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.take import take_snapshot


def first_facts(snapshot: Snapshot) -> dict[str, Any]:
    """The facts of the first row group's columns."""
    return {name: snapshot.column_facts(name)[0].as_py() for name in snapshot.schema.names}


def footer(content: bytes) -> bytes:
    return content[-8 - int.from_bytes(content[-8:-4], "little") : -8]


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def test_bounds_of_the_wrong_length_are_unknown(tmp_path: Path) -> None:
    good = written(pa.table({"x": pa.array([2**40, 2**41])}), store_schema=False)
    tail = footer(good)
    bound = (2**41).to_bytes(8, "little")
    place = tail.index(b"\x08" + bound)  # shorten the first copy of the upper bound by moving its end
    shorter = tail[:place] + b"\x07" + bound[:7] + tail[place + 9 :]
    content = good[: len(good) - 8 - len(tail)] + shorter + len(shorter).to_bytes(4, "little") + b"PAR1"
    (tmp_path / "f.parquet").write_bytes(content)
    fact = first_facts(take_snapshot(str(tmp_path)))["x"]
    assert fact["max"] in (None, 2**41)
    assert (fact["min"] is None) == (fact["max"] is None)


def test_deprecated_bounds_count_for_signed_integers_only(tmp_path: Path) -> None:
    """Without declared orders, min and max were computed by signed comparison, whatever the type."""
    table = pa.table({"i": pa.array([1, 2], pa.int32()), "u": pa.array([1, 2], pa.uint32()), "f": [1.0, 2.0]})
    good = written(table)
    tail = footer(good)
    orders = tail.rindex(b"\x19\x3c\x1c\x00\x00\x1c\x00\x00\x1c\x00\x00")  # field 7, three unions: TYPE_ORDER
    # field 5 (key_value_metadata) comes before created_by (6); column_orders (7) is cut out
    content = (
        good[: len(good) - 8 - len(tail)] + (cut := tail[:orders] + b"\x00") + len(cut).to_bytes(4, "little") + b"PAR1"
    )
    (tmp_path / "f.parquet").write_bytes(content)
    fact = first_facts(take_snapshot(str(tmp_path)))
    assert [(fact[name]["min"], fact[name]["max"]) for name in "iuf"] == [(1, 2), (None, None), (None, None)]


def test_decimals_of_every_storage_have_bounds(tmp_path: Path) -> None:
    values = [-12345, 0, 99999]
    for kind in (pa.decimal128(9, 2), pa.decimal128(18, 2), pa.decimal128(38, 2), pa.decimal256(60, 2)):
        unscaled = pa.array(values).cast(pa.decimal256(60, 0))
        table = pa.table({"d": pa.array([v.as_py().scaleb(-2) for v in unscaled], kind)})
        for stored_as_integer in (True, False):
            root = write(tmp_path, {"f.parquet": table}, store_decimal_as_integer=stored_as_integer)
            fact = first_facts(take_snapshot(root))["d"]
            assert [fact["min"], fact["max"]] == [table["d"][0].as_py(), table["d"][2].as_py()]


def test_unsigned_bounds_beyond_the_signed_range(tmp_path: Path) -> None:
    table = pa.table({f"u{n}": pa.array([1, 2**n - 1], f"uint{n}") for n in (8, 16, 32, 64)})
    for version in ("1.0", "2.6"):
        fact = first_facts(take_snapshot(write(tmp_path, {"f.parquet": table}, version=version)))
        assert [fact[f"u{n}"]["max"] for n in (8, 16, 32, 64)] == [2**n - 1 for n in (8, 16, 32, 64)]
        assert np.unique([fact[f"u{n}"]["min"] for n in (8, 16, 32, 64)]).tolist() == [1]


@pytest.mark.parametrize(
    ("physical", "good", "bad"),
    [
        (INT32, (5).to_bytes(4, "little"), (b"", b"\x05", bytes(8))),
        (INT64, (5).to_bytes(8, "little"), (b"", bytes(4), bytes(9))),
        (FIXED, (5).to_bytes(4, "big"), (b"", b"\x05", bytes(3))),
        (BYTE_ARRAY, b"\x05", (b"",)),
    ],
)
def test_decimal_bounds_of_a_wrong_length_are_unknown(physical: int, good: bytes, bad: tuple[bytes, ...]) -> None:
    """No bytes are no 0, and some of the bytes of a number are another number."""
    kind = pa.decimal128(8, 2)
    for wrong in bad:
        low, high = bounds_of([good, wrong, good], [good, good, wrong], physical, kind)
        assert low.to_pylist() == high.to_pylist() == [Decimal("0.05"), None, None]
