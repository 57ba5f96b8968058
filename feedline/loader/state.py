"""What does a state say, and is it one? Plain numbers and texts, the same for every rank.

Runs in: the trainer, the feeder, the CLI. Pure; no torch. Also what follows from a plan's facts about an epoch, for one
epoch may be only the rest of one (`rest`, after a rebase), and what a rebase changed, as text.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.errors import StateError

STATE_VERSION = 1
STATE_KEYS = ("version", "snapshot", "plan", "features", "epoch", "step", "seed", "lanes", "batch_size")
# What a state may say besides: older ones do not.
ENVIRONMENT_KEY = "environment"
_FILES = {"unchanged": "as they were", "rewritten": "rewritten", "gone": "gone", "new": "new"}


def checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state, its keys alone. Raises StateError for what is none."""
    missing = [key for key in STATE_KEYS if key not in state]
    if missing:
        raise StateError(f"the state lacks {', '.join(missing)}: got {', '.join(sorted(state)) or 'nothing'}")
    if state["version"] != STATE_VERSION:
        raise StateError(f"the state's version is another: got {state['version']!r}, expected {STATE_VERSION}")
    for key in ("epoch", "step", "lanes", "batch_size", "seed"):
        if isinstance(state[key], bool) or not isinstance(state[key], int) or state[key] < 0:
            raise StateError(f"the state's {key} is no number from 0: got {state[key]!r}")
    for key in ("snapshot", "plan", "features"):
        if not isinstance(state[key], str):
            raise StateError(f"the state's {key} is no text: got {state[key]!r}")
    environment = {ENVIRONMENT_KEY: state[ENVIRONMENT_KEY]} if ENVIRONMENT_KEY in state else {}
    if not all(isinstance(value, str) for value in environment.values()):
        raise StateError(f"the state's environment is no text: got {state[ENVIRONMENT_KEY]!r}")
    return {**{key: state[key] for key in STATE_KEYS}, **environment}


def read_state(path: Path) -> dict[str, Any]:
    """A state that was saved as JSON. Raises StateError for a file that holds none."""
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise StateError(
            f"{path} holds no state as JSON: {error}. Save one with json.dump(dataset.state_dict(), file); one that "
            f'torch saved is rebased by dataset.load_state_dict(state, snapshot="rebase")'
        ) from None
    if not isinstance(found, dict):
        raise StateError(f"{path} holds no state: got {type(found).__name__}, expected a mapping")
    return checked_state(found)


def state_of(facts: Mapping[str, Any], epoch: int, step: int) -> dict[str, Any]:
    """The state before a step; after an epoch's last step it is the next epoch's first."""
    if step >= steps_of(facts, epoch):
        epoch, step = epoch + 1, 0
    named = {key: facts[key] for key in ("snapshot", "plan", "features", "seed", "lanes", "batch_size")}
    return {"version": STATE_VERSION, **named, "epoch": epoch, "step": step, ENVIRONMENT_KEY: facts[ENVIRONMENT_KEY]}


def environment_warning(state: Mapping[str, Any], facts: Mapping[str, Any]) -> str | None:
    """What to say where features were computed elsewhere before: by other versions, or on other instructions."""
    before, now = (set(str(known.get(ENVIRONMENT_KEY, "")).split(", ")) for known in (state, facts))
    if ENVIRONMENT_KEY not in state or before == now:
        return None
    return (
        f"the state was saved in another environment: got {', '.join(sorted(before - now))}, here is "
        f"{', '.join(sorted(now - before))}. Rows and their order are the same, floats may differ in their last bits; "
        "see `cluster.cpu`"
    )


def rebased_state(facts: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
    """What becomes of a state in a rebase with these facts: itself, where the table is as it was."""
    if facts["snapshot"] == state["snapshot"]:
        return dict(state)
    environment = {ENVIRONMENT_KEY: state[ENVIRONMENT_KEY]} if ENVIRONMENT_KEY in state else {}
    rest = state_of({**facts, **environment}, facts["rest"]["epoch"], facts["rest"]["first_step"])
    return rest if environment else {key: rest[key] for key in STATE_KEYS}  # whoever plans a rebase computes nothing


def steps_of(facts: Mapping[str, Any], epoch: int) -> int:
    """Steps of an epoch, the same for every rank; of one that was rebased, those before the rebase included."""
    rest = facts.get("rest")
    return int(rest["steps"] if rest is not None and rest["epoch"] == epoch else facts["steps"])


def first_step_of(facts: Mapping[str, Any], epoch: int) -> int:
    """The first step that an epoch can deliver: that of the rebase, in the epoch that was rebased."""
    rest = facts.get("rest")
    return int(rest["first_step"]) if rest is not None and rest["epoch"] == epoch else 0


def told(rest: Mapping[str, Any]) -> str:
    """What a rebase found, for people: one line per kind of fact."""
    changes = rest["changes"]
    files, rows = changes["files"], changes["rows"]
    counted = ", ".join(f"{files[key]:,} {name}" for key, name in _FILES.items())
    place = f"epoch {changes['epoch']} before step {changes['step']:,}"
    lines = [
        f"snapshot {changes['from'][:12]} -> {changes['to'][:12]}: files {counted}",
        f"delivered: {rows['delivered']:,} rows of {place}; {rows['delivered_gone']:,} of them are gone since",
        f"changed: {rows['deleted']:,} rows deleted, {rows['added']:,} added (net, per partition)",
    ]
    left = rest["steps"] - rest["first_step"]
    lines.append(f"left: {rest['rows']:,} rows in {left:,} steps, {rest['rows_dropped']:,} rows dropped")
    return "\n".join(lines)
