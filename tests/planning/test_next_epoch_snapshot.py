"""What the next epoch of a followed table reads is decided once, at its border."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from growing_table import ROW_GROUP, GrowingTable, ids_of

from feedline import Pipeline
from feedline.errors import (
    CorruptFileError,
    FeedlineError,
    PlanError,
    SpecError,
    StateError,
    TableChangedError,
    TableError,
    TableNotFoundError,
)
from feedline.loader.state import state_of
from feedline.loader.wire.facts import Hello
from feedline.planning.agreement import RunStart
from feedline.planning.next_epoch_snapshot import FollowRequest, NothingLandedError, border_of_epoch, first_border
from feedline.planning.plan import Plan
from feedline.planning.resolve import current_snapshot, resolve_hello
from feedline.planning.table_snapshot import landing_of
from feedline.warehouse.selection import select
from feedline.warehouse.storage import content_store


@pytest.fixture
def table(tmp_path: Path) -> GrowingTable:
    table = GrowingTable(tmp_path)
    for day in (1, 2):
        table.land(day)
    return table


def delivered(pipeline: Pipeline, plan: Plan) -> list[int]:
    assert plan.source.border is not None
    return ids_of(pipeline.batches(plan.source.border.epoch, plan=plan))


def following(table: GrowingTable, name: str = "p", **changes) -> tuple[Pipeline, Plan]:
    pipeline = Pipeline.from_yaml(table.pipeline(name, **changes))
    return pipeline, pipeline.complete_plan()


def after(pipeline: Pipeline, plan: Plan) -> Plan:
    found = pipeline.next_plan(plan)
    assert found is not None
    return found


# -- all that has landed ----------------------------------------------------------------------------------------------


def test_each_epoch_reads_what_had_landed_at_its_border(table: GrowingTable):
    table.write(3)
    pipeline, plan = following(table)
    assert delivered(pipeline, plan) == table.kept(1, 2), "a partition without its marker is left out whole"
    table.mark(3)
    table.land(1)  # a late file
    second = after(pipeline, plan)
    assert delivered(pipeline, second) == table.kept(1, 2, 3)
    shutil.rmtree(table.day(1))
    assert delivered(pipeline, after(pipeline, second)) == table.kept(2, 3), "what has gone leaves"


def test_a_border_is_decided_once(table: GrowingTable):
    pipeline, plan = following(table)
    second = after(pipeline, plan)
    table.land(3)
    again = after(Pipeline.from_yaml(table.folder / "p.yaml"), plan)
    assert (again.snapshot_name, again.fingerprint) == (second.snapshot_name, second.fingerprint)
    assert delivered(pipeline, again) == table.kept(1, 2)
    assert delivered(pipeline, after(pipeline, again)) == table.kept(1, 2, 3)


def test_a_state_names_its_epochs_snapshot(table: GrowingTable):
    pipeline, plan = following(table)
    table.land(3)
    second = after(pipeline, plan)
    state = state_of(second.facts(), 1, 2)
    assert state["snapshot"] == second.snapshot_name
    table.land(4)
    resumed = Pipeline.from_yaml(table.folder / "p.yaml").plan_for(state)
    assert (resumed.snapshot_name, resumed.fingerprint) == (second.snapshot_name, second.fingerprint)
    end = state_of(plan.facts(), 0, plan.facts().steps)
    assert (end["epoch"], end["step"]) == (0, plan.facts().steps), "the next border belongs to the next epoch"


def test_two_runs_decide_for_themselves(table: GrowingTable):
    pipeline, plan = following(table)
    after(pipeline, plan)
    other = pipeline.complete_plan()
    table.land(3)
    assert other.fingerprint == plan.fingerprint, "of the same rows"
    assert delivered(pipeline, after(pipeline, other)) == table.kept(1, 2, 3)


def test_row_groups_of_unchanged_files_are_not_counted_again(table: GrowingTable, monkeypatch: pytest.MonkeyPatch):
    counted: list[str] = []
    count = select.count_task

    def count_and_note(task: select.CountTask) -> object:
        counted.extend(fragment.path.rpartition("/")[2] for fragment in task.fragments)
        return count(task)

    monkeypatch.setattr(select, "count_task", count_and_note)
    for name, source in (("p", {}), ("s", {"on_bad_file": "skip"})):
        pipeline, plan = following(table, name, source=source)
        counted.clear()
        landed = table.land(3)
        after(pipeline, plan)
        assert set(counted) == {landed.name}, name


@pytest.mark.parametrize(("few", "many"), [(0, 1), (1, 0)], ids=["more rows", "fewer rows"])
def test_a_file_written_again_with_its_size_and_footer_is_counted_again(
    table: GrowingTable, caplog: pytest.LogCaptureFixture, few: int, many: int
):
    path = table.write(3)
    table.mark(3)
    ids = pq.read_table(path, partitioning=None)["id"]

    def write(inner: int) -> bytes:
        """The extremes of x are 0 and 4 in each row group; between them x is the same everywhere."""
        x = [0, 4, *([inner] * (ROW_GROUP - 2))] * len(ids)
        rows = pa.table({"id": ids, "x": pa.array(x[: len(ids)], pa.int32())})
        pq.write_table(rows, path, row_group_size=ROW_GROUP, use_dictionary=False, compression="none")
        return path.read_bytes()

    old = write(few)
    pipeline, plan = following(table)
    assert delivered(pipeline, plan) == table.kept(1, 2, 3)
    new = write(many)
    assert len(new) == len(old)
    assert new[-600:] == old[-600:], "the footer"
    second = after(pipeline, plan)
    assert delivered(pipeline, second) == table.kept(1, 2, 3)
    assert second.facts().rows == len(table.kept(1, 2, 3)) != plan.facts().rows
    assert "1 file is counted again, as the time or tag is another" in caplog.text
    assert f"size and footer are equal: ds=2026-01-03/{path.name}. Copies that keep times" in caplog.text


def test_earlier_epochs_are_replayed_and_later_ones_are_not_skipped(table: GrowingTable):
    pipeline, plan = following(table)
    second = after(pipeline, plan)
    assert second.source.border is not None
    assert plan.source.border is not None
    start = RunStart(job="f" * 64, rank=0, world_size=1)

    def asked(epoch: int, base: Plan) -> Plan:
        names = {"snapshot": base.snapshot_name, "lanes": 1, "plan": base.fingerprint}
        hello = Hello(rank=0, world_size=1, epoch=epoch, **names)
        return resolve_hello(pipeline.spec, hello, start=start, fit=lambda _: None)

    assert asked(0, second).snapshot_name == plan.snapshot_name
    assert asked(1, plan).snapshot_name == second.snapshot_name
    with pytest.raises(PlanError, match="come one after the other: got a later one, expected 2"):
        asked(3, plan)


def test_a_first_epoch_may_have_any_number_and_none_is_before_it(table: GrowingTable):
    pipeline = Pipeline.from_yaml(table.pipeline())
    start = RunStart(job="f" * 64, rank=0, world_size=1)

    def asked(**names) -> Plan:
        return resolve_hello(pipeline.spec, Hello(rank=0, world_size=1, **names), start=start, fit=lambda _: None)

    plan = asked(epoch=7)
    assert plan.source.border is not None
    assert plan.source.border.epoch == 7
    with pytest.raises(PlanError, match="epoch 6 is not of this run: got 6, expected 7 or more"):
        asked(epoch=6, snapshot=plan.snapshot_name, plan=plan.fingerprint)


# -- what no epoch has read -------------------------------------------------------------------------------------------


def test_new_rows_come_once_wherever_they_land(table: GrowingTable):
    pipeline, plan = following(table, follow={"epoch": "new"})
    found = [delivered(pipeline, plan)]
    assert found == [table.kept(1, 2)]
    table.land(3)
    table.write(2)  # a late file of a partition that was planned
    plan = after(pipeline, plan)
    found.append(delivered(pipeline, plan))
    assert len(found[1]) == 64
    with pytest.raises(PlanError, match="epoch 2 cannot begin yet: no new file has landed"):
        pipeline.next_plan(plan)
    table.write(4)  # without a marker
    table.land(5, 7)
    plan = after(pipeline, plan)
    found.append(delivered(pipeline, plan))
    assert sorted(id for part in found for id in part) == table.kept(1, 2, 3, 5)


def test_a_partition_that_is_being_written_again_does_not_come_again(table: GrowingTable):
    """Its marker goes while it is written, and comes back: its files were read before."""
    pipeline, plan = following(table, follow={"epoch": "new"})
    (table.day(2) / "_SUCCESS").unlink()
    table.land(3)
    plan = after(pipeline, plan)
    assert delivered(pipeline, plan) == table.kept(3)
    table.land(2, name="late.parquet")
    plan = after(pipeline, plan)
    assert plan.source.snapshot.files["path"].to_pylist() == ["ds=2026-01-02/late.parquet"]


def test_an_epoch_waits_for_as_many_rows_as_a_step_has(table: GrowingTable):
    pipeline, plan = following(table, follow={"epoch": "new"}, batch={"size": 30, "tail": "drop"})
    table.land(3, 30)
    with pytest.raises(PlanError, match=r"1 new file has landed, .*: got 24 rows, expected at least 30 \(1 lanes x"):
        pipeline.next_plan(plan)
    table.land(4, 10)
    assert delivered(pipeline, after(pipeline, plan)) != []


def land_lists(table: GrowingTable, day: int, lengths: list[int], weight: float = 1.0, name: str = "lists") -> Path:
    """A landed day with a list of each of these lengths, and rows of one weight."""
    rows = len(lengths)
    table.day(day).mkdir(parents=True, exist_ok=True)
    ids = pa.array([next(table.ids) for _ in range(rows)], pa.int64())
    lists = pa.array([[1] * length for length in lengths], pa.list_(pa.int64()))
    columns = {"id": ids, "x": pa.array([1] * rows, pa.int32()), "h": lists, "w": [weight] * rows}
    path = table.day(day) / f"{name}.parquet"
    pq.write_table(pa.table(columns), path)
    table.mark(day)
    return path


def following_lists(tmp_path: Path, epoch: str, **changes) -> tuple[GrowingTable, Pipeline, Plan]:
    table = GrowingTable(tmp_path)
    land_lists(table, 1, [1] * 64 + [5] * 16 + [50] * 3)
    pipeline, plan = following(table, follow={"epoch": epoch}, **changes)
    return table, pipeline, plan


BUCKETS = {"batch": {"max_tokens": 64, "buckets": [2, 8, 64], "length": "h"}}


def test_rows_that_fill_no_bucket_make_no_epoch(tmp_path: Path):
    """Steps of 32, 8 and 1 rows."""
    table, pipeline, plan = following_lists(tmp_path, "new", **BUCKETS)
    land_lists(table, 2, [1] * 31 + [5] * 7)
    with pytest.raises(PlanError, match="whose rows make no step: no bucket has the rows of one global step"):
        pipeline.next_plan(plan)
    land_lists(table, 3, [1] * 1)
    second = after(pipeline, plan)
    assert len(second.source.snapshot.files) == 2
    assert second.schedule(1).steps == 1
    land_lists(table, 4, [50] * 5)
    assert after(pipeline, second).schedule(2).steps == 5, "five rows of the last bucket"


def test_rows_without_weight_make_no_epoch(tmp_path: Path):
    shuffle = {"shuffle": {"seed": 1, "weights": "w"}}
    table, pipeline, plan = following_lists(tmp_path, "new", **shuffle)
    land_lists(table, 2, [1] * 20, weight=0.0)
    with pytest.raises(PlanError, match=r"whose rows make no step: .*the weights sum to zero"):
        pipeline.next_plan(plan)
    land_lists(table, 3, [1] * 20)
    assert after(pipeline, plan).schedule(1).steps == 5


@pytest.mark.parametrize("epoch", ["new", "all"])
def test_what_cannot_be_planned_decides_no_border(tmp_path: Path, epoch: str):
    table, pipeline, plan = following_lists(tmp_path, epoch, **BUCKETS)
    long = land_lists(table, 2, [1] * 64 + [65])
    land_lists(table, 3, [1] * 64)
    news = "new in it is ds=2026-01-02, ds=2026-01-03"
    for _ in range(2):
        with pytest.raises(SpecError, match=rf"epoch 1 of .* {news}: .* than 64 \(first: {long}, row group 0\)"):
            pipeline.next_plan(plan)
    assert not list((table.folder / "work-p" / "follow").glob("*.next.json"))
    long.unlink()
    land_lists(table, 2, [1] * 64, name="short")
    assert after(pipeline, plan).schedule(1).steps == (4 if epoch == "new" else 11)


def test_a_run_ends_when_nothing_more_lands(table: GrowingTable):
    now = time.time()
    spec = Pipeline.from_yaml(table.pipeline(follow={"epoch": "new", "until": _iso(now + 100)})).spec
    plan = Pipeline(spec).complete_plan()
    assert plan.source.border is not None
    clock = [int((now + 50) * 1e9)]
    request = _request(spec, lambda: clock[0])
    with pytest.raises(NothingLandedError) as nothing:
        border_of_epoch(request, plan.source.border, 1)
    assert nothing.value.ends_in_s == pytest.approx(50, abs=2), "`until` has whole seconds"
    clock[0] = int((now + 101) * 1e9)
    late = table.land(3)
    for path in (late, table.day(3) / "_SUCCESS"):
        os.utime(path, (now + 200, now + 200))
    assert border_of_epoch(request, plan.source.border, 1) == plan.source.border, "the run has ended"
    longer = Pipeline.from_yaml(table.pipeline(follow={"epoch": "new", "until": _iso(now + 300)})).spec
    assert border_of_epoch(_request(longer, lambda: clock[0]), plan.source.border, 1).epoch == 1, "with a later `until`"


def test_files_of_a_log_come_once(table: GrowingTable):
    deltalake = pytest.importorskip("deltalake")
    source = {"table": "log", "where": None}

    def write(first: int, **options) -> None:
        rows = pa.table({"id": list(range(first, first + 20)), "x": [1] * 20})
        deltalake.write_deltalake(str(table.folder / "log"), rows, mode="append", **options)

    write(0)
    pipeline, plan = following(table, source=source, follow={"landed": "log", "epoch": "new"})
    assert delivered(pipeline, plan) == list(range(20))
    write(20)
    plan = after(pipeline, plan)
    assert delivered(pipeline, plan) == list(range(20, 40))
    deltalake.DeltaTable(str(table.folder / "log")).optimize.compact()
    with pytest.raises(TableChangedError, match=r"the whole table.* was rewritten after an epoch had read it"):
        pipeline.next_plan(plan)
    whole, plan = following(table, "all", source=source, follow={"landed": "log"})
    assert delivered(whole, plan) == list(range(40)), "an epoch that reads all does not mind"


# -- bad input --------------------------------------------------------------------------------------------------------


def test_a_rewritten_file_is_refused_with_both_versions(table: GrowingTable):
    pipeline, plan = following(table, follow={"epoch": "new"})
    old = sorted(table.day(1).glob("*.parquet"))[0]
    size = old.stat().st_size
    table.land(1, 41, name=old.name)
    with pytest.raises(TableChangedError) as error:
        pipeline.next_plan(plan)
    assert str(error.value).startswith(f"{old} was rewritten after epoch 0 had read it: got ")
    assert f"expected {size} bytes of " in str(error.value)


def test_a_file_that_was_touched_is_refused_until_its_time_is_set_back(table: GrowingTable):
    """Nobody can tell it from one with other labels."""
    pipeline, plan = following(table, follow={"epoch": "new"})
    path = sorted(table.day(1).glob("*.parquet"))[0]
    status = path.stat()
    os.utime(path, (1, 1))
    table.land(3)
    with pytest.raises(TableChangedError, match="restore the file, or its time if it was copied or touched alone"):
        pipeline.next_plan(plan)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    plan = after(pipeline, plan)
    assert delivered(pipeline, plan) == table.kept(3)
    table.land(4)
    assert delivered(pipeline, after(pipeline, plan)) == table.kept(4)


def test_a_partition_with_other_files_is_refused(table: GrowingTable):
    pipeline, plan = following(table, follow={"epoch": "new"})
    shutil.rmtree(table.day(1))
    assert isinstance(pipeline.next_plan(plan) if table.land(3) else None, Plan), "one that went as a whole is not"
    pipeline, plan = following(table, "q", follow={"epoch": "new"})
    for path in table.day(2).glob("*.parquet"):
        path.unlink()
    table.land(2, name="other.parquet")
    with pytest.raises(TableChangedError, match=r"partition ds=2026-01-02 of .* was .*other.parquet has come"):
        pipeline.next_plan(plan)


@pytest.mark.filterwarnings("ignore:1 bad file left out of the plan")
@pytest.mark.parametrize("epoch", ["all", "new"])
def test_a_half_written_file_is_an_error_or_left_out(table: GrowingTable, epoch: str):
    bad = table.day(3) / "half.parquet"
    plans = {}
    for name, source in (("stop", {}), ("skip", {"on_bad_file": "skip"})):
        plans[name] = following(table, name, source=source, follow={"epoch": epoch})
    whole = table.land(3, name="whole.parquet")
    bad.write_bytes(whole.read_bytes()[:-30])
    pipeline, plan = plans["stop"]
    with pytest.raises(CorruptFileError, match=r"half\.parquet"):
        pipeline.next_plan(plan)
    pipeline, plan = plans["skip"]
    second = after(pipeline, plan)
    assert [Path(each.path).name for each in second.bad_files()] == [bad.name]
    rows = table.kept(1, 2) if epoch == "all" else []
    ids = set(delivered(pipeline, second))
    assert ids == {*rows, *ids_of_file(whole)}
    if epoch == "new":
        with pytest.raises(PlanError, match="no new file has landed"):
            pipeline.next_plan(second)
        table.land(3, name=bad.name)
        assert delivered(pipeline, after(pipeline, second)) == ids_of_file(bad)


def test_new_files_that_are_all_bad_are_waited_out(table: GrowingTable):
    pipeline, plan = following(table, source={"on_bad_file": "skip"}, follow={"epoch": "new"})
    table.write(3)
    table.mark(3)
    (next(table.day(3).glob("*.parquet"))).write_bytes(b"PAR1 and nothing else PAR1")
    with pytest.raises(PlanError, match="epoch 1 cannot begin yet: no new file has landed"):
        pipeline.next_plan(plan)


@pytest.mark.parametrize("epoch", ["all", "new"])
def test_types_that_drifted_are_refused_and_narrower_ones_are_read(table: GrowingTable, epoch: str):
    pipeline, plan = following(table, follow={"epoch": epoch})
    table.land(3, kind=pa.int16())
    plan = after(pipeline, plan)
    assert plan.source.snapshot.schema.field("x").type == pa.int32()
    assert delivered(pipeline, plan) == table.kept(*(() if epoch == "all" else (3,)))
    wide = table.land(4, kind=pa.int64())
    with pytest.raises(TableError, match=f"column 'x' .*got int64 in {wide}, expected int32"):
        pipeline.next_plan(plan)


def test_nothing_landed_at_the_start_is_an_error(tmp_path: Path):
    table = GrowingTable(tmp_path)
    table.write(1)
    with pytest.raises(PlanError, match=r"has landed: 0 partitions have landed, 1 not: ds=2026-01-01 holds"):
        following(table)


def test_the_rule_must_fit_the_table_with_its_position(table: GrowingTable):
    with pytest.raises(FeedlineError, match=r"p\.yaml:\d+:\d+: source\.follow\.landed: .* has no log"):
        following(table, follow={"landed": "log"})


def test_quiet_partitions_are_judged_by_the_clock(table: GrowingTable):
    spec = Pipeline.from_yaml(table.pipeline(follow={"landed": "quiet 1h"})).spec
    now_ns = time.time_ns()
    assert landing_of(spec, now_ns=lambda: now_ns).partitions == 0
    assert landing_of(spec, now_ns=lambda: now_ns + 3601 * 10**9).partitions == 2


def test_a_work_dir_that_the_hosts_do_not_share_is_refused(table: GrowingTable, monkeypatch: pytest.MonkeyPatch):
    pipeline, plan = following(table)
    state = state_of(plan.facts(), 0, 1)
    elsewhere = Pipeline.from_yaml(table.pipeline(), set={"work_dir": str(table.folder / "other")})
    with pytest.raises(TableNotFoundError, match=r"snapshot .* is not in .*other"):
        elsewhere.plan_for(state)
    monkeypatch.setattr(content_store, "has_locks", lambda location: False)
    request = _request(pipeline.spec, time.time_ns, RunStart(job="f" * 64, rank=0, world_size=2))
    assert plan.source.border is not None
    with pytest.raises(PlanError, match=r"2 ranks cannot agree on what an epoch of a followed table reads"):
        border_of_epoch(request, plan.source.border, 1)
    follower = RunStart(job="f" * 64, rank=1, world_size=2, connected=True)
    with pytest.raises(NothingLandedError, match="rank 0 has not decided"):
        border_of_epoch(_request(pipeline.spec, time.time_ns, follower), plan.source.border, 1)
    leader = RunStart(job="f" * 64, rank=0, world_size=2, connected=True)
    assert border_of_epoch(_request(pipeline.spec, time.time_ns, leader), plan.source.border, 1).epoch == 1


# -- a rebase ---------------------------------------------------------------------------------------------------------


def test_a_rebased_epoch_is_followed_by_the_next(table: GrowingTable):
    pipeline, plan = following(table, source={"row_key": "id"})
    state = state_of(plan.facts(), 0, 3)
    first = ids_of(list(pipeline.batches(0, plan=plan))[:3])
    table.land(3)
    rebased = pipeline.rebase(state)
    assert rebased.source.rebase is not None
    assert rebased.source.border is not None
    rest = ids_of(pipeline.batches(0, plan=rebased))
    assert sorted(first + rest) == table.kept(1, 2, 3)
    resumed = pipeline.plan_for(rebased.state_after(state))
    table.land(4)
    assert delivered(pipeline, after(pipeline, resumed)) == table.kept()
    new, plan = following(table, "new", follow={"epoch": "new"})
    with pytest.raises(StateError, match="cannot be rebased with `epoch: new`"):
        new.rebase(state_of(plan.facts(), 0, 1))


def ids_of_file(path: Path) -> list[int]:
    rows = pq.ParquetFile(path).read().to_pylist()
    return sorted(row["id"] for row in rows if row["x"] > 0)


def _iso(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _request(spec, now_ns, start: RunStart | None = None) -> FollowRequest:
    return FollowRequest(
        spec=spec,
        take=lambda take, before: current_snapshot(spec, take=take),
        plan=lambda snapshot, before: None,
        start=start,
        now_ns=now_ns,
    )


def test_a_first_border_is_of_the_whole_snapshot(table: GrowingTable):
    spec = Pipeline.from_yaml(table.pipeline(follow={"epoch": "new"})).spec
    snapshot = current_snapshot(spec)
    border = first_border(spec, snapshot, 3)
    assert (border.epoch, border.snapshot, border.previous) == (3, snapshot.id, "")
