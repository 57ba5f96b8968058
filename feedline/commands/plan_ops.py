"""Describe and measure each feature's chain of ops, for `feedline plan --ops`.

Runs in: the CLI. Costs are measured on the first rows that a run would deliver: CPU time of each feature's whole chain
alone. A run computes once what several features share, so the whole pass is measured as well.
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
from feedline.planning.plan import Plan
from feedline.transforms.compile.compiled import CompiledFeatures, compile_features
from feedline.transforms.compile.describe import Chain, chains

_CHUNKS, _ROUNDS = 3, 2
_SHARERS = 3  # that are named


def describe_ops(plan: Plan) -> dict[str, Any]:
    """Every feature's chain with kinds, types and cost, and the cost of all together, as plain values."""
    compiled = plan.features
    frames = first_chunks(plan.job, (plan.request(block, 0) for block in plan.schedule(0).blocks(0)), _CHUNKS)
    alone = [compile_features([feature], compiled.schema, compiled.artifacts) for feature in compiled.features]
    costs = [None if one.missing_fits else _seconds(one.apply, frames) for one in alone]
    total = sum(cost for cost in costs if cost is not None)
    rows = sum(frame.height for frame in frames)
    features = [
        {
            **_described(chain),
            "reads": list(one.parts),
            "shared": {"steps": chain.shared, "features": list(chain.sharers)},
            "values": (values := _values(one, frames)),
            "ms_per_million_values": None if cost is None else 1e9 * cost / max(values, 1),
            "share": None if cost is None else cost / total if total else 0.0,
        }
        for chain, one, cost in zip(
            chains(compiled.features, compiled.schema, compiled.artifacts), alone, costs, strict=True
        )
    ]
    whole = None if compiled.missing_fits else _whole(plan, frames)
    return {
        "table": plan.spec.source.table,
        "rows": rows,
        "chunks": len(frames),
        "features": features,
        "ms_per_million_rows": {
            "features_alone": 1e9 * total / max(rows, 1),
            "pass": None if whole is None else 1e9 * whole[0] / max(rows, 1),
            "encode": None if whole is None else 1e9 * whole[1] / max(rows, 1),
        },
    }


def _described(chain: Chain) -> dict[str, Any]:
    return {
        "name": chain.name,
        "group": chain.group,
        "chain": chain.text(),
        "source": chain.source,
        "inputs": [_described(given) for given in chain.inputs],
        "steps": [{"op": step.op, "kind": step.kind, "dtype": step.dtype, "code": step.code} for step in chain.steps],
        "dtype": chain.dtype,
    }


def _values(features: CompiledFeatures, frames: Sequence[pl.DataFrame]) -> int:
    """What the features read: rows, and of a list its elements."""
    count = 0
    for frame in frames:
        for name in features.parts:
            series = frame.get_column(name) if name in frame.columns else None
            listed = series is not None and isinstance(series.dtype, pl.List)
            count += int(series.list.len().sum()) if series is not None and listed else frame.height
    return count


def _whole(plan: Plan, frames: Sequence[pl.DataFrame]) -> tuple[float, float]:
    """CPU seconds of the pass over all features, and of encoding what it made."""
    finished = [plan.features.apply(frame) for frame in frames]
    encoding = _seconds(lambda frame: encode(frame, plan.layout.schema), finished)
    return _seconds(plan.features.apply, frames), encoding


def _seconds(work: Callable[[pl.DataFrame], Any], frames: Sequence[pl.DataFrame]) -> float:
    """CPU seconds for all frames, each in its fastest round after a first one."""
    seconds = 0.0
    for frame in frames:
        work(frame)
        found = []
        for _ in range(_ROUNDS):
            start = time.process_time()
            work(frame)
            found.append(time.process_time() - start)
        seconds += min(found)
    return seconds


def ops_table(facts: dict[str, Any]) -> Group:
    """The facts for people: a line per feature, in the file's order, and how it was measured."""
    table = Table(title=f"{facts['table']}: what becomes of each feature", title_justify="left")
    table.add_column("feature", overflow="fold")
    table.add_column("chain", overflow="fold", ratio=1)
    table.add_column("shared", overflow="fold")
    table.add_column("ms per\nM values", justify="right")
    table.add_column("share", justify="right")
    for feature in facts["features"]:
        cost, share = feature["ms_per_million_values"], feature["share"]
        table.add_row(
            escape(feature["name"]),
            escape(feature["chain"]),
            escape(_shared(feature)),
            "not fitted" if cost is None else f"{cost:,.2f}",
            "" if share is None else f"{share:.1%}",
        )
    return Group(table, _measured(facts))


def _shared(feature: dict[str, Any]) -> str:
    steps, names = feature["shared"]["steps"], feature["shared"]["features"]
    if not names:
        return ""
    rest = f" and {len(names) - _SHARERS} more" if len(names) > _SHARERS else ""
    upto = feature["steps"][steps]["op"] or "the source"
    return f"up to {upto} with {', '.join(names[:_SHARERS])}{rest}"


def _measured(facts: dict[str, Any]) -> str:
    costs = facts["ms_per_million_rows"]
    how = (
        f"CPU time on {facts['rows']:,} rows ({facts['chunks']} chunks) that a run delivers, of each feature's chain "
        f"alone, the faster of {_ROUNDS} warm passes; a list's values are its elements."
    )
    if costs["pass"] is None:
        return f"{how}\nWhat is not fitted yet has no cost: fit it with feedline fit."
    return (
        f"{how}\nA million rows take {costs['features_alone']:,.0f} ms feature by feature, {costs['pass']:,.0f} ms in "
        f"one pass that computes what they share once, and {costs['encode']:,.0f} ms to encode."
    )
