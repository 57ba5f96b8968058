"""Facts that cross processes survive JSON, and a malformed message is an error with class and key."""

from __future__ import annotations

import json
from typing import Any

import pytest
from answers import FEEDER, plan_facts

from feedline.errors import FeederError
from feedline.loader.encoding.layout import BatchSchema, SlotColumn
from feedline.loader.facts import (
    BadFileFacts,
    BlockStats,
    FeederFacts,
    FeederStats,
    Hello,
    PlanFacts,
    RebaseRequest,
    RestFacts,
    describe_bad_files,
)

SCHEMA = BatchSchema((SlotColumn(name="x", group="dense", dtype="float32", arrow="float", offset=0),))
REST = RestFacts(epoch=2, first_step=5, steps=8, rows=30, rows_dropped=1, changes={"files": {"new": 1}})
BAD = BadFileFacts(path="/t/a", reason="not Parquet", rows=None)
VALUES = [
    Hello(rank=1, world_size=2),
    Hello(
        rank=0,
        world_size=1,
        snapshot="s",
        lanes=2,
        plan="p",
        features="f",
        seed=3,
        batch_size=4,
        rebase=RebaseRequest(state={"epoch": 1}),
    ),
    plan_facts(schema=SCHEMA, bad_files=(BAD,), nulls=("x holds nulls",), absent=("y is missing",), rest=REST),
    FEEDER,
    FeederStats(batches=3, wait_blocks_s=1.5, delivery=BlockStats(blocks=2, nbytes_read=7)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_survive_json(value: Any):
    assert type(value).from_json({**json.loads(json.dumps(value.to_json())), "type": "a message"}) == value


def test_json_keys_are_stable():
    """`dataset.facts` and `feedline run --json` have them."""
    assert list(plan_facts().to_json()) == [
        *("snapshot", "plan", "features", "environment", "seed", "lanes", "batch_size", "steps", "rows"),
        *("rows_dropped", "bad_files", "nulls", "absent", "schema", "rest"),
    ]
    assert list(FEEDER.to_json()) == ["imports_s", "log", "dashboard", "feeder"]
    assert plan_facts().to_json()["schema"] == "[]"


@pytest.mark.parametrize(
    ("kind", "value", "changes", "message"),
    [
        (Hello, VALUES[0], {"rank": "0"}, r"got '0' as Hello\.rank, expected an integer"),
        (Hello, VALUES[0], {"lanes": True}, r"got True as Hello\.lanes, expected an integer or null"),
        (Hello, VALUES[1], {"rebase": {}}, r"got 'nothing' as RebaseRequest\.state, expected a value"),
        (PlanFacts, VALUES[2], {"schema": "[1]"}, r"got '\[1\]' as PlanFacts\.schema, expected a schema's JSON"),
        (PlanFacts, VALUES[2], {"bad_files": 5}, r"got 5 as PlanFacts\.bad_files, expected a list"),
        (PlanFacts, VALUES[2], {"bad_files": [5]}, r"got 5, expected the JSON of BadFileFacts"),
        (PlanFacts, VALUES[2], {"rest": {}}, r"got 'nothing' as RestFacts\.epoch, expected a value"),
        (FeederFacts, FEEDER, {"imports_s": None}, r"got None as FeederFacts\.imports_s, expected a number"),
        (FeederStats, VALUES[4], {"delivery": {"blocks": 1.5}}, r"got 1\.5 as BlockStats\.blocks, expected an integer"),
    ],
)
def test_a_malformed_message_is_refused_by_name(kind: Any, value: Any, changes: dict[str, Any], message: str):
    with pytest.raises(FeederError, match=f"a message is malformed: {message}"):
        kind.from_json({**value.to_json(), **changes})


def test_a_rebased_epoch_has_its_own_steps():
    facts = plan_facts(rest=REST)
    assert [(facts.first_step_of(epoch), facts.steps_of(epoch)) for epoch in (1, 2, 3)] == [(0, 10), (5, 8), (0, 10)]


def test_a_long_list_of_bad_files_is_shortened():
    bad = [BAD, *(BadFileFacts(path=f"/t/{number}", reason="cut", rows=10) for number in range(20))]
    lines = describe_bad_files(bad).splitlines()
    assert lines[0] == "21 bad files left out of the plan, 200 rows, besides those of 1 whose footer cannot be read:"
    assert (lines[1], len(lines), lines[-1]) == ("  /t/a: not Parquet", 22, "  and 1 more")
