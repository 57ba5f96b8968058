"""Digests of rows are the same however many rows are digested at once, and wherever a table was sliced."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.warehouse.building import row_digests as digesting
from feedline.warehouse.building.row_digests import row_digests

IDS = st.none() | st.lists(st.none() | st.integers(-3, 3), max_size=4)
TYPES = {
    "list": (pa.list_(pa.int64()), IDS),
    "large": (pa.large_list(pa.int64()), IDS),
    "map": (
        pa.map_(pa.string(), pa.int64()),
        st.none() | st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 2))),
    ),
    "struct": (pa.struct([("x", pa.list_(pa.int64()))]), st.none() | st.fixed_dictionaries({"x": IDS})),
    "fixed": (pa.list_(pa.int64(), 2), st.none() | st.lists(st.integers(0, 2), min_size=2, max_size=2)),
    "plain": (pa.float64(), st.none() | st.sampled_from([0.0, -0.0, 1.5])),
}


@examples(60)
@given(
    rows=st.lists(st.fixed_dictionaries({name: values for name, (_, values) in TYPES.items()}), max_size=12),
    run=st.integers(1, 5),
    first=st.integers(0, 4),
)
def test_digests_do_not_depend_on_runs_or_slices(rows: list[dict[str, object]], run: int, first: int) -> None:
    table = pa.table({name: pa.array([row[name] for row in rows], kind) for name, (kind, _) in TYPES.items()})
    whole = row_digests(table)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digesting, "_RUN_ROWS", run)
        assert np.array_equal(row_digests(table), whole)
    assert np.array_equal(row_digests(table.slice(first)), whole[first:])
    same = [[str(a) == str(b) for b in table.to_pylist()] for a in table.to_pylist()]
    equal = whole[:, None] == whole[None, :]
    assert not (np.array(same, bool).reshape(equal.shape) & ~equal).any()
