"""The benchmark of deletions runs, tiny: only row groups with such rows are written, and no larger than they were."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import deleting

pytestmark = pytest.mark.nightly


def test_a_tiny_run_measures_every_layout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert deleting.main(["--tiny", "--json", str(tmp_path / "found.json")]) == 0
    found = {each["layout"]: each for each in json.loads((tmp_path / "found.json").read_text())["layouts"]}
    assert list(found) == list(deleting.LAYOUTS)
    for each in found.values():
        assert each["same_rows"]
        assert each["deleted_rows"] > 0
        assert each["of_held"] <= 1.05
    assert found["sorted"]["row_groups_read"] < found["clustered"]["row_groups_read"]
    assert found["sorted"]["encoded_bytes"] < found["log"]["encoded_bytes"]
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(found)
