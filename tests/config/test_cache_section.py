"""The section `cache`: its forms, its folder, what is refused, and that pipelines without one stay as they were."""

import pytest
from jsonschema import Draft202012Validator
from minimal_pipeline import MINIMAL

from feedline.config import PipelineSpec, parse_spec
from feedline.config.cache_section import CacheSpec
from feedline.config.overrides import parse_overrides
from feedline.config.pipeline_spec import json_schema
from feedline.config.yaml_document import read_document
from feedline.errors import SpecError


def parse(entry: str = "", *arguments: str) -> PipelineSpec:
    return parse_spec(MINIMAL + entry, file="p.yaml", overrides=parse_overrides(arguments), base_dir="/jobs")


def refused(entry: str = "", *arguments: str) -> str:
    with pytest.raises(SpecError) as caught:
        parse(entry, *arguments)
    return str(caught.value)


FULL = "cache: {dir: ../x, size: 200 GB, free: 10 GiB, mode: features, write_budget: 0.1, shared: true}"


@pytest.mark.parametrize(
    ("entry", "cache"),
    [
        ("cache: finished", CacheSpec(dir="/jobs/finished", size=None, free=2**30, mode="auto", shared=False)),
        ("cache: ./off", CacheSpec(dir="/jobs/off")),
        (FULL, CacheSpec(dir="/x", size=2 * 10**11, free=10 * 2**30, mode="features", write_budget=0.1, shared=True)),
        *((entry, None) for entry in ("", "cache: off", "cache:", "cache: null", "cache: 'off'")),
    ],
)
def test_every_form_is_read_accepted_by_the_schema_and_read_back(entry: str, cache: CacheSpec | None):
    spec = parse(entry)
    assert spec.cache == cache
    assert PipelineSpec.from_canonical(spec.canonical()).cache == cache
    assert Draft202012Validator(json_schema()).is_valid(read_document(MINIMAL + entry, "p.yaml").value)


LOCAL = "must be the path of a local or mounted folder"


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            "cache: s3://bucket/x",
            f"p.yaml:7:8: cache.dir: {LOCAL}: got 's3://bucket/x'. Mount the store, or name a local folder",
        ),
        ("cache: file:///x", f"p.yaml:7:8: cache.dir: {LOCAL}: got 'file:///x'. Write the path alone"),
        ("cache: 3", "a mapping with the keys dir, size, free, mode, write_budget, shared: got 3"),
        ("cache: false", "free, mode, write_budget, shared: got false. Write off"),
        ("cache: {}", "p.yaml:7:1: cache.dir: missing key: expected a value. Folder of the cache"),
        ("cache: {dir: x, mode: feature}", "must be one of auto, off, features, source: got 'feature'. Did you mean f"),
        ("cache: {dir: x, size: 10 G}", "p.yaml:7:23: cache.size: must be a size in bytes such as 4GiB"),
        ("cache: {dir: x, write_budget: 8}", "cache.write_budget: must be at most 1.0: got 8"),
        ("cache: {dir: x, sizes: 3}", "p.yaml:7:17: cache.sizes: unknown key: got 'sizes', expected one of 'dir', 's"),
    ],
)
def test_errors_name_the_value_and_the_remedy(entry: str, line: str):
    assert line in refused(entry)


def test_overrides_switch_the_cache():
    section = "cache: {dir: x, size: 5}"
    assert parse(section, "cache=off").cache is None
    off = parse(section, "cache.mode=off").cache
    assert off is not None
    assert off.is_off
    assert parse("", "cache.dir=y", "cache.size=4GiB").cache == CacheSpec(dir="/jobs/y", size=2**32)
    assert parse("cache: off", "cache={dir: y, mode: source}").cache == CacheSpec(dir="/jobs/y", mode="source")
    assert refused("cache: x", "cache.mode=off") == (
        "--set cache.mode: cache has no keys to set: got 'x'. Set cache as a whole"
    )
    assert refused("", "cache=s3://b").startswith("--set cache: cache.dir: must be the path of a local or mounted")


@pytest.mark.parametrize("entry", ["cache: off", "cache: {dir: x, mode: off, size: 5}"])
def test_the_canonical_text_does_not_name_a_cache_that_is_off(entry: str):
    assert parse(entry).canonical() == parse().canonical()
    assert '"cache"' not in parse(entry).canonical()
