"""What ops learn: which fits are requested, under which keys, and that ops get the artifacts of their fits."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

import polars as pl
import pyarrow as pa
import pytest
from fit_in_memory import fit_frames

from feedline.errors import SpecError
from feedline.spec.features import FeatureInput, FeatureSpec, OpCall
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, FitRequest, InMemoryArtifacts, Learning, Parts, Reading
from feedline.transforms.ops import OPS
from feedline.transforms.registry.op import Input, OpError, Parameters, example, op
from feedline.transforms.values.kinds import Value

SCHEMA = pa.schema(
    {
        "a": pa.int64(),
        "b": pa.int64(),
        "small": pa.int32(),
        "f": pa.float64(),
        "l": pa.list_(pa.int64()),
        "y": pa.int64(),
        "row": pa.int64(),
    }
)
FRAME = pl.DataFrame(
    {
        "a": [1, 2, None, 4],
        "b": [10, 20, 30, 40],
        "small": pl.Series([1, 1, 1, 1], dtype=pl.Int32),
        "f": [0.5, 1.5, 2.5, 3.5],
        "l": [[1, 2], [], None, [3]],
        "y": [0, 1, 1, 0],
        "row": [7, 8, 9, 10],
    }
)


@dataclass(frozen=True)
class Sum:
    """Learns the sum of integers, in lists too, and of a target beside them."""

    dtype: pl.DataType
    keys: tuple[str, ...] = ()

    def observe(self, columns: Sequence[pl.Series]) -> pl.DataFrame:
        first, *others = columns
        flat = first.explode() if isinstance(first.dtype, pl.List) else first
        return pl.DataFrame({"sum": [int(flat.sum())], "beside": [sum(int(other.sum()) for other in others)]})

    def merge(self, states: Sequence[pl.DataFrame]) -> pl.DataFrame:
        return pl.concat(states).sum()

    def finish(self, parts: Parts) -> Artifact:
        [state] = parts
        return Artifact(facts=state.row(0, named=True))

    def blank(self) -> Artifact:
        return Artifact(facts={"sum": 0, "beside": 0})

    def show(self, artifact: Artifact) -> dict[str, Any]:
        return dict(artifact.facts)


class PlusSum(Parameters):
    add: int | None = None
    name: str | None = None
    target: str | None = None


def _learner(parameters: PlusSum, values: Sequence[Value]) -> Sum | None:
    if parameters.add == 13:
        raise SpecError("13 is not added")
    return None if parameters.add is not None else Sum(values[0].dtype)


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    before = dict(OPS)

    @op(
        takes={"integer"},
        gives="int64",
        parameters=PlusSum,
        examples=(example("plus_sum", 1, pl.Int64(), [1], [2]),),
        learns=Learning(
            learner=_learner,
            side_columns=lambda parameters: {"target": parameters.target, "row": "row"} if parameters.target else {},
            row_roles=lambda parameters: ("row",) if parameters.target else (),
            name=lambda parameters: parameters.name,
        ),
    )
    def plus_sum(x: Value, parameters: PlusSum, artifact: Artifact | None, side_values: Mapping[str, Value]) -> Value:
        """Adds the sum."""
        added = parameters.add if artifact is None else artifact.facts["sum"] + 1000 * artifact.facts["beside"]
        expr = x.expr.cast(pl.Int64) + added
        for value in side_values.values():
            expr = expr + value.expr * 1_000_000
        return Value(expr=expr, dtype=pl.Int64())

    @op(
        gives="int64",
        inputs=(Input(name="x", takes=frozenset({"integer"}), lists="never"),),
        repeats=True,
        examples=(example("plus_sums", None, pl.Int64(), [1], [2]),),
        learns=Learning(learner=lambda _, values: Sum(values[0].dtype)),
    )
    def plus_sums(
        values: Sequence[Value], _: Parameters, artifact: Artifact, side_values: Mapping[str, Value]
    ) -> Value:
        """Adds the sums."""
        total = artifact.facts["sum"] + artifact.facts["beside"]
        return Value(expr=pl.sum_horizontal(value.expr for value in values) + total, dtype=pl.Int64())

    @op(
        takes={"integer"},
        gives="int64",
        examples=(example("plus_read", None, pl.Int64(), [1], [2]),),
        reads=lambda _: Reading(kind="table", uri="dims.parquet"),
    )
    def plus_read(x: Value, _: Parameters, artifact: Artifact, side_values: Mapping[str, Value]) -> Value:
        """Adds what was read."""
        assert not side_values
        return Value(expr=x.expr + artifact.facts["read"], dtype=pl.Int64())

    yield
    OPS.clear()
    OPS.update(before)


def feature(name: str, *ops: tuple[str, dict[str, Any]], group: str = "extra", **source: Any) -> FeatureSpec:
    calls = tuple(OpCall(op=name, arguments=json.dumps(arguments)) for name, arguments in ops)
    return FeatureSpec(name=name, group=group, ops=calls, **(source or {"column": "a"}))  # type: ignore[arg-type]


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


def test_an_op_that_needs_nothing_wants_nothing() -> None:
    compiled = compile_features([feature("f", ("plus_sum", {"add": 5}))], SCHEMA)
    assert compiled.missing_fits == ()
    assert compiled.apply(FRAME).to_series().to_list() == [6, 7, None, 9]


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


def test_seen_rows_and_unseen_rows_differ() -> None:
    features = [feature("f", ("plus_sum", {"target": "y"}))]
    known = fit_frames(features, SCHEMA, [FRAME])
    whole = compile_features(features, SCHEMA, known)
    left_out = compile_features(features, SCHEMA, InMemoryArtifacts(artifacts=known.artifacts, out_of_fold=True))
    assert whole.columns == ("a",)
    assert left_out.columns == ("a", "row")
    sums = 7 + 1000 * (2 + 34)
    assert whole.apply(FRAME).to_series().to_list() == [1 + sums, 2 + sums, None, 4 + sums]
    assert left_out.apply(FRAME).to_series().to_list() == [7_000_001 + sums, 8_000_002 + sums, None, 10_000_004 + sums]
    assert whole.fingerprint != left_out.fingerprint


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


def test_artifacts_from_outside() -> None:
    class Outside(InMemoryArtifacts):
        def read(self, reading: Reading) -> Artifact:
            assert reading.uri == "dims.parquet"
            return Artifact(facts={"read": 100})

    compiled = compile_features([feature("f", ("plus_read", {}))], SCHEMA, Outside())
    assert compiled.apply(FRAME).to_series().to_list() == [101, 102, None, 104]
    with pytest.raises(OpError, match=r"f: \[plus_read\]: plus_read: artifacts in memory read no files"):
        compile_features([feature("f", ("plus_read", {}))], SCHEMA)


def test_errors_of_learners_name_the_chain() -> None:
    with pytest.raises(OpError, match=r"f: modulo → \[plus_sum\]: plus_sum: 13 is not added"):
        compile_features([feature("f", ("modulo", {"": 3}), ("plus_sum", {"add": 13}))], SCHEMA)

    class Refuses(InMemoryArtifacts):
        def find_artifact(self, wanted: FitRequest) -> Artifact | None:
            raise SpecError(f"learnt otherwise: got {wanted.types}")

    with pytest.raises(OpError, match=r"f: \[plus_sum\]: plus_sum: learnt otherwise: got {'a': 'int64'}"):
        compile_features([feature("f", ("plus_sum", {}))], SCHEMA, Refuses())


def test_compiled_features_are_pickled_with_their_artifacts() -> None:
    features = [feature("f", ("plus_sum", {}))]
    compiled = compile_features(features, SCHEMA, fit_frames(features, SCHEMA, [FRAME]))
    function, arguments = compiled.__reduce__()
    assert function(*arguments).fingerprint == compiled.fingerprint


def test_fingerprints_of_features_that_learn_nothing_stay() -> None:
    plain = [feature("f", ("modulo", {"": 3}))]
    assert (
        compile_features(plain, SCHEMA).fingerprint
        == compile_features(plain, SCHEMA, InMemoryArtifacts(out_of_fold=True)).fingerprint
    )


def test_an_artifact_s_digest_is_of_its_content() -> None:
    table = pa.table({"k": ["a", "b", None], "n": [[1], [], None]})
    pieces = pa.concat_tables([table.slice(0, 1), table.slice(1)])
    one = Artifact(facts={"x": 1, "y": [2]}, table=table)
    assert one.digest == Artifact(facts={"y": [2], "x": 1}, table=pieces).digest
    others = [
        Artifact(facts={"x": 2, "y": [2]}, table=table),
        Artifact(facts={"x": 1, "y": [2]}),
        Artifact(facts={"x": 1, "y": [2]}, table=table.slice(1)),
        Artifact(
            facts={"x": 1, "y": [2]}, table=table.cast(pa.schema({"k": pa.large_string(), "n": pa.list_(pa.int64())}))
        ),
    ]
    assert len({one.digest, *(other.digest for other in others)}) == 5


def test_structures_derived_from_an_artifact_are_built_once() -> None:
    artifact, made = Artifact(facts={}), []

    def build() -> int:
        made.append(1)
        return 7

    threads = [Thread(target=lambda: artifact.derive("it", build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert artifact.derive("it", build) == 7
    assert len(made) == 1
