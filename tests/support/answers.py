"""Invented plan facts, and a feeder's answer with them."""

from __future__ import annotations

from typing import Any

from feedline.loader.encoding.layout import BatchSchema
from feedline.loader.ring.feeder_connection import Answer
from feedline.loader.wire.facts import FeederFacts, Hello, PlanFacts

FEEDER = FeederFacts(imports_s=1.5, log=None, dashboard=None, live_page=None, feeder=77)


def plan_facts(**changes: Any) -> PlanFacts:
    """Return invented plan facts."""
    names = {"snapshot": "s1", "plan": "p1", "features": "f1", "environment": "feedline 1, numpy 2"}
    numbers = {"seed": 5, "lanes": 3, "batch_size": 4, "steps": 10, "rows": 120, "rows_dropped": 2}
    numbers |= {"window_rows": 64, "window_blocks": 16}
    lists = {"bad_files": (), "nulls": (), "absent": (), "schema": BatchSchema(())}
    return PlanFacts(**{**names, **numbers, **lists, **changes})


def answer_with(**changes: Any) -> Answer:
    """Return a feeder's answer to a new start, with these plan facts."""
    return Answer.of(Hello(rank=0, world_size=1), plan_facts(**changes), FEEDER)
