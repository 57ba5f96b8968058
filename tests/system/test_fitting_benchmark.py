"""The benchmark of fitting still runs, and what it compares is equal (tiny, clock off)."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import fitting

pytestmark = pytest.mark.nightly


def test_a_tiny_run_compares_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fitting.main(["--tiny", "--json", str(tmp_path / "f.json")]) == 0
    facts = json.loads((tmp_path / "f.json").read_text())
    assert facts["rows"] == 20_000
    assert set(facts["ratio"]) == {"wall_s", "cpu_s"}
    assert "fit takes" in capsys.readouterr().out


def test_another_result_is_noticed(tmp_path: Path) -> None:
    fitting.generate_clicks(str(tmp_path / "t"), fitting.ClickRecipe(rows=2_000, days=1, sessions_mean=4.0))
    expected = fitting.bare(sorted(str(path) for path in (tmp_path / "t").rglob("*.parquet")))
    report = fitting.pipeline(tmp_path, str(tmp_path / "t"), 1).fit()
    fitting.refuse_differences(report, expected)
    frame = expected["id_3"]
    with pytest.raises(AssertionError, match="id_3: other values or counts"):
        fitting.refuse_differences(report, {**expected, "id_3": frame.with_columns(frame["count"] + 1)})
