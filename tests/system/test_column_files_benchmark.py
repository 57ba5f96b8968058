"""The benchmark of column files runs, tiny, and divides what it says."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import column_files  # noqa: E402

pytestmark = pytest.mark.nightly


def test_it_runs_tiny(capsys: pytest.CaptureFixture[str]):
    narrow, wide, written = column_files.main(["--tiny"])
    assert "| bytes written for 3 of 90 days |" in capsys.readouterr().out
    assert (narrow.aim, wide.aim, written.aim) == (">= 0.9", ">= 0.9", "<= 0.1")
    assert min(narrow.ratio, wide.ratio) > 0
    assert 0 < written.ratio < 1
