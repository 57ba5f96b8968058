"""What ops learn: which fits are requested, under which keys, and that ops get the artifacts of their fits."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread

import pyarrow as pa
import pytest
from fit_in_memory import fit_frames
from sum_ops import FRAME, SCHEMA, feature, sum_ops

from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts, Reading
from feedline.transforms.registry.op import OpError


@pytest.fixture(autouse=True)
def _ops() -> Iterator[None]:
    with sum_ops():
        yield


def test_an_op_that_needs_nothing_wants_nothing() -> None:
    compiled = compile_features([feature("f", ("plus_sum", {"add": 5}))], SCHEMA)
    assert compiled.missing_fits == ()
    assert compiled.apply(FRAME).to_series().to_list() == [6, 7, None, 9]


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


@pytest.mark.parametrize("seen", [True, False, "seen by [null,null,null]"])
def test_a_feature_has_the_fingerprint_and_marks_that_it_has_alone(seen: bool | str) -> None:
    features = [
        feature("f", ("plus_sum", {"target": "y"})),
        feature("g", ("plus_sum", {})),
        feature("h", ("plus_sum", {}), ("plus_sum", {"target": "y"})),
        feature("i", ("modulo", {"divisor": 5})),
    ]
    known = fit_frames(features, SCHEMA, [FRAME])
    artifacts = InMemoryArtifacts(artifacts=known.artifacts, out_of_fold=seen)
    whole = compile_features(features, SCHEMA, artifacts)
    assert not whole.missing_fits
    for index, each in enumerate(features):
        alone = compile_features([each], SCHEMA, artifacts)
        assert whole.alone(index) == (alone.fingerprint, alone.marks)
    assert any(whole.alone(index)[1] for index in range(4)) == isinstance(seen, str)


def test_artifacts_from_outside() -> None:
    class Outside(InMemoryArtifacts):
        def read(self, reading: Reading) -> Artifact:
            assert reading.uri == "dims.parquet"
            return Artifact(facts={"read": 100})

    compiled = compile_features([feature("f", ("plus_read", {}))], SCHEMA, Outside())
    assert compiled.apply(FRAME).to_series().to_list() == [101, 102, None, 104]
    assert compiled.alone(0) == (compiled.fingerprint, ())
    with pytest.raises(OpError, match=r"f: \[plus_read\]: plus_read: artifacts in memory read no files"):
        compile_features([feature("f", ("plus_read", {}))], SCHEMA)


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
