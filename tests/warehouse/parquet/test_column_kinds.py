"""Which Parquet columns the compiled kernel decodes, and how their values are laid out."""

from __future__ import annotations

import io
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline.warehouse.parquet.column_kinds import ColumnKind, column_kind


def kind_of_column(values: pa.Array) -> ColumnKind | str:
    sink = io.BytesIO()
    pq.write_table(pa.table({"v": values}), sink)
    file = pq.ParquetFile(sink)
    return column_kind(file.schema_arrow.field("v"), file.metadata.schema.column(0))


@pytest.mark.parametrize(
    ("values", "size", "lists", "narrow"),
    [
        (pa.array([1, None], pa.int64()), 8, 0, ""),
        (pa.array([1, None], pa.int8()), 4, 0, "i1"),
        (pa.array([1.5], pa.float32()), 4, 0, ""),
        (pa.array([True]), 1, 0, ""),
        (pa.array(["a", None]), 0, 0, ""),
        (pa.array([b"abc"], pa.binary(3)), 3, 0, ""),
        (pa.array(np.array([1.5], np.float16)), 2, 0, ""),
        (pa.array([Decimal("1.25")], pa.decimal128(20, 2)), 9, 0, ""),
        (pa.array([[1], None], pa.list_(pa.int64())), 8, 2, ""),
        (pa.array([["a"]], pa.large_list(pa.string())), 0, 2, ""),
    ],
)
def test_layout_of_values_that_the_kernel_decodes(values: pa.Array, size: int, lists: int, narrow: str):
    kind = kind_of_column(values)
    assert isinstance(kind, ColumnKind)
    assert (kind.type, kind.size, kind.lists, kind.narrow) == (values.type, size, lists, narrow)
    assert kind.is_nullable


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        (pa.array([[[1]]]), "nested"),
        (pa.array([{"a": 1}]), "nested"),
        (pa.array([b"a" * 70_000], pa.binary(70_000)), "fixed_len_byte_array as fixed_size_binary[70000]"),
    ],
)
def test_columns_left_to_pyarrow_name_the_reason(values: pa.Array, reason: str):
    assert kind_of_column(values) == reason
