"""Vocabularies: the layout, which values are kept in which order, and the id of every value, by counting oracles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from drawn_examples import examples
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st
from op_oracles import INTEGERS
from reference_hash import hash_of
from vocabularies import COLUMNS, PARAMETERS, fitted, learner

from feedline.config.features import FeatureSpec, OpCall
from feedline.errors import DataError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts
from feedline.transforms.ops import resolve
from feedline.transforms.registry.op import OpContext
from feedline.transforms.values.kinds import Value

Values = Sequence[Any]


def looked_up(artifact: Artifact, series: pl.Series, **parameters: Any) -> list[Any]:
    """The ids of a series, by way of the op."""
    bound = resolve(OpCall(op="vocabulary", arguments=json.dumps(parameters)))
    value = bound.apply(Value(expr=pl.col("a"), dtype=series.dtype), OpContext(artifact=artifact))
    assert value.lookup is not None
    frame = series.alias("a").to_frame().lazy().with_columns(value.lookup.ids)
    found = frame.select(value.expr).collect(engine="in-memory").to_series()
    assert found.dtype == value.dtype
    return found.to_list()


def oracle(values: Values, *, min_count: int = 1, max_size: int | None = None, oov_buckets: int = 1) -> dict[Any, int]:
    """Value -> id, as the documentation says."""
    counts = Counter(value for value in values if value is not None)
    in_bytes = {value: value.encode() if isinstance(value, str) else value for value in counts}
    kept = sorted((value for value in counts if counts[value] >= min_count), key=lambda v: (-counts[v], in_bytes[v]))
    return {value: 2 + oov_buckets + place for place, value in enumerate(kept[:max_size])}


def expected(ids: dict[Any, int], value: Any, oov_buckets: int = 1) -> int:
    if value is None:
        return 1
    if value in ids:
        return ids[value]
    return 2 + hash_of(value, 0) % oov_buckets if oov_buckets else 1


@examples(30)
@given(column=COLUMNS, others=COLUMNS, parameters=PARAMETERS, cuts=st.integers(1, 4))
def test_ids_follow_the_documented_layout(column, others, parameters, cuts):
    dtype, values = column
    series = pl.Series("a", values, dtype=dtype)
    step = max(1, -(-len(values) // cuts))
    artifact = fitted([series[start : start + step] for start in range(0, max(len(values), 1), step)], **parameters)
    ids = oracle(values, **parameters)
    assert artifact.table is not None
    assert artifact.table["value"].to_pylist() == list(ids)
    assert artifact.facts["ids"] == 2 + parameters["oov_buckets"] + len(ids)
    assert artifact.facts["nulls"] == values.count(None)
    assert artifact.facts["seen"] == len(values) - values.count(None)
    buckets = parameters["oov_buckets"]
    met = values + (others[1] if others[0] == dtype else [])
    wanted = [expected(ids, value, buckets) for value in met]
    assert looked_up(artifact, pl.Series(met, dtype=dtype), **parameters) == wanted
    lists = pl.Series([met, None, [], *[[value] for value in met]], dtype=pl.List(dtype))
    assert looked_up(artifact, lists, **parameters) == [wanted, None, [], *[[one] for one in wanted]]


@examples(30)
@given(lists=st.lists(st.none() | st.lists(st.none() | st.integers(-9, 9))))
def test_elements_of_lists_are_counted_one_by_one(lists):
    listed = fitted([pl.Series(lists, dtype=pl.List(pl.Int64()))])
    flat = fitted([pl.Series([value for held in lists for value in held or []], dtype=pl.Int64())])
    assert listed.digest == flat.digest


def test_a_vocabulary_is_used_by_columns_of_every_width():
    artifact = fitted([pl.Series([-1, 5, 5, 2**40], dtype=pl.Int64())])
    for dtype in INTEGERS:
        assert looked_up(artifact, pl.Series([5, 6, None], dtype=dtype)) == [3, 2, 1]
    assert looked_up(artifact, pl.Series([2**64 - 1, 2**40, 5], dtype=pl.UInt64())) == [2, 5, 3]
    wide = fitted([pl.Series([2**64 - 1, 5], dtype=pl.UInt64())])
    assert looked_up(wide, pl.Series([-1, 5], dtype=pl.Int64())) == [2, 3]
    assert looked_up(wide, pl.Series([2**64 - 1, 2**63], dtype=pl.UInt64())) == [4, 2]


@pytest.mark.parametrize("values", [[], [None, None]])
@pytest.mark.parametrize("dtype", [pl.Int64(), pl.String()])
def test_nothing_seen(dtype, values):
    artifact = fitted([pl.Series(values, dtype=dtype)], oov_buckets=0)
    assert artifact.facts["ids"] == 2
    assert artifact.facts["nulls"] == len(values)
    assert looked_up(artifact, pl.Series([None, "7"]).cast(dtype), oov_buckets=0) == [1, 1]
    made = learner(dtype)
    assert made.show(artifact)["out of vocabulary"] is None
    assert made.blank().table.schema == artifact.table.schema
    assert looked_up(made.blank(), pl.Series(["7"]).cast(dtype)) == [2]


def test_summaries():
    made = learner(pl.String(), min_count=2)
    shown = made.show(fitted([pl.Series(["b", "a", "b", "c", None])], min_count=2))
    assert shown == {
        "ids": 4,
        "values": 1,
        "distinct values seen": 3,
        "rarest kept": 2,
        "values seen": 4,
        "nulls seen": 1,
        "out of vocabulary": "50.00%",
        "most frequent": "b (2)",
    }


@pytest.mark.parametrize(
    ("series", "size"),
    [(pl.Series(range(0, 10**9, 10**6)), "51,552"), (pl.Series([f"{n:08}" for n in range(1000)]), "83,552")],
)
def test_a_vocabulary_beyond_its_memory_is_an_error(series, size):
    got = f"larger than max_memory: got 1,000 values, {size} bytes, expected at most 50,000 bytes. Raise min_count"
    with pytest.raises(DataError, match=got):
        fitted([series], max_memory=50_000)
    assert fitted([series], max_memory=50_000, max_size=500).facts["values"] == 500
    assert fitted([series], max_memory=90_000).facts["values"] == 1000


def test_the_memory_limit_does_not_change_the_fingerprint():
    small = resolve(OpCall(op="vocabulary", arguments='{"max_memory": "1GB"}'))
    assert small.identity == resolve(OpCall(op="vocabulary")).identity
    assert small.parameters.max_memory == 10**9
    assert learner(pl.Int64(), max_memory=1) == learner(pl.Int32(), max_memory=2)
    assert learner(pl.Int64()) != learner(pl.String())


def feature(group: str, column: str, parameters: dict[str, Any]) -> FeatureSpec:
    call = OpCall(op="vocabulary", arguments=json.dumps(parameters))
    return FeatureSpec(name=column, group=group, column=column, ops=(call,))  # type: ignore[arg-type]


def test_features_with_one_name_share_a_vocabulary_and_weights_stay():
    frame = pl.DataFrame(
        {
            "item": pl.Series([7, None, 9], dtype=pl.Int32),
            "history": [[{"id": 7, "weight": 0.5}, {"id": 8, "weight": 1.5}], None, [{"id": 7, "weight": 2.0}]],
        }
    )
    schema = frame.to_arrow().schema
    features = [feature("categorical", "item", {"name": "items"}), feature("sparse", "history", {"name": "items"})]
    (want,) = compile_features(features, schema).missing_fits
    known = fit_frames(features, schema, [frame.head(1), frame.tail(2)])
    assert known.artifacts[want.key].table["value"].to_pylist() == [7, 8, 9]
    found = compile_features(features, schema, known).apply(frame)
    assert found["item"].to_list() == [3, 1, 5]
    assert found["history"].struct.field("values").to_list() == [[3, 4], None, [3]]
    assert found["history"].struct.field("weights").to_list() == [[0.5, 1.5], None, [2.0]]


def table_of(rows: int) -> pl.DataFrame:
    """Ids and words with few frequent and many rare values, and nulls."""
    random = np.random.default_rng(3)
    ids = (10**6 ** random.random(rows)).astype(np.int64) * 7_919_000_000_001
    words = pl.Series([f"{number:x}é" for number in (10**4 ** random.random(rows)).astype(np.int64)])
    holes = pl.Series(random.random(rows) < 0.05)
    return pl.DataFrame({"id": pl.Series(ids).set(holes, None), "word": words.set(holes, None)})


@pytest.mark.parametrize("column", ["id", "word"])
def test_duckdb_and_pandas_number_a_table_the_same(column: str):
    frame = table_of(60_000)
    artifact = fitted([frame[column][:25_000], frame[column][25_000:]], min_count=2, max_size=2_000)
    found = looked_up(artifact, frame[column])
    rows = frame.with_row_index("row").to_arrow()  # noqa: F841 -- DuckDB reads it by its name
    counts = f"select {column} v, count(*) n from rows where {column} is not null group by 1 having n >= 2"
    order = "n desc, v" if column == "id" else "n desc, encode(v)"
    numbered = f"select v, 2 + row_number() over (order by {order}) i from ({counts}) order by i limit 2000"
    wanted = duckdb.sql(
        f"select case when {column} is null then 1 else coalesce(i, 2) end "
        f"from rows left join ({numbered}) on v = {column} order by row"
    ).fetchnumpy()
    assert found == next(iter(wanted.values())).tolist()
    counted = pd.Series(frame[column].drop_nulls().to_list()).value_counts()
    kept = artifact.table.to_pandas().set_index("value")["count"]
    assert (counted.loc[kept.index] == kept).all()
    assert counted.drop(kept.index).max() <= kept.min()


def test_an_artifact_serves_other_fits_by_its_own_tables():
    artifact = fitted([pl.Series([5, 6])])
    assert looked_up(artifact, pl.Series([5, 9]), oov_buckets=1) == [3, 2]
    assert looked_up(artifact, pl.Series([5, 9]), oov_buckets=0) == [2, 1]
    assert InMemoryArtifacts(artifacts={"k": artifact}).artifacts["k"].digest == fitted([pl.Series([6, 5])]).digest
