"""`feedline plan` says which partitions of a followed table have landed."""

from __future__ import annotations

import json
from pathlib import Path

from growing_table import GrowingTable
from processes import ended_here


def test_plan_says_what_has_landed_and_what_has_not(tmp_path: Path):
    table = GrowingTable(tmp_path)
    table.land(1)
    table.write(2)
    path = table.pipeline(follow={"until": "2100-01-01", "epoch": "new"})
    facts = json.loads(ended_here("plan", path, "--json").stdout)
    assert facts["rows"] == 32
    assert facts["follow"] == {
        "landed": "_SUCCESS",
        "until": "2100-01-01",
        "epoch": "new",
        "partitions": 1,
        "not_landed": {"ds=2026-01-02": "holds no _SUCCESS"},
    }
    text = ended_here("plan", path).stdout
    for words in ("an epoch reads what no epoch has read", "1 partition has landed", "ds=2026-01-02 holds no _SUCCESS"):
        assert words in text, text
