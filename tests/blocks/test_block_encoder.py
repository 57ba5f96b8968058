"""Blocks that are encoded in their final order hold what gathering their rows afterwards gives, byte by byte."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from coded_blocks import needs_kernel, pipeline
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Pipeline
from feedline.blocks import block_encoder, compute
from feedline.blocks.block_encoder import RUN_ROWS, RowCounts, at_last_stretch, ends_stretch, stretches, unique_starts
from feedline.blocks.cache.entry_names import SEGMENT_ROWS
from feedline.blocks.compute import pack_block, run_block
from feedline.errors import DataError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.transforms.compile.compiled import Output
from feedline.warehouse.parquet.decode import DECODER_VARIABLE
from feedline.warehouse.reading.fragment import Chunk, Fragment

FEATURES: dict[str, Any] = {
    "dense": {"price": [{"fill_null": 0.25}, "log1p"], "row": [], "pair": [{"fill_null": 1.5}, {"pad": 2}]},
    "categorical": {"word": [{"fill_null": ""}, {"hash_bucket": 1000}], "full": [{"modulo": 7}]},
    "sparse": {
        "history": [{"first_x": 4}, {"fill_null": 3}, {"hash_bucket": 50}],
        "tail": {"column": "history", "ops": [{"fill_null": -1}, {"modulo": 9}, {"list_slice": -2}]},
        "tags": [{"hash_bucket": 20}],
    },
    "label": {"clicked": []},
}


class Blocks:
    """All blocks of a pipeline, as the bytes that leave a process, and how many of them were encoded in their order."""

    def __init__(self, table: Path, folder: Path, features: dict[str, Any], **changes: Any) -> None:
        shuffle = {"seed": 1, "window_rows": 3_000, **changes.pop("shuffle", {})}
        self._plan = pipeline(table, folder, features=features, shuffle=shuffle, **changes).plan()
        self.blocks = list(self._plan.source.schedule(0).blocks(0, everything=True))

    def run(self) -> tuple[list[bytes], list[bytes], int]:
        """Bytes, quality, and the blocks that were encoded in order."""
        images, qualities, ordered = [], [], 0
        for block in self.blocks:
            request = self._plan.request(block, 0)
            result = run_block(self._plan.source.job, request, "k", False)
            ordered += isinstance(result.parts[0], EncodedRows)
            images.append(
                compute.pack_block(compute.compile_job(self._plan.source.job).layout, result.parts).to_pybytes()
            )
            qualities.append(result.quality.to_bytes())
        return images, qualities, ordered


def both(blocks: Blocks, monkeypatch: pytest.MonkeyPatch) -> int:
    """Check that both ways give the same. Returns how many blocks were encoded in order."""
    *found, ordered = blocks.run()
    with monkeypatch.context() as patch:
        patch.setattr(compute, "can_order", lambda schema: False)
        *expected, never = blocks.run()
    assert found == expected
    assert never == 0
    assert len(blocks.blocks) > 1
    return ordered


@needs_kernel
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"source": {"where": "full % 3 == 0"}},
        {"source": {"sample": {"fraction": 0.5, "seed": 4}}},
        {"shuffle": {"by": "session"}},
        {"source": {"split_rows": 300}},
    ],
    ids=str,
)
def test_blocks_are_those_that_are_gathered(
    coded_table: Path, tmp_path: Path, changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    blocks = Blocks(coded_table, tmp_path, FEATURES, **changes)
    assert both(blocks, monkeypatch) == len(blocks.blocks)


@needs_kernel
def test_lists_that_are_not_coded_are_gathered_later(
    coded_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    blocks = Blocks(coded_table, tmp_path, FEATURES)
    monkeypatch.setenv(DECODER_VARIABLE, "arrow")
    assert both(blocks, monkeypatch) == 0
    flat = {group: features for group, features in FEATURES.items() if group != "sparse"}
    blocks = Blocks(coded_table, tmp_path, flat)
    assert both(blocks, monkeypatch) == len(blocks.blocks)


@needs_kernel
def test_blocks_with_extras_and_large_ones_are_gathered_later(
    coded_table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    assert both(Blocks(coded_table, tmp_path, {**FEATURES, "extra": ["other"]}), monkeypatch) == 0
    monkeypatch.setattr(block_encoder, "_WHOLE_BYTES", 1_000)
    assert both(Blocks(coded_table, tmp_path, FEATURES), monkeypatch) == 0


@needs_kernel
@pytest.mark.parametrize(
    "features", [{"sparse": {"history": [{"first_x": 4}]}}, {"dense": {"price": ["log1p"]}}], ids=str
)
@pytest.mark.filterwarnings("ignore:feature 'price' holds nulls")
def test_an_error_names_the_row_of_the_file(
    coded_table: Path, tmp_path: Path, features: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    blocks = Blocks(coded_table, tmp_path, features, source={"split_rows": 300})
    with pytest.raises(DataError, match=r"row group \d, row \d") as found:
        blocks.run()
    monkeypatch.setattr(compute, "can_order", lambda schema: False)
    with pytest.raises(DataError) as expected:
        blocks.run()
    assert str(found.value) == str(expected.value)


# --------------------------------------------------------------------------------------------------------------------
# Do runs end at stretches of a row group, whatever the chunks in which it is read?


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


# --------------------------------------------------------------------------------------------------------------------
# Are nulls and lookups kept of each row, of whichever chunk it is?


def output(name: str, *reads: str) -> Output:
    return Output(
        name=name,
        group="dense",
        dtype=pl.Float32(),
        kind="float",
        reads=reads,
        row_columns=(),
        lookups=(),
        num_embeddings=None,
    )


def test_a_row_is_null_if_one_of_its_columns_is() -> None:
    counts = RowCounts()
    outputs = [output("a", "x"), output("both", "x", "y"), output("never", "z"), output("constant")]
    counts.add_nulls(outputs, pl.DataFrame({"x": [1, 2], "y": [1, 2], "z": [1, 2]}))
    counts.add_nulls(outputs, pl.DataFrame({"x": [None, 2, 3], "y": [1, None, 3], "z": [1, 2, 3]}))
    expected = {"a": [0, 0, 1, 0, 0], "both": [0, 0, 1, 1, 0]}
    for name, nulls in expected.items():
        found = counts.nulls(name)
        assert found is not None
        assert found.astype(int).tolist() == nulls
    assert counts.nulls("never") is None
    assert counts.nulls("constant") is None


def test_lookups_are_those_of_all_chunks() -> None:
    counts = RowCounts()
    for rows in (2, 3):
        each = np.arange(rows)
        counts.add_lookups({"one": [(each, 2 * each), (3 * each, 4 * each)]})
    [(asked, missed), (again, _)] = counts.lookups("one")
    assert asked.tolist() == [0, 1, 0, 1, 2]
    assert missed.tolist() == [0, 2, 0, 2, 4]
    assert again.tolist() == [0, 3, 0, 3, 6]
    assert counts.lookups("other") == []


@pytest.mark.parametrize("dtype", [pl.Int32, pl.List(pl.Int64)])
def test_codes_and_lists_may_be_null(dtype: pl.DataType) -> None:
    counts = RowCounts()
    counts.add_nulls([output("a", "x")], pl.DataFrame({"x": pl.Series([None, None], dtype=dtype)}))
    found = counts.nulls("a")
    assert found is not None
    assert found.all()
