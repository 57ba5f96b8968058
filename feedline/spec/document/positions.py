"""Positions of entries in a pipeline.yaml, so that an error names file, line, column and path.

Pure. A document is plain dicts, lists and scalars, with one position per path beside them. Its readers collect errors
in `Problems`, which raises them together, in the order of the file.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, field, fields
from typing import Any

from feedline.errors import SpecError

Path = tuple[str | int, ...]

# A user fixes the first few; a thousand repeated lines hide them.
MAX_REPORTED = 20
MAX_NAMES = 24  # shown of those that are expected: all keys of a pipeline

_BARE_NAME = re.compile(r"[\w-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The position of an entry: line and column from 1 (0: unknown), or the override that wrote it."""

    line: int = 0
    column: int = 0
    override: str = ""  # '--set batch.tail' or 'set["batch.tail"]'
    variable: str = ""  # the environment variable that holds the value


_PARTS = tuple(each.name for each in fields(Position))


@dataclass(slots=True, kw_only=True)
class Document:
    """Plain values, and the positions of their paths; a path without one has its parent's."""

    file: str
    value: Any
    positions: dict[Path, Position] = field(default_factory=dict)
    key_positions: dict[Path, Position] = field(default_factory=dict)
    overrides: dict[str, Any] = field(default_factory=dict)  # in force, by dotted key

    def position(self, path: Path, *, key: bool = False) -> Position:
        """The position of the value at `path`, or of its key; of the nearest parent where it has none."""
        if key and path in self.key_positions:
            return self.key_positions[path]
        for stop in range(len(path), -1, -1):
            if path[:stop] in self.positions:
                return self.positions[path[:stop]]
        return Position()

    def packed(self) -> dict[str, Any]:
        """The document as JSON can hold it; see `unpacked`."""
        return {
            "file": self.file,
            "value": self.value,
            "positions": [[path, astuple(position)] for path, position in self.positions.items()],
            "key_positions": [[path, astuple(position)] for path, position in self.key_positions.items()],
            "overrides": self.overrides,
        }

    @classmethod
    def unpacked(cls, content: Mapping[str, Any]) -> Document:
        """The document of which `packed` made this."""
        tables = {
            name: {tuple(path): Position(**dict(zip(_PARTS, parts, strict=True))) for path, parts in content[name]}
            for name in ("positions", "key_positions")
        }
        return cls(file=content["file"], value=content["value"], overrides=content["overrides"], **tables)

    def error(self, path: Path, message: str, *, key: bool = False) -> SpecError:
        """A SpecError "FILE:LINE:COL: path: message", or with the override instead of the line."""
        position = self.position(path, key=key)
        return SpecError(message_at(self.file, position, path, message))


def message_at(file: str, position: Position, path: Path, message: str) -> str:
    """The message after its position and path; a path equal to the override's key is not repeated."""
    parts = [
        position.override or (f"{file}:{position.line}:{position.column}" if position.line else file),
        path_text(path),
    ]
    if position.override and path and position.override in (f"--set {parts[1]}", f"set[{json.dumps(parts[1])}]"):
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
    """Errors in one document, raised as one SpecError in the order of the file."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self._entries: list[tuple[bool, int, int, int, str]] = []

    def add(self, path: Path, message: str, *, key: bool = False) -> None:
        """Add an error about the value at `path`, or about its key."""
        position = self.document.position(path, key=key)
        text = message_at(self.document.file, position, path, message)
        self._entries.append((not position.line, position.line, position.column, len(self._entries), text))

    def raise_all(self) -> None:
        """Raise a SpecError with one line per problem, if there are any."""
        lines = list(dict.fromkeys(text for *_, text in sorted(self._entries)))
        if len(lines) > MAX_REPORTED:
            lines[MAX_REPORTED:] = [f"… and {len(lines) - MAX_REPORTED} more"]
        if lines:
            raise SpecError("\n".join(lines))


def describe_value(value: object) -> str:
    """The value as errors show it: `nothing`, `true`, `'text'`, `a list`."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (dict, list, tuple)):
        return "a mapping" if isinstance(value, dict) else "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:56]}…{text[-1]}"


def unknown_message(kind: str, got: str, expected: Iterable[str]) -> str:
    """`unknown key: got 'tial', expected one of 'size', 'tail'. Did you mean 'tail'?` Of more than MAX_NAMES names
    it shows only the nearest, if there is one."""
    names = list(expected)
    near = difflib.get_close_matches(got, names, n=1) or difflib.get_close_matches(got.lower(), names, n=1)
    if near and len(names) > MAX_NAMES:
        return f"unknown {kind}: got {describe_value(got)}. Did you mean {near[0]!r}?"
    remedy = f". Did you mean {near[0]!r}?" if near else ""
    return f"unknown {kind}: got {describe_value(got)}, expected one of {', '.join(map(repr, names))}{remedy}"
