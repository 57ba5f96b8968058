"""Rows are recorded by a key that files store and that can be hashed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from minimal_pipeline import completed

from feedline import Table
from feedline.config import PipelineSpec, parse_spec
from feedline.errors import SpecError
from feedline.planning.recording import recording_of
from feedline.warehouse.snapshot.snapshot import Snapshot


@pytest.fixture
def snapshot(tmp_path: Path) -> Snapshot:
    (tmp_path / "data/ds=1").mkdir(parents=True)
    table = pa.table({"id": [1, 2], "price": [0.5, 1.5], "user": [{"a": 1}, {"a": 2}]})
    pq.write_table(table, tmp_path / "data/ds=1/0.parquet")
    return Table(str(tmp_path / "data")).snapshot()


def spec_of(keys: str, by: str = "{}") -> PipelineSpec:
    return parse_spec(completed(f"source: {{table: data, row_key: {keys}}}\nshuffle: {by}\n"), base_dir="/base")


def test_no_key_records_nothing(snapshot: Snapshot):
    assert recording_of(parse_spec(completed(""), base_dir="/base"), snapshot) is None


def test_a_key_is_recorded_with_the_column_of_the_shuffle(snapshot: Snapshot):
    found = recording_of(spec_of("[id, ds]", "{by: price}"), snapshot)
    assert found is not None
    assert found.work_dir == "/base/work"
    assert (found.identity.key, found.identity.names) == (("id",), ("id", "price"))


@pytest.mark.parametrize(
    ("key", "message"),
    [
        ("[nothing]", "'nothing' cannot identify rows: got no column of that name"),
        ("[user]", "'user' cannot identify rows: got struct<"),
        ("[ds]", "consists of partition keys: got ds. Name a column of the files"),
    ],
)
def test_keys_that_identify_no_row_are_refused(snapshot: Snapshot, key: str, message: str):
    with pytest.raises(SpecError, match=f"source.row_key: {message}"):
        recording_of(spec_of(key), snapshot)
