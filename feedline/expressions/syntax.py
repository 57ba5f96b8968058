"""Check what Python's parser would read in another sense, and say why it or the language refuses a text.

Pure. `check` comes before the parser and looks at literals and brackets alone: the parser reads the text between
brackets (`SourceText`), and it warns of some literals. `fault_at` words a refusal by the first word or sign that is not
of the language, else by the place of Python's `SyntaxError`, whose messages differ between versions of Python.
"""

from __future__ import annotations

import keyword
import re
from itertools import pairwise

from feedline.expressions.spans import Fault, Span

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
    found = foreign(text, masked)
    if found is not None:
        return found
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
