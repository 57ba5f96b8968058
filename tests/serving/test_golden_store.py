"""Golden vectors are stored per pipeline and features, and refused where they were altered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from recorded_vectors import recorded, written
from test_encoder import FEATURES, SCHEMA

from feedline.artifacts.artifact_sets import ArtifactSetKey, FitSource
from feedline.artifacts.type_records import load_types
from feedline.config import load_spec
from feedline.errors import CorruptFileError, SpecError
from feedline.planning.table_features import artifact_set_key
from feedline.serving import golden_check
from feedline.serving.encoder import Serving
from feedline.serving.golden_check import ROWS_OF_SPLIT, check, features_id, load_golden


def load_columns(folder: str) -> pa.Schema | None:
    return load_types(folder, ArtifactSetKey(pipeline="p", source=FitSource(table=("elsewhere",))), ())


def test_vectors_load_as_they_were_recorded(path: Path, folder: str):
    spec, snapshot, made = recorded(path)
    assert made.rows.num_rows == 3 * ROWS_OF_SPLIT
    found = load_golden(folder, artifact_set_key(spec), Serving(spec).features)
    assert found is not None
    assert repr(found.rows.to_pylist()) == repr(made.rows.to_pylist())
    assert (found.rows, found.origin, found.origin.snapshot) == (made.rows, made.origin, snapshot.id)
    assert found.rows.schema.types == [SCHEMA.field(name).type for name in found.rows.schema.names]
    checked = check(spec)
    assert (checked.passed, checked.differences, checked.other, checked.ulps) == (True, (), (), 0)
    assert checked.text() == f"passed: {made.rows.num_rows} rows of 8 features: every bit is the same"
    columns = load_columns(folder)
    assert columns is not None
    assert columns.equals(snapshot.schema)


def test_other_features_have_separate_vectors(tmp_path: Path, path: Path, table: Path):
    spec, _, _ = recorded(path)
    other, _, _ = recorded(written(tmp_path, table, dense={"price": [{"fill_null": 1}]}))
    assert features_id(spec.features) != features_id(other.features)
    assert check(spec).passed
    assert check(other).passed
    changed = load_spec(written(tmp_path, table), {"features.dense.price": [{"fill_null": 2}]})
    with pytest.raises(SpecError, match="no golden vectors of these features"):
        check(changed)


def test_vectors_of_more_features_check_fewer(tmp_path: Path, path: Path, table: Path):
    recorded(path)
    fewer = {group: FEATURES[group] for group in ("sparse", "categorical")}
    checked = check(load_spec(written(tmp_path, table, **fewer), {}))
    assert (checked.passed, checked.features) == (True, 5)


def test_a_user_function_is_part_of_the_features_id(tmp_path: Path, table: Path):
    module = tmp_path / "priced.py"
    module.write_text("def doubled(x):\n    return x * 2\n")
    doubled = {"python": {"function": "priced:doubled", "gives": "float32"}}
    path = written(tmp_path, table, dense={"price": [{"fill_null": 0}, doubled]})
    spec, _, made = recorded(path, allow_code=True)
    assert made.rows.num_rows
    assert check(spec).passed


def test_golden_none_deletes_vectors(path: Path, folder: str):
    recorded(path)
    assert sorted(file_kinds(folder)) == ["columns.parquet", "golden.parquet"]
    recorded(path, "none")
    assert file_kinds(folder) == ["columns.parquet"]


def file_kinds(folder: str) -> list[str]:
    return [file.name.partition(".")[2] for file in Path(folder, "serving").glob("*/*")]


def altered(folder: str, suffix: str, change: Any) -> None:
    [file] = Path(folder, "serving").glob(f"*/*{suffix}")
    file.write_bytes(change(file.read_bytes()))


@pytest.mark.parametrize(
    ("suffix", "change"),
    [
        ("golden.parquet", lambda content: content[:-20]),
        ("golden.parquet", lambda content: content[:300] + bytes([content[300] ^ 1]) + content[301:]),
        ("columns.parquet", lambda content: content[:-20]),
    ],
)
def test_damaged_files_are_refused(path: Path, folder: str, suffix: str, change: Any):
    spec, _, _ = recorded(path)
    altered(folder, suffix, change)
    with pytest.raises(CorruptFileError, match=r"does not hold what was written.* Write it again with `feedline fit`"):
        load_columns(folder) if suffix == "columns.parquet" else check(spec)
    recorded(path)  # the remedy of the message
    assert load_columns(folder) is not None
    assert check(spec).passed


def test_another_format_is_refused(path: Path, folder: str, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(golden_check, "FORMAT", 7)
        spec, _, _ = recorded(path)
    with pytest.raises(SpecError, match="have another format: got version 7, expected 1"):
        check(spec)
    recorded(path)
    assert check(spec).passed
