"""Rows drawn by weight: in proportion to the weights, the same wherever they are computed, resumed and verified."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pipelines import Place, furnished, image, oracle
from receipts import audit_receipts, receipt_of
from typer.testing import CliRunner

from feedline import FeedlineDataset, Pipeline
from feedline.cli import app
from feedline.errors import DataError, PlanError, SpecError, StateError
from feedline.loader.state import state_of

ROWS, GROUP, HEAVY = 6_000, 500, 1_700
FEATURES: dict[str, Any] = {
    "dense": {"x": ["log1p"]},
    "categorical": {"word": [{"hash_bucket": 50}]},
    "sparse": {"ids": [{"modulo": 100}]},
    "extra": ["row"],
}


def weighted_table(folder: Path) -> pa.Table:
    """Two days; row HEAVY has a tenth of all weight, every fifth row none, and a whole row group none."""
    rng = np.random.default_rng(5)
    weight = rng.integers(1, 9, ROWS)
    weight[::5] = weight[2 * GROUP : 3 * GROUP] = 0
    weight[HEAVY] = weight.sum() // 9
    table = pa.table(
        {
            "row": np.arange(ROWS),
            "x": rng.random(ROWS).astype(np.float32),
            "word": [f"w{number}" for number in rng.integers(0, 40, ROWS)],
            "ids": [list(range(number % 5)) for number in range(ROWS)],
            "weight": weight,
            "share": weight / 2**10,
        }
    )
    for day in range(2):
        (folder / f"day={day}").mkdir(parents=True)
        part = table.slice(day * ROWS // 2, ROWS // 2)
        pq.write_table(part, folder / f"day={day}" / "a.parquet", row_group_size=GROUP)
    return table


@pytest.fixture(scope="module")
def weighted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, pa.Table]:
    folder = tmp_path_factory.mktemp("weighted") / "table"
    return folder, weighted_table(folder)


@pytest.fixture
def place(tmp_path: Path, weighted: tuple[Path, pa.Table]) -> Iterator[Place]:
    with furnished(tmp_path, weighted[0]) as place:
        yield place


def write(place: Place, **changes: Any) -> Path:
    shuffle = {"seed": 3, "window_rows": 2000, "weights": "weight"}
    document = {"features": FEATURES, "shuffle": shuffle, "batch": {"size": 128}, "lanes": 4, **changes}
    return place.write(**document)


def drawn(path: Path, epoch: int = 0, **options: Any) -> np.ndarray:
    batches = Pipeline.from_yaml(path).batches(epoch, **options)
    return np.concatenate([batch.extra["row"].numpy() for batch in batches])


def test_rows_are_drawn_in_proportion(place: Place, weighted: tuple[Path, pa.Table]):
    weight = weighted[1]["weight"].to_numpy()
    path = write(place, batch={"size": 125})  # 12 x 4 x 125 rows: an epoch drops nothing
    epochs = [np.bincount(drawn(path, epoch), minlength=ROWS) for epoch in range(8)]
    expected = weight / weight.sum() * ROWS
    by_group = expected.reshape(-1, GROUP).sum(axis=1)
    for counts in epochs:
        assert counts.sum() == ROWS
        assert not counts[weight == 0].any()
        assert (np.abs(counts.reshape(-1, GROUP).sum(axis=1) - by_group) < 1).all()  # rounded down or up
    assert not np.array_equal(epochs[0], epochs[1])
    total, some = np.sum(epochs, axis=0), weight > 0
    chi_square = ((total - 8 * expected)[some] ** 2 / (8 * expected[some])).sum() / some.sum()
    assert 0.9 < chi_square < 1.1
    assert np.var([counts[HEAVY] for counts in epochs]) > 0


def test_floats_weigh_the_rows_that_a_filter_keeps(place: Place, weighted: tuple[Path, pa.Table]):
    kept = weighted[1]["x"].to_numpy() < 0.5
    expected = np.where(kept, weighted[1]["share"].to_numpy(), 0)
    shuffle = {"seed": 3, "window_rows": 2000, "weights": "share"}
    path = write(place, source={"where": "x < 0.5"}, shuffle=shuffle, batch={"size": 16, "tail": "pad"})
    batches = [batch for epoch in range(8) for batch in Pipeline.from_yaml(path).batches(epoch)]
    rows = np.concatenate([batch.extra["row"].numpy()[batch.valid.numpy()] for batch in batches])
    counts = np.bincount(rows, minlength=ROWS)
    assert counts.sum() == 8 * kept.sum()
    expected *= counts.sum() / expected.sum()
    assert not counts[expected == 0].any()
    some = expected > 0
    assert 0.85 < ((counts - expected)[some] ** 2 / expected[some]).sum() / some.sum() < 1.15


def test_probabilities_of_a_large_table_are_told_apart(tmp_path: Path):
    """A column that sums to 1 over many rows: steps of 2^-24 would make all of these one."""
    rng = np.random.default_rng(2)
    weight = rng.choice([1e-9, 5e-9, 2e-8, 0.0], ROWS) * np.repeat([1.0, 1e-4], ROWS // 2)
    pq.write_table(pa.table({"row": np.arange(ROWS), "p": weight}), tmp_path / "t.parquet", row_group_size=GROUP)
    spec = {
        "version": 1,
        "name": "small",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "t.parquet")},
        "features": {"extra": ["row"]},
        "lanes": 4,
        "batch": {"size": 125},
        "shuffle": {"weights": "p"},
    }
    pipeline = Pipeline.from_dict(spec)
    rows = np.concatenate([batch.extra["row"].numpy() for epoch in range(20) for batch in pipeline.batches(epoch)])
    counts, expected = np.bincount(rows, minlength=ROWS), weight / weight.sum() * 20 * ROWS
    assert not counts[weight == 0].any()
    first, later = expected[: ROWS // 2], counts[ROWS // 2 :]
    assert abs(later.sum() - expected[ROWS // 2 :].sum()) <= 20 * ROWS // 2 // GROUP
    some = first > 0
    chi_square = ((counts[: ROWS // 2] - first)[some] ** 2 / first[some]).sum() / some.sum()
    assert 0.9 < chi_square < 1.1
    of_value = [counts[: ROWS // 2][weight[: ROWS // 2] == value].sum() for value in (1e-9, 5e-9, 2e-8)]
    wanted = [expected[: ROWS // 2][weight[: ROWS // 2] == value].sum() for value in (1e-9, 5e-9, 2e-8)]
    assert np.allclose(of_value, wanted, rtol=0.03)


def test_values_belong_to_their_rows(place: Place, weighted: tuple[Path, pa.Table]):
    table = weighted[1]
    for batch in Pipeline.from_yaml(write(place)).batches(1):
        rows = batch.extra["row"].numpy()
        assert np.array_equal(batch.dense[:, 0].numpy(), np.log1p(table["x"].to_numpy()[rows]))
        assert batch.sparse["ids"].lengths.tolist() == (rows % 5).tolist()
        starts = batch.sparse["ids"].offsets[:-1].numpy()
        assert (batch.sparse["ids"].values.numpy()[starts[rows % 5 > 0]] == 0).all()


@pytest.mark.parametrize(
    "cluster",
    [
        pytest.param({"threads": 2}, id="threads"),
        pytest.param({"processes": 2}, id="processes"),
        pytest.param({"workers": 2, "threads": 1}, id="workers", marks=pytest.mark.nightly),
    ],
)
def test_draws_are_those_of_the_oracle_wherever_they_are_computed(place: Place, cluster: dict[str, Any]):
    path = write(place, cluster=cluster, features={name: own for name, own in FEATURES.items() if name != "extra"})
    with FeedlineDataset(path) as dataset:
        for epoch in range(2):
            expected = oracle(path, epoch=epoch)
            assert len(dataset) == len(expected)
            assert [image(batch) for batch in dataset] == expected


def test_a_cache_keeps_rows_and_not_draws(place: Place):
    path = write(place)
    plain = [oracle(path, epoch=epoch) for epoch in range(2)]
    cached = write(place, cache={"dir": "kept", "mode": "features"})
    for _ in range(2):
        assert [oracle(cached, epoch=epoch) for epoch in range(2)] == plain


def test_world_sizes_and_resumed_runs_draw_alike(place: Place):
    path = write(place)
    steps = [set(zip(*np.unique(part, return_counts=True), strict=True)) for part in _steps(path, 1)]
    assert [set(zip(*np.unique(part, return_counts=True), strict=True)) for part in _steps(path, 2)] == steps
    with FeedlineDataset(path) as dataset:
        first = [image(batch) for batch in islice(dataset, 4)]
        state = json.loads(json.dumps(dataset.state_dict()))
    with FeedlineDataset(path) as dataset:
        dataset.load_state_dict(state)
        assert first + [image(batch) for batch in dataset] == oracle(path)


def _steps(path: Path, world_size: int) -> list[np.ndarray]:
    pipeline = Pipeline.from_yaml(path)
    ranks = [pipeline.batches(0, rank, world_size) for rank in range(world_size)]
    return [np.concatenate([batch.extra["row"].numpy() for batch in batches]) for batches in zip(*ranks, strict=True)]


def test_receipts_count_draws_and_a_step_lists_them(place: Place, weighted: tuple[Path, pa.Table], tmp_path: Path):
    path = write(place)
    with FeedlineDataset(path) as dataset:
        batches = list(islice(dataset, 3))
        rows = batches[2].extra["row"].numpy().tolist()
        receipts = [receipt_of(dataset, batch) for batch in batches]
        del batches
    audit = audit_receipts(Pipeline.from_yaml(path), receipts)
    assert (audit.equal, audit.rows) == (True, 3 * 4 * 128)
    shown = CliRunner().invoke(app, ["plan", str(write(place)), "--step", "2", "--json"])
    assert shown.exit_code == 0, shown.output
    listed = [
        (part["row_group"] * GROUP + row) + (ROWS // 2) * ("day=1" in part["file"])
        for part in json.loads(shown.stdout)["row_groups"]
        for row in part["rows"]
    ]
    assert sorted(listed) == sorted(rows)


def test_plan_says_what_is_drawn(place: Place):
    shown = CliRunner().invoke(app, ["plan", str(write(place)), "--json"])
    facts = json.loads(shown.stdout)
    assert facts["weights"]["column"] == "weight"
    assert facts["weights"]["row_groups_not_drawn"] == 1
    assert facts["weights"]["largest_error"] == 0
    assert facts["weights"]["most_draws_per_row"] > 1.5
    assert (facts["rows"], facts["steps"]) == (ROWS, ROWS // 512)
    shown = CliRunner().invoke(app, ["plan", str(write(place))], env={"COLUMNS": "200"})
    assert "with replacement, by weight" in shown.stdout


def test_a_plan_without_weights_is_another(place: Place):
    plain = Pipeline.from_yaml(write(place, shuffle={"seed": 3, "window_rows": 2000})).plan()
    by_weight, by_share = (
        Pipeline.from_yaml(write(place, shuffle={"seed": 3, "window_rows": 2000, "weights": name})).plan()
        for name in ("weight", "share")
    )
    assert len({plain.fingerprint, by_weight.fingerprint, by_share.fingerprint}) == 3
    assert plain.features_fingerprint == by_weight.features_fingerprint


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (
            {"shuffle": {"weights": "wait"}},
            SpecError,
            r"shuffle.weights: column 'wait' is not in the table. Did you mean",
        ),
        ({"shuffle": {"weights": "word"}}, SpecError, "column 'word' cannot weigh rows: got string, expected integers"),
        ({"shuffle": {"weights": "weight", "rows": False}}, SpecError, "contradicts `rows: false`"),
        ({"shuffle": {"weights": "weight", "by": "word"}}, SpecError, "contradicts `by`"),
        ({"shuffle": {"weights": "weight"}, "source": {"row_key": "row"}}, SpecError, "contradicts `source.row_key`"),
        ({"shuffle": {"weights": "weight"}, "source": {"where": "weight == 0"}}, PlanError, "weights sum to zero"),
    ],
)
def test_what_cannot_be_drawn_is_refused(place: Place, changes: dict[str, Any], error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        Pipeline.from_yaml(write(place, **changes)).plan()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1, None, 2], r"column 'weight' must not be null \(bad.parquet, row group 0, row 1 of those kept\)"),
        ([1, 2, -3], "column 'weight' must not be negative: got -3"),
        ([2**62, 2**61, 1], "column 'weight' sum to more than"),
    ],
)
def test_a_weight_that_is_none_is_named(tmp_path: Path, values: list[int | None], message: str):
    pq.write_table(pa.table({"row": [0, 1, 2], "weight": pa.array(values, pa.int64())}), tmp_path / "bad.parquet")
    spec = {
        "version": 1,
        "name": "bad",
        "work_dir": str(tmp_path / "work"),
        "source": {"table": str(tmp_path / "bad.parquet")},
        "features": {"extra": ["row"]},
        "batch": {"size": 1},
        "shuffle": {"weights": "weight"},
    }
    with pytest.raises(DataError, match=message):
        Pipeline.from_dict(spec).plan()


def test_a_rebase_is_refused(place: Place):
    pipeline = Pipeline.from_yaml(write(place))
    state = state_of(pipeline.plan().facts(), 0, 2)
    with pytest.raises(StateError, match="a run that draws rows by weight cannot be rebased"):
        pipeline.rebase(state)
