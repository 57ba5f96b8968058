"""Errors point at the characters they are about."""

from __future__ import annotations

import io
import tokenize

import pyarrow as pa
import pytest

from feedline.errors import ExpressionError
from feedline.expressions import bind_expression, parse
from feedline.expressions.nodes import Fault, SourceText, Span, render

SCHEMA = pa.schema([("x", pa.float32()), ("y", pa.float64()), ("n", pa.int64()), ("s", pa.struct([("s", pa.int8())]))])


PLACES = {
    "x > 1 and pricee > 3": "pricee",
    "x > 1\n  and pricee > 3": "pricee",
    'n > 1 and "é€😀" == pricee': "pricee",
    "x.dt.huor() > 1": "huor",
    "x > 1 & y": "&",
    "x = 1": "=",
    "n > 1 and x in [1, None]": "None",
    "x.clip(0, uper_bound=1)": "1",
    "n == 'a' and x > 1": "'a'",
    "1 < n < x.mean()": "mean",
    "x > 1 y": "y",
}


@pytest.mark.parametrize("text", PLACES)
def test_the_caret_is_under_the_span(text: str):
    with pytest.raises(ExpressionError) as caught:
        bind_expression(parse(text), SCHEMA)
    line, carets = str(caught.value).splitlines()[-2:]
    start = carets.index("^")
    assert line[start : start + carets.count("^")] == PLACES[text]


def test_a_long_line_is_shown_around_the_span():
    with pytest.raises(ExpressionError) as caught:
        bind_expression(
            parse(f"n in [{', '.join(['7'] * 900)}] and pricee > 1 and n in [{', '.join(['7'] * 900)}]"), SCHEMA
        )
    line, carets = str(caught.value).splitlines()[-2:]
    assert len(line) < 140
    assert line[carets.index("^") :].startswith("pricee")
    assert line.startswith("  …")
    assert line.endswith("…")


@pytest.mark.parametrize("text", ["x + yy", "a\nbé + c", "a\r\n  bé\rc", "", "x\n"])
def test_offsets_are_those_of_python_s_tokens(text: str):
    source = SourceText(text)
    for token in tokenize.generate_tokens(io.StringIO(source.wrapped).readline):
        start = source.offset(*token.start)
        if token.type == tokenize.NAME:
            row, column = token.start
            line = source.wrapped.splitlines()[row - 1]
            assert text[start : start + len(token.string)] == token.string
            assert source.offset_of_byte(row, len(line[:column].encode())) == start


def test_a_position_beyond_the_text_is_its_end():
    source = SourceText("ab")
    assert source.offset(1, 99) == source.offset(9, 0) == source.offset_of_byte(9, 0) == 2


def test_a_fault_is_shown_with_its_line_and_carets():
    assert render("a\nb + cc\nd", Fault("wrong", Span(6, 8))) == "wrong\n  b + cc\n      ^^"
    assert render("x", Fault("incomplete", Span(1, 1))) == "incomplete\n  x\n   ^"
    assert render("a\tb", Fault("wrong", Span(2, 3))) == "wrong\n  a\ufffdb\n    ^"
