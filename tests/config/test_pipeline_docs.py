"""Every documented pipeline.yaml is valid for reader and JSON Schema; docs/pipeline*.md have all keys and defaults."""

import re
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from minimal_pipeline import MINIMAL, completed
from test_spec_errors import ALTERNATIVES

from feedline import Pipeline
from feedline.config import PipelineSpec, parse_spec
from feedline.config.build_spec import json_schema, load_build_spec
from feedline.config.features import GROUPS
from feedline.config.histories import HISTORY_KEYS
from feedline.config.overrides import parse_overrides
from feedline.config.sections import keys_of, section_at
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
PAGES = ("pipeline.md", "pipeline-rows.md", "pipeline-batches.md")
SAMPLES = "version: 1\nimpressions:"  # of a samples.yaml
TEXT = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
BLOCKS = FENCE.findall(TEXT)
SHOWN = [
    (f"{page.stem}-{place}", block)
    for page in sorted([*DOCS.glob("*.md"), DOCS.parent / "README.md"])
    for place, block in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
    if page.stem != "expressions" and not block.startswith(SAMPLES)  # its examples have no table
]
BUILDS = [
    (page.stem, block)
    for page in sorted(DOCS.glob("*.md"))
    for block in re.findall(r"```yaml[^\n]*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    if block.startswith(SAMPLES)
]
ROWS = {
    part.splitlines()[0].strip(): dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", part, re.MULTILINE))
    for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)
}


def test_examples_are_accepted():
    validator = Draft202012Validator(Pipeline.json_schema())
    for name, block in SHOWN:
        text = completed(block)
        assert PipelineSpec.from_canonical(parse_spec(text, file=name).canonical())
        assert validator.is_valid(read_document(text, name).value), name


def test_examples_of_samples_are_accepted(tmp_path: Path):
    assert len(BUILDS) >= 2
    validator = Draft202012Validator(json_schema())
    for name, block in BUILDS:
        (tmp_path / "samples.yaml").write_text(block)
        assert load_build_spec(tmp_path / "samples.yaml").out.table, name
        assert validator.is_valid(read_document(block, name).value), name


def test_every_key_of_samples_is_described():
    text = (DOCS / "building.md").read_text(encoding="utf-8")
    for section in ("ImpressionsSpec", "OutcomeSpec", "FeatureTableSpec", "NegativesSpec", "OutSpec"):
        assert not [key for key in json_schema()["$defs"][section]["properties"] if f"`{key}`" not in text]
    assert not [key for key in json_schema()["properties"] if key != "version" and f"| `{key}` |" not in text]


def test_the_documented_error_is_raised():
    [shown] = re.findall(r"^pipeline.yaml:\d+:\d+: .*$", TEXT, re.MULTILINE)
    with pytest.raises(SpecError) as caught:
        parse_spec(BLOCKS[0].replace("tail:", "tial:"), file="pipeline.yaml")
    assert str(caught.value) == shown


def test_the_documented_commands_work():
    assert parse_spec(MINIMAL, overrides={"batch.tail": "pad", "shuffle": "off"}).shuffle is None
    spec = parse_spec(
        MINIMAL, overrides=parse_overrides(["batch.tail=pad", "shuffle=off", 'source.where=ds == "2026-03-01"'])
    )
    assert (spec.batch.tail, spec.source.where) == ("pad", 'ds == "2026-03-01"')


def test_every_key_is_described_with_its_default():
    for path in [path for path in ALTERNATIVES if path not in (("features",), ("cluster", "tls"))]:
        of_path = "histories" if path[:1] == ("histories",) else ".".join(path)
        [rows] = [rows for heading, rows in ROWS.items() if (heading == of_path if path else "work_dir" in rows)]
        for key, field in keys_of(section_at(PipelineSpec, path)).items():
            _, default, meaning = rows[key].split(" | ")
            assert meaning, (path, key)
            assert ("required" in default) == field.is_required(), (path, key)
            if isinstance(field.default, (bool, int, float, str)):
                assert default == f"`{str(field.default).lower()}`", (path, key)


def test_every_group_is_described():
    assert set(GROUPS) <= set(ROWS["features"])


def test_every_key_of_a_feature_of_a_history_is_described():
    assert set(HISTORY_KEYS) == set(ROWS["Features of histories"])


def test_the_keys_of_tls_are_described():
    assert all(f"`{key}`" in TEXT for key in ("ca", "cert", "key"))
