"""Batches of several sources: exactly the planned rows of each, whatever the world size, and after every resume.

The oracle is the tables, read by pyarrow: every row has an id of its own, which tells its table.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from mixed_tables import NAMES, VIEWS, ids_of, mixed_pipeline, write_files, write_tables

from feedline import Pipeline
from feedline.errors import SpecError, StateError
from feedline.loader.state import state_of

LANES = 4
MIXES = {("first", 0), ("all", 1), (40, 2)}  # each way to end an epoch, with one of the ways to shuffle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tables(tmp_path_factory.mktemp("mixed"))


def steps_of(pipeline: Pipeline, epoch: int, world: int = 1, step: int = 0, **options: Any) -> np.ndarray:
    """int64 [steps, lanes, rows of a lane]: the ids of an epoch, by all ranks of a world."""
    options.setdefault("plan", pipeline.complete_plan(world))
    ranks = [
        np.stack(
            [ids_of(batch, LANES // world) for batch in pipeline.batches(epoch, rank, world, step=step, **options)]
        )
        for rank in range(world)
    ]
    return np.concatenate(ranks, axis=1)


def ids_in(folder: Path, name: str) -> set[int]:
    table = ds.dataset(folder / name).to_table(columns=[NAMES[name][0]])
    return set(table.column(0).to_pylist())


@pytest.mark.parametrize(
    ("stop", "shuffle"),
    [
        pytest.param(
            stop, shuffle, marks=() if (stop, number) in MIXES else pytest.mark.nightly, id=f"{stop}-{shuffle}"
        )
        for number, shuffle in enumerate([{"window_rows": 200}, "off", {"rows": False, "window_rows": 100}])
        for stop in ("first", "all", 40)
    ],
)
def test_every_step_of_every_lane_has_the_rows_of_each_source(folder: Path, stop, shuffle):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, stop=stop, lanes=LANES, shuffle=shuffle))
    plan = pipeline.plan()
    delivered = {"clicks": Counter[int](), "views": Counter[int]()}
    epochs = [steps_of(pipeline, epoch) for epoch in range(2)]
    for epoch, steps in enumerate(epochs):
        assert steps.shape == (plan.facts().steps, LANES, 10)
        assert (steps[:, :, :8] < VIEWS).all()
        assert (steps[:, :, 8:] >= VIEWS).all()
        assert (steps_of(pipeline, epoch, (2, 4)[epoch]) == steps).all()
        of_epoch = {
            "clicks": Counter(steps[:, :, :8].ravel().tolist()),
            "views": Counter(steps[:, :, 8:].ravel().tolist()),
        }
        for name, counts in of_epoch.items():
            assert set(counts) <= ids_in(folder, name)
            delivered[name] += counts
        if stop != 40:
            assert max(of_epoch["clicks"].values()) == 1
    clicks, views = plan.facts().sources
    assert sum(delivered["views"].values()) == 2 * plan.facts().steps * LANES * views.batch_rows
    if stop == 40:  # 80 steps go through 56 steps of a pass, and on
        assert (clicks.pass_steps, views.pass_steps) == (56, 56)
        first = np.concatenate(epochs)[:56]
        assert len(set(first.ravel().tolist())) == first.size


def test_passes_of_the_shorter_source_are_reshuffled(folder: Path):
    pipeline = mixed_pipeline(folder, stop="all", lanes=1)
    pipeline["sources"][0]["weight"] = 1
    pipeline["sources"][1]["weight"] = 1
    own = Pipeline.from_dict(pipeline)
    clicks, views = own.plan().facts().sources
    assert (clicks.pass_steps, views.pass_steps, views.passes) == (360, 90, 4.0)
    views_of_step = np.stack([ids_of(batch)[0, 5:] for batch in own.batches()])
    passes = [views_of_step[90 * index : 90 * (index + 1)].ravel().tolist() for index in range(4)]
    assert all(sorted(each) == sorted(ids_in(folder, "views")) for each in passes)
    assert len({tuple(each) for each in passes}) == 4


@pytest.mark.parametrize("stop", [pytest.param("first", marks=pytest.mark.nightly), "all", 40])
def test_a_run_goes_on_in_the_middle_of_a_pass_with_any_world_size(folder: Path, stop):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, stop=stop, lanes=LANES))
    whole = steps_of(pipeline, 1)
    state = state_of(pipeline.plan().facts(), 1, 23)
    again = Pipeline.from_dict(mixed_pipeline(folder, stop=stop, lanes=LANES))
    for world in (1, 2, 4):
        rest = steps_of(again, 1, world, step=23, plan=again.plan_for(state))
        assert (rest == whole[23:]).all()


def test_states_of_other_mixes_are_refused(folder: Path):
    pipeline = mixed_pipeline(folder)
    state = state_of(Pipeline.from_dict(pipeline).plan().facts(), 0, 3)
    for stop in ("all", 9):
        with pytest.raises(StateError, match="the state belongs to another plan"):
            Pipeline.from_dict(mixed_pipeline(folder, stop=stop)).plan_for(state)
    alone = {**pipeline, "source": {"table": str(folder / "clicks")}}
    del alone["sources"], alone["mix"]
    with pytest.raises(StateError, match=r"it has snapshots of 2 sources, pipeline\.yaml has 1"):
        Pipeline.from_dict(alone).plan_for(state)
    three = {**pipeline, "sources": [*pipeline["sources"], {**pipeline["sources"][0], "name": "again"}]}
    with pytest.raises(StateError, match=r"it has snapshots of 2 sources, pipeline\.yaml has 3"):
        Pipeline.from_dict(three).plan_for(state)


def test_values_are_those_of_the_tables_and_fits_learn_from_both(folder: Path):
    features = {
        "dense": {"price": ["standardize"]},
        "categorical": {"item": ["vocabulary"]},
        "label": {"clicked": []},
        "extra": ["id"],
    }
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, features=features, fit="auto"))
    report = pipeline.fit()
    assert [fit.rows for fit in report.fits] == [2_250, 2_250]
    tables = {
        name: {row[NAMES[name][0]]: row for row in ds.dataset(folder / name).to_table().to_pylist()} for name in NAMES
    }
    prices = [row[NAMES[name][1]] for name, rows in tables.items() for row in rows.values()]
    mean, deviation = np.mean(prices), np.std(prices)
    codes: dict[int, int] = {}
    for batch in pipeline.batches():
        for index, id in enumerate(ids_of(batch)[0].tolist()):
            name = "clicks" if id < VIEWS else "views"
            row = tables[name][id]
            assert batch.dense[index, 0].item() == pytest.approx((row[NAMES[name][1]] - mean) / deviation, abs=1e-5)
            assert batch.labels[index, 0].item() == row["clicked"]
            code = batch.categorical[index, 0].item()
            assert codes.setdefault(row[NAMES[name][2]], code) == code  # the same id in both tables
    assert len(set(codes.values())) == len(codes) == 11
    served = pipeline.transform({"price": mean, "item": 3})
    assert served.dense[0, 0] == pytest.approx(0, abs=1e-6)
    assert served.categorical[0, 0] == codes[3]


def test_the_fits_of_one_source_alone_are_those_of_all(folder: Path):
    features = {"dense": {"price": ["standardize"]}, "categorical": {"item": []}, "extra": ["id"]}
    pipeline = Pipeline.from_dict(mixed_pipeline(folder, name="alone", features=features))
    with pytest.raises(SpecError, match="not fitted: price: standardize"):
        list(pipeline.batches())
    views = pipeline.of_source("views")
    with pytest.raises(SpecError, match="fits learn from all sources together: got views alone"):
        views.fit()
    pipeline.fit()
    mixed = {
        int(id): value
        for batch in pipeline.batches()
        for id, value in zip(ids_of(batch)[0], batch.dense.tolist(), strict=True)
    }
    for batch in views.batches():
        for id, value in zip(ids_of(batch)[0].tolist(), batch.dense.tolist(), strict=True):
            assert id not in mixed or mixed[id] == value


def test_rows_that_a_fit_has_seen_are_left_out_of_their_own_statistics(folder: Path):
    """Out of fold in both sources: where folds are those of the label, a row's value is learnt from the other label."""
    ops = [{"target_encoding": {"target": "clicked", "fold_by": "clicked", "folds": 5, "smoothing": 0}}]
    document = mixed_pipeline(
        folder, name="folds", features={"dense": {"item": ops}, "label": {"clicked": []}, "extra": ["id"]}, fit="auto"
    )
    document["sources"][1]["features"] = {"dense": {"item": {"column": "product"}}, "extra": {"id": {"column": "row"}}}
    for batch in Pipeline.from_dict(document).batches():
        assert batch.dense[:, 0].tolist() == (1 - batch.labels[:, 0]).tolist()
    away = mixed_pipeline(folder, **{**document, "fit": {"auto": True, "out_of_fold": False}})
    [first, *_] = Pipeline.from_dict(away).batches()
    assert all(0.4 < value < 0.6 for value in first.dense[:, 0].tolist())


def test_rows_are_recognised_where_sources_share_a_table(folder: Path):
    """Two sources over one table, fitted on some of its rows: a fit has seen what either of them has shown it."""
    ops = [{"target_encoding": {"target": "clicked", "fold_by": "clicked", "folds": 5, "smoothing": 0}}]
    features = {"dense": {"item": ops}, "label": {"clicked": []}, "extra": ["id"]}
    table = str(folder / "clicks")
    document = mixed_pipeline(folder, name="shared", features=features, fit={"auto": True})
    document["sources"] = [
        {"name": "early", "table": table, "weight": 1, "where": "id < 600"},
        {"name": "late", "table": table, "weight": 1, "where": "id >= 600 and id < 1200"},
    ]
    pipeline = Pipeline.from_dict(document)
    [fit] = pipeline.fit().fits
    assert (fit.rows, [origin.rows for origin in fit.further]) == (1_200, [600])
    for batch in pipeline.batches():
        assert batch.dense[:, 0].tolist() == (1 - batch.labels[:, 0]).tolist()
    document["sources"][1]["where"] = "id >= 600"  # of which the fit has seen a half
    wider, seen = Pipeline.from_dict(document), []
    for batch in wider.batches():
        ids, values = ids_of(batch)[0], batch.dense[:, 0].numpy()
        own = values == 1 - batch.labels[:, 0].numpy()
        assert own[ids < 1_200].all()
        seen += own[ids >= 1_200].tolist()
    assert not any(seen)
    assert len(seen) > 100


def test_rows_of_one_table_are_learnt_from_once(folder: Path):
    document = mixed_pipeline(
        folder, name="once", features={"dense": {"price": ["standardize"]}, "extra": ["id"]}, fit={"where": "id < 900"}
    )
    table = str(folder / "clicks")
    document["sources"] = [{"name": name, "table": table, "weight": 1, "where": f"id % 2 == {name}"} for name in "01"]
    [fit] = Pipeline.from_dict(document).fit().fits
    assert (fit.rows, fit.further) == (900, ())


@pytest.mark.parametrize("stop", [pytest.param("first", marks=pytest.mark.nightly), "all", 40])
def test_a_rebase_changes_the_pass_of_the_source_whose_table_changed(tmp_path: Path, stop):
    write_tables(tmp_path)
    document = mixed_pipeline(tmp_path, stop=stop, lanes=LANES)
    for source, weight in zip(document["sources"], (1, 1), strict=True):
        source["weight"] = weight
    document["sources"][1] |= {"row_key": "row"}
    pipeline = Pipeline.from_dict(document)
    clicks, views = pipeline.plan().facts().sources
    assert (clicks.pass_steps, views.pass_steps) == (90, 22)
    epoch, step = (1, 10) if stop != "all" else (1, 30)  # in the second pass through the views
    before = steps_of(pipeline, epoch)[:step]
    state = state_of(pipeline.plan().facts(), epoch, step)
    write_files(tmp_path / "views", NAMES["views"], VIEWS + 5_000, files=1, rows=100, group=50)
    plan = pipeline.rebase(state)
    after = plan.state_after(state)
    assert (after["epoch"], after["step"]) == (epoch, step)
    kept, renewed = after["snapshot"].split(",")
    assert kept == state["snapshot"].split(",")[0]
    assert "+" in renewed
    assert plan.fingerprint == after["plan"] == pipeline.plan_for(after).fingerprint
    rest = steps_of(pipeline, epoch, step=step, plan=plan)
    assert len(rest) == plan.facts().steps_of(epoch) - step
    old = Pipeline.from_dict({**document, "work_dir": str(tmp_path / "other")})
    assert rest.shape[1:] == (LANES, 10)
    of_clicks = np.concatenate([before[:, :, :5], rest[:, :, :5]]).ravel().tolist()
    assert len(set(of_clicks)) == len(of_clicks) or stop == "all"  # the other source goes on
    whole = np.stack([ids_of(batch, LANES) for batch in old.batches(epoch)])[:, :, :5] if stop == "all" else None
    assert whole is None or (np.concatenate([before[:, :, :5], rest[:, :, :5]]) == whole).all()
    begins = {"first": 0, "all": 22, 40: 4}[stop]  # the step at which the shortened pass began
    shortened = np.concatenate([before[begins:, :, 5:].ravel(), rest[:, :, 5:].ravel()])
    length = plan.sources[1].schedule(plan.sources[1].rebase.epoch).steps  # of the pass, with its first steps
    shortened = shortened[: length * LANES * 5].tolist()
    assert len(set(shortened)) == len(shortened)
    assert sum(id >= VIEWS + 5_000 for id in shortened) > 60
    resumed = steps_of(pipeline, epoch, world=2, step=step, plan=pipeline.plan_for(after))
    assert (resumed == rest).all()


def test_an_unchanged_table_keeps_the_plan(folder: Path):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder))
    state = state_of(pipeline.plan().facts(), 0, 11)
    plan = pipeline.rebase(state)
    assert plan.fingerprint == state["plan"]
    assert plan.state_after(state) == state


def test_nulls_and_bad_files_are_told_by_source(tmp_path: Path):
    write_tables(tmp_path)
    table = pq.read_table(tmp_path / "views" / f"{VIEWS}-0.parquet")
    nulls = np.arange(table.num_rows) % 2 == 0
    cost = pa.array(table["cost"].to_numpy(), mask=nulls)
    pq.write_table(table.set_column(1, "cost", cost), tmp_path / "views" / f"{VIEWS}-0.parquet")
    (tmp_path / "clicks" / "bad.parquet").write_bytes(b"PAR1 and no more")
    document = mixed_pipeline(tmp_path)
    document["sources"][0] |= {"on_bad_file": "skip"}
    plan = Pipeline.from_dict(document).plan()
    assert [bad.path for bad in plan.facts().bad_files] == [str(tmp_path / "clicks" / "bad.parquet")]
    [warning] = plan.facts().nulls
    assert warning.startswith("source views: feature 'price' (column 'cost') holds nulls: got 75 in 1 of 3 files")


def test_quality_is_counted_over_all_sources(folder: Path):
    pipeline = Pipeline.from_dict(mixed_pipeline(folder))
    rows = sum(batch.rows for batch in pipeline.batches())
    assert pipeline.quality()["price"]["rows"] >= rows == 2_250


def test_serving_has_the_features_of_the_pipeline_or_of_one_source(folder: Path):
    features = {"dense": {"price": ["standardize"]}, "categorical": {"item": []}, "extra": ["id"]}
    document = mixed_pipeline(folder, name="served", features=features)
    pipeline = Pipeline.from_dict(document)
    assert pipeline.fit().vectors > 0
    assert pipeline.schema == pipeline.plan().layout.schema
    rows = {"price": [3.0, 50.0], "item": [1, 2]}
    served = pipeline.transform(rows).dense
    assert served.tolist() == pipeline.of_source("clicks").transform(rows).dense.tolist()
    of_views = pipeline.of_source("views").transform({"cost": rows["price"], "product": rows["item"]})
    assert served.tolist() == of_views.dense.tolist()
    document["sources"][0]["features"] = {"dense": {"price": {"expr": "price + 0"}}}
    assert Pipeline.from_dict({**document, "name": "redefined"}).fit().vectors == 0


def test_column_groups_and_exclusions_are_of_each_source(folder: Path):
    document = mixed_pipeline(folder, name="groups")
    pipeline = Pipeline.from_dict(document)
    for whole, part in zip(pipeline.batches(), pipeline.batches(features=["price", "extra"]), strict=True):
        assert part.dense.tolist() == whole.dense.tolist()
        assert ids_of(part).tolist() == ids_of(whole).tolist()
        assert [column.name for column in part.schema.columns] == ["price", "id"]
    document["features"]["dense"]["price"] = {"column": "price", "expect": {"max": "<= 50"}}
    files = {name: folder / f"{name}.arrow" for name in NAMES}
    for name, file in files.items():
        assert Pipeline.from_dict(document).of_source(name).check_rows(file, max_share=1).bad > 0
    document["sources"] = [{**source, "exclude": str(files[source["name"]])} for source in document["sources"]]
    kept = np.concatenate([ids_of(batch)[0] for batch in Pipeline.from_dict(document).batches()])
    assert len(kept) > 500
    assert (kept % 97 <= 50).all()


def test_lengths_are_balanced_within_each_source(tmp_path: Path):
    rng = np.random.default_rng(0)
    for name, first in (("clicks", 0), ("views", VIEWS)):
        lengths = rng.integers(1, 100, 800)
        lists = pa.array([[1] * length for length in lengths.tolist()], pa.list_(pa.int64()))
        (tmp_path / name).mkdir()
        table = pa.table({"id": np.arange(first, first + 800), "history": lists})
        pq.write_table(table, tmp_path / name / "a.parquet", row_group_size=50)
    document = mixed_pipeline(
        tmp_path,
        features={"sparse": {"history": []}, "extra": ["id"]},
        batch={"size": 20, "balance": "history"},
        shuffle={"window_rows": 400},
        lanes=2,
    )
    document["sources"] = [{"name": name, "table": str(tmp_path / name), "weight": 1} for name in NAMES]
    balanced = list(Pipeline.from_dict(document).batches())
    assert all(((ids_of(batch, 2) >= VIEWS).sum(axis=1) == 10).all() for batch in balanced)
    assert len({id for batch in balanced for id in ids_of(batch).ravel().tolist()}) == 40 * len(balanced)
