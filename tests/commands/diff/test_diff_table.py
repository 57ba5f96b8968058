"""People see the numbers, the changes, what they decide, and whether a run continues."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from feedline.commands.diff.diff_table import diff_table

FACTS: dict[str, Any] = {
    "pipelines": [
        {"file": "a.yaml", "overridden": "a.yaml", "name": "x", "table": ["t"], "is_fitted": True},
        {"file": "a.yaml", "overridden": "a.yaml --set batch.size=8", "name": "x", "table": ["t"], "is_fitted": False},
    ],
    "rows": {"selected": [1000, 1500], "dropped": [0, 3]},
    "read": {"files": [4, 4], "row_groups_pruned_by_bloom_filters": [0, 0]},
    "features": {
        "added": [f"f{index}" for index in range(25)],
        "removed": [],
        "changed": [{"name": "x[0]", "how": [{"what": "parameters of first_x", "a": 3, "b": 5}]}],
        "same": 3,
        "reordered": True,
    },
    "keys": [{"key": "batch.size", "a": 4, "b": 8, "decides": "plan"}],
    "fingerprints": {
        "snapshot": {"a": "s" * 32, "b": "s" * 32, "same": True, "by": []},
        "plan": {"a": "p" * 32, "b": "q" * 32, "same": False, "by": ["batch.size", "shuffle.window_rows"]},
        "features": {"a": "f" * 32, "b": "g" * 32, "same": False, "by": ["x[0]"]},
    },
    "continue": {"resume": "refused", "rebase": "refused", "resume_why": "by batch.size", "rebase_why": ""},
    "cost": {
        "per": "million rows",
        "is_measured": True,
        "features": [{"name": "x[0]", "a": {"bytes": 1e6, "cpu_s": 0.5}, "b": None}],
        "total": [{"bytes": 1e6, "cpu_s": 0.5}, {"bytes": 0.0, "cpu_s": 0}],
    },
}


def rendered(facts: dict[str, Any]) -> str:
    console = Console(width=160)
    with console.capture() as capture:
        console.print(diff_table(facts))
    return " ".join(capture.get().split())


def test_everything_is_shown():
    text = rendered(FACTS)
    for words in (
        "A: a.yaml B: a.yaml --set batch.size=8",
        "selected rows │ 1,000 │ 1,500 │ 1.5 │",
        "rows dropped │ 0 │ 3 │ new │",
        "files read │ 4 │ 4 │ = │",
        "f19 and 5 more",
        "x[0] │ parameters of first_x: 3 → 5",
        "another order",
        "batch.size │ 4 │ 8 │ which rows come when",
        "snapshot │ the same, ssssssssssss",
        "by batch.size, shuffle.window_rows (by default, wide rows make it smaller)",
        "Run feedline fit",
        "resume │ refused: by batch.size",
        "x[0] │ 1,000,000 │ │ 0.5 │ │",
    ):
        assert words in text, words
    assert "bloom" not in text, "of what neither has"


def test_equal_pipelines_are_said_to_be_equal():
    features = {"added": [], "removed": [], "changed": [], "same": 3, "reordered": False}
    same = {name: {**each, "b": each["a"], "same": True} for name, each in FACTS["fingerprints"].items()}
    facts = {**FACTS, "features": features, "keys": [], "fingerprints": same, "cost": {**FACTS["cost"], "features": []}}
    text = rendered(facts)
    assert "all │ 3 as they were" in text
    assert "keys that differ" not in text
    assert "million rows" not in text


def test_a_changed_table_decides_where_no_key_does():
    snapshot = {"a": "s" * 32, "b": "t" * 32, "same": False, "by": []}
    changed = {**snapshot, "files": {"same": 1200, "only_a": 0, "only_b": 3}}
    text = rendered({**FACTS, "fingerprints": {**FACTS["fingerprints"], "snapshot": changed}})
    assert "by the table has changed (1,200 files as they were, 0 only in A, 3 only in B)" in text
