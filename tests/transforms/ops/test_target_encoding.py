"""target_encoding learns the documented means, and leaves each row out of its own.

The oracles are scikit-learn's TargetEncoder, pandas, and exactly rounded sums.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from drawn_examples import examples
from fit_in_memory import fit_frames
from hypothesis import given
from hypothesis import strategies as st
from sklearn.preprocessing import TargetEncoder

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.errors import DataError
from feedline.hashing import key_hash
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts
from feedline.transforms.ops import resolve
from feedline.transforms.registry.op import OpError

SIZE = 3000
RANDOM = np.random.default_rng(0)
FRAME = pl.DataFrame(
    {
        "shop": pl.Series(RANDOM.integers(0, 40, SIZE)).set(pl.Series(RANDOM.random(SIZE) < 0.1), None),
        "country": [["de", "us", "", None][one] for one in RANDOM.integers(0, 4, SIZE)],
        "open": [[True, False, None][one] for one in RANDOM.integers(0, 3, SIZE)],
        "clicked": RANDOM.integers(0, 2, SIZE),
        "dwell": RANDOM.lognormal(1, 2, SIZE),
        "row": np.arange(SIZE),
    }
)
DEFAULTS = {"target": "clicked", "fold_by": "row"}


def feature(*inputs: str, **parameters: Any) -> FeatureSpec:
    call = OpCall(op="target_encoding", arguments=json.dumps(DEFAULTS | parameters))
    columns = tuple(FeatureInput(column=name) for name in inputs)
    return FeatureSpec(name="f", group="extra", op=call, inputs=columns)


def learnt(spec: FeatureSpec, frames: Sequence[pl.DataFrame]) -> Artifact:
    [artifact] = fit_frames([spec], frames[0].to_arrow().schema, frames).artifacts.values()
    return artifact


def encoded(spec: FeatureSpec, learnt_from: pl.DataFrame, rows: pl.DataFrame, *, out_of_fold: bool) -> pl.Series:
    return applied(spec, fit_frames([spec], learnt_from.to_arrow().schema, [learnt_from]), rows, out_of_fold)


def applied(spec: FeatureSpec, fits: InMemoryArtifacts, rows: pl.DataFrame, out_of_fold: bool) -> pl.Series:
    artifacts = InMemoryArtifacts(artifacts=fits.artifacts, out_of_fold=out_of_fold)
    return compile_features([spec], rows.to_arrow().schema, artifacts).apply(rows).to_series()


def folds_of(frame: pl.DataFrame, names: Sequence[str], folds: int, seed: int = 0) -> Any:
    return (key_hash([frame[name] for name in names], seed) % np.uint64(folds)).astype(int)


def smoothed(rows: pl.DataFrame, keys: list[str], target: str, smoothing: float) -> dict[Any, float]:
    """Smoothed means by key, from sums that are rounded once; the mean of all rows under None."""
    members: dict[Any, list[float]] = {}
    for *key, value in rows.select(*keys, target).rows():
        members.setdefault(tuple(key), []).append(value)
    values = [value for group in members.values() for value in group]
    mean = math.fsum(values) / len(values)
    means = {key: (math.fsum(group) + mean * smoothing) / (len(group) + smoothing) for key, group in members.items()}
    return means | {None: mean}


@pytest.mark.parametrize("target", ["clicked", "dwell"])
@pytest.mark.parametrize("keys", [["shop"], ["country"], ["open"], ["shop", "country"], ["country", "open", "shop"]])
def test_every_row_by_exactly_rounded_sums(keys: list[str], target: str):
    of_row, rows = folds_of(FRAME, ["row"], 5), FRAME.select(keys).rows()
    for smoothing in (0, 0.5, 20):
        spec = feature(*keys, target=target, smoothing=smoothing)
        fits = fit_frames([spec], FRAME.to_arrow().schema, [FRAME])
        means = smoothed(FRAME, keys, target, smoothing)
        expected = np.array([means[key] for key in rows])
        np.testing.assert_allclose(applied(spec, fits, FRAME, False).to_numpy(), expected, rtol=1e-14)
        without = [smoothed(FRAME.filter(pl.Series(of_row != fold)), keys, target, smoothing) for fold in range(5)]
        expected = np.array(
            [without[fold].get(key, without[fold][None]) for fold, key in zip(of_row, rows, strict=True)]
        )
        np.testing.assert_allclose(applied(spec, fits, FRAME, True).to_numpy(), expected, rtol=1e-14)


def test_out_of_fold_statistics_are_those_of_scikit_learn():
    """Which learns, for each fold, from the others."""
    frame = FRAME.drop_nulls("shop")
    of_row = folds_of(frame, ["row"], 4, seed=7)
    spec = feature("shop", target="dwell", smoothing=5, folds=4, seed=7)
    found = encoded(spec, frame, frame, out_of_fold=True).to_numpy()
    for fold in range(4):
        mine, others = frame.filter(pl.Series(of_row == fold)), frame.filter(pl.Series(of_row != fold))
        oracle = TargetEncoder(smooth=5, target_type="continuous")
        oracle.fit(others["shop"].to_numpy().reshape(-1, 1), others["dwell"].to_numpy())
        expected = oracle.transform(mine["shop"].to_numpy().reshape(-1, 1)).ravel()
        np.testing.assert_allclose(found[of_row == fold], expected, rtol=1e-13)


ROWS = st.lists(
    st.tuples(
        st.one_of(st.none(), st.integers(0, 3)),
        st.sampled_from(["a", "", None]),
        st.one_of(st.none(), st.floats(width=64), st.sampled_from([0.1, 1e300, -1e300, 1e-300])),
        st.integers(0, 50),
    ),
    min_size=1,
    max_size=30,
)


@given(rows=ROWS, seed=st.integers(0, 2**32))
@examples(30)
def test_any_order_and_partition_gives_the_same_artifact(rows: list[Any], seed: int):
    schema = {"shop": pl.Int64, "country": pl.String, "dwell": pl.Float64, "row": pl.Int64}
    # a target in every fold, so that something can be learnt
    rows = rows + [(0, "a", 1.0, row) for row in range(50)]
    spec = feature("shop", "country", target="dwell", folds=3)
    whole = learnt(spec, [pl.DataFrame(rows, schema=schema, orient="row")])
    draw = random.Random(seed)
    shuffled = draw.sample(rows, len(rows))
    cuts = sorted(draw.randint(0, len(rows)) for _ in range(draw.randint(0, 3)))
    parts = [shuffled[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(rows)], strict=True)]
    cut = learnt(spec, [pl.DataFrame(part, schema=schema, orient="row") for part in parts])
    assert cut.digest == whole.digest


@given(st.data())
@examples(25)
def test_a_row_s_own_target_does_not_change_its_feature(data: st.DataObject):
    size = data.draw(st.integers(2, 25))
    numbers = st.one_of(st.none(), st.floats(-1e9, 1e9), st.integers(-5, 5).map(float))
    frame = pl.DataFrame(
        {
            "shop": data.draw(st.lists(st.sampled_from([1, 2, None]), min_size=size, max_size=size)),
            "dwell": data.draw(st.lists(numbers, min_size=size, max_size=size)),
            "row": data.draw(st.lists(st.integers(0, 2**40), min_size=size, max_size=size, unique=True)),
        },
        schema={"shop": pl.Int64, "dwell": pl.Float64, "row": pl.Int64},
    )
    # other rows that no draw changes, some in every fold
    frame = pl.concat([frame, pl.DataFrame({"shop": [1, 3] * 10, "dwell": [0.5] * 20, "row": list(range(20))})])
    spec = feature("shop", target="dwell", folds=data.draw(st.integers(2, 3)), smoothing=data.draw(st.floats(0, 50)))
    row = data.draw(st.integers(0, size - 1))
    changed = frame.with_columns(
        pl.when(pl.int_range(pl.len()) == row).then(data.draw(numbers)).otherwise("dwell").alias("dwell")
    )
    before, after = (encoded(spec, one, one, out_of_fold=True)[row] for one in (frame, changed))
    assert before == after


def test_unknown_keys_become_the_mean():
    frame = pl.DataFrame({"shop": [1, 1, 2, 2], "clicked": [1, 0, 0, 0], "row": [1, 2, 3, 4]})
    rows = pl.DataFrame({"shop": [1, 2, 3, None], "row": [1, 2, 3, 4]})
    found = encoded(feature("shop", folds=2, smoothing=1), frame, rows.drop("row"), out_of_fold=False)
    assert found.to_list() == [(1 + 0.25) / 3, 0.25 / 3, 0.25, 0.25]
    spec = feature("shop", folds=2)
    fits = fit_frames([spec], frame.to_arrow().schema, [frame])
    assert compile_features([spec], rows.to_arrow().schema, fits).apply_counting(rows)[1] == {"f": [(4, 2)]}
    of_row = folds_of(rows, ["row"], 2)
    means = [np.mean([clicked for clicked, at in zip([1, 0, 0, 0], of_row, strict=True) if at != f]) for f in of_row]
    out = encoded(feature("shop", folds=2, smoothing=1), frame, rows, out_of_fold=True)
    assert out.to_list()[2:] == means[2:]


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ([None, 1.0, np.nan, 0.0, np.inf, 0.0], 1 / 3),
        ([True, None, True, False, None, True], 3 / 4),
        ([2**62, 2**62, 2**62, 2**62, None, 2**62 + 4096], 2.0**62 + 4096 / 5),
    ],
)
def test_targets_that_are_not_finite_are_left_out(target: list[Any], expected: float):
    frame = pl.DataFrame({"shop": ["a"] * 6, "clicked": target, "row": range(6)}, strict=False)
    artifact = learnt(feature("shop", folds=1), [frame])
    assert artifact.facts["means"] == [expected]
    assert artifact.facts["groups"] == 1
    unknown = frame.with_columns(pl.lit(None, frame.schema["clicked"]).alias("clicked"), shop=pl.lit("b"))
    assert learnt(feature("shop", folds=1), [frame, unknown]).digest == artifact.digest


def test_elements_of_lists_are_keys():
    lists = pl.DataFrame(
        {"shops": [[1, 2], [2, None], [], None, [2, 2]], "clicked": [1, 0, 1, 1, 0], "row": range(5)},
        schema_overrides={"shops": pl.List(pl.Int32)},
    )
    flat = pl.DataFrame({"shops": [1, 2, 2, None, 2, 2], "clicked": [1, 1, 0, 0, 0, 0], "row": [0, 0, 1, 1, 4, 4]})
    spec = feature("shops", folds=2)
    assert learnt(spec, [lists]).digest == learnt(spec, [flat]).digest
    for out_of_fold in (False, True):
        found = encoded(spec, lists, lists, out_of_fold=out_of_fold)
        by_element = encoded(spec, flat, flat, out_of_fold=out_of_fold).to_list()
        assert found.to_list() == [by_element[:2], by_element[2:4], [], None, by_element[4:]]
        assert encoded(spec, lists, lists[1:4], out_of_fold=out_of_fold).to_list() == found.to_list()[1:4]


def test_a_chunk_s_rows_do_not_need_the_target_when_serving():
    spec = feature("shop", "country")
    fits = fit_frames([spec], FRAME.to_arrow().schema, [FRAME])
    serving = FRAME.select("country", "shop")
    compiled = compile_features([spec], serving.to_arrow().schema, InMemoryArtifacts(artifacts=fits.artifacts))
    assert set(compiled.columns) == {"shop", "country"}
    training = compile_features(
        [spec], FRAME.to_arrow().schema, InMemoryArtifacts(artifacts=fits.artifacts, out_of_fold=True)
    )
    assert set(training.columns) == {"shop", "country", "row"}


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"fold_by": None}, "5 folds need fold_by: got none, expected a column that tells rows apart"),
        ({"folds": 0}, "target_encoding.folds must be greater than or equal to 1: got 0"),
        ({"folds": 101}, "target_encoding.folds must be less than or equal to 100: got 101"),
        ({"smoothing": -1}, "target_encoding.smoothing must be greater than or equal to 0: got -1"),
        ({"target": ""}, "target_encoding.target must"),
        ({"fold_by": 3}, "target_encoding.fold_by must be a string or a list: got 3"),
    ],
)
def test_wrong_parameters(parameters: dict[str, Any], message: str):
    arguments = {key: value for key, value in (DEFAULTS | parameters).items() if value is not None}
    with pytest.raises(OpError, match=message):
        resolve(OpCall(op="target_encoding", arguments=json.dumps(arguments)))


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"clicked": pl.lit(None, pl.Int64)}, "no target to learn from: got no value in column 'clicked'"),
        ({"row": pl.lit(5)}, "all rows with a target are in one of 5 folds: .*fold_by with more values, or"),
    ],
)
def test_rows_that_nothing_can_be_learnt_from(changed: dict[str, pl.Expr], message: str):
    with pytest.raises(DataError, match=message):
        learnt(feature("shop"), [FRAME.with_columns(**changed)])


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"target": "country"}, "target must be a column of numbers or booleans: got 'country' of strings"),
        ({"target": "rows"}, "target must be a column of numbers or booleans: got 'rows' of integer lists"),
        (
            {"target": "clickd"},
            r"f: \[target_encoding\]\(shop\): target_encoding: unknown column: got 'clickd'.* mean `clicked`",
        ),
        ({"fold_by": ["row", "rows"]}, "fold_by has a column without a hash: got 'rows' of integer lists"),
        ({"fold_by": "user"}, "unknown column: got 'user'"),
    ],
)
def test_columns_that_nothing_can_be_learnt_from(parameters: dict[str, Any], message: str):
    """Known before anything is read."""
    frame = FRAME.with_columns(rows=pl.concat_list("row"))
    with pytest.raises(OpError, match=message):
        compile_features([feature("shop", **parameters)], frame.to_arrow().schema)


def test_summaries():
    spec = feature("shop", smoothing=0, folds=1)
    frame = pl.DataFrame({"shop": [1, 1, 2], "clicked": [1, 0, 1]})
    [want] = compile_features([spec], frame.to_arrow().schema).missing_fits
    shown = want.learner.show(learnt(spec, [frame]))
    assert shown == {"rows": 3, "groups": 2, "mean": 2 / 3, "least": 0.5, "greatest": 1.0}
    assert want.learner.show(want.learner.blank()) == {"rows": 0, "groups": 0, "mean": 0.0}


@pytest.mark.parametrize(
    ("fold_by", "clicks", "warns"),
    [
        ("row", [1, 0, 0, 0], True),  # three negatives for each positive of a key
        ("request", [1, 0, 0, 0], False),  # a positive's fold has its negatives
        ("key", [1, 0, 0, 0], False),
        ("row", [1, 1, 1, 1], False),  # nothing to tell
    ],
)
def test_warning_of_negatives_sampled_per_key(fold_by: str, clicks: list[int], warns: bool):
    rows = 4000
    requests = np.arange(rows) // 4
    frame = pl.DataFrame(
        {"key": requests % 500, "request": requests, "row": np.arange(rows), "clicked": clicks * (rows // 4)}
    )
    for target, expected in (
        (frame["clicked"], warns),
        (frame["clicked"].set(frame["row"] == 7, 1 - clicks[3]), False),
    ):
        table = frame.with_columns(clicked=target)
        spec = feature("key", fold_by=fold_by)
        [want] = compile_features([spec], table.to_arrow().schema).missing_fits
        assert ("warning" in want.learner.show(learnt(spec, [table]))) is expected
    if warns:  # the means without a row's fold do tell its target
        means = encoded(feature("key"), frame, frame, out_of_fold=True).to_numpy()
        own = means - encoded(feature("key"), frame, frame, out_of_fold=False).to_numpy()
        assert np.corrcoef(own, frame["clicked"].to_numpy())[0, 1] < -0.3
