"""Which files are corrupt, out of those that a counting pass reads, and what did the others hold?

Runs where a plan is made. A counting pass stops at the first corrupt file; over a `ForgivingMap` it reads all the
others as well, and only then says what it met. A second pass over what is left finds every count known already, so a
bad file costs no second reading.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from feedline.errors import CorruptFileError
from feedline.warehouse.bad_files import reason_of
from feedline.warehouse.reading.fragment import Fragment
from feedline.warehouse.storage.parallel import Map, in_threads


class BadFilesMetError(Exception):
    """Files turned out to be corrupt; internal: whoever made the map leaves them out. `reasons` by path."""

    def __init__(self, reasons: dict[str, str]) -> None:
        super().__init__(f"{len(reasons)} corrupt files: {', '.join(sorted(reasons)[:10])}")
        self.reasons = reasons


class ForgivingMap:
    """`map(function, tasks)` over tasks with `fragments`, whose results are one value per row group.

    Raises BadFilesMetError after everything else was read, where files were corrupt; all other errors at once.
    """

    def __init__(self, map: Map | None = None) -> None:
        self._map = map or in_threads
        self._known: dict[Fragment, tuple[Any, ...]] = {}

    def __call__(self, function: Callable[[Any], Any], tasks: list[Any]) -> list[tuple[Any, ...]]:
        """The results in the order of the tasks."""
        unread = [[fragment for fragment in task.fragments if fragment not in self._known] for task in tasks]
        left = [replace(task, fragments=tuple(rest)) for task, rest in zip(tasks, unread, strict=True) if rest]
        bad: dict[str, str] = {}
        for task, results in zip(left, self._map(partial(each_fragment, function), left), strict=True):
            for fragment, (values, reason) in zip(task.fragments, results, strict=True):
                if reason is None:
                    self._known[fragment] = values
                else:
                    bad.setdefault(fragment.path, reason)
        if bad:
            raise BadFilesMetError(bad)
        return [tuple(value for fragment in task.fragments for value in self._known[fragment]) for task in tasks]


def each_fragment(function: Callable[[Any], Any], task: Any) -> list[tuple[tuple[Any, ...], str | None]]:
    """Run a task one fragment at a time: for each its values, or why it is corrupt."""
    results: list[tuple[tuple[Any, ...], str | None]] = []
    for fragment in task.fragments:
        try:
            results.append((tuple(function(replace(task, fragments=(fragment,)))), None))
        except CorruptFileError as error:
            results.append(((), reason_of(error, fragment.uri)))
    return results
