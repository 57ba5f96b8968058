"""Features compile to one pass that reads what it needs, shares what it can and refuses what does not fit."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from reference_hash import hash_of

from feedline.errors import DataError, SpecError
from feedline.spec.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features, compile_some
from feedline.transforms.registry.op import OpError
from feedline.transforms.values.kinds import Value

SCHEMA = pa.schema(
    [
        ("price", pa.float32()),
        ("count", pa.int16()),
        ("paid", pa.bool_()),
        ("item_id", pa.int64()),
        ("huge_id", pa.uint64()),
        ("country", pa.string()),
        ("city", pa.dictionary(pa.int32(), pa.string())),
        ("amount", pa.decimal128(10, 2)),
        ("history", pa.list_(pa.int32())),
        ("scores", pa.list_(pa.float64())),
        ("tags", pa.large_list(pa.string())),
        ("triple", pa.list_(pa.int32(), 3)),
        ("flags", pa.list_(pa.bool_())),
        ("ts", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
        ("user", pa.struct([("id", pa.int64())])),
        ("raw", pa.binary()),
        ("nothing", pa.null()),
        ("never_read", pa.int64()),
    ]
)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
ROWS: dict[str, list[Any]] = {
    "price": [1.5, None, 3.0, 0.0],
    "count": [1, -2, 3, None],
    "paid": [True, False, None, True],
    "item_id": [10, -1, 2**40, None],
    "huge_id": [1, 2**63, 3, None],
    "country": ["DE", None, "Côte d'Ivoire", "US"],
    "city": ["Bonn", "Bonn", None, "Ulm"],
    "amount": [Decimal("1.25"), None, Decimal("-3.10"), Decimal("0.00")],
    "history": [[1, 2, 3], [], None, [4]],
    "scores": [[0.5], None, [1.5, 2.5], []],
    "tags": [["a", "b"], None, [], ["a"]],
    "triple": [[1, 2, 3], None, [4, 5, 6], [7, 8, 9]],
    "flags": [[True], [], None, [False]],
    "ts": [NOON, None, NOON, NOON],
    "day": [date(2026, 1, 2)] * 4,
    "user": [{"id": 1}, {"id": 2}, None, {"id": 4}],
    "raw": [b"\0\1", b"", None, b"x" * 20],
    "nothing": [None] * 4,
    "never_read": [1, 2, 3, 4],
}
TABLE = pa.table(ROWS, schema=SCHEMA)


def feature(group: Any, name: str, *ops: Any, column: str | None = None, expr: str | None = None) -> FeatureSpec:
    """A feature as the spec layer hands it over: an op is a word or a map of one key."""
    calls = []
    for index, op in enumerate(ops):
        [(word, arguments)] = op.items() if isinstance(op, dict) else [(op, {})]
        value = arguments if isinstance(arguments, dict) else {"": arguments}
        calls.append(OpCall(op=word, arguments=json.dumps(value), path=("features", group, name, index)))
    source = None if expr is not None else column or name
    return FeatureSpec(
        name=name, group=group, column=source, expr=expr, ops=tuple(calls), path=("features", group, name)
    )


def frame(table: pa.Table = TABLE) -> pl.DataFrame:
    found = pl.from_arrow(table)
    assert isinstance(found, pl.DataFrame)
    return found


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


def test_groups_give_their_type():
    found = values(
        feature("dense", "count"),
        feature("dense", "amount"),
        feature("label", "paid"),
        feature("categorical", "flag", column="paid"),
        feature("categorical", "id", column="count"),
        feature("categorical", "city", {"hash_bucket": 9}),
        feature("categorical", "raw", {"hash_bucket": 9}),
        feature("sparse", "triple"),
        feature("sparse", "history"),
        feature("extra", "user"),
        feature("extra", "tags"),
    )
    assert found == {
        "count": [1.0, -2.0, 3.0, None],
        "amount": [1.25, None, pytest.approx(-3.1), 0.0],
        "paid": [1.0, 0.0, None, 1.0],
        "flag": [1, 0, None, 1],
        "id": [1, -2, 3, None],
        "city": [hash_of("Bonn") % 9, hash_of("Bonn") % 9, None, hash_of("Ulm") % 9],
        "raw": [hash_of(b"\0\1") % 9, hash_of(b"") % 9, None, hash_of(b"x" * 20) % 9],
        "triple": ROWS["triple"],
        "history": ROWS["history"],
        "user": ROWS["user"],
        "tags": ROWS["tags"],
    }


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (feature("dense", "country"), r"country: \[dense\]: dense takes one number per row: got string. .*hash_bucket"),
        (feature("dense", "history"), "got integer list. Put the feature under sparse"),
        (feature("dense", "ts"), r"got timestamp. .*expr.*dt.hour"),
        (feature("dense", "day"), "got date"),
        (feature("dense", "user"), r'got struct. .*NAME."field"'),
        (feature("dense", "nothing"), "got null"),
        (feature("label", "country"), "label takes one number per row: got string"),
        (feature("categorical", "country"), "categorical takes one integer id per row: got string. .*hash_bucket"),
        (feature("categorical", "city"), "got string"),
        (feature("categorical", "price"), "got float. .*bucketize"),
        (feature("categorical", "history"), "got integer list. Put the feature under sparse"),
        (feature("categorical", "tags"), "got string list. .*hash_bucket.* and put the feature under sparse"),
        (feature("categorical", "ts"), "got timestamp"),
        (feature("sparse", "country"), "floats, or one per row: got string. .*hash_bucket"),
        (feature("sparse", "tags"), "got string list. .*hash_bucket"),
        (feature("sparse", "flags"), "got boolean list. .*cast: int64"),
        (feature("sparse", "user"), "got struct"),
        (
            feature("dense", "country", {"fill_null": "x"}, "log1p", {"clip": 1}),
            r"country: fill_null → \[log1p\] → clip: log1p takes numbers, or lists of them: got string",
        ),
        (
            feature("dense", "price", {"fill_null": 0}, "log1pp"),
            r"price: fill_null → \[log1pp\]: unknown op: .*Did you mean 'log1p'",
        ),
        (feature("dense", "price", {"clip": {"mim": 1}}), r"price: \[clip\]: unknown parameter of clip: got 'mim'"),
        (feature("dense", "p", column="prize"), "p: unknown column: got 'prize'.* Did you mean `price`"),
        (feature("dense", "p*"), r"unknown column: got 'p\*'.* There is no wildcard: write a range, such as C\{1"),
        (feature("dense", "p", column="zzz"), "unknown column: got 'zzz'.* There are price, count, .* and 7 more"),
        (feature("dense", "p", expr="prize + 1"), "p: .*prize"),
        (feature("dense", "p", expr="1 + 1"), "p: .*names no column"),
        (feature("dense", "p", {"hash_bucket": 5}, expr="price > 1"), r"p: \[hash_bucket\]: .*got boolean"),
    ],
)  # fmt: skip
def test_errors_of_kinds_and_parameters_show_the_chain(wrong: FeatureSpec, message: str):
    with pytest.raises(OpError, match=message) as caught:
        compile_features([wrong], SCHEMA)
    assert isinstance(caught.value, SpecError)
    assert caught.value.path[:3] == wrong.path


def test_columns_that_cannot_be_read_by_name():
    odd = pa.schema([("twice", pa.int64()), ("twice", pa.int64()), ("^a.*$", pa.int64()), ("*", pa.int64())])
    odd = odd.append(pa.field("span", pa.month_day_nano_interval()))
    for name, message in (
        ("twice", "the table has 2 columns 'twice'"),
        ("^a.*$", "is named like a pattern"),
        ("*", "is named like a pattern"),
        ("span", "has a type that Polars lacks: month_day_nano_interval"),
    ):
        with pytest.raises(OpError, match=message):
            compile_features([feature("extra", "f", column=name)], odd)
    spaced = pa.schema([('a column, "quoted"', pa.int64())])
    compiled = compile_features([feature("categorical", "f", {"modulo": 3}, column=spaced.names[0])], spaced)
    assert compiled.apply(pl.DataFrame({spaced.names[0]: [4, 5]}))["f"].to_list() == [1, 2]


def test_places_of_errors():
    for wrong, place in (
        (feature("dense", "price", "log1p", {"clip": {"mim": 1}}), ("features", "dense", "price", 1, "clip", "mim")),
        (feature("dense", "country", {"fill_null": ""}, "log1p"), ("features", "dense", "country", 1)),
        (feature("dense", "country"), ("features", "dense", "country")),
        (feature("dense", "p", expr="prize"), ("features", "dense", "p", "expr")),
    ):
        with pytest.raises(OpError) as caught:
            compile_features([wrong], SCHEMA)
        assert caught.value.path == place


def test_an_op_over_several_columns_is_none_of_these():
    call = OpCall(op="clip", arguments='{"": 1}', path=("features", "dense", "p", "op"))
    inputs = tuple(FeatureInput(column=name) for name in ("price", "count"))
    wrong = FeatureSpec(name="p", group="dense", op=call, inputs=inputs, path=("features", "dense", "p"))
    message = r"p: \[clip\]\(price, count\): clip takes one column: got `inputs` of 2 columns. Put it under `ops`"
    with pytest.raises(OpError, match=message) as caught:
        compile_features([wrong], SCHEMA)
    assert caught.value.path == ("features", "dense", "p", "op")


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


def test_nan_is_no_integer():
    compiled = compile_features([feature("categorical", "price", {"cast": "int64"})], SCHEMA)
    with pytest.raises(DataError, match=r"feature 'price' cannot be computed \(cast\): .*NaN"):
        compiled.apply(pl.DataFrame({"price": [1.0, float("nan")]}, schema={"price": pl.Float32}))


def test_unsigned_ids_beyond_int64_can_be_reduced():
    found = values(
        feature("categorical", "a", {"modulo": 10}, column="huge_id"),
        feature("categorical", "b", {"hash_bucket": 10}, column="huge_id"),
    )
    assert found["a"] == [1, 2**63 % 10, 3, None]
    assert found["b"] == [hash_of(1) % 10, hash_of(2**63) % 10, hash_of(3) % 10, None]


def test_a_frame_must_hold_the_columns_in_their_types():
    compiled = compile_features([feature("dense", "price"), feature("dense", "count")], SCHEMA)
    with pytest.raises(DataError, match=r"column 'count' .*: got none, expected Int16"):
        compiled.apply(frame().select("price"))
    with pytest.raises(DataError, match=r"column 'price' .*: got Float64, expected Float32"):
        compiled.apply(frame().with_columns(pl.col("price").cast(pl.Float64)))


def test_shared_beginnings_are_computed_once(monkeypatch: pytest.MonkeyPatch):
    """Ten features of one hashed column, and one more, reduced after it: two kernels."""
    seen: list[int] = []
    original = Value.apply_kernel

    def counted(self: Value, kernel: Any, dtype: pl.DataType) -> Value:
        def kernel_and_count(found: Any, out: Any) -> None:
            seen.append(len(found))
            kernel(found, out)

        return original(self, kernel_and_count, dtype)

    monkeypatch.setattr(Value, "apply_kernel", counted)
    shared = ({"fill_null": 0}, {"hash_bucket": 1000})
    features = [feature("categorical", f"f{index}", *shared, column="count") for index in range(10)]
    features.append(feature("categorical", "more", *shared, {"modulo": 10}, column="count"))
    compiled = compile_features(features, SCHEMA)
    seen.clear()
    result = compiled.apply(frame())
    assert seen == [4, 4]
    seen.clear()
    compiled.apply(frame().vstack(frame()).vstack(frame()))
    assert seen == [12, 12], "a frame of three chunks is one piece for the kernels"
    assert len({tuple(result[f"f{index}"].to_list()) for index in range(10)}) == 1


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


def test_threads_may_share_it():
    compiled = compile_features(ALL, SCHEMA)
    given = frame(pa.concat_tables([TABLE] * 500))
    expected = compiled.apply(given)
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(compiled.apply, [given] * 12))
    assert all(one.equals(expected, null_equal=True) for one in found)


def test_the_input_is_left_as_it_was():
    given = frame()
    compile_features(ALL, SCHEMA).apply(given)
    assert given.equals(frame(), null_equal=True)


def test_unpickling_compiles_again():
    compiled = compile_features(ALL, SCHEMA)
    sent = pickle.dumps(compiled)
    assert b"PyExpr" not in sent
    received = pickle.loads(sent)
    assert isinstance(received, CompiledFeatures)
    assert received.fingerprint == compiled.fingerprint
    assert received.apply(frame()).equals(compiled.apply(frame()), null_equal=True)


def test_the_fingerprint_is_the_same_in_another_process():
    here = Path(__file__).resolve().parent
    tests = here.parents[1]
    found = subprocess.run(
        [sys.executable, "-c", "import test_compiled as t; print(t.compile_features(t.ALL, t.SCHEMA).fingerprint)"],
        env={"PYTHONHASHSEED": "1", "PYTHONPATH": f"{here}:{tests}/support:{tests.parent}", "PATH": ""},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    assert found == compile_features(ALL, SCHEMA).fingerprint


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
