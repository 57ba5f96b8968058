"""The JSON Schema and the page of all ops are those of the registry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from feedline.config.pipeline_spec import json_schema
from feedline.transforms.catalogue import SECTIONS, document, op_schema
from feedline.transforms.ops import OPS

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = [(op, example) for op in OPS.values() for example in op.examples]


def accepts(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value fits a schema of the keywords that `op_schema` uses."""
    types = {
        "integer": lambda item: isinstance(item, int) and not isinstance(item, bool),
        "number": lambda item: isinstance(item, (int, float)) and not isinstance(item, bool),
        "boolean": lambda item: isinstance(item, bool),
        "string": lambda item: isinstance(item, str),
        "array": lambda item: isinstance(item, list),
        "object": lambda item: isinstance(item, dict),
    }
    known = {"anyOf", "enum", "type", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength"}
    known |= {"pattern", "items", "minItems", "const"}
    known |= {"properties", "required", "additionalProperties", "minProperties", "maxProperties"}
    assert set(schema) <= known | {"description", "default"}, "a keyword that this check does not know"
    checks = {
        "anyOf": lambda choices: any(accepts(choice, value) for choice in choices),
        "enum": lambda values: value in values,
        "const": lambda word: value == word,
        "minimum": lambda bound: value >= bound,
        "maximum": lambda bound: value <= bound,
        "exclusiveMinimum": lambda bound: value > bound,
        "exclusiveMaximum": lambda bound: value < bound,
        "minItems": lambda count: len(value) >= count,
        "minLength": lambda length: len(value) >= length,
        "pattern": lambda pattern: re.search(pattern, value) is not None,
        "items": lambda items: all(accepts(items, item) for item in value),
        "required": lambda names: set(names) <= set(value),
        "minProperties": lambda count: len(value) >= count,
        "maxProperties": lambda count: len(value) <= count,
        "properties": lambda named: all(accepts(named[key], item) for key, item in value.items() if key in named),
        "additionalProperties": lambda allowed: allowed or set(value) <= set(schema["properties"]),
    }
    if "type" in schema and not types[schema["type"]](value):
        return False
    return all(check(schema[key]) for key, check in checks.items() if key in schema)


def test_the_schema_takes_right_calls_and_no_others():
    schema = op_schema()
    for op in OPS.values():
        for example in op.examples:
            assert accepts(schema, example.call.to_yaml()), example
        assert accepts(schema, op.name) is op.is_word
    for right in ({"hash_bucket": "${BUCKETS}"}, {"clip": {"max": 1}}, {"bucketize": [1, 2.5]}):
        assert accepts(schema, right)
    for wrong in (
        *("clip", "nothing", 5, {}, {"nothing": 1}, {"hash_bucket": 0}, {"hash_bucket": {"seed": 1}}, {"clip": None}),
        *(
            {"clip": {"mim": 1}},
            {"standardize": 0.5, "log": 1},
            {"cast": "int46"},
            {"log1p": 1},
            {"clip": 0, "modulo": 2},
        ),
        *({"hash_bucket": True}, {"standardize": {"mean": 0, "std": 0}}),
    ):
        assert not accepts(schema, wrong), wrong


def test_the_schema_fits_into_that_of_the_pipeline():
    assert json_schema(op_schema())["$defs"]["op"] == op_schema()


def test_the_documentation_is_that_of_the_registry():
    remedy = "write docs/ops.md anew: feedline.transforms.catalogue.document() is its text"
    assert (ROOT / "docs" / "ops.md").read_text(encoding="utf-8") == document(), remedy


def test_documented_calls_are_yaml():
    yaml = YAML(typ="safe", pure=True)
    shown = [tuple(re.findall(r"`([^`]*)`", line)) for line in document().splitlines() if line.startswith("| `")]
    calls = [cells for cells in shown if len(cells) == 4 and cells[2].startswith("[")]
    assert len(calls) == len(EXAMPLES)
    for (written, _, given, result), (_, example) in zip(
        calls, sorted(EXAMPLES, key=lambda pair: [*SECTIONS].index(pair[0].placement)), strict=True
    ):
        assert yaml.load(written) == example.call.to_yaml()
        columns = [list(held) for _, held in example.columns]
        assert str(yaml.load(given)) == str(columns if len(columns) > 1 else columns[0])
        assert str(yaml.load(result)) == str(list(example.result))
