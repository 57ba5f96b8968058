"""Parse an expression's text into a tree of the language's nodes.

Pure. The text is checked (`syntax.check`), parsed with `ast` and rebuilt node by node: a kind of Python node that
`_Builder` does not name is refused. Functions and methods are looked up in the allow-list here, so a hostile text fails
before it meets a table. Only arithmetic on two literals (`60 * 60`), which is bounded, is evaluated in Python.
"""

from __future__ import annotations

import ast
import contextlib
import keyword
import math
import re
import threading
from itertools import pairwise

from feedline.expressions.nodes import (
    Arithmetic,
    ArithmeticOperator,
    Call,
    ColumnRef,
    Compare,
    Constant,
    Fault,
    Field,
    Logic,
    Member,
    Negation,
    Negative,
    Node,
    NullTest,
    SourceText,
    Span,
)
from feedline.expressions.operators import ARITHMETIC
from feedline.expressions.predicates import Operator
from feedline.expressions.reference import NAMESPACES, missing_function_fault, missing_method_fault

# --------------------------------------------------------------------------------------------------------------------
# Check what Python's parser would read in another sense, and say why it or the language refuses a text. `check` comes
# before the parser and looks at literals and brackets alone: the parser reads the text between brackets
# (`SourceText`), and it warns of some literals. `fault_at` words a refusal by the first word or sign that is not of
# the language, else by the place of Python's `SyntaxError`, whose messages differ between versions of Python.

MAX_CHARACTERS = 65_536  # a `where` with a few thousand ids; a whole pipeline.yaml is rarely larger
MAX_BRACKETS = 64  # one in another; CPython's own limit is 200
MAX_INTEGER_DIGITS = 38  # the widest decimal of Arrow; no column holds more

_OPERATORS_IN_WORDS = frozenset({"and", "or", "not", "in", "is"})
_KEYWORDS = _OPERATORS_IN_WORDS | {"None", "True", "False"}
_BINARY = frozenset("+ - * / // % ** == != < <= > >=".split())  # noqa: SIM905  a table of signs
_OPERATORS = _BINARY | frozenset("()[],.")
_INSTEAD = {
    "&": "`&` is refused: it binds tighter than a comparison. Write `and`",
    "|": "`|` is refused: it binds tighter than a comparison. Write `or`",
    "~": "`~` is refused: it binds tighter than a comparison. Write `not`",
    "^": "`^` is refused. For a power write `**`",
    "=": "`=` assigns, and nothing can be assigned here. To compare write `==`",
    ":=": "`:=` assigns, and nothing can be assigned here. To compare write `==`",
    "<>": "`<>` is refused. Write `!=`",
    "!": "`!` is refused. Write `not`, or `!=` to compare",
    "{": "sets and dictionaries are refused. Write a list: `[1, 2]`",
    ":": "`:` is refused: a part of a string is `.str.slice(start, length)`, of a list `.list.slice(start, length)`",
    "?": "`?` is refused. Write `when(condition, value, otherwise)`",
    "->": '`->` is refused. A struct\'s field is `column["field"]`',
    ";": "`;` is refused: one string is one expression",
    "@": "`@` is refused: rows are not matrices",
    "$": '`$` is refused: a column is its bare name, or `col("odd name")`',
    "`": 'a backtick is refused: write an odd column name as `col("odd name")`',
    "if": "`if` is refused. Write `when(condition, value, otherwise)`",
    "else": "`else` is refused. Write `when(condition, value, otherwise)`",
    "for": "`for` is refused: an expression has no loops",
}
_FROM_SQL = {
    "AND": "SQL's `AND` is written `and`",
    "OR": "SQL's `OR` is written `or`",
    "NOT": "SQL's `NOT` is written `not`",
    "IN": "SQL's `IN (...)` is written `in [...]`",
    "IS": "SQL's `IS NULL` is written `is None`",
    "NULL": "SQL's `NULL` is written `None`, and tested with `is None`",
    "LIKE": '`LIKE` is written `.str.starts_with("…")`, `.str.ends_with("…")` or `.str.contains("…")`',
    "ILIKE": '`ILIKE` is written `.str.to_lowercase().str.contains("…")`',
    "BETWEEN": "`x BETWEEN 1 AND 2` is written `1 <= x <= 2`",
    "CASE": "`CASE` is written `when(condition, value, otherwise)`",
}
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_ESCAPE = re.compile(r"""\\(?:[\\'"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})""")
_BYTES_ESCAPE = re.compile(r"""\\(?:[\\'"nrt]|x[0-9a-fA-F]{2})""")
_NUMBER = (
    r"(?<![\w.])(?P<number>(?>0[xX][0-9a-fA-F_]+|0[oO][0-7_]+|0[bB][01_]+"
    r"|(?:[0-9][0-9_]*\.?[0-9_]*|\.[0-9][0-9_]*)(?:[eE][+-]?[0-9][0-9_]*)?[jJ]?))"
)
_LITERAL = re.compile(
    r"""(?P<comment>\#[^\r\n]*)|(?P<bracket>[()\[\]{}])"""
    r"""|(?:(?<!\w)(?P<prefix>[rRbBuUfFtT]{1,2}))?(?:(?P<string>(?P<quotes>\'{3}|"{3})(?:[^\\]|\\.)*?(?P=quotes)"""
    r"""|(?!\'{3}|"{3})(?P<quote>['"])(?:(?!(?P=quote))[^\\\r\n]|\\.)*(?P=quote))|(?P<open>\'{3}|"{3}|['"]))"""
    rf"|{_NUMBER}(?P<run>\w*)",
    re.DOTALL,
)
# Of text with strings as quotes: one or more strings, a number, a name, a sign; not white space, nor a continued line.
_TOKEN = re.compile(
    rf'"+|{_NUMBER}|\w+|\.\.\.|<>|:=|->|(?:\*\*|//|<<|>>|[-+*/%@&|^=!<>])=|\*\*|//|<<|>>|(?![ \t\r\n]|\\[\r\n]).',
    re.DOTALL,
)


def check(text: str) -> str:
    """The text with blanks for comments, and quotes for each character of a string.

    Raises:
        Fault: for text that is too long or empty, at a character, a literal or a bracket that is not allowed.
    """
    # x == 'a(' # why -> x == """"      (the bracket in the string is none)
    _check_characters(text)
    brackets: list[int] = []
    masked: list[str] = []
    strings: list[re.Match[str]] = []
    stop = 0
    for piece in _LITERAL.finditer(text):
        span = Span(*piece.span())
        if piece["bracket"]:
            _check_bracket(text, span, brackets)
            continue
        if piece["number"]:
            _check_number(piece["number"], piece["run"], span)
            continue
        if not piece["comment"]:
            _check_string(piece, span)
            strings.append(piece)
        masked += text[stop : span.start], (" " if piece["comment"] else '"') * (span.stop - span.start)
        stop = span.stop
    masked.append(text[stop:])
    if brackets:
        raise Fault(f"`{text[brackets[-1]]}` is not closed", Span(brackets[-1], brackets[-1] + 1))
    if not "".join(masked).strip(" \t\r\n"):
        raise Fault("the expression is empty: expected something like `price > 0`", Span(0, 0))
    _check_joined("".join(masked), strings)
    return "".join(masked)


def _check_characters(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        message = f"the expression is too long: got {len(text):,} characters, expected at most {MAX_CHARACTERS:,}. "
        message += "Write `column in [...]` for many values, or a range; or mark the rows in a column of the table"
        raise Fault(message, Span(0, 1))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Fault("a lone surrogate is not a character", Span(error.start, error.end)) from None
    control = _CONTROL.search(text)
    if control:
        raise Fault(f"the control character {control.group()!r} is refused", Span(*control.span()))


def _check_bracket(text: str, span: Span, brackets: list[int]) -> None:
    """brackets: where those that are open begin."""
    bracket = text[span.start]
    if bracket in "{}":
        raise Fault(_INSTEAD["{"], span)
    if bracket in "([":
        brackets.append(span.start)
        if len(brackets) > MAX_BRACKETS:
            raise Fault(f"the expression is nested too deeply: more than {MAX_BRACKETS} brackets", span)
        return
    if not brackets:
        raise Fault(f"`{bracket}` closes no bracket", span)
    opened = text[brackets.pop()]
    if opened + bracket not in ("()", "[]"):
        raise Fault(f"`{opened}` is closed by `{bracket}`", span)


def _check_number(number: str, run: str, span: Span) -> None:
    digits = number.replace("_", "").lower()
    if run:
        raise Fault(f"the number runs into `{run[:40]}`: put a space between", span)
    if digits.endswith("j"):
        raise Fault("complex numbers are refused", span)
    if len(digits) > 400 or (digits.isdigit() and len(digits.lstrip("0")) > MAX_INTEGER_DIGITS):
        raise Fault(f"the number is too long: expected at most {MAX_INTEGER_DIGITS} digits", span)


def _check_string(piece: re.Match[str], span: Span) -> None:
    prefix, string = (piece["prefix"] or "").lower(), piece["string"]
    if "f" in prefix or "t" in prefix:
        raise Fault("f-strings are refused: nothing is evaluated inside a string", span)
    if not string:
        raise Fault(f"a string is not closed: expected another {piece['open']}", span)
    if "r" in prefix:
        return
    escape = _BYTES_ESCAPE if "b" in prefix else _ESCAPE
    rest = escape.sub(lambda match: "_" * len(match.group()), string)
    if "\\" in rest:
        at = rest.index("\\")
        start = piece.start("string") + at
        message = f'the escape `{string[at : at + 2]}` is unknown: write `\\\\` for a backslash, or r"..."'
        raise Fault(message, Span(start, start + 2))


def _check_joined(masked: str, strings: list[re.Match[str]]) -> None:
    """Refuse a string beside bytes, which Python would join: 'a' b'b'."""
    for one, other in pairwise(strings):
        if _is_bytes(one) != _is_bytes(other) and not masked[one.end() : other.start()].strip(" \t\r\n\\"):
            message = "a string and bytes cannot be joined: expected an operator or a comma between them"
            raise Fault(f"{message}, or `b` before both or neither", Span(*other.span()))


def _is_bytes(string: re.Match[str]) -> bool:
    return "b" in (string["prefix"] or "").lower()


def fault_at(text: str, masked: str, at: int) -> Fault:
    """Why a text is refused, at or before the character `at`. masked: of `check`."""
    fault = foreign(text, masked)
    if fault is not None:
        return fault
    for token in _TOKEN.finditer(masked):
        if token.end() > at:
            return Fault(f"unexpected `{_shown(text, token)}`", Span(*token.span()))
    return Fault("the expression is incomplete", Span(len(text), len(text)))


def foreign(text: str, masked: str) -> Fault | None:
    """The first word or sign that is not of the language, or does not belong behind the one before it."""
    previous: re.Match[str] | None = None
    calls = [False]  # whether the brackets that are open hold a call's arguments
    for token in _TOKEN.finditer(masked):
        word, span = token.group(), Span(*token.span())
        if keyword.iskeyword(word) and word not in _KEYWORDS:
            reason = _INSTEAD.get(word, f"the word `{word}` is not allowed in an expression")
            return Fault(f'{reason} (a column of that name: `col("{word}")`)', span)
        if _is_value(word):
            if previous is not None and _ends_value(previous) and not word[0] == previous.group()[0] == '"':
                return _neighbours_fault(text, previous, token)
        elif word not in _OPERATORS and word not in _KEYWORDS and not (word == "=" and calls[-1]):
            shown = f"`{word}`" if word.isprintable() else ascii(word)
            return Fault(_INSTEAD.get(word, f"{shown} is not allowed in an expression"), span)
        elif previous is not None and (previous.group(), word) in (("=", ")"), ("=", ",")):
            return Fault(f"unexpected `{word}`: expected a value before it", span)
        elif word == "not" and previous is not None and previous.group() in _BINARY:
            return Fault("`not` binds weaker than the operator before it: write `(not …)`", span)
        if word in ("(", "["):
            calls.append(word == "(" and previous is not None and _ends_value(previous))
        elif word in (")", "]"):
            calls.pop()
        previous = token
    return None


def _neighbours_fault(text: str, previous: re.Match[str], token: re.Match[str]) -> Fault:
    """For two values without an operator between them: most often a word of SQL."""
    for each in (token, previous):
        if each.group().upper() in _FROM_SQL:
            return Fault(_FROM_SQL[each.group().upper()], Span(*each.span()))
    return Fault(f"unexpected `{_shown(text, token)}`: expected an operator before it", Span(*token.span()))


def _is_value(word: str) -> bool:
    """Whether a token is a name, or begins a string or a number."""
    return word not in _OPERATORS_IN_WORDS and (
        word.isidentifier() or word[0] == '"' or word.strip(".")[:1].isdecimal()
    )


def _ends_value(token: re.Match[str]) -> bool:
    return token.group() in (")", "]") or _is_value(token.group())


def _shown(text: str, token: re.Match[str]) -> str:
    return text[token.start() : min(token.end(), token.start() + 40)]


# --------------------------------------------------------------------------------------------------------------------

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
