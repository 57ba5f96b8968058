"""Parts of what `feedline plan` shows: columns read in part, histories, the cache, drawn and excluded rows, a followed
table.

Runs in: the process of the command.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.types as pat
from rich.markup import escape

from feedline.blocks.cache.entry_names import SEGMENT_ROWS, EntryNames, Segment, segments
from feedline.blocks.jobs import compile_job
from feedline.config import PipelineSpec
from feedline.expressions.column_parts import flattened_column, has_column, part_of
from feedline.planning.source_plan import SourcePlan
from feedline.planning.table_snapshot import landing_of
from feedline.planning.weighted_rows import RowWeights
from feedline.warehouse.cache.cache_folder import check_folder, held_columns
from feedline.warehouse.reading.columns import part_bytes
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.reading.row_weights import EXACT
from feedline.warehouse.selection.pruning_report import Stage
from feedline.warehouse.snapshot.arrived_files import plural


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


# --------------------------------------------------------------------------------------------------------------------
# What `feedline plan` says of the histories that rows see.

_GENERATION = 12  # shown digits of its id


def history_rows(histories: Sequence[Mapping[str, Any]], sample_bytes: int) -> list[tuple[str, str]]:
    """Render what `describe_histories` says as rows of a table. sample_bytes: that an epoch reads of the table."""
    return [(f"history {facts['name']}", escape(_history_text(facts, sample_bytes))) for facts in histories]


def _history_text(facts: Mapping[str, Any], sample_bytes: int) -> str:
    layout = "read as it is" if facts["layout"] == "as it is" else f"written to {facts['layout']}"
    held = f"{facts['events']:,} events of {facts['keys']:,} keys, {facts['bytes']:,} bytes"
    read, clustered = facts["read_bytes"], facts["clustered_bytes"]
    seen = (
        f"{facts['amplification']:.1f}x the bytes of the events that its blocks' rows see (an estimate from "
        f"{facts['sampled']:,} rows)"
    )
    lines = [
        f"{facts['table']}, {layout}, generation {facts['generation'][:_GENERATION]}: {held}",
        f"a row sees {facts['most']:,} events at most, about {facts['mean']:,.0f} on average",
        f"an epoch reads about {read:,} bytes of events, besides {sample_bytes:,} of samples: {seen}",
    ]
    if facts["command"] is not None:
        lines.append(f"with the samples clustered by the key at most {clustered:,}: {facts['command']}")
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------------------
# What a pipeline's cache holds of a plan already, and what a run would add, for `feedline plan`. Only indexes of
# files are read; of large tables, those of some row groups. A folder that does not exist is not created.

_MOST_ROW_GROUPS = 256  # that are looked up


def cache_facts(plan: SourcePlan, bytes_per_row: int) -> dict[str, Any] | None:
    """What the cache holds, as plain values; None for a pipeline without one.

    bytes_per_row: of an encoded row, an estimate.
    """
    if plan.job.cache is None:
        return None
    compiled, folder = compile_job(plan.job), plan.job.cache.folder
    names = EntryNames(plan.job, compiled)
    wanted, found, nbytes, groups = len(names.columns), 0, 0, 0
    exists = check_folder(folder) and wanted > 0
    for fragment, segment in _segments(plan):
        groups += 1
        held = held_columns(folder, names.group(fragment, segment).digest) if exists else {}
        own = [held[digest] for digest in names.columns.values() if digest in held]
        found, nbytes = found + len(own), nbytes + sum(own)
    share = found / (groups * wanted) if groups and wanted else 0.0
    kept = np.flatnonzero(plan.selection.rows)
    scale = len(kept) / max(1, min(len(kept), _MOST_ROW_GROUPS))
    rows = int(plan.selection.rows.sum())
    return {
        "folder": folder,
        "share": share,
        "bytes": int(nbytes * scale),
        "bytes_to_add": int((1 - share) * bytes_per_row * rows),
        "segment_bytes": bytes_per_row * min(SEGMENT_ROWS, int(plan.selection.rows.max(initial=0))),
        "row_groups_looked_up": min(len(kept), _MOST_ROW_GROUPS),
        "not_kept": names.obstacles,
    }


def cache_text(facts: dict[str, Any]) -> str:
    """The facts as a line of the plan's table."""
    looked = f" (of {facts['row_groups_looked_up']:,} row groups)"
    there = f"{facts['share']:.1%} of features x row groups are there, {facts['bytes']:,} bytes{looked}"
    not_kept = facts["not_kept"]
    first = next((f"; {len(not_kept):,} not kept, such as {name} ({why})" for name, why in not_kept.items()), "")
    adds = f"a run would add {facts['bytes_to_add']:,} bytes at most"
    holds = f"a thread that adds rows holds {facts['segment_bytes']:,} bytes besides its block, at most"
    return f"{facts['folder']}: {there}; {adds}{f'; {holds}' if facts['bytes_to_add'] else ''}{first}"


def _segments(plan: SourcePlan) -> Iterator[tuple[Fragment, Segment]]:
    """The segments of some row groups, spread over all that keep rows, each with its fragment."""
    kept = np.flatnonzero(plan.selection.rows)
    count = min(len(kept), _MOST_ROW_GROUPS)
    for index in (np.arange(count) * len(kept)) // max(1, count):
        group = int(kept[index])
        rows = int(plan.selection.rows[group])
        fragment = plan.selection.fragment(plan.snapshot, kept[index : index + 1])
        for segment in segments(rows, 0, rows):
            yield fragment, segment


# --------------------------------------------------------------------------------------------------------------------
# What `feedline plan` says of rows that are drawn by weight.

_SMALL_ERROR = 1e-6  # of a weight that nobody needs to be told of


def draw_facts(plan: SourcePlan, weights: RowWeights) -> dict[str, Any]:
    """The draws of epoch 0, how unevenly row groups share them, and by which share of itself a weight is rounded at
    most."""
    draws, rows = plan.remaining_rows(0), plan.selection.rows
    kept = rows > 0
    most = float((draws[kept] / rows[kept]).max(initial=0.0))
    return {
        "column": weights.column,
        "most_draws_per_row": most,
        "row_groups_not_drawn": int((draws[kept] == 0).sum()),
        "largest_error": 0.0 if weights.precision == EXACT else 2.0**-weights.precision,
    }


def draws_text(facts: dict[str, Any]) -> str:
    """The facts as a line."""
    none = facts["row_groups_not_drawn"]
    return (
        f"with replacement, by {escape(facts['column'])}: of a row group, up to {facts['most_draws_per_row']:,.1f} "
        f"draws per row" + (f"; none from {none:,} row groups in epoch 0" if none else "") + _rounded_text(facts)
    )


def _rounded_text(facts: dict[str, Any]) -> str:
    error = facts["largest_error"]
    if error < _SMALL_ERROR:
        return ""
    return f"; the smallest weights beside their row group's sum are rounded, by up to {error:.1%} of themselves"


# --------------------------------------------------------------------------------------------------------------------
# The bad rows that a plan leaves out, for `feedline plan`: how many, why, and whether other features found them.

_SHOWN = 10  # reasons


def excluded_facts(plan: SourcePlan) -> dict[str, Any] | None:
    """The exclusion as plain values; None for a pipeline without one. found_by_other_features: the pipeline's features
    have changed since, or were fitted."""
    exclusion = plan.selection.exclusion
    if exclusion is None:
        return None
    reasons = [
        {"feature": feature, "reason": reason, "rows": rows} for (feature, reason), rows in exclusion.reasons().items()
    ]
    return {
        "id": exclusion.id,
        "rows": exclusion.rows,
        "row_groups": len(exclusion.excluded),
        "reasons": reasons,
        "features": exclusion.origin.features,
        "found_by_other_features": not exclusion.origin.is_planned
        and exclusion.origin.features != plan.features_fingerprint,
    }


def excluded_stage(plan: SourcePlan) -> list[Stage]:
    """What remains without bad rows, after filter and sample; nothing for a pipeline without an exclusion."""
    rows = plan.selection.rows
    if plan.selection.exclusion is None:
        return []
    return [Stage(name="exclude", row_groups=rows > 0, rows=int(rows.sum()))]


def excluded_text(facts: dict[str, Any]) -> str:
    """The facts as lines of the plan's table."""
    lines = [f"{facts['rows']:,} rows of {facts['row_groups']:,} row groups, by exclusion {facts['id']}"]
    reasons = facts["reasons"]
    lines += [f"{each['rows']:,}: feature {each['feature']!r} {each['reason']}" for each in reasons[:_SHOWN]]
    if len(reasons) > _SHOWN:
        lines.append(f"and {len(reasons) - _SHOWN:,} more reasons")
    if facts["found_by_other_features"]:
        lines.append(
            f"found by other features ({facts['features']}): these rows stay excluded, and others may be bad by now. "
            "Check again with feedline check --rows"
        )
    return "\n".join(lines)


# --------------------------------------------------------------------------------------------------------------------
# What has landed in a followed table, for `feedline plan`: as plain values and as text.


def followed_facts(spec: PipelineSpec) -> dict[str, Any]:
    """How the table is followed, and which of its partitions have landed; empty for another table."""
    follow = spec.source.follow
    if follow is None:
        return {}
    landing = landing_of(spec)
    keys = {"landed": follow.landed, "until": follow.until, "epoch": follow.epoch}
    return {"follow": {**keys, "partitions": landing.partitions, "not_landed": dict(landing.left_out)}}


def followed_text(facts: dict[str, Any]) -> str:
    """The same as lines."""
    reads = {"all": "all that has landed", "new": "what no epoch has read"}[facts["epoch"]]
    until = "" if facts["until"] is None else f", until {facts['until']}"
    count = facts["partitions"]
    lines = [f"by {facts['landed']}{until}; an epoch reads {reads}", f"{count:,} {plural('partition', count)} landed"]
    return "\n".join([*lines, *(f"not landed: {name} {reason}" for name, reason in facts["not_landed"].items())])
