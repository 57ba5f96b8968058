"""Bind `batch.balance` to a table: the list column whose lengths decide which rows a step holds.

Runs in: the feeder, the CLI, `Pipeline`. Pure.
"""

from __future__ import annotations

from typing import Any

from feedline.blocks.request import RowOrder
from feedline.spec import PipelineSpec
from feedline.spec.batch_section import BatchSpec
from feedline.spec.positions import Path
from feedline.warehouse.parquet.schemas import is_list
from feedline.warehouse.reading.fragment import nearest_hint
from feedline.warehouse.snapshot.snapshot import Snapshot

# Part of the fingerprint of plans with `batch.balance`: raised by any change that moves a row to another step.
BALANCE_VERSION = 1


def length_order(spec: PipelineSpec, snapshot: Snapshot) -> RowOrder | None:
    """How blocks order rows by lengths; None without `batch.balance`. Raises SpecError where the table has no such list
    column."""
    balance = spec.batch.balance
    if balance is None:
        return None
    _require_lists(spec, snapshot, balance.column, ("batch", "balance"))
    return RowOrder(column=balance.column, kind="balance", most=balance.most)


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
    balance = batch.balance
    if balance is None:
        return {}
    return {"balance": {"version": BALANCE_VERSION, "column": balance.column, "max": balance.most}}
