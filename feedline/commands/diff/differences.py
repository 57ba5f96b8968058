"""Describe how two plans differ, as plain values: the facts of `feedline diff --json`.

Runs in: the process of the command.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from feedline.commands.diff.continuation import describe_continuation
from feedline.commands.diff.cost_per_feature import cost_per_feature
from feedline.commands.diff.feature_changes import describe_features, differing_features
from feedline.commands.diff.key_changes import describe_keys, plan_keys
from feedline.commands.plan.report import describe
from feedline.planning.plan import Plan, fingerprint_facts
from feedline.warehouse.storage.file_identity import known_files
from feedline.warehouse.storage.locations import redact

# The stages of pruning in the facts of `feedline plan`.
_PRUNED = ("pruned_by_partition", "pruned_by_statistics", "pruned_by_bloom_filters", "counted")


def describe_differences(a: Plan, b: Plan, *, world_size: int, with_cost: bool) -> dict[str, Any]:
    """All that differs between two plans, and whether a run of `a` continues with `b`. Numbers are pairs of A's and
    B's. with_cost: measure what differing features take of the CPU."""
    facts = [describe(plan, world_size=world_size) for plan in (a, b)]
    features = describe_features(a.features, b.features)
    keys = describe_keys(a.spec, b.spec)
    return {
        "pipelines": [_pipeline_facts(plan) for plan in (a, b)],
        "rows": _pairs(*map(_row_facts, facts)),
        "read": _pairs(*map(_read_facts, facts)),
        "features": features,
        "keys": keys,
        "fingerprints": _fingerprint_pairs(a, b, keys, features),
        "continue": asdict(describe_continuation(a, b)),
        "cost": _cost_facts(a, b, differing_features(features), with_cost=with_cost),
    }


def _pipeline_facts(plan: Plan) -> dict[str, Any]:
    tables = plan.spec.source.table
    return {
        "file": plan.spec.file,
        "overridden": plan.spec.command("diff").removeprefix("feedline diff "),
        "name": plan.spec.name,
        "table": [redact(table) for table in ([tables] if isinstance(tables, str) else tables)],
        "is_fitted": plan.is_fitted,
    }


def _pairs(a: Mapping[str, Any], b: Mapping[str, Any]) -> dict[str, list[Any]]:
    return {key: [a[key], b[key]] for key in a}


def _row_facts(facts: dict[str, Any]) -> dict[str, Any]:
    return {
        "selected": facts["kept"]["rows"],
        "of_the_table": facts["row_groups"]["rows"],
        "per_epoch": facts["rows"] - facts["rows_dropped"],
        "dropped": facts["rows_dropped"],
        "steps": facts["steps"],
        "rows_per_rank_and_step": facts["rows_per_rank_and_step"],
    }


def _read_facts(facts: dict[str, Any]) -> dict[str, Any]:
    last = facts["stages"][-1]
    return {
        "files": last["files"],
        "row_groups": last["row_groups"],
        "columns": facts["columns"]["read"],
        "bytes_per_epoch": facts["bytes"]["read_per_epoch"],
        "files_of_the_table": facts["files"],
        "row_groups_of_the_table": facts["row_groups"]["row_groups"],
        **{f"row_groups_{name}": facts[name]["row_groups"] for name in _PRUNED},
    }


def _fingerprint_pairs(
    a: Plan, b: Plan, keys: list[dict[str, Any]], features: dict[str, Any]
) -> dict[str, dict[str, Any]]:
    """The three fingerprints, whether they are the same, and what decides that they are not."""
    snapshots, plans = (a.snapshot.id, b.snapshot.id), (a.fingerprint, b.fingerprint)
    values = (a.features_fingerprint, b.features_fingerprint)
    why = {
        "snapshot": [each["key"] for each in keys if each["decides"] == "snapshot"],
        "plan": plan_keys(fingerprint_facts(a), fingerprint_facts(b)),
        "features": differing_features(features) or (["the order of features"] if features["reordered"] else []),
    }
    found = {}
    for name, pair in (("snapshot", snapshots), ("plan", plans), ("features", values)):
        is_same = pair[0] == pair[1]
        found[name] = {"a": pair[0], "b": pair[1], "same": is_same, "by": [] if is_same else why[name]}
    if snapshots[0] != snapshots[1]:
        found["snapshot"] |= {"files": _file_facts(a, b)}
    return found


def _file_facts(a: Plan, b: Plan) -> dict[str, int]:
    """How many files both snapshots have as they are, only A's, and only B's."""
    before, after = a.snapshot.files, b.snapshot.files
    same = int(known_files(after, before).same.sum())
    return {"same": same, "only_a": len(before) - same, "only_b": len(after) - same}


def _cost_facts(a: Plan, b: Plan, names: list[str], *, with_cost: bool) -> dict[str, Any]:
    """Per feature that differs: compressed bytes and, if measured, CPU seconds per million rows, and their sums."""
    sides = [cost_per_feature(plan, names, with_cpu=with_cost) for plan in (a, b)]
    rows = [{"name": name, "a": sides[0].get(name), "b": sides[1].get(name)} for name in names]
    totals = [{key: _sum(side, key) for key in ("bytes", "cpu_s")} for side in sides]
    return {"per": "million rows", "is_measured": with_cost, "features": rows, "total": totals}


def _sum(side: Mapping[str, Mapping[str, float | None]], key: str) -> float | None:
    values = [each[key] for each in side.values()]
    return None if None in values else sum(value for value in values if value is not None)
