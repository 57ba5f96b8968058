"""Facts about saved runs that the generator records and the tests compare: checksums, plan facts, fingerprints.

None of them depends on the processor, the time or the directory of a test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
from example_rows import FolderArtifacts, examples, feature_of, names_of, write_outside
from fit_in_memory import fit_frames
from typer.testing import CliRunner

from feedline import Pipeline
from feedline.cli import app
from feedline.loader.batch import Batch
from feedline.loader.tensors.slot_tensors import Sparse
from feedline.loader.wire.codec import to_values
from feedline.planning.plan import Plan
from feedline.serving.golden_store import features_id
from feedline.transforms.compile.compiled import compile_features
from feedline.transforms.registry.op import Example

FEW = 4  # batches whose checksums are kept
SERVED_GROUPS: dict[str, list[Any]] = {  # rows to transform: known and unknown values, nulls, empty lists
    "item": [1, 2, 3, 79, 1_000_000],
    "word": ["w1", "w2", None, "unseen", "w8"],
    "price": [6.25, 99.5, None, 0.0, 41.0],
    "count": [1, None, 6, 3, 0],
    "history": [[1, 2, 3, 4, 5], [], None, [80, 1_000_000], [7]],
    "user": [0, 7919, 15838, 3, 467_221],
}
_MACHINE = ("memory", "identities")  # keys of `plan --json` that depend on the machine or on where rows are recorded
_PROSE = ("description", "title", "examples")  # keys of a JSON Schema that decide nothing


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


def stream_digest(pipeline: Pipeline, plan: Plan, epoch: int) -> list[Any]:
    """The steps of an epoch, and a digest of the requests that each rank of two gets in each, in order."""
    streams = [
        [
            batch.extra["request"].to_pylist()
            for batch in pipeline.batches(epoch=epoch, plan=plan, rank=rank, world_size=2)
        ]
        for rank in (0, 1)
    ]
    return [len(streams[0]), short_digest(json.dumps(streams))]


def remaining_requests(pipeline: Pipeline, plan: Plan, step: int) -> list[str]:
    """The requests of all rows that the first epoch delivers from a step on, sorted: no matter in which order."""
    return sorted(
        request
        for batch in pipeline.batches(step=step, plan=plan)
        for request, valid in zip(batch.extra["request"].to_pylist(), batch.valid.tolist(), strict=True)
        if valid
    )


def rebase_facts(plan: Plan) -> dict[str, Any]:
    """What a rebase says of the rest of the epoch and of the rows that were delivered."""
    rest = to_values(plan.facts())["rest"]
    rows = {key: rest["changes"]["rows"][key] for key in ("delivered", "delivered_gone", "deleted", "added")}
    return {"rest": {key: rest[key] for key in ("epoch", "first_step", "steps", "rows", "rows_dropped")}, "rows": rows}


def served_facts(pipeline: Pipeline) -> dict[str, Any]:
    """What a pipeline makes of the rows of `SERVED_GROUPS`, and its batch schema; needs no table."""
    return {
        "schema": pipeline.schema.to_json(),
        "batch": digests(pipeline.transform(SERVED_GROUPS).to_batch()),
    }


def plan_json(path: Path) -> dict[str, Any]:
    """The document of `feedline plan --json`, less what depends on the machine or on earlier counts."""
    shown = CliRunner().invoke(app, ["plan", str(path), "--json"])
    assert shown.exit_code == 0, shown.output
    facts: dict[str, Any] = {key: value for key, value in json.loads(shown.stdout).items() if key not in _MACHINE}
    facts["counted"] = {key: facts["counted"][key] for key in ("row_groups", "rows")}
    return facts


def schema_digests(schema: Mapping[str, Any]) -> dict[str, str]:
    """A digest per section, definition and op of the JSON Schema of pipeline.yaml, prose left out."""
    definitions = dict(schema["$defs"])
    ops = definitions.pop("op")["anyOf"][1]["properties"]
    parts = {
        **{f"section {name}": part for name, part in schema["properties"].items()},
        **{f"definition {name}": part for name, part in definitions.items()},
        **{f"op {name}": part for name, part in ops.items()},
    }
    return {name: short_digest("\n".join(sorted(_leaves(part, "")))) for name, part in parts.items()}


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


def short_digest(text: str) -> str:
    """The first digits of the SHA-256 of a string."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


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


def _leaves(value: Any, path: str) -> Iterator[str]:
    """Every scalar of a document with its path; the order of lists of scalars does not count."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in _PROSE or isinstance(inner, dict):
                yield from _leaves(inner, f"{path}.{key}")
        if not value:
            yield f"{path} {{}}"
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            yield from _leaves(inner, f"{path}[{place if isinstance(inner, dict) else ''}]")
    else:
        yield f"{path} {json.dumps(value)}"


def _digest(value: Any) -> list[Any]:
    if isinstance(value, pa.Array):
        content, shape = repr(value.to_pylist()).encode(), [len(value)]
        return [str(value.type), shape, hashlib.sha256(content).hexdigest()]
    array = value.numpy()
    return [str(array.dtype), list(array.shape), hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()]
