"""The error of a block that workers cannot read names the workers, if this process can."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from feedline.errors import ClusterError, CorruptFileError, DataError, StoreError, TableChangedError, TableError
from feedline.service.cluster.blame import BlockFailure
from feedline.service.feeder import block_work
from feedline.service.feeder.block_work import explain_block_error, is_unreadable

GONE = "t/0.parquet is gone: it was there when the snapshot was taken. Take a new snapshot"


@pytest.mark.parametrize("readable", [True, False])
def test_a_block_that_workers_cannot_read_is_blamed_on_them(monkeypatch: pytest.MonkeyPatch, readable: bool):
    failure = BlockFailure(
        kind="data", ours=True, name="TableChangedError", message=GONE, worker="tcp://w:1", host="h7"
    )
    work: Any = SimpleNamespace(failures=[failure], request=SimpleNamespace(pieces=[SimpleNamespace(fragment=None)]))
    monkeypatch.setattr(block_work, "unreadable", lambda fragment: None if readable else TableError("gone here, too"))
    error = explain_block_error(work, TableChangedError(GONE))
    if readable:
        assert isinstance(error, ClusterError)
        assert "(tcp://w:1 on h7) cannot read the table: t/0.parquet is gone" in str(error)
        assert "Take a new snapshot" not in str(error)
    else:
        assert str(error) == GONE


def test_damage_and_stores_are_the_same_for_all_workers():
    assert is_unreadable(TableChangedError(GONE))
    for error in (CorruptFileError("t/0.parquet is not valid Parquet"), StoreError("503"), DataError("a null")):
        assert not is_unreadable(error)
