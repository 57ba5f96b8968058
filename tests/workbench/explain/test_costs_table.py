"""The table of costs shows the dearest features, and what is left out."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from feedline.workbench.explain.explain_table import costs_table


def feature(name: str, seconds: float, sharers: int = 1) -> dict[str, Any]:
    part = {"cpu_s": seconds, "low": seconds, "high": seconds}
    return {
        "name": name,
        "decode_s": part,
        "ops_s": part,
        "encode_s": part,
        "cpu_s": {"cpu_s": 3 * seconds},
        "share": seconds,
        "nbytes": 1e6,
        "epoch_cpu_s": 6 * seconds,
        "steps": [{"op": "clip", "cpu_s": 0.1, "sharers": 1}, {"op": "log1p", "cpu_s": 0.25, "sharers": sharers}],
    }


ACCOUNT = {
    "rows": 1_000,
    "block_s": {"cpu_s": 4.0},
    "shared_s": 0.5,
    "difference_s": -0.4,
    "features": [feature("cheap", 0.01), feature("[red]dear", 0.5, sharers=3), feature("middle", 0.1)],
}


def rendered(shown: int) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(costs_table(ACCOUNT, shown))
    return captured.get()


def test_dear_features_come_first():
    text = rendered(2)
    assert text.index("[red]dear") < text.index("middle")
    assert "cheap" not in text
    assert "1 more features cost less" in text
    assert "log1p 0.250 (of 3 features)" in text
    assert "50.0%" in text
    assert "whole blocks take 9% less than their sum" in " ".join(text.split())


@pytest.mark.parametrize(("difference_s", "words"), [(-4.52, "53% less"), (-400.0, "99% less"), (3.0, "300% more")])
def test_whole_blocks_are_compared_with_the_sum_of_the_parts(difference_s: float, words: str):
    """Blocks of deduplicated rows take much less than their columns and chains alone."""
    console = Console(width=160)
    with console.capture() as captured:
        console.print(costs_table({**ACCOUNT, "difference_s": difference_s}))
    assert f"whole blocks take {words} than their sum" in " ".join(captured.get().split())


def test_all_features_need_no_hint():
    text = rendered(3)
    assert "cheap" in text
    assert "more features" not in text
