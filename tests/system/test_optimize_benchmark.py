"""The benchmark of `optimize` still runs (tiny, clock off), and answers its questions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "optimize.py"
sys.path.insert(0, str(BENCHMARK.parent))

import filters  # noqa: E402
import warehouse  # noqa: E402

pytestmark = pytest.mark.nightly


def answers(folder: Path, questions: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARK), "--tiny", "--threads", "1", "--json", str(folder / "found.json")]
    done = subprocess.run(
        [*command, "--questions", questions], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    assert json.loads(done.stdout) == found
    return found


def test_tiny_compares_bytes(tmp_path: Path) -> None:
    found = answers(tmp_path, "bytes")
    assert found["bytes"]["clustered_bytes"] < found["bytes"]["log_bytes"] < found["bytes"]["as_written_bytes"]
    assert found["bytes"]["row_groups_log"] == found["bytes"]["row_groups_clustered"]
    assert found["bytes"]["ratio"] > 2  # bytes, not time


def test_tiny_answers_the_questions_about_time(tmp_path: Path) -> None:
    found = answers(tmp_path, "throughput,decode")
    for name in ("bare_rows_per_s", "optimize_rows_per_s", "peak_pss_bytes", "measuring_s"):
        assert found["throughput"][name] > 0
    assert found["decode"]["same_rows"] is True
    assert found["decode"]["ratio"] > 0


def test_the_warehouse_benchmark_counts_bytes_and_requests(tmp_path: Path) -> None:
    parts = ["--only", "projection", "--only", "popular", "--only", "filters"]
    assert warehouse.main(["--tiny", "--json", str(tmp_path / "found.json"), *parts]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert set(found) == {"projection", "popular", "filters"}
    assert {cost["where"] for cost in found["filters"].values()} == set(filters.CONDITIONS)
    assert all(0 < cost["kept"] < 8192 and cost["ratio"] > 0 for cost in found["filters"].values())
    assert found["projection"]["columns"] == 40
    assert found["projection"]["table_columns"] == 400
    assert found["projection"]["feedline_bytes"] > found["projection"]["chunk_bytes"]  # footers, too: tiny row groups
    assert found["projection"]["bytes_ratio"] < 2
    assert found["popular"]["requests_per_row_group"]["after"] == 1
    assert found["popular"]["requests_per_row_group"]["before"] > 4  # tiny holes are read over, as from a store
