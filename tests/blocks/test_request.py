"""A job is named by all that it says; a cache is part of its name, and no part of what its blocks are."""

from __future__ import annotations

import datetime
import pickle
from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline import Pipeline
from feedline.artifacts.artifact_sets import ArtifactSetKey, FitSource
from feedline.artifacts.store import ArtifactSetRef
from feedline.blocks.compute import run_block
from feedline.blocks.request import (
    UNNAMED,
    Balance,
    BlockRequest,
    Job,
    PackedRequest,
    PieceRequest,
    ReadEpochs,
    pack_request,
)
from feedline.config.features import Expectation, FeatureInput, FeatureSpec, OpCall
from feedline.config.histories import HistoryRead, Pool
from feedline.planning.plan import Plan
from feedline.transforms.registry.user_functions import RequiredFunction
from feedline.warehouse.cache.cache_folder import CacheRef
from feedline.warehouse.parquet.stored_names import StoredNames
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.sample import Sample
from feedline.warehouse.reading.seen_rows import TableRows
from feedline.warehouse.rebase.recorded_rows import Recording
from feedline.warehouse.rebase.row_identity import Identity
from feedline.warehouse.snapshot.history_ref import EventColumns, HistoryRef

READ = HistoryRead(
    history="events",
    at="ts",
    pools=(Pool(name="liked", last=5, where="y > 1"),),
    column="item",
    lag="10m",
    scan=9,
    recent="newest",
    table="digest",
)
HISTORY = HistoryRef(
    columns=EventColumns(name="events", key="user", on="user", time="ts", known_at="known", tie_break="no"),
    reads=(READ,),
    schema=b"schema",
    events="1",
    work_dir="/w",
    snapshot="2",
    memory=3,
)
REF = CacheRef(folder="/nowhere", size=None, free=1 << 30, shared=False)


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    pq.write_table(pa.table({"x": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet")
    document = {
        "version": 1,
        "name": "n",
        "work_dir": str(tmp_path / "w"),
        "source": {"table": str(tmp_path / "t.parquet")},
        "features": {"dense": {"x": []}},
        "batch": {"size": 1},
    }
    return Pipeline.from_dict(document).plan()


def full_job() -> Job:
    """A job in which no field is empty."""
    call = OpCall(op="clip", arguments='{"min": 0}', path=("features", 1), code="/pipelines")
    source = FeatureInput(column="x", expr="x + 1", ops=(call,), known_as=("column", "x"), path=("features", "a"))
    feature = FeatureSpec(
        name="a",
        group="dense",
        column="x",
        expr="x",
        op=call,
        inputs=(source,),
        ops=(call,),
        expect=(Expectation(measure="null_rate", sign="<=", value=0.5),),
        dedup="user",
        known_as=("column", "x"),
        history=READ,
        min_history=3,
        path=("features", "dense", "a"),
    )
    sample = Sample(fraction=0.5, where="x > 1", seed=3, key=("x",))
    rows = TableRows(root="/table", sources=("/table/1",), where="x > 0", sample=sample)
    key = ArtifactSetKey(
        pipeline="p",
        source=FitSource(table=("/table",), where="x > 0", sample="{}"),
        shared_from="q",
        root="/table",
        redefined=(("a", "{}"),),
    )
    return Job(
        features=(feature,),
        schema=b"schema",
        where="x > 0",
        environment=(("feedline", "1"), ("cpu", "avx2")),
        artifacts=ArtifactSetRef(
            folder="/work/artifacts",
            manifest="0" * 64,
            out_of_fold=True,
            base_dir="/pipelines",
            readings=(("items", "1" * 64),),
            rows=rows,
            request=key,
        ),
        sample=sample,
        record=Recording(identity=Identity(columns=(("id", "int"),), by=("x", "int"), kept="[]"), work_dir="/work"),
        code=(RequiredFunction(op="f", function="m:f", folder="/pipelines", source="2" * 64),),
        cache=CacheRef(folder="/cache", size=1, free=2, shared=False, write_budget=0.5),
        auto=ReadEpochs(epochs=2, rows=3, row_groups=4, store_bytes=5),
        order=Balance("y", 6),
        histories=(("events", "3" * 32),),
    )


def changes_of(value: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Values that differ from one in one place, each with the names of the fields that lead there."""
    if is_dataclass(value) and not isinstance(value, type):
        for each in fields(value):
            if each.init:
                for names, other in changes_of(getattr(value, each.name)):
                    yield (each.name, *names), replace(value, **{each.name: other})
    elif isinstance(value, tuple):
        yield (), (*value, *value[:1])
        for index, item in enumerate(value):
            for names, other in changes_of(item):
                yield names, (*value[:index], other, *value[index + 1 :])
    elif isinstance(value, bool):
        yield (), not value
    else:
        assert value, "expected a job without empty fields"
        yield (), value + (b"!" if isinstance(value, bytes) else "!" if isinstance(value, str) else 1)


def test_a_jobs_name_covers_every_field_that_counts():
    """Blocks that jobs share, and the jobs that workers keep, are found by it."""
    job, changed = full_job(), set()
    for names, other in changes_of(job):
        changed.add(names)
        assert (other.digest == job.digest) == (names[-1] in UNNAMED), names
    assert {names[0] for names in changed} == {each.name for each in fields(Job) if each.init}
    assert {names[-1] for names in changed} & UNNAMED == {"path"}
    optional = ("sample", "record", "cache", "auto", "order", "where")
    assert len({job.digest, *(replace(job, **{name: None}).digest for name in optional)}) == 1 + len(optional)


def test_a_path_is_a_position_in_pipeline_yaml():
    """No other field of that name is left out of a job's name."""
    kinds, waiting = set[type](), [full_job()]
    while waiting:
        value = waiting.pop()
        inner = value if isinstance(value, tuple) else [getattr(value, each.name) for each in fields(value)]
        waiting += [each for each in inner if isinstance(each, tuple) or is_dataclass(each)]
        kinds |= {type(value)} if is_dataclass(value) else set()
    assert {kind for kind in kinds if "path" in [each.name for each in fields(kind)]} == {
        FeatureSpec,
        FeatureInput,
        OpCall,
    }


def test_the_cache_is_part_of_a_jobs_name(plan: Plan):
    digests = {
        replace(plan.source.job, cache=cache).digest
        for cache in (None, REF, replace(REF, folder="/x"), replace(REF, size=5), replace(REF, shared=True))
    }
    assert len(digests) == 5
    assert replace(plan.source.job, cache=REF) != plan.source.job
    assert replace(plan.source.job, cache=None).digest == plan.source.job.digest


def test_a_job_with_a_cache_travels(plan: Plan):
    job = replace(plan.source.job, cache=REF)
    back = pickle.loads(pickle.dumps(job))
    assert (back, back.cache, back.digest) == (job, REF, job.digest)


def test_a_block_without_a_cache_counts_nothing(plan: Plan):
    block = next(iter(plan.source.schedule(0).blocks(0, everything=True)))
    assert run_block(plan.source.job, plan.request(block, 0), "k", packed=False).cached is None


# --------------------------------------------------------------------------------------------------------------------
# A block's pieces come back from their packed form, which is small.


def sent(request: BlockRequest) -> BlockRequest:
    """The request that a worker gets."""
    packed = pickle.loads(pickle.dumps(pack_request(request)))
    assert isinstance(packed, PackedRequest) == (len(request.pieces) >= 4)
    return packed.unpack() if isinstance(packed, PackedRequest) else packed


whole = st.integers(0, 2**63 - 1)
values = st.none() | st.text() | st.integers() | st.dates() | st.decimals(allow_nan=False) | st.booleans()


@st.composite
def pieces(draw: st.DrawFn) -> PieceRequest:
    groups = draw(st.integers(0, 4))
    fragment = Fragment(
        table=draw(st.sampled_from(["s3://a/t", "/b"])),
        path=draw(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12)),
        bytes=draw(whole),
        mtime_ns=draw(st.integers(-1, 2**63 - 1)),
        footer_digest=draw(st.binary(max_size=32)),
        footer_bytes=draw(whole),
        row_groups=tuple(draw(st.lists(st.integers(0, 2**31), min_size=groups, max_size=groups))),
        expected=tuple(draw(st.lists(st.integers(-1, 2**40), min_size=groups, max_size=groups))),
        partition=tuple(draw(st.lists(st.tuples(st.text(max_size=3), values), max_size=2))),
        proofs=tuple(draw(st.lists(st.integers(0, 255), max_size=groups))),
        excluded=tuple(draw(st.lists(st.none() | st.binary(max_size=3), max_size=groups))),
        stored_names=draw(st.none() | st.builds(StoredNames, st.sampled_from(["[true,[]]", "[false,[]]"]))),
        source_cache=draw(st.sampled_from([None, CacheRef(folder="/c", size=None, free=1, shared=False)])),
        histories=draw(st.sampled_from([(), (HISTORY,), (HISTORY, replace(HISTORY, snapshot="4"))])),
    )
    return PieceRequest(fragment=fragment, skip=draw(whole), rows=draw(whole))


@examples(60)
@given(st.lists(pieces(), max_size=8), st.none() | st.tuples(st.just("rows"), st.integers(), st.text(max_size=4)))
def test_a_packed_request_comes_back(parts: list[PieceRequest], permutation: tuple[int | str, ...] | None) -> None:
    request = BlockRequest(pieces=tuple(parts), rows=7, permutation=permutation, nbytes=9)
    back = sent(request)
    assert back == request
    assert repr(back) == repr(request), "keys of tasks are made of it"


def test_partition_values_that_compare_equal_stay_apart() -> None:
    """True == 1 == Decimal(1): a value of one type must not come back as another's."""
    same = (True, 1, Decimal(1), 1.0, datetime.date(2026, 1, 1))
    parts = tuple(
        PieceRequest(
            fragment=Fragment(
                table="/t",
                path=f"{index}",
                bytes=1,
                mtime_ns=1,
                footer_digest=b"",
                footer_bytes=1,
                row_groups=(0,),
                expected=(1,),
                partition=(("k", value),),
            ),
            skip=0,
            rows=1,
        )
        for index, value in enumerate(same)
    )
    request = BlockRequest(pieces=parts, rows=5, permutation=None, nbytes=1)
    assert repr(sent(request)) == repr(request)
