"""The benchmarks of single parts still run, and print what they say (tiny, clock off)."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feedline import Pipeline
from feedline.transforms.ops import OPS

LIMIT_S = 100  # of a program: less than pytest gives a test
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import cache_sharing  # noqa: E402
import column_groups  # noqa: E402
import dedup_training  # noqa: E402
import pipeline as pipeline_benchmark  # noqa: E402
import profiling as profiling_benchmark  # noqa: E402
import slot_writing  # noqa: E402
import snapshots  # noqa: E402
import vocabulary as vocabulary_benchmark  # noqa: E402
from shape_tables import write_table  # noqa: E402
from shapes import SHAPES  # noqa: E402

pytestmark = pytest.mark.nightly


def test_the_status_of_a_feeder_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "feeder_status.py"), "--ranks", "2", "--calls", "3", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["ranks"] == 2
    assert found["bytes"] > 50 * 100, "of the decisions alone"
    assert min(found[f"{name}_us"] for name in ("gather", "pack", "write", "unpack")) > 0


def test_profile_and_init_of_many_files_and_columns_are_measured() -> None:
    found = profiling_benchmark.run_all(8, 30)
    assert list(found) == ["profile", "init"]
    assert all(min(row.values()) > 0 for rows in found.values() for row in rows.values())


def test_the_loop_of_a_feeder_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "feeder_loop.py"), "--tiny", "--ranks", "2", "--calls", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert (found["ranks"], found["batches"]) == (2, 800)
    assert min(found["batches_per_s"], found["loop_us"], found["calls"]) > 0


def test_the_share_of_the_lock_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "lock_share.py"), "--tiny", "--shape", "flat", "--shape", "short"]
    run = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert [each["shape"] for each in found] == ["flat", "short"]
    assert all(0 < each["share"] < 1 and each["rows"] == 4000 for each in found)
    assert min(each[name] for each in found for name in ("chunks", "frames", "native_calls", "row_ns")) > 0


def test_viewers_of_the_live_page_are_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "dashboard_page.py"), "--ranks", "2", "--jobs", "2", "--viewers", "1"]
    command += ["--seconds", "1.5", "--rounds", "1", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    nobody, one = json.loads(run.stdout)
    assert (nobody["viewers"], nobody["messages_per_s"], one["viewers"]) == (0, 0, 1)
    assert min(one["messages_per_s"], one["bytes_per_s"]) > 0


def test_a_scrape_is_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "metrics_scrape.py"), "--ranks", "2", "--scrapes", "3", "--json"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["ranks"] == 2
    assert found["series"] > 2 * 30
    assert min(found["cpu_ms"], found["answer_ms"], found["bytes"]) > 0


def test_copies_of_many_features_are_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "torchrec_copies.py"), "--features", "45", "--steps", "5"]
    command += ["--batch-size", "16", "--device", "meta"]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    found = json.loads(run.stdout)
    assert found["copies"] == 13 + 26 + 2 * 6 + 1
    assert min(found["slot_us"], found["tensors_us"], found["batch_bytes"]) > 0


@pytest.mark.parametrize("shape", ["flat", "lists"])
def test_a_cache_is_measured(shape: str) -> None:
    command = [sys.executable, str(BENCHMARKS / "cache.py"), "--shape", shape, "--rows", "3000", "--rounds", "1"]
    run = subprocess.run([*command, "--changed", "2"], capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    kept, filled, found, *stages = run.stdout.splitlines()
    assert kept.startswith(f"{shape}: 3,000 rows; ")
    assert ": 0 of " in filled
    assert " row groups found " in found
    assert ", 2 computed " in found
    expected = ["off", "copied", "filling", "first", "second", "dropped", "changed"]
    assert [line.split()[0] for line in stages] == expected


def test_what_jobs_share_through_a_cache_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    table, work = tmp_path / "table", tmp_path / "work"
    write_table(table, SHAPES["flat"], rows=3_000, group_rows=500)
    work.mkdir()
    place = cache_sharing.Place(work, json.loads(SHAPES["flat"].pipeline(str(table), batch_size=256, work_dir="")))
    one = place.cache("one")
    both = cache_sharing.run_trials([place.trial(0, one), place.trial(1, one, seed=1)], [one])
    assert both.computed == both.kept == 6 * 12
    assert (both.consumed, both.steps) == (2 * both.kept, 12)
    assert both.cpu_s > 0
    monkeypatch.setattr(cache_sharing, "run_trials", lambda *_: both)
    monkeypatch.setattr(sys, "argv", ["cache_sharing.py", "--shape", "flat", "--rows", "3000", "--rounds", "2"])
    cache_sharing.main()
    heading, _, *lines = capsys.readouterr().out.splitlines()
    assert heading == "flat: 3,000 rows, 72 features x segments"
    assert {line[:10].strip() for line in lines} == {
        "alone", "apart", "identical", "seeds", "fast", "slow", "both apart", "both",
    }  # fmt: skip
    assert all(" 0.500   1.00" in line for line in lines)


def test_two_column_groups_are_measured_beside_a_reader_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert column_groups.main(["--tiny", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert (found["whole"]["nbytes"], found["groups"]["nbytes"]) == tuple(found["planned_bytes"])
    assert found["groups"]["nbytes"] == found["whole"]["nbytes"] + found["filter_bytes"]
    assert (found["bytes_ratio"], len(found["cpu_ratio"])) == (1.0, 1)
    assert min(found["cpu_ratio"] + found["rate_ratio"]) > 0
    assert found["rows"] > found["whole"]["rows"] > 2_000, "the tail is dropped"


def test_the_writing_of_slots_is_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["slot_writing.py", "--tiny"])
    assert slot_writing.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [re.sub(r": [0-9.]+ M rows/s", "", line) for line in lines] == [
        f"shuffle: {shuffle}, {threads} threads" for shuffle in ("off", "on") for threads in (1, 2)
    ]


def test_snapshots_of_many_files_are_measured(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "snapshots.py"), "--tiny", "--folder", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    for heading in ("listing", "cold", "2 processes", "warm", "plan", "512"):
        assert heading in run.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("only", "ranks", "limit"),
    [("memory", "eight", 1.5), ("speed", "two", math.inf)],
)
def test_ranks_that_share_a_feeder_are_measured(only: str, ranks: str, limit: float) -> None:
    command = [sys.executable, str(BENCHMARKS / "ranks.py"), "--tiny", "--only", only]
    run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert run.returncode == 0, run.stderr
    assert 0 < float(re.search(rf"{ranks} ranks, of one: ([\d.]+)", run.stdout)[1]) < limit


def test_the_table_of_many_files_is_what_it_says(tmp_path: Path) -> None:
    snapshots.write_table(tmp_path / "table", 250)
    snapshots.write_pipeline(tmp_path, 250)
    plan = Pipeline.from_yaml(tmp_path / "pipeline.yaml").plan()
    assert len(plan.source.snapshot.files) == 250
    assert len(plan.source.snapshot.file_columns) == 45
    assert plan.source.snapshot.files["row_groups"].to_pylist() == [3] * 250
    assert int((plan.source.split_rows > 0).sum()) == 150  # the first of three days is pruned
    assert plan.source.selection.report.counted.rows == 0
    made = snapshots._MadeTable(tmp_path, 250).listing()
    assert made.files["path"].to_pylist() == plan.source.snapshot.files["path"].to_pylist()
    assert made.partition["ds"].equals(plan.source.snapshot.files["partition"].combine_chunks().field("ds"))


def test_training_on_unique_rows_is_measured(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dedup_training, "MODELS", {"attention": ("hist_0",)})
    results = dedup_training.measure(tmp_path, size=48, count=2, rounds=1, buckets=50)
    model = results["models"]["attention"]
    assert results["factor"] > 2
    assert 0.2 < model["deduplicated_share"] < 0.95
    saved = 1 - model["flops_deduplicated"] / model["flops_expanded"]
    assert saved == pytest.approx(model["deduplicated_share"] * (1 - 1 / results["factor"]), abs=0.2)
    assert model["ratio"] > 0


def test_every_op_is_measured_and_agrees_with_the_bare_formulations(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "transforms.py"), "--tiny", "--json", str(tmp_path / "t.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "t.json").read_text())["rows"]
    measured = {row["op"].replace(",", " ").split()[0] for row in rows}  # "vocabulary of strings", "first_x, lists"
    assert measured == {*OPS} - {"ids", "weights"}, "those two take nothing but a name"
    assert all(row["feedline"] > 0 and (row["ratio"] is None or row["ratio"] > 0) for row in rows)


def test_a_large_vocabulary_is_measured_and_right(tmp_path: Path) -> None:
    arguments = ["--tiny", "--max-size", "15000", "--scratch", str(tmp_path), "--json", str(tmp_path / "v.json")]
    assert vocabulary_benchmark.main(arguments) == 0
    measured = json.loads((tmp_path / "v.json").read_text())
    assert (measured["distinct"], measured["values"]) == (20_000, 15_000)
    assert measured["spilled_mb"] > 0
    assert [path.name for path in tmp_path.iterdir()] == ["v.json"]


def test_a_large_pipeline_is_measured_and_equals_the_script_by_hand(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "pipeline.py"), "--tiny", "--json", str(tmp_path / "p.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    facts = json.loads((tmp_path / "p.json").read_text())
    assert facts["wrong"] == []
    assert facts["ratio"] > 0
    assert facts["rows_per_s"]["feedline"] > 0
    assert [name for name in facts["ops_s"] if "sparse" in name] == [
        "no ops (sparse)", "first_x (sparse)", "sigrid_hash (sparse)", "hash_bucket (sparse)",
    ]  # fmt: skip


def test_the_script_by_hand_is_compared(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(pipeline_benchmark, "TABLE_ROWS", 499_999)  # the script's alone: features are made before
    made = pipeline_benchmark.make_features
    monkeypatch.setattr(pipeline_benchmark, "make_features", lambda *given: _with_table_rows(made, *given))
    monkeypatch.setattr(os, "sched_setaffinity", lambda *_: None)
    assert pipeline_benchmark.main(["--tiny"]) == 1
    assert "values: the script computes other numbers" in capsys.readouterr().out


def _with_table_rows(made: Any, *given: Any) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline_benchmark, "TABLE_ROWS", 500_000)
        return made(*given)


def test_the_borders_of_epochs_are_measured() -> None:
    command = [sys.executable, str(BENCHMARKS / "epochs.py"), "--tiny", "--only", "default", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout)
    assert list(found) == ["default"]
    assert list(found["default"]) == ["one epoch", "a second", "short"]
    assert all(length["rows_per_s"] > 0 and length["share"] > 0 for length in found["default"].values())
    assert [length["first_step_ms"] > 0 for length in found["default"].values()] == [False, True, True]


def test_the_first_batch_benchmark_reports_every_phase():
    command = [sys.executable, str(BENCHMARKS / "first_batch.py"), "--tiny", "--json"]
    [round_] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert all(round_[phase] > 0 for phase in ("trainer imports", "imports", "plan", "first block"))
    assert round_["all but trainer imports"] == pytest.approx(
        round_["imports"] + round_["plan"] + round_["first block"]
    )
    assert round_["memory"] > 100e6


def test_mixing_is_measured_beside_one_table():
    command = [sys.executable, str(BENCHMARKS / "mixing.py"), "--tiny", "--json"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=LIMIT_S).stdout)
    assert found["share"]["least"] <= found["share"]["median"] <= found["share"]["most"]
    assert all(found[name]["rows_per_s"] > 0 < found[name]["peak_bytes"] for name in ("one table", "two tables"))
    assert [len(found[name]["block_rows"]) for name in ("one table", "two tables")] == [1, 2]
