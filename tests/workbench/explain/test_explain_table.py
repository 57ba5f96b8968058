"""The view shows the verdict first, then stages, then advice; names with brackets stay as they are."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from explained_runs import rank_samples
from rich.console import Console

from feedline.loader.limits.machine_advice import Advice
from feedline.loader.limits.run_facts import Interval
from feedline.workbench.explain.explain_table import costs_table, explain_view
from feedline.workbench.explain.explained_costs import Explanation, HeadspaceFacts, explanation_facts


def shown(facts: dict[str, Any]) -> str:
    out = io.StringIO()
    Console(file=out, width=160, color_system=None).print(explain_view(facts), highlight=False)
    return out.getvalue()


def test_the_view_of_a_run_of_two_ranks() -> None:
    ranks = rank_samples(0, 0.1), rank_samples(1, 0.5)
    headspace = HeadspaceFacts(rows_per_s=2e3, gain=2)
    explanation = Explanation(name="n", source="running", ranks=ranks, seconds=4.0, headspace=headspace)
    own = Advice(
        kind="feature",
        change="features: {sparse: {h[0]: [{first_x: 8}]}}",
        reason="it is long",
        rows_ratio=1.5,
        rows_interval=Interval(low=1.4, high=1.6),
        cpu_s_saved=0.25,
        caveat="the model sees less",
    )
    text = shown(explanation_facts(explanation, explanation.slowest.verdict([own])))
    lines = text.splitlines()
    assert lines[0].startswith("Trainer waits 50%: ops take 100% of CPU")
    assert lines[1] == "Measured: 1 k rows/s (1 k rows/s to 1 k rows/s) over 4.0 s of its run, rank 1."
    assert lines[2].startswith("rank 0: Trainer waits 10%")
    assert "│ ops" in text
    assert "Headspace: the trainer takes 2 k rows/s of batches that it has: 2.00x at most." in text
    assert "h[0]: [{first_x: 8}]}}: 1.50x rows/s (1.40 to 1.60), 0.25 CPU-s per M rows saved. it is long." in text
    assert "But: the model sees less." in text


def test_a_run_that_the_trainer_limits_needs_no_advice() -> None:
    explanation = Explanation(name="n", source="short run", ranks=(rank_samples(0, 0.0),), seconds=4.0, stopped=True)
    text = shown(explanation_facts(explanation, explanation.slowest.verdict()))
    assert text.startswith("Nothing: your trainer is the limit.")
    assert "of a short run, stopped early." in text
    assert "A faster loader would not help." in text
    saves = Advice(kind="decode", change="feedline optimize", reason="it pays", cpu_s_saved=0.25)
    text = shown(explanation_facts(explanation, explanation.slowest.verdict([saves])))
    assert "A faster loader would not help, but it can take less CPU time:" in text
    assert "1. feedline optimize: 0.25 CPU-s per M rows saved. it pays." in text
    gaining = replace(explanation, headspace=HeadspaceFacts(rows_per_s=1610.0, gain=1.61))
    text = shown(explanation_facts(gaining, gaining.slowest.verdict()))
    assert "would not help" not in text
    assert "The trainer hardly waits: of up to 1.61x, a loader gains what it leaves of the shared cores." in text
    without = replace(explanation, headspace=HeadspaceFacts(rows_per_s=1010.0, gain=1.01))
    assert "A faster loader would not help." in shown(explanation_facts(without, without.slowest.verdict()))


def test_nothing_was_delivered() -> None:
    empty = replace(rank_samples(0, 0.0), samples=())
    explanation = Explanation(name="n", source="short run", ranks=(empty,), seconds=0.0)
    assert shown(explanation_facts(explanation, empty.verdict())).startswith("Nothing was delivered")


def test_many_ranks_have_a_line_together() -> None:
    ranks = tuple(rank_samples(number, 0.9 if number == 17 else number / 1000) for number in range(64))
    explanation = Explanation(name="n", source="running", ranks=ranks, seconds=4.0)
    text = shown(explanation_facts(explanation, explanation.slowest.verdict()))
    lines = text.splitlines()
    assert "rank 17" in lines[1]
    assert [line.split(":")[0] for line in lines[2:9]] == [f"rank {number}" for number in range(63, 56, -1)]
    assert lines[9] == "56 other ranks wait 0% to 6% of the time."


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


def rendered(account: dict[str, Any], *shown: int) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        console.print(costs_table(account, *shown))
    return captured.get()


def test_dear_features_come_first():
    text = rendered(ACCOUNT, 2)
    assert text.index("[red]dear") < text.index("middle")
    assert "cheap" not in text
    assert "1 more features cost less" in text
    assert "log1p 0.250 (of 3 features)" in text
    assert "50.0%" in text
    assert "whole blocks take 9% less than their sum" in " ".join(text.split())


@pytest.mark.parametrize(("difference_s", "words"), [(-4.52, "53% less"), (-400.0, "99% less"), (3.0, "300% more")])
def test_whole_blocks_are_compared_with_the_sum_of_the_parts(difference_s: float, words: str):
    """Blocks of deduplicated rows take much less than their columns and chains alone."""
    text = " ".join(rendered({**ACCOUNT, "difference_s": difference_s}).split())
    assert f"whole blocks take {words} than their sum" in text


def test_all_features_need_no_hint():
    text = rendered(ACCOUNT, 3)
    assert "cheap" in text
    assert "more features" not in text
