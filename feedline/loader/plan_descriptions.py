"""Describe a plan's facts for people: its bad files, and the outcome of a rebase.

Runs in: the trainer and the commands. Pure; no torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from feedline.loader.wire.facts import BadFileFacts, RestFacts

_SHOWN_FILES = 20
_FILE_KINDS = {"unchanged": "as they were", "rewritten": "rewritten", "gone": "gone", "new": "new"}


def describe_bad_files(bad_files: Sequence[BadFileFacts]) -> str:
    """The summary, and one line per file."""
    return f"{summary_of(bad_files)}:\n" + "\n".join(lines_of(bad_files))


def summary_of(bad_files: Sequence[BadFileFacts]) -> str:
    """How many files and rows are left out, in one line."""
    rows = sum(bad.rows or 0 for bad in bad_files)
    unknown = sum(bad.rows is None for bad in bad_files)
    note = f", besides those of {unknown:,} whose footer cannot be read" if unknown else ""
    files = "1 bad file" if len(bad_files) == 1 else f"{len(bad_files):,} bad files"
    return f"{files} left out of the plan, {rows:,} rows{note}"


def lines_of(bad_files: Sequence[BadFileFacts]) -> list[str]:
    """Path and reason of the first files, and the count of the rest."""
    lines = [f"  {bad.path}: {bad.reason}" for bad in bad_files[:_SHOWN_FILES]]
    return lines if len(bad_files) <= _SHOWN_FILES else [*lines, f"  and {len(bad_files) - _SHOWN_FILES:,} more"]


def describe_rebase(rest: RestFacts) -> str:
    """The outcome of a rebase, one line per kind of fact."""
    changes = rest.changes
    files, rows = changes.files, changes.rows
    file_counts = ", ".join(f"{files[key]:,} {name}" for key, name in _FILE_KINDS.items())
    position = f"epoch {changes.epoch} before step {changes.step:,}"
    steps_left = rest.steps - rest.first_step
    lines = [
        f"snapshot {changes.from_[:12]} -> {changes.to[:12]}: files {file_counts}",
        f"delivered: {rows['delivered']:,} rows of {position}; {rows['delivered_gone']:,} of them are gone since",
        f"changed: {rows['deleted']:,} rows deleted, {rows['added']:,} added (net, per partition)",
        f"left: {rest.rows:,} rows in {steps_left:,} steps, {rest.rows_dropped:,} rows dropped",
    ]
    return "\n".join(lines)
