"""Advice follows from measured changes by the bound of the run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from feedline.loader.encoding.block_times import BlockTimes
from feedline.loader.limits.run_facts import Capacity, Interval, RunFacts
from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.explained_costs import advice_on_data, stage_parts
from feedline.workbench.explain.measured_costs import DataChange

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
    assert advice.rows_interval is not None
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
