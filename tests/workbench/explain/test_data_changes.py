"""Staged tables: the change that would help is found, and blocks of rewritten files have the rows that they have now.

Gains are CPU seconds of this process, of blocks with generous sizes. `benchmarks/explain.py` makes the changes,
and holds predictions to 25 %.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from combinations import combinations
from costly_tables import costly_plan, lists
from event_tables import document, event_table, laid_out, row_table, write

from feedline import Pipeline
from feedline.blocks.compute import run_block
from feedline.blocks.jobs import compile_job
from feedline.workbench.explain import data_changes
from feedline.workbench.explain.cost_account import measure_costs
from feedline.workbench.explain.cost_process import DataChange
from feedline.workbench.explain.cpu_time import CpuBudget, CpuEstimate
from feedline.workbench.explain.data_changes import (
    Today,
    _deduplicated,
    _measure,
    _parts_of,
    _truncated,
    find_changes_of_data,
    mean_row_group_rows,
    read_columns,
    rewrite_sample,
)
from feedline.workbench.explain.pass_costs import BlockSample, sample_blocks

LISTS: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"]},
    "sparse": {"hist": [{"hash_bucket": 1000}], "tags": [{"modulo": 100}]},
    "label": {"clicked": []},
}
OPS: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0}, "log1p"]},
    "sparse": {"hist": [], "tags": [{"sigrid_hash": {"salt": 1, "max_value": 1000}}]},
    "label": {"clicked": []},
}


def today_of(folder: Path, *, blocks: int = 1, rounds: int = 1, rows: int = 8_192, **table: Any) -> Today:
    plan = costly_plan(folder, rows=rows, **({"row_group_rows": rows, "files": 1} | table)).source
    sample = sample_blocks(plan, blocks)
    account = measure_costs(plan, sample=sample, rounds=rounds)
    return Today(plan=plan, sample=sample, account=account, compiled=compile_job(sample.job))


def changes_of(today: Today, *only: Any, rounds: int = 1, **options: Any) -> list[DataChange]:
    return find_changes_of_data(today.plan, today.sample, today.account, only=only, rounds=rounds, **options)


def test_heavy_lists_are_named(tmp_path: Path):
    tags = {"tags": lambda rng, rows: lists(rng, rows, 4, values=100)}
    today = today_of(tmp_path, blocks=2, rounds=2, rows=4_096, list_mean=60, files=2, features=LISTS, columns=tags)
    change = changes_of(today, "drop", rounds=2)[0]
    assert (change.kind, change.subject) == ("drop", "hist")
    assert change.share > 0.5
    assert change.gain_s.low > 0
    assert sum(change.stages.values()) == pytest.approx(change.gain_s.cpu_s)
    assert max(today.account.decoding.columns, key=lambda column: column.cpu_s.cpu_s).name == "hist"


def test_tiny_row_groups_are_named(tmp_path: Path):
    today = today_of(tmp_path, blocks=2, rounds=2, rows=3_072, row_group_rows=128, list_mean=3, files=2)
    [change] = changes_of(today, "row_groups", rounds=2)
    assert change.subject == "row groups of 128 rows"
    assert change.share > 0.4
    assert "--row-group-rows" in change.how


def test_a_heavy_op_gains_its_part_of_what_ops_of_whole_blocks_take(tmp_path: Path):
    tags = {"tags": lambda rng, rows: lists(rng, rows, 30, values=10**6)}
    today = today_of(tmp_path, rounds=3, rows=8_192, list_mean=2, files=2, features=OPS, columns=tags)
    account = today.account
    slower = replace(account, stages={**account.stages, "ops": 2 * account.stages["ops"]})
    once, twice = (changes_of(replace(today, account=each), "op")[0] for each in (account, slower))
    assert (once.subject, once.is_measured) == ("sigrid_hash of tags", False)
    assert once.share > 0.1
    assert twice.gain_s.cpu_s == pytest.approx(2 * once.gain_s.cpu_s)
    assert once.before == account.stages


def test_large_row_groups_without_costly_lists_need_nothing(tmp_path: Path):
    assert changes_of(today_of(tmp_path, rows=40_000, list_mean=1), "row_groups", "truncate") == []


def test_long_tails_are_cut_at_a_percentile(tmp_path: Path):
    def tailed(rng: np.random.Generator, rows: int) -> Any:
        offsets = np.concatenate([[0], np.cumsum(np.where(np.arange(rows) % 25 == 0, 400, 4))])
        return pa.ListArray.from_arrays(offsets.astype(np.int32), np.arange(offsets[-1]))

    sparse = {"long": [{"modulo": 10}], "bounded": {"column": "long", "ops": [{"first_x": 3}]}}
    features = {"sparse": sparse, "label": {"clicked": []}}
    today = today_of(tmp_path, list_mean=2, features=features, columns={"long": tailed})
    [(change, sample)] = _truncated(today, tmp_path)
    assert change.subject == "long"
    assert change.how.startswith("long: [{first_x: 4}")
    assert change.loses.startswith("80% of its elements are lost")
    [shorter] = [feature for feature in sample.job.features if feature.name == "long"]
    assert [call.op for call in shorter.ops] == ["first_x", "modulo"]


def test_caches_need_the_disk_that_they_fill(tmp_path: Path):
    [change] = changes_of(today_of(tmp_path, list_mean=60), "cache")
    assert change.from_epoch == 1
    assert change.disk_bytes > 8_192 * 60 * 2  # ids below 1,000, two bytes each
    assert change.share > 0.4


def test_repeated_lists_may_be_groups(tmp_path: Path):
    def repeated(rng: np.random.Generator, rows: int) -> Any:
        return lists(rng, rows // 32, 60).take(pa.array(np.repeat(np.arange(rows // 32), 32)))

    features = {"sparse": {"user": [{"hash_bucket": 1000}]}, "label": {"clicked": []}}
    today = today_of(tmp_path, list_mean=2, features=features, columns={"user": repeated}, shuffle={"rows": False})
    [trial] = _deduplicated(today, tmp_path)
    assert trial[0].how == "dedup:\n  user: {columns: [user]}"
    assert {feature.name: feature.dedup for feature in trial[1].job.features} == {"user": "user", "clicked": None}
    [change] = _measure(today.sample, [trial], CpuBudget(), 1)
    assert change.before_s > 0


def test_changes_that_cannot_be_made_or_take_too_long_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object, **__: object) -> None:
        raise OSError("no space left on device")

    today = today_of(tmp_path, rows=2_048, row_group_rows=128, list_mean=20)
    assert changes_of(today, "drop", "optimize", "cache", budget_s=0.0) == []
    monkeypatch.setattr(data_changes, "rewrite_sample", full)
    assert {change.kind for change in changes_of(today, "drop", "row_groups", "optimize")} <= {"drop"}


def test_gains_are_divided_among_the_stages_that_gain():
    assert _parts_of(6.0, np.array([2.0, 1.0, -1.0])) == {"decoding": 4.0, "ops": 2.0, "encoding": 0.0}
    assert _parts_of(6.0, np.array([-2.0, 0.0, -1.0])) == {"decoding": 2.0, "ops": 2.0, "encoding": 2.0}


def test_changes_are_worthwhile_where_they_gain_more_than_noise():
    change = DataChange(kind="drop", subject="x", how="", gain_s=CpuEstimate(1.0, 0.5, 1.5), before_s=4.0)
    assert change.share == 0.25
    assert change.is_worthwhile
    assert not replace(change, gain_s=CpuEstimate(1.0, -0.1, 1.5)).is_worthwhile


def images(sample: BlockSample) -> list[bytes]:
    results = [run_block(sample.job, request, "x", packed=True) for request in sample.requests]
    return [result.image.to_pybytes() for result in results if result.image is not None]


@pytest.mark.parametrize(
    ("better", "merge", "where"), combinations([(), ("hist", "price")], [False, True], [None, "item < 30000"])
)
def test_rows_of_rewritten_files_stay_as_they_are(
    tmp_path: Path, better: tuple[str, ...], merge: bool, where: str | None
):
    source: dict[str, Any] = {"table": str(tmp_path / "table")} | ({} if where is None else {"where": where})
    plan = costly_plan(tmp_path, rows=2_048, row_group_rows=256, list_mean=6, source=source)
    sample = sample_blocks(plan.source, 2)
    folder = tmp_path / "rewritten"
    folder.mkdir()
    rewritten = rewrite_sample(sample, compile_job(sample.job), folder, better=better, merge=merge)
    assert images(rewritten.sample) == images(sample)
    files = [pq.read_metadata(path) for path in folder.glob("*.parquet")]
    groups = sum(each.num_row_groups for each in files)
    pieces = [piece.fragment for request in sample.requests for piece in request.pieces]
    before = {(fragment.path, index) for fragment in pieces for index in fragment.row_groups}
    assert groups == len(before) if not merge else groups < len(before)
    assert rewritten.row_group_rows == round(sum(each.num_rows for each in files) / groups)
    assert rewritten.nbytes > 0
    assert rewritten.before > 0


def test_encodings_are_kept_or_chosen(tmp_path: Path):
    sample = sample_blocks(costly_plan(tmp_path, rows=2_048, list_mean=6).source, 1)
    rewrite_sample(sample, compile_job(sample.job), tmp_path, better=("item",))
    chunk = pq.read_metadata(tmp_path / "00000.parquet").row_group(0)
    columns = {chunk.column(index).path_in_schema: chunk.column(index) for index in range(chunk.num_columns)}
    assert columns["hist.list.element"].compression == "SNAPPY"
    assert "RLE_DICTIONARY" in columns["hist.list.element"].encodings


def test_names_with_dots_and_structs_are_written(tmp_path: Path):
    def records(rng: np.random.Generator, rows: int) -> pa.Array:
        values = pa.array(rng.integers(0, 9, rows))
        return pa.StructArray.from_arrays([values, values], ["a", "b"])

    features = {
        "dense": {"dotted": {"column": "x.y", "ops": [{"fill_null": 0}]}, "part": {"expr": 'record["a"] + 1'}},
        "label": {"clicked": []},
    }
    columns = {"x.y": lambda rng, rows: rng.random(rows).astype(np.float32), "record": records}
    plan = costly_plan(tmp_path, rows=1_024, row_group_rows=256, list_mean=2, features=features, columns=columns)
    sample = sample_blocks(plan.source, 1)
    rewritten = rewrite_sample(sample, compile_job(sample.job), tmp_path, better=("x.y",), merge=True)
    assert images(rewritten.sample) == images(sample)


def test_row_groups_are_joined_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    sample = sample_blocks(costly_plan(tmp_path, rows=2_048, row_group_rows=256, list_mean=6, files=4).source, 1)
    monkeypatch.setattr(data_changes, "ROW_GROUP_ROWS", 1_024)
    rewritten = rewrite_sample(sample, compile_job(sample.job), tmp_path, merge=True)
    assert images(rewritten.sample) == images(sample)


def test_columns_of_the_filter_are_written_too(tmp_path: Path):
    plan = costly_plan(
        tmp_path,
        features={"dense": {"price": [{"fill_null": 0}]}, "label": {"clicked": []}},
        source={"table": str(tmp_path / "table"), "where": "item < 30000"},
    )
    assert read_columns(compile_job(sample_blocks(plan.source, 1).job)) == ["price", "item", "clicked"]


def test_rows_of_rewritten_files_see_the_events_that_they_saw(tmp_path: Path):
    """No advice is about the columns of lists, which the table has not."""
    rows, events = write(row_table(200), tmp_path / "r", row_group_size=20), tmp_path / "e"
    laid_out(event_table(1_000), events, "ts")
    feature = {"history": "events", "column": "item", "at": "at", "last": 40, "ops": [{"fill_null": 0}]}
    features = {"sparse": {"items": feature}}
    plan = Pipeline.from_dict(document(rows, events, features, tmp_path / "w")).plan().source
    sample = sample_blocks(plan, 2)
    folder = tmp_path / "new"
    folder.mkdir()
    rewritten = rewrite_sample(sample, compile_job(sample.job), folder, merge=True)
    assert images(rewritten.sample) == images(sample)
    account = measure_costs(plan, sample=sample, rounds=1)
    today = Today(plan=plan, sample=sample, account=account, compiled=compile_job(sample.job))
    assert set(today.slow_columns) <= {"id", "user", "at", "price"}
    assert list(_truncated(today, tmp_path)) == []


def test_mean_rows_of_row_groups(tmp_path: Path):
    plan = costly_plan(tmp_path, rows=1_000, row_group_rows=300, files=1)
    assert mean_row_group_rows(sample_blocks(plan.source, 1), plan.source.snapshot.rows_per_row_group) == 250
