"""What tests of blocks share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from coded_blocks import write_table

from feedline.blocks.block_encoder import BlockEncoder


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The columns whose features are computed on dictionaries; none where rows are evaluated after all."""
    names: set[str] = set()
    rows, whole = BlockEncoder._encode_part, BlockEncoder._encode_coded

    def encode_coded(encoder: Any, part: Any, coded: Any, *more: Any) -> Any:
        names.update(coded.dictionaries)
        return whole(encoder, part, coded, *more)

    def encode_part(encoder: Any, part: Any, *more: Any) -> Any:
        names.clear()
        return rows(encoder, part, *more)

    monkeypatch.setattr(BlockEncoder, "_encode_coded", encode_coded)
    monkeypatch.setattr(BlockEncoder, "_encode_part", encode_part)
    return names


@pytest.fixture(scope="session")
def coded_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The table of `coded_blocks`, which no test changes."""
    return write_table(tmp_path_factory.mktemp("codes") / "table")
