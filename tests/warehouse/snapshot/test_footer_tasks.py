"""Footers of many files are read in tasks of bounded memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_assembly import KINDS, put, same

from feedline.warehouse.parquet.footer import FileFacts
from feedline.warehouse.snapshot import footer_tasks
from feedline.warehouse.snapshot.footer_tasks import FooterResult
from feedline.warehouse.snapshot.packed_facts import blocks_of
from feedline.warehouse.snapshot.take import take_snapshot


def test_a_task_holds_few_parsed_footers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for index in range(30):
        put(tmp_path / f"{index}.parquet", KINDS[index % 2], row_group_size=3)
    whole = take_snapshot(str(tmp_path))
    packed: list[int] = []

    def packing(facts: list[tuple[int, FileFacts]]) -> Any:
        packed.append(sum(len(file.columns) * len(file.rows) for _, file in facts))
        return blocks_of(facts)

    most = max(len(whole.file_columns) * groups for groups in whole.files["row_groups"].to_pylist())
    monkeypatch.setattr(footer_tasks, "_THREADS", 2)
    monkeypatch.setattr(footer_tasks, "_PARSED_CHUNKS", 4 * most)
    monkeypatch.setattr(footer_tasks, "blocks_of", packing)
    results: list[FooterResult] = []

    def run(function: Callable[[Any], FooterResult], tasks: list[Any]) -> Iterator[FooterResult]:
        results.extend(map(function, tasks))
        yield from results

    same(take_snapshot(str(tmp_path), map=run), whole)
    assert max(packed) <= 6 * most
    assert [len(result.blocks) for result in results] == [2]  # put together again: one per schema
