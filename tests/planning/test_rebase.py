"""After a rebase every surviving row of the epoch is delivered exactly once, and no deleted one again.

The oracle is the table itself: every row has an id of its own, and the test knows which file holds which.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from drawn_schedules import deliver, schedules
from hypothesis import given
from hypothesis import strategies as st
from rewritten import Rewritten, rows_dropped, state_at, steps

from feedline import Pipeline
from feedline.blocks.permutation import permutation
from feedline.errors import DataError, SpecError, StateError
from feedline.loader.plan_descriptions import describe_rebase
from feedline.planning.plan import Plan
from feedline.planning.rebase import find_delivered_rows
from feedline.planning.schedule import Schedule, Tail

SHUFFLES: dict[str, Any] = {
    "on": {"seed": 5, "window_rows": 150},
    "off": "off",
    "splits": {"seed": 5, "window_rows": 150, "rows": False},
    "by": {"seed": 5, "window_rows": 150, "by": "user"},
}
SEEDS = {0, 1, 6, 11, 20, 21}  # of each way to shuffle, each tail, 2 and 4 lanes, with and without a filter


@pytest.fixture
def place(tmp_path: Path) -> Rewritten:
    place = Rewritten(tmp_path)
    place.fill()
    return place


def run_to(pipeline: Pipeline, share: float, world: int = 1) -> tuple[Plan, int, list[int]]:
    """A new run up to a share of epoch 0's steps: its plan, the step, and the ids delivered."""
    plan = pipeline.plan()
    step = max(1, int(plan.schedule(0).steps * share))
    return plan, step, steps(pipeline, plan, 0, 0, step, world)


def check_rest(place: Rewritten, pipeline: Pipeline, plan: Plan, state: dict[str, Any], before: list[int]) -> list[int]:
    """Deliver the rest of the state's epoch; every row that survived comes once in all, up to what the tail drops."""
    epoch = state["epoch"]
    after = steps(pipeline, plan, epoch, state["step"])
    assert not [row for row, count in Counter(after).items() if count > 1], "twice after the rebase"
    assert not set(before) & set(after), "before and after"
    alive = {row for row in place.ids if pipeline.spec.source.where is None or row % 5 != 0}
    assert set(after) <= alive, "deleted rows"
    missing = alive - set(before) - set(after)
    assert len(missing) == (rows_dropped(plan.facts()) if pipeline.spec.batch.tail == "drop" else 0)
    return after


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=() if seed in SEEDS else pytest.mark.nightly) for seed in range(24)]
)
def test_surviving_rows_are_delivered_once(tmp_path: Path, seed: int):
    """Random tables, plans and rewrites; rebased twice, with other world sizes, and then the next epoch."""
    place = Rewritten(tmp_path, seed)
    place.fill(partitions=place.random.randint(2, 5))
    choose = place.random.choice
    shuffle, tail, lanes = choose(list(SHUFFLES)), choose(["drop", "pad", "partial"]), choose([1, 2, 4])
    source = {"where": "keep != 0"} if seed % 3 == 0 else {}
    batch = {"size": choose([3, 8]), "tail": tail} | ({"balance": "ids"} if shuffle == "on" and seed % 2 else {})
    pipeline = place.pipeline(shuffle=SHUFFLES[shuffle], batch=batch, lanes=lanes, source=source)
    world = choose([size for size in (1, 2, 4) if lanes % size == 0])
    plan, step, before = run_to(pipeline, place.random.random(), world)
    state = state_at(plan, 0, step)
    for again in range(2):
        place.rewrite()
        new = pipeline.rebase(state)
        if new.source.snapshot.id == plan.source.snapshot.id:
            assert new.state_after(state) == state
        plan, state = new, new.state_after(state)
        if state["epoch"] == 1:
            break
        facts = plan.facts()
        rest = check_rest(place, pipeline, plan, state, before)
        end = (facts.rest or facts).steps
        for size in (2, 4):
            if lanes % size == 0:
                assert Counter(steps(pipeline, plan, 0, state["step"], None, size)) == Counter(rest)
        if again == 0:  # go on for a while, and rebase what was rebased
            first, last = state["step"], min(state["step"] + 1 + place.random.randrange(4), end)
            since = steps(pipeline, plan, 0, first, last, world)
            assert Counter([*since, *steps(pipeline, plan, 0, last)]) == Counter(rest), "resumed within the rest"
            before = [*before, *since]
            state = state_at(plan, 0, last)
            if state["epoch"] == 1:
                break
    whole = steps(pipeline, plan, 1, 0)
    alive = {row for row in place.ids if "where" not in source or row % 5 != 0}
    assert len(whole) == len(set(whole)) == len(alive) - (plan.facts().rows_dropped if tail == "drop" else 0)
    assert set(whole) <= alive


def test_lengths_of_rewritten_files_are_recorded(place: Rewritten):
    """All files are rewritten, so that no length of the old ones can be read again."""
    pipeline = place.pipeline(batch={"size": 8, "balance": "ids"})
    plan, step, before = run_to(pipeline, 0.5)
    for name in list(place.files):
        place.delete(name)
    new = pipeline.rebase(state_at(plan, 0, step))
    check_rest(place, pipeline, new, new.state_after(state_at(plan, 0, step)), before)


def test_runs_with_buckets_are_not_rebased(place: Rewritten):
    pipeline = place.pipeline(batch={"max_tokens": 8, "buckets": [1, 2], "length": "ids"})
    plan = pipeline.plan()
    place.write("ds=9/0.parquet", place.new_ids(50))
    with pytest.raises(StateError, match=r"a run with batch\.buckets cannot be rebased"):
        pipeline.rebase(state_at(plan, 0, 1))


def test_unchanged_files_need_no_identities(place: Rewritten):
    pipeline = place.pipeline()
    plan, step, before = run_to(pipeline, 0.6)
    place.forget()
    for name in place.of(2):
        place.remove(name)
    place.write("ds=9/0.parquet", place.new_ids(50))
    new = pipeline.rebase(state_at(plan, 0, step))
    after = check_rest(place, pipeline, new, new.state_after(state_at(plan, 0, step)), before)
    assert set(place.files["ds=9/0.parquet"]) <= set(after), "new partitions join the epoch"


@pytest.mark.parametrize("changes", [{"shuffle": SHUFFLES["by"]}, {"batch": {"size": 8, "balance": "ids"}}])
def test_values_that_order_a_block_which_a_step_divides(place: Rewritten, changes: dict[str, Any]):
    """With `shuffle.by` and `batch.balance` the order of such a block follows from its values: of unchanged files they
    are read again."""
    pipeline = place.pipeline(**changes)
    plan, step, before = run_to(pipeline, 0.5)
    state = state_at(plan, 0, step)
    place.forget()
    place.write("ds=9/0.parquet", place.new_ids(50))
    new = pipeline.rebase(state)
    check_rest(place, pipeline, new, state, before)
    for path in place.table.rglob("*.parquet"):
        if not path.match("ds=9/*"):
            rows = pq.read_table(path)
            path.unlink()
            pq.write_table(rows, path.with_suffix(".again.parquet"))
    with pytest.raises(StateError, match="got no record of their identities"):
        pipeline.rebase(state)


@pytest.mark.parametrize("key", [{"key": "id"}, {}], ids=["by key", "by place"])
def test_samples(place: Rewritten, key: dict[str, str]):
    """By key the sample keeps the same rows of new files; by position it is drawn again."""
    sample = {"fraction": 0.5, **key, "seed": 3}
    features = {"extra": {"id": [], "sample_weight": []}}
    pipeline = place.pipeline(source={"sample": sample, "where": "keep != 0"}, features=features)
    plan, step, before = run_to(pipeline, 0.5)
    state = state_at(plan, 0, step)
    for name in ("ds=0/0.parquet", "ds=1/0.parquet", "ds=2/0.parquet"):
        place.delete(name)
    assert all(set(before) & set(rows) for rows in place.files.values())
    new = pipeline.rebase(state)
    after = steps(pipeline, new, 0, step)
    sampled = set(steps(pipeline, pipeline.plan(), 0, 0))
    assert 0 < len(sampled) < len(place.ids) * 0.7
    assert Counter(after) == Counter(sampled - set(before))


def test_columns_that_changed_their_type(place: Rewritten):
    pipeline = place.pipeline(features={"extra": ["id"]})
    plan, step, _ = run_to(pipeline, 0.5)
    path = place.table / "ds=0/0.parquet"
    rows = pq.read_table(path)
    pq.write_table(rows.set_column(0, "id", rows["id"].cast(pa.string())), path)
    for name in place.files:
        rows = pq.read_table(place.table / name)
        if rows.schema.field("id").type != pa.string():
            pq.write_table(rows.set_column(0, "id", rows["id"].cast(pa.string())), place.table / name)
    with pytest.raises(StateError, match="'id', which identifies rows, changed its type: got text, expected"):
        pipeline.rebase(state_at(plan, 0, step))


@pytest.mark.parametrize("shuffle", ["on", "by"])
def test_touched_files_are_matched_by_their_row_key(place: Rewritten, shuffle: str, caplog: pytest.LogCaptureFixture):
    """Nobody can tell them from files with other labels; without records they are refused until their times are set
    back."""
    pipeline = place.pipeline(shuffle=SHUFFLES[shuffle])
    plan, step, before = run_to(pipeline, 0.5)
    state = state_at(plan, 0, step)
    times = {path: path.stat().st_mtime_ns for path in place.table.rglob("*.parquet")}
    for path in times:
        os.utime(path, (1, 1))
    new = pipeline.rebase(state)
    assert new.source.snapshot.id != plan.source.snapshot.id
    assert new.facts().rest.changes.files["rewritten"] == len(place.files)
    check_rest(place, pipeline, new, state, before)
    place.forget()
    with pytest.raises(StateError, match="touched or copied alone are unchanged once their times are set back"):
        pipeline.rebase(state)
    assert f"{len(times)} files are taken as rewritten, as the time or tag is another" in caplog.text
    for path, mtime_ns in times.items():
        os.utime(path, ns=(0, mtime_ns))
    assert pipeline.rebase(state).source.snapshot.id == plan.source.snapshot.id


def test_rewritten_files_of_which_nothing_was_delivered_need_no_identities(place: Rewritten):
    pipeline = place.pipeline(shuffle="off", lanes=1)
    plan, step, before = run_to(pipeline, 0.3)
    place.forget()
    assert not set(before) & set(place.files["ds=3/0.parquet"])
    place.delete("ds=3/0.parquet")
    state = state_at(plan, 0, step)
    new = pipeline.rebase(state)
    check_rest(place, pipeline, new, new.state_after(state), before)


@pytest.mark.parametrize("keyed", [True, False])
def test_without_records_a_rebase_is_refused(place: Rewritten, keyed: bool):
    pipeline = place.pipeline(source={} if keyed else {"row_key": None})
    plan, step, _ = run_to(pipeline, 0.5)
    state = state_at(plan, 0, step)
    assert (place.folder / "work" / "rows").exists() == keyed
    if keyed:
        place.forget()
    place.delete("ds=1/0.parquet")
    rewritten = set(place.files["ds=1/0.parquet"])
    nulls = ", or nulls in source.row_key," if keyed else ""
    remedy = r"read from .*/work, which all hosts of a job and their workers must" if keyed else r"source\.row_key"
    expected = rf"no record of their identities{nulls} for {len(rewritten)} rows of ds=1/0\.parquet\. .*{remedy}"
    with pytest.raises(StateError, match=expected):
        pipeline.rebase(state)


def test_a_damaged_record_is_no_record(place: Rewritten):
    pipeline = place.pipeline()
    plan, step, _ = run_to(pipeline, 1.0)
    for path in (place.folder / "work" / "rows").rglob("*.arrow"):
        path.write_bytes(path.read_bytes()[:-7])
    place.delete("ds=1/0.parquet")
    with pytest.raises(StateError, match="got no record of their identities"):
        pipeline.rebase(state_at(plan, 0, step - 1))


def test_rows_that_are_equal_are_refused(tmp_path: Path):
    place = Rewritten(tmp_path)
    place.write("ds=0/0.parquet", [*range(40), *range(40)], row_group_rows=80)
    place.write("ds=1/0.parquet", range(40, 60))
    pipeline = place.pipeline(shuffle="off", lanes=1)
    plan = pipeline.plan()
    assert Counter(steps(pipeline, plan, 0, 0, 7)) == Counter([*range(40), *range(16)])
    place.write("ds=0/0.parquet", [*range(30), *range(39, -1, -1)])
    with pytest.raises(DataError, match="row_key is not unique: got 16 rows with the key of another"):
        pipeline.rebase(state_at(plan, 0, 7))


def test_what_changed_is_counted(tmp_path: Path):
    place = Rewritten(tmp_path)
    for day in range(4):
        place.write(f"ds={day}/0.parquet", place.new_ids(64), row_group_rows=64)
    pipeline = place.pipeline(shuffle="off", lanes=1)
    plan = pipeline.plan()
    place.write("ds=0/0.parquet", [row for row in range(64) if row % 4])
    place.remove("ds=1/0.parquet")
    place.write("ds=7/0.parquet", place.new_ids(10))
    with pytest.raises(Exception, match="changed after the snapshot was taken"):
        steps(pipeline, plan, 0, 0, 1)
    for day in range(2):
        place.write(f"ds={day}/0.parquet", range(day * 64, day * 64 + 64), row_group_rows=64)
    plan = pipeline.plan()
    assert len(steps(pipeline, plan, 0, 0, 20)) == 160
    place.write("ds=0/0.parquet", [row for row in range(64) if row % 4])
    place.remove("ds=1/0.parquet")
    rest = pipeline.rebase(state_at(plan, 0, 20)).facts().rest
    assert rest.changes.files == {"unchanged": 3, "rewritten": 1, "gone": 1, "new": 0}
    assert rest.changes.rows == {
        "delivered": 160,
        "delivered_gone": 16 + 64,
        "deleted": 16 + 64,
        "added": 0,
    }
    assert (rest.rows, rest.steps - rest.first_step, rest.rows_dropped) == (32 + 64 + 10, 14, 0)
    assert describe_rebase(rest).splitlines()[1:] == [
        "delivered: 160 rows of epoch 0 before step 20; 80 of them are gone since",
        "changed: 80 rows deleted, 0 added (net, per partition)",
        "left: 106 rows in 14 steps, 0 rows dropped",
    ]


def test_an_epoch_that_was_delivered_completely(place: Rewritten):
    """Nothing is left of the epoch: the next one follows."""
    pipeline = place.pipeline()
    plan = pipeline.plan()
    step = plan.schedule(0).steps - 1
    left = set(place.ids) - set(steps(pipeline, plan, 0, 0, step))
    for name, rows in list(place.files.items()):
        if left & set(rows):
            place.write(name, [row for row in rows if row not in left])
    new = pipeline.rebase(state_at(plan, 0, step))
    after = new.state_after(state_at(plan, 0, step))
    assert (after["epoch"], after["step"]) == (1, 0)
    assert not steps(pipeline, new, 0, step)
    assert sorted(steps(pipeline, new, 1, 0)) == place.ids


def test_a_state_between_epochs(place: Rewritten):
    pipeline = place.pipeline()
    plan = pipeline.plan()
    steps(pipeline, plan, 0, 0)
    place.delete("ds=1/0.parquet")
    state = {**state_at(plan, 0, 0), "step": plan.schedule(0).steps}
    new = pipeline.rebase(state)
    after = new.state_after(state)
    assert (after["epoch"], after["step"]) == (1, 0)
    assert sorted(steps(pipeline, new, 1, 0)) == place.ids


def test_an_unchanged_table(place: Rewritten):
    pipeline = place.pipeline()
    plan, step, _ = run_to(pipeline, 0.5)
    state = state_at(plan, 0, step)
    new = pipeline.rebase(state)
    assert new.state_after(state) == state
    assert new.fingerprint == plan.fingerprint


def test_a_state_of_another_plan_is_refused(place: Rewritten):
    plan, step, _ = run_to(place.pipeline(), 0.5)
    state = state_at(plan, 0, step)
    for changes, message in (
        ({"shuffle": {"seed": 6}}, "its seed is 5, pipeline.yaml's is 6"),
        ({"source": {"where": "keep != 0"}}, "the state belongs to another plan"),
    ):
        with pytest.raises(StateError, match=message):
            place.pipeline(**changes).rebase(state)
    with pytest.raises(StateError, match=r"rebase 0{32} is not in"):
        place.pipeline().plan_for({**state, "snapshot": f"{state['snapshot']}+{'0' * 32}"})


def test_a_rebased_state_is_of_its_own_plan(place: Rewritten):
    pipeline = place.pipeline()
    plan, step, _ = run_to(pipeline, 0.5)
    state = state_at(plan, 0, step)
    place.delete("ds=1/0.parquet")
    new = pipeline.rebase(state)
    after = new.state_after(state)
    assert list(after) == list(state)
    assert {type(value) for value in after.values()} == {int, str}
    assert after["plan"] != state["plan"]
    assert pipeline.plan_for(after).fingerprint == new.fingerprint
    assert steps(pipeline, pipeline.plan_for(after), 0, step) == steps(pipeline, new, 0, step)
    assert pipeline.rebase(state).fingerprint == new.fingerprint, "every rank makes the same"
    with pytest.raises(StateError, match="belongs to another plan"):
        pipeline.plan_for({**after, "snapshot": new.source.snapshot.id})


def test_partition_keys_that_changed_are_refused(place: Rewritten):
    pipeline = place.pipeline()
    plan, step, _ = run_to(pipeline, 0.5)
    for name in list(place.files):
        rows = place.files[name]
        place.remove(name)
        place.write(f"year=2026/{name}", rows)
    with pytest.raises(StateError, match="partition keys changed"):
        pipeline.rebase(state_at(plan, 0, step))


def test_a_row_key_has_to_be_in_the_files(place: Rewritten):
    with pytest.raises(SpecError, match=r"row_key.*consists of partition keys: got ds"):
        place.pipeline(source={"row_key": ["ds"]}).plan()
    plan = place.pipeline(source={"row_key": ["ds", "id"]}).plan()
    assert plan.source.job.record is not None
    assert plan.source.job.record.identity.key == ("id",)


@pytest.mark.parametrize(("key", "got"), [("nothing", "no column of that name"), ("user_facts", "struct")])
def test_a_row_key_has_to_be_a_column(tmp_path: Path, key: str, got: str):
    place = Rewritten(tmp_path)
    place.write("a.parquet", range(100))
    table = pq.read_table(place.table / "a.parquet")
    facts = pa.array([{"a": row} for row in range(100)])
    pq.write_table(table.append_column("user_facts", facts), place.table / "a.parquet")
    with pytest.raises(SpecError, match=rf"row_key.*'{key}' cannot identify rows: got {got}"):
        place.pipeline(source={"row_key": [key]}).plan()


def test_a_record_is_written_once(place: Rewritten):
    """And a row key need not be among the features."""
    pipeline = place.pipeline(
        source={"row_key": ["id"]}, features={"dense": {"x": [{"fill_null": 0}]}, "extra": ["keep"]}, lanes=1
    )
    plan = pipeline.plan()
    first = list(pipeline.batches(plan=plan))
    assert [column.name for column in first[0].schema] == ["x", "keep"]
    written = {path: path.stat().st_mtime_ns for path in (place.folder / "work" / "rows").rglob("*.arrow")}
    assert len(written) == len(plan.source.splits)
    list(pipeline.batches(plan=plan))
    list(pipeline.batches(1, plan=plan))
    assert {path: path.stat().st_mtime_ns for path in (place.folder / "work" / "rows").rglob("*.arrow")} == written


def test_a_work_dir_that_cannot_be_written_stops_nothing(place: Rewritten, caplog: pytest.LogCaptureFixture):
    pipeline = place.pipeline()
    plan = pipeline.plan()
    (place.folder / "work" / "rows").write_text("not a folder")
    assert sorted(steps(pipeline, plan, 0, 0)) == place.ids
    [said] = [record.message for record in caplog.records]
    assert "identities of rows are not recorded" in said


# --------------------------------------------------------------------------------------------------------------------
# Delivered rows agree with the schedule's own cuts; schedules may begin in mid-epoch.


def order_of(schedule):
    """As a plan permutes the blocks of `test_schedule.deliver`."""

    def order(block):
        key = ("rows", schedule.seed, schedule.epoch, block.lane, block.index)
        return permutation(block.rows, *key) if schedule.shuffle else None

    return order


def places(found):
    return {(split, row) for split, mask in found.items() for row in np.flatnonzero(mask).tolist()}


@examples(60)
@given(schedules(), st.integers(0, 60), st.sampled_from([0, 3]))
def test_delivered_rows_are_those_of_the_steps(schedule, step, first):
    later = replace(schedule, first_step=first)
    step = min(first + step, later.steps)
    steps = deliver(schedule, range(schedule.lanes))[: step - first]
    held = [(split, row) for rows in steps for split, row, ok in rows if ok]
    found = find_delivered_rows(later, step, order_of(schedule))
    assert places(found) == set(held)
    assert len(held) == len(set(held))


@examples(60)
@given(schedules(), st.integers(1, 9))
def test_a_schedule_that_begins_in_mid_epoch(schedule, first):
    """The same cuts of the same blocks, numbered on; only the permutations have another key."""
    later = replace(schedule, first_step=first)
    lanes = range(schedule.lanes)
    assert later.steps == schedule.steps + first
    assert later.rows_dropped == schedule.rows_dropped
    for lane in lanes:
        for step in range(schedule.steps):
            assert later.cuts(lane, step + first) == schedule.cuts(lane, step)
        for start in range(3):
            moved = [
                replace(block, first_step=block.first_step + first, last_step=block.last_step + first)
                for block in schedule.blocks(lane, first_step=start)
            ]
            assert list(later.blocks(lane, first_step=first + start)) == moved


@pytest.mark.parametrize("tail", ["drop", "pad", "partial"])
@pytest.mark.parametrize("rows", [[0, 0], [0, 3]])
def test_an_epoch_with_few_rows_left_or_none(rows: list[int], tail: Tail):
    schedule = Schedule(
        split_rows=np.array(rows),
        lanes=4,
        batch_size=2,
        tail=tail,
        block_rows=8,
        shuffle=True,
        seed=1,
        epoch=0,
        first_step=5,
        salt=("x",),
    )
    more = sum(rows) > 0 and tail != "drop"
    assert schedule.steps == 5 + more
    assert bool(list(schedule.blocks_of(range(4)))) == more
    assert schedule.rows_dropped == (sum(rows) if tail == "drop" else 0)
