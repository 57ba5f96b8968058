"""Render how two plans differ, for people.

Runs in: the process of the command.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table

from feedline.commands.diff.feature_changes import change_text
from feedline.commands.plan.report import facts_table

_DECIDES = {
    "plan": "which rows come when",
    "features": "what a row becomes",
    "snapshot": "which files there are",
    "artifacts": "which artifacts there are",
    "run": "how the job runs",
}
_LABELS = {
    "selected": "selected rows",
    "of_the_table": "rows of the table",
    "per_epoch": "rows per epoch",
    "dropped": "rows dropped",
    "files": "files read",
    "row_groups": "row groups read",
    "columns": "columns read",
}
_SHOWN = 20  # features, and keys, that are named


def diff_table(facts: dict[str, Any]) -> Group:
    """Render the facts: numbers side by side, then features, keys, fingerprints, and whether a run continues."""
    a, b = (escape(each["overridden"]) for each in facts["pipelines"])
    parts: list[RenderableType] = [_numbers_table(facts, f"A: {a}", f"B: {b}")]
    if (features := list(_feature_rows(facts["features"]))) or facts["features"]["same"]:
        parts.append(facts_table("features", features or [("all", f"{facts['features']['same']:,} as they were")]))
    if facts["keys"]:
        parts.append(_keys_table(facts["keys"]))
    parts.append(facts_table("fingerprints", _fingerprint_rows(facts)))
    parts.append(facts_table("a state of A, in a run of B", _continuation_rows(facts["continue"])))
    if facts["cost"]["features"]:
        parts.append(_cost_table(facts["cost"]))
    return Group(*parts)


def _numbers_table(facts: dict[str, Any], *names: str) -> Table:
    table = Table(title="\n".join(names), title_justify="left")
    table.add_column("")
    for title in ("A", "B", "B / A"):
        table.add_column(title, justify="right", no_wrap=True)
    for section in ("rows", "read"):
        for key, (a, b) in facts[section].items():
            if a or b or section == "rows":
                ratio = "=" if a == b else f"{b / a:.3g}" if a else "new"
                table.add_row(_LABELS.get(key, key.replace("_", " ")), f"{a:,}", f"{b:,}", ratio)
    return table


def _feature_rows(features: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for key in ("removed", "added"):
        if features[key]:
            yield key, escape(_names(features[key]))
    for each in features["changed"][:_SHOWN]:
        yield escape(each["name"]), "\n".join(escape(change_text(change)) for change in each["how"])
    if (more := len(features["changed"]) - _SHOWN) > 0:
        yield "…", f"{more:,} more changed"
    if features["reordered"]:
        yield "order", "features of both come in another order, as do the columns of a batch's tensors"


def _keys_table(keys: list[dict[str, Any]]) -> Table:
    table = Table(title="keys that differ", title_justify="left")
    for title in ("key", "A", "B", "decides"):
        table.add_column(title, overflow="fold")
    for each in keys[:_SHOWN]:
        table.add_row(escape(each["key"]), *(escape(_value(each[side])) for side in "ab"), _DECIDES[each["decides"]])
    if len(keys) > _SHOWN:
        table.add_row("…", f"{len(keys) - _SHOWN:,} more", "", "")
    return table


def _value(value: Any) -> str:
    return "none" if value is None else str(value)


def _fingerprint_rows(facts: dict[str, Any]) -> Iterator[tuple[str, str]]:
    stated = {each["key"] for each in facts["keys"]}
    for name, each in facts["fingerprints"].items():
        if each["same"]:
            yield name, f"the same, {each['a'][:12]}"
            continue
        by = _names(each["by"]) or "the table has changed"
        if name == "plan" and "shuffle.window_rows" in each["by"] and "shuffle.window_rows" not in stated:
            by += " (by default, wide rows make it smaller)"
        files = each.get("files")
        counts = "" if files is None else f" ({files['same']:,} files as they were, {files['only_a']:,} only in A, "
        counts += "" if files is None else f"{files['only_b']:,} only in B)"
        yield name, escape(f"{each['a'][:12]} and {each['b'][:12]}, by {by}{counts}")
    if not all(each["is_fitted"] for each in facts["pipelines"]):
        yield "fits", "some are missing: fingerprints of features are those before them. Run feedline fit"


def _continuation_rows(facts: dict[str, str]) -> Iterator[tuple[str, str]]:
    for name in ("resume", "rebase"):
        why = facts[f"{name}_why"]
        yield name, escape(f"{facts[name]}{': ' if why else ''}{why}")


def _cost_table(cost: dict[str, Any]) -> Table:
    table = Table(title="what differing features take per million rows", title_justify="left")
    table.add_column("feature", overflow="fold")
    measured = cost["is_measured"]
    for title in ("A bytes", "B bytes", *(("A CPU-s", "B CPU-s") if measured else ())):
        table.add_column(title, justify="right", no_wrap=True)
    a, b = cost["total"]
    for each in [*cost["features"][:_SHOWN], {"name": "all of them", "a": a, "b": b}]:
        cells = [_cell(each[side], key) for key in ("bytes", *(["cpu_s"] if measured else [])) for side in "ab"]
        table.add_row(escape(each["name"]), *cells)
    return table


def _cell(cost: dict[str, Any] | None, key: str) -> str:
    value = None if cost is None else cost[key]
    return "" if value is None else f"{value:,.0f}" if key == "bytes" else f"{value:.3g}"


def _names(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
