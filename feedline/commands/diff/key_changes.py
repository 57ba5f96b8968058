"""Compare two pipelines key by key, and say what each key decides.

Runs in: the process of the command. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal, TypeAlias

from feedline.spec import PipelineSpec
from feedline.warehouse.storage.locations import redact

Decides: TypeAlias = Literal["plan", "features", "snapshot", "artifacts", "run"]

# What keys decide, the longest that fits first: which rows come when, what a row becomes, which files and types there
# are, which artifacts features use, and (all others) only how a job runs.
_DECIDES: dict[str, Decides] = {
    **dict.fromkeys(("sources", "order of sources", "mix", "batch", "shuffle", "lanes"), "plan"),
    **dict.fromkeys((f"source.{key}" for key in ("where", "sample", "exclude", "follow", "split_rows")), "plan"),
    "source": "snapshot",
    **dict.fromkeys((f"source.{key}" for key in ("decoder", "row_key", "max_bad_files", "max_bad_rows")), "run"),
    **dict.fromkeys(("features", "dedup", "on_nonfinite"), "features"),
    **dict.fromkeys(("artifacts", "fit", "name", "work_dir"), "artifacts"),
}
# Features are compared one by one, beside this.
_APART = ("features",)


def describe_keys(a: PipelineSpec, b: PipelineSpec) -> list[dict[str, Any]]:
    """The keys in which two pipelines differ, features apart, each with both values (None: not stated and without a
    default) and what it decides. Those of a pipeline with several sources are those of all of them, by name."""
    before, after = (dict(_flat(_by_source_name(json.loads(spec.whole.canonical())))) for spec in (a, b))
    return [
        {"key": key, "a": _shown(before.get(key)), "b": _shown(after.get(key)), "decides": decides(key)}
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key) and key.split(".")[0] not in _APART
    ]


def decides(key: str) -> Decides:
    """What a key decides, by its dotted path."""
    words = key.split(".")
    if words[0] == "sources" and words[-1] not in ("weight", "rows_per_batch"):
        words = ["source", *words[2:]]
    names = (".".join(words[:length]) for length in range(len(words), 0, -1))
    return next((_DECIDES[name] for name in names if name in _DECIDES), "run")


def _by_source_name(document: dict[str, Any]) -> dict[str, Any]:
    """The document with a mapping instead of a list of sources, and without their features."""
    sources = document.get("sources")
    if sources is None:
        return document
    named = {each["name"]: {key: each[key] for key in each.keys() - {"name", "features"}} for each in sources}
    return {**document, "sources": named, "order of sources": list(named)}


def plan_keys(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """The keys of pipeline.yaml behind the facts of two plans' fingerprints that differ."""
    before, after = (dict(_flat(facts)) for facts in (a, b))
    names = [name for name in dict.fromkeys([*before, *after]) if before.get(name) != after.get(name)]
    return list(dict.fromkeys(_KEYS.get(name, _KEYS.get(name.split(".")[0], name)) for name in names))


# The keys that decide the facts of a fingerprint, where these have another name.
_KEYS = {
    "snapshot": "the snapshot",
    "where": "source.where",
    "split_rows": "source.split_rows",
    "sample": "source.sample",
    "exclude": "source.exclude",
    "follow": "source.follow.epoch",
    "batch_size": "batch.size",
    "tail": "batch.tail",
    "balance": "batch.balance",
    "buckets": "batch.buckets",
    "weights": "shuffle.weights",
    "shuffle.window_blocks": "shuffle.window_rows",
    "version": "shuffle",
    "share": "sources",
    "salt": "sources",
}


def _flat(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of nested mappings, by dotted path."""
    if isinstance(value, Mapping) and value:
        for key, each in value.items():
            yield from _flat(each, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, value


def _shown(value: Any) -> Any:
    """A value without the password of a URI."""
    if isinstance(value, list):
        return [_shown(each) for each in value]
    return redact(value) if isinstance(value, str) else value
