"""Facts about what was saved that the generator records and the tests compare: checksums and fingerprints.

None of them depends on the processor, the time or the directory of a test.
"""

from __future__ import annotations

import hashlib
import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from example_rows import FolderArtifacts, examples, feature_of, names_of, write_outside
from fit_in_memory import fit_frames

from feedline import Pipeline
from feedline.loader.batch import Batch
from feedline.loader.tensors.slot_tensors import Sparse
from feedline.planning.plan import Plan
from feedline.serving.golden_check import features_id
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import Example

FEW = 2  # batches whose checksums are kept
SERVED_GROUPS: dict[str, list[Any]] = {  # rows to transform: known and unknown values, nulls, empty lists
    "item": [1, 2, 3, 79, 1_000_000],
    "word": ["w1", "w2", None, "unseen", "w8"],
    "price": [6.25, 99.5, None, 0.0, 41.0],
    "count": [1, None, 6, 3, 0],
    "history": [[1, 2, 3, 4, 5], [], None, [80, 1_000_000], [7]],
    "user": [0, 7919, 15838, 3, 467_221],
}


def digests(batch: Batch) -> dict[str, list[Any]]:
    """The dtype, shape and SHA-256 of the bytes of every tensor and every extra of a batch."""
    found = {"dense": batch.dense, "labels": batch.labels, "categorical": batch.categorical, "valid": batch.valid}
    for name, value in [*batch.sparse.items(), *batch.extra.items()]:
        parts = (
            {f"{name}.{part}": getattr(value, part) for part in Sparse.__slots__}
            if isinstance(value, Sparse)
            else {name: value}
        )
        found |= {part: tensor for part, tensor in parts.items() if tensor is not None}
    return {name: _digest(value) for name, value in found.items()}


def first_batches(pipeline: Pipeline, plan: Plan, step: int) -> list[dict[str, list[Any]]]:
    """Checksums of the first batches from a step on."""
    return [digests(batch) for batch in islice(pipeline.batches(step=step, plan=plan), FEW)]


def served_facts(pipeline: Pipeline) -> dict[str, Any]:
    """What a pipeline makes of the rows of `SERVED_GROUPS`, and its batch schema; needs no table."""
    return {
        "schema": pipeline.schema.to_json(),
        "batch": digests(pipeline.transform(SERVED_GROUPS).to_batch()),
    }


def op_fingerprints(folder: Path) -> dict[str, list[str]]:
    """For every example of every op: the id of its feature in golden vectors, and its fingerprint when compiled.

    Examples of the same call and types that learn other values have a fingerprint each. A feature that reads an array
    has none: it would contain the times of the array's files.
    """
    found: dict[str, list[str]] = {}
    for number, (op, example) in enumerate(examples()):
        feature = feature_of(example)
        name = f"{op.name} {json.dumps(example.call.to_yaml(), sort_keys=True)}"
        name += f" of {', '.join(str(dtype) for dtype, _ in example.columns)}"
        prints = found.setdefault(name, [features_id([feature])])
        if "array" not in example.outside and (compiled := _compiled(example, folder / str(number))) not in prints:
            prints.append(compiled)
    return found


def _compiled(example: Example, folder: Path) -> str:
    feature = feature_of(example)
    frame = pl.DataFrame(
        [
            pl.Series(name, values, dtype=dtype)
            for name, (dtype, values) in zip(names_of(example), example.columns, strict=True)
        ]
    )
    schema = frame.to_arrow().schema
    if example.outside:
        write_outside(example, folder)
        artifacts = FolderArtifacts(artifacts={}, folder=str(folder))
    else:
        artifacts = FolderArtifacts(artifacts=fit_frames([feature], schema, [frame]).artifacts)
    return compile_features([feature], schema, artifacts).fingerprint[:32]


def _digest(value: Any) -> list[Any]:
    if isinstance(value, pa.Array):
        content, shape = repr(value.to_pylist()).encode(), [len(value)]
        return [str(value.type), shape, hashlib.sha256(content).hexdigest()]
    array = value.numpy()
    return [str(array.dtype), list(array.shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]
