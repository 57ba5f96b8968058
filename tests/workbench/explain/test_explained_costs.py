"""Explanations with costs name columns, and advise on data; without, they say why."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from explained_runs import rank_samples

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.run_facts import Capacity, Interval, RunFacts
from feedline.workbench.explain.cost_process import DataChange, MeasuredCosts
from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.explained_costs import (
    Explanation,
    HeadspaceFacts,
    RankSamples,
    advice_on_data,
    explained_with_costs,
    explanation_facts,
    stage_parts,
)

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


# 2 CPU-s per million rows on two cores: a million rows per second.
FACTS = RunFacts(
    wall_s=10.0,
    rows=10_000_000,
    batches=10_000,
    blocks=100,
    block_rows=10_000_000,
    nbytes_read=1_000_000_000,
    times=BlockTimes(
        read_s=12.0, read_cpu_s=12.0, transform_s=6.0, transform_cpu_s=6.0, encode_s=2.0, encode_cpu_s=2.0
    ),
)
TWO = Capacity(cores=2, threads=2)


def change(**given: Any) -> DataChange:
    usual: dict[str, Any] = {
        "kind": "drop",
        "subject": "hist",
        "how": "remove hist",
        "gain_s": CpuEstimate(1.0, 0.8, 1.2),
        "before_s": 2.0,
        "stages": {"decoding": 0.8, "ops": 0.2, "encoding": 0.0},
    }
    return DataChange(**(usual | given))


def test_half_the_cpu_time_is_twice_the_rows():
    [advice] = advice_on_data([change()], FACTS, TWO)
    assert advice.kind == "feature"
    assert advice.rows_ratio == pytest.approx(2.0)
    assert advice.rows_interval.low == pytest.approx(2 / 1.2)
    assert advice.rows_interval.high == pytest.approx(2 / 0.8)
    assert advice.cpu_s_saved == pytest.approx(1.0)
    assert "50%" in advice.reason


def test_gains_are_parts_of_what_each_stage_of_the_run_takes():
    [advice] = advice_on_data([change(before={"decoding": 2.4, "ops": 0.3, "encoding": 0.2})], FACTS, TWO)
    # Decoding of the run takes 1.2 of which a third is gained, ops 0.6 of which two thirds are.
    assert advice.cpu_s_saved == pytest.approx(0.4 + 0.4)
    assert advice.cpu_interval == Interval(low=pytest.approx(0.64), high=pytest.approx(0.96))
    assert advice.rows_ratio == pytest.approx(2 / 1.2)


def test_no_stage_gains_more_than_the_run_takes_in_it():
    [advice] = advice_on_data([change(stages={"ops": 1.0}, before={"ops": 0.9})], FACTS, TWO)
    assert advice.cpu_s_saved == pytest.approx(0.6)


def test_a_stage_that_was_not_measured_gains_what_the_sample_gained():
    [advice] = advice_on_data([change(before={"decoding": 0.0, "ops": 0.4})], FACTS, TWO)
    assert advice.cpu_s_saved == pytest.approx(0.8 + 0.3)


def test_a_slow_store_gains_by_bytes():
    slow = Capacity(cores=2, threads=2, store_bytes_per_s=100e6)
    [by_cpu] = advice_on_data([change()], FACTS, slow)
    assert by_cpu.rows_ratio == pytest.approx(1.0)
    [by_bytes] = advice_on_data([change(saved_bytes=50e6)], FACTS, slow)
    assert by_bytes.rows_ratio == pytest.approx(2.0)
    [cached] = advice_on_data([change(kind="cache")], FACTS, slow)
    assert cached.rows_ratio == pytest.approx(2.0)
    assert cached.kind == "cache"


def test_a_slow_trainer_gains_nothing():
    [advice] = advice_on_data([change()], replace(FACTS, trainer_wait_s=0.0), TWO)
    assert advice.rows_ratio == pytest.approx(1.0)


@pytest.mark.parametrize("kind", ["drop", "truncate", "optimize", "row_groups", "cache", "dedup", "op"])
def test_every_kind_has_its_reason(kind: Any):
    [advice] = advice_on_data([change(kind=kind, subject="this")], FACTS, TWO)
    assert "this" in advice.reason or kind == "cache"


def test_stages_name_what_takes_most():
    costs = {
        "columns": [{"name": name, "cpu_s": {"cpu_s": cpu_s}} for name, cpu_s in (("a", 5), ("b", 3), ("c", 2))],
        "features": [
            {
                "name": "x",
                "ops_s": {"cpu_s": 9},
                "encode_s": {"cpu_s": 0},
                "steps": [{"op": "first_x", "cpu_s": 1, "sharers": 1}, {"op": "ngram", "cpu_s": 8, "sharers": 1}],
            },
            {"name": "y", "ops_s": {"cpu_s": 1}, "encode_s": {"cpu_s": 0}, "steps": []},
        ],
    }
    assert stage_parts(costs) == {"decoding": ("`a` and `b`", 0.8), "ops": ("ngram of `x`", 0.9)}


def test_many_alike_are_not_named():
    columns = [{"name": f"c{number}", "cpu_s": {"cpu_s": 1.0}} for number in range(6)]
    assert stage_parts({"columns": columns, "features": []}) == {}


def test_small_row_groups_are_named_where_they_take_most_of_decoding():
    costs = {"columns": [{"name": "a", "cpu_s": {"cpu_s": 2.0}}], "features": [], "decode_s": {"cpu_s": 2.0}}
    small = {"kind": "row_groups", "subject": "row groups of 256 rows"}
    assert stage_parts(costs, [change(**small, stages={"decoding": 1.6})]) == {
        "decoding": ("row groups of 256 rows", 0.8)
    }
    assert stage_parts(costs, [change(**small, stages={"decoding": 0.6})]) == {"decoding": ("`a`", 1.0)}
    assert stage_parts(costs, [change(kind="optimize", stages={"decoding": 1.6})]) == {"decoding": ("`a`", 1.0)}


def test_facts_are_those_of_the_slowest_rank_samples() -> None:
    explanation = Explanation(
        name="n",
        source="running",
        ranks=(rank_samples(0, 0.1), rank_samples(1, 0.5)),
        seconds=4.0,
        headspace=HeadspaceFacts(rows_per_s=2000.0, gain=2.0),
    )
    assert explanation.slowest.rank == 1
    facts = explanation_facts(explanation, explanation.slowest.verdict())
    again = json.loads(json.dumps(facts, allow_nan=False))
    assert again == facts
    assert (facts["rank"], facts["trainer_wait"], facts["limit"], facts["headspace"]["gain"]) == (1, 0.5, "cores", 2.0)
    assert [each["rank"] for each in facts["ranks"]] == [0, 1]
    assert facts["stages"][0] == {
        "name": "planning",
        "seconds": 0.0,
        "cpu_s": None,
        "rows_per_s": None,
        "interval": None,
    }
    assert {each["resource"] for each in facts["bounds"]} == {"trainer", "threads", "cores"}
    assert facts["advice"][0]["kind"] == "workers"
    assert len(facts["samples"]) == 4
