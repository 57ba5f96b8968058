"""Do the remedies that docs/dedup.md shows for batches sorted by request compute what it says?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from fences import FENCE

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "dedup.md").read_text(encoding="utf-8")


def shown(start: str) -> dict[str, Any]:
    """The names that the page's block with this line defines."""
    [block] = [match[2] for match in FENCE.finditer(PAGE) if match[1] == "python" and start in match[2]]
    names: dict[str, Any] = {"torch": torch}
    exec(block, names)
    return names


def test_negatives_of_the_same_user_or_item_are_left_out():
    loss = shown("def in_batch_loss")["in_batch_loss"]
    draw = torch.Generator().manual_seed(0)
    users, items = torch.randn(12, 4, generator=draw), torch.randn(12, 4, generator=draw)
    user_ids, item_ids = (torch.randint(0, high, (12,), generator=draw) for high in (5, 6))
    rows = []
    for row in range(12):
        others = [k for k in range(12) if k != row and user_ids[k] != user_ids[row] and item_ids[k] != item_ids[row]]
        scores = np.array([float(users[row] @ items[k]) / 0.1 for k in (row, *others)])
        rows.append(np.logaddexp.reduce(scores) - scores[0])
        assert len(others) < 11
    np.testing.assert_allclose(float(loss(users, items, user_ids, item_ids)), np.mean(rows), rtol=1e-5)


def test_a_converted_model_computes_on_one_rank_what_batch_norm_does():
    converted = shown("convert_sync_batchnorm")["model"]
    plain = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    plain.load_state_dict(converted.state_dict())
    rows = torch.randn(16, 4)
    assert converted(rows).equal(plain(rows))
    assert converted.eval()(rows).equal(plain.eval()(rows))
