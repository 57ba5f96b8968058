"""Describe a plan, for `feedline plan`: as plain values (`describe`, for `--json`) and as a table (`plan_table`).

Runs in: the process of the command.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.commands.dedup_table import group_lines
from feedline.commands.plan.parts import (
    cache_facts,
    cache_text,
    draw_facts,
    draws_text,
    excluded_facts,
    excluded_stage,
    excluded_text,
    followed_facts,
    followed_text,
    history_rows,
    part_costs,
    part_rows,
)
from feedline.commands.plan.step_lengths import describe_lengths, length_rows
from feedline.loader.encoding.layout import SlotLayout
from feedline.loader.plan_descriptions import lines_of, summary_of
from feedline.loader.ring.launch import describe_workers, feeder_threads, memory_share
from feedline.loader.wire.codec import from_values, to_values
from feedline.loader.wire.facts import BadFileFacts
from feedline.native.kernels import compiled_kernels
from feedline.planning.bucket_schedule import BucketSchedule
from feedline.planning.dedup.group_measure import describe_groups
from feedline.planning.history_costs import describe_histories
from feedline.planning.mixing import DEFAULT_WINDOW_ROWS
from feedline.planning.nulls import first_lines
from feedline.planning.schedule import Schedule
from feedline.planning.source_plan import SourcePlan
from feedline.resources.cgroups import available_cores
from feedline.service.feeder.window import window_bounds
from feedline.service.scheduler_load import describe_load, scheduler_load
from feedline.warehouse.reading.columns import part_bytes
from feedline.warehouse.reading.read import arrow_columns, bytes_of
from feedline.warehouse.selection.pruning_report import SelectionReport, count_files, stages_of
from feedline.warehouse.snapshot.column_facts import contiguous
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage.locations import absolute, join, redact

# --------------------------------------------------------------------------------------------------------------------
# Find the row groups that borders between lanes cut, which are decoded for more than one lane.


def row_groups_read_twice(plan: SourcePlan, schedule: Schedule) -> Iterator[int]:
    """The row groups cut by a border between lanes, which both neighbours decode, one per border; with buckets all
    that have a border of some bucket."""
    if isinstance(schedule, BucketSchedule):
        yield from np.repeat(np.arange(len(plan.selection.rows)), np.maximum(schedule.readers() - 1, 0)).tolist()
        return
    rows = plan.remaining_rows(0)
    ends = np.cumsum(rows, dtype=np.int64)  # of row groups, in the table's order
    split_starts = (ends - rows)[plan.splits.first_row_group]
    for lane in range(1, schedule.lanes):
        border = schedule.lane_bounds(lane)[0]
        if border in (0, schedule.rows):
            continue
        index = int(np.searchsorted(schedule.starts, border, side="right")) - 1
        row = int(split_starts[schedule.order[index]]) + border - int(schedule.starts[index])
        group = int(np.searchsorted(ends, row, side="right"))
        if row != (int(ends[group - 1]) if group else 0):
            yield group


# --------------------------------------------------------------------------------------------------------------------

# Estimate of a list's decoded bytes per row, unknown before reading: 20 ids.
_LIST_BYTES = 8 * 20
_SHOWN = 5  # columns in one line
# The stages of pruning, and those of them that are shown only if they decided something.
_PRUNING = (
    *("pruned_by_partition", "pruned_by_statistics", "pruned_by_bloom_filters", "taken_whole"),
    *("sampled_by_place", "counted"),
)
_OPTIONAL = ("pruned_by_bloom_filters", "sampled_by_place")


def describe(plan: SourcePlan, *, world_size: int, rows_per_s: float = 0.0) -> dict[str, Any]:
    """Describe all that a run decides before it starts, as plain values. rows_per_s: of a rank (0: not given)."""
    snapshot, selection = plan.snapshot, plan.selection
    schedule = plan.schedule(0)
    table_bytes = _table_bytes(snapshot)
    lanes_per_rank, cluster = plan.lanes // world_size, plan.spec.cluster
    threads = feeder_threads(plan.spec, cores=available_cores()) * cluster.most_workers
    block_bytes = row_bytes(plan) * int(np.diff(schedule.lane(0).borders).max())
    fewest, most = window_bounds(schedule.open_blocks(range(lanes_per_rank)), threads, block_bytes, cluster.window)
    twice = sum(int(plan.row_group_bytes[group]) for group in row_groups_read_twice(plan, schedule))
    read_bytes = int(plan.row_group_bytes[selection.rows > 0].sum()) + twice
    return {
        "table": plan.spec.source.table,
        "snapshot": snapshot.id,
        "plan": plan.fingerprint,
        "features": plan.features.fingerprint[:32],
        "files": len(snapshot.files),
        "files_ignored": snapshot.ignored,
        "bad_files": [to_values(bad) for bad in plan.bad_files()],
        **followed_facts(plan.spec),
        **plan.gaps.facts(),
        "stages": stages(plan, table_bytes),
        **_pruning_facts(selection.report),
        "sample": plan.sample.sample.to_json() if plan.sample is not None else None,
        "excluded": excluded_facts(plan),
        **_column_facts(plan, schedule),
        "bytes": {
            "read_per_epoch": read_bytes,
            "read_twice": twice,
            "table": table_bytes,
            "share": read_bytes / table_bytes if table_bytes else 0.0,
        },
        **part_costs(plan),
        "rows": schedule.rows,
        "rows_dropped": schedule.rows_dropped,
        "steps": schedule.steps,
        "batch_size": plan.spec.batch.size,
        "rows_per_rank_and_step": plan.spec.batch.size * lanes_per_rank,
        "tail": plan.spec.batch.tail,
        "lanes": plan.lanes,
        "world_size": world_size,
        "splits": int(np.count_nonzero(plan.split_rows)),
        "blocks_per_lane": len(schedule.block_indices(0)),
        "blocks_mixed": len(schedule.lane(0).strands),
        "window": _window_facts(plan),
        "read_twice_share": twice / (read_bytes - twice) if read_bytes > twice else 0.0,
        "memory": {
            "block_bytes": block_bytes,
            "blocks_in_flight": most,
            "fewest_blocks_in_flight": fewest,
            "in_flight_bytes": block_bytes * most,
            "budget_bytes": memory_share(plan.spec, local_ranks=1),
        },
        "workers": describe_workers(plan.spec, cores=available_cores()),
        "identities": _identity_facts(plan),
        "scheduler": _scheduler_facts(plan, schedule, world_size, rows_per_s),
        "cache": cache_facts(plan, row_bytes(plan)),
        **({} if plan.weights is None else {"weights": draw_facts(plan, plan.weights)}),
        **({} if (lengths := describe_lengths(plan)) is None else {"lengths": lengths}),
        **({} if (groups := describe_groups(plan)) is None else {"dedup": groups}),
        **({"histories": histories} if (histories := describe_histories(plan)) else {}),
    }


def _window_facts(plan: SourcePlan) -> dict[str, Any] | None:
    """The rows that a lane mixes, and whether wide rows made them fewer than the default; None: blocks in turn."""
    shuffle, rows = plan.spec.shuffle, plan.window.rows
    if shuffle is None or not plan.sizes.window_rows:
        return None
    limited = shuffle.window_rows is None and shuffle.window_share is None and rows < DEFAULT_WINDOW_ROWS
    return {"rows": rows, "limited_by_bytes": limited, "row_bytes": plan.row_bytes.stored}


def _scheduler_facts(plan: SourcePlan, schedule: Schedule, world_size: int, rows_per_s: float) -> dict[str, Any] | None:
    """What the plan asks of the Dask scheduler; None where blocks are computed on this machine."""
    if plan.spec.cluster.kind not in ("scheduler", "provider"):
        return None
    blocks = len(schedule.block_indices(0)) * plan.lanes
    load = scheduler_load(
        plan.spec.source,
        plan.spec.shuffle,
        lanes=plan.lanes,
        row_bytes=plan.row_bytes,
        block_rows=schedule.rows / max(1, blocks),
        rows_per_s=rows_per_s * world_size,
    )
    present = plan.spec.source.split_rows if plan.spec.shuffle is None else plan.window.rows
    text = describe_load(load, ranks=world_size, window=present)
    return {**asdict(load), "text": text}


def _identity_facts(plan: SourcePlan) -> dict[str, Any]:
    """Whether blocks record the identities of their rows for a rebase, from which columns, in about how many bytes.

    One hash of 8 bytes per selected row, two with `shuffle.by`, stored below `folder` once per file.
    """
    record, folder = plan.job.record, redact(join(absolute(plan.spec.work_dir), "rows"))
    if record is None:
        return {"recorded": False, "folder": folder, "columns": [], "bytes": 0, "why_not": "no source.row_key"}
    hashes = 1 if record.identity.by is None else 2
    nbytes = 8 * hashes * int(plan.selection.rows.sum())
    columns = [name for name, _ in record.identity.columns]
    return {"recorded": True, "folder": folder, "columns": columns, "bytes": nbytes, "why_not": None}


def _pruning_facts(report: SelectionReport) -> dict[str, Any]:
    """The row groups decided at each stage of pruning, and the bytes read for it."""
    return {
        "row_groups": asdict(report.table),
        "pruned_by_partition": asdict(report.by_partition),
        "pruned_by_statistics": asdict(report.by_statistics),
        "pruned_by_bloom_filters": {**asdict(report.by_bloom), "bytes": report.bloom_bytes},
        "taken_whole": asdict(report.whole),
        "sampled_by_place": asdict(report.by_position),
        "counted": {**asdict(report.counted), "bytes": report.counted_bytes, "cached": report.cached},
        "matched": asdict(report.matched),
        "kept": asdict(report.kept),
    }


def _table_bytes(snapshot: Snapshot) -> int:
    """Compressed bytes of all columns of the table. Row groups hold their sum, but also what files have besides."""
    if all(set(schema.names).issubset(snapshot.file_columns) for schema in snapshot.file_schemas):
        return int(contiguous(snapshot.row_groups["bytes"]).to_numpy().sum())
    return bytes_of(snapshot, None, snapshot.file_columns)


def stages(plan: SourcePlan, table_bytes: int) -> list[dict[str, Any]]:
    """What remains of the table after each stage: files, row groups, rows, and bytes of the columns to read.

    `table` has the bytes of all columns; `columns` is the projection, including columns of filter and sample.
    """
    snapshot, selection = plan.snapshot, plan.selection
    projection = part_bytes(snapshot, plan.parts)
    facts: list[dict[str, Any]] = []
    for stage in (*stages_of(snapshot, selection.verdicts), *excluded_stage(plan)):
        remaining = {
            "files": count_files(snapshot, stage.row_groups) if facts else len(snapshot.files),
            "row_groups": int(stage.row_groups.sum()),
            "rows": stage.rows,
        }
        if not facts:
            facts.append({"stage": stage.name, **remaining, "bytes": table_bytes})
        name = stage.name if len(facts) > 1 else "columns"
        facts.append({"stage": name, **remaining, "bytes": int(projection[stage.row_groups].sum())})
    return facts


def plan_table(facts: dict[str, Any]) -> Group:
    """Render the facts: what remains after each stage, then everything else."""
    rows = (*_table_rows(facts), *_pruning_rows(facts), *_run_rows(facts))
    return Group(_stages_table(facts), facts_table("the plan", rows))


def source_table(facts: dict[str, Any], title: str) -> Group:
    """The same of one source of several, without what a run makes of all of them."""
    rows = (*_table_rows(facts), *_pruning_rows(facts), *_run_rows(facts, alone=False))
    return Group(_stages_table(facts), facts_table(title, rows))


def _stages_table(facts: dict[str, Any]) -> Table:
    stages_table = Table(title=f"{facts['table']}: what remains after", title_justify="left")
    for title in ("", "files", "row groups", "rows", "bytes", "% of bytes"):
        stages_table.add_column(title, justify="right" if title else "left", no_wrap=True)
    everything = facts["stages"][0]["bytes"]
    for stage in facts["stages"]:
        share = stage["bytes"] / everything if everything else 0.0
        numbers = [f"{stage[key]:,}" for key in ("files", "row_groups", "rows", "bytes")]
        stages_table.add_row(
            "the whole table" if stage["stage"] == "table" else stage["stage"], *numbers, f"{share:.1%}"
        )
    return stages_table


def facts_table(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """A table of names and what there is to say of them."""
    table = Table(title=title, title_justify="left", show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, text in rows:
        table.add_row(name, text)
    return table


def _table_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The snapshot, and what is wrong with it."""
    in_all = facts["row_groups"]
    yield "table", f"{facts['files']:,} files, {in_all['row_groups']:,} row groups, {in_all['rows']:,} rows"
    yield "snapshot", facts["snapshot"]
    yield "plan, features", f"{facts['plan']}, {facts['features']}"
    if "follow" in facts:
        yield "followed", escape(followed_text(facts["follow"]))
    if bad_files := [from_values(BadFileFacts, bad) for bad in facts["bad_files"]]:
        yield "bad files", "\n".join([summary_of(bad_files), *map(escape, lines_of(bad_files))])
    for name, lines in (("nulls left", facts["nulls"]), ("columns missing", facts["absent"])):
        if lines:
            yield name, "\n".join(map(escape, first_lines([line["text"] for line in lines])))


def _pruning_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in _PRUNING:
        share = facts[key]
        note = f", {share['bytes']:,} bytes read" if share.get("bytes") else ""
        if key == "counted" and share["row_groups"] and share["cached"]:
            note += " (known from an earlier run)"
        if share["row_groups"] or note or key not in _OPTIONAL:
            yield key.replace("_", " "), f"{share['row_groups']:,} row groups, {share['rows']:,} rows{note}"
    if facts["sample"] is not None:
        yield "sampled", _sample_text(facts)
    if facts["excluded"] is not None:
        yield "excluded", escape(excluded_text(facts["excluded"]))


def _run_rows(facts: dict[str, Any], *, alone: bool = True) -> Iterator[tuple[str, str]]:
    """What a run reads, delivers and needs. alone: of this table only."""
    size, columns = facts["bytes"], facts["columns"]
    twice = (
        f": {size['read_twice']:,} of them ({facts['read_twice_share']:.1%}) are read twice, where a border between "
        f"two of the {facts['lanes']} lanes cuts a row group"
        if size["read_twice"]
        else ""
    )
    yield "columns read", f"{columns['read']:,} of {columns['table']:,} ({columns['share']:.1%})"
    yield "decoded by", _decoders_text(facts)
    yield "bytes per epoch", f"{size['read_per_epoch']:,} of {size['table']:,} ({size['share']:.1%}){twice}"
    yield from part_rows(facts)
    yield from history_rows(facts.get("histories", ()), size["read_per_epoch"])
    yield "rows", f"{facts['rows']:,}, of which {facts['rows_dropped']:,} dropped (tail: {facts['tail']})"
    yield "steps", f"{facts['steps']:,} on each of {facts['world_size']} ranks"
    if alone:
        batch = f"{facts['rows_per_rank_and_step']:,} rows per rank, from {facts['lanes']} x {facts['batch_size']:,}"
        yield from length_rows(facts["lengths"], batch) if "lengths" in facts else [("batch", batch)]
    if "weights" in facts:
        yield "drawn", draws_text(facts["weights"])
    yield "work", _work_text(facts)
    if alone:
        yield "memory per rank", memory_text(facts["memory"])
        yield "blocks computed by", escape(facts["workers"])
    yield "row identities", _identities_text(facts["identities"])
    if facts["cache"] is not None:
        yield "cache", escape(cache_text(facts["cache"]))
    if "dedup" in facts:
        yield "deduplicated", "\n".join(map(escape, group_lines(facts["dedup"])))

    if alone and facts["scheduler"] is not None:
        yield "scheduler", facts["scheduler"]["text"]


def memory_text(memory: dict[str, Any]) -> str:
    """The blocks in flight, and what they may take."""
    fewer = "; fewer blocks will be in flight" if memory["in_flight_bytes"] > memory["budget_bytes"] else ""
    fewest, most = memory["fewest_blocks_in_flight"], memory["blocks_in_flight"]
    blocks = f"{most} blocks" if fewest == most else f"{most} blocks, {fewest} if the trainer is slow,"
    in_flight = f"{memory['in_flight_bytes']:,} bytes ({blocks} of about {memory['block_bytes']:,})"
    return f"{in_flight} of {memory['budget_bytes']:,}{fewer}"


def _column_facts(plan: SourcePlan, schedule: Schedule) -> dict[str, Any]:
    """The columns that are read, those that pyarrow decodes in the first file, each with the reason, and the compiled
    kernels."""
    table = plan.snapshot.schema
    first = next(iter(schedule.blocks(0, everything=True)), None)
    columns = {
        "read": len(plan.columns),
        "table": len(table.names),
        "share": len(plan.columns) / len(table.names),
        "names": list(plan.columns),
    }
    facts = {"columns": columns, "kernels": list(compiled_kernels()), "decoded_by_pyarrow": {}}
    if first is None:
        return facts
    fragment = plan.request(first, 0).pieces[0].fragment
    return {**facts, "decoded_by_pyarrow": arrow_columns(fragment, plan.columns, table)}


def _decoders_text(facts: dict[str, Any]) -> str:
    columns, read = facts["decoded_by_pyarrow"], facts["columns"]["read"]
    if not columns:
        return "the kernel"
    if len(set(columns.values())) == 1 and (len(columns) == read or "parquet" not in facts["kernels"]):
        return f"pyarrow ({next(iter(columns.values()))})"
    reasons: dict[str, list[str]] = {}
    for name, reason in columns.items():
        reasons.setdefault(reason, []).append(name)
    lines = [
        f"{', '.join(names[:_SHOWN])}{f' and {len(names) - _SHOWN:,} more' if len(names) > _SHOWN else ''} ({reason})"
        for reason, names in reasons.items()
    ]
    return escape(f"pyarrow: {'; '.join(lines)}" + ("" if len(columns) == read else ". Others: the kernel"))


def _work_text(facts: dict[str, Any]) -> str:
    text = f"{facts['splits']:,} splits, {facts['blocks_per_lane']:,} blocks per lane"
    window, limit = facts["window"], ""
    if window is not None and window["limited_by_bytes"]:
        limit = f": the default window is {window['rows']:,} rows of {window['row_bytes']:,.0f} compressed bytes"
    mixed = f", {facts['blocks_mixed']:,} of them mixed at a time" if facts["blocks_mixed"] > 1 or limit else ""
    return f"{text}{mixed}{limit}"


def _identities_text(facts: dict[str, Any]) -> str:
    if not facts["recorded"]:
        return "not recorded for rebase: name a source.row_key to record them"
    return f"recorded for rebase: about {facts['bytes']:,} bytes in {escape(facts['folder'])}"


def _sample_text(facts: dict[str, Any]) -> str:
    sample, before, after = facts["sample"], facts["matched"]["rows"], facts["kept"]["rows"]
    by = f"by {', '.join(sample['key'])}" if sample["key"] else "by place"
    where = f" where {sample['where']}" if sample["where"] else ""
    return f"{after:,} of {before:,} rows: {sample['fraction']:.4g}{where}, {by}, seed {sample['seed']}"


def row_bytes(plan: SourcePlan) -> int:
    """Estimate the bytes of an encoded row, without deduplication."""
    width = SlotLayout(plan.layout.schema.expanded).width
    scalar = 4 * width["dense"] + 8 * width["categorical"] + 4 * width["label"] + 8 * width["extra"]
    return int(scalar + (_LIST_BYTES + 8) * width["sparse"])
