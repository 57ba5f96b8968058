"""Find `column in file("ids.parquet")` in the text of a condition, which only some commands allow.

Pure: the files are named, not read. The text without them is one of the language: each such test becomes a Boolean
column of its own (`col("in file 1")`), for whose values the caller is responsible. So a list may have any number of
values, and none of them is in the text.
"""

from __future__ import annotations

import ast

from feedline.dataclass import dataclass
from feedline.errors import ExpressionError
from feedline.expressions.nodes import Fault, SourceText, Span, render
from feedline.expressions.parser import check, python_tree
from feedline.expressions.types import quote_name

_FUNCTION = "file"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileList:
    """A test for the values of a file. name: of the Boolean column that stands for it. column: whose values are
    tested."""

    name: str
    column: str
    file: str


def take_file_lists(text: str) -> tuple[str, tuple[FileList, ...]]:
    """The text with columns in place of its tests for the values of files, and these.

    Raises ExpressionError, which shows the position, for such a test of anything but a column. A text that is not of
    the language is left as it is: `parse` refuses it.
    """
    # `not user in file("a.txt") and x > 0` -> `not col("in file 1") and x > 0`
    try:
        check(text)
        source = SourceText(text)
        tree = python_tree(source.wrapped)
    except (Fault, SyntaxError, ValueError, RecursionError, MemoryError):
        return text, ()
    lists: list[FileList] = []
    parts: list[str] = []
    stop = 0
    try:
        for test in sorted(_tests(tree), key=lambda test: (test.lineno, test.col_offset)):
            span = _span(source, test)
            name = f"in file {len(lists) + 1}"
            lists.append(FileList(name=name, column=_column(source, test.left), file=_file(source, test)))
            column = f"col({name!r})"
            column = f"(not {column})" if isinstance(test.ops[0], ast.NotIn) else column
            parts += text[stop : span.start], column
            stop = span.stop
    except Fault as fault:
        raise ExpressionError(render(text, fault)) from None
    return "".join([*parts, text[stop:]]), tuple(lists)


def _tests(tree: ast.AST) -> list[ast.Compare]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Compare) and any(_is_file(right) for right in node.comparators)
    ]


def _is_file(tree: ast.expr) -> bool:
    return isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == _FUNCTION


def _column(source: SourceText, tree: ast.expr) -> str:
    match tree:
        case ast.Name(id=name):
            return name
        case ast.Call(func=ast.Name(id="col"), args=[ast.Constant(value=str(name))], keywords=[]):
            return name
    raise Fault("`in file(...)` tests a column: expected its name on the left", _span(source, tree))


def _file(source: SourceText, test: ast.Compare) -> str:
    match test:
        case ast.Compare(
            ops=[ast.In() | ast.NotIn()],
            comparators=[ast.Call(args=[ast.Constant(value=str(file))], keywords=[])],
        ) if file:
            return file
    message = 'a list of values in a file is tested with `in file("ids.parquet")`: expected one constant path'
    raise Fault(message, _span(source, test))


def _span(source: SourceText, tree: ast.expr) -> Span:
    start = source.offset_of_byte(tree.lineno, tree.col_offset)
    return Span(start, source.offset_of_byte(tree.end_lineno or tree.lineno, tree.end_col_offset or 0))


def columns_text(text: str, lists: tuple[FileList, ...]) -> str:
    """The text that `take_file_lists` returned, with the tests as they were written but for the files' folders."""
    for each in lists:
        name = each.file.replace("\\", "/").rpartition("/")[2]
        text = text.replace(f"col({each.name!r})", f"{quote_name(each.column)} in file({name!r})")
    return text
