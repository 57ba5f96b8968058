"""The tokens of an expression, with their positions, and the limits that keep Python's parser safe."""

from __future__ import annotations

import tokenize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.expressions.spans import Fault, Span
from feedline.expressions.tokens import MAX_CHARACTERS, MAX_NESTING, MAX_POWERS, MAX_TOKENS, Token, ends_operand, scan


def words(text: str) -> list[str]:
    return [token.string for token in scan(text)]


def test_tokens_are_python_s_without_comments_and_line_ends():
    assert words('clip(x, lower=-1.5) >= 2 ** n  # why\n and "a b" in ["é"]') == [
        *["clip", "(", "x", ",", "lower", "=", "-", "1.5", ")", ">=", "2", "**", "n"],
        *["and", '"a b"', "in", "[", '"é"', "]"],
    ]
    assert scan("x") == [Token(tokenize.NAME, "x", Span(0, 1))]


@given(st.lists(st.sampled_from(["x", "+", "(", "1", ")", '"é😀"', "and", "\n", "\r\n", "\t", " ", "# é\n"])))
def test_a_span_holds_its_token_s_characters(pieces: list[str]):
    text = " ".join(pieces)
    try:
        tokens = scan(text)
    except Fault:
        return  # tested below
    assert [text[token.span.start : token.span.stop] for token in tokens] == [token.string for token in tokens]


def test_limits_are_inclusive():
    assert len(scan("x" * MAX_CHARACTERS)) == 1
    assert len(scan(",".join("x" * (MAX_TOKENS // 2)) + ",")) == MAX_TOKENS
    assert scan("(" * MAX_NESTING + "x" + ")" * MAX_NESTING)
    assert scan("x" + "**x" * MAX_POWERS)
    for text, message in {
        "x" * (MAX_CHARACTERS + 1): "the expression is too long: got 65,537 characters, expected at most 65,536",
        ",".join("x" * (MAX_TOKENS // 2)) + ",x": "the expression is too large: more than 20,000 tokens",
        "(" * (MAX_NESTING + 1): "the expression is nested too deeply: more than 64 levels",
        "x" + "**x" * (MAX_POWERS + 1): "the expression has too many powers: more than 64 times `**`",
    }.items():
        with pytest.raises(Fault) as caught:
            scan(text)
        assert caught.value.message == message


@pytest.mark.parametrize(
    ("text", "start", "shown"),
    [
        ("x & y", 2, "&"),
        ("x = 1", 2, "="),
        ("a and (b", 6, "("),
        ("(a]", 2, "]"),
        ("x > 1 AND y", 6, "AND"),
        (r"x == 'a\d'", 7, r"\d"),
        ("x > lambda", 4, "lambda"),
        ("x < 1j", 4, "1j"),
    ],
)
def test_a_fault_is_at_the_first_refused_token(text: str, start: int, shown: str):
    with pytest.raises(Fault) as caught:
        scan(text)
    assert (caught.value.span.start, text[caught.value.span.start : caught.value.span.stop]) == (start, shown)


def test_an_equals_sign_names_an_argument_only_directly_inside_a_call():
    assert "=" in words("f(a=1)")
    for text in ("a=1", "(a=1)", "[a=1]", "f([a=1])"):
        with pytest.raises(Fault, match="`=` assigns"):
            scan(text)


def test_values_end_with_names_literals_and_closing_brackets():
    ends = {token.string for token in scan('x + 1 and ("a" in [True]) is not None') if ends_operand(token)}
    assert ends == {"x", "1", '"a"', "True", "]", ")", "None"}
