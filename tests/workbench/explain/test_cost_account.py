"""The account divides what was measured among features, and says what it leaves."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from costly_tables import costly_pipeline, costly_plan

from feedline.config import load_spec
from feedline.errors import PlanError
from feedline.workbench.explain.cost_account import (
    ColumnCost,
    CostAccount,
    DecodeCosts,
    StoredAs,
    divide_costs,
    measure_costs,
)
from feedline.workbench.explain.cost_process import measure_apart
from feedline.workbench.explain.cpu_time import CpuEstimate
from feedline.workbench.explain.pass_costs import PassCost, PassCosts


def cpu(seconds: float) -> CpuEstimate:
    return CpuEstimate(seconds, seconds, seconds)


def decoding(**columns: float) -> DecodeCosts:
    found = [
        ColumnCost(name=name, cpu_s=cpu(seconds), nbytes=100, stored=StoredAs()) for name, seconds in columns.items()
    ]
    return DecodeCosts(columns=tuple(found), shared=cpu(0.5), whole=cpu(sum(columns.values()) + 0.75))


def passes(**features: tuple[float, float]) -> PassCosts:
    found = [
        PassCost(name=name, ops_s=cpu(ops), encode_s=cpu(encode), alone_s=ops)
        for name, (ops, encode) in features.items()
    ]
    return PassCosts(features=tuple(found), shared=cpu(0.25), whole=cpu(5), ops_s=4.0, order=cpu(0.125))


def test_columns_are_paid_by_all_features_that_read_them(tmp_path: Path):
    plan = costly_plan(tmp_path)
    cost = decoding(price=2.0, item=4.0, hist=8.0, clicked=1.0)
    names = [feature.name for feature in plan.source.job.features]
    features = divide_costs(plan.source, cost, passes(**dict.fromkeys(names, (1.0, 0.5))), {"hist": 3.0, "price": 1.0})
    by_name = {feature.name: feature for feature in features}
    assert by_name["price"].decode_s.cpu_s == 1.0
    assert by_name["both"].decode_s.cpu_s == 1.0 + 2.0
    assert by_name["both"].columns == ("item", "price")
    assert by_name["item"].nbytes == 50
    assert by_name["hist"].cpu_s.cpu_s == 9.5
    assert by_name["hist"].problems == 0.75
    assert by_name["item"].problems == 0.0
    assert sum(feature.decode_s.cpu_s for feature in features) == 15


def test_the_difference_is_a_part_of_the_account(tmp_path: Path):
    plan = costly_plan(tmp_path)
    names = [feature.name for feature in plan.source.job.features]
    cost, passed = decoding(price=2.0, item=4.0, hist=8.0, clicked=1.0), passes(**dict.fromkeys(names, (1.0, 0.5)))
    account = CostAccount(
        rows=1_000,
        blocks=1,
        epoch_rows=2_000_000,
        features=divide_costs(plan.source, cost, passed),
        decoding=cost,
        passes=passed,
        block_s=cpu(30.0),
        stages={"decoding": 15.0, "ops": 10.0, "encoding": 5.0},
        measuring_s=1.0,
    )
    assert account.shared_s == 0.5 + 0.25 + 0.125
    assert account.accounted_s == 15 + 5 * 1.5 + account.shared_s
    assert account.difference_s == 30 - account.accounted_s
    facts = json.loads(json.dumps(account.facts()))
    [hist] = [feature for feature in facts["features"] if feature["name"] == "hist"]
    assert hist["epoch_cpu_s"] == 19
    assert hist["share"] == pytest.approx(9.5 / 30)
    assert hist["problems"] == 0.0
    assert cost.difference_s == 0.25
    assert passed.difference_s == 5 - 0.25 - 7.5


def test_measured_accounts_name_the_heavy_feature_and_nearly_add_up(tmp_path: Path):
    plan = costly_plan(tmp_path, rows=32_768, row_group_rows=16_384, list_mean=60)
    account = measure_costs(plan.source, rounds=3)
    shares = {feature.name: account.share(feature) for feature in account.features}
    assert max(shares, key=shares.__getitem__) == "hist"
    assert shares["hist"] > 0.5
    assert abs(account.difference_s) < 0.4 * account.block_s.cpu_s
    assert sum(account.stages.values()) == pytest.approx(account.block_s.cpu_s)
    assert account.stages["decoding"] > 0.5 * account.decoding.whole.cpu_s
    assert account.measuring_s > 0


def test_problems_of_quality_are_those_of_the_sample(tmp_path: Path):
    def gaps(rng: np.random.Generator, rows: int) -> pa.Array:
        return pa.array([None if row % 4 == 0 else 1.0 for row in range(rows)], pa.float32())

    dense = {
        "gaps": [{"fill_null": 0}],
        "price": [{"fill_null": 0}],
        "twice": {"column": "gaps", "ops": ["log1p", {"fill_null": 0}]},
    }
    features = {"dense": dense, "label": {"clicked": []}}
    account = measure_costs(
        costly_plan(tmp_path, rows=1_024, features=features, columns={"gaps": gaps}).source, rounds=1
    )
    problems = {feature.name: feature.problems for feature in account.features}
    assert problems == {"gaps": 0.5, "price": 0.0, "twice": 0.5, "clicked": 0.0}


def test_features_without_fits_are_refused(tmp_path: Path):
    plan = costly_plan(tmp_path, features={"categorical": {"item": [{"vocabulary": {}}]}, "label": {"clicked": []}})
    with pytest.raises(PlanError, match="feedline fit"):
        measure_costs(plan.source)


def strings(rng: np.random.Generator, rows: int) -> pa.Array:
    return pa.array([f"value-{number:x}" for number in rng.integers(0, 100_000, rows)])


SHAPES: dict[str, dict[str, Any]] = {
    "a column": {"rows": 262_144, "features": {"dense": {"price": [{"fill_null": 0}]}, "label": {"clicked": []}}},
    "wide": {
        "rows": 16_384,
        "features": {
            "dense": {f"x{number}": {"column": f"x{number}", "ops": [{"fill_null": 0}]} for number in range(100)},
            "label": {"clicked": []},
        },
        "columns": {f"x{number}": lambda rng, rows: rng.random(rows).astype(np.float32) for number in range(100)},
    },
    "strings": {
        "rows": 65_536,
        "features": {"categorical": {"word": [{"hash_bucket": 1000}]}, "label": {"clicked": []}},
        "columns": {"word": strings},
    },
    "lists": {"rows": 32_768, "list_mean": 40},
}


@pytest.mark.nightly
@pytest.mark.parametrize("shape", SHAPES)
def test_sums_are_near_whole_blocks_whatever_the_table(shape: str, tmp_path: Path):
    given: dict[str, Any] = {"list_mean": 2, **SHAPES[shape]}
    path = costly_pipeline(tmp_path, row_group_rows=given["rows"], **given)
    accounts = [measure_apart(load_spec(path, {})).account for _ in range(3)]  # one alone scatters by a third
    shares = [account["difference_s"] / account["block_s"]["cpu_s"] for account in accounts]
    assert abs(statistics.median(shares)) < 0.35, shares
