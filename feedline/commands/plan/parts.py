"""The maps and structs of which an epoch reads parts, and what decoding them costs, for `feedline plan`.

Runs in: the process of the command.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow.types as pat

from feedline.expressions.column_parts import flattened_column, has_column, part_of
from feedline.planning.source_plan import SourcePlan
from feedline.warehouse.reading.columns import part_bytes


def part_costs(plan: SourcePlan) -> dict[str, Any]:
    """The maps and structs of which an epoch reads parts, by column.

    `maps`: number of keys to read; how many have a column of their own in some file; compressed bytes of the map
    decoded as a whole in the row groups that keep rows; whether the whole map is needed anyway. `structs`: number of
    fields to read, and the struct's bytes, an upper bound as only its fields are decoded.
    """
    snapshot = plan.snapshot
    names = [name for name in plan.parts if not has_column(snapshot.schema, name)]
    parts = [part for name in names if (part := part_of(name)) is not None]
    row_groups = plan.selection.rows > 0
    costs: dict[str, dict[str, dict[str, Any]]] = {"maps": {}, "structs": {}}
    for column in dict.fromkeys(part.column for part in parts if has_column(snapshot.schema, part.column)):
        own = [part for part in parts if part.column == column]
        if not pat.is_map(snapshot.schema.field(column).type):
            nbytes = int(part_bytes(snapshot, [column])[row_groups].sum())
            costs["structs"][column] = {"fields": len(own), "bytes_at_most": nbytes, "whole": column in plan.parts}
            continue
        flattened = {name for part in own if (name := flattened_column(snapshot.schema, part)) is not None}
        sizes = part_bytes(snapshot, {column, *flattened} if column in plan.parts else map(str, own))
        nbytes = int((sizes - part_bytes(snapshot, flattened))[row_groups].sum())
        costs["maps"][column] = {
            "keys": len({part.keys[0] for part in own}),
            "keys_with_columns": len(flattened),
            "bytes": nbytes,
            "row_groups": int(np.count_nonzero((sizes > part_bytes(snapshot, flattened)) & row_groups)),
            "whole": column in plan.parts,
        }
    return costs


def part_rows(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Render the costs as rows of a table; empty if no part is read."""
    rows = []
    for column, cost in facts["maps"].items():
        keys = f"{cost['keys']:,} {'key' if cost['keys'] == 1 else 'keys'} of a map column"
        if not cost["bytes"]:
            text = f"{column}: {keys}, read from columns of their own"
        elif cost["whole"]:
            text = f"{column}: {keys}, which is also used whole: {cost['bytes']:,} bytes"
        else:
            text = (
                f"{column}: {keys}: its {cost['bytes']:,} bytes are decoded whole; flatten it with "
                f"feedline optimize --flatten {column}"
            )
        rows.append(("maps", text))
    for column, cost in facts["structs"].items():
        fields = f"{cost['fields']:,} {'field' if cost['fields'] == 1 else 'fields'} of a struct column"
        bound = "bytes, read whole" if cost["whole"] else "bytes at most, counted whole above"
        rows.append(("structs", f"{column}: {fields}: {cost['bytes_at_most']:,} {bound}"))
    return rows
