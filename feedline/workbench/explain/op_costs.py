"""Describe, measure and show each feature's chain of ops, for `feedline plan --ops`.

Runs in: the process of the command. The cost of a feature is the CPU time of its whole chain alone, on the first rows
that a run would deliver; of a deduplicated group, on those that do not repeat the row above. A run computes shared
steps once, so the pass over all features is measured as well. What a feature costs in a run, decoding and codes with
it, is `cost_account`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import polars as pl
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.blocks.compute import first_chunks
from feedline.blocks.jobs import CompiledPart, compile_job
from feedline.commands.consoles import print_facts
from feedline.loader.encoding.encode import encode
from feedline.loader.encoding.layout import BatchSchema
from feedline.planning.dedup.group_measure import job_of
from feedline.planning.plan import Plan
from feedline.planning.source_plan import SourcePlan
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.compile.describe import Chain, chains
from feedline.warehouse.parquet.repeated_rows import run_starts_at
from feedline.workbench.explain.cpu_time import CpuBudget, measure_in_turn

_CHUNKS = 3
OP_ROUNDS = 2


def describe_ops(plan: SourcePlan) -> dict[str, Any]:
    """Describe every feature's chain with kinds, types and cost, and the cost of all together, as plain values."""
    compiled = plan.features
    job = job_of(plan, compiled.features)
    frames = first_chunks(job, (plan.request(block, 0) for block in plan.schedule(0).blocks(0)), _CHUNKS)
    parts = [(part, _rows_of(part, frames, job.by)) for part in compile_job(job).parts]
    frames_of = {feature.name: own for part, own in parts for feature in part.features.features}
    alone = [compile_features([feature], compiled.schema, compiled.artifacts) for feature in compiled.features]
    works = [partial(_apply, [(one, frames_of[one.features[0].name])]) for one in alone if not one.missing_fits]
    if frames and not compiled.missing_fits:
        finished = [(part.schema, [part.features.apply(frame) for frame in own]) for part, own in parts]
        works += [partial(_apply, [(part.features, own) for part, own in parts]), partial(_encode, finished)]
    seconds = measure_in_turn(works, CpuBudget(), rounds=OP_ROUNDS).min(axis=0).tolist()
    encoding, whole = (seconds.pop(), seconds.pop()) if len(works) > len(alone) else (None, None)
    costs = [None if one.missing_fits else seconds.pop(0) for one in alone]
    total = sum(cost for cost in costs if cost is not None)
    rows = sum(frame.height for frame in frames)
    features = [
        {
            **_chain_facts(chain),
            "reads": list(one.parts),
            "shared": {"steps": chain.shared, "features": list(chain.sharers)},
            "values": (values := _value_count(one, frames_of[chain.name])),
            "ms_per_million_values": None if cost is None else 1e9 * cost / max(values, 1),
            "share": None if cost is None else cost / total if total else 0.0,
        }
        for chain, one, cost in zip(
            chains(compiled.features, compiled.schema, compiled.artifacts), alone, costs, strict=True
        )
    ]
    per_million = 1e9 / max(rows, 1)
    return {
        "table": plan.spec.source.table,
        "rows": rows,
        "chunks": len(frames),
        "features": features,
        "ms_per_million_rows": {
            "features_alone": total * per_million,
            "pass": None if whole is None else whole * per_million,
            "encode": None if encoding is None else encoding * per_million,
        },
    }


def _rows_of(part: CompiledPart, frames: Sequence[pl.DataFrame], by: str | None) -> Sequence[pl.DataFrame]:
    """The rows on which a part's features are computed. by: the column whose values keep runs together."""
    if not part.columns:
        return frames
    names = {*part.columns, by}
    compared = [[name for name in frame.columns if name in names] for frame in frames]
    return [frame.filter(run_starts_at(frame, own, ())) for frame, own in zip(frames, compared, strict=True)]


def _apply(works: Sequence[tuple[CompiledFeatures, Sequence[pl.DataFrame]]]) -> None:
    for features, frames in works:
        for frame in frames:
            features.apply(frame)


def _encode(works: Sequence[tuple[BatchSchema, Sequence[pl.DataFrame]]]) -> None:
    for schema, frames in works:
        for frame in frames:
            encode(frame, schema)


def _chain_facts(chain: Chain) -> dict[str, Any]:
    return {
        "name": chain.name,
        "group": chain.group,
        "chain": chain.text(),
        "source": chain.source,
        "inputs": [_chain_facts(part) for part in chain.inputs],
        "steps": [{"op": step.op, "kind": step.kind, "dtype": step.dtype, "code": step.code} for step in chain.steps],
        "dtype": chain.dtype,
    }


def _value_count(features: CompiledFeatures, frames: Sequence[pl.DataFrame]) -> int:
    """The number of values that features read: rows, or elements of lists."""
    count = 0
    for frame in frames:
        for name in features.parts:
            series = frame.get_column(name) if name in frame.columns else None
            if series is not None and isinstance(series.dtype, pl.List):
                count += int(series.list.len().sum())
            else:
                count += frame.height
    return count


def ops_table(facts: dict[str, Any]) -> Group:
    """Render the facts: a row per feature, in the file's order, then shared steps and how costs were measured."""
    table = Table(title=f"{facts['table']}: how each feature is computed", title_justify="left")
    table.add_column("feature", overflow="fold")
    table.add_column("chain: types where they change", overflow="fold", ratio=1)
    table.add_column("ms per\nM values", justify="right")
    table.add_column("share", justify="right")
    for feature in facts["features"]:
        cost, share = feature["ms_per_million_values"], feature["share"]
        table.add_row(
            escape(feature["name"]),
            escape(_short_chain(feature)),
            "not fitted" if cost is None else f"{cost:,.2f}",
            "" if share is None else f"{share:.1%}",
        )
    return Group(table, escape("\n".join([*_sharing_lines(facts["features"]), *_cost_lines(facts)])))


def _short_chain(chain: dict[str, Any]) -> str:
    """`price: float32 → fill_null → log1p → dense`: the chain, with a type only where it changes."""
    inputs = ", ".join(map(_short_chain, chain["inputs"]))
    words: list[str] = []
    dtype = None
    for step in chain["steps"]:
        name = " ".join(filter(None, (step["op"] or chain["source"], step["code"])))
        name += f"({inputs})" if inputs and not words else ""
        words.append(name if step["dtype"] == dtype else f"{name}: {step['dtype']}")
        dtype = step["dtype"]
    if chain["group"] is not None:
        words.append(chain["group"] if chain["dtype"] == dtype else f"{chain['group']}: {chain['dtype']}")
    return " → ".join(words)


def _sharing_lines(features: list[dict[str, Any]]) -> list[str]:
    """A line per prefix that several features share."""
    groups: dict[tuple[str, frozenset[str]], list[str]] = {}
    for feature in features:
        steps, sharers = feature["shared"]["steps"], feature["shared"]["features"]
        if sharers:
            op, names = feature["steps"][steps]["op"] or "the source", [feature["name"], *sharers]
            groups.setdefault((op, frozenset(names)), names)
    return [f"Shared up to {op}: {', '.join(names)}" for (op, _), names in groups.items()]


def _cost_lines(facts: dict[str, Any]) -> list[str]:
    costs = facts["ms_per_million_rows"]
    how = (
        f"CPU time of each chain alone on {facts['rows']:,} rows ({facts['chunks']} chunks), the faster of {OP_ROUNDS}"
    )
    lines = [f"Cost: {how} warm passes; values of a list are its elements."]
    if costs["pass"] is None:
        return [*lines, "Features that are not fitted have no cost: run feedline fit."]
    alone, together = costs["features_alone"], costs["pass"]
    total = f"{alone:,.0f} ms feature by feature, {together:,.0f} ms in one pass that shares steps"
    return [*lines, f"A million rows: {total}, {costs['encode']:,.0f} ms to encode."]


def print_ops(plan: Plan, *, as_json: bool) -> None:
    """Print how each feature is computed, and its cost. Raises SpecError for a plan of several sources."""
    print_facts(describe_ops(plan.source_for("plan --ops")), ops_table, as_json=as_json)
