"""group_statistics against pandas and fractions."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest
from drawn_examples import examples
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.ops import resolve
from feedline.transforms.registry.op import OpError

ALL = ["count", "sum", "mean", "min", "max", "var", "std"]
SIZE = 2000
RANDOM = np.random.default_rng(0)
FRAME = pl.DataFrame(
    {
        "shop": pl.Series(RANDOM.integers(0, 300, SIZE)).set(pl.Series(RANDOM.random(SIZE) < 0.1), None),
        "country": [["de", "us", None][one] for one in RANDOM.integers(0, 3, SIZE)],
        "price": pl.Series(RANDOM.gamma(2, 20, SIZE) + 1e7).set(pl.Series(RANDOM.random(SIZE) < 0.1), None),
        "pieces": RANDOM.integers(-5, 100, SIZE).astype(np.int16),
        "sold": RANDOM.integers(0, 2, SIZE).astype(bool),
    }
)


def feature(*inputs: str, then: Sequence[str] = (), **parameters: Any) -> FeatureSpec:
    call = OpCall(op="group_statistics", arguments=json.dumps(parameters))
    ops = tuple(OpCall(op=op, arguments='{"": 0}') for op in then)
    columns = tuple(FeatureInput(column=name) for name in inputs)
    return FeatureSpec(name="f", group="extra", op=call, inputs=columns, ops=ops)


def learnt(spec: FeatureSpec, *frames: pl.DataFrame) -> Artifact:
    [artifact] = fit_frames([spec], frames[0].to_arrow().schema, frames).artifacts.values()
    return artifact


def found_in(spec: FeatureSpec, learnt_from: pl.DataFrame, rows: pl.DataFrame) -> pl.Series:
    fits = fit_frames([spec], learnt_from.to_arrow().schema, [learnt_from])
    return compile_features([spec], rows.to_arrow().schema, fits).apply(rows).to_series()


@pytest.mark.parametrize("of", ["price", "pieces", "sold"])
@pytest.mark.parametrize("keys", [["shop"], ["country"], ["shop", "country"]])
def test_statistics_are_those_of_pandas(keys: list[str], of: str):
    frame = FRAME.to_pandas()
    values, names = frame[of].astype("float64"), [frame[key] for key in keys]
    groups, near = values.groupby(names, dropna=False), (values - 1e7 * (of == "price")).groupby(names, dropna=False)
    # pandas loses digits of the variance of numbers far from 0
    expected = pd.DataFrame({name: (near if name in ("var", "std") else groups).transform(name) for name in ALL})
    found = found_in(feature(*keys, stats=ALL, of=of), FRAME, FRAME)
    assert found.dtype == pl.Array(pl.Float64, len(ALL))
    table = np.array(found.to_list(), dtype=np.float64)
    np.testing.assert_allclose(table, expected.to_numpy(), rtol=1e-12)


def exact(values: list[float]) -> list[float | None]:
    numbers = [Fraction(value) for value in values]
    total, count = sum(numbers, Fraction(0)), len(numbers)
    if not count:
        return [0, 0.0, None, None, None, None, None]
    var = statistics.variance(numbers) if count > 1 else None
    mean = float(Fraction(float(total)) / count)
    std = None if var is None else math.sqrt(var)
    return [count, float(total), mean, min(values), max(values), None if var is None else float(var), std]


@given(st.data())
@examples(25)
def test_statistics_are_exact_in_any_order_and_partition(data: st.DataObject):
    far = data.draw(st.sampled_from([0.0, 1e3, -1e9, 1e15]))
    number = st.one_of(st.none(), st.just(math.nan), st.integers(0, 9).map(lambda x: far + x), st.floats(-1e9, 1e9))
    rows = data.draw(st.lists(st.tuples(st.sampled_from([1, 2, None]), number), max_size=12))
    shuffled = data.draw(st.permutations(rows))
    cut = data.draw(st.integers(0, len(rows)))
    schema = {"shop": pl.Int64, "price": pl.Float64}
    whole, first, second = (
        pl.DataFrame(part, schema=schema, orient="row") for part in (rows, shuffled[:cut], shuffled[cut:])
    )
    spec = feature("shop", stats=ALL, of="price")
    assert learnt(spec, whole).digest == learnt(spec, first, second).digest
    keys = pl.DataFrame({"shop": [1, 2, None, 3]}, schema={"shop": pl.Int64})
    for key, found in zip(keys["shop"], found_in(spec, whole, keys).to_list(), strict=True):
        values = [value for mine, value in rows if mine == key and value is not None and math.isfinite(value)]
        for name, mine, theirs in zip(ALL, found, exact(values), strict=True):
            assert mine == (theirs if theirs is None else pytest.approx(theirs, rel=1e-14, abs=5e-324)), name


def test_a_variance_that_is_small_beside_its_mean_keeps_its_digits():
    shops = [[1e15, 1e15 + 0.125, 1e15 + 0.5], [1e9, 1e9 + 1e-7], [1e-200, 2e-200], [3e200, 3e200], [-1e-200, 1e-200]]
    frame = pl.DataFrame({"shop": range(len(shops)), "price": shops}).explode("price")
    found = found_in(feature("shop", stats="var", of="price"), frame, pl.DataFrame({"shop": range(len(shops))}))
    assert found.to_list() == [float(statistics.variance(map(Fraction, values))) for values in shops]


def test_extreme_values():
    frame = pl.DataFrame({"shop": [1, 1, 2, 2, 3, 3], "price": [1.7e308, 1.7e308, 1e-320, 0.0, -1.7e308, 1.7e308]})
    spec = feature("shop", stats=["sum", "mean", "max", "var"], of="price")
    large, small, both = found_in(spec, frame, pl.DataFrame({"shop": [1, 2, 3]})).to_list()
    assert large == [math.inf, math.inf, 1.7e308, 0.0]
    assert small == [1e-320, 5e-321, 1e-320, 0.0]
    assert both == [0.0, 0.0, 1.7e308, math.inf]


def test_a_word_gives_a_number_and_counts_are_integers():
    for stats, dtype in (("count", pl.Int64), ("mean", pl.Float64), (["count"], pl.Array(pl.Float64, 1))):
        assert found_in(feature("shop", stats=stats, of="price"), FRAME, FRAME[:3]).dtype == dtype
    rows = found_in(feature("shop", "country", stats="count"), FRAME, FRAME)
    expected = FRAME.select(pl.len().over("shop", "country")).to_series()
    assert rows.to_list() == expected.to_list()


def test_keys_without_values_have_no_mean():
    frame = pl.DataFrame({"shop": [1, 1, 2, 3], "price": [1.0, 2.0, None, 7.0]})
    rows = pl.DataFrame({"shop": [1, 2, 3, 4]})
    spec = feature("shop", stats=ALL, of="price")
    lacking = [0.0, 0.0, *[None] * 5]
    assert found_in(spec, frame, rows).to_list()[1:] == [lacking, [1.0, 7.0, 7.0, 7.0, 7.0, None, None], lacking]
    filled = found_in(feature("shop", stats=ALL, of="price", then=["fill_null"]), frame, rows)
    assert filled.dtype == pl.Array(pl.Float64, len(ALL))
    assert filled.to_list()[3] == [0.0] * 7
    assert found_in(feature("shop", stats="mean", of="price"), frame, rows).to_list() == [1.5, None, 7.0, None]


def test_elements_of_lists_are_keys():
    lists = pl.DataFrame({"shops": [[1, 2], [2, None], [], None, [2, 2]], "price": [1.0, 2.0, 5.0, 6.0, 4.0]})
    mean = found_in(feature("shops", stats="mean", of="price"), lists, lists).to_list()
    assert mean == [[1.0, 2.75], [2.75, 2.0], [], None, [2.75, 2.75]]
    count = found_in(feature("shops", stats="count"), lists, lists)
    assert count.dtype == pl.List(pl.Int64)
    assert count.to_list() == [[1, 4], [4, 1], [], None, [4, 4]]
    unknown = pl.DataFrame({"shops": [[1, 9], None]})
    assert found_in(feature("shops", stats="max", of="price"), lists, unknown).to_list() == [[1.0, None], None]
    with pytest.raises(OpError, match=r"a list of keys takes one statistic: got stats \['count', 'sum'\]"):
        compile_features([feature("shops", stats=["count", "sum"], of="price")], lists.to_arrow().schema)


def test_a_fit_without_rows():
    empty = FRAME.clear()
    assert (
        found_in(feature("shop", stats=["count", "min"], of="price"), empty, FRAME[:2]).to_list() == [[0.0, None]] * 2
    )
    assert found_in(feature("shop", "country", stats="count"), empty, FRAME[:2]).to_list() == [0, 0]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"stats": []}, "stats must not be empty: got"),
        ({"stats": ["mean", "mean"], "of": "price"}, "stats must differ: got mean twice"),
        ({"stats": "mean"}, "mean needs a column: got no `of`, expected of: COLUMN"),
        ({"stats": ["count", "std"]}, "std needs a column: got no `of`"),
        ({"stats": "median", "of": "price"}, "group_statistics.stats must be .*: got 'median'"),
        ({"of": "price"}, "group_statistics needs stats"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str):
    with pytest.raises(OpError, match=message):
        resolve(OpCall(op="group_statistics", arguments=json.dumps(parameters)))


def test_of_must_be_a_number():
    for of, message in (
        ("country", "of must be a column of numbers or booleans: got 'country' of strings"),
        ("prize", "unknown column: got 'prize', expected a column of the table. Did you mean `price`"),
    ):
        with pytest.raises(OpError, match=message):
            compile_features([feature("shop", stats="mean", of=of)], FRAME.to_arrow().schema)


def test_summaries():
    frame = pl.DataFrame({"shop": [1, 1, 2], "price": [1.0, 2.0, 4.0]})
    spec = feature("shop", stats=["mean"], of="price")
    [want] = compile_features([spec], frame.to_arrow().schema).missing_fits
    shown = want.learner.show(learnt(spec, frame))
    assert shown == {"rows": 3, "groups": 2, "count": [1, 2], "mean": [1.5, 4.0]}
    assert want.learner.show(want.learner.blank()) == {"rows": 0, "groups": 0}
