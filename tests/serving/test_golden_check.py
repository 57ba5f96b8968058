"""Golden vectors accept an installation that computes the same values, and refuse others."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import ended, ended_here
from recorded_vectors import ROWS, recorded, written
from test_encoder import FEATURES, SCHEMA

from feedline.artifacts.artifact_sets import ArtifactSetKey, FitSource
from feedline.artifacts.type_records import load_types
from feedline.blocks import environment
from feedline.config import load_spec
from feedline.errors import CorruptFileError, DataError, SpecError
from feedline.loader.encoding.encoded_rows import arrow_table
from feedline.planning.table_features import artifact_set_key
from feedline.serving import golden_check
from feedline.serving.encoder import Serving
from feedline.serving.golden_check import (
    ROWS_OF_SPLIT,
    check,
    compare,
    features_id,
    load_golden,
    rows_that_encode,
    ulps_between,
)


def test_vectors_are_recorded_again_after_a_change(path: Path, folder: str, monkeypatch: pytest.MonkeyPatch):
    made: list[int] = []
    real = golden_check.save_golden
    monkeypatch.setattr(golden_check, "save_golden", lambda *given: (made.append(1), real(*given)))
    for _ in range(2):
        recorded(path)
    assert len(made) == 1
    assert check(recorded(path)[0]).passed
    assert len(made) == 1
    monkeypatch.setattr(golden_check, "local_environment", lambda: (("machine", "elsewhere"),))
    recorded(path)
    assert len(made) == 2


def test_disabled_instructions_are_another_environment(path: Path, monkeypatch: pytest.MonkeyPatch):
    """Enabled instructions are part of the environment; vectors of older releases did not record them."""
    spec, _, made = recorded(path)
    assert check(spec).ulps == 0
    monkeypatch.setattr(environment, "level_instructions", lambda cpu: ("LESS",))
    checked = check(spec)
    assert checked.other == (("cpu", "LESS", made.origin.environment["cpu"]),)
    assert (checked.passed, checked.ulps) == (True, golden_check.ULPS)
    older = {name: value for name, value in made.origin.environment.items() if name not in ("cpu", "libc", "libm")}
    other = replace(made, origin=replace(made.origin, environment=older))
    monkeypatch.setattr(golden_check, "load_golden", lambda *_: other)
    assert [(name, there) for name, _, there in check(spec).other] == [
        (name, "not recorded") for name in ("libc", "libm", "cpu")
    ]
    assert check(spec).passed


def test_vectors_of_other_artifacts_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch):
    spec, _, made = recorded(path)
    price = made.origin.fingerprints["price"]
    other = replace(made, origin=replace(made.origin, fingerprints={**made.origin.fingerprints, "price": "0" * 64}))
    monkeypatch.setattr(golden_check, "load_golden", lambda *_: other)
    with pytest.raises(SpecError, match=rf"'price' belong to other artifacts: .*{price[:32]}, expected 0{{32}}"):
        check(spec)


def nudged(table: pa.Table, name: str, row: int, change: Any) -> pa.Table:
    values = table[name].to_pylist()
    values[row] = change(values[row])
    place = table.schema.get_field_index(name)
    return table.set_column(place, table.schema.field(place), pa.array(values, table.schema.field(place).type))


def up(value: float, ulps: int = 1) -> float:
    for _ in range(ulps):
        value = float(np.nextafter(np.float32(value), np.float32(np.inf)))
    return value


CHANGES: list[tuple[str, Any, int | None]] = [
    ("price", up, 1),
    ("price", lambda value: up(value, 5), 5),
    ("price", lambda value: math.nan, None),
    ("vector", lambda value: [value[0], up(value[1], 2)], 2),
    ("item", lambda value: value + 1, None),
    ("ids", lambda value: [*value, 5], None),
    ("ids", lambda value: [value[0] + 1, *value[1:]], None),
    ("scores", lambda value: [up(value[0], 3)], 3),
    ("pairs", lambda value: [{"id": value[0]["id"], "weight": up(value[0]["weight"])}], 1),
    ("pairs", lambda value: [{"id": 99, "weight": value[0]["weight"]}], None),
]


@pytest.mark.parametrize(("name", "change", "apart"), CHANGES)
def test_every_difference_is_found(made: Any, name: str, change: Any, apart: int | None):
    row = 4  # repeats the first of the four rows
    other = nudged(made.expected, name, row, change)
    for allowed in (0, 4, 10):
        [found] = compare(other, made.expected, ulps=allowed)
        assert (found.feature, found.row, found.values) == (name, row, 1)
        assert found.allowed is (apart is not None and apart <= allowed)
        assert apart is None or found.ulps == apart
        assert found.got == repr(other[name][row].as_py())
        assert found.expected == repr(made.expected[name][row].as_py())
        assert f"feature {name!r} at row {row}: got {found.got}, expected {found.expected} (1 values" in str(found)
    assert compare(made.expected, made.expected, ulps=0) == ()


def test_another_processor_may_differ_in_the_last_bits(path: Path, folder: str, monkeypatch: pytest.MonkeyPatch):
    """Vectors of another environment, whose logarithm differs in the last bit."""
    spec, _, made = recorded(path)
    monkeypatch.setattr(golden_check, "local_environment", lambda: (("machine", "elsewhere"), ("polars", "9.9")))
    assert check(spec).text().startswith("another environment than that of the vectors: machine ")
    real = golden_check.arrow_table

    def nudging(ulps: int) -> None:
        monkeypatch.setattr(
            golden_check, "arrow_table", lambda *given: nudged(real(*given), "price", 0, lambda v: up(v, ulps))
        )

    nudging(2)
    checked = check(spec)
    assert checked.passed
    assert "1 features differ by at most 2 ulps, 4 are allowed" in checked.text()
    assert not check(spec, ulps=1).passed
    assert ("machine", "elsewhere", made.origin.environment["machine"]) in checked.other
    nudging(5)
    checked = check(spec)
    assert not checked.passed
    assert "differs: feature 'price' at row 0: got " in checked.text()
    assert checked.text().endswith("1 features differ by more than 4 ulps")
    assert check(spec, ulps=5).passed
    monkeypatch.undo()
    nudging(1)
    assert not check(spec).passed, "the same environment has the same bits"


floats = st.floats(width=32)


@given(st.lists(st.tuples(floats, floats), min_size=1, max_size=20))
def test_ulps(pairs: list[tuple[float, float]]):
    one, other = (np.array(side, np.float32) for side in zip(*pairs, strict=True))
    found = ulps_between(one, other).tolist()
    for a, b, apart in zip(one, other, found, strict=True):
        if np.isnan(a) or np.isnan(b) or np.isinf(a) or np.isinf(b):
            assert apart == (0 if a == b or (np.isnan(a) and np.isnan(b)) else golden_check._INFINITE_ULPS)
        elif apart < 50:
            low, high = min(a, b), max(a, b)
            steps = 0
            while low < high or (low == high and np.signbit(low) and not np.signbit(high)):
                low = np.float32(0.0) if low == 0 and np.signbit(low) else np.nextafter(low, np.float32(np.inf))
                steps += 1
            assert steps == apart or {a, b} == {0.0}
        else:
            assert a != b


# -- the commands -----------------------------------------------------------------------------------------------------


REFUSE = """
import importlib.util, sys

ABSENT = ("dask", "distributed", "torch", "bokeh")

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:  # libraries check whether others are installed
            return importlib.util.spec_from_loader(name, self)

    def create_module(self, spec):
        raise ImportError("not here: " + spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.slow
def test_fit_writes_what_transform_checks(tmp_path: Path, table: Path):
    """With an op that learns, on a host that has neither the table, nor Dask, nor torch."""
    features = {**FEATURES, "categorical": {"item": [{"vocabulary": {"min_count": 1}}], "word": [{"hash_bucket": 50}]}}
    home = tmp_path / "home"
    home.mkdir()
    path = written(home, table, **features)
    fitted = ended_here("fit", path)
    assert fitted.returncode == 0, fitted.stderr
    assert f"golden vectors: {3 * ROWS_OF_SPLIT} rows" in fitted.stdout
    away = tmp_path / "away"
    shutil.copytree(home / "work" / "artifacts", away / "work" / "artifacts")
    document = json.loads(path.read_text())
    document["source"]["table"] = "gone"
    (away / "p.yaml").write_text(json.dumps(document))
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(REFUSE)
    python_path = os.pathsep.join([str(tmp_path / "hook"), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": python_path}
    refused = subprocess.run([sys.executable, "-c", "import dask"], env=environment, capture_output=True, text=True)
    assert "not here: " in refused.stderr, "the hook does refuse"
    checked = ended("transform", away / "p.yaml", "--check", env=environment)
    assert (checked.returncode, "every bit is the same" in checked.stdout) == (0, True), checked.stderr
    rows = pa.table({**{name: ROWS[name] for name in SCHEMA.names}, "price": ROWS["price"].cast(pa.float64())})
    pq.write_table(rows, tmp_path / "rows.parquet")
    done = ended("transform", away / "p.yaml", tmp_path / "rows.parquet", tmp_path / "out.parquet", env=environment)
    assert done.returncode == 0, done.stderr
    found = pq.read_table(tmp_path / "out.parquet")
    assert found.equals(arrow_table(*Serving(load_spec(path, {})).encode(ROWS)))
    [file] = Path(away, "work", "artifacts", "serving").glob("*/*.golden.parquet")
    pq.write_table(nudged(pq.read_table(file), "feature.item", 3, lambda value: value + 1), file)
    failed = ended_here("transform", away / "p.yaml", "--check", "--json")
    assert failed.returncode == 1
    [difference] = json.loads(failed.stdout)["differences"]
    assert (difference["feature"], difference["row"], difference["allowed"]) == ("item", 3, False)
    said = ended_here("transform", away / "p.yaml", "--check").stdout
    assert f"differs: feature 'item' at row 3: got {difference['got']}, expected {difference['expected']}" in said


def test_fit_of_a_pipeline_that_learns_nothing(path: Path):
    missing = ended_here("transform", path, "--check")
    assert (missing.returncode, "has no golden vectors of these features" in missing.stderr) == (2, True)
    fitted = ended_here("fit", path)
    assert "nothing to fit" in fitted.stdout
    assert f"golden vectors: {3 * ROWS_OF_SPLIT} rows" in fitted.stdout
    assert ended_here("transform", path, "--check").returncode == 0
    assert "golden vectors: none" in ended_here("fit", path, "--set", "fit.golden=none").stdout
    for arguments in (
        ("--check", "rows.parquet"),
        (),
        ("rows.parquet",),
        ("rows.parquet", "out.parquet", "--ulps", "3"),
    ):
        assert ended_here("transform", path, *arguments).returncode == 2


def test_missing_fits_name_the_command(tmp_path: Path, table: Path):
    path = written(tmp_path, table, categorical={"item": [{"vocabulary": {"min_count": 1}}]})
    done = ended_here("transform", path, table, tmp_path / "out.parquet")
    assert done.returncode == 2
    assert "not fitted: item: vocabulary" in done.stderr
    assert f"feedline fit {path}" in done.stderr


def load_columns(folder: str) -> pa.Schema | None:
    return load_types(folder, ArtifactSetKey(pipeline="p", source=FitSource(table=("elsewhere",))), ())


def test_types_are_recorded_without_vectors(path: Path, folder: str):
    spec, snapshot, made = recorded(path, "none")
    assert made is None
    assert load_columns(folder) == snapshot.schema
    with pytest.raises(SpecError, match=r"artifacts has no golden vectors of these features: .* `feedline fit`"):
        check(spec)


def test_types_of_several_tables(tmp_path: Path, path: Path, folder: str):
    """Each table has its own types; another table uses them only if no column in use differs."""
    spec, snapshot, _ = recorded(path)
    pq.write_table(pa.table({"price": [1.0], "more": [1]}), tmp_path / "other.parquet")
    other, _, _ = recorded(written(tmp_path, tmp_path / "other.parquet", dense={"price": []}))
    assert load_types(folder, artifact_set_key(spec), {"price"}) == snapshot.schema
    assert load_types(folder, artifact_set_key(other), {"price"}) == pa.schema(
        {"price": pa.float64(), "more": pa.int64()}
    )
    elsewhere = ArtifactSetKey(pipeline="p", source=FitSource(table=("elsewhere",)))
    columns = load_types(folder, elsewhere, {"word", "more"})
    assert columns is not None
    assert (columns.field("word").type, columns.field("more").type) == (pa.string(), pa.int64())
    with pytest.raises(
        SpecError, match=r"column 'price' has different types in the tables of training: got (float|double) in .*, e"
    ):
        load_types(folder, elsewhere, {"price"})
    assert load_types(folder, replace(elsewhere, pipeline="q"), {"price"}) is None


# -- the store


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


# -- the rows


def test_rows_are_the_first_of_each_split(path: Path, folder: str):
    _, _, made = recorded(path)
    expected = [row for part in range(3) for row in range(80 * part, 80 * part + ROWS_OF_SPLIT)]
    names = made.rows.schema.names
    assert made.rows.equals(ROWS.take(pa.array(expected)).select(names))


def test_rows_pass_the_filter_of_training(path: Path, folder: str):
    _, _, made = recorded(path, **{"source.where": "number >= 100 and item > 0"})
    assert 0 < made.rows.num_rows < 3 * ROWS_OF_SPLIT
    assert min(made.rows["item"].to_pylist()) > 0


def test_rows_that_a_feature_refuses_are_left_out(tmp_path: Path, table: Path, folder: str):
    price = [{"fill_null": 0}]
    _, _, made = recorded(written(tmp_path, table, dense={"price": price, "scores": [{"vector": 2}]}))
    assert made.rows.num_rows == 3 * ROWS_OF_SPLIT // 4
    assert {len(row) for row in made.rows["scores"].to_pylist()} == {2}
    spec, _, made = recorded(written(tmp_path, table, dense={"price": price, "scores": [{"vector": 5}]}))
    assert made is None
    assert load_golden(folder, artifact_set_key(spec), Serving(spec).features) is None


@pytest.mark.parametrize("bad", [[], [0], [2, 3], [0, 1, 2, 3]])
def test_rows_are_tried_together_and_then_one_by_one(bad: list[int]):
    rows = pa.table({"x": [0, 1, 2, 3]})
    asked: list[int] = []

    def encode(part: pa.Table) -> None:
        asked.append(part.num_rows)
        if set(bad) & set(part["x"].to_pylist()):
            raise DataError("no")

    assert rows_that_encode(rows, encode)["x"].to_pylist() == [row for row in range(4) if row not in bad]
    assert asked == ([4, 1, 1, 1, 1] if bad else [4])


def test_other_errors_than_those_of_values_are_raised():
    def encode(part: pa.Table) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        rows_that_encode(pa.table({"x": [1]}), encode)
    assert rows_that_encode(pa.table({"x": pa.array([], pa.int64())}), encode).num_rows == 0
