"""Of lists that are much longer than what is needed of them, only that is decoded."""

from __future__ import annotations

import pyarrow as pa
import pytest
from page_decoding import beginnings, difference, stored, table_of

from feedline.native import parquet as native

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
