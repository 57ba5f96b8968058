"""Priorities of Dask's tasks.

Runs in: the feeder. Pure.
"""

from __future__ import annotations


def priority(due_s: float) -> int:
    """Dask's priority (higher first) for a due time: its milliseconds, negated."""
    return -round(due_s * 1000)
