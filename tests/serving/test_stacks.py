"""Few rows are computed by stacks of alike features: the same bytes and errors, for a few calls per feature."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Pipeline
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


FEATURES: dict[str, Any] = {
    "dense": {
        **named("d", {"fill_null": 0}, {"clip": {"min": -1, "max": 9}}, "log1p"),
        **named("e", {"fill_null": 1.5}),
        "size": {"expr": "d0 + d1", "ops": [{"fill_null": 0}]},
    },
    "categorical": {
        **named("i", {"fill_null": 3}, {"modulo": 7}),
        **named("w", {"fill_null": ""}, {"hash_bucket": 50}),
    },
    "sparse": {
        **named("l", {"first_x": 2}, {"fill_null": 0}, {"hash_bucket": 100}),
        **named("p", {"first_x": 3}),
        **{
            f"x{index}": {"op": {"cartesian": 1000}, "inputs": [{"column": f"l{index}", "ops": [{"first_x": 2}]}, "l0"]}
            for index in range(1, COLUMNS)
        },
        "y": {"op": {"cartesian": 1000}, "inputs": ["l0", "l0"], "ops": [{"first_x": 2}]},
    },
}
PAIRS = pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())]))
TYPES = {"d": pa.float32(), "e": pa.float64(), "i": pa.int32(), "w": pa.string(), "l": pa.list_(pa.int64()), "p": PAIRS}
SCHEMA = pa.schema([(f"{letter}{index}", kind) for letter, kind in TYPES.items() for index in range(COLUMNS)])
NUMBERS = st.one_of(st.none(), st.floats(width=32))
IDS = st.integers(-(2**63), 2**63 - 1)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "d": NUMBERS,
    "e": NUMBERS,
    "i": st.one_of(st.none(), st.integers(-(2**31), 2**31 - 1)),
    "w": st.one_of(st.none(), st.text(max_size=20)),
    "l": st.one_of(st.none(), st.lists(IDS, max_size=4)),
    "p": st.one_of(
        st.none(), st.lists(st.fixed_dictionaries({"id": IDS, "weight": st.floats(0, 1, width=32)}), max_size=4)
    ),
}
ROW = st.fixed_dictionaries({name: VALUES[name[0]] for name in SCHEMA.names})
SERVING = serving_of(FEATURES, SCHEMA)


def arrays(encoded: Encoded) -> dict[str, bytes]:
    found = {"dense": encoded.dense.tobytes(), "categorical": encoded.categorical.tobytes()}
    for name, held in encoded.sparse.items():
        found |= {f"{name} values": held.values.tobytes(), f"{name} offsets": held.offsets.tobytes()}
        found[f"{name} weights"] = b"" if held.weights is None else held.weights.tobytes()
    return found


def together(function: Callable[[], Encoded], monkeypatch: pytest.MonkeyPatch) -> Encoded:
    """The result without stacks."""
    with monkeypatch.context() as patch:
        patch.setattr(encoder, "STACKED_ROWS", 0)
        return function()


@examples(30)
@given(rows=st.lists(ROW, min_size=1, max_size=5))
def test_stacks_give_the_bytes_of_the_pass_over_all_features(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    several: pl.DataFrame = pl.from_arrow(table)  # type: ignore[assignment]
    with pytest.MonkeyPatch.context() as patch:
        expected = arrays(together(lambda: SERVING.transform(table), patch))
    chunked = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    for form_of_rows in (table, chunked, several, rows, table.to_batches()[0]):
        assert arrays(SERVING.transform(form_of_rows)) == expected
    one = [SERVING.transform(table.slice(row, 1)).dense for row in range(len(rows))]
    assert np.concatenate(one).tobytes() == expected["dense"]


def test_alike_features_of_all_kinds_are_stacked() -> None:
    stacked = {name for stack in SERVING.form(SCHEMA).stacks for name in stack.names}
    rest = SERVING.form(SCHEMA).rest
    assert rest is not None
    assert {output.name for output in rest.outputs} == {"size", "y"}
    assert len(stacked) == len(SERVING.features) - 2


def test_features_that_differ_are_not_stacked() -> None:
    kinds = pa.schema([("a", pa.int64()), ("b", pa.int32()), ("c", pa.int64()), ("d", pa.int64()), ("e", pa.int64())])
    features = {"categorical": {name: [{"modulo": 7 if name != "e" else 8}] for name in kinds.names}}
    assert serving_of(features).form(kinds).stacks == ()
    words = pa.schema([(name, pa.dictionary(pa.int32(), pa.string())) for name in "abcde"])
    assert serving_of({"categorical": {name: [{"hash_bucket": 9}] for name in "abcde"}}).form(words).stacks == ()


def test_features_with_artifacts_of_their_own_are_not_stacked(tmp_path: Path) -> None:
    rows = pa.table({f"d{index}": np.arange(8, dtype=np.float32) * (index + 1) for index in range(COLUMNS)})
    pq.write_table(rows, tmp_path / "t.parquet")
    pipeline = Pipeline.from_dict(
        {
            "version": 1,
            "name": "s",
            "work_dir": str(tmp_path / "work"),
            "source": {"table": str(tmp_path / "t.parquet")},
            "features": {"dense": named("d", "standardize")},
            "batch": {"size": 8},
        }
    )
    pipeline.fit()
    assert pipeline._serving.form(rows.schema).stacks == ()
    assert np.allclose(pipeline.transform(rows).dense.std(axis=0), 1)


# -- which rows a form computes by stacks


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
