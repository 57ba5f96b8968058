"""Features of a dictionary's entries, gathered by codes, are those of the rows, and so are the counts of lookups."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from drawn_examples import examples
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import DataError
from feedline.native.coded_values import CodedValues
from feedline.transforms.compile.coded_features import CodedColumn, coded_columns
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts, Reading

SCHEMA = pa.schema(
    {
        "key": pa.int64(),
        "word": pa.string(),
        "keys": pa.list_(pa.int64()),
        "words": pa.list_(pa.string()),
        "user": pa.string(),
        "clicked": pa.int8(),
    }
)
VALUES: dict[str, list[Any]] = {"key": [-1, 0, 3, 7, 2**40], "word": ["", "a", "é", "never fitted"]}
FITTED = pl.DataFrame(
    {
        "key": [-1, 0, 3, 3, None, 7],
        "word": ["", "a", "a", "é", None, "é"],
        "keys": [[-1, 3], [], None, [3, None], [7], [0]],
        "words": [["a"], ["", "é"], None, [None], [], ["a", "a"]],
        "user": ["x", "y", "z", "x", "w", "v"],
        "clicked": [0, 1, 1, 1, 0, 1],
    },
    schema=pl.Schema(pl.DataFrame(pa.Table.from_pylist([], schema=SCHEMA)).schema),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithTables(InMemoryArtifacts):
    """Tables to join with, too: of half of the keys."""

    def read(self, reading: Reading) -> Artifact:
        name = "key" if "key" in reading.uri else "word"
        values = VALUES[name][::2]
        numbers = [None, *np.arange(1, len(values)) / 3.0]
        others = {"price": numbers, "width": list(range(len(values)))}
        return Artifact(facts={}, table=pa.table({name: pa.array(values, SCHEMA.field(name).type), **others}))


def feature(name: str, group: Any, column: str, *ops: dict[str, Any]) -> FeatureSpec:
    calls = []
    for op in ops:
        [(called, given)] = op.items()
        calls.append(OpCall(op=called, arguments=json.dumps(given if isinstance(given, dict) else {"": given})))
    return FeatureSpec(name=name, group=group, column=column, ops=tuple(calls), path=("features", group, name))


def join(key: str, take: str | list[str], missing: Any = 0) -> dict[str, Any]:
    return {"join_external": {"table": f"{key}.parquet", "on": key, "take": take, "missing": missing}}


def encoding(folds: int = 1, **parameters: Any) -> dict[str, Any]:
    by = {"fold_by": "user"} if folds > 1 else {}
    return {"target_encoding": {"target": "clicked", "folds": folds, **by, **parameters}}


def features_of(column: str) -> list[FeatureSpec]:
    """Lookups of each kind, of the values of a column or of its lists' elements."""
    key, group = column.removesuffix("s"), "sparse" if column.endswith("s") else "dense"
    cut = [{"first_x": 2}] if group == "sparse" else []
    return [
        feature("price", group, column, *cut, join(key, "price"), {"fill_null": 0.25}),
        feature("width", group, column, join(key, "width", 9), {"clip": {"min": 1, "max": 5}}),
        feature("rate", group, column, encoding(smoothing=2.0)),
        feature("filled", group, column, {"fill_null": VALUES[key][1]}, encoding()),
        feature("count", group, column, *cut, {"group_statistics": "count"}),
        feature("mean", group, column, {"group_statistics": {"stats": "mean", "of": "clicked"}}, {"fill_null": 0}),
    ]


def artifacts_of(features: list[FeatureSpec]) -> WithTables:
    learning = [one for one in features if not any(call.op == "join_external" for call in one.ops)]
    return WithTables(artifacts=fit_frames(learning, SCHEMA, [FITTED]).artifacts)


@functools.cache
def compiled_features(column: str) -> tuple[CompiledFeatures, CodedColumn]:
    """The features of a column for rows, and for its dictionaries."""
    features = features_of(column)
    artifacts = artifacts_of(features)
    compiled = compile_features(features, SCHEMA, artifacts)
    assert not compiled.missing_fits
    assert coded_columns(compiled) == ({column: 0}, frozenset())
    return compiled, CodedColumn(column, features, SCHEMA, artifacts)


def gathered(values: CodedValues, lists: pl.Series | None) -> pl.Series:
    """The values that the codes stand for."""
    table = values.values
    if values.index is not None:
        table = np.zeros(values.entries, values.values.dtype)
        table[values.index] = values.values
    flat = table[values.codes]
    if lists is None:
        return pl.Series(flat)
    assert values.offsets is not None
    offsets = values.offsets
    if values.slices is not None:
        start, whole = values.slices
        places = [
            range(begin + start, begin + start + count) for begin, count in zip(whole, np.diff(offsets), strict=False)
        ]
        flat = flat[[place for some in places for place in some]]
    return pl.Series(pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(flat)))


@pytest.mark.parametrize("column", ["key", "word", "keys", "words"])
@examples(60)
@given(data=st.data())
def test_lookups_on_a_dictionary_are_those_on_rows(column: str, data: st.DataObject):
    """Of dictionaries with entries that occur twice, or that no row uses; null codes; rows that count repeatedly."""
    name, listed = column.removesuffix("s"), column.endswith("s")
    entries = data.draw(st.lists(st.sampled_from(VALUES[name]), min_size=1, max_size=6))
    code = st.none() | st.integers(0, len(entries) - 1)
    kind = data.draw(st.sampled_from([pl.Int32(), pl.UInt16()]))
    rows = data.draw(st.lists(st.none() | st.lists(code, max_size=4) if listed else code, min_size=1, max_size=9))
    repeats = data.draw(st.none() | st.lists(st.integers(1, 3), min_size=len(rows), max_size=len(rows)))
    weights = None if repeats is None else np.array(repeats, np.int64)
    compiled, coded = compiled_features(column)

    def value(one: Any) -> Any:
        return [value(each) for each in one] if isinstance(one, list) else None if one is None else entries[one]

    frame = pl.DataFrame([pl.Series(column, [value(row) for row in rows], compiled.types[0])])
    of_rows: dict[str, Any] = {}
    expected, counts = compiled.apply_counting(frame, weights, of_rows)
    codes = pl.Series(column, rows, pl.List(kind) if listed else kind)
    dictionary = pl.Series(entries, dtype=pl.Int64 if name == "key" else pl.String)
    of_codes: dict[str, Any] = {}
    found, lookups = coded.apply(codes, dictionary, {}, weights, of_codes)
    assert of_codes.keys() == of_rows.keys()
    assert all(np.array_equal(of_codes[name], of_rows[name]) for name in of_rows)
    assert lookups == counts
    for output in compiled.outputs:
        series = gathered(found[output.name], codes if listed else None)
        whole = pl.Series(expected[output.name])
        assert series.equals(whole.fill_null([]) if listed else whole), output.name


def test_a_null_that_rows_use_is_left_to_the_evaluation_of_rows():
    features = [feature("price", "dense", "key", join("key", "price", None))]
    column = CodedColumn("key", features, SCHEMA, WithTables())
    dictionary = pl.Series([3, 0])  # the second is not in the table
    column.apply(pl.Series([0, 0], dtype=pl.Int32), dictionary, {})
    with pytest.raises(DataError, match="holds a null"):
        column.apply(pl.Series([0, 1], dtype=pl.Int32), dictionary, {})


@pytest.mark.parametrize(
    ("seen", "coded", "expanded"),
    [(True, {"user"}, {"user"}), ("mark", {"user"}, {"user"}), (False, {"word", "user"}, set())],
    ids=["all", "some", "no"],
)
def test_out_of_fold_encodings_are_computed_on_rows(seen: bool | str, coded: set[str], expanded: set[str]):
    """And need the values of `fold_by`, as long as some rows were fitted on."""
    features = [
        feature("rate", "dense", "word", encoding(2)),
        feature("user", "categorical", "user", {"hash_bucket": 9}),
    ]
    fitted = fit_frames(features, SCHEMA, [FITTED]).artifacts
    compiled = compile_features(features, SCHEMA, InMemoryArtifacts(artifacts=fitted, out_of_fold=seen))
    assert not compiled.missing_fits
    found = coded_columns(compiled)
    assert (found[0].keys(), found[1]) == (coded, expanded)


@pytest.mark.parametrize(
    ("ops", "coded"),
    [
        ([join("word", ["price", "width"])], False),
        ([{"group_statistics": {"stats": ["mean", "std"], "of": "clicked"}}, {"fill_null": 0}], False),
        ([{"group_statistics": {"stats": "mean", "of": "clicked"}}, {"fill_null": 0}], True),
    ],
    ids=["join of several columns", "several statistics", "one statistic"],
)
def test_vectors_are_computed_on_rows(ops: list[dict[str, Any]], coded: bool):
    features = [feature("looked up", "dense", "word", *ops)]
    assert list(coded_columns(compile_features(features, SCHEMA, artifacts_of(features)))[0]) == ["word"] * coded


def test_a_slice_after_a_lookup_is_not_taken_first():
    """It would change how many are looked up."""
    chains = [[{"first_x": 2}, encoding()], [encoding(), {"first_x": 2}], [join("key", "price"), {"first_x": 2}]]
    found = [coded_columns(compile_features([feature("rate", "sparse", "keys", *chain)], SCHEMA, WithTables()))[0]
             for chain in chains]  # fmt: skip
    assert found == [{"keys": 2}, {}, {}]


def test_strings_of_which_other_features_need_the_values_are_coded():
    """Whole lists of them then, and no numbers."""
    chains = {"words": [{"first_x": 2}, {"hash_bucket": 9}], "keys": [{"first_x": 2}, {"hash_bucket": 9}]}
    features = [feature(name, "sparse", name, *chain) for name, chain in chains.items()]
    features += [feature("word", "categorical", "word", {"hash_bucket": 9}), feature("user", "extra", "user")]
    alone = coded_columns(compile_features(features, SCHEMA))
    others = [feature(f"{name} kept", "extra", name) for name in ("words", "keys", "word")]
    found = coded_columns(compile_features([*features, *others], SCHEMA))
    assert alone == ({"words": 2, "keys": 2, "word": 0}, frozenset())
    assert found == ({"words": 0, "word": 0}, {"words", "word"})
