"""Record which generations of histories the features of a plan read, and explain a state of other ones.

Runs in: the feeder of each rank, the CLI, `Pipeline`, where a plan is resolved. A state has only the fingerprint of the
features, of which the events are a part; `work_dir` has, by that fingerprint, the ids of the snapshots of the events.
"""

from __future__ import annotations

import contextlib
import json

from feedline.errors import FeedlineError
from feedline.planning.plan import Plan
from feedline.warehouse.snapshot.snapshot import Snapshot
from feedline.warehouse.storage import content_store
from feedline.warehouse.storage.locations import absolute, locate, redact

_DIGITS = 12  # of a generation's id that are shown


def record_generations(plan: Plan) -> None:
    """Write the generations that a plan reads, where `work_dir` can be written, unless they are recorded."""
    generations = _generations(plan)
    if not generations or recorded_generations(plan.spec.work_dir, plan.features_fingerprint) == generations:
        return
    content = json.dumps({"generations": generations}).encode()
    with contextlib.suppress(FeedlineError, OSError):
        content_store.put(locate(absolute(plan.spec.work_dir)), _name(plan.features_fingerprint), [content])


def explain_generations(plan: Plan, features: str) -> str | None:
    """What to do about a state of features of another fingerprint, whose events are, or may be, other ones; None where
    a plan reads no history, or the same generations."""
    generations, earlier = _generations(plan), recorded_generations(plan.spec.work_dir, features)
    if not generations or earlier == generations:
        return None
    lines = []
    for name, generation in generations.items():
        read = f"history {name} reads generation {generation[:_DIGITS]} of {_table(plan, name)}"
        if earlier is None:
            lines.append(read)
        elif earlier.get(name) != generation:
            before = earlier[name][:_DIGITS] if name in earlier else "no such history"
            lines.append(f"{read}, the state's run read {before}")
    if earlier is None:
        lines[0] = f"Features, or the events of histories, may have changed: {lines[0]}"
    elif not lines:
        return None
    remedy = 'Pass features="changed" to load_state_dict to keep the position with the events as they are, or restore'
    return f"{'; '.join(lines)}. {remedy} those that the run read"


def _generations(plan: Plan) -> dict[str, str]:
    return {history.columns.name: history.events for each in plan.sources for history in each.snapshot.histories}


def _table(plan: Plan, name: str) -> str:
    """The table of a history."""
    histories = (history for each in plan.sources for history in each.snapshot.histories)
    history = next(history for history in histories if history.columns.name == name)
    return redact(Snapshot.load(history.work_dir, history.events).uri)


def recorded_generations(work_dir: str, features: str | None) -> dict[str, str] | None:
    """The generations that were recorded for features; None where there are none."""
    if features is None:
        return None
    try:
        content = json.loads(bytes(content_store.get(locate(absolute(work_dir)), _name(features))))
        return {str(name): str(generation) for name, generation in content["generations"].items()}
    except (FileNotFoundError, FeedlineError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _name(features: str) -> str:
    return f"features/{features}-histories.json"
