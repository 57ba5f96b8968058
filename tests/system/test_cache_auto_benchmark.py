"""The benchmark of `mode: auto` runs, and judges it by the best fixed mode."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import cache_auto

pytestmark = pytest.mark.nightly


def test_a_tiny_run_prints_a_line_per_shape(capsys: pytest.CaptureFixture[str]) -> None:
    assert cache_auto.main(["--tiny", "--shape", "flat", "strings", "--epochs", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(",")[0] for line in lines] == ["flat", "strings"]
    assert all("best / auto" in line and "features x row groups found" in line for line in lines)
