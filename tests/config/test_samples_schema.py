"""The JSON Schema of samples.yaml accepts what the reader accepts, as far as a schema can, and describes every key."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from sample_logs import REQUESTS, ROWS, SAMPLES
from test_build_spec import SPEC
from test_json_schema import objects

from feedline.config.build_spec import json_schema, load_build_spec
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
COMPLETE = """version: 1
impressions: {table: [a, b], key: [request_id, item_id], time: ts, where: item_id > 0}
outcomes:
  click: {table: clicks, key: item_id, time: ts, within: 30 m, attribution: first, label: {clicked: exists, s: sum(x)}}
features: {user: {table: users, key: user_id, time: at, columns: [age], within: 30d}}
negatives: {where: not clicked, keep: 0.5, weight: w, salt: 3}
lateness: 2h
late: rebuild
out: {table: out, by: hour(ts), cluster_by: [user_id], sort_by: ts, dedup: {user: age, 'c': ['c_{0..3}']}}
"""
CHANGES = [
    ("version: 1", ["version: 2", "version: '1'", "version: ${V}"]),
    ("table: [a, b]", ["table: []", "table: s3://b/x", "table: 3", "tables: a"]),
    ("key: [request_id, item_id]", ["key: a", "key: []", "key: [3]", "key:"]),
    ("time: ts, where", ["where", "time: [ts], where", "time: '', where"]),
    ("where: item_id > 0", ["where:", "where: 3", "wher: x"]),
    ("within: 30 m", ["within: 0m", "within: 30", "within: 7w", "within: '${L}'", "within: 1d2h"]),
    ("attribution: first", ["attribution: last", "attribution: any", "attribution: '${A}'"]),
    ("clicked: exists", ["clicked: count", "clicked: exist", "clicked: exists(x)", "clicked: 3"]),
    ("s: sum(x)", ["s: min(x)", "s: first( x )", "s: sum()", "s: avg(x)", "s: 'max(${V})'", "s: sum"]),
    ("{clicked: exists, s: sum(x)}", ["{}", "exists", "[clicked]"]),
    ("columns: [age]", ["columns: age", "columns: []", "columns:"]),
    ("within: 30d", ["within:", "within: 0", "within: 0d"]),
    ("keep: 0.5", ["keep: 1", "keep: 0", "keep: 1.5", "keep: '${V}'", "keep: half"]),
    ("salt: 3", ["salt: -1", "salt: 1.5", "salt: '${V}'"]),
    (
        "lateness: 2h",
        ["lateness: 0", "lateness: '0'", "lateness: 0h", "lateness: 3", "lateness: soon", "lateness: '${L}'"],
    ),
    ("late: rebuild", ["late: drop", "late: keep", "late: ${V}", "on_late: drop"]),
    ("by: hour(ts)", ["by: ' hour( ts ) '", "by: hour", "by: week(ts)", "by: ''"]),
    ("cluster_by: [user_id]", ["cluster_by:", "cluster_by: []", "clusterby: a"]),
    ("dedup: {user: age, 'c': ['c_{0..3}']}", ["dedup: {}", "dedup: [age]", "dedup: {user: []}", "dedup: {user: {}}"]),
    (
        "cluster_by: [user_id], sort_by: ts, dedup: {user: age, 'c': ['c_{0..3}']}",
        [
            REQUESTS,
            "rows: impression",
            "rows: requests",
            "rows: request, request: a, candidates: 'c_*'",
            "rows: '${R}'",
        ],
    ),
]


@pytest.fixture(scope="module")
def accepted(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], bool]:
    path = tmp_path_factory.mktemp("specs") / "samples.yaml"

    def read(text: str) -> bool:
        path.write_text(text)
        try:
            load_build_spec(path)
        except SpecError:
            return False
        return True

    return read


def valid(text: str) -> bool:
    return VALIDATOR.is_valid(read_document(text, "samples.yaml").value)


def test_it_is_a_schema_and_every_key_is_described() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert json.loads(json.dumps(SCHEMA)) == SCHEMA
    shown = 0
    for path, item in objects(SCHEMA):
        assert item["additionalProperties"] is False, path
        for name, value in item["properties"].items():
            target = SCHEMA["$defs"][value["$ref"].removeprefix("#/$defs/")] if "$ref" in value else value
            assert target.get("description"), (*path, name)
            checked = Draft202012Validator({**value, "$defs": SCHEMA["$defs"]})
            for example in value.get("examples", []):
                shown += 1
                assert checked.is_valid(example), (*path, name, example)
            assert "default" not in value or checked.is_valid(value["default"]), (*path, name)
    assert shown > 15


@pytest.mark.parametrize("layout", [ROWS, REQUESTS])
def test_accepted_specs_are_valid(accepted: Callable[[str], bool], layout: str) -> None:
    drawn = SAMPLES.format(logs="logs", out="out", rule="last", late="drop", layout=layout)
    for text in (SPEC, COMPLETE, drawn):
        assert accepted(text)
        assert valid(text)


def test_schema_and_reader_agree(accepted: Callable[[str], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("V", "1"), ("L", "5m"), ("A", "all"), ("R", "impression")):
        monkeypatch.setenv(name, value)
    assert not [old for old, _ in CHANGES if COMPLETE.count(old) != 1]
    changed = [(new, COMPLETE.replace(old, new)) for old, news in CHANGES for new in news]
    differ = [new for new, text in changed if valid(text) != accepted(text)]
    assert differ == ["late: ${V}"], "what a variable holds is the reader's alone"


@pytest.mark.parametrize("key", ["version", "impressions", "out"])
def test_required_keys_are_required(key: str) -> None:
    document = read_document(COMPLETE, "samples.yaml").value
    del document[key]
    assert not VALIDATOR.is_valid(document)


@examples(60)
@given(st.integers(0, len(COMPLETE) - 1), st.sampled_from(list("{}[]:,'\"#&*-!\n 0a")))
def test_accepted_mangled_specs_are_valid(accepted: Callable[[str], bool], position: int, inserted: str) -> None:
    text = COMPLETE[:position] + inserted + COMPLETE[position + 1 :]
    if accepted(text):
        assert valid(text)
