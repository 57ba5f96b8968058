"""Compare the plan of a pipeline with that of another, for `feedline plan --against`.

Runs in: the process of the command. Both are planned on their tables as they are now.
"""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.markup import escape
from rich.table import Table

from feedline.commands.plan.report import describe, facts_table
from feedline.planning.source_plan import SourcePlan
from feedline.transforms.compile.compiled import CompiledFeatures

_SHOWN = 20  # names of features in a line
_DECIDES = {"snapshot": "the files", "plan": "which rows come when", "features": "what a row becomes"}


def describe_against(plan: SourcePlan, other: SourcePlan, *, world_size: int) -> dict[str, Any]:
    """How a plan differs from another: pairs of the other's number and the plan's, features by name, and for each
    fingerprint whether both have the same. A state of the other resumes in a run of the plan where `plan` is the same.
    """
    before, after = (_numbers(each, world_size) for each in (other, plan))
    fingerprints = {
        "snapshot": (other.snapshot.id, plan.snapshot.id),
        "plan": (other.fingerprint, plan.fingerprint),
        "features": (other.features_fingerprint, plan.features_fingerprint),
    }
    return {
        "against": other.spec.file,
        "numbers": {name: [before[name], after[name]] for name in before},
        "features": _features(other.features, plan.features),
        "fingerprints": {name: {"same": pair[0] == pair[1], "pair": pair} for name, pair in fingerprints.items()},
    }


def _numbers(plan: SourcePlan, world_size: int) -> dict[str, int]:
    facts = describe(plan, world_size=world_size)
    read = facts["stages"][-1]
    return {
        "rows of the table": facts["row_groups"]["rows"],
        "selected rows": facts["kept"]["rows"],
        "rows dropped per epoch": facts["rows_dropped"],
        "rows per rank and step": facts["rows_per_rank_and_step"],
        "steps": facts["steps"],
        "files read": read["files"],
        "row groups read": read["row_groups"],
        "columns read": facts["columns"]["read"],
        "bytes read per epoch": facts["bytes"]["read_per_epoch"],
    }


def _features(before: CompiledFeatures, after: CompiledFeatures) -> dict[str, Any]:
    """Names by what became of them. A feature has changed if its fingerprint has, which covers its definition, the
    types of its columns, the versions of its ops and what these have learnt."""
    old, new = (
        {feature.name: features.alone(index)[0] for index, feature in enumerate(features.features)}
        for features in (before, after)
    )
    common = [name for name in old if name in new]
    return {
        "removed": [name for name in old if name not in new],
        "added": [name for name in new if name not in old],
        "changed": [name for name in common if old[name] != new[name]],
        "same": sum(old[name] == new[name] for name in common),
        "reordered": common != [name for name in new if name in old],
    }


def against_table(facts: dict[str, Any]) -> Group:
    """Render the facts: numbers side by side, then features and fingerprints."""
    numbers = Table(title=escape(f"against {facts['against']}"), title_justify="left")
    numbers.add_column("")
    for title in ("there", "here", "here / there"):
        numbers.add_column(title, justify="right", no_wrap=True)
    for name, (old, new) in facts["numbers"].items():
        ratio = "=" if old == new else f"{new / old:.3g}" if old else "new"
        numbers.add_row(name, f"{old:,}", f"{new:,}", ratio)
    features = facts["features"]
    lines = [(name, escape(_names(features[name]))) for name in ("removed", "added", "changed") if features[name]]
    lines.append(("same", f"{features['same']:,} features{', in another order' if features['reordered'] else ''}"))
    shown = [(name, _fingerprints(name, each)) for name, each in facts["fingerprints"].items()]
    return Group(numbers, facts_table("features", lines), facts_table("fingerprints", shown))


def _names(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more:,} more" if more > 0 else "")


def _fingerprints(name: str, each: dict[str, Any]) -> str:
    there, here = (text[:12] for text in each["pair"])
    return f"the same, {here}" if each["same"] else f"{there} there, {here} here: {_DECIDES[name]} differs"
