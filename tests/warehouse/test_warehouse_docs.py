"""The examples of docs/tables.md and docs/snapshots.md are valid, and the types that they name exist."""

import re
from pathlib import Path

import pyarrow as pa
import pytest
from minimal_pipeline import completed

from feedline.config import PipelineSpec, parse_spec
from feedline.config.source_section import parse_type

TABLES, SNAPSHOTS = (
    (Path(__file__).parents[2] / "docs" / page).read_text(encoding="utf-8") for page in ("tables.md", "snapshots.md")
)
BLOCKS = re.findall(r"```yaml\n(.*?)```", TABLES + SNAPSHOTS, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_are_accepted(block: str) -> None:
    assert PipelineSpec.from_canonical(parse_spec(completed(block)).canonical())


def test_documented_types_exist() -> None:
    [listed] = re.findall(r"Types are written as\s+Arrow\s+writes\s+them:\s+(.*?)\.\n", TABLES, re.DOTALL)
    names = re.findall(r"`([^`]+)`", listed)
    assert len(names) > 15
    assert all(isinstance(parse_type(name), pa.DataType) for name in names)
