"""Every flow that meets a pipeline with deduplicated groups does what it does for the same pipeline without them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import dask
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished, image
from processes import ended_here
from receipts import audit_receipts, receipt_of
from rewritten import state_at
from schedulers import local_cluster

from feedline import FeedlineDataset, Pipeline, Table
from feedline.errors import DataError, SpecError, StateError
from feedline.loader.batch import Batch
from feedline.workbench.generate.clicks import ClickRecipe
from feedline.workbench.generate.generate import generate_clicks

ROWS, BATCH = 1_600, 48
BY_SESSION = {"by": "session_id", "seed": 3, "window_rows": 300}
FIRST_DAY = "ds=2026-01-01"
RECIPE = {"rows": ROWS, "days": 2, "dense": 4, "ids": 4, "strings": 1, "histories": 2, "history_min": 0}


@pytest.fixture(scope="module")
def plain_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clicks of two days clustered by session, every value in every row; read it only."""
    folder = tmp_path_factory.mktemp("plain") / "clicks"
    generate_clicks(str(folder), ClickRecipe(**RECIPE, history_max=9, row_group_rows=200))
    return folder


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory, plain_table: Path) -> Path:
    """The same rows: those of the second day store two groups once per run, those of the first are as they were."""
    folder = tmp_path_factory.mktemp("table") / "clicks"
    groups = ("--dedup", "user=dense_{0..1},id_0", "--dedup", "viewed=hist_0")
    done = ended_here("optimize", plain_table, folder, "--row-group-rows", 200, *groups)
    assert done.returncode == 0, done.stderr
    for path in folder.glob(f"{FIRST_DAY}/*.parquet"):
        path.unlink()
    for path in plain_table.glob(f"{FIRST_DAY}/*.parquet"):
        shutil.copy(path, folder / FIRST_DAY)
    return folder


@pytest.fixture
def place(tmp_path: Path, table: Path) -> Iterator[Place]:
    with furnished(tmp_path, table) as place:
        yield place


DEDUP = {
    "user": {"columns": ["dense_{0..1}", "id_0"]},
    "viewed": {"columns": ["hist_0"]},
    "bought": {"columns": ["hist_1"]},
}


def features(**more: Any) -> dict[str, Any]:
    def of(column: str, *ops: Any) -> dict[str, Any]:
        return {"column": column, "ops": [*ops]}

    return {
        "dense": {
            "age": of("dense_0", {"fill_null": 0}, "standardize"),
            "price": {"column": "dense_3", "ops": [{"fill_null": 0}]},
            "visits": of("dense_1", {"fill_null": -1}),
        },
        "categorical": {"city": of("id_0", {"hash_bucket": 50}), "item": {"column": "id_3"}},
        "sparse": {
            "viewed": of("hist_0", {"vocabulary": {"min_count": 3}}),
            "bought": of("hist_1", {"first_x": 4}),
        },
        "label": {"clicked": []},
        "extra": ["request_id", "session_id"],
        **more,
    }


def pipeline(place: Place, groups: bool, **changes: Any) -> Pipeline:
    """The pipeline with or without groups; both have one name, so artifacts of one are those of the other."""
    path = path_of(place, groups)
    settings = {
        "name": "flows",
        "features": features(),
        "dedup": DEDUP if groups else None,
        "fit": "auto",
        "batch": {"size": BATCH, "tail": "drop"},
        "shuffle": BY_SESSION,
        **changes,
    }
    place.write(path.name, **settings)
    return Pipeline.from_yaml(path)


def path_of(place: Place, groups: bool) -> Path:
    return place.folder / ("dedup.yaml" if groups else "plain.yaml")


def both(place: Place, **changes: Any) -> tuple[Pipeline, Pipeline]:
    return pipeline(place, False, **changes), pipeline(place, True, **changes)


def expanded(batches: Iterator[Batch]) -> list[bytes]:
    return [image(batch.expanded()) for batch in batches]


def delivered(batches: Iterator[Batch]) -> list[int]:
    return [row for batch in batches for row in batch.extra["request_id"][batch.valid].tolist()]


@pytest.mark.parametrize("tail", ["pad", pytest.param("partial", marks=pytest.mark.nightly)])
def test_padding_points_to_an_existing_unique_row(place: Place, tail: str):
    """Of lanes that end at different steps; a lane without rows of its own left is padded, too."""
    few = {"lanes": 4, "batch": {"size": 7, "tail": tail}, "source": {"where": "request_id < 57"}}
    plain, dedup = both(place, **few)
    padded = 0
    for rank in range(4):
        batches = list(dedup.batches(0, rank, 4))
        assert expanded(iter(batches)) == [image(batch) for batch in plain.batches(0, rank, 4)]
        for batch in batches:
            padded += int((~batch.valid).sum())
            for group in batch.groups.values():
                assert 0 < group.unique_rows <= batch.rows
                assert set(group.inverse.tolist()) == set(range(group.unique_rows)), "a unique row of no row"
                for name in group.sparse:
                    assert len(batch.sparse[name].lengths) == group.unique_rows
    assert padded


def test_artifacts_are_fitted_on_rows_and_serve_both(place: Place, plain_table: Path):
    """`fit`, `transform` and its golden vectors: what one pipeline fits is what the other one has."""
    plain, dedup = both(place, fit=None)
    with pytest.raises(SpecError, match="not fitted: age: standardize"):
        next(dedup.batches())
    report = dedup.fit()
    assert report.rows == ROWS
    again = plain.fit(missing=True)
    assert (again.made, again.manifest) == (0, report.manifest), "a group is no reason to fit again"
    column = ds.dataset(plain_table).to_table(columns=["hist_0", "dense_0"])
    ages = column["dense_0"].fill_null(0).to_numpy().astype(np.float64)
    ids, counts = np.unique(pc.list_flatten(column["hist_0"]).to_numpy(), return_counts=True)
    row = {"dense_0": 2.5, "dense_1": None, "dense_3": 1.0, "id_0": 4, "id_3": 5, "hist_0": [int(ids[0])], "hist_1": []}
    served = dedup.transform(row)
    assert served.schema.dedup == ()
    assert served.dense[0, 0] == pytest.approx((2.5 - ages.mean()) / ages.std(), rel=1e-5)
    assert (served.sparse["viewed"].values[0] > 0) == (counts[0] >= 3)

    outputs = []
    for groups in (False, True):
        path, target = path_of(place, groups), place.folder / f"{groups}.parquet"
        assert ended_here("transform", path, "--check").returncode == 0
        done = ended_here("transform", path, place.table, target, "--groups", "dense,categorical,sparse,extra")
        assert done.returncode == 0, done.stderr
        outputs.append(pq.read_table(target))
    assert outputs[0].equals(outputs[1])
    assert outputs[0].num_rows == ROWS
    columns = ["request_id", "hist_0", "hist_1", "dense_0", "id_0"]
    wanted = ds.dataset(plain_table).to_table(columns=columns).sort_by("request_id")
    assert Table(place.table).read(columns=columns).sort_by("request_id").equals(wanted.replace_schema_metadata(None))


def test_plans_checks_and_frames_are_of_rows(place: Place):
    """`plan`, `check --deep` and `to_dask` of the two differ in the fingerprint of the features alone."""
    plain, dedup = both(place, source={"where": "dense_3 > 0.5"})
    dedup.fit()
    facts, counted = [], []
    for groups in (False, True):
        path = path_of(place, groups)
        planned, checked = ended_here("plan", path, "--json"), ended_here("check", path, "--deep", "--json")
        assert (planned.returncode, checked.returncode) == (0, 0), planned.stderr + checked.stderr
        facts.append(json.loads(planned.stdout))
        counted.append(json.loads(checked.stdout))
    for key in ("steps", "rows", "snapshot", "plan"):
        assert facts[0].get(key) == facts[1].get(key)
    assert [each["rows"] for each in counted] == [counted[0]["rows"]] * 2
    frames = [each.to_dask().compute(scheduler="synchronous") for each in (plain, dedup)]
    assert frames[0].to_json(orient="records") == frames[1].to_json(orient="records")
    states = [state_at(each.plan(), 0, 3) for each in (plain, dedup)]
    assert {key for key in states[0] if states[0][key] != states[1][key]} == {"features"}
    with pytest.raises(StateError, match="features"):
        dedup.plan_for(states[0])


def test_a_rebase_delivers_each_row_that_survives_once(place: Place, tmp_path: Path):
    """Sessions vanish from a file in mid-epoch, others move: the rest is that of the pipeline without groups."""
    changes = {
        "source": {"row_key": "request_id", "table": str(tmp_path / "table")},
        "batch": {"size": BATCH, "tail": "partial"},
    }
    shutil.copytree(place.table, tmp_path / "table")
    [copy] = (tmp_path / "table" / FIRST_DAY).glob("*.parquet")
    plain, dedup = both(place, **changes)
    step = 20
    dedup.fit()
    states = [state_at(each.plan(), 0, step) for each in (plain, dedup)]
    before = []
    for each, state in zip((plain, dedup), states, strict=True):
        epoch = each.batches(plan=each.plan_for(state))
        before.append(delivered(next(epoch) for _ in range(step)))
    assert before[0] == before[1]

    rows = pq.read_table(copy)
    kept = rows.filter(pc.not_equal(pc.bit_wise_and(rows["session_id"], 3), 0))
    order = np.argsort(-kept["session_id"].to_numpy(), kind="stable")
    pq.write_table(kept.take(pa.array(order)), copy, row_group_size=200)
    plans = [each.rebase(state) for each, state in zip((plain, dedup), states, strict=True)]
    rests = [
        each.batches(0, plan=plan, step=plan.state_after(state)["step"])
        for each, plan, state in zip((plain, dedup), plans, states, strict=True)
    ]
    wanted = list(rests[0])
    rest = list(rests[1])
    assert expanded(iter(rest)) == [image(batch) for batch in wanted]
    assert all(batch.groups["user"].unique_rows <= batch.rows for batch in rest)
    alive = set(Table(tmp_path / "table").read(columns=["request_id"])["request_id"].to_pylist())
    after = delivered(iter(rest))
    assert len(after) == len(set(after))
    assert set(after) == alive - set(before[1])


def test_a_log_in_order_of_time_deduplicates_once_it_is_clustered(place: Place, tmp_path: Path):
    """`optimize` makes the runs; the rows of the clustered table are those of the log."""
    log, clustered = tmp_path / "log", tmp_path / "clustered"
    recipe = ClickRecipe(**RECIPE, history_max=9, row_group_rows=200, clustered=False, sessions_mean=12)
    generate_clicks(str(log), recipe)
    done = ended_here("optimize", log, clustered, "--cluster-by", "session_id", "--sort-by", "ts")
    assert done.returncode == 0, done.stderr
    changes = {"shuffle": "off", "batch": {"size": 500, "tail": "partial"}}
    factors = []
    for source in (log, clustered):
        plain, dedup = both(place, source={"table": str(source)}, name=source.name, **changes)
        batches = list(dedup.batches())
        assert expanded(iter(batches)) == [image(batch) for batch in plain.batches()]
        factors.append(ROWS / sum(batch.groups["viewed"].unique_rows for batch in batches))
    assert factors[0] < 1.1
    assert factors[1] > 4


def test_errors_name_the_first_row_of_a_run_that_the_filter_leaves(place: Place, tmp_path: Path):
    """The run of equal rows begins with rows that `where` drops; the row named is one that would be trained on."""
    table = tmp_path / "infinite"
    table.mkdir()
    values = {"request_id": range(40), "session_id": [row // 20 for row in range(40)], "clicked": [0] * 40}
    pq.write_table(pa.table({**values, "x": [1.0] * 20 + [0.0] * 20}), table / "0.parquet", row_group_size=16)
    messages = []
    for groups in (False, True):
        infinite = {"expr": "1 / x", "on_nonfinite": "error"}
        only = {
            "features": {"dense": {"infinite": infinite}, "label": {"clicked": []}},
            "dedup": {"user": {"columns": ["x"]}} if groups else None,
        }
        source = {"table": str(table), "where": "request_id % 5 == 3"}
        broken = pipeline(place, groups, **only, source=source, shuffle="off", batch={"size": 4})
        with pytest.raises(DataError, match="'infinite' holds a value that is not finite") as caught:
            list(broken.batches())
        messages.append(str(caught.value).rpartition(" (")[2])
    assert messages[0] == messages[1]
    assert messages[1].endswith("row group 1, row 23)")


@pytest.mark.nightly  # by default: a dataset with its feeder in test_dedup_pipelines.py, receipts in test_receipts.py
@pytest.mark.parametrize("where", ["threads", "processes", "scheduler"])
def test_feeders_deliver_the_planned_rows_to_two_ranks(place: Place, where: str):
    """By the receipts of what comes out of a ring."""
    with (
        dask.config.set(temporary_directory=str(place.folder / "dask")),
        local_cluster() if where == "scheduler" else nullcontext() as cluster,
    ):
        places = {"threads": {"threads": 1}, "processes": {"workers": 2, "threads": 1}}
        section = {"scheduler": cluster.scheduler_address} if cluster else places[where]
        pipeline(place, True, lanes=2, cluster=section, batch={"size": BATCH, "tail": "pad"}).fit()
        receipts = []
        for rank in range(2):
            with FeedlineDataset(path_of(place, True), rank=rank, world_size=2) as dataset:
                receipts += [receipt_of(dataset, batch) for batch in dataset]
    audit = audit_receipts(pipeline(place, True, lanes=2, batch={"size": BATCH, "tail": "pad"}), receipts)
    assert (audit.differences, audit.missing, audit.again, audit.batches) == ([], [], [], len(receipts))
