"""The lines that a dataset writes about its rank."""

from __future__ import annotations

import pytest

from feedline.loader.dataset import print_ranks
from feedline.loader.launcher import detect_rank


def test_a_rank_is_printed_once(capsys: pytest.CaptureFixture[str]):
    ranks = detect_rank(rank=3, world_size=17, distributed=None, environment={})
    for _ in range(2):
        print_ranks(ranks)
    assert capsys.readouterr().err.count("rank 3 of 17") == 1
