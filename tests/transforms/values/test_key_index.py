"""Every key is found at its row, and no other key is, by the oracle of a dictionary."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.errors import SpecError
from feedline.transforms.values.key_index import key_index

VALUES: list[tuple[pl.DataType, st.SearchStrategy[Any]]] = [
    (pl.Int64(), st.one_of(st.integers(-3, 3), st.sampled_from([-(2**63), 2**63 - 1, 2**40]))),
    (pl.Int64(), st.integers(5, 9)),
    (pl.UInt64(), st.sampled_from([0, 1, 2**63, 2**64 - 1])),
    (pl.String(), st.sampled_from(["", "a", "b", "a longer text than twelve bytes"])),
    (pl.Binary(), st.sampled_from([b"", b"\0", b"\0\0"])),
]


@examples(30)
@given(st.data(), st.booleans())
def test_every_key_is_found_at_its_row(data: st.DataObject, nulls: bool):
    columns = data.draw(st.lists(st.sampled_from(VALUES), min_size=1, max_size=3))
    keys = st.tuples(*(st.one_of(st.none(), values) for _, values in columns))
    schema = {f"k{index}": dtype for index, (dtype, _) in enumerate(columns)}
    held = data.draw(st.lists(keys, max_size=12, unique=True))
    asked = data.draw(st.lists(keys, max_size=12)) + held
    index = key_index(pl.DataFrame(held, schema=schema, orient="row"), list(schema.values()), "none", "it", nulls=nulls)
    found = index.find(pl.DataFrame(asked, schema=schema, orient="row").get_columns()).tolist()
    rows = {key: row for row, key in enumerate(held) if nulls or None not in key}
    assert [int(index.rows[number - 1]) if number else None for number in found] == [rows.get(key) for key in asked]
    assert set(found) <= set(range(len(rows) + 1))


def test_too_many_keys_for_a_word_are_an_error():
    width = 64
    frame = pl.DataFrame({f"k{column}": [f"{row}" for row in range(3)] for column in range(width)})
    with pytest.raises(SpecError, match=r"it has too many keys: got columns of .* values, expected fewer than 2"):
        key_index(frame, [pl.String()] * width, "error", "it")
