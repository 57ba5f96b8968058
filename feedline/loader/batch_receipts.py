"""Write down which rows a trainer received: the receipt of a batch, for `feedline verify --receipts`.

Runs in: the trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from feedline.loader.batch import Batch, digest_of
from feedline.loader.launcher import RankInfo


def receipt_of(batch: Batch, state: Mapping[str, Any], ranks: RankInfo, column_group: Sequence[str]) -> dict[str, Any]:
    """The state before a batch, who received it, and the digest of its features; their names, if they are those of a
    column group."""
    numbers = {"rank": ranks.rank, "world_size": ranks.world_size, "trainer": ranks.global_rank, "rows": batch.rows}
    group = {"column_group": list(column_group)} if column_group else {}
    return {**state, **numbers, **group, "digest": digest_of(batch)}
