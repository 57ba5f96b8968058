"""The audit of receipts: rows read and encoded apart from blocks have the digests of the rows that are delivered."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pipelines import Place, furnished
from processes import SUPPORT
from receipts import ExpectedRows, Steps, audit_receipts, read_receipts, receipt, receipt_of
from rewritten import state_at
from row_digests import batch_digest, digest_of, row_digests

from feedline import FeedlineDataset, Pipeline
from feedline.errors import DataError
from feedline.loader.batch import Batch
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.slot import encoded_rows
from feedline.planning.kept_rows import read_kept_rows
from feedline.planning.plan import Plan

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
    expected = ExpectedRows(plan)
    for epoch in range(2):
        digests = set()
        for rank in range(2):
            for batch in pipeline.batches(epoch, rank, 2, plan=plan):
                delivered, valid = digests_of(plan, batch), batch.valid.numpy()
                rows, of_rows = expected.of_rank(epoch, batch.step, rank, 2)
                assert of_rows.tolist() == delivered.tolist()
                assert rows.valid.tolist() == valid.tolist()
                assert len(delivered) == 512
                digests |= set(delivered[valid].tolist())
        assert len(digests) == plan.facts().rows, "rows with a key of their own have digests of their own"


def test_expected_rows_are_those_of_the_files(pipeline: Pipeline, plan: Plan):
    [batch] = [batch for batch in pipeline.batches(0, 1, 2, step=2, plan=plan) if batch.step == 2]
    rows, _ = ExpectedRows(plan).of_rank(0, 2, 1, 2)
    group, kept = int(rows.group[10]), int(rows.kept[10])
    path = plan.source.snapshot.files["path"][int(plan.source.snapshot.file_of_row_group[group])].as_py()
    file = pa.parquet.ParquetFile(f"{plan.source.snapshot.uri}/{path}")
    column = file.read_row_group(int(plan.source.snapshot.row_group_in_file[group]), ["request_id"])["request_id"]
    row = int(read_kept_rows(plan.source, group, ["request_id"]).rows[kept])
    assert column[row].as_py() == batch.extra["request_id"].tolist()[10]


def test_any_other_value_and_any_other_padding_is_found(pipeline: Pipeline, plan: Plan):
    [batch] = [batch for batch in pipeline.batches(0, 1, 2, step=2, plan=plan) if batch.step == 2]
    rows = encoded_rows(plan.layout, pa.py_buffer(batch.clone()._root))
    (_, expected), valid = ExpectedRows(plan).of_rank(0, 2, 1, 2), batch.valid.numpy()
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
    rows = plan.source.selection.rows.copy()
    group = int(np.flatnonzero(rows)[0])
    rows[group] -= 1
    wrong = replace(plan.source, selection=replace(plan.source.selection, rows=rows))
    with pytest.raises(DataError, match=r"another number of rows of .*row group \d+ than was counted: got \d+"):
        read_kept_rows(wrong, group, ["id_0"])


# -- receipts -----------------------------------------------------------------------------------------------------


def receipts_of(
    pipeline: Pipeline, plan: Plan, steps: range, world_size: int, epoch: int = 0, copies: int = 1
) -> list[dict[str, Any]]:
    """The receipts of a run on some ranks, `copies` trainers to each."""
    return [
        receipt(batch, state_at(plan, epoch, batch.step), rank, world_size, trainer=rank + world_size * copy)
        for rank in range(world_size)
        for batch in pipeline.batches(epoch, rank, world_size, step=steps.start, plan=plan)
        if batch.step in steps
        for copy in range(copies)
    ]


def test_receipts_of_several_starts_and_world_sizes(pipeline: Pipeline, plan: Plan):
    """A run on two ranks, resumed on four with a trainer more per rank; the resume repeats a step."""
    receipts = receipts_of(pipeline, plan, range(6), 2) + receipts_of(pipeline, plan, range(5, 9), 4, copies=2)
    audit = audit_receipts(pipeline, receipts)
    assert audit.equal
    assert audit.batches == 12 + 32
    assert audit.received == [Steps(0, 0, 8, (0, 1, 2, 3))]
    assert audit.again == [Steps(0, 5, 5, (0, 1, 2, 3))]


def test_receipts_that_are_missing_or_differ(pipeline: Pipeline, plan: Plan):
    receipts = receipts_of(pipeline, plan, range(6), 2)
    lost = [receipt for receipt in receipts if (receipt["state"]["step"], receipt["rank"]) != (3, 1)]
    audit = audit_receipts(pipeline, lost)
    assert not audit.equal
    assert audit.missing == [Steps(0, 3, 3, (2, 3))]
    receipts[4]["digest"], receipts[5]["digest"] = receipts[5]["digest"], receipts[4]["digest"]
    audit = audit_receipts(pipeline, receipts)
    assert [difference.partition(":")[0] for difference in audit.differences] == [
        *("epoch 0, step 4, rank 0 of 2", "epoch 0, step 5, rank 0 of 2")
    ]


def test_a_resumed_run_repeats_nothing(place: Place, tmp_path: Path):
    """Receipts of the batches before a state, and of those after a resume from it, through a ring."""
    path = place.write(lanes=4, batch={"tail": "pad"}, source={"where": "dense_0 > 0.3"})
    log = tmp_path / "0.jsonl"
    with FeedlineDataset(path) as dataset, log.open("a") as lines:
        for batch in islice(dataset, 7):
            lines.write(json.dumps(receipt_of(dataset, batch)) + "\n")
            if batch.step == 4:
                state = dataset.state_dict(after=batch)
        dataset.load_state_dict(state)
        for batch in dataset:
            lines.write(json.dumps(receipt_of(dataset, batch)) + "\n")
        lines.write('{"version": 1, "sna')  # killed while it wrote
        steps = batch.step + 1
    audit = audit_receipts(Pipeline.from_yaml(path), read_receipts(log))
    assert audit.equal, audit
    assert audit.received == [Steps(0, 0, steps - 1, (0, 1, 2, 3))]
    assert audit.again == [Steps(0, 5, 6, (0, 1, 2, 3))]


def test_a_feeder_that_swaps_rows_is_found_out(place: Place, monkeypatch: pytest.MonkeyPatch):
    path = place.write(lanes=4)
    monkeypatch.setenv("FEEDLINE_COMMAND", f"{sys.executable} {SUPPORT / 'swapping_feeder.py'}")
    with FeedlineDataset(path) as dataset:
        receipts = [receipt_of(dataset, batch) for batch in islice(dataset, 3)]
    audit = audit_receipts(Pipeline.from_yaml(path), receipts)
    assert audit.rows == 3 * 1024
    assert audit.differences, "two rows of the first block of each lane"
    assert audit.differences[0].startswith("epoch 0, step 0, rank 0 of 1: trainer 0 received other rows: got digest ")


def test_the_digest_of_a_batch_covers_its_rows_and_their_order(pipeline: Pipeline, plan: Plan):
    batches = [batch for _, batch in zip(range(3), pipeline.batches(plan=plan), strict=False)]
    assert len({digest_of(batch) for batch in batches}) == 3
    digests, valid = digests_of(plan, batches[0]), batches[0].valid.numpy()
    assert digest_of(batches[0]) == digest_of(batches[0].clone()) == batch_digest(digests, valid)
    assert batch_digest(digests[::-1], valid) != digest_of(batches[0]) != batch_digest(digests, ~valid)
