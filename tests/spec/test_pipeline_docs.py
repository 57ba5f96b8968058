"""Every documented pipeline.yaml is valid for reader and JSON Schema; docs/pipeline.md has all keys and defaults."""

import re
from pathlib import Path

import pytest
from json_validator import Validator
from minimal_pipeline import MINIMAL, completed
from test_spec_errors import ALTERNATIVES

from feedline import Pipeline
from feedline.errors import SpecError
from feedline.spec import PipelineSpec, parse_spec
from feedline.spec.document.overrides import parse_overrides
from feedline.spec.document.yaml_document import read_document
from feedline.spec.features import GROUPS
from feedline.spec.sections import keys_of, section_at

DOCS = Path(__file__).parents[2] / "docs"
FENCE = re.compile(r"```yaml\n(.*?)```", re.DOTALL)
TEXT = (DOCS / "pipeline.md").read_text(encoding="utf-8")
BLOCKS = FENCE.findall(TEXT)
SHOWN = [
    pytest.param(block, id=f"{page.stem}-{place}")
    for page in sorted([*DOCS.glob("*.md"), DOCS.parent / "README.md"])
    for place, block in enumerate(FENCE.findall(page.read_text(encoding="utf-8")))
    if page.stem != "expressions"  # its examples have no table
]
ROWS = {
    part.splitlines()[0].strip(): dict(re.findall(r"^\| `(\w+)` \| (.*) \|$", part, re.MULTILINE))
    for part in re.split(r"^##+ ", TEXT, flags=re.MULTILINE)
}


@pytest.mark.parametrize("block", SHOWN)
def test_examples_are_accepted(block):
    text = completed(block)
    assert PipelineSpec.from_canonical(parse_spec(text).canonical())
    assert Validator(Pipeline.json_schema()).valid(read_document(text, "p.yaml").value)


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


@pytest.mark.parametrize("path", [path for path in ALTERNATIVES if path not in (("features",), ("cluster", "tls"))])
def test_every_key_is_described_with_its_default(path):
    model = section_at(PipelineSpec, path)
    [rows] = [rows for heading, rows in ROWS.items() if (heading == ".".join(path) if path else "work_dir" in rows)]
    for key, field in keys_of(model).items():
        _, default, meaning = rows[key].split(" | ")
        assert meaning
        assert ("required" in default) == field.is_required()
        if isinstance(field.default, (bool, int, float, str)):
            assert default == f"`{str(field.default).lower()}`"


def test_every_group_is_described():
    assert set(GROUPS) <= set(ROWS["features"])
    assert all(f"`{key}`" in TEXT for key in ("ca", "cert", "key"))
