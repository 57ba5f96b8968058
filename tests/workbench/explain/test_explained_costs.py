"""Explanations with costs name columns, and advise on data; without, they say why."""

from __future__ import annotations

from dataclasses import replace

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.run_facts import Capacity, RunFacts
from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.explained_costs import Explanation, RankSamples, explained_with_costs
from feedline.workbench.explain.measured_costs import DataChange, MeasuredCosts

SAMPLE = RunFacts(
    wall_s=1.0,
    rows=1_000_000,
    batches=1_000,
    trainer_wait_s=0.5,
    blocks=10,
    block_rows=1_000_000,
    times=BlockTimes(read_s=1.5, read_cpu_s=1.5, transform_s=0.5, transform_cpu_s=0.5),
)
EXPLANATION = Explanation(
    name="clicks",
    source="short run",
    ranks=(RankSamples(rank=0, samples=(SAMPLE,) * 4, capacity=Capacity(cores=2, threads=2)),),
    seconds=4.0,
)
COSTS = MeasuredCosts(
    account={
        "columns": [{"name": "hist_0", "cpu_s": {"cpu_s": 1.2}}, {"name": "x", "cpu_s": {"cpu_s": 0.1}}],
        "features": [],
        "lock_share": 0.25,
    },
    changes=(
        DataChange(
            kind="drop",
            subject="hist_0",
            how="remove hist_0 from `features`",
            gain_s=CpuEstimate(1.2, 1.1, 1.3),
            before_s=2.0,
            stages={"decoding": 1.2},
        ),
    ),
)


def test_verdict_names_columns_and_advice_includes_data():
    facts = explained_with_costs(EXPLANATION, COSTS)
    assert "decoding `hist_0` takes" in facts["verdict"]
    [own] = [each for each in facts["advice"] if each["kind"] == "feature"]
    assert own["rows_ratio"] > 1.5
    assert facts["costs"]["account"] == COSTS.account
    assert facts["costs_skipped"] == ""
    assert facts["capacity"]["lock_share"] == 0.25
    assert "lock" in {each["resource"] for each in facts["bounds"]}


def test_columns_of_one_of_several_sources_are_not_the_verdict():
    facts = explained_with_costs(EXPLANATION, replace(COSTS, source="views", step_share=0.2))
    assert facts["verdict"].startswith("Trainer waits 50%: decoding takes 75% of CPU")
    assert facts["costs"]["step_share"] == 0.2


def test_explanations_without_costs_say_why():
    facts = explained_with_costs(EXPLANATION, None, "fits are missing")
    assert facts["costs"] is None
    assert facts["costs_skipped"] == "fits are missing"
    assert not [each for each in facts["advice"] if each["kind"] == "feature"]


def test_measured_advice_replaces_what_a_rule_says():
    capacity = Capacity(cores=2, threads=2, epochs=4)
    explanation = replace(EXPLANATION, ranks=(replace(EXPLANATION.ranks[0], capacity=capacity),))
    by_rule = explained_with_costs(explanation, None)["advice"]
    assert "cache" in {each["kind"] for each in by_rule}
    costs = replace(COSTS, changes=(replace(COSTS.changes[0], kind="cache", how="cache: {dir: FOLDER}"),))
    found = [each for each in explained_with_costs(explanation, costs)["advice"] if each["kind"] == "cache"]
    assert len(found) == 1
    assert found[0]["cpu_interval"] is not None
