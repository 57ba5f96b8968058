"""Missing fits: which chains share one, what each waits for, and the columns that it observes."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl
import pyarrow as pa
import pytest
from fit_in_memory import fit_frames
from sum_ops import FRAME, SCHEMA, feature, sum_ops

from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.errors import SpecError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, FitRequest, InMemoryArtifacts
from feedline.transforms.registry.op import OpError


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with sum_ops():
        yield


def test_the_artifact_is_blank_before_the_fit() -> None:
    features = [feature("f", ("plus_sum", {}))]
    unfitted = compile_features(features, SCHEMA)
    [want] = unfitted.missing_fits
    assert want.feature == "f"
    assert want.types == {"a": "int64"}
    assert want.op[0] == "plus_sum"
    assert not want.depends
    assert unfitted.outputs[0].dtype == pl.Int64()
    assert unfitted.columns == ("a",)
    fitted = compile_features(features, SCHEMA, fit_frames(features, SCHEMA, [FRAME.head(2), FRAME.tail(2)]))
    assert fitted.missing_fits == ()
    assert fitted.fingerprint != unfitted.fingerprint
    assert fitted.apply(FRAME).to_series().to_list() == [8, 9, None, 11]


def test_bounds_of_a_list_s_elements() -> None:
    features = [feature("f", ("plus_sum", {}), column="l")]
    fitted = compile_features(features, SCHEMA, fit_frames(features, SCHEMA, [FRAME]))
    assert fitted.apply(FRAME).to_series().to_list() == [[7, 8], [], None, [9]]


def test_a_fit_behind_a_fit_waits_for_it() -> None:
    features = [feature("f", ("plus_sum", {}), ("plus_sum", {"target": "y"}))]
    first, second = compile_features(features, SCHEMA).missing_fits
    assert second.depends == {first.key}
    assert first.key != second.key
    known = fit_frames(features, SCHEMA, [FRAME])
    assert known.artifacts[second.key].facts == {"sum": 8 + 9 + 11, "beside": 2 + 34}
    [left] = compile_features(
        features, SCHEMA, InMemoryArtifacts(artifacts={first.key: known.artifacts[first.key]})
    ).missing_fits
    assert left.key == second.key
    assert not left.depends


def test_equal_chains_share_a_fit_and_others_do_not() -> None:
    features = [
        feature("f", ("plus_sum", {})),
        feature("g", ("plus_sum", {}), ("modulo", {"": 3})),
        feature("h", ("modulo", {"": 3}), ("plus_sum", {})),
    ]
    wanted = compile_features(features, SCHEMA).missing_fits
    assert [want.feature for want in wanted] == ["f", "h"]
    assert [len(want.streams) for want in wanted] == [1, 1]


def test_a_name_joins_features() -> None:
    features = [
        feature("f", ("plus_sum", {"name": "all"})),
        feature("g", ("plus_sum", {"name": "all"}), column="b"),
        feature("h", ("plus_sum", {"name": "all"}), column="b"),
        feature("i", ("plus_sum", {"name": "other"}), column="b"),
    ]
    shared, other = compile_features(features, SCHEMA).missing_fits
    assert len(shared.streams) == 2
    assert shared.types == {"a": "int64", "b": "int64"}
    known = fit_frames(features, SCHEMA, [FRAME])
    assert known.artifacts[shared.key].facts["sum"] == 107
    assert known.artifacts[other.key].facts["sum"] == 100
    alone = compile_features(features[:1], SCHEMA, known)
    assert alone.apply(FRAME).to_series().to_list() == [108, 109, None, 111]


def test_a_name_does_not_join_types() -> None:
    features = [feature("f", ("plus_sum", {"name": "n"})), feature("g", ("plus_sum", {"name": "n"}), column="small")]
    with pytest.raises(OpError, match=r"g: .*different types: got small int32 here and a int64 in f. Give them"):
        compile_features(features, SCHEMA)


def test_serving_needs_no_target() -> None:
    features = [feature("f", ("plus_sum", {"target": "y"}))]
    known = fit_frames(features, SCHEMA, [FRAME])
    served = compile_features(features, pa.schema({"a": pa.int64()}), known)
    assert not served.missing_fits
    assert served.apply(FRAME.select("a")).height == 4


def test_several_columns_learn_together() -> None:
    made = FeatureSpec(
        name="f",
        group="extra",
        op=OpCall(op="plus_sums"),
        inputs=(FeatureInput(column="a", ops=(OpCall(op="plus_sum"),)), FeatureInput(expr="b + 1")),
    )
    first, both = compile_features([made], SCHEMA).missing_fits
    assert both.depends == {first.key}
    assert both.types == {"a": "int64", "b": "int64"}
    known = fit_frames([made], SCHEMA, [FRAME])
    assert known.artifacts[both.key].facts == {"sum": 8 + 9 + 11, "beside": 104}
    assert compile_features([made], SCHEMA, known).apply(FRAME).to_series().to_list()[0] == 8 + 11 + 132


def test_errors_of_learners_name_the_chain() -> None:
    with pytest.raises(OpError, match=r"f: modulo → \[plus_sum\]: plus_sum: 13 is not added"):
        compile_features([feature("f", ("modulo", {"": 3}), ("plus_sum", {"add": 13}))], SCHEMA)

    class Refuses(InMemoryArtifacts):
        def find_artifact(self, wanted: FitRequest) -> Artifact | None:
            raise SpecError(f"learnt otherwise: got {wanted.types}")

    with pytest.raises(OpError, match=r"f: \[plus_sum\]: plus_sum: learnt otherwise: got {'a': 'int64'}"):
        compile_features([feature("f", ("plus_sum", {}))], SCHEMA, Refuses())
