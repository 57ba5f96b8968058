"""The shapes of the floor benchmark: their tables are what they say, and their contenders do the same work."""

from __future__ import annotations

import importlib.util
import itertools
import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import agreement  # noqa: E402
import checksums  # noqa: E402
import contenders  # noqa: E402
import floor  # noqa: E402
import hashed_ids  # noqa: E402
import numpy_workload  # noqa: E402
import polars_workload  # noqa: E402
import workload  # noqa: E402
from shape_tables import write_table  # noqa: E402
from shapes import SHAPES, Shape  # noqa: E402

pytestmark = pytest.mark.nightly

WRITTEN = ("wide", "strings", "flat")  # by `shape_tables`
ROWS = {"wide": 900, "strings": 3_000, "flat": 3_000}
GROUP_ROWS, SIZE = 389, 256


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A table of each shape in small odd row groups."""
    folder = tmp_path_factory.mktemp("shapes")
    for name in WRITTEN:
        write_table(folder / name, SHAPES[name], rows=ROWS[name], group_rows=GROUP_ROWS)
    return {name: folder / name for name in WRITTEN}


def files_of(folder: Path) -> list[str]:
    return sorted(str(file) for file in folder.glob("*.parquet"))


def numpy_batches(files: Sequence[str], shape: Shape) -> list[workload.Batch]:
    groups = workload.row_groups(files)
    pieces = itertools.chain.from_iterable(numpy_workload.numpy_pieces(group, shape, SIZE) for group in groups)
    return list(workload.batches(pieces, SIZE, shape))


def sums_of(batches: Iterable[Any], shape: Shape) -> checksums.Checksums:
    sums = checksums.Checksums(shape)
    for batch in batches:
        sums.add(batch)
    return sums


def in_table_order(folder: Path, columns: str) -> Any:
    rows = f"read_parquet('{folder}/*.parquet', filename = true, file_row_number = true)"
    return duckdb.sql(f"select {columns} from {rows} order by filename, file_row_number").to_arrow_table()


@pytest.mark.parametrize("name", WRITTEN)
def test_tables_are_repeatable_and_of_their_shape(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    shape = SHAPES[name]
    write_table(tmp_path / "again", shape, rows=ROWS[name], group_rows=GROUP_ROWS)
    files = files_of(folders[name])
    assert [Path(file).read_bytes() for file in files] == [
        file.read_bytes() for file in sorted((tmp_path / "again").iterdir())
    ]
    groups = workload.row_groups(files)
    assert sum(group.rows for group in groups) == ROWS[name]
    assert max(group.rows for group in groups) == GROUP_ROWS
    table = pa.concat_tables([pq.read_table(file) for file in files])
    assert table.column_names == shape.columns
    assert not table.column(shape.dense[0]).equals(table.column(shape.dense[-1]))
    nulls = np.mean([table.column(column).null_count for column in shape.dense]) / ROWS[name]
    assert nulls == pytest.approx(0.0 if name == "flat" else 0.05, abs=0.01)
    lengths = [pc.mean(pc.list_value_length(table.column(column))).as_py() for column in shape.lists]
    assert all(length == pytest.approx(20, abs=2) for length in lengths)
    for column in shape.ids:
        counts = np.sort(pc.value_counts(table.column(column)).field("counts").to_numpy())[::-1]
        assert counts[0] > 20 * np.median(counts), "a few are frequent"
        assert len(counts) > 500, "most are rare"
    if name == "strings":
        assert pc.all(pc.match_substring_regex(table.column("str_7"), "^[0-9a-f]{8}$")).as_py()
        assert table.schema.field("str_7").type == pa.string()
    clicked = pc.mean(table.column("clicked")).as_py()
    assert clicked == pytest.approx(0.05, abs=0.03)


@pytest.mark.parametrize("name", WRITTEN)
def test_numpy_and_polars_encode_alike(name: str, folders: dict[str, Path]) -> None:
    shape = SHAPES[name]
    for group in workload.row_groups(files_of(folders[name])):
        pieces = numpy_workload.numpy_pieces(group, shape, SIZE)
        whole = polars_workload.polars_piece(group, shape)
        np.testing.assert_allclose(np.concatenate([p.dense for p in pieces]), whole.dense, rtol=1e-6)
        assert np.array_equal(np.concatenate([p.ids for p in pieces], axis=1), whole.ids)
        assert np.array_equal(np.concatenate([p.labels for p in pieces]), whole.labels)
        for k in range(len(shape.lists)):
            assert np.array_equal(np.concatenate([p.values[k] for p in pieces]), whole.values[k])
            assert np.array_equal(np.concatenate([np.diff(p.offsets[k]) for p in pieces]), np.diff(whole.offsets[k]))


@pytest.mark.parametrize(
    ("name", "dense"),
    [
        ("wide", {7: "coalesce(dense_7, 0)", 503: "coalesce(dense_503, 0)"}),
        ("strings", {0: "coalesce(int_0, 0)", 12: "ln(1 + coalesce(int_12, 0))"}),
        ("flat", {0: "dense_0", 1: "dense_1"}),
    ],
)
def test_batches_hold_the_rows_that_duckdb_computes(name: str, dense: dict[int, str], folders: dict[str, Path]) -> None:
    shape = SHAPES[name]
    batches = numpy_batches(files_of(folders[name]), shape)
    rows = ROWS[name]
    assert [len(batch.labels) for batch in batches] == [SIZE] * (rows // SIZE) + [rows % SIZE]
    expected = in_table_order(folders[name], ", ".join([*(f"{sql} as d{k}" for k, sql in dense.items()), "clicked"]))
    found = torch.cat([batch.dense for batch in batches])
    assert found.shape == (rows, len(shape.dense))
    for k in dense:
        np.testing.assert_allclose(found[:, k].numpy(), expected.column(f"d{k}").to_numpy(), rtol=1e-5)
    assert torch.cat([batch.labels for batch in batches])[:, 0].tolist() == expected.column("clicked").to_pylist()
    ids = torch.cat([batch.categorical for batch in batches])
    assert ids.shape == (rows, len(shape.ids))
    if name == "flat":
        assert ids[:, 3].tolist() == in_table_order(folders[name], "id_3").column(0).to_pylist()
    for column in ("hist_0", "hist_41") if name == "wide" else ():
        sql = f"list_transform({column}[1:20], lambda x: x % 1000003) as history"
        lists = [
            part.tolist()
            for batch in batches
            for part in batch.sparse[column].values.split(batch.sparse[column].lengths.tolist())
        ]
        assert lists == in_table_order(folders[name], sql).column(0).to_pylist()


def test_a_null_has_whatever_bits() -> None:
    """Parquet readers leave in a null's place what was there before."""
    values = np.array([1.5, np.nan, -2.0, np.inf, 4.0], np.float32)
    buffers = [pa.py_buffer(bytes([0b10101])), pa.py_buffer(values)]
    column = pa.Array.from_buffers(pa.float32(), 5, buffers)
    assert column.to_pylist() == [1.5, None, -2.0, None, 4.0]
    for first in range(5):
        out = np.full(5 - first, 9, np.float32)
        numpy_workload._fill_null(column.slice(first), out)
        assert out.tolist() == [1.5, 0.0, -2.0, 0.0, 4.0][first:]
    counts = pa.Array.from_buffers(pa.int64(), 5, [buffers[0], pa.py_buffer(np.arange(5))])
    out = np.empty(5, np.float32)
    numpy_workload._fill_null(counts, out)
    assert out.tolist() == [0, 0, 2, 0, 4]


def test_strings_without_a_dictionary_are_hashed_alike(folders: dict[str, Path], tmp_path: Path) -> None:
    shape = SHAPES["strings"]
    file = files_of(folders["strings"])[0]
    pq.write_table(pq.read_table(file), tmp_path / "plain.parquet", use_dictionary=False)
    (plain,), (first, *_) = (workload.row_groups([path]) for path in (str(tmp_path / "plain.parquet"), file))
    assert numpy_workload._dictionaries(plain, shape.ids) == []
    assert numpy_workload._dictionaries(first, shape.ids) == list(shape.ids)
    ids = [numpy_workload.numpy_pieces(group, shape, SIZE)[0].ids[:, : first.rows] for group in (plain, first)]
    assert np.array_equal(*ids)


ALL = [
    name
    for name, contender in contenders.CONTENDERS.items()
    if all(importlib.util.find_spec(package) for package in contender.needs)
]
IN_ORDER = [
    name for name in ALL if contenders.CONTENDERS[name].in_order and contenders.CONTENDERS[name].role != "processes"
]


def delivered(contender: str, job: contenders.Job) -> tuple[dict[str, Any], np.ndarray]:
    """What a run returns, and the ids of all batches."""
    shape = SHAPES[job.shape]
    sums, sample = checksums.Checksums(shape), []
    for batch in contenders.CONTENDERS[contender].prepare(shape)(job):
        sums.add(batch)
        sample.append(batch.categorical.clone())
    return {"checksums": sums.totals, "hashes": sums.hashes}, torch.cat(sample).numpy()


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # as in `trainer`
@pytest.mark.parametrize("name", WRITTEN)
def test_contenders_of_one_process_agree(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    shape = SHAPES[name]
    files = files_of(folders[name])
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(shape.pipeline(str(folders[name]), batch_size=SIZE, work_dir=str(tmp_path)))
    job = contenders.Job(files=files, pipeline=str(pipeline), batch_size=SIZE, threads=1, shape=name)
    compared = agreement.Agreement(shape)
    for contender in IN_ORDER:
        result, sample = delivered(contender, job)
        assert result["checksums"]["rows"] == ROWS[name]
        assert compared.wrong(contender, result, sample, files) is None, contender
    assert {"feedline-off", "thread-pool"} <= set(IN_ORDER)


@pytest.mark.parametrize("name", WRITTEN)
def test_checksums_see_values_that_moved_to_another_row(name: str, folders: dict[str, Path]) -> None:
    shape = SHAPES[name]
    batches = numpy_batches(files_of(folders[name]), shape)
    expected = sums_of(batches, shape)
    assert not checksums.differences(expected.totals, sums_of(batches[::-1], shape).totals)
    assert not checksums.differences(expected.hashes, sums_of(batches[::-1], shape).hashes)
    whole = batches[1]
    swap = torch.randperm(SIZE)
    dense = torch.cat((whole.dense[:, :1], whole.dense[swap, 1:]), dim=1)  # all but what may be the mark
    torn = [
        ("labels x id", workload.Batch(whole.dense, whole.categorical, whole.labels[swap], whole.sparse)),
        ("dense x id", workload.Batch(dense, whole.categorical, whole.labels, whole.sparse)),
    ]
    for what, batch in torn:
        wrong = checksums.differences(expected.totals, sums_of([batches[0], batch, *batches[2:]], shape).totals)
        assert any(text.startswith(what) for text in wrong), (what, wrong)
    if shape.hashed:
        moved = workload.Batch(whole.dense, whole.categorical[swap], whole.labels)
        found = sums_of([batches[0], moved, *batches[2:]], shape)
        assert not checksums.differences(expected.totals, found.totals)
        wrong = checksums.differences(expected.hashes, found.hashes)
        assert [text.split("[")[0] for text in wrong] == ["ids x mark"]


def test_ids_that_do_not_follow_their_strings_are_seen(folders: dict[str, Path]) -> None:
    shape = SHAPES["strings"]
    files = files_of(folders["strings"])
    ids = torch.cat([batch.categorical for batch in numpy_batches(files, shape)]).numpy()
    assert hashed_ids.first_strings(files, shape, 2_000).num_rows == 2_000
    strings = hashed_ids.first_strings(files, shape, len(ids))
    assert strings.column("str_25").to_pylist() == in_table_order(folders["strings"], "str_25").column(0).to_pylist()
    assert hashed_ids.inconsistent(ids, strings) == []
    assert hashed_ids.inconsistent((ids * 7 + 3) % 999_983, strings) == [], "another hash"
    for change, words in (
        (lambda column: np.roll(column, 1), "elsewhere"),
        (lambda column: column % 100, "different strings have"),
        (lambda column: np.zeros_like(column), "different strings have 1 different ids"),
    ):
        changed = ids.copy()
        changed[:, 4] = change(ids[:, 4])
        (wrong,) = hashed_ids.inconsistent(changed, strings)
        assert wrong.startswith("str_4: ")
        assert words in wrong
    assert "expected (2, 26)" in hashed_ids.inconsistent(ids[:3], strings.slice(0, 2))[0]
    same = pa.table({name: ["deadbeef"] * 9 for name in shape.ids})
    assert "1 different strings in 9 rows" in hashed_ids.inconsistent(ids[:9], same)[0]
    bounds = {"low": [0] * 26, "high": [999_999] * 26}
    assert hashed_ids.wrong_bounds(bounds, shape) == []
    for key, value in (("low", -1), ("high", 1_000_000), ("high", 0)):
        wrong = hashed_ids.wrong_bounds({**bounds, key: [*bounds[key][:-1], value]}, shape)
        assert [text.split(":")[0] for text in wrong] == ["str_25"]


def test_hashed_ids_are_compared_with_those_of_the_same_hash(folders: dict[str, Path]) -> None:
    shape = SHAPES["strings"]
    files = files_of(folders["strings"])
    batches = numpy_batches(files, shape)
    sums = sums_of(batches, shape)
    ids = torch.cat([batch.categorical for batch in batches]).numpy()
    ours = {"checksums": sums.totals, "hashes": sums.hashes}
    other = {**ours, "hashes": {**sums.hashes, "ids": [value + 1 for value in sums.hashes["ids"]]}}
    compared = agreement.Agreement(shape)
    assert compared.wrong("thread-pool", ours, ids, files) is None
    assert compared.wrong("feedline-off", other, ids, files) is None
    assert compared.wrong("feedline", other, None, files) is None
    assert str(compared.wrong("grain", other, ids, files)).startswith("disagrees with thread-pool in ids[0]: got ")
    assert str(compared.wrong("feedline", ours, None, files)).startswith("disagrees with feedline-off in ids[0]: got ")
    assert compared.wrong("grain", ours, None, files) == "returned no sample of its hashed ids"
    assert "has wrong ids in str_0: " in str(compared.wrong("grain", ours, np.roll(ids, 1, axis=0), files))
    less = {**ours, "checksums": {**sums.totals, "rows": 1}}
    assert "disagrees with thread-pool in rows" in str(compared.wrong("grain", less, ids, files))


def test_hashed_ids_that_nothing_connects_with_strings_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--shape", "strings", "--tiny", "--contenders"]
    assert floor.main([*arguments, "thread-pool,feedline"]) == 1
    assert "the hashed ids of feedline are checked beside those of feedline-off: add" in capsys.readouterr().out
    agreement.require_strings(["dataloader", "grain"], SHAPES["strings"])
    agreement.require_strings(["feedline"], SHAPES["flat"])


@pytest.mark.parametrize(
    ("shape", "names"),
    [
        pytest.param("strings", ["thread-pool", "feedline-off"], id="strings"),
        *(pytest.param(shape, ALL, id=f"{shape}-all") for shape in (*WRITTEN, "short")),
    ],
)
def test_tiny_runs_contenders_that_agree(shape: str, names: list[str], tmp_path: Path) -> None:
    path = tmp_path / "all.json"
    table, loaders = tmp_path / "table", ",".join(names)
    options = ["--shape", shape, "--tiny", "--contenders", loaders, "--busy", "1", "--json", str(path)]
    options += ["--table", str(table)]
    command = [sys.executable, str(BENCHMARKS / "floor.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(path.read_text())
    assert list(found["runs"]) == ["plain"]
    rows, kept = SHAPES[shape].tiny_rows, SHAPES[shape].filter
    if kept is not None:
        source = f"read_parquet('{table}/*/*.parquet', hive_partitioning = true)"
        wanted = f"strftime(ds::date, '%Y-%m-%d') in {kept.days} and {kept.column} > {kept.above}"
        ((rows,),) = duckdb.sql(f"select count(*) from {source} where {wanted}").fetchall()
        assert 0 < rows < SHAPES[shape].tiny_rows / 2
    for name in names:
        (run,) = found["runs"]["plain"][name]
        assert run["rows"] == rows, name
        assert run["left_behind"] == [], name
        assert bool(run["hashes"]) == (shape == "strings"), name
        assert min(run["cpu_s"], run["rows_per_s"], run["first_batch_s"], run["import_s"]) > 0, name
        assert name in done.stdout
