"""Every measure against pandas and DuckDB, on blocks of any size and order; NaN and infinities by `on_nonfinite`."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st

from feedline import Pipeline
from feedline.blocks.jobs import batch_schema
from feedline.config import parse_spec
from feedline.errors import DataError
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.encoded_rows import EncodedRows
from feedline.loader.encoding.quality import Observer, Quality, measures, merge
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import NO_ARTIFACTS, ArtifactSet

ROWS = 4000
FEATURES: dict[str, Any] = {
    "dense": {
        "price": {"column": "price", "ops": [{"fill_null": 0}]},
        "log": {"column": "price", "ops": [{"fill_null": 0}, "log"]},
        "ratio": {"expr": "price / dwell", "ops": [{"fill_null": 0}]},
        "sum": {"expr": "coalesce(price, 0) + coalesce(dwell, 0)"},
        "vector": {"column": "parts", "ops": [{"vector": 3}]},
        "absent": {"expr": "price is None"},
    },
    "categorical": {"item": {"column": "item", "ops": [{"fill_null": -7}]}},
    "sparse": {
        "history": {"column": "history"},
        "scores": {"column": "scores"},
        "weighted": {"op": "weighted", "inputs": ["history", "scores"]},
    },
    "label": {"clicked": []},
    "extra": {"word": {"column": "word"}},
}


def spec_of(features: dict[str, Any], **keys: Any) -> Any:
    base = {"version": 1, "name": "q", "source": {"table": "t"}, "batch": {"size": 8}, "features": features}
    return parse_spec(json.dumps({**base, **keys}))


def table() -> pa.Table:
    """Columns with nulls, NaN, infinities, empty and null lists, and lists of more than 1,024 elements."""
    random = np.random.default_rng(5)

    def masked(values: Any, share: float) -> pa.Array:
        return pa.array(values, mask=random.random(ROWS) < share)

    price = np.where(random.random(ROWS) < 0.02, np.nan, random.normal(size=ROWS) * 5)
    price[random.random(ROWS) < 0.01] = np.inf
    lengths = np.where(random.random(ROWS) < 0.002, random.integers(1000, 9000, ROWS), random.integers(0, 30, ROWS))
    absent = random.random(ROWS) < 0.1
    lists = [None if none else list(range(length, 0, -1)) for none, length in zip(absent, lengths, strict=True)]
    scores = [None if held is None else [float(value) / 3 for value in held] for held in lists]
    for held in scores[::50]:
        if held:
            held[0] = -math.inf
    return pa.table(
        {
            "price": masked(price, 0.1),
            "dwell": masked(random.integers(0, 4, ROWS), 0.2),
            "parts": pa.array(random.normal(size=(ROWS, 3)).tolist()),
            "item": masked(random.integers(-(2**60), 2**60, ROWS), 0.03),
            "history": pa.array(lists, pa.list_(pa.int64())),
            "scores": pa.array(scores, pa.list_(pa.float32())),
            "clicked": random.integers(0, 2, ROWS).astype(np.int8),
            "word": masked(random.choice(["a", "b"], ROWS), 0.5),
        }
    )


TABLE = table()
FRAME = pl.DataFrame(TABLE)


def compiled(features: dict[str, Any], schema: pa.Schema, artifacts: ArtifactSet = NO_ARTIFACTS, **keys: Any):
    return compile_features(spec_of(features, **keys).features, schema, artifacts)


def observe(features: CompiledFeatures, frame: pl.DataFrame, chunks: int = 1) -> Quality:
    """What a block of these rows says, read in some chunks."""
    schema = batch_schema(features)
    observer = Observer(schema, [output.reads for output in features.outputs])
    step = max(1, -(-frame.height // chunks))
    for start in range(0, frame.height, step):
        part = frame.slice(start, step)
        observer.count_rows(part)
        finished, lookups = features.apply_counting(part)
        for name, found in lookups.items():
            observer.count_lookups(name, found)
        encode(finished, schema, observer)
    return observer.quality()


@pytest.fixture(scope="module")
def whole() -> tuple[CompiledFeatures, dict[str, dict[str, Any]]]:
    features = compiled(FEATURES, TABLE.schema)
    return features, measures(observe(features, FRAME, 3), batch_schema(features))


def finished(features: CompiledFeatures) -> pd.DataFrame:
    return features.apply(FRAME).drop("weighted").to_pandas()


def test_nulls_are_those_of_a_features_columns(whole):
    _, found = whole
    columns = {
        "price": "price is null",
        "log": "price is null",
        "ratio": "price is null or dwell is null",
        "sum": "price is null or dwell is null",
        "vector": "parts is null",
        "absent": "price is null",
        "item": "item is null",
        "history": "history is null",
        "scores": "scores is null",
        "weighted": "history is null or scores is null",
        "clicked": "clicked is null",
        "word": "word is null",
    }
    source = TABLE  # noqa: F841 -- DuckDB reads it by this name
    sums = ", ".join(f"count(*) filter (where {condition})" for condition in columns.values())
    [counts] = duckdb.sql(f"select {sums} from source").fetchall()
    assert {name: facts["nulls"] for name, facts in found.items()} == dict(zip(columns, counts, strict=True))
    assert all(facts["rows"] == ROWS and facts["null_rate"] == facts["nulls"] / ROWS for facts in found.values())


@pytest.mark.parametrize("name", ["price", "log", "ratio", "sum", "clicked", "absent"])
def test_scalars_equal_numpy(whole, name: str):
    features, found = whole
    values = finished(features)[name].to_numpy()
    finite = values[np.isfinite(values)]
    assert (found[name]["min"], found[name]["max"]) == (finite.min(), finite.max())
    assert (found[name]["values"], found[name]["nonfinite"]) == (ROWS, ROWS - len(finite))
    assert found[name]["nonfinite_rate"] == (ROWS - len(finite)) / ROWS


def test_vectors_count_each_component(whole):
    values = np.array(TABLE["parts"].to_pylist(), dtype=np.float32)
    _, found = whole
    assert found["vector"]["values"] == 3 * ROWS
    assert (found["vector"]["min"], found["vector"]["max"]) == (values.min(), values.max())


def test_ids_are_exact(whole):
    items = [-7 if value is None else value for value in TABLE["item"].to_pylist()]
    assert (whole[1]["item"]["min"], whole[1]["item"]["max"]) == (min(items), max(items))
    assert "nonfinite" not in whole[1]["item"]
    assert "min" not in whole[1]["word"]


@pytest.mark.parametrize("name", ["history", "scores", "weighted"])
def test_list_lengths_equal_pandas(whole, name: str):
    facts = whole[1][name]
    lengths = pd.Series([len(held or []) for held in TABLE["history"].to_pylist()])
    assert (facts["values"], facts["list_length_max"]) == (lengths.sum(), lengths.max())
    assert facts["list_length_mean"] == lengths.sum() / ROWS
    for percentile in (50, 90, 99):
        exact = np.percentile(lengths, percentile, method="inverted_cdf")
        assert facts[f"list_length_p{percentile}"] == exact


def test_floats_and_weights_in_lists(whole):
    values = np.concatenate([held for held in TABLE["scores"].to_pylist() if held]).astype(np.float32)
    finite = values[np.isfinite(values)]
    for name in ("scores", "weighted"):
        assert whole[1][name]["nonfinite"] == len(values) - len(finite) > 0
    assert (whole[1]["scores"]["min"], whole[1]["scores"]["max"]) == (finite.min(), finite.max())
    ids = [value for held in TABLE["history"].to_pylist() for value in held or []]
    assert (whole[1]["weighted"]["min"], whole[1]["weighted"]["max"]) == (min(ids), max(ids))


@examples(60)
@given(st.lists(st.integers(0, 40_000), min_size=1, max_size=30))
def test_percentiles_of_long_lists_are_nearly_exact(lengths: list[int]):
    features = compiled({"sparse": {"h": []}}, pa.schema({"h": pa.list_(pa.int64())}))
    observer = Observer(batch_schema(features), [("h",)])
    observer.count_rows(pl.DataFrame({"h": pl.Series([None] * len(lengths), dtype=pl.List(pl.Int64))}))
    observer.count_lists(batch_schema(features).sparse[0], np.concatenate([[0], np.cumsum(lengths)]))
    facts = measures(observer.quality(), batch_schema(features))["h"]
    assert facts["list_length_max"] == max(lengths)
    for percentile in (50, 90, 99):
        exact = float(np.percentile(lengths, percentile, method="inverted_cdf"))
        told = facts[f"list_length_p{percentile}"]
        assert exact * (1 - 1 / 512) <= told <= exact
        assert exact >= 1024 or told == exact


@examples(25)
@given(st.data())
def test_merging_is_independent_of_order(data: st.DataObject):
    features = compiled(FEATURES, TABLE.schema)
    frame = FRAME.head(300)
    cuts = sorted(data.draw(st.lists(st.integers(0, 300), max_size=5)))
    pieces = [frame[start:stop] for start, stop in zip([0, *cuts], [*cuts, 300], strict=True)]
    parts = [observe(features, piece) for piece in pieces]
    expected = observe(features, frame).to_bytes()
    shuffled = data.draw(st.permutations(parts))
    assert merge(shuffled).to_bytes() == expected
    middle = data.draw(st.integers(1, len(parts)))
    nested = [merge(shuffled[:middle]), *([merge(shuffled[middle:])] if shuffled[middle:] else [])]
    assert merge([Quality.from_bytes(part.to_bytes()) for part in nested]).to_bytes() == expected


@examples(10)
@given(st.integers(0, 2**32), st.sampled_from(["keep", "zero"]))
def test_unique_rows_count_as_often_as_they_are_repeated(seed: int, on_nonfinite: str):
    """Scalars, vectors, ids, lists and weights, each of which stands for one row or several."""
    random = np.random.default_rng(seed)
    features = compiled(FEATURES, TABLE.schema, on_nonfinite=on_nonfinite)
    unique = FRAME[np.sort(random.choice(ROWS, 300, replace=False))]
    repeats = random.integers(1, 6, unique.height)
    rows = unique[np.repeat(np.arange(unique.height), repeats)]
    schema = batch_schema(features)
    observer = Observer(schema, [output.reads for output in features.outputs])
    observer.count_rows(rows)
    encode(features.apply(unique), schema, observer, repeats=repeats)
    assert measures(observer.quality(), schema) == measures(observe(features, rows), schema)


def test_no_rows_have_no_measures():
    features = compiled(FEATURES, TABLE.schema)
    found = measures(observe(features, FRAME.head(0)), batch_schema(features))
    for name in ("price", "history", "word"):
        counts = {"rows", "nulls", "values", "nonfinite", "group"}
        assert {value for key, value in found[name].items() if key not in counts} == {None}, name


# -- values that are looked up -------------------------------------------------------------------------------------

LOOKUPS: dict[str, Any] = {
    "categorical": {
        "one": {"column": "id", "ops": [{"vocabulary": {"max_size": 3, "oov_buckets": 2}}]},
        "moved": {"column": "id", "ops": [{"vocabulary": {"max_size": 3, "oov_buckets": 2}}, {"modulo": 5}]},
        "plain": {"column": "id", "ops": [{"fill_null": 0}]},
    },
    "sparse": {
        "many": {"column": "ids", "ops": [{"vocabulary": {"max_size": 4}}, {"first_x": 2}]},
        "texts": {"column": "words", "ops": [{"vocabulary": {"max_size": 1}}]},
    },
}
IDS = [None if value % 11 == 0 else value % 7 for value in range(500)]
LISTS = [None if value % 13 == 0 else [number % 9 for number in range(value % 6)] for value in range(500)]
ASKED = pl.DataFrame(
    {"id": IDS, "ids": LISTS, "words": [["a", "b", "c"], ["a"], [], None, [None]] * 100},
    schema={"id": pl.Int64, "ids": pl.List(pl.Int64), "words": pl.List(pl.String)},
)


def known(values: list[Any], size: int) -> set[Any]:
    """The most frequent values, of equally frequent ones the least."""
    counts = pd.Series([value for value in values if value is not None]).value_counts()
    return set(sorted(counts.index, key=lambda value: (-counts[value], value))[:size])


@pytest.fixture(scope="module")
def learnt() -> CompiledFeatures:
    schema = ASKED.to_arrow().schema
    fits = fit_frames(spec_of(LOOKUPS).features, schema, [ASKED])
    return compiled(LOOKUPS, schema, fits)


def expected_misses() -> dict[str, tuple[int, int]]:
    flat = [value for held in LISTS for value in held or []]
    words = [value for held in ASKED["words"] for value in (held if held is not None else [])]
    kept = {name: known(*given) for name, given in (("one", (IDS, 3)), ("many", (flat, 4)), ("texts", (words, 1)))}

    def count(name: str, values: list[Any]) -> tuple[int, int]:
        return len(values), sum(value is not None and value not in kept[name] for value in values)

    one = count("one", IDS)
    return {"one": one, "moved": one, "many": count("many", flat), "texts": count("texts", words)}


@pytest.mark.parametrize("chunks", [1, 7])
def test_unknown_values_are_counted(learnt: CompiledFeatures, chunks: int):
    found = measures(observe(learnt, ASKED, chunks), batch_schema(learnt))
    expected = expected_misses()
    for name, (asked, missed) in expected.items():
        assert missed > 0
        assert (found[name]["oov"], found[name]["oov_rate"]) == (missed, missed / asked), name
    assert "oov_rate" not in found["plain"]


def test_threads_count_separately(learnt: CompiledFeatures):
    pieces = [ASKED.slice(start, 50) for start in range(0, 500, 50)]
    alone = [learnt.apply_counting(piece)[1] for piece in pieces]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda piece: learnt.apply_counting(piece)[1], pieces)) == alone


def test_keys_without_a_match_are_counted(tmp_path: Path):
    pq.write_table(pa.table({"k": [1, 2, 3], "v": [0.5, None, 1.5]}), tmp_path / "items.parquet")
    pq.write_table(
        pa.table({"id": [1, 2, 9, None, 8, 3], "ids": [[1, 9], [], None, [7, 7, 2], [3], [4]]}), tmp_path / "t.parquet"
    )
    join = {"join_external": {"table": "items.parquet", "on": "k", "take": "v", "missing": 0}}
    ops = [join, {"fill_null": 0}]
    features = {"dense": {"price": {"column": "id", "ops": ops}}, "sparse": {"prices": {"column": "ids", "ops": ops}}}
    text = json.dumps(
        {
            "version": 1,
            "name": "j",
            "work_dir": "w",
            "source": {"table": "t.parquet"},
            "features": features,
            "batch": {"size": 2},
            "shuffle": "off",
        }
    )
    pipeline = Pipeline(parse_spec(text, base_dir=tmp_path))
    assert len(list(pipeline.batches())) == 3
    found = pipeline.quality()
    assert (found["price"]["oov"], found["price"]["oov_rate"]) == (3, 3 / 6)
    assert (found["prices"]["oov"], found["prices"]["oov_rate"]) == (4, 4 / 7)


# -- values that are not finite ------------------------------------------------------------------------------------


def encoded(policy: str, frame: pl.DataFrame = FRAME) -> tuple[EncodedRows, dict[str, dict[str, Any]]]:
    features = compiled(FEATURES, TABLE.schema, on_nonfinite=policy)
    return encode(features.apply(frame), batch_schema(features)), measures(
        observe(features, frame), batch_schema(features)
    )


def test_zero_replaces_nonfinite_values_and_keep_keeps_them(whole):
    kept, _ = encoded("keep")
    zeroed, found = encoded("zero")
    assert np.array_equal(zeroed.dense, np.where(np.isfinite(kept.dense), kept.dense, 0))
    schema = batch_schema(whole[0])
    for place, column in enumerate(schema.sparse):
        if column.dtype == "float32":
            values = kept.values[place]
            assert np.array_equal(zeroed.values[place], np.where(np.isfinite(values), values, 0))
        if (weights := kept.weights[place]) is not None:
            assert np.array_equal(zeroed.weights[place], np.where(np.isfinite(weights), weights, 0))
    assert not np.isfinite(kept.dense).all()
    assert found == whole[1]  # counted as they come out of the ops


@pytest.mark.parametrize(
    ("feature", "values", "row", "words"),
    [
        ({"dense": {"x": ["log"]}}, [1.0, 2.0, -1.0, 0.0], 2, "(log): got nan and 1 more in 4"),
        (
            {"label": {"x": []}},
            [1.0, math.inf, 2.0, 3.0],
            1,
            "(no ops): got inf and 0 more in 4",
        ),
        ({"dense": {"x": [{"vector": 2}]}}, [[1.0, 2.0], [3.0, math.nan]], 1, "(vector): got nan and 0 more in 4"),
        ({"sparse": {"x": []}}, [[1.0], None, [], [2.0, -math.inf]], 3, "(no ops): got -inf and 0 more in 3"),
    ],
)
def test_error_names_feature_ops_value_and_row(feature: dict[str, Any], values: list[Any], row: int, words: str):
    frame = pl.DataFrame({"x": values})
    features = compiled(feature, frame.to_arrow().schema, on_nonfinite="error")
    with pytest.raises(DataError) as caught:
        encode(features.apply(frame), batch_schema(features))
    assert "feature 'x' holds a value that is not finite" in str(caught.value)
    assert words in str(caught.value)
    assert caught.value.row == row


def test_an_error_of_a_run_names_file_and_row_group(tmp_path: Path):
    pq.write_table(pa.table({"x": [1.0, 2.0, -3.0, 4.0]}), tmp_path / "t.parquet", row_group_size=2)
    text = json.dumps(
        {
            "version": 1,
            "name": "e",
            "work_dir": "w",
            "source": {"table": "t.parquet"},
            "shuffle": "off",
            "features": {"dense": {"x": {"column": "x", "ops": ["log"], "on_nonfinite": "error"}}},
            "batch": {"size": 4},
        }
    )
    with pytest.raises(DataError, match=r"feature 'x' holds a value that is not finite .*t\.parquet.*row group 1"):
        list(Pipeline(parse_spec(text, base_dir=tmp_path)).batches())


def test_of_on_nonfinite_only_zero_changes_the_fingerprint():
    prints = {policy: compiled(FEATURES, TABLE.schema, on_nonfinite=policy).fingerprint for policy in ("keep", "zero")}
    assert prints["keep"] != prints["zero"]
    assert compiled(FEATURES, TABLE.schema, on_nonfinite="error").fingerprint == prints["keep"]
    bounded = {"dense": {"price": {**FEATURES["dense"]["price"], "expect": {"max": "< 3"}}}}
    plain = {"dense": {"price": FEATURES["dense"]["price"]}}
    assert compiled(bounded, TABLE.schema).fingerprint == compiled(plain, TABLE.schema).fingerprint
