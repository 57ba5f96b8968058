"""YAML becomes plain values and positions: checked against json and ruamel's own writer; errors name positions."""

import io
import json
import math
from contextlib import suppress

import pytest
import yaml
from drawn_examples import examples
from hypothesis import example, given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from feedline.config.yaml_document import (
    MAX_BYTES,
    MAX_ENTRIES,
    Document,
    Position,
    path_text,
    read_document,
    resolve_scalar,
    unknown_message,
)
from feedline.errors import SpecError


def read(text):
    return read_document(text, "p.yaml")


def refused(text):
    with pytest.raises(SpecError) as caught:
        read(text)
    return str(caught.value)


printable = st.text(st.characters(codec="utf-8", categories=("L", "N", "P", "S", "Zs")), max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
leaves = st.none() | st.booleans() | numbers | printable
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(printable.filter(bool), inner, max_size=4),
    max_leaves=12,
)


@examples(100)
@given(values)
def test_json_is_read_like_a_json_parser(value):
    assert read(json.dumps(value, ensure_ascii=False)).value == value


@examples(60)
@given(st.dictionaries(printable.filter(bool), values, min_size=1, max_size=4))
@example({"a": "off", "b": "yes", "c": "2026-01-01", "d": "0o7", "e": "null", "f": "1e3", "<<": "x", "g": "~"})
def test_what_ruamel_writes_is_read_back(value):
    stream = io.StringIO()
    writer = YAML(typ="safe", pure=True)
    writer.default_flow_style = False  # in flow style ruamel writes a leading `?` that it cannot read
    writer.dump(value, stream)
    assert read(stream.getvalue()).value == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *[
            (word, word)
            for word in ("off", "on", "yes", "no", "Off", "y", "2026-01-01", "12:30", "1_000", "0b1", "1.2.3")
        ],
        *[(word, True) for word in ("true", "True", "TRUE")],
        *[(word, False) for word in ("false", "False", "FALSE")],
        *[(word, None) for word in ("", "~", "null", "Null", "NULL")],
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("-3", -3),
        ("+3", 3),
        ("1e3", 1000.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        (str(2**64 - 1), 2**64 - 1),
    ],
)
def test_scalars_follow_the_core_schema_of_yaml_1_2(text, value):
    result = resolve_scalar(text)
    assert result == value
    assert type(result) is type(value)


@pytest.mark.parametrize("text", [str(2**64), "-" + "9" * 30, "9" * 10_000, "1e999", "0x" + "f" * 40])
def test_numbers_beyond_64_bits_are_refused(text):
    with pytest.raises(ValueError, match="too large"):
        resolve_scalar(text)
    assert refused(f"a:\n  b: {text}").startswith("p.yaml:2:6: a.b: ")


def test_quoted_and_block_scalars_are_strings():
    document = read("a: '1'\nb: \"off\"\nc: |\n  2\nd: >-\n  x\n  y\ne: !!str 5\n")
    assert document.value == {"a": "1", "b": "off", "c": "2\n", "d": "x y", "e": "5"}


def test_keys_are_strings():
    assert read("1: a\non: b\nnull: c\n2.50: d\n").value == {"1": "a", "on": "b", "null": "c", "2.50": "d"}


def test_positions_of_keys_values_and_items():
    document = read("a: 1\nb:\n  - x\n  - {c: 2,  d: [3]}\ne:\nf: |\n  text\n")
    assert document.position(("a",)) == Position(line=1, column=4)
    assert document.position(("a",), key=True) == Position(line=1, column=1)
    assert document.position(("b",)) == Position(line=2, column=1)
    assert document.position(("b", 0)) == Position(line=3, column=5)
    assert document.position(("b", 1)) == Position(line=4, column=5)
    assert document.position(("b", 1, "d")) == Position(line=4, column=13)
    assert document.position(("b", 1, "d", 0)) == Position(line=4, column=17)
    assert document.position(("e",)) == Position(line=5, column=1), "an empty value has its key's position"
    assert document.position(("b", 1, "nothing", "here")) == document.position(("b", 1))
    assert document.position(("unknown",)) == Position(line=1, column=1)


def test_windows_lines_and_a_byte_order_mark_do_not_move_positions():
    document = read("\ufeffa: 1\r\nb: {c: 2}\r\n")
    assert document.value == {"a": 1, "b": {"c": 2}}
    assert document.position(("b", "c")) == Position(line=2, column=8)


def test_aliases_are_copies_with_the_anchors_position():
    document = read("a: &ops [log1p]\nb: *ops\n")
    assert document.value == {"a": ["log1p"], "b": ["log1p"]}
    assert document.value["a"] is not document.value["b"]
    assert document.position(("b", 0)) == Position(line=1, column=10)


@pytest.mark.parametrize(
    ("text", "position", "words"),
    [
        ("a: 1\nb: 2\na: 3\n", "3:1: a:", "duplicate key: got it on line 1 and again on line 3"),
        ("a: !!python/object:os.system x", "1:4: a:", "tag not allowed: got !!python/object:os.system"),
        ("a: !!int '5'", "1:4: a:", "tag not allowed: got !!int"),
        ("b: {<<: {c: 1}}", '1:5: b."<<":', "merge key"),
        ("a: *nope", "1:4: a:", "unknown alias: got *nope"),
        ("a: &x [*x]", "1:8: a[0]:", "unknown alias: got *x"),
        ("%YAML 1.1\n---\na: on", "1:1:", "%YAML directive"),
        ("a: 1\n---\nb: 2\n", "2:1:", "a second document"),
        ("a:\n\t- b", "2:1:", "a tab"),
        ("? [a]\n: b", "1:3:", "key is not a scalar: got a sequence"),
        ("a:\n  '': b", '2:3: a."":', "key is empty"),
        ("a:\n  : b", "2:3:", "a `:` without a key before it"),
        ("a: b\nc: \x00", "2:4:", 'the character U+0000 is not allowed. In double quotes it is written "\\u0000"'),
        ("a: b\u2028c", "1:5:", "the character U+2028"),
        ("a: \ud800", "1:4:", "the character U+D800 is not allowed"),
        ("a:\n  b: 1\n c: 2", "3:2:", "Indent the entries of a mapping alike"),
        ('a: "\\ud800"', "1:4: a:", "lone surrogate"),
        ('a: {"\\ud800": 1}', '1:5: a."\\ud800":', "lone surrogate"),
        ('a: "\\U00110000"', "1:1:", "not YAML"),
        ("a: @b", "1:4:", "Quote the value"),
        ("where: a: b", "1:9:", "Quote a value that holds `: `"),
        ('where: "a" == b', "1:12:", "Quote the whole value"),
        ("a: {expr: a in [1, 2]}", "1:16:", "quote a value that holds"),
        ("a: {b: ${N}}", "1:9:", "quote a value that holds"),
        ("n: 1\na: 'x\nb: c\n", "2:4:", "the quote here is not closed"),
        ("a: [1, 2", "1:4:", "the [ here is not closed: got the end of the file on line 1, expected ',' or ']'"),
        (
            "n: 1\na: {b: [x]\nc: {d: []}\n",
            "2:4:",
            "the { here is not closed: got another value on line 3, expected ',' or '}'",
        ),
        ("a:\n  b: [c, {d: 0}\n  e: []\n", "2:6:", "the [ here is not closed: got"),
        ("a: {\n  b: 3\n  c: 4\n}\n", "1:4:", "got ':' on line 3, expected ',' or '}'. Close it, put commas between"),
    ],
)
def test_refused_texts_name_their_position(text, position, words):
    message = refused(text)
    assert message.startswith(f"p.yaml:{position} ")
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("line", "quoted"),
    [
        ("x: {expr: clip(a, 0)}", '"clip(a, 0)"'),
        ("x: {expr: clip(a, 0), ops: []}", '"clip(a, 0)"'),
        ("x: {ops: [], expr: clip(a, b, c)}", '"clip(a, b, c)"'),
        ("x: {expr: clip(a, 0, 0)}", '"clip(a, 0, 0)"'),  # the key `0` once more than YAML allows
        ("x: {expr: f(g(a, 1), 2)}", '"f(g(a, 1), 2)"'),
        ("x: {expr: clip(a, min: 0)}", '"clip(a, min: 0)"'),
        ("x: [log1p, clip(a, 0)]", '"clip(a, 0)"'),
        ("x: [{expr: clip(a, 0)}]", '"clip(a, 0)"'),
        ('x: {expr: s == "a, b"}', "'s == \"a, b\"'"),
        ("x: {expr: s == 'a, b'}", "\"s == 'a, b'\""),
        ("x: {expr: clip(a,\n     0)}", '"clip(a,\n     0)"'),
    ],
)
def test_an_unquoted_comma_in_flow_style_is_detected(line, quoted):
    message = refused(f"# comment\n{line}")
    assert message.startswith("p.yaml:2:")
    assert "unquoted comma" in message
    assert f"Quote the expression: {quoted}" in message


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{expr: "clip(a, 0)"}', {"expr": "clip(a, 0)"}),
        ("{expr: ts.dt.hour() / 23, ops: [log1p]}", {"expr": "ts.dt.hour() / 23", "ops": ["log1p"]}),
        ("[don't, won't]", ["don't", "won't"]),
        ("[a (b), c (d)]", ["a (b)", "c (d)"]),
        ("[a (b, c]", ["a (b", "c"]),
    ],
)
def test_other_flow_style_is_left_alone(line, value):
    assert read(f"x: {line}").value == {"x": value}


def test_the_size_of_a_text_is_bounded():
    assert "document too large" in refused("a: " + "x" * MAX_BYTES)


@pytest.mark.parametrize("text", ["a: " + "[" * 20_000, "a: " + "{b: " * 5_000, "- " * 5_000, "? " * 5_000])
def test_depth_is_bounded(text):
    assert "nested too deeply" in refused(text)


def test_the_expansion_of_aliases_is_bounded():
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9)]
    message = refused("\n".join(rows))
    assert f"at most {MAX_ENTRIES} entries" in message


def test_aliases_cannot_nest_deeper_than_text():
    rows = ["a0: &a0 [x]"] + [f"a{i}: &a{i} [*a{i - 1}]" for i in range(1, 40)]
    assert "32 levels" in refused("\n".join(rows))


SYNTAX = st.text(st.sampled_from(list("ab:-[]{},'\"#&*!|>%@`? \n\t\\\r0.~<\u2028\x85\ufeff\ud800\x07")), max_size=40)


@examples(100)
@given(SYNTAX)
def test_any_text_is_read_or_refused_with_its_position(text):
    try:
        message = "p.yaml:" if read(text) else ""
    except SpecError as error:
        message = str(error)
    assert message.startswith("p.yaml:")


@pytest.mark.skipif(not yaml.__with_libyaml__, reason="this PyYAML has no libyaml")
@examples(100)
@given(SYNTAX | values.map(json.dumps))
@example("a: [b, {c: 'd', e: \"f\\n\"}]\ng: >-\n  h\n\n  i\nj: |2\n    k\n")
def test_without_libyaml_the_same_is_read(text):
    """But for tabs, of which libyaml allows more, and for the position of an empty document."""
    with pytest.MonkeyPatch.context() as patch, suppress(SpecError):
        patch.setattr(yaml, "__with_libyaml__", False)
        slowly = read(text)
        patch.undo()
        document = read(text)
        document.positions[()] = slowly.positions[()]
        assert document == slowly


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ((), ""),
        (("batch", "tail"), "batch.tail"),
        (("features", "dense", "price", 1, "clip"), "features.dense.price[1].clip"),
        (("features", "dense", "a.b"), 'features.dense."a.b"'),
        (("features", "größe", "user-id", "5"), "features.größe.user-id.5"),
        (("a b", ""), '"a b".""'),
        (('say "x"', "\x1b[0m", "\x9b"), '"say \\"x\\""."\\u001b[0m"."\\u009b"'),
    ],
)
def test_paths(path, text):
    assert path_text(path) == text


def test_unknown_names_suggest_the_nearest():
    assert unknown_message("key", "tial", ["size", "tail"]) == (
        "unknown key: got 'tial', expected one of 'size', 'tail'. Did you mean 'tail'?"
    )
    assert unknown_message("key", "TAIL", ["size", "tail"]).endswith("Did you mean 'tail'?")
    assert "Did you mean" not in unknown_message("key", "qqq", ["size", "tail"])
    many = [f"op_{number}" for number in range(50)]
    assert unknown_message("op", "opp_31", many) == "unknown op: got 'opp_31'. Did you mean 'op_31'?"
    assert "'op_49'" in unknown_message("op", "qqq", many)


def test_an_error_falls_back_to_the_parents_position():
    document = Document(
        file="f", value=None, positions={(): Position(line=1, column=1), ("a",): Position(line=3, column=5)}
    )
    assert str(document.error(("a", 0, "b"), "x")) == "f:3:5: a[0].b: x"
    assert str(document.error(("b",), "x", key=True)) == "f:1:1: b: x"
    assert str(Document(file="f", value=None).error(("a",), "x")) == "f: a: x"
