"""Overrides by dotted key, and variables from the environment."""

import json
import shlex
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st

from feedline.config.overrides import (
    CommandLineOverrides,
    apply_overrides,
    override_options,
    parse_overrides,
    substitute_variables,
)
from feedline.config.yaml_document import path_text, read_document
from feedline.errors import SpecError

TEXT = """\
batch: {size: 8, tail: drop}
shuffle: {seed: 1}
features:
  dense:
    price: [log1p]
  extra: [id]
empty:
"""


def applied(overrides, text=TEXT):
    document = read_document(text, "p.yaml")
    apply_overrides(document, overrides)
    return document


def substituted(text, **environment):
    document = read_document(text, "p.yaml")
    substitute_variables(document, environment)
    return document.value


@pytest.mark.parametrize(
    ("argument", "key", "value"),
    [
        ("batch.size=64", "batch.size", 64),
        ("batch.tail=pad", "batch.tail", "pad"),
        ("shuffle={seed: 3, rows: false}", "shuffle", {"seed": 3, "rows": False}),
        ('features.dense.price=[{clip: {min: 0}}, "log1p"]', "features.dense.price", [{"clip": {"min": 0}}, "log1p"]),
        ("source.where=", "source.where", None),
        (
            'source.where=ds >= "2026-01-01" and x != "a: b" # c',
            "source.where",
            'ds >= "2026-01-01" and x != "a: b" # c',
        ),
        ('source.where="a" == b or c == "d"', "source.where", '"a" == b or c == "d"'),
        ("name='5'", "name", "5"),
        ('name="off"', "name", "off"),
        (" batch.size = 3 ", "batch.size", 3),
        ('features.dense."a.b=c"=[]', 'features.dense."a.b=c"', []),
    ],
)
def test_arguments_of_the_command_line(argument, key, value):
    assert parse_overrides([argument]) == {key: value}


def test_the_last_of_two_equal_keys_wins_and_comes_last():
    overrides = parse_overrides(["batch.size=1", "shuffle=off", "batch.size=2"])
    assert list(overrides.items()) == [("shuffle", "off"), ("batch.size", 2)]


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        ("batch.size", "--set batch.size: no value"),
        ("batch.=3", "not a key"),
        ('""=3', "not a key"),
        ('a."b=3', "a quote in the key is not closed"),
        ('a."b"c=3', "a quoted name must be a whole part"),
        ("a=[1, 2", "--set a:1:1: not YAML: the [ here is not closed"),
        ("a={b: 1, b: 2}", "duplicate key"),
        ("a=" + "9" * 30, "integer too large"),
        ("a=" + "[" * 5000, "nested too deeply"),
    ],
)
def test_wrong_arguments(argument, words):
    with pytest.raises(SpecError) as caught:
        parse_overrides([argument])
    assert words in str(caught.value)
    assert str(caught.value).startswith("--set ")


@examples(100)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1, max_size=4))
def test_the_text_of_a_path_is_an_override_key(path):
    document = applied({path_text(tuple(path)): 1}, "other: 0")
    value = document.value
    for part in path:
        value = value[part]
    assert value == 1


def test_an_override_replaces_its_value_and_nothing_else():
    document = applied({"batch.tail": "pad", "features.dense.price": []})
    assert document.value["batch"] == {"size": 8, "tail": "pad"}
    assert document.value["features"] == {"dense": {"price": []}, "extra": ["id"]}
    assert str(document.error(("batch", "size"), "x")) == "p.yaml:1:15: batch.size: x"
    assert str(document.error(("batch", "tail"), "x")) == 'set["batch.tail"]: x'
    assert str(document.error(("features", "dense", "price", 0), "x")) == (
        'set["features.dense.price"]: features.dense.price[0]: x'
    )


def test_missing_mappings_are_created():
    document = applied({"cluster.tls.ca": "a", "empty.deep": 1})
    assert document.value["cluster"] == {"tls": {"ca": "a"}}
    assert document.value["empty"] == {"deep": 1}
    assert str(document.error(("cluster", "threads"), "x")) == 'set["cluster.tls.ca"]: cluster.threads: x'


def test_overrides_are_applied_in_order():
    assert applied({"shuffle": {"seed": 3}, "shuffle.rows": False}).value["shuffle"] == {"seed": 3, "rows": False}
    with pytest.raises(SpecError, match=r"^--set shuffle.seed: shuffle has no keys to set: got 'off'"):
        applied(parse_overrides(["shuffle=off", "shuffle.seed=3"]))
    assert applied(parse_overrides(["shuffle.seed=3", "shuffle=off"])).value["shuffle"] == "off"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        ("batch.size.x", "batch.size has no keys to set: got 8. Set batch.size as a whole"),
        ("features.extra.id", "features.extra has no keys to set: got a list"),
        ("features.dense.price.0", "features.dense.price has no keys to set: got a list"),
        ("", "not a key"),
    ],
)
def test_overrides_of_keys_that_cannot_exist(key, words):
    with pytest.raises(SpecError) as caught:
        applied({key: 1})
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"set[{json.dumps(key)}]: ")


def test_python_values_become_plain_values():
    values = {
        "a": PurePosixPath("x/y"),
        "b": np.int64(5),
        "c": (1, MappingProxyType({"d": True})),
        "e": None,
        "f": np.float64(0.5),
    }
    value = applied(values, "z: 0").value
    assert value == {"z": 0, "a": "x/y", "b": 5, "c": [1, {"d": True}], "e": None, "f": 0.5}
    assert type(value["b"]) is int


@pytest.mark.parametrize("value", [object(), {1}, b"x", {1: 2}, {"": 1}, 1j, "\ud800"])
def test_values_that_yaml_cannot_hold(value):
    with pytest.raises(SpecError, match=r'^set\["a"\]: '):
        applied({"a": value})


def test_recursive_values_and_keys_that_are_not_strings_are_refused():
    endless = []
    endless.append(endless)
    with pytest.raises(SpecError, match="nested too deeply"):
        applied({"a": endless})
    with pytest.raises(SpecError, match="not a key: got int"):
        applied({3: 1})


def test_variables_are_taken_from_the_environment():
    text = "a: ${X}/b-${Y}\nb: ['$$${X}', $5, 'a$']\nc: ${N}\nd: '${N}'\ne: ${W}\nf: n${N}\n"
    value = substituted(text, X="x", Y="y z", N="12", W=" off ")
    assert value == {"a": "x/b-y z", "b": ["$x", "$5", "a$"], "c": 12, "d": 12, "e": "off", "f": "n12"}


@pytest.mark.parametrize(
    ("content", "value"),
    [
        ("", None),
        ("null", None),
        ("true", True),
        ("1e3", 1000.0),
        ("[1, 2]", "[1, 2]"),
        ("a: b", "a: b"),
        ("$$", "$$"),
        ("${X}", "${X}"),
    ],
)
def test_a_whole_variable_is_one_unquoted_scalar_and_not_read_twice(content, value):
    assert substituted("a: ${X}", X=content) == {"a": value}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "a: 1\nb: [x, '-${NOPE}']",
            "p.yaml:2:8: b[1]: environment variable NOPE is not set: expected a value for ${NOPE}",
        ),
        ("a: ${1}", "p.yaml:1:4: a: not a variable: got '${1}', expected ${NAME}"),
        ("a: x${", "not a variable: got '${'"),
        ("a: ${BIG}", "integer too large"),
        ("a: ${BYTES}", "environment variable BYTES is not UTF-8"),
    ],
)
def test_wrong_variables(text, words):
    with pytest.raises(SpecError) as caught:
        substituted(text, X="x", BIG="9" * 40, BYTES="\udcff")
    assert words in str(caught.value)


def test_all_missing_variables_are_named_at_once():
    with pytest.raises(SpecError) as caught:
        substituted("a: ${A}\nb: ${B}\n")
    assert [line.split(" is not set")[0] for line in str(caught.value).splitlines()] == [
        "p.yaml:1:4: a: environment variable A",
        "p.yaml:2:4: b: environment variable B",
    ]


def test_variables_in_overrides_name_the_override():
    document = applied(CommandLineOverrides(name="${NOPE}"))
    with pytest.raises(SpecError, match=r"^--set name: environment variable NOPE is not set"):
        substitute_variables(document, {})


NAMES = st.text(min_size=1)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@examples(300)
@given(st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map(tuple).map(path_text), VALUES, max_size=3))
def test_options_repeat_the_overrides(overrides: dict[str, Any]):
    [*words] = shlex.split(override_options(overrides))
    assert words[::2] == ["--set"] * len(overrides)
    again = parse_overrides(words[1::2])
    assert dict(again) == overrides
    assert repr(list(again.values())) == repr(list(overrides.values())), "1, 1.0 and true are equal"


def test_options_are_short_where_they_may_be():
    overrides = {
        "fit.where": 'day < 3 and c == "x"',
        "batch.size": 8,
        "batch.tail": "pad",
        "source.table": ["a", "b c"],
    }
    options = """ --set 'fit.where=day < 3 and c == "x"' --set batch.size=8 --set batch.tail=pad"""
    assert override_options(overrides) == options + """ --set 'source.table=[a, "b c"]'"""
    assert override_options({'features.dense."a=b"': [], "name": "8"}) == (
        """ --set 'features.dense."a=b"=[]' --set 'name="8"'"""
    )
