"""Columns stored once per run come out of the kernel as out of pyarrow: whatever is null, wherever pages, chunks and
row groups cut; and where another tool left a value in a row that repeats, with the same error after the same rows."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from stored_runs import write_in_place

from feedline.blocks.coded_chunks import DictionaryFrame
from feedline.errors import TableError
from feedline.native import parquet as native
from feedline.native.unique_rows import UniqueRows
from feedline.warehouse.parquet.decode import DecodedRows, FileDecoder
from feedline.warehouse.reading.fragment import UNCOUNTED, fragment_at
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.stored_groups import expand_group
from feedline.warehouse.snapshot.take import take_snapshot

pytestmark = pytest.mark.skipif(not native.COMPILED, reason="the kernel was not compiled: there is no C compiler")

KINDS = {
    "number": pa.int64(),
    "small": pa.int8(),
    "truth": pa.bool_(),
    "word": pa.string(),
    "price": pa.decimal128(9, 2),
    "ids": pa.list_(pa.int32()),
    "words": pa.large_list(pa.string()),
    "point": pa.struct([("x", pa.int32())]),  # pyarrow's, in any case
}
CELLS: dict[str, Any] = {
    "number": st.integers(-(2**40), 2**40),
    "small": st.integers(-9, 9),
    "truth": st.booleans(),
    "word": st.text(max_size=4),
    "price": st.decimals(-99, 99, places=2),
    "ids": st.lists(st.none() | st.integers(0, 99), max_size=30),
    "words": st.lists(st.text(max_size=2), max_size=5),
    "point": st.fixed_dictionaries({"x": st.integers(0, 9)}),
}
GROUP = {"user": list(KINDS)}


@st.composite
def run_tables(draw: st.DrawFn) -> tuple[pa.Table, list[bool]]:
    """Rows of runs that may be long, and where they start."""
    lengths = draw(st.lists(st.integers(1, 30) | st.integers(1, 200), min_size=1, max_size=12))
    which = np.repeat(np.arange(len(lengths)), lengths)
    columns: dict[str, Any] = {}
    for name, kind in KINDS.items():
        cells = draw(st.lists(st.none() | CELLS[name], min_size=len(lengths), max_size=len(lengths)))
        columns[name] = pa.array(cells, kind).take(pa.array(which))
    columns["row"] = pa.array(range(len(which)))
    return pa.table(columns), (np.diff(which, prepend=-1) > 0).tolist()


def chunks_of(folder: Path, decoder: str, columns: list[str], compact: list[str], chunk_rows: int) -> list[Any]:
    """What is read with a decoder: the rows of each chunk, how many are unique, and the error, if there is one."""
    snapshot = take_snapshot(str(folder))
    groups = np.arange(len(snapshot.row_groups))
    fragment = fragment_at(snapshot, 0, groups, np.full(len(groups), UNCOUNTED))
    found: list[Any] = []
    with mock.patch.dict(os.environ, {"FEEDLINE_DECODER": decoder}):
        try:
            coded = dict.fromkeys(compact, 0)
            chunks = read_fragment(
                fragment, ReadRequest(columns, snapshot.schema, chunk_rows=chunk_rows, compact=compact, coded=coded)
            )
            found.extend((values_of(chunk), [group.rows.height for group in chunk.groups]) for chunk in chunks)
        except TableError as error:
            found.append(str(error))
    return found


def values_of(chunk: Any) -> list[Any]:
    """The rows of a chunk, with the values of codes."""

    def expanded(frame: Any) -> Any:
        return DictionaryFrame(frame, chunk.dictionaries).only(frame.columns).expand()

    groups = [UniqueRows(expanded(group.rows), group.inverse) for group in chunk.groups]
    whole = expanded(chunk.frame).hstack([each for group in groups for each in expand_group(group)])
    rows: list[Any] = whole.select(sorted(whole.columns)).to_dicts()
    return rows


@examples(60, by_day=8)
@given(
    made=run_tables(),
    size=st.integers(20, 400),
    chunk_rows=st.integers(5, 300),
    compact=st.lists(st.sampled_from(list(KINDS)), unique=True),
    options=st.sampled_from(
        [
            {},
            {"data_page_size": 64, "write_batch_size": 8},
            {"data_page_size": 64, "write_batch_size": 3, "data_page_version": "2.0", "use_dictionary": False},
        ]
    ),
    astray=st.none() | st.tuples(st.sampled_from(list(KINDS)), st.integers(0, 500)),
)
def test_both_decoders_read_the_same_or_refuse_the_same(
    made: tuple[pa.Table, list[bool]],
    size: int,
    chunk_rows: int,
    compact: list[str],
    options: dict[str, Any],
    astray: tuple[str, int] | None,
):
    table, starts = made
    changes: dict[str, Any] = {} if astray is None else {"astray": {astray[0]: [astray[1]]}}
    columns = [*KINDS, "row"]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_in_place(folder / "a.parquet", table, GROUP, {"user": starts}, size, options=options, **changes)
        found = chunks_of(folder, "auto", columns, compact, chunk_rows)
        assert found == chunks_of(folder, "arrow", columns, compact, chunk_rows)
    if astray is None:
        assert [row for rows, _ in found for row in rows] == table.select(sorted(columns)).to_pylist()
    elif isinstance(found[-1], str):
        assert f"column {astray[0]!r} of " in found[-1]
        assert "holds values in rows that repeat the row above" in found[-1]


def test_only_rows_that_start_runs_are_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of the kernel's columns; those of pyarrow are decoded whole."""
    rows, run = 4000, 40
    which = pa.array(np.arange(rows) // run)
    values = {"number": which, "ids": pa.array([[n, n] for n in range(rows // run)]).take(which)}
    table = pa.table({**values, "point": pa.array([{"x": n} for n in range(rows // run)]).take(which)})
    starts = (np.arange(rows) % run == 0).tolist()
    write_in_place(tmp_path / "a.parquet", table, {"user": table.schema.names}, {"user": starts}, rows)
    decoded: list[DecodedRows] = []
    batches = FileDecoder.batches

    def kept(*arguments: Any) -> Iterator[DecodedRows]:
        for rows in batches(*arguments):
            decoded.append(rows)
            yield rows

    monkeypatch.setattr(FileDecoder, "batches", kept)
    chunks_of(tmp_path, "auto", table.schema.names, table.schema.names[:2], rows)
    [flags, found] = decoded
    assert flags.batch.schema.names == ["__run_user"]
    assert found.batch.schema.names == ["point"]
    assert {name: len(array) for name, array in found.compact.items()} == {"number": rows // run, "ids": rows // run}


def test_a_column_that_is_never_null_holds_values_in_rows_that_repeat(tmp_path: Path):
    """Of a file whose columns another tool made required."""
    table = pa.table({"number": pa.array([1, 1, 2]), "row": pa.array(range(3))})
    write_in_place(tmp_path / "a.parquet", table, {"user": ["number"]}, {"user": [True, False, True]}, 3, keep=True)
    stored, notes = pq.read_table(tmp_path / "a.parquet"), pq.read_metadata(tmp_path / "a.parquet").metadata
    fields = [field.with_nullable(field.name not in ("number", "__run_user")) for field in stored.schema]
    required = stored.cast(pa.schema(fields, {"feedline.dedup": notes[b"feedline.dedup"]}))
    pq.write_table(required, tmp_path / "a.parquet")
    for decoder in ("auto", "arrow"):
        [found] = chunks_of(tmp_path, decoder, ["number", "row"], ["number"], 3)
        assert "column 'number' of " in found
