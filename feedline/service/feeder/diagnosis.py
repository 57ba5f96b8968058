"""Describe why a step is not there yet: which blocks are missing, since when, and what their workers do.

Runs in: the feeder, when a trainer that has waited for long asks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_FILES, _BLOCKS, _FRAMES = 3, 4, 4  # shown
_RETRIES = ("tenacity", "storage/retry")


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingBlock:
    """A block that the step needs. since_s: seconds since its running attempt was submitted, by key. failures: of
    earlier attempts."""

    name: str
    files: Sequence[str]
    since_s: Mapping[str, float]
    failures: Sequence[str]


def describe_missing(
    blocks: Sequence[MissingBlock], workers: Mapping[str, str], stacks: Mapping[str, Sequence[str]]
) -> str:
    """The missing blocks, a few lines each. workers: by key of an attempt. stacks: the calls of running tasks, by key,
    the innermost last."""
    lines = [_describe(block, workers, stacks) for block in blocks[:_BLOCKS]]
    more = [f"and {len(blocks) - _BLOCKS} more blocks"] if len(blocks) > _BLOCKS else []
    return "\n".join([*lines, *more])


def _describe(block: MissingBlock, workers: Mapping[str, str], stacks: Mapping[str, Sequence[str]]) -> str:
    files = ", ".join(block.files[:_FILES]) + (f" and {len(block.files) - _FILES} more" if block.files[_FILES:] else "")
    lines = [f"{block.name} ({files}) is missing"]
    if not block.since_s:
        lines.append("  it waits for the Dask scheduler")
    for key, seconds in block.since_s.items():
        where = f"on {workers[key]}" if key in workers else "waiting for a free worker"
        lines.append(f"  submitted {seconds:.0f} s ago, {where}")
        stack = stacks.get(key, ())
        if any(word in call for call in stack for word in _RETRIES):
            lines.append("  its worker retries a request to the store")
        lines += [f"    {' '.join(call.split())}" for call in stack[-_FRAMES:]]
    lines += [f"  an earlier attempt failed: {failure}" for failure in block.failures]
    return "\n".join(lines)
