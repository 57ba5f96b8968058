"""Parse an expression's text into a tree of the language's nodes.

Pure. The text is checked (`syntax.check`), parsed with `ast` and rebuilt node by node: a kind of Python node that
`_Builder` does not name is refused. Functions and methods are looked up in the allow-list here, so a hostile text fails
before it meets a table. Only arithmetic on two literals (`60 * 60`), which is bounded, is evaluated in Python.
"""

from __future__ import annotations

import ast
import contextlib
import math
import threading

from feedline.expressions.functions.reference import NAMESPACES, missing_function_fault, missing_method_fault
from feedline.expressions.nodes import (
    Arithmetic,
    ArithmeticOperator,
    Call,
    ColumnRef,
    Compare,
    Constant,
    Field,
    Logic,
    Member,
    Negation,
    Negative,
    Node,
    NullTest,
)
from feedline.expressions.operators import ARITHMETIC
from feedline.expressions.predicates import Operator
from feedline.expressions.spans import Fault, SourceText, Span
from feedline.expressions.syntax import MAX_INTEGER_DIGITS, check, fault_at, foreign

_MAX_FOLDED_EXPONENT = 64
_ATTEMPTS = 20
_parsing = threading.Lock()
MAX_DEPTH = 100  # levels of the tree; walks take about three Python frames per level, and Python's limit is 1000

_ARITHMETIC: dict[type[ast.operator], ArithmeticOperator] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.Div: "/",
    ast.FloorDiv: "//",
    ast.Mod: "%",
    ast.Pow: "**",
}
_COMPARISON: dict[type[ast.cmpop], Operator] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
}
_REFUSALS: dict[type[ast.AST], str] = {
    ast.Tuple: "a comma makes several values here: one string is one expression",
    ast.List: "a list is allowed only right of `in` and as an argument",
    ast.Starred: "`*` before a value is refused",
    ast.Slice: "a slice is refused: write `.str.slice(start, length)` or `.list.slice(start, length)`",
}


def parse_tree(text: str) -> Node:
    """The tree of an expression's text.

    Raises:
        Fault: at the first construct that is not of the language.
    """
    masked = check(text)
    source = SourceText(text)
    try:
        tree = python_tree(source.wrapped).body
    except SyntaxError as error:
        raise fault_at(text, masked, source.offset(error.lineno or 1, (error.offset or 1) - 1)) from None
    except (ValueError, RecursionError, MemoryError):  # the parser's own limits, which differ between Pythons
        raise _too_deep(text) from None
    _check_depth(tree, source)
    try:
        return _Builder(source).node(tree)
    except Fault as fault:
        raise foreign(text, masked) or fault from None


def python_tree(text: str) -> ast.Expression:
    """`ast.parse` of an expression, repeated after a spurious SystemError: CPython 3.11 counts the depth of all
    threads' trees in one variable (python/cpython#106905). The lock keeps threads that parse expressions apart; one
    that formats a traceback may still disturb them."""
    with _parsing:
        for _ in range(_ATTEMPTS):
            with contextlib.suppress(SystemError):
                return ast.parse(text, mode="eval")
        return ast.parse(text, mode="eval")


def _check_depth(tree: ast.expr, source: SourceText) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise _too_deep(source.text)


def _too_deep(text: str) -> Fault:
    return Fault(f"the expression is nested too deeply: more than {MAX_DEPTH} levels", Span(0, len(text)))


class _Builder:
    """Rebuilds a Python tree from nodes of the language."""

    def __init__(self, source: SourceText) -> None:
        self._source = source

    def node(self, tree: ast.expr) -> Node:
        """The node for a tree. Raises Fault where there is none."""
        match tree:
            case ast.Name():
                return ColumnRef(name=tree.id, span=self._span(tree))
            case ast.Constant():
                return self._constant(tree)
            case ast.UnaryOp(op=ast.Not() | ast.USub() | ast.UAdd()):
                return self._unary(tree)
            case ast.BinOp(op=op) if type(op) in _ARITHMETIC:
                return self._arithmetic(tree)
            case ast.BoolOp():
                items = tuple(self.node(value) for value in tree.values)
                return Logic(op="and" if isinstance(tree.op, ast.And) else "or", items=items, span=self._span(tree))
            case ast.Compare():
                return self._comparison(tree)
            case ast.Call():
                return self._call(tree)
            case ast.Subscript():
                return self._subscript(tree)
            case ast.Attribute():
                raise self._attribute_fault(tree)
        kind = type(tree).__name__
        raise Fault(_REFUSALS.get(type(tree), f"Python's {kind} is not part of the language"), self._span(tree))

    def _span(self, tree: ast.expr | ast.keyword) -> Span:
        start = self._source.offset_of_byte(tree.lineno, tree.col_offset)
        return Span(start, self._source.offset_of_byte(tree.end_lineno or tree.lineno, tree.end_col_offset or 0))

    def _name_span(self, tree: ast.Attribute) -> Span:
        stop = self._span(tree).stop
        return Span(max(0, stop - len(tree.attr)), stop)

    def _constant(self, tree: ast.Constant) -> Constant:
        value, span = tree.value, self._span(tree)
        if isinstance(value, float) and not math.isfinite(value):
            raise Fault("the number is too large for a float64", span)
        if isinstance(value, int) and abs(value) >= 10**MAX_INTEGER_DIGITS:
            raise Fault(f"the number is too long: expected at most {MAX_INTEGER_DIGITS} digits", span)
        if isinstance(value, str) and any("\ud800" <= character <= "\udfff" for character in value):
            raise Fault("a lone surrogate is not a character", span)
        if value is None or isinstance(value, int | float | str | bytes):
            return Constant(value=value, span=span)
        raise Fault("this literal is not part of the language: expected a number, a string, True, False or None", span)

    def _unary(self, tree: ast.UnaryOp) -> Node:
        item, span = self.node(tree.operand), self._span(tree)
        if isinstance(tree.op, ast.Not):
            return Negation(item=item, span=span)
        if isinstance(item, Constant):
            number = _number(item)
            return Constant(value=number if isinstance(tree.op, ast.UAdd) else -number, span=span)
        if isinstance(tree.op, ast.UAdd):
            raise Fault("a `+` before a column has no effect: leave it out", span)
        return Negative(item=item, span=span)

    def _arithmetic(self, tree: ast.BinOp) -> Node:
        op, span = _ARITHMETIC[type(tree.op)], self._span(tree)
        left, right = self.node(tree.left), self.node(tree.right)
        if isinstance(left, Constant) and isinstance(right, Constant):
            return Constant(value=_fold(op, _number(left), _number(right), span), span=span)
        return Arithmetic(op=op, left=left, right=right, span=span)

    def _comparison(self, tree: ast.Compare) -> Node:
        left = tree.left
        parts = []
        for op, right in zip(tree.ops, tree.comparators, strict=True):
            parts.append(self._pair(left, op, right))
            left = right
        return parts[0] if len(parts) == 1 else Logic(op="and", items=tuple(parts), span=self._span(tree))

    def _pair(self, left: ast.expr, op: ast.cmpop, right: ast.expr) -> Node:
        span = self._span(left).to(self._span(right))
        if isinstance(op, ast.In | ast.NotIn):
            member = Member(item=self.node(left), values=self._values(right), span=span)
            return Negation(item=member, span=span) if isinstance(op, ast.NotIn) else member
        none = isinstance(right, ast.Constant) and right.value is None
        if isinstance(op, ast.Is | ast.IsNot):
            if not none:
                remedy = "==" if isinstance(op, ast.Is) else "!="
                if isinstance(right, ast.Name) and right.id.lower() in ("null", "none", "nan", "na", "nil"):
                    raise Fault("a missing value is `None`: write `is None`, or `.is_nan()` for NaN", self._span(right))
                raise Fault(f"`is` tests only for None. To compare write `{remedy}`", self._span(right))
            test = NullTest(item=self.node(left), span=span)
            return Negation(item=test, span=span) if isinstance(op, ast.IsNot) else test
        if none or (isinstance(left, ast.Constant) and left.value is None):
            remedy = "is not None" if isinstance(op, ast.NotEq) else "is None"
            raise Fault(f"a comparison with None is never true. Write `{remedy}`", span)
        for side in (left, right):
            if isinstance(side, ast.List | ast.Tuple):
                raise Fault("a list cannot be compared. To test for one of its values write `in`", self._span(side))
        return Compare(op=_COMPARISON[type(op)], left=self.node(left), right=self.node(right), span=span)

    def _values(self, tree: ast.expr) -> tuple[Constant, ...]:
        if not isinstance(tree, ast.List | ast.Tuple):
            raise Fault(
                "`in` expects a list of literals on its right. For a list column write `.list.contains(value)`, for a "
                "string column `.str.contains(text)`",
                self._span(tree),
            )
        values = []
        for element in tree.elts:
            value = self.node(element)
            if not isinstance(value, Constant):
                raise Fault(
                    "a list may contain only literals. Write `x == a or x == b` for columns", self._span(element)
                )
            if value.value is None:
                raise Fault("a list may not contain None. Write `x is None or x in [...]`", value.span)
            values.append(value)
        return tuple(values)

    def _subscript(self, tree: ast.Subscript) -> Node:
        if isinstance(tree.slice, ast.Slice):
            raise Fault(_REFUSALS[ast.Slice], self._span(tree.slice))
        key = self.node(tree.slice) if not isinstance(tree.slice, ast.Tuple | ast.List) else None
        if not isinstance(key, Constant) or isinstance(key.value, bool) or not isinstance(key.value, str | int):
            raise Fault('a key must be a constant string or integer, as in `user["country"]`', self._span(tree.slice))
        return Field(item=self.node(tree.value), key=key, span=self._span(tree))

    def _attribute_fault(self, tree: ast.Attribute) -> Fault:
        name, span = tree.attr, self._name_span(tree)
        if name.startswith("_"):
            return Fault(f"`{name}` is refused: no method starts with an underscore", span)
        if name in NAMESPACES:
            return Fault(f"`{name}` is a namespace: expected a method after it, as in `x.{name}.…()`", span)
        if isinstance(tree.value, ast.Attribute) and tree.value.attr in NAMESPACES:
            return missing_method_fault(f"{tree.value.attr}.{name}", span) or Fault(
                f"a method must be called: write `.{tree.value.attr}.{name}()`", span
            )
        fault = missing_method_fault(name, span)
        if fault is None:
            return Fault(f"a method must be called: write `.{name}()`", span)
        return Fault(f'{fault.message}. Write a struct\'s field as `column["{name}"]`', span)

    def _call(self, tree: ast.Call) -> Node:
        function = tree.func
        if isinstance(function, ast.Name):
            if function.id == "col":
                return self._column(tree)
            name, span, receiver = function.id, self._span(function), []
            fault = missing_function_fault(name, span)
        elif isinstance(function, ast.Attribute):
            name, span, inner = function.attr, self._name_span(function), function.value
            if name.startswith("_"):
                raise self._attribute_fault(function)
            if isinstance(inner, ast.Attribute) and inner.attr in NAMESPACES:
                name, inner = f"{inner.attr}.{name}", inner.value
            fault = missing_method_fault(name, span)
            receiver = [inner]
        else:
            raise Fault("only functions and methods of the language can be called", self._span(function))
        if fault is not None:
            raise fault
        arguments = tuple(self._argument(item) for item in [*receiver, *tree.args])
        if receiver and not isinstance(arguments[0], tuple) and isinstance(arguments[0], Constant):
            raise Fault("a literal has no methods: expected a column", arguments[0].span)
        keywords: dict[str, Node | tuple[Constant, ...]] = {}
        for item in tree.keywords:
            if item.arg is None:
                raise Fault("`**` before an argument is refused", self._span(item))
            if item.arg in keywords:  # which Python finds only when it compiles
                raise Fault(f"`{item.arg}` is given twice: expected it once", self._span(item))
            keywords[item.arg] = self._argument(item.value)
        return Call(name=name, arguments=arguments, keywords=keywords, span=self._span(tree))

    def _argument(self, tree: ast.expr) -> Node | tuple[Constant, ...]:
        return self._values(tree) if isinstance(tree, ast.List | ast.Tuple) else self.node(tree)

    def _column(self, tree: ast.Call) -> ColumnRef:
        match tree:
            case ast.Call(args=[ast.Constant(value=str(name))], keywords=[]):
                return ColumnRef(name=name, span=self._span(tree))
        raise Fault('`col` takes one constant string, as in `col("odd name")`', self._span(tree))


def _number(constant: Constant) -> int | float:
    value = constant.value
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault(f"arithmetic needs numbers: got {value!r}", constant.span)
    return value


def _fold(op: ArithmeticOperator, left: int | float, right: int | float, span: Span) -> int | float:
    """Arithmetic on two literals of at most 38 digits each: results stay small."""
    power = op == "**" and isinstance(right, int) and abs(right) <= _MAX_FOLDED_EXPONENT
    if op not in ("+", "-", "*", "/") and not power:
        raise Fault(f"`{op}` of these two literals is refused: write its result", span)
    try:
        value: int | float = ARITHMETIC[op](left, right)
    except ZeroDivisionError:
        raise Fault("the literal divides by zero", span) from None
    except OverflowError:
        raise Fault("the number is too large for a float64", span) from None
    if abs(value) >= 10**MAX_INTEGER_DIGITS and isinstance(value, int):
        raise Fault(f"the number is too long: expected at most {MAX_INTEGER_DIGITS} digits", span)
    if not math.isfinite(value):
        raise Fault("the number is too large for a float64", span)
    return value
