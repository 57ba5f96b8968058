"""The types of a table's columns are recorded in training, per pipeline and table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from second_writer import write_meanwhile

from feedline.artifacts import type_records
from feedline.artifacts.artifact_sets import ArtifactSetKey, FitSource
from feedline.artifacts.type_records import load_types, save_types
from feedline.errors import CorruptFileError, SpecError

KEY = ArtifactSetKey(pipeline="p", source=FitSource(table=("/t",)))
OTHER = replace(KEY, source=FitSource(table=("/u",)))
ELSEWHERE = replace(KEY, source=FitSource(table=("/v",)))
SCHEMA = pa.schema([("price", pa.float32()), ("word", pa.string())])


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.columns.parquet"))


def test_types_are_those_that_were_recorded_without_metadata(tmp_path: Path):
    assert load_types(str(tmp_path), KEY, ()) is None
    save_types(str(tmp_path), KEY, SCHEMA.with_metadata({"a": "b"}))
    loaded = load_types(str(tmp_path), KEY, ())
    assert loaded is not None
    assert loaded.equals(SCHEMA, check_metadata=True)


def test_a_record_of_the_same_types_is_not_written_again(tmp_path: Path):
    save_types(str(tmp_path), KEY, SCHEMA)
    [file] = files(tmp_path)
    before = file.stat().st_mtime_ns, file.stat().st_ino
    save_types(str(tmp_path), KEY, SCHEMA)
    assert (file.stat().st_mtime_ns, file.stat().st_ino) == before


def test_later_types_replace_a_record_or_fill_it(tmp_path: Path):
    wider = pa.schema([("price", pa.float64()), ("more", pa.int8())])
    save_types(str(tmp_path), KEY, SCHEMA)
    save_types(str(tmp_path), KEY, wider, fill=True)
    assert load_types(str(tmp_path), KEY, ()) == pa.schema([*SCHEMA, wider.field("more")])
    save_types(str(tmp_path), KEY, wider)
    assert load_types(str(tmp_path), KEY, ()) == wider


def test_another_table_uses_the_records_of_its_pipeline_unless_a_used_column_differs(tmp_path: Path):
    save_types(str(tmp_path), KEY, SCHEMA)
    save_types(str(tmp_path), OTHER, pa.schema([("price", pa.float64()), ("more", pa.int8())]))
    loaded = load_types(str(tmp_path), ELSEWHERE, {"word", "more"})
    assert loaded is not None
    assert sorted(loaded.names) == ["more", "price", "word"]
    with pytest.raises(SpecError, match="column 'price' has different types in the tables of training: got") as caught:
        load_types(str(tmp_path), ELSEWHERE, {"price"})
    for words in ("float in /t", "double in /u", "Name the table of the model in `source.table`"):
        assert words in str(caught.value)
    assert load_types(str(tmp_path), OTHER, {"price"}) == pa.schema([("price", pa.float64()), ("more", pa.int8())])


def test_a_pipeline_uses_the_records_of_the_one_whose_fits_it_shares(tmp_path: Path):
    save_types(str(tmp_path), KEY, SCHEMA)
    assert load_types(str(tmp_path), replace(ELSEWHERE, pipeline="q"), ()) is None
    assert load_types(str(tmp_path), replace(ELSEWHERE, pipeline="q", shared_from="p"), ()) == SCHEMA


def test_an_altered_record_is_refused_and_may_be_written_again(tmp_path: Path):
    save_types(str(tmp_path), KEY, SCHEMA)
    [file] = files(tmp_path)
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(CorruptFileError, match=r"does not hold what was written.* Write it again with `feedline fit`"):
        load_types(str(tmp_path), KEY, ())
    save_types(str(tmp_path), KEY, SCHEMA, fill=True)
    assert load_types(str(tmp_path), KEY, ()) == SCHEMA


def test_two_runs_at_once_fill_a_record_with_the_columns_of_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    later = pa.schema([("later", pa.int8())])
    second = write_meanwhile(
        monkeypatch, type_records, "write_file", lambda: save_types(str(tmp_path), KEY, later, fill=True)
    )
    save_types(str(tmp_path), KEY, SCHEMA, fill=True)
    second.join()
    assert load_types(str(tmp_path), KEY, ()) == pa.schema([*SCHEMA, *later])
