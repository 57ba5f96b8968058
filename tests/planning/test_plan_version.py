"""Plans whose rows are not permuted keep version 1."""

from __future__ import annotations

import pytest

from feedline.planning.plan_version import PLAN_VERSION, newest_version
from feedline.spec.sections import ShuffleSpec


@pytest.mark.parametrize(
    ("shuffle", "version"),
    [(None, 1), (ShuffleSpec(rows=False), 1), (ShuffleSpec(), PLAN_VERSION), (ShuffleSpec(by="user"), PLAN_VERSION)],
)
def test_plans_without_permuted_rows_keep_version_1(shuffle: ShuffleSpec | None, version: int):
    assert newest_version(shuffle) == version
