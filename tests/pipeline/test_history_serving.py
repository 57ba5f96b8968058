"""Features of histories are fitted, cached, deduplicated and served like any others: the same values in all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from event_tables import document, event_table, laid_out, lists_of, row_table, with_types, write
from pipelines import image

from feedline import Pipeline
from feedline.errors import SpecError, TableArgumentError
from feedline.serving.golden_check import check
from feedline.warehouse.histories import join

OF_EVENTS: dict[str, Any] = {"history": "events", "at": "at", "lag": "1m"}
FEATURES: dict[str, Any] = {
    "sparse": {
        "items": {
            **OF_EVENTS,
            "column": "item",
            "last": 6,
            "ops": [{"fill_null": 0}, {"vocabulary": {"min_count": 2}}],
        },
        "ratios": {**OF_EVENTS, "column": "ratio", "last": 6, "ops": ["log1p", "standardize"]},
        "seen": {
            **OF_EVENTS,
            "columns": ["kind"],
            "tag": "pool",
            "scan": 30,
            "pools": {"liked": {"where": "kind == 'like'", "last": 2}, "any": {"last": 3}},
            "ops": {"kind": [{"fill_null": "none"}, {"vocabulary": {"min_count": 1}}], "pool": []},
        },
    },
}
NAMES = ("items", "ratios", "seen.kind", "seen.pool")
HISTORY = {"known_at": "known", "tie_break": "no"}
TIMES = {name: pa.timestamp("us", "UTC") for name in ("at", "ts", "known")}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table, pa.Table]:
    folder = tmp_path_factory.mktemp("served")
    rows = with_types(row_table(240), pa.string(), {"at": TIMES["at"]})
    events = with_types(event_table(900), pa.string(), {"ts": TIMES["ts"], "known": TIMES["known"]})
    write(rows, folder / "r", row_group_size=80)
    laid_out(events, folder / "e", "ts", "no")
    return folder, rows, events


def whole(tables: tuple[Path, pa.Table, pa.Table], work: Path, **changes: Any) -> dict[str, Any]:
    features = changes.pop("features", FEATURES)
    return document(tables[0] / "r", tables[0] / "e", features, work, history=HISTORY, fit="auto", **changes)


@pytest.fixture(scope="module")
def pipeline(tables: tuple[Path, pa.Table, pa.Table]) -> Pipeline:
    made = Pipeline.from_dict(whole(tables, tables[0] / "w"))
    made.fit()
    return made


def test_fits_see_the_lists_that_rows_see(pipeline: Pipeline, tables: tuple[Path, pa.Table, pa.Table], tmp_path: Path):
    """As of fat rows: the same vocabularies and means, however many rows see an event."""
    late = {"extra": {name: {**FEATURES["sparse"][name], "ops": None} for name in ("items", "ratios")}}
    for feature in late["extra"].values():
        del feature["ops"]
    Pipeline.from_dict(whole(tables, tmp_path / "w", features=late, shuffle="off")).materialize(
        tmp_path / "fat", format="parquet"
    )
    ops = {"sparse": {name: FEATURES["sparse"][name]["ops"] for name in ("items", "ratios")}}
    fat = document(tmp_path / "fat", tables[0] / "e", ops, tmp_path / "w2", fit="auto")
    del fat["histories"]
    expected = lists_of(pipeline, "items", "ratios")
    assert lists_of(Pipeline.from_dict(fat), "items", "ratios") == expected
    assert len({each for items, _ in expected.values() for each in items}) > 50


@pytest.mark.parametrize("form", ["arrow", "polars", "shuffled"])
def test_a_request_gets_what_training_got(pipeline: Pipeline, tables: tuple[Path, pa.Table, pa.Table], form: str):
    _, rows, events = tables
    expected = lists_of(pipeline, *NAMES)
    order = np.random.default_rng(0).permutation(events.num_rows)
    given: Any = {
        "arrow": events,
        "polars": pl.from_arrow(events),
        "shuffled": events.take(pa.array(order)).select(list(events.column_names)),
    }[form]
    served = pipeline.transform(pl.from_arrow(rows) if form == "polars" else rows, histories={"events": given})
    assert served_lists(served, rows["id"].to_pylist()) == expected


def served_lists(served: Any, ids: list[int]) -> dict[int, tuple[Any, ...]]:
    columns = []
    for name in NAMES:
        values, offsets = served[name].values.tolist(), served[name].offsets.tolist()
        columns.append([values[offsets[row] : offsets[row + 1]] for row in range(len(ids))])
    return {row: tuple(column[index] for column in columns) for index, row in enumerate(ids)}


def test_one_request_needs_the_events_of_its_user_alone(pipeline: Pipeline, tables: tuple[Path, pa.Table, pa.Table]):
    _, rows, events = tables
    expected = lists_of(pipeline, *NAMES)
    for row in (3, 77, 200):
        one = rows.slice(row, 1)
        own = events.filter(pa.compute.equal(events["user"], one["user"][0]))
        assert served_lists(pipeline.transform(one, histories={"events": own}), [row]) == {row: expected[row]}


def test_a_request_without_events(pipeline: Pipeline, tables: tuple[Path, pa.Table, pa.Table]):
    _, rows, events = tables
    served = pipeline.transform(rows, histories={"events": events.slice(0, 0)})
    assert served_lists(served, [0])[0] == ([], [], [], [])
    with pytest.raises(SpecError, match="features read history 'events', which was not passed: got the histories none"):
        pipeline.transform(rows)
    with pytest.raises(SpecError, match="unknown history: got 'event', expected one of 'events'"):
        pipeline.transform(rows, histories={"event": events})
    with pytest.raises(TableArgumentError, match="history 'events' names column 'ts', which is not in the events"):
        pipeline.transform(rows, histories={"events": events.drop_columns(["ts"])})


def test_a_request_of_plain_values(pipeline: Pipeline, tables: tuple[Path, pa.Table, pa.Table]):
    """As a service gets them: a dict of the row, a list of dicts of its events, none for a new user."""
    _, rows, events = tables
    expected = lists_of(pipeline, *NAMES)
    row, log = 5, events.to_pylist()
    one = rows.slice(row, 1).to_pylist()[0]
    own = [event for event in log if event["user"] == one["user"]]
    assert served_lists(pipeline.transform(one, histories={"events": own}), [row]) == {row: expected[row]}
    for none in ([], {}):
        served = pipeline.transform([one, one], histories={"events": none})
        assert served_lists(served, [0, 1]) == dict.fromkeys((0, 1), ([], [], [], []))
    assert expected[row][0]


def test_golden_vectors_hold_histories(pipeline: Pipeline):
    result = check(pipeline.spec)
    assert (result.passed, result.ulps, result.features) == (True, 0, 5)


def cached(tables: tuple[Path, pa.Table, pa.Table], events: Path, folder: Path, **changes: Any) -> list[bytes]:
    features = {
        "sparse": {
            "items": {**OF_EVENTS, "column": "item", "last": 6, "ops": [{"fill_null": 0}, {"hash_bucket": 1000}]},
            "ratios": {**OF_EVENTS, "column": "ratio", "last": 6, "ops": ["log1p"]},
        }
    }
    cache = {"dir": str(folder / "c"), "mode": "features", "size": "100MB", "free": "1B"}
    given = document(tables[0] / "r", events, features, folder / "w", history=HISTORY, **{"cache": cache, **changes})
    return [image(batch) for batch in Pipeline.from_dict(given).batches()]


def test_changed_events_are_not_served_from_a_cache(tables: tuple[Path, pa.Table, pa.Table], tmp_path: Path):
    """In the same folder; a table of the same content gives the same features."""
    folder, _, events = tables
    own = tmp_path / "e"
    shutil.copytree(folder / "e", own)
    first = cached(tables, own, tmp_path)
    assert cached(tables, own, tmp_path) == first == cached(tables, own, tmp_path, cache="off")
    shutil.rmtree(own)
    changed = events.set_column(events.column_names.index("item"), "item", pa.compute.add(events["item"], 1))
    shutil.rmtree(laid_out(changed, own, "ts", "no").with_name("e-source"))
    second = cached(tables, own, tmp_path)
    assert second != first
    assert second == cached(tables, own, tmp_path, cache="off")


@pytest.mark.parametrize(
    ("rows_of_a_run", "most"),
    [
        pytest.param(1, 6, marks=pytest.mark.nightly),
        (1, 1000),
        (3, 6),
        pytest.param(3, 1000, marks=pytest.mark.nightly),
        pytest.param(40, 6, marks=pytest.mark.nightly),
        (40, 1000),
    ],
)
def test_features_of_histories_are_deduplicated(
    tables: tuple[Path, pa.Table, pa.Table],
    tmp_path: Path,
    rows_of_a_run: int,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
):
    """By the columns that decide what a row sees; runs go on where rows are joined in parts."""
    monkeypatch.setattr(join, "_MOST_ELEMENTS", 500)
    folder, rows, _ = tables
    rows = rows.slice(0, 720 // rows_of_a_run)
    runs = pa.concat_tables([rows] * rows_of_a_run).sort_by([("id", "ascending")])
    runs = runs.append_column("session", runs["id"]).set_column(0, "id", pa.array(np.arange(runs.num_rows)))
    write(runs, tmp_path / "r", row_group_size=120)
    own = {**OF_EVENTS, "column": "item", "last": most, "ops": [{"fill_null": 0}, {"hash_bucket": 50}]}
    ratios = {**OF_EVENTS, "column": "ratio", "last": most, "ops": ["log1p"]}
    features = {"sparse": {"items": own, "ratios": ratios}}
    plain = document(tmp_path / "r", folder / "e", features, tmp_path / "w", history=HISTORY, shuffle={"by": "session"})
    grouped = {**plain, "dedup": {"user": {"columns": ["user", "at"]}}}
    expected = [image(batch) for batch in Pipeline.from_dict(plain).batches()]
    batches = list(Pipeline.from_dict(grouped).batches())
    assert {"items", "ratios"} <= set(batches[0].groups["user"].sparse)
    unique = sum(batch.groups["user"].unique_rows for batch in batches)
    assert unique <= runs.num_rows / rows_of_a_run + len(batches) + 20
    assert [image(batch.expanded()) for batch in batches] == expected
