"""Expressions drawn from the grammar: what they are does not depend on how they are written, and damage is refused."""

from __future__ import annotations

import ast
from typing import Any

import pyarrow as pa
from drawn_examples import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from feedline.errors import ExpressionError
from feedline.expressions import bind_expression, bind_where, parse

SCHEMA = pa.schema(
    [
        *(("x", pa.float32()), ("n", pa.int64()), ("s", pa.string()), ("b", pa.bool_()), ("t", pa.timestamp("us"))),
        *(("l", pa.list_(pa.int64())), ("u", pa.struct([("a", pa.int8())])), ("odd name", pa.int32())),
    ]
)
NUMBERS = [
    "x",
    "n",
    'u["a"]',
    'col("odd name")',
    "0",
    "1",
    "-3",
    "2.5",
    "t.dt.hour()",
    "l.list.len()",
    "s.str.len_chars()",
]
STRINGS = ["s", "'a'", '"é"', "s.str.slice(0, 2)", "s.str.to_lowercase()"]
OTHERS = [
    "b",
    "t",
    "l",
    "u",
    "missing",
    "None",
    "'2026-01-01'",
    "9223372036854775807",
    "1e300",
    "10**400",
    "b'x'",
    "x.y",
]
BINARY = ["+", "-", "*", "/", "//", "%"]
COMPARED = ["==", "!=", "<", "<=", ">", ">="]


def numbers(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A number of numbers; each part is in brackets."""
    return st.one_of(
        st.tuples(parts, st.sampled_from(BINARY), parts).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
        parts.map(lambda each: f"-({each})"),
        st.tuples(parts, st.sampled_from(["abs()", "fill_null(0)"])).map(lambda each: f"({each[0]}).{each[1]}"),
        st.tuples(parts, parts, parts).map(lambda each: f"when(({each[0]}) < ({each[1]}), ({each[2]}), ({each[0]}))"),
    )


def conditions(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A condition of conditions."""
    return st.one_of(
        st.tuples(parts, st.sampled_from(["and", "or"]), parts).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
        parts.map(lambda each: f"not ({each})"),
    )


def compared(parts: st.SearchStrategy[str], values: list[str]) -> st.SearchStrategy[str]:
    """A condition of values of one kind."""
    listed = st.lists(st.sampled_from(values), min_size=1, max_size=3).map(", ".join)
    return st.one_of(
        st.tuples(parts, st.sampled_from(COMPARED), parts).map(lambda each: f"({each[0]}) {each[1]} ({each[2]})"),
        st.tuples(parts, parts, parts).map(lambda each: f"({each[0]}) <= ({each[1]}) < ({each[2]})"),
        st.tuples(parts, st.sampled_from(["is None", "is not None"])).map(lambda each: f"({each[0]}) {each[1]}"),
        st.tuples(parts, st.sampled_from(["in", "not in"]), listed).map(
            lambda each: f"({each[0]}) {each[1]} [{each[2]}]"
        ),
    )


NUMERIC = st.recursive(st.sampled_from(NUMBERS), numbers, max_leaves=8)
CONDITION = st.recursive(
    compared(NUMERIC, ["0", "1", "7"]) | compared(st.sampled_from(STRINGS), ["'a'", "'b'"]), conditions, max_leaves=5
)
# Of any kinds: most are refused.
MIXED = st.recursive(
    st.sampled_from([*NUMBERS, *STRINGS, *OTHERS]),
    lambda parts: numbers(parts) | conditions(parts) | compared(parts, OTHERS),
    max_leaves=6,
)
TEXTS = NUMERIC | CONDITION | MIXED


def test_most_drawn_expressions_are_bound() -> None:
    drawn: list[bool] = []

    @settings(max_examples=100, derandomize=True, database=None)
    @given(NUMERIC | CONDITION)
    def draw(text: str) -> None:
        drawn.append(meaning(text).startswith("refused"))

    draw()
    assert sum(drawn) < len(drawn) / 3


def meaning(text: str) -> str:
    """What an expression is, or why it is refused, without the place."""
    try:
        return str(bind_expression(parse(text), SCHEMA).polars)
    except ExpressionError as error:
        lines = str(error).splitlines()
        assert lines
        return f"refused: {type(error).__name__}"


@examples(150)
@given(TEXTS)
def test_brackets_and_spaces_that_python_s_own_printer_leaves_out_change_nothing(text: str) -> None:
    printed = ast.unparse(ast.parse(text, mode="eval"))
    assert meaning(printed) == meaning(text)
    assert meaning(f"(  {text}\n )") == meaning(text)


@examples(150)
@given(TEXTS, st.data())
def test_a_damaged_expression_is_bound_or_refused_at_its_place(text: str, data: Any) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(text)))
        inserted = data.draw(st.text(max_size=2) | st.sampled_from(["(", ")", "[", "'", '"', "\n", "\x00", "~", ":="]))
        text = text[:place] + inserted + text[place + data.draw(st.integers(0, 3)) :]
    for read in (lambda: bind_expression(parse(text), SCHEMA), lambda: bind_where(text, SCHEMA)):
        try:
            read()
        except ExpressionError as error:
            assert "^" in str(error)  # noqa: PT017
