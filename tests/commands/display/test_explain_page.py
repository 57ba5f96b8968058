"""The page of an explanation shows what its facts say, with costs or without."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.commands.display.explain_page import explain_page

CPU = {"cpu_s": 1.0, "low": 0.9, "high": 1.1}
FEATURE = {
    "name": "hist<0>",
    "group": "sparse",
    "columns": ["hist"],
    "decode_s": CPU,
    "ops_s": {"cpu_s": 0.5, "low": 0.4, "high": 0.6},
    "encode_s": {"cpu_s": 0.1, "low": 0.1, "high": 0.1},
    "nbytes": 2_500_000.0,
    "problems": 0.25,
    "cpu_s": {"cpu_s": 1.6, "low": 1.4, "high": 1.8},
    "share": 0.8,
    "epoch_cpu_s": 3.2,
    "epoch_bytes": 5e6,
    "steps": [{"op": "hash_bucket", "cpu_s": 0.5, "sharers": 1}],
}
ACCOUNT = {
    "rows": 65_536,
    "blocks": 2,
    "epoch_rows": 2_000_000,
    "block_s": {"cpu_s": 2.0, "low": 1.9, "high": 2.1},
    "shared_s": 0.2,
    "difference_s": 0.2,
    "columns": [
        {
            "name": "hist",
            "cpu_s": CPU,
            "bytes": 2_500_000,
            "encodings": ["DICTIONARY"],
            "codecs": ["snappy"],
            "decoder": "kernel",
            "is_measured": True,
        }
    ],
    "features": [FEATURE],
}
FACTS: dict[str, Any] = {
    "name": "clicks",
    "source": "short run",
    "seconds": 10.0,
    "verdict": "Trainer waits 41%: decoding hist takes 58% of CPU; the limit is 312 k rows/s with 2 cores.",
    "rows_per_s": 250_000.0,
    "trainer_wait": 0.41,
    "bound": 312_000.0,
    "advice": [
        {
            "change": "remove hist<0> from `features`",
            "reason": "it takes much",
            "rows_ratio": 1.5,
            "rows_interval": {"low": 1.4, "high": 1.6},
            "cpu_s_saved": 1.6,
            "cpu_interval": {"low": 1.4, "high": 1.8},
            "caveat": "the feature",
        }
    ],
    "samples": [{"wall_s": 1.0, "trainer_wait_s": 0.4, "wait_slots_s": 0.1}, {"wall_s": 1.0, "trainer_wait_s": None}],
    "stages": [{"name": "decoding", "seconds": 5.0, "cpu_s": 4.0, "rows_per_s": 400_000.0}],
    "bounds": [{"resource": "cores", "rows_per_s": 312_000.0}],
    "headspace": None,
    "store": None,
    "costs": {"account": ACCOUNT, "changes": [], "source": "", "step_share": 1.0},
}


def test_page_shows_verdict_advice_and_costs():
    page = explain_page(FACTS)
    for words in (
        "Trainer waits 41%: decoding hist takes 58% of CPU",
        "remove hist&lt;0&gt; from `features`",
        "+50% (+40% to +60%)",
        "the trainer waits for a batch",
        "hash_bucket",
        "80.0%",
        "25%",
        "312,000",
        "65,536 rows (2 blocks)",
        "10% more than the sum",
        "dictionary",
    ):
        assert words in page, words
    assert "hist<0>" not in page


@pytest.mark.parametrize("left_out", ["advice", "samples", "stages", "bounds", "costs", "trainer_wait", "source"])
def test_parts_may_be_missing(left_out: str):
    page = explain_page({name: value for name, value in FACTS.items() if name != left_out})
    assert FACTS["verdict"] in page


def test_what_was_asked_for_is_shown():
    store = {"bytes_per_s": 120e6, "interval": {"low": 110e6, "high": 130e6}, "readers": 4, "is_growing": False}
    facts = {"headspace": {"rows_per_s": 400_000.0, "gain": 1.6}, "store": {**store, "nbytes": 1e9, "skipped": ""}}
    page = explain_page({**FACTS, **facts})
    assert "120.0 MB/s (110.0 to 130.0) with 4 readers, 1,000 MB read." in page
    assert "1.60x at most" in page


def test_nothing_is_advice_too():
    assert "Nothing that was measured would." in explain_page({**FACTS, "advice": []})


def test_costs_that_were_left_out_say_why():
    page = explain_page({**FACTS, "costs": None, "costs_skipped": "fits are missing"})
    assert "fits are missing" in page


def test_no_rate_is_shown_for_what_takes_no_time():
    stages = [{"name": "planning", "seconds": 0.0, "cpu_s": None, "rows_per_s": float("inf")}]
    assert "inf" not in explain_page({**FACTS, "stages": stages}).partition("Stages and limits")[2].partition("</t")[0]
