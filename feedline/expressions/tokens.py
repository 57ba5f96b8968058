"""Check that a string may be parsed as an expression.

Pure. `scan` walks the text once with Python's tokenizer, before `ast` sees it. What could exhaust the parser's stack
(brackets and prefix operators that nest, chains of `**`) or memory (text, tokens, digits), and every word or sign
outside the language, is refused with its exact position and the word to use instead. The text is read between
parentheses (`SourceText`), so that it may span several lines.
"""

from __future__ import annotations

import io
import keyword
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from feedline.expressions.spans import Fault, SourceText, Span

MAX_CHARACTERS = 65_536  # a `where` with a few thousand ids; a whole pipeline.yaml is rarely larger
MAX_TOKENS = 20_000  # each becomes at most one node
MAX_NESTING = 64  # brackets and prefix operators around one token; CPython's own limit for brackets is 200
MAX_POWERS = 64  # `**` nests to the right, so a chain of them adds depth, too
MAX_INTEGER_DIGITS = 38  # the widest decimal of Arrow; no column holds more


@dataclass(frozen=True, slots=True)
class Token:
    """A token of the text: its `tokenize` type, its characters, its span."""

    type: int
    string: str
    span: Span


_KEYWORDS = frozenset({"and", "or", "not", "in", "is", "None", "True", "False"})
_OPERATORS = frozenset("( ) [ ] , . + - * / // % ** == != < <= > >=".split())  # noqa: SIM905  a table of signs
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
    "}": "`}` is not allowed in an expression",
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
_ESCAPE = re.compile(r"""\\(?:[\\'"nrt]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})""")
_BYTES_ESCAPE = re.compile(r"""\\(?:[\\'"nrt]|x[0-9a-fA-F]{2})""")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_IGNORED_TYPES = frozenset({tokenize.NL, tokenize.NEWLINE, tokenize.COMMENT, tokenize.ENDMARKER})


def scan(text: str) -> list[Token]:
    """The tokens of the text, all of them allowed in the language.

    Raises:
        Fault: at the first character, word or nesting that is not allowed.
    """
    _check_characters(text)
    tokens: list[Token] = []
    nesting = _Nesting()
    for token in _tokens(text):
        if len(tokens) >= MAX_TOKENS:
            raise Fault(f"the expression is too large: more than {MAX_TOKENS:,} tokens", token.span)
        previous = tokens[-1] if tokens else None
        _check_token(token, previous, nesting)
        nesting.add(token, previous)
        tokens.append(token)
    if nesting.brackets:
        bracket = nesting.brackets[-1].token
        raise Fault(f"`{bracket.string}` is not closed", bracket.span)
    if not tokens:
        raise Fault("the expression is empty: expected something like `price > 0`", Span(0, 0))
    return tokens


def _check_characters(text: str) -> None:
    if len(text) > MAX_CHARACTERS:
        message = f"the expression is too long: got {len(text):,} characters, expected at most {MAX_CHARACTERS:,}"
        raise Fault(message, Span(0, 1))
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise Fault("a lone surrogate is not a character", Span(error.start, error.end)) from None
    control = _CONTROL.search(text)
    if control:
        raise Fault(f"the control character {control.group()!r} is refused", Span(*control.span()))


def _tokens(text: str) -> Iterator[Token]:
    """Python's tokens with character offsets."""
    source = SourceText(text)
    depth = 0
    try:
        for info in tokenize.generate_tokens(io.StringIO(source.wrapped).readline):
            if info.type in _IGNORED_TYPES or info.start == (1, 0) or not info.string.strip(" \t\r\n"):
                continue
            token = Token(info.type, info.string, Span(source.offset(*info.start), source.offset(*info.end)))
            if token.span.start >= len(text):  # the closing bracket of SourceText
                return
            depth += (token.string in ("(", "[", "{")) - (token.string in (")", "]", "}"))
            if depth < 0:
                raise Fault(f"`{token.string}` closes no bracket", token.span)
            yield token
    except (tokenize.TokenError, SyntaxError) as error:  # an unclosed string, an invalid character
        end = Span(len(text), len(text))
        raise Fault(f"the expression cannot be read: {error.args[0]}", end) from None


@dataclass(slots=True)
class _Bracket:
    token: Token
    call: bool
    prefixes: int


class _Nesting:
    """The depth of the last token: open brackets and the prefix operators before them."""

    def __init__(self) -> None:
        self.brackets: list[_Bracket] = []
        self._outer = 0
        self._prefixes = 0
        self._powers = 0

    @property
    def calling(self) -> bool:
        """Whether the innermost open bracket holds a call's arguments."""
        return bool(self.brackets) and self.brackets[-1].call

    def add(self, token: Token, previous: Token | None) -> None:
        word = token.string
        if token.type == tokenize.OP and word in ("(", "["):
            self._outer += self._prefixes + 1
            call = previous is not None and ends_operand(previous)
            self.brackets.append(_Bracket(token, call and word == "(", self._prefixes + 1))
            self._prefixes = 0
        elif token.type == tokenize.OP and word in (")", "]"):
            self._close(token)
        elif word in ("not", "+", "-") and (previous is None or not ends_operand(previous)):
            self._prefixes += 1
        elif ends_operand(token):
            self._prefixes = 0
        self._powers += word == "**"
        if self._outer + self._prefixes > MAX_NESTING:
            raise Fault(f"the expression is nested too deeply: more than {MAX_NESTING} levels", token.span)
        if self._powers > MAX_POWERS:
            raise Fault(f"the expression has too many powers: more than {MAX_POWERS} times `**`", token.span)

    def _close(self, token: Token) -> None:
        bracket = self.brackets.pop()
        if bracket.token.string + token.string not in ("()", "[]"):
            raise Fault(f"`{bracket.token.string}` is closed by `{token.string}`", token.span)
        self._outer -= bracket.prefixes
        self._prefixes = 0


def ends_operand(token: Token) -> bool:
    """Whether a value can end with this token, so that a following `(` calls and a following `-` subtracts."""
    if token.type == tokenize.NAME:
        return token.string not in ("and", "or", "not", "in", "is")
    return token.type in (tokenize.NUMBER, tokenize.STRING) or token.string in (")", "]")


def _check_token(token: Token, previous: Token | None, nesting: _Nesting) -> None:
    word = token.string
    if token.type == tokenize.NAME and keyword.iskeyword(word) and word not in _KEYWORDS:
        reason = _INSTEAD.get(word, f"the word `{word}` is not allowed in an expression")
        raise Fault(f'{reason} (a column of that name: `col("{word}")`)', token.span)
    if previous is not None:
        _check_neighbours(token, previous)
    if token.type == tokenize.NAME:
        return
    if token.type == tokenize.NUMBER:
        _check_number(token)
    elif token.type == tokenize.STRING:
        _check_string(token)
    elif token.type == tokenize.OP and (word in _OPERATORS or (word == "=" and nesting.calling)):
        return
    elif word[0] in "'\"":
        raise Fault(f"a string is not closed: expected another {word[0]}", token.span)
    else:
        shown = f"`{word}`" if word.isprintable() else ascii(word)
        raise Fault(_INSTEAD.get(word, f"{shown} is not allowed in an expression"), token.span)


def _check_number(token: Token) -> None:
    digits = token.string.replace("_", "").lower()
    if digits.endswith("j"):
        raise Fault("complex numbers are refused", token.span)
    if len(digits) > 400 or (digits.isdigit() and len(digits.lstrip("0")) > MAX_INTEGER_DIGITS):
        raise Fault(f"the number is too long: expected at most {MAX_INTEGER_DIGITS} digits", token.span)


def _check_string(token: Token) -> None:
    prefix = token.string[: min(token.string.find(q) for q in "'\"" if q in token.string)].lower()
    if "f" in prefix or "t" in prefix:
        raise Fault("f-strings are refused: nothing is evaluated inside a string", token.span)
    if "r" in prefix:
        return
    escape = _BYTES_ESCAPE if "b" in prefix else _ESCAPE
    rest = escape.sub(lambda match: "_" * len(match.group()), token.string)
    if "\\" in rest:
        at = rest.index("\\")
        shown = token.string[at : at + 2]
        span = Span(token.span.start + at, token.span.start + at + 2)
        raise Fault(f'the escape `{shown}` is unknown: write `\\\\` for a backslash, or r"..."', span)


def _check_neighbours(token: Token, previous: Token) -> None:
    """Raise Fault for two values without an operator between them: most often a word of SQL."""
    both = previous.span.to(token.span)
    if previous.span.stop == token.span.start and previous.string + token.string == "<>":
        raise Fault(_INSTEAD["<>"], both)
    if previous.span.stop == token.span.start and (previous.type, token.type) == (tokenize.NUMBER, tokenize.NAME):
        raise Fault(f"the number runs into `{token.string[:40]}`: put a space between", both)
    starts = token.type in (tokenize.NUMBER, tokenize.STRING) or (
        token.type == tokenize.NAME and token.string not in ("and", "or", "not", "in", "is")
    )
    if not starts or not ends_operand(previous) or token.type == previous.type == tokenize.STRING:
        return
    for word in (token, previous):
        hint = _FROM_SQL.get(word.string.upper()) if word.type == tokenize.NAME else None
        if hint:
            raise Fault(hint, word.span)
    raise Fault(f"unexpected `{token.string[:40]}`: expected an operator before it", token.span)
