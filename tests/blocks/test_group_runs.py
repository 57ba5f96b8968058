"""Do runs end at stretches of a row group, whatever the chunks in which it is read?"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Pipeline
from feedline.blocks import block_encoder
from feedline.blocks.block_encoder import RUN_ROWS, at_last_stretch, ends_stretch, stretches, unique_starts
from feedline.blocks.cache.entry_names import SEGMENT_ROWS
from feedline.blocks.compute import pack_block, run_block
from feedline.warehouse.reading.fragment import Chunk, Fragment

FRAGMENT: Any = object.__new__(Fragment)


def chunk(start: int, rows: int) -> Chunk:
    return Chunk(frame=pl.DataFrame({"row": range(start, start + rows)}), fragment=FRAGMENT, position=0, start=start)


@given(start=st.integers(0, 40), rows=st.integers(1, 40))
def test_chunks_are_divided_where_their_last_stretch_begins(start: int, rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_encoder, "RUN_ROWS", 10)
        parts = at_last_stretch(chunk(start, rows))
        assert [row for part in parts for row in part.frame["row"]] == [*range(start, start + rows)]
        assert [*stretches(start, rows)] == [row for row in range(rows) if (start + row) % 10 == 0]
        for part in parts[:-1]:
            assert ends_stretch(part)
        last = parts[-1]
        assert ends_stretch(last) or last.start // 10 == (start + rows - 1) // 10 or len(parts) == 1
        if len(parts) == 1:
            assert ends_stretch(last) or start // 10 == (start + rows - 1) // 10 or start % 10 == 0


@given(st.lists(st.booleans(), min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=4))
def test_rows_of_stretches_that_hardly_repeat_are_all_unique(starts: list[bool], borders: list[int]) -> None:
    found = unique_starts(np.array(starts), borders)
    ends = sorted({0, len(starts), *(border for border in borders if border < len(starts))})
    for first, end in itertools.pairwise(ends):
        own = [True, *starts[first + 1 : end]]
        assert found[first:end].tolist() == ([True] * len(own) if sum(own) > 0.9 * len(own) else own)


def test_segments_of_the_cache_are_whole_stretches() -> None:
    assert SEGMENT_ROWS % RUN_ROWS == 0


@examples(12)
@given(data=st.data())
def test_runs_do_not_depend_on_chunks(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """With a filter, in blocks that begin within row groups."""
    rows, lanes = 900, data.draw(st.integers(1, 3))
    folder: Path = tmp_path_factory.mktemp("chunks")
    user = np.repeat(np.arange(rows), 7)[:rows]
    table = pa.table({"row": range(rows), "user": user, "ids": [[each] * (each % 3) for each in user.tolist()]})
    pq.write_table(table, folder / "t.parquet", row_group_size=data.draw(st.integers(100, 900)))
    spec = {
        "version": 1,
        "name": "chunks",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "t.parquet"), "where": "row % 7 != 3"},
        "features": {"categorical": {"user": []}, "sparse": {"ids": []}, "extra": ["row"]},
        "dedup": {"person": {"columns": ["user", "ids"]}},
        "batch": {"size": 50, "tail": "partial"},
        "shuffle": "off",
        "lanes": lanes,
    }
    found = []
    for chunk_rows in (32_768, data.draw(st.integers(5, 300))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(block_encoder, "RUN_ROWS", 100)
            for module in ("piece_chunks", "block_encoder"):
                patch.setattr(f"feedline.blocks.{module}.CHUNK_ROWS", chunk_rows)
            plan = Pipeline.from_dict(spec).plan()
            blocks = [block for lane in range(lanes) for block in plan.source.schedule(0).blocks(lane, everything=True)]
            results = [run_block(plan.source.job, plan.request(block, 0), "k", False) for block in blocks]
            found.append([pack_block(plan.layout, each.parts or ()).to_pybytes() for each in results])
    assert found[0] == found[1]
