"""The benchmark of request tables still runs (tiny), and answers its questions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "request_rows.py"


def test_tiny_compares_bytes_and_rates(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--tiny", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert json.loads(done.stdout) == found
    assert found["requests"] * 8 < found["rows"] == 20_000
    assert found["bytes_ratio"] > 2.5  # bytes, not time
    assert found["bytes_ratio_clustered"] > 1
    assert set(found["rates"]) == {f"{what}, {how}" for what in ("read", "batches") for how in ("plain", "dedup")}
    assert all(rate["ratio"] > 0 for rate in found["rates"].values())
