"""Read YAML into plain values, with the position of each entry.

Pure. PyYAML turns the text into events, each with line and column, which are composed here into plain dicts, lists and
scalars. No loader is used: what loaders accept (duplicate keys, tags, merge keys, unbounded alias expansion) is
refused, in the terms of a pipeline. Scalars follow YAML 1.2's core schema: `off`, `on`, `yes`, `no` and dates are
strings. Keys are always strings. Characters that break a line in YAML 1.1 and not in 1.2 are refused.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, field, fields
from typing import TYPE_CHECKING, Any

from feedline.dataclass import dataclass
from feedline.errors import SpecError

if TYPE_CHECKING:  # imported where YAML is read: a feeder gets its pipeline as JSON
    from yaml import MarkedYAMLError

# --------------------------------------------------------------------------------------------------------------------
# Positions of entries in a pipeline.yaml, so that an error names file, line, column and path. A document is plain
# dicts, lists and scalars, with one position per path beside them. Its readers collect errors in `Problems`, which
# raises them together, in the order of the file.

Path = tuple[str | int, ...]

# A user fixes the first few; a thousand repeated lines hide them.
MAX_REPORTED = 20
MAX_NAMES = 27  # shown of those that are expected: all keys of a pipeline

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

    def __len__(self) -> int:
        return len(self._entries)

    def raise_all(self) -> None:
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


# --------------------------------------------------------------------------------------------------------------------

# A pipeline of 2000 features is about 100 kB; the bounds keep a hostile file from costing more than seconds.
MAX_BYTES = 1 << 20
MAX_DEPTH = 32
MAX_ENTRIES = 200_000

_CORE = "tag:yaml.org,2002:"
_COLLECTION_TAGS = {"mapping": f"{_CORE}map", "sequence": f"{_CORE}seq"}
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL: dict[str, bool | float | None] = (
    dict.fromkeys(("", "~", "null", "Null", "NULL"))
    | dict.fromkeys(("true", "True", "TRUE"), True)
    | dict.fromkeys(("false", "False", "FALSE"), False)
    | dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan"))
    | {sign + word: float(sign + "inf") for sign in ("", "+", "-") for word in (".inf", ".Inf", ".INF")}
)
_END = "the end of the file"
SURROGATE = re.compile("[\ud800-\udfff]")
# Of the printable characters of YAML, U+0085, U+2028, U+2029 and a byte order mark within the text are left out.
_NOT_ALLOWED = re.compile("[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")


def resolve_scalar(text: str) -> bool | int | float | str | None:
    """The value of an unquoted scalar in YAML 1.2's core schema. Raises ValueError for a number beyond 64 bits."""
    if text in _SPECIAL:
        return _SPECIAL[text]
    if _INT.fullmatch(text):
        number = int(text, 0 if text[:2] in ("0o", "0x") else 10) if len(text) <= 64 else 1 << 64
        if not -(1 << 63) <= number < 1 << 64:
            raise ValueError(f"integer too large: got {text[:24]}…, expected at most 64 bits")
        return number
    if _FLOAT.fullmatch(text):
        value = float(text)
        if abs(value) == float("inf"):
            raise ValueError(f"number too large: got {text[:24]}, expected a 64-bit float")
        return value
    return text


def read_document(text: str, file: str) -> Document:
    """The plain values of one YAML document with their positions.

    Raises:
        SpecError: not YAML, or beyond the limits; names file, line, column and, where known, the path.
    """
    from yaml import MarkedYAMLError  # noqa: PLC0415 -- see above

    document = Document(file=file, value=None, positions={(): Position(line=1, column=1)})
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_BYTES:
        raise document.error((), f"document too large: got {len(text)} characters, expected at most {MAX_BYTES}")
    if wrong := _NOT_ALLOWED.search(text):
        before, code = text[: wrong.start()], f"{ord(wrong[0]):04x}"
        position = Position(line=before.count("\n") + 1, column=len(before) - before.rfind("\n"))
        remedy = "" if SURROGATE.match(wrong[0]) else f'. In double quotes it is written "\\u{code}"'
        message = f"not YAML: the character U+{code.upper()} is not allowed{remedy}"
        raise SpecError(message_at(file, position, (), message))
    try:
        root = _composed(text, file)
    except MarkedYAMLError as error:
        raise _syntax_error(error, file) from error
    except ValueError as error:
        if isinstance(error, SpecError):
            raise
        raise document.error((), f"not YAML: {error}") from error
    if root is not None:
        document.value = _Expansion(document).value_of(root, (), root.position)
    return document


def _composed(text: str, file: str) -> _Node | None:
    """The root; None of an empty document. What libyaml refuses, PyYAML's parser in Python is asked about: its errors
    say more, and a lone surrogate is refused by its path."""
    import yaml  # noqa: PLC0415 -- see above

    if yaml.__with_libyaml__:
        with contextlib.suppress(yaml.YAMLError):
            return _Composer(text, file, yaml.parse(text, Loader=yaml.CSafeLoader)).compose()
    return _Composer(text, file, yaml.parse(text, Loader=yaml.SafeLoader)).compose()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Node:
    kind: str  # scalar | mapping | sequence
    position: Position
    start: int  # its range in the text
    end: int = 0
    text: str = ""
    plain: bool = False
    tag: str = ""
    items: tuple[_Node, ...] = ()
    pairs: tuple[tuple[_Node, _Node], ...] = ()


class _Composer:
    """Composes events into nodes, recursion bounded by MAX_DEPTH."""

    def __init__(self, text: str, file: str, events: Iterator[Any]) -> None:
        import yaml  # noqa: PLC0415 -- see above

        self.text = text
        self.file = file
        self.kinds = yaml
        self.anchors: dict[str, _Node] = {}
        self.events = events
        self.budget = MAX_ENTRIES

    def compose(self) -> _Node | None:
        root = None
        for event in self.events:
            if isinstance(event, self.kinds.DocumentStartEvent):
                if root is not None:
                    raise self.error(event, (), "a second document: expected one document. Remove the line `---`")
                if event.version and tuple(event.version) != (1, 2):
                    raise self.error(event, (), "%YAML directive: expected YAML 1.2. Remove the directive")
                root = self.node(next(self.events), ())
        return root

    def node(self, event: Any, path: Path) -> _Node:
        self.budget -= 1
        if self.budget < 0:
            raise self.error(event, path, f"document too large: expected at most {MAX_ENTRIES} entries")
        if isinstance(event, self.kinds.AliasEvent):
            if event.anchor not in self.anchors:
                raise self.error(
                    event, path, f"unknown alias: got *{event.anchor}, expected an anchor of a value before it"
                )
            return self.anchors[event.anchor]
        if len(path) > MAX_DEPTH:
            raise self.error(event, path[:3], f"nested too deeply: expected at most {MAX_DEPTH} levels")
        if isinstance(event, self.kinds.ScalarEvent):
            node = self.scalar(event)
        elif isinstance(event, self.kinds.MappingStartEvent):
            node = self.mapping(event, path)
        else:
            node = self.sequence(event, path)
        if event.anchor:
            self.anchors[event.anchor] = node
        if node.tag not in ("", _COLLECTION_TAGS.get(node.kind, f"{_CORE}str")):
            raise self.error(event, path, f"tag not allowed: got {node.tag.replace(_CORE, '!!')}. Remove the tag")
        return node

    def scalar(self, event: Any) -> _Node:
        return _Node(
            kind="scalar",
            position=_position_of(event.start_mark),
            start=event.start_mark.index,
            end=event.end_mark.index,
            text=event.value,
            plain=event.implicit[0],
            tag=str(event.tag or ""),
        )

    def mapping(self, event: Any, path: Path) -> _Node:
        pairs: list[tuple[_Node, _Node]] = []
        repeated = None
        first_keys: dict[str, _Node] = {}
        while not isinstance(head := next(self.events), self.kinds.MappingEndEvent):
            key = self.node(head, (*path, "?"))
            if key.kind != "scalar":
                raise self.error(head, path, f"key is not a scalar: got a {key.kind}, expected a string")
            value = self.node(next(self.events), (*path, key.text))
            if key.text in first_keys and repeated is None:
                repeated = key
            first_keys.setdefault(key.text, key)
            pairs.append((key, value))
        if event.flow_style:
            self.check_commas([node for pair in pairs for node in pair], path)
        if repeated is not None:
            first = first_keys[repeated.text].position
            message = f"duplicate key: got it on line {first.line} and again on line {repeated.position.line}"
            raise SpecError(message_at(self.file, repeated.position, (*path, repeated.text), message))
        return self.collection("mapping", event, pairs=tuple(pairs))

    def sequence(self, event: Any, path: Path) -> _Node:
        items: list[_Node] = []
        while not isinstance(head := next(self.events), self.kinds.SequenceEndEvent):
            items.append(self.node(head, (*path, len(items))))
        if event.flow_style:
            self.check_commas(items, path)
        return self.collection("sequence", event, items=tuple(items))

    def collection(self, kind: str, event: Any, **parts: Any) -> _Node:
        mark = event.start_mark
        return _Node(kind=kind, position=_position_of(mark), start=mark.index, tag=str(event.tag or ""), **parts)

    def check_commas(self, nodes: list[_Node], path: Path) -> None:
        """Refuse `{expr: clip(a, 0)}`, which YAML reads as the keys `expr` and `0)`."""
        plain = [node for node in nodes if node.plain and node.end > node.start]
        for index, node in enumerate(plain):
            if not _is_open(node.text):
                continue
            for last in plain[index + 1 :]:
                whole = self.text[node.start : last.end]
                if last.start > node.start and not _is_open(whole):
                    quoted = f"'{whole}'" if '"' in whole else f'"{whole}"'
                    message = (
                        f"unquoted comma in a flow-style {{…}} or […]: YAML ends the value at {node.text!r}. "
                        f"Quote the expression: {quoted}"
                    )
                    raise SpecError(message_at(self.file, node.position, path, message))

    def error(self, event: Any, path: Path, message: str) -> SpecError:
        return SpecError(message_at(self.file, _position_of(event.start_mark), path, message))


def _position_of(mark: Any) -> Position:
    return Position(line=mark.line + 1, column=mark.column + 1)


def _is_open(text: str) -> bool:
    """Whether the text ends inside a bracket or a quote. An apostrophe within a word opens nothing."""
    depth, quote, before = 0, "", " "
    for char in text:
        if quote:
            quote = "" if char == quote else quote
        elif char in "\"'" and not before.isalnum():
            quote = char
        elif char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        before = char
    return depth > 0 or bool(quote)


class _Expansion:
    """Expands nodes to plain values and positions; aliases become copies, at most MAX_ENTRIES entries in all."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.budget = MAX_ENTRIES

    def value_of(self, node: _Node, path: Path, key_position: Position) -> Any:
        self.budget -= 1
        if self.budget < 0 or len(path) > MAX_DEPTH:
            limits = f"at most {MAX_ENTRIES} entries and {MAX_DEPTH} levels once its aliases are expanded"
            raise self.document.error(path[:3], f"document too large: expected {limits}")
        if node.kind == "scalar":
            # YAML places an empty value on the line after its key
            self.document.positions[path] = key_position if node.start == node.end else node.position
            return self.scalar(node, path)
        self.document.positions[path] = key_position
        if node.kind == "sequence":
            return [self.value_of(item, (*path, index), item.position) for index, item in enumerate(node.items)]
        values = {}
        for key, value in node.pairs:
            child = (*path, key.text)
            self.document.key_positions[child] = key.position
            self.check_key(key, path)
            values[key.text] = self.value_of(value, child, key.position)
        return values

    def scalar(self, node: _Node, path: Path) -> bool | int | float | str | None:
        if SURROGATE.search(node.text):
            raise self.document.error(path, "not UTF-8: got a lone surrogate escape in a string")
        if not node.plain or node.tag:
            return node.text
        try:
            return resolve_scalar(node.text)
        except ValueError as error:
            raise self.document.error(path, str(error)) from error

    def check_key(self, key: _Node, path: Path) -> None:
        child = (*path, key.text)
        if not key.text:
            raise self.document.error(child, "key is empty: expected a name", key=True)
        if SURROGATE.search(key.text):
            raise self.document.error(child, "not UTF-8: got a lone surrogate escape in a key", key=True)
        if key.plain and key.text == "<<":
            remedy = "Write the keys out, or repeat a whole value with `&name` and `*name`"
            raise self.document.error(child, f"merge key: YAML 1.2 has none. {remedy}", key=True)


def _syntax_error(error: MarkedYAMLError, file: str) -> SpecError:
    """YAML's own error with its position, and the usual cause in a pipeline."""
    mark = error.problem_mark or error.context_mark
    problem = str(error.problem or error.context)
    context = f" {error.context}" if error.problem and error.context else ""
    opened = _not_closed(error)
    if "'\\t'" in problem:
        message = "a tab where YAML expects spaces: indent with spaces only"
    elif "character" in problem and "start any token" in problem:
        message = f"not YAML: {problem}. Quote the value"
    elif "mapping values are not allowed" in problem:
        message = "not YAML: a second `: ` in one value, or a wrong indentation. Quote a value that holds `: `"
    elif opened:
        mark, message = error.context_mark, opened
    elif "expected ',' or" in problem:
        message = (
            f"not YAML: {problem}{context}. In a flow-style {{…}} or […] quote a value that holds , [ ] {{ }} or :"
        )
    elif "found '<scalar>'" in problem:
        message = (
            "not YAML: text after a closing quote, a quote that is not closed on a line before, or a wrong "
            "indentation. Quote the whole value, not its start"
        )
    elif problem == "expected <block end>, but found ':'":
        message = "not YAML: a `:` without a key before it: expected `key: value`"
    elif problem.startswith(("expected '<document start>'", "expected <block end>")):
        message = f"not YAML: {problem}{context}. Indent the entries of a mapping alike, as those of a list"
    elif "scanning a block scalar" in context:
        message = "not YAML: a value that begins with > or |, which starts a block scalar. Quote the value"
    else:
        message = f"not YAML: {problem}{context}"
    return SpecError(message_at(file, _position_of(mark) if mark else Position(), (), message))


def _not_closed(error: MarkedYAMLError) -> str:
    """The message about an unclosed bracket or quote; empty where the error is in the same line."""
    start, stop = error.context_mark, error.problem_mark
    if start is None or stop is None:
        return ""
    problem, context = str(error.problem), str(error.context)
    if "end of stream" in problem and "quoted scalar" in context:
        return f"not YAML: the quote here is not closed: got {_END}, expected another quote"
    expected, _, got = problem.removeprefix("expected ").partition(", but got ")
    got = {"'<scalar>'": "another value", "'<stream end>'": _END}.get(got, got)
    if not problem.startswith("expected ',' or") or (start.line == stop.line and got not in ("']'", "'}'", _END)):
        return ""
    bracket = "{" if "mapping" in context else "["
    return (
        f"not YAML: the {bracket} here is not closed: got {got} on line {stop.line + 1}, expected {expected}. Close "
        "it, put commas between its entries, or quote a value that holds , [ ] { } or :"
    )
