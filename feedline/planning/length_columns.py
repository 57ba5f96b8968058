"""Bind `batch.balance` and `batch.buckets` to a table: the list column whose lengths decide which rows a step holds.

Runs in: the feeder, the CLI, `Pipeline`. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from feedline.blocks.request import Balance, Buckets
from feedline.config import PipelineSpec
from feedline.config.sections import BatchSpec
from feedline.config.yaml_document import Path
from feedline.warehouse.parquet.schemas import is_list
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.selection.row_measures import LengthCounts, count_lengths
from feedline.warehouse.selection.select import Selection
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.faults import label
from feedline.warehouse.storage.locations import join, redact
from feedline.warehouse.storage.parallel import Map

# Part of the fingerprint of plans with `batch.balance`: raised by any change that moves a row to another step.
BALANCE_VERSION = 1
BUCKETS_VERSION = 1  # the same of plans with `batch.buckets`


def length_order(spec: PipelineSpec, snapshot: Snapshot) -> Balance | Buckets | None:
    """How blocks order rows by lengths; None where these decide nothing. Raises SpecError where the table has no such
    list column."""
    column, balance = spec.batch.lengths, spec.batch.balance
    if column is None:
        return None
    _require_lists(spec, snapshot, column, ("batch", "length" if balance is None else "balance"))
    if spec.batch.buckets is not None:
        return Buckets(column, spec.batch.buckets)
    return Balance(column, None if balance is None else balance.most)


def bucket_counts(
    spec: PipelineSpec,
    snapshot: Snapshot,
    selection: Selection,
    map: Map | None,
) -> LengthCounts | None:
    """The selected rows of each bucket of every row group; None without buckets. Raises SpecError where lists are
    longer than all bounds, unless `batch.longer` is `cap`."""
    column, bounds = spec.batch.lengths, spec.batch.buckets
    if column is None or bounds is None:
        return None
    counts = count_lengths(snapshot, selection, column, bounds, work_dir=spec.work_dir, map=map)
    beyond = int(counts.beyond.sum())
    if beyond and spec.batch.longer == "error":
        first = int(np.argmax(counts.beyond > 0))
        path = join(redact(snapshot.uri), snapshot.files["path"][int(snapshot.file_of_row_group[first])].as_py())
        raise spec.error(
            ("batch", "buckets"),
            f"leave out longer rows: got {beyond:,} rows whose {column} is longer than {bounds[-1]:,} (first: "
            f"{label(path, int(snapshot.row_group_in_file[first]))}), the longest {int(counts.longest.max()):,}, "
            f"expected none. Add a bound, filter them with source.where, or count them "
            f"as {bounds[-1]:,} with `longer: cap`, and cut the feature with first_x",
        )
    return counts


def _require_lists(spec: PipelineSpec, snapshot: Snapshot, column: str, path: Path) -> None:
    schema = snapshot.schema
    if column not in schema.names:
        raise spec.error(path, f"column {column!r} is not in the table. {nearest_hint(column, schema.names)}")
    kind = schema.field(column).type
    if not is_list(kind):
        message = f"column {column!r} has no lengths: got {kind}, expected lists"
        raise spec.error(path, f"{message}. Name the list column that makes rows long")


def length_facts(batch: BatchSpec) -> dict[str, Any]:
    """What the fingerprint of a plan says of lengths: nothing where they decide nothing."""
    facts: dict[str, Any] = {}
    if batch.balance is not None:
        facts["balance"] = {"version": BALANCE_VERSION, "column": batch.balance.column, "max": batch.balance.most}
    if batch.buckets is not None:
        keys = batch.model_dump(include={"max_tokens", "buckets", "longer"})
        facts["buckets"] = {"version": BUCKETS_VERSION, "column": batch.lengths, **keys}
    return facts
