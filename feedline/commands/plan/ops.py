"""Describe and measure each feature's chain of ops, for `feedline plan --ops`.

Runs in: the process of the command. The cost of a feature is the CPU time of its whole chain alone, on the first rows
that a run would deliver. A run computes shared steps once, so the pass over all features is measured as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import polars as pl
from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.blocks.compute import first_chunks
from feedline.loader.encoding.encode import encode
from feedline.planning.dedup.group_measure import job_of
from feedline.planning.plan import Plan
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.compile.describe import Chain, chains

_CHUNKS, _ROUNDS = 3, 2


def describe_ops(plan: Plan) -> dict[str, Any]:
    """Describe every feature's chain with kinds, types and cost, and the cost of all together, as plain values."""
    compiled = plan.features
    job = job_of(plan, compiled.features)
    frames = first_chunks(job, (plan.request(block, 0) for block in plan.schedule(0).blocks(0)), _CHUNKS)
    alone = [compile_features([feature], compiled.schema, compiled.artifacts) for feature in compiled.features]
    costs = [None if one.missing_fits else _cpu_seconds(one.apply, frames) for one in alone]
    total = sum(cost for cost in costs if cost is not None)
    rows = sum(frame.height for frame in frames)
    features = [
        {
            **_chain_facts(chain),
            "reads": list(one.parts),
            "shared": {"steps": chain.shared, "features": list(chain.sharers)},
            "values": (values := _value_count(one, frames)),
            "ms_per_million_values": None if cost is None else 1e9 * cost / max(values, 1),
            "share": None if cost is None else cost / total if total else 0.0,
        }
        for chain, one, cost in zip(
            chains(compiled.features, compiled.schema, compiled.artifacts), alone, costs, strict=True
        )
    ]
    whole, encoding = (None, None) if compiled.missing_fits else _pass_costs(plan, frames)
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


def _pass_costs(plan: Plan, frames: Sequence[pl.DataFrame]) -> tuple[float, float]:
    """CPU seconds of the pass over all features, and of encoding its result."""
    finished = [plan.features.apply(frame) for frame in frames]
    encoding = _cpu_seconds(lambda frame: encode(frame, plan.layout.schema), finished)
    return _cpu_seconds(plan.features.apply, frames), encoding


def _cpu_seconds(work: Callable[[pl.DataFrame], Any], frames: Sequence[pl.DataFrame]) -> float:
    """CPU seconds for all frames, each the minimum of the rounds after a warm-up."""
    seconds = 0.0
    for frame in frames:
        work(frame)
        rounds = []
        for _ in range(_ROUNDS):
            start = time.process_time()
            work(frame)
            rounds.append(time.process_time() - start)
        seconds += min(rounds)
    return seconds


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
    how = f"CPU time of each chain alone on {facts['rows']:,} rows ({facts['chunks']} chunks), the faster of {_ROUNDS}"
    lines = [f"Cost: {how} warm passes; values of a list are its elements."]
    if costs["pass"] is None:
        return [*lines, "Features that are not fitted have no cost: run feedline fit."]
    alone, together = costs["features_alone"], costs["pass"]
    total = f"{alone:,.0f} ms feature by feature, {together:,.0f} ms in one pass that shares steps"
    return [*lines, f"A million rows: {total}, {costs['encode']:,.0f} ms to encode."]
