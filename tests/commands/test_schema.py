"""The JSON Schema of pipeline.yaml describes every key, takes all pipelines here, and refuses mistakes."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from minimal_pipeline import completed
from typer.testing import CliRunner

from feedline import Pipeline
from feedline.cli import app
from feedline.commands.schema import SCHEMA_FILE, SCHEMA_LINE, write_json_schema
from feedline.config.build_spec import json_schema
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError
from feedline.version import VERSION

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
SCHEMA = Pipeline.json_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
FILES = [
    path
    for folder in ("examples", "tests/saved")
    for path in sorted((ROOT / folder).rglob("*.yaml"))
    if "\nfeatures:" in path.read_text(encoding="utf-8")
]
SHOWN = [
    (page.stem, block)
    for page in sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
    for block in FENCE.findall(page.read_text(encoding="utf-8"))
    if "\nfeatures:" in f"\n{block}"
    and "\nsource" in f"\n{block}"
    and page.parent.name != "decisions"
    and page.stem != "expressions"
]
GOOD = """
version: 1
name: small
source: {table: data, where: price > 0}
features:
  dense: {price: [fill_null: 0, log1p]}
  sparse: {"hist_{0..3}": [{first_x: 20}]}
  label: {clicked: []}
batch: {size: 8, tail: pad}
shuffle: {seed: 3}
cluster: {workers: 2}
"""
MISTAKES = [
    *(("name: small", wrong) for wrong in ("nam: small", "name: 5", "name:")),
    *(("table: data", wrong) for wrong in ("tables: data", "table: [], x: 1", "path: data")),
    *(("size: 8", wrong) for wrong in ("size: '8'", "size: 0", "size: 8, max_tokens: 4", "sise: 8")),
    *(("tail: pad", wrong) for wrong in ("tail: Pad", "tial: pad", "tail: true")),
    *(("log1p", wrong) for wrong in ("log1", "{log1p: 1}", "{clip: {mim: 0}}", "clip", "[log1p]")),
    *(
        ("first_x: 20", wrong)
        for wrong in ("first_x: -1", "first_x: {counts: 3}", "first_x: 2, modulo: 3", "firstx: 2")
    ),
    ("seed: 3", "sed: 3"),
    ("workers: 2", "wrokers: 2"),
    ("dense: {", "dence: {"),
    ("version: 1", "version: '1'"),
]


def value_of(text: str) -> Any:
    return read_document(text, "p.yaml").value


def keys_described(schema: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every key of a mapping that the schema describes, with its own schema or the definition that it names."""
    if isinstance(schema, dict):
        properties = schema.get("properties")
        for key, value in properties.items() if isinstance(properties, dict) else ():
            target = SCHEMA["$defs"][value["$ref"].rpartition("/")[2]] if "$ref" in value else {}
            yield f"{path}.{key}", {**target, **value}
        for key, value in schema.items():
            yield from keys_described(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for place, value in enumerate(schema):
            yield from keys_described(value, f"{path}[{place}]")


def test_it_is_a_schema_and_every_key_is_described():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    described = dict(keys_described(SCHEMA))
    assert len(described) > 150
    assert not [key for key, value in described.items() if not value.get("description", "").strip()]
    words = SCHEMA["$defs"]["op"]["anyOf"][0]["anyOf"]
    assert all(word["description"] for word in words)


def test_examples_and_defaults_are_what_their_keys_accept():
    found = 0
    for key, value in keys_described(SCHEMA):
        checked = jsonschema.Draft202012Validator({**value, "$defs": SCHEMA["$defs"]})
        for example in value.get("examples", []):
            found += 1
            assert checked.is_valid(example), (key, example)
        if value.get("default") is not None and not isinstance(value["default"], (dict, list)):
            assert checked.is_valid(value["default"]), key
    assert found > 15


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_pipelines_of_examples_and_saved_ones_are_valid(path: Path):
    VALIDATOR.validate(value_of(path.read_text(encoding="utf-8")))


def test_pipelines_of_the_docs_are_valid():
    assert len(SHOWN) > 10
    for _, block in SHOWN:
        VALIDATOR.validate(value_of(completed(block)))


@pytest.mark.parametrize(("right", "wrong"), MISTAKES, ids=[wrong for _, wrong in MISTAKES])
def test_typical_mistakes_are_refused(right: str, wrong: str):
    assert GOOD.count(right) == 1
    assert VALIDATOR.is_valid(value_of(GOOD))
    assert not VALIDATOR.is_valid(value_of(GOOD.replace(right, wrong)))


@pytest.mark.parametrize("key", ["version", "name", "source", "features", "batch"])
def test_required_keys_are_required(key: str):
    document = copy.deepcopy(value_of(GOOD))
    del document[key]
    assert not VALIDATOR.is_valid(document)


def test_the_file_for_editors(tmp_path: Path):
    file = tmp_path / SCHEMA_FILE
    for _ in range(2):
        result = CliRunner().invoke(app, ["schema", "-o", str(file)])
        assert (result.exit_code, result.output) == (0, "")
        assert json.loads(file.read_text(encoding="utf-8")) == SCHEMA
        file.write_text(json.dumps({**SCHEMA, "title": "pipeline.yaml of Feedline 0.0.1"}), encoding="utf-8")
    assert SCHEMA["title"].endswith(VERSION)
    assert SCHEMA_LINE.endswith(f"$schema={file.name}")
    assert value_of(f"{SCHEMA_LINE}\n{GOOD}") == value_of(GOOD)


def test_the_file_for_editors_of_samples(tmp_path: Path):
    file = tmp_path / "samples.schema.json"
    for _ in range(2):
        result = CliRunner().invoke(app, ["schema", "--samples", "-o", str(file)])
        assert (result.exit_code, result.output) == (0, "")
        assert json.loads(file.read_text(encoding="utf-8")) == json_schema()
    assert json.loads(CliRunner().invoke(app, ["schema", "--samples"]).output) == json_schema()
    with pytest.raises(SpecError, match=r"expected a schema of pipeline\.yaml, or no file"):
        write_json_schema(file, SCHEMA)


@pytest.mark.parametrize("content", ["{}", "[1]", "name: x", '{"title": "Other"}'])
def test_other_files_are_not_replaced(tmp_path: Path, content: str):
    file = tmp_path / "other.json"
    file.write_text(content, encoding="utf-8")
    with pytest.raises(SpecError, match="something else"):
        write_json_schema(file, SCHEMA)
    assert file.read_text(encoding="utf-8") == content
    with pytest.raises(SpecError, match="cannot be written"):
        write_json_schema(tmp_path / "none" / "s.json", SCHEMA)


def test_a_schema_file_is_of_no_pipeline(tmp_path: Path):
    for options in (["-o", str(tmp_path / "s.json")], ["--samples"]):
        result = CliRunner().invoke(app, ["schema", "p.yaml", *options])
        assert "got a pipeline" in str(result.exception)
