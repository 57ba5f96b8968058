"""The benchmark of request tables still runs (tiny), and answers its questions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "request_rows.py"


@pytest.mark.nightly
def test_tiny_compares_bytes_and_rates(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARK), "--tiny", "--json", str(tmp_path / "found.json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads((tmp_path / "found.json").read_text())
    assert all(f"| {row['measure']} | {row['ratio']:.3f} | {row['aim']} |" in done.stdout for row in rows)
    logged, _, clustered, *rates = rows
    assert int(logged["figures"].split()[-2]) * 8 < 20_000
    assert logged["ratio"] > 2.5  # bytes, not time
    assert clustered["ratio"] > 1
    assert len({rate["measure"] for rate in rates}) == 4
    assert all(rate["ratio"] > 0 for rate in rates)
