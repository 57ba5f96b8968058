"""The forms in which a pipeline.yaml writes its features."""

import json
import math
import pickle

import pytest

from feedline.config.features import FeatureSpec, OpCall, canonical_json, read_features
from feedline.config.yaml_document import Problems, read_document


def read(text):
    document = read_document(f"features:\n{text}", "p.yaml")
    problems = Problems(document)
    features = read_features(document, problems)
    problems.raise_all()
    return features


def only(text, group="dense"):
    [feature] = read(f"  {group}:\n    {text}")
    return feature


def refused(text):
    with pytest.raises(ValueError) as caught:
        read(text)
    return str(caught.value).splitlines()


def test_the_short_form_names_a_column_and_its_ops():
    path = ("features", "dense", "price")
    assert only("price: []") == FeatureSpec(name="price", group="dense", column="price")
    feature = only("price: [{fill_null: 0}, log1p, {clip: {max: 1, min: 0}}, {bucketize: [2, 5]}]")
    assert feature.path == path
    assert [(call.op, call.arguments, call.path) for call in feature.ops] == [
        ("fill_null", '{"":0}', (*path, 0)),
        ("log1p", "{}", (*path, 1)),
        ("clip", '{"max":1,"min":0}', (*path, 2)),
        ("bucketize", '{"":[2,5]}', (*path, 3)),
    ]
    assert [call.value for call in feature.ops] == [{"": 0}, {}, {"min": 0, "max": 1}, {"": [2, 5]}]


def test_the_long_forms():
    path = ("features", "dense", "x")
    assert only("x: {column: price}") == FeatureSpec(name="x", group="dense", column="price")
    assert only("x: {expr: a + b}") == FeatureSpec(name="x", group="dense", expr="a + b")
    feature = only("x: {op: {overlap: {top: 3}}, inputs: [a, b], ops: [log1p]}")
    assert (feature.column, feature.expr) == (None, None)
    assert [str(given) for given in feature.inputs] == ["a", "b"]
    assert feature.op == OpCall(op="overlap", arguments='{"top":3}')
    assert feature.op.path == (*path, "op")
    assert feature.ops == (OpCall(op="log1p"),)
    assert feature.ops[0].path == (*path, "ops", 0)
    assert only("x: {op: overlap, inputs: [a]}").op == OpCall(op="overlap")


def test_positions_do_not_count_for_equality():
    assert only("price: [log1p]") == only("price: {ops: [log1p], column: price}")
    assert hash(only("price: [log1p]")) == hash(only("price: {ops: [log1p], column: price}"))
    assert only("price: [log1p]") != only("price: [log1p, log1p]")
    feature = only("price: [{clip: {min: 0}}]")
    assert pickle.loads(pickle.dumps(feature)) == feature
    assert pickle.loads(pickle.dumps(feature)).ops[0].path == feature.ops[0].path


def test_groups_come_in_one_order_and_features_in_that_of_the_file():
    features = read(
        "  extra: [r, q]\n  label: {y: []}\n  sparse: {}\n  dense: {b: [], a: []}\n  categorical: {c: []}\n"
    )
    assert [(f.group, f.name) for f in features] == [
        ("dense", "b"),
        ("dense", "a"),
        ("categorical", "c"),
        ("label", "y"),
        ("extra", "r"),
        ("extra", "q"),
    ]


def test_extra_is_a_list_or_a_mapping():
    listed = read("  extra: [a, b]")
    assert listed == read("  extra: {a: [], b: {column: b}}")
    assert [feature.path for feature in listed] == [("features", "extra", 0), ("features", "extra", 1)]
    assert only("x: {expr: a.dt.hour()}", "extra") == FeatureSpec(name="x", group="extra", expr="a.dt.hour()")


def test_any_name_may_be_quoted():
    assert [f.name for f in read('  dense: {"a.b": [], "ü ß": [], 5: [], off: []}')] == ["a.b", "ü ß", "5", "off"]


@pytest.mark.parametrize(
    "text",
    [
        "x: [log1p, {clip: {min: 0, max: 1}}, {fill_null: 0}, {bucketize: [1]}, {on: false}, {e: ''}, {m: {}}]",
        "x: {column: c, ops: [log1p]}",
        "x: {expr: a + b}",
        "x: {op: {overlap: 3}, inputs: [a, b], ops: [{modulo: 7}]}",
    ],
)
def test_the_long_form_is_read_back(text):
    feature = only(text)
    assert only(f"x: {json.dumps(feature.long_form())}") == feature


def test_arguments_keep_numbers_that_json_lacks():
    value = only("x: [{clip: {min: -.inf, max: .nan}}]").ops[0].value
    assert value["min"] == -math.inf
    assert math.isnan(value["max"])


def test_canonical_json_sorts_keys_at_every_depth():
    assert canonical_json({"b": [{"d": 1, "c": None}], "a": 1.0}) == '{"a":1.0,"b":[{"c":null,"d":1}]}'


@pytest.mark.parametrize(
    ("body", "position", "words"),
    [
        ("", "3:5: features.dense.x", "got nothing. Write `x: []` for the column as it is"),
        (" log1p", "3:8: features.dense.x", "got 'log1p'. Write `x: [log1p]`"),
        (" [{column: c}]", "3:10: features.dense.x[0].column", "column is not an op: got {column: c} in a list of ops"),
        (
            " {column: c, ops: [{inputs: [c]}]}",
            "3:27: features.dense.x.ops[0].inputs",
            "inputs is not an op: got {inputs: …}",
        ),
        (
            " {fill_null: 0}",
            "3:9: features.dense.x.fill_null",
            "unknown key of a feature: got 'fill_null', expected one of",
        ),
        (" {fill_null: 0}", "3:9: features.dense.x.fill_null", "Ops are written as a list: `x: [{fill_null: …}]`"),
        (" {}", "3:5: features.dense.x", "must have exactly one of column, expr, op: got none. Write `column: x`"),
        (" {column: a, expr: b}", "3:5: features.dense.x", "got column and expr"),
        (
            " {column: 3}",
            "3:17: features.dense.x.column",
            "must be a column: got 3, expected a non-empty string. Quote it",
        ),
        (
            " {expr: 1}",
            "3:15: features.dense.x.expr",
            "must be an expression: got 1, expected a non-empty string. Quote it",
        ),
        (" {op: o}", "3:5: features.dense.x", "op without inputs: expected `{op: …, inputs: [column, …]}`"),
        (" {column: c, inputs: [a]}", "3:5: features.dense.x", "inputs without op"),
        (" {op: o, inputs: []}", "3:16: features.dense.x.inputs"[2:], "must be a list of columns: got an empty list"),
        (" {op: o, inputs: [a, 3]}", "3:28: features.dense.x.inputs[1]", "must be a column: got 3"),
        (
            " {column: c, ops: log1p}",
            "3:25: features.dense.x.ops",
            "must be a list of ops: got 'log1p', expected [op, …]",
        ),
        (" [3]", "3:9: features.dense.x[0]", "must be an op: got 3, expected a word or a map of one key"),
        (" [log1p, ]\n    y: [null]", "4:9: features.dense.y[0]", "must be an op: got nothing"),
        (" [{}]", "3:9: features.dense.x[0]", "must be an op: got an empty mapping"),
        (
            " [{log1p: }]",
            "3:10: features.dense.x[0].log1p",
            "no value after the colon: expected `log1p`, or `{log1p: param",
        ),
        (
            " [{fill_null: 0, log1p}]",
            "3:9: features.dense.x[0]",
            "must be one op: got 2 keys, expected one. Write [{fill_null: …}, log1p]",
        ),
    ],
)
def test_wrong_features(body, position, words):
    lines = refused(f"  dense:\n    x:{body}")
    assert len(lines) == 1
    assert f"{position}: " in lines[0]
    assert words in lines[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "  dnse: {a: []}",
            "p.yaml:2:3: features.dnse: unknown group of features: got 'dnse', expected one of 'dense', ",
        ),
        (
            "  dense: [a, b]",
            "p.yaml:2:3: features.dense: must be a mapping from names to lists of ops: got a list. Write dense: {a: []",
        ),
        ("  dense:", "features.dense: must be a mapping from names to lists of ops: got nothing. Or leave it out"),
        ("  extra: a", "features.extra: must be a list of columns, or a mapping: got 'a'. Or leave it out"),
        ("  extra: [a, 3]", "p.yaml:2:14: features.extra[1]: must be a column: got 3"),
        ("  extra: {a: [log1p]}", "features.extra.a: extra takes no ops"),
        ("  extra: {a: {op: o, inputs: [b]}}", "extra is passed through unchanged"),
        ("  dense: {' ': []}", 'p.yaml:2:11: features.dense." ": feature name must not be empty'),
        ("  dense: {}", "p.yaml:1:1: features: no feature: got none, expected at least one"),
        ("  [dense]", "p.yaml:1:1: features: must be a mapping: got a list, expected the groups dense, categorical"),
        (
            "  dense: {a: []}\n  label: {a: {column: b}}",
            "p.yaml:3:11: features.label.a: feature name used twice: got 'a' here and at features.dense.a.",
        ),
        (
            "  extra: [a, b, a]",
            "p.yaml:2:17: features.extra[2]: feature name used twice: got 'a' here and at features.extra[0]",
        ),
    ],
)
def test_wrong_groups(text, words):
    assert any(words in line for line in refused(text)), refused(text)


def test_remedies_stay_on_one_line():
    assert len(refused('  dense:\n    "a\\nb": "c\\nd"\n    y: {"e\\nf": 1}\n    z: [{"g\\nh": 1, "i": 2}]')) == 3


def test_a_name_with_a_range_stands_for_several_features():
    found = read("  dense:\n    'I{1..3}': [log1p, {clip: {min: 0}}]\n    last: []\n  extra: ['id_{08..11}', day]")
    assert [(one.group, one.name, one.column) for one in found] == [
        *[("dense", f"I{number}", f"I{number}") for number in (1, 2, 3)],
        ("dense", "last", "last"),
        *[("extra", name, name) for name in ("id_08", "id_09", "id_10", "id_11", "day")],
    ]
    [plain, *_] = read("  dense:\n    I1: [log1p, {clip: {min: 0}}]")
    assert found[0] == plain, "what a template says is what its features say"


def test_a_list_of_columns_stands_for_several_features():
    text = "{columns: [price, 'I{1..2}'], ops: [log1p], on_nonfinite: zero, expect: {null_rate: <= 0.5}}"
    found = read(f"  dense:\n    numbers: {text}")
    assert [one.name for one in found] == ["price", "I1", "I2"]
    assert {(one.ops, one.on_nonfinite, len(one.expect)) for one in found} == {((OpCall(op="log1p"),), "zero", 1)}
    renamed = read("  sparse:\n    'seen_{1..2}': {columns: [history, tags], ops: [{first_x: 5}]}")
    assert [(one.name, one.column) for one in renamed] == [("seen_1", "history"), ("seen_2", "tags")]
    assert [one.name for one in read("  extra: {keys: {columns: ['k{1..2}'], expect: {null_rate: <= 0}}}")] == [
        "k1",
        "k2",
    ]
    assert read("  dense: {odd: {column: 'C{1..2}'}}")[0].column == "C{1..2}", "the way to a column of such a name"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("dense: {'I{3..1}': []}", r"a range must ascend: got 'I\{3\.\.1\}'\. Write \{1\.\.3\}"),
        ("dense: {'I{1..2}_{1..2}': []}", "a name may contain only one range"),
        ("dense: {'{a,b}': []}", r"braces in a name are for a range of numbers: got '\{a,b\}' in '\{a,b\}', expected"),
        ("dense: {'I{1..2}_{a,b}': []}", r"got '\{a,b\}' in 'I\{1\.\.2\}_\{a,b\}'"),
        ("extra: ['C{a..c}']", r"braces in a name are for a range of numbers: got '\{a\.\.c\}'"),
        ("dense: {'I{1..99999999}': []}", "at most 10,000 names: got 99,999,999"),
        ("dense: {'I{1..3}': {columns: [a, b]}}", r"columns: must be one per feature: got 2, expected 3"),
        ("dense: {'I{1..3}': {expr: a}}", "unknown key of an entry for several features: got 'expr', expected"),
        ("dense: {'I{1..3}': log1p}", "must be a list of ops"),
        ("dense: {x: {columns: a}}", "columns: must be a list of columns: got 'a', expected for example"),
        ("dense: {x: {columns: []}}", "columns: must be a list of columns: got an empty list"),
        ("dense: {x: {columns: [a, 3]}}", r"columns\[1\]: must be a column: got 3"),
        ("dense: {x: {columns: [a, b]}, b: []}", "feature name used twice: got 'b'"),
        ("dense: {x: {columns: [a], ops: [{}]}}", r"ops\[0\]: must be an op: got an empty mapping"),
        ("extra: {x: {columns: [a], ops: []}}", "unknown key of an entry for several features: got 'ops'"),
    ],
)
def test_errors_in_an_entry_for_several_features_are_reported_once(text, complaint):
    with pytest.raises(ValueError, match=complaint) as caught:
        read(f"  {text}")
    assert len(str(caught.value).splitlines()) == 1
