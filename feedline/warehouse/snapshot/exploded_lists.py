"""Show the snapshot of a request table as that of its impressions: `source.explode`.

Pure; runs where a plan is made. Every element of the exploded lists is a row: of its column, the elements are the
values, of every other column the request's value. A row group has as many rows as its lists have elements, which the
caller has counted. What statistics say of a request's columns holds for its rows; of the lists they prove nothing. The
view is a snapshot of its own, with an id of its own, and is saved and loaded like any other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feedline.warehouse.parquet.request_rows import impression_schema
from feedline.warehouse.snapshot.column_facts import Facts, Part, arrange_facts
from feedline.warehouse.snapshot.snapshot import ExplodedLists, Snapshot, identity

Int64s = NDArray[np.int64]


def exploded_view(snapshot: Snapshot, names: Sequence[str], impressions: Int64s) -> Snapshot:
    """The snapshot whose rows are the elements of these lists. impressions: int64 [row groups], how many there are."""
    lists = pa.schema([snapshot.schema.field(name) for name in names])
    schema = impression_schema(snapshot.schema, names)
    schema = pa.schema([field.with_nullable(True) if field.name in names else field for field in schema])
    per_file = np.bincount(snapshot.file_of_row_group, weights=impressions, minlength=len(snapshot.files))
    rows = {"row_groups": impressions, "files": per_file.astype(np.int64)}
    tables = {}
    for table, counts in rows.items():
        before = getattr(snapshot, table)
        index = before.schema.get_field_index("rows")
        kind = before.schema.field(index)
        tables[table] = before.set_column(index, kind, pa.array(counts).cast(kind.type))
    id = identity(
        schema, tables["files"], tables["row_groups"], logged=snapshot.logged, stored_names=snapshot.stored_names
    )
    return dataclasses.replace(
        snapshot,
        id=id,
        schema=schema,
        files=tables["files"],
        row_groups=tables["row_groups"],
        facts=_facts_of(snapshot, lists, impressions),
        exploded=ExplodedLists.of(lists),
        home=None,
    )


def _facts_of(snapshot: Snapshot, lists: pa.Schema, impressions: Int64s) -> Facts:
    requests, rows = snapshot.rows_per_row_group, pa.array(impressions)

    def nulls_of(nulls: pa.Array) -> pa.Array:
        # of 3 requests with 10 rows: 0 nulls -> 0, 3 -> 10, 2 or unknown -> unknown, as a request may have no row
        counts = np.asarray(nulls)
        return pa.array(np.where(counts == 0, 0, np.where(counts == requests, impressions, -1)))

    def fetch(field: pa.Field) -> pa.StructArray:
        if field.name in lists.names:
            sizes = snapshot.facts.part(lists.field(field.name), "bytes")
            return arrange_facts({"bytes": pa.array(sizes), "nulls": _unknown(impressions)}, rows, field)
        stored = snapshot.facts.column(field)
        parts = {part.name: stored.field(part.name) for part in stored.type}
        return arrange_facts({**parts, "nulls": nulls_of(parts["nulls"])}, rows, field)

    def fetch_part(field: pa.Field, name: Part) -> pa.Array:
        if field.name in lists.names and name == "nulls":
            return _unknown(impressions)
        stored = lists.field(field.name) if field.name in lists.names else field
        part = pa.array(snapshot.facts.part(stored, name))
        return nulls_of(part) if name == "nulls" else part

    return Facts(fetch, fetch_part)


def _unknown(impressions: Int64s) -> pa.Array:
    """Null counts of lists' elements: none where there are no rows, else unknown."""
    return pa.array(np.where(impressions == 0, 0, -1))


@lru_cache(maxsize=64)
def stored_schema(schema: pa.Schema, exploded: ExplodedLists | None) -> pa.Schema:
    """The columns of files for those of impressions: with the lists in place of their elements."""
    if exploded is None:
        return schema
    lists = exploded.fields
    return pa.schema([lists.field(each.name) if each.name in exploded.names else each for each in schema])
