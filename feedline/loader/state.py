"""Create, check and continue the state of a training: plain integers and strings, the same on every rank.

Runs in: the trainer, the feeder, the CLI. Pure; no torch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from feedline.config.sections import MAX_INT
from feedline.errors import StateError
from feedline.loader.wire.facts import PlanFacts

STATE_VERSION = 2
# Of the function from a plan's values to the rows of each step, and part of every plan's fingerprint: raised by any
# change that moves a row to another step or position.
PLAN_VERSION = 4
# What the states of all ranks have in common.
STATE_KEYS = (
    *("version", "plan_version", "snapshot", "plan", "features", "epoch", "step"),
    *("seed", "lanes", "batch_size", "window_rows", "window_blocks"),
)
_ENVIRONMENT_KEY = "environment"
_INTEGERS = ("epoch", "step", "lanes", "batch_size", "seed", "window_rows", "window_blocks")


def checked_state(state: Mapping[str, Any]) -> dict[str, Any]:
    """The state with its own keys only. Raises StateError if it is not a valid state."""
    for key, supported in (("version", STATE_VERSION), ("plan_version", PLAN_VERSION)):
        if key in state and state[key] != supported:
            raise StateError(f"the state's {key} is not supported: got {state[key]!r}, expected {supported}")
    missing = [key for key in (*STATE_KEYS, _ENVIRONMENT_KEY) if key not in state]
    if missing:
        raise StateError(f"the state lacks {', '.join(missing)}: got {', '.join(sorted(state)) or 'nothing'}")
    for key in _INTEGERS:
        if isinstance(state[key], bool) or not isinstance(state[key], int) or state[key] < 0:
            raise StateError(f"the state's {key} must be a non-negative integer: got {state[key]!r}")
        if state[key] > MAX_INT:
            raise StateError(f"the state's {key} is too large: got {state[key]}, expected at most {MAX_INT} (64 bits)")
    for key in ("snapshot", "plan", "features", _ENVIRONMENT_KEY):
        if not isinstance(state[key], str):
            raise StateError(f"the state's {key} must be a string: got {state[key]!r}")
    return {key: state[key] for key in (*STATE_KEYS, _ENVIRONMENT_KEY)}


def refuse_step_beyond(state: Mapping[str, Any], facts: PlanFacts | None) -> None:
    """Raise StateError for a step that the state's epoch does not have: such a state is not one that was saved. facts:
    of the state's plan (None: of another one, which says nothing of the step)."""
    if facts is not None and state["step"] > (steps := facts.steps_of(state["epoch"])):
        raise StateError(
            f"the state's step is beyond its epoch: got step {state['step']} of epoch {state['epoch']}, expected at "
            f"most {steps}, its number of steps. Load a state as state_dict() returned it"
        )


def read_state(path: Path) -> dict[str, Any]:
    """Read a state from a JSON file. Raises StateError if it does not hold one."""
    try:
        state = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise StateError(
            f"{path} is not a state in JSON: {error}. Save it with json.dump(dataset.state_dict(), file); for a state "
            f'saved by torch, call dataset.load_state_dict(state, snapshot="rebase")'
        ) from None
    if not isinstance(state, dict):
        raise StateError(f"{path} is not a state: got {type(state).__name__}, expected a mapping")
    return checked_state(state)


def state_of(facts: PlanFacts, epoch: int, step: int) -> dict[str, Any]:
    """The state before a step; after an epoch's last step, that of the next epoch's step 0, unless that epoch may read
    more of a followed table: then the state keeps the epoch."""
    if step >= facts.steps_of(epoch) and facts.epoch is None:
        epoch, step = epoch + 1, 0
    values = {"version": STATE_VERSION, "plan_version": PLAN_VERSION, "epoch": epoch, "step": step}
    names = (*STATE_KEYS, _ENVIRONMENT_KEY)
    return {key: values[key] if key in values else getattr(facts, key) for key in names}


def environment_warning(state: Mapping[str, Any], facts: PlanFacts) -> str | None:
    """The warning about a state from other versions or processor instructions, or None."""
    saved, current = (set(one.split(", ")) for one in (state[_ENVIRONMENT_KEY], facts.environment))
    if saved == current:
        return None
    return (
        f"the state was saved in another environment: got {', '.join(sorted(saved - current))}, expected "
        f"{', '.join(sorted(current - saved))}. Rows and their order are the same, floats may differ in their last "
        "bits; see `cluster.cpu`"
    )


def rebased_state(facts: PlanFacts, state: Mapping[str, Any]) -> dict[str, Any]:
    """The state that continues after a rebase with these facts; unchanged if the table has not changed.

    It keeps the environment of the given state, since planning a rebase computes no features.
    """
    if facts.snapshot == state["snapshot"]:
        return dict(state)
    assert facts.rest is not None
    return state_of(facts, facts.rest.epoch, facts.rest.first_step) | {_ENVIRONMENT_KEY: state[_ENVIRONMENT_KEY]}
