"""Bind `source.row_key` to a table: where blocks record the identities of rows, for `feedline rebase`.

Runs in: the feeder, the CLI, `Pipeline`. Pure.
"""

from __future__ import annotations

import json

import pyarrow as pa

from feedline.config import PipelineSpec
from feedline.warehouse.reading.fragment import field_of
from feedline.warehouse.reading.sample import SAMPLE_WEIGHT
from feedline.warehouse.rebase.recorded_rows import Recording
from feedline.warehouse.rebase.row_identity import identity_kind, identity_of
from feedline.warehouse.snapshot.snapshot import Snapshot


def recording_of(spec: PipelineSpec, snapshot: Snapshot) -> Recording | None:
    """Where and how a plan's blocks record the identities of rows; None without a `source.row_key`. Raises SpecError
    for a key that is not in the files, or of a type that cannot be hashed."""
    key, schema, sample = spec.source.row_key, snapshot.schema, spec.source.sample
    if key is None:
        return None
    for name in key:
        if name not in schema.names or identity_kind(schema.field(name).type) is None:
            got = str(schema.field(name).type) if name in schema.names else "no column of that name"
            message = f"{name!r} cannot identify rows: got {got}, expected a column of numbers, times, strings or lists"
            raise spec.error(("source", "row_key"), message)
    lengths = spec.batch.balance.column if spec.batch.balance is not None else None
    by = (spec.shuffle.by if spec.shuffle is not None else None) or lengths
    not_stored = {*snapshot.partition_columns, SAMPLE_WEIGHT if sample is not None else ""}
    read = dict.fromkeys([*key, *([by] if by is not None else [])])
    stored = pa.schema([field_of(schema, name) for name in read if name not in not_stored])
    drawn = None if sample is None else sample.model_dump(exclude=None if sample.rest else {"rest"})
    exploded = [spec.source.explode] if spec.source.explode else []
    kept = json.dumps([spec.source.where, drawn, *exploded])
    identity = identity_of(stored, key, by=by, by_length=lengths is not None, kept=kept)
    if identity is None:
        raise spec.error(
            ("source", "row_key"), f"consists of partition keys: got {', '.join(key)}. Name a column of the files"
        )
    return Recording(identity=identity, work_dir=spec.work_dir)
