"""A form computes few rows by stacks and many in one pass, with the same errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from feedline.config import load_spec
from feedline.errors import DataError
from feedline.loader.row_arrays import Encoded
from feedline.serving import encoder, stacks
from feedline.serving.encoder import Serving

COLUMNS = 5


def serving_of(features: Mapping[str, Any], types: pa.Schema | None = None) -> Serving:
    document = {"version": 1, "name": "s", "source": {"table": "none"}, "features": features, "batch": {"size": 8}}
    return Serving(load_spec(document, {}), types=types)


def named(letter: str, *ops: object) -> dict[str, list[object]]:
    return {f"{letter}{index}": list(ops) for index in range(COLUMNS)}


def together(function: Callable[[], Encoded], monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """The result without stacks."""
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "STACKED_ROWS", 0)
        return function()


def test_rows_of_other_types_are_converted_as_without_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    types = pa.schema([(f"d{index}", pa.float32()) for index in range(COLUMNS)])
    features = {"dense": named("d", {"fill_null": 0}, "log1p")}
    rows = pa.table({name: pa.array([0.1, 1e9], pa.float64()) for name in types.names})
    serving = serving_of(features, types)
    expected = together(lambda: serving.transform(rows), monkeypatch)
    assert serving.transform(rows).dense.tobytes() == expected.dense.tobytes()
    wrong = rows.set_column(2, "d2", pa.array([0.5, 1e300]))
    with pytest.raises(DataError, match=r"'d2'.*row 1") as error:
        serving.transform(wrong)
    with pytest.raises(DataError) as other:
        together(lambda: serving.transform(wrong), monkeypatch)
    assert str(error.value) == str(other.value)


@pytest.mark.parametrize("value", ["x", None])
def test_errors_name_the_feature_and_the_row(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    serving = serving_of({"dense": named("d", {"cast": "float32"})})
    rows = pa.table({f"d{index}": ["1", "2" if index < 3 else value] for index in range(COLUMNS)})
    with pytest.raises(DataError, match=r"'d3'.*row 1") as error:
        serving.transform(rows)
    with pytest.raises(DataError) as other:
        together(lambda: serving.transform(rows), monkeypatch)
    assert str(error.value) == str(other.value)


def test_few_rows_are_stacked_and_many_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    compute = stacks.Stack.compute

    def count(self: stacks.Stack, columns: Any, rows: int) -> Any:
        counts.append(rows)
        return compute(self, columns, rows)

    monkeypatch.setattr(stacks.Stack, "compute", count)
    serving = serving_of({"dense": named("d", "log1p")})
    for rows in (0, 1, stacks.STACKED_ROWS, stacks.STACKED_ROWS + 1):
        serving.transform(pa.table({f"d{index}": np.ones(rows, np.float32) for index in range(COLUMNS)}))
    assert counts == [1, stacks.STACKED_ROWS]
