"""Positions, paths and values in errors."""

import pytest

from feedline.config.yaml_document import Document, Position, describe_value, path_text, unknown_message


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "nothing"),
        (True, "true"),
        (False, "false"),
        (1.0, "1.0"),
        ("a\nb\x1b", "'a\\nb\\x1b'"),
        ([], "a list"),
        ((1,), "a list"),
        ({}, "a mapping"),
    ],
)
def test_described_values(value, text):
    assert describe_value(value) == text


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
