"""Epochs that are windows of time, anchors of a history, held-out keys, and rows with too few events."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feedline import FeedlineDataset, Pipeline
from feedline.errors import PlanError, SpecError, StateError
from feedline.loader.state import state_of

ROWS, USERS, DAYS = 3_000, 40, 4
FIRST = datetime.datetime(2026, 1, 1)
DAY_S = 86_400
ONE_WINDOW = {"by": "ts", "every": "4d", "from": "2026-01-01", "until": "2026-01-05"}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> pa.Table:
    """Events of four days, in a table with a folder for each."""
    folder = tmp_path_factory.mktemp("windows")
    rng = np.random.default_rng(5)
    seconds = np.sort(rng.integers(0, DAYS * DAY_S, ROWS))
    table = pa.table(
        {
            "user": rng.integers(0, USERS, ROWS),
            "ts": pa.array(seconds * 10**6).cast(pa.timestamp("us")),
            "second": seconds,
            "no": np.arange(ROWS),
            "item": rng.integers(0, 100, ROWS),
        }
    )
    origin = np.datetime64(FIRST, "us").astype(np.int64)
    table = table.set_column(1, "ts", pa.array(seconds * 10**6 + origin).cast(pa.timestamp("us")))
    for day in range(DAYS):
        (folder / f"events/ds=2026-01-0{day + 1}").mkdir(parents=True)
        own = table.filter(pa.array(seconds // DAY_S == day))
        pq.write_table(own, folder / f"events/ds=2026-01-0{day + 1}/a.parquet", row_group_size=300)
    return table.replace_schema_metadata({"folder": str(folder)})


def document(events: pa.Table, **changes: Any) -> dict[str, Any]:
    folder = Path(events.schema.metadata[b"folder"].decode())
    return {
        "version": 1,
        "name": "windows",
        "work_dir": str(folder / "work"),
        "source": {"anchors": "events"},
        "histories": {"events": {"table": str(folder / "events"), "key": "user", "time": "ts", "tie_break": "no"}},
        "windows": {"by": "ts", "every": "1d", "from": "2026-01-01", "until": "2026-01-05"},
        "features": {
            "sparse": {"items": {"history": "events", "column": "item", "last": 5}},
            "dense": {"no": [], "user": []},
        },
        "batch": {"size": 64, "tail": "partial"},
        "shuffle": {"seed": 1},
        "cluster": {"threads": 1},
        **changes,
    }


def numbers(batches: Iterator[Any]) -> list[int]:
    """The rows of batches, by their number."""
    return [int(number) for batch in batches for number in batch["no"].tolist()]


def epochs_of(dataset: FeedlineDataset, count: int) -> list[list[int]]:
    return [numbers(iter(dataset)) for _ in range(count)]


def test_each_epoch_reads_its_window(events: pa.Table):
    days = events["second"].to_numpy() // DAY_S
    with FeedlineDataset(document(events)) as dataset:
        found = epochs_of(dataset, DAYS + 2)
        assert len(dataset) == 0
    assert [sorted(each) for each in found] == [np.flatnonzero(days == day).tolist() for day in range(DAYS)] + [[], []]


@pytest.mark.parametrize(
    ("windows", "column"),
    [
        ({"by": "second", "every": DAY_S // 2, "from": DAY_S, "until": 3 * DAY_S + 5_000}, "second"),
        ({"by": "ts", "every": "36h", "from": "2026-01-02T06:00:00", "until": "2026-01-04T00:00:00"}, "ts"),
        ({"by": "ds", "every": "2d", "from": "2026-01-02", "until": "2026-01-05"}, "ds"),
    ],
)
def test_windows_of_other_columns(events: pa.Table, windows: dict[str, Any], column: str):
    pipeline = Pipeline.from_dict(document(events, windows=windows))
    seconds = events["second"].to_numpy()
    if column == "second":
        step, first, last = windows["every"], windows["from"], windows["until"]
    else:
        first = int((datetime.datetime.fromisoformat(windows["from"]) - FIRST).total_seconds())
        last = int((datetime.datetime.fromisoformat(windows["until"]) - FIRST).total_seconds())
        step = {"36h": 36 * 3600, "2d": 2 * DAY_S}[windows["every"]]
    plan = pipeline.complete_plan()
    for start in range(first, last, step):
        expected = np.flatnonzero((seconds >= start) & (seconds < min(start + step, last)))
        assert sorted(numbers(pipeline.batches(plan=plan, epoch=plan.epoch))) == expected.tolist()
        following = pipeline.next_plan(plan)
        assert (following is None) is (start + step >= last)
        plan = following or plan


def test_a_state_resumes_within_its_window_at_another_world_size(events: pa.Table):
    spec = document(events, lanes=2, batch={"size": 32, "tail": "partial"})
    pipeline = Pipeline.from_dict(spec)
    plan = pipeline.next_plan(pipeline.complete_plan(world_size=1))
    assert plan is not None
    state = state_of(plan.facts(), plan.epoch, 5)
    again = pipeline.plan_for(state)
    assert (again.fingerprint, again.epoch) == (plan.fingerprint, 1)
    ranks = [list(pipeline.batches(plan=again, epoch=1, rank=rank, world_size=2, step=5)) for rank in range(2)]
    whole = list(pipeline.batches(plan=plan, epoch=1, step=5))
    for step, batch in enumerate(whole):
        assert batch["no"].tolist() == [*ranks[0][step]["no"].tolist(), *ranks[1][step]["no"].tolist()]
    with pytest.raises(StateError, match="it is of window 1, expected one of the 1 windows"):
        Pipeline.from_dict({**spec, "windows": ONE_WINDOW}).plan_for(state)


def test_evaluation_reads_the_next_window_of_held_out_keys(events: pa.Table):
    users, days = events["user"].to_numpy(), events["second"].to_numpy() // DAY_S
    spec = document(events, hold_out={"by": "user", "share": 0.3, "salt": 7})
    with FeedlineDataset(spec) as dataset:
        trained = set(users[[number for each in epochs_of(dataset, 2) for number in each]])
        with dataset.evaluation() as held:
            rows = numbers(iter(held))
    assert set(days[rows]) == {2}
    assert trained.isdisjoint(users[rows])
    assert sorted(rows) == np.flatnonzero((days == 2) & ~np.isin(users, sorted(trained))).tolist()
    assert 0.1 < 1 - len(trained) / USERS < 0.5


def test_evaluation_needs_something_to_evaluate_on(events: pa.Table):
    with (
        FeedlineDataset(document(events, windows=None)) as dataset,
        pytest.raises(SpecError, match="neither windows nor hold_out"),
    ):
        dataset.evaluation()
    with (
        FeedlineDataset(document(events, windows=ONE_WINDOW)) as dataset,
        pytest.raises(SpecError, match="leaves no window"),
    ):
        dataset.evaluation()


def test_anchors_see_the_events_before_them(events: pa.Table):
    users, items = events["user"].to_numpy(), events["item"].to_numpy()
    times = events["ts"].to_numpy()
    for batch in Pipeline.from_dict(document(events)).batches():
        lists = np.split(batch.sparse["items"].values.numpy(), batch.sparse["items"].offsets.numpy()[1:-1])
        for number, found in zip(map(int, batch["no"].tolist()), lists, strict=True):
            seen = np.flatnonzero((users == users[number]) & (times < times[number]))
            assert found.tolist() == items[seen][-5:].tolist()


def test_rows_with_few_events_are_left_out(events: pa.Table):
    feature = {"history": "events", "column": "item", "last": 5, "lag": "1h", "min_history": 4}
    spec = document(events, windows=None)
    spec["features"]["sparse"]["items"] = feature
    pipeline = Pipeline.from_dict(spec)
    users, seconds = events["user"].to_numpy(), events["second"].to_numpy()
    earlier = [((users == users[row]) & (seconds < seconds[row] - 3600)).sum() for row in range(ROWS)]
    plan = pipeline.complete_plan()
    assert sorted(numbers(pipeline.batches(plan=plan))) == np.flatnonzero(np.array(earlier) >= 4).tolist()
    assert plan.fingerprint == pipeline.complete_plan().fingerprint
    assert plan.fingerprint != Pipeline.from_dict(document(events, windows=None)).complete_plan().fingerprint


def test_a_share_of_the_window_is_the_same_at_any_number_of_lanes(events: pa.Table):
    def window(lanes: int) -> int:
        spec = document(events, windows=None, lanes=lanes, shuffle={"window_share": 0.25})
        return int(Pipeline.from_dict(spec).complete_plan(world_size=lanes).source.sizes.window_rows)

    assert {lanes: window(lanes) for lanes in (1, 2, 8)} == {lanes: ROWS // 4 // lanes for lanes in (1, 2, 8)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"windows": {"every": "1 week"}}, "windows.every: must be a time such as 1d"),
        ({"windows": {"every": "36h"}}, "windows.every: cuts dates: got '36h', expected whole days"),
        ({"windows": {"every": 5}}, "windows.every: must be of the kind of from: got 5, expected a time"),
        ({"windows": {"until": "2026-01-01"}}, "windows.until: must be after from"),
        ({"windows": {"until": 5}}, "windows.until: must be written like from: got 5"),
        ({"windows": {"from": "soon"}}, "windows.from: must be an ISO date or time"),
        ({"hold_out": {"by": "user", "share": 1.0}}, "hold_out.share: must be less than 1"),
        (
            {"hold_out": {"by": "user", "share": 0.5}, "source": {"anchors": "events", "sample": {"fraction": 0.5}}},
            "source.sample: contradicts hold_out",
        ),
        ({"source": {"anchors": "event"}}, "source.anchors: unknown history: got 'event', expected one of 'events'"),
        ({"source": {"anchors": "events", "table": "t"}}, "source.table: contradicts anchors"),
        (
            {"source": {"anchors": "events", "follow": {"landed": "quiet 1m"}}},
            "windows: is of one table that does not grow: got it beside a followed table",
        ),
        ({"shuffle": {"window_share": 0.5, "window_rows": 9}}, "shuffle.window_share: contradicts window_rows"),
    ],
)
def test_wrong_input_is_refused(events: pa.Table, changes: dict[str, Any], message: str):
    spec = document(events)
    windows = {**spec["windows"], **changes.pop("windows", {})}
    with pytest.raises(SpecError) as error:
        Pipeline.from_dict({**spec, "windows": windows, **changes})
    assert message in str(error.value)


def test_a_window_without_rows_is_an_error(events: pa.Table):
    spec = document(events, windows={"by": "ts", "every": "1d", "from": "2026-02-01", "until": "2026-02-03"})
    with pytest.raises(SpecError, match="the filter keeps no row: got 0 of 3,000 rows for 'ts >= "):
        Pipeline.from_dict(spec).complete_plan()


def test_windows_are_not_rebased(events: pa.Table):
    pipeline = Pipeline.from_dict(document(events))
    state = state_of(pipeline.complete_plan().facts(), 0, 2)
    with pytest.raises(StateError, match="a run whose epochs are windows cannot be rebased"):
        pipeline.rebase(state)


def test_an_epoch_beyond_the_last_window_is_an_error(events: pa.Table):
    with FeedlineDataset(document(events)) as dataset:
        dataset.set_epoch(9)
        with pytest.raises(PlanError, match="epoch 9 has no window"):
            len(dataset)
