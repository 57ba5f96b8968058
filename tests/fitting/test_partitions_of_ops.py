"""Does it matter how a table is cut? Ops on its parts equal ops on the whole, and what they learn does not see the cut.

For every op of the registry and every example that it was declared with, so that a new op is tried without being
named here: over columns with another offset, over chunks, over parts of random lengths, and, where it learns, over
parts in another order. Equal means bit by bit, the sign of a zero included.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from example_rows import examples, feature_of, frame_of, write_outside
from fit_in_memory import fit_frames
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.artifacts.external import read_outside
from feedline.errors import DataError
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import NO_ARTIFACTS, Artifact, InMemoryArtifacts, Reading
from feedline.transforms.ops import OPS
from feedline.transforms.registry.op import Example

ROWS = 120
EXAMPLES = [pytest.param(example, id=f"{op.name}-{place}") for place, (op, example) in enumerate(examples())]
LEARNT = [pytest.param(example, id=f"{op.name}-{place}") for place, (op, example) in enumerate(examples()) if op.learns]
seeds = st.integers(0, 2**32 - 1)
cuts = st.lists(st.integers(0, ROWS), max_size=5)


def parts_of(frame: pl.DataFrame, places: list[int]) -> list[pl.DataFrame]:
    return [frame.slice(start, stop - start) for start, stop in pairwise([0, *sorted(places), frame.height])]


@dataclass(frozen=True)
class Known(InMemoryArtifacts):
    """What was learnt, and what lies in a folder."""

    folder: str = ""

    def read(self, reading: Reading) -> Artifact:
        return read_outside(reading, self.folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each example that reads from outside, by its place."""
    root = tmp_path_factory.mktemp("outside")
    for place, (op, example) in enumerate(examples()):
        if op.reads is not None:
            write_outside(example, root / str(place))
    return root


def learnt(example: Example, frames: list[pl.DataFrame]) -> InMemoryArtifacts:
    feature = feature_of(example)
    return fit_frames([feature], frames[0].to_arrow().schema, frames) if OPS[example.call.op].learns else NO_ARTIFACTS


def compiled_for(example: Example, frame: pl.DataFrame, folder: Path) -> CompiledFeatures:
    place = next(place for place, (_, each) in enumerate(examples()) if each is example)
    known = Known(artifacts=learnt(example, [frame]).artifacts, folder=str(folder / str(place)))
    return compile_features([feature_of(example)], frame.to_arrow().schema, known)


def values(compiled: CompiledFeatures, frame: pl.DataFrame) -> list[Any] | None:
    """What the op makes of the rows; None where it refuses one of them."""
    try:
        found = compiled.apply(frame)
    except DataError:
        return None
    assert found.height == frame.height
    return found["made"].to_list()


def chunked(frame: pl.DataFrame, places: list[int]) -> pl.DataFrame:
    return pl.concat(parts_of(frame, places), rechunk=False)


@pytest.mark.parametrize("example", EXAMPLES)
@settings(max_examples=4)
@given(seed=seeds, places=cuts)
def test_parts_give_what_the_whole_gives(folder: Path, example: Example, seed: int, places: list[int]):
    frame = frame_of(example, ROWS, seed)
    compiled = compiled_for(example, frame, folder)
    whole = values(compiled, frame)
    parts = [values(compiled, part) for part in parts_of(frame, places)]
    if whole is None:
        assert None in parts, "parts are taken that the whole is refused for"
        return
    assert None not in parts
    joined = [row for part in parts for row in part or ()]
    assert repr(joined) == repr(whole)
    # as Polars sees chunks, which `apply` would put together first
    pieces = compiled.lazy(chunked(frame, places)).collect(engine="in-memory")
    assert repr(pieces["made"].to_list()) == repr(whole)


@pytest.mark.parametrize("example", EXAMPLES)
def test_each_row_alone_gives_what_it_gives_among_others(folder: Path, example: Example):
    frame = frame_of(example, 40, 7)
    compiled = compiled_for(example, frame, folder)
    whole = values(compiled, frame)
    alone = [values(compiled, frame.slice(row, 1)) for row in range(frame.height)]
    if whole is None:
        assert None in alone
    else:
        assert repr([row for part in alone for row in part or ()]) == repr(whole)


@pytest.mark.parametrize("example", LEARNT)
@settings(max_examples=4)
@given(seed=seeds, places=cuts, shuffled=st.randoms(use_true_random=False))
def test_what_is_learnt_does_not_see_the_cut_or_the_order(
    example: Example, seed: int, places: list[int], shuffled: Any
):
    frame = frame_of(example, ROWS, seed)
    try:
        whole = learnt(example, [frame]).artifacts
    except DataError:  # numbers that nothing can be learnt from
        return
    parts = parts_of(frame, places)
    shuffled.shuffle(parts)
    rows = frame.sample(fraction=1, shuffle=True, seed=seed % 1000)
    for found in (learnt(example, parts).artifacts, learnt(example, [rows]).artifacts):
        assert {key: one.digest for key, one in found.items()} == {key: one.digest for key, one in whole.items()}
