"""Features compile to one pass that reads what it needs, shares what it can and refuses what does not fit."""

from __future__ import annotations

import pickle
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from columns_of_kinds import ROWS, SCHEMA, TABLE, feature, frame
from reference_hash import hash_of

from feedline.config.features import FeatureSpec
from feedline.errors import DataError
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features, compile_some


def values(*features: FeatureSpec) -> dict[str, list[Any]]:
    return compile_features(features, SCHEMA).apply(frame()).to_dict(as_series=False)


ALL = (
    feature("dense", "price", {"fill_null": 0}, "log1p"),
    feature("dense", "hour", expr="ts.dt.hour() / 23"),
    feature("categorical", "item_id", {"hash_bucket": 1000}),
    feature("categorical", "land", {"hash_bucket": 50}, {"fill_null": 50}, column="country"),
    feature("sparse", "history", {"first_x": 2}, {"modulo": 1000}),
    feature("sparse", "tags", {"hash_bucket": 100}),
    feature("sparse", "scores"),
    feature("label", "paid"),
    feature("extra", "ts"),
)


def test_a_pipeline_of_all_groups():
    compiled = compile_features(ALL, SCHEMA)
    assert compiled.columns == ("price", "paid", "item_id", "country", "history", "scores", "tags", "ts")
    assert [(output.name, output.group, output.dtype, output.kind) for output in compiled.outputs] == [
        ("price", "dense", pl.Float32(), "float"),
        ("hour", "dense", pl.Float32(), "float"),
        ("item_id", "categorical", pl.Int64(), "integer"),
        ("land", "categorical", pl.Int64(), "integer"),
        ("history", "sparse", pl.List(pl.Int64()), "integer list"),
        ("tags", "sparse", pl.List(pl.Int64()), "integer list"),
        ("scores", "sparse", pl.List(pl.Float32()), "float list"),
        ("paid", "label", pl.Float32(), "boolean"),
        ("ts", "extra", pl.Datetime("us", "UTC"), "timestamp"),
    ]
    found = compiled.apply(frame().select(compiled.columns))
    assert dict(found.schema) == {output.name: output.dtype for output in compiled.outputs}
    result = found.to_dict(as_series=False)
    np.testing.assert_allclose(result["price"], np.log1p([1.5, 0, 3, 0]), rtol=1e-6)
    assert result["hour"] == [pytest.approx(12 / 23), None, pytest.approx(12 / 23), pytest.approx(12 / 23)]
    assert result["item_id"] == [hash_of(10) % 1000, hash_of(-1) % 1000, hash_of(2**40) % 1000, None]
    assert result["land"] == [hash_of("DE") % 50, 50, hash_of("Côte d'Ivoire") % 50, hash_of("US") % 50]
    assert result["history"] == [[1, 2], [], None, [4]]
    assert result["tags"] == [[hash_of("a") % 100, hash_of("b") % 100], None, [], [hash_of("a") % 100]]
    assert result["scores"] == [[0.5], None, [1.5, 2.5], []]
    assert result["paid"] == [1.0, 0.0, None, 1.0]
    assert result["ts"] == ROWS["ts"]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (feature("categorical", "huge_id"), r"feature 'huge_id' cannot be computed \(no ops\): .*9223372036854775808"),
        (feature("categorical", "n", {"cast": "int8"}, column="item_id"), r"'n' of column 'item_id' .*i8.*10995116"),
        (feature("categorical", "c", {"cast": "int64"}, column="country"), "feature 'c' .*DE"),
        (feature("sparse", "tags", {"cast": "int64"}), r"feature 'tags' .*to `i64` failed for \d"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_computed_names_its_feature(wrong: FeatureSpec, message: str):
    compiled = compile_features([feature("dense", "price"), wrong, feature("label", "paid")], SCHEMA)
    with pytest.raises(DataError, match=message):
        compiled.apply(frame())


def test_a_frame_must_hold_the_columns_in_their_types():
    compiled = compile_features([feature("dense", "price"), feature("dense", "count")], SCHEMA)
    with pytest.raises(DataError, match=r"column 'count' .*: got none, expected Int16"):
        compiled.apply(frame().select("price"))
    with pytest.raises(DataError, match=r"column 'price' .*: got Float64, expected Float32"):
        compiled.apply(frame().with_columns(pl.col("price").cast(pl.Float64)))


def test_parts_match_the_whole():
    compiled = compile_features(ALL, SCHEMA)
    table = pa.concat_tables([TABLE] * 100)
    whole = compiled.apply(frame(table))
    cuts = [0, 1, 9, 9, 64, 100, 293, 400]
    parts = [compiled.apply(frame(table).slice(start, stop - start)) for start, stop in pairwise(cuts)]
    assert pl.concat(parts).equals(whole, null_equal=True)
    chunked = frame(TABLE).vstack(frame(TABLE))
    assert compiled.apply(chunked).equals(whole[:8], null_equal=True)
    assert compiled.apply(frame()[:0]).schema == whole.schema
    assert compiled.apply(frame()[:0]).height == 0


@pytest.mark.parametrize(
    "features",
    [
        ALL,
        (*ALL, feature("dense", "shared", {"fill_null": 0}, "log1p", {"clip": {"min": 0, "max": 1}}, column="price")),
        (*ALL, feature("dense", "part", expr='user["id"] + count')),
        (*ALL, feature("categorical", "known", "vocabulary", column="country")),
    ],
    ids=["alone", "shared", "part", "fitted"],
)
@pytest.mark.parametrize("elements", [False, True])
def test_some_features_are_what_they_are_by_themselves(features: tuple[FeatureSpec, ...], elements: bool):
    whole = compile_features(features, SCHEMA, elements=elements)
    for names in ({"price", "history"}, {"hour"}, {each.name for each in features} - {"price"}):
        expected = compile_features([each for each in features if each.name in names], SCHEMA, elements=elements)
        found = compile_some(whole, names)
        for fact in ("features", "columns", "parts", "types", "marks", "fingerprint"):
            assert getattr(found, fact) == getattr(expected, fact)
        assert [replace(output, lookups=()) for output in found.outputs] == [
            replace(output, lookups=()) for output in expected.outputs
        ]
        assert [fit.key for fit in found.missing_fits] == [fit.key for fit in expected.missing_fits]
        if not elements and not found.missing_fits:
            assert found.apply(frame()).equals(expected.apply(frame()), null_equal=True)


@pytest.mark.parametrize("more", [(), (feature("dense", "part", expr='user["id"] + count'),)])
def test_a_feature_has_the_fingerprint_that_it_has_alone(more: tuple[FeatureSpec, ...]):
    features = (*ALL, feature("dense", "shared", {"fill_null": 0}, "log1p", column="price"), *more)
    whole = compile_features(features, SCHEMA)
    for found in (whole, compile_some(whole, {each.name for each in features} - {"price"})):
        for index, each in enumerate(found.features):
            assert found.alone(index) == (compile_features([each], SCHEMA).fingerprint, ())


def test_unpickling_compiles_again():
    compiled = compile_features(ALL, SCHEMA)
    sent = pickle.dumps(compiled)
    assert b"PyExpr" not in sent
    received = pickle.loads(sent)
    assert isinstance(received, CompiledFeatures)
    assert received.fingerprint == compiled.fingerprint
    assert received.apply(frame()).equals(compiled.apply(frame()), null_equal=True)


def test_the_fingerprint_tells_features_apart():
    base = feature("categorical", "a", {"hash_bucket": 10}, column="item_id")
    same = feature("categorical", "a", {"hash_bucket": {"buckets": 10, "seed": 0}}, column="item_id")
    others = [
        [feature("categorical", "b", {"hash_bucket": 10}, column="item_id")],
        [feature("categorical", "a", {"hash_bucket": 11}, column="item_id")],
        [feature("categorical", "a", {"hash_bucket": 10}, column="huge_id")],
        [feature("categorical", "a", {"hash_bucket": 10}, expr="item_id")],
        [feature("label", "a", {"hash_bucket": 10}, column="item_id")],
        [feature("categorical", "a", {"hash_bucket": 10}, {"modulo": 10}, column="item_id")],
        [base, feature("label", "paid")],
        [feature("label", "paid"), base],
    ]
    prints = [compile_features(features, SCHEMA).fingerprint for features in ([base], *others)]
    assert len(set(prints)) == len(prints)
    assert compile_features([same], SCHEMA).fingerprint == prints[0]
    narrower = SCHEMA.set(SCHEMA.get_field_index("item_id"), pa.field("item_id", pa.int32()))
    assert compile_features([base], narrower).fingerprint != prints[0]
    unread = SCHEMA.set(SCHEMA.get_field_index("never_read"), pa.field("never_read", pa.string()))
    assert compile_features([base], unread).fingerprint == prints[0]
