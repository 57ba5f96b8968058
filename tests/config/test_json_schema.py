"""The JSON Schema accepts what the reader accepts, as far as a schema can: checked with a validator."""

import json
import re
from functools import cache

import pytest
from drawn_examples import examples
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from minimal_pipeline import MINIMAL
from test_pipeline_spec import COMPLETE, REFERENCE
from test_spec_errors import ALTERNATIVES

from feedline.config import parse_spec
from feedline.config.pipeline_spec import json_schema
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError


@cache
def validator():
    return Draft202012Validator(json_schema(None))


def valid(text, op_schema=None):
    one = validator() if op_schema is None else Draft202012Validator(json_schema(op_schema))
    return one.is_valid(read_document(text, "p.yaml").value)


def accepted(text):
    try:
        parse_spec(text)
    except SpecError:
        return False
    return True


def objects(schema, path=()):
    """Every schema of an object with its path."""
    if isinstance(schema, dict):
        if isinstance(schema.get("properties"), dict):
            yield path, schema
        for key, item in schema.items():
            yield from objects(item, (*path, key))
    elif isinstance(schema, list):
        for index, item in enumerate(schema):
            yield from objects(item, (*path, index))


def test_the_schema_is_complete_and_described():
    schema = json_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert json.loads(json.dumps(schema)) == schema
    for path, item in objects(schema):
        assert item["additionalProperties"] is False, path
        for name, value in item["properties"].items():
            target = schema["$defs"][value["$ref"].removeprefix("#/$defs/")] if "$ref" in value else value
            assert value.get("description") or target.get("description"), (*path, name)
    for path, keys in ALTERNATIVES.items():
        definition = {(): schema, ("features",): schema["properties"]["features"]}.get(path)
        name = "Tls" if path[-1:] == ("tls",) else "".join(path[-1:]).title().replace("_", "")
        definition = definition or schema["$defs"][f"{name}Spec"]
        assert list(definition["properties"]) == keys.split()
    references = re.findall(r'"#/\$defs/([^"]*)"', json.dumps(schema))
    assert set(references) == set(schema["$defs"])


@pytest.mark.parametrize("text", [REFERENCE, MINIMAL, COMPLETE, MINIMAL + "shuffle: off"])
def test_accepted_pipelines_are_valid(text):
    assert accepted(text)
    assert valid(text)


CHANGES = [
    ("version: 1", ["version: 2", "version: true", "version: '1'", "version: ${V}"]),
    ("name: small", ["name: 5", "name: ''", "name: job", "nmae: x"]),
    ("table: data", ["table: [a, b]", "table: []", "table: 3", "table: s3://x", "sample: 1"]),
    ("where: price > 0", ["where:", "where: ''", "where: 3", "where: [a]"]),
    ("split_rows: 100", ["split_rows: 0", "split_rows: 1.5", "split_rows: 9223372036854775808", "split_rows: ${V}"]),
    ("column: cost", ["expr: a", "op: x", "column: 3", "colum: x", "column: ''"]),
    (
        "ops: [log1p]",
        ["ops: []", "ops: log1p", "ops: [{a: 1, b: 2}]", "ops: [{a: }]", "ops: [3]", "ops: [[]]", "ops: ['']"],
    ),
    ("op: id_overlap_count", ["op: {x: 1}", "op: {x: 1, y: 2}", "op: []", "column: x"]),
    ("inputs: [a, b]", ["inputs: []", "inputs: a", "inputs: [3]", "ops: []", "inputs: [[a]]", "inputs: [{}]"]),
    ("inputs: [a, b]", ["inputs: [{column: a}, b]", "inputs: [{expr: a + 1, ops: [log1p, {clip: 1}]}]"]),
    ("inputs: [a, b]", ["inputs: [{column: a, expr: b}]", "inputs: [{colum: a}]", "inputs: [{column: a, ops: log1p}]"]),
    (
        "history: []",
        ["history:", "history: log1p", "history: {column: x}", "history: {fill_null: 0}", "history: {}", "' ': []"],
    ),
    ("expr: dwell > 3", ["expr: ''", "expr: 1", "expr: x\n      inputs: [a]"]),
    (
        "request_id: []",
        ["request_id: {column: x}", "request_id: {expr: x}", "request_id: [log1p]", "request_id: {column: x, expr: y}"],
    ),
    (
        "extra:\n    request_id: []",
        ["extra: [a, b]", "extra: [a, a]", "extra: [3]", "extra: a", "extra:", "extra: {}", "dense2: {}"],
    ),
    (
        "batch:",
        [
            "dedup: {user: {columns: [price, 'hist_{0..5}']}}\nbatch:",
            "dedup: {}\nbatch:",
            *(
                f"dedup: {wrong}\nbatch:"
                for wrong in ("3", "{u: {}}", "{u: [a]}", "{u: {columns: []}}", "{' ': {columns: [a]}}")
            ),
            *(
                f"dedup: {{u: {{{wrong}}}}}\nbatch:"
                for wrong in ("columns: a", "columns: [3]", "columns: [a], x: 1", "colums: [a]")
            ),
        ],
    ),
    ("size: 8", ["size: 0", "size: '8'", "size: true", "size:", "size: '${V}'"]),
    ("tail: pad", ["tail: drop", "tail: keep", "tail: ${TAIL}", "tail:", "rows: true"]),
    ("seed: 3", ["seed: 0", "seed: -1", "seed: 9223372036854775807", "seed: 9223372036854775808"]),
    ("rows: true", ["rows: yes", "rows: 1"]),
    ("by: session_id", ["by: null", "by: ''", "by: [a]"]),
    ("lanes: 4", ["lanes: null", "lanes: 0", "lanes: '4'", "tail: pad"]),
    ("epochs: 2", ["epochs:", "epochs: 0"]),
    (
        "scheduler: tls://scheduler:8786",
        ["scheduler: tls:8786", "scheduler: http://x:1", "scheduler: 5", "scheduler: tls://h:1/"],
    ),
    ("    key: key.pem\n", ["", "    key: 3\n", "    key: ''\n"]),
    ("insecure: false", ["insecure: no", "insecure: 0"]),
    ("window: 7", ["share: 2.5", "share: 0", "share: -1", "share: x", "share: true"]),
    ("wait_s: 5", ["wait_s: 0.5", "wait_s: 0", "wait_s: soon", "wait_s: -1"]),
    ("window: 7", ["window: null", "window: 0"]),
    ("tls:\n    ca: ca.pem\n    cert: cert.pem\n    key: key.pem", ["tls: 3", "tls: {}"]),
    (
        "scheduler: tls://scheduler:8786\n  tls:\n    ca: ca.pem\n    cert: cert.pem\n    key: key.pem",
        ["workers: 2\n  tls: temporary"],
    ),
    ("cpu: x86-64-v3", ["cpu: x86-64-v3\n  dashboard: 3"]),
    ("cpu: x86-64-v3", ["processes: 0", "processes: auto", "processes: null"]),
    ("cpu: x86-64-v3", ["fork: true", "fork: 3", "fork: null"]),
    ("cpu: x86-64-v3", ["cpu: null", "cpu: native", "cpu: x86-64-v4", "cpu: 3"]),
    (
        "memory: 500 MB",
        ["memory: 5", "memory: 0", "memory: 4G", "memory: 1.5 tib", "memory: null", "memory: true", "memory: 4 B"],
    ),
    ("dir: finished", ["dir: ''", "dir: 3", "dir: s3://bucket/x", "dir: /x", "dir:", "folder: x"]),
    ("size: 10 GB", ["size: null", "size: 0", "size: 10 G", "size: 5", "size: '${V}'"]),
    ("free: 2 GiB", ["free: null", "free: 0", "free: 1 kB", "free: x"]),
    ("mode: features", ["mode: off", "mode: auto", "mode: source", "mode: all", "mode: null"]),
    ("shared: true", ["shared: false", "shared: yes", "shared: 1", "shared: null"]),
]


def test_schema_and_reader_agree(monkeypatch):
    monkeypatch.setenv("V", "1")
    monkeypatch.setenv("TAIL", "drop")
    assert not [old for old, _ in CHANGES if old not in COMPLETE]
    changed = [(new, COMPLETE.replace(old, new, 1)) for old, news in CHANGES for new in news]
    assert not [new for new, text in changed if valid(text) != accepted(text)]


@pytest.mark.parametrize(
    ("features", "right"),
    [
        ("{'I{1..3}': [log1p]}", True),
        ("{'I{1..3}': log1p}", False),
        ("{'I{1..3}': {ops: [log1p]}}", True),
        ("{'I{1..3}': {expr: a}}", False),
        ("{'I{1..2}': {columns: [a, b], on_nonfinite: zero}}", True),
        ("{x: {columns: [a, 'b{1..2}'], expect: {null_rate: <= 0.5}}}", True),
        ("{x: {columns: []}}", False),
        ("{x: {columns: a}}", False),
        ("{x: {columns: [a], column: b}}", False),
        ("{price: []}, extra: ['k{1..3}']", True),
        ("{price: []}, extra: {'k{1..3}': []}", True),
        ("{price: []}, extra: {x: {columns: [a]}}", True),
        ("{price: []}, extra: {x: {columns: [a], ops: []}}", False),
    ],
)
def test_entries_for_several_features(features, right):
    text = MINIMAL.replace("{price: []}", features)
    assert (accepted(text), valid(text)) == (right, right)


EVENTS = "histories: {events: {table: e, key: user, time: ts}}\n"


@pytest.mark.parametrize(
    ("entry", "right"),
    [
        ("column: item, last: 5", True),
        ("column: item, last: 5, lag: 10m, where: kind == 1, scan: 9", True),
        ("column: item, last: 5, lag: 0, ops: [{hash_bucket: 9}], expect: {null_rate: <= 0.5}", True),
        ("columns: [item, ts, 'c{1..3}'], last: ${V}, on_nonfinite: zero", True),
        ("columns: [item, ts], last: 5, ops: {item: [log1p], ts: []}", True),
        ("columns: [item], tag: pool, pools: {a: {last: 5}, b: {where: x > 1, last: 3}}", True),
        ("tag: pool, pools: {a: {last: 5}}", True),
        ("tag: pool, last: 5", True),
        ("last: 5", False),
        ("column: item", False),
        ("column: item, columns: [ts], last: 5", False),
        ("column: item, tag: pool, last: 5", False),
        ("column: item, last: 0", False),
        ("column: item, last: 2147483648", False),
        ("column: item, last: '5'", False),
        ("column: item, last: 5, scan: 0", False),
        ("column: item, last: 5, lag: -1", False),
        ("column: item, last: 5, lag: -10m", False),
        ("column: item, last: 5, lag: 10", True),
        ("column: item, last: 5, lag: '10'", False),
        ("column: item, last: 5, lag: 10 min", False),
        ("column: item, last: 5, pools: {a: {last: 5}}", False),
        ("column: item, where: x, pools: {a: {last: 5}}", False),
        ("column: item, pools: {}", False),
        ("column: item, pools: [a]", False),
        ("column: item, pools: {a: {where: x > 1}}", False),
        ("column: item, pools: {a: {last: 5, lag: 3}}", False),
        ("column: item, pools: {a: 5}", False),
        ("column: item, last: 5, expr: x", False),
        ("column: item, last: 5, first: 5", False),
        ("columns: [], last: 5", False),
        ("column: '', last: 5", False),
        ("column: item, last: 5, ops: log1p", False),
        ("columns: [item, ts], last: 5, ops: {item: log1p}", False),
    ],
)
def test_features_of_histories(entry: str, right: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("V", "7")
    text = EVENTS + MINIMAL.replace("{dense: {price: []}}", f"{{sparse: {{f: {{history: events, at: t, {entry}}}}}}}")
    text = text.replace("${V}", "'${V}'")
    assert (accepted(text), valid(text)) == (right, right)
    in_extra = text.replace("sparse:", "extra:")
    assert accepted(in_extra) == valid(in_extra)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("at: t", "att: t"),
        ("history: events", "history: 3"),
        ("f:", "' ':"),
        ("f:", "'f{1..2}':"),
        ("table: e", "table: []"),
        ("key: user, ", ""),
        ("time: ts", "time: ts, order: no"),
        ("time: ts", "time: ts, memory: 4G"),
        ("{events:", "{my events:"),
    ],
)
def test_histories_that_schema_and_reader_refuse(old: str, new: str):
    feature = "{sparse: {f: {history: events, column: x, at: t, last: 3}}}"
    text = EVENTS + MINIMAL.replace("{dense: {price: []}}", feature)
    assert (accepted(text), valid(text)) == (True, True)
    text = text.replace(old, new, 1)
    assert (accepted(text), valid(text)) == (False, False)


@pytest.mark.parametrize(
    ("text", "agrees"),
    [
        (MINIMAL + "shuffle: on", True),
        (MINIMAL + "shuffle:", True),
        (MINIMAL + "shuffle: false", True),
        (MINIMAL + "cluster: {threads: 0}", True),
        (MINIMAL + "cache: false", True),
        (MINIMAL + "cache: 3", True),
        (MINIMAL + "cache: ''", True),
        (MINIMAL + "cache: {}", True),
        (MINIMAL + "cache: [a]", True),
        (MINIMAL + "cache: s3://bucket/cache", True),
        (MINIMAL + "cluster: {threads: auto, workers: 2}", True),
        (MINIMAL + "cluster: {threads: all}", True),
        (MINIMAL.replace("{price: []}", "{}"), False),  # rules between keys are the reader's alone
        (MINIMAL + "shuffle: {rows: false, by: a}", False),
        (MINIMAL + "cluster: {scheduler: 'tcp://10.0.0.1:1'}", False),
    ],
)
def test_where_schema_and_reader_agree(text, agrees):
    assert not accepted(text) or "workers" in text
    assert (valid(text) == accepted(text)) == agrees


@examples(60)
@given(st.integers(0, len(COMPLETE) - 1), st.sampled_from(list("{}[]:,'\"#&*-!\n 0a")))
def test_accepted_mangled_pipelines_are_valid(position, inserted):
    text = COMPLETE[:position] + inserted + COMPLETE[position + 1 :]
    if accepted(text):
        assert valid(text)
