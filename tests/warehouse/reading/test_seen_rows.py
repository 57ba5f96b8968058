"""Does a row that a fit has seen get what has not seen it, and any other row what serving gives it?

The oracle works the encodings out of the definitions in docs/ops.md and docs/snapshots.md: hash, folds and smoothing in
Python's own numbers, for each row by itself.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fit_in_memory import fit_frames

from feedline import Pipeline, Table
from feedline.blocks.compute import run_block
from feedline.commands.head import preview
from feedline.errors import FeedlineError
from feedline.planning.plan import Plan
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import InMemoryArtifacts
from feedline.warehouse.discovery.hive import matches_any
from feedline.warehouse.reading.fragment import fragment_at
from feedline.warehouse.reading.read import ReadRequest, read_fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.reading.seen_rows import TableRows, bind_marks, rows_seen, rows_seen_by_any
from feedline.warehouse.snapshot.take import take_snapshot
from feedline.workbench.explain.op_costs import describe_ops

FOLDS, SMOOTHING, DAYS, PER_DAY = 4, 3.0, 4, 60
WORD = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15
RANDOM = np.random.default_rng(1)
SIZE = DAYS * PER_DAY
ROWS = pd.DataFrame(
    {
        "day": np.repeat(np.arange(DAYS), PER_DAY),
        "request": RANDOM.permutation(10 * SIZE)[:SIZE],
        "shop": RANDOM.integers(0, 7, SIZE),
        "price": np.where(RANDOM.random(SIZE) < 0.2, np.nan, RANDOM.gamma(2, 4, SIZE)),
        "clicked": RANDOM.integers(0, 2, SIZE),
    }
)
ENCODING = {"target": "clicked", "fold_by": "request", "folds": FOLDS, "smoothing": SMOOTHING}


def mix(word: int) -> int:
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & WORD
    return word ^ word >> 31


def hashed(value: int, seed: int = 0) -> int:
    return mix((value + (seed + 1) * GOLDEN) & WORD)


def rate(learnt: pd.DataFrame, shop: int) -> float:
    """(sum + mean * smoothing) / (count + smoothing), of the rows that were learnt from."""
    own = learnt[learnt["shop"] == shop]["clicked"]
    mean = learnt["clicked"].sum() / len(learnt)
    return float((own.sum() + mean * SMOOTHING) / (len(own) + SMOOTHING))


def oracle(rows: pd.DataFrame, learnt: pd.DataFrame) -> dict[int, float]:
    """By request: without its own fold for a row that was learnt from, over all that were for any other."""
    folds = learnt["request"].map(lambda value: hashed(int(value)) % FOLDS)
    seen = set(learnt["request"])
    return {
        request: rate(learnt[folds != hashed(request) % FOLDS] if request in seen else learnt, shop)
        for request, shop in zip(rows["request"].tolist(), rows["shop"].tolist(), strict=True)
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for day in range(DAYS):
        (tmp_path / "table" / f"day={day}").mkdir(parents=True)
        part = pl.from_pandas(ROWS[ROWS["day"] == day].drop(columns="day"), nan_to_null=True)
        part.write_parquet(tmp_path / "table" / f"day={day}" / "a.parquet", row_group_size=23)
    return tmp_path


def write(folder: Path, source: dict[str, Any] | None = None, **sections: Any) -> Path:
    document = {
        "version": 1,
        "name": "shops",
        "source": {"table": "table", "split_rows": 40, **(source or {})},
        "features": {
            "dense": {"rate": {"column": "shop", "ops": [{"target_encoding": ENCODING}]}},
            "extra": ["request"],
        },
        "batch": {"size": 32, "tail": "partial"},
        **sections,
    }
    path = folder / "p.yaml"
    path.write_text(json.dumps(document))
    return path


def delivered(path: Path, plan: Plan | None = None, **overrides: Any) -> dict[int, float]:
    found: dict[int, float] = {}
    for batch in Pipeline.from_yaml(path, {key.replace("__", "."): value for key, value in overrides.items()}).batches(
        plan=plan
    ):
        found |= dict(zip(batch.extra["request"].tolist(), batch["rate"].tolist(), strict=True))
    return found


def same(found: dict[int, float], expected: dict[int, float]) -> None:
    assert found.keys() == expected.keys()
    np.testing.assert_allclose([found[key] for key in expected], list(expected.values()), rtol=1e-6)


def on(condition: Callable[[pd.DataFrame], Any]) -> pd.DataFrame:
    return ROWS[condition(ROWS)]


def test_training_evaluation_the_next_day_and_serving(folder: Path):
    path = write(folder, {"where": "day < 2"})
    Pipeline.from_yaml(path).fit()
    learnt = on(lambda rows: rows["day"] < 2)
    same(delivered(path), oracle(learnt, learnt))
    for where, read in (
        ("day == 3", on(lambda rows: rows["day"] == 3)),
        ("day >= 1 and day < 3", on(lambda rows: (rows["day"] >= 1) & (rows["day"] < 3))),
        ("day < 2 and shop > 2", on(lambda rows: (rows["day"] < 2) & (rows["shop"] > 2))),
    ):
        same(delivered(path, source__where=where), oracle(read, learnt))
    whole = {shop: rate(learnt, shop) for shop in range(7)}
    served = Pipeline.from_yaml(path).transform({"shop": list(range(7))})
    np.testing.assert_allclose(served.dense[:, 0], list(whole.values()), rtol=1e-6)
    held_out = delivered(path, source__where="day == 3", shuffle="off")
    assert list(held_out.values()) == served.dense[ROWS["shop"][ROWS["day"] == 3], 0].tolist(), "every bit is serving's"
    same(delivered(path, fit__out_of_fold=False), {row.request: whole[row.shop] for row in learnt.itertuples()})


def test_rows_of_a_run_that_its_own_fit_leaves_out(folder: Path):
    """Where the fit's filter is null, too: a row without a price was not learnt from."""
    path = write(folder, {"where": "day < 3"}, fit={"where": "price > 5 and day < 2"})
    Pipeline.from_yaml(path).fit()
    learnt = on(lambda rows: (rows["price"] > 5) & (rows["day"] < 2))
    same(delivered(path), oracle(on(lambda rows: rows["day"] < 3), learnt))


def sampled(rows: pd.DataFrame, sample: dict[str, Any]) -> pd.DataFrame:
    """The rows of a sample by the definition in docs/snapshots.md; days lie in one file each."""
    kept = []
    for day, row in zip(rows["day"], rows.to_dict("records"), strict=True):
        place = list(ROWS["request"][ROWS["day"] == day]).index(row["request"])
        if "key" in sample:
            word = hashed(int(row[sample["key"]]), sample.get("seed", 0))
        else:
            text = f"day={day}/a.parquet".encode()
            words = [int.from_bytes(text[at : at + 8], "little") for at in range(0, len(text), 8)]
            digest = len(text) + sum(mix((word + (at + 1) * GOLDEN) & WORD) for at, word in enumerate(words))
            word = mix((hashed(digest & WORD, sample.get("seed", 0)) + (place + 1) * GOLDEN) & WORD)
        chosen = word < int(sample["fraction"] * 2**64)
        kept.append(chosen if row["shop"] % 2 == 0 or "where" not in sample else True)
    return rows[kept]


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param({"fraction": 0.5}, marks=pytest.mark.nightly),
        {"fraction": 0.5, "key": "request", "seed": 3},
        {"fraction": 0.25, "where": "shop % 2 == 0"},
    ],
)
def test_rows_outside_the_sample_of_the_fit_are_unseen(folder: Path, sample: dict[str, Any]):
    path = write(folder, {"where": "day < 2", "sample": sample})
    Pipeline.from_yaml(path).fit()
    train = on(lambda rows: rows["day"] < 2)
    learnt = sampled(train, sample)
    assert 0 < len(learnt) < len(train)
    same(delivered(path), oracle(learnt, learnt))
    overrides = {"source__sample": None, "source__where": "day < 3", "artifacts__from": "shops"}
    same(delivered(path, **overrides), oracle(on(lambda rows: rows["day"] < 3), learnt))


def test_a_later_fit_learns_from_the_values_of_runs(folder: Path):
    """It goes through an encoding that was kept, of fewer rows: those that came since count as in a run."""
    path = write(folder, {"where": "day < 2"})
    Pipeline.from_yaml(path).fit()
    scaled = {"column": "shop", "ops": [{"target_encoding": ENCODING}, "standardize"]}
    rate = {"column": "shop", "ops": [{"target_encoding": ENCODING}]}
    path = write(
        folder, {"where": "day < 3"}, features={"dense": {"rate": rate, "scaled": scaled}, "extra": ["request"]}
    )
    Pipeline.from_yaml(path).fit(missing=True)
    rows, learnt = on(lambda rows: rows["day"] < 3), on(lambda rows: rows["day"] < 2)
    expected = oracle(rows, learnt)
    same(delivered(path), expected)
    mean, deviation = np.mean(list(expected.values())), np.std(list(expected.values()))
    for batch in Pipeline.from_yaml(path).batches():
        wanted = [(expected[request] - mean) / deviation for request in batch.extra["request"].tolist()]
        np.testing.assert_allclose(batch["scaled"].numpy(), wanted, atol=1e-6)


def test_files_that_the_fit_did_not_read(folder: Path):
    """A table of files: those of the fit are known by their names, whatever else lies in the folder."""
    learnt = on(lambda rows: rows["day"] < 2)
    path = write(folder, {"table": ["table/day=0", "table/day=1/*.parquet"]})
    Pipeline.from_yaml(path).fit()
    same(delivered(path), oracle(learnt, learnt))
    for table, days in (
        ("table/day=3/a.parquet", [3]),
        (["table/day=1/a.parquet", "table/day=2"], [1, 2]),
        ("table", [0, 1, 2, 3]),
    ):
        read = on(lambda rows, days=days: rows["day"].isin(days))
        names = [table] if isinstance(table, str) else table
        overrides = {"source__table": [str(folder / name) for name in names], "artifacts__from": "shops"}
        same(delivered(path, **overrides), oracle(read, learnt))


def test_where_every_row_was_seen_nothing_more_is_read_and_fingerprints_stay(folder: Path):
    path = write(folder, {"where": "day < 2 and price > 0"})
    pipeline = Pipeline.from_yaml(path)
    pipeline.fit()
    learnt = pl.from_pandas(on(lambda rows: (rows["day"] < 2) & (rows["price"] > 0)))
    plan, schema = pipeline.plan(), pipeline.snapshot().schema
    known = fit_frames(plan.spec.features, schema, [learnt])
    plain = compile_features(plan.spec.features, schema, InMemoryArtifacts(artifacts=known.artifacts, out_of_fold=True))
    assert plan.source.features.marks == ()
    assert plan.source.features.fingerprint == plain.fingerprint
    assert plan.source.parts == ("request", "shop", "day", "price")
    held_out = Pipeline.from_yaml(path, {"source.where": "day == 3"}).plan()
    assert len(held_out.source.features.marks) == 1
    assert held_out.source.features.fingerprint != plain.fingerprint
    assert set(held_out.source.parts) == {"request", "shop", "day", "price"}
    assert [column.name for column in held_out.layout.schema] == ["rate", "request"]


def test_columns_read_for_marks_are_counted(folder: Path):
    path = write(folder, {"where": "day < 2"}, fit={"where": "price > 5"})
    pipeline = Pipeline.from_yaml(path)
    pipeline.fit()
    plan = pipeline.plan()
    stored = dict.fromkeys(("request", "shop", "price"), 0)
    for day in (0, 1):
        metadata = pq.read_metadata(folder / "table" / f"day={day}" / "a.parquet")
        for group in range(metadata.num_row_groups):
            for place in range(metadata.num_columns):
                chunk = metadata.row_group(group).column(place)
                if chunk.path_in_schema in stored:
                    stored[chunk.path_in_schema] += chunk.total_compressed_size
    assert "price" in plan.source.columns
    assert int(plan.source.row_group_bytes[plan.source.selection.rows > 0].sum()) == sum(stored.values())
    blocks = [block for lane in range(plan.lanes) for block in plan.source.schedule(0).blocks(lane)]
    assert sum(plan.request(block, 0).nbytes for block in blocks) >= sum(stored.values())


def test_blocks_dask_frames_and_reports_mark_seen_rows(folder: Path):
    path = write(folder, {"where": "day < 2"}, shuffle="off")
    Pipeline.from_yaml(path).fit()
    learnt = on(lambda rows: rows["day"] < 2)
    overrides = {"source.where": "day > 0"}
    plan = Pipeline.from_yaml(path, overrides).plan()
    expected = oracle(on(lambda rows: rows["day"] > 0), learnt)
    found: dict[int, float] = {}
    for block in plan.source.schedule(0).blocks(0):
        job, request = pickle.loads(pickle.dumps((plan.source.job, plan.request(block, 0))))
        for part in run_block(job, request, "block", False).parts or ():
            found |= dict(zip(part.extra[0].to_pylist(), part.dense[:, 0].tolist(), strict=True))
    same(found, expected)
    frame = Pipeline.from_yaml(path, overrides).to_dask().compute(scheduler="synchronous")
    same(dict(zip(frame["request"].tolist(), frame["rate"].tolist(), strict=True)), expected)
    first = preview(plan.spec, 40)["features"]
    same(dict(zip(first[1]["value"], first[0]["value"], strict=True)), dict(list(expected.items())[:40]))
    [feature, _] = describe_ops(plan.source)["features"]
    assert feature["reads"] == ["request", "shop"]
    assert feature["ms_per_million_values"] is not None


def test_a_filter_of_the_fit_that_this_table_cannot_answer(folder: Path):
    path = write(folder, {"where": "day < 2"}, fit={"where": "price > 5"})
    Pipeline.from_yaml(path).fit()
    for day in range(DAYS):
        file = folder / "table" / f"day={day}" / "a.parquet"
        pl.read_parquet(file, hive_partitioning=False).drop("price").write_parquet(file)
    with pytest.raises(
        FeedlineError,
        match=r"which rows of this table it has seen: got unknown column `price`.*out_of_fold: false",
    ):
        delivered(path)
    whole = delivered(path, fit__out_of_fold=False)
    assert len(whole) == 2 * PER_DAY


@pytest.mark.parametrize(
    ("fit", "read", "expected"),
    [
        ({"where": "a > 1"}, {"where": "a > 1"}, True),
        ({}, {"where": "a > 1"}, True),
        ({"root": "/other"}, {}, False),
        ({"root": "/w/t2"}, {}, False),
        ({"where": "a > 1"}, {}, 'seen by [null,"a > 1",null]'),
        ({"sample": Sample(fraction=0.5)}, {"sample": Sample(fraction=0.5)}, True),
        (
            {"sample": Sample(fraction=0.5)},
            {"sample": Sample(fraction=0.5, seed=1)},
            'seen by [null,null,{"fraction":0.5,"where":null,"seed":0,"key":[]}]',
        ),
        ({"sources": ("/w/t/a",)}, {"sources": ("/w/t/a",)}, True),
        ({"sources": ("/w/t/a",)}, {"sources": ("/w/t/b",)}, 'seen by [["/w/t","/w/t/a"],null,null]'),
        ({}, {"root": "/w/t/day"}, 'seen by [["/w/t"],null,null]'),
    ],
)
def test_which_rows_were_seen(fit: dict[str, Any], read: dict[str, Any], expected: bool | str):
    assert rows_seen(TableRows(**{"root": "/w/t", **fit}), TableRows(**{"root": "/w/t", **read})) == expected


def test_a_fit_of_several_sources_has_seen_what_one_of_them_sampled(tmp_path: Path):
    """By position, in every row group."""
    pq.write_table(pa.table({"x": range(100)}), tmp_path / "a.parquet", row_group_size=30)
    snapshot = take_snapshot(str(tmp_path))
    fits = [TableRows(root=snapshot.uri, where="x < 0"), TableRows(root=snapshot.uri, sample=Sample(fraction=0.5))]
    name = rows_seen_by_any(fits, TableRows(root=snapshot.uri))
    marks = bind_marks([str(name)], snapshot.schema)
    fragment = fragment_at(snapshot, 0, np.arange(4), np.array([30, 30, 30, 10]))
    chunks = read_fragment(fragment, ReadRequest(["x"], snapshot.schema, marks=marks))
    seen = [seen for chunk in chunks for seen in chunk.frame[name].to_list()]
    learnt = Table(tmp_path).read(["x"], sample={"fraction": 0.5})["x"].to_pylist()
    assert [row for row in range(100) if seen[row]] == learnt


def test_files_by_their_names():
    assert matches_any("s3://b/t/x=1/a.parquet", ["s3://b/t"])
    assert matches_any("/t/a.parquet", ["/t/b.parquet", "/t/a.parquet"])
    assert matches_any("/t/x=1/a.parquet", ["/t/x=*"])
    assert matches_any("/t/x=1/y=2/a.parquet", ["/t/**/*.parquet"])
    assert matches_any("/[t]/a.parquet", ["/[t]"])
    assert not matches_any("/t/a.parquet", ["/t/a"])
    assert not matches_any("/tt/a.parquet", ["/t"])
    assert not matches_any("/t/x=2/a.parquet", ["/t/x=1", "/t/x=1*"])
