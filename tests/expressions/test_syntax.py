"""Text is checked before Python's parser sees it; what the parser or the language refuses is worded here."""

from __future__ import annotations

import io
import tokenize

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedline.expressions.nodes import Fault
from feedline.expressions.parser import MAX_BRACKETS, MAX_CHARACTERS, check, parse_tree


def test_strings_and_comments_are_masked_by_as_many_characters():
    text = "x == 'a(' and y in ['\\'', r'\\d', b']'] # why (\n < 1.5 + '''é\n''' + '#'"
    masked = check(text)
    assert masked.replace('"', "S") == "x == SSSS and y in [SSSS, SSSSS, SSSS]        \n < 1.5 + SSSSSSSS + SSS"
    assert len(masked) == len(text)


PIECES = [*"x()[]+,", " 1 ", "2.5e3", '"é😀("', "'''\n)'''", "and", "\n", "\r\n", " ", "# é\n", "'\\''", ".dt", "r'\\'"]


@given(st.lists(st.sampled_from(PIECES)).map(" ".join))
def test_what_is_masked_is_what_python_s_tokenizer_calls_strings_and_comments(text: str):
    try:
        masked = check(text)
    except Fault:
        return  # unbalanced brackets, and texts without a token
    lines = [list(line) for line in text.replace("\r\n", "\n").splitlines(keepends=True)]
    for token in tokenize.generate_tokens(io.StringIO("".join(map("".join, lines))).readline):
        if token.type in (tokenize.STRING, tokenize.COMMENT):
            (row, column), (last, stop) = token.start, token.end
            for number in range(row - 1, last):
                first = column if number == row - 1 else 0
                end = stop if number == last - 1 else len(lines[number])
                lines[number][first:end] = ('"' if token.type == tokenize.STRING else " ") * (end - first)
    assert masked.replace("\r\n", "\n").splitlines() == "".join(map("".join, lines)).splitlines()


def test_limits_are_inclusive():
    assert check("x" * MAX_CHARACTERS)
    assert check("(" * MAX_BRACKETS + "x" + ")" * MAX_BRACKETS)
    for text, message in {
        "x" * (MAX_CHARACTERS + 1): "the expression is too long: got 65,537 characters, expected at most 65,536. Write "
        "`column in [...]` for many values, or a range; or mark the rows in a column of the table",
        "(" * (MAX_BRACKETS + 1): "the expression is nested too deeply: more than 64 brackets",
    }.items():
        with pytest.raises(Fault) as caught:
            check(text)
        assert caught.value.message == message


def test_an_equals_sign_names_an_argument_only_directly_inside_a_call():
    assert parse_tree("clip(x, lower_bound=1)")
    for text in ("a=1", "(a=1)", "[a=1]", "f([a=1])", "x[a=1]", "not (a=1)"):
        with pytest.raises(Fault, match="`=` assigns"):
            parse_tree(text)
