"""The benchmark of column files runs, tiny, and divides what it says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import column_files  # noqa: E402

pytestmark = pytest.mark.nightly


def test_it_runs_tiny(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert column_files.main(["--tiny", "--json", str(tmp_path / "rows.json")]) == 0
    assert "| bytes written for 3 of 90 days |" in capsys.readouterr().out
    narrow, wide, written = json.loads((tmp_path / "rows.json").read_text())
    assert [each["aim"] for each in (narrow, wide, written)] == [">= 0.9", ">= 0.9", "<= 0.1"]
    assert min(narrow["ratio"], wide["ratio"]) > 0
    assert 0 < written["ratio"] < 1
