"""The benchmark of `build` still runs (tiny, clock off), and all contenders write the same rows."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "build.py"

pytestmark = pytest.mark.nightly


@pytest.mark.parametrize("duplicates", ["0", "0.05"])
def test_tiny_builds_the_rows_of_the_joins(tmp_path: Path, duplicates: str) -> None:
    command = [sys.executable, str(BENCHMARK), "--tiny", "--threads", "1", "--duplicates", duplicates]
    options = ["--scratch", str(tmp_path), "--json", str(tmp_path / "found.json")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    assert json.loads(done.stdout) == found
    assert found["same_rows"] is True
    rows, clicked, ordered, *_ = found["rows"]["build"]
    assert rows == 20_000
    assert 0 < ordered < clicked < rows
    assert (found["logged"]["impressions"] > rows) == (duplicates != "0")
    assert set(found["ratio"]) == {"join", "sorted"}
    assert all(value > 0 for key in ("rows_per_s", "peak_pss_bytes", "bytes") for value in found[key].values())
