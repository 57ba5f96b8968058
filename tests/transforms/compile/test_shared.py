"""Values that several features need are computed once, and nothing unused is read."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import pyarrow as pa
import pytest

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features

SCHEMA = pa.schema(
    [
        ("price", pa.int32()),
        ("city", pa.dictionary(pa.int32(), pa.string())),
        ("items", pa.list_(pa.int32())),
        ("scores", pa.list_(pa.float64())),
        ("clicks", pa.list_(pa.struct([("id", pa.int64()), ("weight", pa.float32())]))),
        ("__held_0", pa.int64()),
        ("never_read", pa.int64()),
    ]
)
ROWS = {
    "price": [1, None, 3],
    "city": ["Bonn", None, "Ulm"],
    "items": [[1, 2, None], [], [4]],
    "scores": [[0.1, 0.2, 0.3], [], [0.4]],
    "clicks": [[{"id": 1, "weight": 0.5}], [], [{"id": 3, "weight": 1.0}]],
    "__held_0": [7, 8, 9],
    "never_read": [0, 0, 0],
}
found = pl.from_arrow(pa.table(ROWS, schema=SCHEMA))
assert isinstance(found, pl.DataFrame)
FRAME = found


def ops(*words: Any) -> tuple[OpCall, ...]:
    pairs = [next(iter(word.items())) if isinstance(word, dict) else (word, {}) for word in words]
    return tuple(
        OpCall(op=op, arguments=json.dumps(value if isinstance(value, dict) else {"": value})) for op, value in pairs
    )


def column(name: str, group: Any, source: str, *words: Any) -> FeatureSpec:
    return FeatureSpec(name=name, group=group, column=source, ops=ops(*words))


def several(name: str, group: Any, op: Any, *inputs: tuple[Any, ...], then: tuple[Any, ...] = ()) -> FeatureSpec:
    given = tuple(FeatureInput(column=source, ops=ops(*words)) for source, *words in inputs)
    return FeatureSpec(name=name, group=group, op=ops(op)[0], inputs=given, ops=ops(*then))


FIRST, HASHED = {"first_x": 2}, {"hash_bucket": 100}
CASES = {
    "numbers, and one that ends where the others go on": [
        column("whole", "dense", "price", {"fill_null": 0}, "log1p"),
        *(column(f"f{i}", "dense", "price", {"fill_null": 0}, "log1p", {"clip": {"max": i + 1}}) for i in range(2)),
    ],
    "elements of lists": [
        column(f"f{i}", "extra", "items", FIRST, {"fill_null": 0}, HASHED, {"modulo": i + 2}) for i in range(3)
    ],
    "weighted lists of structs": [column(f"f{i}", "sparse", "clicks", HASHED, {"first_x": i + 1}) for i in range(3)],
    "an op over the same inputs": [
        several(f"f{i}", "sparse", {"cartesian": 1000}, ("items", FIRST), ("items", FIRST, HASHED), then=(end,))
        for i, end in enumerate(({"modulo": 2}, {"modulo": 3}))
    ],
    "an input that is a feature, too": [
        column("own", "extra", "items", FIRST, HASHED),
        several("both", "dense", "id_overlap_count", ("items", FIRST, HASHED), ("items", FIRST)),
    ],
    "ids and weights of two lists": [
        several(f"f{i}", "sparse", "weighted", ("items", FIRST, HASHED), ("scores", FIRST), then=({"first_x": i},))
        for i in (1, 2)
    ],
}


@pytest.mark.parametrize("features", CASES.values(), ids=CASES)
def test_features_that_share_values_are_those_that_each_is_alone(features: list[FeatureSpec]) -> None:
    compiled = compile_features(features, SCHEMA)
    result = compiled.apply(FRAME.select(compiled.parts))
    for feature in features:
        assert compile_features([feature], SCHEMA).apply(FRAME).to_series().equals(result[feature.name])


def test_a_column_is_filled_and_cast_once() -> None:
    features = [column(f"f{i}", "dense", "price", {"fill_null": 0}, "log1p", {"clip": {"max": i}}) for i in range(10)]
    features += [column(f"c{i}", "categorical", "city", {"hash_bucket": 10 + i}, {"fill_null": 0}) for i in range(3)]
    plan = explained(compile_features(features, SCHEMA))
    assert (plan.count('col("price")'), plan.count("cast(String)")) == (1, 1), plan


def test_only_needed_columns_are_read() -> None:
    compiled = compile_features([column("a", "dense", "price", {"fill_null": 0}, "log1p")], SCHEMA)
    assert compiled.columns == compiled.parts == ("price",)
    assert 'PROJECT["price"] 1/7' in explained(compiled)


def explained(compiled: CompiledFeatures) -> str:
    return compiled.lazy(FRAME).explain(engine="in-memory")


def test_a_column_may_be_called_like_a_held_one() -> None:
    shared = [column(f"f{i}", "dense", "price", {"fill_null": 0}, {"clip": {"max": i}}) for i in range(2)]
    result = compile_features([*shared, column("own", "extra", "__held_0")], SCHEMA).apply(FRAME)
    assert result["own"].to_list() == [7, 8, 9]
    assert result["f1"].to_list() == [1.0, 0.0, 1.0]


def test_errors_in_shared_columns_name_a_feature_and_its_row() -> None:
    shared = [column(f"f{i}", "dense", "price", {"cast": "uint8"}, {"clip": {"max": i}}) for i in range(2)]
    compiled = compile_features([column("good", "extra", "price"), *shared], SCHEMA)
    frame = FRAME.with_columns(pl.Series("price", [1, 2, -3], dtype=pl.Int32))
    with pytest.raises(ValueError, match=r"feature 'f0' of column '\w+' cannot be computed \(cast → clip\)") as caught:
        compiled.apply(frame)
    assert getattr(caught.value, "row", None) == 2
