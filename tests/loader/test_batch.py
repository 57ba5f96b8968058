"""Batches are ordinary objects: copied, pickled and listed like a mapping of their features."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest
from ringless_trainers import write_pipeline
from row_digests import digest_of

from feedline import Batch, Pipeline

COPIES: list[Callable[[Batch], Batch]] = [
    copy.copy,
    copy.deepcopy,
    lambda batch: pickle.loads(pickle.dumps(batch)),
    lambda batch: pickle.loads(pickle.dumps(batch.clone())),
    lambda batch: copy.deepcopy(batch.clone()),
    lambda batch: copy.deepcopy({"batches": [batch]})["batches"][0],
]


@pytest.mark.parametrize("dedup", [False, True])
@pytest.mark.parametrize("duplicate", COPIES)
def test_copies_are_clones(duplicate: Callable[[Batch], Batch], dedup: bool, tmp_path: Path):
    """With the same rows, position and schema, in memory of their own: the batch is freed before its copy is read."""
    path = write_pipeline(tmp_path, steps=2)
    if dedup:
        groups = "shuffle: {by: item}\ndedup: {user: {columns: [history]}}\nbatch:"
        path.write_text(path.read_text().replace("batch:", groups))
    [_, batch] = Pipeline.from_yaml(path).batches()
    copied = duplicate(batch)
    assert copied is not batch
    assert (copied.epoch, copied.step, copied.rows) == (0, 1, 100)
    assert copied.schema == batch.schema
    assert digest_of(copied) == digest_of(batch)
    assert copied.dense.data_ptr() != batch.dense.data_ptr()
    copied.dense.zero_()
    assert batch.dense.any()
    del batch
    assert not copied.dense.any()


def test_a_batch_lists_its_features(tmp_path: Path):
    [batch] = Pipeline.from_yaml(write_pipeline(tmp_path, steps=1)).batches()
    assert batch.keys() == ("price", "item", "history", "clicked")
    assert "price" in batch
    assert "labels" not in batch, "as a Trainer of transformers asks"
    assert [name for name, _ in batch.items()] == list(batch.keys())
    assert dict(batch).keys() == batch.to_dict().keys()
    for name, value in batch.items():
        if name != "history":
            assert value.equal(batch[name])
