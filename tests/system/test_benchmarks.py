"""The benchmark measures what it says, its contenders do the same work, and all of it still runs (tiny, clock off)."""

from __future__ import annotations

import importlib.util
import io
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import duckdb
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import clicks_pipeline, generate_clicks

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import checksums  # noqa: E402
import contenders  # noqa: E402
import floor  # noqa: E402
import numpy_workload  # noqa: E402
import polars_workload  # noqa: E402
import sharded_rows  # noqa: E402
import targets  # noqa: E402
import trainer  # noqa: E402
import workload  # noqa: E402
from shapes import SHAPES  # noqa: E402

pytestmark = pytest.mark.nightly

ROWS, SIZE = 3_000, 256
LISTS = SHAPES["lists"]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small odd row groups, short and empty lists, many nulls."""
    folder = tmp_path_factory.mktemp("clicks") / "table"
    recipe = ClickRecipe(
        rows=ROWS, days=2, strings=0, history_min=0, history_max=40, null_share=0.3, row_group_rows=389, part_rows=1000
    )
    generate_clicks(str(folder), recipe, threads=1)
    return folder


@pytest.fixture(scope="module")
def files(table: Path) -> list[str]:
    return sorted(str(file) for file in table.rglob("*.parquet"))


def numpy_batches(files: Sequence[str], size: int) -> list[workload.Batch]:
    pieces = (
        piece for group in workload.row_groups(files) for piece in numpy_workload.numpy_pieces(group, LISTS, size)
    )
    return list(workload.batches(pieces, size, LISTS))


def totals(batches: Iterable[Any]) -> dict[str, Any]:
    sums = checksums.Checksums(LISTS)
    for batch in batches:
        sums.add(batch)
    return sums.totals


def test_numpy_and_polars_encode_alike(files: list[str]) -> None:
    groups = workload.row_groups(files)
    assert sum(group.rows for group in groups) == ROWS
    assert [group.start for group in groups] == list(np.cumsum([0, *(group.rows for group in groups)])[:-1])
    for group in groups:
        pieces = numpy_workload.numpy_pieces(group, LISTS, SIZE)
        ends = group.start + np.cumsum([len(piece) for piece in pieces])
        assert all(end % SIZE == 0 for end in ends[:-1])
        whole = polars_workload.polars_piece(group, LISTS)
        np.testing.assert_allclose(np.concatenate([p.dense for p in pieces]), whole.dense, rtol=1e-6)
        assert np.array_equal(np.concatenate([p.ids for p in pieces], axis=1), whole.ids)
        assert np.array_equal(np.concatenate([p.labels for p in pieces]), whole.labels)
        for k in range(6):
            assert np.array_equal(np.concatenate([p.values[k] for p in pieces]), whole.values[k])
            assert np.array_equal(np.concatenate([np.diff(p.offsets[k]) for p in pieces]), np.diff(whole.offsets[k]))


def test_batches_hold_the_rows_that_duckdb_computes(table: Path, files: list[str]) -> None:
    batches = numpy_batches(files, SIZE)
    assert [len(batch.labels) for batch in batches] == [SIZE] * (ROWS // SIZE) + [ROWS % SIZE]
    expected = duckdb.sql(
        "select ln(1 + least(greatest(coalesce(dense_7, 0), 0), 1000)) as dense, id_3 % 1000003 as id, clicked, "
        f"hist_2[1:20] as history from read_parquet('{table}/*/*.parquet') order by request_id"
    ).to_arrow_table()
    dense = torch.cat([batch.dense for batch in batches])[:, 7].numpy()
    np.testing.assert_allclose(dense, expected.column("dense").to_numpy(), rtol=1e-5, atol=1e-6)
    assert torch.cat([batch.categorical for batch in batches])[:, 3].tolist() == expected.column("id").to_pylist()
    assert torch.cat([batch.labels for batch in batches])[:, 0].tolist() == expected.column("clicked").to_pylist()
    lists = [
        part.tolist()
        for batch in batches
        for part in batch.sparse["hist_2"].values.split(batch.sparse["hist_2"].lengths.tolist())
    ]
    assert lists == expected.column("history").to_pylist()
    assert batches[0].dense.dtype == batches[0].labels.dtype == torch.float32
    assert batches[0].sparse["hist_0"].lengths.dtype == torch.int32


def test_a_worker_reads_its_share_and_cuts_it_into_batches(files: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for worker in (SimpleNamespace(id=0, num_workers=2), SimpleNamespace(id=1, num_workers=2)):
        monkeypatch.setattr(sharded_rows, "get_worker_info", lambda worker=worker: worker)
        job = contenders.Job(files=files, pipeline="", batch_size=SIZE, threads=2)
        shares = list(sharded_rows.ShardedRows(job, LISTS))
        assert all(len(share["labels"]) == SIZE for share in shares[:-1])
        found += [sharded_rows.batch_of(share, LISTS) for share in shares]
    assert not checksums.differences(totals(numpy_batches(files, SIZE)), totals(found))


@given(st.lists(st.integers(0, 25), max_size=8), st.integers(1, 12))
def test_cutting_keeps_every_row(sizes: list[int], size: int) -> None:
    def piece(first: int, rows: int) -> workload.Piece:
        place = np.arange(first, first + rows)
        lengths = place % 3
        offsets = 2 + np.concatenate(([0], np.cumsum(lengths)))  # as in a slice of a longer list column
        values = np.concatenate(([-1, -1], np.repeat(place, lengths)))
        dense = np.repeat(place[:, None], 13, axis=1).astype(np.float32)
        ids = np.repeat(place[None], 26, axis=0)
        return workload.Piece(dense, ids, place[:, None].astype(np.float32), [values] * 6, [offsets] * 6)

    starts = np.cumsum([0, *sizes])
    rows = int(starts[-1])
    batches = list(workload.batches((piece(int(a), n) for a, n in zip(starts, sizes, strict=False)), size, LISTS))
    assert [len(batch.labels) for batch in batches] == [size] * (rows // size) + [rows % size] * (rows % size > 0)
    everything = list(range(rows))
    for column in (lambda b: b.dense[:, 12], lambda b: b.categorical[:, 25], lambda b: b.labels[:, 0]):
        assert [int(value) for batch in batches for value in column(batch)] == everything
    jagged = [batch.sparse["hist_5"] for batch in batches]
    assert [n for j in jagged for n in j.lengths.tolist()] == [place % 3 for place in everything]
    assert [v for j in jagged for v in j.values.tolist()] == [place for place in everything for _ in range(place % 3)]


def test_checksums_see_content_not_order(files: list[str]) -> None:
    batches = numpy_batches(files, SIZE)
    expected = totals(batches)
    assert expected["rows"] == ROWS
    assert not checksums.differences(expected, totals(batches[::-1]))
    whole = numpy_batches(files, ROWS)[0]
    assert not checksums.differences(expected, totals([whole]))
    swap = torch.randperm(ROWS)
    history = whole.sparse["hist_4"]
    parts = history.values.split(history.lengths.tolist())
    moved = workload.Jagged(torch.cat([parts[k] for k in swap]), history.lengths[swap])
    torn = {
        "labels x id": workload.Batch(whole.dense, whole.categorical, whole.labels[swap], whole.sparse),
        "dense x id": workload.Batch(whole.dense[swap], whole.categorical, whole.labels, whole.sparse),
        "hist_4 first values x id": workload.Batch(
            whole.dense, whole.categorical, whole.labels, {**whole.sparse, "hist_4": moved}
        ),
    }
    for name, batch in torn.items():
        wrong = checksums.differences(expected, totals([batch]))
        assert any(text.startswith(name) for text in wrong), (name, wrong)
    almost = workload.Batch(whole.dense, whole.categorical.clone(), whole.labels, whole.sparse)
    almost.categorical[17, 5] += 1
    assert [text.split(":")[0] for text in checksums.differences(expected, totals([almost]))] == ["ids[5]"]


def test_differences_tell_integers_exactly_and_floats_nearly() -> None:
    assert checksums.differences({"a": 2**60, "b": [1.0, 2.0]}, {"a": 2**60, "b": [1.0, 2.00001]}) == []
    assert checksums.differences({"a": 2**60}, {"a": 2**60 + 1}) == [f"a: got {2**60 + 1}, expected {2**60}"]
    assert checksums.differences({"b": [1.0, 2.0]}, {"b": [1.0, 2.0001]}) == ["b[1]: got 2.0001, expected 2.0"]
    assert checksums.differences({"b": [1.0]}, {"b": [1.0, 2.0]}) == ["b: 2 columns, expected 1"]
    assert checksums.differences({"b": 1}, {}) == ["b is in one only"]


def test_steady_leaves_out_both_ends() -> None:
    arrivals = [0.0, 5.0, *(6.0 + 0.1 * k for k in range(6)), 50.0, 90.0]
    assert trainer.steady(arrivals, [10] * 10) == pytest.approx(10 * 6 / (50.0 - 6.0))
    assert trainer.steady([1.0], [10]) is None
    assert trainer.steady([], []) is None


def test_busy_work_is_calibrated_in_units() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as the trainer does
    try:
        units = trainer.calibrate(0.001, 13)
    finally:
        torch.set_num_threads(threads)
    assert 1 <= units < 1000
    work = trainer.Work(units, 13)
    work(torch.rand(3, 13))  # a short last batch serves too
    assert work.seen > 0


def test_in_order_keeps_order_and_bounds_the_window() -> None:
    started: list[int] = []

    def square(item: int) -> int:
        started.append(item)
        return item * item

    results = contenders.in_order(square, iter(range(20)), 2)
    assert next(results) == 0
    assert len(started) <= 4
    assert list(results) == [item * item for item in range(1, 20)]


def test_measure_counts_the_whole_tree(tmp_path: Path) -> None:
    """In a process of its own, as measuring makes a process the reaper of all its descendants."""
    orphan = "import time; end = time.process_time() + 0.2\nwhile time.process_time() < end: pass"
    stayer = "import time; time.sleep(600)"
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys\n"
        f"subprocess.Popen([sys.executable, '-c', {orphan!r}])\n"  # never waited for
        f"subprocess.Popen([sys.executable, '-c', {stayer!r}])\n"
        "ballast = bytearray(200_000_000)\n"
        "import time; time.sleep(1.2)\n"
        "print('done'); print('words', file=sys.stderr)\n"
        "sys.exit(3)\n"
    )
    code = (
        "import json, sys, measure; measure.SAMPLE_S, measure.GRACE_S = 0.1, 0.5\n"
        "found = measure.measure([sys.executable, sys.argv[1]])\n"
        "cost = [found.cpu_s, found.peak_pss_bytes, found.left_behind]\n"
        "print(json.dumps([found.code, found.stdout, found.stderr, *cost]))\n"
        "late = measure.measure([sys.executable, '-c', 'import time; time.sleep(60)'], timeout_s=0.2)\n"
        "print(late.code)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "parent.py")],
        capture_output=True, text=True, check=True, timeout=60, env={**os.environ, "PYTHONPATH": str(BENCHMARKS)},
    )  # fmt: skip
    first, second = run.stdout.splitlines()
    status, out, err, cpu_s, peak, left = json.loads(first)
    assert (status, out, err) == (3, "done\n", "words\n")
    assert cpu_s >= 0.2
    assert peak >= 200_000_000
    assert len(left) == 1
    assert "time.sleep(600)" in left[0]
    assert second == "-9"


def available() -> list[str]:
    return [
        name
        for name, contender in contenders.CONTENDERS.items()
        if all(importlib.util.find_spec(package) for package in contender.needs)
    ]


def floor_command(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARKS / "floor.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


IN_PROCESS = [name for name in available() if name != "feedline" and contenders.CONTENDERS[name].role != "processes"]


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # as in `trainer`
@pytest.mark.parametrize("name", IN_PROCESS)
def test_contenders_of_one_process_agree(name: str, table: Path, files: list[str], tmp_path: Path) -> None:
    """Those without worker processes, and Feedline without a shuffle; the others in processes of their own."""
    pipeline = tmp_path / "pipeline.yaml"
    pipeline.write_text(clicks_pipeline(str(table), batch_size=SIZE, tail="partial", work_dir=str(tmp_path)))
    job = contenders.Job(files=files, pipeline=str(pipeline), batch_size=SIZE, threads=1)
    batches = contenders.CONTENDERS[name].prepare(LISTS)(job)
    assert not checksums.differences(totals(numpy_batches(files, SIZE)), totals(batches))


@pytest.mark.parametrize(
    ("names", "tables"),
    [
        pytest.param(available(), ["plain", "optimized"], id="all"),
    ],
)
def test_tiny_runs_contenders_that_agree(
    names: list[str], tables: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With a busy trainer, over a table that is kept."""
    common = ["--tiny", "--table", str(tmp_path / "table")]
    options = ["--contenders", ",".join(names), "--busy", "1", "--order", "log", "--json", str(tmp_path / "all.json")]
    options += ["--optimized"] * (len(tables) - 1)
    done = floor_command(*common, *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "trainer busy 1 ms" in done.stdout
    found = json.loads((tmp_path / "all.json").read_text())
    assert list(found["runs"]) == tables
    assert all(list(runs) == names for runs in found["runs"].values())
    for name, (run,) in [item for runs in found["runs"].values() for item in runs.items()]:
        assert run["rows"] == 20_000, name
        assert run["steps"] == math.ceil(20_000 / 1024) or name == "dataloader"  # whose workers cut their own tails
        assert run["left_behind"] == [], name
        assert run["peak_pss_bytes"] > 50_000_000, name
        assert min(run["cpu_s"], run["rows_per_s"], run["first_batch_s"], run["import_s"]) > 0, name
        assert run["after_first_rows_per_s"] > run["rows_per_s"], "most of a short run is its start"
        # Without the start; of a tiny run that starts nothing, the two differ by what a measurement scatters.
        assert 0 < run["later_cpu_s_per_million_rows"] < 1.5 * run["cpu_s_per_million_rows"], name
        assert name in done.stdout
    assert found["options"]["rows"] == 20_000
    assert found["machine"]["versions"]["pyarrow"]
    assert len(list((tmp_path / "table").rglob("*.parquet"))) == 4
    assert all(f"{table}: feedline-off / dataloader" in done.stdout for table in tables if "dataloader" in names)
    assert floor.main([*common, "--rows", "2000", "--contenders", "thread-pool"]) == 1
    assert "holds 20000 rows, expected 2000" in capsys.readouterr().out


def test_a_contender_that_disagrees_or_dies_fails_the_benchmark(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = floor.parse(["--rows", str(ROWS), "--rounds", "2", "--contenders", "grain,thread-pool"])
    turns: list[str] = []

    def run(name: str, *_: Any) -> dict[str, Any]:
        turns.append(name)
        sums = {"rows": 5 if len(turns) < 8 else 6}
        return {"checksums": sums, "sample": None, "rows_per_s": 1.0, "left_behind": ()}

    tables = {"plain": table, "optimized": table}

    monkeypatch.setattr(floor, "run", run)
    with pytest.raises(
        floor.BenchmarkError, match=r"grain on the optimized table disagrees with grain in rows: got 6, expected 5"
    ):
        floor.rounds(options.contenders, tables, options, Console(quiet=True))
    assert turns == [name for name in ("grain", "thread-pool", "thread-pool", "grain") for _ in tables]
    monkeypatch.undo()
    dead = SimpleNamespace(code=-11, stdout="", stderr="last words")
    monkeypatch.setattr(floor, "measure", lambda _, **__: dead)
    with pytest.raises(floor.BenchmarkError, match=r"grain ended with exit code -11:\nlast words"):
        floor.rounds(options.contenders, tables, options, Console(quiet=True))


def test_a_missing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "grain" else object())
    console = Console(file=io.StringIO(), width=200)
    assert floor.available(["thread-pool", "grain"], console) == ["thread-pool"]
    assert console.file.getvalue() == "grain is skipped: grain is not installed (extra: bench)\n"
    with pytest.raises(floor.BenchmarkError, match="no contender remains"):
        floor.available(["grain"], console)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--contenders", "grain,petastorm"], "no contender is called 'petastorm'"),
        (["--rows", "0"], "at least 1"),
        (["--busy", "-1"], "not negative"),
        (["--shape", "flat", "--order", "log"], "independent of each other"),
    ],
)
def test_wrong_arguments_end_with_2(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        floor.parse(arguments)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


def test_ratios_are_medians_over_rounds_to_the_best_contender_of_the_process() -> None:
    def several(*values: float) -> list[dict[str, Any]]:
        return [dict.fromkeys(floor.COLUMNS, value) for value in values]

    plain = {
        "polars-scan": several(50, 60, 70),
        "thread-pool": several(100, 80, 90),
        "grain": several(120, 100, 140),
        "dataloader": several(500, 500, 500),
        "feedline-off": several(60, 100, 210),
        "feedline": several(30, 10, 21),
    }
    assert floor.summarize(plain)["thread-pool"]["rows_per_s"] == {"median": 90, "min": 80, "max": 100}
    assert floor.best(plain, "rows_per_s", *contenders.IN_PROCESS) == "grain"
    assert floor.best(plain, "peak_pss_bytes", *contenders.IN_PROCESS) == "polars-scan"
    optimized = {**plain, "feedline-off": several(240, 200, 140)}
    found = floor.ratios({"plain": plain, "optimized": optimized})
    one = found["plain: feedline-off / best in-process"]
    assert one["after_first_rows_per_s"] == {"median": 1.0, "min": 0.5, "max": 1.5}
    assert one["cpu_s_per_million_rows"]["median"] == pytest.approx(100 / 60)
    assert "import_s" not in one
    assert found["plain: feedline-off / thread-pool"]["peak_pss_bytes"]["median"] == pytest.approx(100 / 80)
    assert found["plain: feedline / feedline-off"]["rows_per_s"]["median"] == 0.1
    assert found["feedline-off, optimized / best in-process, plain"]["rows_per_s"]["median"] == 2.0
    assert floor.spread([1.0, None]) is None
    assert floor.ratios({"plain": {"feedline-off": several(1)}}) == {}


def test_the_targets_are_read_from_what_the_benchmarks_print(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def program(name: str, *arguments: object) -> str:
        if name == "first_batch.py":
            return "\n" + json.dumps([{"all but trainer imports": seconds} for seconds in (3.0, 1.25, 0.5)])
        if name == "waiting_batch.py":
            return '{"tensors": 21, "next_us": 88.4, "next_with_tensors_us": 240.0}'
        if name == "ranks.py":
            raise targets.PartError("ranks.py ended with exit code 1")
        keys = {key: {"median": 0.5, "min": 0.25, "max": 1.0} for key in floor.COLUMNS}
        runs = {name: [dict.fromkeys(floor.COLUMNS, 1.0)] for name in arguments[6].split(",")}
        abouts = floor.ratios({"plain": runs, "optimized": runs})
        Path(str(arguments[-1])).write_text(json.dumps({"ratios": dict.fromkeys(abouts, keys)}))
        return ""

    monkeypatch.setattr(targets, "program", program)
    assert targets.main(["--only", "floor,start,waiting,ranks", "--rounds", "1"]) == 1
    printed = capsys.readouterr()
    figures = [line.split("|")[2].strip() for line in printed.out.splitlines()[2:]]
    assert figures[:6] == ["0.50 (0.25-1.00)"] * 6, "the names of the floor benchmark's ratios"
    assert figures[6:] == ["1.25 s", "88 µs", "240 µs", "88 µs", "240 µs"]
    assert printed.err == "missing: ranks.py ended with exit code 1\n"
    words = "shuffle: off, 1 threads: 4.1 M rows/s\nshuffle: off, 2 threads: 9.8 M rows/s\n"
    assert [row.figure for row in targets.writing_rows(words)] == ["9.8 M; - M rows/s"]
    words = "two ranks, of one: 0.97 (median of 3)\nmemory of a feeder with eight ranks, of one: 1.31\n"
    assert [row.figure for row in targets.ranks_rows(words)] == ["0.97", "1.31"]
