"""Pipelines with deduplicated groups give the rows of the same pipelines without them, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from pipelines import PATIENCE_S, Place, furnished
from stored_runs import write_in_place
from typer.testing import CliRunner

from feedline import FeedlineDataset, Pipeline
from feedline.cli import app
from feedline.commands.schema import describe_schema
from feedline.errors import SpecError, StateError
from feedline.loader.tensors.slot_tensors import InverseColumn

ROWS = 3_000
USER = {"user": {"columns": ["age", "city"]}}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    """Sessions of 1 to 12 rows. Within a session, user columns change now and then; histories hold nulls, empty lists
    and lists of equal length; scores hold NaN and zeros of both signs."""
    folder = tmp_path_factory.mktemp("dedup")
    rng = np.random.default_rng(5)
    session = np.repeat(np.arange(ROWS), rng.integers(1, 13, ROWS))[:ROWS]
    version = session * 100 + (rng.random(ROWS) < 0.1).cumsum()  # of a user's values
    pool = rng.integers(0, 4, ROWS * 2)
    of_version = pool[np.unique(version, return_inverse=True)[1]]
    histories = [[], [1, 2], [1, 3], None]
    scores = [[0.5, -0.0], [0.5, 0.0], [float("nan")], []]
    table = pa.table(
        {
            "row": np.arange(ROWS),
            "session": session,
            "age": pa.array([[1.0, 2.0, None, 0.0][v] for v in of_version], pa.float64()),
            "city": pa.array([["a", "b", None, "c"][v] for v in of_version]),
            "hist": pa.array([histories[v] for v in of_version], pa.list_(pa.int64())),
            "score": pa.array([scores[v] for v in of_version], pa.list_(pa.float32())),
            "item": rng.integers(0, 9, ROWS),
            "tags": pa.array([list(range(v % 3)) for v in rng.integers(0, 9, ROWS)], pa.list_(pa.int64())),
            "clicked": rng.integers(0, 2, ROWS),
        }
    )
    for part, start in enumerate(range(0, ROWS, 1100)):
        path = folder / "table" / f"ds={part}" / "part.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(table.slice(start, 1100), path, row_group_size=300)
    (folder / "place").mkdir()
    with furnished(folder / "place", folder / "table") as place:
        yield place


@pytest.fixture(scope="module")
def stored(place: Place, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table with user columns stored once per run, but for one partition, whose groups are others."""
    folder = tmp_path_factory.mktemp("stored")
    for part in range(3):
        table = pq.read_table(place.table / f"ds={part}" / "part.parquet", partitioning=None)
        rows = table.select(["session", "age", "city", "hist", "score"]).to_pylist()
        starts = [index == 0 or str(row) != str(rows[index - 1]) for index, row in enumerate(rows)]
        groups = {"a": ["city", "hist", "age"], "b": ["score"]} if part != 1 else {"c": ["score", "tags"]}
        flags = {"a": starts, "b": starts, "c": [True] * len(rows)}
        write_in_place(folder / f"ds={part}" / "part.parquet", table, groups, flags, 300)
    return folder


FEATURES: dict[str, Any] = {
    "dense": {
        "age": [{"fill_null": -1}],
        "item_number": {"column": "item"},
        "both": {"expr": "coalesce(age, 0) + item"},
    },
    "categorical": {
        "city": [{"fill_null": "none"}, {"hash_bucket": 50}],
        "item": [{"modulo": 7}],
        "known": {"column": "city", "ops": [{"vocabulary": {"min_count": 800}}]},
    },
    "sparse": {"tags": [], "hist": [], "first": {"column": "hist", "ops": [{"first_x": 1}]}, "score": []},
    "label": {"clicked": []},
    "extra": ["row"],
}
GROUPS = {"user": {"columns": ["age", "city"]}, "lists": {"columns": ["hist", "score"]}}


def pipeline(place: Place, *, dedup: bool, **changes: Any) -> Pipeline:
    rows = changes.get("source", {})  # what is fitted on other rows is another pipeline's
    settings = {
        "name": "_".join(["clicks", *rows]),
        "features": FEATURES,
        "batch": {"size": 128, "tail": "pad"},
        "fit": "auto",
        **changes,
        "dedup": changes.get("dedup_groups", GROUPS) if dedup else None,
    }
    settings.pop("dedup_groups", None)
    return Pipeline.from_yaml(place.write(f"{'dedup' if dedup else 'plain'}.yaml", **settings))


CHANGES: list[dict[str, Any]] = [
    {"shuffle": {"by": "session", "seed": 1, "window_rows": 700}},
    {"shuffle": "off", "source": {"where": "item < 6 and row % 5 != 0"}},
    {"shuffle": {"rows": False, "seed": 2}, "source": {"sample": {"fraction": 0.5, "seed": 1}}, "lanes": 2},
]


@pytest.mark.parametrize(
    ("changes", "chunk_rows"),
    [
        pytest.param(changes, rows, marks=pytest.mark.nightly if rows > 77 and number else ())
        for number, changes in enumerate(CHANGES)
        for rows in (32_768, 77)
    ],
)
def test_expanded_batches_are_those_without_deduplication(
    place: Place, changes: dict[str, Any], chunk_rows: int, monkeypatch: pytest.MonkeyPatch
):
    """In any order, with filters and samples that drop first rows of runs, cut into chunks, resumed, on two ranks."""
    for module in ("piece_chunks", "block_encoder"):
        monkeypatch.setattr(f"feedline.blocks.{module}.CHUNK_ROWS", chunk_rows)
    monkeypatch.setattr("feedline.blocks.block_encoder.RUN_ROWS", chunk_rows)
    plain, dedup = (pipeline(place, dedup=each, **changes) for each in (False, True))
    lanes = changes.get("lanes", 1)
    for rank in range(lanes):
        rows = unique = 0
        for wanted, found in zip(
            plain.batches(1, rank, lanes, step=2), dedup.batches(1, rank, lanes, step=2), strict=True
        ):
            assert found.expanded()._root.tobytes() == wanted._root.tobytes()
            assert torch.equal(found.all_dense, wanted.dense)
            assert torch.equal(found.all_categorical, wanted.categorical)
            assert found.all_dense.stride() == wanted.dense.stride()
            assert found.all_categorical.stride() == wanted.categorical.stride()
            assert wanted.all_dense is wanted.dense
            for group in found.groups.values():
                inverse = group.inverse[found.valid].numpy()
                assert set(np.diff(inverse)) <= {0, 1}
                assert inverse[0] == 0
            rows += found.rows
            unique += found.groups["user"].unique_rows
        assert 0 < unique < 0.8 * rows


@pytest.mark.parametrize(
    ("shuffle", "where"),
    [
        ({"by": "session", "seed": 1, "window_rows": 700}, "city == 'a' or item > 4"),
        ({"rows": True, "seed": 3}, "hist is not None"),
        pytest.param("off", None, marks=pytest.mark.nightly),
    ],
)
def test_columns_stored_once_per_run_give_the_batches_of_the_plain_table(
    place: Place, stored: Path, shuffle: Any, where: str | None, monkeypatch: pytest.MonkeyPatch
):
    """With groups and without; under any shuffle without. A chunk begins in the middle of a run."""
    for module in ("piece_chunks", "block_encoder"):
        monkeypatch.setattr(f"feedline.blocks.{module}.CHUNK_ROWS", 77)
    monkeypatch.setattr("feedline.blocks.block_encoder.RUN_ROWS", 100)
    for dedup in [False, True][: 1 if isinstance(shuffle, dict) and shuffle.get("rows") else 2]:
        wanted, found = (
            pipeline(place, dedup=dedup, shuffle=shuffle, name=table.name, source={"where": where, "table": str(table)})
            for table in (place.table, stored)
        )
        for one, other in zip(wanted.batches(0, 0, 1), found.batches(0, 0, 1), strict=True):
            assert one.expanded()._root.tobytes() == other.expanded()._root.tobytes()
        assert found.quality() == wanted.quality()


def test_quality_counts_rows(place: Place):
    counts = []
    for each in (pipeline(place, dedup=dedup, shuffle="off") for dedup in (False, True)):
        assert sum(batch.rows for batch in each.batches())
        counts.append(each.quality())
    assert counts[0] == counts[1]
    assert counts[0]["known"]["oov"] > 0
    assert counts[0]["score"]["nonfinite"] > 0


def test_a_dataset_gives_groups_and_a_state_belongs_to_them(place: Place):
    path = place.write(
        "set.yaml", fit="auto", features=FEATURES, dedup=GROUPS, shuffle="off", batch={"size": 128, "tail": "drop"}
    )
    wanted = list(pipeline(place, dedup=False, shuffle="off", batch={"size": 128, "tail": "drop"}).batches())
    with FeedlineDataset(path, timeout=PATIENCE_S) as dataset:
        for index, batch in enumerate(dataset):
            assert batch.expanded()._root.tobytes() == wanted[index]._root.tobytes()
            if index == 3:
                state = dataset.state_dict()
                break
    with pytest.raises(StateError, match="features"):
        pipeline(place, dedup=False, shuffle="off", batch={"size": 128, "tail": "drop"}).plan_for(state)


def test_the_described_tensors_are_those_of_a_batch(place: Place):
    dedup = pipeline(place, dedup=True, shuffle="off")
    batch = next(dedup.batches())
    facts = describe_schema(dedup.schema, 128)
    assert {each["tensor"]: each["shape"] for each in facts["tensors"]} == {
        "dense": [128, 2],
        "categorical": [128, 1],
        "labels": [128, 1],
        'groups["user"].dense': [None, 1],
        'groups["user"].categorical': [None, 2],
    }
    for each in facts["features"]:
        shown, value = eval(f"batch.{each['tensor']}"), batch[each["name"]]
        if isinstance(value, torch.Tensor | InverseColumn):
            assert torch.equal(shown, value.values if isinstance(value, InverseColumn) else value)
        else:
            assert shown is value


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dedup": USER, "shuffle": {"seed": 1}}, "dedup.user: .*`shuffle: {by: COLUMN}`"),
        (
            {"features": {"dense": {"age": {"column": "age", "dedup": "user"}}, "label": {"clicked": []}}},
            r"bad.yaml:\d+:\d+: features.dense.age.dedup: unknown key of a feature: got 'dedup'",
        ),
    ],
)
def test_bad_groups_are_refused_when_the_pipeline_is_read(place: Place, change: dict[str, Any], message: str):
    settings = {"features": FEATURES, "shuffle": "off", **change}
    with pytest.raises(SpecError, match=message):
        Pipeline.from_yaml(place.write("bad.yaml", **settings))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dedup": {"g": {"columns": ["age", "cty"]}}}, r"bad.yaml:\d+:\d+: dedup.g.columns: .*'cty', .* mean `city`"),
        ({"dedup": {"g": {"columns": ["session"]}}}, "no feature belongs to the group 'g': no feature reads session"),
        (
            {"features": {"dense": {"day": {"column": "ds"}}}, "dedup": {"g": {"columns": ["ds"]}}},
            "dedup.g: group 'g' reads partition keys alone: got ds, which are constant",
        ),
    ],
)
def test_groups_that_do_not_fit_the_table_are_refused_before_a_run(place: Place, changes: dict[str, Any], message: str):
    settings = {"features": FEATURES, "shuffle": "off", "fit": "auto", **changes}
    path = place.write("bad.yaml", **settings)
    with pytest.raises(SpecError, match=message):
        Pipeline.from_yaml(path).plan()
    if "partition" not in message:
        shown = CliRunner().invoke(app, ["check", str(path)])
        assert isinstance(shown.exception, SpecError)


@pytest.mark.parametrize(("fold_by", "where"), [("row", "item < 5"), ("session", "row % 10 < 9")])
def test_rows_that_a_fit_has_seen_repeat_no_others(place: Place, fold_by: str, where: str):
    """An out-of-fold encoding depends on its fold, and on whether the fit has seen the row: both are compared."""
    encoding = {"target_encoding": {"target": "clicked", "fold_by": fold_by, "smoothing": 1}}
    plain, dedup = (
        pipeline(
            place,
            dedup=bool(groups),
            dedup_groups=groups,
            name=f"folds_{fold_by}",
            features={"dense": {"rate": {"column": "city", "ops": [encoding]}}, "extra": ["row"]},
            fit={"auto": True, "where": where},
            shuffle="off",
        )
        for groups in ({}, {"user": {"columns": ["city", fold_by]}})
    )
    rows = unique = 0
    for wanted, found in zip(plain.batches(), dedup.batches(), strict=True):
        assert found.expanded()._root.tobytes() == wanted._root.tobytes()
        rows, unique = rows + int(found.valid.sum()), unique + found.groups["user"].unique_rows
    assert unique == rows if fold_by == "row" else unique < 0.8 * rows
