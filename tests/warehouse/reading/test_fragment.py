"""Fragments travel to workers: small, picklable, and without row groups that keep nothing."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from warehouse_samples import sample, write

from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import (
    Fragment,
    count_excluded,
    fragment_at,
    fragment_of,
    pack_mask,
    unpack_mask,
)
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.snapshot.splits import plan_splits
from feedline.warehouse.snapshot.take import take_snapshot


def whole(snapshot: Snapshot, file: int = 0) -> Fragment:
    groups = np.flatnonzero(snapshot.file_of_row_group == file)
    return fragment_at(snapshot, file, groups, snapshot.rows_per_row_group[groups])


def frames(
    snapshot: Snapshot, fragment: Fragment, columns: list[str], text: str | None = None, **options: Any
) -> pl.DataFrame:
    where = None if text is None else bind_where(text, snapshot.schema)
    parts = [chunk.frame for chunk in read_fragment(fragment, ReadRequest(columns, snapshot.schema, where, **options))]
    return pl.concat(parts) if parts else pl.DataFrame()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Snapshot:
    root = tmp_path_factory.mktemp("shop")
    tables = {f"ds=2026-01-0{day}/f{part}.parquet": sample(50, day * 10 + part) for day in (1, 2) for part in (0, 1)}
    return take_snapshot(write(root, tables, row_group_size=20))


def test_fragments_are_small_and_picklable(shop: Snapshot) -> None:
    fragment = whole(shop)
    wire = pickle.dumps(fragment)
    assert len(wire) < 700
    assert pickle.loads(wire) == fragment
    assert frames(shop, pickle.loads(wire), ["i64"]).height == 50


def test_row_groups_that_keep_nothing_are_not_in_a_fragment(shop: Snapshot) -> None:
    splits = plan_splits(shop.rows_per_row_group, shop.file_of_row_group, 1000)
    kept = np.where(np.arange(len(shop.rows_per_row_group)) % 3 == 1, 0, shop.rows_per_row_group)
    fragment = fragment_of(shop, splits, kept, 0)
    assert (fragment.row_groups, fragment.expected) == ((0, 2), (20, 10))


@given(st.lists(st.booleans(), max_size=70))
def test_masks(mask: list[bool]):
    bits = pack_mask(np.array(mask, np.bool_))
    assert unpack_mask(bits, len(mask)).tolist() == mask
    assert count_excluded(bits) == sum(mask)
    assert not unpack_mask(None, len(mask)).any()
    assert count_excluded(None) == 0
