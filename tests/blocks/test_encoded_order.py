"""Blocks that are encoded in their final order hold what gathering their rows afterwards gives, byte by byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coded_blocks import needs_kernel, pipeline

from feedline.blocks import block_encoder, compute
from feedline.blocks.compute import run_block
from feedline.errors import DataError
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.warehouse.parquet.decode import DECODER_VARIABLE

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
