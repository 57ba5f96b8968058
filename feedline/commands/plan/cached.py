"""What a pipeline's cache holds of a plan already, and what a run would add, for `feedline plan`.

Runs in: the process of the command. Only indexes of files are read; of large tables, those of some row groups. A folder
that does not exist is not created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from feedline.blocks.cache.entry_names import SEGMENT_ROWS, EntryNames, Segment, segments
from feedline.blocks.jobs import compile_job
from feedline.planning.source_plan import SourcePlan
from feedline.warehouse.cache.cache_folder import check_folder, held_columns
from feedline.warehouse.reading.fragment import Fragment

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
