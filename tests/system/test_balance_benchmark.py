"""The benchmark of lengths runs, tiny, and its simulated trainer gains what its arithmetic says."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import balance  # noqa: E402

pytestmark = pytest.mark.nightly


def test_every_setting_is_measured(tmp_path: Path) -> None:
    options = balance.parse(["--tiny"])
    rows = balance.measure(tmp_path, balance.generate(tmp_path, options.rows), options)
    found = {row.name: row for row in rows}
    assert list(found) == list(balance.settings(options))
    plain, balanced, both = (found[name] for name in ("plain", "balance", "balance and buckets"))
    assert (plain.speed, plain.padded_speed, plain.bytes, plain.rows) == (1, 1, 1, 1)
    assert balanced.imbalance < 1 + (plain.imbalance - 1) / 3
    assert balanced.speed > 1.3
    assert both.padding < plain.padding
    lines = list(balance.lines(rows, 2.0))
    assert len({len(line) for line in lines[:-1]}) == 1


def test_ranks_that_draw_buckets_of_their_own_wait_for_the_longest() -> None:
    """Half of the rows are short: one of 8 ranks has a long bucket in nearly every step."""
    lengths = np.repeat([10, 100], 50_000)
    assert balance.coordinated_speed(lengths, (10, 100)) == pytest.approx((100 - 90 / 2**8) / 55, rel=0.01)
    assert balance.coordinated_speed(lengths, (100,)) == 1
