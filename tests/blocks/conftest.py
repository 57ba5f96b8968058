"""What tests of blocks share."""

from __future__ import annotations

from typing import Any

import pytest

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
