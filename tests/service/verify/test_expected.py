"""Rows read and encoded apart from blocks have the digests of the rows that are delivered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pipelines import Place, furnished
from rewritten import state_at

from feedline import Pipeline
from feedline.errors import DataError, StateError
from feedline.loader.batch import Batch, digest_of
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.row_digests import batch_digest, row_digests
from feedline.loader.encoding.slot import encoded_rows
from feedline.planning.plan import Plan
from feedline.planning.rows.kept_rows import read_kept_rows
from feedline.service.verify.expected import ExpectedRows
from feedline.service.verify.receipts import read_receipts, verify_receipts

FEATURES: dict[str, Any] = {
    "dense": {
        "dense_0": [{"fill_null": 0}, "log1p"],
        "rate": {"column": "str_0", "ops": [{"target_encoding": {"target": "clicked", "fold_by": "request_id"}}]},
    },
    "categorical": {"id_0": [{"vocabulary": {"min_count": 2}}], "str_0": [{"hash_bucket": 100}]},
    "sparse": {"hist_0": [], "hist_1": [{"first_x": 3}]},
    "label": {"clicked": []},
    "extra": {"request_id": [], "ts": [], "word": {"column": "str_0"}, "history": {"column": "hist_0"}, "ds": []},
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, clicks: Path) -> Iterator[Place]:
    with furnished(tmp_path_factory.mktemp("d"), clicks) as place:
        yield place


@pytest.fixture(scope="module")
def pipeline(place: Place) -> Pipeline:
    source = {"where": 'dense_0 > 0.3 or ds == "2026-01-03"', "split_rows": 2048}
    pipeline = Pipeline.from_yaml(place.write(features=FEATURES, source=source, batch={"tail": "pad"}, lanes=4))
    pipeline.fit()
    return pipeline


@pytest.fixture(scope="module")
def plan(pipeline: Pipeline) -> Plan:
    return pipeline.plan()


def digests_of(plan: Plan, batch: Batch) -> np.ndarray:
    return row_digests(encoded_rows(plan.layout, pa.py_buffer(batch._root)))


def test_expected_rows_have_the_digests_of_delivered_ones(pipeline: Pipeline, plan: Plan):
    for epoch in range(2):
        expected, digests = ExpectedRows(plan, epoch), set()
        for rank in range(2):
            for batch in pipeline.batches(epoch, rank, 2, plan=plan):
                delivered, valid = digests_of(plan, batch), batch.valid.numpy()
                of_rank = expected.of_rank(batch.step, rank, 2)
                assert of_rank.digests.tolist() == delivered.tolist()
                assert of_rank.rows.valid.tolist() == valid.tolist()
                assert len(delivered) == 512
                digests |= set(delivered[valid].tolist())
        assert len(digests) == plan.facts().rows, "rows with a key of their own have digests of their own"


def test_expected_rows_are_those_of_the_files(pipeline: Pipeline, plan: Plan):
    steps = ExpectedRows(plan, 0).steps
    [batch] = [batch for batch in pipeline.batches(0, 1, 2, step=2, plan=plan) if batch.step == 2]
    rows = steps.of_rank(2, 1, 2)
    group, kept = int(rows.group[10]), int(rows.kept[10])
    path = plan.snapshot.files["path"][int(plan.snapshot.file_of_row_group[group])].as_py()
    file = pa.parquet.ParquetFile(f"{plan.snapshot.uri}/{path}")
    column = file.read_row_group(int(plan.snapshot.row_group_in_file[group]), ["request_id"])["request_id"]
    row = int(read_kept_rows(plan, group, ["request_id"]).rows[kept])
    assert column[row].as_py() == batch.extra["request_id"].tolist()[10]


def test_any_other_value_and_any_other_padding_is_found(pipeline: Pipeline, plan: Plan):
    [batch] = [batch for batch in pipeline.batches(0, 1, 2, step=2, plan=plan) if batch.step == 2]
    rows = encoded_rows(plan.layout, pa.py_buffer(batch.clone()._root))
    expected, valid = ExpectedRows(plan, 0).of_rank(2, 1, 2).digests, batch.valid.numpy()
    digest = batch_digest(expected, valid)
    assert digest == digest_of(batch)

    def differing(changed: EncodedRows) -> list[int]:
        digests = row_digests(changed)
        assert batch_digest(digests, valid) != digest
        return np.flatnonzero(digests != expected).tolist()

    changed: list[tuple[str, Any, int]] = [("labels", rows.labels, 5), ("dense", rows.dense, 7)]
    for name, array, row in changed:
        copy = array.copy()
        copy[row, -1] = np.nextafter(copy[row, -1], np.float32(9))
        assert differing(replace(rows, **{name: copy})) == [row]
    values = rows.values[0].copy()
    row = int(np.flatnonzero(np.diff(rows.offsets[0]) > 1)[0])
    first = rows.offsets[0][row]
    values[[first, first + 1]] = values[[first + 1, first]] + np.arange(2)
    assert differing(replace(rows, values=(values, *rows.values[1:]))) == [row]
    other = valid.copy()
    other[3] = False
    assert batch_digest(expected, other) != digest
    assert batch_digest(expected[:-1], valid[:-1]) != digest
    swapped = expected.copy()
    swapped[[10, 300]] = swapped[[300, 10]]
    assert batch_digest(swapped, valid) != digest


def test_lists_are_told_apart_by_value_order_length_and_weight():
    def digest(values: list[list[int]], kind: pa.DataType | None = None) -> list[int]:
        extra = pa.array(values, kind or pa.list_(pa.int64()))
        empty = np.zeros((len(values), 0), np.float32)
        nothing = {"categorical": (), "values": (), "weights": (), "offsets": ()}
        rows = EncodedRows(rows=len(values), dense=empty, labels=empty, extra=(extra,), **nothing)
        return row_digests(rows).tolist()

    lists: list[Any] = [[1, 2], [2, 1], [1], [], None, [1, 2, 0], [0, 1, 2], [3]]
    assert len(set(digest(lists))) == len(lists)
    assert digest([[5], *lists])[1:] == digest(lists), "wherever the row stands"
    assert digest(lists, pa.large_list(pa.int32())) == digest(lists), "whatever holds it"


def test_a_filter_that_keeps_other_rows_than_were_counted(pipeline: Pipeline, plan: Plan):
    rows = plan.selection.rows.copy()
    group = int(np.flatnonzero(rows)[0])
    rows[group] -= 1
    wrong = replace(plan, selection=replace(plan.selection, rows=rows))
    with pytest.raises(DataError, match=r"another number of rows of .*row group \d+ than was counted: got \d+"):
        read_kept_rows(wrong, group, ["id_0"])


# -- receipts -----------------------------------------------------------------------------------------------------


def receipts_of(
    pipeline: Pipeline, plan: Plan, steps: range, world_size: int, epoch: int = 0, copies: int = 1
) -> list[dict[str, Any]]:
    """The receipts of a run on some ranks, `copies` trainers to each."""
    return [
        {
            **state_at(plan, epoch, batch.step),
            "rank": rank,
            "world_size": world_size,
            "trainer": rank + world_size * copy,
            "rows": batch.rows,
            "digest": digest_of(batch),
        }
        for rank in range(world_size)
        for batch in pipeline.batches(epoch, rank, world_size, step=steps.start, plan=plan)
        if batch.step in steps
        for copy in range(copies)
    ]


def audit(pipeline: Pipeline, folder: Path, receipts: list[dict[str, Any]], end: str = "") -> Any:
    file = folder / "receipts.jsonl"
    file.write_text("".join(json.dumps(receipt) + "\n" for receipt in receipts) + end)
    found, unreadable = read_receipts([file])
    findings = verify_receipts(found, pipeline.plan_for)
    findings.unreadable = unreadable
    return findings


def test_receipts_of_several_starts_and_world_sizes(pipeline: Pipeline, plan: Plan, tmp_path: Path):
    """A run on two ranks, resumed on four with a trainer more per rank; the resume repeats a step."""
    receipts = receipts_of(pipeline, plan, range(6), 2) + receipts_of(pipeline, plan, range(5, 9), 4, copies=2)
    findings = audit(pipeline, tmp_path, receipts, end='{"version": 1, "sna')
    assert findings.equal
    assert (findings.batches, findings.unreadable) == (12 + 32, 1)
    assert [run.text() for run in findings.received] == ["epoch 0, steps 0 to 8, lanes 0, 1, 2, 3"]
    assert [run.text() for run in findings.again] == ["epoch 0, step 5, lanes 0, 1, 2, 3"]


def test_receipts_that_are_missing_or_differ(pipeline: Pipeline, plan: Plan, tmp_path: Path):
    receipts = receipts_of(pipeline, plan, range(6), 2)
    lost = [each for each in receipts if (each["step"], each["rank"]) != (3, 1)]
    findings = audit(pipeline, tmp_path, lost)
    assert not findings.equal
    assert [run.text() for run in findings.missing] == ["epoch 0, step 3, lanes 2, 3"]
    receipts[4]["digest"], receipts[5]["digest"] = receipts[5]["digest"], receipts[4]["digest"]
    findings = audit(pipeline, tmp_path, receipts)
    assert [(each.at.step, each.at.rank) for each in findings.differences] == [(4, 0), (5, 0)]
    assert "trainer 0 received other rows: got digest" in findings.differences[0].text()


def test_a_line_that_is_no_receipt(pipeline: Pipeline, plan: Plan, tmp_path: Path):
    [receipt] = receipts_of(pipeline, plan, range(1), 1)
    with pytest.raises(StateError, match=r"receipts.jsonl, line 1: a receipt lacks digest"):
        audit(pipeline, tmp_path, [{key: value for key, value in receipt.items() if key != "digest"}])
    with pytest.raises(StateError, match="line 1: the state lacks plan"):
        audit(pipeline, tmp_path, [{key: value for key, value in receipt.items() if key != "plan"}])


def test_the_digest_of_a_batch_covers_its_rows_and_their_order(pipeline: Pipeline, plan: Plan):
    batches = [batch for _, batch in zip(range(3), pipeline.batches(plan=plan), strict=False)]
    assert len({digest_of(batch) for batch in batches}) == 3
    digests, valid = digests_of(plan, batches[0]), batches[0].valid.numpy()
    assert digest_of(batches[0]) == digest_of(batches[0].clone()) == batch_digest(digests, valid)
    assert batch_digest(digests[::-1], valid) != digest_of(batches[0]) != batch_digest(digests, ~valid)
