"""Every example of every op: its declared result, and properties over rows like it.

A new op is covered without being named here. On parts of a table an op gives what it gives on the whole: over columns
with another offset, over chunks, over random parts and over single rows. What an op learns depends neither on the cut
nor on the order. Equal means bit by bit, the sign of a zero included.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from example_rows import FolderArtifacts, examples, feature_of, frame_of, names_of, write_outside
from fit_in_memory import fit_frames

from feedline.errors import DataError
from feedline.transforms.compile.chains import VALUES, WEIGHTS_OF_VALUES
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.learning.learner import Artifact
from feedline.transforms.registry.op import Example, Op

ROWS, ALONE, FRAMES = 120, 12, 2
EXAMPLES = [pytest.param(op, one, id=f"{op.name}-{index}") for index, (op, one) in enumerate(examples())]


def own_frame(example: Example) -> pl.DataFrame:
    """The example's rows."""
    columns = zip(names_of(example), example.columns, strict=True)
    return pl.DataFrame([pl.Series(name, list(values), dtype=dtype) for name, (dtype, values) in columns])


def fit(example: Example, frames: Sequence[pl.DataFrame]) -> dict[str, Artifact]:
    return dict(fit_frames([feature_of(example)], frames[0].to_arrow().schema, frames).artifacts)


def digests(artifacts: dict[str, Artifact]) -> dict[str, str]:
    return {key: artifact.digest for key, artifact in artifacts.items()}


def compile_example(example: Example, frame: pl.DataFrame, folder: Path, fitted: dict[str, Artifact]) -> Any:
    artifacts = FolderArtifacts(artifacts=fitted, folder=str(folder))
    return compile_features([feature_of(example)], frame.to_arrow().schema, artifacts)


def results(compiled: CompiledFeatures, frame: pl.DataFrame) -> list[Any] | None:
    """The op's results; None if it refuses a row."""
    try:
        found = compiled.apply(frame)
    except DataError:
        return None
    assert found.height == frame.height
    return found["made"].to_list()


def check_declared_result(compiled: CompiledFeatures, example: Example) -> None:
    found = compiled.apply(own_frame(example)).to_series()
    dtype = compiled.outputs[0].dtype
    assert found.dtype == dtype
    if not isinstance(dtype, pl.Struct):
        assert found.equals(pl.Series(found.name, list(example.result), dtype=dtype), null_equal=True)
        return
    pairs = [
        [{"id": item, "weight": weight} for item, weight in zip(row[VALUES], row[WEIGHTS_OF_VALUES], strict=True)]
        if row[VALUES] is not None
        else None
        for row in found
    ]
    assert pairs == list(example.result)


def check_parts(compiled: CompiledFeatures, frame: pl.DataFrame, parts: Sequence[pl.DataFrame]) -> None:
    """Parts, single rows and chunks have the results of the whole."""
    whole = results(compiled, frame)
    pieces = [results(compiled, part) for part in parts]
    alone = [results(compiled, frame.slice(row, 1)) for row in range(ALONE)]
    if whole is None:
        assert None in pieces, "the whole is refused, but none of its parts"
        return
    assert None not in pieces
    assert repr([row for piece in pieces for row in piece or ()]) == repr(whole)
    assert repr([row for piece in alone for row in piece or ()]) == repr(whole[:ALONE])
    # as Polars sees chunks, which `apply` would put together first
    chunks = compiled.lazy(pl.concat(parts, rechunk=False)).collect(engine="in-memory")
    assert repr(chunks["made"].to_list()) == repr(whole)


@pytest.mark.parametrize(("op", "example"), EXAMPLES)
def test_declared_results_and_independence_of_cuts_and_orders(tmp_path: Path, op: Op, example: Example):
    if op.reads is not None:
        write_outside(example, tmp_path)
    own = own_frame(example)
    compiled = compile_example(example, own, tmp_path, {} if op.learns is None else fit(example, [own]))
    check_declared_result(compiled, example)
    for seed in range(FRAMES):
        draw = random.Random(f"{op.name} {example.call.arguments} {seed}")
        frame = frame_of(example, ROWS, draw.randrange(2**32))
        cuts = sorted(draw.randint(0, ROWS) for _ in range(draw.randint(1, 5)))
        parts = [frame.slice(start, stop - start) for start, stop in pairwise([0, *cuts, ROWS])]
        if op.learns is not None:
            try:
                fitted = fit(example, [frame])
            except DataError:  # nothing can be learnt from these numbers
                continue
            shuffled = frame.sample(fraction=1, shuffle=True, seed=seed)
            for other in (fit(example, draw.sample(parts, len(parts))), fit(example, [shuffled])):
                assert digests(other) == digests(fitted)
            compiled = compile_example(example, frame, tmp_path, fitted)
        check_parts(compiled, frame, parts)
