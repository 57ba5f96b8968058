"""Positions of entries in the user's file, so that an error names file, line, column and path.

Runs in: every process that reads a pipeline.yaml. Pure.

A document is plain dicts, lists and scalars with one place per path beside them. What reads it collects its complaints
in `Problems` and raises them together, in the order of the text.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from feedline.errors import SpecError

Path = tuple[str | int, ...]

# A reader fixes the first few; a thousand repeated lines hide them.
MAX_REPORTED = 20

_BARE_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where an entry stands: line and column from 1 (0: unknown), or the override that holds it."""

    line: int = 0
    column: int = 0
    override: str = ""  # '--set batch.tail' or 'set["batch.tail"]'
    variable: str = ""  # the environment variable that the value was taken from


@dataclass(slots=True, kw_only=True)
class Document:
    """Plain values, and a place for every path in them; a path without one stands where its parent does."""

    file: str
    value: Any
    places: dict[Path, Position] = field(default_factory=dict)
    key_places: dict[Path, Position] = field(default_factory=dict)

    def place(self, path: Path, *, key: bool = False) -> Position:
        """The place of the value at `path`, or of its key, or of the nearest thing around it that has one."""
        if key and path in self.key_places:
            return self.key_places[path]
        for stop in range(len(path), -1, -1):
            if path[:stop] in self.places:
                return self.places[path[:stop]]
        return Position()

    def error(self, path: Path, message: str, *, key: bool = False) -> SpecError:
        """A SpecError "FILE:LINE:COL: path: message", or with the override's key as the place."""
        place = self.place(path, key=key)
        return SpecError(located(self.file, place, path, message))


def located(file: str, place: Position, path: Path, message: str) -> str:
    """The message after its place and path; a path that the override's key already spells is not said twice."""
    parts = [place.override or (f"{file}:{place.line}:{place.column}" if place.line else file), path_text(path)]
    if place.override and path and place.override in (f"--set {parts[1]}", f"set[{json.dumps(parts[1])}]"):
        parts.pop()
    return ": ".join([*filter(None, parts), message])


def path_text(path: Path) -> str:
    """`features.dense.price[1]`; a name that is not one word is quoted as in an override: `features.dense."a.b"`."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            name = part if _BARE_NAME.fullmatch(part) else json.dumps(part, ensure_ascii=not part.isprintable())
            text += f".{name}" if text else name
    return text


class Problems:
    """Complaints about one document, raised as one SpecError, the first in the text first."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._found: list[tuple[bool, int, int, int, str]] = []

    def add(self, path: Path, message: str, *, key: bool = False) -> None:
        """Notes what is wrong at `path`, or with the key itself."""
        place = self.document.place(path, key=key)
        text = located(self.document.file, place, path, message)
        self._found.append((not place.line, place.line, place.column, len(self._found), text))

    def raise_found(self) -> None:
        """Raises a SpecError with one line per problem, if there are any."""
        lines = list(dict.fromkeys(text for *_, text in sorted(self._found)))
        if len(lines) > MAX_REPORTED:
            lines[MAX_REPORTED:] = [f"… and {len(lines) - MAX_REPORTED} more"]
        if lines:
            raise SpecError("\n".join(lines))


def met(value: object) -> str:
    """The value as an error says it: `nothing`, `true`, `'text'`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"


def unknown(kind: str, got: str, known: Iterable[str]) -> str:
    """`unknown key: got 'tial', expected one of 'size', 'tail'. Did you mean 'tail'?`

    Of very many names only the nearest one is said, if there is one.
    """
    names = list(known)
    near = difflib.get_close_matches(got, names, n=1) or difflib.get_close_matches(got.lower(), names, n=1)
    if near and len(names) > MAX_REPORTED:
        return f"unknown {kind}: got {met(got)}. Did you mean {near[0]!r}?"
    remedy = f". Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind}: got {met(got)}, expected one of {', '.join(map(repr, names))}{remedy}"
