"""The facts of a plan: their keys as users see them, and the steps of a rebased epoch."""

from __future__ import annotations

from answers import FEEDER, plan_facts

from feedline.loader.plan_descriptions import describe_bad_files
from feedline.loader.wire.codec import to_values
from feedline.loader.wire.facts import BadFileFacts, BucketFacts, RebaseChanges, RestFacts

CHANGES = RebaseChanges(from_="a", to="b", epoch=2, step=5, rewritten="error", files={"new": 1}, rows={})
REST = RestFacts(epoch=2, first_step=5, steps=8, rows=30, rows_dropped=1, changes=CHANGES)
BAD = BadFileFacts(path="/t/a", reason="not Parquet", rows=None)


def test_json_keys_are_stable():
    """`dataset.facts` and `feedline run --json` have them."""
    assert list(to_values(plan_facts())) == [
        *("snapshot", "plan", "features", "environment", "seed", "lanes", "batch_size"),
        *("window_rows", "window_blocks", "steps", "rows", "rows_dropped"),
        *("bad_files", "nulls", "absent", "schema", "rest", "sources", "column_group"),
        *("epoch", "buckets"),
    ]
    assert list(to_values(FEEDER)) == ["imports_s", "log", "dashboard", "live_page", "feeder"]
    values = to_values(plan_facts(bad_files=(BAD,), nulls=("x",), rest=REST))
    assert (values["schema"], values["nulls"]) == ("[]", ["x"])
    assert values["bad_files"] == [{"path": "/t/a", "reason": "not Parquet", "rows": None}]
    assert values["rest"]["changes"] == {
        "from": "a",
        "to": "b",
        "epoch": 2,
        "step": 5,
        "rewritten": "error",
        "files": {"new": 1},
        "rows": {},
    }


def test_the_bound_of_a_bucket_follows_from_the_rows_of_a_batch():
    buckets = (BucketFacts(bound=32, batch_size=64, steps=3), BucketFacts(bound=128, batch_size=16, steps=9))
    facts = plan_facts(lanes=8, buckets=buckets)
    assert (facts.bounds(8), facts.bounds(2)) == ({64: 32, 16: 128}, {256: 32, 64: 128})
    assert plan_facts().bounds(1) == {}


def test_a_rebased_epoch_has_its_own_steps():
    facts = plan_facts(rest=REST)
    assert [(facts.first_step_of(epoch), facts.steps_of(epoch)) for epoch in (1, 2, 3)] == [(0, 10), (5, 8), (0, 10)]


def test_a_long_list_of_bad_files_is_shortened():
    bad = [BAD, *(BadFileFacts(path=f"/t/{number}", reason="cut", rows=10) for number in range(20))]
    lines = describe_bad_files(bad).splitlines()
    assert lines[0] == "21 bad files left out of the plan, 200 rows, besides those of 1 whose footer cannot be read:"
    assert (lines[1], len(lines), lines[-1]) == ("  /t/a: not Parquet", 22, "  and 1 more")
