"""`feedline transform` gives the features of `Pipeline.transform`, for all file formats, and no partial output."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
from pipelines import eventually
from processes import ended_here
from test_encoder import FEATURES, SCHEMA, TABLE

from feedline import Pipeline
from feedline.config import load_spec
from feedline.errors import CorruptFileError, DataError, SpecError, TableNotFoundError
from feedline.serving.encoder import Serving
from feedline.serving.files import transform_file

ROWS = pa.concat_tables([TABLE] * 25)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "p.yaml"
    document = {"version": 1, "name": "p", "source": {"table": "none"}, "features": FEATURES, "batch": {"size": 8}}
    path.write_text(json.dumps(document))
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    pq.write_table(ROWS, tmp_path / "rows.parquet", row_group_size=33)
    return tmp_path / "rows.parquet"


def serving(path: Path, **options: Any) -> Serving:
    return Serving(load_spec(path, {}), **options)


def lists(values: Any, offsets: Any) -> list[Any]:
    return [values[start:stop].tolist() for start, stop in pairwise(offsets)]


def expected(path: Path, rows: pa.Table) -> dict[str, list[Any]]:
    """The columns of the output, from the arrays of `Pipeline.transform`."""
    made = Pipeline.from_yaml(path).transform(rows)
    columns = {"price": made.dense[:, 0].tolist(), "vector": made.dense[:, 1:3].tolist(), "size": made.dense[:, 3]}
    columns |= {name: made.categorical[:, place].tolist() for place, name in enumerate(FEATURES["categorical"])}
    columns |= {name: lists(held.values, held.offsets) for name, held in made.sparse.items()}
    weights = lists(made.sparse["pairs"].weights, made.sparse["pairs"].offsets)
    columns["pairs"] = [
        [{"id": i, "weight": w} for i, w in zip(*row, strict=True)]
        for row in zip(columns["pairs"], weights, strict=True)
    ]
    return {name: list(values) for name, values in columns.items()}


TYPES = {
    "price": pa.float32(),
    "vector": pa.list_(pa.float32(), 2),
    "size": pa.float32(),
    "item": pa.int64(),
    "word": pa.int64(),
    "ids": pa.large_list(pa.int64()),
    "pairs": pa.large_list(pa.struct([("id", pa.int64()), ("weight", pa.float32())])),
    "scores": pa.large_list(pa.float32()),
}


def read(path: Path) -> pa.Table:
    if path.suffix in (".parquet", ".pq"):
        return pq.ParquetFile(path).read()
    return feather.read_table(path) if path.suffix != ".arrows" else pa.ipc.open_stream(path).read_all()


@pytest.mark.parametrize("suffix", [".parquet", ".pq", ".arrow", ".feather", ".ipc", ".arrows"])
def test_a_file_of_features(path: Path, rows: Path, tmp_path: Path, suffix: str):
    out = tmp_path / f"out{suffix}"
    done = transform_file(serving(path), str(rows), str(out))
    found = read(out)
    assert dict(zip(found.schema.names, found.schema.types, strict=True)) == TYPES
    assert found.to_pydict() == expected(path, ROWS)
    assert (done.rows, done.columns, done.bytes) == (100, tuple(TYPES), out.stat().st_size)
    assert found.schema.metadata[b"feedline.features"].startswith(done.features.encode())
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted(["p.yaml", "rows.parquet", out.name])


def write_folder(folder: Path) -> None:
    for part, piece in enumerate((ROWS[:40], ROWS[40:])):
        (folder / f"ds=2026-01-0{part + 1}").mkdir(parents=True)
        pq.write_table(piece, folder / f"ds=2026-01-0{part + 1}" / "part.parquet")


def write_stream(path: Path) -> None:
    with pa.ipc.new_stream(path, SCHEMA) as writer:
        writer.write_table(ROWS, max_chunksize=7)


INPUTS = {
    "in.parquet": lambda path: pq.write_table(ROWS, path),
    "folder": write_folder,
    "in.arrow": lambda path: feather.write_feather(ROWS, path, compression="zstd", chunksize=9),
    "in.feather": lambda path: feather.write_feather(ROWS, path, compression="uncompressed"),
    "stream.arrow": write_stream,
}


@pytest.mark.parametrize("name", INPUTS)
def test_rows_come_from_any_file(path: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("feedline.serving.files.CHUNK_ROWS", 16)
    INPUTS[name](tmp_path / name)
    transform_file(serving(path), str(tmp_path / name), str(tmp_path / "out.arrow"))
    assert read(tmp_path / "out.arrow").to_pydict() == expected(path, ROWS)


def test_globs_and_partition_keys(path: Path, tmp_path: Path):
    write_folder(tmp_path / "table")
    document = json.loads(path.read_text())
    document["features"] = {"dense": {"day": {"expr": "ds.dt.day()"}}}
    path.write_text(json.dumps(document))
    transform_file(serving(path), f"{tmp_path}/table/*/*.parquet", str(tmp_path / "out.parquet"))
    assert read(tmp_path / "out.parquet")["day"].to_pylist() == [1.0] * 40 + [2.0] * 60


def test_other_groups(path: Path, rows: Path, tmp_path: Path):
    document = json.loads(path.read_text())
    document["features"] |= {"label": {"clicked": {"column": "item"}}, "extra": {"text": {"column": "word"}}}
    path.write_text(json.dumps(document))
    transform_file(serving(path, groups=("label", "extra")), str(rows), str(tmp_path / "out.parquet"))
    found = read(tmp_path / "out.parquet")
    assert found["clicked"].to_pylist() == ROWS["item"].cast(pa.float64()).to_numpy().astype("f4").tolist()
    assert found["text"].to_pylist() == ROWS["word"].to_pylist()


def test_no_rows(path: Path, tmp_path: Path):
    pq.write_table(ROWS[:0], tmp_path / "none.parquet")
    feather.write_feather(ROWS[:0], tmp_path / "none.arrow")
    for name in ("none.parquet", "none.arrow"):
        done = transform_file(serving(path), str(tmp_path / name), str(tmp_path / "out.parquet"), overwrite=True)
        assert done.rows == 0
        found = read(tmp_path / "out.parquet")
        assert (found.num_rows, found.schema.types) == (0, list(TYPES.values()))


def test_a_value_that_fails_is_located_and_leaves_no_file(path: Path, tmp_path: Path):
    wrong = ROWS.set_column(3, "item", pa.array([None if row == 70 else 1 for row in range(100)], pa.int32()))
    pq.write_table(wrong, tmp_path / "in.parquet", row_group_size=33)
    feather.write_feather(wrong, tmp_path / "in.arrow", chunksize=33)
    old = tmp_path / "out.parquet"
    old.write_bytes(b"as it was")
    for name, place in (
        ("in.parquet", r"\(file .*in\.parquet, row group 2, row 70\)"),
        ("in.arrow", r"\(file .*in\.arrow, row 70\)"),
    ):
        with pytest.raises(DataError, match=rf"feature 'item' holds a null.*{place}"):
            transform_file(serving(path), str(tmp_path / name), str(old), overwrite=True)
    assert old.read_bytes() == b"as it was"
    assert len([*tmp_path.iterdir()]) == 4


@pytest.mark.parametrize(
    ("source", "target", "error", "message"),
    [
        ("rows.parquet", "out.csv", SpecError, "output's suffix is unknown: got .*out.csv"),
        ("rows.parquet", ".", SpecError, "is a folder|output's suffix is unknown"),
        ("rows.parquet", "no/out.parquet", SpecError, "folder does not exist"),
        ("rows.parquet", "rows.parquet", SpecError, "source and target overlap"),
        (".", "out.parquet", SpecError, "source and target overlap"),
        ("rows.parquet", "there.parquet", SpecError, "exists: .* Add --overwrite"),
        ("missing.parquet", "out.parquet", TableNotFoundError, "missing.parquet"),
        ("missing.arrow", "out.parquet", TableNotFoundError, "missing.arrow does not exist"),
        ("text.arrow", "out.parquet", CorruptFileError, "text.arrow is not a readable Arrow file or stream"),
        ("cut.arrow", "out.parquet", CorruptFileError, "cut.arrow is not a readable Arrow file or stream"),
        ("short.arrow", "out.parquet", CorruptFileError, "short.arrow is not a readable Arrow file or stream"),
        ("text.parquet", "out.parquet", CorruptFileError, "text.parquet"),
        ("lacking.parquet", "out.parquet", SpecError, "unknown column: got 'price'"),
        ("words.parquet", "out.parquet", SpecError, r"price: \[fill_null\] .*got 0, expected type string"),
    ],
)  # fmt: skip
def test_wrong_input(path: Path, rows: Path, tmp_path: Path, source: str, target: str, error: type, message: str):
    (tmp_path / "there.parquet").touch()
    for name in ("text.arrow", "text.parquet"):
        (tmp_path / name).write_bytes(b"no table at all, but a text of some length")
    write_stream(tmp_path / "whole.arrow")
    (tmp_path / "cut.arrow").write_bytes((tmp_path / "whole.arrow").read_bytes()[:3000])
    feather.write_feather(ROWS, tmp_path / "whole.feather")
    (tmp_path / "short.arrow").write_bytes((tmp_path / "whole.feather").read_bytes()[:900])
    pq.write_table(ROWS.drop_columns(["price"]), tmp_path / "lacking.parquet")
    pq.write_table(ROWS.set_column(0, "price", ROWS["word"]), tmp_path / "words.parquet")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(error, match=message):
        transform_file(serving(path), str(tmp_path / source), str(tmp_path / target))
    assert sorted(tmp_path.iterdir()) == before


def test_output_to_a_store_is_refused(path: Path, rows: Path):
    with pytest.raises(SpecError, match="must be a local file: got s3://bucket/out"):
        transform_file(serving(path), str(rows), "s3://bucket/out.parquet")


# -- the command ----------------------------------------------------------------------------------------------------


def test_the_command(path: Path, rows: Path, tmp_path: Path):
    out = tmp_path / "out.parquet"
    done = ended_here("transform", path, rows, out, "--json", "--set", "features.dense.price=[]", "--groups", "dense")
    assert (done.returncode, done.stdout) == (1, ""), "nothing fills the null price"
    assert "error: feature 'price' holds a null" in done.stderr
    done = ended_here("transform", path, rows, out, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["rows"], facts["columns"], facts["output"]) == (100, [*TYPES], str(out))
    assert read(out).to_pydict() == expected(path, ROWS)
    again = ended_here("transform", path, rows, out)
    assert (again.returncode, "--overwrite" in again.stderr) == (2, True)
    shown = ended_here("transform", path, rows, out, "--overwrite", "--groups", "dense,categorical")
    assert "100 rows in " in shown.stdout
    assert read(out).schema.names == ["price", "vector", "size", "item", "word"]
    assert ended_here("transform", path, rows, out, "--groups", "dense,nothing").returncode == 2


def test_streams(path: Path):
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(ROWS, max_chunksize=30)
    command = [sys.executable, "-m", "feedline", "transform", str(path), "-", "-"]
    done = subprocess.run(command, input=sink.getvalue(), capture_output=True, check=True, timeout=60)
    assert pa.ipc.open_stream(done.stdout).read_all().to_pydict() == expected(path, ROWS)
    assert b"100 rows in " in done.stderr


def is_writing(process: int, folder: Path) -> bool:
    """Whether a process has an unnamed file of a folder open."""
    for each in Path(f"/proc/{process}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            if each.readlink().is_relative_to(folder) and each.stat().st_nlink == 0:
                return True
    return False


@pytest.mark.parametrize(
    ("number", "status"),
    [pytest.param(signal.SIGTERM, 143, marks=pytest.mark.nightly), (signal.SIGKILL, -signal.SIGKILL)],
)
def test_a_terminated_command_leaves_no_file(path: Path, tmp_path: Path, number: signal.Signals, status: int):
    """The command waits for more of its stream after writing part of the output."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(ROWS)
        unfinished = sink.getvalue()
    command = [sys.executable, "-m", "feedline", "transform", str(path), "-", str(tmp_path / "out.arrow")]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        try:
            process.stdin.write(unfinished)
            process.stdin.flush()
            assert eventually(lambda: is_writing(process.pid, tmp_path))
            process.send_signal(number)
            assert process.wait(60) == status
        finally:
            process.kill()
    assert [each.name for each in tmp_path.iterdir()] == ["p.yaml"]
