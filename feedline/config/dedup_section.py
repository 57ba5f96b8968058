"""The `dedup` section of a pipeline.yaml: deduplicated groups, each named once with its columns.

Runs in: every process that reads a pipeline.yaml. Pure. Which features belong to a group is decided where expressions
and ops are known: see `feedline.transforms.compile.dedup_groups`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

from feedline.config.column_ranges import expand_range
from feedline.config.yaml_document import Document, Path, Problems, describe_value, path_text, unknown_message
from feedline.dataclass import dataclass

_FORM = "Write `dedup: {user: {columns: [user_id, 'hist_{0..5}']}}`"
NEEDS_RUNS = (
    "deduplication needs rows that repeat the row above them, and the shuffle permutes single rows. Write `shuffle: "
    "{by: COLUMN}` to keep runs of a column together, `shuffle: {rows: false}`, or `shuffle: off`"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DedupSpec:
    """A deduplicated group by its columns: every feature that reads no others belongs to it."""

    name: str
    columns: tuple[str, ...]
    path: Path = field(default=(), compare=False)


def read_groups(document: Document, problems: Problems) -> tuple[DedupSpec, ...]:
    """The groups of the document's `dedup` section, in its order; adds errors to `problems`."""
    groups = document.value["dedup"]
    if not isinstance(groups, dict):
        message = f"must be a mapping from groups to their columns: got {describe_value(groups)}. {_FORM}"
        problems.add(("dedup",), message)
        return ()
    found = tuple(group for name, body in groups.items() for group in _group(name, body, problems))
    first: dict[str, DedupSpec] = {}
    for group in found:
        for column in group.columns:
            earlier = first.setdefault(column, group)
            if earlier is not group:
                message = f"column {column!r} is in two groups: got it here and at {path_text(earlier.path)}"
                problems.add((*group.path, "columns"), f"{message}. A column belongs to one group: remove it from one")
    return found


def _group(name: str, body: Any, problems: Problems) -> Iterator[DedupSpec]:
    path: Path = ("dedup", name)
    if not name.strip():
        problems.add(path, f"the name of a group must not be empty: got {name!r}", key=True)
    elif not isinstance(body, dict):
        problems.add(path, f"must be a mapping with the key columns: got {describe_value(body)}. {_FORM}")
    else:
        wrong = [key for key in body if key != "columns"]
        for key in wrong:
            problems.add((*path, key), unknown_message("key of a group", key, ["columns"]), key=True)
        if "columns" not in body:
            if not wrong:
                problems.add(path, f"has no columns: expected the key columns. {_FORM}")
        elif columns := _columns(body["columns"], (*path, "columns"), problems):
            yield DedupSpec(name=name, columns=columns, path=path)


def _columns(values: Any, path: Path, problems: Problems) -> tuple[str, ...]:
    """The columns of a group, ranges expanded; none where one of them is wrong."""
    if not isinstance(values, list) or not values:
        got = "an empty list" if values == [] else describe_value(values)
        problems.add(path, f"must be a list of columns: got {got}, expected for example [user_id, 'hist_{{0..5}}']")
        return ()
    found: dict[str, None] = {}
    for index, value in enumerate(values):
        here = (*path, index)
        if not isinstance(value, str) or not value.strip():
            problems.add(here, f"must be a column: got {describe_value(value)}, expected a non-empty string")
            return ()
        try:
            names = expand_range(value)
        except ValueError as error:
            problems.add(here, str(error))
            return ()
        for name in names:
            if name in found:
                problems.add(here, f"column {name!r} is named twice in this group. Remove one")
                return ()
            found[name] = None
    return tuple(found)
