"""The choice of what `batch.sparse_features` holds: what means nothing is refused."""

from __future__ import annotations

from typing import Any

import pytest

from feedline.errors import SpecError
from feedline.loader.encoding.layout import SparseFeatures


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"dtype": "int8"}, 'dtype is unknown: got \'int8\', expected "int64" or "int32"'),
        ({"features": "item"}, "must be a sequence of names: got 'item'"),
        ({"features": []}, "must be different names: got none"),
        ({"features": ["a", "b", "a"]}, "must be different names: got a, b, a"),
    ],
)
def test_choices_that_mean_nothing_are_refused(choice: dict[str, Any], message: str):
    with pytest.raises(SpecError, match=message):
        SparseFeatures(**choice)
