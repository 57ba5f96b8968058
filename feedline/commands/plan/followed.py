"""What has landed in a followed table, for `feedline plan`: as plain values and as text.

Runs in: the process of the command.
"""

from __future__ import annotations

from typing import Any

from feedline.planning.table_snapshot import landing_of
from feedline.spec import PipelineSpec
from feedline.warehouse.snapshot.landed_files import plural


def followed_facts(spec: PipelineSpec) -> dict[str, Any]:
    """How the table is followed, and which of its partitions have landed; empty for another table."""
    follow = spec.source.follow
    if follow is None:
        return {}
    landing = landing_of(spec)
    keys = {"landed": follow.landed, "until": follow.until, "epoch": follow.epoch}
    return {"follow": {**keys, "partitions": landing.partitions, "not_landed": dict(landing.left_out)}}


def followed_text(facts: dict[str, Any]) -> str:
    """The same as lines."""
    reads = {"all": "all that has landed", "new": "what no epoch has read"}[facts["epoch"]]
    until = "" if facts["until"] is None else f", until {facts['until']}"
    count = facts["partitions"]
    lines = [f"by {facts['landed']}{until}; an epoch reads {reads}", f"{count:,} {plural('partition', count)} landed"]
    return "\n".join([*lines, *(f"not landed: {name} {reason}" for name, reason in facts["not_landed"].items())])
