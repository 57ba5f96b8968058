"""The section `cache`: its forms, its folder, what is refused, and that pipelines without one stay as they were."""

from pathlib import Path

import pytest
from json_validator import Validator
from minimal_pipeline import MINIMAL

from feedline.config import PipelineSpec, load_spec, parse_spec
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


def test_a_path_is_the_folder_with_all_defaults():
    assert parse("cache: finished").cache == CacheSpec(dir="/jobs/finished")
    cache = parse("cache: /mnt/finished").cache
    assert cache is not None
    assert (cache.folder, cache.size, cache.free, cache.mode, cache.shared) == (
        "/mnt/finished",
        None,
        2**30,
        "auto",
        False,
    )


def test_a_mapping_has_all_keys():
    cache = parse(
        "cache: {dir: ../x, size: 200 GB, free: 10 GiB, mode: features, write_budget: 0.1, shared: true}"
    ).cache
    assert cache == CacheSpec(
        dir="/x", size=200 * 10**9, free=10 * 2**30, mode="features", write_budget=0.1, shared=True
    )


@pytest.mark.parametrize("entry", ["", "cache: off", "cache:", "cache: null", "cache: 'off'"])
def test_without_a_folder_there_is_no_cache(entry: str):
    assert parse(entry).cache is None


def test_a_folder_named_off_is_a_path():
    cache = parse("cache: ./off").cache
    assert cache is not None
    assert cache.folder == "/jobs/off"


def test_relative_folders_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "pipeline.yaml").write_text(MINIMAL + "cache: {dir: finished}")
    assert load_spec(tmp_path / "pipeline.yaml").cache == CacheSpec(dir=f"{tmp_path}/finished")
    monkeypatch.setenv("HOME", "/home/me")
    assert parse("cache: ~/finished").cache == CacheSpec(dir="/home/me/finished")


LOCAL = "must be the path of a local or mounted folder"


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        (
            "cache: s3://bucket/x",
            f"p.yaml:7:8: cache.dir: {LOCAL}: got 's3://bucket/x'. Mount the store, or name a local folder",
        ),
        ("cache: {dir: gs://x}", f"p.yaml:7:14: cache.dir: {LOCAL}: got 'gs://x'"),
        ("cache: file:///x", f"p.yaml:7:8: cache.dir: {LOCAL}: got 'file:///x'. Write the path alone"),
        ("cache: ''", "p.yaml:7:8: cache.dir: must be a non-empty string: got ''"),
        (
            "cache: 3",
            "a mapping with the keys dir, size, free, mode, write_budget, shared: got 3",
        ),
        ("cache: false", "free, mode, write_budget, shared: got false. Write off"),
        ("cache: [a]", "free, mode, write_budget, shared: got a list"),
        ("cache: {}", "p.yaml:7:1: cache.dir: missing key: expected a value. Folder of the cache"),
        ("cache: {mode: off}", "p.yaml:7:1: cache.dir: missing key"),
        ("cache: {dir: x, mode: feature}", "cache.mode: must be one of auto, off, features, source: got 'feature'"),
        ("cache: {dir: x, mode: feature}", "Did you mean features?"),
        ("cache: {dir: x, mode: null}", "cache.mode: must be one of auto, off, features, source: got nothing"),
        ("cache: {dir: x, size: 10 G}", "p.yaml:7:23: cache.size: must be a size in bytes such as 4GiB"),
        ("cache: {dir: x, free: null}", "cache.free: must be a size in bytes"),
        ("cache: {dir: x, write_budget: 8}", "cache.write_budget: must be at most 1.0: got 8"),
        ("cache: {dir: x, write_budget: 0}", "cache.write_budget: must be greater than 0: got 0"),
        ("cache: {dir: x, shared: yes}", "cache.shared: must be true or false: got 'yes'"),
        (
            "cache: {dir: x, sizes: 3}",
            "p.yaml:7:17: cache.sizes: unknown key: got 'sizes', expected one of 'dir', 'size'",
        ),
    ],
)
def test_errors_name_the_value_and_the_remedy(entry: str, line: str):
    assert line in refused(entry)


def test_overrides_switch_the_cache():
    section = "cache: {dir: x, size: 5}"
    assert parse(section, "cache=off").cache is None
    assert parse(section, "cache=").cache is None
    off = parse(section, "cache.mode=off").cache
    assert off is not None
    assert off.is_off
    assert parse("", "cache=/y").cache == CacheSpec(dir="/y")
    assert parse("", "cache.dir=y", "cache.size=4GiB").cache == CacheSpec(dir="/jobs/y", size=2**32)
    assert parse("cache: off", "cache={dir: y, mode: source}").cache == CacheSpec(dir="/jobs/y", mode="source")
    assert refused("cache: x", "cache.mode=off") == (
        "--set cache.mode: cache has no keys to set: got 'x'. Set cache as a whole"
    )
    assert refused("", "cache=s3://b").startswith("--set cache: cache.dir: must be the path of a local or mounted")


def test_variables_are_substituted(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CACHE", "off")
    assert parse("cache: ${CACHE}").cache is None
    monkeypatch.setenv("CACHE", "/fast")
    assert parse("cache: ${CACHE}").cache == CacheSpec(dir="/fast")
    assert parse("cache: {dir: '${CACHE}/x', size: '${SIZE}'}".replace("${SIZE}", "4 GB")).cache == CacheSpec(
        dir="/fast/x", size=4 * 10**9
    )
    monkeypatch.setenv("MODE", "source")
    assert parse("cache: {dir: x, mode: '${MODE}'}").cache == CacheSpec(dir="/jobs/x", mode="source")


@pytest.mark.parametrize("entry", ["cache: off", "cache: {dir: x, mode: off}", "cache: {dir: x, mode: off, size: 5}"])
def test_the_canonical_text_does_not_name_a_cache_that_is_off(entry: str):
    assert parse(entry).canonical() == parse().canonical()
    assert '"cache"' not in parse(entry).canonical()


@pytest.mark.parametrize(
    "entry", ["cache: x", "cache: {dir: x, size: 5, free: 6, mode: source, write_budget: 0.5, shared: true}"]
)
def test_the_canonical_text_gives_an_equal_cache(entry: str):
    spec = parse(entry)
    back = PipelineSpec.from_canonical(spec.canonical())
    assert back == spec != parse()
    assert back.cache == spec.cache


@pytest.mark.parametrize(
    "entry", ["cache: off", "cache: x", "cache: null", "cache: ${CACHE}", "cache: {dir: x, mode: '${MODE}'}"]
)
def test_the_schema_accepts_every_form(entry: str):
    assert Validator(json_schema()).valid(read_document(MINIMAL + entry, "p.yaml").value)
