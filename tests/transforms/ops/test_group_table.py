"""Tables of groups: their memory, its limit `max_memory`, unchanged numbers, and columns that cannot be keys."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fit_in_memory import fit_frames

from feedline.artifacts.fit_origin import FitOrigin
from feedline.artifacts.store import Fit, TableFile, load_artifact
from feedline.config.features import FeatureInput, FeatureSpec, OpCall
from feedline.errors import DataError, SpecError
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.learning.learner import Artifact, InMemoryArtifacts
from feedline.transforms.ops.group_table import MISSING, GroupKeys, GroupTableSize, by_choice
from feedline.transforms.registry.op import OpError
from feedline.transforms.values.key_index import KeyIndex
from feedline.transforms.values.kinds import Value

SIZE = 4000
RANDOM = np.random.default_rng(5)
FRAME = pl.DataFrame(
    {
        "shop": pl.Series(RANDOM.integers(-5, 900, SIZE)).set(pl.Series(RANDOM.random(SIZE) < 0.1), None),
        "far": RANDOM.integers(0, 300, SIZE) * 2**40,
        "word": [f"word {number}" * 3 for number in RANDOM.integers(0, 500, SIZE)],
        "clicked": RANDOM.integers(0, 2, SIZE),
        "dwell": RANDOM.lognormal(1, 2, SIZE),
        "row": np.arange(SIZE),
    }
)
SCHEMA = FRAME.to_arrow().schema
ENCODING = {"target": "clicked", "fold_by": "row", "folds": 7}
STATISTICS = {"stats": ["count", "mean", "std", "max"], "of": "dwell"}


def feature(op: str, arguments: dict[str, Any], *inputs: str, name: str = "f") -> FeatureSpec:
    columns = tuple(FeatureInput(column=column) for column in inputs)
    return FeatureSpec(name=name, group="extra", op=OpCall(op=op, arguments=json.dumps(arguments)), inputs=columns)


def learnt(spec: FeatureSpec) -> Artifact:
    [artifact] = fit_frames([spec], SCHEMA, [FRAME]).artifacts.values()
    return artifact


def held_bytes(index: KeyIndex) -> int:
    """Of the arrays that an index is made of."""

    def of(value: Any) -> int:
        if isinstance(value, np.ndarray):
            return value.nbytes
        if isinstance(value, pl.Series):
            return int(value.estimated_size())
        if isinstance(value, tuple | list):
            return sum(of(item) for item in value)
        slots = getattr(type(value), "__dataclass_fields__", {})
        return sum(of(getattr(value, name)) for name in slots)

    return of(index)


@pytest.mark.parametrize(
    ("op", "arguments", "keys", "digest"),
    [
        ("target_encoding", ENCODING, ["shop"], "c810932cfbb1b876"),
        ("target_encoding", {**ENCODING, "target": "dwell"}, ["shop", "word"], "2137022396fe146f"),
        ("target_encoding", {**ENCODING, "folds": 1}, ["word"], "2eab99dd54b68a19"),
        ("group_statistics", STATISTICS, ["far", "shop"], "deef91b3d06fea9a"),
        ("group_statistics", {"stats": "count"}, ["word"], "9d2ebe3448957947"),
    ],
)
def test_artifacts_keep_their_digest_and_fit_their_memory_limit(
    op: str, arguments: dict[str, Any], keys: list[str], digest: str
):
    """The digests are of versions that also made a matrix, and summed each fold's rows again."""
    spec = feature(op, arguments, *keys)
    artifact = learnt(spec)
    assert artifact.digest[:16] == digest
    assert artifact.table is not None
    [want] = compile_features([spec], SCHEMA).missing_fits
    groups: GroupKeys = want.learner.groups  # type: ignore[attr-defined]
    numbers = artifact.table.num_columns - len(groups.names)
    state = want.learner.merge([want.learner.observe([FRAME[name] for name in _observed(op, arguments, keys)])])
    halves = [part for _, part in state.group_by(groups.names[1], maintain_order=True)]
    whole, cut = (GroupTableSize.of(groups, parts, numbers).nbytes for parts in ([state], halves))
    compile_features([spec], SCHEMA, InMemoryArtifacts(artifacts={want.key: artifact}, out_of_fold=True)).apply(FRAME)
    held = artifact.table.nbytes + held_bytes(groups.index(artifact))
    assert held <= whole <= cut
    assert GroupTableSize.at_least(groups, artifact.table).nbytes <= whole
    if len(keys) == 1:
        assert GroupTableSize.at_least(groups, artifact.table).nbytes == whole == cut < 2.5 * held
    for name, column in artifact.derive("columns", dict).items():
        chunk = artifact.table[name].chunk(0).buffers()[1]
        assert np.shares_memory(column, np.frombuffer(chunk, np.uint8)), "numbers are there once"


def _observed(op: str, arguments: dict[str, Any], keys: list[str]) -> list[str]:
    beside = [arguments["target"], arguments["fold_by"]] if op == "target_encoding" else [arguments.get("of")]
    return [*keys, *(name for name in beside if name is not None)]


@pytest.mark.parametrize(("op", "arguments"), [("target_encoding", ENCODING), ("group_statistics", STATISTICS)])
def test_groups_that_outgrow_max_memory(op: str, arguments: dict[str, Any]):
    plain = feature(op, arguments, "shop")
    artifact = learnt(plain)
    assert artifact.table is not None
    [want] = compile_features([plain], SCHEMA).missing_fits
    groups: GroupKeys = want.learner.groups  # type: ignore[attr-defined]
    needed = GroupTableSize.at_least(groups, artifact.table).nbytes
    enough, little = (feature(op, {**arguments, "max_memory": size}, "shop") for size in (needed, needed - 1))
    assert learnt(enough).digest == artifact.digest
    message = (
        rf"larger than max_memory: got {artifact.table.num_rows:,} groups of {artifact.table.num_columns - 2} numbers, "
        rf"{needed:,} bytes, expected at most {needed - 1:,} bytes\. .*raise max_memory, which every process"
    )
    with pytest.raises(DataError, match=message):
        learnt(little)
    known = InMemoryArtifacts(artifacts={want.key: artifact})
    with pytest.raises(OpError, match=rf"{op}: the table of groups is {message}"):
        compile_features([little], SCHEMA, known)
    made = compile_features([enough], SCHEMA, known)
    assert made.fingerprint == compile_features([plain], SCHEMA, known).fingerprint
    both = [plain, feature(op, {**arguments, "max_memory": "1GB"}, "shop", name="g")]
    assert len(compile_features(both, SCHEMA).missing_fits) == 1, "a bound asks for no other fit"


def test_an_artifact_of_many_pieces_is_read_in_one(tmp_path: Path):
    artifact = learnt(feature("target_encoding", ENCODING, "word"))
    assert artifact.table is not None
    sink = pa.BufferOutputStream()
    pq.write_table(artifact.table, sink, row_group_size=50)
    content = sink.getvalue().to_pybytes()
    file = TableFile(sha256=hashlib.sha256(content).hexdigest(), rows=artifact.table.num_rows, bytes=len(content))
    (tmp_path / "tables").mkdir()
    (tmp_path / file.name).write_bytes(content)
    fit = Fit(
        **dict.fromkeys(("key", "op", "parameters", "chain"), ""),
        **{name: {} for name in ("types", "depends", "shown")},
        version=1,
        features=(),
        facts=artifact.facts,
        table=file,
        digest="of many pieces",
        fitted_on=FitOrigin(table="", snapshot="", where=None, sample=None, rows=0),
    )
    read = load_artifact(str(tmp_path), fit).table
    assert read is not None
    assert read.equals(artifact.table)
    assert {read[name].num_chunks for name in read.column_names if name != "key 0"} == {1}


def test_choices_by_position():
    choices = np.array([2, 0, 2, 5, 0], np.uint8)
    found = {choice: places.tolist() for choice, places in by_choice(choices, 6).items()}
    assert found == {0: [1, 4], 2: [0, 2], 5: [3]}
    assert by_choice(np.zeros(0, np.uint8), 3) == {}


def value(name: str, dtype: pl.DataType) -> Value:
    return Value(expr=pl.col(name), dtype=dtype)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([value("a", pl.Float32())], "a key must be .*: got float. Put bucketize, or {cast: int64}, before it"),
        ([value(f"c{n}", pl.Int8()) for n in range(32)], "at most 31 columns make a key: got 32"),
        (
            [value("a", pl.List(pl.Int8())), value("b", pl.Int8())],
            "the elements of lists are keys by themselves: got 2 columns with a list among them",
        ),
    ],
)
def test_columns_that_cannot_be_keys_are_errors(values: list[Value], message: str):
    with pytest.raises(SpecError, match=message):
        GroupKeys.of(values)


def test_an_artifact_of_other_types_is_refused():
    keys = GroupKeys.of([value("a", pl.Int64())])
    words = pa.table({MISSING: pa.array([0], pa.int32()), "key 0": ["x"]})
    keys.check(Artifact(facts={}, table=pa.table({MISSING: pa.array([0], pa.int32()), "key 0": [1]})))
    with pytest.raises(SpecError):
        keys.check(Artifact(facts={}, table=words))
