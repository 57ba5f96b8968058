"""Define the nodes of an expression's tree, each with its position in the text.

Pure values, built by `parser` and turned into Polars expressions by `binder`. A tree does not depend on a table: it
is parsed once and bound to any number of schemas.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, TypeAlias

from feedline.dataclass import dataclass
from feedline.expressions.predicates import Operator

# --------------------------------------------------------------------------------------------------------------------
# Positions in an expression's text, and how an error shows them.

_LINE_WIDTH = 120  # characters of a line that an error shows around its position


@dataclass(frozen=True, slots=True)
class Span:
    """Characters `start` to `stop` (excluded) of an expression's text."""

    start: int
    stop: int

    def to(self, other: Span) -> Span:
        """From the start of this one to the end of the other."""
        return Span(self.start, max(self.stop, other.stop))


class Fault(Exception):  # noqa: N818  it becomes an ExpressionError once the text is known
    """An error at a position in the text."""

    def __init__(self, message: str, span: Span) -> None:
        super().__init__(message)
        self.message = message
        self.span = span


class SourceText:
    """An expression's text as Python reads it: between brackets, so that line ends do not matter."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.wrapped = "(" + re.sub(r"\r\n?", "\n", text) + "\n)"
        self._lines = re.split(r"(?<=\n)|(?<=\r)(?!\n)", text)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def offset(self, row: int, column: int) -> int:
        """The character of the text at a row (from 1) and column (from 0, in characters) of `wrapped`."""
        # "a\nb" is wrapped as "(a\nb\n)": a, at row 1 and column 1, is character 0; b, at row 2 and column 0, is 2
        return min(self._starts[min(row, len(self._starts)) - 1] + column - (row == 1), len(self.text))

    def offset_of_byte(self, row: int, column: int) -> int:
        """As `offset`, the column counted in UTF-8 bytes, as `ast` does."""
        if row > len(self._lines):
            return len(self.text)
        line = self._lines[row - 1]
        column -= row == 1
        characters = column if line.isascii() else len(line.encode()[:column].decode(errors="ignore"))
        return min(self._starts[row - 1] + characters, len(self.text))


def render(text: str, fault: Fault) -> str:
    """The fault's message, then the line that it points at, with carets under the span."""
    start = min(fault.span.start, len(text))
    left = max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1
    line = re.split(r"[\r\n]", text[left:], maxsplit=1)[0]
    at = start - left
    width = max(1, min(fault.span.stop - start, len(line) - at))
    first = max(0, at - _LINE_WIDTH // 2)
    shown = "".join(c if c.isprintable() else "\ufffd" for c in line[first : first + _LINE_WIDTH])
    prefix = "…" if first else ""
    suffix = "…" if first + _LINE_WIDTH < len(line) else ""
    pad = " " * (len(prefix) + at - first)
    carets = "^" * max(1, min(width, _LINE_WIDTH - (at - first)))
    return f"{fault.message}\n  {prefix}{shown}{suffix}\n  {pad}{carets}"


# --------------------------------------------------------------------------------------------------------------------

ArithmeticOperator: TypeAlias = Literal["+", "-", "*", "/", "//", "%", "**"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnRef:
    """A column of the table, by name."""

    name: str
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """A literal; `None` only as an argument of functions that accept it."""

    value: int | float | str | bytes | bool | None
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A struct's field or a map's value: `item["key"]`."""

    item: Node
    key: Constant
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Negative:
    """`-item`."""

    item: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Arithmetic:
    """`left op right`."""

    op: ArithmeticOperator
    left: Node
    right: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Compare:
    """`left op right`; a chain is an `and` of these."""

    op: Operator
    left: Node
    right: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """`item in [literals]`."""

    item: Node
    values: tuple[Constant, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class NullTest:
    """`item is None`."""

    item: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Negation:
    """`not item`."""

    item: Node
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Logic:
    """All (`and`) or any (`or`) of at least two items."""

    op: Literal["and", "or"]
    items: tuple[Node, ...]
    span: Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """A function of the allow-list; a method's receiver is its first argument. Only arguments may be lists."""

    name: str  # as in the catalogue: `clip`, `dt.hour`
    arguments: tuple[Node | tuple[Constant, ...], ...]
    keywords: Mapping[str, Node | tuple[Constant, ...]]
    span: Span


Node: TypeAlias = (
    ColumnRef | Constant | Field | Negative | Arithmetic | Compare | Member | NullTest | Negation | Logic | Call
)


def children(node: Node) -> tuple[Node, ...]:
    """The nodes directly below a node; lists of literals are left out."""
    match node:
        case ColumnRef() | Constant():
            return ()
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return left, right
        case Logic(items=items):
            return items
        case Call(arguments=arguments, keywords=keywords):
            return tuple(value for value in (*arguments, *keywords.values()) if not isinstance(value, tuple))
    return (node.item,)


def column_names(tree: Node) -> frozenset[str]:
    """The names of the columns that a tree reads."""
    names: set[str] = set()
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ColumnRef):
            names.add(node.name)
        nodes.extend(children(node))
    return frozenset(names)


def map_children(node: Node, change: Callable[[Node], Node]) -> Node:
    """The node with each node of `children` changed."""

    def argument(value: Node | tuple[Constant, ...]) -> Node | tuple[Constant, ...]:
        return value if isinstance(value, tuple) else change(value)

    match node:
        case ColumnRef() | Constant():
            return node
        case Arithmetic(left=left, right=right) | Compare(left=left, right=right):
            return replace(node, left=change(left), right=change(right))
        case Logic(items=items):
            return replace(node, items=tuple(change(item) for item in items))
        case Call(arguments=arguments, keywords=keywords):
            return replace(
                node,
                arguments=tuple(argument(value) for value in arguments),
                keywords={name: argument(value) for name, value in keywords.items()},
            )
    return replace(node, item=change(node.item))
