"""Properties of every op over rows like its declared examples, so that a new op is tried without being named here.

An op on parts of a table equals the op on the whole: over columns with another offset, over chunks, over random parts
and over single rows. What an op learns depends neither on the cut nor on the order. Equal means bit by bit, the
sign of a zero included.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from example_rows import FolderArtifacts, examples, feature_of, frame_of, write_outside
from fit_in_memory import fit_frames
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import DataError
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import Artifact

ROWS, ALONE = 120, 12
EXAMPLES = examples()
seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, ROWS), min_size=1, max_size=5)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each example that reads from outside, by its position."""
    root = tmp_path_factory.mktemp("outside")
    for place, (op, example) in enumerate(EXAMPLES):
        if op.reads is not None:
            write_outside(example, root / str(place))
    return root


def parts_of(frame: pl.DataFrame, places: list[int]) -> list[pl.DataFrame]:
    return [frame.slice(start, stop - start) for start, stop in pairwise([0, *sorted(places), frame.height])]


def fit(place: int, frames: list[pl.DataFrame]) -> dict[str, Artifact]:
    return dict(fit_frames([feature_of(EXAMPLES[place][1])], frames[0].to_arrow().schema, frames).artifacts)


def digests(artifacts: dict[str, Artifact]) -> dict[str, str]:
    return {key: artifact.digest for key, artifact in artifacts.items()}


def compiled_with(place: int, frame: pl.DataFrame, folder: Path, artifacts: dict[str, Artifact]) -> CompiledFeatures:
    known = FolderArtifacts(artifacts=artifacts, folder=str(folder / str(place)))
    return compile_features([feature_of(EXAMPLES[place][1])], frame.to_arrow().schema, known)


@cache
def compiled_once(place: int, folder: Path) -> CompiledFeatures:
    """Of an op that learns nothing."""
    return compiled_with(place, frame_of(EXAMPLES[place][1], 1, 0), folder, {})


def values(compiled: CompiledFeatures, frame: pl.DataFrame) -> list[Any] | None:
    """The op's results; None if it refuses a row."""
    try:
        found = compiled.apply(frame)
    except DataError:
        return None
    assert found.height == frame.height
    return found["made"].to_list()


@pytest.mark.parametrize("place", range(len(EXAMPLES)), ids=[f"{op.name}-{n}" for n, (op, _) in enumerate(EXAMPLES)])
@settings(max_examples=2)
@given(seed=seeds, places=cuts, shuffled=st.randoms(use_true_random=False))
def test_cuts_and_orders_change_nothing(folder: Path, place: int, seed: int, places: list[int], shuffled: Any):
    op, example = EXAMPLES[place]
    frame = frame_of(example, ROWS, seed)
    parts = parts_of(frame, places)
    if op.learns is None:
        compiled = compiled_once(place, folder)
    else:
        try:
            artifacts = fit(place, [frame])
        except DataError:  # nothing can be learnt from these numbers
            return
        compiled = compiled_with(place, frame, folder, artifacts)
        rows = frame.sample(fraction=1, shuffle=True, seed=seed % 1000)
        for found in (fit(place, shuffled.sample(parts, len(parts))), fit(place, [rows])):
            assert {key: one.digest for key, one in found.items()} == {
                key: one.digest for key, one in artifacts.items()
            }
    whole = values(compiled, frame)
    pieces = [values(compiled, part) for part in parts]
    alone = [values(compiled, frame.slice(row, 1)) for row in range(ALONE)]
    if whole is None:
        assert None in pieces, "parts are taken that the whole is refused for"
        return
    assert None not in pieces
    assert repr([row for piece in pieces for row in piece or ()]) == repr(whole)
    assert repr([row for piece in alone for row in piece or ()]) == repr(whole[:ALONE])
    # as Polars sees chunks, which `apply` would put together first
    chunks = compiled.lazy(pl.concat(parts, rechunk=False)).collect(engine="in-memory")
    assert repr(chunks["made"].to_list()) == repr(whole)
