"""Show each feature's chain of ops with its cost, for `feedline plan --ops`.

Runs in: the process of the command. `explain/costs/op_costs` measures.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.explain.costs.op_costs import OP_ROUNDS


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
