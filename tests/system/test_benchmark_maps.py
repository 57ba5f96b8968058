"""The benchmark of map columns runs, and its three ways to read give the same values."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import maps

pytestmark = pytest.mark.nightly


def test_a_tiny_run_prints_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    maps.main(["--tiny"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines[1:]] == ["1 keys", "4 keys"]
    assert all(way in lines[2] for way in ("parts of the map", "a lookup per key", "flattened"))


def test_ways_that_disagree_fail(tmp_path: Path) -> None:
    names = maps.write_maps(tmp_path, rows=100, keys=5, coverage=0.5)
    other = tmp_path / "other"
    other.mkdir()
    maps.write_maps(other, rows=90, keys=5, coverage=0.5)
    (other / "columns" / "part-0.parquet").replace(tmp_path / "columns" / "part-0.parquet")
    with pytest.raises(ValueError, match="disagree"):
        maps.compare(tmp_path, names, rounds=1)
