"""Statistics of rows: the same from one task or several, in memory or spilled, with the rows that a filter keeps."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from feedline.artifacts.store import StoredArtifactSet
from feedline.blocks.environment import local_environment
from feedline.config import load_spec
from feedline.errors import ClusterError
from feedline.expressions import bind_where
from feedline.fitting.observe import (
    NO_ROWS,
    FitJob,
    FitPiece,
    States,
    TableConditions,
    compile_fit,
    merge_states,
    observe_pieces,
)
from feedline.fitting.spill import Scratch, SpilledState
from feedline.planning.table_features import artifact_set_ref
from feedline.transforms.compile.compiled import compile_features
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.selection.select import plan_fragments, select_rows
from feedline.warehouse.snapshot.take import take_snapshot

ROWS = pa.table({"x": np.random.default_rng(1).normal(5, 3, 400), "word": [f"w{n % 37}" for n in range(400)]})


def fragments_of(folder: Path, where: str | None = None) -> list[Fragment]:
    """Four row groups of a hundred rows."""
    pq.write_table(ROWS, folder / "t.parquet", row_group_size=100)
    snapshot = take_snapshot(str(folder / "t.parquet"))
    bound = None if where is None else bind_where(where, ROWS.schema)
    return plan_fragments(snapshot, select_rows(snapshot, bound, work_dir=str(folder)), 100)


@pytest.fixture
def fragments(tmp_path: Path) -> list[Fragment]:
    return fragments_of(tmp_path)


def job_of(folder: Path, limit_bytes: int = 1 << 20, **changes: Any) -> FitJob:
    features = {"dense": {"x": ["standardize"]}, "categorical": {"word": ["vocabulary"]}}
    document = {
        "version": 1,
        "name": "p",
        "work_dir": str(folder / "work"),
        "source": {"table": str(folder / "t.parquet")},
        "features": features,
        "batch": {"size": 8},
    }
    spec = load_spec(document, {})
    ref = artifact_set_ref(spec)
    missing = compile_features(spec.features, ROWS.schema, StoredArtifactSet(ref)).missing_fits
    job = FitJob(
        features=spec.features,
        rows=TableConditions(where=None, sample=None, schema=ROWS.schema.serialize().to_pybytes()),
        keys=tuple(request.key for request in missing),
        artifacts=ref,
        scratch=Scratch(folder=str(folder / "scratch"), limit_bytes=limit_bytes),
        environment=local_environment(),
        code=(),
    )
    return replace(job, **changes)


def digests(job: FitJob, states: States) -> list[str]:
    """The artifacts' digests: equal for equal statistics."""
    compiled = compile_fit(job)
    found = []
    for learner, state in zip(compiled.learners, states.states, strict=True):
        assert isinstance(state, pa.Table)
        frame = pl.from_arrow(state)
        assert isinstance(frame, pl.DataFrame)
        found.append(learner.finish([frame]).digest)
    return found


def counts(states: States) -> dict[str, int]:
    """How often each word was seen, from the state of the vocabulary."""
    [state] = [s for s in states.states if isinstance(s, pa.Table) and "count" in s.column_names]
    return dict(zip(*(state.column(name).to_pylist() for name in state.column_names[:2]), strict=True))


def test_tasks_of_any_fragments_merge_into_the_states_of_all_rows(tmp_path: Path, fragments: list[Fragment]):
    job = job_of(tmp_path)
    assert len(fragments) == 4
    whole = observe_pieces(job, tuple(map(FitPiece, fragments)))
    parts = [observe_pieces(job, tuple(FitPiece(fragments[index]) for index in some)) for some in ((3, 0), (2,), (1,))]
    assert [part.rows for part in parts] == [200, 100, 100]
    merged = merge_states(job, parts)
    assert whole.rows == merged.rows == 400
    assert counts(whole) == counts(merged) == Counter(ROWS["word"].to_pylist())
    assert digests(job, whole) == digests(job, merged)


def test_only_rows_of_the_filter_are_observed(tmp_path: Path):
    fragments = fragments_of(tmp_path, "x > 5")
    job = job_of(tmp_path)
    job = replace(job, rows=replace(job.rows, where="x > 5"))
    kept = ROWS.filter(pc.greater(ROWS["x"], 5.0))
    states = observe_pieces(job, tuple(map(FitPiece, fragments)))
    assert states.rows == kept.num_rows
    assert counts(states) == Counter(kept["word"].to_pylist())


def test_no_rows_are_no_states_and_add_nothing(tmp_path: Path, fragments: list[Fragment]):
    nothing = observe_pieces(job_of(tmp_path), ())
    assert (nothing.rows, nothing.states) == (0, ())
    job = job_of(tmp_path)
    some = observe_pieces(job, (FitPiece(fragments[0]),))
    assert merge_states(job, [nothing, some, NO_ROWS]) is some
    assert merge_states(job, [nothing]) is NO_ROWS


def test_states_beyond_the_limit_are_spilled_and_those_without_keys_stay(tmp_path: Path, fragments: list[Fragment]):
    states = observe_pieces(job_of(tmp_path, limit_bytes=1), tuple(map(FitPiece, fragments)))
    kinds = {type(state) for state in states.states}
    assert kinds == {pa.Table, SpilledState}
    assert [state.rows for state in states.states if isinstance(state, SpilledState)] == [37]
    assert list((tmp_path / "scratch").iterdir())


def test_a_process_of_another_environment_observes_nothing(tmp_path: Path, fragments: list[Fragment]):
    job = job_of(tmp_path, environment=(("numpy", "0.1"),))
    with pytest.raises(ClusterError, match=r"has another numpy: got .*, expected 0\.1 as in the feeder"):
        observe_pieces(job, tuple(map(FitPiece, fragments)))
