"""An exclusion's bits leave out the rows that they name, and its id names all that decided it."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Table
from feedline.errors import CorruptFileError, StateError
from feedline.expressions import bind_where
from feedline.warehouse.reading.fragment import pack_mask, unpack_mask
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.selection.exclusion import (
    Exclusion,
    ExclusionOrigin,
    RowFault,
    join_bits,
    kept_exclusions,
)
from feedline.warehouse.selection.select import screen_rows, select_rows
from feedline.warehouse.storage import content_store

ORIGIN = ExclusionOrigin(
    snapshot="s1",
    where="x > 1",
    sample={"fraction": 0.5, "where": None, "seed": 0, "key": ["a"]},
    features="f",
    rules="r",
    environment="polars 1",
    unfitted=("u",),
    types={"x": "int64"},
    rows=50,
)
FAULTS = (
    RowFault(row_group=1, feature="a", reason="holds a null", rows=2, first=0),
    RowFault(row_group=4, feature="a", reason="holds a null", rows=1, first=7),
    RowFault(row_group=4, feature="b", reason="holds a null", rows=3, first=1),
)


def excluding(masks: dict[int, Any], origin: ExclusionOrigin = ORIGIN, faults: Any = ()) -> Exclusion:
    arrays = {group: np.asarray(mask, np.bool_) for group, mask in masks.items()}
    excluded = {group: (len(mask), pack_mask(mask)) for group, mask in arrays.items()}
    return Exclusion(origin=origin, excluded=excluded, faults=tuple(faults))


def test_what_is_written_is_read_with_the_same_id(tmp_path: Path):
    exclusion = excluding({1: [True, True, False], 4: [False] * 8 + [True]}, faults=FAULTS)
    exclusion.write(str(tmp_path / "some" / "file"))
    read = Exclusion.read(str(tmp_path / "some" / "file"))
    assert read.id == exclusion.id
    assert (dict(read.excluded), read.faults, read.origin) == (exclusion.excluded, FAULTS, ORIGIN)
    assert (read.counts, read.rows) == ({1: 2, 4: 1}, 3)
    assert read.reasons() == {("a", "holds a null"): 3, ("b", "holds a null"): 3}
    path = Path(exclusion.save(str(tmp_path / "work")))
    assert path == tmp_path / "work" / "exclusions" / f"{exclusion.id}.arrow"
    written = path.stat().st_mtime_ns
    assert exclusion.save(str(tmp_path / "work")) == str(path)
    assert path.stat().st_mtime_ns == written


def test_the_id_names_everything_that_decided_it():
    exclusion = excluding({1: [True, False]}, faults=FAULTS[:1])
    changes: dict[str, Any] = {
        "snapshot": "s2",
        "where": None,
        "sample": None,
        "features": "g",
        "rules": "",
        "environment": "polars 2",
        "unfitted": (),
        "types": {"x": "int32"},
        "rows": 51,
    }
    assert changes.keys() == json.loads(json.dumps(ORIGIN.judgement | {"snapshot": 0, "rows": 0})).keys()
    others = [excluding({1: [True, False]}, replace(ORIGIN, **{k: v}), FAULTS[:1]) for k, v in changes.items()]
    others += [
        excluding({1: [False, True]}, faults=FAULTS[:1]),
        excluding({2: [True, False]}, faults=FAULTS[:1]),
        excluding({1: [True, False, False]}, faults=FAULTS[:1]),
        excluding({1: [True, False]}, faults=FAULTS[1:]),
        excluding({1: [True, False], 2: [False, True]}, faults=FAULTS[:1]),
    ]
    assert len({each.id for each in (exclusion, *others)}) == 1 + len(others)
    assert excluding({1: [True, False]}, faults=FAULTS[:1]).id == exclusion.id


def test_other_files_are_not_read_as_exclusions(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        Exclusion.read(str(tmp_path / "missing"))
    table = pa.table({"row_group": pa.array([], pa.int64())})
    content_store.create(str(tmp_path), "two", [table, table])
    content_store.create(str(tmp_path), "one", [table])
    for name in ("one", "two"):
        with pytest.raises(CorruptFileError):
            Exclusion.read(str(tmp_path / name))


def test_those_kept_of_a_snapshot_are_found_beside_damaged_ones(tmp_path: Path):
    work_dir = str(tmp_path)
    assert list(kept_exclusions(work_dir, "s1")) == []
    mine, other = excluding({1: [True]}), excluding({1: [True]}, replace(ORIGIN, snapshot="s2"))
    for each in (mine, other):
        each.save(work_dir)
    (tmp_path / "exclusions" / "0.arrow").write_bytes(b"damaged")
    assert [each.id for each in kept_exclusions(work_dir, "s1")] == [mine.id]


@given(st.lists(st.lists(st.booleans(), min_size=19, max_size=19) | st.none(), max_size=4))
def test_joined_bits_leave_out_what_any_part_does(masks: list[list[bool] | None]):
    joined = join_bits(None if mask is None else pack_mask(np.array(mask)) for mask in masks)
    expected = [any(mask[row] for mask in masks if mask is not None) for row in range(19)]
    assert unpack_mask(joined, 19).tolist() == expected
    assert (joined is None) == all(mask is None for mask in masks)


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("t")
    for file in range(2):
        rows = pa.table({"id": np.arange(100 * file, 100 * file + 40), "x": np.arange(40) % 5})
        pq.write_table(rows, folder / f"{file}.parquet", row_group_size=9)
    return Table(str(folder)).snapshot()


@examples(60, by_day=8)
@given(st.data())
def test_selected_rows_are_those_that_no_bit_leaves_out(snapshot: Any, data: st.DataObject):
    """Whatever the bits, and those of a rebase: counts, fragments and what is read agree with a list of ids."""
    where = bind_where("x != 2", snapshot.schema)
    with tempfile.TemporaryDirectory() as folder:
        whole = select_rows(snapshot, where, work_dir=folder)
    ids = _read(whole, snapshot, where)
    drawn = {
        group: data.draw(st.lists(st.booleans(), min_size=len(rows), max_size=len(rows)))
        for group, rows in ids.items()
        if data.draw(st.booleans())
    }
    exclusion = excluding({group: mask for group, mask in drawn.items() if any(mask)})
    chosen = [whole.without(exclusion), screen_rows(snapshot, where).without(exclusion)]
    expected = {
        group: [row for index, row in enumerate(rows) if not drawn.get(group, [False] * len(rows))[index]]
        for group, rows in ids.items()
    }
    assert chosen[0].rows.tolist() == [len(expected[group]) for group in range(len(ids))]
    assert chosen[0].kept_rows.tolist() == whole.rows.tolist()
    assert chosen[0].without(None).rows.tolist() == whole.rows.tolist()
    for selection in chosen:
        assert _read(selection, snapshot, where) == {group: rows for group, rows in expected.items() if rows}
    more = {group: pack_mask(np.arange(len(rows)) % 2 == 0) for group, rows in ids.items()}
    rest = {
        group: [row for index, row in enumerate(rows) if index % 2 and row in expected[group]]
        for group, rows in ids.items()
    }
    assert _read(chosen[0], snapshot, where, more) == {group: rows for group, rows in rest.items() if rows}


def _read(selection: Any, snapshot: Any, where: Any, more: Any = None) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    groups = np.flatnonzero(selection.rows)
    for file in range(len(snapshot.files)):
        own = groups[snapshot.file_of_row_group[groups] == file]
        if not len(own):
            continue
        fragment = selection.fragment(snapshot, own, more_excluded=None if more is None else more.get)
        first = int(snapshot.row_groups_of(file)[0])
        for chunk in read_fragment(fragment, ReadRequest(["id"], snapshot.schema, where)):
            found.setdefault(first + chunk.row_group, []).extend(chunk.frame["id"].to_list())
    return found


def test_an_exclusion_of_other_counts_is_refused(snapshot: Any, tmp_path: Path):
    selection = select_rows(snapshot, None, work_dir=str(tmp_path))
    for group, mask in ((0, [True] * 8), (99, [True])):
        with pytest.raises(StateError, match=f"belongs to another filter or snapshot: got {len(mask)} kept rows"):
            selection.without(excluding({group: mask}))
